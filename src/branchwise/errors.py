"""The errors that are told to a user in a line, without a traceback."""


class ConfigError(ValueError):
    """Says which key or row, its value, and what would be right."""


class WorkStopped(RuntimeError):
    """The work cannot go on: a quota, a budget, a dead endpoint, numbers that are not finite. Says what was kept, and
    how to go on."""
