"""What an exercise is: a reference, cases to judge it on, and named wrong and right answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from inspect import isclass, isgenerator, signature
from typing import Any

import numpy as np

from grader.judging.compare import Comparison

Inputs = dict[str, Any]
Drive = Callable[[Any, Inputs], Any]


def call(answer: Callable, inputs: Inputs) -> Any:
    """The plain drive: call the answer with the inputs by name, observe what it returns."""
    return answer(**inputs)


def many(answer: Callable, n: int, *args: Any) -> list[Any]:
    """What n calls return, for a law test: in one go where the answer runs in another process.

    Each call has lists of its own; what a generator yields comes as a list.
    """
    in_one_go = getattr(answer, "many", None)
    if in_one_go is not None:
        return in_one_go(n, args)
    found = (answer(*(list(a) if type(a) is list else a for a in args)) for _ in range(n))
    return [list(result) if isgenerator(result) else result for result in found]


@dataclass(frozen=True)
class Case:
    """Inputs for one judgement. make() builds them anew on each call, always the same."""

    name: str
    make: Callable[[], Inputs]
    hidden: bool = False


def given(name: str, hidden: bool = False, /, **inputs: Any) -> Case:
    """A worked example with plain inputs. Each run has copies of its own, inner lists too."""
    return Case(name, partial(deepcopy, inputs), hidden)


@dataclass(frozen=True)
class Exercise:
    """One thing a learner writes, and all that is needed to judge it.

    id:        the function's name, or Class.method for one part of a class
    uses:      exercises whose functions the reference calls: named first when this one fails
    cases:     worked examples, each with a name
    draw:      makes inputs from a seeded generator: n_draws visible ones and as many hidden
    drive:     runs an answer on a case's inputs and returns plain data
    expected:  what is right, where running the reference does not tell (law tests)
    wrong:     plausible wrong answers; the key says what is wrong in words a learner can act on
    right:     other correct answers; every one must pass
    """

    id: str
    reference: Callable
    lesson: str
    points: int
    minutes: int
    difficulty: int
    hints: tuple[str, str, str]
    wrong: Mapping[str, Callable]
    right: Mapping[str, Callable]
    cases: tuple[Case, ...] = ()
    draw: Callable[[np.random.Generator], Inputs] | None = None
    n_draws: int = 4
    drive: Drive = call
    comparison: Comparison = field(default_factory=Comparison)
    expected: Callable[[Inputs], Any] | None = None
    uses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cases and self.draw is None:
            raise ValueError(f"{self.id}: needs cases or a draw function")
        if not 1 <= self.difficulty <= 5:
            raise ValueError(f"{self.id}: difficulty must be 1 to 5, given {self.difficulty}")

    @property
    def name(self) -> str:
        """The Python name to look up in the learner's namespace."""
        return self.id.partition(".")[0]

    @property
    def grade_id(self) -> str:
        """The id in notebook metadata, where dots are not allowed."""
        return self.id.replace(".", "_")

    def parameters(self) -> frozenset[str]:
        """Names that the statement gives: of the function, or of the class and its method.

        A case may hold more inputs: what its drive needs, and no learner knows of.
        """
        part = self.id.partition(".")[2]
        asked = [self.reference]
        if isclass(self.reference):
            asked += [getattr(self.reference, part)] if part else []
        return frozenset(name for one in asked for name in signature(one).parameters)

    def visible_cases(self) -> tuple[Case, ...]:
        named = tuple(case for case in self.cases if not case.hidden)
        return named + self._drawn("drawn", seed=0, hidden=False)

    def hidden_cases(self, seed: int) -> tuple[Case, ...]:
        named = tuple(case for case in self.cases if case.hidden)
        return named + self._drawn("hidden", seed, hidden=True)

    def _drawn(self, label: str, seed: int, hidden: bool) -> tuple[Case, ...]:
        draw = self.draw
        if draw is None:
            return ()

        def case(i: int) -> Case:
            entropy = [seed, int(hidden), i, zlib.crc32(self.id.encode())]
            return Case(
                f"{label} case {i + 1}", lambda: draw(np.random.default_rng(entropy)), hidden
            )

        return tuple(case(i) for i in range(self.n_draws))

    def observe_expected(self, inputs: Inputs) -> Any:
        """What a right answer gives on these inputs."""
        if self.expected is not None:
            return self.expected(inputs)
        return self.drive(self.reference, inputs)
