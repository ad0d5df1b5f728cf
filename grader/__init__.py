"""The autograder. A notebook imports its verbs from here.

checks/ says what earns points and judging/ how it is judged; learner/ is what one person meets,
classroom/ a class; notebooks/ builds and mends the files, safe_pages/ shows them; cli.py is the
command `inferlab`.
"""

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
