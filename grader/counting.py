"""Count what an answer does to memory, so that traffic and footprint are judged without a clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from labkit.traced import traced_peak


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


def counts(memory: CountedMemory, *names: str) -> Mapping[str, Any]:
    """The observation a drive returns: results by name, and the traffic."""
    found: dict[str, Any] = {name: memory.result(name) for name in names}
    found |= {"loaded_bytes": memory.loaded_bytes, "stored_bytes": memory.stored_bytes}
    return found


def held(peak_bytes: int, limit_bytes: int) -> str:
    """The peak in words; all that are too large get the same words."""
    if peak_bytes <= limit_bytes:
        return f"at most {limit_bytes:,} bytes"
    return f"more than {limit_bytes:,} bytes: more is kept than a few blocks"
