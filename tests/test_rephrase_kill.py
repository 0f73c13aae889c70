"""A run that is killed again and again ends as one that was not, and asks for nothing that had arrived."""

import json
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chat_server import Answer, ChatServer

BRANCHWISE = Path(sys.executable).with_name("branchwise")
KILLS, QUESTIONS = 20, 200


def behave(seen, number):
    """One reply to each prompt and seed; some of the first ones are spoiled, so that others are asked for."""
    question = seen.question
    if seen.body["seed"] < 1000 and "7 jars" in question:
        question = question.replace("7 jars", "6 jars")
    return Answer(text=f"In a store, {question[0].lower()}{question[1:]}", delay=0.03)


@pytest.fixture
def data(tmp_path):
    rows = [
        {"id": f"q{i}", "question": f"A crate holds {1000 + i} jars; {i % 10} jars break. How many are whole?",
         "answer": str(1000 + i - i % 10), "topic": "Überschuß"}
        for i in range(QUESTIONS)
    ]  # fmt: skip
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def command(data, out, server):
    return [
        BRANCHWISE, "rephrase", data, "--out", out, "-n", "1", "--writer", "openai:tiny", "--base-url", server.url,
        "--concurrency", "8",
    ]  # fmt: skip


def stored(out):
    file = out.with_suffix(".replies.sqlite")
    if not file.exists():
        return set()
    with sqlite3.connect(file) as store:
        if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'replies'").fetchone():
            return set()
        return set(store.execute("SELECT prompt, sample FROM replies"))


def asked(seen):
    return {(s.prompt, s.body["seed"]) for s in seen}


def kill_when(process, server, count, delay):
    """Kill once the server has seen `count` requests; whether it was still running."""
    while process.poll() is None:
        if len(server.seen) >= count:
            time.sleep(delay)
            process.kill()
            return process.wait() != 0
        time.sleep(0.002)
    return False


@pytest.mark.slow
def test_twenty_kills_change_nothing_and_cost_what_was_in_flight(data, tmp_path):
    outs = [tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"]
    with ChatServer(behave) as server:
        subprocess.run(command(data, outs[0], server), check=True, capture_output=True)
        needed = len(server.seen)
    draw = random.Random(5)
    with ChatServer(behave) as server:
        for moment in sorted(draw.sample(range(needed - 8), KILLS)):
            before, number = stored(outs[1]), len(server.seen)
            process = subprocess.Popen(command(data, outs[1], server), stdout=subprocess.DEVNULL)
            assert kill_when(process, server, number + max(0, moment - len(before)), draw.uniform(0, 0.04))
            assert not asked(server.seen[number:]) & before and not outs[1].exists()
        before, number = stored(outs[1]), len(server.seen)
        subprocess.run(command(data, outs[1], server), check=True, capture_output=True)
        assert not asked(server.seen[number:]) & before
        twice = len(server.seen) - len(asked(server.seen))
    assert len(asked(server.seen)) == needed and twice <= KILLS * 8
    for suffix in (".jsonl", ".records.jsonl", ".rejected.jsonl"):
        whole, killed = (out.with_suffix(suffix).read_bytes() for out in outs)
        assert whole == killed
    rows = [json.loads(line) for line in outs[1].read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"q{i}" for i in range(QUESTIONS)]
    assert all(len(row["rephrasings"]) == 1 and row["topic"] == "Überschuß" for row in rows)
