"""Programs run by a SandboxFusion server (github.com/bytedance/SandboxFusion), over HTTP.

It runs one script a request and gives back what that printed. Assert-style tests stay on this machine, where nothing of
the submission is; each of their calls is a request that loads the submission, repeats the calls before, for the objects
they left, and prints the last one's answer. So a call costs a request, and submissions that draw random numbers may
answer differently in each.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.request
from typing import Any

from branchwise.errors import ConfigError
from branchwise.rewards.sandbox.inside.wire import frame
from branchwise.rewards.sandbox.interpreter import INSIDE
from branchwise.rewards.sandbox.isolation import Isolation, Plain, open_isolation
from branchwise.rewards.sandbox.limits import MB, Limits
from branchwise.rewards.sandbox.process import LATE, Exchange
from branchwise.rewards.sandbox.run import Finished, Frames, Tested, tested

_SCRIPT = """import sys, base64
from types import ModuleType
for name, source in {modules!r}:
    module = sys.modules[name] = ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sources = [base64.b64decode(source).decode("utf-8", "surrogatepass") for source in {sources!r}]
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
"""
_PROGRAM = """
from boot import _run
sys.path.insert(0, "")  # which a script gives up
_run(sources)
"""
_SUBMISSION = """
from submission import serve
class Replay:
    calls, answers = [base64.b64decode(call) for call in {calls!r}], []
    def receive(self):
        if not self.calls:
            raise EOFError
        return self.calls.pop(0)
    def send(self, data):
        self.answers.append(data)
printed, sys.stdout = sys.stdout, sys.stderr
serve(Replay(), sources)
printed.write("\\n" + base64.b64encode(Replay.answers[-1]).decode() + "\\n")
"""


class SandboxFusion:
    """A server's sandbox.

    Args:
        url: the server's.

    Raises:
        ConfigError: no server answers there.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._tests: Isolation
        try:
            self._tests = open_isolation()
        except ConfigError:
            self._tests = Plain()  # the tests are the data's: no model wrote them
        try:
            answer = self.run_program(["print('isolated')"], "", Limits(seconds=20))
        except OSError as error:
            raise ConfigError(f"server_url: {url!r}: no SandboxFusion server answers: {error}") from None
        if answer.output.strip() != "isolated":
            raise ConfigError(f"server_url: {url!r}: the server runs no program: {answer.reason or answer.error}")

    def run_program(self, sources: list[str], stdin: str, limits: Limits) -> Finished:
        return self._run(_script(["wire", "boot"], sources) + _PROGRAM, stdin, limits, limits.seconds)

    def run_tests(self, sources: list[str], tests: dict[str, Any], limits: Limits) -> Tested:
        deadline = time.monotonic() + limits.seconds
        judge = self._tests.start("tests", limits)
        exchange = Exchange([judge], deadline)
        calls: list[bytes] = []

        def ask() -> None:
            script = _script(["wire", "boot", "submission"], sources)
            script += _SUBMISSION.format(calls=[base64.b64encode(call).decode() for call in calls])
            answer = self._run(script, "", limits, deadline - time.monotonic())
            last = answer.output.strip().rpartition("\n")[2]
            with contextlib.suppress(ValueError):
                exchange.write(judge.popen.stdin, base64.b64decode(last, validate=True), close=not last)

        def call(body: bytes) -> None:
            calls.append(body)
            ask()

        try:
            frames = Frames(call)
            exchange.read(judge.popen.stdout, judge, frames.feed)
            exchange.write(judge.popen.stdin, frame(tests))
            ask()
            reason = exchange.run(lambda: frames.result is not None)
        finally:
            exchange.close()
            judge.kill()
        return tested(frames.result, reason or judge.last_error() or "the tests ended without a result")

    def _run(self, script: str, stdin: str, limits: Limits, seconds: float) -> Finished:
        """One request.

        Raises:
            OSError: no answer, which says nothing about the program.
        """
        seconds = max(seconds, 0.1)
        asked = {
            "code": script,
            "language": "python",
            "stdin": stdin,
            "run_timeout": seconds,
            "memory_limit_MB": limits.memory_mb,
        }
        request = urllib.request.Request(
            f"{self._url}/run_code", json.dumps(asked).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds + 30) as response:
            answer = json.loads(response.read(64 * MB))
        result = answer.get("run_result") or {}
        if answer.get("status") == "SandboxError":
            raise OSError(f"SandboxFusion: {answer.get('message')}")
        late = result.get("status") == "TimeLimitExceeded"
        failed = result.get("return_code") != 0
        errors = (result.get("stderr") or "").strip().splitlines()
        return Finished(result.get("stdout") or "", errors[-1][:300] if errors else "", LATE if late else None, failed)


def _script(modules: list[str], sources: list[str]) -> str:
    """A script that has these of the inside's modules and the sources."""
    texts = [(name, (INSIDE / f"{name}.py").read_text()) for name in modules]
    encoded = [base64.b64encode(source.encode("utf-8", "surrogatepass")).decode() for source in sources]
    return _SCRIPT.format(modules=texts, sources=encoded)
