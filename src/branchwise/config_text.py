"""Settings as text: YAML files, `key=value` overrides, one laid over the other, and nested keys with dots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from branchwise.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML whose mappings have each key once; as a rule the last one silently wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A file's mapping.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file")
    if path.is_dir():
        raise ConfigError(f"{path}: a folder; name the YAML file")
    try:
        values = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a config is a mapping of sections (model:, data:, …)")
    return values


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=value` as a mapping.

    Raises:
        ConfigError: there is no key or no value, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{text!r}: an override reads key=value, such as train.steps=20")
    try:
        parsed: Any = _number_or_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r}: its value is not YAML ({' '.join(str(error).split())})") from None
    for part in reversed(key.split(".")):
        parsed = {part: parsed}
    return parsed


def _number_or_yaml(value: str) -> Any:
    # YAML 1.1 takes 1e-6 for text
    try:
        return float(value) if "e" in value.lower() else yaml.safe_load(value)
    except ValueError:
        return yaml.safe_load(value)


def merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """`high` laid over `low`, mapping by mapping."""
    merged = dict(low)
    for key, value in high.items():
        under = merged.get(key)
        if isinstance(under, str) and isinstance(value, dict):
            under = {"kind" if key == "engine" else "path": under}  # an engine or a source in short
        merged[key] = merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found
