"""One program, start to end: a script on some input, or a submission under tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from branchwise.errors import ConfigError
from branchwise.rewards.sandbox.inside.wire import decode, encode, frame
from branchwise.rewards.sandbox.isolation import Isolation, open_isolation
from branchwise.rewards.sandbox.limits import Limits
from branchwise.rewards.sandbox.process import LATE, Exchange, Jailed

__all__ = ["LATE", "Finished", "Local", "Sandbox", "Tested", "open_sandbox", "run_program", "run_tests"]

HEADER = 8


@dataclass(frozen=True)
class Finished:
    """What a script did."""

    output: str
    error: str
    """The last line of its error output."""
    reason: str | None
    """Why it was ended; None: it ended by itself."""
    failed: bool = False
    """It ended with an exit code that is not 0. A 0 says nothing."""


@dataclass(frozen=True)
class Tested:
    """What the tests' side says."""

    passed: list[bool]
    """By test, as far as they were run."""
    reason: str
    """Of the first failure; '' where there is none."""
    possible: bool = True
    """False: the tests cannot be run, whatever the submission is."""


class Sandbox(Protocol):
    """Where programs are run."""

    def run_program(self, sources: list[str], stdin: str, limits: Limits) -> Finished: ...

    def run_tests(self, sources: list[str], tests: dict[str, Any], limits: Limits) -> Tested: ...


def open_sandbox(
    isolation: str = "bubblewrap", image: str | None = None, runtime: str | None = None, url: str | None = None
) -> Sandbox:
    """The sandbox of that name, once it is seen to work; `open_isolation` says which there are.

    Raises:
        ConfigError: it is not to be had here.
    """
    if isolation != "sandbox_fusion":
        return Local(open_isolation(isolation, image, runtime))
    if not url:
        raise ConfigError(
            "server_url: missing; isolation: sandbox_fusion needs the server's, such as http://localhost:8080"
        )
    from branchwise.rewards.sandbox.fusion import SandboxFusion

    return SandboxFusion(url)


@dataclass(frozen=True)
class Local:
    """Programs on this machine."""

    isolation: Isolation

    def run_program(self, sources: list[str], stdin: str, limits: Limits) -> Finished:
        return run_program(self.isolation, sources, stdin, limits)

    def run_tests(self, sources: list[str], tests: dict[str, Any], limits: Limits) -> Tested:
        return run_tests(self.isolation, sources, tests, limits)


def run_program(isolation: Isolation, sources: list[str], stdin: str, limits: Limits) -> Finished:
    """Run the first of `sources` that compiles as a script on `stdin`. Its exit code is not looked at."""
    job = frame({"sources": sources}) + stdin.encode("utf-8", "surrogatepass")
    output = bytearray()
    jailed = isolation.start("program", limits)
    exchange = Exchange([jailed], time.monotonic() + limits.seconds)
    try:
        exchange.write(jailed.popen.stdin, job, close=True)
        exchange.read(jailed.popen.stdout, jailed, output.extend)
        reason = exchange.run(lambda: False)
    finally:
        exchange.close()
        jailed.kill()
    failed = jailed.popen.returncode != 0
    return Finished(output.decode("utf-8", "replace"), jailed.last_error(), reason, failed)


def run_tests(isolation: Isolation, sources: list[str], tests: dict[str, Any], limits: Limits) -> Tested:
    """Load the first of `sources` that compiles in one sandbox, and run `tests` in another.

    Args:
        sources: the submission; more than one where it is not clear how it is to be completed.
        tests: the job of `inside/assertions.py`.
    """
    deadline = time.monotonic() + limits.seconds
    jails: list[Jailed] = []
    exchange = None
    try:
        jails += [isolation.start("tests", limits)]
        jails += [isolation.start("submission", limits)]
        judge, submission = jails
        exchange = Exchange(jails, deadline)
        write = exchange.write
        frames = Frames(lambda body: write(submission.popen.stdin, len(body).to_bytes(HEADER, "big") + body))
        # of the submission's frames nothing is read here
        exchange.read(
            submission.popen.stdout,
            submission,
            lambda data: write(judge.popen.stdin, data),
            lambda: write(judge.popen.stdin, b"", close=True),
        )
        exchange.read(judge.popen.stdout, judge, frames.feed)
        exchange.write(judge.popen.stdin, frame(tests))
        exchange.write(submission.popen.stdin, frame({"sources": sources}))
        reason = exchange.run(lambda: frames.result is not None)
    finally:
        if exchange:
            exchange.close()
        for jail in jails:
            jail.kill()
    return tested(frames.result, reason or judge.last_error() or "the tests ended without a result")


class Frames:
    """What the tests' side sends: calls, handed to `call` as they are, and at last the result."""

    def __init__(self, call: Callable[[bytes], object]) -> None:
        self.result: Any = None
        self._call = call
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= HEADER:
            end = HEADER + int.from_bytes(self._bytes[:HEADER], "big")
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[HEADER:end])
            del self._bytes[:end]
            # a call starts with what is called: a name or a handle, never a text
            if body.startswith(_RESULT):
                self.result = decode(body)
            else:
                self._call(body)


_RESULT = encode(("result", [], "", 0, True), None)[: 1 + 8 + 1 + 8 + len("result")]


def tested(result: Any, otherwise: str) -> Tested:
    if result is None:
        return Tested([], otherwise)
    _, passed, reason, calls, possible = result
    if possible and not calls and passed:
        return Tested(passed, "the tests call nothing of the submission", possible=False)
    return Tested(passed, reason, possible)
