"""What models reply, and the question in it; LaTeX in JSON above all."""

import json

import pytest

from branchwise.rephrase.checks import Candidate, rejection
from branchwise.rephrase.reply import read_reply

ORIGINAL = r"Find $\frac{3}{5}\times 10$ where $\theta \neq \nu$, $\beta$ and $\rho$ are \text{real}."


def read(content, finish="stop", original=ORIGINAL):
    return read_reply(content, finish, original)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (r'{"question": "Find $\frac{3}{5}\times 10$"}', r"Find $\frac{3}{5}\times 10$"),
        (r'{"question": "Find $\\frac{3}{5}\\times 10$"}', r"Find $\frac{3}{5}\times 10$"),
        (r'{"question": "Let $\theta, \nu, \beta, \rho$ be.\nFind \"it\""}',
         'Let $\\theta, \\nu, \\beta, \\rho$ be.\nFind "it"'),
        ('Sure:\n```json\n{"question": "Find $\\frac{3}{5}\\times 10$"}\n```', r"Find $\frac{3}{5}\times 10$"),
        (r'{"question": "\\begin{pmatrix}1 & 2 \\\\ 3 & 4\\end{pmatrix}"}',
         r"\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}"),
        (r'{"question": "\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}"}', r"\begin{pmatrix}1 & 2 \\ 3 & 4\end{pmatrix}"),
        (r'{"question": "\begin{pmatrix}1 & x \\\\ y & 4\end{pmatrix}"}',
         r"\begin{pmatrix}1 & x \\ y & 4\end{pmatrix}"),
        (r'{"question": "cost \$5 or 5\% in \( x \)\n\nthen"}', "cost \\$5 or 5\\% in \\( x \\)\n\nthen"),
        ('{"question": "caf\\u00e9 \\u2264 \\ud83d\\ude00"}', "café ≤ 😀"),
        ('Find $\x0crac{3}{5}\times 10$', r"Find $\frac{3}{5}\times 10$"),  # decoded on the way: form feed and tab
        ('$\x08eta$ and $\nu$', r"$\beta$ and $\nu$"),
        ("Find it.\nnu is a letter", "Find it.\nnu is a letter"),  # a line break that is one
        ("<think>Hm, {\"question\": \"x\"}</think>\n<question>What is it?</question>", "What is it?"),
        ("```\nWhat is it?\n```", "What is it?"),
        ('"What is it?"', "What is it?"),
        ("What is $\\{1, 2\\}$?", "What is $\\{1, 2\\}$?"),
    ],
)  # fmt: skip
def test_the_question_is_read_rightly(content, text):
    original = ORIGINAL.replace("real", "r") if "letter" in content else ORIGINAL
    if "nu is" in content:
        original = "Find it."
    assert read(content, original=original) == (text, None)


@pytest.mark.parametrize(
    ("content", "finish", "word"),
    [
        ("Find $\\frac{3}{5", "length", "cut off"),
        ('{"question": "Find $x', "stop", "cut short"),
        ('{"quest', "stop", "without a question"),
        ("<question>Find", "stop", "not closed"),
        ('{"question": "a"} {"question": "b"}', "stop", "2 questions"),
        ("", "stop", "empty"),
        (None, None, "empty"),
        ("I", "content_filter", "filter"),
    ],
)
def test_what_is_no_question_is_told(content, finish, word):
    assert word in read(content, finish)[1]


def test_every_way_of_escaping_gives_the_same_or_is_rejected():
    """Escaped, unescaped, decoded once too often: never another text than the one that was written."""
    meant = r"What is $\frac{3}{5}\times 10$ for $\theta \neq \nu$, $\beta$, $\rho$ \text{real}?"
    escaped = json.dumps({"question": meant})
    unescaped = escaped.replace("\\\\", "\\")
    eaten = (
        meant.replace("\\f", "\f").replace("\\t", "\t").replace("\\n", "\n").replace("\\b", "\b").replace("\\r", "\r")
    )
    for content in (meant, escaped, unescaped, eaten, f"```json\n{unescaped}\n```"):
        text, reason = read(content)
        assert reason or text == meant or rejection(Candidate(ORIGINAL, text))
        assert not set(text) & set("\f\b\t\r")
    assert [read(content)[0] for content in (escaped, unescaped)] == [meant, meant]
