"""The first code inside a sandbox: takes on the limits, gives up its rights, then runs what the first frame holds.

`main(mode, limits)`: `program` runs a source as a script on the rest of standard input; `submission` loads a source and
answers calls; `tests` runs tests whose calls go to a submission elsewhere.
"""

import os
import sys
from types import ModuleType

from wire import Pipe, decode


def main(mode, limits):
    import builtins

    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # left out with the site module, which costs time
    _limit(limits)
    job = decode(Pipe(0, 1).receive())
    if mode == "program":
        _run(job["sources"])
    elif mode == "submission":
        from submission import serve

        serve(Pipe(*_private()), job["sources"])
    else:
        from assertions import run

        run(Pipe(*_private()), job)


def _limit(limits):
    import resource

    for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE"):
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        # never above what the host allows
        value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
        if name == "CPU":
            hard = value + 1 if hard == resource.RLIM_INFINITY else hard  # SIGXCPU first, which tells what it was
            resource.setrlimit(kind, (value, hard))
        else:
            resource.setrlimit(kind, (value, value))
    if limits["uid"]:
        _become(limits["uid"])


def _become(uid):
    os.setgroups([])
    try:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:  # a container that maps few ids: nobody
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def _private():
    """Standard input and output moved where prints and reads do not meet them."""
    pair = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return pair


def compiled(sources, name):
    """The first of the sources that is Python at all.

    Raises:
        SyntaxError, ValueError: none is; the first one's.
    """
    first = None
    for source in sources:
        try:
            return compile(source, name, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            first = first or error
    raise first or SyntaxError("no code")


def _run(sources):
    module = ModuleType("__main__")
    module.__file__ = "program.py"
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    sys.path[:1] = []  # this file's own folder
    exec(compiled(sources, "program.py"), module.__dict__)
