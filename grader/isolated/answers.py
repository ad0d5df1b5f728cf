"""What a student wrote, as something that the judge's own drives can call.

A function becomes a function that asks the student's process. Of a class only the methods that the
learner writes (and helpers of their own) run there, on an object that lives here.
"""

from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

from grader.exercise import Exercise
from grader.isolated.students import Student
from labkit.traced import note_peak
from sandbox.endpoint import StandIn


def answer_of(student: Student, exercise: Exercise, written: Any) -> Any:
    """written: what the notebook calls by the exercise's name.

    Returns what judge_on() takes. Data and other odd things are returned as they came.
    """
    if not isinstance(written, StandIn):
        return written
    if inspect.isclass(exercise.reference):
        return _class(student, exercise.reference, written)
    return _function(student, written, exercise.name)


def _function(student: Student, stand_in: Any, name: str) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not tracemalloc.is_tracing():
            return stand_in(*args, **kwargs)
        tracemalloc.stop()  # what is held here is not the student's
        value, peak = student.traced(stand_in, args, kwargs)
        note_peak(peak)
        return value

    def alone_with(part: str, others: Mapping[str, Any]) -> Callable:
        return _function(student, student.alone(stand_in, part, others), name)

    call.__name__ = call.__qualname__ = name
    call.alone_with = alone_with  # type: ignore[attr-defined]
    return call


def _class(student: Student, reference: type, written: Any) -> type:
    """The course's class, with the methods that the student's class defines."""
    body: dict[str, Any] = {"is_learners": True}
    for name in student.methods(reference.__name__):
        body[name] = _function(student, getattr(written, name), name)
    kind = type(reference.__name__, (reference,), body)
    kind.__module__ = reference.__module__
    return kind
