"""Lesson 10: taking a request's pages away again. One method is judged at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from grader.judging.exercise import Exercise, Inputs
from inferlab.scheduler import Scheduler


def _drive_preempt(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Three run, two wait; the second goes back, then the last; then all go on to the end."""
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
        victim = scheduler.running[1 if i == 0 else -1]
        prompt = list(victim.prompt)
        scheduler.preempt(victim)
        seen[f"call {i + 1}: it waits itself, not a copy"] = any(
            r is victim for r in scheduler.waiting
        )
        seen |= {f"call {i + 1}: {name}": v for name, v in state(scheduler).items()}
        seen[f"call {i + 1}: its prompt is as it was"] = victim.prompt == prompt
        seen[f"call {i + 1}: its answer"] = list(victim.generated)
        seen[f"call {i + 1}: its n_computed"] = victim.n_computed
    scheduler.preempt = partial(Scheduler.preempt, scheduler)  # a wrong one might never end in plan
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
        "the last of `running` goes, not the request that was named": scheduler_with(
            preempt=lambda self, request: Scheduler.preempt(self, self.running[-1])
        ),
        "a copy of it is queued: whoever waits for its answer holds the request itself": _preempter(
            queue=lambda self, r: self.waiting.appendleft(replace(r))
        ),
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
