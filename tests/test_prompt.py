"""Rendering: the same ids everywhere, one BOS, no thought that is closed before it begins."""

import pytest
from byte_tokenizer import CHAT, byte_tokenizer

from branchwise.config import ConfigError, DataConfig, load_config
from branchwise.data import DataError, Renderer, Report, fitting, load_rows, questions
from branchwise.tree import Question

USER = [{"role": "user", "content": "2+2?"}]
TURNS = [
    {"role": "system", "content": "Think."},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    *USER,
]


def test_chat_prompts_get_the_template_and_its_generation_prompt():
    tokenizer = byte_tokenizer()
    ids = Renderer(tokenizer).ids(TURNS)
    assert tokenizer.decode(ids) == "[system]Think.[user]1+1?[assistant]2[user]2+2?[assistant]"
    assert ids == tokenizer.apply_chat_template(TURNS, add_generation_prompt=True, return_dict=False)


def test_text_prompts_stay_as_they_are():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(Renderer(tokenizer).ids("2+2=")) == "2+2="


def test_without_a_template_turns_are_joined_plainly():
    tokenizer = byte_tokenizer(chat_template=None)
    assert tokenizer.decode(Renderer(tokenizer, marker="</think>").ids(TURNS)) == "Think.\n\n1+1?\n2\n\n2+2?\n"


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [CHAT, "<s>" + CHAT, None])
@pytest.mark.parametrize("prompt", [USER, "2+2=", "<s>2+2="])
def test_there_is_one_bos_where_the_tokenizer_or_the_template_wants_one(adds_bos, template, prompt):  # case B11
    tokenizer = byte_tokenizer(template, adds_bos)
    ids = Renderer(tokenizer).ids(prompt)
    wanted = adds_bos or str(prompt).startswith("<s>") or (prompt is USER and template == "<s>" + CHAT)
    assert ids.count(tokenizer.bos_token_id) == wanted
    assert (ids[0] == tokenizer.bos_token_id) == wanted


def test_a_template_that_closes_the_thought_is_refused():
    thinking = CHAT.replace(
        "[assistant]{% endif %}", "[assistant]{% if not think %}<think></think>{% endif %}{% endif %}"
    )
    tokenizer = byte_tokenizer(thinking)
    with pytest.raises(ConfigError, match=r"tree.marker(.|\n)*\[assistant\]<think></think>(.|\n)*tree.marker: null"):
        Renderer(tokenizer, marker="</think>")
    assert Renderer(tokenizer).text(USER).endswith("</think>")
    renderer = Renderer(tokenizer, {"think": True}, marker="</think>")
    assert renderer.text([{"role": "user", "content": "what is </think>?"}]).endswith("[assistant]")


def test_a_template_may_speak_of_the_marker_before_the_question():
    tokenizer = byte_tokenizer("Think in <think></think>." + CHAT)
    assert Renderer(tokenizer, marker="</think>").text(USER) == "Think in <think></think>.[user]2+2?[assistant]"


def test_a_template_that_refuses_a_prompt_says_how():
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHAT
    with pytest.raises(ConfigError, match=r"\['system', 'user'.*no system role; see data.system_prompt"):
        Renderer(byte_tokenizer(strict)).ids(TURNS)


def test_too_long_prompts_leave_and_are_counted():
    rows = [
        {"question": "long " * 10, "id": "a", "rephrasings": ["short"]},
        {"question": "short", "id": "b", "rephrasings": ["long " * 10, "brief"]},
    ]
    found, report = questions(load_rows(rows), DataConfig(), 2)
    renderer = Renderer(byte_tokenizer(), max_prompt_tokens=len("[user]short[assistant]"))
    (kept,) = fitting(found, renderer, report)
    assert [p[0]["content"] for p in kept.phrasings] == ["short", "brief"]
    assert report.rejected == [(1, "its prompt has more tokens than data.max_prompt_tokens: 22")]
    assert (report.usable, report.rows, report.lost) == (1, 2, 0.5)
    assert report.left_out == {"of more tokens than data.max_prompt_tokens: 22": 1}
    assert "row 1: its prompt has more tokens than data.max_prompt_tokens: 22" in str(report)
    with pytest.raises(DataError, match=r"(?s)no usable question\..*more tokens than data\.max_prompt_tokens: 5"):
        fitting(found, Renderer(byte_tokenizer(), max_prompt_tokens=5), Report("data"))


def test_a_prompt_at_the_limit_fits():
    question = Question("q", ("abcd",))
    assert Renderer(byte_tokenizer(), max_prompt_tokens=4).fits(question) == question
    assert Renderer(byte_tokenizer(), max_prompt_tokens=3).fits(question) is None


def test_a_config_says_it_all():
    config = load_config({"model": {"path": "m"}, "data": {"max_prompt_tokens": 7}, "tree": {"marker": None}})
    assert Renderer.of(byte_tokenizer(), config).max_prompt_tokens == 7
