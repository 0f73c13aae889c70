"""Programs in a model's text."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "py3")
_START = re.compile(r"^(?:from|import|def|async def|class|@)\b", re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of the fenced blocks; one that is not closed goes to the end."""
    found, at = [], 0
    while opening := _FENCE.search(text, at):
        closing = re.compile(rf"^[ \t]*{re.escape(opening['fence'])}[`~]*[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        found.append((opening["language"].lower(), text[opening.end() : end.start() if end else len(text)]))
        at = end.end() if end else len(text)
    return found


def programs(text: str, name: str | None = None) -> list[str]:
    """Sources to try: the text's last Python block, that which defines `name` before others.

    Blocks of another language never count. Without blocks the text itself is code, or what begins where a line looks
    like the beginning of code.
    """
    fenced = blocks(text)
    python = [code for language, code in fenced if language in _PYTHON]
    python = python or [code for language, code in fenced if not language]
    if python:
        defining = [code for code in python if name and defines(code, name)]
        found = [_dedent((defining or python)[-1])]
    elif fenced:
        found = []
    else:
        start = _START.search(text)
        found = [text, text[start.start() :]] if start and start.start() else [text]
    return [source for source in found if source.strip()]


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
    rests = found[:1]
    indented = ["\n".join(f"    {line}" for line in code.splitlines()) for code in rests]
    return [source for code in rests + indented for source in (prompt + code, f"{prompt}\n{code}")]


def _dedent(code: str) -> str:
    """A block that stands indented in a list is not indented itself; the rest of a function is."""
    lines = [line for line in code.splitlines() if line.strip()]
    indent = re.match(r"[ \t]*", lines[0])[0] if lines else ""  # type: ignore[index]
    if indent and _START.match(lines[0].strip()) and all(line.startswith(indent) for line in lines):
        return "\n".join(line.removeprefix(indent) for line in code.splitlines())
    return code
