"""The errors that are told to a user in a line, without a traceback."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Says which key or row, its value, and what would be right."""


def nearest(wanted: str | Iterable[str], known: Iterable[str]) -> str:
    """`; did you mean 'Question'?` where a known name is close to a wanted one, whatever its case; else nothing."""
    by_name = {name.lower(): name for name in known}
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if close := difflib.get_close_matches(name.lower(), by_name, n=1, cutoff=0.7):
            return f"; did you mean {by_name[close[0]]!r}?"
    return ""


class WorkStopped(RuntimeError):
    """The work cannot go on: a quota, a budget, a dead endpoint, numbers that are not finite. Says what was kept, and
    how to go on."""
