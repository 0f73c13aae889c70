"""The first-order variance of thought advantages against simulation."""

import numpy as np
import pytest

from branchwise.algorithm.variance import advantage_variance

P = np.array([0.15, 0.35, 0.4, 0.7, 0.9])
"""How often each thought's answers are right."""


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("M", [64, 256])
def test_it_agrees_with_simulation(M, ddof):
    V = np.random.default_rng(0).binomial(M, P, size=(400_000, len(P))) / M
    A = (V - V.mean(1, keepdims=True)) / V.std(1, ddof=ddof, keepdims=True)
    predicted = advantage_variance(P, P * (1 - P), M, ddof)
    assert A.var(0) == pytest.approx(predicted, rel=6 / M + 0.01)  # what first order leaves out falls as 1/M


def test_two_thoughts_have_advantages_without_variance():
    assert advantage_variance(np.array([0.2, 0.7]), np.array([0.1, 0.2]), 8) == pytest.approx([0, 0])


def test_more_answers_drive_it_to_0_and_more_thoughts_to_a_limit():
    sigma2 = P * (1 - P)
    assert advantage_variance(P, sigma2, 64) == pytest.approx(advantage_variance(P, sigma2, 4) / 16)
    many = np.tile(P, 400)
    limit = np.tile(sigma2, 400) / (4 * many.std(ddof=1) ** 2)
    assert advantage_variance(many, np.tile(sigma2, 400), 4) == pytest.approx(limit, rel=0.01)
