"""The autograder. A notebook imports its verbs from here."""

import inferlab  # noqa: F401  first: it sets how long NumPy's threads wait busily
from grader.learner.desk import (
    Answers,
    CheckFailed,
    check,
    confront,
    drill,
    hint,
    interview,
    predict,
    ready,
    solution,
)
from grader.learner.my_engine import my_engine
from grader.learner.progress import progress

__all__ = [
    "Answers",
    "CheckFailed",
    "check",
    "confront",
    "drill",
    "hint",
    "interview",
    "my_engine",
    "predict",
    "progress",
    "ready",
    "solution",
]
