"""Lesson 08: the order of the filters, and the draw from a law by a supplied uniform."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON, draw_law
from grader.judging.compare import Comparison
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.sampling import (
    draw_token,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    sampling_law,
    temperature_law,
)

# ---- the order ----------------------------------------------------------------------------------

Setting = tuple[float, int | None, float, float]  # temperature, top_k, top_p, min_p


def _by(change: Callable[[np.ndarray, Setting], Any]) -> Callable:
    def law(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
        return change(logits, (temperature, top_k, top_p, min_p))

    return law


def _filtered(law: np.ndarray, order: str, setting: Setting) -> np.ndarray:
    """The filters k, p and m in the given order."""
    _, top_k, top_p, min_p = setting
    for step in order:
        if step == "k" and top_k is not None:
            law = keep_top_k(law, top_k)
        elif step == "p":
            law = keep_top_p(law, top_p)
        elif step == "m":
            law = keep_min_p(law, min_p)
    return law


def _in_order(order: str) -> Callable:
    return _by(lambda logits, s: _filtered(temperature_law(logits, s[0]), order, s))


def _temperature_last(logits: np.ndarray, s: Setting, order: str = "kpm") -> np.ndarray:
    """Filter at temperature 1, then flatten or sharpen what is left."""
    law = _filtered(temperature_law(logits, 1.0), order, s)
    return temperature_law(np.where(law > 0, logits, -np.inf), s[0])


def _min_p_untempered(logits: np.ndarray, s: Setting) -> np.ndarray:
    """Top-k and top-p as they should be, min-p as if the temperature were 1."""
    law = _filtered(temperature_law(logits, s[0]), "kp", s)
    plain = temperature_law(logits, 1.0)
    kept = np.where(plain >= s[3] * plain.max(), law, 0)
    return kept / kept.sum()


def _top_k_needed(logits: np.ndarray, s: Setting) -> np.ndarray:
    return _filtered(temperature_law(logits, s[0]), "kpm", (s[0], s[1] or 1, s[2], s[3]))


def _refusing(law: Callable) -> Callable:
    """The same, but settings that no step may take are refused first."""

    def checked(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise ValueError("temperature or top_k")
        if not 0 < top_p <= 1 or not 0 <= min_p <= 1:
            raise ValueError("top_p or min_p")
        return law(logits, temperature, top_k, top_p, min_p)

    return checked


def _if_top_k(logits: np.ndarray, s: Setting) -> np.ndarray:
    return _filtered(temperature_law(logits, s[0]), "kpm", (s[0], s[1] or None, s[2], s[3]))


def _skips(logits: np.ndarray, s: Setting) -> np.ndarray:
    """Top-p and min-p are called only where they could remove something."""
    steps = "k" + "p" * (s[2] < 1) + "m" * (s[3] > 0)
    return _filtered(temperature_law(logits, s[0]), steps, s)


def _all_in_one(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    """One sort, thresholds on renormalised masses, written from nothing."""
    logits = np.asarray(logits, float)
    if temperature == 0:
        return np.eye(len(logits))[logits.argmax()]
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order] - logits.max()) / temperature)
    weights = weights[: top_k or len(logits)]
    sums = np.cumsum(weights / weights.sum())
    n = len(weights) if top_p == 1 else int((sums < top_p).sum()) + 1
    weights = weights[:n]
    weights = weights[weights >= min_p * weights[0]]
    out = np.zeros(len(logits))
    out[order[: len(weights)]] = weights / weights.sum()
    return out


def _token_by_token(logits, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0):
    law = temperature_law(logits, temperature)
    left = sorted(range(len(law)), key=lambda i: (-law[i], i))[:top_k]
    mass = sum(law[i] for i in left)
    kept: dict[int, float] = {}
    for i in left:
        if kept and top_p < 1 and sum(kept.values()) / mass >= top_p:
            break
        kept[i] = float(law[i])
    kept = {i: p for i, p in kept.items() if p >= min_p * max(kept.values())}
    return [kept.get(i, 0.0) / sum(kept.values()) for i in range(len(law))]


_ORDER_WRONG = {
    "top-p before the temperature: the mass it counts is that of another law": _by(
        lambda logits, s: _temperature_last(logits, s)
    ),
    "top-p counts mass that top-k takes away: top-k comes first, and its result is renormalised "
    "before top-p looks at it": _in_order("pkm"),
    "min-p before top-p: top-p then works on a law that is already smaller": _in_order("kmp"),
    "min-p as if the temperature were 1: it comes after the temperature too": (
        _by(_min_p_untempered)
    ),
    "the temperature is ignored": _by(
        lambda logits, s: _filtered(temperature_law(logits, 1.0), "kpm", s)
    ),
    "top-k is ignored": _in_order("pm"),
    "top-p is ignored": _in_order("km"),
    "min-p is ignored": _in_order("kp"),
}


def _draw_settings(rng: np.random.Generator) -> Inputs:
    """Logits, and for each wrong order a setting in which it gives another law."""
    while True:
        logits = 1.6 * rng.normal(size=12)
        settings = [_telling(rng, logits, wrong) for wrong in _ORDER_WRONG.values()]
        if None not in settings:
            return {"logits": logits, "settings": settings}


def _telling(rng: np.random.Generator, logits: np.ndarray, wrong: Callable) -> dict | None:
    """A setting in which `wrong` shows, or None if none of 40 does."""
    for _ in range(40):
        setting: dict[str, Any] = {
            "temperature": float(rng.choice([0.6, 1.5, 1.8])),
            "top_k": int(rng.integers(4, 9)),
            "top_p": round(float(rng.uniform(0.6, 0.95)), 3),
            "min_p": round(float(rng.uniform(0.02, 0.3)), 3),
        }
        if np.abs(wrong(logits, **setting) - sampling_law(logits, **setting)).max() > 1e-3:
            return setting
    return None


def _drive_order(answer: Any, inputs: Inputs) -> list[Any]:
    return [answer(inputs["logits"], **setting) for setting in inputs["settings"]]


ORDER = Exercise(
    id="sampling_law",
    reference=sampling_law,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    uses=("temperature_law", "keep_top_k", "keep_top_p", "keep_min_p"),
    hints=(
        "You have all four parts. The temperature works on logits and gives a law; each filter "
        "works on a law and gives a law: a chain.",
        "Feed each filter what the one before it returned. top_k None means that keep_top_k is "
        "not called at all; 1 and 0 switch the other two off by themselves.",
        "law = temperature_law(logits, temperature); if top_k is not None: law = keep_top_k(law, "
        "top_k); return keep_min_p(keep_top_p(law, top_p), min_p)",
    ),
    cases=(
        given("everything off", logits=np.array([0.5, -1.0, 2.0]), settings=[{}]),
        given("top-k 2, then top-p 0.55", logits=np.log([4.0, 3, 2, 1]),
              settings=[{"top_k": 2, "top_p": 0.55}]),
        given("greedy, filters or not", logits=np.array([0.5, 2.0, 1.9]),
              settings=[{"temperature": 0, "top_p": 0.9}, {"temperature": 0.0, "top_k": 2}]),
        given("temperature 0.5, then top-p 0.6", logits=np.log([4.0, 3, 2, 1]),
              settings=[{"temperature": 0.5, "top_p": 0.6}]),
        given("top_k 0", logits=np.array([0.5, 2.0, 1.9]), settings=[{"top_k": 0}]),
        given("top_p 1.5", logits=np.array([0.5, 2.0, 1.9]), settings=[{"top_p": 1.5}]),
        given("min_p below 0", logits=np.array([0.5, 2.0, 1.9]), settings=[{"min_p": -0.1}]),
    ),
    draw=_draw_settings,
    drive=_drive_order,
    comparison=Comparison(
        terms=lambda i: 4 * len(i["logits"]) + 2 * np.abs(i["logits"]).max(),
        magnitude=lambda i: 1.0,
        why="four sums over the vocabulary; an exponent of size x is off by x roundings",
    ),
    wrong={
        **_ORDER_WRONG,
        "top_k None is taken for a number: it means that top-k is off": _by(_top_k_needed),
        "a top_k of 0 is taken for off; only None is, and keep_top_k refuses 0": _by(_if_top_k),
        "a filter is skipped for a setting that it would refuse; call it whatever the value": (
            _by(_skips)
        ),
    },
    right={
        "one sort for all": _refusing(_all_in_one),
        "token by token": _refusing(_token_by_token),
        "top-k first, which keeps the same tokens": _by(
            lambda logits, s: _filtered(
                temperature_law(
                    np.where(_filtered(temperature_law(logits, 1.0), "k", s) > 0, logits, -np.inf),
                    s[0],
                ),
                "pm",
                s,
            )
        ),
    },
)  # fmt: skip

# ---- the draw -----------------------------------------------------------------------------------


def _draw_uniforms(rng: np.random.Generator) -> Inputs:
    law = draw_law(rng, int(rng.integers(5, 9)))
    law[rng.integers(len(law))] = 0
    return {"law": law / law.sum(), "uniforms": rng.random(40).tolist()}


def _drive_draw(answer: Any, inputs: Inputs) -> list[Any]:
    """One token for each uniform."""
    return [answer(inputs["law"], u) for u in inputs["uniforms"]]


def _last(law: Any) -> int:
    return int(np.flatnonzero(law)[-1])


def _token(find: Callable[[np.ndarray, float], Any]) -> Callable:
    return lambda law, uniform: find(np.asarray(law), uniform)


def _draw_sorted(law: np.ndarray, u: float) -> int:
    order = np.argsort(-law, kind="stable")
    place = int(np.searchsorted(np.cumsum(law[order]), u, side="right"))
    return int(order[min(place, len(law) - 1)])


def _draw_rank(law: np.ndarray, u: float) -> int:
    pieces = np.cumsum(np.sort(law)[::-1])
    return min(int(np.searchsorted(pieces, u, side="right")), len(law) - 1)


def _draw_loop(law, uniform):
    total = 0.0
    for token, p in enumerate(law):
        total += p
        if uniform < total:
            return token
    return max(i for i, p in enumerate(law) if p > 0)


def _draw_bisect(law, uniform):
    return min(bisect_right(list(accumulate(float(p) for p in law)), uniform), _last(law))


def _draw_mask(law, uniform):
    above = np.cumsum(law) > uniform
    return above.argmax() if above.any() else np.nonzero(law)[0].max()


DRAW = Exercise(
    id="draw_token",
    reference=draw_token,
    lesson=LESSON,
    points=2,
    minutes=6,
    difficulty=2,
    hints=(
        "np.cumsum(law) gives the right end of each token's piece. Which is the first that lies "
        "beyond `uniform`?",
        'np.searchsorted(np.cumsum(law), uniform, side="right") finds it, with the boundary '
        "itself going to the next token.",
        "Rounding can push the answer past the end: take the smaller of it and "
        "np.flatnonzero(law)[-1], the last token that has any probability. Return an int.",
    ),
    cases=(
        given("pieces of 1/4, 1/2, 1/4, and their ends", law=np.array([0.25, 0.5, 0.25]),
              uniforms=[0.2, 0.25, 0.7, 0.75, 0.0]),
        given("a first token of probability 0", law=np.array([0.0, 0.5, 0.5]),
              uniforms=[0.0, 0.5]),
        given("ten times 0.1 is a little less than 1", law=np.full(10, 0.1),
              uniforms=[float(np.nextafter(1, 0)), 0.95]),
        given("the same, before two tokens of 0", law=np.array([0.1] * 10 + [0.0, 0.0]),
              uniforms=[float(np.nextafter(1, 0)), 0.05]),
    ),
    draw=_draw_uniforms,
    drive=_drive_draw,
    wrong={
        "a uniform at the end of a piece belongs to the next token: u = 0 must not give a token of "
        "probability 0": _token(
            lambda law, u: min(int(np.searchsorted(np.cumsum(law), u, side="left")), _last(law))
        ),
        "always the most probable token: that is greedy, not a draw": _token(
            lambda law, u: int(np.argmax(law))
        ),
        "the tokens are lined up by probability; line them up by id": _token(_draw_sorted),
        "gives a place in the sorted law, not a token id": _token(_draw_rank),
        "rounding leaves a gap below 1, and a uniform in it gives an id beyond the vocabulary": (
            _token(lambda law, u: int(np.searchsorted(np.cumsum(law), u, side="right")))
        ),
        "np.argmax gives 0 where no sum is above the uniform; what lies beyond the last sum is the "
        "last token's that is not 0": _token(lambda law, u: int(np.argmax(np.cumsum(law) > u))),
        "the gap below 1 goes to the last id even where its probability is 0": _token(
            lambda law, u: min(
                int(np.searchsorted(np.cumsum(law), u, side="right")), len(law) - 1
            )
        ),
        "every id is equally likely: the law is not used": _token(lambda law, u: int(u * len(law))),
        "compares with the probabilities, not with their running sum": _token(
            lambda law, u: int(np.argmax(law > u)) if (law > u).any() else _last(law)
        ),
        "one id too high: the piece on which the uniform lies counts": _token(
            lambda law, u: min(int(np.searchsorted(np.cumsum(law), u, "right")) + 1, _last(law))
        ),
        "sums up from the last id; begin with id 0": _token(
            lambda law, u: len(law) - 1 - _draw_loop(law[::-1], u)
        ),
    },
    right={
        "a loop": _draw_loop,
        "bisect on a list": _draw_bisect,
        "the first sum above it": _draw_mask,
    },
)  # fmt: skip
