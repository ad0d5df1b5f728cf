"""Calls of the kernel that a student's process may not make: a filter it cannot take off.

Everything that computes, reads, writes, forks or waits stays possible. What goes: new namespaces
and mounts (a file system in memory of any size could be mounted in them), memory that the limits do
not count, looking into other processes, another core than the one given, and the kernel's less
tested corners.

Source: man page seccomp(2); linux/seccomp.h, linux/filter.h, linux/audit.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

PR_SET_SECCOMP, FILTER = 22, 2
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: ld abs, jeq, jset, ret
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000  # FAIL | errno
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # places in struct seccomp_data
NEW_NAMESPACES = 0x7E020080  # of clone's flags
X32 = 0x40000000  # bit of the numbers of x86-64's second set of calls

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# name: (number on x86_64, number on aarch64)
DENIED = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "personality": (135, 92), "fanotify_init": (300, 262), "quotactl": (179, 60),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "sched_setaffinity": (203, 122),
}  # fmt: skip
CLONE, CLONE3, SOCKET = (56, 220), (435, 435), (41, 198)
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def deny(libc: ctypes.CDLL) -> int:
    """Put the filter on this process and all it will start. -> 0, or what prctl says."""
    steps = _steps(platform.machine())
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = Program(len(steps), code)
    return libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0)


def _steps(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter: (operation, steps to skip if true, if false, operand)."""
    at = list(ARCHITECTURES).index(machine)
    steps = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (ANY_BIT, 0, 1, X32),
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
    ]
    for numbers in DENIED.values():
        steps += [(EQUAL, 0, 1, numbers[at]), (RETURN, 0, 0, FAIL | errno.EPERM)]
    # The C library takes clone where clone3, whose flags cannot be looked at, is not there.
    steps += [(EQUAL, 0, 1, CLONE3[at]), (RETURN, 0, 0, FAIL | errno.ENOSYS)]
    steps += [
        (EQUAL, 0, 4, CLONE[at]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, FAIL | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    families = [(EQUAL, len(FAMILIES) - i, 0, family) for i, family in enumerate(FAMILIES)]
    steps += [
        (EQUAL, 0, len(FAMILIES) + 3, SOCKET[at]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        *families,
        (RETURN, 0, 0, FAIL | errno.EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    ]
    return [*steps, (RETURN, 0, 0, ALLOW)]
