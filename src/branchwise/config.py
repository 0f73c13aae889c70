"""The one typed place for settings. Defaults are the recommended values; errors name key, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from branchwise.config_engine import Engine, TransformersConfig, VllmConfig, VllmServerConfig, in_short
from branchwise.config_rephrase import RephraseConfig
from branchwise.config_rules import conflicts
from branchwise.config_text import merge, parse_override, read_yaml
from branchwise.errors import ConfigError

if TYPE_CHECKING:
    from branchwise.rollout.engine import Sampling

PRESETS = Path(__file__).parent / "algorithm" / "presets"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True)


class LoraConfig(Section):
    r: int = 16
    """Rank."""
    alpha: int = 32
    target_modules: str | list[str] = "all-linear"


class ModelConfig(Section):
    path: str
    """A Hugging Face id or a folder."""
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights held. auto: float32 where they are trained; train.precision where they are frozen (LoRA)."""
    lora: LoraConfig | None = None
    """Train an adapter; the reference is then the model with the adapter off."""
    load_in_4bit: bool = False
    """QLoRA; needs bitsandbytes and `lora`."""
    freeze_vision: bool = False
    """Of a vision-language model train the language model alone; images are then encoded once a batch."""
    gradient_checkpointing: bool = False
    """Less memory, about a third more time."""


class Source(Section):
    path: str
    """A JSONL, JSON, CSV or Parquet file, a Hugging Face dataset id, or `reasoning_gym:TASK`."""
    split: str = "train"
    subset: str | None = None
    limit: int | None = Field(None, ge=1)
    """At most so many rows; for a reasoning-gym task, how many to generate (default 500)."""
    args: dict[str, Any] = {}
    """Settings of a reasoning-gym task, its `seed` among them."""


def _source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class DataConfig(Section):
    train: Annotated[Source | None, BeforeValidator(_source)] = None
    """A path, or a mapping with path, split, subset, limit, args. From Python a dataset may be given instead."""
    eval: Annotated[Source | None, BeforeValidator(_source)] = None
    """Held-out questions; none: no evaluation."""
    system_prompt: str | None = None
    examples: list[dict[Literal["question", "response"], str]] = []
    """Worked examples, put before the question as chat turns."""
    template: str = "{question}"
    """The user's message; any column may stand in it."""
    chat_template_kwargs: dict[str, Any] = {}
    """Passed to the chat template, such as enable_thinking."""
    max_prompt_tokens: int = Field(1024, ge=1)
    """Questions whose original is longer are left out, and phrasings that are longer; both are counted."""
    max_dropped: float = Field(0.01, ge=0, le=1)
    """The share of a table's rows that may be left out: unreadable lines, no question, no answer, too long. With more
    the run does not start. A few bad rows are usual in scraped data; a hundredth already is another data set."""
    shuffle: bool = True
    image_column: str | None = None
    """What holds a row's images; default: `images` or `image`."""
    min_pixels: int | None = Field(None, ge=1)
    """Images with fewer pixels (width × height) are enlarged, before the model's processor sees them."""
    max_pixels: int | None = Field(None, ge=1)
    """Images with more are made smaller; see `boxes`."""
    boxes: list[str] = []
    """Columns of boxes, points or paths in pixels, which go along with the size of the row's first image."""
    image_urls: bool = False
    """Fetch images from http(s) URLs."""


class RewardConfig(Section):
    function: str
    """A built-in's name (`math`), a dotted path (`package.module.function`), or `file.py:function`."""
    weight: float = 1.0
    args: dict[str, Any] = {}
    """Keyword arguments given to every call."""
    timeout: float | None = Field(None, gt=0)
    """Seconds a call may take; default: `reward_limits.timeout`."""


def _reward(value: Any) -> Any:
    return {"function": value} if isinstance(value, str) else value


class RewardLimits(Section):
    timeout: float = Field(600.0, gt=0)
    """Seconds a call of a reward function may take: for a leaf where it takes one at a time (verl's, verifiers'), else
    for the batch (a built-in's is cut into pieces). Then its process is killed, and those rewards are missing."""
    max_failed: float = Field(0.5, ge=0, le=1)
    """The run stops when reward functions fail on more than this share of the latest responses."""
    flat_steps: int = Field(20, ge=1)
    """A reward that was the same for every response of so many steps is warned of."""
    workers: int | None = Field(None, ge=1)
    """Processes for reward functions; default: one for each CPU, at most 8."""


class TreeConfig(Section):
    rephrasings: int = Field(0, ge=0)
    """N: at most so many of a question's `rephrasings` join the original."""
    thoughts: int = Field(8, ge=1)
    """K: thoughts (without a marker, responses) sampled from each phrasing."""
    answers: int = Field(1, ge=1)
    """M: answers sampled from each thought."""
    marker: str | None = "</think>"
    """Ends a thought; null: responses are one segment."""
    unclosed: Literal["score", "mask", "force_close"] = "score"
    """A thought without its marker: scored with an empty answer; that, but its tokens not trained on; or closed by
    force and answered."""
    uniform: Literal["keep", "drop", "resample", "expand"] = "keep"
    """A pool whose rewards are all equal: trained on as it is, left out, replaced by further questions, or enlarged by
    the rephrasings, which are sampled only then."""
    resample_budget: float = Field(3.0, ge=1)
    """`resample` draws at most so many times the questions of a batch."""


class SamplingConfig(Section):
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    """0: off."""
    min_p: float = Field(0.0, ge=0, lt=1)
    allow_truncated: bool = False
    """Train on truncated sampling (top_p, top_k, min_p), although ratios are then biased: its log-probs are not the
    policy's."""
    max_thought_tokens: int = Field(1024, ge=1)
    max_answer_tokens: int = Field(512, ge=1)
    """Without a marker a response may have the sum of both."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type the engine samples in; auto: the training precision. Another than the policy's shows as mismatch."""
    max_rows: int = Field(256, ge=1)
    """The most sequences an engine decodes at once."""
    kv_memory_gb: float | None = Field(None, gt=0)
    """The most that their keys and values may take. Default: a third of the memory that is free when training starts,
    which is then written to the resolved config, for it shapes batches and so rounding."""


class AlgorithmConfig(Section):
    advantage: str = "group_relative"
    """`group_relative` (equations in algorithm/advantage.py), or the path of a function of yours."""
    pool: Literal["phrasing", "question"] = "phrasing"
    """The rewards normalised together: a phrasing's (GRPO, GRPO-MA), or all of a question's (TA-GRPO)."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    scale: Literal["group", "batch", "none"] = "group"
    """What centred rewards are divided by: their pool's std, the batch's, or nothing (Dr.GRPO)."""
    ddof: Literal[0, 1] = 1
    eps: float = Field(1e-6, ge=0)
    """Added to the std."""
    segments: Literal["split", "joint"] | None = None
    """Thought and answer with advantages of their own, or a response as one; default: split where M > 1."""
    aggregation: Literal["sequence", "token", "constant"] = "sequence"
    """A token's weight: 1/(nodes · its node's length), 1/tokens (DAPO), or 1/(nodes · limit) (Dr.GRPO)."""
    answer_weight: float = Field(1.0, ge=0)
    """Weight of the answers' objective beside the thoughts' (GRPO-MA: 1)."""
    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio of each token, or the geometric mean of its node (GSPO)."""
    surrogate: Literal["clip", "cispo"] = "clip"
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    answer_clip_low: float | None = Field(None, ge=0)
    """Clip range of answers where it differs from thoughts'."""
    answer_clip_high: float | None = Field(None, ge=0)
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss at so many times |A| where A < 0 (the authors' TA-GRPO code: 3)."""
    cispo_cap: float = Field(5.0, gt=0)
    """CISPO: the ratio is capped at this value (not 1 + it)."""
    kl: float = Field(0.0, ge=0)
    """Weight of the KL to the reference (k3)."""
    entropy: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    anchor: Literal["original", "behaviour", "importance"] = "original"
    """The prompt that ratios of a rephrasing's responses are conditioned on: the original question (TA-GRPO), the one
    they were sampled under, or the original with importance weights towards that."""
    correction: float | None = Field(None, gt=0)
    """C: losses are multiplied by min(C, π_prox/μ), against mismatch of sampler and policy; null: off (but measured).
    `importance` needs it."""
    overlong_buffer: int = Field(0, ge=0)
    """DAPO's soft punishment: a response's reward falls to R − 1 over the last so many tokens before the limit."""


class TrainConfig(Section):
    output_dir: str = "runs/branchwise"
    steps: int = Field(100, ge=1)
    questions: int = Field(8, ge=1)
    """Questions a batch, over all processes."""
    updates: int = Field(1, ge=1)
    """Optimizer steps a batch is split into, by questions."""
    epochs: int = Field(1, ge=1)
    """Times a batch is gone over."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    learning_rate: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up, in optimizer steps."""
    max_grad_norm: float = Field(1.0, gt=0)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the computation (autocast). auto: bfloat16 where the hardware is quick at it."""
    pack_tokens: int | None = Field(None, ge=16)
    """Tree tokens forwarded at once; bounds memory, changes no result. Default: 2048 on a CPU, else 16384."""
    logit_chunk: int = Field(1024, ge=1)
    """Scored positions whose logits exist at once."""
    async_depth: int = Field(0, ge=0)
    """Batches that may be sampled ahead, while the policy updates; 0 is exact. Trees are then up to so many steps
    stale, which algorithm.correction weighs. Needs engine: vllm_server."""
    seed: int = 0
    save_every: int = Field(50, ge=0)
    """Steps between checkpoints, from which a run is resumed to the bit; 0: only the final model."""
    keep_checkpoints: int = Field(3, ge=0)
    """The newest so many can be resumed from, 0: all; older ones keep their model alone."""
    keep_every: int = Field(0, ge=0)
    """Those of every so-many-th step can be, too; 0: none for that."""
    keep_best: str | None = None
    """And the one whose step had the highest value of this metric (a name in metrics.jsonl, such as held_out/mean);
    `-NAME`: the lowest."""
    keep_models: bool = True
    """Whether older checkpoints keep their model (`branchwise eval --checkpoints`); false: they are removed."""
    resume: str = "never"
    """`never`: an earlier run in output_dir is moved aside; `auto`: it is gone on with from its newest whole
    checkpoint, if there is one; `must`: it is an error if there is none; or a checkpoint's folder."""
    max_not_finite: int = Field(3, ge=1)
    """Optimizer steps whose loss or gradient is NaN or infinite are left out; so many in a row stop the run."""
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = []
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: a CUDA GPU where there is one, else the CPU; Apple's GPU (mps) only where it is asked for."""


class EvalConfig(Section):
    every: int = Field(0, ge=0)
    """Steps between held-out evaluations; 0: only before and after. The best checkpoint is kept."""
    samples: int = Field(1, ge=1)
    """Responses to each held-out question."""
    temperature: float | None = Field(None, ge=0)
    """Default: the training temperature. 0 is greedy."""


class Config(Section):
    preset: str | None = None
    """Start from a preset (`branchwise presets`); every key given here wins over it."""
    model: ModelConfig
    data: DataConfig = DataConfig()
    rephrase: RephraseConfig | None = None
    """Write the training questions' missing rephrasings before the first step; null: train on those in the data."""
    rewards: list[Annotated[RewardConfig, BeforeValidator(_reward)]] = [RewardConfig(function="math")]
    reward_limits: RewardLimits = RewardLimits()
    tree: TreeConfig = TreeConfig()
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    engine: Annotated[Engine, BeforeValidator(in_short)] = TransformersConfig()
    """What samples: `transformers`, `vllm`, or `{kind: vllm_server, urls: [...]}`."""

    @model_validator(mode="before")
    @classmethod
    def _over_its_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not (preset := values.get("preset")):
            return values
        given = {k: v.model_dump(exclude_unset=True) if isinstance(v, Section) else v for k, v in values.items()}
        return merge(read_yaml(preset_path(preset)), given)

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if problems := list(conflicts(self)):
            raise ConfigError("\n".join(problems))
        return self

    @property
    def joint(self) -> bool:
        """Whether a response is one node of the objective."""
        if self.algorithm.segments is None:
            return self.tree.answers == 1
        return self.algorithm.segments == "joint"

    def sampling_plan(self) -> Sampling:
        """What the engine is told for training."""
        from branchwise.rollout.engine import Sampling

        s = self.sampling
        return Sampling(
            seed=self.train.seed,
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            min_p=s.min_p,
            marker=self.tree.marker,
            max_thought_tokens=s.max_thought_tokens,
            max_answer_tokens=s.max_answer_tokens,
            force_close=self.tree.unclosed == "force_close",
        )


def load_config(source: str | Path | dict[str, Any], overrides: list[str] | None = None) -> Config:
    """Read a YAML file or a mapping, lay `key=value` overrides over it and its preset under it, and check the whole.

    `Config(…)` does the same of keyword arguments, but fails with pydantic's own error.

    Raises:
        ConfigError: unknown keys, values of the wrong type, combinations that cannot be.
    """
    values = dict(source) if isinstance(source, dict) else read_yaml(Path(source))
    for override in overrides or []:
        values = merge(values, parse_override(override))
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(e) for e in error.errors())) from None


def preset_path(name: str) -> Path:
    """The file of a preset.

    Raises:
        ConfigError: there is none of that name.
    """
    path = PRESETS / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(f"preset: there is no {name!r}; choose one of {', '.join(preset_names())}")
    return path


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def _explain(e: Any) -> str:
    import difflib

    if e["type"] == "value_error":  # our own, which says all
        return str(e["ctx"]["error"])
    place = [part for part in e["loc"] if not str(part).startswith("function-")]
    kind = place.pop(1) if place[0] == "engine" and len(place) > 1 else None
    key = ".".join(str(part) for part in place)
    if e["type"] == "extra_forbidden":
        known = _known_keys(place[:-1], kind)
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
        return f"{key}: unknown key; {remedy}"
    if e["type"] == "missing":
        return f"{key}: missing; it has no default"
    if e["type"] == "model_type":
        return f"{key}: {e['input']!r} is no section; set its keys ({', '.join(_known_keys(place, kind))})"
    return f"{key}: {e['input']!r} is not possible: {e['msg']}"


def _known_keys(place: list[Any], kind: Any) -> list[str]:
    if place == ["engine"]:
        sections: tuple[type[BaseModel], ...] = (TransformersConfig, VllmConfig, VllmServerConfig)
        return sorted(next(s for s in sections if s.model_fields["kind"].default == kind).model_fields)
    section: Any = Config
    for part in place:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part)
        section = _section_of(field.annotation) if field else None
        if section is None:
            return []
    return sorted(section.model_fields)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((s for arg in getattr(annotation, "__args__", ()) if (s := _section_of(arg))), None)
