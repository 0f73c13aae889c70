"""What stands out in a run, in words, with what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from branchwise.diagnostics.history import History
from branchwise.diagnostics.thoughts import WINDOW

RECENT = 20
"""Steps that "now" means."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands out."""

    level: Literal["problem", "advice", "good"]
    what: str
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n    → {self.remedy}" if self.remedy else ""
        return f"{self.level.upper():<8} {self.what}\n    {self.evidence}{remedy}"


def diagnose(history: History) -> list[Finding]:
    """All that stands out, problems first; a finding that all is well where nothing does."""
    if not history.steps:
        return [Finding("problem", "nothing was logged yet", f"{history.path}/metrics.jsonl has no training step")]
    found = [finding for rule in RULES for finding in rule(history)]
    if not any(finding.level == "problem" for finding in found):
        found.append(Finding("good", "nothing alarming stands out", f"{len(history.steps)} steps were looked at"))
    return sorted(found, key=lambda finding: ("problem", "advice", "good").index(finding.level))


def _uniform(h: History) -> Iterator[Finding]:
    level = h.config["algorithm"]["pool"]
    share = h.mean(f"uniform/{level}", RECENT)
    if share is None:
        return
    kinds = {kind: h.mean(f"uniform/{level}/{kind}", RECENT) or 0.0 for kind in ("all_right", "all_wrong", "tied")}
    most = max(kinds, key=lambda kind: kinds[kind])
    evidence = f"{share:.0%} of pools are uniform: " + ", ".join(
        f"{v:.0%} {k.replace('_', ' ')}" for k, v in kinds.items()
    )
    remedies = {
        "all_wrong": "easier or partly paid questions, worked examples in data.examples, or tree.uniform: resample",
        "all_right": "harder questions; tree.uniform: resample leaves solved ones out",
        "tied": "a reward with more values, or one that can differ between responses",
    }
    rescue = "; algorithm.pool: question with tree.rephrasings pools more rewards" if level == "phrasing" else ""
    if share >= 0.999:
        yield Finding("problem", "loss is 0 because every pool is uniform", evidence, remedies[most] + rescue)
    elif share > 0.6:
        yield Finding("problem", "most pools teach nothing", evidence, remedies[most] + rescue)
    rescued, uniform = h.mean("rescued/phrasing"), h.mean("uniform/phrasing")
    if rescued and uniform and level == "question":
        yield Finding(
            "good",
            "pooling by question pays",
            f"of the phrasings' pools, {uniform:.0%} are uniform; {rescued:.0%} of these get a gradient from their "
            "question's pool",
        )


def _idle(h: History) -> Iterator[Finding]:
    idle, taken = h.values("idle_updates"), h.values("grad_norm")
    if idle.sum() and not len(taken):
        yield Finding("problem", "nothing was learnt", "no update had a gradient", "see the findings on uniform pools")
    if (bad := int(h.values("not_finite_updates").sum())) > 0:
        yield Finding(
            "problem",
            "gradients were not finite",
            f"{bad} updates were left out",
            "train.precision: float32, a lower train.learning_rate, or a look at the reward's size",
        )


def _garbled(h: History) -> Iterator[Finding]:
    if h.garbled:
        yield Finding(
            "advice",
            "some of what was logged cannot be read",
            f"{h.garbled} lines of metrics.jsonl, as a crash of the machine leaves them; they are left out",
            "branchwise train … --resume takes those steps again",
        )


def _not_finite(h: History) -> Iterator[Finding]:
    if found := h.not_finite():
        most = sorted(found, key=lambda key: -found[key])
        told = ", ".join(f"{key} ({found[key]})" for key in most[:5])
        more = f" and {len(most) - 5} more" if len(most) > 5 else ""
        yield Finding(
            "problem",
            "metrics are not finite",
            f"NaN or infinite, by steps: {told}{more}; the other findings leave such steps out",
            "train.precision: float32, a lower train.learning_rate, and a look at what the reward returns",
        )


def _rewards(h: History) -> Iterator[Finding]:
    missing, leaves = h.values("missing_rewards").sum(), h.values("leaves").sum()
    if leaves and missing / leaves > 0.02:
        yield Finding(
            "problem",
            "rewards fail",
            f"{missing:.0f} of {leaves:.0f} leaves have none",
            "the reasons stand in trees/ (and in the report, filter `failed`); mend the reward function",
        )
    spread = h.values("reward_std")
    if len(spread) >= 5 and float(spread[-RECENT:].max()) <= 1e-9:
        yield Finding(
            "problem", "the reward has no spread", "all rewards of the last steps are equal", "check the reward"
        )


def _learning(h: History) -> Iterator[Finding]:
    reward = h.values("reward")
    if len(reward) < 6:
        return
    third = max(2, len(reward) // 3)
    early, late = reward[:third], reward[-third:]
    noise = float(np.sqrt(early.var(ddof=1) / len(early) + late.var(ddof=1) / len(late)))
    change = float(late.mean() - early.mean())
    rises = change > 2 * noise and change > 0.01
    told = f"training reward went from {early.mean():.3f} to {late.mean():.3f}"
    if change < -2 * noise and change < -0.01:
        yield Finding("problem", "reward falls", told, "a lower train.learning_rate, or algorithm.kl")
    held_out = [record for record in h.held_out if np.isfinite(record["held_out/mean"])]
    if len(held_out) >= 2:
        before, after = held_out[0], held_out[-1]
        held = f"held-out from {before['held_out/mean']:.3f} to {after['held_out/mean']:.3f}"
        if rises and after["held_out/mean"] <= before["held_out/mean"]:
            yield Finding(
                "problem",
                "reward rises but held-out does not",
                f"{told}, {held}",
                "more or other training questions, fewer epochs, and a look at what is highly paid",
            )
        elif after["held_out/low"] > before["held_out/high"]:
            yield Finding("good", "it learns", f"{told}, {held}, with intervals apart")
    elif rises:
        yield Finding("advice", "reward rises; whether it generalises is not known", told, "set data.eval")


def _thoughts(h: History) -> Iterator[Finding]:
    unclosed = h.mean("unclosed", RECENT)
    if unclosed is not None and unclosed > 0.2:
        yield Finding(
            "problem",
            "thoughts do not close",
            f"{unclosed:.0%} meet their end before {h.config['tree']['marker']}",
            "a larger sampling.max_thought_tokens, worked examples that close, tree.unclosed: force_close, or "
            "tree.marker: null for a model that does not think in tags",
        )
    for kind in ("answer", "response"):
        truncated = h.mean(f"truncated_{kind}s", RECENT)
        if truncated is not None and truncated > 0.2:
            yield Finding(
                "problem",
                f"{kind}s are cut short",
                f"{truncated:.0%} meet the limit",
                "a larger sampling.max_answer_tokens, or algorithm.overlong_buffer",
            )


def _lengths(h: History) -> Iterator[Finding]:
    for kind in ("thought", "response"):
        tokens = h.values(f"{kind}_tokens")
        if len(tokens) < 10:
            continue
        early, late = tokens[:5].mean(), tokens[-5:].mean()
        if late > 2 * early and late > 50:
            yield Finding(
                "problem",
                "lengths explode",
                f"{kind}s went from {early:.0f} to {late:.0f} tokens",
                "algorithm.overlong_buffer, aggregation: constant (Dr.GRPO), or algorithm.kl",
            )
        elif late < 0.4 * early:
            yield Finding(
                "problem",
                "lengths collapse",
                f"{kind}s went from {early:.0f} to {late:.0f} tokens",
                "see in the report whether answers are guessed; a harder reward, or algorithm.kl",
            )


def _entropy(h: History) -> Iterator[Finding]:
    entropy = h.values("entropy_estimate")
    if len(entropy) >= 10 and entropy[-5:].mean() < 0.25 * entropy[:5].mean():
        yield Finding(
            "advice",
            "entropy collapses",
            f"from {entropy[:5].mean():.2f} to {entropy[-5:].mean():.2f} nats a token",
            "a larger algorithm.clip_high (DAPO: 0.28), a lower learning rate; rephrasings keep responses diverse",
        )


def _spikes(h: History) -> Iterator[Finding]:
    share = h.values("gss_at_10")
    if len(share) and share[-1] > 0.01:
        yield Finding(
            "problem",
            "gradients spike",
            f"{share[-1]:.1%} of updates are more than 10 times those before them (GSS@10)",
            "more answers a thought (tree.answers), a lower train.max_grad_norm",
        )
    clipped = h.mean("clip_high/thought", RECENT)
    if clipped is not None and clipped > 0.2:
        yield Finding("advice", "many tokens are clipped", f"{clipped:.0%}", "fewer train.updates and epochs a batch")


def _mismatch(h: History) -> Iterator[Finding]:
    mismatch = h.mean("mismatch", RECENT)
    if mismatch is not None and mismatch > 0.05 and h.config["algorithm"]["correction"] is None:
        yield Finding(
            "problem",
            "sampler and policy differ",
            f"mean |Δ log p| is {mismatch:.3f} a token",
            "sampling.dtype: float32, or algorithm.correction: 2.0",
        )
    for key in sorted({key for step in h.steps for key in step if key.startswith("context_shift/")}):
        shift = h.mean(key, RECENT)
        if shift is not None and shift > 1.0 and h.config["algorithm"]["anchor"] == "original":
            yield Finding(
                "advice",
                f"phrasing {key.split('/')[1]} is far from the original",
                f"log π(o|q_n) − log π(o|q0) is {shift:.2f} nats a token",
                "better rephrasings, or algorithm.anchor: behaviour",
            )


def _shape(h: History) -> Iterator[Finding]:
    answers, thoughts = h.values("advice/answers"), h.values("advice/thoughts")
    now = (h.config["tree"]["thoughts"], h.config["tree"]["answers"])
    if len(answers) and len(thoughts) and (int(thoughts[-1]), int(answers[-1])) != now:
        within, between = h.mean("variance/within", WINDOW), h.mean("variance/between", WINDOW)
        thought, answer = h.mean("seconds_per_thought", WINDOW), h.mean("seconds_per_answer", WINDOW)
        costs = f"a thought takes {thought:.2g} s, an answer {answer:.2g} s; " if thought and answer else ""
        yield Finding(
            "advice",
            f"tree.thoughts: {int(thoughts[-1])}, tree.answers: {int(answers[-1])} would use the same time better",
            f"variance within thoughts {within:.3f}, between {between:.3f}; {costs}now {now[0]} thoughts of {now[1]} "
            "answers",
        )


RULES: tuple[Callable[[History], Iterator[Finding]], ...] = (
    _garbled, _uniform, _idle, _not_finite, _rewards, _learning, _thoughts, _lengths, _entropy, _spikes, _mismatch,
    _shape,
)  # fmt: skip
