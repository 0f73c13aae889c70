"""What an evaluation does, all of it stated in its output."""

from __future__ import annotations

import hashlib
import json
from os import getpid
from pathlib import Path
from platform import node
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from branchwise.config import (
    Config,
    ConfigError,
    DataConfig,
    ModelConfig,
    RewardConfig,
    SamplingConfig,
    Section,
    TrainConfig,
    TreeConfig,
)
from branchwise.config_engine import Engine, TransformersConfig, in_short
from branchwise.evaluate.suites import BOXED, Suite

IMAGES = ("image_column", "min_pixels", "max_pixels", "boxes", "image_urls")
"""Settings of `data` that a run gives for a file of the user's own."""


class EvaluationSettings(Section):
    """One model on one suite."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str
    """A Hugging Face id or a folder with weights."""
    weights: str | None = None
    """A digest of the weights' files; null for a Hugging Face id."""
    suite: str
    """As it was named: `NAME`, `NAME=FILE`, a file, or `reasoning_gym:TASK`."""
    samples: int = Field(8, ge=1)
    """n: responses to each problem."""
    k: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 4, 8)
    """pass@k and maj@k for each of these."""
    temperature: float = Field(0.6, ge=0)
    """0 is greedy."""
    top_p: float = Field(0.95, gt=0, le=1)
    marker: str | None = None
    """Ends a thought; null: a response is one segment, and graders read all of it."""
    max_thought_tokens: int = Field(1024, ge=1)
    max_answer_tokens: int = Field(512, ge=1)
    """Without a marker a response may have the sum of both."""
    data: DataConfig = DataConfig()
    """System prompt, worked examples, template, chat template's settings, longest prompt."""
    rewards: list[RewardConfig]
    correct_at: float = 1.0
    """A response is right where its reward is at least this."""
    limit: int | None = Field(None, ge=1)
    """Only the first so many problems."""
    seed: int = 0
    batch: int = Field(16, ge=1)
    """Problems sampled together and stored at once. It shapes rounding: a resumed evaluation keeps it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    engine: Annotated[Engine, BeforeValidator(in_short)] = TransformersConfig()
    """What samples: `transformers`, `vllm`, or `{kind: vllm_server, urls: [...]}`."""
    max_rows: int = Field(256, ge=1)
    kv_memory_gb: float | None = Field(None, gt=0)
    """The most that keys and values may take. Default: a third of the memory that is free when it begins; a resumed
    evaluation keeps the value, for it shapes rounding."""

    def config(self) -> Config:
        """The same as the settings that training's parts read."""
        return Config(
            model=ModelConfig(path=self.model),
            data=self.data,
            rewards=self.rewards,
            tree=TreeConfig(marker=self.marker, thoughts=max(2, self.samples)),  # training has no pools of 1
            sampling=SamplingConfig(
                temperature=self.temperature or 1.0,
                top_p=self.top_p,
                allow_truncated=True,
                max_thought_tokens=self.max_thought_tokens,
                max_answer_tokens=self.max_answer_tokens,
                dtype=self.dtype,
                max_rows=self.max_rows,
                kv_memory_gb=self.kv_memory_gb,
            ),
            # nothing is written there, but for weights on their way to servers: no two processes may share it
            train=TrainConfig(seed=self.seed, device=self.device, output_dir=f"runs/eval-{node()}-{getpid()}"),
            engine=self.engine,
        )


def settings_for(model: str | Path, suite: Suite, spec: str, given: dict[str, Any]) -> EvaluationSettings:
    """Settings of a model on a suite: what was given, else those of the run that the model comes from, else defaults.

    A run gives its marker, limits, system prompt, worked examples and chat template's settings; its template where the
    suite has none of its own; and for a file of the user's own its rewards, and how it takes images.

    Raises:
        ConfigError: the folder holds no weights, or a setting cannot be.
    """
    weights = weights_of(model)
    run = run_of(weights)
    values: dict[str, Any] = {"model": str(weights), "suite": spec, "rewards": [RewardConfig(function=suite.reward)]}
    data = {"template": suite.template or BOXED, "max_prompt_tokens": 4096}
    if run is not None:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        values |= {"marker": config["tree"]["marker"]}
        values |= {key: config["sampling"][key] for key in ("max_thought_tokens", "max_answer_tokens")}
        data |= {key: config["data"][key] for key in ("system_prompt", "examples", "chat_template_kwargs")}
        if suite.template is None:
            data["template"] = config["data"]["template"]
        if is_own(suite):
            values["rewards"] = config["rewards"]
            data |= {key: config["data"][key] for key in IMAGES}
    values |= {key: value for key, value in given.items() if value is not None and key not in DataConfig.model_fields}
    values["marker"] = values.get("marker") or None  # '' asks for none
    data |= {key: value for key, value in given.items() if value is not None and key in DataConfig.model_fields}
    data["image_column"] = data.get("image_column") or None
    try:
        return EvaluationSettings(**values, data=DataConfig(**data))
    except ValidationError as error:
        told = (f"{'.'.join(map(str, e['loc']))}: {e['input']!r}: {e['msg']}" for e in error.errors())
        raise ConfigError("\n".join(told)) from None


def with_kv_memory(settings: EvaluationSettings, folder: Path, engines: float | None = None) -> EvaluationSettings:
    """The settings with the memory of keys and values in them: that of the evaluation in `folder`, else that of the
    engine that is there, else from now."""
    if settings.kv_memory_gb is not None:
        return settings
    stated = folder / "settings.json"
    if stated.is_file():
        kept = json.loads(stated.read_text(encoding="utf-8")).get("kv_memory_gb")
    elif engines is not None:
        kept = engines
    else:
        from branchwise.policy.load import pick_device
        from branchwise.rollout.memory import kv_memory_gb

        kept = kv_memory_gb(pick_device(settings.device))
    return settings.model_copy(update={"kv_memory_gb": kept})


def is_own(suite: Suite) -> bool:
    """Whether it is a file of the user's own, not a named benchmark."""
    from branchwise.evaluate.suites import SUITES

    return suite.name not in SUITES and suite.reward == "math"


def weights_of(model: str | Path) -> Path | str:
    """The folder with the weights: `model/` of a run, the folder itself, or the hub's id as it is.

    Raises:
        ConfigError: the folder holds none.
    """
    folder = Path(model)
    if not folder.is_dir():
        if folder.is_absolute() or str(model).startswith("."):
            raise ConfigError(f"{model}: no such folder; name a run, a checkpoint or a Hugging Face id")
        return str(model)
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{model}: neither a run with model/ nor a folder of weights (config.json is missing)")
    return folder


def digest_of(weights: Path | str) -> str | None:
    """Of a folder's files with weights: a model that was trained on since is another one."""
    if isinstance(weights, str):
        return None
    digest = hashlib.sha256()
    for path in sorted(path for path in weights.iterdir() if path.suffix in (".safetensors", ".bin")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def run_of(weights: Path | str) -> Path | None:
    """The run that a folder of weights lies in, if any: it has metrics.jsonl beside its config.yaml."""
    if isinstance(weights, str):
        return None
    for folder in weights.resolve().parents[:2]:
        if (folder / "config.yaml").is_file() and (folder / "metrics.jsonl").is_file():
            return folder
    return None


def checkpoints_of(run: Path) -> dict[int, Path]:
    """Every saved model of a run by its step, the final one included.

    Raises:
        ConfigError: there is none.
    """
    found = {int(path.name): path for path in (run / "checkpoints").glob("*") if path.name.isdecimal()}
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    if (run / "model" / "config.json").is_file():
        found[config["train"]["steps"]] = run / "model"
    if not found:
        raise ConfigError(f"{run}: no checkpoints/ and no model/; set train.save_every to keep some")
    return found
