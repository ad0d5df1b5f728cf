"""Lesson 10: who is let in, and what a pass computes. One method is judged at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.drive import (
    carry_out,
    draw_trace,
    new_scheduler,
    play,
    requests,
    scheduler_with,
    shown,
    state,
    trace,
)
from grader.checks.batching.lesson import LESSON
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.scheduler import Request, Scheduler, Work

# ---- admit --------------------------------------------------------------------------------------


def _draw_admit(rng: np.random.Generator) -> Inputs:
    rows = [(0, int(rng.integers(5, 15)), 4, int(f)) for f in rng.integers(0, 2, size=6)]
    return trace(
        *rows, n_pages=int(rng.integers(7, 11)), token_budget=32, max_running=4,
        seed=int(rng.integers(1000)), n_left=int(rng.integers(12, 30)),
    )  # fmt: skip


def _drive_admit(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Somebody was here before, whose pages are known; then two rounds of newcomers."""
    scheduler = new_scheduler("admit", answer, inputs)
    waiting = [request for _, request in requests(inputs)]
    if inputs.get("before", True):
        scheduler.add(Request("old", list(waiting[0].prompt), 1))
        carry_out(scheduler, Scheduler.admit(scheduler, 40))
    for request in waiting:
        scheduler.add(request)
    seen: dict[str, Any] = {}
    for n_left in (inputs["n_left"], 0, 9):
        work = scheduler.admit(n_left)
        when = f"{n_left} tokens left"
        seen[f"{when}: planned (request, start, tokens)"] = shown(work)
        seen |= {f"{when}: {name}": value for name, value in state(scheduler).items()}
        seen[f"{when}: n_cached"] = [r.n_cached for r in waiting]
        if not isinstance(work, (list, tuple)):
            return seen
        for request in scheduler.running:
            request.n_computed = (
                max([w.start + w.n_tokens for w in work if w.request is request], default=0)
                or request.n_computed
            )
    return seen


def _admitter(
    take: Callable = lambda self: self.waiting[0],
    go_on: Callable = lambda self, n_left: n_left > 0 and len(self.running) < self.max_running,
    prefix: bool = True,
    tokens: Callable = lambda r, n_left: min(r.n_to_compute, n_left),
    spend: bool = True,
    back: bool = True,
    skip: bool = False,
    front: bool = False,
    keep: bool = False,
    start: Callable = lambda r: r.n_computed,
    run: bool = True,
    reserve: bool = True,
    result: Callable = lambda work: work,
):
    """admit with one step replaced."""

    def admit(self, n_left):
        work: list[Work] = []
        passed: list[Request] = []
        while self.waiting and go_on(self, n_left) and len(work) < 20:
            request = take(self)
            if prefix:
                self.find_prefix(request)
            n_tokens = tokens(request, n_left)
            if reserve and not self.reserve(request, n_tokens):
                if back:
                    self.give_back(request)
                if skip:
                    self.waiting.remove(request)
                    passed.append(request)
                    continue
                break
            if not keep:
                self.waiting.remove(request)
            if run:
                self.running.insert(0 if front else len(self.running), request)
            work.append(Work(request, start(request), n_tokens))
            if spend:
                n_left -= n_tokens
            if keep:
                break
        self.waiting.extendleft(reversed(passed))
        return result(work)

    return scheduler_with(admit=admit)


def _admit_counts_first(self, n_left):
    """Counts what a request lacks before its known pages are found."""
    work = []
    while self.waiting and n_left > 0 and len(self.running) < self.max_running:
        request = self.waiting[0]
        n_tokens = min(request.n_to_compute, n_left)
        self.find_prefix(request)
        if not self.reserve(request, n_tokens):
            self.give_back(request)
            break
        self.running.append(self.waiting.popleft())
        work.append(Work(request, request.n_computed, n_tokens))
        n_left -= n_tokens
    return work


def _admit_popleft(self, n_left):
    """Takes the request out first, puts it back where it does not fit."""
    work = []
    for _ in range(self.max_running - len(self.running)):
        if n_left < 1 or not self.waiting:
            break
        request = self.waiting.popleft()
        self.find_prefix(request)
        n = request.n_to_compute if request.n_to_compute < n_left else n_left
        if self.reserve(request, n):
            work += [Work(request=request, start=request.n_computed, n_tokens=n)]
            self.running.append(request)
            n_left = n_left - n
        else:
            self.give_back(request)
            self.waiting.appendleft(request)
            break
    return work


def _admit_recursive(self, n_left):
    if not self.waiting or n_left <= 0 or len(self.running) == self.max_running:
        return []
    request = self.waiting[0]
    self.find_prefix(request)
    n_tokens = sorted([request.n_to_compute, n_left])[0]
    if not self.reserve(request, n_tokens):
        self.give_back(request)
        return []
    self.running = [*self.running, self.waiting.popleft()]
    return [Work(request, request.n_computed, n_tokens), *self.admit(n_left - n_tokens)]


ADMIT = Exercise(
    id="Scheduler.admit",
    reference=Scheduler,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("PageAllocator", "page_hashes"),
    hints=(
        "while self.waiting and n_left > 0 and len(self.running) < self.max_running: look at "
        "self.waiting[0], and take it out only once it has its pages.",
        "self.find_prefix(request) first: it decides n_to_compute. Then n_tokens = "
        "min(request.n_to_compute, n_left), and self.reserve(request, n_tokens).",
        "If that is False: self.give_back(request); break. Else self.running.append("
        "self.waiting.popleft()), work.append(Work(request, request.n_computed, n_tokens)), "
        "n_left -= n_tokens.",
    ),
    cases=(
        Case("two prompts of 7 tokens, 10 left", lambda: trace(
            (0, 7, 3, 0), (0, 7, 3, 1), n_left=10, before=False)),
        Case("more wait than may run", lambda: trace(
            *((0, 3, 3, i) for i in range(6)), n_left=30, before=False)),
        Case("the first in the queue does not fit, the second would", lambda: trace(
            (0, 8, 4, 0), (0, 16, 2, 1), (0, 2, 2, 2), n_left=40, n_pages=5, before=False)),
        Case("a prompt that is all known", lambda: trace((0, 8, 3, 0), (0, 12, 3, 0), n_left=12)),
    ),
    draw=_draw_admit,
    n_draws=6,
    drive=_drive_admit,
    wrong={
        "pages are not reserved: the pass would have nowhere to write": _admitter(reserve=False),
        "the known beginning is not looked up: call find_prefix first": _admitter(prefix=False),
        "counts what is lacking before find_prefix: known tokens lack nothing": scheduler_with(
            admit=_admit_counts_first
        ),
        "a prompt is taken whole although fewer tokens are left": _admitter(
            tokens=lambda r, n_left: r.n_to_compute
        ),
        "only whole prompts come in: a part of one may be computed": _admitter(
            go_on=lambda self, n_left: (
                len(self.running) < self.max_running and 0 < self.waiting[0].n_to_compute <= n_left
            )
        ),
        "what was planned is not taken off the tokens left": _admitter(spend=False),
        "max_running is forgotten": _admitter(go_on=lambda self, n_left: n_left > 0),
        "one more than max_running": _admitter(
            go_on=lambda self, n_left: n_left > 0 and len(self.running) <= self.max_running
        ),
        "goes on although no token is left": _admitter(
            go_on=lambda self, n_left: len(self.running) < self.max_running
        ),
        "keeps pages while it waits: give_back what it holds when the rest is not to be had": (
            _admitter(back=False)
        ),
        "the next one overtakes a request that does not fit: then it may wait for ever": _admitter(
            skip=True
        ),
        "the last in the queue comes first": _admitter(take=lambda self: self.waiting[-1]),
        "it is planned, but does not move to `running`": _admitter(run=False),
        "it stays in the queue as well": _admitter(keep=True),
        "newcomers stand before those who run: the last of `running` is who came last": _admitter(
            front=True
        ),
        "the work starts at 0: what was found in the cache is computed already": _admitter(
            start=lambda r: 0
        ),
        "nothing is returned": _admitter(result=lambda work: None),
    },
    right={
        "takes it out, puts it back": scheduler_with(admit=_admit_popleft),
        "recursion": scheduler_with(admit=_admit_recursive),
        "remove in place of popleft": _admitter(),
    },
)  # fmt: skip

# ---- plan ---------------------------------------------------------------------------------------


def _drive_plan(answer: Any, inputs: Inputs) -> dict[str, Any]:
    return play(new_scheduler("plan", answer, inputs), inputs)


def _planner(
    order: Callable = lambda running: list(running),
    tokens: Callable = lambda r, n_left: min(r.n_to_compute, n_left),
    victim: Callable = lambda self, request: self.running[-1],
    retry: bool = True,
    admit: Callable = lambda self, n_left, preempted: [] if preempted else self.admit(n_left),
    admit_first: bool = False,
    spend: bool = True,
    result: Callable = lambda work: work,
    again: bool = True,
    anyway: bool = False,
):
    """plan with one step replaced."""

    def plan(self):
        n_left, preempted = self.token_budget, False
        early = self.admit(n_left) if admit_first else []
        n_left -= sum(w.n_tokens for w in early)
        new = {w.request.id for w in early}
        work: list[Work] = []
        for request in order(self.running):
            while request in self.running and request.id not in new and n_left > 0:
                n_tokens = tokens(request, n_left)
                if self.reserve(request, n_tokens):
                    work.append(Work(request, request.n_computed, n_tokens))
                    n_left -= n_tokens if spend else 0
                    break
                if not retry:
                    break
                preempted = True
                gone = victim(self, request)
                self.preempt(gone)
                if anyway and gone is request:
                    work.append(Work(request, request.n_computed, n_tokens))
                if not again:
                    break
        work = [w for w in work if anyway or w.request in self.running]
        if not admit_first:
            work += admit(self, n_left, preempted)
        return result(early + work)

    return scheduler_with(plan=plan)


def _plan_without_stop(self):
    work: list[Work] = []
    n_left, n_waiting = self.token_budget, len(self.waiting)
    while len(work) < len(self.running):
        request = self.running[len(work)]
        n_tokens = min(request.n_to_compute, n_left)
        if self.reserve(request, n_tokens):
            work.append(Work(request, request.n_computed, n_tokens))
            n_left -= n_tokens
        else:
            self.preempt(self.running[-1])
    return work + (self.admit(n_left) if len(self.waiting) == n_waiting else [])


def _plan_in_sets(self):
    """The planned ones in a dictionary, the order restored at the end."""
    planned: dict[str, Work] = {}
    budget, before = self.token_budget, [r.n_preemptions for r in self.running]
    everybody = list(self.running)
    for request in everybody:
        n = min(budget - sum(w.n_tokens for w in planned.values()), request.n_to_compute)
        while n > 0 and request in self.running and not self.reserve(request, n):
            self.preempt(self.running[len(self.running) - 1])
        if n > 0 and request in self.running:
            planned[request.id] = Work(request, request.n_computed, n)
    work = [planned[r.id] for r in self.running if r.id in planned]
    if [r.n_preemptions for r in everybody] == before:
        work.extend(self.admit(budget - sum(w.n_tokens for w in work)))
    return tuple(work)


def _plan_recursive(self):
    def go(i, n_left):
        if i == len(self.running) or n_left == 0:
            return [], n_left
        request = self.running[i]
        n = min(request.n_to_compute, n_left)
        if not self.reserve(request, n):
            self.preempt(self.running[-1])
            return go(i, n_left)
        rest, left = go(i + 1, n_left - n)
        return [Work(request, request.n_computed, n), *rest], left

    waiting = len(self.waiting)
    work, n_left = go(0, self.token_budget)
    return work + (self.admit(n_left) if len(self.waiting) == waiting else [])


PLAN = Exercise(
    id="Scheduler.plan",
    reference=Scheduler,
    lesson=LESSON,
    points=4,
    minutes=18,
    difficulty=4,
    hints=(
        "Go through self.running with an index that only moves on when a request got its pages; "
        "len(work) is that index. Victims come from the end, so whoever is planned stays.",
        "while len(work) < len(self.running) and n_left > 0: request = self.running[len(work)]; "
        "n_tokens = min(request.n_to_compute, n_left); reserve them.",
        "If reserve is True, append the Work and take n_tokens off n_left; else "
        "self.preempt(self.running[-1]). At the end: if len(self.waiting) is what it was, "
        "work += self.admit(n_left).",
    ),
    cases=(
        Case("two decode, a long prompt comes in pieces", lambda: trace(
            (0, 2, 6, 0), (0, 3, 6, 1), (1, 20, 3, 2), token_budget=8)),
        Case("the third has one token of the budget a step", lambda: trace(
            (0, 2, 6, 0), (0, 3, 6, 1), (1, 5, 3, 2), token_budget=3, max_running=3)),
        Case("out of pages: the one that came last goes back", lambda: trace(
            (0, 6, 12, 0), (0, 7, 12, 1), (0, 5, 12, 2), n_pages=8)),
        Case("the same without a prefix cache", lambda: trace(
            (0, 6, 12, 0), (0, 7, 12, 1), (0, 5, 12, 2), n_pages=8, use_prefix_cache=False)),
        Case("a seat is free again before the others end", lambda: trace(
            (0, 4, 14, 0), (0, 4, 2, 1), (0, 4, 4, 2), max_running=2, n_pages=20)),
        Case("one comes back and is read again in pieces", lambda: trace(
            (0, 8, 11, 0), (0, 8, 12, 1), n_pages=6, token_budget=6, use_prefix_cache=False)),
        Case("one comes back and finds its own pages in the prefix cache", lambda: trace(
            (0, 8, 7, 0), (0, 7, 6, 1), n_pages=6, max_running=2)),
        Case("one request alone needs all pages", lambda: trace(
            (0, 9, 8, 0), (1, 9, 8, 1), n_pages=4)),
        Case("a half-read prompt gets a twin: the budget ends before it", lambda: trace(
            (0, 20, 3, 0), token_budget=6, n_pages=20, fork_after=0)),
    ),
    draw=draw_trace,
    n_draws=6,
    drive=_drive_plan,
    wrong={
        "newcomers first: those who run may get no token in this step": _planner(admit_first=True),
        "nobody is let in while others run: that is static batching": _planner(
            admit=lambda self, n_left, preempted: self.admit(n_left) if not self.running else []
        ),
        "nobody waiting is ever let in: call self.admit": _planner(
            admit=lambda self, n_left, preempted: []
        ),
        "newcomers get a budget of their own: it is what is left of token_budget": _planner(
            admit=lambda self, n_left, preempted: (
                [] if preempted else self.admit(self.token_budget)
            )
        ),
        "somebody is let in right after another had to give pages back": _planner(
            admit=lambda self, n_left, preempted: self.admit(n_left)
        ),
        "the oldest request goes back: it has the most to compute again": _planner(
            victim=lambda self, request: self.running[0]
        ),
        "the request that asks goes back: the one that came last must go": _planner(
            victim=lambda self, request: request
        ),
        "a request without pages just sits out: if all do, nobody ever goes on": _planner(
            retry=False
        ),
        "tries once: when another has given its pages back, try again": _planner(again=False),
        "a request that gave its own pages back is planned all the same": _planner(anyway=True),
        "all missing tokens at once: a long prompt breaks the budget": _planner(
            tokens=lambda r, n_left: r.n_to_compute
        ),
        "one token for who has begun an answer: one that was preempted lacks many": _planner(
            tokens=lambda r, n_left: 1 if r.generated else min(r.n_to_compute, n_left)
        ),
        "one token each: a prompt may take as many as are left": _planner(
            tokens=lambda r, n_left: 1
        ),
        "those who came last get their tokens first": _planner(order=lambda r: list(r)[::-1]),
        "the budget is not used up: what is planned must be taken off": _planner(spend=False),
        "a request for which nothing of the budget is left is planned with 0 tokens: stop there": (
            scheduler_with(plan=_plan_without_stop)
        ),
        "nothing is returned": _planner(result=lambda work: None),
    },
    right={
        "a for loop with a loop inside": _planner(),
        "a dictionary": scheduler_with(plan=_plan_in_sets),
        "recursion": scheduler_with(plan=_plan_recursive),
    },
)  # fmt: skip
