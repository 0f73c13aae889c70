"""What the tests against the real vLLM share: a tiny model of a head size that vLLM has kernels for, trees, checks."""

import numpy as np
import tiny
import torch
from peft import LoraConfig, get_peft_model

from branchwise.rollout.engine import Limb, Sampling
from branchwise.tree import Question, Tree, prompt_node

SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
SAMPLING = Sampling(seed=3, temperature=0.8, max_thought_tokens=14, max_answer_tokens=9)
FIXED = [7, 8, 9, 10, 20, 21, 22, 6, 11, 12, 13, 5, 14, 15]


def llama(tied=True, vocabulary=tiny.VOCABULARY):
    model = tiny.llama(tie_word_embeddings=tied, vocabulary=vocabulary, **SHAPE).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.mul_(4.0)  # far enough from uniform for errors to show
    return model


def lora(model):
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config).eval()


def updated(policy, size=0.02):
    """What an update does, random but for the sign of nothing."""
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight += size * torch.randn_like(weight)


LONG = [7 + i % 15 for i in range(300)]
"""Over several blocks of a prefix cache, so that one that is stale shows."""


def forest(prompts=([7, 8, 9, 10], [7, 8, 9, 10, 11, 12], [20], LONG)):
    trees = []
    for draw, prompt in enumerate(prompts):
        tree = Tree(Question(str(draw), ("text",)), draw, 1)
        tree.add(prompt_node(0, list(prompt)))
        trees.append(tree)
    return trees


def grown(engine, sampling=SAMPLING, thoughts=3, answers=2, trees=None):
    trees = trees or forest()
    engine.grow([Limb(tree, 0, thoughts, answers) for tree in trees], sampling)
    return trees


def contents(trees):
    return [
        (n.kind, n.parent, n.index, n.ids_T.tolist(), n.logprobs_T.tolist(), n.finish) for t in trees for n in t.nodes
    ]


@torch.no_grad()
def policy_logprobs(policy, tree, place, temperature=1.0):
    """A node's log-probs from one forward of its whole path."""
    ids = torch.from_numpy(np.concatenate([tree.nodes[i].ids_T for i in tree.path(place)]))
    own = len(tree.nodes[place].ids_T)
    logits = policy(input_ids=ids[None]).logits[0, -own - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).gather(1, ids[-own:, None])[:, 0].numpy()


def mismatch(policy, trees, temperature=SAMPLING.temperature):
    """The largest |log π − log μ| over all drawn tokens."""
    worst = 0.0
    for tree in trees:
        for place, node in enumerate(tree.nodes):
            if node.parent >= 0:
                difference = policy_logprobs(policy, tree, place, temperature) - node.logprobs_T
                worst = max(worst, float(np.abs(difference * node.sampled_T).max()))
    return worst


@torch.no_grad()
def fixed_logprobs(policy, ids=FIXED):
    logits = policy(input_ids=torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()
