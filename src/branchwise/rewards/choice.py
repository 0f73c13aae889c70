"""The built-in reward for multiple choice: 1 for the right letter, or its option's text, and 0 for any other.

A letter counts where it is declared, not where it merely occurs: in a box or an `<answer>`, after words for "the answer
is" in several languages, alone on the last line, or at the beginning before its option. The last declaration wins;
denied ones (`not B`) and conditions (`if the answer were B`) are none, and two letters at once (`A or B`) are none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from branchwise.rewards import choice_words as words
from branchwise.rewards.mathematics.equality import equal
from branchwise.rewards.mathematics.extraction import last_box, last_tagged
from branchwise.rewards.response import answer_texts

_LETTERS = "ABCDEFGHIJ"
"""Where the data tells no options."""
_LONGEST = 20_000
_MOST_CUES = 500
_LABEL = re.compile(r"[\s(\[*_]*([A-Za-z])(?:[)\].:]|\s*[-–—]\s|,?\s+(?=because|since))[)\]*_]*\s*(.+)")
_LABEL_AMID = re.compile(r"(?<!\w)(?:[A-J][).:]\s|\([A-J]\)|[,;&] ?[A-J]\b)")
_ANOTHER = re.compile(r"[(\[*]*[A-J][)\]*.\s]*(?:$|(?:or|and)\b|[/&,;])")
"""Another letter where a reason or an option is due: `A: B`, `A. B or C`."""
_COMMAND = re.compile(r"\\(?:text|textbf|mathbf|mathrm)\s*\{([^{}]*)\}|\\(?:[ ,;:!]|q?quad\b)")
_OPTION_START, _OPTION_END = r"(?<![\w.−*/^+-])", r"(?!\w|[.,]\d|\s?[/^*+×]|-\w|\s\d|\s?%)"
"""Of an option's text within another: 12 is not in -12, 12/5 or 1/12."""
_LAST = re.compile(r"[\s(\[*_`\"'$]*([A-J])[\s)\]*_`\"'$.!:]*")
_LONE = re.compile(r"[\s(\[{*_`\"'$]*(?:option |choice )?([A-Za-z])[\s)\]}*_`\"'$.:!]*", re.IGNORECASE)


def choice(
    completions: Sequence[Any],
    answer: Sequence[Any],
    answers: Sequence[str] | None = None,
    choices: Sequence[Any] | None = None,
    **_: Any,
) -> list[float | None]:
    """1 where a response declares the reference's option, else 0; None where the reference is none of the options.

    Args:
        completions, answers: as for `math`.
        answer: reference letters; or options' texts, or their places from 0.
        choices: each row's options: a list, a mapping from letters, or one with `label` and `text`; default: A to J.
    """
    found = answer_texts(completions, answers)
    options = choices if choices is not None else [None] * len(found)
    return [explain(text, reference, some)[0] for text, reference, some in zip(found, answer, options)]


def explain(text: str, reference: Any, choices: Any = None) -> tuple[float | None, str]:
    """The reward of one text without its thought, and the reason for it."""
    options = _options(choices)
    gold = _reference(reference, options)
    if gold is None:
        return None, f"the reference {reference!r} is none of the options {', '.join(options)}"
    given = chosen(text, options)
    if given is None:
        return 0.0, "no option is declared"
    return float(given == gold), f"{given}, where {gold} is right"


def chosen(text: str, options: Mapping[str, str] | None = None) -> str | None:
    """The letter of the option that a text declares; None where it declares none, or several.

    Args:
        text: an answer without its thought.
        options: from letters to texts, '' for unknown ones.
    """
    options = dict.fromkeys(_LETTERS, "") if options is None else options
    text = unicodedata.normalize("NFKC", text[-_LONGEST:]).strip()
    marked = last_box(text) if re.search(r"\\(?:boxed|fbox)", text) else last_tagged(text)
    if marked is not None:
        marked = _COMMAND.sub(lambda m: m[1] or " ", marked)
        return _whole(marked, options) or _declared(marked, options) or _labelled(marked, options)
    if re.search(r"\\(?:boxed|fbox)", text):
        return None
    for read in (_whole, _declared, _labelled, _last_line, _mentioned):
        if (letter := read(text, options)) is not None:
            return letter
    return None


def _whole(text: str, options: Mapping[str, str]) -> str | None:
    """A text that is a letter, an option, or a letter before its option."""
    text = _COMMAND.sub(lambda m: m[1] or " ", text).strip()
    if (match := _LONE.fullmatch(text)) and match[1].upper() in options and text.count("'") != 1:
        return match[1].upper()
    same = [letter for letter, option in options.items() if option and _same(option, text)]
    if same:
        return same[0] if len(same) == 1 else None
    match = _LABEL.match(text)
    if match and "\n" not in text and match[1].upper() in options:
        option = options[match[1].upper()]
        return match[1].upper() if option and _same(option, match[2].strip(" *_")) else None
    return None


def _labelled(text: str, options: Mapping[str, str]) -> str | None:
    """The letter before a line that may be its option or its reason, and is neither another's option nor a denial."""
    match = _LABEL.match(text)
    if match is None or "\n" in text or not match[1].isupper() or match[1] not in options:
        return None
    rest = match[2].strip(" *_")
    tail = text[match.end(1) :]
    denied = words.DENIED_AFTER.match(tail) or words.DENIED_HERE.match(rest) or words.JOINED.match(tail)
    several = _LABEL_AMID.search(rest) or _ANOTHER.match(rest)
    if denied or several or any(option and _same(option, rest) for option in options.values()):
        return None
    return match[1]


def _same(option: str, text: str) -> bool:
    a, b = (" ".join(re.sub(r"[*_`$\"'“”]", "", t).split()).strip(" .").casefold() for t in (option, text))
    return a == b or (
        len(text) < 100 and len(option) < 100 and bool(re.search(r"\d|\\", option)) and equal(option, text)
    )


def _declared(text: str, options: Mapping[str, str]) -> str | None:
    """The last declared letter; `the answer is` before weaker words such as `option`."""
    verdicts = [m for m in words.VERDICT.finditer(text) if m[1] in options and not _denied(text, m)]
    for cue, others in ((words.STRONG, verdicts), (words.WEAK, [])):
        found = [(m.end(), _after(text, m, options)) for m in list(cue.finditer(text))[-_MOST_CUES:]]
        found += [(m.end(), m[1]) for m in others]
        declared = [letter for _, letter in sorted(found, key=lambda pair: pair[0]) if letter is not None]
        if declared:
            return declared[-1] or None
    return None


def _denied(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - 60) : match.start()]
    return any(pattern.search(before) for pattern in (words.DENIED_BEFORE, words.DISBELIEVED, words.CONDITION))


def _after(text: str, cue: re.Match[str], options: Mapping[str, str]) -> str | None:
    """What follows a cue: a letter; '' for several, which is a declaration of none; None where it declares nothing."""
    before = text[max(0, cue.start() - 60) : cue.start()]
    if words.CONDITION.search(before) or words.DISBELIEVED.search(before):
        return None
    if words.DENIED_BEFORE.search(before) and cue.re is words.WEAK:
        return None
    rest = text[cue.end() : cue.end() + 300]
    denial = words.DENIED_HERE.match(rest)
    if denial:
        rest = rest[denial.end() :]
        denied = re.match(rf"{words.FILLER}([A-Za-z])(?![A-Za-zÀ-ÿ'’])", rest, re.IGNORECASE)
        rest = rest[denied.end() :].lstrip(")*\"'") if denied else rest
        but = words.BUT.match(rest)
        return _letter(rest[but.end() :], options) if but else None
    letter = _letter(rest, options)
    if letter is None and cue.re is words.STRONG:
        return _option_at(rest, options)
    return letter


def _letter(rest: str, options: Mapping[str, str]) -> str | None:
    """The letter at the beginning of a text, past words that may stand before it."""
    match = re.match(rf"{words.FILLER}([A-Za-z])(?![A-Za-zÀ-ÿ]|['’][A-Za-zÀ-ÿ]|\s*[=+^])", rest, re.IGNORECASE)
    if match is None or match[1].upper() not in options:
        return None
    tail = rest[match.end() :]
    if match[1].islower() and re.match(r"[ \t]+(?!because|since|as\b|is\b)\w", tail):
        return None
    if match[1].upper() in "AIO" and words.ARTICLE.match(tail):
        return None
    if words.DENIED_AFTER.match(tail):
        return None
    joined = words.JOINED.match(tail)
    if joined and joined[1] in options and joined[1] != match[1].upper():
        return ""
    return match[1].upper()


def _option_at(rest: str, options: Mapping[str, str]) -> str | None:
    """The option whose text stands at the beginning, the longest of several; '' where another is joined to it."""
    start = re.match(r"[\s:：*_`\"'“”$(]*(?:(?:the|a|an|that|la|el|le|die|der|das)\s+)?", rest, re.IGNORECASE)
    text = rest[start.end() if start else 0 :].casefold()
    fits = _options_at(text, options)
    if not fits:
        return None
    length, letter = max(fits)
    other = re.match(rf"{words.JOIN}(?:the\s+)?", text[length:])
    return "" if other and _options_at(text[length + other.end() :], options) else letter


def _options_at(text: str, options: Mapping[str, str]) -> list[tuple[int, str]]:
    """The options that a text in lower case begins with: their lengths and letters."""
    texts = {letter: option.strip(" .").casefold() for letter, option in options.items()}
    return [(len(o), letter) for letter, o in texts.items() if o and re.match(re.escape(o) + _OPTION_END, text)]


def _last_line(text: str, options: Mapping[str, str]) -> str | None:
    """A letter alone on the last line, or as the last sentence, where no other letter has a line of its own."""
    last = re.split(r"[.!?。]\s+|\n", text.strip())[-1]
    match = _LAST.fullmatch(last)
    alone = {found[1] for line in text.splitlines() if (found := _LAST.fullmatch(line))}
    return match[1] if match and match[1] in options and alone <= {match[1]} else None


def _mentioned(text: str, options: Mapping[str, str]) -> str | None:
    """The only option whose text occurs undenied in a short answer."""
    if len(text) > 200 or not all(options.values()):
        return None
    found: set[str] = set()
    free = text.casefold()
    for letter, option in sorted(options.items(), key=lambda item: -len(item[1])):
        for match in list(re.finditer(_OPTION_START + re.escape(option.strip(" .").casefold()) + _OPTION_END, free)):
            before, after = free[: match.start()], free[match.end() :]
            if not (words.DENIED_BEFORE.search(before) or words.DENIED_AFTER.match(after)):
                found.add(letter)
            free = before + " " * len(match[0]) + after
    return found.pop() if len(found) == 1 else None


def _options(choices: Any) -> dict[str, str]:
    """From letters to the options' texts."""
    if isinstance(choices, Mapping) and {"label", "text"} <= choices.keys():
        return {str(label): str(text) for label, text in zip(choices["label"], choices["text"])}
    if isinstance(choices, Mapping):
        return {str(letter).upper(): str(text) for letter, text in choices.items()}
    if isinstance(choices, list | tuple) and choices:
        return {chr(ord("A") + i): _bare(str(text), i) for i, text in enumerate(choices[:26])}
    return dict.fromkeys(_LETTERS, "")


def _bare(option: str, place: int) -> str:
    """An option without its own label."""
    return re.sub(rf"^\(?{chr(ord('A') + place)}[).:]\s*", "", option)


def _reference(reference: Any, options: Mapping[str, str]) -> str | None:
    if isinstance(reference, int) and not isinstance(reference, bool):
        return list(options)[reference] if 0 <= reference < len(options) else None
    text = str(reference).strip()
    letter = text.strip("()[]. ").upper()
    if letter in options:
        return letter
    same = [key for key, option in options.items() if option and _same(option, text)]
    return same[0] if len(same) == 1 else None
