"""Lesson 10: seats on a trace, filled all together or one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import dropwhile
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.batching import Job, continuous_starts, static_starts


def _jobs(*rows: tuple[int, ...]) -> list[Job]:
    return [Job(*row) for row in rows]


def _draw(rng: np.random.Generator) -> Inputs:
    """Bursts and gaps, short and long jobs."""
    n = int(rng.integers(9, 14))
    gaps = rng.choice([0, 0, 1, 2, 9], size=n)
    gaps[0] = rng.integers(1, 4)
    arrivals = np.cumsum(gaps)
    lengths = rng.choice([1, 2, 3, 5, 8], size=n)
    jobs = [Job(int(a), int(s)) for a, s in zip(arrivals, lengths, strict=True)]
    return {"jobs": jobs, "n_seats": int(rng.integers(2, 5))}


def _draw_with_pages(rng: np.random.Generator) -> Inputs:
    """Memory is short in some draws, seats are in others."""
    inputs, roomy = _draw(rng), bool(rng.integers(2))
    jobs = [Job(j.arrival, j.n_steps, int(rng.integers(1, 8))) for j in inputs["jobs"]]
    n_pages = int(rng.integers(20, 30)) if roomy else int(rng.integers(9, 15))
    return {"jobs": jobs, "n_seats": 2 if roomy else 4, "n_pages": n_pages}


def _drive(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The starts, and the list of jobs afterwards: popping from it would lose them."""
    jobs = list(inputs["jobs"])
    starts = answer(**{**inputs, "jobs": jobs})
    return {"starts": starts, "jobs left in the caller's list": len(jobs)}


# ---- static -------------------------------------------------------------------------------------


def _longest(batch: list[Job]) -> int:
    return max(job.n_steps for job in batch)


def _static(
    begin: Callable = max,
    size: Callable = lambda n_seats: n_seats,
    came: Callable = lambda job, now: job.arrival <= now,
    took: Callable = _longest,
    first: int = 0,
    step: Callable = lambda now, batch: [now] * len(batch),
):
    """static_starts with one step replaced."""

    def answer(jobs, n_seats):
        starts: list[int] = []
        now = first
        while len(starts) < len(jobs):
            now = begin(now, jobs[len(starts)].arrival)
            batch = []
            for job in jobs[len(starts) :][: size(n_seats)]:
                if not came(job, now):
                    break
                batch.append(job)
            batch = batch or [jobs[len(starts)]]
            starts += step(now, batch)
            now += took(batch)
        return starts

    return answer


def _static_waits_for_all(jobs, n_seats):
    """A batch begins when all of its seats have somebody."""
    starts, now = [], 0
    for i in range(0, len(jobs), n_seats):
        batch = jobs[i : i + n_seats]
        now = max(now, batch[-1].arrival)
        starts += [now] * len(batch)
        now += max(job.n_steps for job in batch)
    return starts


def _static_queue(jobs, n_seats):
    """Step by step, with a queue and a clock."""
    waiting, starts, now, free_at = deque(enumerate(jobs)), [0] * len(jobs), 0, 0
    while waiting:
        if now >= free_at and waiting[0][1].arrival <= now:
            for _ in range(n_seats):
                if not waiting or waiting[0][1].arrival > now:
                    break
                number, job = waiting.popleft()
                starts[number] = now
                free_at = max(free_at, now + job.n_steps)
        now += 1
    return starts


def _static_recursive(jobs, n_seats, now=0):
    if not jobs:
        return []
    now = max(now, jobs[0].arrival)
    n = sum(job.arrival <= now for job in jobs[:n_seats])
    end = now + max(job.n_steps for job in jobs[:n])
    return np.array([now] * n + list(_static_recursive(jobs[n:], n_seats, end)), dtype=int)


STATIC = Exercise(
    id="static_starts",
    reference=static_starts,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    hints=(
        "Keep the step `now` in which the seats are free. The next job not yet begun is "
        "jobs[len(starts)].",
        "now = max(now, its arrival). The batch: of the next n_seats jobs, those that have come by "
        "now. All of them begin in step now.",
        "batch = [j for j in jobs[len(starts):][:n_seats] if j.arrival <= now]; starts += [now] * "
        "len(batch); now += max(j.n_steps for j in batch); all in a while loop.",
    ),
    cases=(
        given("the worked example", jobs=_jobs((0, 3), (0, 1), (1, 2)), n_seats=2),
        given("a short job comes late: it waits for the longest", n_seats=3,
              jobs=_jobs((0, 9), (0, 1), (0, 1), (2, 1), (3, 4))),
        given("one seat", jobs=_jobs((2, 3), (2, 1), (9, 2)), n_seats=1),
        given("no job", jobs=[], n_seats=2),
        given("everybody fits at once", jobs=_jobs((0, 2), (0, 7)), n_seats=8),
    ),
    draw=_draw,
    n_draws=6,
    drive=_drive,
    wrong={
        "a seat is filled as soon as it is free: that is continuous batching": (
            lambda jobs, n_seats: continuous_starts(jobs, n_seats, 1)
        ),
        "the batch ends with its shortest job; its seats are held until the longest ends": _static(
            took=lambda batch: min(job.n_steps for job in batch)
        ),
        "the batch ends with the last of its jobs in the list; the longest decides": _static(
            took=lambda batch: batch[-1].n_steps
        ),
        "the steps of a batch are added up: its jobs run side by side": _static(
            took=lambda batch: sum(job.n_steps for job in batch)
        ),
        "a batch waits until every seat has somebody: it takes those that have come":
            _static_waits_for_all,
        "takes jobs that have not come yet": _static(came=lambda job, now: True),
        "a job that comes in the very step in which the batch begins is left out": _static(
            came=lambda job, now: job.arrival < now
        ),
        "one job after the other: a batch has n_seats": _static(size=lambda n: 1),
        "takes everybody who has come: a batch has n_seats at most": _static(
            size=lambda n: 1 << 30
        ),
        "begins before the first job has come: wait for it": _static(
            begin=lambda now, arrival: now
        ),
        "forgets that the batch before must be done: begins when the job comes": _static(
            begin=lambda now, arrival: arrival
        ),
        "the step after the longest job stays empty: the next batch begins in it": _static(
            took=lambda batch: max(job.n_steps for job in batch) + 1
        ),
        "the first step is 0, not 1": _static(first=1),
    },
    right={
        "step by step, with a queue": _static_queue,
        "recursion, as an array": _static_recursive,
        "a for loop that breaks": _static(),
    },
)  # fmt: skip

# ---- continuous ---------------------------------------------------------------------------------


def _held_by_running(running: list[Job], begun: list[Job]) -> int:
    return sum(job.n_pages for job in running)


def _continuous(
    ends: Callable = lambda start, job: start + job.n_steps,
    fits: Callable = lambda held, job, n_pages: held + job.n_pages <= n_pages,
    seats: Callable = lambda running, n_seats: running < n_seats,
    came: Callable = lambda job, now: job.arrival <= now,
    held_of: Callable = _held_by_running,
    refuse: bool = True,
    one_a_step: bool = False,
    batch: bool = False,
    gone: Callable = filter,
):
    """continuous_starts with one step replaced."""

    def answer(jobs, n_seats, n_pages):
        if refuse and any(job.n_pages > n_pages for job in jobs):
            raise ValueError("a job needs more pages than there are")
        starts: list[int] = []
        now = 0
        while len(starts) < len(jobs):
            job, begun = jobs[len(starts)], jobs[: len(starts)]
            pairs = zip(begun, starts, strict=True)
            running = [j for j, _ in gone(lambda pair, t=now: ends(pair[1], pair[0]) > t, pairs)]
            held = held_of(running, begun)
            boundary = not batch or not running or max(starts, default=-1) == now
            lone = not running and now > 10_000  # an answer that would never end
            free = seats(len(running), n_seats) and fits(held, job, n_pages) and boundary
            if (came(job, now) and free) or lone or now > 20_000:
                starts.append(now)
                now += one_a_step
            else:
                now += 1
        return starts

    return answer


def _continuous_waits_once(jobs, n_seats, n_pages):
    """Waits for one job to end, and then comes in, whether it fits or not."""
    if any(job.n_pages > n_pages for job in jobs):
        raise ValueError("too large")
    running: list[tuple[int, int]] = []
    now, starts = 0, []
    for job in jobs:
        now = max(now, job.arrival)
        running = [pair for pair in running if pair[0] > now]
        held = sum(pages for _, pages in running)
        if running and (len(running) == n_seats or held + job.n_pages > n_pages):
            now = min(end for end, _ in running)
            running = [pair for pair in running if pair[0] > now]
        running.append((now + job.n_steps, job.n_pages))
        starts.append(now)
    return starts


def _continuous_each_alone(jobs, n_seats, n_pages):
    """Each job takes the first step with room for it, even one before its predecessor's."""
    if any(job.n_pages > n_pages for job in jobs):
        raise ValueError("too large")
    starts: list[int] = []
    for job in jobs:
        now = job.arrival
        while True:
            pairs = zip(jobs, starts, strict=False)
            running = [j for j, s in pairs if s <= now < s + j.n_steps]
            held = sum(j.n_pages for j in running)
            if len(running) < n_seats and held + job.n_pages <= n_pages:
                break
            now += 1
        starts.append(now)
    return starts


def _first_to_begin(runs: Callable, pairs: Any) -> Any:
    return dropwhile(lambda pair: not runs(pair), pairs)


def _continuous_overtakes(jobs, n_seats, n_pages):
    """Whoever fits is let in, also past one that does not."""
    if any(job.n_pages > n_pages for job in jobs):
        raise ValueError("too large")
    starts: dict[int, int] = {}
    now = 0
    while len(starts) < len(jobs):
        for i, job in enumerate(jobs):
            running = [j for j, s in starts.items() if s + jobs[j].n_steps > now]
            held = sum(jobs[j].n_pages for j in running)
            fits = len(running) < n_seats and held + job.n_pages <= n_pages
            if i not in starts and job.arrival <= now and fits:
                starts[i] = now
        now += 1
    return [starts[i] for i in range(len(jobs))]


def _continuous_shortest_first(jobs, n_seats, n_pages):
    if any(job.n_pages > n_pages for job in jobs):
        raise ValueError("too large")
    starts: dict[int, int] = {}
    now = 0
    while len(starts) < len(jobs):
        came = [i for i in range(len(jobs)) if i not in starts and jobs[i].arrival <= now]
        for i in sorted(came, key=lambda i: jobs[i].n_steps):
            running = [j for j, s in starts.items() if s + jobs[j].n_steps > now]
            held = sum(jobs[j].n_pages for j in running)
            if len(running) == n_seats or held + jobs[i].n_pages > n_pages:
                break
            starts[i] = now
        now += 1
    return [starts[i] for i in range(len(jobs))]


def _continuous_by_step(jobs, n_seats, n_pages):
    """Seats as a list of steps left, pages as a counter."""
    if max((job.n_pages for job in jobs), default=0) > n_pages:
        raise ValueError("too large")
    waiting, free, starts, now = deque(jobs), n_pages, [], 0
    seats: list[list[int]] = []
    while waiting:
        while (
            waiting
            and waiting[0].arrival <= now
            and len(seats) < n_seats
            and waiting[0].n_pages <= free
        ):
            job = waiting.popleft()
            seats.append([job.n_steps, job.n_pages])
            free -= job.n_pages
            starts.append(now)
        for seat in seats:
            seat[0] -= 1
        free += sum(pages for left, pages in seats if left == 0)
        seats = [seat for seat in seats if seat[0] > 0]
        now += 1
    return tuple(starts)


def _continuous_by_event(jobs, n_seats, n_pages):
    """From one end of a job to the next, with a heap."""
    import heapq

    if any(job.n_pages > n_pages for job in jobs):
        raise ValueError("too large")
    ends: list[tuple[int, int]] = []
    free, now, starts = n_pages, 0, []
    for job in jobs:
        now = max(now, job.arrival)
        while ends and (ends[0][0] <= now or len(ends) == n_seats or job.n_pages > free):
            end, pages = heapq.heappop(ends)
            now, free = max(now, end), free + pages
        heapq.heappush(ends, (now + job.n_steps, job.n_pages))
        free -= job.n_pages
        starts.append(now)
    return np.array(starts, dtype=int)


CONTINUOUS = Exercise(
    id="continuous_starts",
    reference=continuous_starts,
    lesson=LESSON,
    points=3,
    minutes=15,
    difficulty=3,
    hints=(
        "Two things to ask in each step: who still runs, and may the next job, "
        "jobs[len(starts)], come in now? Only if it may not, go on to the next step.",
        "A job that began in step s runs in step now while s + n_steps > now. Zip jobs and starts: "
        "the jobs begun so far are the first len(starts).",
        "Three conditions together: job.arrival <= now, len(running) < n_seats, and the sum of "
        "n_pages of running plus job.n_pages <= n_pages. Then starts.append(now), else now += 1.",
    ),
    cases=(
        given("the worked example, 9 pages", jobs=_jobs((0, 3, 5), (0, 1, 4), (1, 2, 4)),
              n_seats=2, n_pages=9),
        given("the same with 8 pages", jobs=_jobs((0, 3, 5), (0, 1, 4), (1, 2, 4)),
              n_seats=2, n_pages=8),
        given("a late short job does not wait for the long one", n_seats=2, n_pages=9,
              jobs=_jobs((0, 30, 1), (0, 1, 1), (2, 1, 1), (3, 4, 1))),
        given("a large job waits at the head of the queue", n_seats=4, n_pages=10,
              jobs=_jobs((0, 4, 6), (1, 2, 7), (1, 1, 1))),
        given("all pages for one job", jobs=_jobs((0, 2, 10), (0, 1, 10)), n_seats=4, n_pages=10),
        given("more pages than there are: ValueError", jobs=_jobs((0, 1, 11)), n_seats=4,
              n_pages=10),
        given("no job", jobs=[], n_seats=2, n_pages=5),
    ),
    draw=_draw_with_pages,
    n_draws=10,
    drive=_drive,
    wrong={
        "waits until all seats are empty: that is static batching": _continuous(batch=True),
        "lets a job in whose pages are not free: memory runs out": _continuous(
            fits=lambda held, job, n_pages: True
        ),
        "pages are never given back: a job that ended holds none": _continuous(
            held_of=lambda running, begun: sum(job.n_pages for job in begun)
        ),
        "the pages of the newcomer itself are not counted": _continuous(
            fits=lambda held, job, n_pages: held <= n_pages
        ),
        "a job that just fits is kept waiting: use <=, not <": _continuous(
            fits=lambda held, job, n_pages: held + job.n_pages < n_pages or not held
        ),
        "the number of seats is forgotten": _continuous(seats=lambda running, n_seats: True),
        "one job more than there are seats": _continuous(
            seats=lambda running, n_seats: running <= n_seats
        ),
        "lets a job in before it has come": _continuous(came=lambda job, now: True),
        "a seat stays empty for one step: who begins in step s needs it until s + n_steps - 1": (
            _continuous(ends=lambda start, job: start + job.n_steps + 1)
        ),
        "a job leaves one step too early": _continuous(
            ends=lambda start, job: start + max(1, job.n_steps - 1)
        ),
        "waits for one job to end, which may not make room enough": _continuous_waits_once,
        "a small job overtakes one that does not fit: the large one may then wait for ever": (
            _continuous_overtakes
        ),
        "the shortest job first: jobs are served in the order given": _continuous_shortest_first,
        "a job begins before one that stands ahead of it: nobody overtakes": _continuous_each_alone,
        "looks only whether the first to begin has ended: a later one may end sooner": _continuous(
            gone=_first_to_begin
        ),
        "one newcomer a step: let in as many as fit": _continuous(one_a_step=True),
        "a job that can never fit is accepted: raise ValueError": _continuous(refuse=False),
    },
    right={
        "steps left in each seat, counted down": _continuous_by_step,
        "from end to end, with a heap": _continuous_by_event,
        "slices in place of zip": _continuous(),
    },
)  # fmt: skip
