"""The name of the lesson that these checks judge, and what several of their drives need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.judging.compare import raised

LESSON = "03_prefill_decode"


def tried(call: Callable[[], Any]) -> Any:
    """Its result, or the observation that it raised: one call of several that a drive makes."""
    try:
        return call()
    except Exception as error:
        return raised(error)
