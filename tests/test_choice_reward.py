"""Which option a text declares."""

import json
from pathlib import Path

import pytest

from branchwise.rewards.choice import choice, chosen

CASES = Path(__file__).parents[2] / "shared" / "cases" / "cases.jsonl"
CITIES = dict(zip("ABCD", ["Lima", "Quito", "La Paz", "Bogota"]))
NUMBERS = dict(zip("ABCD", ["5", "15", "1/2", "20%"]))
TEN = dict.fromkeys("ABCDEFGHIJ", "")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("b", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("Ｂ", "B"),
        ("Answer: B", "B"),
        ("ANSWER:B", "B"),
        ("Option D", "D"),
        ("\\boxed{B}", "B"),
        ("\\boxed{\\text{(B)}}", "B"),
        ("<answer>B</answer>", "B"),
        ("B) Quito", "B"),
        ("A: Lima", "A"),
        ("The answer is B because a road goes there.", "B"),
        ("The answer is C. Note that A is a distractor.", "C"),
        ("The correct option is (A) Lima.", "A"),
        ("So the answer is option B, Quito.", "B"),
        ("the answer is b", "B"),
        ("I choose D.", "D"),
        ("So it must be D", "D"),
        ("C is the answer", "C"),
        ("The best choice is A.", "A"),
        ("Thinking about it.\n\nD", "D"),
        ("Therefore, the correct answer is:\n\n**C**", "C"),
        ("The answer is A. Wait, no, the answer is B.", "B"),
        ("If the answer were A, no. The answer is B.", "B"),
        ("My answer: C. A is wrong.", "C"),
        ("The answer is B, A is wrong.", "B"),
        ("\\boxed{A}, no, \\boxed{B}", "B"),
        ("A: no. B: yes. The answer is B", "B"),
        ("B, because it lies there.", "B"),
        ("Thus, B.", "B"),
        ("The answer is 'B'.", "B"),
        ("#### B", "B"),
        ("ans: B", "B"),
        ("\\boxed{\\textbf{(B)}\\ \\text{Quito}}", "B"),
        ("Answer: B\nC is wrong.", "B"),
    ],
)
def test_declared_letters(text, letter):
    assert chosen(text, CITIES) == letter


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I cannot determine the answer.",
        "A car moves.",
        "The answer is a distractor.",
        "I think so.",
        "\\boxed{}",
        "The answer is A or B.",
        "\\boxed{A. B}",
        "\\boxed{A: B}",
        "<answer>A. B or C</answer>",
        "A and B are both wrong.",
        "None of the above",
        "A good answer needs more thought.",
        "The answer is E.",
        "The answer is \\boxed{}",
        "Answer: A road",
        "(B) is false",
        "B: no, never",
        "A) Lima B) Quito C) La Paz D) Bogota",
        "The answer is B? No.",
        "wrong answer: B",
        "The incorrect option is B",
        "I don't think the answer is B.",
        "It is not the case that the answer is B",
        "I doubt the answer is B.",
        "Rule out option B.",
        "Answer: B (or C)",
        "Answer: B; C",
        "Answer: B|C",
        "Answer: B C",
        "The answer is A, or maybe C",
        "The answer is A as well as C",
        "The answer is A-D",
        "The answer is Lima or Quito",
        "The answer is Lima/Quito",
        "\\boxed{(A), (C)}",
        "\\boxed{A'}",
        "A.\nB.\nC.\nD.",
        "Option B is tempting but wrong.",
        "The answer is B, which is wrong",
        "答案是A、B",
        "정답은 A와 B",
    ],
)
def test_texts_that_declare_nothing(text):
    assert chosen(text, CITIES) is None


def test_words_are_no_letters_where_there_are_ten_options():
    assert chosen("I am sure that it is hard.", TEN) is None
    assert chosen("The answer is C because I computed it.", TEN) == "C"
    assert chosen("I", TEN) == "I"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("not B", None),
        ("The answer is not B.", None),
        ("The answer cannot be B.", None),
        ("B is not correct.", None),
        ("The answer is not B but C.", "C"),
        ("It's not A, it's D.", "D"),
        ("The answer isn't A; it's D.", "D"),
        ("A is incorrect. B is wrong. The answer is D.", "D"),
        ("Neither A nor B; the answer is C.", "C"),
        ("Everything except B", None),
        ("The answer is B, not A.", "B"),
        ("It is Lima, not Quito.", "A"),
    ],
)
def test_denied_letters_are_not_declared(text, letter):
    assert chosen(text, CITIES) == letter


@pytest.mark.parametrize(
    "text",
    [
        "答案是B",
        "答案：B",
        "正确答案是 B。",
        "因此选择B。",
        "故选：B",
        "本题选择B选项",
        "答えはBです。",
        "正解はBです",
        "정답은 B입니다",
        "La respuesta es B",
        "La respuesta correcta es la B.",
        "Die Antwort ist B.",
        "Die richtige Antwort lautet (B).",
        "La réponse est B.",
        "La bonne réponse est la réponse B",
        "A resposta é B.",
        "Ответ: B",
        "الإجابة هي B",
        "Jawaban: B",
        "Đáp án B",
        "Cevap: B",
        "La risposta è B",
        "Het antwoord is B",
        "Odpowiedź: B",
        "A resposta correta é B",
        "คำตอบคือ B",
        "Svaret är B",
        "Odpověď je B",
    ],
)
def test_other_languages(text):
    assert chosen(text, CITIES) == "B"


@pytest.mark.parametrize(
    "text",
    [
        "答案不是B",
        "不选B",
        "答案不可能是B",
        "Cevap B değil",
        "उत्तर B नहीं है",
        "คำตอบไม่ใช่ B",
        "Vastaus ei ole B",
        "Odpověď není B",
        "정답은 B가 아닙니다",
        "答えはBではない",
        "Die Antwort ist nicht B.",
        "La respuesta no es B.",
        "La réponse n'est pas B.",
        "A resposta não é B.",
    ],
)
def test_denials_in_other_languages(text):
    assert chosen(text, CITIES) is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [("5", "A"), ("The answer is 15.", "B"), ("\\boxed{0.5}", "C"), ("\\boxed{0.2}", "D"), ("7", None), ("-5", None)],
)
def test_the_options_own_text(text, letter):
    assert chosen(text, NUMBERS) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is -12", "C"),
        ("The answer is 1/12", "D"),
        ("The answer is 12/5", None),
        ("The answer is 2*12", None),
        ("The answer is 12^2", None),
        ("The answer is 12 000", None),
        ("The answer is 12 or 24", None),
        ("The answer is 12, not 24", "A"),
        ("Answer - 12", "A"),
    ],
)
def test_a_number_within_another_is_no_option(text, letter):
    assert chosen(text, dict(zip("ABCD", ["12", "24", "-12", "1/12"]))) == letter


def test_rewards_are_for_the_reference_in_any_form():
    texts = ["The answer is B.", "Quito"]
    assert choice(texts, ["B", "b"], choices=[list(CITIES.values())] * 2) == [1.0, 1.0]
    assert choice(texts, ["Quito", 1], choices=[list(CITIES.values())] * 2) == [1.0, 1.0]
    assert choice(texts[:1], ["A"]) == [0.0]
    labelled = {"label": ["A", "B"], "text": ["Lima", "Quito"]}
    assert choice(texts, ["B", "A"], choices=[labelled] * 2) == [1.0, 0.0]


def test_a_reference_that_is_no_option_pays_nobody():
    assert choice(["B"], ["E"], choices=[["x", "y"]]) == [None]


def test_only_what_follows_the_thought_counts():
    assert choice(["<think>The answer is B</think>The answer is C", "<think>The answer is B"], ["B", "B"]) == [0.0, 0.0]


@pytest.mark.skipif(not CASES.exists(), reason=f"needs {CASES}")
def test_reported_faults_are_not_ours():
    case = next(case for case in map(json.loads, CASES.open()) if case["id"] == "G01")
    outputs, letters = case["input"]["outputs"], case["expected"]["letters"]
    four, ten = dict.fromkeys("ABCD", ""), TEN
    assert [chosen(text, ten if text == outputs[-1] else four) for text in outputs] == letters
