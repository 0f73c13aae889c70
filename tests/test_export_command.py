"""`branchwise export`: what is written loads elsewhere as the policy, and says where it comes from."""

import json
import shutil
import subprocess
import sys

import pytest
import tiny
import torch
import yaml
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from branchwise import ConfigError, Trainer
from branchwise.export.export import export
from branchwise.train.checkpoint import damage

ROWS = [{"question": f"{a}+{b}=?", "answer": str(a + b), "rephrasings": [f"{a} + {b}"]} for a, b in ((1, 2), (3, 4))]
IDS = torch.tensor([[7, 8, 9, 10, 20, 21, 22, 6, 11]])


def likes_a(completion_ids, **_):
    return [ids.count(21) / len(ids) for ids in completion_ids]


def trained(folder, base, learning_rate=1e-2, **model):
    """A run of two steps, with held-out evaluations and a checkpoint, and its policy's logits."""
    config = {
        "preset": "ta-grpo-ma",
        "model": {"path": str(base), **model},
        "data": {"system_prompt": "add", "chat_template_kwargs": {"flag": True}},
        "tree": {"thoughts": 2, "answers": 2, "rephrasings": 1},
        "sampling": {"max_thought_tokens": 8, "max_answer_tokens": 4},
        "train": {"output_dir": str(folder), "steps": 2, "questions": 2, "learning_rate": learning_rate,
                  "precision": "float32", "device": "cpu", "save_every": 1},
        "eval": {"every": 1},
    }  # fmt: skip
    trainer = Trainer(None, [likes_a], ROWS, ROWS, config)
    trainer.train()
    return folder, logits(trainer.policy.model)


@torch.no_grad()
def logits(model):
    return model.eval()(IDS).logits


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def full(base, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("full") / "run", base)


@pytest.fixture(scope="module")
def lora(base, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("lora") / "run", base, lora={"r": 4})


def card(folder):
    return ModelCard((folder / "README.md").read_text())


def test_whole_weights_load_as_the_policy_to_the_bit(full, tmp_path):
    run, wanted = full
    folder = export(run, tmp_path / "out")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), wanted)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False) == "<|user|>1<|end|>"
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 1
    assert (folder / "model.safetensors").is_file() and not (folder / "state.pt").exists()
    assert damage(folder) is None and not list(tmp_path.glob("*.unfinished"))


def test_an_adapter_is_merged_into_its_base(lora, tmp_path):
    run, wanted = lora
    model = AutoModelForCausalLM.from_pretrained(export(run, tmp_path / "out"))
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-5)
    assert not (tmp_path / "out" / "adapter").exists()


def test_an_adapter_alone_loads_with_its_base(lora, tmp_path):
    run, wanted = lora
    folder = export(run, tmp_path / "out", adapter=True)
    assert torch.equal(logits(AutoPeftModelForCausalLM.from_pretrained(folder)), wanted)
    assert AutoTokenizer.from_pretrained(folder).chat_template and not (folder / "model.safetensors").exists()
    assert card(folder).data.library_name == "peft"
    narrow = export(run, tmp_path / "narrow", adapter=True, dtype="bfloat16")
    assert {w.dtype for w in load_file(narrow / "adapter_model.safetensors").values()} == {torch.bfloat16}


def test_checkpoints_of_a_run_are_named_by_their_path(full, tmp_path):
    run, wanted = full
    export(run / "checkpoints" / "000001", tmp_path / "one")
    assert "after step 1 of 2" in (tmp_path / "one" / "README.md").read_text()
    assert not torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "one")), wanted)
    unfinished = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(unfinished / "model")
    said = []
    export(unfinished, tmp_path / "two", say=said.append)
    assert "no final model" in said[0] and "000001" in said[0]


@pytest.mark.parametrize(("size", "warned"), [(1e-6, True), (1e-1, False)])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_what_rounding_undoes_is_said(base, tmp_path, size, warned, kind):
    # AdamW moves a weight by about the learning rate a step; bfloat16 keeps 8 bits of weights of about 0.02
    run, _ = trained(tmp_path / "run", base, learning_rate=size, **({"lora": {"r": 4}} if kind == "lora" else {}))
    said = []
    folder = export(run, tmp_path / "out", dtype="bfloat16", say=said.append)
    assert any("rounds" in line and "--dtype float32" in line for line in said) == warned
    assert "rounding to it undid" in (folder / "README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16
    said.clear()
    export(run, tmp_path / "wide", say=said.append)
    assert not said


def test_a_base_that_is_gone_is_said_or_refused(base, tmp_path):
    gone = shutil.copytree(base, tmp_path / "base")
    whole, _ = trained(tmp_path / "whole", gone)
    adapted, _ = trained(tmp_path / "adapted", gone, lora={"r": 4})
    shutil.rmtree(gone)
    said = []
    export(whole, tmp_path / "out", dtype="bfloat16", say=said.append)
    assert "is not known: its base is not at hand" in said[0]
    with pytest.raises(ConfigError, match=r"model\.path: .*--adapter"):
        export(adapted, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    export(adapted, tmp_path / "alone", adapter=True)


def test_the_card_is_filled_in_from_the_run(lora, tmp_path):
    run, _ = lora
    folder = export(run, tmp_path / "out")
    text, data = (folder / "README.md").read_text(), card(folder).data
    assert data.library_name == "transformers" and data.pipeline_tag == "text-generation"
    assert {"branchwise", "grpo", "grpo-ma", "ta-grpo", "lora"} <= set(data.tags)
    assert data.license is None and "license: to be stated" in text and "## Licence" in text
    held_out = json.loads((run / "summary.json").read_text())["held_out"]
    for record in held_out.values():
        assert f"{record['mean']:.3f} | {record['low']:.3f} to {record['high']:.3f} | 2 |" in text
    assert "N = 1 rephrasings, K = 2 thoughts, M = 2 answers" in text and "2 of 2, 2 questions each" in text
    for number in ("2402.03300", "2509.24494", "2601.22478", "2106.09685"):
        assert f"https://arxiv.org/abs/{number}" in text
    assert "| rewards | `likes_a` |" in text
    assert f'"torch": "{torch.__version__}"' in text and "flag=True" in text and "</think>" in text
    settings = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert settings["train"]["steps"] == 2 and str(tmp_path.parent) not in text


def test_no_secret_is_in_a_card(full, tmp_path):
    run = shutil.copytree(full[0], tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["engine"] = {"kind": "vllm_server", "urls": ["http://a"], "api_key": "sk-hidden"}
    config["model"]["path"], config["data"]["train"] = "Qwen/Qwen3-0.6B", "openai/gsm8k"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    folder = export(run, tmp_path / "out")
    assert "sk-hidden" not in (folder / "README.md").read_text()
    data = card(folder).data
    assert data.base_model == "Qwen/Qwen3-0.6B" and data.datasets == ["openai/gsm8k"]


def test_what_cannot_be_exported_is_refused_by_name(full, tmp_path):
    run = shutil.copytree(full[0], tmp_path / "run")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("")
    for place, to, settings, message in (
        (tmp_path / "none", "out", {}, "no such folder"),
        (tmp_path / "used", "out", {}, "in no run"),
        (run, "out", {"adapter": True}, "--adapter: .*whole weights"),
        (run, "run/model", {}, "own folder"),
        (run, "run", {"force": True}, "own folder"),
        (run, "", {"force": True}, "or holds it"),
        (run, "used", {}, "not empty.*--force"),
        (run, "used", {"force": True}, "no earlier export"),
        (run, "used/thesis.tex", {}, "is a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            export(place, tmp_path / to, **settings)
    assert not (tmp_path / "out").exists() and (tmp_path / "used" / "thesis.tex").exists()


def test_an_earlier_export_is_replaced_by_force_alone(full, tmp_path):
    folder = export(full[0], tmp_path / "out")
    (folder / "stale").write_text("")
    with pytest.raises(ConfigError, match="--force"):
        export(full[0], folder)
    export(full[0], folder, force=True)
    assert not (folder / "stale").exists() and damage(folder) is None


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "unsummed"])
def test_a_damaged_checkpoint_is_an_error_that_names_it(full, tmp_path, how):
    run = shutil.copytree(full[0], tmp_path / "run")
    weights = run / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    if how == "missing":
        weights.unlink()
    else:
        weights.write_bytes(content if how == "flipped" else content[:-100])
    if how == "unsummed":  # as an old checkpoint that was thinned out
        (run / "model" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match=r"run/model is damaged: .*(model\.safetensors|header)"):
        export(run, tmp_path / "out", say=lambda _: None)
    assert not (tmp_path / "out").exists()


def test_the_command(lora, tmp_path):
    program = "import sys; from branchwise.cli import main; main()"
    command = [sys.executable, "-c", program, "export", str(lora[0]), "--to", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(str(tmp_path / "out")), done.stderr
    assert done.stderr == ""  # no progress bars or warnings of libraries
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "--force" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.vllm
def test_vllm_serves_what_was_exported(tmp_path):
    import vllm_cases
    from vllm import LLM, SamplingParams

    vllm_cases.llama().save_pretrained(tmp_path / "base")
    tiny.tokenizer(tiny.CHAT).save_pretrained(tmp_path / "base")
    run, _ = trained(tmp_path / "run", tmp_path / "base", lora={"r": 4})
    folder = export(run, tmp_path / "out")
    engine = LLM(str(folder), dtype="float32", enforce_eager=True, max_model_len=64, kv_cache_memory_bytes=10**8)
    prompt = IDS[0].tolist()
    (output,) = engine.generate([{"prompt_token_ids": prompt}], SamplingParams(prompt_logprobs=0, max_tokens=1))
    given = [entry[i].logprob for entry, i in zip(output.prompt_logprobs[1:], prompt[1:])]
    expected = logits(AutoModelForCausalLM.from_pretrained(folder)).log_softmax(-1)[0]
    wanted = [float(expected[t, i]) for t, i in enumerate(prompt[1:])]
    assert given == pytest.approx(wanted, abs=1e-3)
