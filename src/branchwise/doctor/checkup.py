"""`branchwise doctor`: the machine and a config's needs side by side, as a table, as plain lines, or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from branchwise.config import Config
from branchwise.doctor.advice import Change, advise
from branchwise.doctor.architecture import Architecture, architecture_of
from branchwise.doctor.machine import OPTIONAL, Machine, look
from branchwise.doctor.memory import Estimate, adapter_parameters, estimate, widths_of

Line = tuple[str, str]
"""What, and how it is."""


@dataclass(frozen=True, slots=True)
class Checkup:
    machine: Machine
    config: Config | None = None
    estimate: Estimate | None = None
    have: int = 0
    """Bytes that the run's device has free."""
    disk: int = 0
    """Bytes that the run will write."""
    advice: tuple[Change, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the run fits in memory and on the disk; without a config there is nothing to fit."""
        return self.estimate is None or (self.estimate.peak <= self.have and self.disk <= self.machine.disk_free)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"machine": self.machine.as_json()}
        if self.estimate is None:
            return found
        e = self.estimate
        found["run"] = {
            "fits": self.fits,
            "device": str(e.device),
            "need": e.peak,
            "have": self.have,
            "stage": e.stage,
            "stages": e.phases,
            "parts": [{"name": p.name, "bytes": p.bytes, "stages": p.stages, "source": p.source} for p in e.parts],
            "disk": self.disk,
            "advice": [
                {"settings": c.settings, "cost": c.cost, "need": c.estimate.peak, "fits": c.estimate.peak <= self.have}
                for c in self.advice
            ],
        }
        return found


def checkup(config: Config | None) -> Checkup:
    """Look at the machine, and at what a config's run would take of it.

    Raises:
        ConfigError: the config's model or device is not there.
    """
    machine = look(Path(config.train.output_dir) if config else Path())
    if config is None:
        return Checkup(machine)
    a = architecture_of(config.model)
    now = estimate(config, a)
    have = machine.accelerators[now.device.index or 0].free if now.device.type == "cuda" else machine.memory_free
    advice = advise(config, a, now, have) if now.peak > have else []
    return Checkup(machine, config, now, have, disk_bytes(config, a, now), tuple(advice))


def disk_bytes(config: Config, a: Architecture, now: Estimate) -> int:
    """The final and the best model, and checkpoints: a model each, and in the newest ones the trained state."""
    n = config.train
    w = widths_of(config, now.device)
    model = a.parameters * w.held
    state = 3 * (adapter_parameters(config, a) * 4 if config.model.lora else model)
    saved = (n.steps - 1) // n.save_every if n.save_every else 0
    with_state = min(saved, n.keep_checkpoints or saved) + (saved > 0)  # one more, while it is written
    best = 1 if config.eval.every else 0
    return (1 + best + saved) * model + with_state * state


def machine_lines(m: Machine) -> list[Line]:
    """The machine, a line each."""
    gpus = [f"{gpu.name}, {_gb(gpu.free)} of {_gb(gpu.total)} free" for gpu in m.accelerators]
    missing = [f"{name} (branchwise[{OPTIONAL[name]}])" for name, version in m.optional.items() if not version]
    there = [f"{name} {version}" for name, version in m.optional.items() if version]
    return [
        ("accelerators", "; ".join(gpus) or "none"),
        ("memory", f"{_gb(m.memory_free)} of {_gb(m.memory_total)} free"),
        ("CPU cores", f"{m.cores}, bfloat16 {'quick' if m.bfloat16 else 'slow'}"),
        ("disk", f"{_gb(m.disk_free)} free at {m.disk}"),
        ("sandbox", m.sandbox),
        *((f"engine {name}", version or "not installed") for name, version in m.engines.items()),
        ("optional packages", ", ".join(there) or "none"),
        ("not installed", ", ".join(missing) or "nothing"),
        ("versions", ", ".join(f"{name} {version}" for name, version in m.versions.items())),
    ]


def run_lines(c: Checkup) -> list[Line]:
    """What the run takes in its most needy stage, part by part, and the verdict."""
    e = c.estimate
    assert e is not None
    stages = ", ".join(f"{stage} {_gb(size)}" for stage, size in e.phases.items())
    return [
        *((part.name, f"{_gb(part.bytes)}: {part.source}") for part in e.parts if e.stage in part.stages),
        ("in all", f"{_gb(e.peak)} on {e.device} (stage: {e.stage}), besides Python and its libraries"),
        ("stages", stages),
        ("there is", f"{_gb(c.have)} free on {e.device}: {'fits' if e.peak <= c.have else 'DOES NOT FIT'}"),
        ("disk", f"{_gb(c.disk)} of {_gb(c.machine.disk_free)} free: {_disk_verdict(c)}"),
        *_advice_lines(c),
    ]


def _disk_verdict(c: Checkup) -> str:
    if c.disk <= c.machine.disk_free:
        return "fits"
    return "DOES NOT FIT; raise train.save_every, or set another train.output_dir"


def _advice_lines(c: Checkup) -> list[Line]:
    if c.estimate is None or c.estimate.peak <= c.have:
        return []
    lines = [
        ("instead", f"{change} → {_gb(change.estimate.peak)}{', fits' if change.estimate.peak <= c.have else ''}")
        for change in c.advice
    ]
    if not any(change.estimate.peak <= c.have for change in c.advice):
        lines.append(("instead", "nothing here makes it fit: a smaller model, or a machine with more memory"))
    return lines


def show(c: Checkup) -> None:
    """Print it: tables on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    sections = [("this machine", machine_lines(c.machine))]
    if c.estimate is not None:
        sections.append(("this run", run_lines(c)))
    for title, lines in sections:
        if not console.is_terminal:
            for name, value in lines:
                print(f"{name}: {value}")
            continue
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in lines:
            bad = "DOES NOT FIT" in value
            table.add_row(name, value, style="red" if bad else "bold" if name == "in all" else None)
        console.print(table)


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e7 else f"{size / 1e6:,.2f} MB"
