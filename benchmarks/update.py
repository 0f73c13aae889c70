"""One policy update, forward, loss and backward: Branchwise against one row per leaf and against TRL's GRPOTrainer.

    python benchmarks/update.py [--json] [--quick] [--shapes 1 3] [--pairs 5] [--vision]

A shape is P,K,T,M,A: a prompt of P tokens, K thoughts of T, M answers of A tokens to each. All contenders have the same
weights, tokens and loss (GRPO-MA's, or with one answer GRPO's); their losses and gradients are compared first. Then
they take turns in one process, and `ratio` is the median over turns of their seconds to Branchwise's. Branchwise's
seconds include packing; rows are padded beforehand and go through in micro-batches of 16. TRL computes entropies and
metrics beside the loss. The optimizer's step is the same for all and left out. `peak_mb` (Linux only) is the peak of
the process's memory in a contender's first step above what it held before, weights and gradients among it.

`--vision`: prompts that begin with an image of 300 tokens, against rows alone, each of which encodes its image; tokens
are those of the language model.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen3Config,
)

from branchwise.algorithm.advantage import advantages
from branchwise.algorithm.credit import Credit
from branchwise.algorithm.objective import objective
from branchwise.algorithm.weights import count, credit
from branchwise.config import Config, load_config
from branchwise.policy.load import load_policy
from branchwise.policy.pack import build_packs, default_budget
from branchwise.tree import Images, Node, Question, Tree, prompt_node

MICRO_BATCH = 16
GRID, PATCH = (1, 30, 40), 14
"""Patches of an image: 300 tokens, for the model merges four to one."""
MODELS = {
    "Qwen3-30M": Qwen3Config(
        vocab_size=8192, hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
    ),
    "SmolLM2-135M": LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    ),
    "Qwen2.5-VL-30M": Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
            "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
        },
        vision_config={
            "depth": 6, "hidden_size": 256, "intermediate_size": 768, "num_heads": 4, "out_hidden_size": 512,
            "fullatt_block_indexes": [2, 5], "patch_size": PATCH,
        },
        image_token_id=1, video_token_id=2, vision_start_token_id=3, vision_end_token_id=4, tie_word_embeddings=True,
    ),
}  # fmt: skip
"""Architectures; the weights are random."""


@dataclass(frozen=True)
class Shape:
    prompt: int
    thoughts: int
    thought: int
    answers: int
    answer: int
    """0: the thought is all of the response."""
    questions: int = 1
    ragged: bool = False
    """Lengths are drawn between half of the above and all of it."""
    bfloat16: bool = False
    """Autocast."""
    pack_tokens: int | None = None
    checkpointing: bool = False
    """Branchwise's gradient checkpointing, which the others go without."""
    model: str = "Qwen3-30M"
    image: bool = False
    """The prompt begins with an image, whose tokens are among its own."""

    def __str__(self) -> str:
        words = [f"{self.prompt},{self.thoughts},{self.thought},{self.answers},{self.answer}"]
        words += ["image"] if self.image else []
        words += ["ragged"] if self.ragged else []
        words += [f"{self.questions} questions"] if self.questions > 1 else []
        words += ["in one pack"] if self.pack_tokens else []
        words += ["checkpointed"] if self.checkpointing else []
        return " ".join(words + (["bfloat16"] if self.bfloat16 else []))


SHAPES = (
    Shape(128, 4, 128, 4, 16),
    Shape(256, 4, 256, 4, 32),
    Shape(512, 8, 64, 1, 0),
    Shape(128, 16, 256, 4, 16),
    Shape(256, 4, 256, 4, 32, questions=4, ragged=True, pack_tokens=8192, checkpointing=True),
    Shape(200, 4, 192, 4, 32, bfloat16=True, model="SmolLM2-135M"),
    Shape(256, 4, 256, 4, 32, questions=4, ragged=True),
)
VISION = (
    Shape(332, 4, 128, 4, 16, model="Qwen2.5-VL-30M", image=True),
    Shape(332, 4, 128, 4, 16, model="Qwen2.5-VL-30M", image=True, questions=4, ragged=True),
    Shape(
        332,
        4,
        128,
        4,
        16,
        model="Qwen2.5-VL-30M",
        image=True,
        questions=4,
        ragged=True,
        pack_tokens=8192,
        checkpointing=True,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of results instead of a table")
    parser.add_argument("--shapes", type=int, nargs="+", choices=range(1, len(SHAPES) + 1), metavar="N",
                        help=f"which of {'; '.join(f'{i}: {shape}' for i, shape in enumerate(SHAPES, 1))}")  # fmt: skip
    parser.add_argument("--pairs", type=int, help="turns that each contender takes (default 5)")
    parser.add_argument("--quick", action="store_true", help="shapes 1 and 3, one turn, unless given")
    parser.add_argument("--vision", action="store_true", help=f"with images: {'; '.join(map(str, VISION))}")
    args = parser.parse_args()
    shapes = VISION if args.vision else SHAPES
    numbers = args.shapes or ([1, 3] if args.quick and not args.vision else range(1, len(shapes) + 1))
    results = []
    for number in numbers:
        results.append(measure(shapes[number - 1], args.pairs or (1 if args.quick else 5)))
        print(f"{results[-1]['shape']}: {results[-1]['ratio']}", file=sys.stderr)
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(results))


def measure(shape: Shape, pairs: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config, trees = settings(shape), grow(shape)
    credits = credit(trees, advantages(trees, config), count(trees, config), config)
    kind = AutoModelForImageTextToText if shape.image else AutoModelForCausalLM
    model = kind.from_config(MODELS[shape.model], dtype=torch.float32, attn_implementation="sdpa")
    contenders = {
        make.__name__: Contender(twin := copy.deepcopy(model), make(twin, trees, credits, config))
        for make in ((branchwise, rows) if shape.image else (branchwise, rows, trl))
    }
    peak_mb = compare(contenders, tolerance=0.1 if shape.bfloat16 else 1e-4)
    turns = [{name: contender.seconds() for name, contender in contenders.items()} for _ in range(pairs)]
    return {
        "shape": str(shape),
        "token_ratio": round(sum(len(row.ids) for row in rows_of(trees, credits)) / sum(map(tree_tokens, trees)), 2),
        "seconds": {name: round(median(turn[name] for turn in turns), 3) for name in contenders},
        "peak_mb": peak_mb,
        "ratio": {
            name: round(median(turn[name] / turn["branchwise"] for turn in turns), 2)
            for name in contenders
            if name != "branchwise"
        },
    }


@dataclass
class Contender:
    model: Any
    step: Callable[[], float]
    """Forward, loss and backward; the loss. Gradients are added to the model's."""

    def seconds(self) -> float:
        self.model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

    def allocate_gradients(self) -> None:
        for p in self.model.parameters():
            p.grad = torch.ones_like(p).zero_()  # written to, so that it is resident

    def gradient(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])


def compare(contenders: dict[str, Contender], tolerance: float) -> dict[str, int | None]:
    """Peak memory of each contender's first step, in MB.

    Raises:
        AssertionError: a loss or a gradient is not that of rows.
    """
    peak_mb, loss, gradient = {}, {}, {}
    for name, contender in contenders.items():
        contender.allocate_gradients()
        loss[name], peak_mb[name] = with_peak(contender.step)
        gradient[name] = contender.gradient()
    for name in contenders:
        difference = float((gradient[name] - gradient["rows"]).norm() / gradient["rows"].norm())
        assert difference < tolerance, f"{name}: its gradient differs from that of rows by {difference:.1e}"
        assert abs(loss[name] - loss["rows"]) < tolerance, f"{name}: its loss is {loss[name]}, not {loss['rows']}"
    return peak_mb


def with_peak(step: Callable[[], float]) -> tuple[float, int | None]:
    """What a step returns, and the peak of resident memory during it above that before it, in MB."""
    if sys.platform != "linux":
        return step(), None
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _status_kb("VmRSS")
    loss = step()
    return loss, round((_status_kb("VmHWM") - before) / 1024)


def _status_kb(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


# What is updated on


def settings(shape: Shape) -> Config:
    return load_config(
        {
            "model": {"path": "a random one", "gradient_checkpointing": shape.checkpointing},
            "tree": {
                "thoughts": shape.thoughts,
                "answers": shape.answers,
                **({} if shape.answer else {"marker": None}),
            },
            "train": {
                "precision": "bfloat16" if shape.bfloat16 else "float32",
                "device": "cpu",
                "pack_tokens": shape.pack_tokens,
            },
        }
    )


def grow(shape: Shape) -> list[Tree]:
    """Random tokens and rewards."""
    random = np.random.default_rng(0)

    def ids(length: int) -> np.ndarray:
        length = random.integers(length // 2, length + 1) if shape.ragged else length
        return random.integers(5, MODELS[shape.model].get_text_config().vocab_size, size=length)

    def sampled(kind: Any, parent: int, index: int, finish: Any) -> Node:
        ids_T = ids(shape.answer if kind == "answer" else shape.thought)
        reward = None if kind == "thought" else random.random()
        return Node(
            kind, parent, index, ids_T, np.zeros(len(ids_T), np.float32), np.ones(len(ids_T), bool), finish, reward
        )

    trees = []
    for b in range(shape.questions):
        tree = Tree(Question(str(b), ("",)), draw=b, step=0)
        prompt = ids(shape.prompt)
        if shape.image:
            pixels = random.normal(size=(math.prod(GRID), 3 * 2 * PATCH**2)).astype(np.float32)
            seen = {"pixel_values": torch.from_numpy(pixels), "image_grid_thw": torch.tensor([GRID])}
            tree.images = Images(seen)
            prompt = np.concatenate([[3], np.full(math.prod(GRID) // 4, 1), [4], ids(shape.prompt - 302)])
        tree.add(prompt_node(0, prompt.tolist()))
        for k in range(shape.thoughts):
            place = tree.add(sampled("thought" if shape.answer else "response", 0, k, "marker"))
            for m in range(shape.answers if shape.answer else 0):
                tree.add(sampled("answer", place, m, "stop"))
        trees.append(tree)
    return trees


def tree_tokens(tree: Tree) -> int:
    return sum(len(node.ids_T) for node in tree.nodes)


@dataclass
class Row:
    ids: np.ndarray
    prompt: int
    """Tokens."""
    pull: np.ndarray
    """weight · advantage of each response token, shared among the rows that have it."""
    images: Images | None


def rows_of(trees: list[Tree], credits: list[Credit]) -> list[Row]:
    found = []
    for tree, c in zip(trees, credits):
        for leaf in tree.leaves():
            root, *response = tree.path(leaf)
            pull = [
                np.full(len(tree.nodes[p].ids_T), c.weight[p] * c.advantage[p] / len(list(tree.leaves(p))))
                for p in response
            ]
            ids = np.concatenate([tree.nodes[p].ids_T for p in (root, *response)])
            found.append(Row(ids, len(tree.nodes[root].ids_T), np.concatenate(pull), tree.images))
    return found


def micro_batches(trees: list[Tree], credits: list[Credit]) -> list[dict[str, Tensor]]:
    """Rows as TRL has them: prompts padded on the left, completions on the right; its names."""
    all_rows = rows_of(trees, credits)
    return [_padded(all_rows[i : i + MICRO_BATCH]) for i in range(0, len(all_rows), MICRO_BATCH)]


def _padded(batch: list[Row]) -> dict[str, Tensor]:
    def pad(parts: list[np.ndarray], side: str) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(part) for part in parts], True, padding_side=side)

    prompts = [row.ids[: row.prompt] for row in batch]
    completions = [row.ids[row.prompt :] for row in batch]
    return {
        "prompt_ids": pad(prompts, "left"),
        "prompt_mask": pad([np.ones_like(ids) for ids in prompts], "left"),
        "completion_ids": pad(completions, "right"),
        "completion_mask": pad([np.ones_like(ids) for ids in completions], "right"),
        "advantages": pad([row.pull.astype(np.float32) for row in batch], "right"),
        "num_items_in_batch": torch.tensor(1.0),  # the weights are in the advantages
        **_seen([row.images.tensors for row in batch if row.images]),
    }


def _seen(images: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Each row's own copy of its image, as processors give them."""
    return {name: torch.cat([tensors[name] for tensors in images]) for name in images[0]} if images else {}


# Contenders


def branchwise(model: Any, trees: list[Tree], credits: list[Credit], config: Config) -> Callable[[], float]:
    policy = load_policy(
        config, model=model, processing_class=processor() if model.config.model_type == "qwen2_5_vl" else tokenizer()
    )
    budget = config.train.pack_tokens or default_budget(policy.device)

    def step() -> float:
        total = 0.0
        for pack in build_packs(trees, credits, budget=budget, device="cpu", prune=True):
            with policy.encoding(pack):
                loss, _ = objective(*policy.logprobs(pack), pack.scored, config.algorithm)
                loss.backward()
            total += loss.item()
        return total

    return step


def rows(model: Any, trees: list[Tree], credits: list[Credit], config: Config) -> Callable[[], float]:
    batches = micro_batches(trees, credits)

    def step() -> float:
        total = 0.0
        for batch in batches:
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
            completion = batch["completion_ids"]
            seen = {name: batch[name] for name in ("pixel_values", "image_grid_thw") if name in batch}
            if seen:
                seen["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
            with torch.autocast("cpu", torch.bfloat16, enabled=config.train.precision == "bfloat16"):
                out = model(
                    input_ids=ids, attention_mask=mask, logits_to_keep=completion.shape[1] + 1, use_cache=False, **seen
                )
            logp = torch.log_softmax(out.logits[:, :-1].float(), -1).gather(-1, completion[..., None]).squeeze(-1)
            loss = -(batch["advantages"] * (logp - logp.detach()).exp()).sum()
            loss.backward()
            total += loss.item()
        return total

    return step


def trl(model: Any, trees: list[Tree], credits: list[Credit], config: Config) -> Callable[[], float]:
    from accelerate.state import AcceleratorState
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    AcceleratorState._reset_state(True)  # it keeps one precision a process
    batches = micro_batches(trees, credits)
    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=config.train.precision == "bfloat16", report_to=[],
        gradient_checkpointing=False, beta=0.0, loss_type="dapo", per_device_train_batch_size=MICRO_BATCH,
        num_generations=MICRO_BATCH, max_completion_length=batches[0]["completion_ids"].shape[1],
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": [""]})
    trainer = GRPOTrainer(model, lambda **_: [], args, train_dataset=data, processing_class=tokenizer())
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()

    def step() -> float:
        total = 0.0
        for batch in batches:
            loss = trainer.compute_loss(trainer.model, batch)
            loss.backward()
            total += loss.item()
        return total

    return step


def tokenizer() -> PreTrainedTokenizerFast:
    """Nothing is tokenised here, but both ask for one."""
    empty = Tokenizer(WordLevel({"<pad>": 0}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=empty, pad_token="<pad>", eos_token="<pad>")


def processor() -> Any:
    """What tells that the model's images come from a processor."""
    return SimpleNamespace(image_processor=None, tokenizer=tokenizer(), chat_template=None)


def table(results: list[dict[str, Any]]) -> Table:
    others = ["rows", "TRL"][: len(results[0]["ratio"])]
    columns = ["shape", "token ratio", "seconds: branchwise", *others, *(f"× over {name}" for name in others)]
    drawn = Table(*columns, "peak MB: branchwise", *others)
    for result in results:
        seconds, peak, ratio = result["seconds"].values(), result["peak_mb"].values(), result["ratio"].values()
        drawn.add_row(*map(str, (result["shape"], result["token_ratio"], *seconds, *ratio, *peak)))
    return drawn


if __name__ == "__main__":
    main()
