"""Lesson 08: top-k, top-p and min-p, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LAW, LESSON, draw_law
from grader.judging.compare import as_array
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.sampling import keep_min_p, keep_top_k, keep_top_p

# ---- top-k --------------------------------------------------------------------------------------


LONG_TIES = np.tile([1.0, 2.0], 32) / 96  # too long for NumPy's sort to be stable by chance


def _draw_top_k(rng: np.random.Generator) -> Inputs:
    n = int(rng.integers(6, 10))
    return {"law": draw_law(rng, n), "k": int(rng.integers(2, n - 2))}


def _ranked(law: Any) -> list[int]:
    """Ids from the most probable on, lower ids first on ties."""
    return sorted(range(len(law)), key=lambda i: (-law[i], i))


def _drive_filter(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The new law, and which tokens it still has: a tiny probability is not 0."""
    law = answer(**inputs)
    array = as_array(law)
    return {"law": law, "tokens kept": None if array is None else np.flatnonzero(array).tolist()}


def _kept(law: np.ndarray, ids: Any) -> np.ndarray:
    out = np.zeros(len(law))
    out[ids] = law[ids]
    return out / out.sum()


def _top_k(choose: Callable[[np.ndarray, int], Any], check: bool = True) -> Callable:
    """keep_top_k with another choice of what is kept (ids or a mask)."""

    def keep(law, k):
        if check and k < 1:
            raise ValueError("k")
        return _kept(law, choose(law, k))

    return keep


def _kth(law: np.ndarray, k: int) -> float:
    return float(np.sort(law)[::-1][min(k, len(law)) - 1])


def _top_k_sum_left_out(law, k):
    if k < 1:
        raise ValueError("k")
    out = np.zeros(len(law))
    out[_ranked(law)[:k]] = law[_ranked(law)[:k]]
    return out


def _top_k_softmax(law, k):
    kept = keep_top_k(law, k) > 0
    weights = np.where(kept, np.exp(law), 0)
    return weights / weights.sum()


def _top_k_sorted(law, k):
    if k < 1:
        raise ValueError("k")
    best = np.sort(law)[::-1].copy()
    best[k:] = 0
    return best / best.sum()


def _top_k_in_place(law, k):
    if k < 1:
        raise ValueError("k")
    law[_ranked(law)[k:]] = 0
    law /= law.sum()
    return law


def _top_k_partition(law, k):
    if k < 1:
        raise ValueError("k")
    return _kept(law, np.argpartition(-law, k - 1)[:k])


def _top_k_loop(law, k):
    if k < 1:
        raise ValueError("k")
    kept = [0.0] * len(law)
    for _ in range(min(k, len(law))):
        left = [p if not kept[i] else -1.0 for i, p in enumerate(law)]
        best = left.index(max(left))
        kept[best] = float(law[best])
    return [p / sum(kept) for p in kept]


def _top_k_torch(law, k):
    import torch

    if k < 1:
        raise ValueError("k")
    p = torch.from_numpy(law)
    order = torch.sort(p, descending=True, stable=True).indices[:k]
    kept = torch.zeros_like(p).scatter(0, order, p[order])
    return kept / kept.sum()


TOP_K = Exercise(
    id="keep_top_k",
    reference=keep_top_k,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=2,
    hints=(
        "First find which ids to keep, then copy their probabilities into an array of zeros, then "
        "divide by the sum.",
        'np.argsort(-law, kind="stable") lists the ids from the most probable on; "stable" leaves '
        "equal ones in the order of their ids. Its first k are kept.",
        "kept = np.zeros(len(law)); kept[best] = law[best]; return kept / kept.sum()",
    ),
    cases=(
        given("a tie at the k-th place", law=np.array([0.2, 0.4, 0.2, 0.2]), k=2),
        given("two ties at the k-th place", law=np.array([0.1, 0.2, 0.2, 0.3, 0.2]), k=3),
        given("k 1", law=np.array([0.1, 0.2, 0.4, 0.3]), k=1),
        given("many ties in a law of 64", law=LONG_TIES, k=40),
        given("k larger than the vocabulary", law=np.array([0.5, 0.1, 0.4]), k=7),
        given("k 0", law=np.array([0.5, 0.1, 0.4]), k=0),
    ),
    draw=_draw_top_k,
    drive=_drive_filter,
    comparison=LAW,
    wrong={
        "a strict > drops the k-th token itself": _top_k(
            lambda law, k: law > _kth(law, k) if k < len(law) else law > 0
        ),
        "keeps all tokens that tie with the k-th: exactly k are asked, lower ids first": _top_k(
            lambda law, k: law >= _kth(law, k)
        ),
        "of tied tokens the higher id is kept: the lower ones come first": _top_k(
            lambda law, k: np.argsort(law)[-k:]
        ),
        "a stable sort turned round has the higher of tied ids first: sort -law": _top_k(
            lambda law, k: np.argsort(law, kind="stable")[-k:]
        ),
        'np.argsort mixes up ties in a longer law; kind="stable" keeps lower ids first': _top_k(
            lambda law, k: np.argsort(-law)[:k]
        ),
        "the rest is not renormalised: a law sums to 1": _top_k_sum_left_out,
        "the result is sorted by probability: the token ids are lost": _top_k_sorted,
        "the k most probable are removed; they must be kept": _top_k(
            lambda law, k: _ranked(law)[k:] or _ranked(law)
        ),
        "keeps one token too many": _top_k(lambda law, k: _ranked(law)[: k + 1]),
        "a softmax of the kept probabilities: divide them by their sum, they are no logits": (
            _top_k_softmax
        ),
        "keeps the first k ids, not the k most probable": _top_k(
            lambda law, k: np.arange(min(k, len(law)))
        ),
        "a k larger than the vocabulary fails: it keeps all tokens": _top_k_partition,
        "a k below 1 is accepted": _top_k(lambda law, k: _ranked(law)[: max(k, 1)], check=False),
        "it changes its input law in place; work on a copy": _top_k_in_place,
    },
    right={
        "the best one k times, in a loop": _top_k_loop,
        "a stable sort in torch": _top_k_torch,
        "rank of each token": _top_k(
            lambda law, k: np.argsort(np.argsort(-law, kind="stable"), kind="stable") < k
        ),
    },
)

# ---- top-p --------------------------------------------------------------------------------------


def _draw_top_p(rng: np.random.Generator) -> Inputs:
    """A threshold well inside the piece of a token in the middle."""
    law = draw_law(rng, int(rng.integers(6, 10)))
    pieces = np.sort(law)[::-1]
    crossing = int(rng.integers(2, len(law) - 2))
    inside = float(rng.uniform(0.2, 0.8))
    return {"law": law, "top_p": float(pieces[:crossing].sum() + inside * pieces[crossing])}


def _top_p(choose: Callable[[np.ndarray, np.ndarray, float], Any], check: bool = True) -> Callable:
    """keep_top_p with another choice: choose(ranked ids, their cumulative sums, top_p)."""

    def keep(law, top_p):
        if check and not 0 < top_p <= 1:
            raise ValueError("top_p")
        order = np.array(_ranked(law))
        return _kept(law, order[choose(order, np.cumsum(law[order]), top_p)])

    return keep


def _up_to_crossing(cumulative: np.ndarray, top_p: float) -> slice:
    if top_p == 1:
        return slice(None)
    return slice(0, int(np.argmax(cumulative >= top_p)) + 1)


def _top_p_unnormalised(law, top_p):
    if not 0 < top_p <= 1:
        raise ValueError("top_p")
    return np.where(keep_top_p(law, top_p) > 0, law, 0)


def _top_p_sorted(law, top_p):
    return np.sort(keep_top_p(law, top_p))[::-1]


def _top_p_in(order: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """keep_top_p, but the ids are gone through in another order."""

    def keep(law, top_p):
        if not 0 < top_p <= 1:
            raise ValueError("top_p")
        ids = order(law)
        return _kept(law, ids[_up_to_crossing(np.cumsum(law[ids]), top_p)])

    return keep


def _top_p_loop(law, top_p):
    if not 0 < top_p <= 1:
        raise ValueError("top_p")
    kept, mass = [0.0] * len(law), 0.0
    for i in _ranked(law):
        if mass >= top_p and top_p < 1:
            break
        kept[i] = float(law[i])
        mass += kept[i]
    return [p / mass for p in kept]


def _top_p_torch(law, top_p):
    import torch

    if not 0 < top_p <= 1:
        raise ValueError("top_p")
    p, order = torch.sort(torch.from_numpy(law), descending=True, stable=True)
    ahead = torch.cat([torch.zeros(1, dtype=p.dtype), torch.cumsum(p, 0)[:-1]])
    p = torch.where((ahead < top_p) | torch.tensor(top_p == 1), p, 0)
    return torch.zeros_like(p).scatter(0, order, p / p.sum())


def _top_p_smallest(law, top_p):
    """Try 1, 2, 3, ... tokens until they suffice."""
    if not 0 < top_p <= 1:
        raise ValueError("top_p")
    for n in range(1, len(law) + 1):
        ids = _ranked(law)[:n]
        if n == len(law) or (top_p < 1 and np.cumsum(law[ids])[-1] >= top_p):
            return _kept(law, ids)
    raise AssertionError


TOP_P = Exercise(
    id="keep_top_p",
    reference=keep_top_p,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "Sort as in keep_top_k; the cumulative sums of the sorted law say how much mass the first "
        "n tokens have. How many of these sums are still below top_p?",
        "np.searchsorted(np.cumsum(law[order]), top_p) counts the sums below top_p. Those tokens "
        "and one more are kept: the one that crosses.",
        "best = order[: n_below + 1]; then kept = np.zeros(len(law)); kept[best] = law[best]; "
        "return kept / kept.sum(). top_p = 1 is a case of its own.",
    ),
    cases=(
        given("0.5 and 0.3 reach 0.7", law=np.array([0.3, 0.5, 0.05, 0.15]), top_p=0.7),
        given("below the largest probability", law=np.array([0.3, 0.5, 0.05, 0.15]), top_p=0.1),
        given("exactly reached", law=np.array([0.125, 0.5, 0.25, 0.125]), top_p=0.75),
        given("four equal tokens", law=np.full(4, 0.25), top_p=0.4),
        given("many ties in a law of 64", law=LONG_TIES, top_p=0.745),
        given("top_p 1", law=np.array([0.3, 0.5, 0.05, 0.15]), top_p=1.0),
        given("top_p 1, and ten times 0.1 is less", law=np.full(10, 0.1), top_p=1.0),
        given("top_p 1 keeps a tiny tail", law=np.array([0.5, 0.5, 1e-20]), top_p=1.0),
        given("top_p 0", law=np.array([0.3, 0.5, 0.05, 0.15]), top_p=0.0),
        given("top_p 1.5", law=np.array([0.3, 0.5, 0.05, 0.15]), top_p=1.5),
    ),
    draw=_draw_top_p,
    drive=_drive_filter,
    comparison=LAW,
    wrong={
        "drops the token that crosses the threshold: the kept mass must reach top_p": _top_p(
            lambda order, sums, top_p: slice(0, max(1, int((sums <= top_p + 1e-12).sum())))
        ),
        "keeps nothing where top_p is below the largest probability: one token always stays": (
            _top_p(lambda order, sums, top_p: sums <= top_p + 1e-12)
        ),
        "goes on where the sum is exactly top_p: it is reached, so stop": _top_p(
            lambda order, sums, top_p: slice(0, int((sums <= top_p).sum()) + 1)
        ),
        "the rest is not renormalised: a law sums to 1": _top_p_unnormalised,
        "the result is sorted by probability: the token ids are lost": _top_p_sorted,
        "sums up in the order of the ids; begin with the most probable token": _top_p_in(
            lambda law: np.arange(len(law))
        ),
        "begins with the least probable token; begin with the most probable": _top_p_in(
            lambda law: np.argsort(law, kind="stable")
        ),
        "of tied tokens the higher id is kept: the lower ones come first": _top_p_in(
            lambda law: np.argsort(law)[::-1]
        ),
        "a stable sort turned round has the higher of tied ids first: sort -law": _top_p_in(
            lambda law: np.argsort(law, kind="stable")[::-1]
        ),
        'np.argsort mixes up ties in a longer law; kind="stable" keeps lower ids first': (
            _top_p_in(lambda law: np.argsort(-law))
        ),
        "with top_p 1 no sum may reach it, by rounding, and np.argmax then says 0; 1 keeps all": (
            _top_p(lambda order, sums, top_p: slice(0, int(np.argmax(sums >= top_p)) + 1))
        ),
        "with top_p 1 it stops where the sum is 1 by rounding: a tiny tail is lost; 1 keeps all": (
            _top_p(
                lambda order, sums, top_p: slice(
                    0, int(np.argmax(sums >= min(top_p, sums[-1]))) + 1
                )
            )
        ),
        "keeps one token too many": _top_p(
            lambda order, sums, top_p: slice(0, int(np.argmax(sums >= top_p)) + 2)
        ),
        "an impossible top_p is accepted": _top_p(
            lambda order, sums, top_p: _up_to_crossing(sums, min(top_p, 1)), check=False
        ),
    },
    right={
        "a loop that stops": _top_p_loop,
        "torch, by the mass ahead of each token": _top_p_torch,
        "tries 1, 2, 3, … tokens": _top_p_smallest,
    },
)

# ---- min-p --------------------------------------------------------------------------------------


def _draw_min_p(rng: np.random.Generator) -> Inputs:
    law = draw_law(rng, int(rng.integers(6, 10)))
    ratios = np.sort(law / law.max())
    i = int(rng.integers(2, len(law) - 2))  # two tokens go at least, two stay
    return {"law": law, "min_p": float((ratios[i - 1] + ratios[i]) / 2)}


def _min_p(mask: Callable[[np.ndarray, float], Any], check: bool = True) -> Callable:
    def keep(law, min_p):
        if check and not 0 <= min_p <= 1:
            raise ValueError("min_p")
        return _kept(law, mask(law, min_p))

    return keep


def _min_p_unnormalised(law, min_p):
    return np.where(keep_min_p(law, min_p) > 0, law, 0)


def _min_p_by_largest(law, min_p):
    kept = keep_min_p(law, min_p)
    return kept / kept.max()


def _min_p_squeezed(law, min_p):
    kept = keep_min_p(law, min_p)
    return kept[kept > 0]


def _min_p_loop(law, min_p):
    if min_p < 0 or min_p > 1:
        raise ValueError("min_p")
    kept = [float(p) if p / max(law) >= min_p else 0.0 for p in law]
    return [p / math.fsum(kept) for p in kept]


def _min_p_torch(law, min_p):
    import torch

    if not 0 <= min_p <= 1:
        raise ValueError("min_p")
    p = torch.from_numpy(law)
    p = p.masked_fill(p < min_p * p.max(), 0.0)
    return p / p.sum()


MIN_P = Exercise(
    id="keep_min_p",
    reference=keep_min_p,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    hints=(
        "The threshold is a share of the largest probability, not a probability of its own.",
        "law >= min_p * law.max() is True for what is kept; no sorting is needed.",
        "kept = np.where(law >= min_p * law.max(), law, 0); return kept / kept.sum()",
    ),
    cases=(
        given("a token at the threshold", law=np.array([0.5, 0.25, 0.125, 0.125]), min_p=0.5),
        given("min_p 0", law=np.array([0.5, 0.3, 0.2, 0.0]), min_p=0.0),
        given("min_p 1, two largest", law=np.array([0.375, 0.25, 0.375]), min_p=1.0),
        given("a flat law", law=np.full(8, 0.125), min_p=0.2),
        given("min_p 1.5", law=np.array([0.5, 0.3, 0.2]), min_p=1.5),
        given("min_p below 0", law=np.array([0.5, 0.3, 0.2]), min_p=-0.1),
    ),
    draw=_draw_min_p,
    drive=_drive_filter,
    comparison=LAW,
    wrong={
        "compares with min_p itself: the threshold is min_p times the largest probability": _min_p(
            lambda law, m: law >= m if (law >= m).any() else law == law.max()
        ),
        "a strict > drops the token at the threshold; with min_p 1 nothing is left": _min_p(
            lambda law, m: law > m * law.max()
        ),
        "the threshold is min_p times the mean, not times the largest probability": _min_p(
            lambda law, m: law >= m * law.mean()
        ),
        "keeps what is below the threshold": _min_p(
            lambda law, m: law <= m * law.max() if m else law >= 0
        ),
        "the rest is not renormalised: a law sums to 1": _min_p_unnormalised,
        "divides by the largest probability, not by the sum": _min_p_by_largest,
        "the removed tokens are cut out: the others lose their ids": _min_p_squeezed,
        "an impossible min_p is accepted": _min_p(
            lambda law, m: law >= min(m, 1) * law.max(), check=False
        ),
        "the threshold is 1 - min_p of the largest probability": _min_p(
            lambda law, m: law >= (1 - m) * law.max()
        ),
    },
    right={
        "a loop over ratios": _min_p_loop,
        "torch's masked_fill": _min_p_torch,
        "sorted, as many as pass": _min_p(
            lambda law, m: _ranked(law)[: int((np.sort(law) >= m * law.max()).sum())]
        ),
    },
)
