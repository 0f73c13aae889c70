"""Calling reward functions, and what leaves are paid for it."""

import asyncio
import time

import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer

from branchwise.config import ConfigError, RewardConfig, RewardLimits, Source, load_config
from branchwise.data import load_rows
from branchwise.rewards import RewardError, RewardRunner
from branchwise.tree import Node, Question, Tree, prompt_node

END = "</think>"
TOKENIZER = byte_tokenizer(tokens=[">4"])


def grow(phrasings, columns=None, tokenizer=TOKENIZER):
    """A tree from (prompt, thoughts): a thought is a text and its answers' texts, or an unclosed text alone."""
    tree = Tree(Question("q", tuple(prompt for prompt, _ in phrasings), columns or {}), draw=0, step=0)
    for n, (prompt, _) in enumerate(phrasings):
        tree.add(prompt_node(n, tokenizer(str(prompt))["input_ids"]))
    for n, (_, thoughts) in enumerate(phrasings):
        for k, thought in enumerate(thoughts):
            text, answers = (thought, []) if isinstance(thought, str) else thought
            above = add(tree, "thought", n, k, text, "marker" if answers else "stop", tokenizer)
            for m, answer in enumerate(answers):
                add(tree, "answer", above, m, answer + "</s>", "stop", tokenizer)
    return tree


def add(tree, kind, parent, index, text, finish, tokenizer=TOKENIZER):
    ids = np.array(tokenizer(text)["input_ids"])
    return tree.add(Node(kind, parent, index, ids, np.zeros(len(ids)), np.ones(len(ids), bool), finish))


def responses(*texts, **columns):
    """A tree of whole responses, as without a marker."""
    tree = Tree(Question("q", ("q",), columns), draw=0, step=0)
    tree.add(prompt_node(0, [1]))
    for k, text in enumerate(texts):
        add(tree, "response", 0, k, text, "stop")
    return tree


def runner(*rewards, marker=None, **more):
    named = [RewardConfig(function=reward) if isinstance(reward, str) else reward for reward in rewards]
    return RewardRunner(named, TOKENIZER, marker, **{"limits": RewardLimits(max_failed=1, workers=1)} | more)


def leaves(tree):
    return [tree.nodes[i] for i in tree.leaves()]


def paid(tree):
    return [leaf.reward for leaf in leaves(tree)]


def asked(*trees, marker=END, tokenizer=TOKENIZER):
    """All that a function is given."""
    given = {}

    def spy(**arguments):
        given.update(arguments)
        return [0.0] * len(arguments["completions"])

    RewardRunner([spy], tokenizer, marker).score(trees)
    return given


# --- what functions are given


def test_leaves_come_with_their_own_texts_places_and_columns():
    tree = grow([("p0", [("a" + END, ["x", "y"]), "b"]), ("p1", [("c" + END, ["z"])])], {"answer": "4", "level": 2})
    given = asked(tree, grow([("p", ["d"])], {"answer": "5"}))
    assert given["prompts"] == ["p0", "p0", "p0", "p1", "p"]
    assert given["original_prompts"] == ["p0", "p0", "p0", "p0", "p"]
    assert given["completions"] == ["a</think>x", "a</think>y", "b", "c</think>z", "d"]
    assert given["thoughts"] == ["a", "a", "b", "c", "d"]
    assert given["answers"] == ["x", "y", "", "z", ""]
    assert given["phrasing_index"] == [0, 0, 0, 1, 0]
    assert given["thought_index"] == [0, 0, 1, 0, 0]
    assert given["answer"] == ["4", "4", "4", "4", "5"]
    assert given["level"] == [2, 2, 2, 2, None]
    assert given["completion_ids"][3] == TOKENIZER("c</think>z</s>")["input_ids"]
    assert given["trainer_state"] is None


def test_chat_prompts_get_completions_as_messages():
    chat = [{"role": "user", "content": "p"}]
    given = asked(grow([(chat, ["r"])]))
    assert given["prompts"] == [chat]
    assert given["completions"] == [[{"role": "assistant", "content": "r"}]]


def test_without_a_marker_the_answer_is_the_whole_response():
    given = asked(responses("a</think>b"), marker=None)
    assert (given["answers"], given["thoughts"]) == (["a</think>b"], [""])


def test_what_the_markers_last_token_holds_beyond_it_is_answer():
    tree = grow([("p", [("3+1</think>4", ["2"])])])
    assert TOKENIZER.convert_ids_to_tokens(tree.nodes[1].ids_T.tolist())[-1] == ">4"
    given = asked(tree)
    assert (given["thoughts"], given["answers"]) == (["3+1"], ["42"])


def test_a_marker_that_is_a_special_token_still_parts_thought_and_answer():
    special = byte_tokenizer(special=[END])
    tree = grow([("p", [("3+1" + END, ["4" + END])])], tokenizer=special)
    given = asked(tree, tokenizer=special)
    assert (given["thoughts"], given["answers"]) == (["3+1"], ["4"])


def test_a_function_gets_only_what_it_accepts_and_its_own_args(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def f(answers, answer, bonus=0.0):\n    return [bonus + (a == b) for a, b in zip(answers, answer)]\n"
    )
    tree = responses("1", "2", answer="1", unused=0)
    runner(RewardConfig(function=f"{tmp_path}/mine.py:f", weight=2, args={"bonus": 0.5})).score([tree])
    assert paid(tree) == [3.0, 1.0]
    tree = responses("1", "2", answer="1")
    runner(f"{tmp_path}/mine.py:f").score([tree])
    assert paid(tree) == [1.0, 0.0]


# --- what leaves are paid


def test_rewards_are_weighted_sums_of_the_parts_that_apply(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def length(completions, **_):\n    return [float(len(c)) for c in completions]\n"
        "def first(completions, **_):\n    return [None if c == 'bb' else True for c in completions]\n"
    )
    configs = [RewardConfig(function=f"{file}:length", weight=0.5), RewardConfig(function=f"{file}:first", weight=2)]
    tree = responses("a", "bb")
    runner(*configs).score([tree])
    assert paid(tree) == [2.5, 1.0]
    assert [leaf.parts for leaf in leaves(tree)] == [{"length": 1.0, "first": 1.0}, {"length": 2.0, "first": None}]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 0]),
        np.array([1, 0], np.float32),
        torch.tensor([1.0, 0.0]),
        (True, False),
        [np.True_, torch.tensor(0)],
    ],
)
def test_scalars_of_any_make_are_numbers(values):
    tree = responses("a", "b")
    runner(lambda completions: values).score([tree])
    assert paid(tree) == [1.0, 0.0]
    assert {type(leaf.reward) for leaf in leaves(tree)} == {float}


def test_none_from_all_is_missing_and_not_zero():
    tree = responses("a", "b")
    runner(lambda completions: [None, 0.0], lambda completions: [None, None]).score([tree])
    assert paid(tree) == [None, 0.0]
    assert [leaf.reason for leaf in leaves(tree)] == ["no reward function applies", None]


def test_nan_and_infinity_are_missing_with_their_reason():
    def f(completions):
        return [float("nan"), float("inf"), np.float32("nan"), 1]

    tree = responses("a", "b", "c", "d")
    runner(f, lambda completions: [1, 1, 1, 1]).score([tree])
    assert paid(tree) == [None, None, None, 2.0]
    assert [leaf.reason for leaf in leaves(tree)] == ["f: returned nan", "f: returned inf", "f: returned nan", None]


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("bad row"), SystemExit(3), Stop("bad row")])
def test_a_failure_is_missing_with_its_reason(error):
    def fails(completions):
        raise error

    tree = responses("a", "b")
    runner(fails, lambda completions: [1, 1]).score([tree])
    assert paid(tree) == [None, None]
    assert leaves(tree)[0].reason == f"fails: {type(error).__name__}: {error}"
    assert leaves(tree)[0].parts == {"fails": None, "<lambda>": 1.0}


def test_an_interrupt_is_no_failure_of_a_function():
    def f(completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner(f).score([responses("a")])


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0], "returned 1 values; 4 expected"),
        ([1, 0, 1], "returned 3 values; 4 expected"),
        ([], "returned 0 values; 4 expected"),
        ((x for x in (1, 0, 1, 0)), "returned a generator; 4 expected"),
        (1.0, "returned a float; 4 expected"),
        (None, "returned a NoneType; 4 expected"),
        (np.float64(1), "returned a float64; 4 expected"),
    ],
)
def test_anything_but_a_value_for_each_leaf_stops_the_run(values, found):  # case B05
    def mine(completions):
        return values

    tree = responses("a", "b", "c", "d")
    with pytest.raises(RewardError, match=f"mine: {found}"):
        runner(mine, limits=RewardLimits()).score([tree])
    assert paid(tree) == [None] * 4


@pytest.mark.parametrize("value", ["0", [0], {}, b"1"])
def test_a_value_that_is_no_number_is_missing_with_its_reason(value):
    tree = responses("a", "b")
    runner(lambda completions: [1, value]).score([tree])
    assert paid(tree) == [1.0, None]
    assert leaves(tree)[1].reason == f"<lambda>: returned {value!r}; a number or None is expected"


class Hostile:
    def __float__(self):
        raise RuntimeError("no number")

    def __repr__(self):
        raise RuntimeError("no text")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("value", [10**400, Hostile(), Mute(), "x" * 10**6])
def test_values_and_errors_that_cannot_be_told_are_a_short_reason(value):
    tree = responses("a", "b")
    runner(lambda completions: [1, value]).score([tree])
    assert paid(tree) == [1.0, None]
    assert 0 < len(leaves(tree)[1].reason) < 700


def test_an_async_function_that_is_cancelled_within_is_missing_with_its_reason():
    async def f(completions):
        raise asyncio.CancelledError("by its client")

    tree = responses("a")
    runner(f).score([tree])
    assert leaves(tree)[0].reason == "f: CancelledError: by its client"


def test_only_leaves_without_a_reward_are_scored():
    calls = []

    def f(completions):
        calls.append(list(completions))
        return [None if c == "a" else 1.0 for c in completions]

    tree = responses("a", "b")
    run = runner(f)
    run.score([tree])
    add(tree, "response", 0, 2, "c", "stop")
    run.score([tree])
    run.score([tree])
    assert calls == [["a", "b"], ["c"]]
    assert paid(tree) == [None, 1.0, 1.0]


@pytest.mark.parametrize("limits", [(20, 20), (16, 40)])  # (17 - 10) / 10 over the whole, or (13 - 6) / 10
def test_overlong_responses_and_overlong_thoughts_pay(limits):
    tree = grow([("p", [("abcde" + END, ["fgh"]), "a" * 20])])  # 5 + 8 + 3 + EOS = 17 tokens, and 20
    run = RewardRunner([lambda completions: [1.0, 1.0]], TOKENIZER, END, overlong_buffer=10, lengths=limits)
    run.score([tree])
    assert paid(tree) == pytest.approx([1 - 0.7, 0.0])
    assert [leaf.parts["overlong"] for leaf in leaves(tree)] == pytest.approx([-0.7, -1.0])


def test_short_responses_do_not_pay():
    tree = responses("ab")
    runner(lambda completions: [1.0], overlong_buffer=10, lengths=(20, 20)).score([tree])
    assert paid(tree) == [1.0]
    assert leaves(tree)[0].parts["overlong"] is None


@pytest.mark.parametrize(("gold", "rewards"), [("7", [0, 0, 0]), ("9", [1, 0, 0])])
def test_an_answer_inside_the_thought_is_not_paid(gold, rewards):  # case A17
    closed = ("trying \\boxed{7}" + END, [" Final answer: \\boxed{9}", " I am not sure."])
    tree = grow([("p", [closed, "trying \\boxed{7}"])], {"answer": gold})
    runner("math", marker=END).score([tree])
    assert paid(tree) == rewards


# --- async functions, logs


def test_async_functions_run_together_and_beside_a_running_loop():
    async def one(completions):
        await asyncio.sleep(0.2)
        return [1.0] * len(completions)

    async def two(completions):
        await asyncio.sleep(0.2)
        return [10.0] * len(completions)

    async def fails(completions):
        raise ValueError("no")

    async def notebook():
        tree = responses("a")
        start = time.perf_counter()
        runner(one, two).score([tree])
        return tree, time.perf_counter() - start

    tree, seconds = asyncio.run(notebook())
    assert paid(tree) == [11.0]
    assert seconds < 0.35
    tree = responses("a")
    runner(one, fails).score([tree])
    assert leaves(tree)[0].reason == "fails: ValueError: no"


def test_an_async_client_outlives_a_call():
    loops = []

    class Judge:
        async def __call__(self, completions):
            loops.append(asyncio.get_running_loop())
            return [1.0]

    run = runner(Judge())
    run.score([responses("a")])
    run.score([responses("b")])
    assert loops[0] is loops[1]
    assert run.functions[0].name == "Judge"


def test_logs_are_kept():
    def f(completions, log_metric, log_extra):
        log_metric("length", np.mean([len(c) for c in completions]))
        log_extra("shout", [c.upper() for c in completions])
        return [1.0] * len(completions)

    run, tree = runner(f), responses("a", "bbb")
    run.score([tree])
    run.score([responses("c")])
    assert run.logged == {"length": [2.0, 1.0]}
    assert [leaf.extra for leaf in leaves(tree)] == [{"shout": "A"}, {"shout": "BBB"}]


# --- other libraries' functions


def test_verls_functions_are_called_leaf_by_leaf():
    seen = []

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        seen.append((data_source, solution_str, ground_truth, extra_info))
        if solution_str == "c":
            raise ValueError("unreadable")
        return {"score": 1.0, "acc": 1} if solution_str == "a" else 0.5

    tree = responses("a", "b", "c", answer="4", data_source="gsm", extra_info={"index": 1})
    runner(compute_score).score([tree])
    assert paid(tree) == [1.0, 0.5, None]
    assert seen[0] == ("gsm", "a", "4", {"index": 1})
    assert leaves(tree)[2].reason == "compute_score: ValueError: unreadable"


def test_verls_functions_read_the_text_of_chat_completions():
    def compute_score(solution_str, ground_truth):
        return float(solution_str == ground_truth)

    tree = grow([([{"role": "user", "content": "p"}], ["4", "5"])], {"answer": "4"})
    runner(compute_score).score([tree])
    assert paid(tree) == [1.0, 0.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_verifiers_functions_take_any_of_their_names(is_async):
    def exact(completion, answer, parser, state, info):
        assert state["prompt"] == "p"
        assert info == {"level": 3}
        if completion == "c</think>9":
            raise ValueError("no")
        return float(parser.parse_answer(completion) == answer)

    async def exact_async(completion, answer, parser, state, info):
        return exact(completion, answer, parser, state, info)

    tree = grow([("p", [("a" + END, ["4", "5"]), ("c" + END, ["9"])])], {"answer": "4", "info": {"level": 3}})
    runner(exact_async if is_async else exact, marker=END).score([tree])
    assert paid(tree) == [1.0, 0.0, None]


# --- mistakes


def test_a_missing_column_is_an_error_that_lists_those_found():  # case F04
    def f(completions, tests):
        return [1.0]

    with pytest.raises(RewardError, match="'f' needs tests; the data's columns are answer, level, and"):
        runner(f).score([responses("a", answer="1", level=2)])
    with pytest.raises(RewardError, match="'math' needs answer; the data's columns are solution,"):
        runner("math").check(["solution"])

    def compute_score(solution_str, ground_truth):
        return 1.0

    with pytest.raises(RewardError, match="'compute_score' needs ground_truth"):
        runner(compute_score).check(["question"])
    runner(compute_score).check(["question", "answer"])


def test_a_column_that_goes_by_a_name_of_ours_is_an_error():
    def f(completions, answers):
        return [1.0]

    with pytest.raises(RewardError, match=r"'f' asks for 'answers', .* rename the column"):
        runner(f).score([responses("a", answers=["1"])])


def test_args_that_no_parameter_takes_are_an_error(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completions, bonus=0):\n    return [bonus]\n")
    with pytest.raises(RewardError, match="'f' takes no 'bonsu'; it takes completions, bonus"):
        runner(RewardConfig(function=f"{tmp_path}/mine.py:f", args={"bonsu": 1})).check(["answer"])


def test_unknown_functions_are_errors():
    with pytest.raises(ConfigError, match="no built-in 'maths'; choose one of math, code, choice"):
        runner("maths")
    with pytest.raises(ConfigError, match="3 is no function"):
        runner(3)


def test_functions_of_one_name_are_told_apart():
    tree = responses("a")
    runner(lambda completions: [1.0], lambda completions: [2.0]).score([tree])
    assert leaves(tree)[0].parts == {"<lambda>": 1.0, "<lambda>_2": 2.0}


def test_reward_funcs_are_given_as_trl_takes_them():
    config = load_config({"model": {"path": "m"}, "rewards": ["math"], "algorithm": {"overlong_buffer": 5}})

    def f(completions):
        return [1.0]

    assert [g.name for g in RewardRunner.of(None, config, TOKENIZER).functions] == ["math"]
    assert [g.name for g in RewardRunner.of(f, config, TOKENIZER).functions] == ["f"]
    run = RewardRunner.of([f, "math"], config, TOKENIZER)
    assert [g.name for g in run.functions] == ["f", "math"]
    assert (run.marker, run.overlong_buffer, run.lengths) == (END, 5, (1024, 1536))


# --- reasoning-gym


def test_reasoning_gym_scores_by_the_tasks_own_scorer():
    args = {"max_terms": 2, "max_digits": 1}
    row = load_rows(Source(path="reasoning_gym:chain_sum", limit=1, args=args)).rows[0]
    right = row["answer"]
    texts = [f"\\boxed{{{right}.0}}", f"<answer>{right}</answer>", right, f"{right}5", "none", ""]
    tree = responses(*texts, **row)
    runner("reasoning_gym").score([tree])
    assert paid(tree) == [1.0, 1.0, 1.0, len(right) / (len(right) + 1), 0.0, 0.0]
    tree = responses(*texts, **row)
    runner(RewardConfig(function="reasoning_gym", args={"exact": True})).score([tree])
    assert paid(tree) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
