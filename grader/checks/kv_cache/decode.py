"""Lesson 04: attention over cached keys and values, decoding without a cache and with one."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.checks.kv_cache.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.kv_cache import AttentionLayer, attend_one, decode_cached, decode_uncached

# ---- attend_one ---------------------------------------------------------------------------------


def _attend_inputs(rng: np.random.Generator, n_heads: int, S: int, d_head: int) -> Inputs:
    q = rng.normal(size=(n_heads, d_head))
    k, v = rng.normal(size=(2, n_heads, S, d_head))
    return {"q": q, "k": k, "v": v}


def _draw_attend(rng: np.random.Generator) -> Inputs:
    n_heads, S, d_head = int(rng.integers(2, 5)), int(rng.integers(5, 9)), int(rng.integers(9, 14))
    return _attend_inputs(rng, n_heads, S, d_head)


def _scaled(factor: float) -> Inputs:
    inputs = _attend_inputs(np.random.default_rng(1), 2, 6, 8)
    return {**inputs, "q": inputs["q"] * factor}


def _all_negative() -> Inputs:
    """Every key points away from the query: all scores are near -900."""
    inputs = _attend_inputs(np.random.default_rng(2), 2, 5, 8)
    q = np.full((2, 8), 100.0)
    return {**inputs, "q": q, "k": -3.2 + 0.01 * inputs["k"]}


def _heads_apart() -> Inputs:
    """The best score of head 0 is near 900, that of head 1 near -900."""
    inputs = _attend_inputs(np.random.default_rng(3), 2, 5, 8)
    k = 0.01 * inputs["k"] + np.array([3.2, -3.2])[:, None, None]
    return {**inputs, "q": np.full((2, 8), 100.0), "k": k}


def _scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.einsum("hd,hsd->hs", q, k)


def _mix(scores: np.ndarray, v: np.ndarray, axis: Any = -1) -> np.ndarray:
    """Softmax over `axis` of (n_heads, S) scores, then the weighted sum of the values."""
    weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
    weights = weights / weights.sum(axis=axis, keepdims=True)
    return np.einsum("hs,hsd->hd", weights, v)


def _attend_no_max(q, k, v):
    weights = np.exp(_scores(q, k) / np.sqrt(q.shape[-1]))
    return np.einsum("hs,hsd->hd", weights / weights.sum(-1, keepdims=True), v)


def _attend_abs_max(q, k, v):
    scores = _scores(q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - np.abs(scores).max(-1, keepdims=True))
    return np.einsum("hs,hsd->hd", weights / weights.sum(-1, keepdims=True), v)


def _attend_global_max(q, k, v):
    scores = _scores(q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max())
    return np.einsum("hs,hsd->hd", weights / weights.sum(-1, keepdims=True), v)


def _attend_unnormalised(q, k, v):
    scores = _scores(q, k) / np.sqrt(q.shape[-1])
    return np.einsum("hs,hsd->hd", np.exp(scores - scores.max(-1, keepdims=True)), v)


def _attend_in_place(q, k, v):
    q /= np.sqrt(q.shape[-1])
    return _mix(_scores(q, k), v)


def _attend_loop(q, k, v):
    out = np.zeros_like(q)
    for h in range(len(q)):
        scores = np.array([q[h] @ key for key in k[h]]) / len(q[h]) ** 0.5
        weights = np.exp(scores - scores.max())
        for weight, value in zip(weights / weights.sum(), v[h], strict=True):
            out[h] += weight * value
    return out


def _attend_torch(q, k, v):
    import torch  # takes a second, and only the tests call this

    q, k, v = (torch.from_numpy(np.ascontiguousarray(a)) for a in (q[:, None], k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]


def _attend_matmul(q, k, v):
    scores = (k @ q[..., None])[..., 0] * q.shape[-1] ** -0.5
    logs = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return (np.exp(logs)[:, None] @ v)[:, 0]


ATTEND = Exercise(
    id="attend_one",
    reference=attend_one,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "Three steps: scores (n_heads, S), weights (n_heads, S), output (n_heads, d_head). "
        'np.einsum names the axes: "hd,hsd->hs" gives one score per head and position.',
        "The scores are divided by np.sqrt(q.shape[-1]). The softmax runs over the last axis "
        "(positions), for each head alone: subtract scores.max(axis=-1, keepdims=True), take "
        "np.exp, divide by the sum over the same axis.",
        'The output is np.einsum("hs,hsd->hd", weights, v): for each head, S weights times S '
        "values, summed over the positions.",
    ),
    cases=(
        Case("one key", lambda: _attend_inputs(np.random.default_rng(0), 2, 1, 4)),
        Case("scores in the thousands", lambda: _scaled(3000.0)),
        Case("all scores near -900", _all_negative),
        Case("one head's scores far below the other's", _heads_apart),
        Case("one head, one key", lambda: _attend_inputs(np.random.default_rng(4), 1, 1, 4)),
    ),
    draw=_draw_attend,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["k"].shape[-2],
        magnitude=lambda i: float(
            np.abs(i["v"]).max() * (1 + np.abs(i["q"]).max() * np.abs(i["k"]).sum(-1).max())
        ),
        why="a dot product of d_head numbers, then S weighted values; "
        "an error in a score counts in proportion to the scores",
    ),
    wrong={
        "the scores are not divided by sqrt(d_head)": lambda q, k, v: _mix(_scores(q, k), v),
        "divides by sqrt(d_model), the width of all heads together: use sqrt(d_head)": (
            lambda q, k, v: _mix(_scores(q, k) / np.sqrt(q.size), v)
        ),
        "divides by d_head, not by its square root": (
            lambda q, k, v: _mix(_scores(q, k) / q.shape[-1], v)
        ),
        "divides by sqrt(S), the number of keys: use sqrt(d_head)": (
            lambda q, k, v: _mix(_scores(q, k) / np.sqrt(k.shape[1]), v)
        ),
        "np.exp of the raw scores overflows: subtract each head's largest score first": (
            _attend_no_max
        ),
        "subtracts the largest absolute score: with negative scores every weight becomes 0": (
            _attend_abs_max
        ),
        "one largest score for all heads: a head far below it gets weights of 0 only": (
            _attend_global_max
        ),
        "the softmax runs over the heads; it must run over the positions of each head": (
            lambda q, k, v: _mix(_scores(q, k) / np.sqrt(q.shape[-1]), v, axis=0)
        ),
        "one softmax over all heads together; each head's weights must sum to 1": (
            lambda q, k, v: _mix(_scores(q, k) / np.sqrt(q.shape[-1]), v, axis=(0, 1))
        ),
        "the weights are not divided by their sum": _attend_unnormalised,
        "the weights are applied to the keys; the output mixes the values": (
            lambda q, k, v: _mix(_scores(q, k) / np.sqrt(q.shape[-1]), k)
        ),
        "it changes its input q in place; work on a copy": _attend_in_place,
    },
    right={
        "a loop over heads and positions": _attend_loop,
        "torch's scaled_dot_product_attention": _attend_torch,
        "matmul and log-sum-exp": _attend_matmul,
    },
)

# ---- decoding with and without a cache ----------------------------------------------------------


class WatchedLayer(AttentionLayer):
    """Has worked before, and remembers how many rows each call projected."""

    for_answers = ("w_q", "w_k", "w_v", "n_heads", "n_kv_rows", "query", "key", "value")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.n_kv_rows = 100
        self.calls: list[int] = []

    def key(self, x: np.ndarray) -> np.ndarray:
        self.calls.append(len(x))
        return super().key(x)

    def value(self, x: np.ndarray) -> np.ndarray:
        self.calls.append(len(x))
        return super().value(x)


def _draw_decode(rng: np.random.Generator) -> Inputs:
    n, n_heads, d_head, d_model = (int(rng.integers(*span)) for span in DECODE_SPANS)
    w = rng.normal(size=(3, d_model, n_heads * d_head)) / np.sqrt(d_model)
    return {"x": rng.normal(size=(n, d_model)), "layer": WatchedLayer(w[0], w[1], w[2], n_heads)}


DECODE_SPANS = ((5, 9), (2, 4), (3, 6), (7, 12))  # n, n_heads, d_head, d_model


def _tokens(n: int, n_heads: int) -> Inputs:
    rng = np.random.default_rng(n)
    w = rng.normal(size=(3, 8, 8)) / np.sqrt(8)
    return {"x": rng.normal(size=(n, 8)), "layer": WatchedLayer(w[0], w[1], w[2], n_heads)}


def _twelve_tokens() -> Inputs:
    return _tokens(12, 2)


def _drive_decode(answer: Any, inputs: Inputs) -> dict[str, Any]:
    x, layer = inputs["x"], inputs["layer"]
    weights = [w.copy() for w in (layer.w_q, layer.w_k, layer.w_v)]
    seen = {"outputs": answer(x=x, layer=layer), "rows through w_k and w_v": layer.n_kv_rows - 100}
    seen["the first 3 rows again, same layer"] = answer(x=x[:3], layer=layer)
    now = (layer.w_q, layer.w_k, layer.w_v)
    seen["weights kept"] = all(map(np.array_equal, weights, now))
    return seen


def _drive_cached(answer: Any, inputs: Inputs) -> dict[str, Any]:
    seen = _drive_decode(answer, inputs)
    return {**seen, "most rows in one projection": max(inputs["layer"].calls, default=0)}


def _query(layer: AttentionLayer, x: np.ndarray, t: int) -> np.ndarray:
    return layer.query(x[t : t + 1])[:, 0]


def _decode_with(prefix, query_row=lambda x, t: t):
    """decode_uncached with another choice of rows to project, or of the row that asks."""

    def decode(x, layer):
        out = []
        for t in range(len(x)):
            rows = prefix(x, t)
            out.append(
                attend_one(_query(layer, x, query_row(x, t)), layer.key(rows), layer.value(rows))
            )
        return np.stack(out)

    return decode


def _project_all_rows(x, layer):
    """Right numbers, but every step projects rows that do not exist yet."""
    out = []
    for t in range(len(x)):
        k, v = layer.key(x), layer.value(x)
        out.append(attend_one(_query(layer, x, t), k[:, : t + 1], v[:, : t + 1]))
    return np.stack(out)


def _uncached_matmul(x, layer):
    """Stacks the steps at the end, attention written out."""
    out = np.zeros((len(x), layer.n_heads, layer.w_k.shape[1] // layer.n_heads))
    for t, _ in enumerate(x):
        k, v = layer.key(x[: t + 1]), layer.value(x[: t + 1])
        out[t] = _attend_loop(layer.query(x[: t + 1])[:, -1], k, v)
    return out


def _cached_with(join, see=lambda kept: kept, swap=False):
    """decode_cached with another way of keeping rows."""

    def decode(x, layer):
        k_kept = v_kept = None
        out = []
        for t in range(len(x)):
            row = x[t : t + 1]
            k, v = layer.key(row), layer.value(row)
            if swap:
                k, v = v, k
            k_kept, v_kept = join(k_kept, k), join(v_kept, v)
            out.append(attend_one(_query(layer, x, t), see(k_kept), see(v_kept)))
        return np.stack(out)

    return decode


def _concatenate(kept, new):
    return new if kept is None else np.concatenate([kept, new], axis=1)


def _cached_sees_only_past(x, layer):
    kept_k: Any = None
    kept_v: Any = None
    out = []
    for t in range(len(x)):
        k, v = layer.key(x[t : t + 1]), layer.value(x[t : t + 1])
        seen_k, seen_v = (k, v) if kept_k is None else (kept_k, kept_v)
        out.append(attend_one(_query(layer, x, t), seen_k, seen_v))
        kept_k, kept_v = _concatenate(kept_k, k), _concatenate(kept_v, v)
    return np.stack(out)


def _cached_in_buffer(view_end):
    """A preallocated buffer; view_end(t, n) says how much of it the query sees."""

    def decode(x, layer):
        n, d_head = len(x), layer.w_k.shape[1] // layer.n_heads
        k, v = np.zeros((2, layer.n_heads, n, d_head))
        out = []
        for t in range(n):
            k[:, t], v[:, t] = layer.key(x[t : t + 1])[:, 0], layer.value(x[t : t + 1])[:, 0]
            end = view_end(t, n)
            out.append(attend_one(_query(layer, x, t), k[:, :end], v[:, :end]))
        return np.stack(out)

    return decode


def _cached_aliased(x, layer):
    d_head = layer.w_k.shape[1] // layer.n_heads
    k, v = np.zeros((2, layer.n_heads, d_head))
    keys, values, out = [], [], []
    for t in range(len(x)):
        k[:], v[:] = layer.key(x[t : t + 1])[:, 0], layer.value(x[t : t + 1])[:, 0]
        keys.append(k)
        values.append(v)
        out.append(attend_one(_query(layer, x, t), np.stack(keys, 1), np.stack(values, 1)))
    return np.stack(out)


def _project_once(x, layer):
    k, v = layer.key(x), layer.value(x)
    steps = range(len(x))
    return np.stack([attend_one(_query(layer, x, t), k[:, : t + 1], v[:, : t + 1]) for t in steps])


def _cached_lists(x, layer):
    keys, values, out = [], [], []
    for t in range(len(x)):
        keys.append(layer.key(x[t : t + 1])[:, 0])
        values.append(layer.value(x[t : t + 1])[:, 0])
        out.append(attend_one(_query(layer, x, t), np.stack(keys, 1), np.stack(values, 1)))
    return out


DECODE_COMPARISON = Comparison(
    terms=lambda i: i["x"].shape[1] + i["layer"].w_k.shape[1] + len(i["x"]),
    magnitude=lambda i: (
        float(
            np.abs(i["x"]).max()
            * max(np.abs(w).sum(0).max() for w in (i["layer"].w_k, i["layer"].w_v))
        )
        ** 2
    ),
    why="projections of d_model numbers, scores of d_head, n weighted values",
)

UNCACHED = Exercise(
    id="decode_uncached",
    reference=decode_uncached,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("attend_one",),
    hints=(
        "One loop over t. In each round project the rows that exist by now: x[: t + 1].",
        "layer.query(x[t : t + 1]) has shape (n_heads, 1, d_head); attend_one wants "
        "(n_heads, d_head), so take [:, 0].",
        "Collect attend_one(q, layer.key(prefix), layer.value(prefix)) in a list and return "
        "np.stack(outputs). Call layer.key and layer.value once a step each: they are counted.",
    ),
    cases=(
        Case("12 tokens, 2 heads", _twelve_tokens),
        Case("one token, one head", lambda: _tokens(1, 1)),
        Case("70 tokens", lambda: _tokens(70, 2)),
    ),
    draw=_draw_decode,
    drive=_drive_decode,
    comparison=DECODE_COMPARISON,
    wrong={
        "attends to all n rows: while decoding, later tokens do not exist yet": (
            _decode_with(lambda x, t: x)
        ),
        "asks with the first row's query; the newest row asks": (
            _decode_with(lambda x, t: x[: t + 1], lambda x, t: 0)
        ),
        "projects the new row only: each token sees nothing but itself": (
            _decode_with(lambda x, t: x[t : t + 1])
        ),
        "the prefix stops before the new row: a token must see itself as well": (
            _decode_with(lambda x, t: x[: max(t, 1)])
        ),
        "x[: t] is empty in step 0: the prefix includes row t, so it is x[: t + 1]": (
            _decode_with(lambda x, t: x[:t])
        ),
        "right outputs, but each row is projected once: that is the cached version": decode_cached,
        "right outputs, but every step projects all n rows, also those that do not exist yet": (
            _project_all_rows
        ),
    },
    right={
        "attention in a loop, queries of the whole prefix": _uncached_matmul,
        "the prefix by index": _decode_with(lambda x, t: x[list(range(t + 1))]),
    },
)

CACHED = Exercise(
    id="decode_cached",
    reference=decode_cached,
    lesson=LESSON,
    points=3,
    minutes=10,
    difficulty=2,
    uses=("attend_one",),
    hints=(
        "Keep two arrays between the steps: all keys so far and all values so far, each "
        "(n_heads, tokens so far, d_head).",
        "In step t project x[t : t + 1] with layer.key and layer.value, one row each, and join "
        "it to what you keep with np.concatenate([...], axis=1).",
        "Join first, then attend: the new token sees itself. In the first step there is nothing "
        "to join to, so what you keep is the new row.",
    ),
    cases=(
        Case("12 tokens, 2 heads", _twelve_tokens),
        Case("one token, one head", lambda: _tokens(1, 1)),
        Case("70 tokens", lambda: _tokens(70, 2)),
    ),
    draw=_draw_decode,
    drive=_drive_cached,
    comparison=DECODE_COMPARISON,
    wrong={
        "right outputs, but the whole prefix is projected at every step: nothing is remembered": (
            decode_uncached
        ),
        "all rows are projected at once: in step t the rows after t do not exist yet": (
            _project_once
        ),
        "rows are joined along the heads (axis 0); tokens are axis 1": (
            _cached_with(
                lambda kept, new: new if kept is None else np.concatenate([kept, new], axis=0)
            )
        ),
        "attends before the new row is joined: a token must see itself as well": (
            _cached_sees_only_past
        ),
        "keys and values are swapped": _cached_with(_concatenate, swap=True),
        "the query also sees the unused rest of the buffer: zeros take part in the softmax": (
            _cached_in_buffer(lambda t, n: n)
        ),
        "each token sees only the newest row: earlier rows are lost, or share one reused buffer": (
            _cached_aliased
        ),
        "the memory starts with a row of zeros, and it gets attention: start with nothing": (
            _cached_with(
                lambda kept, new: _concatenate(np.zeros_like(new) if kept is None else kept, new)
            )
        ),
    },
    right={
        "lists of rows": _cached_lists,
        "a preallocated buffer": _cached_in_buffer(lambda t, n: t + 1),
        "newest first: attention does not care about the order": _cached_with(
            lambda kept, new: new if kept is None else np.concatenate([new, kept], axis=1)
        ),
    },
)
