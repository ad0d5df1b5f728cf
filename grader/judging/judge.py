"""Judge an answer: run it on each case, compare with what is right, name the likely mistake."""

from __future__ import annotations

import contextlib
import signal
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grader.judging import hidden as hidden_cases
from grader.judging.compare import Difference
from grader.judging.diagnosis import Cause, diagnose
from grader.judging.exercise import Case, Exercise, Inputs
from grader.judging.observe import Observation, expected_of, observe, plain
from grader.judging.verdict import Outcome, Verdict
from grader.own_code import FOLDERS

TIME_LIMIT_S = 10.0  # for all cases of one check; right answers take well under a second
WAITING = 3  # by the clock, that many times as long
STUB_SAYS = ("write this", "")  # what a body that is still to be written raises
PASSED_VISIBLE = "all visible checks passed; hidden ones run at grading"
PASSED_ALL = "all checks passed, the hidden ones too"
NONE = Cause("")


class OutOfTime(BaseException):
    """The answer ran past its limit. Not an Exception, so that `except Exception` lets it by."""


@dataclass(frozen=True)
class Failure:
    """The first run of an answer that was not right."""

    seen: Observation
    found: Difference
    case: Case
    first_was_right: bool = False  # the same inputs, a moment before


@dataclass
class Trial:
    """An answer that was run on all cases, up to the first where it is not right."""

    exercise: Exercise
    answer: Any
    cases: tuple[Case, ...]
    hidden: bool = False
    outcome: Outcome = Outcome.PASSED
    failure: Failure | None = None

    def run(self) -> Trial:
        for i, case in enumerate(self.cases):
            for run in range(2 if i == 0 else 1):
                seen = observe(self.exercise, self.answer, case)
                if isinstance(seen.error, NotImplementedError) and str(seen.error) in STUB_SAYS:
                    self.outcome = Outcome.NOT_RUN
                    return self
                found = _difference(self.exercise, seen, case)
                if found is not None:
                    self.outcome = Outcome.FAILED
                    self.failure = Failure(seen, found, case, first_was_right=run == 1)
                    return self
        return self

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    def verdict(self) -> Verdict:
        """What there is to say, the likely cause too."""
        if self.passed:
            note = PASSED_ALL if self.hidden else PASSED_VISIBLE
            return Verdict(self.exercise.id, Outcome.PASSED, lines=(note,))
        if self.outcome is Outcome.NOT_RUN:
            return not_written(self.exercise.id)
        if self.failure is None:
            line = f"it was still running after {TIME_LIMIT_S:.0f} s: a loop that never ends?"
            return _failed(self.exercise, "", (line,))
        return _explained(self, self.failure)


def judge(
    exercise: Exercise, answer: Any, *, hidden: bool = False, seed: int | None = None
) -> Verdict:
    """Judge on the visible cases, and with hidden=True on the hidden ones as well.

    seed draws the hidden cases; by default the one of the environment (grader.judging.hidden).
    """
    return in_time(try_out(exercise, answer, hidden=hidden, seed=seed))


def try_out(
    exercise: Exercise, answer: Any, *, hidden: bool = False, seed: int | None = None
) -> Trial:
    """judge, without a word on why it is not right: in_time finds those."""
    cases = exercise.visible_cases()
    if hidden:
        known = hidden_cases.from_environment()
        cases += (known if seed is None else replace(known, seed=seed)).cases(exercise)
    trial = Trial(exercise, answer, cases, hidden)
    try:
        with _time_limit(TIME_LIMIT_S):
            return trial.run()
    except OutOfTime:
        trial.outcome = Outcome.FAILED
        return trial


def in_time(trial: Trial) -> Verdict:
    """Its verdict; where looking for the cause takes too long, none is named."""
    try:
        with _time_limit(TIME_LIMIT_S):
            return trial.verdict()
    except OutOfTime:
        trial.failure = None
        return trial.verdict()


def judge_on(
    exercise: Exercise, answer: Any, cases: tuple[Case, ...], hidden: bool = False
) -> Verdict:
    return Trial(exercise, answer, cases, hidden).run().verdict()


def not_written(exercise_id: str) -> Verdict:
    return Verdict(exercise_id, Outcome.NOT_RUN, lines=("not written yet",))


def _difference(exercise: Exercise, seen: Observation, case: Case) -> Difference | None:
    found = exercise.comparison.difference(expected_of(exercise, case), plain(seen), case.make())
    if found is None and seen.changed:
        return Difference("value", ("the result is right, but an input came back changed",))
    return found


def _explained(trial: Trial, failure: Failure) -> Verdict:
    exercise, seen, found, case = trial.exercise, failure.seen, failure.found, failure.case
    cause = Cause(seen.changed) if seen.changed else None
    cause = cause or diagnose(exercise, trial.answer, seen, case, trial.cases) or Cause("")
    if case.hidden:
        return _failed(exercise, "", (_kept_back(seen, found),), cause, found.kind)
    lines = (*_inputs_line(exercise, case.make()), *found.lines)
    if failure.first_was_right:
        lines += ("  the first call was right: something is kept between calls",)
    return _failed(exercise, case.name, lines + _asides(seen), cause, found.kind)


def _failed(
    exercise: Exercise, case: str, lines: tuple[str, ...], cause: Cause = NONE, kind: str = ""
) -> Verdict:
    short = tuple(line if len(line) <= 200 else f"{line[:198]} …" for line in lines)
    step = f'hint("{exercise.id}")'
    return Verdict(
        exercise.id, Outcome.FAILED, case, short, cause.name, step, kind, cause.is_certain
    )


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


def _inputs_line(exercise: Exercise, inputs: Inputs) -> tuple[str, ...]:
    """The inputs that the statement names."""
    known = exercise.parameters()
    shown = [f"{name} {_brief(value)}" for name, value in inputs.items() if name in known]
    return (f"inputs: {', '.join(shown)}",) if shown else ()


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
