"""Random numbers keyed by a node's place: fixed for ever, uniform, and unrelated across keys."""

import itertools

import numpy as np
import torch

from branchwise.rollout.keyed_random import node_key, uniform


def stream(key, count):
    return uniform(torch.full((count,), key), torch.arange(count)).numpy()


def test_a_stream_is_splitmix64():
    # the published generator's first outputs from seed 1234567
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    np.testing.assert_array_equal(stream(1234567, 5), [(z >> 11) * 2.0**-53 for z in outputs])


def test_keys_are_fixed():
    # a changed hash would change every seeded run; worked out in numpy's unsigned arithmetic
    def mix(z):
        with np.errstate(over="ignore"):
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return z ^ (z >> np.uint64(31))

    parts = (0, 3, 17, 1, 2, -1)
    key = np.uint64(0)
    for part in parts:
        with np.errstate(over="ignore"):
            key = mix((key + np.uint64(0x9E3779B97F4A7C15)) ^ np.int64(part).astype(np.uint64))
    assert node_key(*parts) == int(key.astype(np.int64))


def test_numbers_are_uniform():
    # 200 000 numbers of 200 nodes in 64 cells: chi-square with 63 degrees of freedom is below 103 in 999 of 1000 cases
    keys = [node_key(0, 0, draw, 0, k, -1) for draw, k in itertools.product(range(50), range(4))]
    u = np.concatenate([stream(key, 1000) for key in keys])
    assert u.min() >= 0 and u.max() < 1
    counts = np.bincount((u * 64).astype(int), minlength=64)
    expected = len(u) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 103
    # Kolmogorov-Smirnov at the same level
    assert np.abs(np.sort(u) - np.arange(len(u)) / len(u)).max() < 1.95 / np.sqrt(len(u))


def test_neighbouring_places_have_unrelated_numbers():
    # the first number of nodes that differ by one in any part, and of the same node's next token
    base = np.array([[s, t, d, n, k, m] for s, t, d, n, k, m in itertools.product(range(4), repeat=6)])
    first = np.array([stream(node_key(*row), 2) for row in base.tolist()])
    bound = 4 / np.sqrt(len(base))
    assert abs(np.corrcoef(first[:, 0], first[:, 1])[0, 1]) < bound
    for part in range(6):
        step = np.eye(6, dtype=int)[part]
        neighbour = np.array([stream(node_key(*(row + step).tolist()), 1)[0] for row in base])
        assert abs(np.corrcoef(first[:, 0], neighbour)[0, 1]) < bound


def test_parts_do_not_run_into_each_other():
    rows = list(itertools.product((-1, 0, 1, 2), repeat=6))
    assert len({node_key(*row) for row in rows}) == len(rows)


def test_numbers_depend_on_key_and_token_alone():
    keys = torch.tensor([5, -7, 9, 5])
    tokens = torch.tensor([0, 3, 1, 2])
    together = uniform(keys, tokens)
    alone = torch.cat([uniform(keys[i : i + 1], tokens[i : i + 1]) for i in (0, 1, 2, 3)])
    assert torch.equal(together, alone)
