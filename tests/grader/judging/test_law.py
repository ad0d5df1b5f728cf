"""The judge on laws of random answers, and on counted memory."""

import numpy as np
import pytest
from toy_exercise import toy_exercise

from grader.judging.counting import counts
from grader.judging.exercise import Exercise, given
from grader.judging.judge import judge
from grader.judging.law import Law
from grader.judging.verdict import Outcome
from inferlab.counted_memory import CountedMemory

EPS = np.finfo(np.float64).eps


# ---- law tests ----------------------------------------------------------------------------------

LAW = np.array([0.5, 0.3, 0.15, 0.05])


def frequencies(answer, inputs):
    """The drive of a law test: how often each outcome came up in 5,000 draws."""
    rng = np.random.default_rng(inputs["seed"])
    drawn = [answer(inputs["law"], rng) for _ in range(5_000)]
    return np.bincount(drawn, minlength=len(inputs["law"]))


def law_exercise(seed: int) -> Exercise:
    return toy_exercise(
        lambda law, rng: int(rng.choice(len(law), p=law)),
        (given(f"seed {seed}", law=LAW, seed=seed),),
        drive=frequencies,
        expected=lambda inputs: inputs["law"],
        comparison=Law(),
        wrong={"uniform": lambda law, rng: int(rng.integers(len(law)))},
    )


def test_a_law_test_passes_right_answers_however_many_uniforms_they_draw():
    def by_inverse(law, rng):
        return int(np.searchsorted(np.cumsum(law), rng.random()))

    def by_rejection(law, rng):
        while True:
            i = int(rng.integers(len(law)))
            if rng.random() < law[i] / law.max():
                return i

    for seed in range(3):
        assert judge(law_exercise(seed), by_inverse).passed
        assert judge(law_exercise(seed), by_rejection).passed


def test_a_law_test_rejects_wrong_laws_and_names_them():
    verdict = judge(law_exercise(0), lambda law, rng: int(rng.integers(len(law))))
    assert verdict.diagnosis == "uniform"
    assert "probability below 1e-06" in verdict.text()
    slightly = LAW + np.array([0.06, -0.06, 0, 0])
    wrong = judge(law_exercise(0), lambda law, rng: int(rng.choice(4, p=slightly)))
    assert wrong.outcome is Outcome.FAILED


def test_the_false_alarm_rate_is_kept():
    """At a stated rate of 1 %, far fewer than 1 % of 4,000 right samples are rejected."""
    rng = np.random.default_rng(0)
    law = Law(false_alarm=0.01)
    samples = rng.multinomial(2_000, LAW, size=4_000)
    alarms = sum(law.difference(LAW, sample, {}) is not None for sample in samples)
    assert alarms <= 40


def test_an_impossible_outcome_is_always_found():
    law = np.array([1.0, 0.0])
    assert Law().difference(law, np.array([9_999, 1]), {}) is not None
    assert Law().difference(law, np.array([10_000, 0]), {}) is None


# ---- counted memory -----------------------------------------------------------------------------


def test_loads_and_stores_are_counted():
    memory = CountedMemory(a=np.arange(8.0), out=np.zeros(8))
    for i in range(0, 8, 2):
        tile = memory.load("a", slice(i, i + 2))
        memory.store("out", 2 * tile, slice(i, i + 2))
    assert counts(memory, "out")["loaded_bytes"] == 8 * 8
    assert memory.stored_bytes == 8 * 8
    assert (memory.result("out") == 2 * np.arange(8.0)).all()


def test_what_was_loaded_is_a_copy():
    memory = CountedMemory(a=np.zeros(4))
    memory.load("a", slice(0, 2))[:] = 7
    assert (memory.result("a") == 0).all()


def test_the_peak_shows_whether_the_whole_matrix_was_held():
    n, block = 512, 32
    rows = np.random.default_rng(0).normal(size=(n, 16))

    def whole(memory):
        a = memory.load("a", slice(None))
        memory.store("out", (a @ a.T).sum(axis=1), slice(None))

    def tiled(memory):
        for i in range(0, n, block):
            mine, total = memory.load("a", slice(i, i + block)), np.zeros(block)
            for j in range(0, n, block):
                total += (mine @ memory.load("a", slice(j, j + block)).T).sum(axis=1)
            memory.store("out", total, slice(i, i + block))

    peaks = {}
    for answer in (whole, tiled):
        memory = CountedMemory(a=rows, out=np.zeros(n))
        with memory.watching():
            answer(memory)
        peaks[answer.__name__] = memory.peak_bytes
        assert np.allclose(memory.result("out"), (rows @ rows.T).sum(axis=1))
    assert peaks["whole"] > n * n * 8
    assert peaks["tiled"] < n * n * 8 / 10


def test_a_missing_array_and_a_wrong_shape_are_named():
    memory = CountedMemory(a=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"no array 'b'.*\['a'\]"):
        memory.load("b")
    with pytest.raises(ValueError, match=r"needs \(3,\), given \(2,\)"):
        memory.store("a", np.zeros(2), 0)
