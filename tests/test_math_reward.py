"""Final answers, and which of them are paid."""

import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from math_pairs import PAIRS, REVIEWED, REVIEWED_TEXTS, TEXTS

from branchwise.rewards.math import explain, math, ungradable
from branchwise.rewards.mathematics import symbolic
from branchwise.rewards.mathematics.equality import equal
from branchwise.rewards.mathematics.extraction import final_answer, last_box
from branchwise.rewards.mathematics.formula import read_formula

SHARED = Path(__file__).parents[2] / "shared"
shared = pytest.mark.skipif(not SHARED.exists(), reason=f"needs {SHARED}")


def reward(output, gold, **args):
    return math([output], [gold], **args)[0]


# --- finding the answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{6}, no: \\boxed{11}.", "11"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\fbox{5} and 7", "5"),
        ("\\boxed {\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed 5", "5"),
        ("\\boxed{1} then \\boxed{2", None),
        ("5, so \\boxed{}", None),
        ("#### 5\n#### 1,234\nmore", "1,234"),
        ("The answer is 5. The final answer is: **$12$**.", "$12$"),
        ("Answer: 3.5 apples. That is 2 more.", "3.5 apples"),
        ("Answer:\n\n7", "7"),
        ("The answer is 5 because 2 + 3 is.", "5"),
        ("<answer>42</answer>", "42"),
        ("so 3 + 4 = 7 clips.", "7"),
        ("it costs $1,250.50.", "1,250.50"),
        ("x = -3", "x = -3"),
        ("7x - 2y = 0", "7x - 2y = 0"),
        ("yes", "yes"),
        ("a third, \\frac{1}{3}", "\\frac{1}{3}"),
        ("half, 1/2", "1/2"),
        ("Hence it is $2\\sqrt{3}$.", "2\\sqrt{3}"),
        ("that is 3 + 4", None),
        ("from 3 to 5", None),
        ("at (3, 4)", None),
        ("there were about 5 million", None),
        ("5 million", "5 million"),
        ("we need \\sqrt{2}", None),
        ("we need 2x", None),
        ("7 =", "7"),
        ("no number", None),
        ("", None),
    ],
)
def test_the_final_answer(text, answer):
    assert final_answer(text) == answer


def test_only_a_box_counts_where_a_box_is_required():
    assert reward("the answer is 5", "5") == 1
    assert reward("the answer is 5", "5", require_box=True) == 0
    assert reward("\\boxed{5}", "5", require_box=True) == 1
    assert last_box("none") is None


def test_the_trainers_answers_are_read_before_completions():
    assert math(["\\boxed{7}"] * 2, ["7", "7"], answers=["", "7"]) == [0.0, 1.0]


def test_messages_are_read_as_trl_gives_them():
    assert math([[{"role": "assistant", "content": "\\boxed{7}"}]], ["7"]) == [1.0]


def test_references_may_be_numbers_worked_solutions_and_lists():
    assert math(["7"] * 4, [7, 7.0, "3 + 4 = 7\n#### 7", "so \\boxed{7}"]) == [1.0] * 4
    assert math(["\\boxed{2, 3}"], [["2", "3"]]) == [1.0]


def test_an_empty_reference_pays_nobody_and_is_reported():
    assert math(["7", "7"], ["", None]) == [None, None]
    assert ungradable(["7", "", "\\frac{1}{2}"]) == [(1, "the reference is empty")]


# --- equality


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [pair for kinds in (PAIRS, REVIEWED) for pairs in kinds.values() for pair in pairs],
    ids=lambda value: str(value)[:40],
)
def test_pairs_are_paid_as_they_should_be(gold, answer, right):
    assert explain(f"so \\boxed{{{answer}}}", gold)[0] == right


@pytest.mark.parametrize(("gold", "text", "right"), TEXTS + REVIEWED_TEXTS)
def test_texts_are_paid_as_they_should_be(gold, text, right):
    assert reward(text, gold) == right


@pytest.mark.parametrize(
    "text", ["1/2x", "\\sin x/2", "\\frac123", "f(x+1)", "x 2", "--3", "x^2^3!", "\\sqrt23", "word"]
)
def test_formulas_of_unclear_meaning_are_refused(text):
    assert read_formula(text) is None


# --- stability


def test_grading_works_in_threads_tasks_and_pools():
    def grade():
        return math(["\\boxed{\\sqrt{8}}", "\\boxed{\\int_0^1 2x dx}"], ["2\\sqrt{2}", "\\frac{2}{2}"])

    async def task():
        return grade()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(grade).result() == [1.0, 1.0]
    assert asyncio.run(task()) == [1.0, 1.0]
    with ProcessPoolExecutor(1) as processes:
        assert processes.submit(math, ["\\boxed{2}"], ["2"]).result() == [1.0]


HOSTILE = [
    "7^{7^{7^{7^{7}}}}",
    "((9^{50})^{50})^{50}",
    "(x+1)^{5000}",
    "10000!",
    "((10!)!)!",
    "\\binom{10^9}{10^8}",
    "9" * 5000,
    "\\sum_{k=1}^{99999999} k",
    "(" * 9999,
    "\\frac" * 3000,
    "\\boxed{" * 3000,
    "x+" * 200 + "x",
    "\\sin(" * 30 + "x" + ")" * 30,
    "1,2" * 150,
    "\\pm 1" * 80,
    "^" * 400,
    "a=" * 200 + "1",
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda text: text[:20])
def test_hostile_answers_are_unpaid_and_quick(answer):
    start = time.perf_counter()
    paid = math(["\\boxed{7}", f"\\boxed{{{answer}}}", "\\boxed{8}"], ["7", "\\sqrt{7}", "8"])
    assert paid == [1, 0, 1]
    assert time.perf_counter() - start < 2


SLOW_FOR_SYMPY = "\\sum_{k=1}^{99999999} \\frac{1}{k}"


def test_symbolic_work_that_overruns_is_killed_and_the_next_is_graded(monkeypatch):
    symbolic.equal.cache_clear()
    others = children()
    assert symbolic.equal("\\int_0^1 2x dx", "1")  # the worker is warm
    limit = symbolic.SECONDS
    monkeypatch.setattr(symbolic, "SECONDS", 0.5)
    start = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:  # off the main thread
        slow = threads.submit(symbolic.equal, SLOW_FOR_SYMPY, "7")
        assert threads.submit(math, ["\\boxed{2}"] * 63, ["2"] * 63).result() == [1.0] * 63
        assert time.perf_counter() - start < 0.5
        assert slow.result() is False
    assert time.perf_counter() - start < 1.5
    assert [child for child in children() if child not in others] == []
    monkeypatch.setattr(symbolic, "SECONDS", limit)
    assert symbolic.equal("\\int_0^1 3x^2 dx", "1")


def test_a_worker_outlives_neither_its_limit_nor_its_parent():
    code = (
        "import os, sys, threading; from branchwise.rewards.mathematics import symbolic; symbolic.SECONDS = 1;"
        f"symbolic._HARD; w = symbolic._take(); print(w.process.pid, flush=True);"
        f"threading.Timer(0.3, os._exit, [0]).start(); w.ask({SLOW_FOR_SYMPY!r}, '7')"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    pid = int(out)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker is still at work"
        time.sleep(0.1)


def test_answers_are_never_run_as_code(tmp_path):
    mark = tmp_path / "MARK"
    output = f"\\boxed{{\\pi*__import__('pathlib').Path('{mark}').touch()}}"
    assert reward(output, "\\pi") == 0
    assert reward("\\boxed{[__import__('os').getpid()]}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}") == 0
    assert not mark.exists()
    assert reward("\\boxed{\\pi}", "\\pi") == 1


def children():
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


FRAGMENTS = [answer for pairs in PAIRS.values() for gold, answer, _ in pairs] + [answer[:60] for answer in HOSTILE]
SIGNS = [
    *"\\{}()[]^_$%,.;:=<>|!+-*/&~ \n0123456789abxyei",
    "\\frac",
    "\\sqrt",
    "\\boxed{",
    "\\text{",
    "\\pm",
    "\\le",
    "\\cup",
    "\\infty",
    "\\begin{pmatrix}",
    "\\\\",
    "####",
    "<think>",
    "</think>",
    "the answer is ",
    "\\log_",
    "\\int_",
    "\ud800",
    "\x00",
    "٣",
    "½",
    "√",
    "∞",
    "²",
    "₂",
]
MUTATED = st.builds(
    lambda text, cuts: "".join(text[i % (len(text) + 1) : j % (len(text) + 1)] + sign for i, j, sign in cuts) or text,
    st.sampled_from(FRAGMENTS),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.sampled_from(SIGNS)), max_size=4),
)
OUTPUTS = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(SIGNS), max_size=25).map("".join), MUTATED)


@pytest.mark.slow
def test_any_output_is_graded_quickly_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    symbolic.stop_workers()
    before, counted = len(children()), [0]

    @settings(max_examples=8_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(OUTPUTS, st.sampled_from(FRAGMENTS), st.booleans())
    def fuzz(output, gold, boxed):
        for text in (output, f"\\boxed{{{output}}}", f"<think>{output}</think>{output}", f"The answer is {output}."):
            start = time.perf_counter()
            assert reward(text, gold if boxed else output) in (0.0, 1.0, None)
            assert time.perf_counter() - start < symbolic.SECONDS + 10  # a new worker's start among it
            counted[0] += 1

    fuzz()
    assert counted[0] >= 20_000
    symbolic.stop_workers()
    assert len(children()) <= before
    assert list(tmp_path.iterdir()) == []


# --- other people's answers


def golds(name):
    return [str(json.loads(line)["answer"]) for line in (SHARED / "data" / f"{name}.jsonl").open(encoding="utf-8")]


@shared
@pytest.mark.parametrize("name", ["gsm8k_train", "math500", "math_train", "svamp", "olympiadbench"])
def test_every_reference_answers_itself(name):
    assert ungradable(golds(name)) == []


@shared
@pytest.mark.slow
def test_answers_to_other_questions_are_not_paid():
    """Every payment was looked at: the references are one value in two notations."""
    references = sorted({gold for name in ("math_train", "math500", "olympiadbench") for gold in golds(name)})
    draw = random.Random(0)
    pairs = [draw.sample(references, 2) for _ in range(5_000)]
    paid = [pair for pair in pairs if equal(*pair)]
    assert len(paid) < 5, paid


@shared
def test_a_changed_digit_is_never_paid():
    draw = random.Random(1)
    for gold in golds("math500"):
        if places := [match.start() for match in re.finditer(r"\d", gold)]:
            i = draw.choice(places)
            assert not equal(gold, gold[:i] + draw.choice("123456789".replace(gold[i], "")) + gold[i + 1 :]), gold


@shared
def test_gsm8ks_own_solutions_are_paid():
    rows = [json.loads(line) for line in (SHARED / "data" / "gsm8k_train.jsonl").open(encoding="utf-8")]
    assert set(math([row["solution"] for row in rows], [row["answer"] for row in rows])) == {1.0}


CASES = [json.loads(line) for line in (SHARED / "cases" / "cases.jsonl").open()] if SHARED.exists() else []


@shared
@pytest.mark.parametrize(
    "case", [case for case in CASES if case["id"][0] == "A" and "pairs" in case["input"]], ids=lambda case: case["id"]
)
def test_reported_faults_are_not_ours(case):
    wanted = case["expected"]["rewards"]
    got = [reward(pair["output"], pair["gold"]) for pair in case["input"]["pairs"]]
    assert [g if w is not None else None for g, w in zip(got, wanted)] == wanted


def test_a_command_that_only_begins_like_a_sign_is_none():
    assert not equal("=\\mpA", "\\mpA")
    assert not equal("\\pmb", "\\pm b")


def test_threads_share_nothing_that_breaks():
    barrier = threading.Barrier(4)

    def grade(seed):
        barrier.wait()
        pairs = [("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", 1), ("2^{0.5}", "\\sqrt{2}+10^{-40}", 0)] * 10
        return [reward(f"\\boxed{{{a}}}", g) == right for g, a, right in pairs]

    with ThreadPoolExecutor(4) as threads:
        assert all(all(found) for found in threads.map(grade, range(4)))
