"""How sure an answer is, asked before it is judged: the same question and scale everywhere."""

from __future__ import annotations

QUESTION = "How sure are you, in %?"
FORM = "a number from 0 to 100, such as 80"


def share(text: str) -> float | None:
    """What was said, 0 to 1; None for an empty text: no answer. "80 %" -> 0.8

    Raises ValueError for anything else. 0.8 is refused: it most likely means 80.
    """
    said = text.strip()
    if not said:
        return None
    try:
        percent = float(said.rstrip("% "))
    except ValueError:
        percent = float("nan")
    if percent == 0 or 1 <= percent <= 100:
        return percent / 100
    raise ValueError(f"how sure is {FORM}, or nothing; given {said}")
