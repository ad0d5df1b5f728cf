"""Lesson 11: the knowledge check."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from grader.checks.latency_metrics.lesson import LESSON
from inferlab.prefill_decode import end_to_end_s
from inferlab.workload import mm1_percentile, replicas_needed
from labkit.interview.questions import Question

Params = dict[str, Any]


def _draw_answer(rng: np.random.Generator) -> Params:
    return {
        "ttft_ms": int(rng.integers(15, 80)) * 10,
        "tpot_ms": int(rng.integers(12, 45)),
        "n": int(rng.integers(60, 180)),
    }


def _e2e(p: Params) -> float:
    return end_to_end_s(p["ttft_ms"] / 1e3, p["tpot_ms"] / 1e3, p["n"])


def _draw_clock(rng: np.random.Generator) -> Params:
    """Arrival, first and last token; few tokens, so that n and n - 1 differ."""
    first = int(rng.integers(300, 900))
    n = int(rng.integers(5, 12))
    return {"first_ms": first, "n": n, "last_ms": first + (n - 1) * int(rng.integers(20, 60))}


def _draw_passes(rng: np.random.Generator) -> Params:
    return {"n": int(rng.integers(80, 160)), "per_pass": float(rng.choice([2.5, 3.2, 3.36]))}


def _draw_fleet(rng: np.random.Generator) -> Params:
    while True:
        p = {
            "rate": int(rng.integers(11, 40)),
            "e2e": int(rng.integers(6, 20)),
            "slots": int(rng.choice([24, 32, 48])),
        }
        servers = p["rate"] * p["e2e"] / p["slots"]
        if 0.1 < servers % 1 < 0.45 and servers > 2 and p["rate"] != p["e2e"]:
            return p


def _servers(p: Params) -> float:
    return float(replicas_needed(p["rate"], p["e2e"], p["slots"]))


def _draw_queue(rng: np.random.Generator) -> Params:
    served = int(rng.integers(8, 25))
    return {"served": served, "arriving": served - int(rng.integers(2, 5))}


def _draw_promise(rng: np.random.Generator) -> Params:
    return {"served": int(rng.integers(8, 20)), "limit_s": float(rng.choice([0.8, 1.0, 1.5]))}


def _draw_good(rng: np.random.Generator) -> Params:
    """How many of n requests in a run keep TTFT, keep TPOT, and keep both."""
    n, duration = int(rng.integers(300, 600)), int(rng.choice([20, 40, 60]))
    return {
        "n": n,
        "duration": duration,
        "ttft": n - int(rng.integers(40, 70)),
        "tpot": n - int(rng.integers(71, 100)),
        "neither": int(rng.integers(10, 30)),
    }


def _both(p: Params) -> int:
    """By inclusion and exclusion: all who keep one or the other are n - neither."""
    return p["ttft"] + p["tpot"] - (p["n"] - p["neither"])


NUMERIC = (
    Question(
        id="lm_q_e2e",
        lesson=LESSON,
        points=1,
        draw=_draw_answer,
        text=lambda p: (
            f"TTFT {p['ttft_ms']} ms, TPOT {p['tpot_ms']} ms, {p['n']} output tokens. How long "
            "does the whole answer take? Give three digits or more."
        ),
        answer=_e2e,
        unit="s",
        tolerance=0.001,
        slips={
            "n · TPOT: the first token comes with TTFT, n − 1 follow": lambda p: (
                _e2e(p) + p["tpot_ms"] / 1e3
            ),
            "TTFT is left out": lambda p: _e2e(p) - p["ttft_ms"] / 1e3,
        },
        why=lambda p: (
            f"{p['ttft_ms'] / 1e3:g} s + {p['n'] - 1} · {p['tpot_ms'] / 1e3:g} s = {_e2e(p):.3f} s."
        ),
    ),
    Question(
        id="lm_q_tpot",
        lesson=LESSON,
        points=1,
        draw=_draw_clock,
        text=lambda p: (
            f"A request arrives at 0 ms. Its {p['n']} tokens come from {p['first_ms']} ms (the "
            f"first) to {p['last_ms']} ms (the last). What is its TPOT?"
        ),
        answer=lambda p: (p["last_ms"] - p["first_ms"]) / (p["n"] - 1) / 1e3,
        unit="ms",
        slips={
            "divided by n: n tokens have n − 1 gaps": lambda p: (
                (p["last_ms"] - p["first_ms"]) / p["n"] / 1e3
            ),
            "TPOT includes the wait for the first token: start at the first token": lambda p: (
                p["last_ms"] / (p["n"] - 1) / 1e3
            ),
            "e2e / n: some tools print that as TPOT, it mixes TTFT in": lambda p: (
                p["last_ms"] / p["n"] / 1e3
            ),
        },
        why=lambda p: f"({p['last_ms']} − {p['first_ms']}) ms / ({p['n']} − 1).",
    ),
    Question(
        id="lm_q_rate",
        lesson=LESSON,
        points=1,
        draw=_draw_answer,
        text=lambda p: (
            f"TTFT {p['ttft_ms']} ms, TPOT {p['tpot_ms']} ms, {p['n']} output tokens. How many "
            "tokens a second did this request get, over its whole time from arrival to last token?"
        ),
        answer=lambda p: p["n"] / _e2e(p),
        unit="tok/s",
        tolerance=0.002,
        slips={
            "1 / TPOT is the rate of the stream; the wait for it is left out": lambda p: (
                1e3 / p["tpot_ms"]
            ),
            "the time has n − 1 steps, but there are n tokens": lambda p: (p["n"] - 1) / _e2e(p),
        },
        why=lambda p: (
            f"{p['n']} tokens / {_e2e(p):.3f} s = {p['n'] / _e2e(p):.2f} tok/s; while it streams "
            f"the reader sees {1e3 / p['tpot_ms']:.1f} tok/s."
        ),
    ),
    Question(
        id="lm_q_passes",
        lesson=LESSON,
        points=1,
        draw=_draw_passes,
        text=lambda p: (
            f"An answer has {p['n']} tokens; the prefill gives the first. Speculation makes each "
            f"decode pass give {p['per_pass']:g} tokens on average. About how many decode passes "
            "is that? Give one decimal."
        ),
        answer=lambda p: (p["n"] - 1) / p["per_pass"],
        tolerance=0.002,
        slips={
            "n in place of n − 1: the prefill already gives the first token": lambda p: (
                p["n"] / p["per_pass"]
            ),
            "one pass a token: each gives several here": lambda p: p["n"] - 1.0,
        },
        why=lambda p: (
            f"({p['n']} − 1) / {p['per_pass']:g}. A gap between two chunks then covers several "
            "tokens: ITL measured at chunks is no longer the time of a token."
        ),
    ),
    Question(
        id="lm_q_servers",
        lesson=LESSON,
        points=1,
        draw=_draw_fleet,
        text=lambda p: (
            f"{p['rate']} requests arrive a second and stay {p['e2e']} s on average. A server runs "
            f"{p['slots']} at once. How many servers hold what is in flight?"
        ),
        answer=_servers,
        tolerance=1e-6,
        slips={
            "rounded down: the rest has no place": lambda p: _servers(p) - 1,
            "Little's law multiplies rate and time": lambda p: float(
                math.ceil(p["rate"] / p["e2e"] / p["slots"])
            ),
            "that is how many are in flight": lambda p: float(p["rate"] * p["e2e"]),
        },
        why=lambda p: (
            f"In flight: {p['rate']} · {p['e2e']} = {p['rate'] * p['e2e']}; divided by "
            f"{p['slots']} and rounded up: {_servers(p):.0f}. On average: peaks need more."
        ),
    ),
    Question(
        id="lm_q_mm1",
        lesson=LESSON,
        points=1,
        draw=_draw_queue,
        text=lambda p: (
            f"M/M/1: {p['arriving']} requests arrive a second, {p['served']} could be served. "
            "Within which time are 95 % of them done, waiting included? (ln 20 = 2.996)"
        ),
        answer=lambda p: mm1_percentile(p["arriving"], p["served"], 95),
        unit="s",
        slips={
            "that is the mean; the 95th percentile is 3 times as long": lambda p: (
                1 / (p["served"] - p["arriving"])
            ),
            "that is the service alone: the queue is forgotten": lambda p: (
                math.log(20) / p["served"]
            ),
            "1 / served, whatever the load": lambda p: 1 / p["served"],
        },
        why=lambda p: f"−ln 0.05 / ({p['served']} − {p['arriving']}) per second.",
    ),
    Question(
        id="lm_q_promise",
        lesson=LESSON,
        points=1,
        draw=_draw_promise,
        text=lambda p: (
            f"M/M/1 with {p['served']} served a second. You promise that 95 % of the requests are "
            f"done within {p['limit_s']:g} s. Up to how many arrivals a second can you keep it? "
            "(ln 20 = 2.996)"
        ),
        unit="req/s",
        answer=lambda p: p["served"] - math.log(20) / p["limit_s"],
        slips={
            "that keeps the mean within the limit, not the 95th percentile": lambda p: (
                p["served"] - 1 / p["limit_s"]
            ),
            "below capacity is not enough: the queue needs room": lambda p: float(p["served"]),
        },
        why=lambda p: (
            f"2.996 / (served − λ) ≤ {p['limit_s']:g} s gives λ ≤ {p['served']} − "
            f"2.996 / {p['limit_s']:g} = {p['served'] - math.log(20) / p['limit_s']:.2f}."
        ),
    ),
    Question(
        id="lm_q_goodput",
        lesson=LESSON,
        points=1,
        draw=_draw_good,
        text=lambda p: (
            f"{p['n']} requests in {p['duration']} s. {p['ttft']} kept the TTFT limit, {p['tpot']} "
            f"kept the TPOT limit, {p['neither']} kept neither. What is the goodput, in requests "
            "a second?"
        ),
        unit="req/s",
        answer=lambda p: _both(p) / p["duration"],
        slips={
            "all who kept any limit: a good request keeps all at once": lambda p: (
                (p["n"] - p["neither"]) / p["duration"]
            ),
            "TTFT alone": lambda p: p["ttft"] / p["duration"],
            "TPOT alone": lambda p: p["tpot"] / p["duration"],
            "that is the throughput": lambda p: p["n"] / p["duration"],
            "a count: goodput is a rate": lambda p: float(_both(p)),
        },
        why=lambda p: (
            f"{p['n'] - p['neither']} kept at least one, so {p['ttft']} + {p['tpot']} − "
            f"{p['n'] - p['neither']} = {_both(p)} kept both; in {p['duration']} s."
        ),
    ),
    Question(
        id="lm_q_scale",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "factor": int(rng.choice([2, 3, 4])),
            "busy": int(rng.choice([60, 70, 80])),
        },
        text=lambda p: (
            f"An M/M/1 server is busy {p['busy']} % of the time. Another is {p['factor']} times as "
            f"fast, and with {p['factor']} times the users it is busy {p['busy']} % as well. How "
            "many times as long is a request's mean time there?"
        ),
        answer=lambda p: 1 / p["factor"],
        unit="x",
        slips={
            "the same utilisation is not the same latency: served − arriving decides": lambda p: (
                1.0
            ),
            "the wrong way round: it is shorter": lambda p: float(p["factor"]),
        },
        why=lambda p: (
            f"Both rates are {p['factor']} times as high, so is their difference, and the time is "
            "1 over it. Pooling servers pays, at the same utilisation."
        ),
    ),
)

CHOICES = (
    Question(
        id="lm_q_stall",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Somebody else's long prompt holds up all running answers for 0.4 s. Each of "
            "them has 500 tokens. Where does that show?"
        ),
        choices=(
            "in the tail of ITL: one gap of each",
            "in the mean TPOT: it doubles for all",
            "in the TTFT of those who are running",
            "in the throughput: it falls to a half",
        ),
        notes={
            "in the mean TPOT: it doubles for all": "0.4 s over 499 gaps is below 1 ms a token: "
            "TPOT averages a stall away",
        },
        why=lambda p: (
            "TPOT spreads 0.4 s over 499 gaps. In the list of gaps it stands out as it did for the "
            "reader."
        ),
    ),
    Question(
        id="lm_q_shards",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Ten replicas report their p99 each minute. How do you get the p99 of all requests?"
        ),
        choices=(
            "add up their histograms, then take p99",
            "take the mean of the ten p99 values",
            "weight each p99 by its request count",
            "take the largest of the ten p99 values",
        ),
        notes={
            "take the largest of the ten p99 values": "that is an upper bound, not the p99: a "
            "replica with few requests can set it",
        },
        why=lambda p: "Counts can be added; percentiles cannot, with weights or without.",
    ),
    Question(
        id="lm_q_source",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "What did the paper that made *goodput* a serving metric (DistServe) call so?"
        ),
        choices=(
            "the highest rate at which enough requests meet the limits, a GPU",
            "the tokens a second of all requests that were not preempted, a GPU",
            "the share of requests whose mean latency is below the median, a GPU",
            "the batch size at which the throughput of a server is largest, a GPU",
        ),
        why=lambda p: (
            "DistServe asks for the largest rate with an attainment of, say, 90 %. vLLM's "
            "benchmark counts good requests a second at one rate; Sarathi-Serve reports capacity."
        ),
    ),
    Question(
        id="lm_q_closed",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A test keeps 32 requests in flight, always. The server gets slower. What does this "
            "closed loop hide?"
        ),
        choices=(
            "the wait of users who would have come meanwhile",
            "the time of the prefill, since it is now cached",
            "the gaps between tokens, since 32 share a pass",
            "the number of tokens that each answer contains",
        ),
        why=lambda p: (
            "A slower server is asked less often by this client, and the queue that real users "
            "would form never exists: coordinated omission."
        ),
    ),
    Question(
        id="lm_q_batch",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A server's largest batch is raised from 16 to 64 and its throughput doubles. What "
            "does the larger batch do to the TPOT of a request, at any load?"
        ),
        choices=(
            "it can only stay as it is or rise",
            "it halves, as the throughput doubles",
            "it falls, since the queue is shorter",
            "it falls to a quarter, as 64 / 16 = 4",
        ),
        notes={
            "it falls, since the queue is shorter": "a shorter queue helps TTFT; a pass with more "
            "sequences in it is not faster",
        },
        why=lambda p: (
            "A pass over more sequences reads more cache and computes more: it is never shorter. "
            "What gets shorter is the wait before it, in TTFT."
        ),
    ),
)

QUESTIONS = NUMERIC + CHOICES
