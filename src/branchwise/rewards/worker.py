"""A worker process for reward functions: loads those it is told, calls them, sends back plain values."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any

from branchwise.errors import ConfigError
from branchwise.plugins import load_function
from branchwise.rewards.adapt import Answer, Call, RewardFunction, answer
from branchwise.rewards.sandbox.inside.wire import Pipe
from branchwise.rewards.sandbox.process import adopt_orphans
from branchwise.rewards.workers import HEADER


def serve(fd: int) -> None:
    """Answer calls until the other end is closed."""
    _end_with_parent()
    adopt_orphans()
    pipe = Pipe(fd, fd)
    with contextlib.suppress(EOFError, OSError):
        while True:
            body = _pickled(_answered(pipe.receive()))
            pipe.send(len(body).to_bytes(HEADER, "big") + body)


def _answered(data: bytes) -> Answer:
    try:
        call: Call = pickle.loads(data)
    except Exception as error:  # of classes that only the parent can import
        return Answer([], unloadable=f"{type(error).__name__}: {error}")
    try:
        function = _loaded(call.spec)
    except ConfigError as error:
        return Answer([], unloadable=str(error))
    reward = RewardFunction(call.name, function, args=call.args)
    return answer(reward, call.columns, call.trainer_state, call.count)


def _pickled(answered: Answer) -> bytes:
    try:
        return bytes(ForkingPickler.dumps(answered))
    except Exception as error:
        failure = f"what it gave to log_extra cannot be sent: {type(error).__name__}: {error}"
        return bytes(ForkingPickler.dumps(Answer([], failure=failure)))


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
