"""A run in progress: a few lines in the terminal, and the report's page, served to this machine's browser."""

from __future__ import annotations

import json
import math
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from branchwise.diagnostics.diagnose import diagnose
from branchwise.diagnostics.history import History, read_history
from branchwise.errors import ConfigError
from branchwise.report.collect import RunData, collect_run
from branchwise.report.page import TREE_BYTES, chunks, page, payload

SHOWN = (
    "reward", "uniform/question", "uniform/phrasing", "rescued/phrasing", "unclosed", "thought_tokens",
    "response_tokens/right", "response_tokens/wrong", "grad_norm", "gss", "entropy_estimate", "kl", "mismatch",
    "tokens_per_second", "seconds",
)  # fmt: skip
BARS = "▁▂▃▄▅▆▇█"


def watch(run: str | Path, port: int, every: float = 2.0, console: Console | None = None) -> None:
    """Show a run until it ends or the user stops it; port 0 serves no page.

    Raises:
        ConfigError: the folder is no run's, or the port cannot be had.
    """
    console = console or Console()
    read_history(run)
    try:
        server = serve(run, port) if port else None
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port: {port}: {error}; name another, or 0 for the terminal alone") from None
    if server:
        console.print(f"page: http://127.0.0.1:{server.server_address[1]}/", highlight=False)
    try:
        with Live(console=console, refresh_per_second=2) as live:
            while True:
                history = read_history(run)
                live.update(screen(history))
                if history.summary is not None and not server:
                    break
                time.sleep(every)
    finally:
        if server:
            server.shutdown()


def screen(history: History) -> Group:
    """Numbers with their course, and what stands out."""
    c = history.config
    last = history.steps[-1]["step"] if history.steps else 0
    state = "done" if history.summary is not None else "running"
    table = Table(title=f"{history.path.name}: step {last} of {c['train']['steps']}, {state}", title_justify="left")
    for column in ("metric", "now", "mean of 10", "course"):
        table.add_column(column, justify="left" if column in ("metric", "course") else "right")
    for key in SHOWN:
        values = history.values(key)
        if len(values):
            table.add_row(key, f"{values[-1]:.4g}", f"{values[-10:].mean():.4g}", sparkline(values[-40:].tolist()))
    for h in history.held_out[-1:]:
        interval = f"[{h['held_out/low']:.3f}, {h['held_out/high']:.3f}]"
        course = sparkline([one["held_out/mean"] for one in history.held_out])
        table.add_row("held_out", f"{h['held_out/mean']:.4g}", interval, course)
    lines = [
        Text(f"{f.level}: {f.what} ({f.evidence})" + (f" → {f.remedy}" if f.remedy else "")) for f in diagnose(history)
    ]
    return Group(table, *lines)


def sparkline(values: list[float]) -> str:
    """A line of bars from the least to the greatest value; those that are not finite are left out."""
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    low, high = min(values), max(values)
    if high - low < 1e-12:
        return BARS[3] * len(values)
    return "".join(BARS[round((v - low) / (high - low) * (len(BARS) - 1))] for v in values)


class Pages:
    """What the server answers with; the run is read again only when its metrics have grown."""

    def __init__(self, run: str | Path) -> None:
        self.run = Path(run)
        self._lock = threading.Lock()
        self._read: tuple[int, RunData, dict[str, str]] | None = None

    def answer(self, path: str) -> tuple[str, str] | None:
        """Body and content type; None where there is nothing of that name."""
        data, pieces = self._current()
        if path == "/":
            return page(data, {}), "text/html; charset=utf-8"
        if path == "/data.json":
            return json.dumps(data, default=str, allow_nan=False), "application/json"
        name = path.removeprefix("/piece/")
        return (pieces[name], "text/plain") if name in pieces else None

    def _current(self) -> tuple[dict[str, Any], dict[str, str]]:
        with self._lock:
            size = (self.run / "metrics.jsonl").stat().st_size
            if self._read is None or self._read[0] != size:
                run = collect_run(self.run, TREE_BYTES)
                self._read = (size, run, chunks([run]))
            return payload([self._read[1]], live=True), self._read[2]


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, pages: Pages, *args: Any, **kwargs: Any) -> None:
        self.pages = pages
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        # a page elsewhere must not read a run through a name that it points at this machine
        if self.headers.get("Host", "").split(":")[0] not in ("127.0.0.1", "localhost"):
            self.send_error(403)
            return
        found = self.pages.answer(self.path)
        if found is None:
            self.send_error(404)
            return
        body = found[0].encode("utf-8")
        self.send_response(200)
        self.send_header("Content-Type", found[1])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal shows the run."""


def serve(run: str | Path, port: int) -> ThreadingHTTPServer:
    """Serve a run's page to this machine alone; port 0 takes a free one. Stop it with `shutdown()`."""
    server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, Pages(run)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
