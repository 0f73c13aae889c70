"""The model card: what a run says of the model that it made, as the Hugging Face hub reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from branchwise.config import Config, Source
from branchwise.data.load import FILES
from branchwise.export.source import Checkpoint
from branchwise.rollout.export import Rounding

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
SECRET = re.compile(r"api_key|token$|password|secret")
METHODS: dict[str, tuple[str, str]] = {
    "GRPO": ("2402.03300", "rewards compared within a group of responses"),
    "GRPO-MA": ("2509.24494", "several answers to each thought"),
    "TA-GRPO": ("2601.22478", "rephrasings join their question's pool"),
    "Dr.GRPO": ("2503.20783", "advantages not divided by a standard deviation"),
    "DAPO": ("2503.14476", "asymmetric clipping, dynamic sampling, token means or soft overlong punishment"),
    "GSPO": ("2507.18071", "importance ratios of whole sequences"),
    "CISPO": ("2506.13585", "capped importance weights"),
    "RLOO": ("2402.14740", "leave-one-out baselines"),
    "LoRA": ("2106.09685", "low-rank adapters"),
    "QLoRA": ("2305.14314", "adapters over 4-bit weights"),
}
"""arXiv number and what it stands for."""


def model_card(source: Checkpoint, *, dtype: str, rounding: Rounding, adapter: bool) -> str:
    """README.md of an export.

    Args:
        dtype: of the exported weights.
        rounding: what of the training this type rounded away.
        adapter: whether the adapter is exported alone.
    """
    c = source.config
    parts = [
        _front_matter(c, adapter),
        f"# {_title(c)}",
        _introduction(source, adapter),
        "## Results",
        "\n".join(_results(source)),
        "## Use",
        _use(c, adapter),
        "## Training",
        _table(_training(source, dtype, rounding)),
        _details("Settings that are not the defaults", "yaml", _settings(c)),
        _details("Versions", "json", _versions(source.run)),
        "## Licence",
        "Not stated yet: whoever publishes this model sets `license` above. The licences of the base model and of the "
        "data bind it.",
        "## Citations",
        "\n".join(_citations(c)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def methods(c: Config) -> list[str]:
    """The published methods that a config's settings are of, keys of `METHODS`."""
    a, t = c.algorithm, c.tree
    used = {
        "GRPO": True,
        "GRPO-MA": t.answers > 1,
        "TA-GRPO": t.rephrasings > 0 and a.pool == "question",
        "Dr.GRPO": a.scale == "none" and a.baseline == "mean",
        "DAPO": a.clip_high != a.clip_low or a.overlong_buffer > 0 or t.uniform == "resample",
        "GSPO": a.ratio == "sequence",
        "CISPO": a.surrogate == "cispo",
        "RLOO": a.baseline == "leave_one_out",
        "LoRA": c.model.lora is not None,
        "QLoRA": c.model.load_in_4bit,
    }
    return [name for name in METHODS if used[name]]


def _front_matter(c: Config, adapter: bool) -> str:
    algorithms = [name.lower().replace(".", "-") for name in methods(c)]
    values: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["branchwise", "reinforcement-learning", *algorithms],
    }
    if _on_hub(c.model.path):
        values["base_model"] = c.model.path
        values["base_model_relation"] = "adapter" if adapter else "finetune"
    if datasets := [s.path for s in (c.data.train,) if s and _is_dataset(s)]:
        values["datasets"] = datasets
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return f"---\n# license: to be stated by whoever publishes this model\n{text}---"


def _title(c: Config) -> str:
    return f"{Path(c.model.path).name}, post-trained by {' and '.join(_main_methods(c))}"


def _main_methods(c: Config) -> list[str]:
    found = [name for name in methods(c) if name not in ("LoRA", "QLoRA")]
    return found[1:] or found  # GRPO underlies the others


def _introduction(source: Checkpoint, adapter: bool) -> str:
    c, t = source.config, source.config.tree
    what = "A LoRA adapter for" if adapter else "This is"
    shape = f"{1 + t.rephrasings} phrasings (N = {t.rephrasings}) × {t.thoughts} thoughts (K) × {t.answers} answers (M)"
    return (
        f"{what} `{_public(c.model.path)}`, post-trained with Branchwise by {', '.join(_main_methods(c))} on trees of "
        f"{shape} a question, after step {source.step} of {c.train.steps}."
    )


def _results(source: Checkpoint) -> Iterator[str]:
    c = source.config
    before, after = source.held_out(0), source.held_out(source.step)
    rows = [("before training", before), (f"this model (step {source.step})", after if source.step else None)]
    if not any(record for _, record in rows):
        yield "The run held out no questions, so it says nothing of how good this model is."
        return
    temperature = c.sampling.temperature if c.eval.temperature is None else c.eval.temperature
    yield (
        f"Mean reward on held-out questions ({_source(c.data.eval)}), responses to each: {c.eval.samples}, temperature "
        f"{temperature:g}, with 95% intervals by bootstrap over questions:"
    )
    yield ""
    yield "| model | mean reward | 95% interval | questions |"
    yield "|---|---|---|---|"
    for name, record in rows:
        if record is None:
            yield f"| {name} | not evaluated | | |"
        else:
            low, high = record["low"], record["high"]
            yield f"| {name} | {record['mean']:.3f} | {low:.3f} to {high:.3f} | {record.get('n', '')} |"
    if source.folder.name == "best":
        yield ""
        yield "This checkpoint was chosen by these same questions: its number is somewhat too good."


def _use(c: Config, adapter: bool) -> str:
    load = 'model = AutoModelForCausalLM.from_pretrained("PATH", dtype="auto")'
    imports = "from transformers import AutoModelForCausalLM, AutoTokenizer"
    if adapter:
        imports = "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer"
        load = load.replace("AutoModel", "AutoPeftModel")
    limit = c.sampling.max_thought_tokens + c.sampling.max_answer_tokens
    messages = [{"role": "user", "content": _asked(c.data.template)}]
    if c.data.system_prompt:
        messages.insert(0, {"role": "system", "content": c.data.system_prompt})
    options = "".join(f", {key}={value!r}" for key, value in c.data.chat_template_kwargs.items())
    lines = [
        "```python",
        imports,
        "",
        'tokenizer = AutoTokenizer.from_pretrained("PATH")',
        load,
        f"messages = {messages!r}",
        "inputs = tokenizer.apply_chat_template(",
        f'    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True{options}',
        ")",
        f"output = model.generate(**inputs, max_new_tokens={limit})",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
        "```",
    ]
    notes = [f"It was trained to close its thought with `{c.tree.marker}` before it answers."] if c.tree.marker else []
    if c.data.examples:
        notes.append(f"In training, {len(c.data.examples)} worked examples stood before each question (see settings).")
    return "\n".join([*lines, *(["", " ".join(notes)] if notes else [])])


def _asked(template: str) -> str:
    return template.replace("{question}", "QUESTION").replace("{{", "{").replace("}}", "}")


def _rewards(source: Checkpoint) -> str:
    """As the metrics name them, for functions given from Python are in no config; with the config's weights."""
    weights = {r.function.rpartition(":")[2]: r.weight for r in source.config.rewards}
    logged = dict.fromkeys(key for step in source.history.steps for key in step if key.startswith("reward/"))
    names = [key.removeprefix("reward/") for key in logged] or [_public(name) for name in weights]
    return ", ".join(f"`{name}`" + (f" × {weights[name]:g}" if name in weights else "") for name in names)


def _training(source: Checkpoint, dtype: str, rounding: Rounding) -> Iterator[tuple[str, Any]]:
    c, summary = source.config, source.history.summary or {}
    a, t, n = c.algorithm, c.tree, c.train
    revision = f" (revision {c.model.revision})" if c.model.revision else ""
    yield "base model", f"`{_public(c.model.path)}`{revision}"
    yield "data", _source(c.data.train)
    yield "rewards", _rewards(source)
    yield "method", (c.preset or "own settings") + f": {', '.join(methods(c))}"
    yield "tree", f"N = {t.rephrasings} rephrasings, K = {t.thoughts} thoughts, M = {t.answers} answers"
    yield "advantages", f"pool: {a.pool}, scale: {a.scale}, baseline: {a.baseline}"
    yield "objective", f"surrogate: {a.surrogate}, aggregation: {a.aggregation}, anchor: {a.anchor}, KL: {a.kl:g}"
    yield "steps", f"{source.step} of {n.steps}, {n.questions} questions each, {n.updates * n.epochs} updates a step"
    yield "optimizer", f"{n.optimizer}, learning rate {n.learning_rate:g} ({n.schedule}), seed {n.seed}"
    if c.model.lora:
        yield "adapter", f"LoRA, rank {c.model.lora.r}, alpha {c.model.lora.alpha}, on {c.model.lora.target_modules}"
    if "leaves" in summary:
        seconds = summary.get("training_seconds", 0.0)
        yield "the whole run", f"{summary['leaves']:,} responses, {summary['updates']} updates, {seconds:,.0f} s"
    lost = f"; rounding to it undid {rounding.share:.1%} of the changed weights" if rounding.touched else ""
    yield "weights", dtype + lost


def _citations(c: Config) -> Iterator[str]:
    for name in methods(c):
        number, what = METHODS[name]
        yield f"- {name} ({what}): [arXiv:{number}](https://arxiv.org/abs/{number})"


def _settings(c: Config) -> str:
    values = _redacted(c.model_dump(mode="json", exclude_defaults=True))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _redacted(value: Any) -> Any:
    """Without keys and passwords; of paths on the training machine, the names alone."""
    if isinstance(value, dict):
        return {k: "(left out)" if SECRET.search(str(k)) and v else _redacted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_redacted(part) for part in value]
    return _public(value) if isinstance(value, str) else value


def _public(text: str) -> str:
    return Path(text).name if text.startswith(("/", "~")) and "\n" not in text else text


def _versions(run: Path) -> str:
    file = run / "versions.json"
    return json.dumps(json.loads(file.read_text(encoding="utf-8")), indent=1) if file.is_file() else ""


def _source(source: Source | None) -> str:
    if source is None:
        return "given from Python"
    some = f", the first {source.limit} rows" if source.limit else ""
    split = f", split {source.split}" if _is_dataset(source) else ""
    return f"`{_public(source.path)}`{split}{some}"


def _is_dataset(source: Source) -> bool:
    return _on_hub(source.path) and not source.path.endswith(FILES)


def _on_hub(path: str) -> bool:
    return HUB_ID.fullmatch(path) is not None and not Path(path).exists()


def _table(rows: Iterator[tuple[str, Any]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)])


def _details(title: str, language: str, text: str) -> str:
    if not text.strip():
        return ""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"<details><summary>{title}</summary>\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n\n</details>"
