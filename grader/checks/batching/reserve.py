"""Lesson 10: pages for a request's next tokens. One method is judged at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.drive import (
    new_scheduler,
    requests,
    scheduler_with,
    trace,
)
from grader.checks.batching.lesson import LESSON
from grader.checks.batching.share import sound
from grader.judging.exercise import Exercise, Inputs
from inferlab.paging import OutOfPages, PagePool, own_page, pages_needed
from inferlab.scheduler import Request, Scheduler, Work


def _draw_reserve(rng: np.random.Generator) -> Inputs:
    size = int(rng.integers(3, 6))
    return trace(
        (0, 2 * size + 1, 9, 0), page_size=size, n_pages=int(rng.integers(8, 10)), token_budget=64,
        seed=int(rng.integers(1000)),
    )  # fmt: skip


def _drive_reserve(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """A request grows by 1, to a page's end, over it; a twin writes; the cache gives way."""
    scheduler = new_scheduler("reserve", answer, inputs)
    ((_, request),) = requests(inputs)
    size = inputs["page_size"]
    seen: dict[str, Any] = {}
    pool = scheduler.pool
    for pages in (pool.keys, pool.values):  # every page holds its own number
        pages[...] = np.arange(inputs["n_pages"])[:, None, None, None]
    other = Request("z", [1] * (2 * size), 5)  # has been here: two pages are in the prefix cache
    scheduler.running.append(other)
    Scheduler.reserve(scheduler, other, 2 * size)
    Scheduler.commit(scheduler, Work(other, 0, 2 * size))
    scheduler.finish(other)
    scheduler.running.append(request)

    def ask(what: str, who: Request, n_tokens: int) -> None:
        n_free = len(scheduler.allocator.free)
        seen[f"{what}: returned"] = scheduler.reserve(who, n_tokens)
        seen[f"{what}: length of its page table"] = len(who.page_table)
        seen[f"{what}: pages taken"] = n_free - len(scheduler.allocator.free)
        first, last = who.n_computed // size, pages_needed(who.n_computed + n_tokens, size)
        counts = [scheduler.allocator.ref_counts[page] for page in who.page_table]
        seen[f"{what}: holders of the pages it writes"] = counts[first:last]
        seen[f"{what}: holders of the others"] = counts[:first]
        seen[f"{what}: n_computed"] = who.n_computed
        seen[f"{what}: the holders"] = sound(scheduler.allocator, scheduler.holders())

    newcomer = Request("newcomer", [1] * (2 * size + 1), 5)
    scheduler.running.append(newcomer)
    scheduler.find_prefix(newcomer)
    ask("two full pages came from the prefix cache, one token is written", newcomer, 1)
    scheduler.finish(newcomer)
    ask("a prompt of two pages and a token", request, 2 * size + 1)
    early = Scheduler.fork(scheduler, request, "early")
    ask("a twin writes into three shared pages", early, 2 * size + 1)
    scheduler.finish(early)
    request.n_computed = 2 * size + 1
    ask("one token more, in a page that is there", request, 1)
    request.n_computed = 2 * size + 2
    ask("tokens up to the page's end", request, size - 2)
    twin = Scheduler.fork(scheduler, request, "twin")
    shared = twin.page_table[-1]
    ask("a twin writes into a shared page", twin, 1)
    for name, pages in (("keys", pool.keys), ("values", pool.values)):
        mine = [pages[:, page] for page in twin.page_table[2:3]]
        same = [np.array_equal(page, pages[:, shared]) for page in mine]
        seen[f"the twin's own page has the {name} of the shared one"] = same
    ask("the first one writes: the page is its own by now", request, 1)
    late = Scheduler.fork(scheduler, request, "late")
    filler = Request("filler", [1], 1)
    filler.page_table = [scheduler.allocator.allocate() for _ in list(scheduler.allocator.free)]
    scheduler.running.append(filler)
    ask("no page is free, and a shared page is written: the prefix cache gives way", late, 1)
    for gone in (late, filler):
        scheduler.finish(gone)
    request.n_computed = 3 * size
    n_room = len(scheduler.allocator.free) + len(scheduler.prefix_cache.pages)
    ask("all that is free, and what the prefix cache gives up", request, n_room * size)
    seen["pages in the prefix cache"] = len(scheduler.prefix_cache.pages)
    request.n_computed += n_room * size
    ask("no page is left", request, 1)
    scheduler.finish(twin)
    n_room = len(scheduler.allocator.free)
    seen["one page more than is left: returned"] = scheduler.reserve(request, (n_room + 1) * size)
    holders = sound(scheduler.allocator, scheduler.holders())
    seen["one page more than is left: the holders"] = holders
    return seen


def _reserver(
    first: Callable = lambda n, size: n // size,
    last: Callable = lambda n, more, size: pages_needed(n + more, size),
    room: bool = True,
    own: bool = True,
    catch: Any = OutOfPages,
    result: tuple[Any, Any] = (True, False),
    new: Callable = lambda self, index, table: index >= len(table),
):
    """reserve with one step replaced."""

    def reserve(self, request, n_tokens):
        table, size, n = request.page_table, self.pool.page_size, request.n_computed
        try:
            for index in range(first(n, size), last(n, n_tokens, size)):
                if room:
                    self.make_room()
                if new(self, index, table):
                    table.append(self.allocator.allocate())
                elif own and index < len(table):
                    own_page(table, index, self.allocator, self.pool)
        except catch:
            return result[1]
        return result[0]

    return scheduler_with(reserve=reserve)


def _reserve_moves_on(self, request, n_tokens):
    done = Scheduler.reserve(self, request, n_tokens)
    request.n_computed += n_tokens
    return done


def _reserve_owns_one(self, request, n_tokens):
    """Only the first of the pages that are there is made its own."""
    table, first = request.page_table, request.n_computed // self.pool.page_size
    try:
        if first < len(table):
            self.make_room()
            own_page(table, first, self.allocator, self.pool)
        while len(table) < pages_needed(request.n_computed + n_tokens, self.pool.page_size):
            self.make_room()
            table.append(self.allocator.allocate())
    except OutOfPages:
        return False
    return True


def _reserve_in_a_copy(self, request, n_tokens):
    table = request.page_table
    request.page_table = list(table)
    if Scheduler.reserve(self, request, n_tokens):
        return True
    request.page_table = table
    return False


class _Blank(PagePool):
    def __init__(self) -> None:
        pass

    def copy_page(self, source: int, target: int) -> None:
        pass


def _reserve_blank(self, request, n_tokens):
    pool, self.pool = self.pool, _Blank()
    self.pool.keys = pool.keys
    done = Scheduler.reserve(self, request, n_tokens)
    self.pool = pool
    return done


def _reserve_rolls_back(self, request, n_tokens):
    n = len(request.page_table)
    done = Scheduler.reserve(self, request, n_tokens)
    while not done and len(request.page_table) > n:
        self.allocator.release(request.page_table.pop())
    return done


def _reserve_owns_at_once(self, request, n_tokens):
    """Makes room before an allocation, but not before a copy."""
    table, size = request.page_table, self.pool.page_size
    try:
        for index in range(request.n_computed // size, len(table)):
            own_page(table, index, self.allocator, self.pool)
        while len(table) < pages_needed(request.n_computed + n_tokens, size):
            self.make_room()
            table.append(self.allocator.allocate())
    except OutOfPages:
        return False
    return True


def _reserve_room_once(self, request, n_tokens):
    """Makes room before the loop, for one page of several."""
    self.make_room()
    return _reserver(room=False).reserve(self, request, n_tokens)


def _reserve_clears_cache(self, request, n_tokens):
    while self.prefix_cache.evict():
        pass
    return Scheduler.reserve(self, request, n_tokens)


def _reserve_while(self, request, n_tokens):
    """Token by token."""
    for position in range(request.n_computed, request.n_computed + n_tokens):
        index = position // self.pool.page_size
        self.make_room()
        try:
            if index == len(request.page_table):
                request.page_table += [self.allocator.allocate()]
            else:
                own_page(request.page_table, index, self.allocator, self.pool)
        except OutOfPages:
            return False
    return True


def _reserve_looks_first(self, request, n_tokens):
    """Asks what is free before it takes anything."""
    size, table, counts = self.pool.page_size, request.page_table, self.allocator.ref_counts
    index = request.n_computed // size
    end = -(-(request.n_computed + n_tokens) // size)
    while index < end:
        mine = index < len(table) and counts[table[index]] == 1
        if not mine:
            self.make_room()
            if not self.allocator.free:
                return False
            if index < len(table):
                own_page(table, index, self.allocator, self.pool)
            else:
                table.append(self.allocator.allocate())
        index += 1
    return True


RESERVE = Exercise(
    id="Scheduler.reserve",
    reference=Scheduler,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("pages_needed", "PageAllocator", "own_page"),
    hints=(
        "The entries are n_computed // page_size up to, but without, "
        "pages_needed(n_computed + n_tokens, page_size).",
        "For each: self.make_room(); if index < len(table), own_page(table, index, self.allocator, "
        "self.pool), else table.append(self.allocator.allocate()).",
        "Put the loop into try: … except OutOfPages: return False, and return True behind it. "
        "Nothing is undone: the caller tries again or gives back all.",
    ),
    draw=_draw_reserve,
    drive=_drive_reserve,
    wrong={
        "a page is allocated although the one that is there has room": _reserver(
            new=lambda self, index, table: True
        ),
        "the page of the newest tokens is written although it is shared: own it first": _reserver(
            own=False
        ),
        "only the first page that is there is made its own: all that it writes into must be":
            scheduler_with(reserve=_reserve_owns_one),
        "a shared page gives way to an empty one: own_page copies what it holds": scheduler_with(
            reserve=_reserve_blank
        ),
        "pages that it got before OutOfPages are in no page table: a leak": scheduler_with(
            reserve=_reserve_in_a_copy
        ),
        "all pages from the first one on are made its own: a shared past may stay shared":
            _reserver(first=lambda n, size: 0),
        "the page before the new tokens is made its own: where that page is full, nothing is "
        "written into it": _reserver(first=lambda n, size: max(0, n - 1) // size),
        "rounded down: the last, partly filled page is missing": _reserver(
            last=lambda n, more, size: (n + more) // size
        ),
        "n_computed is left out: the new tokens come behind those that are there": _reserver(
            first=lambda n, size: 0, last=lambda n, more, size: pages_needed(more, size)
        ),
        "one page more than the tokens need": _reserver(
            last=lambda n, more, size: (n + more) // size + 1
        ),
        "make_room is not called: pages that only the prefix cache holds could be had": _reserver(
            room=False
        ),
        "room is made once, before the loop: each page may need it": scheduler_with(
            reserve=_reserve_room_once
        ),
        "no room is made before a copy: own_page may need a page as well": scheduler_with(
            reserve=_reserve_owns_at_once
        ),
        "the whole prefix cache is given up: make_room lets go of one page when none is free":
            scheduler_with(reserve=_reserve_clears_cache),
        "OutOfPages comes through: catch it and return False": _reserver(catch=KeyError),
        "nothing is returned when all went well: return True": _reserver(result=(None, False)),
        "n_computed is moved on: nothing is computed yet": scheduler_with(
            reserve=_reserve_moves_on
        ),
    },
    right={
        "token by token": scheduler_with(reserve=_reserve_while),
        "looks before it takes": scheduler_with(reserve=_reserve_looks_first),
        "undoes what it got": scheduler_with(reserve=_reserve_rolls_back),
    },
)  # fmt: skip
