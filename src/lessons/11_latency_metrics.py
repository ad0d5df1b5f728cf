# %% [markdown]
# # 11 · Latency metrics: what users feel
#
# "The model is slow" can mean five different things, and each has another cure. This lesson turns
# the complaint into numbers that two people can agree on: four latencies of a request, percentiles
# that do not lie, a throughput that counts only what was of use. Then it puts a load on a real
# engine and finds the rate at which it breaks.
#
# **You will be able to**
#
# - compute TTFT, ITL, TPOT and end-to-end latency from a raw log in which lines are missing;
# - say why respectable tools print different times per token for the same run;
# - take percentiles over servers and failures without cheating;
# - generate load as users do, and predict when a queue explodes;
# - find the highest rate at which a server keeps its promise, or show that there is none.
#
# **Time** about 3 hours: 2 h for thirteen exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** Python and NumPy. Prefill and decode (lesson 03) and continuous batching (lesson 10)
# help; what is used here is said again in one sentence. An answer begins with a **prefill**: one pass
# of the model over the whole prompt, which gives the first token. Then **decode** passes give one
# token each, and a serving engine lets many requests share a pass.
#
# | short | long | one number for |
# |---|---|---|
# | TTFT | time to first token | each request |
# | ITL | inter-token latency | each gap between two tokens |
# | TPOT | time per output token | each request: its mean gap |
# | e2e | end-to-end latency | each request |
# | SLO | service-level objective | the promise: a limit, and how often it is kept |

# %%
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.latency_metrics import RequestTrace
from inferlab.prefill_decode import end_to_end_s
from inferlab.serve.engine import ServingEngine
from inferlab.workload import as_closed_loop, draw_jobs, fifo_times_s, serve_open_loop
from labkit.figures import latency_metrics as figures
from labkit.measure.device import describe, grading, not_measured
from labkit.measure.models import trained_model
from labkit.units import format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# One request, on a time line. The user presses enter at 0. The engine is busy, so the request waits.
# Then its prompt is read, the first token comes, and the others follow, except that somebody else's
# long prompt holds everything up after token 5.

# %%
figures.token_timeline(
    RequestTrace(0.0, (0.42, 0.48, 0.53, 0.6, 0.65, 0.95, 1.0, 1.06), start_s=0.18)
)

# %% [markdown]
# Three people look at this request. The first says it took 1,060 ms. The second says that it
# streams at 91 ms a token, which is fine. The third was reading along and saw it freeze for 300 ms.
# They are all right, and they will never agree until they name what they measured.
#
# The stakes grow with the number of users. A larger batch gives more tokens a second for the same
# money, and each user then waits longer for theirs. Where to stop on that line is decided by what
# was promised. A promise one can size a machine for has four numbers: *p95 TTFT below X ms, p95
# TPOT below Y ms, at Z requests a second, with answers at least as good as Q.* Without them "make it
# fast" cannot be wrong, and cannot be done.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. The first one you lodge is the one you will be
# confronted with.

# %%
predict("lm_tools")

# %%
predict("lm_load")

# %%
predict("lm_freeze")

# %%
predict("lm_overload")

# %% [markdown]
# ## 3. Build
#
# ### One request
#
# A `RequestTrace` holds when things happened: `arrival_s`, `start_s` (the engine began to work on
# it), `token_times_s`, and whether it `failed`. All times are seconds on one clock.
#
# Two decisions hide in the definitions. **The clock starts when the user asks**, not when the engine
# gets round to it: TTFT is queue *and* prefill, and on a busy server the queue is the larger part.
# And **n tokens have n − 1 gaps**. With one token there is none; TPOT is then 0 by agreement, so
# that such an answer breaks no limit, but it may not enter a mean.
#
# *Worked example.* Arrival at 10.0, tokens at 10.5, 10.6 and 10.9: TTFT 0.5, gaps 0.1 and 0.3,
# TPOT 0.4 / 2 = 0.2, end to end 0.9 s.

# %% exercise="request_latencies"
from inferlab.latency_metrics import request_latencies

# %% check="request_latencies"
check("request_latencies")

# %% [markdown]
# **TPOT is not ITL**, though many texts use the words for one another. TPOT is one number for a
# request. ITL is the list behind it. Four tokens 25 ms apart, the first after 200 ms, have a TPOT of
# 25 ms; dividing by 4 gives 18.75, and counting from the arrival gives 68.75. A freeze of 0.4 s in an answer
# of 500 tokens moves its TPOT by 0.8 ms: only the gaps show it. And where one pass gives several
# tokens at once (speculation, lesson 08, or a server that sends chunks), a gap covers several tokens
# and is no longer the time of one.
#
# Read backwards, the definition is the formula that every sizing begins with:
#
# $$ \text{e2e} = \text{TTFT} + (n - 1) \cdot \text{TPOT}. $$
#
# An answer of 500 tokens takes one prefill and **499** decode passes, not 500.
#
# *Worked example.* TTFT 0.2 s, TPOT 25 ms, 300 tokens: 0.2 + 299 · 0.025 = 7.675 s. While it streams,
# the reader sees 1 / 0.025 = 40 tokens a second; over the whole request it is 300 / 7.675 = 39.09.

# You wrote this formula in lesson 03; here it is again, from the engine.

# %%
end_s = end_to_end_s(ttft_s=0.2, tpot_s=0.025, n_output=300)
print(f"{format_seconds(end_s)}: {300 / end_s:.2f} tokens a second over the whole request")

# %% [markdown]
# ### One name, two numbers
#
# Over many requests there are two ways to average. *First within each request, then over the
# requests*: every user has one vote. *Over all gaps at once*: a long answer has more votes. Both
# are useful and both get printed. `vllm bench serve` prints the first as TPOT and the second as ITL.
# guidellm divides the whole time, first token included, by all n tokens and calls that time per
# output token; what vLLM calls TPOT it calls inter-token latency, and so does aiperf.
#
# *Worked example.* A arrives at 0 with tokens at 1, 2, 3, 4; B arrives at 0 with tokens at 2 and 6.
# Mean TPOT (1 + 4) / 2 = 2.5; mean gap (1 + 1 + 1 + 4) / 4 = 1.75; whole time by tokens
# (4 / 4 + 6 / 2) / 2 = 2.

# %% exercise="tpot_by_tool"
from inferlab.latency_metrics import tpot_by_tool

# %% check="tpot_by_tool"
check("tpot_by_tool")

# %%
if ready("tpot_by_tool"):
    long = RequestTrace(0.0, tuple(0.3 + 0.01 * i for i in range(100)))
    short = RequestTrace(0.0, (0.3, 0.5))
    for name, seconds in tpot_by_tool([long, short]).items():
        print(f"{name:16s} {format_seconds(seconds)}")
confront("lm_tools")

# %% [markdown]
# Nothing is wrong in any of them. Whoever compares two servers must compare the same line.
#
# ### Percentiles
#
# A mean is nobody's latency. The **p-th percentile** is the value that p % of the requests stay
# within: half the users wait less than p50, one in a hundred waits longer than p99. There are nine
# rules in use for the small print. Two matter:
#
# - *nearest rank*: sort n values and take number ⌈p n / 100⌉. It is always something that happened;
# - *linear*: lay the p-th percentile at place (n − 1) p / 100, counted from 0, and interpolate
#   between the neighbours. It is NumPy's default and what vLLM's benchmark prints.
#
# We use nearest rank, since it can take a failed request as what it is: infinitely late. With many
# values the two agree. With few, no rule helps: p99 of 50 requests is their maximum, and n has to be
# far above 100 before it means more.
#
# *Worked example.* 98 requests of 1 s and two of 50 s: p99 is number 99, which is 50 s. The mean, 1.98 s,
# describes nobody. With 99 and one, p99 is 1 s, and the maximum is still 50.

# %% exercise="percentile"
from inferlab.latency_metrics import percentile

# %% check="percentile"
check("percentile")

# %%
if ready("percentile"):
    ttfts = 0.05 + np.random.default_rng(0).lognormal(-2.2, 0.8, 2000).clip(0, 1.4)
    figures.tail(ttfts, percentile)
    print("the same in the two rules, by the number of requests")
    for n in (10, 50, 2000):
        few = ttfts[:n].tolist()
        both = percentile(few, 95), float(np.percentile(few, 95))
        print(f"{n:5d} requests: p95 nearest rank {both[0]:.3f} s, linear {both[1]:.3f} s")

# %% [markdown]
# ### A fleet has one p99
#
# Server A answered 900 requests, all in 1 s. Server B is sick: 100 requests, all in 9 s. Their p99s are 1
# and 9; the mean of the two is 5. But of 1,000 requests a tenth took 9 s: the p99 is 9 s. Weighting
# by requests gives 1.8, which is worse. **Percentiles cannot be averaged**, over servers or over
# minutes. Keep the values, or keep something that can be added: counts in buckets. That is what a
# Prometheus histogram is. Its price is that inside a bucket nothing is known; one takes the
# requests there as evenly spread.
#
# *Worked example.* Buckets up to 1, 2 and ∞ s; A counted 4, 2, 0 and B 2, 2, 0. Together 6, 4, 0. p80 has rank 8:
# past the first 6, so 2 of the 4 into the second bucket: 1 + (2 − 1) · 2 / 4 = 1.5 s.

# %% exercise="histogram_percentile"
from inferlab.latency_metrics import histogram_percentile

# %% check="histogram_percentile"
check("histogram_percentile")

# %% [markdown]
# ### Throughput, and over which window
#
# Requests a second and tokens a second are counts divided by a time, and the time is where the
# cheating happens. Say which window. Count an answer when it is *complete*, each token when it
# *arrives*. Leave out the warm-up and the end, when the last few requests run in an empty machine.
#
# *Worked example.* A window from 0 to 2 s. One request has tokens at 0.5, 1.5, 2.5; another has its only
# one at 1.0. One answer is complete inside and 3 tokens arrive: 0.5 requests/s and 1.5 tokens/s.

# %% exercise="throughput"
from inferlab.latency_metrics import throughput

# %% check="throughput"
check("throughput")

# %% [markdown]
# ### Goodput
#
# A server that delivers 10,000 tokens a second, all of them too late, has delivered nothing. **Goodput**
# counts the requests that kept *every* limit at once. Each request is judged alone; mean latencies
# prove nothing.
#
# Two readings are in use. DistServe, which made the term known in serving, asks for the highest
# request rate (a GPU) at which a given share, say 90 %, keeps the limits. vLLM's benchmark counts
# good requests a second at the rate it was run with. (Sarathi-Serve reports *capacity*, the highest
# rate within a latency limit.) You write the count now and the highest rate at the end.
#
# *Worked example.* Limits: TTFT 0.5 s, TPOT 0.05 s. Three requests with (0.4, 0.03), (0.6, 0.02) and
# (0.3, 0.06): the first keeps both, the others break one each. In 1 s: goodput 1, not 3.

# %% exercise="goodput"
from inferlab.latency_metrics import goodput

# %% check="goodput"
check("goodput")

# %% [markdown]
# In the plane of TTFT and TPOT the promise is a rectangle. 120 requests of an imagined server, judged
# by your functions:

# %%
if ready("request_latencies", "goodput"):
    rng = np.random.default_rng(3)
    traces = []
    firsts, gaps = rng.lognormal(-1.3, 0.5, 120), rng.lognormal(-3.3, 0.4, 120)
    for first, gap in zip(firsts, gaps, strict=True):
        traces.append(RequestTrace(0.0, tuple(first + gap * np.arange(9))))
    seen = [request_latencies(trace) for trace in traces]
    figures.goodput_region([s["ttft_s"] for s in seen], [s["tpot_s"] for s in seen], 0.5, 0.05)
    for limits in ({"ttft_s": 0.5}, {"tpot_s": 0.05}, {"ttft_s": 0.5, "tpot_s": 0.05}):
        print(f"keep {', '.join(limits)}: {goodput(traces, limits, 1.0):.0f} of {len(traces)}")

# %% [markdown]
# ### From a raw log
#
# Real logs are not tidy. Lines come from several processes and out of order. A request may have no
# start, no end, no arrival. What is missing decides the result, so decide it openly:
#
# - an answer that never became complete has **failed**, and stays in the books;
# - a request whose arrival is unknown cannot be timed. It is named, not guessed;
# - two tokens at the same moment are two tokens.
#
# *Worked example.* Lines: token of `a` at 2.0, arrival of `a` at 1.0, token of `a` at 1.5, token of `b`
# at 0.9. `a` has tokens at 1.5 and 2.0 and has failed (no end); `b` has no arrival.

# %% exercise="traces_from_log"
from inferlab.latency_metrics import traces_from_log

# %% check="traces_from_log"
check("traces_from_log")

# %% [markdown]
# ### The report
#
# Now the page that one shows. The trap is what to do with failures. Dropping them makes a server
# that times out look fast: the slowest requests are gone. Here a failed request is infinitely late;
# where p95 comes out infinite, more than one request in twenty failed, and that is what the report
# should say.
#
# *Worked example.* TTFT 0.1, 0.2, 0.3 and one failure: p50 is number 2, 0.2 s; p95 is number 4, ∞. Without
# the failure p95 would be 0.3.

# %% exercise="latency_report"
from inferlab.latency_metrics import latency_report

# %% check="latency_report"
check("latency_report")

# %%
if ready("traces_from_log", "latency_report"):
    lines = []
    for i in range(20):  # the last two time out after one token, one line is lost
        times = [i + 0.1 * (i % 4 + 2) + 0.05 * k for k in range(6 if i < 18 else 1)]
        lines += [(float(i), f"r{i}", "arrival")] if i != 7 else []
        lines += [(t, f"r{i}", "token") for t in times]
        lines.append((times[-1], f"r{i}", "end") if i < 18 else (i + 30.0, f"r{i}", "error"))
    found, unknown = traces_from_log(lines[::-1])
    report = latency_report(list(found.values()))
    print(f"{report['n_requests']} requests, {report['n_failed']} failed; no arrival: {unknown}")
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        shown = ", ".join(f"p{p} {value:.3f}" for p, value in report[name].items())
        print(f"{name:7s} {shown}")

# %% [markdown]
# ### Little's law
#
# Stand at the door and count for a long time. On average
#
# $$ N = \lambda \cdot W: $$
#
# the requests in flight are the arrivals a second, λ, times the seconds each stays, W. It needs no
# assumption on how requests arrive or how they are served, only that the queue does not grow. It is
# a statement on means: peaks need room of their own.
#
# *Worked example.* 12 requests/s that stay 8 s each: 96 in flight. A server runs 32 at once: 3 servers.
# Dividing in place of multiplying would give 1.5 requests in flight.

# %% exercise="replicas_needed"
from inferlab.workload import replicas_needed

# %% check="replicas_needed"
check("replicas_needed")

# %% [markdown]
# ### How requests arrive
#
# Users do not know each other and do not take turns. Cut time into tiny slices; in each a request
# comes with the same small chance, whatever happened before. That is a **Poisson process**, and the
# gaps between its arrivals are exponential: a share $1 - e^{-\lambda t}$ of them is shorter than t.
# To draw a gap, draw a uniform u in [0, 1) and ask which t has that share: $t = -\ln(1 - u)/\lambda$.
#
# The uniforms are an argument, so your arrivals can be judged exactly and a run can be repeated.
#
# *Worked example.* 2 requests/s, u = 0.5: −ln 0.5 / 2 = 0.347 s. u = 0: a gap of 0, the next comes at once.

# %% exercise="poisson_arrivals"
from inferlab.workload import poisson_arrivals

# %% check="poisson_arrivals"
check("poisson_arrivals")

# %% [markdown]
# Real traffic is burstier still: meetings end, a job fires a thousand calls, a page reloads. A simple
# model that can be written exactly: traffic is *on* for a while and *off* for a while, and while on it
# is Poisson, denser, so that the mean rate is the same. (vLLM's `--burstiness` uses gamma-distributed
# gaps for it: 1 is Poisson, smaller is burstier.)
#
# *Worked example.* 1 request/s on average, on 1 s, off 3 s: while on, the rate is 4. Uniforms 0.5 and 0.99 put
# requests at 0.173 and 1.325 on a clock that stands still in the pauses. One pause of 3 s lies
# before the second: 0.173 and 4.325.

# %% exercise="bursty_arrivals"
from inferlab.workload import bursty_arrivals

# %% check="bursty_arrivals"
check("bursty_arrivals")

# %%
if ready("poisson_arrivals", "bursty_arrivals"):
    uniforms = np.random.default_rng(0).random(80)
    patterns = {
        "clockwork": np.arange(1, 61) / 3,
        "Poisson": poisson_arrivals(3, uniforms),
        "bursty": bursty_arrivals(3, 1, 4, uniforms),
    }
    figures.arrival_patterns(patterns, 20)

# %% [markdown]
# All three send 3 requests a second. Who tests with clockwork tests a world in which nobody ever meets
# anybody.
#
# ### What a queue does
#
# The simplest queue that waits at all is **M/M/1**: Poisson arrivals, exponential service times (those
# are the two M's, for memoryless), one server, in order. Say λ requests arrive and μ could be served
# a second. The time in the system, waiting and service, is then exponential with mean
# $1/(\mu - \lambda)$: what is *left over* decides, not the share that is busy. Its p-th percentile is
#
# $$ t_p = \frac{-\ln(1 - p/100)}{\mu - \lambda}. $$
#
# At λ = μ there is no such time. The queue grows as long as the test lasts, and any percentile
# measured there tells how long you waited.
#
# *Worked example.* μ = 10, λ = 8: the mean is 1 / 2 = 0.5 s, of which 0.1 s is service; p95 is 2.996 / 2 = 1.498 s,
# p99 2.303 s.

# %% exercise="mm1_percentile"
from inferlab.workload import mm1_percentile

# %% check="mm1_percentile"
check("mm1_percentile")

# %%
if ready("mm1_percentile"):
    for arriving in (5, 8, 9, 9.5):
        times = [mm1_percentile(arriving, 10, p) for p in (50, 95, 99)]
        print(
            f"{arriving / 10:4.0%} busy: p50, p95, p99 = " + ", ".join(f"{t:.2f} s" for t in times)
        )
confront("lm_load")
confront("lm_overload")

# %% [markdown]
# Does a formula with so many assumptions describe anything? Your arrivals, sent through a queue with
# one server (`fifo_times_s`), at 80 % load. Below it, bursts at the same mean rate: the formula
# knows nothing of them.

# %%
if ready("poisson_arrivals", "bursty_arrivals", "mm1_percentile", "percentile"):
    rng = np.random.default_rng(5)
    services, uniforms = rng.exponential(1 / 10, 40_000), rng.random(40_000)
    for name, arrivals in (
        ("Poisson", poisson_arrivals(8, uniforms)),
        ("bursty", bursty_arrivals(8, 2, 2, uniforms)),
    ):
        times = fifo_times_s(arrivals, services).tolist()
        shown = ", ".join(f"p{p} {percentile(times, p):.2f} s" for p in (50, 95, 99))
        print(f"{name:8s} {shown}")
    shown = ", ".join(f"p{p} {mm1_percentile(8, 10, p):.2f} s" for p in (50, 95, 99))
    print(f"M/M/1    {shown}")

# %% [markdown]
# ### The highest rate
#
# Last, the question that is paid for: how many requests a second may come before the promise
# breaks? Run the server at several rates, take at each the share of requests that kept every limit,
# and go up until the share falls below the target. A good run beyond the first bad one was luck. And
# if even the lowest rate misses, there is **no** rate: an idle server is already too slow, and no
# number of servers mends that. Say so; do not return 0.
#
# *Worked example.* Rates 1, 2, 4, 8 with shares 1.0, 0.95, 0.7, 0.92 and a target of 0.9: the answer is 2.

# %% exercise="highest_rate"
from inferlab.workload import highest_rate

# %% check="highest_rate"
check("highest_rate")

# %% [markdown]
# ## 4. Measure
#
# Now a real engine in real time: the course's serving engine (continuous batching, paged cache,
# chunked prefill) on the small trained model that ships with the course. It runs up to 8 requests
# at once. Prompts have 16 to 48 tokens; the lengths of the answers are exponential, 12 tokens
# on average, and the same mix in every run.
#
# First, what can it serve at most? All requests are there at the start; the rate is counted until
# the last of them has a place, while the engine is full.

# %%
N_SLOTS = 8
model = trained_model("tiny-target")
if model and ready("throughput"):

    def serve(arrivals, rng):
        """Jobs at these times, on a fresh engine. -> their traces"""
        jobs = draw_jobs(len(arrivals), model.config.vocab_size, rng, mean_new=12)
        engine = ServingEngine(
            model, n_pages=256, page_size=16, token_budget=64, max_running=N_SLOTS
        )
        return serve_open_loop(engine, jobs, arrivals, N_SLOTS)

    rng = np.random.default_rng(11)
    serve(np.zeros(4), rng)  # warm-up: not counted
    full = serve(np.zeros(64), rng)
    served_per_s = throughput(full, 0.0, max(t.start_s for t in full))["requests_per_s"]
    print(f"measured on {describe('cpu', 'float32')}: served at most {served_per_s:.1f} requests/s")

# %% [markdown]
# Then an **open loop**: requests come when they come, whatever the engine is doing, at rates from a
# quarter of that to well above. Each run takes about 4 s, or as long as
# the queue it leaves behind. **Before you run it:** which will move first
# as the rate grows, TTFT or ITL? Which of them has an upper limit?

# %%
if model and ready("poisson_arrivals", "throughput", "latency_report"):
    rates, runs = [], []
    for load in (0.25, 0.6, 0.85, 1.1, 1.6):
        rate = load * served_per_s
        n = max(12, round(4 * rate))
        arrivals = poisson_arrivals(rate, rng.random(n))
        arrivals *= n / rate / arrivals[-1]  # so short a run would miss its mean rate by chance
        runs.append(serve(arrivals, rng))
        rates.append(rate)
    reports = [latency_report(run) for run in runs]
    for rate, run, report in zip(rates, runs, reports, strict=True):
        ttft, itl, e2e = report["ttft_s"], report["itl_s"], report["e2e_s"]
        print(
            f"load {rate / served_per_s:4.0%}, {len(run):3d} requests: "
            f"TTFT p50 {format_seconds(ttft[50])}, p95 {format_seconds(ttft[95])}; "
            f"ITL p50 {format_seconds(itl[50])}, p95 {format_seconds(itl[95])}; "
            f"e2e p95 {format_seconds(e2e[95])}"
        )
    figures.hockey_stick(
        rates,
        {
            "TTFT p50": [r["ttft_s"][50] for r in reports],
            "TTFT p95": [r["ttft_s"][95] for r in reports],
            "ITL p50": [r["itl_s"][50] for r in reports],
            "ITL p95": [r["itl_s"][95] for r in reports],
        },
        "The hockey stick: latency against load",
        served_per_s,
    )

# %% [markdown]
# **Reading it.** ITL rises with the load and then stays: once all 8 places are taken, a pass gets no
# longer (the token budget bounds how much of somebody's prompt may ride in it). TTFT stays low while places are free, bends near the rate that can be served, and beyond
# it has no upper limit: the queue grows as long as the test lasts. The run is short and your machine
# does other things as well, so a point may be off; the shape stays.
#
# ### Is it an M/M/1 queue?
#
# The dashed curve has one number from your measurement, the rate served at most.

# %%
if model and ready("poisson_arrivals", "throughput", "latency_report", "mm1_percentile"):
    figures.hockey_stick(
        rates,
        {"measured, e2e p95": [r["e2e_s"][95] for r in reports]},
        "End to end, beside the M/M/1 queue",
        served_per_s,
        lambda rate: mm1_percentile(rate, served_per_s, 95),
    )

# %% [markdown]
# Both turn upward near the rate served at most: the formula to infinity, a run of 4 s only as far as
# its queue gets. Elsewhere they differ, and for good reasons.
#
# - An M/M/1 server works on one request at a time and gives it all its speed. An engine works on
#   many at once, and each pass takes longer with more of them: closer to *processor sharing*.
# - Alone on an idle engine a request does not take 1 / μ. It takes its own passes, one after the
#   other, each far from filling the machine. At low load the measurement lies *above* the formula.
# - While places are free there is no queue at all, so the curve stays flat for longer, and near the
#   wall the two cross. Beyond the wall the measurement is finite only because the run ends.
# - Only the lengths of answers are exponential here; those of prompts are not, and real ones of neither.
#   Memory (pages) can run out before places.
#
# Use the formula for where it breaks and for the reason why. Measure the rest.
#
# ### What a closed loop hides
#
# Many load tests keep a fixed number of requests in flight: each simulated user asks again when the
# answer is there. When the server slows down, such a test **asks less**. Here is the overloaded run
# again, the same requests and the same tokens, timed by two clocks: from when the user asked, and from
# when a place was free and the request was sent, as a closed loop of 8 users does.

# %%
if model and ready("poisson_arrivals", "throughput", "latency_report", "request_latencies"):
    last = runs[-1]
    closed = as_closed_loop(last)
    figures.two_clocks(
        [t.arrival_s for t in last],
        [request_latencies(t)["ttft_s"] for t in last],
        [request_latencies(t)["ttft_s"] for t in closed],
    )
    both = [latency_report(run)["ttft_s"][95] for run in (last, closed)]
    print(f"p95 TTFT: {format_seconds(both[0])} for the users, {format_seconds(both[1])} closed")
confront("lm_freeze")

# %% [markdown]
# The closed loop never lies about the requests it sent. It leaves out those that a frozen server kept
# it from sending. The name for it is **coordinated omission**. A closed loop is right for what *is*
# closed: a fixed crew of agents, each of which waits. For people at the door, use an open loop.
#
# ### The promise
#
# At last a promise, made from the lightest run: TTFT within 5 times and TPOT within 3 times what the
# typical user saw there, for 90 % of the requests. Then one that no rate can keep.

# %%
if model and ready("poisson_arrivals", "throughput", "latency_report", "goodput", "highest_rate"):
    for name, ttft_factor, tpot_factor in (("5 and 3 times", 5, 3), ("a tenth of it", 0.1, 0.1)):
        limits = {
            "ttft_s": ttft_factor * reports[0]["ttft_s"][50],
            "tpot_s": tpot_factor * reports[0]["tpot_s"][50],
        }
        shares = [goodput(run, limits, 1.0) / len(run) for run in runs]
        print(f"{name}: kept by " + ", ".join(f"{share:.0%}" for share in shares))
        try:
            best = highest_rate(rates, shares, 0.9)
            print(f"  up to {best:.1f} requests/s, {best / served_per_s:.0%} of what can be served")
        except ValueError as refusal:
            print(f"  refused: {refusal}")

# %% [markdown]
# And Little's law, on the third run. In flight is counted at 2,000 moments of the run; beside it
# stands λ · W.

# %%
if model and ready("poisson_arrivals", "throughput", "latency_report", "request_latencies"):
    run = runs[2]
    end = max(t.token_times_s[-1] for t in run)
    moments = np.linspace(0, end, 2000)
    in_flight = [sum(t.arrival_s <= m < t.token_times_s[-1] for t in run) for m in moments]
    stay = np.mean([request_latencies(t)["e2e_s"] for t in run])
    print(f"counted: {np.mean(in_flight):.2f} in flight on average, {max(in_flight)} at most")
    print(f"Little:  {len(run) / end:.2f}/s x {stay:.3f} s = {len(run) / end * stay:.2f}")

# %% [markdown]
# ## 5. Explain
#
# A product manager shows you two load tests. "Server A: 4,000 tokens/s, mean latency 2.1 s. Server B: 3,100
# tokens/s, mean latency 2.4 s. Both were run with 64 requests in flight. We take A." In six to eight
# sentences: **what must you know before you agree, and how would you test?** Name the metrics, the way
# the load is made, what is done with failures, and one number that would change your mind.

# %% [markdown] written="lm_explain" points=3
# **Sample answer.** Tokens a second and a mean say nothing of what a user feels. I would ask for p95 and
# p99 of TTFT and of ITL, for prompts and answers of our own lengths, since a mean of 2.1 s can hide one user in
# twenty who waits 20 s. Both tests were closed loops: 64 in flight, whatever happens. A server that stalls is
# then asked less, and the users who would have come meanwhile are in no number. I would send
# Poisson arrivals at several rates up to and above the one we expect, after a warm-up, with the same
# model, sampling and quality, and count every timed-out request as infinitely late. From each run
# I take the share of requests within *all* limits, say TTFT 500 ms and TPOT 50 ms, and compare the
# highest rate at which that share is 95 %. If A keeps it up to 6 requests/s and B up to 9, we take B,
# whatever the throughput.
#
# **Rubric** (1 point each): *metrics*: percentiles of TTFT and of ITL or TPOT, limits kept at once, in
# place of means and throughput; *load*: open loop at the expected rate, and what a closed loop hides
# (or failures counted); *decision*: a stated limit and rate, with units, that would decide.

# %% [markdown]
# ## 6. In the wild
#
# **Who calls what how.** Read the definition before you read the number.
#
# | tool | it prints | what that is |
# |---|---|---|
# | `vllm bench serve` | TPOT | a request's (e2e − TTFT) / (n − 1), then mean and percentiles over requests; n = 1 is left out (and counts as 0 for goodput) |
# | | ITL | all gaps of all requests |
# | guidellm | `time_per_output_token_ms` | a request's whole time / n, first token included |
# | | `inter_token_latency_ms` | a request's (last − first) / (n − 1) |
# | aiperf | `inter_token_latency` | (e2e − TTFT) / (n − 1), one a request |
# | | `inter_chunk_latency` | the gaps |
# | vLLM `/metrics` | `vllm:request_time_per_output_token_seconds` | TPOT, one a request |
# | | `vllm:inter_token_latency_seconds` | ITL, one a gap |
#
# All of them leave failed requests out of the latencies. Look at the count of failures first.
#
# **Commands.**
#
# - `vllm bench serve --model M --request-rate 8 --burstiness 1.0 --goodput ttft:500 tpot:50
#   --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,95,99`: open loop, limits in ms. The
#   default rate is infinite: everything at once, which measures neither users nor latency.
# - `guidellm run --backend kind=openai_http,target=http://127.0.0.1:8000,model=M
#   --profile kind=concurrent,streams=4 --constraint kind=max_requests,count=40
#   --data kind=synthetic_text,prompt_tokens=64,output_tokens=32`: `concurrent` is a closed loop; there
#   are `poisson` and `sweep` too. (Older texts say `guidellm benchmark`.)
# - `aiperf profile --model M --url http://127.0.0.1:8000 --endpoint-type chat --streaming
#   --request-rate 8 --goodput "time_to_first_token:500 inter_token_latency:50"`; with `--concurrency`
#   in place of the rate it is a closed loop.
#
# **What breaks.** A server that sends several tokens in a chunk: ITL is then the gap between chunks.
# A client too slow to read: it measures itself. Answers that stop early in one engine and not in
# another: compare with `ignore_eos` and fixed lengths. Prompts that repeat: the prefix cache answers
# them, and TTFT is a fairy tale.
#
# **Histograms.** `/metrics` gives cumulative counts up to each bound `le`. This query adds the servers
# first, as you do: `histogram_quantile(0.99, sum by (le)
# (rate(vllm:time_to_first_token_seconds_bucket[5m])))`. Below are two servers' lines, read by hand.

# %%
SCRAPED = {
    "replica 0": """
vllm:time_to_first_token_seconds_bucket{le="0.1"} 700
vllm:time_to_first_token_seconds_bucket{le="0.25"} 870
vllm:time_to_first_token_seconds_bucket{le="0.5"} 897
vllm:time_to_first_token_seconds_bucket{le="1.0"} 900
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 900""",
    "replica 1": """
vllm:time_to_first_token_seconds_bucket{le="0.1"} 10
vllm:time_to_first_token_seconds_bucket{le="0.25"} 30
vllm:time_to_first_token_seconds_bucket{le="0.5"} 60
vllm:time_to_first_token_seconds_bucket{le="1.0"} 98
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 100""",
}
if ready("histogram_percentile"):
    bounds, counts = [], []
    for text in SCRAPED.values():
        pairs = [line.split("le=")[1].split("} ") for line in text.split("\n") if line]
        bounds = [float(bound.strip('"')) for bound, _ in pairs]
        counts.append(np.diff([int(count) for _, count in pairs], prepend=0).tolist())
    alone = [histogram_percentile(bounds, [row], 95) for row in counts]
    print(f"p95 of each: {alone[0]:.3f} s and {alone[1]:.3f} s, their mean {np.mean(alone):.3f} s")
    print(f"p95 of all:  {histogram_percentile(bounds, counts, 95):.3f} s")

# %% [markdown]
# A percentile from a histogram is as fine as the buckets round it. Put a bucket's bound exactly at
# your limit: then the share that kept it is exact.

# %%
if not grading():
    if shutil.which("guidellm"):
        print("guidellm is here: start a server and run the command above")
    else:
        not_measured("a load test by a public client needs guidellm: pip install guidellm")

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"7.675 s"`, `"25 ms"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("lm_q_e2e")

# %% answer="lm_q_e2e"
answers["lm_q_e2e"] = "3.65 s"

# %% answer_check="lm_q_e2e"
answers.check("lm_q_e2e")

# %%
answers.ask("lm_q_tpot")

# %% answer="lm_q_tpot"
answers["lm_q_tpot"] = "27 ms"

# %% answer_check="lm_q_tpot"
answers.check("lm_q_tpot")

# %%
answers.ask("lm_q_rate")

# %% answer="lm_q_rate"
answers["lm_q_rate"] = "50.97 tok/s"

# %% answer_check="lm_q_rate"
answers.check("lm_q_rate")

# %%
answers.ask("lm_q_passes")

# %% answer="lm_q_passes"
answers["lm_q_passes"] = "25.625"

# %% answer_check="lm_q_passes"
answers.check("lm_q_passes")

# %%
answers.ask("lm_q_servers")

# %% answer="lm_q_servers"
answers["lm_q_servers"] = "11"

# %% answer_check="lm_q_servers"
answers.check("lm_q_servers")

# %%
answers.ask("lm_q_mm1")

# %% answer="lm_q_mm1"
answers["lm_q_mm1"] = "1.498 s"

# %% answer_check="lm_q_mm1"
answers.check("lm_q_mm1")

# %%
answers.ask("lm_q_promise")

# %% answer="lm_q_promise"
answers["lm_q_promise"] = "15.003 req/s"

# %% answer_check="lm_q_promise"
answers.check("lm_q_promise")

# %%
answers.ask("lm_q_goodput")

# %% answer="lm_q_goodput"
answers["lm_q_goodput"] = "7.725 req/s"

# %% answer_check="lm_q_goodput"
answers.check("lm_q_goodput")

# %%
answers.ask("lm_q_scale")

# %% answer="lm_q_scale"
answers["lm_q_scale"] = "0.5x"

# %% answer_check="lm_q_scale"
answers.check("lm_q_scale")

# %%
answers.ask("lm_q_stall")

# %% answer="lm_q_stall"
answers["lm_q_stall"] = "d"

# %% answer_check="lm_q_stall"
answers.check("lm_q_stall")

# %%
answers.ask("lm_q_shards")

# %% answer="lm_q_shards"
answers["lm_q_shards"] = "c"

# %% answer_check="lm_q_shards"
answers.check("lm_q_shards")

# %%
answers.ask("lm_q_source")

# %% answer="lm_q_source"
answers["lm_q_source"] = "a"

# %% answer_check="lm_q_source"
answers.check("lm_q_source")

# %%
answers.ask("lm_q_closed")

# %% answer="lm_q_closed"
answers["lm_q_closed"] = "c"

# %% answer_check="lm_q_closed"
answers.check("lm_q_closed")

# %%
answers.ask("lm_q_batch")

# %% answer="lm_q_batch"
answers["lm_q_batch"] = "d"

# %% answer_check="lm_q_batch"
answers.check("lm_q_batch")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>Define TTFT, TPOT, ITL and e2e.</b></summary>
#
# Arrival to first token, queue included; (last − first) / (n − 1), one a request; the list of gaps;
# arrival to last token. e2e = TTFT + (n − 1) · TPOT. *Follow-up: which of them shows a stall caused by
# someone else's prefill?* The tail of ITL. TPOT averages it away.
# </details>
#
# <details><summary><b>TTFT 0.2 s, TPOT 25 ms, 300 tokens: how long is the answer?</b></summary>
#
# 0.2 + 299 · 0.025 = 7.675 s. *Follow-up: and with n = 1?* TTFT, 0.2 s; there is no TPOT.
# </details>
#
# <details><summary><b>An answer of 500 tokens: how many decode passes?</b></summary>
#
# 499: the prefill gives the first. *Follow-up: with speculation at E tokens a pass?* About 499 / E.
# </details>
#
# <details><summary><b>TPOT from time stamps. Why not divide by n?</b></summary>
#
# n tokens have n − 1 gaps between them. With four tokens 25 ms apart, dividing by n gives 18.75 ms.
# *Follow-up: which tool divides by n?* guidellm's time per output token, and it starts at the arrival.
# </details>
#
# <details><summary><b>12 requests/s that take 8 s: how many are in flight?</b></summary>
#
# Little: 12 · 8 = 96. *Follow-up: how many replicas with 32 running at once?* 3, with no room for peaks.
# </details>
#
# <details><summary><b>M/M/1, 8 arrive and 10 are served a second: p95 of the time in the
# system?</b></summary>
#
# −ln 0.05 / (10 − 8) = 1.498 s. *Follow-up: load from 0.8 to 0.9?* The mean doubles. *Why is an LLM
# engine not M/M/1?* It runs many requests at once and each pass takes longer with more of them:
# closer to processor sharing, with a limit on places and on memory.
# </details>
#
# <details><summary><b>The mean is fine and users complain. What now?</b></summary>
#
# The tail: p95 and p99 of TTFT and ITL, by length of prompt and answer, failures counted. *Follow-up: may
# you average p99 over ten replicas?* No. Add histograms, or keep the values.
# </details>
#
# <details><summary><b>What is goodput?</b></summary>
#
# Requests a second that keep all limits at once; in DistServe, the highest rate at which a given share
# does. *Follow-up: (0.4, 0.03), (0.6, 0.02), (0.3, 0.06) with limits (0.5, 0.05)?* 1 of 3.
# </details>
#
# <details><summary><b>How do you load-test without fooling yourself?</b></summary>
#
# Open-loop arrivals, the real distribution of lengths, a warm-up, fixed sampling, the same
# quantization and quality, and enough requests for the percentile. *Follow-up: what does a closed
# loop hide?* The waits of users who would have come while the server was slow.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("11_latency_metrics", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - TTFT runs from the user's question and holds the queue. TPOT is one number a request, over n − 1
#   gaps; ITL is the list of the gaps, and shows stalls.
# - Percentiles are of requests, all of them: failures are infinitely late, servers' counts are added.
# - Goodput counts who kept every limit at once. The highest rate with a target share is what a
#   server is worth; sometimes there is none.
# - Little's law for how many are in flight; 1 / (μ − λ) for why a queue explodes; a measurement for
#   everything else, with an open loop.
#
# **Common mistakes.** Dividing by n. Counting from when the engine began. TPOT called ITL. Means in
# place of percentiles, and means of percentiles. Timeouts dropped. p99 of fifty requests. A closed
# loop taken for users. A percentile measured above capacity taken for a property of the server.
# The same utilisation taken for the same latency.
#
# **References**
#
# - Little, *A Proof for the Queuing Formula: L = λW*, 1961, Operations Research 9(3)
# - Kleinrock, *Queueing Systems*, vol. 1, 1975
# - Harchol-Balter, *Performance Modeling and Design of Computer Systems*, 2013
# - Hyndman, Fan, *Sample Quantiles in Statistical Packages*, 1996, The American Statistician 50(4)
# - Zhong et al., *DistServe*, 2024, arXiv 2401.09670 (goodput)
# - Agrawal et al., *Sarathi-Serve*, 2024, arXiv 2403.02310 (capacity, stalls by prefills)
# - Reddi et al., *MLPerf Inference Benchmark*, 2020, arXiv 1911.02549 (server scenario: Poisson)
# - Wang et al., *BurstGPT*, 2024, arXiv 2401.17644 (real arrivals)

# %%
progress("11_latency_metrics")
