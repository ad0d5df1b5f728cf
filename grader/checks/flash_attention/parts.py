"""Lesson 06: attention over a part of the keys, and merging two parts by log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grader.checks.flash_attention.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.flash_attention import merge_partials, partial_attention

# ---- partial_attention --------------------------------------------------------------------------


def query_inputs(rng: np.random.Generator, n_heads: int, S: int, d_head: int) -> Inputs:
    k, v = rng.normal(size=(2, n_heads, S, d_head))
    return {"q": rng.normal(size=(n_heads, d_head)), "k": k, "v": v}


def _draw_query(rng: np.random.Generator) -> Inputs:
    n_heads, S, d_head = int(rng.integers(2, 5)), int(rng.integers(5, 9)), int(rng.integers(9, 14))
    return query_inputs(rng, n_heads, S, d_head)


def _near(score: float) -> Inputs:
    """All scores near this one."""
    inputs = query_inputs(np.random.default_rng(1), 2, 6, 16)
    return {**inputs, "q": np.full((2, 16), 100.0), "k": score / 400 + 0.01 * inputs["k"]}


def _far_apart() -> Inputs:
    """One head with all its scores near 900, the other near -900."""
    inputs = _near(900.0)
    return {**inputs, "k": inputs["k"] * np.array([1.0, -1.0])[:, None, None]}


def _from_end_to_end() -> Inputs:
    inputs = _near(0.0)
    return {**inputs, "k": inputs["k"] + np.linspace(-2.25, 2.25, 6)[None, :, None]}


def _two_equal() -> Inputs:
    return {"q": np.zeros((1, 1)), "k": np.ones((1, 2, 1)), "v": np.array([[[1.0], [3.0]]])}


def attention_magnitude(inputs: Mapping[str, Any]) -> float:
    """Of a score, and of a value; an error in a score counts in proportion to the scores."""
    largest = float(np.abs(inputs["q"]).max() * np.abs(inputs["k"]).sum(-1).max(initial=0.0))
    return (1 + largest) * max(1.0, float(np.abs(inputs["v"]).max(initial=0.0)))


def _partial(
    scale: Callable = lambda q, k: np.sqrt(q.shape[-1]),
    peak: Callable = lambda scores: scores.max(-1),
    lse: Callable = lambda peak, total: peak + np.log(total),
    divide: bool = True,
    empty: bool = True,
    axis: int = -1,
):
    """partial_attention with one step replaced."""

    def answer(q, k, v):
        if k.shape[1] == 0 and empty:
            return np.zeros_like(q), np.full(len(q), -np.inf)
        scores = np.einsum("hd,hsd->hs", q, k) / scale(q, k)
        top = peak(scores)
        weights = np.exp(scores - top[:, None])
        total = weights.sum(axis)
        out = np.einsum("hs,hsd->hd", weights, v)
        return out / total[:, None] if divide else out, lse(top, total)

    return answer


def _partial_no_max(q, k, v):
    if k.shape[1] == 0:
        return np.zeros_like(q), np.full(len(q), -np.inf)
    weights = np.exp(np.einsum("hd,hsd->hs", q, k) / np.sqrt(q.shape[-1]))
    total = weights.sum(-1)
    return np.einsum("hs,hsd->hd", weights, v) / total[:, None], np.log(total)


def _partial_logaddexp(q, k, v):
    out, lse = np.zeros_like(q), np.full(len(q), -np.inf)
    for h in range(len(q)):
        for key, value in zip(k[h], v[h], strict=True):
            score = q[h] @ key / len(key) ** 0.5
            both = np.logaddexp(lse[h], score)
            out[h] = np.exp(lse[h] - both) * out[h] + np.exp(score - both) * value
            lse[h] = both
    return out, lse


def _partial_torch(q, k, v):
    import torch  # takes a second, and only the tests call this

    q, k, v = map(torch.from_numpy, (q, k, v))
    scores = (k @ q[..., None])[..., 0] / q.shape[-1] ** 0.5
    return (torch.softmax(scores, -1)[:, None] @ v)[:, 0], torch.logsumexp(scores, -1)


def _drive_partial(answer: Any, inputs: Inputs) -> Any:
    found = answer(**inputs)
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return {"out": found[0], "lse": found[1]}
    return found


PARTIAL = Exercise(
    id="partial_attention",
    reference=partial_attention,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    hints=(
        "It is attend_one of lesson 04 that also tells what it divided by. First the case of no "
        "keys: k.shape[1] == 0.",
        'scores = np.einsum("hd,hsd->hs", q, k) / np.sqrt(q.shape[-1]); row_max = scores.max(-1); '
        "weights = np.exp(scores - row_max[:, None]); row_sum = weights.sum(-1).",
        'out = np.einsum("hs,hsd->hd", weights, v) / row_sum[:, None]; lse = row_max + '
        "np.log(row_sum). Without keys: np.zeros_like(q), np.full(len(q), -np.inf).",
    ),
    cases=(
        Case("two equal scores", _two_equal),
        Case("no keys at all", lambda: query_inputs(np.random.default_rng(2), 2, 0, 4)),
        Case("all scores near 900", lambda: _near(900.0)),
        Case("all scores near -900", lambda: _near(-900.0)),
        Case("scores from -900 to 900", _from_end_to_end),
        Case("one head near 900, the other near -900", _far_apart),
    ),
    draw=_draw_query,
    drive=_drive_partial,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["k"].shape[-2],
        magnitude=attention_magnitude,
        why="a dot product of d_head numbers, then S terms; an error in a score counts in "
        "proportion to the scores",
    ),
    wrong={
        "lse is the logarithm of the sum without the maximum: add it back after the log": (
            _partial(lse=lambda top, total: np.log(total))
        ),
        "the maximum is taken from lse once more; it must be added back": _partial(
            lse=lambda top, total: np.log(total) - top
        ),
        "lse is the sum itself, not its logarithm": _partial(lse=lambda top, total: total),
        "lse is the largest score; the sum belongs to it": _partial(lse=lambda top, total: top),
        "out is not divided by the sum: each part is a softmax of its own": _partial(divide=False),
        "np.exp of the raw scores overflows: subtract each head's largest score first": (
            _partial_no_max
        ),
        "what is subtracted is not the largest score (its absolute value, or never below 0): near "
        "-900 every weight becomes 0": (_partial(peak=lambda scores: np.abs(scores).max(-1))),
        "one largest score for all heads: each head has its own": _partial(
            peak=lambda scores: np.full(len(scores), scores.max()),
        ),
        "without keys lse is 0, a weight of 1: it must be -inf, a weight of 0": (
            lambda q, k, v: (
                partial_attention(q, k, v) if k.shape[1] else (np.zeros_like(q), np.zeros(len(q)))
            )
        ),
        "no keys at all must give out 0 and lse -inf; the maximum of nothing is an error": (
            _partial(empty=False)
        ),
        "the scores are not divided by sqrt(d_head)": _partial(scale=lambda q, k: 1),
        "divides by d_head, not by its square root": _partial(scale=lambda q, k: q.shape[-1]),
        "divides by sqrt(S), the number of keys: use sqrt(d_head)": _partial(
            scale=lambda q, k: np.sqrt(k.shape[1])
        ),
        "lse is in base 2; the natural logarithm is asked": _partial(
            lse=lambda top, total: (top + np.log(total)) / np.log(2)
        ),
    },
    right={
        "key by key with logaddexp": _partial_logaddexp,
        "softmax and logsumexp of torch": _partial_torch,
    },
)

# ---- merge_partials -----------------------------------------------------------------------------


def _draw_parts(rng: np.random.Generator) -> Inputs:
    """Unequal mass in the heads that matter: a larger, b larger, both near 900, a without keys."""
    n_heads, d_head = 5, int(rng.integers(6, 9))
    out_a, out_b = rng.normal(size=(2, n_heads, d_head))
    lse_a = np.array([1.5, -0.5, 900.0, -np.inf, -900.0]) + rng.uniform(-0.3, 0.3, n_heads)
    lse_b = np.array([-0.5, 1.0, 901.0, 0.7, -899.0]) + rng.uniform(-0.3, 0.3, n_heads)
    out_a[3] = 0.0
    return {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}


def _parts(lse_a: float, lse_b: float, seed: int = 0) -> Inputs:
    out_a, out_b = np.random.default_rng(seed).normal(size=(2, 1, 3))
    given_a = {"out_a": out_a * np.isfinite(lse_a), "lse_a": np.array([lse_a])}
    return {**given_a, "out_b": out_b * np.isfinite(lse_b), "lse_b": np.array([lse_b])}


def _merge(
    share: Callable = lambda a, top: np.exp(a - top),
    lse: Callable = lambda a, b, top: np.logaddexp(a, b),
    safe: Callable = lambda top: np.where(np.isneginf(top), 0, top),
    divide: Callable = lambda total: np.where(total == 0, 1, total),
    top: Callable = np.maximum,
):
    """merge_partials with one step replaced."""

    def answer(out_a, lse_a, out_b, lse_b):
        shift = safe(top(lse_a, lse_b))
        weight_a, weight_b = share(lse_a, shift)[:, None], share(lse_b, shift)[:, None]
        out = (weight_a * out_a + weight_b * out_b) / divide(weight_a + weight_b)
        return out, lse(lse_a, lse_b, shift)

    return answer


def _merge_gate(out_a, lse_a, out_b, lse_b):
    """A sigmoid of the difference."""
    difference = np.where(np.isneginf(lse_a), -np.inf, 0.0)
    both = np.isfinite(lse_a) & np.isfinite(lse_b)
    difference[both] = lse_a[both] - lse_b[both]
    difference[np.isneginf(lse_b) & np.isfinite(lse_a)] = np.inf
    gate = (1 / (1 + np.exp(-np.clip(difference, -700, 700))))[:, None]
    return gate * out_a + (1 - gate) * out_b, np.logaddexp(lse_a, lse_b)


def _merge_loop(out_a, lse_a, out_b, lse_b):
    outs, lses = [], []
    for a, la, b, lb in zip(out_a, lse_a, out_b, lse_b, strict=True):
        if la == -np.inf or lb == -np.inf:
            outs.append(b if la == -np.inf else a)
            lses.append(float(max(la, lb)))
            continue
        lse = max(la, lb) + np.log1p(np.exp(-abs(la - lb)))
        outs.append(np.exp(la - lse) * a + np.exp(lb - lse) * b)
        lses.append(float(lse))
    return outs, lses


def _merge_torch(out_a, lse_a, out_b, lse_b):
    import torch

    lse = torch.logaddexp(torch.from_numpy(lse_a), torch.from_numpy(lse_b))
    base = torch.nan_to_num(lse, neginf=0.0)
    parts = ((out_a, lse_a), (out_b, lse_b))
    return sum(
        torch.exp(torch.from_numpy(m) - base)[:, None] * torch.from_numpy(o) for o, m in parts
    ), lse


MERGE = Exercise(
    id="merge_partials",
    reference=merge_partials,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "A weighted mean of two outputs. The weights are exp(lse_a) and exp(lse_b), in each head; "
        "to keep them finite divide both by the larger: exp(lse - larger).",
        "lse has shape (n_heads,), out has (n_heads, d_head): make the weights columns with [:, "
        "None]. The merged lse is np.logaddexp(lse_a, lse_b).",
        "larger = np.maximum(lse_a, lse_b); shift = np.where(larger == -np.inf, 0, larger). Two "
        "weights of 0 must not be divided by 0: out = (...) / np.where(total == 0, 1, total).",
    ),
    cases=(
        given(
            "weights 3 and 1",
            out_a=np.array([[2.0]]),
            lse_a=np.log([3.0]),
            out_b=np.array([[8.0]]),
            lse_b=np.log([1.0]),
        ),
        Case("equal mass", lambda: _parts(0.4, 0.4)),
        Case("b has no keys", lambda: _parts(0.3, -np.inf)),
        Case("neither has keys", lambda: _parts(-np.inf, -np.inf)),
        Case("lse near 900", lambda: _parts(900.0, 899.0)),
        Case("lse of 900 and of -900", lambda: _parts(900.0, -900.0)),
        Case("lse of -900 and of 900", lambda: _parts(-900.0, 900.0)),
    ),
    draw=_draw_parts,
    drive=_drive_partial,
    comparison=Comparison(
        terms=lambda i: 4,
        magnitude=lambda i: (
            (1 + float(np.abs(np.nan_to_num([i["lse_a"], i["lse_b"]], neginf=0)).max()))
            * max(1.0, float(np.abs(i["out_a"]).max()), float(np.abs(i["out_b"]).max()))
        ),
        why="two products, their sum and a division; an error in lse counts in proportion to it",
    ),
    wrong={
        "a plain average: the part with the larger sum has more weight": _merge(
            share=lambda a, top: np.isfinite(a).astype(float)
        ),
        "lse is the larger of the two; the other part has weight too": _merge(
            lse=lambda a, b, top: np.maximum(a, b)
        ),
        "lse is the sum of the two; their exponentials are to be added": _merge(
            lse=lambda a, b, top: a + b
        ),
        "weighted by lse itself; the weights are exp(lse)": lambda out_a, lse_a, out_b, lse_b: (
            (lse_a[:, None] * out_a + lse_b[:, None] * out_b) / (lse_a + lse_b)[:, None],
            np.logaddexp(lse_a, lse_b),
        ),
        "the weights are swapped: out_a goes with lse_a": lambda out_a, lse_a, out_b, lse_b: (
            merge_partials(out_b, lse_a, out_a, lse_b)
        ),
        "np.exp(lse) overflows near 900 and vanishes near -900: subtract the larger one first": (
            _merge(safe=lambda top: np.zeros_like(top))
        ),
        "lse_a is subtracted, not the larger of the two: np.exp overflows where b is far above": (
            _merge(top=lambda a, b: a)
        ),
        "not divided by the sum of the weights": _merge(divide=lambda total: 1),
        "two parts without keys give NaN (-inf - (-inf), or 0 / 0): out must be 0 there": _merge(
            safe=lambda top: top
        ),
        "one larger lse for all heads: a head far below it gets weights of 0 only": _merge(
            top=lambda a, b: np.full_like(a, max(a.max(), b.max()))
        ),
        "the outputs are added: they are normalised already, so weigh them": (
            lambda out_a, lse_a, out_b, lse_b: (out_a + out_b, np.logaddexp(lse_a, lse_b))
        ),
        "lse is taken relative to the larger one: add it back after the log": _merge(
            lse=lambda a, b, top: np.logaddexp(a, b) - top
        ),
    },
    right={
        "a gate between the two": _merge_gate,
        "head by head": _merge_loop,
        "in torch": _merge_torch,
    },
)
