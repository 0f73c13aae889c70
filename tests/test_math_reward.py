"""Final answers, and which of them are paid."""

import json
import random
import re
import threading
import time
from pathlib import Path

import pytest

from branchwise.rewards.equality import equal
from branchwise.rewards.math import final_answer, last_box, math

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
        ("\\boxed{1} then \\boxed{2", None),
        ("#### 5\n#### 1,234\nmore", "1,234"),
        ("The answer is 5. The final answer is: **$12$**.", "$12$"),
        ("Answer: 3.5 apples. That is 2 more.", "3.5 apples"),
        ("Answer:\n\n7", "7"),
        ("so 3 + 4 = 7 clips.", "7"),
        ("it costs $1,250.50.", "1,250.50"),
        ("x = -3", "-3"),
        ("a third, \\frac{1}{3}", "\\frac{1}{3}"),
        ("half, 1/2", "1/2"),
        ("that is 3 + 4", None),
        ("\\sqrt{2}", None),
        ("x_2", None),
        ("2x", None),
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


def test_an_unclosed_thought_is_paid_nothing():
    assert math(["", "7"], ["7", "7"]) == [0.0, 1.0]


def test_references_may_be_numbers_or_worked_solutions():
    assert math(["7"] * 4, [7, 7.0, "3 + 4 = 7\n#### 7", "so \\boxed{7}"]) == [1.0] * 4


# --- equality

EQUAL = [
    ("1234", "1,234"),
    ("1/2", "0.5"),
    ("\\frac12", "\\dfrac{1}{2}"),
    ("\\frac{3}{4}", "0.75"),
    ("3\\frac{1}{4}", "3 1/4"),
    ("-3\\frac{1}{4}", "-3.25"),
    ("0.1", ".10"),
    ("1000000", "10^6"),
    ("2.5e3", "2.5 \\times 10^{3}"),
    ("18", "$18"),
    ("18", "18 dollars"),
    ("18.90", "\\$18.90"),
    ("12\\text{ cm}^2", "12"),
    ("5", "5\\text{ apples}"),
    ("90^\\circ", "90"),
    ("35\\%", "0.35"),
    ("35\\%", "35"),
    ("35", "35\\%"),
    ("9", "x = 9"),
    ("x = 9", "9"),
    ("\\text{Evelyn}", "evelyn"),
    ("\\text{(C)}", "C"),
    ("\\{1,2\\}", "\\{2, 1\\}"),
    ("1,2", "2 and 1"),
    ("x=1,x=2", "1, 2"),
    ("(0.5,\\sqrt{2})", "\\left(\\frac12, \\sqrt2\\right)"),
    ("\\begin{pmatrix}1\\\\0.5\\end{pmatrix}", "\\begin{bmatrix} 1 \\\\ \\frac{1}{2} \\end{bmatrix}"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("x^2-1", "(x-1)(x+1)"),
    ("\\pi/2", "\\frac{\\pi}{2}"),
    ("y=2x+3", "2y=4x+6"),
    ("10,\\!080", "10080"),
    ("-1", "i^2"),
    ("\\tan^2(t)+1", "\\sec^2(t)"),
]
UNEQUAL = [
    ("1/3", "0.3333333333"),
    ("0.0000000001", "0.0000000002"),
    ("5", "500"),
    ("0.4", "40"),
    ("0.4", "0.4\\%"),
    ("5", "-5"),
    ("5\\text{ cm}", "5\\text{ inches}"),
    ("5", "5 million"),
    ("5", "5 or 6"),
    ("5x", "5"),
    ("5", "5x"),
    ("24ab", "24"),
    ("3\\frac{1}{4}", "\\frac{3}{4}"),
    ("10,000", "10,0"),
    ("(1,2)", "(2,1)"),
    ("(2,9]", "(2,9)"),
    ("\\{1,2\\}", "\\{1,2,2\\}"),
    ("\\begin{pmatrix}4\\\\0\\end{pmatrix}", "\\begin{pmatrix}8\\\\0\\end{pmatrix}"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}"),
    ("x=5", "y=5"),
    ("x=5", "-x=5"),
    ("y=2x+3", "y=2x+4"),
    ("x", "X"),
    ("5xy", "5XY"),
    ("\\pi", "3.14159265358979"),
    ("f(x)", "g(x)"),
    ("\\sqrt{x^2}", "x"),
    ("x>3", "x\\ge 3"),
    ("11", "11_2"),
    ("1011_2", "1011_3"),
    ("10^{-20}x", "2\\cdot 10^{-20}x"),
    ("e^{-50}", "e^{-49}"),
    ("13", "05\\!:\\!00"),
    ("7", "\\frac{7}{0}"),
    ("", ""),
]


@pytest.mark.parametrize(("gold", "given"), EQUAL)
def test_equal_answers_are_paid(gold, given):
    assert equal(gold, given)


@pytest.mark.parametrize(("gold", "given"), UNEQUAL)
def test_unequal_answers_are_not_paid(gold, given):
    assert not equal(gold, given)


def test_grading_works_off_the_main_thread():  # case A27
    results = []
    thread = threading.Thread(target=lambda: results.extend(math(["\\boxed{\\sqrt{8}}"], ["2\\sqrt{2}"])))
    thread.start()
    thread.join()
    assert results == [1.0]


@pytest.mark.parametrize(
    "given",
    [
        "7^{7^{7^{7^{7}}}}",
        "((9^{50})^{50})^{50}",
        "(x+1)^{5000}",
        "10000!",
        "9" * 5000,
        "\\sum_{k=1}^{99999999} k",
        "(" * 9999,
    ],
)
def test_hostile_answers_are_unpaid_and_quick(given):  # case A28
    start = time.perf_counter()
    assert math(["\\boxed{7}", f"\\boxed{{{given}}}", "\\boxed{8}"], ["7", "\\sqrt{7}", "8"]) == [1, 0, 1]
    assert time.perf_counter() - start < 2


def test_answers_are_never_run_as_code(tmp_path):  # case A30
    mark = tmp_path / "MARK"
    output = f"\\boxed{{\\pi*__import__('pathlib').Path('{mark}').touch()}}"
    assert reward(output, "\\pi") == 0
    assert reward("\\boxed{[__import__('os').getpid()]}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}") == 0
    assert not mark.exists()


# --- other people's answers


def golds(name):
    return [str(json.loads(line)["answer"]) for line in (SHARED / "data" / f"{name}.jsonl").open(encoding="utf-8")]


@shared
@pytest.mark.parametrize("name", ["gsm8k_train", "math500", "math_train", "svamp", "olympiadbench"])
def test_every_reference_answers_itself(name):  # case A02
    assert [gold for gold in golds(name) if reward(f"so \\boxed{{{gold}}}.", gold) != 1] == []


@shared
def test_no_reference_answers_another_question():
    found, others = golds("math500")[:200], golds("math500")[:200]
    random.Random(0).shuffle(others)
    assert [pair for pair in zip(found, others) if pair[0] != pair[1] and equal(*pair)] == []


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
GRADING = {"A01", "A02", "A04", "A06", "A08", "A10", "A12", "A13", "A15", "A18", "A20", "A22"}


@shared
@pytest.mark.parametrize("case", [case for case in CASES if case["id"] in GRADING], ids=lambda case: case["id"])
def test_reported_faults_are_not_ours(case):
    wanted = case["expected"]["rewards"]
    got = [reward(pair["output"], pair["gold"]) for pair in case["input"]["pairs"]]
    assert [g if w is not None else None for g, w in zip(got, wanted)] == wanted
