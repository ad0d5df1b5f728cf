"""The device a measurement runs on, in words, and whether to measure at all."""

from __future__ import annotations

import os

from inferlab.device import cpu_name, describe, n_cores, name, pick, torch_module
from labkit.display import box, put

__all__ = [
    "cpu_name",
    "describe",
    "grading",
    "n_cores",
    "name",
    "not_measured",
    "pick",
    "torch_module",
]


def grading() -> bool:
    """True while a notebook is graded or validated: measurements are then skipped, and say so."""
    return any(os.environ.get(key) for key in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"))


def not_measured(reason: str) -> None:
    """Say, so that nobody overlooks it, that nothing was measured and what it would need."""
    if not reason.strip():
        raise ValueError("reason is empty: say what the measurement needs")
    text = f"not measured here: {reason}"
    put(box(text), text)
