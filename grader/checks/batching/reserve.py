"""Lesson 10: pages for a request, and taking them away again. One method is judged at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.drive import (
    MAX_STEPS,
    carry_out,
    new_scheduler,
    requests,
    scheduler_with,
    state,
    trace,
)
from grader.checks.batching.lesson import LESSON
from grader.checks.batching.share import sound
from grader.exercise import Exercise, Inputs
from inferlab.paging import OutOfPages, own_page, pages_needed
from inferlab.scheduler import Request, Scheduler, Work

# ---- reserve ------------------------------------------------------------------------------------


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

    ask("a prompt of two pages and a token", request, 2 * size + 1)
    request.n_computed = 2 * size + 1
    ask("one token more, in a page that is there", request, 1)
    request.n_computed = 2 * size + 2
    ask("tokens up to the page's end", request, size - 2)
    twin = Scheduler.fork(scheduler, request, "twin")
    ask("a twin writes into a shared page", twin, 1)
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
        "all pages from the first one on are made its own: a shared past may stay shared":
            _reserver(first=lambda n, size: 0),
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

# ---- preempt ------------------------------------------------------------------------------------


def _drive_preempt(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Three run, one waits; the last goes back, then the one before; then all go on to the end."""
    scheduler = new_scheduler("preempt", answer, inputs)
    everybody = [request for _, request in requests(inputs)]
    for request in everybody:
        scheduler.add(request)
    for _ in range(3):
        carry_out(scheduler, Scheduler.plan(scheduler))
    seen: dict[str, Any] = {"before, running": [r.id for r in scheduler.running]}
    for i in range(2):
        if len(scheduler.running) < 2:
            break
        victim = scheduler.running[-1]
        prompt = list(victim.prompt)
        seen[f"call {i + 1}: returned"] = scheduler.preempt(victim)
        seen |= {f"call {i + 1}: {name}": v for name, v in state(scheduler).items()}
        seen[f"call {i + 1}: its prompt is as it was"] = victim.prompt == prompt
        seen[f"call {i + 1}: its answer"] = list(victim.generated)
        seen[f"call {i + 1}: its n_computed"] = victim.n_computed
    for _ in range(MAX_STEPS):
        work = Scheduler.plan(scheduler)
        carry_out(scheduler, work)
        seen["the holders, going on"] = sound(scheduler.allocator, scheduler.holders())
        if seen["the holders, going on"] != "sound":
            break
    return {**seen, "answers in the end": [len(r.generated) for r in everybody]}


def _preempter(
    remove: Callable = lambda self, r: self.running.remove(r),
    back: Callable = lambda self, r: self.give_back(r),
    count: Callable = lambda r: r.n_preemptions + 1,
    queue: Callable = lambda self, r: self.waiting.appendleft(r),
):
    def preempt(self, request):
        remove(self, request)
        back(self, request)
        request.n_preemptions = count(request)
        queue(self, request)

    return scheduler_with(preempt=preempt)


def _prompt_takes_answer(self, request):
    self.give_back(request)
    request.prompt, request.generated = request.tokens, []


def _forget_answer(self, request):
    self.give_back(request)
    request.generated.clear()


def _keep_computed(self, request):
    for page in request.page_table:
        self.allocator.release(page)
    request.page_table = []


def _keep_table(self, request):
    for page in request.page_table:
        self.allocator.release(page)
    request.n_computed = 0


def _preempt_through_finish(self, request):
    n = request.n_preemptions
    self.finish(request)
    request.n_preemptions = n + 1
    self.waiting.extendleft([request])


def _preempt_by_hand(self, request):
    self.running = [r for r in self.running if r is not request]
    while request.page_table:
        self.allocator.release(request.page_table.pop())
    request.n_computed, request.n_preemptions = 0, request.n_preemptions + 1
    self.waiting.insert(0, request)


def _draw_preempt(rng: np.random.Generator) -> Inputs:
    rows = [(0, int(rng.integers(4, 10)), int(rng.integers(5, 9)), i) for i in range(5)]
    sizes = {"n_pages": 24, "max_running": 3, "token_budget": 30}
    return trace(
        *rows, **sizes, seed=int(rng.integers(1000)), use_prefix_cache=bool(rng.integers(2))
    )


PREEMPT = Exercise(
    id="Scheduler.preempt",
    reference=Scheduler,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "Four lines: out of one list, pages given back, counted, into the other.",
        "self.waiting is a deque: appendleft puts a request at its head, where the next one to be "
        "let in is taken from.",
        "self.running.remove(request); self.give_back(request); request.n_preemptions += 1; "
        "self.waiting.appendleft(request)",
    ),
    draw=_draw_preempt,
    drive=_drive_preempt,
    wrong={
        "at the end of the queue: others who came later would overtake it": _preempter(
            queue=lambda self, r: self.waiting.append(r)
        ),
        "its pages are not given back: nothing is won": _preempter(back=lambda self, r: None),
        "the answer so far is thrown away: tokens stay, only keys and values go": _preempter(
            back=_forget_answer
        ),
        "the answer is made a part of the prompt: then it writes that many tokens anew": _preempter(
            back=_prompt_takes_answer
        ),
        "it still runs: take it out of `running`": _preempter(remove=lambda self, r: None),
        "the first of `running` goes, not the request that was named": _preempter(
            remove=lambda self, r: self.running.pop(0)
        ),
        "it is lost: put it back into the queue": _preempter(queue=lambda self, r: None),
        "its preemptions are not counted": _preempter(count=lambda r: r.n_preemptions),
        "n_computed stays: without its pages nothing of it is computed": _preempter(
            back=_keep_computed
        ),
        "its page table stays: others will write into these pages": _preempter(back=_keep_table),
    },
    right={
        "by hand": scheduler_with(preempt=_preempt_by_hand),
        "through finish": scheduler_with(preempt=_preempt_through_finish),
        "counted first": _preempter(),
    },
)
