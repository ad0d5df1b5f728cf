"""Judge an exercise on its own merit: a part that it calls and that is wrong is ours meanwhile.

Whoever counts kv_cache_bytes right from a kv_bytes_per_token that is wrong has made one mistake,
and it costs the points of one exercise. So an exercise that does not pass is judged again with the
reference in place of those parts that do not pass their own checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial, wraps
from inspect import getattr_static, isclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from grader.judging import registry
from grader.judging.exercise import Exercise
from grader.judging.judge import Trial, in_time, try_out
from grader.judging.verdict import Outcome, Verdict
from labkit.measure.rewire import lent

RIGHT_WITH_OURS = "right; it was judged with the reference's"  # how a verdict that borrows begins


def judge_alone(exercise: Exercise, namespace: dict[str, Any], hidden: bool = False) -> Verdict:
    """Judge what a namespace has of this exercise; where it fails, with our parts for wrong ones.

    The namespace holds our parts for the time of that second judgement.
    """
    answer = namespace[exercise.name]
    trial = try_out(exercise, answer, hidden=hidden)
    faults = {} if trial.passed else _faults(exercise, trial, namespace, hidden)
    if not faults:
        return in_time(trial)
    called = {name for name, own in ours_for(faults).items() if isclass(own)}
    with lent(namespace, watched(ours_for(faults), called)):
        verdict = in_time(try_out(exercise, answer, hidden=hidden))
    used = {part: how for part, how in faults.items() if part.partition(".")[0] in called}
    return noted(verdict, used) if used else in_time(trial)


def may_borrow(exercise: Exercise) -> tuple[Exercise, ...]:
    """Parts of the lesson that may be ours while this exercise is judged, in its order.

    Those that come before it, and those that the reference calls. None gives what is asked for:
    the lesson builds an exercise on what stands before it, never the other way round.
    """
    lesson = registry.exercises(exercise.lesson)
    place = [other.id for other in lesson].index(exercise.id)
    before = {other.id for other in lesson[:place]} | _used_by(exercise.id)
    return tuple(part for part in lesson if part.id in before and part.name != exercise.name)


@lru_cache(maxsize=512)
def _used_by(exercise_id: str) -> frozenset[str]:
    """What the reference calls, and what that calls."""
    direct = registry.exercise(exercise_id).uses
    return frozenset(direct).union(*map(_used_by, direct))


def noted(verdict: Verdict, faults: Mapping[str, Outcome]) -> Verdict:
    """The verdict, and that these parts were ours, since the learner's are as said."""
    if not faults or verdict.outcome is Outcome.NOT_RUN:
        return verdict
    one, unwritten = len(faults) == 1, set(faults.values()) == {Outcome.NOT_RUN}
    if unwritten:
        why = "yours is not written yet" if one else "yours are not written yet"
    else:
        why = "yours fails its own check" if one else "yours fail their own checks"
    *others, last = (f"`{part}`" for part in faults)
    names = f"{', '.join(others)} and {last}" if others else last
    head = RIGHT_WITH_OURS if verdict.passed else RIGHT_WITH_OURS.partition("; ")[2]
    line = f"{head} {names}, since {why}"
    lines = (line, *verdict.lines) if verdict.passed else (*verdict.lines, line)
    return replace(verdict, lines=lines, borrowed=tuple(faults))


def ours_for(part_ids: Iterable[str]) -> dict[str, Any]:
    """name -> the reference, for each of these exercises."""
    parts = [registry.exercise(part_id) for part_id in part_ids]
    return {part.name: part.reference for part in parts}


def watched(parts: Mapping[str, Any], called: set[str], classes: bool = False) -> dict[str, Any]:
    """The same parts; each function, and each class if asked for, notes that it was called."""

    def noting(name: str, part: Any) -> Any:
        @wraps(part)
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return part(*args, **kwargs)

        return call if classes or not isclass(part) else part

    return {name: noting(name, part) for name, part in parts.items()}


def _faults(
    exercise: Exercise, trial: Trial, namespace: dict[str, Any], hidden: bool
) -> dict[str, Outcome]:
    """The parts that the answer calls and that do not pass, themselves judged alone."""
    called = names_called(trial.answer, namespace)
    if trial.outcome is Outcome.NOT_RUN and not called:
        return {}
    called |= {part.partition(".")[0] for part in exercise.uses}
    found: dict[str, Outcome] = {}
    for part in may_borrow(exercise):
        if part.name in called and namespace.get(part.name) is not part.reference:
            outcome = _outcome(part, namespace, found, hidden)
            if outcome is not Outcome.PASSED:
                found[part.id] = outcome
    return found


def _outcome(
    part: Exercise, namespace: dict[str, Any], faults: Iterable[str], hidden: bool
) -> Outcome:
    written = namespace.get(part.name)
    if written is None:
        return Outcome.NOT_RUN
    if not callable(written):
        return Outcome.FAILED
    outcome = try_out(part, written, hidden=hidden).outcome
    ours = {name: own for name, own in ours_for(faults).items() if name != part.name}
    if outcome is Outcome.PASSED or not ours:
        return outcome
    with lent(namespace, ours):
        return try_out(part, written, hidden=hidden).outcome


# ---- what an answer calls ----------------------------------------------------------------------


def names_called(answer: Any, namespace: Mapping[str, Any]) -> set[str]:
    """Names that an answer, and what it calls in this namespace, may look up there."""
    names: set[str] = set()
    seen: set[int] = set()
    todo = [answer]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, FunctionType):
            if thing.__globals__ is not namespace:
                continue
            new = _names(thing.__code__) - names
            names |= new
            todo += [namespace[name] for name in new if name in namespace]
        todo += _inside(thing)
    return names


def _names(code: CodeType) -> set[str]:
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _inside(thing: Any) -> list[Any]:
    """Functions that a thing holds: of a class, a partial, a wrapper, a closure."""
    if isinstance(thing, type):
        return list(vars(thing).values()) + list(thing.__bases__)
    if isinstance(thing, (partial, MethodType, staticmethod, classmethod)):
        return [getattr(thing, "func", None), getattr(thing, "__func__", None)]
    if isinstance(thing, property):
        return [thing.fget, thing.fset]
    held = [getattr_static(thing, "__wrapped__", None)] if callable(thing) else []
    if isinstance(thing, FunctionType):
        held += [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        held += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
    elif callable(thing):
        held.append(type(thing))
    return held


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
