"""Read *.safetensors files with NumPy alone: a header of names and places, then plain numbers.

The file begins with 8 bytes that say how long the header is, then the header in JSON: for every
tensor its type, its shape and where its bytes lie behind the header. NumPy has no bfloat16, but
a bfloat16 is the upper half of a float32, so 16 zero bits behind it make it one.

Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inferlab.sizes import InvalidModelFile

NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""How the bytes of the readable types lie in the file; those of bfloat16 as whole numbers."""


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies in its file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the beginning of the file
    n_bytes: int

    def read(self, name: str) -> np.ndarray:
        """The tensor as a memory map of the file; a bfloat16 one as a float32 copy.

        Raises InvalidModelFile, naming it, for other types, and for a size unlike its shape.
        """
        if self.dtype not in NUMBERS:
            raise InvalidModelFile(
                f"tensor {name} in {self.path} is {self.dtype}; needed: F32, F16, BF16 or F64"
            )
        number = np.dtype(NUMBERS[self.dtype])
        if self.n_bytes != math.prod(self.shape) * number.itemsize:
            raise InvalidModelFile(
                f"tensor {name} in {self.path} takes {self.n_bytes} bytes, not those of "
                f"{self.shape} {self.dtype}"
            )
        if self.n_bytes == 0:
            return np.zeros(self.shape, np.float32)
        numbers = np.memmap(self.path, number, "r", self.offset, self.shape)
        return widen_bfloat16(numbers) if self.dtype == "BF16" else numbers


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 numbers, given as 16-bit whole numbers, as float32: exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """All tensors of one file by name; only the header is read.

    Raises InvalidModelFile for a file that is cut short or no safetensors file.
    """
    n_file_bytes = path.stat().st_size
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        start = 8 + n_header  # of the numbers
        if n_file_bytes < 8 or start > n_file_bytes:
            raise _broken(path, f"its header would end at byte {start:,} of {n_file_bytes:,}")
        raw = file.read(n_header)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        entries = {name: _entry(path, raw_entry, start) for name, raw_entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(path, f"its header is damaged: {error!r}") from None
    for name, entry in entries.items():
        if entry.offset < start or entry.offset + entry.n_bytes > n_file_bytes:
            raise _broken(path, f"tensor {name} lies beyond its {n_file_bytes:,} bytes")
    return entries


def _entry(path: Path, raw: Mapping[str, Any], start: int) -> StoredTensor:
    begin, end = raw["data_offsets"]
    shape = tuple(int(n) for n in raw["shape"])
    if end < begin or min(shape, default=0) < 0:
        raise ValueError(f"bytes {begin} to {end} for the shape {shape}")
    return StoredTensor(path, str(raw["dtype"]), shape, start + begin, end - begin)


def _broken(path: Path, reason: str) -> InvalidModelFile:
    return InvalidModelFile(f"{path} is no whole safetensors file ({reason}); fetch it again")
