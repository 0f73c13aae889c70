"""Settings: what is refused, and that the refusal names key, value and remedy."""

import subprocess
import sys

import pytest

from branchwise.config import Config, ConfigError, TreeConfig, load_config, preset_names

MODEL = {"model": {"path": "somewhere"}}


def refused(values, *overrides):
    with pytest.raises(ConfigError) as error:
        load_config({**MODEL, **values}, list(overrides))
    return str(error.value)


def test_defaults_are_grpo_with_eight_thoughts():
    c = load_config(MODEL)
    assert (c.tree.rephrasings, c.tree.thoughts, c.tree.answers, c.joint) == (0, 8, 1, True)


def test_a_typo_names_the_key_that_was_meant():
    assert refused({"tree": {"answer": 2}}) == "tree.answer: unknown key; did you mean 'answers'?"


def test_a_typo_in_a_list_of_sections_is_found_too():
    assert "rewards.0.wieght: unknown key; did you mean 'weight'?" in refused(
        {"rewards": [{"function": "math", "wieght": 2}]}
    )


def test_a_missing_model_is_named():
    with pytest.raises(ConfigError, match=r"model: missing"):
        load_config({})


def test_overrides_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("preset: grpo-ma\nmodel: {path: x}\ntree: {thoughts: 5}\ntrain: {learning_rate: 3e-6}\n")
    c = load_config(file, ["train.steps=7", "train.learning_rate=2e-5", "data.system_prompt=Think. Then answer."])
    assert (c.tree.thoughts, c.train.steps, c.train.learning_rate) == (5, 7, 2e-5)
    assert c.tree.answers > 1  # from the preset
    assert c.data.system_prompt == "Think. Then answer."


def test_an_override_with_an_e_in_it_stays_text():
    assert load_config(MODEL, ["train.output_dir=runs/one"]).train.output_dir == "runs/one"


def test_a_source_in_short_takes_overrides():
    c = load_config({**MODEL, "data": {"eval": "held.jsonl"}}, ["data.eval.limit=60"])
    assert (c.data.eval.path, c.data.eval.limit) == ("held.jsonl", 60)


def test_an_override_that_is_no_yaml_is_refused():
    with pytest.raises(ConfigError, match="its value is not YAML"):
        load_config(MODEL, ["engine={kind: vllm"])


def test_an_override_without_a_value_is_refused():
    assert "key=value" in refused({}, "train.steps")


def test_an_unknown_preset_lists_those_there_are():
    message = refused({"preset": "grpo-mm"})
    assert "'grpo-mm'" in message and "grpo-ma" in message


def test_a_config_that_is_no_mapping_or_not_yaml_is_refused(tmp_path):
    for text in ("- a\n", "a: [", "", "train: {steps: 1}\nmodel: {path: x}\ntrain: {seed: 1}\n"):
        file = tmp_path / "c.yaml"
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"c\.yaml"):
            load_config(file)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="a folder; name the YAML file"):
        load_config(tmp_path)


def test_a_config_may_come_through_a_pipe():
    code = "from branchwise import load_config; print(load_config('/dev/stdin').train.steps)"
    text = "model: {path: x}\ntrain: {steps: 7}\n"
    result = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True)
    assert result.stdout == "7\n", result.stderr


def test_a_value_in_a_section_s_place_is_told_the_keys():
    assert refused({"model": "a-model"}).startswith("model: 'a-model' is no section; set its keys (")
    assert "path" in refused({"model": "a-model"})
    assert refused({"engine": 3}).startswith("engine: 3")


@pytest.mark.parametrize(
    ("values", "key", "remedy"),
    [
        ({"tree": {"marker": None, "answers": 4}}, "tree.answers: 4", "tree.answers: 1"),
        ({"tree": {"marker": ""}}, "tree.marker: ''", "null"),
        (
            {"tree": {"answers": 4}, "algorithm": {"segments": "joint"}},
            "algorithm.segments: 'joint'",
            "segments: split",
        ),
        ({"algorithm": {"baseline": "leave_one_out"}}, "algorithm.baseline: 'leave_one_out'", "scale: none"),
        ({"algorithm": {"anchor": "importance"}}, "algorithm.anchor: 'importance'", "algorithm.correction"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p: 0.9", "allow_truncated"),
        ({"sampling": {"top_k": 50}}, "sampling.top_k: 50", "allow_truncated"),
        ({"sampling": {"min_p": 0.1}}, "sampling.min_p: 0.1", "allow_truncated"),
        ({"tree": {"marker": None, "unclosed": "mask"}}, "tree.unclosed: 'mask'", "set tree.marker"),
        ({"algorithm": {"answer_weight": 0.5}}, "algorithm.answer_weight: 0.5", "segments: split"),
        ({"algorithm": {"answer_clip_low": 0.1}}, "algorithm.answer_clip_low: 0.1", "segments: split"),
        (
            {"preset": "dapo", "sampling": {"max_thought_tokens": 200}},
            "algorithm.overlong_buffer: 300 tokens before a limit of 200",
            "max_thought_tokens",
        ),
        ({"tree": {"answers": 4}, "sampling": {"max_rows": 2}}, "sampling.max_rows: 2", "max_rows: 4 or more"),
        ({"tree": {"uniform": "expand"}}, "tree.uniform: 'expand'", "tree.rephrasings"),
        ({"tree": {"uniform": "expand", "rephrasings": 3}}, "tree.uniform: 'expand'", "pool: question"),
        ({"tree": {"thoughts": 1}}, "tree.thoughts", "2 or more"),
        ({"algorithm": {"surrogate": "cispo", "dual_clip": 3}}, "algorithm.dual_clip", "surrogate: clip"),
        ({"model": {"path": "x", "load_in_4bit": True}}, "model.load_in_4bit", "model.lora"),
        ({"train": {"questions": 2, "updates": 4}}, "train.updates: 4", "lower train.updates"),
        ({"rewards": []}, "rewards:", "[math]"),
        ({"train": {"steps": 0}}, "train.steps: 0", "greater than or equal to 1"),
        ({"algorithm": {"scale": "std"}}, "algorithm.scale: 'std'", "'group', 'batch' or 'none'"),
    ],
)
def test_what_cannot_be_is_refused_with_key_value_and_a_way_out(values, key, remedy):
    message = refused(values)
    assert key in message and remedy in message


def test_several_problems_are_told_at_once():
    message = refused({"tree": {"marker": None, "answers": 2}, "algorithm": {"baseline": "leave_one_out"}})
    assert len(message.splitlines()) == 2


def test_truncated_sampling_may_be_asked_for():
    assert load_config({**MODEL, "sampling": {"top_p": 0.9, "allow_truncated": True}}).sampling.top_p == 0.9


def test_a_config_made_from_python_has_its_preset_and_is_checked():
    c = Config(preset="ta-grpo", model={"path": "x"}, tree=TreeConfig(thoughts=4))
    assert (c.tree.rephrasings, c.tree.thoughts, c.algorithm.pool) == (3, 4, "question")
    with pytest.raises(ValueError, match=r"tree\.answers: 4"):
        Config(model={"path": "x"}, tree={"marker": None, "answers": 4})


@pytest.mark.parametrize("name", preset_names())
def test_a_resolved_config_loads_as_itself(name):
    c = load_config({**MODEL, "preset": name})
    assert load_config(c.model_dump()) == c


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_an_engine_in_short_takes_overrides(kind):
    assert load_config({**MODEL, "engine": kind}).engine.kind == kind
    c = load_config({**MODEL, "engine": "vllm"}, ["engine.gpu_memory=0.3"])
    assert (c.engine.kind, c.engine.gpu_memory) == ("vllm", 0.3)
    assert load_config(MODEL).engine.kind == "transformers"


def test_an_engines_keys_are_its_own():
    assert refused({"engine": {"kind": "vllm", "urls": ["a"]}}).startswith(
        "engine.urls: unknown key; known here: eager"
    )
    assert "did you mean 'urls'?" in refused({"engine": {"kind": "vllm_server", "url": ["a"]}})
    assert "engine.urls: missing" in refused({"engine": "vllm_server"})
    assert "'transformers', 'vllm', 'vllm_server'" in refused({"engine": "vlm"})


def test_sampling_ahead_needs_servers_and_a_correction():
    servers = {"kind": "vllm_server", "urls": ["http://a"]}
    corrected, ahead = {"correction": 2.0}, {"async_depth": 1}
    assert "train.async_depth: 0" in refused({"train": ahead, "algorithm": corrected})
    assert "set algorithm.correction" in refused({"train": ahead, "engine": servers})
    assert load_config({**MODEL, "train": ahead, "engine": servers, "algorithm": corrected}).train.async_depth == 1


def test_engines_that_take_no_4_bit_weights():
    model = {"model": {"path": "somewhere", "load_in_4bit": True, "lora": {}}}
    assert "set engine: transformers" in refused({**model, "engine": "vllm"})
    assert load_config(model).engine.takes_quantized
