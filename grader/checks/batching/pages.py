"""Lesson 10: where tokens lie, and attention over pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.operators import attention, causal_mask
from inferlab.paging import paged_attention, token_slots

# ---- token_slots --------------------------------------------------------------------------------


def _draw_slots(rng: np.random.Generator) -> Inputs:
    page_size, n_pages = int(rng.integers(3, 8)), int(rng.integers(4, 7))
    page_table = rng.permutation(12)[:n_pages].tolist()
    start = int(rng.integers(1, 2 * page_size))
    n_tokens = int(rng.integers(page_size + 1, n_pages * page_size - start + 1))
    return {
        "page_table": page_table, "start": start, "n_tokens": n_tokens, "page_size": page_size,
    }  # fmt: skip


def _slots(place: Callable, check: Callable = lambda table, end, b: end <= len(table) * b):
    def answer(page_table, start, n_tokens, page_size):
        if not check(page_table, start + n_tokens, page_size):
            raise ValueError("the page table is too short")
        return np.array(
            [place(page_table, p, page_size, start) for p in range(start, start + n_tokens)],
            dtype=int,
        )

    return answer


def _slots_clip(page_table, start, n_tokens, page_size):
    pages = np.asarray(page_table)[
        np.minimum(np.arange(start, start + n_tokens) // page_size, len(page_table) - 1)
    ]
    return pages * page_size + np.arange(start, start + n_tokens) % page_size


def _slots_unchecked(page_table, start, n_tokens, page_size):
    positions = np.arange(start, start + n_tokens)
    return np.asarray(page_table)[positions // page_size] * page_size + positions % page_size


def _slots_of_all(page_table, start, n_tokens, page_size):
    """All slots of all pages, then a slice."""
    if start + n_tokens > len(page_table) * page_size:
        raise ValueError("too short")
    every = np.asarray(page_table)[:, None] * page_size + np.arange(page_size)
    return every.reshape(-1)[start : start + n_tokens]


def _slots_list(page_table, start, n_tokens, page_size):
    if start + n_tokens > len(page_table) * page_size:
        raise ValueError("too short")
    slots = [page * page_size + i for page in page_table for i in range(page_size)]
    return slots[start : start + n_tokens]


SLOTS = Exercise(
    id="token_slots",
    reference=token_slots,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    uses=("pages_needed",),
    hints=(
        "The tokens stand at positions np.arange(start, start + n_tokens). Position // page_size "
        "is the entry of the page table, position % page_size the place in that page.",
        "np.asarray(page_table)[positions // page_size] gives the page of every token at once. A "
        "slot is page * page_size + place.",
        "First the ValueError, if pages_needed(start + n_tokens, page_size) > len(page_table). "
        "Then return pages * page_size + positions % page_size.",
    ),
    cases=(
        given("across a page's end", page_table=[7, 2], start=3, n_tokens=2, page_size=4),
        given("a whole prompt from position 0", page_table=[5, 0, 3], start=0, n_tokens=10,
              page_size=4),
        given("the table is exactly long enough", page_table=[5, 1], start=6, n_tokens=2,
              page_size=4),
        given("one token more than the table has room for: ValueError", page_table=[5, 1],
              start=6, n_tokens=3, page_size=4),
        given("the table ends before the first of them: ValueError", page_table=[5, 1], start=9,
              n_tokens=2, page_size=4),
        given("pages of one token", page_table=[5, 1, 4], start=1, n_tokens=2, page_size=1),
    ),
    draw=_draw_slots,
    drive=lambda answer, i: np.asarray(answer(**i)) + 0,
    wrong={
        "counts from position 0, not from start": _slots(
            lambda t, p, b, s: t[(p - s) // b] * b + (p - s) % b
        ),
        "goes up to position n_tokens, not start + n_tokens": lambda page_table, start, n_tokens,
            page_size: _slots(lambda t, p, b, s: t[p // b] * b + p % b)(
                page_table, start, max(0, n_tokens - start), page_size
            ),
        "the pages as if they lay side by side: the first page's slot, and on from there": _slots(
            lambda t, p, b, s: t[0] * b + p
        ),
        "the page table is left out: that is the position itself": _slots(lambda t, p, b, s: p),
        "the page's number is not multiplied by page_size": _slots(
            lambda t, p, b, s: t[p // b] + p % b
        ),
        "the place in the page is left out: all tokens of a page fall on its first slot": _slots(
            lambda t, p, b, s: t[p // b] * b
        ),
        "the place is counted from start: it is the position modulo page_size": _slots(
            lambda t, p, b, s: t[p // b] * b + (p - s) % b
        ),
        "the page table is sorted: its order is the order of the text": _slots(
            lambda t, p, b, s: sorted(t)[p // b] * b + p % b
        ),
        "// and % are swapped": _slots(
            lambda t, p, b, s: t[p % b % len(t)] * b + p // b
        ),
        "a table that is too short is accepted: raise ValueError": _slots_clip,
        "an IndexError where the table is too short: raise ValueError": _slots_unchecked,
        "a table that is exactly long enough is refused": _slots(
            lambda t, p, b, s: t[p // b] * b + p % b, lambda t, end, b: end < len(t) * b
        ),
        "only the start is checked: the last token must have an entry too": _slots(
            lambda t, p, b, s: t[min(p // b, len(t) - 1)] * b + p % b,
            lambda t, end, b: end - 2 <= len(t) * b,
        ),
    },
    right={
        "one by one": _slots(lambda t, p, b, s: t[p // b] * b + p % b),
        "all slots of all pages, then a slice": _slots_of_all,
        "a list": _slots_list,
    },
)  # fmt: skip

# ---- paged_attention ----------------------------------------------------------------------------


def _paged_inputs(
    rng: np.random.Generator,
    T: int,
    S: int,
    page_size: int = 4,
    n_heads: int = 6,
    n_kv: int = 2,
    n_spare: int = 0,
    window: int | None = None,
) -> Inputs:
    """Pages in a mixed order; unused slots and other pages hold large numbers.

    n_spare: pages that the table has in reserve; window: a query sees that many tokens, and the
    first one.
    """
    n_pages, d_head = -(-S // page_size) + n_spare, 5
    visible = causal_mask(T, S)
    if window is not None:
        n_back = np.arange(S - T, S)[:, None] - np.arange(S)
        visible &= (n_back < window) | (np.arange(S) == 0)
    page_table = rng.permutation(n_pages + 3)[:n_pages].tolist()
    shape = (n_pages + 3, page_size, n_kv, d_head)
    return {
        "q": rng.normal(size=(n_heads, T, d_head)),
        "key_pages": rng.normal(size=shape) * 2,
        "value_pages": rng.normal(size=shape) * 3,
        "page_table": page_table,
        "visible": visible,
    }


def _draw_paged(rng: np.random.Generator) -> Inputs:
    page_size = int(rng.integers(3, 6))
    S = 3 * page_size + int(rng.integers(1, page_size))
    return _paged_inputs(rng, int(rng.integers(2, 5)), S, page_size)


def _case(name: str, seed: int, *args: int, nan: bool = False, **sizes: int) -> Case:
    def make() -> Inputs:
        inputs = _paged_inputs(np.random.default_rng(seed), *args, **sizes)
        if nan:  # what nobody has written yet
            S, size = inputs["visible"].shape[1], inputs["key_pages"].shape[1]
            used = np.zeros(inputs["key_pages"].shape[:2], bool)
            used.reshape(-1)[token_slots(inputs["page_table"], 0, S, size)] = True
            for name in ("key_pages", "value_pages"):
                inputs[name][~used] = np.nan
        return inputs

    return Case(name, make)


def _read(pages: np.ndarray, slots: Any) -> np.ndarray:
    return pages.reshape(-1, *pages.shape[2:])[np.asarray(slots)].swapaxes(0, 1)


def _paged(
    slots: Callable = lambda table, S, b: token_slots(table, 0, S, b),
    read: Callable = _read,
    swap: bool = False,
    mask: Callable = lambda visible: visible,
):
    """paged_attention with one step replaced."""

    def answer(q, key_pages, value_pages, page_table, visible):
        where = slots(page_table, visible.shape[1], key_pages.shape[1])
        k, v = read(key_pages, where), read(value_pages, where)
        if swap:
            k, v = v, k
        seen = mask(visible)
        if k.shape[1] != seen.shape[1]:  # more slots than tokens
            more = np.ones((seen.shape[0], k.shape[1] - seen.shape[1]), bool)
            seen = np.concatenate([seen, more], axis=1)
        return attention(q[None], k[None], v[None], seen)[0]

    return answer


def _all_slots(table, S, b):
    return token_slots(table, 0, len(table) * b, b)


def _tiled_heads(pages, where):
    """Each KV head read as if the heads came before the places in a page."""
    n_kv, d = pages.shape[2:]
    return pages.transpose(0, 2, 1, 3).reshape(-1, n_kv, d)[np.asarray(where)].swapaxes(0, 1)


def _paged_wrong_groups(q, key_pages, value_pages, page_table, visible):
    slots = token_slots(page_table, 0, visible.shape[1], key_pages.shape[1])
    k, v = _read(key_pages, slots), _read(value_pages, slots)
    n = len(q) // len(k)
    k, v = np.tile(k, (n, 1, 1)), np.tile(v, (n, 1, 1))
    return attention(q[None], k[None], v[None], visible)[0]


def _paged_cuts_last(q, key_pages, value_pages, page_table, visible):
    """Takes for granted that the S tokens end in the table's last page."""
    n = len(page_table) * key_pages.shape[1] - -visible.shape[1] % key_pages.shape[1]
    slots = token_slots(page_table, 0, n, key_pages.shape[1])
    k, v = _read(key_pages, slots), _read(value_pages, slots)
    return attention(q[None], k[None], v[None], visible)[0]


def _paged_by_page(q, key_pages, value_pages, page_table, visible):
    """Page by page with a running maximum and sum, as a kernel does it."""
    n_heads, T, d = q.shape
    size, group = key_pages.shape[1], n_heads // key_pages.shape[2]
    top, total = np.full((n_heads, T, 1), -np.inf), np.zeros((n_heads, T, 1))
    acc = np.zeros((n_heads, T, d))
    S = visible.shape[1]
    for i, page in enumerate(page_table[: -(-S // size)]):
        n = min(size, S - i * size)
        k = np.repeat(key_pages[page, :n].swapaxes(0, 1), group, axis=0)
        v = np.repeat(value_pages[page, :n].swapaxes(0, 1), group, axis=0)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(d)
        scores = np.where(visible[:, i * size : i * size + n], scores, -np.inf)
        new = np.maximum(top, scores.max(-1, keepdims=True))
        weights = np.exp(scores - new)
        factor = np.exp(top - new)
        top, total = new, factor * total + weights.sum(-1, keepdims=True)
        acc = factor * acc + weights @ v
    return acc / total


def _paged_concatenate(q, key_pages, value_pages, page_table, visible):
    S = visible.shape[1]
    k = np.concatenate([key_pages[page] for page in page_table])[:S].swapaxes(0, 1)
    v = np.concatenate([value_pages[page] for page in page_table])[:S].swapaxes(0, 1)
    return attention(q[None], k[None], v[None], visible)[0]


def _paged_torch(q, key_pages, value_pages, page_table, visible):
    import torch

    S, group = visible.shape[1], len(q) // key_pages.shape[2]
    k, v = (
        torch.from_numpy(p)[list(page_table)].flatten(0, 1)[:S].transpose(0, 1)
        for p in (key_pages, value_pages)
    )
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    mask = torch.from_numpy(visible)
    return torch.nn.functional.scaled_dot_product_attention(torch.from_numpy(q), k, v, mask)


PAGED = Exercise(
    id="paged_attention",
    reference=paged_attention,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("token_slots",),
    hints=(
        "S is visible.shape[1], page_size is key_pages.shape[1]. token_slots(page_table, 0, S, "
        "page_size) says in which rows the keys lie.",
        "pages.reshape(-1, n_kv_heads, d_head) lays all pages one behind the other; indexing it "
        "with the slots gives (S, n_kv_heads, d_head). Heads come first: swapaxes(0, 1).",
        "Do that for keys and values; then attention(q[None], k[None], v[None], visible)[0]: "
        "None adds the axis of sequences, [0] takes it off.",
    ),
    cases=(
        _case("one query, the last page partly filled", 1, 1, 6),
        _case("the last page exactly full", 2, 3, 8),
        _case("unused slots hold NaN", 3, 2, 9, nan=True),
        _case("every query head has its own keys", 4, 2, 7, n_heads=3, n_kv=3),
        _case("one token in all", 5, 1, 1),
        _case("the first token and a window of 3 are visible", 6, 2, 11, window=3),
        _case("the table has two pages in reserve", 7, 2, 6, n_spare=2),
    ),
    draw=_draw_paged,
    comparison=Comparison(
        terms=lambda i: i["q"].shape[-1] + i["visible"].shape[1],
        magnitude=lambda i: float(np.nanmax(np.abs(i["value_pages"]))) * (
            1 + float(np.abs(i["q"]).max() * np.nanmax(np.abs(i["key_pages"]))) * i["q"].shape[-1]
        ),
        why="scores of d_head products, then S weighted values",
    ),
    wrong={
        "the pages are read in the order of their numbers, not of the page table": _paged(
            lambda t, S, b: token_slots(sorted(t), 0, S, b)
        ),
        "the page table is ignored: the first S slots of the memory are read": _paged(
            lambda t, S, b: np.arange(S)
        ),
        "the first page and what lies behind it: pages need not lie side by side": _paged(
            lambda t, S, b: np.minimum(t[0] * b + np.arange(S), 10**9) % ((max(t) + 1) * b)
        ),
        "unused slots of the last page get attention: only the first S tokens count": _paged(
            _all_slots
        ),
        "the last S slots of the pages: the unused ones are at the end": _paged(
            lambda t, S, b: _all_slots(t, S, b)[-S:]
        ),
        "keys and values are swapped": _paged(swap=True),
        "heads and places in a page are mixed up: a page is (page_size, n_kv_heads, d_head)": (
            _paged(read=_tiled_heads)
        ),
        "query head h uses KV head h mod n_kv_heads: neighbours share one": _paged_wrong_groups,
        "the mask is left out: a query must not see later tokens": _paged(
            mask=lambda visible: np.ones_like(visible)
        ),
        "a mask of its own: `visible` says what a query may see, not always all before it":
            _paged(mask=lambda visible: causal_mask(*visible.shape)),
        "the unused slots of the last page are cut off: S says where to end, the table may go on":
            _paged_cuts_last,
        "the mask is turned round": _paged(mask=lambda visible: visible[::-1, ::-1]),
        "the keys of the newest token are left out: a token sees itself": _paged(
            mask=lambda visible: np.concatenate(
                [visible[:, 1:], np.zeros((len(visible), 1), bool)], axis=1
            ) | (np.arange(visible.shape[1]) == 0)
        ),
    },
    right={
        "page by page, with a running maximum": _paged_by_page,
        "pages joined, then cut": _paged_concatenate,
        "torch": _paged_torch,
    },
)  # fmt: skip
