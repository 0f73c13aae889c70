"""The tests' side: runs assert-style tests. It holds no code of the submission; calls go out, plain data comes back."""

import builtins

from wire import RETURNED, Handle, Unsendable, decode, frame


class Gone(BaseException):
    """The submission cannot be called any more; no `except Exception` of a test may take it for an answer."""


class Impossible(BaseException):
    """The test asks for what this side cannot do, whatever the submission is."""


class Remote(Handle):
    """A name of the submission's, called there."""

    __slots__ = ("_call", "name")

    def __init__(self, name, call):
        self.name, self._call = name, call

    def __call__(self, *args, **kwargs):
        return self._call(self, args, kwargs)


def run(pipe, job):
    """Run `job`'s tests and send ("result", passed flags, reason, calls made, whether the tests could be run)."""
    caller = Caller(pipe)
    results, reason, possible = [], "", True
    try:
        caller.ready()
        results, reason = _run(job, caller)
    except Gone as error:
        reason = str(error)
    except Impossible as error:
        reason, possible = str(error), False
    pipe.send(frame(("result", results, reason[:500], caller.made, possible)))


class Caller:
    def __init__(self, pipe):
        self.pipe, self.made = pipe, 0
        self.raised = None
        """The last error that came from the submission."""
        self.over = None
        """Why no further call is possible; a test's bare `except` or `finally` cannot undo it."""

    def ready(self):
        kind, name, message = self._reply()
        if kind != "ready":
            raise Gone(f"the submission cannot be loaded: {name}: {message}")

    def __call__(self, target, args, kwargs):
        self.made += 1
        try:
            kind, value, message = self._asked(target, args, kwargs)
        except (Gone, Impossible) as error:
            self.over = self.over or error
            raise
        if kind == "value":
            return value
        self.raised = _error(value, message)
        raise self.raised

    def _asked(self, target, args, kwargs):
        if self.over:
            raise self.over
        try:
            request = frame((target, args, kwargs), _stand_in, RETURNED)
        except Unsendable as error:
            raise Impossible(f"a test passes what cannot be sent: {error}") from None
        self.pipe.send(request)
        return self._reply()

    def _reply(self):
        try:
            reply = decode(self.pipe.receive())
        except EOFError:
            raise Gone("the submission ended before it answered") from None
        except Exception as error:
            raise Gone(f"the submission's answer is no plain data: {error}") from None
        if not isinstance(reply, tuple) or len(reply) != 3 or reply[0] not in KINDS:
            raise Gone("the submission's answer is no answer")
        return reply


KINDS = ("ready", "failed", "value", "raised")
ENDS = (StopIteration, StopAsyncIteration)
"""Errors that would end a loop of the test's, such as that of `all(map(f, xs))`, as if nothing had failed."""


def _stand_in(value):
    if isinstance(value, Remote):
        return value.name
    if isinstance(value, Handle):
        return value
    raise Unsendable(f"a {type(value).__name__} is no plain data")


def _error(name, message):
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS):
        try:
            return kind(str(message))
        except TypeError:  # UnicodeDecodeError and its like want more
            pass
    return RuntimeError(f"{name}: {message}")


def _run(job, caller):
    names: dict = {"__name__": "tests"}
    for name in job["remote"]:
        names[name] = Remote(name, caller)
    for name in job["modules"]:
        names[name] = __import__(name)
    for name, module in job["imported"]:
        names[name] = getattr(__import__(module), name)
    for kind, source in job["setup"]:
        # a name that the submission is to define stays its own, even where the setup has a stub of it
        kept = {name: names[name] for name in job["remote"]}
        try:
            exec(compile(source, f"{kind}.py", "exec"), names)
        except Exception as error:
            told = f"the {kind} cannot be run: {type(error).__name__}: {error}"
            if caller.made:  # it builds on the submission
                return [False], told
            raise Impossible(told) from None
        names.update(kept)
    results: list[bool] = []
    reason = ""
    for source in job["tests"]:
        failure = _failure(source, names, caller, results if job["parts"] else None)
        if not job["parts"]:
            results.append(not failure)
        elif failure:
            results.append(False)
        reason = reason or failure
        if job["stop"] and not all(results):
            break
    return results, reason


def _failure(source, names, caller, record):
    """Run one test; why it failed, or ''."""
    if record is not None:
        names["_record"] = record.append
    try:
        exec(compile(source, "tests.py", "exec"), names)
        if caller.over:
            raise caller.over
    except Exception as error:
        if caller.over:
            raise caller.over from None
        if isinstance(error, ModuleNotFoundError) and error is not caller.raised:
            raise Impossible(f"the tests cannot be run: {error}") from None
        return f"test {source.strip()[:200]!r}: {type(error).__name__}: {str(error)[:200]}".rstrip(": ")
    except (SystemExit, KeyboardInterrupt):
        return "the tests ended before their end"
    return ""
