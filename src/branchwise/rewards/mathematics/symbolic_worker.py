"""The program of `symbolic.py`'s processes: reads pairs of formulas from standard input, a JSON list a line.

It outlives neither its limit, whatever runs then, nor its parent, whose end closes its input.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy import Expr, I, Symbol

_MEMORY = 2 << 30
_CONFIG = ConversionConfig(lowercase_symbols=False)


def same(gold: str, given: str) -> bool:
    """Of expressions SymPy's `equals`, which proves it; of sets and relations Math-Verify's comparison."""
    a, b = formula(gold), formula(given)
    if a is None or b is None:
        return False
    if isinstance(a, Expr) and isinstance(b, Expr):
        return a.doit().equals(b.doit()) is True
    if isinstance(a, Expr) or isinstance(b, Expr):
        return False
    return bool(verify(a, b, float_rounding=15, strict=True, timeout_seconds=None))


@lru_cache(maxsize=1024)
def formula(text: str) -> Any:
    """The formula in SymPy, its letters real but for i; None where it cannot be read."""
    try:
        found = latex2sympy(text, is_real=True, conversion_config=_CONFIG, normalization_config=None)
        return found.xreplace({Symbol("i", real=True): I})
    except Exception:  # the parser's only kind
        return None


def limit_memory() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > _MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, hard))


def main(seconds: float) -> None:
    logging.disable(logging.WARNING)  # Math-Verify warns of missing timeouts, which are signals
    if sys.platform != "win32":
        limit_memory()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    print("ready", flush=True)
    for line in sys.stdin:
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, seconds + 1)
        try:
            equal = same(*json.loads(line))
        except Exception:  # SymPy, on formulas that it can read but not compare
            equal = False
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
        print("equal" if equal else "unequal", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
