"""Run folders written down, for tests of what reads them: no model is in them."""

import json

import numpy as np
import yaml
from byte_tokenizer import byte_tokenizer
from trees import config

from branchwise.algorithm.advantage import group_relative
from branchwise.train.run_directory import RunDirectory
from branchwise.tree import Node, Question, Tree, prompt_node

TOKENIZER = byte_tokenizer()


def sampled(kind, parent, index, text, finish, reward=None, logprob=-0.5):
    ids_T = np.array(TOKENIZER(text, add_special_tokens=False)["input_ids"], np.int64)
    logprobs_T = np.full(len(ids_T), logprob, np.float32)
    logprobs_T[:1] = -3.0  # one unlikely token, to be seen
    return Node(kind, parent, index, ids_T, logprobs_T, np.ones(len(ids_T), bool), finish, reward, {"math": reward})


def written_tree(step, b, wordings, rewards, unclosed=False):
    """`rewards[n][k]` are the rewards of thought k's answers under wording n."""
    tree = Tree(Question(f"q{b}", tuple(wordings), {"answer": "$\\frac{1}{2}$"}), draw=b, step=step)
    for n, wording in enumerate(wordings):
        tree.add(prompt_node(n, TOKENIZER(f"[user]{wording}[assistant]", add_special_tokens=False)["input_ids"]))
    for n, thoughts in enumerate(rewards):
        for k, answers in enumerate(thoughts):
            place = tree.add(sampled("thought", n, k, f"Half of {k} is $\\frac{{{k}}}{{2}}$ – naïve</think>", "marker"))
            for m, reward in enumerate(answers):
                text = f"\\boxed{{\\frac{{{m}}}{{2}}}}"
                tree.add(sampled("answer", place, m, text, "stop", reward))
        if unclosed:
            place = tree.add(sampled("thought", n, len(thoughts), "and so on and on", "length", 0.0))
    return tree


def write_run(folder, steps=12, questions=3, held_out=True, name="ta-grpo-ma"):
    """A run with a tree of each kind that the report filters by."""
    rng = np.random.default_rng(0)
    settings = config(
        train={"output_dir": str(folder), "steps": steps}, tree={"thoughts": 2, "answers": 2, "rephrasings": 1},
        algorithm={"pool": "question"},
    )  # fmt: skip
    directory = RunDirectory(settings, TOKENIZER.decode)
    for step in range(steps + 1):
        if held_out and step in (0, steps):
            mean = 0.2 + 0.5 * step / steps
            directory.metrics(step, {"held_out/mean": mean, "held_out/low": mean - 0.05, "held_out/high": mean + 0.05})
        if step == 0:
            continue
        trees = [
            written_tree(step, 0, ["What is half of one?", "Halve one."], [[(1, 0), (1, 1)], [(0, 0), (0, 0)]]),
            written_tree(step, 1, ["What is a third < of & one?"], [[(0, 0), (0, 0)]], unclosed=True),
        ]
        for b in range(2, questions):
            r = rng.integers(0, 2, (2, 2, 2)).astype(float).tolist()
            trees.append(written_tree(step, b, [f"What is {b} halves?", f"Halve {b}."], r))
        directory.trees(f"{step:06d}", trees, group_relative(trees, settings))
        reward = 0.2 + 0.5 * step / steps + 0.1 * float(rng.normal())
        values = {"reward": reward, "uniform/question": 0.4, "uniform/phrasing": 0.6, "grad_norm": 1.0, "unclosed": 0.1}
        directory.metrics(step, values | {"tokens_per_second": 200.0, "entropy_estimate": 1.0, "variance/within": 0.1})
    directory.close()
    directory.write_json("summary.json", {"algorithm": name, "steps": steps})
    assert yaml.safe_load((folder / "config.yaml").read_text())["tree"]["answers"] == 2
    evals = folder / "evals"
    evals.mkdir()
    passes = {str(k): {"mean": m, "low": m - 0.1, "high": m + 0.1} for k, m in ((1, 0.2), (2, 0.3), (4, 0.45))}
    scores = {"passes": passes, "shares": {"uniform": 0.3}}
    record = {"suite": "gsm8k", "model": "step 12", "step": 12, "scores": scores, "extra": {}}
    (evals / "results.json").write_text(json.dumps([record]))
    return folder
