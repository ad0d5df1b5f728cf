"""Bounds on what student code can make the judge do, which it calls back and sends things to."""

from __future__ import annotations

import contextlib
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sandbox.wire import TooLate

GRACE_S = 1  # beyond a limit, before this process interrupts itself
MORE_BYTES = 4 * 2**30  # of address space, beyond what this process has


@contextlib.contextmanager
def own_limits(left: Callable[[], float]) -> Iterator[None]:
    """When no time is left TooLate is raised, whatever runs here, and memory beyond MORE_BYTES is
    refused. left: how many seconds there still are.

    In the main thread of a process on Linux. In another thread neither is possible: there only the
    waits for the student's process are limited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _memory(), _alarm(left):
        yield


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    held = _address_space_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = held + MORE_BYTES
    if not held or resource.RLIM_INFINITY != soft <= limit:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    """0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


@contextlib.contextmanager
def _alarm(left: Callable[[], float]) -> Iterator[None]:
    def ring(*_: object) -> None:
        if (more := left()) <= 0:
            raise TooLate
        signal.setitimer(signal.ITIMER_REAL, more + GRACE_S)

    if signal.getitimer(signal.ITIMER_REAL)[0]:  # somebody else's alarm is on
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(left(), 0) + GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
