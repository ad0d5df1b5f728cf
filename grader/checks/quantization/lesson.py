"""The name of the lesson that these checks judge, and how they see a number type."""

from __future__ import annotations

from typing import Any

import numpy as np

LESSON = "07_quantization"


def number_type(value: Any, like: np.ndarray) -> str:
    """The number type of an array or a tensor; a list has none of its own, and counts as right."""
    return str(getattr(value, "dtype", like.dtype)).removeprefix("torch.")
