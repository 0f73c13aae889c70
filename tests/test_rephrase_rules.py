"""Rewrites by rule: they change the text, never what it asks."""

import json
from collections import Counter
from random import Random

import pytest

from branchwise.rephrase.checks import Candidate, rejection
from branchwise.rephrase.rules import RULES, frame, layout, number_form, order, rewrites, sentences

FRUIT = "Ann has 3 apples. Ben buys 4 pears. How many fruits do Ann and Ben have?"


def test_sentences_change_places_where_they_are_independent():
    assert "Ben buys 4 pears. Ann has 3 apples. How many fruits do Ann and Ben have?" in list(order(FRUIT))
    tied = "Ann has 3 apples. Then she eats 2. How many are left?"
    assert all(text.index("Ann has") < text.index("Then she") for text in order(tied))


def test_facts_become_a_list():
    assert "Known:\n- Ann has 3 apples.\n- Ben buys 4 pears.\nAsked: How many fruits do Ann and Ben have?" in list(
        layout(FRUIT)
    )
    assert list(layout("Find $x$.")) == []


def test_small_numbers_change_their_form_outside_of_formulas_and_prices():
    assert list(number_form("Ann has 3 apples and 25 pears for $4 each.")) == [
        "Ann has three apples and 25 pears for $4 each."
    ]
    assert list(number_form("Ann has five apples.")) == ["Ann has 5 apples."]
    assert list(number_form("Find $x$ if 3 of them are $x$.")) == []


def test_another_verb_asks_the_same():
    assert "Compute $\\frac{1}{2}+x$." in list(frame("What is $\\frac{1}{2}+x$?"))
    assert "Determine the sum of 3 and 4." in list(frame("Find the sum of 3 and 4."))


def test_sentences_are_not_parted_in_formulas_or_after_titles():
    assert sentences("Mr. Lee has $x. Y$ pens. Find $x$.") == ["Mr. Lee has $x. Y$ pens.", "Find $x$."]


@pytest.mark.parametrize(
    "question",
    [
        "小明有3个苹果，又买了4个。他一共有多少个苹果？",
        "Anna hat 3 Äpfel und kauft 4 dazu. Wie viele sind es, wenn sie 2 isst?",
    ],
)
def test_no_english_is_put_around_a_question_in_another_language(question):
    assert list(rewrites(question, Random(0))) == []


def test_no_rewrite_comes_twice_and_the_order_is_the_seeds():
    texts = [text for _, text in rewrites(FRUIT, Random(0))]
    assert len(texts) == len(set(texts)) >= 10 and texts == [text for _, text in rewrites(FRUIT, Random(0))]
    assert {name for name, _ in rewrites(FRUIT, Random(1))} == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "key"), [("math_train.jsonl", "problem"), ("svamp.jsonl", "problem")])
def test_nearly_all_rewrites_of_benchmarks_pass_the_checks(shared_data, file, key):
    lines = (shared_data / file).read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines[::25] if line]
    reasons = Counter()
    for row in rows:
        question = row.get(key) or row["question"]
        for _, text in list(rewrites(question, Random(question)))[:6]:
            against = rejection(Candidate(question, text, row["answer"]))
            reasons[against and against.partition(":")[0]] += 1
    assert reasons[None] / reasons.total() > 0.97
