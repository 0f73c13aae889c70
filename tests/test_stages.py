"""Two stages of completions: what is asked for, what is believed, where a thought ends."""

import pytest
import tiny

from branchwise.rollout.engine import Limb, Sampling
from branchwise.rollout.stages import BadCompletion, Completion, Request, Stages
from branchwise.tree import Question, Tree, prompt_node

EOS, CLOSE = 1, 5
A, B, C, PLUS, MINUS = 21, 22, 23, 16, 17
SAMPLING = Sampling(seed=0, marker="+-", max_thought_tokens=6, max_answer_tokens=3)


@pytest.fixture(scope="module")
def stages():
    tokenizer = tiny.tokenizer()
    assert tokenizer.convert_tokens_to_ids(["a", "+", "-"]) == [A, PLUS, MINUS]
    return Stages(tokenizer, tiny.VOCABULARY, frozenset([EOS]), positions=20)


def limb(thoughts=2, answers=2, draw=0, prompt=(7, 8)):
    tree = Tree(Question("q", ("text",)), draw, 1)
    tree.add(prompt_node(0, list(prompt)))
    return Limb(tree, 0, thoughts, answers)


def drawn(*ids, finish="length", marked=False):
    return Completion(list(ids), [-1.0] * len(ids), finish, marked)


def thought(stages, completion, sampling=SAMPLING):
    (found,) = stages.thoughts(Request([7], 1, 0, 6, 3, sampling.marker), [completion], sampling)
    return found


def test_a_thought_is_cut_at_the_token_that_completes_the_marker(stages):
    found = thought(stages, drawn(A, PLUS, PLUS, MINUS, A, B))
    assert (found.index, found.ids, len(found.logprobs), found.finish) == (3, [A, PLUS, PLUS, MINUS], 4, "marker")
    assert found.closed


@pytest.mark.parametrize(
    ("ids", "finish"), [((A, EOS), "stop"), ((A, B, A, B, A, B), "length"), ((PLUS, A, MINUS, EOS), "stop")]
)
def test_other_thoughts_are_unclosed(stages, ids, finish):
    found = thought(stages, drawn(*ids))
    assert (found.finish, found.closed) == (finish, False)


def test_force_close_appends_the_marker_undrawn(stages):
    sampling = Sampling(seed=0, marker="+-", force_close=True)
    node = thought(stages, drawn(A, EOS), sampling).node(0)
    assert node.ids_T.tolist() == [A, EOS, PLUS, MINUS] and node.sampled_T.tolist() == [True, True, False, False]
    assert node.logprobs_T.tolist() == [-1, -1, 0, 0] and node.finish == "forced"


def test_greedy_tokens_are_certain_and_asked_for_once(stages):
    sampling = Sampling(seed=0, temperature=0, marker=None)
    (one, two) = stages.checked(Request([7], 2, 0, 3), [drawn(A, B, C)], sampling)
    assert one == two
    assert stages.answers([one], sampling)[0].logprobs == [0.0] * 3


def test_a_thought_that_stopped_at_no_marker_goes_on(stages):
    request = Request([7, 8], 3, 40, 6, marker="+-")
    rest = stages.rest_of(request, drawn(A, PLUS, finish="stop", marked=True), 2)
    assert (rest.prompt, rest.count, rest.limit, rest.marker) == ([7, 8, A, PLUS], 1, 4, "+-")
    assert stages.rest_of(request, drawn(A, PLUS, MINUS, finish="stop", marked=True), 2) is None
    assert stages.rest_of(request, drawn(A, B, finish="stop"), 2) is None
    assert stages.rest_of(request, drawn(A, B, A, B, A, B, finish="stop", marked=True), 2) is None
    whole = drawn(A, PLUS, finish="stop", marked=True).followed_by(drawn(MINUS, finish="stop", marked=True))
    assert thought(stages, whole).finish == "marker"


@pytest.mark.parametrize(
    ("completions", "message"),
    [
        ([drawn(A, EOS, finish="stop")], "1 completions instead of 2"),
        ([drawn(), drawn(A, B, C)], "0 tokens"),
        ([Completion([A, B, C], [-1.0], "length"), drawn(A, B, C)], "3 tokens with 1 log-probs"),
        ([drawn(A), drawn(A, B, C)], "1 tokens, finished by a limit of 3"),
        ([drawn(A, B, C, A), drawn(A, B, C)], "4 tokens, finished by a limit of 3"),
        ([drawn(A, finish="stop"), drawn(A, B, C)], "stopped at token 21"),
        ([drawn(A, B, 99), drawn(A, B, C)], "outside the vocabulary"),
        ([Completion([A, B, C], [-1.0, 0.5, -1.0], "length"), drawn(A, B, C)], "above 0"),
        ([Completion([A, B, C], [-1.0, float("nan"), -1.0], "length"), drawn(A, B, C)], "not finite"),
    ],
)
def test_what_cannot_have_been_sampled_is_not_believed(stages, completions, message):
    with pytest.raises(BadCompletion, match=message):
        stages.checked(Request([7], 2, 0, 3), completions, SAMPLING)


def test_requests_know_their_limits_and_have_seeds_of_their_own(stages):
    planned = stages.plan([limb(2), limb(3, draw=1)], SAMPLING)
    assert [(r.count, r.limit, r.index, r.marker) for _, r in planned] == [(2, 6, 0, "+-"), (3, 6, 0, "+-")]
    one = planned[0][0]
    seconds = [
        stages.second(one, t, SAMPLING)
        for t in stages.thoughts(planned[0][1], [drawn(A, PLUS, MINUS), drawn(B, PLUS, MINUS)], SAMPLING)
    ]
    assert [(r.prompt, r.count, r.limit) for r in seconds] == [
        ([7, 8, A, PLUS, MINUS], 2, 3),
        ([7, 8, B, PLUS, MINUS], 2, 3),
    ]
    seeds = [r.seed + i for r in [r for _, r in planned] + seconds for i in range(r.count)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 1 << 63 for seed in seeds)
    (_, whole), *_ = stages.plan([limb()], Sampling(seed=0, marker=None, max_thought_tokens=6, max_answer_tokens=3))
    assert (whole.limit, whole.marker) == (9, None)


def test_a_phrasing_grown_before_gets_further_thoughts(stages):
    one = limb(2)
    again = Limb(one.tree, 0, 3, 2)
    (_, first), (_, second) = stages.plan([one, again], SAMPLING)
    assert (first.index, second.index, second.seed) == (0, 2, first.seed + 2)


@pytest.mark.parametrize(
    ("limb", "sampling", "message"),
    [
        (limb(answers=2), Sampling(seed=0, marker=None), "answers from a thought need tree.marker"),
        (limb(prompt=()), SAMPLING, "phrasing 0 has no tokens"),
        (limb(prompt=[7] * 12), SAMPLING, "a prompt of 12 tokens and responses of up to 9 pass the engine's 20"),
    ],
)
def test_limbs_that_cannot_grow_are_refused(stages, limb, sampling, message):
    with pytest.raises(ValueError, match=message):
        stages.check([limb], sampling)
