"""Random trees with credits, and what they must give: plain rows through a plain model."""

from collections.abc import Iterator

import numpy as np
import torch

from branchwise.algorithm.credit import Credit
from branchwise.tree import Node, Question, Tree, prompt_node

VOCABULARY = 64


class Forest:
    """Trees of random tokens and lengths; their advantages and weights are random too."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.trees: list[Tree] = []
        self.credits: list[Credit] = []

    def plant(self, N=0, K=2, M=2, *, prompt=9, begin=(), thought=(1, 9), answer=(1, 6), unclosed=0.0, forced=0.0,
              anchor="original", joint=False):  # fmt: skip
        """Add a tree of N + 1 phrasings. M = 0: responses; shares of thoughts are unclosed or closed by force."""
        tree = Tree(Question(f"q{len(self.trees)}", ("text",) * (N + 1)), draw=0, step=1)
        for n in range(N + 1):
            tree.add(prompt_node(n, [*begin, *self._ids(prompt + n)]))
        for n in range(N + 1):
            for k in range(K):
                above = tree.add(self._node("thought" if M else "response", n, k, self.rng.integers(*thought)))
                if self.rng.random() < forced:
                    tree.nodes[above].sampled_T[-2:] = False
                elif self.rng.random() < unclosed:
                    continue
                for m in range(M):
                    tree.add(self._node("answer", above, m, self.rng.integers(*answer)))
        self.trees.append(tree)
        self.credits.append(self._credit(tree, N, anchor, joint))
        return self

    def _ids(self, count):
        return self.rng.integers(0, VOCABULARY, int(count))

    def _node(self, kind, parent, index, count):
        logprobs_T = -self.rng.random(int(count)).astype(np.float32)
        return Node(kind, int(parent), index, self._ids(count), logprobs_T, np.ones(int(count), bool), "stop")

    def _credit(self, tree, N, anchor, joint):
        places = np.arange(len(tree.nodes))
        prompts = np.array([node.parent < 0 for node in tree.nodes])
        answers = np.array([node.kind == "answer" for node in tree.nodes])
        parents = np.array([node.parent for node in tree.nodes])
        return Credit(
            advantage=[0.0 if prompt else float(self.rng.normal()) for prompt in prompts],
            weight=np.where(prompts, 0.0, self.rng.random(len(places)) + 0.1),
            unit=np.where(prompts, -1, np.where(answers & joint, parents, places)),
            segment=np.where(answers & (not joint), 1, 0),
            context={n: 0 if anchor == "original" else n for n in range(N + 1)},
        )

    def nodes(self) -> Iterator[tuple[int, int, list[int]]]:
        """Tree, place, and the places on the path to it, for each sampled node in the packs' order."""
        for t, (tree, credit) in enumerate(zip(self.trees, self.credits)):
            for phrasing in tree.phrasings():
                for place in _below(tree, phrasing):
                    yield t, place, [credit.context[phrasing], *tree.path(place)[1:]]

    def rows(self) -> Iterator[tuple[np.ndarray, list[tuple[int, int, int]]]]:
        """One row a leaf: its ids, and (tree, place, first token) of each sampled node in it."""
        leaves = {(t, leaf) for t, tree in enumerate(self.trees) for leaf in tree.leaves()}
        for t, place, path in self.nodes():
            if (t, place) in leaves:
                pieces = [self.trees[t].nodes[p].ids_T for p in path]
                starts = np.cumsum([len(ids_T) for ids_T in pieces]) - [len(ids_T) for ids_T in pieces]
                yield np.concatenate(pieces), [(t, p, int(s)) for p, s in zip(path, starts)][1:]


def _below(tree, place):
    for child in tree.children[place]:
        yield child
        yield from _below(tree, child)


def plain_logprobs(model, forest: Forest, temperature: float = 1.0) -> torch.Tensor:
    """log π of every sampled token of weight, in the packs' order: each leaf a row, each token scored once."""
    found = {}
    for ids_T, nodes in forest.rows():
        ids = torch.as_tensor(ids_T)[None]
        logits = model(ids, use_cache=False).logits[0]
        logp = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature, -1)
        for t, place, start in nodes:
            sampled = np.flatnonzero(forest.trees[t].nodes[place].sampled_T)
            at = torch.as_tensor(start + sampled)
            found.setdefault((t, place), logp[at - 1, ids[0, at]])
    return torch.cat([found[t, place] for t, place, _ in forest.nodes() if forest.credits[t].weight[place] != 0])


def plain_loss(model, forest: Forest, temperature: float = 1.0) -> torch.Tensor:
    """Sum of weight · advantage · log π."""
    weights = [
        np.full(
            int(forest.trees[t].nodes[place].sampled_T.sum()),
            float(np.float32(credit.weight[place])) * float(np.float32(credit.advantage[place])),
        )
        for t, place, _ in forest.nodes()
        if (credit := forest.credits[t]).weight[place] != 0
    ]
    logp = plain_logprobs(model, forest, temperature)
    return (logp * torch.as_tensor(np.concatenate(weights)).to(logp.dtype)).sum()


def packed_loss(policy, packs) -> torch.Tensor:
    """The same of packs."""
    return sum((policy.logprobs(p)[0] * p.scored.weight_S * p.scored.advantage_S).sum() for p in packs)


def gradients(loss: torch.Tensor, model) -> dict[str, torch.Tensor]:
    """Of every parameter, zeros where the loss does not reach it."""
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def gradient_error(given: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """The largest error of a parameter's gradient relative to its norm (or to a hundredth of all, for those near 0)."""
    assert given.keys() == wanted.keys()
    whole = torch.stack([g.norm() for g in wanted.values()]).norm()
    return max(float((given[n] - g).norm() / max(g.norm(), whole / 100)) for n, g in wanted.items())
