"""Which parameters and fields of an exercise's inputs never change over its visible cases."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from lesson_text import methods_to_write

from grader.judging.exercise import Exercise

LEFT_OUT = "left out"


@dataclass
class Seen:
    """values: of each parameter, and of each field that was read of a record that was given."""

    values: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    defaults: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, value: Any) -> None:
        self.values[name].add(as_text(value))

    def never_vary(self) -> list[str]:
        """Every name that has one value only, and every default that no case relies on."""
        found = []
        for name, values in self.values.items():
            default = {self.defaults[name]} if LEFT_OUT in values else set()
            if len(values - {LEFT_OUT} | default) < 2:
                found.append(name)
            elif name in self.defaults and LEFT_OUT not in values:
                found.append(f"{name} is never left out")
        return sorted(found)


def as_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype} {hash(value.tobytes())}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_text, value))}]"
    if is_dataclass(value):
        return str([as_text(getattr(value, f.name)) for f in fields(value)])
    return repr(value)


def watched(record: Any, name: str, seen: Seen) -> Any:
    """The same record; which of its fields are read, and with what value, is noted."""
    kind = type(record)
    names = {f.name for f in fields(record)}
    quiet = [False]

    def get(self: Any, attribute: str) -> Any:
        value = object.__getattribute__(self, attribute)
        if attribute in names and not quiet[0]:
            seen.note(f"{name}.{attribute}", value)
        return value

    def check(self: Any) -> None:
        quiet[0] = True
        with suppress(AttributeError):
            kind.__post_init__(self)
        quiet[0] = False

    def shown(self: Any) -> str:
        quiet[0] = True
        text = kind.__repr__(self)
        quiet[0] = False
        return text

    members = {"__getattribute__": get, "__post_init__": check, "__repr__": shown}
    copy = object.__new__(type(kind.__name__, (kind,), members))
    for f in fields(record):
        object.__setattr__(copy, f.name, getattr(record, f.name))
    return copy


def watching(function: Callable, seen: Seen) -> Callable:
    """The function; its arguments are noted, and what it reads of records among them."""
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        if parameter.default is not parameter.empty:
            seen.defaults[name] = as_text(parameter.default)

    def answer(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name in signature.parameters:
            if name == "self":
                continue
            if name not in bound.arguments:
                seen.values[name].add(LEFT_OUT)
                continue
            value = bound.arguments[name]
            seen.note(name, value)
            if is_dataclass(value) and type(value).__dataclass_params__.frozen:
                bound.arguments[name] = watched(value, name, seen)
        return function(*bound.args, **bound.kwargs)

    return answer


def over_visible_cases(exercise: Exercise) -> Seen:
    """What the reference is given over the visible cases; of a class, each method to write."""
    seen, reference = Seen(), exercise.reference
    if isinstance(reference, type):
        part = exercise.id.partition(".")[2]
        parts = [part] if part else methods_to_write(exercise.lesson, exercise.name)
        own = {name: watching(getattr(reference, name), seen) for name in parts}
        answer: Any = type(reference.__name__, (reference,), own)
    else:
        answer = watching(reference, seen)
    for case in exercise.visible_cases():
        with suppress(ValueError):  # it asks for a refusal
            exercise.drive(answer, case.make())
    return seen
