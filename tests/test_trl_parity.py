"""The same tokens and rewards through TRL's GRPOTrainer and through Branchwise: advantages, loss, gradients.

Where the two differ by design, settings make them agree: TRL adds 1e-4 to the std (`eps`), caps CISPO's ratio at
`epsilon_high` (`cispo_cap`), divides Dr.GRPO by `max_completion_length` (both limits' sum), multiplies the KL by the
ratio (off here), and takes means by micro-batch, which are the step's where micro-batches are of one size. Its
truncated completion is an unclosed thought.
"""

import copy

import numpy as np
import pytest
import tiny
import torch
from transformers import LlamaForCausalLM

from branchwise.algorithm.advantage import advantages
from branchwise.algorithm.objective import means, objective
from branchwise.algorithm.weights import count, credit
from branchwise.config import load_config
from branchwise.policy.load import load_policy
from branchwise.policy.pack import build_packs
from branchwise.tree import Node, Question, Tree, prompt_node

trl = pytest.importorskip("trl", reason="TRL is a development dependency: pip install 'branchwise[dev]'")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow

EOS, MARKER, FIRST_LETTER, VOCABULARY = 1, 5, 6, 27
LIMIT = 24
PROMPTS = (9, 14)
THOUGHTS = ((6, 11, 3, 8), (1, 12, 7, 5))
"""Tokens before the marker, by question and rollout."""
ANSWERS = ((3, 1, 6, 2), (4, 0, 2, 5))
"""Tokens between marker and EOS; at TRUNCATED there is neither."""
TRUNCATED = (1, 1)
REWARDS = ((1.0, 0.0, 0.5, 0.0), (0.0, 0.25, 1.0, 1.0))
TEMPERATURE = 0.9

METHODS = {
    "grpo": ({}, {"loss_type": "grpo"}),
    "dr-grpo": ({}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "dapo": ({"overlong_buffer": 0}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "cispo": ({"cispo_cap": 1.1}, {"loss_type": "cispo", "epsilon_high": 1.1}),
    "gspo": ({}, {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4}),
}
"""By preset: what is set beside it, and the same for TRL."""
STEP = {"gspo": 2e-4}
"""How far the weights move between the passes, relative to their spread; by default 0.03."""


def make_trees():
    random = np.random.default_rng(0)

    def letters(n):
        return random.integers(FIRST_LETTER, VOCABULARY, n).tolist()

    trees = []
    for b in range(len(PROMPTS)):
        tree = Tree(Question(str(b), ("",)), draw=b, step=0)
        tree.add(prompt_node(0, letters(PROMPTS[b])))
        for k, (thought, answer, reward) in enumerate(zip(THOUGHTS[b], ANSWERS[b], REWARDS[b])):
            if (b, k) == TRUNCATED:
                tree.add(sampled("thought", 0, k, letters(thought), "length", reward))
            else:
                place = tree.add(sampled("thought", 0, k, [*letters(thought), MARKER], "marker"))
                tree.add(sampled("answer", place, 0, [*letters(answer), EOS], "stop", reward))
        trees.append(tree)
    return trees


def sampled(kind, parent, index, ids, finish, reward=None):
    ids_T = np.array(ids)
    logprobs_T = np.zeros(len(ids), np.float32)  # log μ: read by corrections alone
    return Node(kind, parent, index, ids_T, logprobs_T, np.ones(len(ids), bool), finish, reward)


def rollouts(trees):
    """Prompt, completion and reward of every leaf, in order."""
    for tree in trees:
        for leaf in tree.leaves():
            prompt, *response = (tree.nodes[place].ids_T for place in tree.path(leaf))
            yield prompt.tolist(), np.concatenate(response).tolist(), tree.nodes[leaf].reward


def start():
    """The policy at first, lively enough to have sharp distributions."""
    return tiny.llama(vocabulary=VOCABULARY, initializer_range=0.3)


def moved(model, by, seed):
    """Each weight moved by a random share of its tensor's spread, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += by * p.std() * torch.randn(p.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A folder with the reference's weights: the policy's (seed 0), moved to about 0.1 from it in log-prob."""
    folder = tmp_path_factory.mktemp("reference")
    moved(start(), 0.01, seed=1).save_pretrained(folder)
    return folder


class Ours:
    def __init__(self, reference, trees, preset, beta, mask):
        self.config = load_config(
            {
                "preset": preset,
                "model": {"path": str(reference)},
                "tree": {"thoughts": 4, "unclosed": "mask" if mask else "score"},
                "algorithm": {"eps": 1e-4, "kl": beta, **METHODS[preset][0]},
                "sampling": {
                    "temperature": TEMPERATURE, "max_thought_tokens": LIMIT - 10, "max_answer_tokens": 10,
                },
                "train": {"precision": "float32", "device": "cpu"},
            }
        )  # fmt: skip
        model = LlamaForCausalLM.from_pretrained(reference)
        self.policy = load_policy(self.config, model=model, processing_class=tiny.tokenizer())
        self.policy.model.load_state_dict(start().state_dict())
        self.advantages = advantages(trees, self.config)
        credits = credit(trees, self.advantages, count(trees, self.config), self.config)
        self.packs = build_packs(trees, credits, budget=80, device="cpu", prune=beta == 0)
        for pack in self.packs:
            with torch.no_grad():
                pack.scored.prox_S = self.policy.logprobs(pack)[0]
            if beta:
                pack.scored.ref_S = self.policy.reference_logprobs(pack)

    def leaf_advantages(self, trees):
        return [A[leaf] for tree, A in zip(trees, self.advantages) for leaf in tree.leaves()]

    def loss(self):
        """Loss, the mean |token loss|, and metrics; gradients are left in the model."""
        total, token_losses, sums = 0.0, [], {}
        for pack in self.packs:
            weight_S = pack.scored.weight_S.requires_grad_()
            loss, stats = objective(*self.policy.logprobs(pack), pack.scored, self.config.algorithm)
            loss.backward()
            total += loss.item()
            token_losses.append(weight_S.grad)  # the loss is the sum of weight · token loss
            weight_S.grad = None
            sums = {key: sums.get(key, 0) + value for key, value in stats.items()}
        return total, torch.cat(token_losses).abs().mean().item(), means(sums)


class Theirs:
    def __init__(self, folder, reference, trees, preset, beta, mask):
        prompts, completions, rewards = zip(*rollouts(trees))
        args = trl.GRPOConfig(
            output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False,
            per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, num_iterations=2,
            max_completion_length=LIMIT, temperature=TEMPERATURE, beta=beta, use_bias_correction_kl=False,
            mask_truncated_completions=mask, **METHODS[preset][1],
        )  # fmt: skip
        self.trainer = trl.GRPOTrainer(
            LlamaForCausalLM.from_pretrained(reference),
            reward_funcs=lambda score, **_: list(score),
            args=args,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["a"]}),
            processing_class=tiny.tokenizer(),
            rollout_func=lambda *_: {
                "prompt_ids": list(prompts), "completion_ids": list(completions), "logprobs": None,
            },
        )  # fmt: skip
        self.trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.model = self.trainer.model.train()
        self.model.load_state_dict(start().state_dict())
        self.batch = self.trainer._generate_and_score_completions([{"prompt": "a", "score": r} for r in rewards])

    def loss(self):
        """Summed over the micro-batches of an optimizer step; gradients are left in the model."""
        total = 0.0
        for inputs in trl.trainer.utils.split_tensor_dict(self.batch, self.trainer.args.steps_per_generation):
            loss = self.trainer.compute_loss(self.model, inputs)
            loss.backward()
            total += loss.item()
        return total


def take_gradient(model):
    """All gradients as one vector; they are cleared."""
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad(set_to_none=True)
    return gradient


@pytest.mark.parametrize("preset", METHODS)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("mask", [False, True], ids=["scored", "masked"])
def test_parity_with_trl(tmp_path, reference, preset, beta, mask):
    trees = make_trees()
    theirs = Theirs(tmp_path, reference, copy.deepcopy(trees), preset, beta, mask)
    ours = Ours(reference, trees, preset, beta, mask)
    assert len(ours.packs) == 2
    torch.testing.assert_close(
        theirs.batch["advantages"], torch.tensor(ours.leaf_advantages(trees), dtype=torch.float32), rtol=1e-6, atol=1e-6
    )
    if beta:
        prox_S, ref_S = (torch.cat([getattr(p.scored, name) for p in ours.packs]) for name in ("prox_S", "ref_S"))
        assert 0.05 < (ref_S - prox_S).abs().mean() < 0.2
    for step in (1, 2):
        expected = theirs.loss()
        loss, scale, metrics = ours.loss()
        assert abs(loss - expected) < 1e-5 * scale
        gradient, wanted = take_gradient(ours.policy.model), take_gradient(theirs.model)
        assert (gradient - wanted).norm() < 1e-5 * wanted.norm()
        if step == 1:
            assert abs(metrics["ratio"] - 1) < 1e-5
            for model in (ours.policy.model, theirs.model):
                moved(model, STEP.get(preset, 0.03), seed=2)
        else:
            assert 0.05 < metrics["clip_low/thought"] + metrics["clip_high/thought"] < 0.95
