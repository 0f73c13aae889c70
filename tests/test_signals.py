"""A signal at an awkward moment: a run that saves is to save."""

import os
import signal
import subprocess
import sys
import time

import pytest

from branchwise.train import signals
from branchwise.train.signals import Ended, Signals

RUN = """
import sys, time
from branchwise.train.progress import Display
from branchwise.train.signals import Signals

display = Display(9)
with Signals(display.say) as signals:
    signals.wait = True
    display.say("begun")
    while signals.asked is None:
        display.say("step" * 999) if sys.argv[1] == "busy" else time.sleep(0.01)
    display.say("ended")
    print(f"saved after {signals.asked}", file=sys.stderr)
"""


def started(how):
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    return subprocess.Popen([sys.executable, "-c", RUN, how], stdout=-1, stderr=-1, env=environment)


def test_a_run_whose_reader_is_gone_is_saved():
    """As `branchwise train my.yaml | tee log`: control-C ends both."""
    with started("idle") as run:
        assert run.stdout.readline() == b"begun\n"
        run.stdout.close()
        run.send_signal(signal.SIGINT)
        assert run.stderr.read() == b"saved after 2\n"
    assert run.returncode == 0


def test_a_signal_within_a_writing_is_heeded():
    with started("busy") as run:
        assert run.stdout.readline() == b"begun\n"
        time.sleep(0.5)  # nobody reads: it is in the middle of writing
        run.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        run.stdout.read()
        assert run.stderr.read() == b"saved after 15\n"
    assert run.returncode == 0


def test_a_signal_that_comes_twice_at_a_time_is_one(monkeypatch):
    with Signals(lambda _: None) as both:
        both.wait = True
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Ended), both.at_once():
            pass
        monkeypatch.setattr(signals, "ECHO", 0.0)
        with pytest.raises(SystemExit) as end:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        assert end.value.code == 143 and not isinstance(end.value, Ended)
