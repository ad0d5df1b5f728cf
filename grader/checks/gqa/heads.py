"""Lesson 05: who reads which KV head, repeating KV heads, and pooling them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.gqa.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.attention import kv_head_of, pool_kv_heads, repeat_kv


def draw_heads(rng: np.random.Generator) -> tuple[int, int]:
    """(n_heads, n_kv_heads), with a group size that is neither 1 nor n_kv_heads."""
    n_kv_heads = int(rng.integers(2, 5))
    n_sharing = int(rng.choice([n for n in (2, 3, 5) if n != n_kv_heads]))
    return n_kv_heads * n_sharing, n_kv_heads


def _need_multiple(n_heads: int, n_kv_heads: int) -> None:
    if n_heads % n_kv_heads:
        raise ValueError("n_heads must be a multiple of n_kv_heads")


# ---- kv_head_of --------------------------------------------------------------------------------


def _draw_mapping(rng: np.random.Generator) -> Inputs:
    n_kv_heads = int(rng.integers(3, 7))
    n_sharing = int(rng.choice([n for n in (3, 5, 6, 7) if n != n_kv_heads]))
    return {"n_heads": n_kv_heads * n_sharing, "n_kv_heads": n_kv_heads}


def _drive_mapping(answer: Callable, inputs: Inputs) -> Any:
    """One head where the case names one, else all of them."""
    if "head" in inputs:
        return answer(**inputs)
    n_heads = inputs["n_heads"]
    return {f"query head {head} reads": answer(head=head, **inputs) for head in range(n_heads)}


def _mapping(formula: Callable[[int, int, int], Any], check: bool = True) -> Callable:
    """kv_head_of by another formula of (head, n_heads, n_kv_heads)."""

    def answer(head, n_heads, n_kv_heads):
        if check and (n_heads % n_kv_heads or not 0 <= head < n_heads):
            raise ValueError("these sizes do not fit")
        return formula(head, n_heads, n_kv_heads)

    return answer


def _heads_accepting(refuse: Callable[[int, int, int], bool]) -> Callable:
    def answer(head, n_heads, n_kv_heads):
        if refuse(head, n_heads, n_kv_heads):
            raise ValueError("these sizes do not fit")
        return head // (n_heads // n_kv_heads)

    return answer


def _mapping_loop(head, n_heads, n_kv_heads):
    for kv_head in range(n_kv_heads):
        for place in range(n_heads // n_kv_heads):
            if kv_head * (n_heads // n_kv_heads) + place == head and not n_heads % n_kv_heads:
                return kv_head
    raise ValueError("no such head, or the heads do not divide evenly")


KV_HEAD = Exercise(
    id="kv_head_of",
    reference=kv_head_of,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "Write down the row of query heads and cut it into n_kv_heads pieces of equal length. "
        "Which piece holds number `head`?",
        "A piece is n_heads // n_kv_heads heads long. Whole-number division tells how many whole "
        "pieces lie before a head.",
        "Refuse n_heads % n_kv_heads != 0 and a head outside 0 … n_heads - 1, then "
        "return head // (n_heads // n_kv_heads).",
    ),
    cases=(
        given("8 query heads on 2 KV heads", n_heads=8, n_kv_heads=2),
        given("28 on 4, as in Qwen2.5-7B", n_heads=28, n_kv_heads=4),
        given("multi-head attention: 5 on 5", n_heads=5, n_kv_heads=5),
        given("multi-query attention: 71 on 1, as in Falcon-7B", n_heads=71, n_kv_heads=1),
        given("9 query heads cannot share 2 KV heads", head=0, n_heads=9, n_kv_heads=2),
        given("there is no query head 8 among 8", head=8, n_heads=8, n_kv_heads=2),
        given("there is no query head -1", head=-1, n_heads=8, n_kv_heads=2),
    ),
    draw=_draw_mapping,
    drive=_drive_mapping,
    wrong={
        "head % n_kv_heads deals the heads out in turn: neighbours share a KV head, so divide": (
            _mapping(lambda h, n, kv: h % kv)
        ),
        "head % group size is the place within the group, not the group": _mapping(
            lambda h, n, kv: h % (n // kv)
        ),
        "divides by n_kv_heads; divide by the size of a group, n_heads // n_kv_heads": _mapping(
            lambda h, n, kv: h // kv
        ),
        "assumes groups of 8: the size is n_heads // n_kv_heads": _mapping(lambda h, n, kv: h // 8),
        "assumes groups of 4: the size is n_heads // n_kv_heads": _mapping(lambda h, n, kv: h // 4),
        "one too many: KV heads are counted from 0": _mapping(lambda h, n, kv: h // (n // kv) + 1),
        "rounded to the nearest; the last heads of a group belong to it as well: round down": (
            _mapping(lambda h, n, kv: round(h * kv / n))
        ),
        "rounded up: the heads of a group after its first belong to it as well, round down": (
            _mapping(lambda h, n, kv: -(-h * kv // n))
        ),
        "a fraction: a head has a whole number": _mapping(lambda h, n, kv: h * kv / n),
        "a float: divide with //, a head's number is an int": _mapping(
            lambda h, n, kv: float(h // (n // kv))
        ),
        "heads that do not divide evenly are accepted: raise ValueError": _heads_accepting(
            lambda h, n, kv: not 0 <= h < n
        ),
        "a head that does not exist is accepted: raise ValueError": _heads_accepting(
            lambda h, n, kv: bool(n % kv)
        ),
        "a negative head is accepted: raise ValueError": _heads_accepting(
            lambda h, n, kv: bool(n % kv) or h >= n
        ),
        "nothing is refused: sizes that do not divide, and heads that do not exist, raise": (
            _heads_accepting(lambda h, n, kv: False)
        ),
        "head % n_kv_heads, and nothing is refused: neighbours share a KV head, so divide": (
            _mapping(lambda h, n, kv: h % kv, check=False)
        ),
        "head = n_heads is accepted: the last one is n_heads - 1": _heads_accepting(
            lambda h, n, kv: bool(n % kv) or not 0 <= h <= n
        ),
    },
    right={
        "one product, one division": _mapping(lambda h, n, kv: h * kv // n),
        "looked up in a repeated range": _mapping(
            lambda h, n, kv: np.arange(kv).repeat(n // kv)[h]
        ),
        "two loops": _mapping_loop,
        "counted off": _mapping(lambda h, n, kv: sum(h >= i * (n // kv) for i in range(1, kv))),
    },
)

# ---- repeat_kv ---------------------------------------------------------------------------------


def _draw_repeat(rng: np.random.Generator) -> Inputs:
    n_heads, n_kv_heads = draw_heads(rng)
    S, d_head = int(rng.integers(5, 8)), int(rng.integers(8, 11))
    return {"x": rng.normal(size=(3, n_kv_heads, S, d_head)), "n_heads": n_heads}


def _repeated(copy: Callable[[np.ndarray, int], Any], check: bool = True) -> Callable:
    """repeat_kv by another way of copying: copy(x, heads that share one KV head)."""

    def answer(x, n_heads):
        if check:
            _need_multiple(n_heads, x.shape[1])
        return copy(x, n_heads // x.shape[1])

    return answer


def _repeat_torch(x, n_heads):
    import torch  # takes a second, and only the tests call this

    _need_multiple(n_heads, x.shape[1])
    return torch.from_numpy(x).repeat_interleave(n_heads // x.shape[1], dim=1)


def _repeat_view(x: np.ndarray, n: int) -> np.ndarray:
    B, n_kv_heads, S, d_head = x.shape
    copies = np.broadcast_to(x[:, :, None], (B, n_kv_heads, n, S, d_head))
    return copies.reshape(B, n_kv_heads * n, S, d_head)


def _pad_with_zeros(x: np.ndarray, n: int) -> np.ndarray:
    more = x.shape[1] * (n - 1)
    return np.pad(x, ((0, 0), (0, more), (0, 0), (0, 0)))


REPEAT = Exercise(
    id="repeat_kv",
    reference=repeat_kv,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "NumPy has two functions that copy: np.tile writes the whole row again (a, b, a, b), "
        "np.repeat each entry in a row (a, a, b, b). Which one agrees with kv_head_of?",
        "The heads are axis 1. Each is to come n_heads // x.shape[1] times.",
        "After the refusal: return np.repeat(x, n_heads // x.shape[1], axis=1)",
    ),
    cases=(
        Case(
            "2 KV heads for 6 query heads",
            lambda: {"x": np.arange(2.0 * 2 * 1 * 3).reshape(2, 2, 1, 3), "n_heads": 6},
        ),
        Case(
            "as many KV heads as query heads",
            lambda: {"x": np.arange(24.0).reshape(2, 3, 2, 2), "n_heads": 3},
        ),
        Case("one KV head for 5", lambda: {"x": np.arange(6.0).reshape(1, 1, 3, 2), "n_heads": 5}),
        Case("3 KV heads for 7", lambda: {"x": np.zeros((1, 3, 2, 2)), "n_heads": 7}),
    ),
    draw=_draw_repeat,
    wrong={
        "np.tile gives a, b, a, b: query head 1 would read KV head 1. Needed: a, a, b, b": (
            _repeated(lambda x, n: np.tile(x, (1, n, 1, 1)))
        ),
        "the tokens are repeated, not the heads: heads are axis 1": _repeated(
            lambda x, n: np.repeat(x, n, axis=2)
        ),
        "the sequences are repeated, not the heads: heads are axis 1": _repeated(
            lambda x, n: np.repeat(x, n, axis=0)
        ),
        "each head comes n_heads times; together there are to be n_heads": _repeated(
            lambda x, n: np.repeat(x, n * x.shape[1], axis=1)
        ),
        "single numbers are repeated, not heads: np.repeat needs axis=1": _repeated(
            lambda x, n: np.repeat(x, n).reshape(x.shape[0], -1, *x.shape[2:])
        ),
        "all query heads get KV head 0: only one group of them reads it": _repeated(
            lambda x, n: np.repeat(x[:, :1], n * x.shape[1], axis=1)
        ),
        "the new heads are zeros: every query head needs keys to look at": _repeated(
            _pad_with_zeros
        ),
        "np.resize starts again from the first sequence: it knows nothing of axes": _repeated(
            lambda x, n: np.resize(x, (x.shape[0], x.shape[1] * n, *x.shape[2:]))
        ),
        "the groups come in reverse order": _repeated(
            lambda x, n: np.repeat(x, n, axis=1)[:, ::-1]
        ),
        "heads that do not divide evenly are accepted: raise ValueError": _repeated(
            lambda x, n: np.repeat(x, n, axis=1), check=False
        ),
        "nothing is repeated": _repeated(lambda x, n: x),
        "np.tile gives a, b, a, b, and uneven heads are accepted: needed are a, a, b, b": (
            _repeated(lambda x, n: np.tile(x, (1, n, 1, 1)), check=False)
        ),
    },
    right={
        "by index": _repeated(lambda x, n: x[:, np.arange(x.shape[1] * n) // n]),
        "broadcast to a new axis, then reshaped": _repeated(_repeat_view),
        "torch's repeat_interleave": _repeat_torch,
        "stacked head by head": _repeated(
            lambda x, n: np.stack([x[:, h // n] for h in range(x.shape[1] * n)], axis=1)
        ),
    },
)

# ---- pool_kv_heads -----------------------------------------------------------------------------


def _draw_pool(rng: np.random.Generator) -> Inputs:
    n_heads, n_kv_heads = draw_heads(rng)
    d_head, d_model = int(rng.integers(3, 6)), int(rng.integers(7, 12))
    w = rng.normal(size=(d_model, n_heads * d_head))
    return {"w": w, "n_kv_heads": n_kv_heads, "d_head": d_head}


def _equal_groups() -> Inputs:
    """Two groups of three heads, all heads of a group alike."""
    w = np.random.default_rng(0).normal(size=(5, 2, 1, 4))
    return {"w": np.repeat(w, 3, axis=2).reshape(5, 24), "n_kv_heads": 2, "d_head": 4}


def _pooled(pool: Callable[[np.ndarray], np.ndarray], check: bool = True) -> Callable:
    """pool(groups) takes (d_model, n_kv_heads, heads of a group, d_head)."""

    def answer(w, n_kv_heads, d_head):
        n_heads = w.shape[1] // d_head
        if check:
            _need_multiple(n_heads, n_kv_heads)
        kept = n_heads // n_kv_heads * n_kv_heads * d_head
        groups = w[:, :kept].reshape(len(w), n_kv_heads, -1, d_head)
        return pool(groups).reshape(len(w), -1)

    return answer


def _pool_strided(w, n_kv_heads, d_head):
    _need_multiple(w.shape[1] // d_head, n_kv_heads)
    groups = w.reshape(len(w), -1, n_kv_heads, d_head)
    return groups.mean(axis=1).reshape(len(w), -1)


def _pool_columns(w, n_kv_heads, d_head):
    _need_multiple(w.shape[1] // d_head, n_kv_heads)
    return w.reshape(len(w), n_kv_heads * d_head, -1).mean(axis=2)


def _pool_in_place(w, n_kv_heads, d_head):
    _need_multiple(w.shape[1] // d_head, n_kv_heads)
    groups = w.reshape(len(w), n_kv_heads, -1, d_head)
    groups[:, :, 0] = groups.mean(axis=2)
    return groups[:, :, 0].reshape(len(w), -1).copy()


def _pool_rows_as_heads(w, n_kv_heads, d_head):
    _need_multiple(w.shape[1] // d_head, n_kv_heads)
    groups = w.T.reshape(n_kv_heads, -1, d_head, len(w)).mean(axis=1)
    return groups.reshape(len(w), -1)  # should have been turned back


def _pool_loop(w, n_kv_heads, d_head):
    n_heads = w.shape[1] // d_head
    _need_multiple(n_heads, n_kv_heads)
    new = np.zeros((len(w), n_kv_heads * d_head))
    for head in range(n_heads):
        to = head // (n_heads // n_kv_heads)
        old = w[:, head * d_head : (head + 1) * d_head]
        new[:, to * d_head : (to + 1) * d_head] += old / (n_heads // n_kv_heads)
    return new


def _pool_by_matrix(w, n_kv_heads, d_head):
    n_heads = w.shape[1] // d_head
    _need_multiple(n_heads, n_kv_heads)
    average = np.kron(np.eye(n_kv_heads), np.ones((n_heads // n_kv_heads, 1)))
    return w @ np.kron(average * n_kv_heads / n_heads, np.eye(d_head))


def _pool_lists(w, n_kv_heads, d_head):
    heads = np.split(w, w.shape[1] // d_head, axis=1)
    _need_multiple(len(heads), n_kv_heads)
    n = len(heads) // n_kv_heads
    return np.concatenate([sum(heads[i : i + n]) / n for i in range(0, len(heads), n)], 1).tolist()


POOL = Exercise(
    id="pool_kv_heads",
    reference=pool_kv_heads,
    lesson=LESSON,
    points=2,
    minutes=12,
    difficulty=2,
    hints=(
        "The columns of w are heads side by side. A reshape can give heads, and groups of heads, "
        "axes of their own; then one mean is enough.",
        "n_heads is w.shape[1] // d_head. Groups of neighbours: the axes, from slow to fast, are "
        "d_model, group, head within the group, number within the head.",
        "w.reshape(d_model, n_kv_heads, n_heads // n_kv_heads, d_head).mean(axis=2), then reshape "
        "to (d_model, n_kv_heads * d_head).",
    ),
    cases=(
        given(
            "four heads of 2 numbers into two",
            w=np.arange(1.0, 9.0)[None],
            n_kv_heads=2,
            d_head=2,
        ),
        Case("all heads of a group alike: pooling keeps them", _equal_groups),
        given(
            "as many heads as before", w=np.arange(12.0).reshape(2, 6) ** 2, n_kv_heads=3, d_head=2
        ),
        given("5 heads cannot become 2", w=np.ones((3, 20)), n_kv_heads=2, d_head=4),
    ),
    draw=_draw_pool,
    comparison=Comparison(
        terms=lambda i: i["w"].shape[1] // i["d_head"] // i["n_kv_heads"] + 1,
        magnitude=lambda i: float(np.abs(i["w"]).max()),
        why="a mean over the heads of a group",
    ),
    wrong={
        "the heads are added; their mean is asked": _pooled(lambda groups: groups.sum(axis=2)),
        "divided by all heads: the mean of a group divides by the heads in that group": _pooled(
            lambda groups: groups.mean(axis=2) / groups.shape[1]
        ),
        "the heads keep an axis of their own: reshape to (d_model, n_kv_heads * d_head)": (
            lambda w, n_kv_heads, d_head: pool_kv_heads(w, n_kv_heads, d_head).reshape(
                len(w), n_kv_heads, d_head
            )
        ),
        "pools heads that lie n_kv_heads apart: a group is a run of neighbours": _pool_strided,
        "only the first head of each group is kept: average all of them": _pooled(
            lambda groups: groups[:, :, 0]
        ),
        "only the last head of each group is kept: average all of them": _pooled(
            lambda groups: groups[:, :, -1]
        ),
        "averages neighbouring columns: these belong to one head. Average head with head": (
            _pool_columns
        ),
        "the mean of all heads for every group: each group has its own": _pooled(
            lambda groups: np.broadcast_to(groups.mean((1, 2), keepdims=True), groups.shape)[
                :, :, 0
            ]
        ),
        "the pooled heads are copied back: w should become narrower": _pooled(
            lambda groups: np.broadcast_to(groups.mean(2, keepdims=True), groups.shape)
        ),
        "averages the numbers within a head, not head with head": _pooled(
            lambda groups: np.repeat(groups.mean(3), groups.shape[3], axis=2)[
                ..., : groups.shape[3]
            ]
        ),
        "the numbers of different input rows are mixed: turn the result back before reshaping": (
            _pool_rows_as_heads
        ),
        "heads that do not divide evenly are accepted: raise ValueError": _pooled(
            lambda groups: groups.mean(axis=2), check=False
        ),
        "the largest number of each group: the mean is asked": _pooled(
            lambda groups: groups.max(axis=2)
        ),
        "the groups and the heads within a group are exchanged: groups come first": (
            lambda w, n_kv_heads, d_head: (
                w.reshape(len(w), -1, n_kv_heads, d_head).mean(axis=2).reshape(len(w), -1)
            )
        ),
        "it changes its input w in place; work on a copy": _pool_in_place,
    },
    right={
        "head by head into zeros": _pool_loop,
        "one product with an averaging matrix": _pool_by_matrix,
        "lists of heads": _pool_lists,
    },
)
