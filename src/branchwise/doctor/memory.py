"""The memory that a run takes, by formula: each part with the stages it is held in, and where the formula is from.

A stage's need is the sum of its parts, and a run's the largest of them. Sizes are of one process on its device, in
bytes, and of the largest trees that the config allows: lengths at their limits, packs full. `benchmarks/memory.py` sets
estimates against runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from branchwise.config import Config
from branchwise.doctor.architecture import Architecture, architecture_of
from branchwise.policy.head import BLOCK
from branchwise.policy.load import pick_device, pick_precision
from branchwise.policy.pack import default_budget
from branchwise.rollout.cache import ROOM
from branchwise.rollout.memory import kv_memory_gb
from branchwise.rollout.prefill import PREFILL_TOKENS

STAGES = ("load", "engine", "sample", "update", "save")
"""Weights are loaded, the engine takes its copy, trees are sampled, the weights are changed, a model is written."""
AFTER_LOADING = STAGES[1:]
NF4_BITS = 4.127
"""A weight in 4 bits with its doubly quantised constants (QLoRA, arXiv 2305.14314, section 3)."""
RUNTIME = 70_000_000
"""The tokenizer, the model's code, kernels and thread pools, which no formula gives; measured on a CPU."""
HOLE = 4
"""Bytes lost for each output of an adapted layer, about the same in float32 and bfloat16; measured with glibc 2.36."""
HOLES = "blocks freed between those kept, which glibc 2.36 does not use again (measured)"
WIDE = 4
"""Bytes of float32."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    bytes: int
    stages: tuple[str, ...]
    source: str
    """Where the formula is from."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run takes on its device."""

    device: torch.device
    parts: tuple[Part, ...]
    kv_memory_gb: float
    """The most that keys and values may take."""

    @property
    def phases(self) -> dict[str, int]:
        """Bytes of each stage."""
        return {stage: sum(part.bytes for part in self.parts if stage in part.stages) for stage in STAGES}

    @property
    def peak(self) -> int:
        return max(self.phases.values())

    @property
    def stage(self) -> str:
        """The stage that takes most."""
        return max(self.phases, key=self.phases.__getitem__)


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of a number, by what it is of."""

    held: int
    """Weights, and the states between layers."""
    computed: int
    """Matrix products."""
    sampled: int
    """The engine's weights, keys and values."""

    @property
    def mixed(self) -> bool:
        """Whether products are taken in another type than weights are held in."""
        return self.held != self.computed


def estimate(config: Config, architecture: Architecture | None = None, *, device_bytes: int | None = None) -> Estimate:
    """What a config's run takes, from the model's config alone.

    Args:
        architecture: of its model, where it is known already.
        device_bytes: of the device; default: of this machine's.

    Raises:
        ConfigError: there is no such model or device.
    """
    device = pick_device(config.train.device)
    a = architecture or architecture_of(config.model)
    kv = config.sampling.kv_memory_gb or kv_memory_gb(device)
    widths = widths_of(config, device)
    parts = [
        *_held(config, a, widths),
        *_engine(config, a, widths, device, kv, device_bytes),
        *_updating(config, a, widths, device),
    ]
    return Estimate(device, tuple(part for part in parts if part.bytes > 0), kv)


def widths_of(config: Config, device: torch.device) -> Widths:
    """As `load_policy` and `make_engine` choose them."""
    m = config.model
    precision = pick_precision(config.train.precision, device)
    default = precision if m.lora else torch.float32
    held = default if m.dtype == "auto" else getattr(torch, m.dtype)
    sampled = precision if config.sampling.dtype == "auto" else getattr(torch, config.sampling.dtype)
    # narrower weights are computed with as they are: autocast to bfloat16 alone widens nothing
    computed = precision if precision == torch.bfloat16 else held
    return Widths(held.itemsize, computed.itemsize, sampled.itemsize)


def adapter_parameters(config: Config, a: Architecture) -> int:
    """r · (inputs + outputs) of each adapted layer (LoRA, arXiv 2106.09685, section 4.1)."""
    lora = config.model.lora
    return sum(lora.r * (i + o) for name, i, o in a.linears if _adapted(name, config)) if lora else 0


def _adapted(name: str, config: Config) -> bool:
    lora = config.model.lora
    if lora is None:
        return False
    targets = lora.target_modules
    if isinstance(targets, str):  # peft's pattern for the whole name
        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return name.endswith(tuple(f".{target}" for target in targets))


def _weights(config: Config, a: Architecture, w: Widths) -> int:
    if config.model.load_in_4bit:
        return int(a.projections * NF4_BITS / 8) + (a.parameters - a.projections) * w.held
    return a.parameters * w.held


def _trained(config: Config, a: Architecture, w: Widths) -> tuple[int, int]:
    """Numbers that are trained, and the bytes of each; peft holds adapters in float32."""
    return (adapter_parameters(config, a), WIDE) if config.model.lora else (a.parameters, w.held)


def _held(config: Config, a: Architecture, w: Widths) -> Iterator[Part]:
    """What stays from loading to the end, and gradients."""
    count, width = _trained(config, a, w)
    weights = _weights(config, a, w)
    yield Part("weights", weights, STAGES, "parameters × bytes of model.dtype")
    yield Part("tokenizer and kernels", RUNTIME, STAGES, "measured on a CPU")
    if config.model.lora:
        yield Part("adapter", count * width, STAGES, "r·(inputs + outputs) of each layer, float32 (arXiv 2106.09685)")
    elif config.algorithm.kl > 0:
        yield Part("reference model", weights, STAGES, "a copy of the weights (policy/policy.py)")
    state = 2 * count * (1 if config.train.optimizer == "adamw_8bit" else width)
    if config.train.steps > 1:
        yield Part("optimizer states", state, ("sample", "update", "save"), "AdamW: two numbers a trained weight")
    if config.model.lora and not config.model.load_in_4bit:
        yield Part("merged copy", weights, ("save",), "the adapter is merged into a copy (Policy.save)")


def _engine(
    config: Config, a: Architecture, w: Widths, device: torch.device, kv: float, device_bytes: int | None
) -> Iterator[Part]:
    """What sampling adds. A server's is elsewhere."""
    kind = config.engine.kind
    if kind == "vllm_server":
        return
    copied = kind == "vllm" or (w.sampled != w.held and not config.model.load_in_4bit)
    if kind == "vllm" and device.type == "cuda":
        total = device_bytes or torch.cuda.get_device_properties(device).total_memory
        share = int(total * config.engine.gpu_memory)  # type: ignore[union-attr]
        yield Part("vLLM", share, ("engine", "sample"), "engine.gpu_memory × the GPU's")
        return
    if copied:
        yield Part("the engine's weights", a.parameters * w.sampled, ("sample", "update", "save"), "a copy in its type")
        copies = 2 if config.model.lora else 1
        yield Part("copies while they are made", copies * a.parameters * w.held, ("engine",), "SamplingWeights")
    rows, columns = _rows(config, a, w, kv)
    row = 2 * a.attending * a.key * w.sampled
    yield Part("KV cache", rows * columns * row, ("sample",), "2 · layers · keys' width · bytes, a row and column")
    t = config.tree
    # those whose thoughts are taken up at once, and the one whose thoughts wait in part
    prompts = min(config.train.questions * (1 + t.rephrasings), -(-rows // (t.thoughts * t.answers)) + 1)
    prompt = config.data.max_prompt_tokens
    yield Part("prompts' KV cache", prompts * prompt * row, ("sample",), "the same, kept while thoughts wait")
    forwarded = min(PREFILL_TOKENS, prompts * prompt)
    layer = (4 * a.hidden + 2 * a.query + 2 * a.key + 3 * a.intermediate) * w.sampled + WIDE * a.hidden
    yield Part("prefill", forwarded * layer, ("sample",), "one layer's states of PREFILL_TOKENS (rollout/prefill.py)")
    logits = rows * a.vocabulary * (2 * w.sampled + WIDE)
    yield Part("logits of a token", logits, ("sample",), "rows × vocabulary, as they come and while drawn from")


def _rows(config: Config, a: Architecture, w: Widths, kv: float) -> tuple[int, int]:
    """Rows and columns of the cache, as `TransformersEngine._rows` and `RoomyLayer` have it."""
    s, t = config.sampling, config.tree
    longest = config.data.max_prompt_tokens + s.max_thought_tokens + s.max_answer_tokens
    token = 2 * a.attending * a.key * w.sampled
    fit = int(kv * 1e9 // (token * (longest + 3 * ROOM))) if token else s.max_rows
    nodes = config.train.questions * (1 + t.rephrasings) * t.thoughts * (1 if t.marker is None else 1 + t.answers)
    return max(1, min(s.max_rows, fit, nodes)), longest + ROOM


def pack_sizes(config: Config, device: torch.device) -> tuple[int, int, int]:
    """Tokens of the largest pack, those of them that are scored, and how many packs an optimizer step has, at most."""
    s, t, n = config.sampling, config.tree, config.train
    budget = n.pack_tokens or default_budget(device)
    prompt = config.data.max_prompt_tokens
    limb = s.max_thought_tokens + s.max_answer_tokens * (1 if t.marker is None else t.answers)
    tree = prompt + (1 + t.rephrasings) * t.thoughts * limb
    step = -(-n.questions // n.updates) * tree
    tokens = min(max(budget, prompt + limb), step)
    share = min(1.0, max(0.0, 1 - prompt / tree if tree <= tokens else 1 - prompt / tokens))
    return tokens, int(tokens * share), -(-step // tokens)


def _updating(config: Config, a: Architecture, w: Widths, device: torch.device) -> Iterator[Part]:
    """What the forward and backward of a pack add."""
    tokens, scored, packs = pack_sizes(config, device)
    whole = config.model.lora is None
    count, width = _trained(config, a, w)
    layer = activation_bytes(config, a, w)
    if config.model.gradient_checkpointing:
        kept = a.layers * a.hidden * w.held + layer
        source = "a state between layers, and one layer recomputed (arXiv 1604.06174)"
    else:
        kept, source = a.layers * layer, "what autograd saves of a layer (doctor/memory.py, activation_bytes)"
    yield Part("activations", tokens * kept, ("update",), source)
    # of a step's first pack, gradients come as activations go
    gradients = count * width if packs > 1 else max(0, count * width - tokens * kept)
    yield Part("gradients", gradients, ("update",), "one number a trained weight; beside the activations")
    if w.mixed and not config.model.gradient_checkpointing:
        yield Part("weights in the type of products", a.projections * w.computed, ("update",), "autocast's copies")
    if device.type == "cpu" and not whole:
        apart = a.layers if config.model.gradient_checkpointing else 1  # one layer at a time
        yield Part("holes in the heap", tokens * hole_bytes(config, a) // apart, ("update",), HOLES)
    yield Part("a layer's backward", tokens * backward_bytes(a, w), ("update",), "gradients of a layer's states")
    states = scored * a.hidden * (2 * w.held + 3 * w.computed + WIDE)
    tiles = min(scored, config.train.logit_chunk) * BLOCK * (3 * WIDE + w.computed)
    yield Part("logits chunk", states + tiles, ("update",), "logit_chunk × BLOCK tiles (policy/head.py)")
    if whole:
        yield Part("the head's gradient", a.vocabulary * a.hidden * w.held, ("update",), "whole, until it is added")


def activation_bytes(config: Config, a: Architecture, w: Widths) -> int:
    """What autograd saves of one token in one layer: `LlamaDecoderLayer`'s under autocast (compare arXiv 2205.05198).

    A norm saves its input in float32 and, where its weight is trained, the normalised states. Products save their
    inputs: once for those that share one, but a cast each where types differ. Attention saves q, k, v, its output and a
    log-sum-exp a head; the gated feed-forward part saves gate, SiLU(gate), up and their product.
    """
    whole = config.model.lora is None
    c = w.computed
    norms = 2 * a.hidden * (WIDE + (w.held if whole else 0))
    if a.head_norms:
        norms += (a.query + a.key) * (WIDE + (c if whole else 0))
    adapted = {name.rpartition(".")[2] for name, _, _ in a.linears if whole or _adapted(name, config)}
    # peft casts the input of each adapter to float32, and autocast that to bfloat16: a copy for each
    copies = w.mixed or (not whole and c != WIDE)
    onto_hidden = [name for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj") if name in adapted]
    groups = len(onto_hidden) if copies else len({name in ("gate_proj", "up_proj") for name in onto_hidden})
    inputs = c * a.hidden * groups
    if not whole and copies and "o_proj" in adapted:
        inputs += c * a.query
    attention = c * (2 * a.query + 2 * a.key) + WIDE * a.heads
    feed_forward = c * a.intermediate * (4 if "down_proj" in adapted or whole else 3)
    between = sum(c * config.model.lora.r for _ in adapted) if config.model.lora else 0
    return norms + inputs + attention + feed_forward + between


def hole_bytes(config: Config, a: Architecture) -> int:
    """Holes that one token leaves in the heap of a CPU, fitted to runs: HOLE bytes an output of an adapted layer.

    Of such a layer's three results (of its weight, of the adapter, their sum) two are freed at once, and glibc gives an
    aligned block to no later one of the same size.
    """
    return HOLE * sum(o for name, _, o in a.linears if _adapted(name, config))


def backward_bytes(a: Architecture, w: Widths) -> int:
    """Gradients of one token's states in one layer: attention's are taken in float32 (policy/attention.py)."""
    return max(3 * w.computed * a.intermediate, WIDE * (4 * a.query + 4 * a.key)) + 2 * w.held * a.hidden
