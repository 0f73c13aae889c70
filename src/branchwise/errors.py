"""The errors that are told to a user in a line, without a traceback."""


class ConfigError(ValueError):
    """Says which key or row, its value, and what would be right."""


class WorkStopped(RuntimeError):
    """Something outside ended the work: a quota, a budget, a dead endpoint. Says what was kept, and how to go on."""
