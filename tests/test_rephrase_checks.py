"""The checks of rephrasings, on sound and on spoiled ones."""

import importlib.util
import json
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from branchwise.rephrase.checks import CHECKS, Candidate, rejection
from branchwise.rephrase.formulas import formulas, missing_formulas, variables
from branchwise.rephrase.quantities import quantities

CRATE = "A crate holds 24 jars; 3 jars break. How many of 5 crates' jars are whole?"


def reason(original, text, answer=None, **options):
    return rejection(Candidate(original, text, answer, **options))


def readings(text):
    return [quantity.readings[0] for quantity in quantities(text)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("24 jars, 3 and 5", [24, 3, 5]),
        ("twenty-four, three and five", [24, 3, 5]),
        ("1,360 = 1{,}360 = 1\\,360", [1360, 1360, 1360]),
        ("one hundred and five; a hundred; 5 hundred; 2.5 million", [105, 100, 500, 2_500_000]),
        ("one million two hundred thousand and six", [1_200_006]),
        ("2 1/2, 2½, two and a half", [Fraction(5, 2)] * 3),
        ("\\frac{3}{5}, \\dfrac35, 3/5, three fifths, three-fifths", [Fraction(3, 5)] * 5),
        ("50%, 50 \\%, fifty percent, 0.5, half, one half", [Fraction(1, 2)] * 6),
        ("$1.50 and $.5", [Fraction(3, 2), Fraction(1, 2)]),
        ("twice, double, thrice, triple", [2, 2, 3, 3]),
        ("three dozen, half a dozen, 1 1/2 dozen", [36, 6, 18]),
        ("1/0 and 20th", [20]),
        ("1/٠, ٣ of 1/٢", [3, Fraction(1, 2)]),
        ("x_1 + x^2", [1, 2]),
        ("from -5 to 4 degrees, negative 5, (-3, 2)", [-5, 4, -5, -3, 2]),
        ("x - 3, 8 minus 5, a 2-by-4 board", [3, 8, 5, 2, 4]),
        ("no number at all", []),
    ],
)
def test_numbers_are_read_in_every_form(text, values):
    assert readings(text) == values


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("Each crate contains 25 jars, of which 3 break. How many jars in 5 crates stay whole?", False),
        ("Each crate contains twenty-four jars; three of them break. How many jars in five crates are whole?", True),
        ("A crate holds 24 jars. How many of 5 crates' jars are whole?", False),
        ("A crate holds 24 jars with 2 lids each; 3 jars break. How many of 5 crates' jars are whole?", False),
    ],
)
def test_numbers_are_kept_as_a_multiset_in_digits_or_words(text, accepted):
    assert (reason(CRATE, text) is None) == accepted
    if not accepted:
        assert reason(CRATE, text).startswith("numbers: ")


PAIRS = [
    # original, rephrasing, answer, the check that must reject it (None: it is sound)
    ("Tom has 3 pens. How many are left?", "tom has 3 pens! How many are left", "3", "same"),
    ("Ann runs 5 miles in 2 hours. What is her speed?", "How fast is Ann if she runs 5 kilometers in 2 hours?", "2.5",
     "units"),
    ("Ann runs 5 miles in 2 hours. What is her speed?", "How fast is Ann, who needs 2 hours for 5 miles?", "2.5", None),
    ("Ann works 1 hour for $12 each day. What is her pay?", "What is paid to Ann each day if an hour brings $12?", "12",
     None),
    ("A pen costs $3. What do 4 cost?", "What do 4 pens cost at $3 each? The answer is 12.", "12", "answer"),
    ("A pen costs $3. What do 4 cost?", "What do 4 pens cost at $3 each? (12)", "12", "answer"),
    ("Ann has 5 pens, Ben 10. How many more has Ben?", "Ben has 10 pens, Ann 5. How many more? 5", "5", "answer"),
    ("Ann has 5 pens, Ben 10. How many more has Ben?", "Ben has 10 pens and Ann 5. How many more has he?", "5", None),
    ("Simplify $x+x$ with $x>0$.", "With $x>0$, what is the simple form of $x+x$, that is $2x$?", "$2x$", "answer"),
    ("Find the larger of 3 and 4.", "Here is the rephrased question: Which is larger, 3 or 4?", "4", "scaffold"),
    ("Find the larger of 3 and 4.", "Sure! Which one is larger, 3 or 4?", "4", "scaffold"),
    ("Find the larger of 3 and 4.", "I'm sorry, but I can't help with 3 and 4.", "4", "scaffold"),
    ("Find the larger of 3 and 4.", "<think>3 < 4</think> Which of 3 and 4 is larger?", "4", "scaffold"),
    ("Find the larger of 3 and 4.", "Which of 3 and 4 is larger?\n\n**Note:** I changed the verb.", "4", "scaffold"),
    ("Find the larger of 3 and 4.", "Let's think: which of 3 and 4 is larger?", "4", "answer"),
    ("Find the larger of 3 and 4.", "Which is the larger number: 3 or 4?", "4", None),
    ("Find the sum of the roots of $x^2-3x+2=0$.", "What do the roots of $x^2-3x+2=0$ add up to?", "3", None),
    ("Find the sum of the roots of $x^2-3x+2=0$.", "What do the roots of $x^2+3x+2=0$ add up to?", "3", "latex"),
    ("Find the sum of the roots of $x^2-3x+2=0$.", "What do the roots of $y^2-3y+2=0$ add up to?", "3", "variables"),
    ("Find $\\frac{3}{5}\\times 10$.", "What is $\\frac{3}{5}\\times 10$ equal to?", "6", None),
    ("Find $\\frac{3}{5}\\times 10$.", "What is $\x0crac{3}{5}\\times 10$ equal to?", "6", "control"),
    ("Find $\\frac{3}{5}\\times 10$.", "What is $\\frac{3}{5}+10$ equal to?", "6", "latex"),
    ("Find $\\dfrac{1}{2} + x$ for $x = 3$.", "Let $x=3$. What is $\\frac12+x$?", "3.5", None),
    ("Is $x \\le 3$ if $x = 2$?", "Given $x=2$, is $x \\leq 3$?", "yes", None),
    ("A cake is cut in 8. Eat 3. Give what is left as a common fraction.", "3 of a cake's 8 parts are eaten. Say what "
     "is left.", "5/8", "form"),
    ("How many hours, to the nearest tenth, are 100 minutes?", "Turn 100 minutes into hours.", "1.7", "form"),
    ("Which is even? (A) 3 (B) 4", "Which number is even? (A) 3", "B", "numbers"),
    ("Which word is a color? (A) red (B) run", "Which of these words is a color? Red or run?", "A", "form"),
    ("Ann has 3 red pens and Ben has 4 blue ones. How many do they have?", "Ann has 3 red pens, Ben has 4 blue ones.",
     "7", "form"),
    ("How many apples are there if each of the 3 boxes has 4 of them?", "Wie viele Äpfel sind das, wenn jede der 3 "
     "Kisten 4 davon hat und nicht mehr?", "12", "language"),
    ("How many apples are there in 3 boxes?", "3 个盒子里有多少个苹果？请计算并给出结果。", "12", "language"),
    ("Anna buys 3 apples.", "Anna buys 3 apples. " + "It is a fine day in town. " * 12, "3", "length"),
    ("Find the sum of all positive integers whose digits are distinct prime numbers.",
     "What color do patient people prefer for a garden fence, and why is it so?", "12", "topic"),
    ("Tom has 7 pens.", "...", "7", "empty"),
    *[("A pen costs $3. What do 4 cost?", text, "12", "scaffold") for text in (
        "Here you go:\n\nWhat do 4 pens cost at $3 each?", "Here it is: what do 4 pens cost at $3 each?",
        "Great question! What do 4 pens cost at $3 each?", "New question: What do 4 pens cost at $3 each?",
        "Version 1: What do 4 pens cost at $3 each?", "**Question:** What do 4 pens cost at $3 each?",
        "What do 4 pens cost at $3 each? Answer:", "Hmm, what do 4 pens cost at $3 each?",
        "The user wants other words. What do 4 pens cost at $3 each?",
        "We need to write it otherwise. What do 4 pens cost at $3 each?",
        "Unfortunately, I do not know what 4 pens at $3 cost. Can you tell?",
        "What do 4 pens cost at $3 each? Could you provide more details?",
    )],
    ("A pen costs $3. What do 4 cost?", "Here is what we know: a pen costs $3. What do 4 cost?", "12", None),
    ("A pen costs $3. What do 4 cost?", "Could you provide the cost of 4 pens at $3 each?", "12", None),
    ("A pen costs $3. What do 4 cost?", "What do 4 pens cost at 3 cents each?", "12", "units"),
    ("Ann rests 30 minutes every 2 hours. How long in 8?", "Ann rests 30 hours every 2 minutes. How long in 8?", "120",
     "units"),
    ("How much is paid in a day at $3 for each of 4?", "What is paid in a week at $3 for each of 4?", "12", "units"),
    ("How much is paid in a day at $3 for each of 4?", "What is the daily pay at $3 for each of 4?", "12", None),
    ("A car goes 60 km/h for 2 h. How far?", "A car goes 60 kilometers per hour for 2 hours. How far?", "120", None),
    ("It is 20°C, then 5°C less. How cold?", "From 20 degrees Celsius it gets 5 degrees colder. How cold?", "15", None),
    ("He sells 5 of 8 pens. How many are left?", "How many are left?\n- he has 8 pens\n- 5 are sold", "3", None),
    ("Find $x$ with $3x = 4$. Write it as a fraction.", "If \\(3x = 4\\), give \\(x\\) as a fraction.", "4/3", None),
    ("Find $x$ such that $\\frac{x}{3} = 4$.", "What is $x$ if $\\frac{x}{3} = 4?", "12", "latex"),
    ("A pen costs $ 3. What do 4 cost?", "A pen costs $ three. What do 4 cost?", "12", None),
    ("He earned $40000 four years ago. How much now?", "How much now, if he earned $40000 4 years ago?", "1", None),
    ("Which is red?\nA) blood\nB) snow\nC) coal", "Which of them is red?\nA) blood\nB) snow", "A", "form"),
    ("Which is red?\nA) blood\nB) snow", "Which of them is red?\nA) snow\nB) blood", "A", "form"),
    ("Which is red?\nA) blood\nB) snow", "Which of them is red?\nB) blood\nA) snow", "A", "form"),
    ("Which is red?\nA) blood\nB) snow", "Which of them is red?\nA) blood (right)\nB) snow", "A", "form"),
    ("Which is red?\nA) blood\nB) snow", "Which of them is red?\n(A) Blood\n(B) Snow.", "A", None),
    ("Which is red?\nA) blood\nB) snow", "Which of them is not red?\nA) blood\nB) snow", "A", "conditions"),
    ("Which of 3 and 4 does not divide 6?", "Which of 3 and 4 fails to divide 6?", "4", None),
    ("Find the least positive integer above 3.", "Find the least integer above 3.", "4", "conditions"),
    ("Find the least integer above 3.", "What is the least odd integer above 3?", "4", "conditions"),
    ("Find the least integer above 3.", "What is the least whole number above 3?", "4", None),
    ("Who wrote the novel Emma?", "Which author (Austen, Jane) wrote the novel Emma?", "Jane Austen", "answer"),
]  # fmt: skip


@pytest.mark.parametrize(("original", "text", "answer", "check"), PAIRS)
def test_each_check_rejects_what_is_its_own_to_reject(original, text, answer, check):
    against = reason(original, text, answer)
    assert (against and against.partition(":")[0]) == check


@pytest.mark.parametrize("text", ["9" * 5000, "1/" + "7" * 5000, "0." + "0" * 9000, "so we " * 4000, "\\boxed{" * 3000])
def test_what_a_stuttering_model_writes_is_rejected_in_a_moment(text):
    """Thousands of digits are more than Python's int reads from a text."""
    began = time.monotonic()
    against = reason("Ann has 3 apples and 4 pears. How many fruits?", text, "7")
    assert against and len(against) < 400 and time.monotonic() - began < 5


@pytest.mark.parametrize("sign", ["\u202e", "\u200b", "\ufeff", "\u2066", "\x85"])
def test_signs_that_turn_or_hide_text_are_no_part_of_a_rephrasing(sign):
    original, text = "Tom has 3 pens. How many are left?", "How many of Tom's 3 pens are left?"
    assert reason(original, sign + text).startswith("control")
    assert reason("Tom has 3 pens. How many \u200bare left?", text.replace("are", "\u200bare")) is None


def test_a_duplicate_is_told_by_its_words_not_its_signs():
    original, text = "Tom has 3 pens. How many are left?", "How many of Tom's 3 pens are left?"
    assert reason(original, text) is None
    assert reason(original, text, others=["How many of Toms 4 pens are left?"]) is None
    assert reason(original, text, others=["how many of Tom's 3 pens are left"]).startswith("duplicate")
    assert reason(original, text, others=["How many — of Tom’s 3 pens… are **left**?"]).startswith("duplicate")


def test_each_check_can_be_switched_off():
    for original, text, answer, check in PAIRS:
        if check:
            against = rejection(Candidate(original, text, answer), skip=[check])
            assert against is None or against.partition(":")[0] != check
        assert rejection(Candidate(original, text, answer), skip=CHECKS) is None


def test_renamed_variables_pass_where_renaming_was_asked_for():
    original, text = "Find $x$ if $2x + y = 7$ and $y = 1$.", "What is $a$, given $2a + b = 7$ and $b = 1$?"
    assert reason(original, text).startswith("variables")
    assert reason(original, text, renames=True) is None
    assert reason(original, text.replace("b = 1", "a = 1"), renames=True) is None  # two letters there still are
    assert reason(original, "What is $a$, given $2a + a = 7$ and $a = 1$?", renames=True).startswith("variables")


def test_prices_are_no_formulas():
    assert formulas("80 cookies for $1 each and 60 cakes for $4 each") == []
    assert formulas("He earns $\\$$60 in $x+1$ days, and \\$5.") == ["x+1"]
    assert variables("Let $AB = c$ and \\(d_1 = \\sin \\theta\\); a point P") == {"A", "B", "c", "d", "P"}


def test_formulas_are_the_same_but_for_their_layout():
    assert missing_formulas("$\\left( x, y \\right)$, \\[ \\dfrac{1}{2} \\]", "(x,y) and $\\frac12$") == []
    assert missing_formulas("$a = 1, b = 2$", "$b=2$ and $a=1$") == []
    assert missing_formulas("$x^2 - 1$", "$x^2 + 1$") == ["x^2 - 1"]


def benchmark():
    path = Path(__file__).parents[1] / "benchmarks" / "rephrase_checks.py"
    spec = importlib.util.spec_from_file_location("rephrase_checks", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rephrase_checks"] = module
    spec.loader.exec_module(module)
    return module


def test_published_rephrasings_pass_and_spoiled_ones_do_not(shared_data):
    text = (shared_data / "rephrasings_gsmplus.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line]
    reasons, _ = benchmark().measure(rows, seed=0, rounds=1)
    shares = {kind: sum(map(bool, found)) / len(found) for kind, found in reasons.items()}
    assert len(reasons["published"]) == 300 and shares.pop("published") <= 0.08
    assert len(shares) == 5 and min(shares.values()) >= 0.98


def test_the_spoiler_spoils():
    from random import Random

    b = benchmark()
    text = "Ann has 12 pens. She gives two away. How many are left?"
    for seed in range(20):
        one = b.changed(text, Random(seed))
        assert one != text and ("12 pens" in one) != ("gives two" in one)
        assert b.dropped(text, Random(seed)) in (text.replace("12 ", ""), text.replace("two ", ""))
        assert b.sentence_dropped(text, Random(seed)) in (text[17:], text.replace("She gives two away. ", ""))
    assert b.changed("no number", Random(0)) is None and b.sentence_dropped("Ann has 12 pens.", Random(0)) is None


@pytest.mark.parametrize(
    ("text", "accepted"), [("In <image>, how many circles are red?", True), ("How many circles are red?", False)]
)
def test_places_of_images_are_kept(text, accepted):
    found = reason("How many of the circles in <image> are red?", text)
    assert found is None if accepted else found == "images: 0 places for images, not 1"
