"""An exercise for tests of the judge."""

import numpy as np

from grader.judging.exercise import Exercise, given


def toy_exercise(reference, cases=(), **options) -> Exercise:
    """An exercise that belongs to no lesson."""
    filled = {
        "id": "toy",
        "lesson": "00_toy",
        "points": 1,
        "minutes": 1,
        "difficulty": 1,
        "hints": ("a", "b", "c"),
        "wrong": {},
        "right": {},
        "cases": cases or (given("one", x=np.arange(3.0)),),
    }
    return Exercise(reference=reference, **(filled | options))
