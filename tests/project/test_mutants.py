"""tools/mutants.py makes the changes that it names, and notices what no case asks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from toy_exercise import toy_exercise

from grader.judging import registry
from grader.judging.exercise import given
from tools.mutants import explanations, mutants, survivors


def toy(x: np.ndarray, most: int = 3) -> float:
    """The sum of up to `most` numbers."""
    if most < 1:
        raise ValueError(f"most={most} must be at least 1")
    return float(sum(n * 2 for n in x[:most]))


SOME, ONE, NONE, EVERY = (
    given(f"{most} of 5", x=np.arange(2.0, 7.0), most=most) for most in (3, 1, 0, 5)
)


def test_a_change_is_named_and_made():
    found = dict(mutants(toy_exercise(toy, (SOME,))))
    assert found["line 5: n * 2 → n / 2"](np.array([4.0, 2.0])) == 3
    assert found["line 5: :most → :"](np.ones(5)) == 10
    assert found["line 3: most < 1 → most <= 1"](np.ones(5), 2) == 4
    assert found["line 5: 2 → 3"](np.ones(1)) == 3
    assert not any("ValueError" in what.split("→")[0] and "line 4" in what for what in found)
    assert toy(np.ones(5)) == 6  # the reference stays as it is


def test_what_no_case_asks_survives_and_what_one_asks_does_not():
    few, more = (survivors(toy_exercise(toy, cases))[1] for cases in ((SOME,), (SOME, ONE, NONE)))
    assert "line 3: most < 1 → most <= 1" in few
    assert "line 3: 1 → 0" in few
    assert "line 5: n * 2 → n + 2" not in few
    assert set(more) < set(few)
    assert [what for what in more if "line 3" in what] == []


def test_mutants_are_counted():
    counts = [survivors(toy_exercise(toy, cases)) for cases in ((SOME,), (SOME, ONE, NONE, EVERY))]
    assert all(a[0] == b[0] > 12 for a, b in pairwise(counts))


def looped(x: list[int], most: int = 3) -> int:
    """The sum of the numbers before the first that is larger than most."""
    total = 0
    for n in x:
        if n > most:
            break
        total += n
    return total


LONG = given("a large number in the middle", x=[1, 4, 9, 3], most=4)
DEFAULT = given("where nobody says", x=[1, 2, 4])


def test_break_becomes_continue_and_a_loop_ends_early():
    found = dict(mutants(toy_exercise(looped, (LONG,))))
    assert found["line 6: break → continue"]([1, 9, 2]) == 3
    assert found["looped: line 4: the loop ends after its first round"]([1, 2]) == 1
    assert looped([1, 2]) == 3


def test_an_argument_is_ignored_or_exchanged_and_a_default_takes_its_place():
    found = dict(mutants(toy_exercise(looped, (LONG,))))
    assert found["looped: most ignored: always 3"]([4], 9) == 0
    assert found["looped: most ignored: always 4"]([4], 9) == 4
    assert "looped: most and x exchanged" in found


def test_a_default_that_no_case_relies_on_survives():
    alone, both = (
        survivors(toy_exercise(looped, cases))[1] for cases in ((LONG,), (LONG, DEFAULT))
    )
    assert "line 1: 3 → 2" in alone
    assert "line 1: 3 → 4" not in both
    assert [what for what in both if "break" in what or "ignored" in what] == []


def test_what_is_explained_belongs_to_an_exercise_and_has_a_reason():
    ids = {exercise.id for exercise in registry.exercises()}
    for exercise_id, reasons in explanations().items():
        assert exercise_id in ids
        assert all(len(reason) > 10 for reason in reasons.values())
