"""`branchwise doctor`: formulas against hand-worked values and against what torch holds, and what it says."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import tiny
import torch
import vision_families
from transformers import LlamaConfig, Qwen3Config, Qwen3ForCausalLM

from branchwise.config import load_config
from branchwise.doctor.advice import advise
from branchwise.doctor.architecture import architecture_of, sizes
from branchwise.doctor.checkup import Checkup, disk_bytes, machine_lines, run_lines
from branchwise.doctor.machine import look, memory
from branchwise.doctor.memory import (
    Widths,
    activation_bytes,
    adapter_parameters,
    estimate,
    pack_sizes,
    widths_of,
)
from branchwise.policy.load import load_policy
from branchwise.policy.sharing import backbone_of
from branchwise.rollout.prefill import Decoder

CPU = torch.device("cpu")
LORA = {"model": {"lora": {"r": 4}}}


def config(path="m", **sections):
    base = {
        "model": {"path": str(path)},
        "data": {"max_prompt_tokens": 40},
        "tree": {"thoughts": 3, "answers": 2},
        "sampling": {"max_thought_tokens": 10, "max_answer_tokens": 5, "kv_memory_gb": 1.0},
        "train": {"device": "cpu", "precision": "float32", "questions": 4, "pack_tokens": 100},
    }  # fmt: skip
    return load_config({key: base.get(key, {}) | sections.get(key, {}) for key in base | sections})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def large(tmp_path):
    """The config of a model of 70 billion parameters; there are no weights."""
    shape = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    LlamaConfig(vocab_size=128256, num_key_value_heads=8, architectures=["LlamaForCausalLM"], **shape).save_pretrained(
        tmp_path
    )
    return tmp_path


def part(e, name):
    return next(p.bytes for p in e.parts if p.name == name)


# --- sizes


def test_a_model_of_images_has_sizes_too(tmp_path):
    model, _ = vision_families.build("qwen2_5_vl")
    model.save_pretrained(tmp_path)
    a = architecture_of(config(tmp_path).model)
    assert a.parameters == sum(p.numel() for p in model.parameters()) and a.layers == 3


def test_sizes_come_from_the_config_alone(folder, large):
    a = architecture_of(config(folder).model)
    model = tiny.llama()
    assert a.parameters == sum(p.numel() for p in model.parameters())
    # a layer: q and o of 32·32, k and v of 32·16, gate, up and down of 32·64
    assert a.projections == 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert (a.query, a.key, a.heads, a.intermediate, a.attending) == (32, 16, 4, 64, 2)
    assert a.vocabulary == tiny.VOCABULARY and not a.tied and len(a.linears) == 14
    assert 70e9 < architecture_of(config(large).model).parameters < 71e9


def test_a_tied_head_counts_once():
    model = tiny.llama(tie_word_embeddings=True)
    a = sizes(model, model.config)
    assert a.tied and a.parameters == sum(p.numel() for p in model.parameters())
    assert a.projections == a.parameters - 32 * tiny.VOCABULARY - 5 * 32  # five norms


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], r".*\.o_proj"])
def test_adapters_are_as_large_as_pefts(targets):
    model = tiny.llama()
    a = sizes(model, model.config)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    wanted = sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
    assert adapter_parameters(config(model={"path": "m", "lora": {"r": 4, "target_modules": targets}}), a) == wanted


# --- formulas


def test_weights_gradients_and_states_by_hand(folder):
    e = estimate(config(folder))
    n = sum(p.numel() for p in tiny.llama().parameters())
    assert part(e, "weights") == 4 * n and part(e, "optimizer states") == 8 * n and part(e, "gradients") == 4 * n
    assert {p.name for p in e.parts if "load" in p.stages} == {"weights", "tokenizer and kernels"}
    with_kl = estimate(config(folder, algorithm={"kl": 0.1}))
    assert part(with_kl, "reference model") == 4 * n
    mixed = estimate(config(folder, train={"device": "cpu", "precision": "bfloat16"}))
    assert part(mixed, "the engine's weights") == 2 * n
    assert e.peak == max(e.phases.values()) == e.phases[e.stage]
    assert "gradients" not in {p.name for p in e.parts if "sample" in p.stages}


def test_a_key_value_cache_is_as_the_engine_has_it(folder):
    e = estimate(config(folder))
    token = Decoder(tiny.llama()).bytes_per_token
    assert token == 2 * 2 * 16 * 4
    # 4 questions × 3 thoughts, each itself and 2 answers: 36 nodes; 55 columns and room for 128
    assert part(e, "KV cache") == 36 * (55 + 128) * token
    few = config(folder, sampling={"max_thought_tokens": 10, "max_answer_tokens": 5, "kv_memory_gb": 1e-3})
    # a row may grow to 55 + 3·128 columns: the budget holds 8
    assert part(estimate(few), "KV cache") == int(1e6 // (439 * token)) * 183 * token


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        # a tree: a prompt of 40, 3 thoughts of 10 with 2 answers of 5 each: 100 tokens, of which 60 are scored
        ({"questions": 4, "pack_tokens": 100}, (100, 60, 4)),
        ({"questions": 4, "pack_tokens": 200}, (200, 120, 2)),
        ({"questions": 4, "pack_tokens": 1000}, (400, 240, 1)),
        ({"questions": 4, "updates": 4, "pack_tokens": 1000}, (100, 60, 1)),
        # a thought with its answers is never split: 40 + 20
        ({"questions": 4, "pack_tokens": 16}, (60, 20, 7)),
    ],
)
def test_packs_by_hand(train, expected):
    assert pack_sizes(config(train=train), CPU) == expected


def test_types_are_those_of_the_policy_and_the_engine(folder):
    for precision, settings, expected in (
        ("float32", {}, Widths(4, 4, 4)),
        ("bfloat16", {}, Widths(4, 2, 2)),
        ("bfloat16", LORA, Widths(2, 2, 2)),
        ("bfloat16", {"sampling": {"dtype": "float32"}}, Widths(4, 2, 4)),
    ):
        model = {"path": str(folder), **settings.get("model", {})}
        c = config(model=model, train={"precision": precision, "device": "cpu"}, sampling=settings.get("sampling", {}))
        assert widths_of(c, CPU) == expected
        policy = load_policy(c)
        assert policy.model.dtype.itemsize == expected.held and policy.precision.itemsize == expected.computed


def saved_by_autograd(policy, tokens):
    """Bytes that a forward keeps for its backward, each storage once, without the model's own and casts of them."""
    weights = {w.untyped_storage().data_ptr() for w in policy.model.parameters()}
    shapes = {w.shape for w in policy.model.parameters()} | {
        w.t().shape for w in policy.model.parameters() if w.ndim == 2
    }
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights and tensor.shape not in shapes:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    backbone = backbone_of(policy.model.get_base_model() if policy.adapted else policy.model)
    backbone.config._attn_implementation = "sdpa"
    mixed = policy.precision == torch.bfloat16
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        backbone(torch.arange(tokens)[None] % 20, use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_activations_are_what_autograd_saves(kind, lora, precision):
    shape = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    if kind == "llama":
        model = tiny.llama(**shape, num_hidden_layers=4)
    else:
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=27, num_hidden_layers=4, head_dim=24, **shape))
    a = sizes(model, model.config)
    c = config(model={"path": "m", "lora": lora}, train={"precision": precision, "device": "cpu"})
    if lora:
        model = model.to(getattr(torch, precision))
    policy = load_policy(c, model=model, processing_class=tiny.tokenizer())
    tokens = 211  # no weight has a side of this length
    wanted = saved_by_autograd(policy, tokens)
    given = tokens * a.layers * activation_bytes(c, a, widths_of(c, CPU))
    assert given == pytest.approx(wanted, rel=0.1)


# --- advice


def test_what_does_not_fit_is_told_what_would(large):
    c = config(large, train={"device": "cpu", "precision": "bfloat16", "pack_tokens": 16384, "questions": 512})
    a = architecture_of(c.model)
    now = estimate(c, a)
    by_keys = {str(change).partition(" (")[0]: change for change in advise(c, a, now, have=int(1.2e12))}
    assert by_keys and all(change.estimate.peak <= 1.2e12 < now.peak for change in by_keys.values())
    assert any(keys.startswith("model.lora.r: 16") for keys in by_keys)
    *alone, together = advise(c, a, now, have=int(4e11))
    assert all(change.estimate.peak > 4e11 for change in alone)
    assert together.settings.keys() >= {"model"} and "lora" in together.settings["model"]
    assert together.estimate.peak <= 4e11 and str(together).count(";") >= 1
    none = Checkup(look(Path()), c, now, have=10**9, advice=tuple(advise(c, a, now, 10**9)))
    assert not none.fits and "a smaller model" in run_lines(none)[-1][1]


def test_less_memory_for_keys_and_values_is_advised_where_they_are_what_is_too_large(folder):
    sampling = {"max_thought_tokens": 3000, "max_answer_tokens": 1000, "kv_memory_gb": 2.0}
    c = config(folder, sampling=sampling, train={"device": "cpu", "precision": "float32", "questions": 64})
    now = estimate(c)
    assert now.stage == "sample"
    change = advise(c, architecture_of(c.model), now, have=int(1.7e8))[0]
    assert change.settings["sampling"]["kv_memory_gb"] < 0.11 and change.estimate.phases["sample"] <= 1.7e8


def test_disk_by_hand(folder):
    a = architecture_of(config(folder).model)
    c = config(folder, train={"device": "cpu", "precision": "float32", "steps": 100, "save_every": 10})
    # the final model; 9 checkpoints with a model each, 3 of them with weights and two states, and one being written
    assert disk_bytes(c, a, estimate(c)) == (1 + 9) * 4 * a.parameters + 4 * 3 * 4 * a.parameters


# --- the machine, and the command


def test_a_containers_limit_is_the_machines(tmp_path):
    free, total = memory(tmp_path)
    assert 0 < free <= total
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 100000\n")
    assert memory(tmp_path) == (700000, 1000000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(tmp_path)[1] == total


def test_the_machine_is_told_with_what_is_missing():
    lines = dict(machine_lines(look(Path())))
    assert torch.__version__ in lines["versions"] and "GB" in lines["memory"] and lines["CPU cores"][0].isdigit()
    assert lines["sandbox"] == "bubblewrap" or "bubblewrap" in lines["sandbox"]


def doctor(*arguments):
    program = "from branchwise.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "doctor", *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command_says_whether_a_run_fits(folder, large, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: {folder}}}\ntrain: {{device: cpu, output_dir: {tmp_path}/run}}\n")
    done = doctor(file)
    assert done.returncode == 0 and "free on cpu: fits" in done.stdout and "weights: 0." in done.stdout, done.stderr
    assert not (tmp_path / "run").exists()
    done = doctor(file, f"model.path={large}", "--json")
    run = json.loads(done.stdout)["run"]
    assert done.returncode == 1 and not run["fits"] and run["need"] > 1e12 and run["advice"]
    assert sum(p["bytes"] for p in run["parts"] if run["stage"] in p["stages"]) == run["need"]
    done = doctor(file, "model.path=/nowhere")
    assert done.returncode == 2 and done.stderr.startswith("model.path: cannot load '/nowhere': no such folder")


def test_without_a_config_the_machine_is_told():
    done = doctor("--json")
    assert done.returncode == 0 and json.loads(done.stdout)["machine"]["memory_total"] > 1e8


@pytest.mark.slow
@pytest.mark.parametrize("way", ["full", "LoRA"])
def test_an_estimate_is_within_15_percent_of_a_run(smollm2, tmp_path, way):
    # a CPU without instructions for bfloat16 takes a hundred times as long in it
    name = f"{way}, {'bfloat16' if look(tmp_path).bfloat16 else 'float32'}"
    file = Path(__file__).parents[1] / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("memory_benchmark", file)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    if sys.platform != "linux":
        pytest.skip("the peak of memory is read from /proc")
    # how much of a LoRA run's memory is lost in the heap differs from CPU to CPU
    result = benchmark.compare(benchmark.case(name, smollm2), holes=way == "full")
    assert abs(result["off"]) < 0.15, result
