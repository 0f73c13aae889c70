"""Format, length, boxes, points, trajectories and counts, worked by hand."""

import json
import math
import time
from pathlib import Path

import pytest

from branchwise.config import ConfigError
from branchwise.rewards.box import box
from branchwise.rewards.coordinates import read_box, read_point, read_trajectory
from branchwise.rewards.count import count
from branchwise.rewards.format import format
from branchwise.rewards.geometry import box_iou, discrete_frechet, hausdorff, resample, rmse
from branchwise.rewards.length import length
from branchwise.rewards.mathematics import evaluation
from branchwise.rewards.mathematics.equality import equal
from branchwise.rewards.point import point
from branchwise.rewards.trajectory import trajectory

CASES = Path(__file__).parents[2] / "shared" / "cases" / "cases.jsonl"
shared = pytest.mark.skipif(not CASES.exists(), reason=f"needs {CASES}")


def case(name):
    return next(case for case in map(json.loads, CASES.open()) if case["id"] == name)


# --- format and length


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>so</think><answer>8</answer>", 1),
        (" <think>so\n</think>\n<answer>\n8</answer>\n", 1),
        ("<think>a</think><think>b</think><answer>8</answer>", 0),
        ("<think>so</think><answer>7</answer><answer>8</answer>", 0),
        ("<think> </think><answer>8</answer>", 0),
        ("<think>so</think><answer></answer>", 0),
        ("<answer>8</answer><think>so</think>", 0),
        ("<think>so</think><answer>8</answer> indeed", 0),
        ("Well, <think>so</think><answer>8</answer>", 0),
        ("<think>so</think> hence <answer>8</answer>", 0),
        ("<think>so<answer>8</answer></think>", 0),
        ("<think>so<answer>8</think></answer>", 0),
        ("<think>so</think>8", 0),
        ("<think>so<THINK>a</THINK></think><answer>8</answer>", 0),
        ("<think>so</think><answer><think/>8</answer>", 0),
        ("<think>so</think><answer >9</answer><answer>8</answer>", 0),
        ("<think>\u200b</think><answer>8</answer>", 0),
        ("<think>a < b > c</think><answer>1<2</answer>", 1),
        ("", 0),
    ],
)
def test_each_part_in_its_tags_in_order_once(text, reward):
    assert format([text]) == [reward]


def test_format_of_responses_whose_prompt_opened_the_thought():
    assert format(["so</think><answer>8</answer>", "<think>so</think><answer>8</answer>"], opened=True) == [1, 0]
    assert format(["<plan>p</plan><code>c</code>"], tags=["plan", "code"]) == [1]


def test_overlong_responses_lose_up_to_one():
    # limit 100, buffer 20: nothing up to 80 tokens, half at 90, all from 100 on
    assert length([[0] * n for n in (10, 80, 90, 100, 130)], limit=100, buffer=20) == [0, 0, -0.5, -1, -1]
    with pytest.raises(ValueError, match="buffer"):
        length([[0]], limit=100, buffer=0)


# --- boxes


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        ([0, 0, 8, 8], [0, 4, 8, 8], 0.5),  # 32 of 64
        ([0, 0, 10, 10], [5, 5, 15, 15], 25 / 175),
        ([0, 0, 8, 8], [0, 8, 8, 16], 0),
        ([3, 3, 3, 3], [3, 3, 3, 3], 0),
        ([0, 0, 8, 8], [8, 8, 0, 0], 0),
        ([0, 0, 8, 8], [20, 20, 30, 30], 0),
        ([0, 0, 8, 8], [math.nan, 0, 8, 8], 0),
        ([0, 0, 8, 8], [0, 0, math.inf, 8], 0),
    ],
)
def test_intersection_over_union(a, b, iou):
    assert box_iou(a, b) == pytest.approx(iou, abs=1e-12)
    assert box_iou(b, a) == box_iou(a, b)


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 30, 40]",
        '{"bbox_2d": [10, 20, 30, 40], "label": "cat 7"}',
        '```json\n[{"bbox_2d": [10, 20, 30, 40]}]\n```',
        "<box>(10,20),(30,40)</box>",
        "<|box_start|>(10,20),(30,40)<|box_end|>",
        "x1=10, y1=20, x2=30, y2=40",
        "10 20 30 40",
        "The box is (10, 20, 30, 40).",
        '{"x1":10,"y1":20,"x2":30,"y2":40}',
        "[[10,20],[30,40]]",
        "\\boxed{[10,20,30,40]}",
        "[1, 2, 3, 4], no: [10, 20, 30, 40]",
    ],
)
def test_boxes_as_models_write_them(text):
    assert read_box(text) == (10, 20, 30, 40)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('["1", "2", "8", "9"]', (1, 2, 8, 9)),
        ('{"bbox_2d": [1, 2, 8, 9], "label": "cat (2)"}', (1, 2, 8, 9)),
        ('{"bbox_2d": [1, 2, 8, 9], "point_2d": [4, 5]}', (1, 2, 8, 9)),
        ('{"x2": 8, "y2": 9, "x1": 1, "y1": 2}', (1, 2, 8, 9)),
        ('{"y_min": 2, "x_min": 1, "y_max": 9, "x_max": 8}', (1, 2, 8, 9)),
        ("left=1, top=2, right=8, bottom=9", (1, 2, 8, 9)),
        ('{"x": 1, "y": 2, "width": 7, "height": 7}', (1, 2, 8, 9)),
        ("x1=0, y1=0, x2=1, y2=1; no: [1, 2, 8, 9]", (1, 2, 8, 9)),
        ('{"x1": NaN, "y1": 2, "x2": 8, "y2": 9}', None),
        ("[1, 2, 8, 9], no: [1, 2, 8]", None),
    ],
)
def test_named_coordinates_and_what_stands_beside_boxes(text, found):
    assert read_box(text) == found


@pytest.mark.parametrize("text", ["", "no box", "[1, 2, 3]", '["nan", 0, 10, 10]', "[NaN, 0, 1, 1]", "in 2020, 3 cats"])
def test_texts_without_a_box(text):
    assert read_box(text) is None


def test_long_words_take_no_time():
    start = time.perf_counter()
    assert read_box("A" * 100_000) is None
    assert time.perf_counter() - start < 1


def test_box_rewards():
    assert box(["[0, 4, 8, 8]", "none", "[8, 8, 0, 0]"], [[0, 0, 8, 8]] * 3) == [0.5, 0, 0]
    assert box(["[0, 4, 8, 8]"] * 2, [[0, 0, 8, 8], [0, 3, 8, 8]], threshold=0.6) == [0, 1]
    assert box(["[0, 0, 1, 1]"], ["no box"]) == [None]
    assert box(["<think>[0, 0, 8, 8]</think> hm"], [[0, 0, 8, 8]]) == [0]


def test_systems_of_coordinates_meet_through_the_images_size():
    # 200 × 100 pixels: [0, 0, 100, 50] is [0, 0, 500, 500] of 1000 and [0, 0, 0.5, 0.5] of 1
    sizes = {"width": [200], "height": [100]}
    assert box(["[0, 0, 500, 500]"], [[0, 0, 100, 50]], output_coordinates="thousand", **sizes) == [1]
    assert box(["[0, 0, 0.5, 0.5]"], [[0, 0, 500, 500]], coordinates="thousand", output_coordinates="unit") == [1]
    assert box(["[0, 0, 500, 500]"], [[0, 0, 0.5, 0.5]], coordinates="unit") == [0]  # outside of 0 to 1
    with pytest.raises(ConfigError, match="width and height"):
        box(["[0, 0, 1, 1]"], [[0, 0, 9, 9]], output_coordinates="unit")
    with pytest.raises(ConfigError, match="choose one of pixels"):
        box(["[0, 0, 1, 1]"], [[0, 0, 9, 9]], coordinates="inches")


@shared
def test_reported_faults_of_boxes_and_format_are_not_ours():
    found = case("G06")
    numbers = [[[float(x) for x in b] for b in pair] for pair in found["input"]["pairs"]]
    for (a, b), wanted in zip(numbers, found["expected"]["iou"]):
        assert box_iou(a, b) == pytest.approx(0 if isinstance(wanted, str) else wanted, abs=1e-6)
    found = case("G04")
    assert format(found["input"]["outputs"]) == found["expected"]["format_reward"]


# --- points and trajectories


def test_points_in_boxes():
    reference = [[0, 0, 10, 10]] * 5
    assert point(["(3, 4)", '{"x": 10, "y": 10}', "[11, 4]", "none", "[1, 2, 3]"], reference) == [1, 1, 0, 0, 0]
    assert point(["(3, 4)"], [[5, 5, 5, 5]]) == [0]
    assert point(["(3, 4)"], ["?"]) == [None]
    assert read_point('{"point_2d": [3, 4]}') == (3, 4)


@pytest.mark.parametrize(
    "text",
    ['{"y": 2, "x": 1}', '<point x="1" y="2">cat</point>', '{"point_2d": [1, 2], "label": "cat (7)"}', '["1", "2"]'],
)
def test_points_as_models_write_them(text):
    assert read_point(text) == (1, 2)


def test_distances_of_trajectories():
    a, b = [(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1), (2, 1)]
    assert (discrete_frechet(a, b), hausdorff(a, b), rmse(a, b)) == (1, 1, 1)
    # there and back against one stay: every point of b is near one of a, but their order is not
    there = [(0, 0), (4, 0), (0, 0)]
    assert hausdorff(there, [(0, 0), (4, 0)]) == 0
    assert discrete_frechet(there, [(0, 0), (4, 0)]) == 4
    assert rmse([(0, 0), (0, 0)], [(3, 4), (0, 0)]) == pytest.approx(math.sqrt(25 / 2))


def test_trajectories_of_different_lengths_are_resampled():
    assert resample([(0, 0), (4, 0)], 5) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    assert rmse([(0, 0), (4, 0)], [(0, 0), (1, 0), (4, 0)]) == 0  # the same path
    assert rmse([(0, 0), (4, 0)], [(0, 0), (4, 0), (4, 4)]) == pytest.approx(math.sqrt((0 + 4 + 16) / 3))
    assert resample([(2, 2), (2, 2)], 3) == [(2, 2)] * 3


def test_trajectory_rewards_fall_with_the_distance():
    reference = [[[0, 0], [0.5, 0], [1, 0]]]
    assert trajectory(["[[0, 0.1], [0.5, 0.1], [1, 0.1]]"], reference, coordinates="unit") == [pytest.approx(0.5)]
    assert trajectory(["[[0, 0.9], [1, 0.9]]"], reference, coordinates="unit", distance="rmse") == [0]
    assert trajectory(["nothing"], reference, coordinates="unit") == [0]
    assert trajectory(["[[0, 0], [1, 0]]"], [[[0, 0]]], coordinates="unit") == [None]
    with pytest.raises(ConfigError, match="frechet"):
        trajectory([""], reference, distance="euclid")
    assert read_trajectory("(1,2) to (3,4)") == [(1, 2), (3, 4)]


def test_counts():
    assert count(["There are 5 cars.", "\\boxed{6}", "five", "I see 5 or 6"], [5, "5", 5, 5]) == [1, 0, 1, 0]
    assert count(["4", "12"], [5, 5], partial=True) == [pytest.approx(0.8), 0]
    assert count(["4"], ["many"]) == [None]


def test_counts_are_paid_however_long_ago_an_answer_was_graded():
    assert equal("\\frac{2}{4} + x", "x + \\frac{1}{2}")
    time.sleep(evaluation.SECONDS + 0.05)
    assert count(["5"], [5]) == [1]
