"""Commands that start in a moment: forks of a process that has imported everything and computed nothing yet.

A fork runs the command line as its own program does. Run as a script, this is the process that forks.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


class Warm:
    """Starts commands.

    Args:
        folder: where their output goes.
    """

    def __init__(self, folder):
        self.folder, self.count = Path(folder), 0
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, *arguments, first=None, env=None):
        """Run `branchwise ARGUMENTS`.

        Args:
            first: `module:function` to be called before it.
            env: variables to set.
        """
        self.count += 1
        output = self.folder / f"output-{self.count}.txt"
        pid = self._ask(arguments=list(map(str, arguments)), output=str(output), first=first, env=env or {})
        return Command(self, pid, output)

    def run(self, *arguments, **settings):
        """The exit code, and all that was printed."""
        command = self.start(*arguments, **settings)
        return command.wait(), command.output

    def wait(self, pid):
        return self._ask(wait=pid)

    def close(self):
        self.server.stdin.close()
        self.server.wait()

    def _ask(self, **question):
        self.server.stdin.write(json.dumps(question) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())


class Command:
    def __init__(self, warm, pid, file):
        self.warm, self.pid, self.file, self.code = warm, pid, file, None

    def send(self, signal):
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal)

    def wait(self):
        """Its exit code; minus the signal that ended it."""
        if self.code is None:
            self.code = self.warm.wait(self.pid)
        return self.code

    @property
    def running(self):
        """Whether it goes on; a zombie has ended."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    @property
    def output(self):
        return self.file.read_text()


def start_two(warm, *arguments, first=None):
    """The two processes of a run, as a launcher starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [warm.start(*arguments, env=env, first=first) for env in ranks]


def serve():
    """Fork on request; in a fork, returns what it is to do."""
    for line in sys.stdin:
        question = json.loads(line)
        if pid := question.get("wait"):
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            continue
        if pid := os.fork():
            print(pid, flush=True)
            continue
        return question
    return None


def become(question):
    """Take the command's place in this fork."""
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(question["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.environ.update(question["env"])
    sys.argv = ["branchwise", *question["arguments"]]
    if question["first"]:
        module, name = question["first"].split(":")
        getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    import peft  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    import branchwise.train.trainer  # noqa: F401
    from branchwise.cli import main

    if (todo := serve()) is not None:
        become(todo)
        main()
