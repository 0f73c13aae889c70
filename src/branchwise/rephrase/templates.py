"""The prompts a writer, a judge and a solver are given: text files, which a user may replace."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from branchwise.errors import ConfigError

SHIPPED = Path(__file__).parent / "prompts"
_REQUIRED = {"judge": ("{question}", "{rephrasing}")}


@dataclass(frozen=True, slots=True)
class PromptFile:
    """One prompt with the version that records and the store know it by."""

    name: str
    text: str

    @property
    def version(self) -> str:
        """Its name and a digest of its text: another text is another version."""
        return f"{self.name}-{hashlib.sha256(self.text.encode()).hexdigest()[:8]}"

    def fill(self, **parts: str) -> str:
        """The text with `{question}` and its like replaced; other braces stand."""
        return re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], match[0]), self.text)


def load_prompt(name: str, folder: str | None = None) -> PromptFile:
    """The prompt `name`.txt of the user's folder where it is there, else the shipped one.

    Raises:
        ConfigError: the folder is missing, or the prompt lacks a place for what it asks about.
    """
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"rephrase.prompts: {folder!r} is no folder; name one with files such as wording.txt")
    own = Path(folder) / f"{name}.txt" if folder is not None else SHIPPED / f"{name}.txt"
    path = own if own.is_file() else SHIPPED / f"{name}.txt"
    text = path.read_text(encoding="utf-8-sig").strip()
    for place in _REQUIRED.get(name, ("{question}",)):
        if place not in text:
            raise ConfigError(f"{path}: a prompt needs {place} where the text is to stand")
    return PromptFile(name, text)
