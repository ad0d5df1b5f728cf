"""Lesson 08: the law at a temperature; 0 is greedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.sampling import temperature_law


def _draw_temperature(rng: np.random.Generator) -> Inputs:
    logits = rng.normal(size=int(rng.integers(5, 9))) * 2 - 1
    return {"logits": logits, "temperature": float(rng.choice([0.4, 0.7, 1.6, 2.5]))}


def _softmax(z: np.ndarray) -> np.ndarray:
    weights = np.exp(z - np.max(z))
    return weights / weights.sum()


def _one_hot(n: int, i: int) -> np.ndarray:
    return np.eye(n)[i]


def _tempered(
    hot: Callable = lambda z, T: _softmax(z / T),
    cold: Callable = lambda z: _one_hot(len(z), int(np.argmax(z))),
    check: bool = True,
    kind: Any = np.float64,
) -> Callable:
    """temperature_law with another rule above 0, or at 0."""

    def law(logits, temperature):
        if check and temperature < 0:
            raise ValueError("negative")
        z = np.asarray(logits, kind)
        return cold(z) if temperature == 0 else hot(z, temperature)

    return law


def _softmax_no_max(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp(logits / temperature)
    return weights / weights.sum()


def _softmax_mean(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.mean()) / temperature)
    return weights / weights.sum()


def _divided_law(logits: np.ndarray, temperature: float) -> np.ndarray:
    divided = _softmax(logits) / temperature
    return divided / divided.sum()


def _law_in_a_loop(logits, temperature):
    if temperature < 0:
        raise ValueError("negative")
    logits = np.asarray(logits, np.float64)
    best = max(logits)
    if temperature == 0:
        return [float(i == list(logits).index(best)) for i in range(len(logits))]
    weights = [math.exp((z - best) / temperature) for z in logits]
    return [w / math.fsum(weights) for w in weights]


def _law_by_logs(logits, temperature):
    if temperature < 0:
        raise ValueError("negative")
    logits = np.asarray(logits, np.float64)
    if temperature == 0:
        return (np.arange(len(logits)) == logits.argmax()).astype(float)
    scaled = logits / temperature
    return np.exp(scaled - np.logaddexp.reduce(scaled))


def _law_in_torch(logits, temperature):
    import torch  # takes a second, and only the tests call this

    if temperature < 0:
        raise ValueError("negative")
    z = torch.from_numpy(logits).double()
    if temperature == 0:
        return torch.nn.functional.one_hot(torch.argmax(z), len(z)).double()
    return torch.softmax(z / temperature, dim=0)


def _spread(inputs: Any) -> float:
    """How far the exponents reach: an error in one counts in proportion."""
    logits = inputs["logits"]
    largest = float(np.abs(logits[np.isfinite(logits)]).max())
    return len(logits) + largest / (inputs["temperature"] or 1.0)


TEMPERATURE = Exercise(
    id="temperature_law",
    reference=temperature_law,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "Three cases: below 0 an error, at 0 one-hot, above 0 a softmax. Only the last divides.",
        "Subtract logits.max() first, then divide by the temperature, then np.exp, then divide by "
        "the sum: a difference of 0 stays 0 whatever the temperature.",
        "At 0: law = np.zeros(len(logits)); law[np.argmax(logits)] = 1. np.argmax gives the first "
        "of several largest.",
    ),
    cases=(
        given(
            "float32 logits: the law is float64",
            logits=np.array([0.1, 1.7, -0.3], np.float32),
            temperature=0.7,
        ),
        given("temperature 0.5", logits=np.log([1.0, 4.0, 2.0]), temperature=0.5),
        given("temperature 2", logits=np.log([1.0, 4.0, 2.0]), temperature=2.0),
        given("temperature 0", logits=np.array([0.5, -1.0, 2.0, 1.9]), temperature=0),
        given("temperature 0, a tie", logits=np.array([-1.0, 3.0, 0.5, 3.0]), temperature=0.0),
        given("logits in the thousands", logits=np.array([2990.0, 3000, 2999.5]), temperature=0.7),
        given("all logits near -3,000", logits=np.array([-3000.0, -2999, -3002]), temperature=1.0),
        given("a logit of -inf", logits=np.array([0.3, -np.inf, 1.0]), temperature=1.0),
        given("a negative temperature", logits=np.array([0.3, 0.1]), temperature=-1.0),
    ),
    draw=_draw_temperature,
    comparison=Comparison(
        terms=_spread,
        magnitude=lambda i: 1.0,
        why="a sum over the vocabulary; an exponent of size x is off by x roundings",
    ),
    wrong={
        "float32 logits give a law in float32: it is asked in float64": _tempered(kind=None),
        "divides the probabilities by the temperature and renormalises: the ratios stay as they "
        "were; the logits must be divided": _tempered(_divided_law),
        "multiplies the logits by the temperature; a high one must flatten the law": _tempered(
            lambda z, T: _softmax(z * T)
        ),
        "temperature 0 divides by zero: it is a case of its own": _tempered(
            cold=lambda z: _softmax_no_max(z, np.float64(0.0))
        ),
        "at temperature 0 tied logits share the mass: the first of them gets all of it": _tempered(
            cold=lambda z: (z == z.max()) / (z == z.max()).sum()
        ),
        "at temperature 0 the last of several largest logits wins; it must be the first": _tempered(
            cold=lambda z: _one_hot(len(z), len(z) - 1 - int(np.argmax(z[::-1])))
        ),
        "np.exp of the raw logits overflows: subtract the largest logit first": _tempered(
            _softmax_no_max
        ),
        "subtracts the mean in place of the largest logit: a logit of -inf spoils everything": (
            _tempered(_softmax_mean)
        ),
        "the weights are not divided by their sum": _tempered(
            lambda z, T: np.exp((z - z.max()) / T)
        ),
        "a negative temperature is accepted": _tempered(check=False),
        "log-probabilities are returned; probabilities are asked": _tempered(
            lambda z, T: z / T - np.logaddexp.reduce(z / T)
        ),
        "at temperature 0 the law is left as it is at 1; 0 means one-hot": _tempered(cold=_softmax),
    },
    right={
        "a loop": _law_in_a_loop,
        "log-sum-exp": _law_by_logs,
        "torch": _law_in_torch,
    },
)
