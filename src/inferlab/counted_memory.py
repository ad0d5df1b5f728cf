"""Count what a piece of code does to memory: its traffic, and the most it holds at once.

So footprint and traffic are told without a clock: by a memory that counts what is loaded and
stored, and by Python's own allocator.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

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


class CountedMemory:
    """A slow memory of named arrays that an answer may reach only by load and store.

    loaded_bytes, stored_bytes: traffic so far.
    peak_bytes: the most that NumPy held at once inside `with memory.watching()`, beyond what
    was there at the start: tiles that were loaded and everything computed from them.
    """

    for_answers = ("shape", "load", "store")  # all else is the judge's

    def __init__(self, **arrays: np.ndarray) -> None:
        self._arrays = {name: array.copy() for name, array in arrays.items()}
        self.loaded_bytes = self.stored_bytes = self.peak_bytes = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return self._array(name).shape

    def load(self, name: str, *index: Any) -> np.ndarray:
        """A copy of one part: load("k", 0, slice(64, 128)). Counts its bytes."""
        tile = np.array(self._array(name)[index])
        self.loaded_bytes += tile.nbytes
        return tile

    def store(self, name: str, value: np.ndarray, *index: Any) -> None:
        """Write one part. Counts its bytes."""
        target = self._array(name)[index]
        if np.shape(value) != target.shape:
            raise ValueError(f"store to {name}: needs {target.shape}, given {np.shape(value)}")
        self._array(name)[index] = value
        self.stored_bytes += target.nbytes

    def result(self, name: str) -> np.ndarray:
        """The whole array, for the judge: not counted."""
        return self._array(name).copy()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure peak_bytes while the body runs."""
        with traced_peak() as peak:
            yield
        self.peak_bytes = max(self.peak_bytes, peak["bytes"])

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise ValueError(f"no array {name!r} in this memory; it has {sorted(self._arrays)}")
        return self._arrays[name]
