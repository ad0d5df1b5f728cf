"""What keeps a student's process in: namespaces, a root of its own, limits, no privileges.

Linux only; written against the kernel's own calls, through ctypes, so that it works for an ordinary
user and needs nothing installed. level() says what this computer allows.

Source: man pages user_namespaces(7), pid_namespaces(7), mount_namespaces(7), pivot_root(2),
prctl(2), getrlimit(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NoReturn

from sandbox.syscalls import deny

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534
FIRST_USER = 2**30  # users above it belong to nobody; each student's process is one of its own
USERS_EACH = 256  # of a process that forks students; numbers of processes stay below 2**22

SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt",
    "/etc/fonts", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl",
)  # fmt: skip
ROOT = "/tmp"  # any folder that exists; the new root is mounted over it
NICE = 5
DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True)
class Limits:
    """What one process may use. memory_bytes is counted beyond what it has when it starts."""

    memory_bytes: int = 2 * 2**30
    cpu_s: int = 600
    file_bytes: int = 64 * 2**20
    n_files: int = 256
    n_processes: int = 40  # threads count
    scratch_bytes: int = 256 * 2**20
    n_scratch_files: int = 20_000
    all_processes_bytes: int = 4 * 2**30  # that a student's processes have made, all together


@dataclass(frozen=True)
class View:
    """What of the file system can be seen, read-only, besides the system's programs.

    hidden: folders that are empty even where the system's or a readable one holds them; what is
    readable within a hidden one can be seen.
    """

    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


class CannotIsolate(OSError):
    """The kernel refused a wall; the message says which."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _try(name: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise CannotIsolate(number, f"{name}: {os.strerror(number)}")


class Room:
    """Where one lesson's students are kept, one after the other or at once: a root of its own.

    Made in the process that forks them, and for good: mounts, and for an ordinary user its rights,
    are then those of the room. It stays outside of each student's walls and is their guard. Made by
    an ordinary user it goes on in another process, and the first one only waits for that.
    Raises CannotIsolate if the kernel refuses.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.scratch = "/tmp"  # the folder to write to, unless it would cover what is to be seen
        if any(os.path.realpath(path).startswith("/tmp/") for path in view.readable):
            self.scratch = "/scratch"
        self._libc, self._is_root = _libc(), os.geteuid() == 0
        first = FIRST_USER + USERS_EACH * os.getpid()
        self._users = cycle(range(first, first + USERS_EACH))
        if self._is_root:  # no user namespace: its own files may lie where others cannot look
            _try("unshare", self._libc.unshare(NEWNS))
        else:
            _own_users(self._libc)
        self._own_numbers = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        _build_root(self._libc, view, self.scratch)

    def fork(self) -> int:
        """os.fork(), the child as process 1 of its own; enter() builds the rest of its walls."""
        _try("unshare", self._libc.unshare(NEWPID))
        self._user = next(self._users)
        try:
            return os.fork()
        finally:  # in the child as well, where it changes nothing
            self._libc.setns(self._own_numbers, NEWPID)

    def enter(self) -> None:
        """In the child: see the room alone, with a folder to write to; and give up all rights."""
        libc = self._libc
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _be_first_to_go()
        _try("unshare", libc.unshare(NEWNS | NEWNET | NEWIPC | NEWUTS))
        _move_in(libc, self.view, self.scratch)
        os.chdir(self.scratch)
        drop_capabilities(libc)
        if self._is_root:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            _change_user(self._user)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the change of user cleared it
        set_limits(self.view.limits)
        _try("seccomp", deny(libc))


def enter(view: View) -> None:
    """Build the walls round this process: it goes on inside, and outside one waits for its end."""
    room = Room(view)
    inner = room.fork()
    if inner:
        _end_with(inner)
    room.enter()


def _end_with(other: int) -> NoReturn:
    """Wait for a child and end as it ended."""
    _, status = os.waitpid(other, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 255)


def _own_users(libc: ctypes.CDLL) -> None:
    """For an ordinary user: namespaces in which it may build the walls. Goes on in a child."""
    uid, gid = os.geteuid(), os.getegid()
    _try("unshare", libc.unshare(NEWUSER | NEWNS | NEWPID))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if inner := os.fork():
        _end_with(inner)
    signal.signal(signal.SIGCHLD, before)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mount = _mounter(libc)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)


def _be_first_to_go() -> None:
    """Where memory runs short, the kernel is to end this process, not the judge."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _change_user(user: int) -> None:
    """A user of its own: the limit on processes counts each user's, and no other's signals come."""
    try:
        os.setresuid(user, user, user)
    except OSError:  # a container that has only the lower numbers
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _build_root(libc: ctypes.CDLL, view: View, scratch: str) -> None:
    """At ROOT, what the system's programs and the view need, read-only; all but what is private."""
    mount = _mounter(libc)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    kept = [(p, os.open(p, os.O_PATH)) for p in _existing((*SYSTEM, *view.readable))]
    masks = _maskable(view.hidden)
    devices = [(f"/dev/{d}", os.open(f"/dev/{d}", os.O_PATH)) for d in DEVICES]
    mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=2000,mode=755")
    inner = [(path, handle) for path, handle in kept if _is_within(path, masks)]
    for path, handle in kept:
        if (path, handle) not in inner:
            _bind(mount, handle, ROOT + path, _is_folder(handle))
    masks = _outermost([ROOT + path for path in masks if os.path.isdir(ROOT + path)])
    for mask in masks:
        mount("tmpfs", mask, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    for path, handle in inner:
        _bind(mount, handle, ROOT + path, _is_folder(handle))
    for mask in masks:
        mount(None, mask, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_BIND)
    for path, handle in devices:
        _bind(mount, handle, ROOT + path, folder=False, read_only=False)
    for folder in ("/proc", scratch, "/old", "/dev/shm"):
        os.makedirs(ROOT + folder, exist_ok=True)
    for i, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{i}", f"{ROOT}/dev/{name}")
    os.symlink("/proc/self/fd", f"{ROOT}/dev/fd")
    mount(None, ROOT, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_BIND)


def _move_in(libc: ctypes.CDLL, view: View, scratch: str) -> None:
    """Make ROOT this process's root, with processes and folders of its own."""
    mount = _mounter(libc)
    size = f"size={view.limits.scratch_bytes},nr_inodes={view.limits.n_scratch_files},mode=1777"
    mount("proc", ROOT + "/proc", "proc", MS_NOSUID | MS_NODEV)
    for folder in (scratch, "/dev/shm"):
        mount("tmpfs", ROOT + folder, "tmpfs", MS_NOSUID | MS_NODEV, size)
    number = PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise CannotIsolate(0, f"pivot_root on {platform.machine()} is not known here")
    _try("pivot_root", libc.syscall(number, ROOT.encode(), (ROOT + "/old").encode()))
    os.chdir("/")
    _try("umount", libc.umount2(b"/old", MNT_DETACH))


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


def _maskable(paths: Iterable[str]) -> list[str]:
    """Those that do not hold a folder which Python itself needs."""
    needed = [os.path.join(os.path.realpath(p), "") for p in ("/usr", "/lib", "/bin")]
    resolved = {os.path.realpath(path) for path in paths}
    return sorted(p for p in resolved if not any(n.startswith(os.path.join(p, "")) for n in needed))


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(os.path.realpath(path).startswith(os.path.join(f, "")) for f in folders)


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


def _outermost(folders: list[str]) -> list[str]:
    """Those that lie in none of the others."""
    return [f for f in folders if not _is_within(f, [other for other in folders if other != f])]


def _within_bind(target: str) -> bool:
    """Whether an outer folder of target is a mount other than the new root itself."""
    folder = os.path.dirname(target)
    while folder not in (ROOT, "/"):
        if os.path.ismount(folder):
            return True
        folder = os.path.dirname(folder)
    return False


def give_way(cpu: int) -> None:
    """Compute after those who judge, and on one core only: -1 for any."""
    os.nice(NICE)
    if cpu >= 0 and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {cpu})


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
