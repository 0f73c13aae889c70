"""Trees on disk and back."""

import json

import numpy as np
import pytest
from run_files import TOKENIZER, written_tree

from branchwise.train.tree_log import read_trees, token_spans, tree_record


def test_a_tree_is_read_back_as_it_was_sampled(tmp_path):
    tree = written_tree(3, 1, ["one", "two"], [[(1, 0), (1, 1)], [(0, 0), (0, None)]], unclosed=True)
    tree.nodes[-1].sampled_T[-2:] = False
    tree.nodes[-1].reason = "failed"
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(tree_record(tree, None, TOKENIZER.decode)) + "\n")
    (back,) = read_trees(file)
    assert (back.step, back.draw, back.question.id, back.children) == (3, 1, "q1", tree.children)
    for node, other in zip(tree.nodes, back.nodes, strict=True):
        for field in ("kind", "parent", "index", "finish", "reward", "reason"):
            assert getattr(node, field) == getattr(other, field)
        assert other.parts == ({} if node.kind in ("phrasing", "thought") and node.finish != "length" else node.parts)
        assert np.array_equal(node.ids_T, other.ids_T) and np.array_equal(node.sampled_T, other.sampled_T)
        assert np.allclose(node.logprobs_T, other.logprobs_T, atol=0.005)


@pytest.mark.parametrize("text", ["plain", "naïve – 半 🌳!", " leading blank", "", "\n\n"])
def test_spans_are_the_characters_of_each_token(text):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]  # a token for each byte
    spans = token_spans(ids, text, TOKENIZER.decode)
    assert len(spans) == len(ids) and sum(spans) == len(text)
    done = 0
    for place, length in enumerate(spans):  # a character stands with its last byte
        done += length
        assert len(text[:done].encode()) == place + 1 or not length


def test_no_spans_where_a_tokenizer_does_not_decode_piece_by_piece():
    decode = lambda ids: "".join(chr(97 + i) for i in ids).title() if len(ids) > 2 else ""  # noqa: E731
    assert token_spans([0, 1, 2], decode([0, 1, 2]), decode) is None


def test_a_character_cut_by_the_limit_has_no_spans():
    ids = TOKENIZER("a半", add_special_tokens=False)["input_ids"][:-1]
    text = TOKENIZER.decode(ids)
    spans = token_spans(ids, text, TOKENIZER.decode)
    assert spans is None or sum(spans) == len(text)


def test_phrasings_have_their_wording_and_leaves_their_rewards():
    record = tree_record(written_tree(1, 0, ["one"], [[(1, 0)]]), None, TOKENIZER.decode)
    phrasing, thought, right, _ = record["nodes"]
    assert phrasing["wording"] == "one" and phrasing["text"] == "[user]one[assistant]"
    assert "reward" not in thought and right["reward"] == 1
    assert len(thought["logprobs"]) == thought["tokens"] == len(thought["ids"])
