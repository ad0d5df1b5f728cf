"""A time that counts computing and sleeping, not standing in line for a core.

So a student's check takes as long on a busy computer as it would alone. Linux tells how long a
process was ready to run and did not; elsewhere the clock is the usual one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

AT_MOST = 5  # by the usual clock, that many times as long


class Clock:
    """How long is left of some seconds. processes: those whose standing in line is not counted."""

    def __init__(self, seconds: float, processes: Sequence[int | str] = ("self",)) -> None:
        self.seconds, self._processes = seconds, processes
        self._begun, self._before = time.monotonic(), self._in_line()

    def left(self) -> float:
        elapsed = time.monotonic() - self._begun
        if elapsed < self.seconds:
            return self.seconds - elapsed
        own = elapsed - max(0.0, self._in_line() - self._before)
        return min(self.seconds - own, AT_MOST * self.seconds - elapsed)

    def _in_line(self) -> float:
        return sum(map(_in_line_s, self._processes))


def _in_line_s(process: int | str) -> float:
    """Seconds that the first thread of a process has been ready and did not run."""
    try:
        _, waited, _ = Path(f"/proc/{process}/schedstat").read_text().split()
        return int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0
