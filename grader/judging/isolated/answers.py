"""What a student wrote, as something that the judge's own drives can call.

A function becomes a function that asks the student's process. Of a class only the methods that the
learner writes (and helpers of their own) run there, on an object that lives here.
"""

from __future__ import annotations

import inspect
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from grader.judging.exercise import Exercise
from grader.judging.isolated.students import Gone, Student
from inferlab.counted_memory import note_peak
from labkit.measure.rewire import wired
from sandbox.endpoint import StandIn, StudentError

TOO_MUCH = ("TooLarge", "TooMuchOutput")  # errors of the sandbox: an answer or a print of that size


class NoAnswer(Exception):
    """What the notebook calls by that name cannot be judged; the text says why."""


def answer_of(student: Student, exercise: Exercise, to_write: Sequence[str]) -> Callable:
    """What judge_on() takes: the notebook's function or class of that name, which runs there.

    to_write: of a class, the methods that the learner writes.
    Raises KeyError if the notebook has nothing of that name, NoAnswer if it is nothing to call.
    """
    written = student.value(exercise.name)
    # Of the judge's own objects nothing can be an answer, however it came into the notebook.
    if not isinstance(written, StandIn):
        raise NoAnswer(f"{exercise.name} should be a function or class, it is {written!r:.60}")
    if inspect.isclass(exercise.reference):
        return _class(student, exercise.reference, to_write)
    return _function(student, written, exercise.name)


def _function(student: Student, stand_in: Any, name: str) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not tracemalloc.is_tracing():
            return _in_bounds(stand_in, *args, **kwargs)
        tracemalloc.stop()  # what is held here is not the student's
        value, peak = _in_bounds(student.traced, stand_in, args, kwargs)
        note_peak(peak)
        return value

    def alone_with(part: str, others: Mapping[str, Any]) -> Callable:
        def this_part(*args: Any, **kwargs: Any) -> Any:
            return answer(*args, **kwargs)

        # The course's parts call the student's own in place of the one under judgement: a
        # softmax cannot be got out of the course's attention.
        wired_parts = wired({**others, part: this_part})
        theirs = {name: wired_parts[name] for name in others}
        answer = _function(student, student.alone(stand_in, part, theirs), name)
        return answer

    call.__name__ = call.__qualname__ = name
    call.many = partial(_in_bounds, student.many, stand_in)  # type: ignore[attr-defined]
    call.is_learners = True  # type: ignore[attr-defined]
    call.alone_with = alone_with  # type: ignore[attr-defined]
    return call


def _in_bounds(ask: Callable, *args: Any, **kwargs: Any) -> Any:
    try:
        return ask(*args, **kwargs)
    except StudentError as error:
        if error.kind in TOO_MUCH:  # no need to try the other cases
            raise Gone("too much output", str(error)) from None
        raise


def _class(student: Student, reference: type, to_write: Sequence[str]) -> type:
    """The course's class, with the methods that the student's class defines in their place.

    Those to be written run there whatever the student's process says that it has; so does what
    makes an object. Their helpers stay there.
    """
    body: dict[str, Any] = {}
    for name in dict.fromkeys((*to_write, *student.methods(reference.__name__))):
        is_given = hasattr(reference, name) and not name.startswith("__")
        if name in to_write or name == "__init__" or is_given:
            body[name] = _function(student, _method(student, reference.__name__, name), name)
    kind = type(reference.__name__, (reference,), body)
    kind.__module__ = reference.__module__
    return kind


def _method(student: Student, kind: str, name: str) -> Any:
    try:
        return student.method(kind, name)
    except AttributeError:
        raise NoAnswer(f"the class has no method {name}") from None
