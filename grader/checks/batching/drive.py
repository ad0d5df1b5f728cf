"""Lesson 10: how the checks drive a scheduler, and what they see of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from grader.checks.batching.prefix import only
from grader.checks.batching.share import CONFIG, sound
from grader.judging.exercise import Inputs
from inferlab.paging import PagePool
from inferlab.scheduler import Request, Scheduler

MAX_STEPS = 80


def scheduler_with(**methods: Callable) -> type:
    return type("Scheduler", (Scheduler,), methods)


def state(scheduler: Any) -> dict[str, Any]:
    """Who runs and waits, and what they hold, without the numbers of the pages."""
    cached = scheduler.prefix_cache
    return {
        "running": [r.id for r in scheduler.running],
        "waiting": [r.id for r in scheduler.waiting],
        "pages of each running": [len(r.page_table) for r in scheduler.running],
        "pages of those waiting": sum(len(r.page_table) for r in scheduler.waiting),
        "computed": [r.n_computed for r in scheduler.running],
        "preempted": [r.n_preemptions for r in [*scheduler.running, *scheduler.waiting]],
        "pages free": len(scheduler.allocator.free),
        "pages in the prefix cache": 0 if cached is None else len(cached.pages),
        "the holders": sound(scheduler.allocator, scheduler.holders()),
    }


def shown(work: Any) -> Any:
    """Planned work as plain rows."""
    if not isinstance(work, (list, tuple)):
        return work
    rows = []
    for w in work:
        if not all(hasattr(w, name) for name in ("request", "start", "n_tokens")):
            return f"{type(w).__name__} in place of Work"
        rows.append([w.request.id, w.start, int(w.n_tokens)])
    return rows


def carry_out(scheduler: Any, work: Any) -> None:
    """Commit planned work and give a made-up token to whoever has its next; end who is done."""
    for item in work:
        finishes = item.finishes
        Scheduler.commit(scheduler, item)
        if finishes:
            request = item.request
            request.generated.append((7 * len(request.tokens) + len(request.id)) % 50)
            if len(request.generated) == request.max_new_tokens:
                scheduler.finish(request)


def new_scheduler(part: str, answer: Any, inputs: Inputs) -> Any:
    pool = PagePool(CONFIG, inputs["n_pages"], page_size=inputs["page_size"])
    kind = only(part, answer, Scheduler)
    return kind(
        pool, inputs["token_budget"], inputs["max_running"], inputs.get("use_prefix_cache", True)
    )


def requests(inputs: Inputs) -> Iterator[tuple[int, Request]]:
    """(step of arrival, request) for each row of inputs["requests"]: arrival, prompt, new tokens.

    Prompts of the same `family` (the row's last number) begin alike.
    """
    for i, (arrival, n_prompt, n_new, family) in enumerate(inputs["requests"]):
        rng = np.random.default_rng([inputs["seed"], family])
        shared = rng.integers(0, 50, 64).tolist()
        own = np.random.default_rng([inputs["seed"], 100 + i]).integers(0, 50, 64).tolist()
        n_shared = 3 * n_prompt // 4
        yield (
            arrival,
            Request("abcdefghij"[i], shared[:n_shared] + own[: n_prompt - n_shared], n_new),
        )


def play(scheduler: Any, inputs: Inputs) -> dict[str, Any]:
    """Serve a whole trace: what is planned in each step, and the state after it.

    inputs["fork_after"], if it is there: the step after which the last request gets a twin.
    """
    left = list(requests(inputs))
    seen: dict[str, Any] = {}
    for step in range(MAX_STEPS):
        for _, request in [pair for pair in left if pair[0] <= step]:
            scheduler.add(request)
        left = [pair for pair in left if pair[0] > step]
        if not (left or scheduler.running or scheduler.waiting):
            return {**seen, "steps in all": step}
        work = scheduler.plan()
        seen[f"step {step}: planned (request, start, tokens)"] = shown(work)
        seen |= {f"step {step}, planned: {name}": v for name, v in state(scheduler).items()}
        if not isinstance(work, (list, tuple)):
            return seen
        carry_out(scheduler, work)
        if step == inputs.get("fork_after"):
            scheduler.fork(scheduler.running[-1], "twin")
        seen[f"step {step}, done: the holders"] = sound(scheduler.allocator, scheduler.holders())
    return {**seen, "steps in all": f"not done after {MAX_STEPS}"}


def trace(*rows: tuple[int, int, int, int], **sizes: Any) -> Inputs:
    given = {"page_size": 4, "token_budget": 16, "max_running": 4, "n_pages": 12, "seed": 0}
    return {**given, **sizes, "requests": list(rows)}


def draw_trace(rng: np.random.Generator) -> Inputs:
    """Too few pages for all at times; prompts that begin alike."""
    rows = [
        (int(rng.integers(0, 8)), int(rng.integers(2, 17)), int(rng.integers(2, 10)), int(family))
        for family in rng.integers(0, 3, size=6)
    ]
    sizes = {"n_pages": int(rng.integers(9, 14)), "page_size": int(rng.integers(3, 5))}
    sizes |= {"token_budget": int(rng.integers(6, 13)), "max_running": int(rng.integers(3, 5))}
    return trace(*rows, seed=int(rng.integers(1000)), **sizes)
