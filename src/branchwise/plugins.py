"""A user's own functions, named in a config."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from branchwise.config import ConfigError

PLUGIN = "branchwise_plugin:"
"""Before a file's path, the name of its module."""


def load_function(spec: str) -> Callable[..., Any]:
    """The function that `spec` names: `package.module.function`, or `path/to/file.py:function`.

    A file is run once, however many of its functions are named.

    Raises:
        ConfigError: nothing of that name can be loaded, or it cannot be called.
    """
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        module = _load_file(spec, Path(file).expanduser().resolve())
    else:
        path, dot, name = spec.rpartition(".")
        if not dot or colon:
            raise ConfigError(f"{spec!r} names no function; write 'package.module.function' or 'file.py:function'")
        module = _load_module(spec, path)
    function = getattr(module, name, None)
    if not callable(function):
        there = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ConfigError(f"{spec!r}: no function {name!r} there; choose one of {', '.join(there) or '(none)'}")
    return function


def spec_of(function: Any) -> str | None:
    """The `spec` by which another process loads the same function; None where there is none.

    There is none for lambdas, closures, methods and objects, nor for functions of the script being run: to import
    that again may run it again.
    """
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
    if not isinstance(function, FunctionType) or module == "__main__" or not name.isidentifier():
        return None
    if getattr(sys.modules.get(module), name, None) is not function:
        return None
    return f"{module.removeprefix(PLUGIN)}:{name}" if module.startswith(PLUGIN) else f"{module}.{name}"


def _load_file(spec: str, path: Path) -> ModuleType:
    name = f"{PLUGIN}{path}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigError(f"{spec!r}: no such file: {path}")
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None and found.loader is not None  # a path that ends in .py always has a loader
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pickles look their module up while it runs
    try:
        found.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{spec!r}: {path} fails when run: {type(error).__name__}: {error}") from error
    return module


def _load_module(spec: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except Exception as error:
        raise ConfigError(
            f"{spec!r}: cannot import {path!r}: {type(error).__name__}: {error}; "
            "install its package, or name its file: 'file.py:function'"
        ) from error
