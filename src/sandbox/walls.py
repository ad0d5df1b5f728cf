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
import select
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

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
    n_processes: int = 64  # threads count
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


def enter(view: View, scratch: str = "/tmp", line: int | None = None) -> None:
    """Build the walls round this process, and become process 1 within them. May fork.

    The caller's process stays outside as a guard: it ends process 1, and with it everything inside,
    when the other end of `line` (a socket) is closed or too much memory is held. The function
    returns in the inner process only. Raises CannotIsolate if the kernel refuses.
    """
    libc = _libc()
    is_root = os.geteuid() == 0
    if is_root:  # no user namespace: its own files may lie where an ordinary user cannot look
        _try("unshare", libc.unshare(NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS))
    else:
        _own_users(libc)
    user = FIRST_USER + os.getpid()
    inner = os.fork()
    if inner:
        _guard(inner, line, view.limits.all_processes_bytes)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _be_first_to_go()
    _new_root(libc, view, scratch)
    os.chdir(scratch)
    drop_capabilities(libc)
    if is_root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        _change_user(user)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the change of user cleared it
    set_limits(view.limits)
    _try("seccomp", deny(libc))


def _own_users(libc: ctypes.CDLL) -> None:
    """For an ordinary user: namespaces in which it may build the others' walls."""
    uid, gid = os.geteuid(), os.getegid()
    _try("unshare", libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


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


def _guard(inner: int, line: int | None, most_bytes: int) -> None:
    """Wait outside for process 1, end it when it is time, and end as it ended."""
    ended, base = os.pidfd_open(inner), _own_bytes("self")
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    if line is not None:
        poll.register(line, select.POLLRDHUP)
    while not poll.poll(LOOK_MS):
        if _made_bytes(base) > most_bytes:
            break
    os.kill(inner, signal.SIGKILL)  # it is not waited for yet: the number is its own
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 255)


LOOK_MS = 100


def _made_bytes(base: int) -> int:
    """Memory that the processes inside have made, beyond what the first one began with."""
    if os.path.exists("/proc/self"):  # the new root, whose /proc shows them alone, is not there yet
        return 0
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    if len(processes) <= 1:  # one alone is within the kernel's own limit
        return 0
    return sum(max(0, _own_bytes(name) - base) for name in processes)


def _own_bytes(process: str) -> int:
    """Memory of a process that is no file's."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _new_root(libc: ctypes.CDLL, view: View, scratch: str) -> None:
    """A root that holds the system's programs and what the view names, all read-only."""
    mount = _mounter(libc)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = "/tmp"  # any folder that exists; the new root is mounted over it
    size = f"size={view.limits.scratch_bytes},nr_inodes={view.limits.n_scratch_files},mode="
    kept = [(p, os.open(p, os.O_PATH)) for p in _existing((*SYSTEM, *view.readable))]
    masks = _maskable(view.hidden)
    devices = [(f"/dev/{d}", os.open(f"/dev/{d}", os.O_PATH)) for d in DEVICES]
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, size + "755")
    inner = [(path, handle) for path, handle in kept if _is_within(path, masks)]
    for path, handle in kept:
        if (path, handle) not in inner:
            _bind(mount, handle, root + path, _is_folder(handle))
    masks = [root + path for path in masks if os.path.isdir(root + path)]
    for mask in masks:
        mount("tmpfs", mask, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,mode=755")
    for path, handle in inner:
        _bind(mount, handle, root + path, _is_folder(handle))
    for mask in masks:
        mount(None, mask, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_BIND)
    for path, handle in devices:
        _bind(mount, handle, root + path, folder=False, read_only=False)
    for folder in ("/proc", scratch, "/old", "/dev/shm"):
        os.makedirs(root + folder, exist_ok=True)
    for i, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{i}", f"{root}/dev/{name}")
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV)
    for folder in (scratch, "/dev/shm"):
        mount("tmpfs", root + folder, "tmpfs", MS_NOSUID | MS_NODEV, size + "1777")
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
