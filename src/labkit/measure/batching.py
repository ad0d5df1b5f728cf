"""What the lesson on batching measures: the real engine, run on traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from inferlab.batching import Job, continuous_starts, static_starts
from inferlab.model import Model
from inferlab.scheduler import Request, Scheduler
from inferlab.serve.engine import ServingEngine, StepRecord

Clock = Callable[[], float]


def engine_with(
    model: Model,
    scheduler: type = Scheduler,
    n_pages: int = 256,
    page_size: int = 16,
    token_budget: int = 256,
    max_running: int = 16,
    use_prefix_cache: bool = True,
) -> ServingEngine:
    """The serving engine with this scheduler, which may be one written in a notebook."""
    sizes = (n_pages, page_size, token_budget, max_running, use_prefix_cache)
    engine = ServingEngine(model, *sizes)
    engine.scheduler = scheduler(engine.pool, token_budget, max_running, use_prefix_cache)
    return engine


def decode_rate(
    engine: ServingEngine,
    prompts: Sequence[Sequence[int]],
    n_new: int,
    clock: Clock = time.perf_counter,
) -> float:
    """Tokens a second of all prompts together, over the steps in which all of them decode."""
    for i, prompt in enumerate(prompts):
        engine.add(f"request {i}", prompt, n_new)
    seconds = []
    while not engine.is_idle:
        began = clock()
        engine.step()
        took, record = clock() - began, engine.records[-1]
        if record.n_prefill_tokens == 0 and record.n_decode_tokens == len(prompts):
            seconds.append(took)
    if not seconds:
        raise ValueError(f"{len(prompts)} prompts never decoded together: give them more tokens")
    return len(prompts) / float(np.median(seconds))


def time_to_first_token(
    engine: ServingEngine, request_id: str, prompt: Sequence[int], clock: Clock = time.perf_counter
) -> tuple[float, int]:
    """Seconds from asking to the first token, with nobody else there, and its cached tokens."""
    request = engine.add(request_id, prompt, 1)
    began = clock()
    while not request.generated:
        engine.step()
    return clock() - began, request.n_cached


def longest_gap(
    engine: ServingEngine,
    talks: Sequence[int],
    reads: Sequence[int],
    clock: Clock = time.perf_counter,
) -> tuple[float, float]:
    """One decodes while another's long prompt comes in. -> (seconds, seconds)

    The longest wait of the one for a token, and the other's wait for its first token.
    """
    talking = engine.add("talks", talks, 40)
    while not talking.generated:
        engine.step()
    engine.step()
    reading = engine.add("reads", reads, 1)
    gaps = []
    while not reading.generated:
        began, n = clock(), len(talking.generated)
        while len(talking.generated) == n:
            engine.step()
        gaps.append(clock() - began)
    return max(gaps), sum(gaps)


@dataclass(frozen=True)
class Arrival:
    """A request of a trace: the step in which it comes, its prompt, and the tokens it wants."""

    step: int
    prompt: list[int]
    n_new: int


def random_trace(
    model: Model, n_requests: int, mean_gap: float, mean_new: float, seed: int = 0
) -> list[Arrival]:
    """Requests that come at random (exponential gaps, in steps), of exponential lengths.

    Half of the prompts begin with the same 32 tokens. Longest answer: eight times the mean.
    """
    rng = np.random.default_rng(seed)
    steps = np.floor(np.cumsum(rng.exponential(mean_gap, n_requests))).astype(int)
    lengths = np.clip(np.ceil(rng.exponential(mean_new, n_requests)), 1, 8 * mean_new).astype(int)
    shared = rng.integers(1, model.config.vocab_size, 32).tolist()
    return [
        Arrival(
            int(step),
            (shared if rng.integers(2) else [])
            + rng.integers(1, model.config.vocab_size, int(rng.integers(4, 40))).tolist(),
            int(n_new),
        )
        for step, n_new in zip(steps, lengths, strict=True)
    ]


def run_trace(engine: ServingEngine, trace: Sequence[Arrival]) -> list[StepRecord]:
    """Serve a trace; what each step did. A step in which nobody is there has a record of zeros."""
    records: list[StepRecord] = []
    left = list(enumerate(trace))
    while left or not engine.is_idle:
        for i, arrival in [pair for pair in left if pair[1].step <= len(records)]:
            engine.add(f"request {i}", arrival.prompt, arrival.n_new)
        left = [pair for pair in left if pair[1].step > len(records)]
        idle, n_before = engine.is_idle, len(engine.records)
        engine.step()
        new = engine.records[n_before:]
        records += new or [StepRecord(0, 0, 0, 0, engine.n_pages - _n_free(engine))]
        if not idle and not new:
            raise ValueError("the scheduler planned nothing although somebody waits or runs")
    return records


def _n_free(engine: ServingEngine) -> int:
    return len(engine.scheduler.allocator.free)


def jobs_of(trace: Sequence[Arrival]) -> list[Job]:
    """The trace as seats are counted: a step for each token of the answer, prefill included."""
    return [Job(arrival.step, arrival.n_new) for arrival in trace]


def seats_busy(jobs: Sequence[Job], starts: Sequence[int]) -> list[int]:
    """For each step, how many jobs get a token in it."""
    n_steps = max(start + job.n_steps for job, start in zip(jobs, starts, strict=True))
    busy = np.zeros(n_steps, dtype=int)
    for job, start in zip(jobs, starts, strict=True):
        busy[start : start + job.n_steps] += 1
    return busy.tolist()


def simulated_gain(
    n_seats: int,
    n_jobs: int,
    seed: int = 0,
    static: Callable = static_starts,
    continuous: Callable = continuous_starts,
) -> float:
    """Steps of static over steps of continuous batching; exponential lengths, all there at once.

    static(jobs, n_seats), continuous(jobs, n_seats, n_pages): when jobs begin. Memory is ample.
    """
    lengths = np.ceil(np.random.default_rng(seed).exponential(50, n_jobs)).astype(int)
    jobs = [Job(0, int(n)) for n in lengths]
    begins = (static(jobs, n_seats), continuous(jobs, n_seats, 1))
    ends = [max(s + j.n_steps for s, j in zip(starts, jobs, strict=True)) for starts in begins]
    return float(ends[0] / ends[1])


def play_steps(
    scheduler: Scheduler, arrivals: Sequence[tuple[int, Request]]
) -> list[list[tuple[str, int, bool]]]:
    """What a scheduler plans, step by step, with no model behind it: every token is 0.

    arrivals: (step, request). -> for each step, (request, tokens, whether it decodes)
    """
    steps: list[list[tuple[str, int, bool]]] = []
    left = list(arrivals)
    while left or scheduler.waiting or scheduler.running:
        for _, request in [pair for pair in left if pair[0] <= len(steps)]:
            scheduler.add(request)
        left = [pair for pair in left if pair[0] > len(steps)]
        work = scheduler.plan()
        steps.append([(w.request.id, w.n_tokens, bool(w.request.generated)) for w in work])
        for item in work:
            finishes, request = item.finishes, item.request
            scheduler.commit(item)
            request.generated += [0] * finishes
            if len(request.generated) == request.max_new_tokens:
                scheduler.finish(request)
        if len(steps) > 500:
            raise ValueError("after 500 steps somebody still waits")
    return steps


def torch_decode_rate(model: Model, n_sequences: int, device: str, n_steps: int = 8) -> float:
    """Tokens a second of n_sequences sequences that decode together, in PyTorch on a device."""
    from inferlab.engines.pytorch.model import TorchModel

    engine = TorchModel.from_model(model, device)
    cache = engine.new_cache(n_steps + 8, n_sequences)
    for row in range(n_sequences):
        engine.prefill([5, 6, 7], cache, row)
    seconds = []
    for _ in range(n_steps):
        began = time.perf_counter()
        engine.decode([5] * n_sequences, cache).cpu()  # .cpu() waits for the device
        seconds.append(time.perf_counter() - began)
    return n_sequences / float(np.median(seconds[1:]))
