"""What a drive observes of counted memory, in words that two answers can be compared by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferlab.counted_memory import CountedMemory


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
