"""What untrusted programs cannot reach, use up, forge or leave behind."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchwise.config import ConfigError
from branchwise.rewards.sandbox.inside.wire import decode, encode
from branchwise.rewards.sandbox.limits import Limits
from branchwise.rewards.sandbox.process import descendants
from branchwise.rewards.sandbox.run import open_sandbox

LIMITS = Limits(seconds=5, memory_mb=256, processes=16, output_mb=1, disk_mb=16, files=200)


def run(sandbox, source, stdin="", limits=LIMITS):
    return sandbox.run_program([textwrap.dedent(source)], stdin, limits)


def judge(sandbox, source, *tests, limits=LIMITS, **more):
    job = {"remote": ["f"], "modules": [], "imported": [], "setup": [], "parts": False, "stop": False} | more
    return sandbox.run_tests([textwrap.dedent(source)], job | {"tests": list(tests)}, limits)


# --- reach


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hostname", __file__, "/bin/sh", "/usr/bin/env", "/sys"])
def test_files_outside_are_not_there(sandbox, path):
    result = run(sandbox, f"import os; print(os.path.exists({path!r}))")
    assert result.output == "False\n"


def test_nothing_of_this_project_or_of_installed_packages_is_there(sandbox):
    here = str(Path(__file__).resolve())
    result = run(
        sandbox,
        f"""
        import os, sys
        found = [os.path.join(d, n) for d, _, names in os.walk("/") if not d.startswith("/proc") for n in names]
        print({here!r} in found, any("site-packages/" in p or "dist-packages/" in p for p in found))
        print(any("rewards" in p for p in found))
        """,
    )
    assert result.output.split() == ["False", "False", "False"]


def test_the_environment_of_this_process_is_not_told(sandbox):
    secret = repr(Path("/proc/self/environ").read_bytes()[:60])[2:-1]
    result = run(
        sandbox,
        """
        import os, glob
        print(dict(os.environ))
        for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
            try:
                print(open(path, "rb").read())
            except OSError:
                pass
        """,
    )
    assert "PYTHONHASHSEED" in result.output and secret not in result.output


def test_only_the_temporary_folder_can_be_written(sandbox):
    name = f"x{time.time_ns()}"
    result = run(
        sandbox,
        f"""
        import os, sys
        for place in ("/", "/branchwise", "/dev", "/lib", os.path.dirname(os.__file__), sys.prefix, "/tmp", "/dev/shm"):
            try:
                open(os.path.join(place, {name!r}), "w").write("x")
                print(place)
            except OSError:
                pass
        """,
    )
    assert result.output.split() == ["/tmp", "/dev/shm"]
    assert not Path("/tmp", name).exists() and not Path("/dev/shm", name).exists()


def test_other_processes_cannot_be_seen_or_ended(sandbox):
    result = run(
        sandbox,
        f"""
        import os
        print(sorted(int(n) for n in os.listdir("/proc") if n.isdigit())[-1] < 100)
        for pid in (1, {os.getpid()}, os.getppid()):
            try:
                os.kill(pid, 9)
            except OSError:
                pass
        print("here")
        """,
    )
    assert result.output.split() in (["True", "here"], ["True"])


def test_rights_cannot_be_won(sandbox):
    result = run(
        sandbox,
        """
        import ctypes, os, resource
        libc = ctypes.CDLL(None)
        print(os.getuid() != 0, libc.unshare(0x10000000), libc.ptrace(0, 0, 0, 0))
        print(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None))
        for attempt in (lambda: os.setuid(0), lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)),
                        lambda: os.memfd_create("x"), lambda: os.chroot("/tmp"), lambda: os.setns(0)):
            try:
                attempt()
                print("won")
            except (OSError, ValueError, AttributeError):
                pass
        """,
    )
    assert result.output.split() == ["True", "-1", "-1", "-1"]


def test_there_is_no_network(sandbox):
    hits = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        result = run(
            sandbox,
            f"""
            import os, socket, subprocess
            def attempt(function):
                try:
                    function()
                    print("reached")
                except OSError:
                    pass
            attempt(lambda: socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 1))
            attempt(lambda: socket.getaddrinfo("example.com", 80))
            attempt(lambda: socket.socket(40, socket.SOCK_STREAM))
            attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
            attempt(lambda: subprocess.run(["curl", "http://127.0.0.1:{server.getsockname()[1]}"], env={{}}))
            print("done")
            """,
        )
        with contextlib.suppress(TimeoutError):
            hits.append(server.accept())
    assert result.output == "done\n" and not hits


# --- use up


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import signal, time\nfor s in (signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGINT):\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "import os\nos.close(1); os.close(2)\nwhile True: pass",
    ],
)
def test_endless_programs_are_killed_in_time(sandbox, source):
    start = time.perf_counter()
    result = run(sandbox, source, limits=Limits(seconds=1))
    assert result.reason == "time limit"
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    "source",
    [
        "blocks = []\nwhile True: blocks.append(bytearray(100 << 20))",
        "x = bytearray(64 << 30)",
        "import mmap\nx = [mmap.mmap(-1, 50 << 20) for _ in range(50)]\nfor m in x: m.write(b'x' * (50 << 20))",
        "import os\nfor _ in range(8): os.fork()\nx = b'x' * (60 << 20)\nimport time; time.sleep(30)",
        "x = 'x'\nwhile True: x += x",
    ],
)
def test_memory_is_limited_over_the_whole_tree(sandbox, source):
    before = resident()
    result = run(sandbox, source)
    assert (result.reason or result.error).startswith(
        ("memory limit", "MemoryError", "OSError", "process limit", "Block", "time limit")
    )
    assert resident() - before < 100 << 20


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()",
        "import subprocess, sys\nx = [subprocess.Popen([sys.executable, '-c', 'while 1: pass']) for _ in range(99)]",
    ],
)
def test_processes_and_threads_are_limited(sandbox, source):
    start = time.perf_counter()
    most = []
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, sandbox, source, "", Limits(seconds=2, processes=16))
        while not future.done():
            most.append(len(descendants(os.getpid())))
            time.sleep(0.02)
    assert future.result().reason or future.result().error
    assert max(most) < 60
    assert time.perf_counter() - start < 4


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_limited(sandbox, stream):
    before = resident()
    result = run(sandbox, f"import sys\nwhile True: sys.{stream}.write('x' * 100000)")
    assert result.reason == "output limit: more than 1 MB"
    assert len(result.output) < 3 << 20 and resident() - before < 50 << 20


@pytest.mark.parametrize(
    "source",
    [
        "while True: open('/tmp/x', 'ab').write(b'x' * (1 << 20))",
        "n = 0\nwhile True:\n    n += 1\n    open(f'/dev/shm/{n}', 'wb').write(b'x' * (1 << 20))",
        "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'w').close()",
    ],
)
def test_files_are_limited(sandbox, source):
    result = run(sandbox, source)
    assert (result.reason or result.error).startswith(("OSError", "file limit"))


def test_many_hostile_programs_at_a_time_leave_nothing(sandbox):
    before = set(descendants(os.getpid()))
    start = time.perf_counter()
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: run(sandbox, "while True: pass", limits=Limits(seconds=1)), range(20)))
    assert {result.reason for result in results} == {"time limit"}
    assert time.perf_counter() - start < 30
    assert set(descendants(os.getpid())) <= before


def test_daemons_die_with_their_program(sandbox):
    mark = f"daemon{time.time_ns()}"
    source = f"""
        import os, sys, time
        for closes in (False, True):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    if closes:
                        os.closerange(0, 64)
                    os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(60)", {mark!r}])
                os._exit(0)
        time.sleep(0.3)
        print("done")
        """
    start = time.perf_counter()
    assert run(sandbox, source).output == "done\n"
    assert time.perf_counter() - start < 30
    end = time.monotonic() + 10  # the kernel kills them, but not within the same moment
    while left := daemons(mark):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def daemons(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return [line for line in found if mark.encode() in line and b"import time" in line and b"bwrap" not in line]


# --- forge


def test_tests_run_apart_from_the_submission(sandbox):
    assert judge(sandbox, "def f(x): return x + 1", "assert f(1) == 2", "assert f(1) == 3").passed == [True, False]


HARMLESS = "def f(x): return None\n"


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "def f(x): raise SystemExit",
        "def f(x): raise SystemExit(0)",
        "def f(x): import os; os._exit(0)",
        "def f(x): raise KeyboardInterrupt",
        "print('passed'); import sys; sys.stderr.write('all tests pass')" + "\ndef f(x): return 0",
        "class Yes:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __lt__ = __gt__ = __le__ = __ge__ = __eq__\n    def __bool__(self): return True\n"
        "    def __hash__(self): return 2\ndef f(x): return Yes()",
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def f(x): return Yes(0)",
        "class Yes(str):\n    def __eq__(self, other): return True\ndef f(x): return Yes()",
        "class Yes(list):\n    def __eq__(self, other): return True\ndef f(x): return Yes([Yes()])",
        "import builtins\nfor n in ('abs', 'len', 'sorted', 'isinstance', 'print', 'all', 'any', 'compile', 'exec'):\n"
        "    setattr(builtins, n, lambda *a, **k: True)\n" + HARMLESS,
        "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n" + HARMLESS,
        "import sys, os\n" + HARMLESS + "for fd in range(20):\n    try: os.write(fd, b'passed' * 100)\n"
        "    except OSError: pass",
        "import atexit, os\natexit.register(lambda: os._exit(0))\n" + HARMLESS,
        "import gc, sys\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'tests' in o:\n"
        "            o['tests'] = []\n            return 2\n    return sys._getframe(5).f_locals.get('expected')",
        "def f(x):\n    while True: yield 2",
        "def f(x): return float('nan')",
        "def check(candidate): pass\nassert_ = print\n" + HARMLESS,
    ],
)
def test_no_trick_makes_a_wrong_submission_pass(sandbox, source):
    result = judge(
        sandbox, source, "assert f(1) == 2", "assert f([1]) == [2]", "assert f(2) is True", "assert not f(1) != 2"
    )
    assert not any(result.passed) and result.possible


@pytest.mark.parametrize(
    "test",
    [
        "assert all(map(f, [1, 2]))",
        "assert sum(map(f, [1, 2])) == 0",
        "try:\n    r = f(1)\nexcept:\n    r = 2\nassert r == 2",
        "def g():\n    try:\n        return f(1)\n    finally:\n        return 2\nassert g() == 2",
    ],
)
def test_how_a_submission_ends_does_not_end_the_test(sandbox, test):
    stops, exits = "def f(x): raise StopIteration", "def f(x): import os; os._exit(0)"
    assert judge(sandbox, stops if "map" in test else exits, test).passed in ([], [False])


def forged(answer):
    """A submission that writes frames of its own to whatever it finds open."""
    return f"""
        import os, sys
        sys.path.insert(0, "/branchwise")
        from wire import frame
        data = frame({answer})
        for fd in range(3, 20):
            try:
                for _ in range(50):
                    os.write(fd, data)
            except OSError:
                pass
        def f(x): return 0
        """


@pytest.mark.parametrize("answer", ['("result", [True] * 2, "", 5, True)', '("ready", "", "")', '("value", True, "")'])
def test_frames_that_the_submission_writes_are_answers_at_most(sandbox, answer):
    result = judge(sandbox, forged(answer), "assert f(1) == 2", "assert f([1]) == [2]")
    assert not any(result.passed) and len(result.passed) <= 2


@pytest.mark.parametrize(
    "source",
    [
        "def f(x): return [0] * 10**8",
        "def f(x): return 'x' * (1 << 26)",
        "def f(x):\n    y = []\n    for _ in range(10**5): y = [y]\n    return y",
        "def f(x):\n    y = []\n    y.append(y)\n    return y",
        "import os\ndef f(x):\n    while True: os.write(4, b'x' * 65536)",
        "import os\ndef f(x):\n    os.write(4, b'\\xff' * 8)\n    while True: pass",
        "def f(x): return 10 ** 10 ** 7",
        "def f(x):\n    while True: print('x' * 100000)",
    ],
)
def test_answers_that_are_too_much_fail(sandbox, source):
    start = time.perf_counter()
    result = judge(sandbox, source, "assert f(1) == 2", limits=Limits(seconds=3, memory_mb=256, output_mb=1))
    assert not any(result.passed) and result.possible
    assert time.perf_counter() - start < 5


def test_arguments_cannot_be_changed_under_the_test(sandbox):
    result = judge(sandbox, "def f(x):\n    x.clear()\n    return []", "x = [3, 1]\nassert f(x) == sorted(x)")
    assert result.passed == [False]


def test_objects_are_handles_that_only_go_back(sandbox):
    source = """
        class Pair:
            def __init__(self, a, b): self.a, self.b = a, b
            def __eq__(self, other): return True
        def f(pairs): return sum(p.a for p in pairs)
        """
    more = {"remote": ["f", "Pair"]}
    tests = ["assert f([Pair(1, 2), Pair(3, 4)]) == 4", "assert Pair(1, 2) == 3", "assert Pair(1, 2)"]
    assert judge(sandbox, source, *tests, **more).passed == [True, False, False]


def test_values_of_the_standard_library_come_across(sandbox):
    source = """
        import itertools
        from collections import Counter, OrderedDict
        def f(x): return {"p": itertools.permutations([1, 2]), "c": Counter("aab"), "o": OrderedDict(a=1, b=2)}[x]
        """
    tests = [
        "assert list(f('p')) == [(1, 2), (2, 1)]",
        "assert f('c').most_common(1) == [('a', 2)] and f('c') == {'a': 2, 'b': 1}",
        "from collections import OrderedDict\nassert f('o') != OrderedDict([('b', 2), ('a', 1)])",
    ]
    assert judge(sandbox, source, *tests).passed == [True] * 3


def test_what_came_back_can_always_be_handed_on(sandbox):
    deep = "def f(x):\n    y = []\n    for _ in range(97): y = [y]\n    return y"
    result = judge(sandbox, deep, "assert f([[f(1)]]) == 3")
    assert result.passed == [False] and result.possible


def test_errors_of_its_own_come_across_as_what_they_are_made_of(sandbox):
    source = "class Mine(ValueError): pass\ndef f(x): raise Mine(x)"
    assert judge(sandbox, source, "try:\n    f(0)\nexcept ValueError:\n    pass\nelse:\n    assert False").passed == [
        True
    ]


def test_errors_come_across_as_what_they_are(sandbox):
    tests = ["try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False", "f(0)"]
    assert judge(sandbox, "def f(x): return 1 / x", *tests).passed == [True, False]


def test_what_no_submission_could_pass_is_told_apart(sandbox):
    ok = "def f(x): return x"
    result = judge(sandbox, ok, "assert f(lambda: 0)")
    assert not result.possible and "cannot be sent" in result.reason
    result = judge(sandbox, ok, "import numpy\nassert f(1)")
    assert not result.possible and "numpy" in result.reason
    result = judge(sandbox, ok, "assert 1 == 1")
    assert not result.possible and "call nothing" in result.reason
    result = judge(sandbox, "def f(x): import numpy", "assert f(1) == 1")
    assert result.possible and result.passed == [False]


# --- plain data


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -1, 1 << 70, 0.1, float("inf"), "é\ud800", b"\x00", 1j, range(3), int),
        *([1, [2]], (1,), {1: {2: 3}}, {1, 2}, frozenset({1}), bytearray(b"x")),
    ],
)
def test_plain_data_comes_back_as_it_was(value):
    back = decode(encode(value, None))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "body", [b"", b"x", b"i" + b"\xff" * 8, b"l" + b"\x00" * 7 + b"\x02N", b"NN", b"n" + b"\x00" * 7 + b"\x01f"]
)
def test_bytes_that_are_no_value_are_refused(body):
    with pytest.raises((ValueError, TypeError, LookupError, struct.error)):
        decode(body)


@settings(max_examples=2000, deadline=None)
@given(st.lists(st.sampled_from(b"NTFfcisbBhnDkltSZgdrQq\x00\x01\x02\xff"), max_size=40).map(bytes))
def test_no_bytes_break_decoding(body):
    with contextlib.suppress(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error):
        decode(body)


def test_functions_do_not_come_back():
    with pytest.raises(ValueError, match="no value"):
        decode(encode(eval, None))


# --- where there is no isolation


def test_without_bubblewrap_nothing_runs_and_the_remedy_is_told(monkeypatch, tmp_path):
    from branchwise.rewards.sandbox import isolation

    monkeypatch.setenv("PATH", str(tmp_path))
    isolation._bubblewrap.cache_clear()
    with pytest.raises(ConfigError, match=r"no program is run; install bubblewrap .*apt-get install bubblewrap"):
        open_sandbox()


def test_a_bubblewrap_that_does_not_work_is_told(monkeypatch, tmp_path):
    from branchwise.rewards.sandbox import isolation

    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    isolation._bubblewrap.cache_clear()
    with pytest.raises(ConfigError, match=r"starts no program .*No permissions to create new namespace"):
        open_sandbox()
    isolation._bubblewrap.cache_clear()


def test_the_unsafe_way_warns_and_keeps_the_limits():
    with pytest.warns(UserWarning, match="run with this user's rights"):
        unsafe = open_sandbox("unsafe")
    assert run(unsafe, "print(int(input()) + 1)", "4\n").output == "5\n"
    assert run(unsafe, "while True: pass", limits=Limits(seconds=1)).reason == "time limit"
    assert judge(unsafe, "def f(x): return x", "assert f(1) == 1").passed == [True]


def test_unknown_isolations_are_refused():
    with pytest.raises(ConfigError, match="choose bubblewrap, container, sandbox_fusion or unsafe"):
        open_sandbox("chroot")


# --- stand-ins


class FusionServer(BaseHTTPRequestHandler):
    """The one call of SandboxFusion's that is used, run without any isolation."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = "Finished"
        try:
            done = subprocess.run(
                [sys.executable, "-c", asked["code"]], input=asked["stdin"], capture_output=True, text=True,
                timeout=asked["run_timeout"], check=False,
            )  # fmt: skip
            out, err = done.stdout, done.stderr
        except subprocess.TimeoutExpired:
            status, out, err = "TimeLimitExceeded", "", ""
        body = json.dumps(
            {"status": "Success", "run_result": {"status": status, "stdout": out, "stderr": err}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def fusion():
    with ThreadingHTTPServer(("127.0.0.1", 0), FusionServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield open_sandbox("sandbox_fusion", url=f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()


def test_a_sandbox_fusion_server_stands_in(fusion):
    assert run(fusion, "print('noise' and int(input()) + 1)", "4\n").output == "5\n"
    assert run(fusion, "x = (", "").error.startswith("SyntaxError")
    assert run(fusion, "while True: pass", limits=Limits(seconds=1)).reason == "time limit"
    source = "class P:\n    def __init__(self, a): self.a = a\ndef f(p):\n    print('noise')\n    return p.a"
    tests = ["assert f(P(3)) == 3", "assert f(P([1])) == [2]"]
    assert judge(fusion, source, *tests, remote=["f", "P"]).passed == [True, False]
    assert judge(fusion, "import os; os._exit(0)", "assert f(1) == 1").passed == []
    assert judge(fusion, "def f(x): raise SystemExit", "assert f(1) == 1").passed == [False]


def test_a_server_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match="no SandboxFusion server answers"):
        open_sandbox("sandbox_fusion", url="http://127.0.0.1:9")


def test_a_container_runtime_stands_in(monkeypatch, tmp_path):
    """What the runtime is told; here it is a script that keeps it and runs the program without any isolation."""
    (tmp_path / "docker").write_text(
        f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
arguments = sys.argv[1:]
with open({str(tmp_path / "told")!r}, "a") as file:
    file.write(json.dumps(arguments) + "\\n")
if arguments[0] == "run":
    inside = next(a for a in arguments if a.endswith(":ro")).split(":")[0]
    rest = arguments[arguments.index("some-image") + 1 :]
    os.execv(sys.executable, [sys.executable, *(a.replace("/branchwise", inside) for a in rest)])
"""
    )
    (tmp_path / "docker").chmod(0o755)
    container = open_sandbox("container", image="some-image", runtime=str(tmp_path / "docker"))
    assert run(container, "print(int(input()) + 1)", "4\n").output == "5\n"
    assert run(container, "while True: pass", limits=Limits(seconds=1)).reason == "time limit"
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    command = " ".join(told[1])
    for part in ("--network none", "--read-only", "--cap-drop ALL", "--memory 256m", "--pids-limit 18", "--rm"):
        assert part in command
    assert ["kill", told[2][told[2].index("--name") + 1]] in told


def test_no_zombie_is_left_where_nobody_else_collects_them():
    program = """
import os, sys, time
from pathlib import Path
from branchwise.rewards.sandbox.limits import Limits
from branchwise.rewards.sandbox.process import _children, adopt_orphans
from branchwise.rewards.sandbox.run import open_sandbox
adopt_orphans()
box = open_sandbox()
for source in ["print(1)", "while True: pass"] * 4:
    box.run_program([source], "", Limits(seconds=0.3))
time.sleep(0.2)
box.run_program(["print(1)"], "", Limits())
print(len(_children(os.getpid())))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert int(done.stdout) <= 1, done.stderr
