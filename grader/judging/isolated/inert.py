"""What the judge looks at holds nothing that answers: a student's object is only named.

A stand-in sends each look at it to the student's process, where it may raise anything. Drives call
such objects, and what they raise then is the answer's; comparing begins when they are done.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import replace
from typing import Any

from grader.judging.exercise import Exercise, Inputs
from sandbox.endpoint import Forgotten, StandIn
from sandbox.wire import MAX_INT_BITS

TOO_LONG_A_NUMBER = "<object of type int>"  # that is how one with thousands of digits is shown


class Foreign:
    """Stands for an object of the student's."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def inert(value: Any) -> Any:
    """The value, with something inert in place of each object that only the student has.

    A number too long to be printed stays there; here the smallest of that length stands for it.
    """
    kind = type(value)
    if kind is StandIn and repr(value) == TOO_LONG_A_NUMBER:
        return 1 << MAX_INT_BITS
    if kind is StandIn or kind is Forgotten:
        return Foreign(repr(value) if kind is StandIn else "<an object of an earlier question>")
    if kind in (list, tuple, deque) and any(map(_may_hold, value)):
        return kind(map(inert, value))
    if kind in (dict, OrderedDict) and any(map(_may_hold, value.values())):
        return kind((key, inert(part)) for key, part in value.items())
    return value


def _may_hold(value: Any) -> bool:
    return type(value) in (StandIn, Forgotten, list, tuple, deque, dict, OrderedDict)


def seen_as_data(exercise: Exercise) -> Exercise:
    """The exercise, with a drive that returns what is inert."""

    def drive(answer: Any, inputs: Inputs) -> Any:
        try:
            return inert(exercise.drive(answer, inputs))
        finally:  # whether an input was changed is looked at too
            inputs.update({name: inert(value) for name, value in inputs.items()})

    return replace(exercise, drive=drive)
