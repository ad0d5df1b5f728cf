"""What users feel, as numbers: latencies of a request, percentiles, throughput, goodput.

Times are seconds on one clock. A failed request is infinitely late: it is counted, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class RequestTrace:
    """When things happened to one request, in seconds on one clock.

    arrival_s: the user asked. start_s: the engine began to work on it (None: never).
    token_times_s: when each output token reached the user, in order; empty where none did.
    failed: the answer never became complete (an error, a timeout, a cut connection).
    """

    arrival_s: float
    token_times_s: tuple[float, ...]
    start_s: float | None = None
    failed: bool = False


# ---- one request ---------------------------------------------------------------------------------


def request_latencies(trace: RequestTrace) -> dict:
    """The four latencies of one request, in seconds.

    With n output tokens at times t_1 … t_n:
    "ttft_s": t_1 - arrival_s, time to first token: waiting in the queue counts.
    "itl_s": the list of the n - 1 gaps t_2 - t_1, t_3 - t_2, …: inter-token latencies.
    "tpot_s": (t_n - t_1) / (n - 1), time per output token: one number, the mean gap. With n = 1
    there is no gap and nothing to wait for: 0.0.
    "e2e_s": t_n - arrival_s, end to end.

    Example: arrival_s 10.0, tokens at 10.5, 10.6, 10.9 -> ttft_s 0.5, itl_s [0.1, 0.3],
    tpot_s 0.2, e2e_s 0.9.
    Raises ValueError for a trace without tokens; a failed one that has some is timed like others.
    Source: vLLM, vllm/benchmarks/serve.py.
    """
    times = trace.token_times_s
    if len(times) == 0:
        raise ValueError("a request without output tokens has no latencies")
    first, last = times[0], times[-1]
    return {
        "ttft_s": first - trace.arrival_s,
        "itl_s": [later - earlier for earlier, later in pairwise(times)],
        "tpot_s": (last - first) / (len(times) - 1) if len(times) > 1 else 0.0,
        "e2e_s": last - trace.arrival_s,
    }


# ---- many requests -------------------------------------------------------------------------------


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile by nearest rank: the smallest value such that at least p % of all
    values are at or below it.

    Of n values in ascending order it is number ceil(p n / 100), counted from 1. So it is always
    one of the values. They come in any order and may be infinite (a failed request). p: above 0,
    at most 100.

    Example: of 40, 10, 30, 20 the 50th is 20 (number 2), the 51st is 30 (number 3).
    Raises ValueError for no values, and for p outside (0, 100].
    Source: Hyndman & Fan 1996, "Sample Quantiles in Statistical Packages", definition 1.
    """
    if len(values) == 0 or not 0 < p <= 100:
        raise ValueError(f"needs values and 0 < p <= 100; given {len(values)} values, p={p}")
    rank = math.ceil(p * len(values) / 100)
    return sorted(values)[rank - 1]


def histogram_percentile(
    bounds_s: Sequence[float], counts: Sequence[Sequence[int]], p: float
) -> float:
    """The p-th percentile of a whole fleet, from each server's histogram. -> seconds

    bounds_s: the buckets' upper bounds, rising; the last is inf. Bucket i holds the requests above
    bounds_s[i - 1] (bucket 0: above 0) and up to bounds_s[i].
    counts: one row a server, one number a bucket (of that bucket alone, not cumulative).
    p: above 0, at most 100.

    Add up the servers' counts. Of n requests in all, the one looked for has rank p n / 100, not
    rounded. It lies in the first bucket where the running total reaches the rank; inside a bucket
    the requests are taken as evenly spread: lower + (upper - lower) * (rank - total before) /
    (number in it). If that is the bucket that ends at inf: its lower bound.

    Example: bounds_s [1, 2, inf], counts [[4, 2, 0], [2, 2, 0]], p = 80: 6, 4 and 0 in all, rank 8,
    in the second bucket, 2 of its 4 in: 1 + 1 * 2 / 4 = 1.5.
    Raises ValueError where no request was counted.
    Source: Prometheus, histogram_quantile.
    """
    fleet = [sum(bucket) for bucket in zip(*counts, strict=True)]
    if sum(fleet) == 0:
        raise ValueError("no request was counted: there is no percentile")
    rank, before, lower = p * sum(fleet) / 100, 0, 0.0
    for upper, number in zip(bounds_s, fleet, strict=True):
        if number and before + number >= rank:
            break
        before, lower = before + number, upper
    return lower if math.isinf(upper) else lower + (upper - lower) * (rank - before) / number


def throughput(traces: Iterable[RequestTrace], start_s: float, end_s: float) -> dict[str, float]:
    """What a server delivered between start_s (included) and end_s (excluded), per second.

    "requests_per_s": answers that became complete in this window: not failed, last token inside.
    "tokens_per_s": output tokens that arrived in it, of whatever request.

    Example: window 0 to 2; tokens at 0.5, 1.5, 2.5 of one request, at 1.0 of another: 1 answer
    complete, 3 tokens -> 0.5 requests/s, 1.5 tokens/s.
    Raises ValueError unless end_s is above start_s.
    """
    if end_s <= start_s:
        raise ValueError(f"the window must have a length: start_s={start_s}, end_s={end_s}")
    n_requests = n_tokens = 0
    for trace in traces:
        inside = [start_s <= time < end_s for time in trace.token_times_s]
        n_tokens += sum(inside)
        n_requests += not trace.failed and inside[-1]
    seconds = end_s - start_s
    return {"requests_per_s": n_requests / seconds, "tokens_per_s": n_tokens / seconds}


def goodput(
    traces: Iterable[RequestTrace], limits_s: Mapping[str, float], duration_s: float
) -> float:
    """Requests per second that met every limit, over a run of duration_s.

    limits_s: the largest latency allowed, for one or more of "ttft_s", "tpot_s" and "e2e_s" (as
    request_latencies names them); what is not named has no limit. At the limit is within it. A
    failed request meets none.

    Example: in 1 s, three requests with (ttft_s, tpot_s) of (0.4, 0.03), (0.6, 0.02), (0.3, 0.06)
    and limits 0.5 and 0.05: only the first meets both -> 1.0.
    Raises ValueError for a limit by another name, whatever the traces.
    Source: Zhong et al. 2024, "DistServe" (arXiv 2401.09670); the count is vLLM's.
    """
    unknown = set(limits_s) - {"ttft_s", "tpot_s", "e2e_s"}
    if unknown:
        raise ValueError(f"no limit is called {sorted(unknown)}; known: ttft_s, tpot_s, e2e_s")
    n_good = 0
    for trace in traces:
        if not trace.failed:
            seen = request_latencies(trace)
            n_good += all(seen[name] <= limit for name, limit in limits_s.items())
    return n_good / duration_s


def tpot_by_tool(traces: Iterable[RequestTrace]) -> dict[str, float]:
    """What common tools print for the same requests, in seconds. Failed ones are left out by all.

    "vllm_tpot_s": the mean over requests of (last - first token time) / (n - 1); requests of
    one token are left out.
    "vllm_itl_s": the mean over all gaps of all requests: a long answer counts for more.
    "guidellm_tpot_s": the mean over all requests of (last token time - arrival_s) / n.

    Example: A arrives at 0, tokens at 1, 2, 3, 4; B arrives at 0, tokens at 2 and 6. Gaps 1, 1, 1
    and 4. vllm_tpot_s (1 + 4) / 2 = 2.5; vllm_itl_s 7 / 4 = 1.75; guidellm_tpot_s
    (4 / 4 + 6 / 2) / 2 = 2.0.
    Raises ValueError where nobody has a gap.
    """
    complete = [trace for trace in traces if not trace.failed]
    seen = [request_latencies(trace) for trace in complete]
    gaps = [gap for one in seen for gap in one["itl_s"]]
    if not gaps:
        raise ValueError("no request has two tokens: there is no time per output token")
    shares = [
        one["e2e_s"] / len(trace.token_times_s) for one, trace in zip(seen, complete, strict=True)
    ]
    return {
        "vllm_tpot_s": float(np.mean([one["tpot_s"] for one in seen if one["itl_s"]])),
        "vllm_itl_s": float(np.mean(gaps)),
        "guidellm_tpot_s": float(np.mean(shares)),
    }


# ---- from a log to a report ----------------------------------------------------------------------


def traces_from_log(
    events: Iterable[tuple[float, str, str]],
) -> tuple[dict[str, RequestTrace], list[str]]:
    """Put a raw log together. -> (traces by request id, ids without an arrival, sorted)

    events: (time_s, request_id, kind), in any order: several processes wrote them. kind is
    "arrival", "start", "token", "end" (the answer is complete) or "error".
    A request with an "error", without an "end" or without any token has failed; tokens that came
    are kept. A request without an "arrival" cannot be timed: it is in the second result, not in
    the first. Without a "start", start_s is None.

    Example: (2.0, "a", "token"), (1.0, "a", "arrival"), (1.5, "a", "token"), (0.9, "b", "token")
    -> {"a": RequestTrace(1.0, (1.5, 2.0), None, failed=True)}, ["b"].
    """
    by_id: dict[str, dict[str, list[float]]] = {}
    for time_s, request_id, kind in sorted(events):
        by_id.setdefault(request_id, {}).setdefault(kind, []).append(time_s)
    traces, unknown = {}, []
    for request_id, seen in sorted(by_id.items()):
        if "arrival" not in seen:
            unknown.append(request_id)
            continue
        tokens, start = tuple(seen.get("token", ())), seen.get("start", [None])[0]
        failed = "error" in seen or "end" not in seen or not tokens
        traces[request_id] = RequestTrace(seen["arrival"][0], tokens, start, failed)
    return traces, unknown


def latency_report(
    traces: Sequence[RequestTrace], percentiles: Sequence[float] = (50, 95, 99)
) -> dict:
    """One report of a load test: how many, how many failed, and percentiles of four latencies.

    -> {"n_requests": …, "n_failed": …, "ttft_s": {50: …, 95: …, 99: …}, "itl_s": {…},
    "tpot_s": {…}, "e2e_s": {…}}; the inner keys are the numbers in percentiles.
    A failed request counts in ttft_s, tpot_s and e2e_s, with math.inf, whatever tokens it had;
    its gaps are left out. itl_s is taken over all gaps of all complete requests together.
    Complete requests of one token have no gap and are left out of tpot_s. A latency of which
    there is no value at all gets an empty dict.

    Example: three complete requests with ttft_s 0.1, 0.2, 0.3 and one that failed: n_requests 4,
    n_failed 1, ttft_s {50: 0.2, 95: inf, 99: inf}.
    """
    values: dict[str, list[float]] = {"ttft_s": [], "itl_s": [], "tpot_s": [], "e2e_s": []}
    for trace in traces:
        never: dict = {"ttft_s": math.inf, "itl_s": [], "tpot_s": math.inf, "e2e_s": math.inf}
        seen = never if trace.failed else request_latencies(trace)
        values["itl_s"] += seen["itl_s"]
        for name in ("ttft_s", "e2e_s"):
            values[name].append(seen[name])
        if trace.failed or seen["itl_s"]:
            values["tpot_s"].append(seen["tpot_s"])
    report: dict = {"n_requests": len(traces), "n_failed": sum(t.failed for t in traces)}
    for name, found in values.items():
        report[name] = {p: percentile(found, p) for p in percentiles if found}
    return report
