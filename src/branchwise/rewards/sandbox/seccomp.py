"""A system-call filter (seccomp BPF) on top of the namespaces.

It refuses what reaches around the limits (memory outside the address space, mounts, further namespaces), what reaches
another process, and sockets of families that a network namespace does not isolate (vsock). Numbers: the kernel's
`asm/unistd_64.h` and `asm-generic/unistd.h`; instructions: `linux/filter.h`.
"""

from __future__ import annotations

import errno
import platform
import struct

_COMMON = {  # the same on both since 5.1
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
_X86 = {
    **{"shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101, "pivot_root": 155, "mount": 165, "umount2": 166},
    **{"init_module": 175, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250},
    **{"unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310},
    **{"process_vm_writev": 311, "finit_module": 313, "memfd_create": 319, "bpf": 321, "userfaultfd": 323},
}
_ARM = {
    **{"umount2": 39, "mount": 40, "pivot_root": 41, "unshare": 97, "kexec_load": 104, "init_module": 105},
    **{"ptrace": 117, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "add_key": 217},
    **{"request_key": 218, "keyctl": 219, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268},
    **{"process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "memfd_create": 279, "bpf": 280},
    **{"userfaultfd": 282},
}
_MACHINES = {
    "x86_64": (0xC000003E, _X86, {"socket": 41, "clone": 56, "clone3": 435}),
    "aarch64": (0xC00000B7, _ARM, {"socket": 198, "clone": 220, "clone3": 435}),
}
_NAMESPACES = 0x7E020000
"""clone's CLONE_NEW* flags."""
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6: isolated by the network namespace."""
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16


def program() -> bytes | None:
    """The filter for this machine; None where its system calls are not known here."""
    if platform.machine() not in _MACHINES:
        return None
    architecture, refused, special = _MACHINES[platform.machine()]
    lines = [
        *(_op(_LOAD, _ARCHITECTURE), _op(_EQUAL, architecture, 1, 0), _op(_RETURN, _KILL)),
        *(_op(_LOAD, _NUMBER), _op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _REFUSE | errno.EPERM)),
        # libc then falls back to clone, whose flags can be read here
        *(_op(_EQUAL, special["clone3"], 0, 1), _op(_RETURN, _REFUSE | errno.ENOSYS)),
    ]
    for number in sorted({**_COMMON, **refused}.values()):
        lines += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _REFUSE | errno.EPERM)]
    lines += [
        _op(_EQUAL, special["clone"], 0, 4),
        *(_op(_LOAD, _ARGUMENT), _op(_ANY_BIT, _NAMESPACES, 0, 1), _op(_RETURN, _REFUSE | errno.EPERM)),
        _op(_RETURN, _ALLOW),
        _op(_EQUAL, special["socket"], 0, len(_FAMILIES) + 2),
        _op(_LOAD, _ARGUMENT),
        *(_op(_EQUAL, family, len(_FAMILIES) - i, 0) for i, family in enumerate(_FAMILIES)),
        _op(_RETURN, _REFUSE | errno.EPERM),
        _op(_RETURN, _ALLOW),
    ]
    return b"".join(lines)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
