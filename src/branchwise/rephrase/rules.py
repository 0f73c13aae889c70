"""Rewrites by rule, without a model: another frame, order, layout or form of the numbers. They change no meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

from branchwise.rephrase.formulas import formulas
from branchwise.rephrase.language import language
from branchwise.rephrase.quantities import CARDINALS
from branchwise.rephrase.writer import Order, Reply

FRAMES = (
    "Solve this problem: {q}",
    "Work on the following task. {q}",
    "Consider the following. {q}",
    "Read carefully and find what is asked for. {q}",
    "Here is something to work out: {q}",
    "{q} Work it out carefully.",
    "Look at this situation and give what it asks for. {q}",
    "{q} Take all conditions into account.",
)
_VERBS = ("Find", "Determine", "Calculate", "Compute", "Work out")
_VERB = re.compile(rf"(?<![\w$])(?:{'|'.join(_VERBS)})(?= (?:the|all|how|\$|\\))")
_QUESTION = re.compile(r"What is (?P<what>the [^?$]*|\$[^$]+\$[^?$]*)\?")
_ASKS = re.compile(rf"\?$|\b(?:{'|'.join(_VERBS)}|Evaluate|Express|Simplify|Give)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$\\0-9\"'(])")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|vs|etc|No|[A-Z]|p\.m|a\.m)\.$")
_TIED = re.compile(
    r"\b(?:he|she|they|it|his|her|hers|their|theirs|its|them|him|this|that|these|those|then|after\w*|before|next|also|another|other|"
    r"others|rest|remain\w*|each|both|latter|former|same|such|there|more|less|fewer|than|later|finally|however|but|so|if|when|"
    r"first|second|third|last|now|again|too|instead|still|let|suppose|where|given|begin\w*|start\w*|end\w*|initially|the)\b",
    re.IGNORECASE,
)
"""Words that tie a sentence to those around it; one without them may stand anywhere."""
_DIGIT = re.compile(
    r"(?<![\w$€£.,/:^_{(=+*\\-])(?:[2-9]|1[0-2])(?![\w.,/:%^_})=+*\\°-]|\.\d| *[%:=+*/×÷-]|-)(?= [a-z])"
)
_WORD_OF = {value: word for word, value in CARDINALS.items()}
_SPELT = re.compile(r"(?<![\w-])(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)(?= [a-z])(?!-)")


def rewrites(question: str, random: Random) -> Iterator[tuple[str, str]]:
    """All rewrites of a question, each with its rule's name; the rules take turns, in an order drawn by `random`.

    What they add is English, so a question in another language has none.
    """
    if language(question) not in (None, "English"):
        return
    turns = [list(rule(question)) for rule in RULES.values()]
    for found in turns:
        random.shuffle(found)
    for turn in range(max(map(len, turns))):
        names = [(name, found[turn]) for name, found in zip(RULES, turns) if turn < len(found)]
        random.shuffle(names)
        yield from names


def frame(question: str) -> Iterator[str]:
    """Another instruction around the whole, or another verb that asks."""
    for text in FRAMES:
        if not (text.startswith("{q} ") and not question.rstrip().endswith((".", "?", "$", "!"))):
            yield text.replace("{q}", question.strip())
    if (asked := _QUESTION.search(question)) and "percent" not in asked["what"]:
        for verb in _VERBS:
            yield question[: asked.start()] + f"{verb} {asked['what']}." + question[asked.end() :]
    if verb_found := _VERB.search(question):
        for verb in _VERBS:
            if verb != verb_found[0]:
                yield question[: verb_found.start()] + verb + question[verb_found.end() :]


def order(question: str) -> Iterator[str]:
    """Two neighbouring sentences change places where neither is tied to the other; or what is asked comes first."""
    parts = sentences(question)
    for i in range(len(parts) - 2):  # the last one asks
        if not (_TIED.search(parts[i]) or _TIED.search(parts[i + 1]) or "?" in parts[i] + parts[i + 1]):
            yield " ".join([*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]])
    if len(parts) > 1 and parts[-1].endswith("?") and not re.search(r"\bthere\b", parts[-1]):
        facts = " ".join(parts[:-1])
        for joint in ("Use these facts:", "What is known:", "This is the situation:"):
            yield f"{parts[-1]} {joint} {facts}"


def layout(question: str) -> Iterator[str]:
    """The facts as a list, what is asked after it; paragraphs for sentences."""
    parts = sentences(question)
    if len(parts) < 2 or "[asy]" in question or "?" in "".join(parts[:-1]) or not _ASKS.search(parts[-1]):
        return
    facts = "\n".join(f"- {part}" for part in parts[:-1])
    for head, tail in (("Known:", "Asked:"), ("Facts:", "Question:"), ("Given:", "To find:")):
        yield f"{head}\n{facts}\n{tail} {parts[-1]}"


def number_form(question: str) -> Iterator[str]:
    """Small numbers of the prose in words where they were in digits, or the other way round."""
    if formulas(question) or "[asy]" in question:
        return
    in_words = _DIGIT.sub(lambda m: _WORD_OF[int(m[0])], question)
    in_words = in_words[:1].upper() + in_words[1:]
    in_digits = _SPELT.sub(lambda m: str(CARDINALS[m[0]]), question)
    yield from (text for text in (in_words, in_digits) if text != question)


RULES: dict[str, Callable[[str], Iterator[str]]] = {
    "frame": frame,
    "order": order,
    "layout": layout,
    "number_form": number_form,
}
KINDS = {"wording": ("frame",), "format": ("layout", "number_form"), "order": ("order",), "variables": ()}


def sentences(text: str) -> list[str]:
    """Sentences; none is parted inside a formula or after an abbreviation."""
    parts: list[str] = []
    has_formulas = bool(formulas(text))
    for part in _SENTENCE.split(text.strip()):
        if parts and (_ABBREVIATION.search(parts[-1]) or _is_open(parts[-1], has_formulas)):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    return parts


def _is_open(text: str, has_formulas: bool) -> bool:
    """Whether a formula or an environment goes on after the text."""
    dollars = text.replace("\\$", "").count("$") % 2 if has_formulas else 0
    return bool(dollars) or any(text.count(a) > text.count(b) for a, b in (("\\[", "\\]"), ("\\begin", "\\end")))


class RuleWriter:
    """Writes by rule. Reply number `sample` of a question is its rewrite number `sample`: no two are the same."""

    name = "rules"
    stored = False

    def __init__(self, kinds: list[str]) -> None:
        self.rules = {rule for kind in kinds for rule in KINDS[kind]}

    async def ask(self, order: Order, admit: Callable[[], None]) -> Reply:
        random = Random(f"{order.settings.seed} {order.question}")
        found = [(name, text) for name, text in rewrites(order.question, random) if name in self.rules]
        if order.sample >= len(found):
            return Reply(None, "exhausted")
        name, text = found[order.sample]
        return Reply(text, "stop", served_by=f"rules/{name}")

    async def stop(self) -> None:
        pass

    async def close(self) -> None:
        pass
