"""Run an answer on a case and note all that it showed: value, error, prints, warnings, changes."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grader.judging.compare import as_array, raised
from grader.judging.exercise import Case, Exercise, Inputs

SCALARS = (bool, int, float, str)  # arguments that nobody can change


@dataclass
class Observation:
    """What one run of an answer showed."""

    value: Any = None
    error: BaseException | None = None
    printed: str = ""
    warned: list[str] = field(default_factory=list)
    changed: str = ""  # name of an input that the answer modified


def observe(exercise: Exercise, answer: Any, case: Case) -> Observation:
    """Run the answer on fresh inputs; catch what it raises, prints and warns.

    Where it imported something, run it again: a module's memory is not the answer's.
    """
    n_modules = len(sys.modules)
    seen = _observe_once(exercise, answer, case)
    if len(sys.modules) > n_modules:
        seen = _observe_once(exercise, answer, case)
    return seen


def _observe_once(exercise: Exercise, answer: Any, case: Case) -> Observation:
    inputs, seen, output = case.make(), Observation(), io.StringIO()
    with (
        np.errstate(all="warn", under="ignore"),
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(output),
    ):
        warnings.simplefilter("always")
        try:
            seen.value = exercise.drive(answer, inputs)
        except (Exception, SystemExit) as error:
            seen.error = error
    seen.printed = output.getvalue()
    seen.warned = sorted({str(w.message) for w in caught if w.category is RuntimeWarning})
    seen.changed = _changed_input(exercise, inputs, case)
    return seen


def expected_of(exercise: Exercise, case: Case) -> Any:
    """What is right there; Raised where the case asks for a refusal."""
    try:
        with np.errstate(all="warn", under="ignore"):
            return exercise.observe_expected(case.make())
    except ValueError as error:
        return raised(error)


def plain(seen: Observation) -> Any:
    """What can be compared with what is right: the value, or Raised."""
    if seen.error is None:
        return seen.value
    return raised(seen.error)


def _changed_input(exercise: Exercise, inputs: Inputs, case: Case) -> str:
    if all(value is None or isinstance(value, SCALARS) for value in inputs.values()):
        return ""  # nothing that could be changed
    for name, before in case.make().items():
        if not _unchanged(inputs[name], before):
            which = f"its input {name}" if name in exercise.parameters() else "one of its inputs"
            return f"it changes {which} in place; work on a copy"
    return ""


def _unchanged(after: Any, before: Any) -> bool:
    """Arrays, numbers, texts, and dicts and sequences of them; other objects may change."""
    if isinstance(before, np.ndarray):
        array = as_array(after)
        return array is not None and np.array_equal(array, before, equal_nan=True)
    if isinstance(before, Mapping):
        same_keys = isinstance(after, Mapping) and after.keys() == before.keys()
        return same_keys and all(_unchanged(after[key], before[key]) for key in before)
    if isinstance(before, (list, tuple)):
        same_length = isinstance(after, (list, tuple)) and len(after) == len(before)
        return same_length and all(map(_unchanged, after, before))
    if isinstance(before, SCALARS):
        return type(after) is type(before) and (after == before or before != before)
    return True
