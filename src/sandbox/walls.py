"""What keeps a student's process in: namespaces, a root of its own, limits, no privileges.

Linux only; written against the kernel's own calls, through ctypes, so that it works for an ordinary
user and needs nothing installed. level() says what this computer allows.

Source: man pages user_namespaces(7), pid_namespaces(7), mount_namespaces(7), pivot_root(2),
prctl(2), getrlimit(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534

SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt",
    "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True)
class Limits:
    """What one process may use. memory_bytes is counted beyond what it has when it starts."""

    memory_bytes: int = 2 * 2**30
    cpu_s: int = 600
    file_bytes: int = 64 * 2**20
    n_files: int = 256
    n_processes: int = 256
    scratch_bytes: int = 256 * 2**20


@dataclass(frozen=True)
class View:
    """What of the file system can be seen, read-only, besides the system's programs."""

    readable: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


class CannotIsolate(OSError):
    """The kernel refused a wall; the message says which."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _try(name: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise CannotIsolate(number, f"{name}: {os.strerror(number)}")


def enter(view: View, scratch: str = "/tmp") -> None:
    """Build the walls round this process, and become process 1 within them. May fork.

    The caller's process stays outside as a guard that waits and ends with the same status; the
    function returns in the inner process only. Raises CannotIsolate if the kernel refuses.
    """
    libc = _libc()
    is_root = os.geteuid() == 0
    if is_root:  # no user namespace: its own files may lie where an ordinary user cannot look
        _try("unshare", libc.unshare(NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS))
    else:
        _own_users(libc)
    inner = os.fork()
    if inner:
        _guard(inner)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _new_root(libc, view, scratch)
    os.chdir(scratch)
    drop_capabilities(libc)
    if is_root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the change of user cleared it
    set_limits(view.limits)


def _own_users(libc: ctypes.CDLL) -> None:
    """For an ordinary user: namespaces in which it may build the others' walls."""
    uid, gid = os.geteuid(), os.getegid()
    _try("unshare", libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _guard(inner: int) -> None:
    """Wait outside for process 1, and end as it ended."""
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 255)


def _new_root(libc: ctypes.CDLL, view: View, scratch: str) -> None:
    """A root that holds the system's programs and what the view names, all read-only."""
    mount = _mounter(libc)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = "/tmp"  # any folder that exists; the new root is mounted over it
    size = f"size={view.limits.scratch_bytes},mode="
    kept = [(p, os.open(p, os.O_PATH)) for p in _existing((*SYSTEM, *view.readable))]
    devices = [(f"/dev/{d}", os.open(f"/dev/{d}", os.O_PATH)) for d in DEVICES]
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, size + "755")
    for path, handle in kept:
        _bind(mount, handle, root + path, os.path.isdir(path) or _is_folder(handle))
    for path, handle in devices:
        _bind(mount, handle, root + path, folder=False, read_only=False)
    for folder in ("/proc", scratch, "/old"):
        os.makedirs(root + folder, exist_ok=True)
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV)
    mount("tmpfs", root + scratch, "tmpfs", MS_NOSUID | MS_NODEV, size + "1777")
    number = PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise CannotIsolate(0, f"pivot_root on {platform.machine()} is not known here")
    _try("pivot_root", libc.syscall(number, root.encode(), (root + "/old").encode()))
    os.chdir("/")
    _try("umount", libc.umount2(b"/old", MNT_DETACH))
    os.rmdir("/old")
    mount(None, "/", None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_BIND)


def _mounter(libc: ctypes.CDLL) -> Callable[..., None]:
    def mount(
        source: str | None, target: str, kind: str | None, flags: int, data: str = ""
    ) -> None:
        coded = [s.encode() if s is not None else None for s in (source, target, kind)]
        _try(f"mount {target}", libc.mount(*coded, ctypes.c_ulong(flags), data.encode() or None))

    return mount


def _existing(paths: Iterable[str]) -> list[str]:
    """Those that are there, each once, outer folders before inner ones."""
    return sorted({p for p in paths if os.path.exists(p)})


def _is_folder(handle: int) -> bool:
    return os.path.isdir(f"/proc/self/fd/{handle}")


def _bind(
    mount: Callable[..., None], handle: int, target: str, folder: bool, read_only: bool = True
) -> None:
    """Show what a handle stands for at `target`; a link to it stays what it points to."""
    if os.path.islink(target) or (
        os.path.exists(target) and not os.path.ismount(target) and _within_bind(target)
    ):
        os.close(handle)
        return  # already shown, as a part of an outer folder
    if folder:
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC)
    os.close(handle)
    if read_only:
        mount(None, target, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_REC)


def _within_bind(target: str) -> bool:
    """Whether an outer folder of target is a mount other than the new root itself."""
    folder = os.path.dirname(target)
    while folder not in ("/tmp", "/"):
        if os.path.ismount(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def set_limits(limits: Limits) -> None:
    """Limits of the kernel for this process and all it starts."""
    grown = _address_space_bytes() + limits.memory_bytes
    for name, value in (
        ("RLIMIT_AS", grown),
        ("RLIMIT_CPU", limits.cpu_s),
        ("RLIMIT_FSIZE", limits.file_bytes),
        ("RLIMIT_NOFILE", limits.n_files),
        ("RLIMIT_NPROC", limits.n_processes),
        ("RLIMIT_CORE", 0),
    ):
        if hasattr(resource, name):
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (allowed, allowed))


def _address_space_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 8 * 2**30
    return pages * resource.getpagesize()


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """No capability is left but those to change the user, and none can come back."""
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _try("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    kept = 1 << 6 | 1 << 7 if os.geteuid() == 0 else 0  # SETGID, SETUID: gone with the change
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    _try("capset", libc.capset(ctypes.byref(header), ctypes.byref(sets)))


def level() -> tuple[str, str]:
    """("full" | "limits" | "none", why not more): tried in a process of its own."""
    if not sys.platform.startswith("linux"):
        return ("limits" if hasattr(os, "fork") else "none"), f"{sys.platform} has no namespaces"
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            enter(View())
            status = 0
        except BaseException as error:
            os.write(send, str(error).encode()[:500])
        os._exit(status)
    os.close(send)
    _, ended = os.waitpid(child, 0)
    with os.fdopen(receive, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    return ("full", "") if ended == 0 else ("limits", said or "the kernel refused")
