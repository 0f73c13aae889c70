"""Where thoughts end: markers over several tokens, inside one, within a character, as special tokens."""

import numpy as np
import pytest
import tiny
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from branchwise.rollout.engine import Limb, Sampling
from branchwise.rollout.marker import Marker
from branchwise.rollout.transformers import TransformersEngine
from branchwise.tree import Question, Tree, prompt_node


def byte_level(*merges, special=()):
    """A byte-level BPE tokenizer of 256 bytes and some merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {byte: i for i, byte in enumerate(alphabet)}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    raw = Tokenizer(models.BPE(vocabulary, list(merges)))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    return fast


def sentencepiece(*words):
    """A tokenizer that writes spaces as ▁, drops the first one in decoding, and has bytes to fall back on."""
    vocabulary = {"<unk>": 0, **{f"<0x{b:02X}>": 1 + b for b in range(256)}}
    vocabulary |= {word: 257 + i for i, word in enumerate(words)}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<unk>")


def end_of(marker, ids):
    """How many tokens a thought that draws `ids` has, as the engine looks: at flagged tokens alone."""
    for length in range(1, len(ids) + 1):
        if marker.may_end_V[ids[length - 1]] and marker.ends(ids[:length]):
            return length
    return None


def test_a_marker_over_several_tokens():
    tok = byte_level()
    ids = tok.encode("so 3 > 2, </thin </think>\n")
    assert end_of(Marker("</think>", tok, len(tok)), ids) == len(ids) - 1


def test_a_marker_that_ends_inside_a_token():
    tok = byte_level((">", "\\"))
    ids = tok.encode("a</think>\\boxed{1}")
    assert tok.decode(ids[:9]) == "a</think>\\" and end_of(Marker("</think>", tok, len(tok)), ids) == 9


def test_a_marker_that_begins_inside_a_token_among_tokens_without_text():
    tok = byte_level(("x", "<"), special=["<|nothing|>"])
    blank = tok.convert_tokens_to_ids("<|nothing|>")
    head, tail = tok.encode("x</thi"), tok.encode("nk>")
    marker = Marker("</think>", tok, len(tok))
    assert end_of(marker, head + tail) == len(head + tail)
    # text of a special token stands between: it is no marker
    assert end_of(marker, [*head, blank, *tail]) is None


@pytest.mark.parametrize("marker", ["终", "</思考>", "答え：", "∎", "🏁"])
def test_a_character_torn_over_tokens(marker):
    tok = byte_level()
    ids = tok.encode(
        f"思 🏁🏁… {marker}後"[1 if marker == "🏁" else 0 :].replace("🏁🏁", "" if marker == "🏁" else "🏁🏁")
    )
    expected = len(tok.encode(tok.decode(ids).split(marker)[0] + marker))
    assert end_of(Marker(marker, tok, len(tok)), ids) == expected


def test_a_token_that_completes_a_character_and_more():
    # the last byte of 终 and a comma are one token
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("终,")[0][0]
    tok = byte_level((alphabet[-2], alphabet[-1]))
    ids = tok.encode("好终,好")
    assert end_of(Marker("终", tok, len(tok)), ids) == 6 and tok.decode(ids[:6]) == "好终,"


def test_a_special_token_as_marker():
    tok = byte_level(special=["</think>"])
    ids = tok.encode("ab</think>c")
    assert "</think>" not in tok.decode(ids, skip_special_tokens=True)
    assert end_of(Marker("</think>", tok, len(tok)), ids) == 3


def test_a_special_token_that_holds_the_markers_last_character_is_no_marker():
    tok = byte_level(special=["<tool>"])
    assert end_of(Marker("</think>", tok, len(tok)), tok.encode("a<tool>b > c")) is None


@pytest.mark.parametrize("marker, text", [("\n\n", "a b\n\nc"), ("Answer: ", "So Answer: 3"), ("#### ", "x #### 7")])
def test_a_marker_that_ends_in_space(marker, text):
    tok = byte_level(("Ġ", "3"), ("Ċ", "Ċ"))
    ids = tok.encode(text)
    end = end_of(Marker(marker, tok, len(tok)), ids)
    assert marker in tok.decode(ids[:end]) and marker not in tok.decode(ids[: end - 1])


def test_a_tokenizer_that_strips_the_first_space():
    tok = sentencepiece("▁", "▁3", "a", "So", "▁Answer", ":")
    ids = tok.convert_tokens_to_ids(["So", "▁Answer", ":", "▁3"])
    assert tok.decode(ids[-1:]) == "3"
    assert end_of(Marker("Answer: ", tok, len(tok)), ids) == 4


def test_bytes_to_fall_back_on():
    tok = sentencepiece("a", "好")
    ids = tok.convert_tokens_to_ids(["好", "<0xE7>", "<0xBB>", "<0x88>", "a"])
    assert end_of(Marker("终", tok, len(tok)), ids) == 4


def test_ids_beyond_the_tokenizer_end_nothing():
    tok = byte_level()
    marker = Marker("</think>", tok, len(tok) + 7)
    assert marker.may_end_V.shape == (len(tok) + 7,) and not marker.may_end_V[len(tok) :].any()


def test_a_marker_without_tokens_is_refused():
    tok = byte_level()
    tok.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match=r"tree\.marker: the tokenizer has no tokens for ' '"):
        Marker(" ", tok, len(tok))


def grown(tok, marker, model=None, **settings):
    model = model or tiny.llama(vocabulary=len(tok))
    t = Tree(Question("q", ("text",)), 0, 0)
    t.add(prompt_node(0, [3, 4, 5]))
    sampling = Sampling(seed=0, marker=marker, max_thought_tokens=60, max_answer_tokens=3, **settings)
    TransformersEngine(model, tok, dtype=model.dtype, device="cpu", max_rows=256).grow([Limb(t, 0, 64, 1)], sampling)
    return t


def test_thoughts_end_at_the_first_token_that_completes_the_marker():
    # two characters of 20, so that thoughts close now and then, over two tokens
    tok = tiny.tokenizer()
    t = grown(tok, "+-")
    thoughts = [t.nodes[i] for i in t.children[0]]
    finishes = {node.finish for node in thoughts}
    assert finishes == {"marker", "stop", "length"}
    for node in thoughts:
        text = tok.decode(node.ids_T)
        assert text.find("+-") == (len(text) - 2 if node.finish == "marker" else -1)


def test_a_marker_that_is_an_eos_closes_the_thought():
    tok = tiny.tokenizer()
    t = grown(tok, "<|end|>")
    thoughts = [i for i, node in enumerate(t.nodes) if node.kind == "thought"]
    assert {t.nodes[i].finish for i in thoughts} == {"marker", "length"}
    assert all(bool(t.children[i]) == (t.nodes[i].finish == "marker") for i in thoughts)


def test_a_marker_of_several_tokens_is_forced_whole():
    tok = tiny.tokenizer()
    t = grown(tok, "+-=", force_close=True)
    ids = tok.encode("+-=", add_special_tokens=False)
    forced = [node for node in t.nodes if node.finish == "forced"]
    assert len(ids) == 3 and forced
    for node in forced:
        assert node.ids_T[-3:].tolist() == ids
        np.testing.assert_array_equal(node.sampled_T[-4:], [True, False, False, False])
        assert not node.logprobs_T[-3:].any() and node.logprobs_T[:-3].all()
    assert all(t.children[i] for i in t.children[0])


def test_forced_answers_follow_the_whole_marker():
    tok = tiny.tokenizer()
    model = tiny.llama(vocabulary=len(tok))
    t = grown(tok, "+-=", model, force_close=True)
    for place in t.leaves():
        ids = torch.from_numpy(np.concatenate([t.nodes[i].ids_T for i in t.path(place)]))
        own = len(t.nodes[place].ids_T)
        with torch.no_grad():
            logits = model(ids[None]).logits[0, -own - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, ids[-own:, None])[:, 0]
        np.testing.assert_allclose(t.nodes[place].logprobs_T, expected, atol=1e-5)
