"""A user's functions by their names, and what is said where there are none."""

import os.path

import pytest

from branchwise.config import ConfigError
from branchwise.plugins import load_function


def refused(spec):
    with pytest.raises(ConfigError) as error:
        load_function(spec)
    return str(error.value)


def test_a_dotted_path():
    assert load_function("os.path.join") is os.path.join


def test_a_files_functions_share_one_run_of_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("seen = []\ndef put(x):\n    seen.append(x)\ndef get():\n    return seen\n")
    load_function(f"{file}:put")(3)
    assert load_function(f"{file}:get")() == [3]


def test_a_file_relative_to_where_the_run_starts(tmp_path, monkeypatch):
    (tmp_path / "near.py").write_text("def f():\n    return 'near'\n")
    monkeypatch.chdir(tmp_path)
    assert load_function("near.py:f")() == "near"


def test_a_files_dataclasses_work(tmp_path):
    file = tmp_path / "typed.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int = 4\n"
    )
    assert load_function(f"{file}:Point")().x == 4


def test_a_name_alone_says_how_to_write_one():
    assert refused("score") == "'score' names no function; write 'package.module.function' or 'file.py:function'"
    assert "write 'package.module.function'" in refused("rewards.txt:score")


def test_an_absent_file_is_named(tmp_path):
    assert f"no such file: {tmp_path / 'absent.py'}" in refused(f"{tmp_path}/absent.py:f")


def test_an_absent_function_lists_those_there_are(tmp_path):
    (tmp_path / "few.py").write_text("def one(): ...\ndef two(): ...\nnumber = 3\n")
    for name in ("three", "number"):
        assert f"no function {name!r} there; choose one of one, two" in refused(f"{tmp_path}/few.py:{name}")


def test_an_absent_module_says_what_to_do():
    message = refused("no_such_package.rewards.f")
    assert "cannot import 'no_such_package.rewards': ModuleNotFoundError" in message and "'file.py:function'" in message


def test_a_file_that_fails_is_named_and_may_be_mended(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("def f():\n    return 1\nraise RuntimeError('oh')\n")
    assert "fails when run: RuntimeError: oh" in refused(f"{file}:f")
    file.write_text("def f():\n    return 1\n")
    assert load_function(f"{file}:f")() == 1
