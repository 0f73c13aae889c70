"""Programs in a model's text."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n", re.MULTILINE)
_ANY_FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)", re.MULTILINE)
_TAG = re.compile(r"^[ \t]*(?:</?(?:answer|code)>|\[(?:BEGIN|DONE|/?PYTHON)\])|</(?:answer|code)>[ \t]*$", re.MULTILINE)
"""What some prompts ask answers to be put between."""
_PYTHON = re.compile(r"py(?:thon)?[\d.]*")
_START = re.compile(r"^(?:from|import|def|async def|class|@)\b", re.MULTILINE)
_PROSE = re.compile(r"^(?![^\n]*=)(?:[A-Z][\w'-]*(?:[ ,:!]|\.\s)|\*\*|[-*] |\d+\. |##+ )", re.MULTILINE)
"""The beginning of a line that looks like a sentence, a heading or a list."""
_DEFINITION = re.compile(r"[\s#@)\]}]|from\b|import\b|def\b|async def\b|class\b")


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of the fenced blocks; one that is not closed goes to the end."""
    found, at = [], 0
    while opening := _FENCE.search(text, at):
        closing = re.compile(rf"^[ \t]*{re.escape(opening['fence'])}[`~]*[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        code = text[opening.end() : end.start()] if end else text[opening.end() :].rstrip().removesuffix("```")
        found.append((opening["language"].lower(), code))
        at = end.end() if end else len(text)
    return found


def programs(text: str, name: str | None = None) -> list[str]:
    """Sources to try: the text's last Python block, that which defines `name` before others.

    It comes after the blocks before it that hold nothing but imports and definitions. Blocks of another language never
    count. Without blocks, or before a fence that only ends one, the text itself is code, or what begins where a line
    looks like the beginning of code and ends where one looks like prose.
    """
    text = _TAG.sub("", text.removeprefix("\ufeff").replace("\r\n", "\n"))
    fenced = blocks(text)
    python = [_dedent(code) for language, code in fenced if _PYTHON.fullmatch(language)]
    python = python or [_dedent(code) for language, code in fenced if not language]
    if python:
        chosen = max((i for i, code in enumerate(python) if name and defines(code, name)), default=len(python) - 1)
        before = [code for code in python[:chosen] if _only_defines(code) and not (name and defines(code, name))]
        found = ["\n".join([*before, python[chosen]]), python[chosen]] if before else [python[chosen]]
    else:
        found = [] if fenced else _unfenced(text)
    found += _unfenced(_before_lone_fence(text))
    return [source for source in found if source.strip()]


def _unfenced(text: str) -> list[str]:
    start = _START.search(text)
    found = [text, text[start.start() :]] if start and start.start() else [text]
    cut = [source[: prose.start()] for source in reversed(found) if (prose := _PROSE.search(source))]
    return found + cut


def _before_lone_fence(text: str) -> str:
    """What is before the first fence where that may only close a block: the prompt opened it."""
    fences = list(_ANY_FENCE.finditer(text))
    return text[: fences[0].start()] if len(fences) % 2 and not fences[0]["language"] else ""


def _only_defines(code: str) -> bool:
    """Whether running the code could only import and define, by the look of its lines."""
    return all(_DEFINITION.match(line) for line in code.split("\n") if line)


def defines(code: str, name: str) -> bool:
    """Whether the code defines or binds the name at its top level, by the look of its lines."""
    name = re.escape(name)
    return bool(re.search(rf"^(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*(?::[^=\n]+)?=", code, re.MULTILINE))


def completions(text: str, prompt: str, name: str) -> list[str]:
    """Sources to try for a text that answers a prompt of code: whole programs come after the prompt's imports and
    helpers; anything else goes on where the prompt ends."""
    found = programs(text, name)
    whole = [code for code in found if defines(code, name)]
    if whole:
        return [source for code in whole for source in (f"{prompt}\n\n{code}", code)]
    indented = ["\n".join(f"    {line}" for line in code.split("\n")) for code in found]
    stripped = [f"    {code.lstrip()}" for code in found]
    rests = found + indented + stripped
    return [source for code in rests for source in (prompt + code, f"{prompt}\n{code}")]


def _dedent(code: str) -> str:
    """A block that stands indented in a list is not indented itself; the rest of a function is."""
    lines = [line for line in code.split("\n") if line.strip()]
    indent = re.match(r"[ \t]*", lines[0])[0] if lines else ""  # type: ignore[index]
    if indent and _START.match(lines[0].strip()) and all(line.startswith(indent) for line in lines):
        return "\n".join(line.removeprefix(indent) for line in code.split("\n"))
    return code
