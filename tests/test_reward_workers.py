"""Where reward functions run: worker processes that are stopped at a limit, threads, the event loop."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from test_rewards import leaves, paid, responses, runner

from branchwise.config import RewardConfig, RewardLimits
from branchwise.plugins import load_function, spec_of
from branchwise.rewards import RewardError

SOURCE = """
import os, sys, time

def where(completions, **_):
    return [os.getpid()] * len(completions)

def hangs(completions, **_):
    if "hang" in completions:
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    return [1.0] * len(completions)

def stuck_in_c(completions, **_):
    return [float(len(str(7 ** 7 ** 9)))]

def dies(completions, **_):
    os._exit(7)

def killed_once(completions, **_):
    if not os.path.exists(completions[0]):
        open(completions[0], "w").close()
        os.kill(os.getpid(), 9)
    return [1.0] * len(completions)

def killed(completions, **_):
    os.kill(os.getpid(), 9)

def exits(completions, **_):
    sys.exit("enough")

def compute_score(solution_str, ground_truth):
    if solution_str == "hang":
        time.sleep(60)
    return len(solution_str)

def logs(completions, log_metric, log_extra, trainer_state):
    log_metric("count", len(completions))
    log_extra("upper", [c.upper() for c in completions])
    return [float(trainer_state or 0)] * len(completions)

def with_torch(completions, **_):
    return [float("torch" in sys.modules)] * len(completions)

def napping(completions, **_):
    time.sleep(0.5)
    return [1.0] * len(completions)

def spawns(completions, **_):
    import subprocess
    started = [subprocess.Popen(["sleep", "60"], start_new_session=new) for new in (False, True)]
    open(completions[0], "w").write(" ".join(str(process.pid) for process in started))
    time.sleep(60)

def leaves_a_daemon(completions, **_):
    if os.fork() == 0:
        os.setsid()
        open(completions[0], "w").write(str(os.getpid()))
        time.sleep(60)
        os._exit(0)
    while not os.path.exists(completions[0]):
        time.sleep(0.01)
    os._exit(3)

def half_an_answer(completions, **_):
    for fd in range(3, 30):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
                os.write(fd, (1000).to_bytes(8, "big") + b"abc")
        except OSError:
            pass
    time.sleep(60)

def logs_a_function(completions, log_extra):
    log_extra("f", [lambda: 0] * len(completions))
    return [1.0] * len(completions)

class Trap:
    def __reduce__(self):
        return eval, ("1 / 0",)

def logs_a_trap(completions, log_extra):
    log_extra("f", [Trap()] * len(completions))
    return [1.0] * len(completions)
"""


@pytest.fixture
def mine(tmp_path):
    """Names a function of the file above for a config."""
    (tmp_path / "mine.py").write_text(SOURCE)

    def named(function, **more):
        return RewardConfig(function=f"{tmp_path}/mine.py:{function}", **more)

    return named


def gone(pid):
    """Whether a process has ended, within a second."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_named_functions_run_in_a_process_that_stays(mine):
    run, first, second = runner(mine("where")), responses("a", "b"), responses("c")
    run.score([first])
    run.score([second])
    assert paid(first) == paid(second) * 2
    assert paid(second) != [os.getpid()]
    run.close()
    assert gone(int(paid(second)[0]))


@pytest.mark.parametrize("function", ["hangs", "stuck_in_c"])
def test_a_call_over_its_limit_is_killed_and_its_worker_replaced(mine, function):
    run, tree = runner(mine(function, timeout=1.5)), responses("hang")
    start = time.perf_counter()
    run.score([tree])
    assert time.perf_counter() - start < 3
    assert leaves(tree)[0].reason == f"{function}: TimeoutError: stopped after 1.5 s"
    good = responses("a")
    run.functions = runner(mine("hangs")).functions
    run.score([good])
    assert paid(good) == [1.0]


def test_a_hanging_leaf_costs_itself_alone_and_order_is_kept(mine):
    texts = ["a", "hang", *("b" * n for n in range(1, 40))]
    tree = responses(*texts, answer="1")
    runner(mine("compute_score", timeout=1.5), limits=RewardLimits(workers=2)).score([tree])
    assert paid(tree) == [1, None, *range(1, 40)]
    assert leaves(tree)[1].reason == "compute_score: TimeoutError: stopped after 1.5 s"


def test_what_a_function_started_dies_with_its_worker(mine, tmp_path):
    note = tmp_path / "pid"
    runner(mine("spawns", timeout=1.5)).score([responses(str(note))])
    assert all(gone(int(pid)) for pid in note.read_text().split())


def test_what_a_function_left_dies_with_a_worker_that_ended_itself(mine, tmp_path):
    note = tmp_path / "pid"
    runner(mine("leaves_a_daemon", timeout=1.5)).score([responses(str(note))])
    assert gone(int(note.read_text()))


def test_half_an_answer_is_stopped_at_the_limit(mine):
    run, tree = runner(mine("half_an_answer", timeout=1.5), mine("where")), responses("a")
    start = time.perf_counter()
    run.score([tree])
    assert time.perf_counter() - start < 3
    assert leaves(tree)[0].reason == "half_an_answer: TimeoutError: stopped after 1.5 s"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("logs_a_function", "what it gave to log_extra cannot be sent: AttributeError: Can't pickle local object"),
        ("logs_a_trap", "its answer cannot be read: ZeroDivisionError: division by zero"),
    ],
)
def test_logs_that_cannot_come_back_are_a_reason(mine, function, reason):
    tree = responses("a")
    runner(mine(function)).score([tree])
    assert leaves(tree)[0].reason.startswith(f"{function}: {reason}")


def test_a_column_whose_class_only_this_process_has_keeps_the_function_here(mine, monkeypatch):
    class Only:
        pass

    Only.__qualname__ = "Only"
    monkeypatch.setattr(sys.modules["__main__"], "Only", Only, raising=False)
    Only.__module__ = "__main__"
    tree = responses("a", helper=Only())
    runner(mine("where")).score([tree])
    assert paid(tree) == [os.getpid()]


def test_a_worker_that_dies_is_a_reason(mine):
    run, tree = runner(mine("dies"), mine("where")), responses("a")
    run.score([tree])
    assert leaves(tree)[0].reason == "dies: its worker process died (exit code 7)"
    assert leaves(tree)[0].parts["where"] is not None


def test_a_call_whose_worker_was_killed_is_made_once_more(mine, tmp_path):
    run, tree = runner(mine("killed_once")), responses(str(tmp_path / "note"))
    run.score([tree])
    assert paid(tree) == [1.0]
    tree = responses("a")
    runner(mine("killed")).score([tree])
    assert leaves(tree)[0].reason == "killed: its worker process died (signal SIGKILL)"


def test_an_exit_in_a_function_is_a_failure_of_it(mine):
    tree = responses("a")
    runner(mine("exits")).score([tree])
    assert leaves(tree)[0].reason == "exits: SystemExit: enough"


def test_functions_run_at_the_same_time(mine):
    limits = RewardLimits(workers=3)
    run = runner(mine("napping"), mine("napping"), mine("napping"), limits=limits)
    run.score([responses("warm")])
    start = time.perf_counter()
    run.score([responses("a")])
    assert time.perf_counter() - start < 1.2


def test_logs_come_back_from_a_worker(mine):
    run, tree = runner(mine("logs")), responses("a", "bb")
    run.score([tree], trainer_state=3)
    assert paid(tree) == [3.0, 3.0]
    assert run.logged == {"count": [2.0]}
    assert [leaf.extra for leaf in leaves(tree)] == [{"upper": "A"}, {"upper": "BB"}]


def test_a_worker_loads_no_torch(mine):
    tree = responses("a")
    runner(mine("with_torch")).score([tree])
    assert paid(tree) == [0.0]


def test_built_ins_take_a_batch_in_pieces():
    tree = responses(*(f"\\boxed{{{n % 3}}}" for n in range(100)), answer="1")
    runner("math").score([tree])
    assert paid(tree) == [float(n % 3 == 1) for n in range(100)]


def test_columns_that_cannot_be_sent_keep_the_function_here(mine):
    tree = responses("a", helper=lambda: 0)
    runner(mine("where")).score([tree])
    assert paid(tree) == [os.getpid()]


def test_closures_run_here_in_a_thread_with_a_limit():
    stop = []

    def sleeps(completions):
        while not stop:
            time.sleep(0.01)
        return [1.0]

    run, tree = runner(sleeps, limits=RewardLimits(timeout=0.2, max_failed=1)), responses("a")
    run.score([tree])
    assert leaves(tree)[0].reason == "sleeps: TimeoutError: given up after 0.2 s"
    assert "'sleeps' runs in a thread" in run.notes[0]
    stop.append(True)


def test_which_functions_another_process_can_load(mine, tmp_path):
    where = load_function(mine("where").function)
    assert spec_of(where) == f"{tmp_path}/mine.py:where"
    assert spec_of(textwrap.dedent) == "textwrap.dedent"
    assert spec_of(lambda: 0) is None
    assert spec_of("text".upper) is None
    assert runner(where).notes == []


def test_async_functions_have_a_limit():
    async def sleeps(completions):
        await asyncio.sleep(60)

    async def leafwise(completion, answer):
        await asyncio.sleep(60 if completion == "b" else 0)
        return 1.0

    tree = responses("a", "b", answer="")
    limits = RewardLimits(timeout=0.2, max_failed=1)
    runner(sleeps, leafwise, limits=limits).score([tree])
    assert leaves(tree)[0].reason == "sleeps: TimeoutError: stopped after 0.2 s"
    assert leaves(tree)[1].reason == "; ".join(
        f"{f}: TimeoutError: stopped after 0.2 s" for f in ("sleeps", "leafwise")
    )


def test_the_share_of_failures_is_taken_over_the_last_responses():
    fail = []

    def sometimes(completions):
        return [float("nan") if fail else 1.0] * len(completions)

    run = runner(sometimes, limits=RewardLimits(max_failed=0.25))
    run.score([responses(*"abcdefgh")])
    fail.append(True)
    run.score([responses("i", "j")])  # 2 of 10
    with pytest.raises(RewardError, match=r"failed on 4 of the last 12 responses.*sometimes: returned nan"):
        run.score([responses("k", "l")])


PROGRAM = """
import sys, time
sys.path[:0] = [{tests!r}]
from test_rewards import responses, runner
from branchwise.config import RewardConfig
run = runner(RewardConfig(function={where!r}))
tree = responses("a")
run.score([tree])
print(int(tree.nodes[1].reward), flush=True)
run.functions = runner(RewardConfig(function={then!r})).functions
if {busy}:
    print("busy", flush=True)
    run.score([responses("hang")])
"""


@pytest.mark.parametrize("how", ["end", "interrupt", "kill"])
def test_no_worker_is_left(mine, how):
    names = {"where": mine("where").function, "then": mine("hangs").function, "tests": str(Path(__file__).parent)}
    program = PROGRAM.format(busy=how != "end", **names)
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    if how != "end":
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
    process.communicate(timeout=30)
    assert gone(worker)
