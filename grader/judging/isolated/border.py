"""What student code may do with the judge's objects, and what the judge takes of what it sends.

A case may hand out an object: a cache, a counted memory, a model. The student's code calls its
methods through a stand-in. An instrument of the checks (a class of package grader) shows only what
an answer needs: its counters and what it wraps stay closed, for they are what is judged.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import lru_cache, partial
from types import MethodType, SimpleNamespace
from typing import Any

from sandbox.outputs import MAX_OUTPUT_BYTES, plain_output, short_enough

MAX_WARNINGS, MAX_WARNING_CHARACTERS, MAX_PRINTED_CHARACTERS = 8, 300, 4000


def may_touch(value: Any) -> bool:
    """What a case may hand to student code as an object: the course's own, and their methods."""
    if isinstance(value, MethodType):
        return _is_ours(type(value.__self__)) and may_name(value.__self__, value.__name__)
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        return _is_ours(value)
    if isinstance(value, partial):
        return may_touch(value.func)
    if isinstance(value, SimpleNamespace):
        return True
    if inspect.isgenerator(value):  # an input that is read piece by piece
        return True
    return not inspect.isclass(value) and not inspect.ismodule(value) and _is_ours(type(value))


def may_name(value: Any, name: str) -> bool:
    """Public names; of an object whose class the learner completes, private ones as well."""
    kind: Any = type(value)  # as a key of a cache
    if is_learners(value):
        return not name.startswith("__")
    if name.startswith("_"):
        return False
    bounded = _is_from(kind, "grader") or _is_instrument(kind)
    return name in _names_for_answers(kind) if bounded else True


def may_change(value: Any) -> bool:
    """Objects of the engine that a case makes anew each time, and those of the learner's class."""
    kind = type(value)
    return is_learners(value) or (_is_from(kind, "inferlab") and not _is_instrument(kind))


def is_learners(value: Any) -> bool:
    """Whether an object's class has a method that runs in the student's process."""
    kind: Any = type(value)  # as a key of a cache
    return _has_learners_part(kind)


@lru_cache(maxsize=64)
def _has_learners_part(kind: Any) -> bool:
    parts = (part for base in kind.__mro__ for part in vars(base).values())
    return any(getattr(part, "is_learners", False) for part in parts)


@lru_cache(maxsize=64)
def _names_for_answers(kind: Any) -> frozenset[str]:
    """What an instrument's `for_answers` says; else what the engine's class that it extends has."""
    if _is_instrument(kind):
        return frozenset(kind.for_answers)
    engine = [base for base in kind.__mro__ if _is_from(base, "inferlab")]
    names = {n for base in engine for n in (*vars(base), *getattr(base, "__annotations__", ()))}
    return frozenset(name for name in names if not name.startswith("_"))


def _is_ours(thing: Any) -> bool:
    module = getattr(thing, "__module__", "") or ""
    return module.split(".")[0] == "inferlab" or module.startswith("grader.checks")


def _is_instrument(kind: Any) -> bool:
    """Whether it counts what an answer does: only what it says is open to one."""
    return hasattr(kind, "for_answers")


def _is_from(kind: type, package: str) -> bool:
    return kind.__module__.split(".")[0] == package


# ---- what comes back ---------------------------------------------------------------------------


def repeat(asides: Any) -> None:
    """Say and warn here what the student's call said and warned there."""
    for text in list(asides.get("warned", []))[:MAX_WARNINGS]:
        warnings.warn(str(text)[:MAX_WARNING_CHARACTERS], RuntimeWarning, stacklevel=2)
    if asides.get("printed"):
        print(str(asides["printed"])[-MAX_PRINTED_CHARACTERS:], end="")


def plain_outputs(outputs: Any) -> list[dict[str, Any]]:
    """Outputs as nbformat has them; whatever else came is dropped, and what is too long cut."""
    return short_enough(list(_plain(outputs)), MAX_OUTPUT_BYTES)


def _plain(outputs: Any) -> Iterator[dict[str, Any]]:
    for output in outputs if isinstance(outputs, list) else []:
        kept = plain_output(output)
        if kept is not None:
            yield kept
