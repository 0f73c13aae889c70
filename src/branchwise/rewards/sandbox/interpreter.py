"""The Python that runs inside: which files it is made of."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

INSIDE = Path(__file__).parent / "inside"
MOUNTED = "/branchwise"
"""Where `INSIDE` is seen from inside."""


def executable() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())


def arguments(mode: str, limits: dict[str, int], folder: str = MOUNTED, python: str | None = None) -> list[str]:
    """The command line that runs `boot.main`: no site packages, and no limit on the digits of a number."""
    code = f"import sys; sys.path.insert(0, {folder!r}); import boot; boot.main({mode!r}, {limits!r})"
    return [python or executable(), "-S", "-s", "-B", "-X", "utf8", "-X", "int_max_str_digits=0", "-c", code]


LINKED = ("_bz2", "_crypt", "_ctypes", "_decimal", "_hashlib", "_lzma", "_sqlite3", "_ssl", "_uuid", "pyexpat", "zlib")
"""Modules of the standard library that bring libraries of their own; those for terminals and screens are left out."""

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # sets of texts in the same order every time
}


@lru_cache
def files() -> tuple[str, ...]:
    """Paths that the interpreter needs: itself, its standard library, and the shared libraries of both."""
    library = Path(sysconfig.get_path("stdlib")).resolve()
    platform = Path(sysconfig.get_path("platstdlib")).resolve()
    base = Path(sys.base_prefix)
    library, platform = (
        base / path.relative_to(sys.prefix) if path.is_relative_to(sys.prefix) else path for path in (library, platform)
    )
    modules = [path for name in LINKED for path in (platform / "lib-dynload").glob(f"{name}.*so")]
    binaries = [executable(), *map(str, modules)]
    return tuple(dict.fromkeys([executable(), str(library), str(platform), *_shared_libraries(binaries)]))


def _shared_libraries(binaries: list[str]) -> list[str]:
    """What the dynamic linker loads for them, and what libc loads later when threads end."""
    found = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    libraries = set()
    for line in found.splitlines():
        _, arrow, target = line.partition("=>")
        words = (target if arrow else line).split()
        if words and words[0].startswith("/") and not words[0].endswith(":"):
            libraries.add(words[0])
    libc = next((Path(path).parent for path in libraries if "/libc.so" in path), None)
    if libc and (libc / "libgcc_s.so.1").exists():
        libraries.add(str(libc / "libgcc_s.so.1"))
    return sorted(libraries)


def masked() -> list[str]:
    """Folders of installed packages inside the standard library's: these are no part of the interpreter."""
    return [str(path) for root in files()[1:3] for path in Path(root).glob("*-packages") if path.is_dir()]
