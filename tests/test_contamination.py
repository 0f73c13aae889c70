"""Evaluation problems found in training data."""

from pathlib import Path

from branchwise.evaluate.contamination import Asked, asked, contamination, normalised

LONG = "Natalia sold clips to 48 of her friends in April and then she sold half as many clips in May"


def test_words_are_compared_without_case_marks_and_thousands():
    assert normalised("The  robe: $1,200 (twice!)\n—x_1") == ["the", "robe", "1200", "twice", "x", "1"]


def test_a_problem_that_shares_thirteen_words_is_found_and_one_that_shares_twelve_is_not():
    words = LONG.split()
    train = [Asked("Before this. " + LONG.upper() + "! And more.")]
    problems = {"all": LONG, "13": " ".join(words[:13]) + " other end", "12": " ".join(words[:12]) + " other end here",
                "none": "Of something else there is a question with many more words than just thirteen"}  # fmt: skip
    outcome = contamination({key: Asked(text) for key, text in problems.items()}, train)
    assert outcome.found == ["all", "13"] and outcome.share == 0.5 and outcome.train_rows == 1
    assert "2 of 4" in str(outcome)


def test_a_short_problem_is_found_where_all_of_it_stands():
    assert contamination({"a": Asked("What is 3 + 4?")}, [Asked("Say: what is 3 + 4")]).found == ["a"]
    assert contamination({"a": Asked("What is 3 + 4?")}, [Asked("what is 3 + 5")]).found == []
    assert contamination({"a": Asked("?")}, [Asked("?")]).found == []


def test_rephrasings_and_messages_are_training_text_too():
    rows = [
        {"question": "one", "rephrasings": ["two"]},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "three"}]},
    ]
    assert [a.text for a in asked(rows, Path())] == ["one", "two", "three"]
