"""The reward for programs: extraction, HumanEval's and MBPP's tests, standard input and output."""

import ast
import json
import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_rewards import leaves, paid, responses, runner

from branchwise.config import ConfigError, RewardConfig
from branchwise.rewards.code import code, grade_code, same_text
from branchwise.rewards.grade import grade as grade_lines
from branchwise.rewards.programs import completions, programs

pytestmark = pytest.mark.usefixtures("sandbox")

ADD = {
    "prompt": 'def add(a: int, b: int) -> int:\n    """The sum."""\n',
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
    "entry_point": "add",
}
SUM = {"inputs": ["3 4\n", "5 -6\n"], "outputs": ["7\n", "-1\n"]}
DOUBLE = {"test_list": ["assert double(2) == 4", "assert double('a') == 'aa'"]}


def grade(output, row, **settings):
    return grade_code([{"output": output, **row}], **settings)[0]


def pays(output, row, **settings):
    return grade(output, row, **settings)[0]


# --- programs in texts


def test_the_last_python_block_is_the_program():
    text = "First:\n```python\na = 1\n```\nBetter:\n```py\na = 2\n```\nIt prints:\n```\n2\n```\nor `x`."
    assert programs(text) == ["a = 2\n"]
    assert programs("```\na = 1\n```") == ["a = 1\n"]
    assert programs("```java\nint a;\n```") == []
    assert programs("```python\na = 1") == ["a = 1"]
    assert programs("~~~python\na = '```'\n~~~") == ["a = '```'\n"]
    assert programs("1. So:\n   ```python\n   def f():\n       pass\n   ```") == ["def f():\n    pass\n"]
    assert programs("") == programs(" \n") == []


def test_the_block_that_defines_the_function_comes_first():
    text = "```python\ndef f(x):\n    return x\n```\nUse:\n```python\nprint(f(1))\n```"
    assert programs(text, "f") == ["def f(x):\n    return x\n"]


def test_without_blocks_the_text_or_its_code_is_tried():
    assert programs("R = 3\ndef f(): pass") == ["R = 3\ndef f(): pass", "def f(): pass"]
    assert pays("Here it is:\ndef double(x): return 2 * x", DOUBLE) == 1


WHOLE = "def double(x):\n    return 2 * x\n"


@pytest.mark.parametrize(
    "output",
    [
        f"So:\n```python\n{WHOLE}```\nDone.\n".replace("\n", "\r\n"),
        f"{WHOLE}```\nIt doubles.",
        f"{WHOLE}```\nUse:\n```python\nprint(double(1))\n```\n",
        f"Here it is:\n\n{WHOLE}\nThis function doubles its argument.",
        f"\ufeff{WHOLE}",
        f"```python3.11\n{WHOLE}```",
        "```python\ndef twice(x):\n    return 2 * x\n```\nand\n```python\ndef double(x):\n    return twice(x)\n```",
        "```python\nfrom operator import mul\n```\n```python\ndef double(x):\n    return mul(2, x)\n```",
        f"<answer>```python\n{WHOLE}```</answer>",
        f"<answer>\n{WHOLE}</answer>",
        f"[BEGIN]\n{WHOLE}[DONE]",
        f"```python\n{WHOLE.rstrip()}```",
    ],
)
def test_what_surrounds_a_program_does_not_matter(output):
    assert pays(output, DOUBLE) == 1


def test_blocks_before_the_program_only_help_where_they_define():
    assert programs("```python\nprint(1)\n```\n```python\ndef f(): pass\n```", "f") == ["def f(): pass\n"]
    right, wrong = f"```python\n{WHOLE}```\n", "```python\ndef double(x): return 0\n```\n"
    assert pays(wrong + right, DOUBLE) == 1
    assert pays(right + wrong, DOUBLE) == 0


# --- HumanEval


@pytest.mark.parametrize(
    "output",
    [
        "    return a + b\n",
        "return a + b",
        "def add(a, b):\n    return a + b",
        "Sure.\n```python\ndef add(a: int, b: int) -> int:\n    return a + b\n```\nDone.",
        "```python\n    return a + b\n```",
        "```python\nadd = lambda a, b: a + b\n```",
    ],
)
def test_continuations_and_whole_functions_count(output):
    assert grade(output, ADD) == (1.0, "the tests pass")


@pytest.mark.parametrize("output", ["", "    pass\n", "    return a - b", "no idea", "```python\n```", "def add(a, b:"])
def test_wrong_ones_do_not(output):
    assert pays(output, ADD) == 0


def test_helpers_of_the_prompt_are_the_tests_own():
    row = {
        "prompt": "import math\ndef helper(x):\n    return x * x\n\ndef root(x):\n    '''Root.'''\n",
        "test": "def check(candidate):\n    assert math.isclose(helper(candidate(2)), 2)",
        "entry_point": "root",
    }
    assert pays("    return math.sqrt(x)", row) == 1
    assert pays("    return helper(x) ** 0.25", row) == 1
    assert pays("def helper(x): return 2\ndef root(x): return 0", row) == 0


FIRST = {
    "prompt": 'def first(xs):\n    """The first that is positive, or 0."""\n',
    "test": "def check(candidate):\n    assert candidate([-1, 2]) == 2\n    assert candidate([]) == 0",
    "entry_point": "first",
}


@pytest.mark.parametrize("indents", [(4, 8, 12, 4), (0, 8, 12, 4), (0, 4, 8, 0)])
def test_a_body_may_have_lost_its_indent(indents):
    lines = ["for x in xs:", "if x > 0:", "return x", "return 0"]
    body = "\n".join(" " * indent + line for indent, line in zip(indents, lines))
    assert pays(body, FIRST) == 1
    assert pays(f"```python\n{body}\n```", FIRST) == 1


def test_a_prompt_without_a_body_still_gives_its_helpers():
    row = {
        "prompt": "def even(x):\n    return x % 2 == 0\n\ndef f(x):\n    # Make it even.\n",
        "test": "def check(candidate):\n    assert even(candidate(1))",
        "entry_point": "f",
    }
    assert pays("    return 2 * x", row) == 1
    assert pays("def even(x): return True\ndef f(x): return 1", row) == 0


def test_prompts_of_chat_give_their_code():
    message = [{"role": "user", "content": f"Complete:\n```python\n{ADD['prompt']}```"}]
    assert pays("    return a + b\n", {**ADD, "prompt": message}) == 1
    assert pays("def add(a, b): return a + b", {**ADD, "prompt": "Add two numbers."}) == 1
    for before in ('NOTE = """\nAdd more tests.\n"""\n', "Complete this.\n\n"):
        assert pays("    return a + b\n", {**ADD, "prompt": before + ADD["prompt"]}) == 1


def test_fractions_count_what_passes():
    test = """def check(candidate):
    n = 1
    assert candidate(n, 2) == 3
    for i in range(3):
        assert candidate(i, i) == 2 * i
    assert candidate(0, 0) == 1
    assert candidate(5, 0) == 5
"""
    row = {**ADD, "test": test}
    assert pays("    return a + b", row, credit="fraction") == 0.75
    assert pays("    return a + b", row) == 0
    assert pays("    raise SystemExit", row, credit="fraction") == 0
    twice = {**row, "test": test + "\n\ncheck(add)\n"}
    assert pays("    return a + b", twice, credit="fraction") == 0.75
    assert pays("def double(x): return x * 2 if x == 2 else 0", DOUBLE, credit="fraction") == 0.5


# --- MBPP


def test_functions_named_like_built_ins_are_the_submissions():
    row = {"test_list": ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]}
    source = "def sum(a, b): return __builtins__['sum'](i for i in range(1, min(a, b) + 1) if a % i == b % i == 0)"
    assert pays(source, row) == 1
    assert pays("def sum(a, b): return 6", row) == 0


def test_the_function_may_stand_on_the_right():
    row = {"test_list": ["assert 6 == sum(10, 15)"]}
    assert pays("def sum(a, b): return 6", row) == 1
    assert pays("def sum(a, b): return 5", row) == 0


def test_built_ins_of_the_test_are_not_the_submissions():
    row = {"test_list": ["assert set(letters('ab')) == set(['a', 'b'])"]}
    assert pays("def letters(x): return list(x)", row) == 1
    assert pays("def set(x): return 0\ndef letters(x): return []", row) == 0
    row = {"test_list": ["assert count('aab') == Counter({'a': 2, 'b': 1})"]}
    assert pays("from collections import Counter\ndef count(x): return Counter(x)", row) == 1
    assert pays("def Counter(x): return 0\ndef count(x): return 0", row) == 0


def test_modules_are_imported_on_the_tests_side():
    row = {"test_list": ["assert size((1, 2)) == sys.getsizeof((1, 2))"]}
    assert pays("import sys\ndef size(x): return sys.getsizeof(x)", row) == 1
    forger = "class sys:\n    @staticmethod\n    def getsizeof(x): return 0\ndef size(x): return 0"
    assert pays(forger, row) == 0


def test_setup_is_run_before():
    row = {"test_list": ["assert double(BASE) == 8"], "test_setup_code": "BASE = 4", "test_imports": ["import math"]}
    assert pays("def double(x): return 2 * x", row) == 1


# --- standard input and output


@pytest.mark.parametrize(  # case C06
    "read",
    [
        "a, b = map(int, input().split())",
        "import sys\na, b = map(int, sys.stdin.read().split())",
        "import sys\nfor line in sys.stdin: a, b = map(int, line.split())",
        "import sys\na, b = map(int, sys.stdin.buffer.read().split())",
        "a, b = map(int, open(0).read().split())",
        "import os\na, b = map(int, os.read(0, 100).split())",
        "a, b = map(int, open('/dev/stdin').read().split())",
    ],
)
def test_every_way_to_read_and_write(read):
    assert pays(f"{read}\nprint(a + b)", SUM) == 1
    assert pays(f"```python\n{read}\nimport sys\nsys.stdout.buffer.write(b'%d' % (a + b))\n```", SUM) == 1
    main = "\n".join(f"    {line}" for line in read.splitlines())
    assert pays(f"def main():\n{main}\n    print(a + b)\nif __name__ == '__main__':\n    main()", SUM) == 1


def test_long_numbers_are_printed():  # case C08
    assert pays("print(2**20000)", {"inputs": [""], "outputs": [hex_to_decimal(2**20000)]}) == 1


def hex_to_decimal(number):
    digits = []
    while number:
        number, digit = divmod(number, 10**4000)
        digits.append(str(digit).zfill(4000))
    return "".join(reversed(digits)).lstrip("0")


def test_exits_and_exit_codes():  # case C09
    right = "a, b = map(int, input().split())\nprint(a + b)\n"
    assert pays(right + "import sys\nsys.exit(0)", SUM) == 1
    assert pays(right + "exit(1)", SUM) == 1
    assert pays("import sys\nsys.exit(0)", DOUBLE) == 0
    assert pays("import os\nos._exit(0)", DOUBLE) == 0
    assert pays("def double(x): raise SystemExit", DOUBLE) == 0


def test_outputs_are_compared_line_by_line():
    assert same_text("1 2 \n3\n\n", "1 2\n3")
    assert not same_text("1\n2", "1 2")
    assert not same_text("1.0", "1")
    assert not same_text("1\x0b2", "1\n2") and not same_text("1\u20282", "1\n2")
    assert same_text("1\r\n2\r\n", "1\n2")
    assert same_text("1.0000001", "1", 1e-6) and not same_text("1.1", "1", 1e-6)
    assert not same_text("nan", "1", 1e-6) and not same_text("1e999", "1", 1e-6)


@pytest.mark.parametrize(
    "output", ["I do not know", "raise ValueError", "```python\ndef (\n```", "import os; os._exit(3)"]
)
def test_silence_of_a_failure_is_no_empty_output(output):
    row = {"inputs": ["1"], "outputs": [""]}
    assert pays(output, row) == 0
    assert pays("x = input()", row) == 1


def test_credit_of_inputs():
    half = "print(7)"
    assert pays(half, SUM) == 0
    assert pays(half, SUM, credit="fraction") == 0.5
    assert grade("print(1)", SUM)[1] == "input 1: another output"
    assert grade("print(x)", SUM)[1] == "input 1: NameError: name 'x' is not defined"


# --- hostile programs (cases C01, C02, C04)


def test_endless_ones_cost_their_limit_and_leave_no_process():
    rows = [{"output": "while True: pass", **SUM} for _ in range(20)]
    start = time.perf_counter()
    graded = grade_code(rows, workers=10, seconds=1)
    assert graded == [(0.0, "input 1: time limit")] * 20
    assert time.perf_counter() - start < 20 * 1.5 / 10 + 1


def test_a_hard_limit_of_the_host_below_ours_fails_nobody():
    import resource

    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
    program = f"""
import resource, sys
for kind, value in zip({kinds!r}, (40, 900 << 20, 1 << 20)):
    resource.setrlimit(kind, (value, value))
from branchwise.rewards.code import grade_code
print(grade_code([{{"output": "print(sum(map(int, input().split())))", **{SUM!r}}}]))
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "[(1.0, '2 of 2 tests pass')]\n", done.stderr


# --- rows and settings


def test_a_file_s_rows_come_back_as_they_are_graded():
    slow = "import time\ntime.sleep(9)\nprint(1)"
    rows = [{"output": output, "inputs": [""], "outputs": ["1"]} for output in ("print(1)", slow)]
    start = time.perf_counter()
    graded = grade_lines(map(json.dumps, rows), "code")
    assert next(graded)["reward"] == 1
    assert time.perf_counter() - start < 9  # an interrupt by then loses the second row alone
    graded.close()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no tests; a row has `test` and `entry_point`"),
        ({"test_list": []}, "test_list is empty"),
        ({"test_list": ["assert double("]}, "the tests are not Python"),
        ({"test_list": ["assert np.all(double(1))"]}, "attributes of 'np', which nothing defines"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [], "outputs": []}, "0 inputs and 0 outputs"),
    ],
)
def test_rows_that_cannot_be_graded_are_missing(row, reason):
    reward, told = grade("def double(x): return x", row)
    assert reward is None and reason in told


@pytest.mark.parametrize(
    "row",
    [
        {"output": None, **DOUBLE},
        DOUBLE,
        {"output": "x = 1", "test": 3, "entry_point": "f"},
        {"output": "x = 1", "test": "def check(f): pass", "entry_point": ["f"]},
        {"output": "x = 1", "test_list": [3]},
        {"output": "x = 1", "inputs": 1, "outputs": 1},
        {"output": "print(input())", "inputs": "12", "outputs": "12"},
        {"output": "def double(x): return 2 * x", "test_list": "assert double(2) == 4"},
        {"output": 3, **DOUBLE},
    ],
)
def test_rows_that_are_none_are_missing_and_spare_the_others(row):
    (reward, reason), other = grade_code([row, {"output": "def double(x): return 2 * x", **DOUBLE}])
    assert reward is None and reason
    assert other == (1.0, "2 of 2 tests pass")


def test_the_thought_is_no_program():
    right = "def double(x): return 2 * x"
    assert pays(f"<think>{right}</think>no", DOUBLE) == 0
    assert pays(f"<think>```python\nno\n```</think>\n{right}", DOUBLE) == 1
    assert pays([{"role": "assistant", "content": right}], DOUBLE) == 1


def test_settings_that_cannot_be():
    with pytest.raises(ConfigError, match="credit: 'some' is not possible"):
        grade("", SUM, credit="some")
    with pytest.raises(ConfigError, match="server_url: missing"):
        grade("", SUM, isolation="sandbox_fusion")
    with pytest.raises(ConfigError, match="isolation: container: no-such-runtime is not here"):
        grade("", SUM, isolation="container", container_runtime="no-such-runtime")

    with pytest.raises(ConfigError, match="memory_mb: 0 is not possible"):
        grade("", SUM, memory_mb=0)
    with pytest.raises(ConfigError, match="'code' takes no 'secnds'; it takes credit, isolation"):
        runner(RewardConfig(function="code", args={"secnds": 1})).check(["test_list"])


def test_it_has_trls_signature():
    rows = dict(zip(DOUBLE, ([DOUBLE["test_list"]] * 2,)))
    assert code(["def double(x): return 2 * x", "def double(x): return x"], prompts=["p", "p"], **rows) == [1.0, 0.0]
    chat = [[{"role": "assistant", "content": "```python\ndef double(x): return 2 * x\n```"}]]
    assert code(chat, test_list=[DOUBLE["test_list"]]) == [1.0]


def test_by_name_in_a_config():
    tree = responses("print(7)", "print(-1)", "nothing", **SUM)
    runner(RewardConfig(function="code", args={"credit": "fraction", "seconds": 5})).score([tree])
    assert paid(tree) == [0.5, 0.5, 0.0]
    assert leaves(tree)[0].extra == {"code": "input 2: another output"}


def test_a_missing_isolation_is_told_before_a_run(monkeypatch, tmp_path):
    from branchwise.rewards.sandbox import isolation

    monkeypatch.setenv("PATH", str(tmp_path))
    isolation._bubblewrap.cache_clear()
    with pytest.raises(ConfigError, match="install bubblewrap"):
        runner("code").check(["inputs", "outputs"])


# --- the reference solutions


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hollow(source):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    return ast.unparse(tree)


@pytest.mark.slow
def test_humanevals_references_pass_and_empty_ones_do_not(shared_data):
    rows = read(shared_data / "humaneval.jsonl")
    graded = grade_code([{**row, "output": row["canonical_solution"]} for row in rows])
    assert [row["task_id"] for row, (reward, _) in zip(rows, graded) if reward != 1] == []
    assert not any(reward for reward, _ in grade_code([{**row, "output": "    pass\n"} for row in rows]))


@pytest.mark.slow
def test_mbpps_references_pass_but_for_two_and_empty_ones_do_not(shared_data):
    rows = read(shared_data / "mbpp.jsonl")
    # one of them takes seconds where several tests run at once
    graded = grade_code([{**row, "output": row["code"]} for row in rows], seconds=60)
    # both set attributes of nodes that only the submission knows, and their solutions are wrong
    assert [row["task_id"] for row, (reward, _) in zip(rows, graded) if reward != 1] == [367, 927]
    assert not any(reward for reward, _ in grade_code([{**row, "output": hollow(row["code"])} for row in rows]))


def test_nothing_is_left_in_the_temporary_folder():
    name = f"/tmp/left{time.time_ns()}"
    writes = f"open({name!r}, 'w').write('x')\n"
    assert pays(writes + "def double(x): return 2 * x", DOUBLE) == 1
    assert not os.path.exists(name)


# --- any text


FENCES = ["```", "````", "~~~", "```python\n", "<think>", "</think>"]
CODE = ["def add(a, b):", "    return a + b", "add = ", "\n", " ", "'''", "\\", "\x00", "\ud800", "if x:\n\t", "#", "@"]
PIECES = st.sampled_from(FENCES + CODE)


@settings(max_examples=2000, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join))
def test_no_text_breaks_extraction(text):
    assert all(source.strip() for source in programs(text, "add"))
    assert all(isinstance(source, str) for source in completions(text, ADD["prompt"], "add"))
    assert same_text(text, text, 1e-9) and isinstance(same_text(text, "1", 1e-9), bool)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join))
def test_no_text_breaks_grading(text):
    reward, reason = grade(text, ADD, seconds=5)
    assert reward in (0.0, 1.0), reason
