"""Tokens from logits: the right frequencies, the right log-probs, truncated or not."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from branchwise.rollout.draw import BLOCK, CACHED, draw
from branchwise.rollout.engine import Sampling


def plan(**settings):
    return Sampling(seed=0, **settings)


def grid(count):
    """Evenly spaced numbers: how often a token is drawn is then its probability, to one part in `count`."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def test_temperature_divides_the_logits():
    # case B13
    tokens, logprobs = draw(torch.tensor([[2.0, 0.0]] * 2), torch.tensor([0.5, 0.99]), plan(temperature=0.5))
    assert tokens.tolist() == [0, 1]
    torch.testing.assert_close(logprobs, torch.tensor([-0.01815, -4.01815]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("vocabulary", [5, BLOCK, 2 * BLOCK + 1])
def test_tokens_are_drawn_as_often_as_they_are_probable(vocabulary):
    torch.manual_seed(0)
    logits = 2 * torch.randn(vocabulary)
    count = 20_000
    tokens, logprobs = draw(logits.repeat(count, 1), grid(count), plan(temperature=0.7))
    expected = (logits.double() / 0.7).log_softmax(-1)
    np.testing.assert_allclose(torch.bincount(tokens, minlength=vocabulary) / count, expected.exp(), atol=1.01 / count)
    torch.testing.assert_close(logprobs.double(), expected[tokens], atol=2e-6, rtol=0)


def test_a_tail_of_tiny_probabilities_keeps_its_mass():
    # one token of 1/2 and 150 000 that share the other half: in a float32 running sum most of them would vanish
    logits = torch.full((1, 150_001), np.log(0.5 / 150_000))
    logits[0, 0] = np.log(0.5)
    u = torch.tensor([0.49999, 0.75, 0.9])
    tokens, _ = draw(logits.repeat(3, 1), u.double(), plan())
    assert tokens[0] == 0
    np.testing.assert_allclose(tokens[1:], [75_000, 120_000], atol=40)


def test_many_rows_are_drawn_as_few_are():
    torch.manual_seed(0)
    logits, u = torch.randn(3 * CACHED // 1000, 1000).bfloat16(), torch.rand(3 * CACHED // 1000, dtype=torch.float64)
    assert len(logits) * 1000 > CACHED
    tokens, logprobs = draw(logits, u, plan())
    few = [draw(some, v, plan()) for some, v in zip(logits.split(100), u.split(100))]
    assert torch.equal(tokens, torch.cat([t for t, _ in few])) and logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0])


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_range_give_tokens_that_have_probability(u):
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 2.0, -torch.inf]] * 2)
    tokens, _ = draw(logits, torch.full((2,), u, dtype=torch.float64), plan())
    assert tokens.tolist() == [1 if u == 0 else 3] * 2


@pytest.mark.parametrize(
    "settings, warpers",
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        (
            {"top_k": 20, "top_p": 0.7, "min_p": 0.05},
            [TopKLogitsWarper(20), TopPLogitsWarper(0.7), MinPLogitsWarper(0.05)],
        ),
        ({"top_k": 1000}, []),
    ],
)
def test_truncation_is_that_of_generate(settings, warpers):
    torch.manual_seed(1)
    logits = 2 * torch.randn(60)
    expected = (logits / 0.9)[None]
    for warper in warpers:
        expected = warper(None, expected)
    expected = expected[0].log_softmax(-1)
    count = 5000
    tokens, logprobs = draw(logits.repeat(count, 1), grid(count), plan(temperature=0.9, **settings))
    assert set(tokens.tolist()) <= set(expected.isfinite().nonzero()[:, 0].tolist())
    np.testing.assert_allclose(torch.bincount(tokens, minlength=60) / count, expected.exp(), atol=1.01 / count)
    torch.testing.assert_close(logprobs, expected[tokens], atol=2e-6, rtol=0)


def test_greedy_takes_the_likeliest_with_certainty():
    tokens, logprobs = draw(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([0.99]), plan(temperature=0))
    assert (tokens.tolist(), logprobs.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_broken_logits_are_an_error(value):
    with pytest.raises(FloatingPointError, match="not finite"):
        draw(torch.tensor([[0.0, value]]), torch.tensor([0.5]).double(), plan())
