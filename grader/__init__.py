"""The autograder. A notebook imports its verbs from here; each is loaded when it is first used.

checks/ says what earns points and judging/ how it is judged; learner/ is what one person meets,
classroom/ a class; notebooks/ builds and mends the files, safe_pages/ shows them; cli.py is the
command `inferlab`.
"""

import sys
from typing import TYPE_CHECKING, Any

import inferlab  # noqa: F401  first: it sets how long NumPy's threads wait busily
from inferlab.moved import keep_old_names
from sandbox.stand_ins import MOVED

if TYPE_CHECKING:
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

# jsonschema, which nbformat checks notebooks with, imports this if it can: two seconds, to know a
# kind of address that no notebook has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

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

keep_old_names(MOVED)


def __getattr__(name: str) -> Any:
    """A verb, from the module that defines it: a Jupyter server imports grader without NumPy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from grader.learner import desk, my_engine, progress

    verb = getattr({"progress": progress, "my_engine": my_engine}.get(name, desk), name)
    globals()[name] = verb
    return verb
