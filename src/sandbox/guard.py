"""The guard of one student's process, outside its walls: it ends it and all it has started."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from pathlib import Path

LOOK_MS = 100
MEMORIES = ("/tmp", "/scratch", "/dev/shm")  # folders in memory, where they are mounted


class Watch:
    """On one student's process, from outside: it is ended when its line is, or when it takes more
    memory than it may. line: its end of the connection to the judge, which is closed with it.
    """

    def __init__(self, process: int, line: socket.socket, most_bytes: int) -> None:
        self._line, self._most_bytes, self._base = line, most_bytes, _own_bytes("/proc/self")
        self._root, self.ended = f"/proc/{process}/root", os.pidfd_open(process)

    @property
    def events(self) -> tuple[tuple[int, int], ...]:
        """What to poll for."""
        return (self.ended, select.POLLIN), (self._line.fileno(), select.POLLRDHUP)

    def is_too_large(self) -> bool:
        return _made_bytes(self._root, self._base) > self._most_bytes

    def end(self) -> None:
        """End process 1 in there, and the kernel ends all the others."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.ended, signal.SIGKILL)
        os.close(self.ended)
        self._line.close()


def _made_bytes(root: str, base: int) -> int:
    """Memory that the processes inside have made, beyond what the first one began with.

    Each one's own; what they share, once; and files in memory.
    """
    if os.path.exists(f"{root}/proc/self"):  # it is not inside yet: there one sees them alone
        return 0
    try:
        processes = [name for name in os.listdir(f"{root}/proc") if name.isdigit()]
    except OSError:  # it has just ended
        return 0
    if len(processes) <= 1:  # one alone is within the kernel's own limit
        return 0
    paths = [f"{root}/proc/{name}" for name in processes]
    own = sum(max(0, _own_bytes(path) - base) for path in paths)
    return own + sum(map(_shared_bytes, paths)) + sum(_file_bytes(root + f) for f in MEMORIES)


def _own_bytes(process: str) -> int:
    """Memory of a process (its folder in a /proc) that is no file's."""
    try:
        _, resident, shared, *_ = Path(process, "statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _shared_bytes(process: str) -> int:
    """Its part of the memory that it shares with others and that is no file's on a disk."""
    try:
        status = Path(process, "status").read_text()
        if _kilobytes(status, "RssShmem:") == 0:  # as for most; the exact part takes long to ask
            return 0
        rollup = Path(process, "smaps_rollup").read_text()
        return 1024 * _kilobytes(rollup, "Pss_Shmem:")
    except (OSError, ValueError):
        return 0


def _kilobytes(text: str, name: str) -> int:
    return next((int(x.split()[1]) for x in text.splitlines() if x.startswith(name)), 0)


def _file_bytes(folder: str) -> int:
    """What lies in a file system in memory; 0 for a folder of the root's own."""
    try:
        if not os.path.ismount(folder):
            return 0
        found = os.statvfs(folder)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize
