"""A worker process for reward functions: loads those it is told, calls them, sends back plain values."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

from branchwise.errors import ConfigError
from branchwise.plugins import load_function
from branchwise.rewards.adapt import Answer, Call, RewardFunction, answer
from branchwise.rewards.sandbox.process import adopt_orphans


def serve(fd: int) -> None:
    """Answer calls until the other end is closed."""
    _end_with_parent()
    adopt_orphans()
    connection = Connection(fd)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(_answered(connection.recv()))


def _answered(call: Call) -> Answer:
    try:
        function = _loaded(call.spec)
    except ConfigError as error:
        return Answer([], unloadable=str(error))
    reward = RewardFunction(call.name, function, args=call.args)
    return answer(reward, call.columns, call.trainer_state, call.count)


@lru_cache
def _loaded(spec: str) -> Any:
    return load_function(spec)


def _end_with_parent() -> None:
    """Be killed when the parent dies while a function is busy; idle workers see the closed connection."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
