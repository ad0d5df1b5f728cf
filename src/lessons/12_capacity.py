# %% [markdown]
# # 12 · Capacity: size it, then serve it
#
# "How many of these GPUs do we need?" Somebody will ask you that, and money will follow your answer.
# This lesson builds a planner that answers for any model and any device: what fits, how fast it can
# be, for how many users, at what price, and what stops it. Then it keeps you honest. You start a
# server with your own engine in it, load it with traffic, and hold the measurement against your
# bounds.
#
# **You will be able to**
#
# - size a deployment from a `config.json` and a data sheet: devices, users, context, cost;
# - say which of memory, first token or later tokens is in the way, and what each lever buys, exactly;
# - find the users that the prefills of other users cost, which the usual back-of-envelope forgets;
# - serve a trained model over HTTP with your own parts, load-test it, and read what you measured.
#
# **Time** about 3 hours and a half: 2 h for fourteen exercises, the rest for reading, serving,
# measuring, the written answer and the knowledge check.
#
# **You need** lessons 01 (roofline), 04 (KV cache) and 05 (grouped and latent attention), and for one
# exercise 08 (speculation): their functions are used here as they are. Lessons 10 and 11 help with
# the server; what is used of them is said again.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | TTFT | time to first token | TPOT | time per output token, after the first |
# | `n_prompt`, `n_output` | tokens in, tokens out | `n_sequences` | users served at once |
# | ITL | time between two tokens | goodput | requests a second that keep all limits |
# | `n_devices` | devices that share one copy | `n_heads`, `n_kv_heads` | query heads, KV heads |
#
# GB is 10⁹ bytes, GiB is 2³⁰ bytes. An "80 GB" device has 80 · 10⁹ bytes here; the real one shows
# about 79.35 GiB, a little more than that.

# %%
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grader import (
    Answers, check, confront, drill, hint, my_engine, predict, progress, ready, solution
)  # fmt: skip
from inferlab.cache_sizes import cache_bytes, cache_bytes_per_device
from inferlab.capacity import Deployment, weights_read
from inferlab.checkpoints.hf_stored import read_stored
from inferlab.checkpoints.read_config import read_config
from inferlab.config import ModelConfig
from inferlab.data import ROOT, load_config, load_devices, model_preset
from inferlab.roofline import forward_flops
from inferlab.serve.load_client import goodput_per_s, load, summary
from inferlab.speculative_sampling import speedup
from labkit.explorer import explore
from labkit.figures import capacity as capacity_figures
from labkit.measure import load_test, timing
from labkit.measure.device import describe, grading, not_measured
from labkit.measure.models import trained_model
from labkit.plan import describe as describe_stored
from labkit.plan import plan
from labkit.plan_options import Workload
from labkit.units import format_bytes, format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# Here is a sizing that is often shown. Llama-3-70B on four H100: 320 GB, less 140 GB of weights, less
# 30 GB of overhead, leaves 150 GB for keys and values. A conversation of 1,500 tokens takes "about
# 480 MB", so 310 users. Each gets a token within 40 ms. Done?
#
# Three things are wrong. 327,680 bytes a token are 320 *KiB*, so 1,500 tokens take 491.5 MB: with
# those 150 GB it is 305 users, and with the real weights and whole pages for 1,524 tokens (1,024
# in, 500 out) it is 295. Nobody has looked at the 40 ms. And above all, users do not only read
# answers: they arrive with **prompts**, and while a prompt is read nobody else gets a token.
# Planned with that, and with the rates that machines reach in practice, the same four devices
# serve far fewer. You will say how many.
#
# The picture shows where the memory goes, for one, two, four and eight devices.


# %%
def parts_of_memory(deployment, n_tokens, n_users):
    """What lies in one device's memory, for the picture."""
    d = deployment
    shared = d.config.n_params * d.bytes_per_weight / d.n_devices
    cache = cache_bytes_per_device(d.config, n_tokens, d.n_devices, n_users, d.bytes_per_number)
    headroom = d.headroom * d.memory_bytes
    unused = max(0.0, d.memory_bytes - headroom - d.overhead_bytes - shared - cache)
    return {
        "weights": shared, "overhead": d.overhead_bytes, "keys and values": cache,
        "unused": unused, "headroom": headroom,
    }  # fmt: skip


h100, llama_70b = load_devices()["h100-sxm"], model_preset("llama-3-70b")
four = Deployment.on(h100, llama_70b, 4, overhead_bytes=7.5e9)
bars = {
    f"{n} device{'s' * (n > 1)}, 150 users": parts_of_memory(replace(four, n_devices=n), 1536, 150)
    for n in (1, 2, 4, 8)
}
capacity_figures.memory_bar(bars, four.memory_bytes)

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. The first one you lodge is the one you will be confronted
# with.

# %%
predict("ca_users")

# %%
predict("ca_fp8")

# %%
predict("ca_gpus")

# %%
predict("ca_batch")

# %% [markdown]
# ## 3. Build
#
# ### A deployment
#
# Everything from here on is asked about a `Deployment`: one copy of a model on `n_devices` equal
# devices. It is a frozen record, and its fields are all you need:
#
# | field | meaning |
# |---|---|
# | `config` | the model's sizes, a `ModelConfig` as in every lesson |
# | `n_devices` | devices that share every layer (tensor parallelism) |
# | `memory_bytes`, `bandwidth_bytes_per_s`, `peak_flops_per_s` | of **one** device |
# | `bytes_per_weight`, `bytes_per_number` | of a weight; of a number in the cache: 2 for bf16, 1 for FP8 |
# | `overhead_bytes` | of one device: activations, buffers, the runtime |
# | `headroom` | share of a device's memory that stays free |
# | `efficiency` | share of bandwidth and peak that is reached, 1.0 for the data sheet's |
#
# `Deployment.on(device, config, n_devices, precision, …)` makes one from a record of
# `data/devices.json`; `replace(deployment, n_devices=8)` makes the same one with a change. Any model
# will do whose `config.json` the course can read:

# %%
mixtral = read_config(load_config("mixtral-8x7b"))
one_h200 = Deployment.on(load_devices()["h200-sxm"], mixtral, headroom=0.1)
print(f"{mixtral.n_params:,} weights, {format_bytes(mixtral.n_params * one_h200.bytes_per_weight)}")
print(one_h200)

# %% [markdown]
# ### Who can share a model
#
# **Tensor parallelism** cuts every layer: each device takes some of the heads and a part of the MLP,
# and all of them work on the same token at the same time. Heads are whole. 64 query heads go to 2, 4
# or 8 devices; three devices would leave one with more work than the others, and engines refuse it.
#
# KV heads are shared out the same way, until there is one on each device. With more devices than KV
# heads the same head lies on several of them: 8 KV heads on 16 devices are held twice.
#
# *Worked example.* 12 query heads, 6 KV heads. 4 divides 12, but neither divides 6 nor is a multiple
# of it: out. 3 divides both: in. 12 divides 12 and is a multiple of 6: in.

# %% exercise="tensor_parallel_sizes"
from inferlab.capacity import tensor_parallel_sizes

# %% check="tensor_parallel_sizes"
check("tensor_parallel_sizes")

# %% [markdown]
# ### The room for keys and values
#
# Weights come first: **all** of them, also those of experts that a token does not take. What is left
# after weights, overhead and headroom is for the cache. If nothing is left, the answer is 0 and not a
# negative number of gigabytes: the deployment does not exist.
#
# *Worked example.* 10 billion weights in FP8 on 2 devices: 5 GB on each. A device of 24 GB with 10 %
# headroom and 2 GB of overhead: 24 − 2.4 − 2 − 5 = 14.6 GB.

# %% exercise="cache_room_bytes"
from inferlab.capacity import cache_room_bytes

# %% check="cache_room_bytes"
check("cache_room_bytes")

# %% [markdown]
# ### How many sequences
#
# Divide the room by what one sequence takes of one device. `cache_bytes_per_device` of lesson 05 says
# how much that is, for grouped, latent and windowed attention alike. Two roundings go in opposite
# directions: pages are rounded **up** (an engine hands out whole pages, lesson 10), sequences are
# rounded **down**.
#
# *Worked example.* 14.6 GB, sequences of 1,000 tokens in pages of 16: 63 pages, 1,008 tokens. At 32,768
# bytes a token and device that is 33.03 MB, and 442.02 of them would fit: 442.

# %% exercise="sequences_that_fit"
from inferlab.capacity import sequences_that_fit

# %% check="sequences_that_fit"
check("sequences_that_fit")

# %%
if ready("sequences_that_fit"):
    exact, whole = sequences_that_fit(four, 1524, 1), sequences_that_fit(four, 1524)
    print(f"Llama-3-70B on four H100, 1,524 tokens: {exact} sequences, {whole} in pages of 16")
    two = replace(four, n_devices=2)
    print(f"on two H100: {sequences_that_fit(two, 1524)}")

# %% [markdown]
# Two devices hold the weights, and then there is room for 7 users. "It fits" is not yet a service.
#
# ### How long a context
#
# The same question, the other way round. A sliding window makes it a little harder: such a layer
# stops growing, so a sequence's bytes are not proportional to its tokens. But they never shrink, and
# that is all that a **search** needs: keep one length that fits and one that does not, look in the
# middle, and repeat until they are neighbours.
#
# *Worked example.* Lengths up to 8, and 5 is the last that fits: (0, 9) → 4 fits (4, 9) → 6 does not
# (4, 6) → 5 fits (5, 6): the answer is 5.

# %% exercise="max_context"
from inferlab.capacity import max_context

# %% check="max_context"
check("max_context")

# %% [markdown]
# ### How many devices
#
# "How many 80 GB GPUs for 4 conversations of 32,768 tokens with a 70B model?" has four honest
# answers, and people quarrel because each has another one in mind:
#
# | reading | bf16 weights | FP8 weights |
# |---|---|---|
# | the weights alone | 2 | 1 |
# | weights and cache, 184 GB or 114 GB | 3 | 2 |
# | beside 10 % headroom | 3 | 2 |
# | and tensor parallelism can use that many | 4 | 2 |
#
# Your function gives all four, so that nobody has to guess which one was meant.

# %% exercise="devices_needed"
from inferlab.capacity import devices_needed

# %% check="devices_needed"
check("devices_needed")

# %%
if ready("devices_needed"):
    for name, size in (("bf16", 2), ("FP8", 1)):
        asked = Deployment.on(h100, llama_70b, headroom=0.1, bytes_per_weight=size)
        print(f"{name} weights: {devices_needed(asked, 32_768, 4)}")
confront("ca_gpus")

# %% [markdown]
# ### The seconds of a pass
#
# Each device reads its part of the weights and its cache, and does its part of the arithmetic. Both
# happen at the same time, and the longer one decides. Two functions are given:
# `forward_flops(config, n_new, n_cached)` from lesson 01, and `weights_read(config, n_tokens)`, which
# counts the weights that a pass over so many tokens reads. For a dense model that is every weight but
# the embedding; for a mixture of experts it is those experts that at least one token takes (lesson
# 09), so it grows with the batch.
#
# `efficiency` scales both rates down. Measured decode kernels reach 60 to 90 % of the bandwidth,
# measured matrix products 50 to 80 % of the peak. Plan with 0.7 until you have measured your own.
#
# *Worked example.* 4 devices, 8 GB of weights read and 2 GB of cache on each: 10 GB at 70 % of 2 TB/s
# take 7.14 ms. 400 GFLOP in all are 100 on each: at 70 % of 500 TFLOP/s that is 0.286 ms. The pass
# takes 7.14 ms.

# %% exercise="pass_seconds"
from inferlab.capacity import pass_seconds

# %% check="pass_seconds"
check("pass_seconds")

# %% [markdown]
# ### What the devices tell each other
#
# After its part of attention, and again after its part of the MLP, each device holds only a part of
# every sum. An **all-reduce** adds the parts up and gives the result to all. In a ring of `N` devices
# each sends $2 (N-1)/N$ times the bytes of the rows: once round to add, once round to hand out.
#
# *Worked example.* 2 layers, 100 tokens, rows of 1,000 numbers of 2 bytes: 4 sums of 200,000 bytes. With
# 4 devices each sends 1.5 times that: 1.2 MB, in 0.012 ms at 100 GB/s.

# %% exercise="all_reduce_seconds"
from inferlab.capacity import all_reduce_seconds

# %% check="all_reduce_seconds"
check("all_reduce_seconds")

# %%
if ready("pass_seconds", "all_reduce_seconds"):
    links = {"NVLink, 450 GB/s": 450e9, "PCIe 4, 32 GB/s": 32e9}
    step = max(pass_seconds(four, 1, 1500, 310))
    print(f"a decode step of 310 users: {format_seconds(step)}, and the devices talk")
    for name, link in links.items():
        print(f"  {format_seconds(all_reduce_seconds(four, 310, link)):>8} over {name}")

# %% [markdown]
# Over a fast link it is an eighth of the step. Over PCIe the four would talk longer than they work.
# The planner below leaves it out; add it when the link is slow.
#
# ### Steady state: somebody is always arriving
#
# This is the part that the sizing in section 1 forgets. A service is not one batch that decodes until
# it is done. A user who has read an answer leaves, and the next one comes with a prompt that must be
# **prefilled**. In the time in which one user gets `n_output - 1` tokens from decode steps, all
# `n_sequences` users are replaced once. So for every step there are
#
# $$ \frac{\text{n\_sequences}}{\text{n\_output} - 1} \text{ prefills.} $$
#
# An engine can run the phases in turns: then everybody waits while a prompt is read. Or it cuts the
# prompt into chunks that ride along with decode steps (*chunked prefill*, lesson 10). A step has
# already read the weights, and its arithmetic units are idle, so a chunk pays with arithmetic only. In
# the best case that overlaps perfectly.
#
# *Worked example.* 100 users, answers of 201 tokens: half a prefill for each step. A step reads 20 ms
# and computes 8; a prefill reads 10 ms and computes 30. In turns: 20 + 0.5 · 30 = 35 ms. Overlapped:
# the longer of 20 and 8 + 0.5 · 30 = 23, so 23 ms.

# %% exercise="steady_tpot_s"
from inferlab.capacity import steady_tpot_s

# %% check="steady_tpot_s"
check("steady_tpot_s")

# %%
if ready("steady_tpot_s", "pass_seconds"):
    for share in (1.0, 0.7):
        then = replace(four, efficiency=share)
        step = max(pass_seconds(then, 1, 1274, 298))
        turns, over = (steady_tpot_s(then, 1024, 500, 298, o) for o in (False, True))
        print(f"{share:.0%} of the rates, 298 users: a decode step alone {format_seconds(step)}, ")
        print(
            f"  with prefills in turns {format_seconds(turns)}, overlapped {format_seconds(over)}"
        )

# %% [markdown]
# At the data sheet's rates a decode step of 298 users takes 19.7 ms, half of the limit. With the
# prefills it is 41.0 ms in turns, over the limit, and 32.1 ms overlapped. At 70 % of the rates even
# the overlapped one takes 45.8 ms.
#
# ### So, how many users
#
# Memory gives one limit, the time per token another. The smaller one counts. More users never make a
# token come sooner, so the search of `max_context` works here too.
#
# *Worked example.* 295 fit. At 171 a token takes 39.9 ms, at 172 it takes 40.1: the answer for 40 ms
# is 171.

# %% exercise="users_within"
from inferlab.capacity import users_within

# %% check="users_within"
check("users_within")

# %%
if ready("users_within"):
    for share in (1.0, 0.8, 0.7):
        then = replace(four, efficiency=share)
        turns, over = (users_within(then, 1024, 500, 0.040, o) for o in (False, True))
        print(f"{share:.0%} of the rates: {turns} users in turns, {over} overlapped")
confront("ca_users")

# %% [markdown]
# The answer to "how many?" is a range with its assumption: about 170 (in turns, at 70 %) to 295
# (overlapped, at 80 % and more, where memory is the limit). Whoever gives one number without saying
# which has not finished. (With rounder formulas, 2 FLOPs for every parameter and the embedding read
# too, the 171 becomes 168. The assumption about efficiency matters far more: at 80 % it is 210.)
#
# ### What a lever buys
#
# "FP8 doubles capacity and speed." Does it? Compare two deployments: users that fit, and the speed of
# a step at the same batch.
#
# *Worked example.* 100 GB of room become 135 GB because the weights shrink by 35 GB: 1.35 times the
# users. A step that read 70 + 60 GB reads 35 + 60: 1.37 times as fast.

# %% exercise="lever_gain"
from inferlab.planner import lever_gain

# %% check="lever_gain"
check("lever_gain")

# %%
if ready("lever_gain"):
    many_heads = replace(four, config=replace(llama_70b, n_kv_heads=64))
    fp8 = {"bytes_per_weight": 1, "bytes_per_number": 1}
    levers = {
        "FP8 weights": (four, replace(four, bytes_per_weight=1)),
        "FP8 cache": (four, replace(four, bytes_per_number=1)),
        "both": (four, replace(four, **fp8)),
        "int4 weights, groups of 128": (four, replace(four, bytes_per_weight=4.125 / 8)),
        "64 KV heads made 8": (many_heads, four),
    }
    for n_tokens, batch in ((1500, 310), (1500, 1)):
        print(f"{batch} sequence{'s' * (batch > 1)} of {n_tokens:,} tokens")
        for name, (before, after) in levers.items():
            gain = lever_gain(before, after, n_tokens, batch)
            print(f"  {name:<28} users {gain['users']:5.2f}x   speed {gain['speed']:5.2f}x")
confront("ca_fp8")

# %% [markdown]
# Half the bytes of the weights: 1.47 times the users, 1.31 times the speed at 310 users. Only a lone
# user with little context comes close to 2. Half the bytes of the cache doubles the users, exactly,
# because the weights stay where they are; its speed-up is 1.35. And a factor of 8 in KV heads is a
# factor of 9.44 in users here: with 64 KV heads the model would have 9.4 billion weights more.
#
# *Int4* is not half a byte. Groups of 128 weights share a 16-bit scale: 4.125 bits, so 4.125 GB for 8
# billion weights.

# %%
if ready("sequences_that_fit"):
    contexts = [1024 * 2**i for i in range(8)]
    variants = {
        "bf16": four,
        "FP8 weights": replace(four, bytes_per_weight=1),
        "FP8 cache": replace(four, bytes_per_number=1),
        "FP8 weights and cache": replace(four, bytes_per_weight=1, bytes_per_number=1),
        "bf16, 64 KV heads": replace(four, config=replace(llama_70b, n_kv_heads=64)),
    }
    users = {k: [sequences_that_fit(d, n) for n in contexts] for k, d in variants.items()}
    capacity_figures.users_by_context(contexts, users, "Llama-3-70B on four H100")

# %% [markdown]
# ### Speculation, at your batch
#
# Speculative decoding (lesson 08) spends idle arithmetic: a small model drafts `gamma` tokens, and the
# large one verifies them in **one** pass. While the pass is bound by reading, that costs no more than
# a step. At a large batch the arithmetic units are not idle, and verifying is paid for in full.
#
# *Worked example.* Acceptance 0.5 and 2 draft tokens: 1 + 0.5 + 0.25 = 1.75 tokens a round. Verifying
# takes 1.2 steps, each draft token 0.1: 1.75 / 1.4 = 1.25 times as fast.

# %% exercise="speculation_gain"
from inferlab.planner import speculation_gain

# %% check="speculation_gain"
check("speculation_gain")

# %%
if ready("speculation_gain"):
    eight = Deployment.on(h100, model_preset("8b-style"))
    for n in (1, 64, 128, 256, 300):
        gains = [speculation_gain(eight, 0, n, 0.8, g, 0.05) for g in range(65)]
        best = int(np.argmax(gains))
        print(
            f"{n:3d} users: {gains[4]:.2f}x with 4 draft tokens; best are {best}: {gains[best]:.2f}x"
        )

# %% [markdown]
# At 256 users 4 draft tokens make the server *slower*, and at 300 the best number of draft tokens is 0:
# switch it off. So search from 0, and far enough: for one user the best is 13 at an acceptance of 0.9,
# and 21 at 0.95.
#
# ### What a token costs
#
# Devices are paid by the hour, busy or not. *Worked example.* 2 devices at 3.00 dollars an hour, 40
# users, a token every 20 ms to each: 2,000 tokens a second, 7.2 million an hour for 6 dollars: 0.83
# dollars a million. Busy half of the time: 1.67.

# %% exercise="cost_per_million_tokens"
from inferlab.planner import cost_per_million_tokens

# %% check="cost_per_million_tokens"
check("cost_per_million_tokens")

# %%
if ready("cost_per_million_tokens", "users_within", "steady_tpot_s"):
    real, limit_s, batches = replace(four, efficiency=0.7), 0.040, [2**i for i in range(9)]
    shown = {
        "4 H100, bf16": real,
        "4 H100, FP8 weights": replace(real, bytes_per_weight=1),
        "8 H100, bf16": replace(real, n_devices=8),
    }
    costs, last = {}, {}
    for name, d in shown.items():
        tpots = [steady_tpot_s(d, 1024, 500, n) for n in batches]
        costs[name] = [
            cost_per_million_tokens(d, n, t, 2.50) for n, t in zip(batches, tpots, strict=True)
        ]
        last[name] = users_within(d, 1024, 500, limit_s)
    capacity_figures.cost_by_batch(batches, costs, last, limit_s)

# %% [markdown]
# The batch is the price: one user pays for everything alone. The curve flattens as the cache and the
# prefills outgrow the shared reading of weights, and the limit per token decides how far down you may
# go.
#
# ### What stops a plan
#
# A planner that answers "0 users" is no help. Say **why**: it does not fit, the first token is too
# late, or the others are too slow. Each has another remedy: more or larger devices; more arithmetic,
# a shorter or cached prompt; more bandwidth or fewer bytes. Here a single user is asked: if even one
# cannot be served, no batch will help, since batching never makes a token come sooner.

# %% exercise="first_obstacle"
from inferlab.planner import first_obstacle

# %% check="first_obstacle"
check("first_obstacle")

# %% [markdown]
# ### What to rent
#
# *Worked example.* 100 users. Offer a serves 60 for 10 dollars an hour, b serves 35 for 7. By user b
# is dearer (0.20 against 0.17), but copies are whole: two of a cost 20, three of b 21.

# %% exercise="choose_offer"
from inferlab.planner import choose_offer

# %% check="choose_offer"
check("choose_offer")

# %% [markdown]
# ### The planner
#
# All of it together, with **your** functions: every device, every number of them that the heads allow,
# one table: at 70 % of the rates, in turns, with 9 % of each device's memory as overhead. The prices
# are examples of what an hour costs to rent; put in yours. Change the model, the workload, the limits.

# %%
# dollars for one device and hour: examples, put in what you pay
usd_per_hour = {
    "l40s": 0.90, "a100-80-sxm": 1.40, "h100-sxm": 2.50, "h200-sxm": 3.40, "mi300x": 2.20,
    "b200-sxm": 5.50,
}  # fmt: skip
workload = Workload(n_prompt=1024, n_output=500, ttft_limit_s=0.5, tpot_limit_s=0.040)
PARTS = ("tensor_parallel_sizes", "first_obstacle", "users_within", "steady_tpot_s")
PARTS += ("pass_seconds", "cost_per_million_tokens", "choose_offer")
if ready(*PARTS):
    my_parts = {name: globals()[name] for name in PARTS}
    plans = plan(llama_70b, usd_per_hour, workload, my_parts)
    capacity_figures.plan_table(plans, f"Llama-3-70B, bf16, {workload}")
    print("for 200 users:", choose_offer(plans, 200))

# %% [markdown]
# And one that cannot be done, with the reason for each:

# %%
if ready(*PARTS):
    try:
        hurried = replace(workload, tpot_limit_s=0.002)
        choose_offer(plan(llama_70b, usd_per_hour, hurried, my_parts), 200)
    except ValueError as error:
        print(error)

# %% [markdown]
# A batch of one on eight B200 is still too slow for 2 ms a token at 70 % of the rates: only fewer bytes
# would help. "No, because" is an answer too.
#
# One device at a time, with knobs: which control turns a plan that does not fit into one that does?

# %%
explore("12")

# %% [markdown]
# ### Any model
#
# Every model on the Hugging Face hub has a `config.json`. Download one and put its path here; the
# course keeps copies of a few. It also says how the weights are stored: those of gpt-oss-20b lie in
# 4.25 bits where they belong to experts. `inferlab plan PATH` prints the same table on a command
# line; it takes other devices, prompts and limits too.

# %%
path = ROOT / "data" / "configs" / "gpt-oss-20b.json"  # a path of your own: "/home/me/config.json"
if ready(*PARTS):
    stored = read_stored(path)
    print("\n".join(describe_stored(stored, workload.n_prompt + workload.n_output)))
    per_weight = stored.bytes_per_weight
    plans = plan(stored.config, usd_per_hour, workload, my_parts, bytes_per_weight=per_weight)
    size = f"{stored.config.n_params / 1e9:.1f} billion weights"
    capacity_figures.plan_table(plans, f"{size}, {workload}")

# %% [markdown]
# Read the first lines before the table. A family that the reader does not know is refused by name;
# what a count rests on, or leaves out, is said. And the bound has limits of its own: weights in 4 bits
# are read at that size here, but a kernel that unpacks them slowly reaches a smaller share of the rates.
#
# ## 4. Measure
#
# Enough arithmetic. You have built an engine over the last lessons. Now it serves.
#
# ### Whose parts
#
# `inferlab assemble` reads your notebooks, judges every function in them (the hidden cases too) and
# takes those that pass. The rest comes from the reference. A part of yours that fails later, while
# serving, is named in the server's log and in the client's error.

# %%
mine = None if grading() else my_engine()

# %% [markdown]
# ### Start it, load it
#
# The server speaks OpenAI's HTTP interface; `inferlab serve --mine` on a command line is the same, and
# its page at `/` shows the running batch and the page map live. Below it starts in a process of its
# own, on a free port of this machine, and is stopped at the end, whatever happens.
#
# The load is **open-loop**: requests are sent when their time has come, whether or not earlier ones
# are done. Real users do not wait for each other. (A client that sends the next request only after an
# answer slows down with the server, and so hides its queue.)
#
# `smollm2` works too once it is fetched; then lower the rate, since its steps take far longer.
#
# **Before you run it:** one user alone, then four at once. What will happen to the time per token?

# %%
from inferlab.serve.process import running_server

served = "tiny-target"
model = trained_model(served)
n_prompt, n_output, rate_per_s, n_requests = 64, 32, 4.0, 24
alone = four_users = samples = public = None
if model:
    options = ["--max-running", "16", "--pages", "512"]
    prompts = load_test.random_prompts(n_requests + 5, n_prompt, model.config.vocab_size)
    with running_server(*options, model=served, command=mine) as url:
        load(url, prompts[:1], arrivals_s=[0.0], max_tokens=4)  # the first one warms it up
        alone = load(url, prompts[:1], arrivals_s=[0.0], max_tokens=n_output)
        four_users = load(url, prompts[1:5], arrivals_s=[0.0] * 4, max_tokens=n_output)
        arrivals = [i / rate_per_s for i in range(n_requests)]
        samples = load(url, prompts[5:], arrivals_s=arrivals, max_tokens=n_output)
    figures = summary(samples)
    print(f"{figures['n_requests']} requests, {figures['n_failed']} failed: {describe()}")
    for name in ("ttft_s", "itl_s", "e2e_s"):
        row = ", ".join(f"{k} {format_seconds(v)}" for k, v in figures[name].items())
        print(f"  {name:<7} {row}")

# %% [markdown]
# ### Against your bounds
#
# Bandwidth and peak of this machine are measured, and **your** `pass_seconds` and `steady_tpot_s` say
# how fast it could be at best (float32: 4 bytes a number).

# %%
if model and ready("pass_seconds", "steady_tpot_s"):
    bandwidth, peak = timing.read_bandwidth(2**26), timing.matmul_peak(768)
    here = Deployment(model.config, 1, 8e9, bandwidth, peak, 4, 4)
    mean_users = 1 + round(figures["e2e_s"]["mean"] * rate_per_s)
    bounds = {
        "TTFT, median": max(pass_seconds(here, n_prompt, 0)),
        "time between tokens, 1 user": max(pass_seconds(here, 1, n_prompt + n_output // 2)),
        "time between tokens, 4 users": max(pass_seconds(here, 1, n_prompt + n_output // 2, 4)),
        "time between tokens, under load": steady_tpot_s(here, n_prompt, n_output, mean_users),
    }
    one, many = (float(np.median(s[0].itl_s)) for s in (alone, four_users))
    measured = {
        "TTFT, median": figures["ttft_s"]["p50"],
        "time between tokens, 1 user": one,
        "time between tokens, 4 users": many,
        "time between tokens, under load": figures["itl_s"]["mean"],
    }
    load_test.beside_bounds(measured, bounds)
    most = 16 / ((n_output - 1) * steady_tpot_s(here, n_prompt, n_output, 16, overlap=True))
    goodput = goodput_per_s(samples, ttft_limit_s=0.25, tpot_limit_s=0.025)
    print(
        f"goodput within 250 ms and 25 ms: {goodput:.2f} of {figures['requests_per_s']:.2f} requests/s;"
    )
    print(f"by the bound no load above {most:.0f} requests/s can be kept up on this machine")
    confront("ca_batch", f"{many / one:.2f}x")

# %%
if model and ready("pass_seconds", "steady_tpot_s"):
    capacity_figures.load_timeline(
        [s.sent_s for s in samples], [s.token_s for s in samples], bounds["TTFT, median"],
        bounds["time between tokens, under load"], describe(),
    )  # fmt: skip

# %% [markdown]
# **Reading it.** The small model has 4.75 million weights, 19 MB in float32: they stay in the
# processor's caches, and a step that could take about a millisecond takes several. The rest is Python, small
# operations, JSON, sockets, and a client on the same cores. None of that is in a roofline. With
# `smollm2` (538 MB a step) the share of the bound is several times as large. That is the rule: **the
# larger the model, the better the bound predicts**, since the overhead is the same and the reading is
# not. `efficiency` in your planner stands for exactly this share; now you know where to get it.
#
# ### A client that you did not write
#
# A figure of one's own client proves little. *guidellm* is a public one; it is driven here if you have
# it (`pip install "inferlab[bench]"`). It takes a quarter of a minute, most of it to start.

# %%
if model:
    public_load = {
        "rate_per_s": rate_per_s, "n_requests": 16, "n_prompt": n_prompt, "n_output": n_output
    }  # fmt: skip
    from inferlab.serve.load_guidellm import program

    if program() is None:
        not_measured('by a public client: pip install "inferlab[bench]" brings guidellm')
    else:
        with running_server(*options, model=served, command=mine) as url:
            load(url, prompts[:1], arrivals_s=[0.0], max_tokens=4)
            public = load_test.public_client(url, served, model.tokenizer, **public_load)
        if public:
            load_test.compare_clients(figures, public)

# %% [markdown]
# ## 5. Explain
#
# In six to eight sentences, for a colleague who must sign the order: **how many users do four H100
# serve with Llama-3-70B (1,024 tokens in, 500 out, a token every 40 ms), and why is it not the 310
# from the slide?** Name the memory budget with its numbers, the share of the prefills, the assumption
# behind your answer, and one lever with its exact gain.

# %% [markdown] written="ca_explain" points=3
# **Sample answer.** Four H100 have 320 GB. The weights take 141.1 GB and overhead 30 GB, so 148.9 GB
# are left for keys and values. A user with 1,524 tokens takes 1,536 in whole pages, at 327,680 bytes
# each: 503 MB, so memory holds 295 users; the 310 came from counting 320 KiB as 320,000 bytes and the
# weights as 140 GB. A decode step of that many reads 286 GB and takes some 20 ms at the data
# sheet's rates, which looks safe. But every user who leaves is replaced by one with a prompt: for each
# step there is more than half a prefill of 36 ms, as much again as the step. In turns, and at 70 % of
# the data sheet's rates, only 171 users get their token within 40 ms; with chunked prefill that
# overlaps perfectly it would be 260. So I would promise 170 and measure. FP8 weights would let 1.47
# times as many fit and speed the step up by 1.31, not by 2, because the cache is read as before.
#
# **Rubric** (1 point each): *mechanism*: prefills of arriving users share the time with decode steps;
# *number*: a memory budget that adds up, with units; *limit*: the assumption (efficiency, overlap) is
# named, or the lever's gain is given exactly.

# %% [markdown]
# ## 6. In the wild
#
# **What engines ask you for.** The planner's fields have other names there:
#
# | here | vLLM | what breaks |
# |---|---|---|
# | `n_devices` | `--tensor-parallel-size` | must divide the heads, else it does not start |
# | 1 − headroom | `--gpu-memory-utilization` (0.9) | too high: out of memory on the first long prompt |
# | longest context | `--max-model-len` | refuses to start if one such sequence does not fit |
# | users | `--max-num-seqs` | too low: a queue beside an idle device |
# | overlap | `--enable-chunked-prefill`, `--max-num-batched-tokens` | the budget trades TTFT for TPOT |
# | FP8 cache | `--kv-cache-dtype fp8` | scales of 1.0 unless calibrated: large values saturate |
#
# vLLM prints its own version of `sequences_that_fit` when it starts ("Maximum concurrency for 8,192
# tokens per request"). Compare it with yours: the difference is its overhead. llama.cpp reserves the
# cache for `--parallel` slots of `-c` tokens in all; transformers reserves nothing and fails when it
# is full.
#
# **What else a real plan has.** Devices that are down (one spare for every few), peaks (plan for the
# 95th percentile of the load, not its mean), prompts that share a prefix (they need neither prefill nor
# room twice), and answers that are longer than you think: a model that reasons writes thousands of
# tokens, so plan by output tokens and not by requests.
#
# **Clients.** `guidellm run` and `vllm bench serve` send open-loop load and report TTFT, ITL and
# goodput; lesson 11 shows why two of them may disagree. The cell below asks a server the way any
# program would, with nothing but the standard library.

# %%
if not grading():
    import json
    import urllib.request

    with running_server("--pages", "64") as url:
        body = {"prompt": "To be, or not to be", "max_tokens": 24, "temperature": 0}
        asked = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=30) as response:
            answer = json.load(response)
        print(repr(answer["choices"][0]["text"]))
        print(answer["usage"])

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 GB"`, `"31 ms"`, `"1.4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("ca_q_room")

# %% answer="ca_q_room"
answers["ca_q_room"] = "22.7000 GB"

# %% answer_check="ca_q_room"
answers.check("ca_q_room")

# %%
answers.ask("ca_q_users")

# %% answer="ca_q_users"
answers["ca_q_users"] = "283"

# %% answer_check="ca_q_users"
answers.check("ca_q_users")

# %%
answers.ask("ca_q_gpus")

# %% answer="ca_q_gpus"
answers["ca_q_gpus"] = "4"

# %% answer_check="ca_q_gpus"
answers.check("ca_q_gpus")

# %%
answers.ask("ca_q_split")

# %% answer="ca_q_split"
answers["ca_q_split"] = "45.7500 GB"

# %% answer_check="ca_q_split"
answers.check("ca_q_split")

# %%
answers.ask("ca_q_speed")

# %% answer="ca_q_speed"
answers["ca_q_speed"] = "1.71429x"

# %% answer_check="ca_q_speed"
answers.check("ca_q_speed")

# %%
answers.ask("ca_q_int4")

# %% answer="ca_q_int4"
answers["ca_q_int4"] = "17.5312 GB"

# %% answer_check="ca_q_int4"
answers.check("ca_q_int4")

# %%
answers.ask("ca_q_steady")

# %% answer="ca_q_steady"
answers["ca_q_steady"] = "39.1750 ms"

# %% answer_check="ca_q_steady"
answers.check("ca_q_steady")

# %%
answers.ask("ca_q_cost")

# %% answer="ca_q_cost"
answers["ca_q_cost"] = "0.670860"

# %% answer_check="ca_q_cost"
answers.check("ca_q_cost")

# %%
answers.ask("ca_q_moe")

# %% answer="ca_q_moe"
answers["ca_q_moe"] = "84.0000 GB"

# %% answer_check="ca_q_moe"
answers.check("ca_q_moe")

# %%
answers.ask("ca_q_levers")

# %% answer="ca_q_levers"
answers["ca_q_levers"] = "b"

# %% answer_check="ca_q_levers"
answers.check("ca_q_levers")

# %%
answers.ask("ca_q_bound")

# %% answer="ca_q_bound"
answers["ca_q_bound"] = "b"

# %% answer_check="ca_q_bound"
answers.check("ca_q_bound")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. These are the system-design questions: the numbers matter
# less than that each is derived, and that the assumption is named.
#
# <details><summary><b>Serve Llama-3-70B on H100s: 1k in, 500 out, p95 TPOT of 40 ms, as many users as
# possible.</b></summary>
#
# Weights 141.1 GB, 327,680 B a token. On four devices with 30 GB of overhead: 148.9 GB for the cache, 298
# users of 1,524 tokens (295 in pages of 16). A decode step of 298 users is bound by reading: 21.5 ms with full
# contexts, 10.8 ms of arithmetic beside it, about 2.6 ms of all-reduce. But each request also needs
# 35.8 ms of prefill, as much as its share of all decode steps: 41 ms a token in turns, 32.1 ms
# overlapped. At 70 % of the rates: 171 users in turns, 260 overlapped. *Follow-up: add FP8 weights,
# then an FP8 cache; which limit binds next?* In turns at 70 % it stays the time per token: 221 users
# with FP8 weights where 436 fit, 260 with both where 872 do. The prefills are what is left.
# </details>
#
# <details><summary><b>An agent product: 20,000 tokens of system prompt and tools that all share, 2,000
# new tokens a turn, 300 out. What first?</b></summary>
#
# The prefix cache: 20,000 of 22,000 prompt tokens, 91 %, need no prefill. Then route a
# conversation to where its prefix lies, and look at TTFT: 2,000 new tokens that attend to
# 22,000. *Follow-up: what does one copy of the shared prompt take for an 8B-style model?* 20,000 · 131,072 B
# = 2.62 GB; a copy for each of 30 users would be 78.6 GB.
# </details>
#
# <details><summary><b>Halve the cost per million tokens of a reasoning model (200 in, 8,000 out) without
# losing quality.</b></summary>
#
# It is all decode, with long caches. Fewer KV bytes (a model with grouped or latent attention, an FP8
# cache), FP8 weights, a larger batch up to the limit per token, speculation where the load is low, and
# shorter answers. *Follow-up: 2.50 dollars an hour and 2,000 tokens a second?* 0.347 dollars a million.
# </details>
#
# <details><summary><b>One 32,768-token sequence of Llama-3-70B in bf16; how many on eight 80 GB devices
# with 10 % headroom?</b></summary>
#
# 10,737,418,240 B: 10.74 GB, exactly 10 GiB. 576 GB less 141.1 leaves 434.9 GB: 40. *Follow-up: and on
# sixteen devices?* 47, not 80 and more: there are 8 KV heads, so each device holds a whole one either
# way, and only the weights make room.
# </details>
#
# <details><summary><b>80 GB, 16 GB of weights, sequences of 1.0737 GB: how many?</b></summary>
#
# 59: 64 / 1.0737 = 59.6, and what fits by half does not fit. *Follow-up: 80 GiB? 10 % headroom?* 65; 52.
# *And batch 64?* It needs 84.72 GB.
# </details>
#
# <details><summary><b>70B in int4 on one 80 GB device, 8 users of 8,192 tokens: does it fit?</b></summary>
#
# 35 GB, or 36.1 with a scale for every 128 weights, and 21.5 GB of cache: 57.6 GB, also beside 10 %
# headroom. *Follow-up: int8 with an FP8 cache?* 70 + 10.74 = 80.74 GB: it misses by 0.9 %. A plan that
# fits by a hair does not fit.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("12_capacity", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - Room = memory − headroom − overhead − the device's part of **all** weights; users = room over the
#   bytes of one sequence in whole pages, rounded down, 0 if there is no room.
# - "How many devices" has four readings. Tensor parallelism needs a number that the heads divide by;
#   beyond `n_kv_heads`, and for latent attention, more devices do not shrink a device's cache.
# - In steady state every step carries `n_sequences / (n_output − 1)` prefills. Users within the limit:
#   171 where memory holds 295.
# - A lever's gain is a ratio of what is read before and after, never the ratio of the bits.
# - Cost falls with the batch until the limit per token. An impossible plan gets a reason, not a zero.
# - A bound without a measurement is a wish; the share between them is your `efficiency`.
#
# **Common mistakes.** GPUs counted from the weights alone. Three GPUs for tensor parallelism. The
# cache divided by 16 devices with 8 KV heads. Active parameters taken for memory. Prefill forgotten.
# 320 KiB taken as 320,000 bytes. Peak rates taken as reached. A closed-loop load test.
#
# **Failure modes.** Out of memory when several long requests meet. A mean load that fits and a peak
# that does not. An FP8 cache without scales. Speculation switched on at high load.
#
# **References**
#
# - Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv 2211.05102
# - Shoeybi et al., *Megatron-LM*, 2019, arXiv 1909.08053
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*,
#   2023, arXiv 2309.06180
# - Agrawal et al., *SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills*,
#   2023, arXiv 2308.16369
# - Zhong et al., *DistServe*, 2024, arXiv 2401.09670
# - Leviathan et al., *Fast Inference from Transformers via Speculative Decoding*, 2023, arXiv 2211.17192
# - Yuan et al., *LLM Inference Unveiled*, 2024, arXiv 2402.16363

# %%
progress("12_capacity")
