"""The likely mistake: the named wrong answer that explains the case shown, and how surely.

A wrong answer explains a case if the answer is off in all the places in which that one is, and with
the same results. What the answer has wrong besides is another fault: it hides no name. Where the
named one is off and the answer differs from it, that speaks against the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grader.judging.compare import Comparison, Raised, as_list
from grader.judging.exercise import Case, Exercise, Inputs
from grader.judging.observe import SCALARS, Observation, expected_of, observe, plain

MISSING = object()
PROBE_SEED = 0  # draws further cases, so that what agrees by chance is not believed


@dataclass(frozen=True)
class Cause:
    """A named mistake. is_certain: it agrees with the answer on every case."""

    name: str
    is_certain: bool = True


@dataclass(frozen=True)
class Failed:
    """An error that nobody asked for: only the very same is the same mistake."""

    kind: type[BaseException]
    words: str


@dataclass
class Likeness:
    """How an answer's results on one case go with those of a named wrong one."""

    explained: int = 0  # places where both are off, in the same way
    against: int = 0  # where the named one is off, and the answer differs from it
    beside: int = 0  # where the answer alone is off
    begins: str = ""  # which of these comes first

    @property
    def is_same(self) -> bool:
        return not (self.against or self.beside)

    @property
    def speaks_for(self) -> bool:
        return bool(self.explained) and not self.against

    def note(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        self.begins = self.begins or what


@dataclass(frozen=True)
class Witness:
    """One case: what is right there, and what the answer showed."""

    case: Case
    right: Any
    seen: Observation

    @property
    def is_refusal(self) -> bool:
        return isinstance(self.right, Raised)


def diagnose(
    exercise: Exercise, answer: Any, seen: Observation, case: Case, cases: tuple[Case, ...]
) -> Cause | None:
    """The named mistake that explains the case shown and agrees with the most others.

    None where none explains it, or where the others speak against it.
    """
    cases += exercise.hidden_cases(PROBE_SEED)
    shown = Witness(case, expected_of(exercise, case), seen)
    here = {name: likeness(exercise, name, shown) for name in exercise.wrong}
    named = [n for n, like in here.items() if like.speaks_for and like.begins == "explained"]
    others = [
        Witness(c, expected_of(exercise, c), observe(exercise, answer, c))
        for c in (cases if named else ())
        if c is not case
    ]
    ranked = []
    for name in named:
        found = [(shown, here[name])] + [(w, likeness(exercise, name, w)) for w in others]
        certain = all(like.is_same for w, like in found if not w.is_refusal or w is shown)
        n_for = sum(like.speaks_for for _, like in found)
        n_against = sum(bool(like.against) for _, like in found)
        n_same = sum(like.is_same for _, like in found)
        if certain or not n_against or (n_for > 1 and 2 * n_for >= n_against):
            ranked.append(((certain, n_same, n_for, -n_against), Cause(name, certain)))
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def likeness(exercise: Exercise, name: str, witness: Witness) -> Likeness:
    """How the answer's results there go with those of the wrong answer of that name."""
    theirs = observe(exercise, exercise.wrong[name], witness.case)
    inputs, found = witness.case.make(), Likeness()
    compare = exercise.comparison
    if (theirs.error or witness.seen.error) and not witness.is_refusal:
        pairs = iter([(witness.right, _said(witness.seen), _said(theirs))])
    else:
        pairs = _places(witness.right, plain(witness.seen), plain(theirs))
    for right, mine, wrong in pairs:
        if right is MISSING:
            if not _alike(compare, wrong, mine, inputs):
                found.note("against")
        elif _agree(compare, right, wrong, inputs):
            if not _agree(compare, right, mine, inputs):
                found.note("beside")
        elif _alike(compare, wrong, mine, inputs):
            found.note("explained")
        else:
            found.note("against")
    return found


def _said(seen: Observation) -> Any:
    return seen.value if seen.error is None else Failed(type(seen.error), str(seen.error))


def _places(right: Any, mine: Any, wrong: Any) -> Iterator[tuple[Any, Any, Any]]:
    """What is compared as one: the parts of dicts, and of rows of dicts, rows and arrays."""
    if isinstance(right, Mapping) and isinstance(mine, Mapping) and isinstance(wrong, Mapping):
        for key, value in right.items():
            yield from _places(value, mine.get(key, MISSING), wrong.get(key, MISSING))
        for key in wrong.keys() - right.keys():  # nobody judges it, but it tells two apart
            yield MISSING, mine.get(key, MISSING), wrong[key]
        return
    rows = [as_list(value) for value in (right, mine, wrong)]
    if isinstance(right, (list, tuple)) and not all(isinstance(v, SCALARS) for v in right):
        whole = [row for row in rows if row is not None and len(row) == len(right)]
        if len(whole) == len(rows):
            for parts in zip(*whole, strict=True):
                yield from _places(*parts)
            return
    yield right, mine, wrong


def _agree(compare: Comparison, right: Any, got: Any, inputs: Inputs) -> bool:
    return compare.difference(right, got, inputs) is None


def _alike(compare: Comparison, wrong: Any, mine: Any, inputs: Inputs) -> bool:
    """Whether two results that are not right are the same."""
    if isinstance(wrong, Failed) or isinstance(mine, Failed):
        return type(wrong) is type(mine) and bool(wrong == mine)
    if wrong is None or mine is None or wrong is MISSING or mine is MISSING:
        return wrong is mine
    try:
        return _agree(compare, wrong, mine, inputs)
    except TypeError:  # the wrong answer's result is not plain data
        return False
