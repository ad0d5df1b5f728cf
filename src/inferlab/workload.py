"""Load: how requests arrive, what queueing theory says of them, and a client that sends them.

Source: Little 1961 (Operations Research 9); Kleinrock 1975, "Queueing Systems" vol. 1;
Harchol-Balter 2013, "Performance Modeling and Design of Computer Systems".
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from inferlab.latency_metrics import RequestTrace

Numbers = Sequence[float] | np.ndarray

# ---- arrivals ------------------------------------------------------------------------------------


def poisson_arrivals(rate_per_s: float, uniforms: np.ndarray) -> np.ndarray:
    """Arrival times of a Poisson process, in seconds from 0: users who do not know each other.

    uniforms: (n,) numbers in [0, 1), one for each request. The gap before request i is
    exponential, made from its uniform u by inverting the distribution function:
    gap = -ln(1 - u) / rate_per_s (u itself may be 0, so not ln u). Times are the running sum of
    the gaps. -> (n,) float

    Example: 2 requests/s, u = [0.5, 0.0]: gaps 0.3466 and 0 -> [0.3466, 0.3466].
    Raises ValueError unless rate_per_s is above 0.
    """
    if rate_per_s <= 0:
        raise ValueError(f"rate_per_s={rate_per_s} must be above 0")
    return np.cumsum(-np.log1p(-np.asarray(uniforms, dtype=np.float64)) / rate_per_s)


def bursty_arrivals(
    rate_per_s: float, on_s: float, off_s: float, uniforms: np.ndarray
) -> np.ndarray:
    """Arrivals that come in bursts: on_s seconds of traffic, off_s seconds of none, and again.

    The mean rate over a whole cycle is rate_per_s, so while traffic is on the rate is
    rate_per_s * (on_s + off_s) / on_s. Draw Poisson arrivals at that rate on a clock that runs only
    while traffic is on; then put the pauses in: a request at time t of that clock has
    floor(t / on_s) whole pauses before it and arrives at t + off_s * floor(t / on_s).

    uniforms: (n,) as in poisson_arrivals. -> (n,) float, seconds from 0

    Example: 1 request/s, on_s 1, off_s 3: the rate while on is 4. u = [0.5, 0.99]: the clock
    that stands still shows 0.1733 and 1.3246; one pause lies before the second: [0.1733, 4.3246].
    Raises ValueError unless on_s is above 0 and off_s 0 or more.
    """
    if on_s <= 0 or off_s < 0:
        raise ValueError(f"on_s={on_s} must be above 0 and off_s={off_s} 0 or more")
    running = poisson_arrivals(rate_per_s * (on_s + off_s) / on_s, uniforms)
    return running + off_s * np.floor(running / on_s)


# ---- queues --------------------------------------------------------------------------------------


def replicas_needed(rate_per_s: float, mean_e2e_s: float, max_running: int) -> int:
    """How many servers hold the requests that are in flight, when each runs max_running at once.

    Little's law: on average rate_per_s * mean_e2e_s requests are in flight. -> at least 1

    Example: 5 requests/s of 4 s each are 20 in flight; at 8 a server: 3 servers.
    Raises ValueError if max_running is below 1.
    Source: Little 1961.
    """
    if max_running < 1:
        raise ValueError(f"max_running={max_running} must be 1 or more")
    return max(1, math.ceil(rate_per_s * mean_e2e_s / max_running))


def mm1_percentile(arrivals_per_s: float, served_per_s: float, p: float) -> float:
    """The p-th percentile of the time in an M/M/1 system, waiting and service together. -> seconds

    M/M/1: Poisson arrivals, exponential service times, one server, in order of arrival. The time
    in the system is then exponential with rate served_per_s - arrivals_per_s, so that a share
    1 - exp(-(served_per_s - arrivals_per_s) t) of all requests is done within t.

    p: at least 0, below 100.
    Example: 2 arrivals/s, 3 served/s, p = 50: ln 2 / 1 = 0.693 s.
    Raises ValueError unless arrivals_per_s is below served_per_s: otherwise the queue grows
    without end.
    Source: Kleinrock 1975, section 3.2.
    """
    if arrivals_per_s >= served_per_s:
        raise ValueError(
            f"{arrivals_per_s} arrivals/s at {served_per_s} served/s: the queue never settles"
        )
    return -math.log(1 - p / 100) / (served_per_s - arrivals_per_s)


def highest_rate(
    rates_per_s: Sequence[float], attainments: Sequence[float], target: float = 0.9
) -> float:
    """The highest rate up to which a server keeps its promise: DistServe's goodput.

    attainments: for each measured rate, the share of its requests that met every limit, 0 to 1.
    -> the largest of the rates at which, and at every lower one of which, the share is at least
    target. A lucky run beyond the first miss does not count. The rates are different ones,
    in any order.

    Example: rates 1, 2, 4, 8 with shares 1.0, 0.95, 0.7, 0.92 and target 0.9 -> 2.
    Raises ValueError where even the lowest rate misses the target: no rate keeps the promise.
    Source: Zhong et al. 2024, "DistServe" (arXiv 2401.09670), section 2.
    """
    best = None
    for rate, share in sorted(zip(rates_per_s, attainments, strict=True)):
        if share < target:
            break
        best = rate
    if best is None:
        raise ValueError(
            f"even at {min(rates_per_s):.3g} requests/s fewer than {target:.0%} are good"
        )
    return best


def fifo_times_s(arrivals_s: Numbers, services_s: Numbers) -> np.ndarray:
    """Seconds that each request spends in a queue with one server, in order of arrival. -> (n,)

    It begins when it has arrived and the one before is done (Lindley's recursion).
    """
    done, times = 0.0, []
    for arrival, service in zip(arrivals_s, services_s, strict=True):
        done = max(done, arrival) + service
        times.append(done - arrival)
    return np.array(times)


# ---- a client ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What one user asks: a prompt, and how many tokens to write."""

    prompt: tuple[int, ...]
    n_new: int


class Batcher(Protocol):
    """What a load is sent to: the ServingEngine, or another with these two calls."""

    def add(self, request_id: str, prompt: Sequence[int], max_new_tokens: int) -> Any:
        """Take a request in."""

    def step(self) -> Iterable[Any]:
        """One pass; -> an event (request_id, finish) for each request that it touched."""


def draw_jobs(n: int, vocab_size: int, rng: np.random.Generator, mean_new: int = 16) -> list[Job]:
    """n jobs with random prompts of 16 to 48 tokens and answers of exponential length, 2 or more.

    The lengths are the n quantiles of the exponential law in random order: every set of n jobs has
    the same work in it, so that two runs differ by their arrivals.
    """
    quantiles = -np.log1p(-(np.arange(n) + 0.5) / n) * mean_new
    lengths = rng.permutation(np.maximum(2, np.rint(quantiles)).astype(int))
    return [
        Job(tuple(int(t) for t in rng.integers(1, vocab_size, rng.integers(16, 49))), int(length))
        for length in lengths
    ]


def serve_open_loop(
    engine: Batcher,
    jobs: Sequence[Job],
    arrivals_s: Numbers,
    max_in_flight: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[RequestTrace]:
    """Send each job when it is due, whatever the engine is doing; at most max_in_flight at once.

    What is due while the engine is full waits its turn in order. Times in the traces are seconds
    from the start of the run: arrival_s is when the job was due, start_s when it was handed over.
    Raises ValueError unless there is an arrival for each job, in rising order.
    """
    if len(arrivals_s) != len(jobs) or any(np.diff(arrivals_s) < 0):
        raise ValueError(f"{len(jobs)} jobs need as many arrivals, in rising order")
    begun = clock()
    due, starts = deque(range(len(jobs))), [math.nan] * len(jobs)
    times: list[list[float]] = [[] for _ in jobs]
    n_live = 0
    while due or n_live:
        now = clock() - begun
        while due and arrivals_s[due[0]] <= now and n_live < max_in_flight:
            i = due.popleft()
            engine.add(str(i), jobs[i].prompt, jobs[i].n_new)
            starts[i], n_live = now, n_live + 1
        if not n_live:
            sleep(max(0.0, arrivals_s[due[0]] - now))
            continue
        events = engine.step()
        now = clock() - begun
        for event in events:
            times[int(event.request_id)].append(now)
            n_live -= bool(event.finish)
    return [
        RequestTrace(float(arrival), tuple(tokens), start)
        for arrival, tokens, start in zip(arrivals_s, times, starts, strict=True)
    ]


def as_closed_loop(traces: Sequence[RequestTrace]) -> list[RequestTrace]:
    """The same run, timed by a client that starts its clock only when it has a free slot.

    That is what a closed loop does: its users ask again only after their answer is complete, so
    the time that a real user would have waited before that is in no measurement.
    """
    return [
        replace(trace, arrival_s=start)
        for trace in traces
        for start in [trace.start_s]
        if start is not None
    ]
