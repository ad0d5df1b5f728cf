"""Lesson 11: what to predict before any code."""

from __future__ import annotations

import numpy as np

from inferlab.latency_metrics import RequestTrace, percentile, tpot_by_tool
from inferlab.workload import fifo_times_s, mm1_percentile
from labkit.predictions import Prediction

FREEZE_S, SERVICE_S, GAP_S, N_USERS = 10.0, 0.001, 0.01, 10_000


def stall_traces() -> list[RequestTrace]:
    """An answer of 100 tokens with gaps of 10 ms, and one of 2 tokens, 200 ms apart."""
    long = 0.3 + 0.01 * np.arange(100)
    return [RequestTrace(0.0, tuple(map(float, long))), RequestTrace(0.0, (0.3, 0.5))]


def frozen_server_s() -> np.ndarray:
    """What each of 10,000 users waits who come every 10 ms, while one service takes 10 s."""
    services = np.full(N_USERS, SERVICE_S)
    services[N_USERS // 2] += FREEZE_S
    return fifo_times_s(GAP_S * np.arange(N_USERS), services)


PREDICTIONS = (
    Prediction(
        id="lm_tools",
        question="Two answers: one of 100 tokens with a token every 10 ms, one of 2 tokens with "
        "200 ms between them. The mean time per output token over the two *requests* is "
        "(10 + 200) / 2 = 105 ms. What is the mean over all 100 *gaps*?",
        unit="ms",
        answer=lambda: tpot_by_tool(stall_traces())["vllm_itl_s"],
        because="99 gaps of 10 ms and one of 200 ms: 1,190 ms / 100 = 11.9 ms. Both are printed as "
        "the time per token, by different tools or on different lines of one tool.",
    ),
    Prediction(
        id="lm_load",
        question="A server works through requests one after the other. It is busy 80 % of the "
        "time, and then, with more users, 90 %. How many times as long does a request take on "
        "average (arrivals and service times are random, the server is the same)?",
        unit="x",
        answer=lambda: mm1_percentile(9, 10, 95) / mm1_percentile(8, 10, 95),
        because="The time in an M/M/1 queue is 1 / (served - arriving): what is left over decides. "
        "From 2 to 1 left of 10 it doubles, the percentiles too; at 95 % it doubles once more.",
    ),
    Prediction(
        id="lm_freeze",
        question="A server answers in 1 ms. Users come every 10 ms, 10,000 of them; once, the "
        "server freezes for 10 s. A test client that sends the next request only after the last "
        "answer sees one slow answer and reports a 99th percentile of 1 ms. What is the 99th "
        "percentile of what the users waited?",
        unit="s",
        answer=lambda: percentile(frozen_server_s().tolist(), 99),
        because="Users do not stop coming. About a thousand came during the freeze and waited up "
        "to 10 s, so the slowest 1 % of all waited 9 s or more. The client that stood still with "
        "the server measured one of them.",
    ),
    Prediction(
        id="lm_overload",
        question="A server can finish 10 requests a second, and 12 a second keep coming. The test "
        "lasts one minute, then two. What happens to the 95th percentile of the time to first "
        "token?",
        choices=(
            "it stays: the load is the same",
            "it grows by about a fifth",
            "it about doubles",
        ),
        answer=lambda: "it about doubles",
        because="The queue grows by 2 requests a second as long as the test lasts, and whoever "
        "comes last waits for all of it. Above capacity the number says how long you measured, "
        "and nothing of the server.",
    ),
)
