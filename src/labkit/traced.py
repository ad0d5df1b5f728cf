"""How much memory a piece of code holds at once, counted by Python's own allocator."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

_elsewhere: list[int] = []


def note_peak(n_bytes: int) -> None:
    """Inside traced_peak: what was traced ran in another process, and held this much there."""
    _elsewhere.append(n_bytes)


@contextmanager
def traced_peak() -> Iterator[dict[str, int]]:
    """Most bytes held at once while the body runs, beyond what was held before it.

    Where the body ran in another process (note_peak), that process's count is the one that holds.
    """
    peak = {"bytes": 0}
    _elsewhere.clear()
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        yield peak
    finally:
        here = tracemalloc.get_traced_memory()[1] - before
        peak["bytes"] = max(_elsewhere, default=here)
        if already:
            tracemalloc.start()
        else:
            tracemalloc.stop()
