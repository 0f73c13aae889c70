"""The command line as a user meets it: separate processes, their output and exit codes."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

BRANCHWISE = Path(sys.executable).with_name("branchwise")


def branchwise(*arguments, cwd=None):
    return subprocess.run([BRANCHWISE, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("model: {path: absent-model}\ndata: {train: absent.jsonl}\n")
    return file


def cpu_seconds(*command):
    """Of a process itself, the least of five, so that a busy machine does not fail a test."""

    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, capture_output=True).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def test_help_costs_little_more_than_the_library_it_is_written_with():
    help_page = [sys.executable, "-c", "import typer; typer.Typer()"]
    assert cpu_seconds(BRANCHWISE, "--help") < 4 * cpu_seconds(*help_page)


def test_the_package_is_the_command_too():
    as_module = subprocess.run([sys.executable, "-m", "branchwise", "--version"], capture_output=True, text=True)
    assert as_module.stdout == branchwise("--version").stdout and as_module.stdout.startswith("branchwise ")


@pytest.mark.parametrize("heavy", ["torch", "transformers", "datasets", "numpy", "pydantic"])
def test_the_command_line_loads_nothing_heavy_until_it_is_needed(heavy):
    code = f"import sys, branchwise.cli; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_presets_are_listed_and_printed_whole():
    listed = branchwise("presets").stdout
    for name in ("grpo", "dr-grpo", "dapo", "gspo", "cispo", "rloo", "grpo-ma", "ta-grpo", "ta-grpo-ma"):
        assert any(line.split()[0] == name for line in listed.splitlines())
    assert "answers: 4" in branchwise("presets", "grpo-ma").stdout


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_config_that_cannot_be_ends_with_2_and_one_line(config, arguments):
    config.write_text(config.read_text() + "tree: {answer: 2}\n")
    result = branchwise("train", config, *arguments)
    assert result.returncode == 2
    assert result.stderr == "tree.answer: unknown key; did you mean 'answers'?\n"


def test_an_override_that_cannot_be_ends_with_2(config):
    assert branchwise("train", config, "train.steps=none").returncode == 2


def test_a_model_that_is_not_there_ends_with_2_and_names_it(config):
    result = branchwise("train", config, "--dry-run")
    assert result.returncode == 2 and "model.path" in result.stderr and "absent-model" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_preset_ends_with_2():
    result = branchwise("presets", "grpo-mm")
    assert result.returncode == 2 and "'grpo-mm'" in result.stderr
