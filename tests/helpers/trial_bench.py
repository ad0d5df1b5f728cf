"""An exercise for judging many answers: what each named answer gives on a case is found once."""

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from grader.judging.exercise import Case, Exercise, Inputs

Result = tuple[Any, BaseException | None]


class Known(dict):
    """The inputs of a case, and which case they are of."""

    def __init__(self, inputs: Inputs, case: Hashable) -> None:
        super().__init__(inputs)
        self.case = case


class Bench:
    """The reference, and wrong answers that others are likened to, run once on each case.

    The answer on trial is never remembered: it runs as often as the judge asks.
    """

    def __init__(self, exercise: Exercise) -> None:
        self.given = exercise
        self.on_trial: Any = None
        self.kept: dict[Hashable, Result] = {}
        self.exercise = replace(
            exercise,
            cases=tuple(map(self._known, exercise.cases)),
            draw=self._draw if exercise.draw else None,
            drive=self._drive,
            expected=self._expected if exercise.expected else None,
        )

    @contextmanager
    def trial(self, answer: Any) -> Iterator[Exercise]:
        """The exercise, for judging this answer."""
        self.on_trial = answer
        try:
            yield self.exercise
        finally:
            self.on_trial = None

    def _known(self, case: Case) -> Case:
        return replace(case, make=lambda: Known(case.make(), case.name))

    def _draw(self, rng: np.random.Generator) -> Inputs:
        assert self.given.draw
        case = tuple(rng.bit_generator.state["state"].items())
        return Known(self.given.draw(rng), case)

    def _drive(self, answer: Any, inputs: Inputs) -> Any:
        def run() -> Any:
            return self.given.drive(answer, inputs)

        return run() if answer is self.on_trial else self._once(inputs, answer, run)

    def _expected(self, inputs: Inputs) -> Any:
        assert self.given.expected
        find = self.given.expected
        return self._once(inputs, find, lambda: find(inputs))

    def _once(self, inputs: Inputs, what: Any, run: Callable[[], Any]) -> Any:
        assert isinstance(inputs, Known)
        key = (id(what), inputs.case)
        if key not in self.kept:
            n_modules = len(sys.modules)
            result = _result(run)
            if len(sys.modules) > n_modules:  # it imported something: observe runs it again
                return _told(result)
            self.kept[key] = result
        return _told(self.kept[key])


def _result(run: Callable[[], Any]) -> Result:
    try:
        return run(), None
    except (Exception, SystemExit) as error:
        return None, error


def _told(result: Result) -> Any:
    value, error = result
    if error is not None:
        raise error.with_traceback(None)
    return value
