"""Judge an answer: run it on each case, compare with what is right, name the likely mistake."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grader.judging import hidden as hidden_cases
from grader.judging.compare import Difference, Raised, as_array, raised
from grader.judging.exercise import Case, Exercise, Inputs
from grader.judging.verdict import Outcome, Verdict
from grader.own_code import FOLDERS

TIME_LIMIT_S = 10.0  # for all cases of one check; right answers take well under a second
WAITING = 3  # by the clock, that many times as long
STUB_SAYS = ("write this", "")  # what a body that is still to be written raises
PASSED_VISIBLE = "all visible checks passed; hidden ones run at grading"
PASSED_ALL = "all checks passed, the hidden ones too"
SCALARS = (bool, int, float, str)  # arguments that nobody can change


class OutOfTime(BaseException):
    """The answer ran past its limit. Not an Exception, so that `except Exception` lets it by."""


@dataclass
class Observation:
    """What one run of an answer showed."""

    value: Any = None
    error: BaseException | None = None
    printed: str = ""
    warned: list[str] = field(default_factory=list)
    changed: str = ""  # name of an input that the answer modified


def judge(
    exercise: Exercise, answer: Any, *, hidden: bool = False, seed: int | None = None
) -> Verdict:
    """Judge on the visible cases, and with hidden=True on the hidden ones as well.

    seed draws the hidden cases; by default the one of the environment (grader.judging.hidden).
    """
    cases = exercise.visible_cases()
    if hidden:
        known = hidden_cases.from_environment()
        cases += (known if seed is None else replace(known, seed=seed)).cases(exercise)
    try:
        with _time_limit(TIME_LIMIT_S):
            return judge_on(exercise, answer, cases, hidden)
    except OutOfTime:
        line = f"it was still running after {TIME_LIMIT_S:.0f} s: a loop that never ends?"
        return _failed(exercise, "", (line,), "")


def judge_on(
    exercise: Exercise, answer: Any, cases: tuple[Case, ...], hidden: bool = False
) -> Verdict:
    for i, case in enumerate(cases):
        for run in ("first", "second")[: 2 if i == 0 else 1]:
            seen = observe(exercise, answer, case)
            if isinstance(seen.error, NotImplementedError) and str(seen.error) in STUB_SAYS:
                return not_written(exercise.id)
            found = _difference(exercise, seen, case)
            if found is None:
                continue
            diagnosis = seen.changed or diagnose(exercise, answer, seen, case, cases)
            if case.hidden:
                return _failed(exercise, "", (_kept_back(seen, found),), diagnosis, found.kind)
            lines = (_inputs_line(case.make()), *found.lines)
            if run == "second":
                lines += ("  the first call was right: something is kept between calls",)
            return _failed(exercise, case.name, lines + _asides(seen), diagnosis, found.kind)
    note = PASSED_ALL if hidden else PASSED_VISIBLE
    return Verdict(exercise.id, Outcome.PASSED, lines=(note,))


def not_written(exercise_id: str) -> Verdict:
    return Verdict(exercise_id, Outcome.NOT_RUN, lines=("not written yet",))


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
    seen.changed = _changed_input(inputs, case)
    return seen


def diagnose(
    exercise: Exercise, answer: Any, seen: Observation, case: Case, cases: tuple[Case, ...]
) -> str:
    """The name of the wrong answer that gives the same result on this case and on the others.

    An answer that also forgets to refuse what it should is named for what else is wrong with it.
    """
    refused = {c.name for c in (case, *cases) if isinstance(_expected(exercise, c), Raised)}

    def agrees(name: str, mine: Observation, c: Case) -> bool:
        theirs = observe(exercise, exercise.wrong[name], c)
        return _same(exercise, mine, theirs, c.make(), c.name in refused)

    twins = [name for name in exercise.wrong if agrees(name, seen, case)]
    answered = [c for c in cases if c.name not in refused]
    refusals = [c for c in cases if c.name in refused]
    for asked in (answered, refusals):
        seen_there = [(observe(exercise, answer, c), c) for c in asked] if twins else []
        still = [name for name in twins if all(agrees(name, o, c) for o, c in seen_there)]
        twins = still or (twins if asked is refusals else [])
    return next(iter(twins), "")


def _expected(exercise: Exercise, case: Case) -> Any:
    try:
        with np.errstate(all="warn", under="ignore"):
            return exercise.observe_expected(case.make())
    except ValueError as error:  # the case asks for a refusal
        return raised(error)


def _difference(exercise: Exercise, seen: Observation, case: Case) -> Difference | None:
    expected = _expected(exercise, case)
    found = exercise.comparison.difference(expected, _plain(seen), case.make())
    if found is None and seen.changed:
        return Difference("value", ("the result is right, but an input came back changed",))
    return found


def _same(
    exercise: Exercise, a: Observation, b: Observation, inputs: Inputs, refused: bool
) -> bool:
    if refused and a.error and b.error:  # everybody words a refusal in their own way
        return raised(a.error).kind == raised(b.error).kind
    if a.error or b.error:
        return type(a.error) is type(b.error) and str(a.error) == str(b.error)
    if b.value is None or a.value is None:
        return a.value is b.value
    try:
        return exercise.comparison.difference(b.value, a.value, inputs) is None
    except TypeError:  # the wrong answer's result is not plain data
        return False


def _plain(seen: Observation) -> Any:
    if seen.error is None:
        return seen.value
    return raised(seen.error)


def _failed(
    exercise: Exercise, case: str, lines: tuple[str, ...], diagnosis: str, kind: str = ""
) -> Verdict:
    short = tuple(line if len(line) <= 200 else f"{line[:198]} …" for line in lines)
    step = f'hint("{exercise.id}")'
    return Verdict(exercise.id, Outcome.FAILED, case, short, diagnosis, step, kind)


def _asides(seen: Observation) -> tuple[str, ...]:
    """Where the answer raised, and the last few lines of what it said on the way."""
    lines = _own_line(seen.error) + tuple(f"  NumPy warned: {text}" for text in seen.warned[:2])
    if "unexpected keyword argument" in str(seen.error):
        lines += ("  the parameters' names are part of the statement: keep them",)
    printed = seen.printed.rstrip().splitlines()
    if printed:
        lines += ("  your function printed:", *(f"    {line}" for line in printed[-8:]))
    return lines


def _own_line(error: BaseException | None) -> tuple[str, ...]:
    """The learner's own line that an error came through last; nothing of ours or of a library."""
    if error is None:
        return ()
    if line := getattr(error, "own_line", ""):  # it was raised in another process
        return (f"  at your line {line}",)
    ours = tuple(str(folder) for folder in FOLDERS)
    ours += (sysconfig.get_paths()["purelib"],)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.line]
    own = [f for f in frames if not f.filename.startswith(ours)]
    return (f"  at your line {own[-1].lineno}: {own[-1].line}",) if own else ()


def _kept_back(seen: Observation, found: Difference) -> str:
    """What may be said of a hidden case: how it went wrong, and no value of it."""
    if seen.error:
        how = f"it raised {type(seen.error).__name__}"
    elif found.kind == "raised":
        how = "it should have refused the input"
    else:
        how = f"the {'value' if found.kind == 'nan' else found.kind} is wrong"
    return f"every visible case is right; on a hidden one {how}"


def _inputs_line(inputs: Inputs) -> str:
    return "inputs: " + ", ".join(f"{name} {_brief(value)}" for name, value in inputs.items())


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype}"
    if isinstance(value, float):
        return f"= {value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"= {value:,}"
    text = repr(value)
    if " at 0x" in text:
        return type(value).__name__
    return f"= {text}" if len(text) <= 90 else f"= {text[:88]} …"


def _changed_input(inputs: Mapping[str, Any], case: Case) -> str:
    if all(value is None or isinstance(value, SCALARS) for value in inputs.values()):
        return ""  # nothing that could be changed
    for name, before in case.make().items():
        if not _unchanged(inputs[name], before):
            return f"it changes its input {name} in place; work on a copy"
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


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime after that long, where the platform has timers (not on Windows).

    Seconds of computing: on a busy computer a right answer takes no more of them. What sleeps or
    waits is stopped after WAITING times as long by the clock.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTime

    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, WAITING * seconds),
    )
    before = [signal.signal(number, ring) for _, number, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, _, _ in timers:
            signal.setitimer(timer, 0)
        for (_, number, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)
