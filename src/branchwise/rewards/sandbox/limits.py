"""What a sandboxed program may use."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one program with all its processes."""

    seconds: float = 10.0
    """Wall-clock time, start-up included; CPU time is limited to the next second."""
    memory_mb: int = 1024
    processes: int = 32
    """Processes and threads at one time."""
    output_mb: int = 8
    """Text printed, errors and answers together."""
    disk_mb: int = 64
    """Files in /tmp; the same again in /dev/shm."""
    files: int = 4096
    """Files in either."""

    def inside(self, uid: int = 0) -> dict[str, int]:
        """The limits that the program's first process takes on itself, by resource; `uid`: become that user."""
        return {
            # address space is no memory: threads reserve more than they use; what is used is watched from outside
            "AS": 2 * self.memory_mb * MB,
            "CPU": int(self.seconds) + 1,
            "FSIZE": self.disk_mb * MB,
            "NOFILE": 64,
            "NPROC": self.processes,
            "CORE": 0,
            "uid": uid,
        }
