"""What the documentation says can be done: links lead somewhere, code runs, commands and settings exist."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from branchwise.cli import app
from branchwise.config import load_config

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
WEIGHTS = ("Trainer(",)
"""What a line of a block that would load weights begins with: such a block is compiled alone."""


def blocks(language):
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for page in PAGES:
        for i, match in enumerate(pattern.finditer(page.read_text(encoding="utf-8"))):
            yield pytest.param(match[1], id=f"{page.name}-{i}")


def anchors(page):
    heads = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower())).strip("-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            assert re.fullmatch(r"https?://[\w.-]+(/\S*)?", target), target
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_formula_is_where_it_is_said_to_be():
    places = re.findall(r"`([\w/]+)\.py:(\w+)`", (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8"))
    assert len(places) >= 18
    for module, name in places:
        assert hasattr(import_module(f"branchwise.{module.replace('/', '.')}"), name), (module, name)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_configs_are_sound(text):
    values = yaml.safe_load(text)
    load_config(values if "model" in values else {"model": {"path": "m"}, **values})


@pytest.mark.parametrize("text", blocks("python"))
def test_python_runs(text):
    code = compile(text, "documentation", "exec")
    if not any(line.startswith(WEIGHTS) for line in text.splitlines()):
        exec(code, {"__name__": "documentation"})


def commands():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"^\s*(branchwise [a-z].*)$|`(branchwise [a-z][^`]*)`", text, re.MULTILINE):
            yield pytest.param(line[0] or line[1], id=f"{page.name}: {line[0] or line[1]}")


@pytest.mark.parametrize("line", commands())
def test_commands_and_their_options_exist(line):
    _, name, *words = shlex.split(line.split(">")[0], comments=True)
    known = get_command(app).commands
    assert name in known, name
    options = {flag for parameter in known[name].params for flag in parameter.opts}
    for word in words:
        if re.match(r"--?[a-zA-Z]", word):
            assert word.split("=")[0] in options, word


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    reference = (tmp_path / "reference" / "index.html").read_text(encoding="utf-8")
    assert "pass_at_k" in reference and "Trainer" in reference
    for page in tmp_path.glob("**/*.html"):  # nothing is fetched from elsewhere
        assert not re.search(r'<(?:script|link)[^>]+(?:src|href)="https?://', page.read_text(encoding="utf-8"))
