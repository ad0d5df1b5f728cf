# %% [markdown]
# # 05 · Fewer keys and values
#
# The cache of lesson 04 is often larger than the model, and a decode step reads all of it. The best
# way to make it smaller is to have less to keep. Models do it in three ways: query heads share keys
# and values (GQA, MQA), a small latent stands in for all of them (MLA), or a layer forgets what is
# far back (sliding windows). This lesson builds all three, weighs them on real models, and measures
# what they buy.
#
# **You will be able to**
#
# - say which query head reads which KV head, and attend without ever copying one;
# - shrink a model's KV heads, and say why that alone ruins it;
# - write latent attention in both of its forms and prove them equal;
# - weigh any published model's cache from its `config.json`, on one device or on many;
# - say where decode attention stands on a roofline, and why MLA stands elsewhere.
#
# **Time** about 4 hours: 2 h 20 min for thirteen exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** NumPy and lesson 04 (the KV cache). Attention, its softmax and rotary positions come
# from lesson 02; what is used here is said again when it is needed.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B` | sequences in the batch | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `T` | tokens computed now | `d_model`, `d_head` | width of a token's row, of one head |
# | `S` | tokens that may be seen | `d_latent`, `d_rope` | MLA: the latent, the rotated key |
# | `n_layers` | decoder layers | `d_nope`, `d_value` | MLA: a key's other part, a value |
#
# GB is 10⁹ bytes, MiB is 2²⁰ and GiB 2³⁰ bytes. A multiply and an add are 2 FLOPs.

# %%
import math
from typing import Any

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.attention import ArrayMemory, Memory
from inferlab.config import ModelConfig
from inferlab.counted_memory import CountedMemory
from inferlab.data import load_config, load_devices, load_models, model_preset
from inferlab.operators import (
    attention,
    causal_mask,
    project,
    rms_norm,
    rotate,
    softmax,
    split_heads,
)
from labkit.explorer import explore
from labkit.figures import gqa as gqa_figures
from labkit.figures import kv_cache_pictures as kv_pictures
from labkit.measure import gqa as gqa_measure
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured
from labkit.measure.models import trained_model
from labkit.units import format_bytes, format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# In **multi-head attention** (MHA) every query head has keys and values of its own. Nothing in
# attention asks for that. The picture shows the four arrangements that models use today: the dotted
# boxes are query heads, used once and gone; the filled ones are what the cache keeps of every token.

# %%
gqa_figures.four_ways(n_heads=8, n_kv_heads=2)

# %% [markdown]
# An 8B-style model has 32 layers and 32 query heads of 128 numbers. In bf16 (2 bytes a number) one
# token would keep 524,288 bytes with 32 KV heads, 131,072 with the 8 that it has, 16,384 with one.
# For 16 users with 8,192 tokens each that is 68.72 GB, 17.18 GB or 2.15 GB, beside 16.06 GB of
# weights. A step reads it all, so the same choice decides how many users fit *and* how fast each
# gets a token.
#
# What is given up is freedom: heads that share keys and values can differ in what they ask, not in
# what they are offered. How much quality that costs is settled by training, and the answer of the
# last years is: with 8 KV heads almost none, with a single one a little (Ainslie et al. 2023).

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build. The first one is the one you will be confronted with.

# %%
predict("gq_head_six")

# %%
predict("gq_weights_saved")

# %%
predict("gq_larger_cache")

# %%
predict("gq_attention_ratio")

# %% [markdown]
# ## 3. Build
#
# ### Who reads whom
#
# **Grouped-query attention** (GQA) cuts the row of query heads into groups of neighbours. Each group
# shares one KV head. With as many groups as query heads it is MHA; with a single group it is
# **multi-query attention** (MQA). One number in the config, `n_kv_heads`, says which.
#
# The order matters, because trained weights are laid out for it. Neighbours share. An engine that
# deals the heads out in turn (head 0 to KV head 0, head 1 to KV head 1, and so on) talks nonsense.
#
# *Worked example.* 6 query heads on 2 KV heads: groups of 3. Heads 0, 1, 2 read KV head 0; heads 3,
# 4, 5 read KV head 1.

# %% exercise="kv_head_of"
from inferlab.attention import kv_head_of

# %% check="kv_head_of"
check("kv_head_of")

# %% [markdown]
# SmolLM2, the small model that you will measure below, has 9 query heads on 3 KV heads:

# %%
kv_pictures.head_sharing(n_heads=9, n_kv_heads=3)
if ready("kv_head_of"):
    print("head 0 to 8 read:", [kv_head_of(head, 9, 3) for head in range(9)])
confront("gq_head_six")

# %% [markdown]
# ### Repeat the heads
#
# The simplest way to run grouped heads: copy each KV head as often as it has readers, then attend as
# if nobody shared. Many implementations began like that, and it is a good reference to test against.
#
# *Worked example.* KV heads a, b for 4 query heads: a, a, b, b. Not a, b, a, b: with that order query
# head 1 would read b, although `kv_head_of(1, 4, 2)` is 0.

# %% exercise="repeat_kv"
from inferlab.attention import repeat_kv

# %% check="repeat_kv"
check("repeat_kv")

# %% [markdown]
# ### Share them, without a copy
#
# The copy throws away what grouping won. The cache is small, but every step writes and reads a large
# one. There is a better way to see a group: its queries are just **more rows** that ask the same
# keys. Four query heads with one new token each are, for their KV head, the same as one head with
# four tokens.
#
# Now you write attention as a kernel would see it: keys and values lie in a large, slow memory, and
# every byte that you bring in is counted. `memory.load("k", 2)` brings KV head 2. What is loaded once
# and used by the whole group costs once.
#
# For each query: scores are dot products with the keys, divided by $\sqrt{d_\text{head}}$; a score
# that must not be seen becomes $-\infty$, so that its weight is $e^{-\infty} = 0$; `softmax` makes
# weights that sum to 1; the output is the weighted sum of the values. `visible` says which of the `S`
# keys each of the `T` queries may see. The `T` queries are the *newest* tokens: with `T` = 2 and
# `S` = 5 they stand at positions 3 and 4, so the first may see 4 keys and the second 5.
#
# *Worked example.* 6 query heads, 2 KV heads, `d_head` 4, `T` = 1, `S` = 9, float64 (8 bytes). K is
# 2 · 9 · 4 · 8 = 576 bytes and so is V. Loading per query head would bring each 3 times.

# %% exercise="grouped_attention"
from inferlab.attention import grouped_attention

# %% check="grouped_attention"
check("grouped_attention")

# %% [markdown]
# What you load, with your function, and what a repeat would make you hold:

# %%
if ready("grouped_attention", "repeat_kv"):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(32, 1, 128))
    for n_kv_heads in (32, 8, 1):
        k, v = rng.normal(size=(2, n_kv_heads, 1024, 128))
        memory = CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q))
        grouped_attention(memory, np.ones((1, 1024), bool))
        copied = 2 * repeat_kv(k[None], 32).nbytes
        print(
            f"KV heads: {n_kv_heads:2d}; {format_bytes(memory.loaded_bytes)} loaded; "
            f"repeated keys and values: {format_bytes(copied)}"
        )

# %% [markdown]
# ### From many heads to few
#
# A model that was trained with MHA can be turned into one with GQA. **Mean-pool** the key heads of
# each group, number by number, into one head, and the value heads likewise; then train a little more
# (**uptraining**: about 5 % of the first training, in the paper). Pooling is only where this starts.
#
# The key projection `w_k` is a matrix `(d_model, n_heads * d_head)` whose columns are heads side by
# side, so pooling is done on its columns.
#
# *Worked example.* One row, `d_head` 2, heads `[0, 4]` and `[2, 0]` into one: `[1, 2]`. If both were
# `[0, 4]`, the mean would be `[0, 4]` again: pooling equal heads changes nothing.

# %% exercise="pool_kv_heads"
from inferlab.attention import pool_kv_heads

# %% check="pool_kv_heads"
check("pool_kv_heads")

# %% [markdown]
# ### What shrinks, and what does not
#
# With fewer KV heads two things become smaller: the cache, and the two projections that make keys and
# values. From 32 to 8 heads the 8B-style model saves 2 · 32 · 4,096 · (32 − 8) · 128 = 805,306,368
# weights, which is 10.0 % of those it has. Llama-2-70B, with 8 KV heads for 64 query heads, saves
# 9.40 billion, 13.6 %, and spends them on a wider MLP. That is no small change, yet the cache shrinks
# by 4 and by 8.
#
# What stays is the arithmetic of attention: every query head still scores every key. Sharing saves
# bytes, not FLOPs.

# %%
confront("gq_weights_saved")

# %% [markdown]
# ### One latent in place of all heads
#
# GQA keeps fewer heads. **Multi-head latent attention** (MLA, DeepSeek) keeps none. Of each token it
# caches a **latent**: `d_latent` numbers, from which every head's keys and values can be computed
# again by fixed matrices. DeepSeek-V3 has 128 heads and a latent of 512 numbers.
#
# One thing does not go through a latent: position. A rotary embedding turns each key by an angle that
# grows with its position (lesson 02). A key that comes out of a latent by a fixed matrix carries no
# position, and a rotation behind that matrix would spoil what we are going to do with it. So MLA
# keeps positions apart: each key has `d_nope` numbers from the latent, never rotated, and `d_rope`
# rotated ones, which are made directly from the token and **shared by all heads**.
#
# So a token leaves `d_latent + d_rope` numbers in a layer: 512 + 64 = 576 in V3. The latent goes
# through an RMSNorm first: it is divided by the root of its mean square, and multiplied by a trained
# gain.
#
# *Worked example.* `d_latent` 2, `d_rope` 2, and a token for which `x @ w_latent` is `[3, 4, 1, 0]`.
# The latent is `[3, 4]` over its root mean square, √12.5 = 3.54: `[0.85, 1.13]` with gains of 1. The
# rotated key is `[1, 0]` turned by the token's angle: `[0, 1]` for a quarter turn.

# %% exercise="compress_to_latent"
from inferlab.mla import compress_to_latent

# %% check="compress_to_latent"
check("compress_to_latent")

# %% [markdown]
# ### The expanded form
#
# To attend, the plain way is to compute the keys and values of all heads again, and then proceed as
# always. This is the **expanded form**. It is what a model is trained with, and what a prefill uses.
#
# *Worked example.* 16 heads, `d_nope` 128, `d_rope` 64, `d_value` 128 (DeepSeek-V2-Lite): the 576
# cached numbers of a token become 16 · (128 + 64) = 3,072 of keys and 16 · 128 = 2,048 of values.

# %% exercise="expand_latent"
from inferlab.mla import expand_latent

# %% check="expand_latent"
check("expand_latent")

# %% [markdown]
# ### Never expand: absorb
#
# In a decode step the expanded form computes the keys and values of *all* `S` tokens, for one query.
# That gives away everything. Look at a score, without its rotated part. With $c_s$ the latent of
# token $s$ and $W_h$ the columns of `w_k` that belong to head $h$:
#
# $$ q_h \cdot (c_s W_h) \;=\; (W_h\, q_h) \cdot c_s. $$
#
# On the left a key is computed for each of the `S` tokens. On the right the matrix has moved to the
# query, of which there is one: it is **absorbed**. What is left is a dot product with the latent
# itself. A rotation of the key would stand between $W_h$ and $q_h$ and depend on $s$, and nothing
# could be moved. That is why the rotated numbers are kept apart.
#
# *Worked example.* `d_latent` 3, `d_nope` 2: `w_k` is `[[1, 2], [3, 4], [5, 6]]`, the query
# `[1, 10]`. Moved: `[1 + 20, 3 + 40, 5 + 60]` = `[21, 43, 65]`. For a latent `[1, 0, 1]` the key is
# `[6, 8]` and the score 6 + 80 = 86; the other way round it is 21 + 65 = 86.

# %% exercise="absorb_query"
from inferlab.mla import absorb_query

# %% check="absorb_query"
check("absorb_query")

# %% [markdown]
# The values go the same way: a weighted sum of `latent @ w_v` is the weighted sum of latents, times
# `w_v`, once. So every head reads the **same** cached rows, as if they were a single KV head with a
# key of `d_latent + d_rope` numbers and a value of `d_latent`. Absorbed MLA is MQA, with a wide head.
#
# One trap: the scale. The scores are the same numbers as in the expanded form, where a key has
# `d_nope + d_rope` numbers. So they are divided by $\sqrt{d_\text{nope} + d_\text{rope}}$, although
# the vectors that you multiply are now longer.

# %% exercise="absorbed_attention"
from inferlab.mla import absorbed_attention

# %% check="absorbed_attention"
check("absorbed_attention")

# %% [markdown]
# Both of your forms on one layer of DeepSeek-V2-Lite's sizes, and the multiplications that they take
# for one query over `S` tokens:

# %%
if ready("expand_latent", "absorbed_attention"):
    rng = np.random.default_rng(0)
    n_heads, d_latent, d_nope, d_rope, d_value, S = 16, 512, 128, 64, 128, 200
    w_k, w_v = (rng.normal(size=(d_latent, n_heads * d)) / 22 for d in (d_nope, d_value))
    latent, k_rope = rng.normal(size=(1, S, d_latent)), rng.normal(size=(1, S, d_rope))
    q = rng.normal(size=(1, n_heads, 1, d_nope + d_rope))
    visible = np.ones((1, S), bool)
    expanded = attention(q, *expand_latent(latent, k_rope, w_k, w_v, n_heads), visible)
    absorbed = absorbed_attention(q, latent, k_rope, w_k, w_v, visible)
    print(f"largest difference: {np.abs(expanded - absorbed).max():.1e}")
    for n in (200, 2000):
        moved = n_heads * d_latent * (d_nope + d_value)
        if_expanded = n * moved + n_heads * n * (d_nope + d_rope + d_value)
        if_absorbed = moved + n_heads * n * (2 * d_latent + d_rope)
        print(f"{n:5,} tokens: {if_expanded / 1e6:6,.0f} million expanded", end=", ")
        print(f"{if_absorbed / 1e6:3,.0f} absorbed")

# %% [markdown]
# Absorbing is not free: each score now multiplies 576 numbers in place of 192, and each value 512 in
# place of 128. It wins because a query or an output goes through the matrices once, and not a key and
# a value for every cached token. For a long prefill it is the other way round. With V3's widths the
# expanded form takes fewer multiplications from about 170 queries on; engines use one form for decode
# and the other for prefill, and so does the one of this course.
#
# ### The bill, for any model
#
# Lesson 04's formula, 2 · layers · KV heads · `d_head`, knows neither latents nor windows. First, what
# a token leaves in **one layer**:
#
# | attention | numbers a token keeps in a layer |
# |---|---|
# | MHA, GQA, MQA | 2 · `n_kv_heads` · `d_head` |
# | MLA | `d_latent + d_rope`: no 2, no heads |
#
# *Worked example.* 8 KV heads of 128: 2,048 numbers. DeepSeek-V3: 576, which is 3.56 times less, or as
# much as 2.25 KV heads of 128. But a trap: its config says `num_key_value_heads: 128`.

# %% exercise="layer_cache_numbers"
from inferlab.cache_sizes import layer_cache_numbers

# %% check="layer_cache_numbers"
check("layer_cache_numbers")

# %% [markdown]
# Then the windows. A layer with a **sliding window** sees the last `window` tokens and keeps no more.
# A model may have it in all layers (Mistral 7B v0.1), or in some of them, interleaved with layers that
# see everything (gpt-oss: every second one; Gemma 3: five of six). So the bytes of one sequence have
# two parts: one that grows with every token, and one that stops.
#
# *Worked example.* gpt-oss-20b: 24 layers, 12 of them with a window of 128 tokens; 8 KV heads of 64
# numbers, so 2 · 8 · 64 · 2 B = 2,048 B a token and layer. Growing: 12 · 2,048 = 24,576 B a token.
# Capped: 12 · 128 · 2,048 = 3,145,728 B (exactly 3 MiB).

# %% exercise="grow_and_cap_bytes"
from inferlab.cache_sizes import grow_and_cap_bytes

# %% check="grow_and_cap_bytes"
check("grow_and_cap_bytes")

# %% [markdown]
# *Worked example.* The same model at 131,072 tokens: 131,072 · 24,576 + 3,145,728 = 3,224,371,200 B,
# 3.22 GB. With every layer at full length it would be 6.44 GB. At 100 tokens the windows are not full
# yet, and every layer holds 100: 24 · 100 · 2,048 = 4,915,200 B.

# %% exercise="cache_bytes"
from inferlab.cache_sizes import cache_bytes

# %% check="cache_bytes"
check("cache_bytes")

# %% [markdown]
# Your function on six published models. Both axes are logarithmic: what doubles with the context is a
# straight line.
#
# **Before you run it:** which line becomes flat, which ones bend, and where?

# %%
if ready("cache_bytes"):
    contexts = [2**i for i in range(7, 18)]  # 128 to 131,072 tokens
    shown = ("llama-2-7b", "qwen2.5-7b", "mistral-7b-v0.1", "gemma-3-27b", "gpt-oss-20b")
    sizes = {}
    for name in (*shown, "deepseek-v3"):
        longest = load_models()[name]["max_context"]
        sizes[name] = [cache_bytes(model_preset(name), n) for n in contexts if n <= longest]
    gqa_figures.cache_growth(contexts, sizes)
confront("gq_larger_cache")

# %% [markdown]
# Mistral 7B v0.1 is flat from 4,096 tokens on. Gemma 3 27B begins like a model with MHA (16 KV heads
# of 128 in 62 layers), and bends at 1,024, where 52 of its layers stop: at 32,768 tokens it holds
# 3.12 GB, not 16.64 GB. gpt-oss-20b bends at its first point: its windows are full at 128 tokens.
# DeepSeek-V3 is a straight line. A layer of it is small, but it has 61 of them: 70,272 bytes a token,
# more than the 57,344 of Qwen2.5-7B with its 28 layers of 4 KV heads. A small cache *per layer* is not
# a small cache.
#
# ### On several devices
#
# **Tensor parallelism** spreads one layer over several devices by splitting its heads, neighbours
# together. The cache follows the KV heads, and a KV head cannot be cut. MLA has no heads in its cache
# at all: every device needs all latents.
#
# *Worked example.* 8 KV heads, 131,072 bytes a token. On 4 devices 2 heads each: 32,768 B. On 8 one
# each: 16,384 B. On 16 still one each: 16,384 B, and every head is there twice.

# %% exercise="cache_bytes_per_device"
from inferlab.cache_sizes import cache_bytes_per_device

# %% check="cache_bytes_per_device"
check("cache_bytes_per_device")

# %% [markdown]
# ### How much work on each byte
#
# A device can do many FLOPs in the time in which it reads one byte: 295 on an H100 in bf16, its
# **ridge** (lesson 01). An operation with fewer FLOPs on a byte, a lower **arithmetic intensity**, is
# bound by reading. For attention in a decode step the count is short. One cached token in one layer:
# each query head multiplies and adds `d_head` numbers for the score, and as many for the output. The
# token occupies 2 · `n_kv_heads` · `d_head` numbers. Everything cancels but the group size $g$ and the
# bytes $b$ of a number:
#
# $$ \frac{4\, n_\text{heads}\, d_\text{head}}{2\, n_\text{kv\_heads}\, d_\text{head}\, b}
#    = \frac{2 g}{b}. $$
#
# *Worked example.* bf16, groups of 4: 2 · 4 / 2 = 4 FLOPs a byte. Neither batch nor context is in it:
# more sequences bring more FLOPs and, in proportion, more bytes of their own.

# %% exercise="decode_attention_intensity"
from inferlab.cache_sizes import decode_attention_intensity

# %% check="decode_attention_intensity"
check("decode_attention_intensity")

# %%
if ready("decode_attention_intensity"):
    h100 = load_devices()["h100-sxm"]
    names = ("llama-2-7b", "llama-3-8b", "llama-3-70b", "falcon-7b", "deepseek-v2-lite")
    points = {
        name: decode_attention_intensity(model_preset(name)) for name in (*names, "deepseek-v3")
    }
    bandwidth = 1e9 * h100["bandwidth_gb_s"]
    peak = 1e12 * h100["peak_dense_tflops"]["bf16"]
    gqa_figures.roofline(points, bandwidth, peak, "one H100 (bf16)")

# %% [markdown]
# MHA does 1 FLOP on a byte, Llama's groups 4 and 8. For them no batch ever lifts attention off the
# slope: decode attention is memory-bound, whatever you do. Two shapes climb higher. Falcon-7B is
# multi-query: 71 heads on one, 71 FLOPs on a byte, a quarter of the ridge. (Its larger brothers, 40B
# and 180B, have 8 KV heads.) And absorbed MLA comes near it: V3 has 128 heads on one latent, 242.
# DeepSeek traded cheap arithmetic for dear bytes, on purpose.
#
# Turn one model from MHA to GQA to MQA, and watch its cache, how many sequences fit, and its speed.
# (MLA is there for the models that were made with it.)

# %%
explore("05")

# %% [markdown]
# ## 4. Measure
#
# ### Attention of one step
#
# One layer with 32 query heads of 128 numbers, as in an 8B-style model; one new token; 32, 8 or 1 KV
# heads; your `grouped_attention`, in float32. `ArrayMemory` is a memory that counts nothing and hands
# out views. A fourth way repeats the 8 heads first, with your `repeat_kv`.
#
# The bound is the larger of two times: the bytes that your `layer_cache_numbers` predicts over the
# measured bandwidth, and the FLOPs over the measured peak.
#
# **Before you run it:** which of the two decides for 32 KV heads, and which for one? (float32 has 4
# bytes: the intensities are 0.5, 2 and 16.)

# %%
if not grading() and ready("grouped_attention", "repeat_kv", "layer_cache_numbers"):
    bandwidth, peak = timing.read_bandwidth(), timing.matmul_peak()
    print(describe("cpu", "float32"))
    print(f"measured: {bandwidth / 1e9:.1f} GB/s read, {peak / 1e9:.0f} GFLOP/s")
    rng = np.random.default_rng(0)
    q = rng.normal(size=(32, 1, 128)).astype(np.float32)
    ways = {"32 KV heads (MHA)": 32, "8 (GQA)": 8, "1 (MQA)": 1, "8, repeated to 32 first": 8}
    full = {n: rng.standard_normal((2, n, 8192, 128), dtype=np.float32) for n in (32, 8, 1)}
    contexts = [512, 1024, 2048, 4096, 8192]
    measured = {way: [] for way in ways}
    bounds = {way: [] for way in list(ways)[:3]}

    def step(way, n_tokens):
        k, v = full[ways[way]][:, :, :n_tokens]
        if "repeated" in way:
            k, v = repeat_kv(k[None], 32)[0], repeat_kv(v[None], 32)[0]
        grouped_attention(
            ArrayMemory(q=q, k=k, v=v, out=np.empty_like(q)), np.ones((1, n_tokens), bool)
        )

    for n in contexts:
        works = {way: lambda way=way, n=n: step(way, n) for way in ways}
        for way, time_taken in timing.interleaved(works, rounds=3).items():
            measured[way].append(time_taken.median_s)
        for way in bounds:
            layer = ModelConfig(1, 4096, 32, ways[way], 128, 14336, 32000)
            reading = n * layer_cache_numbers(layer) * 4 / bandwidth
            bounds[way].append(max(reading, n * 4 * 32 * 128 / peak))

# %%
if not grading() and ready("grouped_attention", "repeat_kv", "layer_cache_numbers"):
    gqa_figures.decode_times(contexts, measured, bounds, describe("cpu", "float32"))
    for way, seconds in measured.items():
        share = f", bound {format_seconds(bounds[way][-1])}" if way in bounds else ""
        print(f"{way} at {contexts[-1]:,} tokens: {format_seconds(seconds[-1])}{share}")
    ratio = measured["32 KV heads (MHA)"][-1] / measured["8 (GQA)"][-1]
    confront("gq_attention_ratio", f"{ratio:.1f}x")

# %% [markdown]
# **Reading it.** The order is what the bytes say: 32 KV heads are slowest, one is fastest. The gain
# from 32 to 8 is likely less than the four times less to read. With 32 KV heads NumPy multiplies a
# matrix by one row at a time, a routine that does little but read; with 8 it multiplies by 4 rows,
# and its library treats that as a matrix product, which first copies the matrix into an order of its
# own. The keys are read once, as you asked, but not at full speed. With one KV head reading is cheap
# and arithmetic is the bound: every query head still does its work.
#
# The repeat is the worst of all: it reads the 8 heads, writes 32, and reads 32 again. It makes a
# grouped model slower than MHA, with a quarter of the cache. That is why you wrote it the other way.
#
# ### The same in PyTorch, on the fastest device you have
#
# `scaled_dot_product_attention` can be given grouped heads in two ways: as **rows**, your own trick (a
# group's queries become rows of one head, so there are as many query heads as KV heads), or as they
# are, with `enable_gqa=True`. Then the kernel decides what is read how often, and only the clock tells.

# %%
if not grading():
    from labkit.measure.device import pick

    device = pick()
    for n_kv_heads in (32, 8, 1):
        both = gqa_measure.sdpa_step(32, n_kv_heads, 4096, 128, device)
        print(f"KV heads: {n_kv_heads:2d}, on {device}: rows {both['rows']}", end="; ")
        print(f"enable_gqa {both['enable_gqa']}")
    if device == "cpu":
        not_measured("the same on a GPU needs a CUDA or MPS device")

# %% [markdown]
# On a CPU the rows come near the ratio of the bytes from 32 to 8 heads, and `enable_gqa` may not: if it
# hardly gains, its kernel walks over query heads and reads each KV head anew for each of them. The
# bytes in the cache are the same. What is *read* depends on the kernel.
#
# ### Latents: expand or absorb
#
# One layer with the widths of DeepSeek-V2-Lite, random numbers, one query. The expanded form computes
# the keys and values of 16 heads again for every cached token, at every step.

# %%
if not grading() and ready("expand_latent", "absorbed_attention"):
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    w_k, w_v, q = normal(512, 16 * 128), normal(512, 16 * 128), normal(1, 16, 1, 192)
    for n in (256, 1024, 2048):
        latent, k_rope, visible = normal(1, n, 512), normal(1, n, 64), np.ones((1, n), bool)

        def expanded_step(latent=latent, k_rope=k_rope, visible=visible):
            attention(q, *expand_latent(latent, k_rope, w_k, w_v, 16), visible)

        def absorbed_step(latent=latent, k_rope=k_rope, visible=visible):
            absorbed_attention(q, latent, k_rope, w_k, w_v, visible)

        both = timing.interleaved({"expanded": expanded_step, "absorbed": absorbed_step}, rounds=3)
        ratio = both["expanded"].median_s / both["absorbed"].median_s
        print(
            f"{n:5,} tokens: expanded {both['expanded']}, absorbed {both['absorbed']}: {ratio:.0f}x"
        )

# %% [markdown]
# ### Pooling a trained model
#
# SmolLM2-135M was trained with 3 KV heads. What if we pool them to one, with your `pool_kv_heads`, and
# train nothing? The measure is **perplexity** on a short text: e to the mean surprise of each token. A
# model that hesitates between $k$ equally likely tokens has perplexity $k$.

# %%
TEXT = (
    "The sky looks blue because air scatters short waves of light more than long ones. Sunlight "
    "holds all colours; the blue part bounces off the molecules of the air in every direction, so "
    "that it reaches our eyes from the whole sky. At sunset the light has a longer way through the "
    "air, most of the blue is gone, and what is left is red."
)
model = trained_model("smollm2")
if model and ready("pool_kv_heads", "repeat_kv"):
    config, tokens = model.config, model.tokenizer.encode(TEXT)
    n_layers = config.n_layers
    print(f"{n_layers} layers, {config.n_heads} query heads, {config.n_kv_heads} KV heads")
    n_pooled, perplexities = [0, 10, 20, 30], []
    for n in n_pooled:
        last = range(n_layers - n, n_layers)
        pooled = gqa_measure.with_pooled_heads(model, pool_kv_heads, 1, last)
        perplexities.append(gqa_measure.text_perplexity(pooled, tokens))
    gqa_figures.pooled_layers(n_pooled, perplexities, n_layers)
    first = gqa_measure.with_pooled_heads(model, gqa_measure.first_heads, 1)
    print(
        f"all layers, the first head kept in place of the mean: "
        f"{gqa_measure.text_perplexity(first, tokens):,.0f}"
    )

# %% [markdown]
# The damage is total: pooled in all layers, the model is closer to guessing among all 49,152 tokens of
# its vocabulary than to a language model. Keeping the first head is worse still (the paper found the
# same order, after uptraining): a perplexity above 49,152 means being sure of what is wrong.
#
# Why? The next cell measures how alike the heads of a layer are: the cosine between two of them, 1 for
# equal heads and 0 for heads that have nothing in common. And it does the opposite experiment: heads
# that *are* alike, because they were repeated before, pooled again.

# %%
if model and ready("pool_kv_heads", "repeat_kv"):
    d_head = config.d_head
    alike = [gqa_measure.head_similarity(w.w_k, d_head) for w in model.weights.layers]
    print(f"mean cosine of two key heads of a layer: {np.mean(alike):.3f}")
    w = model.weights.layers[0].w_k
    repeated = repeat_kv(w.reshape(1, len(w), 3, d_head).swapaxes(1, 2), 9)[0]
    repeated = repeated.swapaxes(0, 1).reshape(len(w), -1)  # 9 heads, alike in threes
    again = pool_kv_heads(repeated, 3, d_head)
    print(f"3 heads repeated to 9 and pooled to 3: largest change {np.abs(again - w).max():.1e}")

# %% [markdown]
# Trained heads have nothing in common, number by number. Nor is there a reason why they should: a head
# may order and mix its numbers as it likes, as long as queries and keys agree. The mean of three unlike
# heads is a short vector that fits none of their queries. Only training can make sense of it, so
# pooling is a *start* for uptraining, not a compression.
#
# A small honest surprise: on `tiny-target`, the little model of Shakespeare's plays that comes with the
# course, pooling does much less harm, and there the first head beats the mean.

# %%
tiny = trained_model("tiny-target")
if tiny and ready("pool_kv_heads"):
    from inferlab.data import ROOT

    play = (ROOT / "data" / "tiny" / "heldout.txt").read_text(encoding="utf-8")[3000:5000]
    tokens = tiny.tokenizer.encode(play)[:400]
    print(f"2 KV heads, as trained: perplexity {gqa_measure.text_perplexity(tiny, tokens):.1f}")
    for name, pool in (("mean", pool_kv_heads), ("first head", gqa_measure.first_heads)):
        pooled = gqa_measure.with_pooled_heads(tiny, pool, 1)
        print(f"1 KV head, {name}: {gqa_measure.text_perplexity(pooled, tokens):.1f}")

# %% [markdown]
# One model and one text prove little either way. What both show: measure before you believe a recipe.

# %% [markdown]
# ## 5. Explain
#
# In six to nine sentences, for a colleague who knows lesson 04: **GQA and MLA both shrink the cache.
# What does each keep, what does each pay, and where does it stop helping?** Say which of bytes and
# FLOPs each of them changes in a decode step; why MLA's rotated key stands apart; and give one number
# with its unit for a real model.

# %% [markdown] written="gq_explain" points=3
# **Sample answer.** GQA keeps keys and values of fewer heads: neighbouring query heads share one KV
# head, so the cache and the bytes that a decode step reads shrink by the group size. The FLOPs of
# attention stay, since every query head still scores every key; the arithmetic intensity rises to 2g/b
# (4 FLOPs a byte for Llama-3-8B in bf16), far below the ridge of a GPU. MLA keeps one latent for all
# heads and a rotated key, 576 numbers a layer in DeepSeek-V3, or 70,272 bytes a token. Expanding it at
# every step would cost far more than it saves, so the key matrix is absorbed into the query and the
# value matrix into the output, and all 128 heads read the same latents. That does more arithmetic (576
# and 512 numbers a score and a value in place of 192 and 128) on far fewer bytes, about 242 FLOPs a
# byte. A rotation between latent and query would depend on the position, and no fixed matrix could be
# absorbed through it, so positions go into a separate key. GQA stops helping under tensor parallelism
# with more devices than KV heads; MLA's cache is not divided at all, as every device needs all of it.
#
# **Rubric** (1 point each): *bytes and FLOPs*: GQA changes bytes but not FLOPs, MLA pays FLOPs for
# bytes; *mechanism*: absorption, and why the rotated key stands apart; *number and limit*: a size that
# is right, with its unit, and where either stops helping.

# %% [markdown]
# ## 6. In the wild
#
# **What to read in a `config.json`.**
#
# - `num_key_value_heads`: KV heads; where it is missing, as many as `num_attention_heads`.
# - `kv_lora_rank` and `qk_rope_head_dim`: MLA. Then `num_key_value_heads` says nothing about the cache.
# - `sliding_window`, and *which layers have it*: `layer_types` (a list), `sliding_window_pattern` (6
#   means that each sixth layer sees everything), or nothing at all: Mistral means all layers, Gemma 2
#   every second one, and only the code says so. Qwen2.5 has a `sliding_window` and, beside it,
#   `use_sliding_window: false`.
#
# Fields of real files, and what they cost, by your function:

# %%
if ready("grow_and_cap_bytes"):
    fields = ("num_attention_heads", "num_key_value_heads", "kv_lora_rank", "qk_rope_head_dim")
    fields += ("sliding_window", "sliding_window_pattern", "use_sliding_window", "layer_types")
    for name in ("llama-3-8b", "qwen2.5-7b", "mistral-7b-v0.1", "gemma-3-1b", "gpt-oss-20b"):
        raw = load_config(name)
        said = {field: raw[field] for field in fields if raw.get(field) is not None}
        if "layer_types" in said:
            said["layer_types"] = f"{said['layer_types'].count('sliding_attention')} sliding"
        growing, cap = grow_and_cap_bytes(model_preset(name))
        print(f"{name}: {growing:,} B a token + {format_bytes(cap)}   {said}")
    raw = load_config("deepseek-v3")
    growing, _ = grow_and_cap_bytes(model_preset("deepseek-v3"))
    print(f"deepseek-v3: {growing:,} B a token", end="   ")
    print({field: raw[field] for field in fields if raw.get(field) is not None})
    records = load_models()
    right = {
        (
            r["computed"]["kv_bytes_growing_per_token_bf16"],
            r["computed"]["kv_bytes_sliding_cap_bf16"],
        )
        == tuple(grow_and_cap_bytes(model_preset(name)))
        for name, r in records.items()
    }
    print(f"all {len(records)} models as recorded" if right == {True} else "some differ")

# %% [markdown]
# **What engines do with it.**
#
# - *transformers* hands grouped heads to `scaled_dot_product_attention` with `enable_gqa` where there
#   is no mask, packs a group's queries into rows in a decode step, and falls back to a `repeat_kv`
#   otherwise. For DeepSeek it caches latents (older versions: all heads), and expands them at every
#   step. Its `DynamicCache` keeps only the window in sliding layers.
# - *vLLM* decodes MLA in the absorbed form with kernels of its own (FlashMLA is one);
#   `VLLM_MLA_DISABLE=1` gives the plain form, and a cache many times as large. For models with windows
#   its hybrid cache manager gives each kind of layer its own pages;
#   `--disable-hybrid-kv-cache-manager` keeps every layer at full length, and you see the bill at once.
# - *llama.cpp* keeps small caches for sliding layers; `--swa-full` keeps them whole, which is needed
#   to go back in a text that has already slid out.
#
# **What breaks.** Tensor parallelism above `num_key_value_heads`: KV heads are copied, and the cache of
# a device stops shrinking. For MLA it never shrinks, so large deployments run attention
# *data*-parallel, each device with requests of its own, and share only the experts out. A window off by
# one. A prefix cache over sliding layers: a hit needs only the last window, but the right one.
#
# The next cell looks at the cache of `transformers`, if you have it, for a model with windows.

# %%
if not grading():
    try:
        import torch
        from transformers import DynamicCache, Gemma3TextConfig
    except ImportError:
        not_measured("transformers' cache needs that package: pip install transformers")
    else:
        small = {"num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 8}
        theirs = DynamicCache(config=Gemma3TextConfig(sliding_window=16, **small))
        for layer in range(6):  # a prefill of 100 tokens, then one more
            for n_new in (100, 1):
                k = torch.zeros(1, 1, n_new, 8)
                theirs.update(k, k, layer_idx=layer)
        held = [int(layer.keys.shape[2]) for layer in theirs.layers]
        print("a window of 16 in five of six layers; tokens held after 101:", held)

# %% [markdown]
# They hold 15 where your formula says 16: the newest token sees itself and 15 older ones, and its own
# key comes with it. Both are right; ask an engine which one it counts.
#
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 MB"`, `"3 MiB"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("gq_q_head")

# %% answer="gq_q_head"
answers["gq_q_head"] = "4"

# %% answer_check="gq_q_head"
answers.check("gq_q_head")

# %%
answers.ask("gq_q_ratio")

# %% answer="gq_q_ratio"
answers["gq_q_ratio"] = "7x"

# %% answer_check="gq_q_ratio"
answers.check("gq_q_ratio")

# %%
answers.ask("gq_q_weights")

# %% answer="gq_q_weights"
answers["gq_q_weights"] = "805,306,368"

# %% answer_check="gq_q_weights"
answers.check("gq_q_weights")

# %%
answers.ask("gq_q_mla")

# %% answer="gq_q_mla"
answers["gq_q_mla"] = "60,928 B"

# %% answer_check="gq_q_mla"
answers.check("gq_q_mla")

# %%
answers.ask("gq_q_equal")

# %% answer="gq_q_equal"
answers["gq_q_equal"] = "2.25"

# %% answer_check="gq_q_equal"
answers.check("gq_q_equal")

# %%
answers.ask("gq_q_window")

# %% answer="gq_q_window"
answers["gq_q_window"] = "88 MiB"

# %% answer_check="gq_q_window"
answers.check("gq_q_window")

# %%
answers.ask("gq_q_intensity")

# %% answer="gq_q_intensity"
answers["gq_q_intensity"] = "6 FLOP/B"

# %% answer_check="gq_q_intensity"
answers.check("gq_q_intensity")

# %%
answers.ask("gq_q_devices")

# %% answer="gq_q_devices"
answers["gq_q_devices"] = "12,288 B"

# %% answer_check="gq_q_devices"
answers.check("gq_q_devices")

# %%
answers.ask("gq_q_flops")

# %% answer="gq_q_flops"
answers["gq_q_flops"] = "c"

# %% answer_check="gq_q_flops"
answers.check("gq_q_flops")

# %%
answers.ask("gq_q_rope")

# %% answer="gq_q_rope"
answers["gq_q_rope"] = "a"

# %% answer_check="gq_q_rope"
answers.check("gq_q_rope")

# %%
answers.ask("gq_q_falcon")

# %% answer="gq_q_falcon"
answers["gq_q_falcon"] = "c"

# %% answer_check="gq_q_falcon"
answers.check("gq_q_falcon")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>MHA, GQA, MQA, MLA in one line each.</b></summary>
#
# A KV head for each query head; one for each group of neighbours; one for all; one latent and one
# rotated key for all, from which keys and values could be computed. *Follow-up: which needs another
# formula, and why?* MLA: `d_latent + d_rope` numbers a layer, since a latent serves keys and values
# alike and has no heads.
# </details>
#
# <details><summary><b>64 query heads, 8 KV heads. How much smaller is the cache than with MHA? And the
# model?</b></summary>
#
# 8 times. *The model:* only the key and value projections shrink, by 9.40 billion weights in
# Llama-2-70B: 13.6 % of its size. *And the FLOPs of attention?* Not at all.
# </details>
#
# <details><summary><b>8 query heads, 2 KV heads: which KV head does query head 1 read?</b></summary>
#
# 1 // 4 = 0. *Follow-up: write the shortest test that catches `np.tile` in place of `np.repeat`.* Ask
# for head 1 (or 6): tiling gives 1 mod 2 = 1. Heads 0 and 5 catch nothing, as both rules agree there.
# </details>
#
# <details><summary><b>How large is DeepSeek-V3's cache for a token, and to how many KV heads is that
# equal?</b></summary>
#
# 61 · 576 · 2 B = 70,272 B; 576 / (2 · 128) = 2.25 heads of 128. *Follow-up: why does tensor
# parallelism not shrink it?* Every head reads the whole latent, so every device needs all of it.
# *And why is Qwen2.5-7B's smaller still?* It has 28 layers of 4 KV heads: 57,344 B.
# </details>
#
# <details><summary><b>gpt-oss-20b at 131,072 tokens: how many bytes?</b></summary>
#
# 24,576 · 131,072 + 3,145,728 = 3,224,371,200 B, 3.22 GB; twice that if someone counts its windows at
# full length. *Follow-up: what breaks if the window is off by one?* No crash: a token too many or too
# few is seen, and the outputs drift from the reference.
# </details>
#
# <details><summary><b>What is the arithmetic intensity of decode attention?</b></summary>
#
# 2g/b: the group size in bf16, whatever the batch and the context. *Follow-up: and MLA's?* All heads
# share one latent: 2 · 128 · (2 · 512 + 64) FLOPs on 2 · 576 bytes, 242 for V3. *So can attention ever
# be compute-bound in decode?* With the 128 heads of V3 nearly; with groups of 4 or 8 never.
# </details>
#
# <details><summary><b>Your colleague "adds GQA" to a trained MHA model by averaging heads, and the
# model talks nonsense. What was forgotten?</b></summary>
#
# Uptraining. Trained heads have nothing in common number by number; their mean fits no query.
# *Follow-up: when does averaging change nothing?* When the heads of each group are equal.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("05_gqa", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - Neighbouring query heads share a KV head: head `h` reads `h // (n_heads // n_kv_heads)`.
# - Sharing cuts the cache and the bytes of a step by the group size; FLOPs and most weights stay. A
#   group's queries are rows of one matrix, so nothing need be repeated.
# - MLA caches a latent and one rotated key. In decode its matrices are absorbed into query and output;
#   in a prefill it is expanded. The scale is that of the full key, `d_nope + d_rope`.
# - Windows stop at their size: bytes = growing · tokens + what the windows hold.
# - Decode attention does 2g/b FLOPs on a byte. Only MLA with many heads comes near a GPU's ridge.
# - A device holds at least one whole KV head, and always the whole latent.
#
# **Common mistakes.** Heads dealt out in turn in place of neighbours. A repeat that is really copied. A
# factor 2, or heads, in MLA's formula. Its rotated key forgotten. Windows at full length. Groups of 8
# assumed where a model has 7. Pooled heads without training. Cache divided by more devices than there
# are KV heads.
#
# **References**
#
# - Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019, arXiv 1911.02150 (MQA)
# - Ainslie et al., *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head
#   Checkpoints*, 2023, arXiv 2305.13245
# - DeepSeek-AI, *DeepSeek-V2*, 2024, arXiv 2405.04434 (MLA), and *DeepSeek-V3 Technical Report*, 2024,
#   arXiv 2412.19437
# - Jiang et al., *Mistral 7B*, 2023, arXiv 2310.06825 (sliding windows)
# - Gemma Team, *Gemma 3 Technical Report*, 2025, arXiv 2503.19786 (interleaved windows)
# - OpenAI, *gpt-oss-120b and gpt-oss-20b Model Card*, 2025, arXiv 2508.10925
# - Almazrouei et al., *The Falcon Series of Open Language Models*, 2023, arXiv 2311.16867
# - Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv 2211.05102 (sharing over
#   devices)
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("05_gqa")
