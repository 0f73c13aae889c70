"""Trees as lines of JSON: everything that a reader, the report and a later look at gradients need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from branchwise.errors import ConfigError
from branchwise.tree import Node, Question, Tree

Decode = Callable[..., str]


def tree_record(tree: Tree, advantages: Sequence[Any] | None, decode: Decode) -> dict[str, Any]:
    """One tree as plain data.

    Each node has its text, ids, finish and, where sampled, per-token log-probs (two decimals) with the number of
    characters of each token (`spans`; their sum is the text's length; absent where the tokenizer does not decode piece
    by piece). Phrasings have the wording apart from the prompt around it. Leaves have rewards, parts and reasons.
    Images are named: files by their paths, others by where the run's folder keeps them.
    """
    nodes = [_node_record(tree, i, advantages[i] if advantages else None, decode) for i in range(len(tree.nodes))]
    question = {"id": tree.question.id, "answer": tree.question.columns.get("answer")}
    if tree.question.images:
        question["images"] = [picture.name for picture in tree.question.images]
    head = {"question": question, "draw": tree.draw, "step": tree.step, "staleness": tree.staleness}
    return head | {"nodes": nodes}


def _node_record(tree: Tree, place: int, advantage: Any, decode: Decode) -> dict[str, Any]:
    node = tree.nodes[place]
    entry: dict[str, Any] = {
        "kind": node.kind,
        "parent": node.parent,
        "index": node.index,
        "text": decode(node.ids_T),
        "tokens": len(node.ids_T),
        "finish": node.finish,
        "ids": node.ids_T.tolist(),
    }
    if node.kind == "phrasing":
        return entry | {"wording": _wording(tree.question.phrasings[node.index])}
    entry["logprob"] = round(float(node.logprobs_T.sum()), 4)
    entry["logprobs"] = [round(float(x), 2) or 0 for x in node.logprobs_T]
    if (spans := token_spans(entry["ids"], entry["text"], decode)) is not None:
        entry["spans"] = spans
    if not node.sampled_T.all():
        entry["forced"] = int((~node.sampled_T).sum())
    if advantage is not None:
        entry["advantage"] = round(float(np.mean(advantage)), 6)
    if not tree.children[place]:
        entry |= {"reward": node.reward, "parts": node.parts}
        entry |= {"reason": node.reason} if node.reason else {}
        entry |= {"extra": node.extra} if node.extra else {}
    return entry


def _wording(prompt: Any) -> str:
    from branchwise.data.questions import question_text

    return prompt if isinstance(prompt, str) else question_text(prompt)


_PIECES: dict[Decode, dict[int, str]] = {}
"""Each tokenizer's tokens, decoded once: a step has hundreds of thousands."""


def token_spans(ids: list[int], text: str, decode: Decode) -> list[int] | None:
    """How many characters of `text` each token gives; a character of several tokens belongs to its last.

    Tokens are decoded one by one, and where these do not make up the text, each after the one before it: some
    tokenizers drop a text's leading blank, and a character may have several tokens. None where neither makes it up.
    """
    pieces = _PIECES.setdefault(decode, {})
    for token in set(ids).difference(pieces):
        pieces[token] = decode([token])
    if "".join(pieces[token] for token in ids) == text:
        return [len(pieces[token]) for token in ids]
    spans: list[int] = []
    group: list[int] = []
    before: list[int] = []
    done = 0
    for token in ids:
        group.append(token)
        known = decode(before) if before else ""
        piece = decode(before + group)[len(known) :]
        if piece.endswith("\ufffd") and not text.startswith(piece, done):
            spans.append(0)  # the middle of a character
            continue
        spans.append(len(piece))
        done += len(piece)
        before, group = group, []
    return spans if done == len(text) and not group else None


def read_trees(file: Path) -> Iterator[Tree]:
    """The trees of a log file, as they were sampled: ids, log-probs (to two decimals), finishes, rewards.

    Raises:
        ConfigError: a question has images, which the log names and does not hold.
    """
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield _tree(json.loads(line))


def _tree(record: dict[str, Any]) -> Tree:
    nodes = record["nodes"]
    if "images" in record["question"]:
        raise ConfigError(f"question {record['question']['id']!r} has images, which its log names and does not hold")
    wordings = tuple(node["wording"] for node in nodes if node["kind"] == "phrasing")
    question = Question(record["question"]["id"], wordings, {"answer": record["question"]["answer"]})
    tree = Tree(question, record["draw"], record["step"])
    for entry in nodes:
        ids_T = np.asarray(entry["ids"], np.int64)
        sampled_T = np.full(len(ids_T), entry["kind"] != "phrasing")
        if forced := entry.get("forced", 0):
            sampled_T[-forced:] = False
        logprobs_T = np.asarray(entry.get("logprobs", np.zeros(len(ids_T))), np.float32)
        tree.add(
            Node(
                entry["kind"],
                entry["parent"],
                entry["index"],
                ids_T,
                logprobs_T,
                sampled_T,
                entry["finish"],
                entry.get("reward"),
                entry.get("parts", {}),
                entry.get("reason"),
                entry.get("extra", {}),
            )
        )
    return tree
