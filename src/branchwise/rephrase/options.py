"""The options of a multiple-choice question."""

from __future__ import annotations

import re

_LABEL = re.compile(
    r"^[^\S\n]*(?:[-*][^\S\n]+)?(?:\*\*)?[(\[]?([A-J])[)\].:](?:\*\*)?\s+(?=\S)|(?<=\s)\(([A-J])\)\s*(?=\S)",
    re.MULTILINE,
)


def options(text: str) -> dict[str, str]:
    """Each option's words by its letter; one ends with its line, or where the next begins. Empty of fewer than two."""
    found = list(_LABEL.finditer(text))
    if len(found) < 2:
        return {}
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {m[1] or m[2]: _bare(text[m.end() : end].split("\n")[0]) for m, end in zip(found, ends)}


def changed_options(original: str, text: str) -> str | None:
    """How the options differ: their letters, or what stands at one (its words count, neither signs nor case)."""
    before, after = options(original), options(text)
    if before.keys() != after.keys():
        return f"the options {', '.join(before) or '(none)'} became {', '.join(after) or '(none)'}"
    for letter, words in before.items():
        if words != after[letter]:
            return f"option {letter}, {words!r}, became {after[letter]!r}"
    return None


def _bare(text: str) -> str:
    text = re.sub(r"\\[()]|\$", "", text)
    return " ".join(text.split()).strip(" .;,*").removesuffix(" and").removesuffix(" or").strip(" .;,").casefold()
