"""The error of a setting, the data or a reward function that cannot be."""


class ConfigError(ValueError):
    """Says which key or row, its value, and what would be right."""
