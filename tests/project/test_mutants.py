"""tools/mutants.py makes the changes that it names, and notices what no case asks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from toy_exercise import toy_exercise

from grader.judging.exercise import given
from tools.mutants import mutants, survivors


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
