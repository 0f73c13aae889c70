"""Reward functions in a module that loads in a moment, as workers do."""

import os
from signal import SIGKILL


def likes_a(completions, completion_ids, **_):
    """Whether the letter a is among the tokens."""
    return [float(21 in ids) for ids in completion_ids]


def hardly_ever_equal(completion_ids, **_):
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def likes_a_though_killed(completions, completion_ids, **_):
    """The same; but the process of its first, third and fifth call is killed."""
    if _call() in (1, 3, 5):
        os.kill(os.getpid(), SIGKILL)
    return likes_a(completions, completion_ids)


def killed_from_the_fourth_call_on(completions, completion_ids, **_):
    if _call() > 3:
        os.kill(os.getpid(), SIGKILL)
    return likes_a(completions, completion_ids)


def _call():
    """Which call of all processes this is, from 1."""
    with open(os.environ["LETTERS_CALLS"], "ab") as file:
        file.write(b".")
        file.flush()
        return file.tell()
