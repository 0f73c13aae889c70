"""How many published rephrasings do the default checks reject, and how many spoiled ones do they let through?

    python benchmarks/rephrase_checks.py ../shared/data/rephrasings_gsmplus.jsonl

Each published rephrasing is spoiled in every way that its text allows, with random numbers from one seed. The spoiler
reads numbers on its own: it shares no code with the checks. Prints a Markdown table, and with --rejected what was
rejected of the published ones.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from branchwise.rephrase.checks import Candidate, rejection

SPELT = "two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty hundred"
WORDS = SPELT.split()
NUMBER = re.compile(rf"\d[\d,]*(?:\.\d+)?(?<!,)|\.\d+|(?<![-\w])(?:{'|'.join(WORDS)})(?![-\w])", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'$\d])")
ANSWERS = ("{text} The answer is {answer}.", "{text} Answer: {answer}", "{text} ({answer})", "{text} {answer}",
           "{text}\n#### {answer}", "{text} Therefore, the result is \\boxed{{{answer}}}.")  # fmt: skip


def changed(text: str, random: Random) -> str | None:
    """One number, in digits or in words, becomes another."""
    if not (found := list(NUMBER.finditer(text))):
        return None
    number = random.choice(found)
    if number[0].lower() in WORDS:
        other = random.choice([word for word in WORDS if word != number[0].lower()])
    else:
        digits = [i for i, c in enumerate(number[0]) if c.isdigit()]
        place = random.choice(digits)
        digit = random.choice([d for d in "123456789" if d != number[0][place]])
        other = number[0][:place] + digit + number[0][place + 1 :]
    return text[: number.start()] + other + text[number.end() :]


def dropped(text: str, random: Random) -> str | None:
    """One number is left out."""
    if not (found := list(NUMBER.finditer(text))):
        return None
    number = random.choice(found)
    return re.sub(r"  +", " ", text[: number.start()] + text[number.end() :])


def sentence_dropped(text: str, random: Random) -> str | None:
    """A sentence that carries a number is left out; None where there is none beside another."""
    sentences = SENTENCE.split(text)
    numbered = [i for i, sentence in enumerate(sentences) if NUMBER.search(sentence)]
    if len(sentences) < 2 or not numbered:
        return None
    gone = random.choice(numbered)
    return " ".join(sentence for i, sentence in enumerate(sentences) if i != gone)


def spoiled(row: dict[str, Any], text: str, rows: list[dict[str, Any]], random: Random) -> Iterator[tuple[str, str]]:
    """Every kind of spoiling with what it makes of the text."""
    other = random.choice([r for r in rows if r is not row])
    versions = {
        "one number changed": changed(text, random),
        "one number dropped": dropped(text, random),
        "a sentence with a number dropped": sentence_dropped(text, random),
        "the answer appended": random.choice(ANSWERS).format(text=text, answer=row["answer"]),
        "another question's text": random.choice([other["problem"], *other["rephrasings"]]),
    }
    yield from ((kind, version) for kind, version in versions.items() if version is not None)


def measure(rows: list[dict[str, Any]], seed: int, rounds: int) -> tuple[dict[str, list[str | None]], list[str]]:
    """By kind, the reason against each spoiled text, None where it passed; and what passed or was wrongly rejected."""
    random, reasons, told = Random(seed), {"published": []}, []
    for row in rows:
        for text in row["rephrasings"]:
            reason = rejection(Candidate(row["problem"], text, row["answer"]))
            reasons["published"].append(reason)
            if reason:
                told.append(f"published, rejected: {reason}\n  Q {row['problem']}\n  R {text}")
            for kind, version in (pair for _ in range(rounds) for pair in spoiled(row, text, rows, random)):
                against = rejection(Candidate(row["problem"], version, row["answer"]))
                reasons.setdefault(kind, []).append(against)
                if against is None:
                    told.append(f"{kind}, accepted:\n  Q {row['problem']}\n  R {version}")
    return reasons, told


def table(reasons: dict[str, list[str | None]]) -> Iterator[str]:
    """By kind: how many, the share rejected (recall), precision of a rejection when as many are sound, and by which."""
    yield "| kind | texts | rejected | precision | by |"
    yield "|---|---|---|---|---|"
    false = sum(map(bool, reasons["published"])) / len(reasons["published"])
    for kind, found in reasons.items():
        share = sum(map(bool, found)) / len(found)
        by = Counter(reason.partition(":")[0] for reason in found if reason)
        precision = "" if kind == "published" else f"{share / (share + false):.1%}"
        told = ", ".join(f"{name} {count}" for name, count in by.most_common(4))
        yield f"| {kind} | {len(found)} | {share:.1%} | {precision} | {told} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="JSONL with problem, answer, rephrasings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="spoilings of each kind and text")
    parser.add_argument("--rejected", action="store_true", help="print every wrong judgement first")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").split("\n") if line.strip()]
    reasons, told = measure(rows, options.seed, options.rounds)
    if options.rejected:
        print("\n".join(told))
    print("\n".join(table(reasons)))


if __name__ == "__main__":
    main()
