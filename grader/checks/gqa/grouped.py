"""Lesson 05: attention of grouped heads through a memory that counts every byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grader.checks.gqa.heads import draw_heads
from grader.checks.gqa.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.attention import grouped_attention
from inferlab.counted_memory import CountedMemory
from inferlab.operators import causal_mask, softmax


class NamedMemory(CountedMemory):
    """Counts the bytes loaded of each array on its own, and the largest piece, too."""

    def __init__(self, **arrays: np.ndarray) -> None:
        super().__init__(**arrays)
        self.loaded = dict.fromkeys(arrays, 0)
        self.largest = dict.fromkeys(arrays, 0)

    def load(self, name: str, *index: Any) -> np.ndarray:
        tile = super().load(name, *index)
        self.loaded[name] += tile.nbytes
        self.largest[name] = max(self.largest[name], tile.nbytes)
        return tile


def _inputs(rng: np.random.Generator, sizes: tuple[int, int, int, int, int], **more: Any) -> Inputs:
    n_heads, n_kv_heads, T, S, d_head = sizes
    inputs: Inputs = {"q": rng.normal(size=(n_heads, T, d_head))}
    inputs |= {name: rng.normal(size=(n_kv_heads, S, d_head)) for name in ("k", "v")}
    return inputs | {"visible": causal_mask(T, S)} | more


def draw_mask(rng: np.random.Generator, T: int, S: int) -> np.ndarray:
    """(T, S) bool: any pattern, each row with a True and, somewhere before its end, a False."""
    visible = rng.random((T, S)) < 0.6
    visible[:, 0] = False
    visible[np.arange(T), rng.integers(1, S, T)] = True
    return visible


def _draw(rng: np.random.Generator) -> Inputs:
    T, S, d_head = int(rng.integers(3, 5)), int(rng.integers(6, 10)), int(rng.integers(5, 8))
    sizes = (*draw_heads(rng), T, S, d_head)
    return _inputs(rng, sizes, visible=draw_mask(rng, T, S))


def _large_scores() -> Inputs:
    inputs = _inputs(np.random.default_rng(1), (6, 2, 3, 8, 4))
    return inputs | {"q": 400 * inputs["q"]}


def _worst_keys_only() -> Inputs:
    """The only visible keys have scores far below -10,000."""
    inputs = _inputs(np.random.default_rng(5), (1, 1, 2, 9, 4))
    scores = inputs["q"][0] @ inputs["k"][0].T
    worst = np.argsort(scores, axis=-1)[:, :2]
    visible = np.zeros((2, 9), bool)
    np.put_along_axis(visible, worst, True, axis=-1)
    return inputs | {"q": 1e6 * inputs["q"], "visible": visible}


def _bound_bytes(inputs: Inputs) -> int:
    """Keys and values of one KV head three times over, and room for scores and weights."""
    n_heads, T, _ = inputs["q"].shape
    n_kv_heads, S, _ = inputs["k"].shape
    one_head = inputs["k"][0].nbytes + inputs["v"][0].nbytes
    scores = n_heads // n_kv_heads * T * S * 8
    return 3 * one_head + 6 * scores + 65_536


def _drive(answer: Callable, inputs: Inputs) -> dict[str, Any]:
    arrays = {name: inputs[name] for name in ("q", "k", "v")}
    memory = NamedMemory(**arrays, out=np.full(inputs["q"].shape, np.nan))
    with memory.watching():
        answer(memory=memory, visible=inputs["visible"])
    seen: dict[str, Any] = {"out": memory.result("out")}
    seen |= {f"bytes of {name} loaded": memory.loaded[name] for name in arrays}
    seen["bytes of out loaded"] = memory.loaded["out"]
    seen["bytes of out stored"] = memory.stored_bytes
    largest = max(memory.largest["k"], memory.largest["v"])
    seen["no load brings more than one KV head"] = largest <= inputs["k"][0].nbytes
    bound = _bound_bytes(inputs)
    levels = {bound: "within", 3 * bound: "above", math.inf: "far above"}
    level = next(word for limit, word in levels.items() if memory.peak_bytes <= limit)
    seen["most bytes held at once"] = f"{level} {bound:,} (three KV heads' keys and values)"
    return seen


# ---- other answers: how the heads are walked, and how one group attends ------------------------


def _attend(q, k, v, visible, scale=None, hide=None):
    """(heads, T, d_head), (S, d_head) twice -> (heads, T, d_head), with parts replaced."""
    scores = q @ k.T / (math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = np.where(visible, scores, -np.inf) if hide is None else hide(scores, visible)
    return softmax(scores) @ v


def _by_group(attend: Callable = _attend, readers: Callable | None = None) -> Callable:
    """One KV head after the other; readers(kv_head, group size, n_kv_heads) asks."""

    def answer(memory, visible):
        n_heads, n_kv_heads = memory.shape("q")[0], memory.shape("k")[0]
        n = n_heads // n_kv_heads
        for i in range(n_kv_heads):
            heads = readers(i, n, n_kv_heads) if readers else slice(i * n, (i + 1) * n)
            q = memory.load("q", heads)
            k, v = memory.load("k", i), memory.load("v", i)
            memory.store("out", attend(q, k, v, visible), heads)

    return answer


def _root_of_model(memory, visible):
    scale = math.sqrt(memory.shape("q")[0] * memory.shape("q")[2])
    _by_group(lambda q, k, v, s: _attend(q, k, v, s, scale))(memory, visible)


def _by_query_head(memory, visible):
    n = memory.shape("q")[0] // memory.shape("k")[0]
    for head in range(memory.shape("q")[0]):
        k, v = memory.load("k", head // n), memory.load("v", head // n)
        memory.store("out", _attend(memory.load("q", head), k, v, visible), head)


def _repeat_all(memory, visible):
    n = memory.shape("q")[0] // memory.shape("k")[0]
    q, k, v = (memory.load(name) for name in ("q", "k", "v"))
    k, v = np.repeat(k, n, axis=0), np.repeat(v, n, axis=0)
    scores = np.where(visible, q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]), -np.inf)
    memory.store("out", softmax(scores) @ v)


def _repeat_group(q, k, v, visible):
    k, v = np.repeat(k[None], len(q), axis=0), np.repeat(v[None], len(q), axis=0)
    scores = np.where(visible, q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1]), -np.inf)
    return softmax(scores) @ v


def _all_at_once(memory, visible):
    q, k, v = (memory.load(name) for name in ("q", "k", "v"))
    n_heads, T, d_head = q.shape
    rows = q.reshape(len(k), -1, d_head)
    scores = (rows @ k.swapaxes(1, 2)).reshape(len(k), -1, T, k.shape[1]) / math.sqrt(d_head)
    weights = softmax(np.where(visible, scores, -np.inf))
    memory.store("out", (weights.reshape(len(k), -1, k.shape[1]) @ v).reshape(n_heads, T, d_head))


def _keeps_all_heads(memory, visible):
    n, n_kv_heads = memory.shape("q")[0] // memory.shape("k")[0], memory.shape("k")[0]
    k, v = ([memory.load(name, i) for i in range(n_kv_heads)] for name in ("k", "v"))
    for i in range(n_kv_heads):
        heads = slice(i * n, (i + 1) * n)
        memory.store("out", _attend(memory.load("q", heads), k[i], v[i], visible), heads)


def _keys_twice(memory, visible):
    n = memory.shape("q")[0] // memory.shape("k")[0]
    for i in range(memory.shape("k")[0]):
        heads = slice(i * n, (i + 1) * n)
        q = memory.load("q", heads)
        scores = q @ memory.load("k", i).T / math.sqrt(q.shape[-1])
        scores -= (q @ memory.load("k", i).T / math.sqrt(q.shape[-1])).max(-1, keepdims=True)
        weights = softmax(np.where(visible, scores, -np.inf))
        memory.store("out", weights @ memory.load("v", i), heads)


def _one_head_of_each_group(memory, visible):
    n = memory.shape("q")[0] // memory.shape("k")[0]
    for i in range(memory.shape("k")[0]):
        k, v = memory.load("k", i), memory.load("v", i)
        memory.store("out", _attend(memory.load("q", i * n), k, v, visible), i * n)


def _mean_query(q, k, v, visible):
    mean = np.broadcast_to(q.mean(axis=0), q.shape)
    return _attend(mean, k, v, visible)


def _stores_nothing(memory, visible):
    for i in range(memory.shape("k")[0]):
        _attend(memory.load("q", i), memory.load("k", i), memory.load("v", i), visible)


def _all_queries_each_time(memory, visible):
    n = memory.shape("q")[0] // memory.shape("k")[0]
    for i in range(memory.shape("k")[0]):
        heads = slice(i * n, (i + 1) * n)
        q, k, v = memory.load("q")[heads], memory.load("k", i), memory.load("v", i)
        memory.store("out", _attend(q, k, v, visible), heads)


def _rows_of_visible_mixed(q, k, v, visible):
    n, T, d_head = q.shape
    scores = q.reshape(n * T, d_head) @ k.T / math.sqrt(d_head)
    weights = softmax(np.where(np.repeat(visible, n, axis=0), scores, -np.inf))
    return (weights @ v).reshape(q.shape)


def _weights_zeroed(q, k, v, visible):
    return (softmax(q @ k.T / math.sqrt(q.shape[-1])) * visible) @ v


def _one_softmax(q, k, v, visible):
    scores = np.where(visible, q @ k.T / math.sqrt(q.shape[-1]), -np.inf)
    flat = softmax(scores.swapaxes(0, 1).reshape(scores.shape[1], -1))
    return flat.reshape(scores.shape[1], len(q), -1).swapaxes(0, 1) @ v


def _top_left(T: int, S: int) -> np.ndarray:
    return np.tril(np.ones((T, S), bool))


def _ignores_visible(q, k, v, visible):
    return _attend(q, k, v, np.ones_like(visible))


def _loops(q, k, v, visible):
    out = np.zeros_like(q)
    for head, row in np.ndindex(q.shape[:2]):
        seen = np.flatnonzero(visible[row])
        scores = np.array([q[head, row] @ k[s] for s in seen]) / len(k[0]) ** 0.5
        weights = np.exp(scores - scores.max())
        out[head, row] = sum(w * v[s] for w, s in zip(weights / weights.sum(), seen, strict=True))
    return out


def _einsum(q, k, v, visible):
    scores = np.einsum("htd,sd->hts", q, k) * q.shape[-1] ** -0.5
    scores = np.where(visible, scores, -np.inf)
    logs = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return np.einsum("hts,sd->htd", np.exp(logs), v)


def _torch(q, k, v, visible):
    import torch  # takes a second, and only the tests call this

    q, k, v, visible = (torch.from_numpy(np.ascontiguousarray(a)) for a in (q, k, v, visible))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k[None].expand(len(q), -1, -1), v[None].expand(len(q), -1, -1), visible).numpy()


def _head_by_head(memory, visible):
    n = memory.shape("q")[0] // memory.shape("k")[0]
    for i in range(memory.shape("k")[0]):
        k = memory.load("k", i)
        v = memory.load("v", i)
        for head in range(i * n, (i + 1) * n):
            memory.store("out", _attend(memory.load("q", head), k, v, visible), head)


def _magnitude(inputs: Mapping[str, Any]) -> float:
    largest = {name: float(np.abs(inputs[name]).max()) for name in ("q", "v")}
    return largest["v"] * (1 + largest["q"] * float(np.abs(inputs["k"]).sum(-1).max()))


GROUPED = Exercise(
    id="grouped_attention",
    reference=grouped_attention,
    lesson=LESSON,
    points=3,
    minutes=20,
    difficulty=3,
    uses=("kv_head_of",),
    hints=(
        "Walk over the KV heads, not over the query heads. Of each, load keys and values once; "
        "then everybody who reads them must be served before you go on.",
        "Group i is slice(i * n, (i + 1) * n) with n = n_heads // n_kv_heads. q of the group is "
        "(n, T, d_head) and k is (S, d_head): q @ k.T is (n, T, S), no copy of k needed.",
        "weights = softmax(np.where(visible, q @ k.T / math.sqrt(d_head), -np.inf)); then "
        'memory.store("out", weights @ v, slice(i * n, (i + 1) * n)).',
    ),
    cases=(
        Case(
            "2 query heads on 1 KV head, one token",
            lambda: _inputs(np.random.default_rng(0), (2, 1, 1, 1, 3)),
        ),
        Case(
            "a decode step: T = 1, S = 9",
            lambda: _inputs(np.random.default_rng(2), (6, 2, 1, 9, 4)),
        ),
        Case(
            "multi-head attention: 3 on 3, T = 2, S = 5",
            lambda: _inputs(np.random.default_rng(3), (3, 3, 2, 5, 4)),
        ),
        Case("scores in the hundreds", _large_scores),
        Case("only keys with very low scores are visible", _worst_keys_only),
        Case(
            "1,000 keys: what is held shows",
            lambda: _inputs(np.random.default_rng(4), (80, 5, 1, 1000, 64)),
        ),
    ),
    draw=_draw,
    n_draws=3,
    drive=_drive,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["k"].shape[1],
        magnitude=_magnitude,
        why="a dot product of d_head numbers, then S weighted values; "
        "an error in a score counts in proportion to the scores",
    ),
    wrong={
        "query head h reads KV head h mod n_kv_heads: neighbours share one, h // group size": (
            _by_group(readers=lambda i, n, kv: slice(i, None, kv))
        ),
        "each query head loads its KV head anew: load it once for its whole group": _by_query_head,
        "keys and values are repeated for every query head: the copies are what to avoid": (
            _repeat_all
        ),
        "keys and values are copied for each head of a group: q @ k.T needs no copy": _by_group(
            _repeat_group
        ),
        "all KV heads are loaded at once: go on to the next when one is done": _all_at_once,
        "the keys and values of all KV heads are kept: serve a group before you load the next": (
            _keeps_all_heads
        ),
        "the keys are loaded twice: keep what you loaded until the group is done": _keys_twice,
        "only one query head of each group is computed": _one_head_of_each_group,
        "the queries of a group are averaged: they share keys and values, not queries": _by_group(
            _mean_query
        ),
        "nothing is stored in out: memory.store, once for each group": _stores_nothing,
        "all queries are loaded for each group: load those of the group": _all_queries_each_time,
        "rows of visible go to the wrong queries: each head has its T rows in a row": _by_group(
            _rows_of_visible_mixed
        ),
        "the scores are not divided by sqrt(d_head)": _by_group(
            lambda q, k, v, s: _attend(q, k, v, s, 1.0)
        ),
        "divides by d_head, not by its square root": _by_group(
            lambda q, k, v, s: _attend(q, k, v, s, float(q.shape[-1]))
        ),
        "divides by sqrt(n_heads * d_head), the width of all heads: use sqrt(d_head)": (
            _root_of_model
        ),
        "divides by sqrt(S), the number of keys: use sqrt(d_head)": _by_group(
            lambda q, k, v, s: _attend(q, k, v, s, math.sqrt(len(k)))
        ),
        "visible is not used": _by_group(_ignores_visible),
        "a triangle from the top left in place of visible: queries stand at the end of the keys": (
            _by_group(lambda q, k, v, s: _attend(q, k, v, _top_left(*s.shape)))
        ),
        "a causal mask of its own making in place of visible": _by_group(
            lambda q, k, v, s: _attend(q, k, v, causal_mask(*s.shape))
        ),
        "weights are zeroed after the softmax: they no longer sum to 1. Set scores to -inf": (
            _by_group(_weights_zeroed)
        ),
        "hidden scores are set to 0, which is a score like any other: use -inf": _by_group(
            lambda q, k, v, s: _attend(q, k, v, s, hide=lambda a, s: np.where(s, a, 0.0))
        ),
        "hidden scores are set to -100 or -10,000, which a low score undercuts: -inf": _by_group(
            lambda q, k, v, s: _attend(q, k, v, s, hide=lambda a, s: np.where(s, a, -1e4))
        ),
        "visible is turned round: True is where a query may look": _by_group(
            lambda q, k, v, s: _attend(q, k, v, s, hide=lambda a, s: np.where(s, -1e30, a))
        ),
        "one softmax over all heads of a group: each head's weights must sum to 1": _by_group(
            _one_softmax
        ),
        "the weights are applied to the keys; the output mixes the values": _by_group(
            lambda q, k, v, s: _attend(q, k, k, s)
        ),
    },
    right={
        "loops over heads and rows": _by_group(_loops),
        "einsum and log-sum-exp": _by_group(_einsum),
        "torch's scaled_dot_product_attention": _by_group(_torch),
        "one query head at a time, keys kept": _head_by_head,
    },
)
