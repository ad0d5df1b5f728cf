"""Why requests share a pass: what a batch gains, and how its seats are filled.

A trace is a list of jobs, each of which wants a seat for so many steps. Static batching fills all
seats together and empties them together; continuous batching fills a seat as soon as it is free.

Source: Pope et al. 2022 (arXiv 2211.05102), section 2.1, the batch; Yu et al. 2022, "Orca" (OSDI),
scheduling by iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferlab.config import ModelConfig
from inferlab.roofline import step_bound_s


def decode_speeds(
    config: ModelConfig,
    n_cached: int,
    n_sequences: int,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    bytes_per_number: int = 2,
) -> tuple[float, float]:
    """The highest speed of decoding in a batch: of one user, and of all of them together.

    n_sequences users decode together, each with n_cached tokens. A step gives each of them one
    token. Its time is bounded by step_bound_s(config, n_new, n_cached, bandwidth_bytes_per_s,
    peak_flops_per_s, bytes_per_number, n_sequences) of lesson 01, in seconds, with n_new = 1.

    -> (tokens/s of one user, tokens/s of all)
    Example: Llama-3-8B in bf16 on 3.35e12 bytes/s and 9.894e14 FLOP/s, 16 users of 8,192 tokens: a
    step takes 9.609 ms -> (104.07, 1665.16).
    Raises ValueError for less than 1 sequence.
    """
    if n_sequences < 1:
        raise ValueError(f"n_sequences={n_sequences} must be at least 1")
    step_s = step_bound_s(
        config, 1, n_cached, bandwidth_bytes_per_s, peak_flops_per_s, bytes_per_number, n_sequences
    )
    return 1 / step_s, n_sequences / step_s


# ---- seats on a trace --------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A request in a trace: it comes before step `arrival`, and then needs a seat for n_steps.

    n_pages: memory that it holds from its first step to its last.
    """

    arrival: int
    n_steps: int
    n_pages: int = 0


def static_starts(jobs: Sequence[Job], n_seats: int) -> list[int]:
    """The step in which each job begins when seats are filled and emptied all together.

    Jobs are served in the order given, which is that of their arrivals. When the batch before is
    done, the next one takes the jobs that have come by then, at most n_seats; if none has, it
    begins when the next one comes. It is done when its longest job is.

    -> one step for each job, the first step is 0
    Example: 2 seats, jobs (arrival, n_steps) (0, 3), (0, 1), (1, 2) -> [0, 0, 3]: the third waits
    for the first, although a seat is empty from step 1 on.
    """
    starts: list[int] = []
    now = 0
    while len(starts) < len(jobs):
        now = max(now, jobs[len(starts)].arrival)
        batch = [job for job in jobs[len(starts) :][:n_seats] if job.arrival <= now]
        starts += [now] * len(batch)
        now += max(job.n_steps for job in batch)
    return starts


def continuous_starts(jobs: Sequence[Job], n_seats: int, n_pages: int) -> list[int]:
    """The step in which each job begins when a job that ends makes room for the next one at once.

    Jobs are served in the order given, which is that of their arrivals. Before each step, those
    that ended give back their seat and their n_pages; then waiting jobs are let in while one has
    come, a seat is free, and the pages that it needs are free of n_pages in all. Nobody overtakes.

    -> one step for each job, the first step is 0
    Example: 2 seats, 9 pages, jobs (arrival, n_steps, n_pages) (0, 3, 5), (0, 1, 4), (1, 2, 4) ->
    [0, 0, 1]: the second ends with step 0. With 8 pages -> [0, 3, 3]: the second does not fit
    beside the first, and the third waits behind it.
    Raises ValueError for a job that needs more than n_pages.
    """
    if any(job.n_pages > n_pages for job in jobs):
        raise ValueError(f"a job needs more than the {n_pages} pages that there are")
    starts: list[int] = []
    now = 0
    while len(starts) < len(jobs):
        job = jobs[len(starts)]
        running = [
            other for other, start in zip(jobs, starts, strict=False) if start + other.n_steps > now
        ]
        held = sum(other.n_pages for other in running)
        if job.arrival <= now and len(running) < n_seats and held + job.n_pages <= n_pages:
            starts.append(now)
        else:
            now += 1
    return starts


def seat_use(jobs: Sequence[Job], starts: Sequence[int], n_seats: int) -> float:
    """The share of all seats that did work, from the first job's start to the last one's end.

    starts: the step in which each job begins.

    Example: 2 seats, jobs of 3, 1 and 2 steps that begin in steps 0, 0 and 3: 6 of 2 · 5 seats ->
    0.6.
    Raises ValueError for no jobs.
    """
    if not jobs:
        raise ValueError("no jobs: nothing to share")
    end = max(start + job.n_steps for job, start in zip(jobs, starts, strict=True))
    return sum(job.n_steps for job in jobs) / (n_seats * (end - min(starts)))


def exponential_gain(n_seats: int) -> float:
    """E[max] / E[mean] of so many exponentially distributed lengths: 1 + 1/2 + … + 1/n_seats."""
    return sum(1 / k for k in range(1, n_seats + 1))


# ---- chunks of a prompt ------------------------------------------------------------------------


def reread_tokens(n_tokens: int, chunk: int) -> int:
    """Tokens whose keys and values are read again because a prompt is computed in chunks.

    Each chunk reads those of all chunks before it. Example: 12 tokens by 4: 4 + 8 -> 12.
    """
    return sum(range(0, n_tokens, chunk))


def largest_chunk(
    limit_s: float, n_decoding: int, n_weights: float, peak_flops_per_s: float
) -> int:
    """Prompt tokens that fit into a pass beside n_decoding others, if arithmetic is its limit.

    2 FLOPs for each weight and token.
    Example: 20 ms, 32 others, 8e9 weights, 989.4e12 FLOP/s: 1204.
    """
    return max(0, int(limit_s * peak_flops_per_s / (2 * n_weights)) - n_decoding)


def hit_tokens(n_common: int, n_prompt: int, page_size: int) -> int:
    """Tokens of a prompt that come from the prefix cache, of which it shares the first n_common.

    Full pages only, and at least one token is computed. Example: 1,000 of 1,200 by 16: 992.
    """
    return min(n_common, n_prompt - 1) // page_size * page_size
