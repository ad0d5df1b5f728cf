"""Lesson 10: sequences that share pages, and the copy before a write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from grader.checks.batching.allocator import refused
from grader.checks.batching.lesson import LESSON
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.config import ModelConfig
from inferlab.paging import OutOfPages, PageAllocator, PagePool, fork, own_page

CONFIG = ModelConfig(2, 12, 4, 2, 6, 16, 50, 512)


def sound(allocator: PageAllocator, tables: Any) -> str:
    """Whether these tables are all the holders there are, in words that name what is off."""
    try:
        allocator.require_sound(tables)
    except ValueError as error:
        return str(error)
    return "sound"


def _setup(inputs: Inputs) -> tuple[PageAllocator, PagePool, list[int]]:
    """An allocator with some pages taken, and a pool in which every page is different."""
    allocator = PageAllocator(inputs["n_pages"])
    allocator.free = np.random.default_rng(inputs["seed"]).permutation(inputs["n_pages"]).tolist()
    pool = PagePool(CONFIG, inputs["n_pages"], page_size=4)
    rng = np.random.default_rng(inputs["seed"])
    pool.keys[...] = rng.normal(size=pool.keys.shape)
    pool.values[...] = rng.normal(size=pool.values.shape)
    return allocator, pool, [allocator.allocate() for _ in range(inputs["n_held"])]


def _draw(rng: np.random.Generator) -> Inputs:
    n_held = int(rng.integers(3, 6))
    return {"n_pages": n_held + int(rng.integers(3, 5)), "n_held": n_held,
            "seed": int(rng.integers(1000))}  # fmt: skip


# ---- fork ---------------------------------------------------------------------------------------


def _drive_fork(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Fork, fork the fork, then let the first sequence grow and end."""
    allocator, _, table = _setup(inputs)
    before = list(table)
    second = answer(table, allocator)
    third = answer(second, allocator)
    tables = [table, second, third]
    seen: dict[str, Any] = {"the new table": second, "a fork of the fork": third}
    seen["the first table"] = list(table)
    seen["holders of each page"] = list(allocator.ref_counts)
    seen["pages still free"] = sorted(allocator.free)
    seen["the allocator"] = sound(allocator, [list(t) for t in tables])
    table.append(allocator.allocate())
    seen["the new table, after the first sequence grew"] = list(second)
    second.append(allocator.allocate())  # it must be able to grow
    for page in before:
        allocator.release(page)
    return {**seen, "holders after the first has ended": list(allocator.ref_counts)}


def _fork(share: Callable, table: Callable = list):
    def answer(page_table, allocator):
        share(page_table, allocator)
        return table(page_table)

    return answer


def _share_all(page_table, allocator):
    for page in page_table:
        allocator.share(page)


def _fork_new_pages(page_table, allocator):
    return [allocator.allocate() for _ in page_table if allocator.free]


def _fork_counts(page_table, allocator):
    for page in page_table:
        allocator.ref_counts[page] += 1
    return page_table[:]


FORK = Exercise(
    id="fork",
    reference=fork,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    uses=("PageAllocator",),
    hints=(
        "Two sequences, one past: what is shared is the pages; what is not is the list.",
        "allocator.share(page) counts one holder more. Every page of the table needs it.",
        "for page in page_table: allocator.share(page); then return list(page_table).",
    ),
    cases=(
        Case("one page", lambda: {"n_pages": 3, "n_held": 1, "seed": 2}),
        Case("no page yet", lambda: {"n_pages": 3, "n_held": 0, "seed": 2}),
    ),
    draw=_draw,
    drive=_drive_fork,
    wrong={
        "the same list is returned: what the first sequence appends, the second then has": _fork(
            _share_all, lambda table: table
        ),
        "no page is shared: the first sequence to end frees what the other reads": _fork(
            lambda table, allocator: None
        ),
        "new pages are taken: nothing is copied yet, that is the point": _fork_new_pages,
        "only the last page is shared: the other holds all of them": _fork(
            lambda table, allocator: [allocator.share(page) for page in table[-1:]]
        ),
        "all pages but the last are shared: the other holds that one too": _fork(
            lambda table, allocator: [allocator.share(page) for page in table[:-1]]
        ),
        "every page is shared twice": _fork(
            lambda table, allocator: (_share_all(table, allocator), _share_all(table, allocator))
        ),
        "the pages are released: one holder less, not more": _fork(
            lambda table, allocator: [allocator.release(page) for page in table]
        ),
        "the table comes back in another order": _fork(_share_all, lambda table: sorted(table)),
        "the table is returned as a tuple: it must be able to grow": _fork(_share_all, tuple),
    },
    right={
        "a comprehension": lambda page_table, allocator: [
            page for page in page_table if allocator.share(page) is None
        ],
        "counts by hand": _fork_counts,
        "share gives None, so `or` gives the page": lambda page_table, allocator: [
            allocator.share(page) or page for page in page_table
        ],
    },
)

# ---- own_page -----------------------------------------------------------------------------------


def _drive_own(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Three sequences with one past; each writes in turn. Then with no page free."""
    allocator, pool, table = _setup(inputs)
    second, third = fork(table, allocator), fork(table, allocator)
    index = inputs["seed"] % len(table)
    seen: dict[str, Any] = {}
    tables = {"first": table, "second": second, "third": third}
    tables_index = {name: i for i, name in enumerate(tables)}
    for name, mine in tables.items():
        n_free = len(allocator.free)
        held = dict(zip(("keys", "values"), held_by(pool, mine, index), strict=True))
        page = mine[index]
        others_before = [held_by(pool, tables[other], index) for other in tables if other != name]
        answer(mine, index, allocator, pool)
        seen[f"{name} writes: it has a page of its own"] = allocator.ref_counts[mine[index]] == 1
        others = [held_by(pool, tables[other], index) for other in tables if other != name]
        same = all(map(np.array_equal, others, others_before))
        seen[f"{name} writes: the pages of the others hold what they held"] = same
        seen[f"{name} writes: its page is another now"] = mine[index] != page
        seen[f"{name} writes: pages taken"] = n_free - len(allocator.free)
        seen[f"{name} writes: its other pages"] = mine[:index] + mine[index + 1 :]
        for array, before in held.items():
            for layer, old in enumerate(before):
                now = getattr(pool, array)[layer, mine[index]]
                when = f"{name} writes: its page has the {array} of the shared one, layer {layer}"
                seen[when] = np.array_equal(now, old)
                now[...] = -1 - tables_index[name]  # now it writes
        seen[f"{name} writes: the allocator"] = sound(allocator, list(tables.values()))
    other = (index + 1) % len(table)
    while allocator.free:
        allocator.allocate()
    before = ([*table], [*allocator.ref_counts])
    if len(table) > 1:
        seen["no page free, a shared page"] = refused(lambda: answer(table, other, allocator, pool))
    seen["then nothing has changed"] = before == ([*table], [*allocator.ref_counts])
    seen["no page free, a page of its own"] = refused(lambda: answer(table, index, allocator, pool))
    return seen


def held_by(pool: PagePool, table: list[int], index: int) -> np.ndarray:
    """A copy of what one page of a table holds: (2, n_layers, page_size, n_kv_heads, d_head)"""
    return np.stack([pool.keys[:, table[index]], pool.values[:, table[index]]])


def _own(
    shared: Callable = lambda count: count > 1,
    copy: Callable = lambda pool, source, target: pool.copy_page(source, target),
    release: bool = True,
    put: bool = True,
    release_first: bool = False,
    new: Callable = lambda allocator: allocator.allocate(),
):
    """own_page with one step replaced."""

    def answer(page_table, index, allocator, pool):
        page = page_table[index]
        if not shared(allocator.ref_counts[page]):
            return
        if release_first:
            allocator.release(page)
        target = new(allocator)
        copy(pool, page, target)
        if release and not release_first:
            allocator.release(page)
        if put:
            page_table[index] = target

    return answer


def _own_takes_first(page_table, index, allocator, pool):
    allocator.release(allocator.allocate())
    own_page(page_table, index, allocator, pool)


def _own_swallows(page_table, index, allocator, pool):
    with suppress(OutOfPages):
        own_page(page_table, index, allocator, pool)


def _own_whole_table(page_table, index, allocator, pool):
    for i in range(index + 1):
        own_page(page_table, i, allocator, pool)


def _copy_keys(pool, source, target):
    pool.keys[:, target] = pool.keys[:, source]


def _copy_layer(pool, source, target):
    pool.keys[0, target] = pool.keys[0, source]
    pool.values[0, target] = pool.values[0, source]


def _own_swap(page_table, index, allocator, pool):
    """By hand: arrays and counts."""
    page = page_table[index]
    if allocator.ref_counts[page] > 1:
        page_table[index] = allocator.allocate()
        for array in (pool.keys, pool.values):
            array[:, page_table[index]] = array[:, page]
        allocator.ref_counts[page] -= 1


def _own_three_lines(page_table, index, allocator, pool):
    if allocator.ref_counts[page_table[index]] != 1:
        old, page_table[index] = page_table[index], allocator.allocate()
        allocator.release(old)
        pool.copy_page(old, page_table[index])


OWN = Exercise(
    id="own_page",
    reference=own_page,
    lesson=LESSON,
    points=3,
    minutes=9,
    difficulty=3,
    uses=("PageAllocator",),
    hints=(
        "Look at allocator.ref_counts[page] first: with one holder there is nothing to do.",
        "Else three things: a new page with allocator.allocate(), pool.copy_page(page, new), and "
        "one holder less for the old one. Take the new page first: that may fail.",
        "copy = allocator.allocate(); pool.copy_page(page, copy); allocator.release(page); "
        "page_table[index] = copy",
    ),
    cases=(Case("one page", lambda: {"n_pages": 6, "n_held": 1, "seed": 2}),),
    draw=_draw,
    drive=_drive_own,
    wrong={
        "copies a page that has one holder: it may be written as it is": _own(lambda count: True),
        "shared pages are written as they are: the other sequence's past would change": _own(
            lambda count: False
        ),
        "a page with two holders is not copied: two is shared": _own(lambda count: count > 2),
        "the new page is empty: what it held must come along": _own(
            copy=lambda pool, source, target: None
        ),
        "only the keys are copied": _own(copy=_copy_keys),
        "only layer 0 is copied: a page spans all layers": _own(copy=_copy_layer),
        "copied the wrong way: the shared page is overwritten": _own(
            copy=lambda pool, source, target: pool.copy_page(target, source)
        ),
        "the shared page keeps its holder: it will never be free again": _own(release=False),
        "the copy is not put into the page table": _own(put=False),
        "the holder is taken off before the copy is there: if no page is free, it is lost": _own(
            release_first=True
        ),
        "takes a page before it looks whether one is needed": _own_takes_first,
        "OutOfPages is swallowed: then nobody knows that the page is still shared": (_own_swallows),
        "the pages before it are copied as well: only this one is written": _own_whole_table,
    },
    right={
        "arrays and counts by hand": _own_swap,
        "the condition turned round": _own(),
        "always takes a page where several hold it, in three lines": _own_three_lines,
    },
)
