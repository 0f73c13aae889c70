"""Ways to keep a program from everything else. Each starts one, connected by its standard streams."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
import warnings
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

from branchwise.errors import ConfigError
from branchwise.rewards.sandbox import seccomp
from branchwise.rewards.sandbox.interpreter import ENVIRONMENT, INSIDE, MOUNTED, arguments, files, masked
from branchwise.rewards.sandbox.limits import MB, Limits
from branchwise.rewards.sandbox.process import Jailed

Mode = Literal["program", "submission", "tests"]
INSTALL = (
    "install bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap), or set "
    "isolation: container or isolation: sandbox_fusion"
)


class Isolation(Protocol):
    """Starts programs whose first frame says what to run (`inside/boot.py`)."""

    def start(self, mode: Mode, limits: Limits) -> Jailed: ...


def open_isolation(kind: str = "bubblewrap", image: str | None = None, runtime: str | None = None) -> Isolation:
    """The isolation of that name, once it is seen to work.

    Args:
        kind: `bubblewrap`; `container`; or `unsafe`, which isolates nothing.
        image: the container's, with a `python3` in it.
        runtime: the container's command; default: podman or docker, whichever is there.

    Raises:
        ConfigError: it is not to be had here; says what to install.
    """
    if kind == "bubblewrap":
        return _bubblewrap()
    if kind == "container":
        return Container(image or "python:3.11-slim", runtime)
    if kind == "unsafe":
        return Unsafe()
    raise ConfigError(
        f"isolation: {kind!r} is unknown; choose bubblewrap, container, sandbox_fusion or unsafe (no isolation at all)"
    )


@lru_cache
def _bubblewrap() -> Bubblewrap:
    return Bubblewrap()


class Bubblewrap:
    """Namespaces for everything, the interpreter and nothing else to read, a filter of system calls."""

    def __init__(self) -> None:
        self._command = shutil.which("bwrap")
        if not self._command or not sys.platform.startswith("linux"):
            raise ConfigError(f"isolation: bubblewrap: there is no bwrap here, so no program is run; {INSTALL}")
        self._root = os.geteuid() == 0
        self._filter = seccomp.program()
        self._runs = count()
        self._fixed = self._arguments(self._offers_userns_lock())
        self._probe()

    def start(self, mode: Mode, limits: Limits) -> Jailed:
        uid = self._fresh_uid() if self._root else 0
        command = [self._command, *self._fixed, *self._scratch(limits)]
        fds: tuple[int, ...] = ()
        if self._filter:
            fds = (_pipe_with(self._filter),)
            command += ["--seccomp", str(fds[0])]
        try:
            return _start([*command, *arguments(mode, limits.inside(uid))], limits, fds, ("/tmp", "/dev/shm"), uid)
        finally:
            for fd in fds:
                os.close(fd)

    def _arguments(self, lock_userns: bool) -> list[str]:
        """What is the same for all programs."""
        if self._root:
            # a real user of its own for each program: only then does the kernel count its processes
            rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            spaces = ["pid", "net", "ipc", "uts", "cgroup-try"]
        else:
            rights = ["--uid", "65534", "--gid", "65534", *(["--disable-userns"] if lock_userns else [])]
            spaces = ["user", "pid", "net", "ipc", "uts", "cgroup-try"]
        command = [*(f"--unshare-{space}" for space in spaces), *rights]
        command += ["--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
        for name, value in ENVIRONMENT.items():
            command += ["--setenv", name, value]
        for folder in sorted({str(folder) for path in files() for folder in Path(path).parents} - {"/"}):
            command += ["--perms", "0755", "--dir", folder]  # else as closed as outside
        for path in files():
            command += ["--ro-bind", path, path]
        for path in masked():
            command += ["--perms", "0555", "--size", "4096", "--tmpfs", path]
        return [*command, "--ro-bind", str(INSIDE), MOUNTED, "--proc", "/proc", "--dev", "/dev"]

    def _scratch(self, limits: Limits) -> list[str]:
        """Private memory for files: everything else is read-only."""
        size = ["--perms", "1777", "--size", str(limits.disk_mb * MB), "--tmpfs"]
        shm = [*size, "/dev/shm", "--remount-ro", "/dev"]
        return [*shm, *size, "/tmp", "--chdir", "/tmp", "--remount-ro", "/"]

    def _fresh_uid(self) -> int:
        # 0x7000_0000 and up belong to nobody by systemd's table of user ids
        return 0x7000_0000 | ((os.getpid() << 6 | next(self._runs) & 63) & 0x0FFF_FFFF)

    def _offers_userns_lock(self) -> bool:
        offered = subprocess.run([str(self._command), "--help"], capture_output=True, text=True, check=False)
        return "--disable-userns" in offered.stdout + offered.stderr

    def _probe(self) -> None:
        """Run a program that prints one word, and see it.

        Raises:
            ConfigError: it does not come back.
        """
        from branchwise.rewards.sandbox.run import run_program

        result = run_program(self, ["print('isolated')"], "", Limits(seconds=20))
        if result.output.strip() != "isolated":
            raise ConfigError(
                f"isolation: bubblewrap: bwrap is here but starts no program ({result.reason or result.error}); user "
                "namespaces may be switched off (sysctl kernel.unprivileged_userns_clone or "
                "kernel.apparmor_restrict_unprivileged_userns, or a container without the right to them): allow them, "
                f"or {INSTALL}"
            )


class Container:
    """A container runtime's isolation: docker's or podman's."""

    def __init__(self, image: str, runtime: str | None = None) -> None:
        runtime = runtime or next(filter(shutil.which, ("podman", "docker")), None)
        if not runtime or not shutil.which(runtime):
            raise ConfigError(
                f"isolation: container: {runtime or 'neither podman nor docker'} is not here, so no program is run; "
                f"install one, or {INSTALL}"
            )
        self._runtime, self._image = runtime, image
        there = subprocess.run([runtime, "image", "inspect", image], capture_output=True, text=True, check=False)
        if there.returncode:
            raise ConfigError(f"isolation: container: no image {image!r} ({runtime} pull {image} fetches it)")

    def start(self, mode: Mode, limits: Limits) -> Jailed:
        name = f"branchwise-{uuid.uuid4().hex}"
        inside = limits.inside() | {"NPROC": 1 << 20}  # counted by the runtime, for this container alone
        command = [self._runtime, "run", "--rm", "--interactive", "--init", "--name", name, "--network", "none"]
        command += ["--user", "65534:65534", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"]
        command += ["--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"]
        command += ["--pids-limit", str(limits.processes + 2), "--shm-size", f"{limits.disk_mb}m"]
        command += ["--tmpfs", f"/tmp:size={limits.disk_mb}m,nr_inodes={limits.files}", "--workdir", "/tmp"]
        command += ["--volume", f"{INSIDE}:{MOUNTED}:ro", "--entrypoint", "python3"]
        for key, value in ENVIRONMENT.items():
            command += ["--env", f"{key}={value}"] if key != "PATH" else []
        _, *rest = arguments(mode, inside)
        jailed = _start([*command, self._image, *rest], limits, environment=dict(os.environ))

        def end() -> None:
            subprocess.run([self._runtime, "kill", name], capture_output=True, check=False)

        jailed.end = end
        return jailed


class Plain:
    """A process of its own with limits, and no isolation."""

    def start(self, mode: Mode, limits: Limits) -> Jailed:
        # the kernel counts all of this user's processes here, so the number is only watched
        inside = limits.inside() | {"NPROC": 1 << 20}
        command = arguments(mode, inside, str(INSIDE))
        return _start(command, limits, environment={"PATH": os.environ.get("PATH", ""), **ENVIRONMENT})


class Unsafe(Plain):
    """No isolation: the program has all the rights of this process, and can do and read whatever this one can."""

    def __init__(self) -> None:
        warnings.warn(
            "isolation: unsafe: programs that a model wrote run with this user's rights: they can read, change and "
            f"send whatever you can; {INSTALL}",
            stacklevel=2,
        )


def _start(
    command: list[str | None] | list[str],
    limits: Limits,
    fds: tuple[int, ...] = (),
    folders: tuple[str, ...] = (),
    uid: int = 0,
    environment: dict[str, str] | None = None,
) -> Jailed:
    pipe = subprocess.PIPE
    popen = subprocess.Popen(
        command,  # type: ignore[arg-type]
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        pass_fds=fds,
        env=environment or {},  # what this process was told must not be read off bwrap's in /proc
        start_new_session=True,
        cwd="/",
    )
    if uid and popen.stdin and popen.stdout and popen.stderr:
        for stream in (popen.stdin, popen.stdout, popen.stderr):
            with contextlib.suppress(OSError):
                os.fchown(stream.fileno(), uid, uid)  # for programs that open /dev/stdin
    return Jailed(popen, limits, folders)


def _pipe_with(data: bytes) -> int:
    """A descriptor to read `data` from: far less than a pipe holds."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return read
