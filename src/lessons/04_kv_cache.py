# %% [markdown]
# # 04 · The KV cache: remember, do not recompute
#
# A language model writes one token at a time, and each new token looks back at all that came
# before. Computing the past again at every step is the obvious way, and it is hopeless. This
# lesson builds the memory that every real engine has, shows why it may exist at all, and then pays
# the bill: the cache is often larger than the model.
#
# **You will be able to**
#
# - say what is kept, what is not, and why a cached key stays right;
# - write a cache that grows, rolls back and slides, and generate with it, token for token the same;
# - compute the bytes of any model's cache in your head, and how many users fit on a device;
# - predict the speed of a decode step with a cache and without, then measure both.
#
# **Time** about 3 hours: 1 h 50 min for twelve exercises, the rest for reading, measuring, the written
# answer and the knowledge check.
#
# **You need** NumPy, and to have seen a neural network. Lessons 01 to 03 help (roofline, attention,
# prefill and decode), but what is used here is said again when it is needed.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B` | sequences in the batch | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `T` | tokens computed now | `d_model`, `d_head` | width of a token's row, of one head |
# | `S` | tokens that may be seen | `n_layers` | decoder layers |
#
# GB is 10⁹ bytes, GiB is 2³⁰ bytes.

# %%
from collections.abc import Sequence

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.config import ModelConfig
from inferlab.data import load_models, model_preset
from inferlab.kv_cache import AttentionLayer, key_drift
from inferlab.model import Model
from inferlab.roofline import forward_flops, step_bound_s
from labkit.explorer import explore
from labkit.figures import kv_cache as kv_figures
from labkit.figures import kv_cache_pictures as kv_pictures
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured
from labkit.measure.models import trained_model
from labkit.units import format_bytes, format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# In an attention layer every token makes three rows from its own: a **query** (what am I looking
# for?), a **key** (what do I offer?) and a **value** (what do I hand over?). The newest token's
# query is compared with the keys of all tokens so far, and the answer is a weighted mix of their
# values.
#
# So step `t`, counted from 0, needs `t + 1` keys and as many values. The picture shows who makes them.
# On the left they are made anew in every step; on the right each is made once and kept.

# %%
kv_figures.work_triangle(8)

# %% [markdown]
# Eight tokens cost 72 projected rows without a memory and 16 with one. And projections are only the
# beginning. Without a cache the *whole model* runs over the whole prefix at each step: attention, and
# the MLPs and norms that stand between two attention layers.
#
# The price of the memory is memory. A model of 8 billion weights takes 16 GB at 2 bytes each (bf16, a
# 16-bit floating-point format). It keeps 131,072 bytes for every token of every user; you will derive
# that number below. 16 users with 8,192 tokens each hold 17.18 GB, more than the model itself.
# That is why the cache, and not the model, usually decides how many users a server can take.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. A wrong guess is worth more than none: it shows where
# your picture of the machine is off. The first one you lodge is the one you will be confronted with.

# %%
predict("kv_rows_12")

# %%
predict("kv_mha_ratio")

# %%
predict("kv_step_ratio")

# %%
predict("kv_bidirectional")

# %% [markdown]
# ## 3. Build
#
# ### One query, many keys
#
# The smallest piece. One new token arrives with its query; `S` keys and values are already there.
# Each head computes, on its own,
#
# $$ \text{out} = \sum_{s=1}^{S} w_s\, v_s, \qquad
#    w = \operatorname{softmax}\!\left(\frac{q \cdot k_1}{\sqrt{d_\text{head}}}, \dots,
#    \frac{q \cdot k_S}{\sqrt{d_\text{head}}}\right). $$
#
# The softmax turns scores into weights that sum to 1: $w_s = e^{z_s} / \sum_j e^{z_j}$. Subtracting
# the largest score from all of them changes nothing in the ratio and keeps $e^z$ from overflowing.
#
# *Two worked examples.* With one key its weight is 1, so `q = [1, 1]`, `k = [[5, 5]]`,
# `v = [[3, 4]]` gives `[3, 4]`. With two equal keys the weights are ½ and ½: the output is the mean
# of the two values.

# %% exercise="attend_one"
from inferlab.kv_cache import attend_one

# %% check="attend_one"
check("attend_one")

# %% [markdown]
# ### Decoding with no memory
#
# Now a whole sequence, one token after the other, through one layer. The layer is given: it has
# `query`, `key` and `value`, and it **counts** the rows that go through its key and value
# projections. That count is graded together with the outputs; your clock is not.
#
# *Worked example.* Two tokens: step 0 projects 1 key and 1 value, step 1 projects 2 and 2.
# `layer.n_kv_rows` is then 2 + 4 = 6, which is 2 · 3.

# %% exercise="decode_uncached"
from inferlab.kv_cache import decode_uncached

# %% check="decode_uncached"
check("decode_uncached")

# %% [markdown]
# ### Decoding with a memory
#
# The same outputs, each row projected once.
#
# *Worked example.* Two tokens: step 0 projects 1 key and 1 value and keeps them; step 1 projects
# 1 and 1 and attends to 2. `layer.n_kv_rows` is 4.

# %% exercise="decode_cached"
from inferlab.kv_cache import decode_cached

# %% check="decode_cached"
check("decode_cached")

# %% [markdown]
# Twelve tokens through both of your versions, counted:

# %%
if ready("decode_uncached", "decode_cached"):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, 16, 16)) / 4
    x = rng.normal(size=(12, 16))
    without, with_cache = AttentionLayer(*weights, 2), AttentionLayer(*weights, 2)
    error = np.abs(decode_uncached(x, without) - decode_cached(x, with_cache)).max()
    print(f"rows projected: {without.n_kv_rows} without a cache, {with_cache.n_kv_rows} with one")
    print(f"largest difference of the outputs: {error:.1e}")
confront("kv_rows_12")

# %% [markdown]
# Over `n` tokens that is `n(n + 1)` rows against `2n`: one grows with the square, the other does not.
# The outputs agree to rounding, not to the bit: a product of many rows may add its terms in another
# order than a product of one row.
#
# ### Why the past may be kept
#
# A cached key is right only if nobody would compute another one now. In the **first** layer that is
# plain: a key is made from the token's embedding (the row that the model looks up for that token),
# and later tokens do not change embeddings. In the **second** layer a key is made from the first
# layer's *output* at that position. Language models use a **causal mask**: a token sees itself and
# earlier ones, nothing later. So that output stands. If attention could look ahead, the new token
# would change it, and every later layer's keys with it. You need two layers to see this.
#
# The next cell adds one token to eleven others in a stack of three layers and measures how far the
# eleven old keys move.

# %%
rng = np.random.default_rng(1)
layers = [AttentionLayer(*(rng.normal(size=(3, 16, 16)) / 4), 2) for _ in range(3)]
rows = rng.normal(size=(12, 16))
kv_figures.drift_bars(key_drift(rows, layers, causal=True), key_drift(rows, layers, causal=False))
confront("kv_bidirectional")

# %% [markdown]
# Queries are not kept: a query is asked once, by its own token, and never again.
#
# ### Query heads and KV heads
#
# So far every query head had keys and values of its own. Most current models let several query heads
# **share** one head of keys and values, a *KV head*: 8 query heads on 2 KV heads below, four to each;
# 32 on 8 in an 8B-style model. It is called grouped-query attention (lesson 05). Only KV heads are
# stored, so only they count from here on.

# %%
kv_pictures.head_sharing(n_heads=8, n_kv_heads=2)

# %% [markdown]
# ### The cache as a structure
#
# `np.concatenate` copies everything at every step. A real cache allocates ahead and writes into
# free slots. Two arrays hold all layers: `(n_layers, B, n_kv_heads, capacity, d_head)`, of which
# layer `i` uses the first `lengths[i]` slots.
#
# - **reserve** makes room. Growing by doubling means that `n` appends copy fewer than `2n` tokens;
#   growing by one copies `n(n - 1)/2`.
# - **append** stores what one layer computed, for one token or for a whole prompt, and returns all
#   that this layer may attend to.
# - **truncate** takes tokens back. Speculative sampling (lesson 08) guesses ahead and must be able
#   to forget its wrong guesses.
#
# The three are judged one by one, so you may write them in any order. Each layer has its own length,
# because a forward pass comes to the layers one after the other: below, two layers have stored their
# two new tokens, and the third is about to.

# %%
kv_pictures.cache_slots([5, 5, 3], capacity=8, n_new=2)

# %% [markdown]
# *Worked example.* Capacity 4, a prompt of 3 tokens: `lengths` is `[3, 3]` after both layers have
# appended. Two more tokens each: 5 do not fit, the capacity becomes 8. `truncate(4)`: `lengths` is
# `[4, 4]`, the capacity stays 8.

# %% exercise="KVCache" write="reserve append truncate"
from inferlab.kv_cache import KVCache

# %% check="KVCache.reserve"
check("KVCache.reserve")

# %% check="KVCache.append"
check("KVCache.append")

# %% check="KVCache.truncate"
check("KVCache.truncate")

# %% [markdown]
# ### A window that slides
#
# Some models let a layer see only its last `window` tokens (Mistral 7B v0.1: 4,096; Gemma 3 27B: 1,024
# in five of six layers). Then nothing older is needed, and a ring of `window` slots is enough for a
# text of any length. The token at position `p` lives in slot `p mod window`.

# %%
kv_figures.ring_slots(window=3, n_tokens=7)

# %% [markdown]
# The position of a token is how many came before it, *not* its slot. Both are needed: the model turns
# each key by an angle that depends on its position (rotary embeddings, lesson 02), the array uses the
# slot.

# %% exercise="SlidingWindowCache" write="append ordered"
from inferlab.kv_cache import SlidingWindowCache

# %% check="SlidingWindowCache"
check("SlidingWindowCache")

# %% [markdown]
# ### Generate with it
#
# Everything comes together. A pass through the model gives **logits**: one number for each token of
# the vocabulary, the larger the likelier. The **prefill** runs the whole prompt in one pass, fills the
# cache and gives the first new token. Each **decode step** runs one token.
#
# *Worked example.* A prompt of 5 tokens, 3 new ones: the model runs 5, then 1, then 1 token: 7 in
# all, in 3 passes. The third new token is chosen but never run.

# %%
kv_pictures.generation_timeline(n_prompt=5, n_new=3)

# %% exercise="generate_cached"
from inferlab.generate import generate_cached

# %% check="generate_cached"
check("generate_cached")

# %% [markdown]
# ### The bill: bytes
#
# Every layer keeps one key and one value of `d_head` numbers for each KV head and each token:
#
# $$ \text{bytes} = \underbrace{2}_{K, V} \cdot\, n_\text{layers} \cdot n_\text{kv\_heads} \cdot
#    d_\text{head} \cdot \text{tokens} \cdot \text{sequences} \cdot \text{bytes per number}. $$
#
# What is *not* in it: the number of query heads, the number of parameters, `d_model`. And `d_head`
# is a number of its own; in some models it is not `d_model / n_heads`.
#
# *Worked example.* 32 layers, 8 KV heads, `d_head` 128, bf16 (2 bytes):
# 2 · 32 = 64, · 8 = 512, · 128 = 65,536 numbers, · 2 = 131,072 bytes a token, or 128 KiB.
# One sequence of 8,192 tokens: 1,073,741,824 bytes (1.074 GB, exactly 1 GiB).

# %% exercise="kv_bytes_per_token"
from inferlab.kv_cache import kv_bytes_per_token

# %% check="kv_bytes_per_token"
check("kv_bytes_per_token")

# %% exercise="kv_cache_bytes"
from inferlab.kv_cache import kv_cache_bytes

# %% check="kv_cache_bytes"
check("kv_cache_bytes")

# %% [markdown]
# **Mind the units.** A 70B-style model (80 layers, 8 KV heads, `d_head` 128) keeps 327,680 bytes a
# token: 320 KiB, but 327.68 kB. One sequence of 8,192 tokens takes 2.684 GB, which is 2.5 GiB.
# Anybody who multiplies "320 KB" by "8k" gets 2.56 and has mixed the two. For 32 such sequences it
# is 85.90 GB, or 80 GiB.

# %%
if ready("kv_cache_bytes"):
    for name in ("8b-style", "70b-style"):
        config = model_preset(name)
        one = kv_cache_bytes(config, 8192)
        print(
            f"{name}: one sequence of 8,192 tokens {format_bytes(one)}; "
            f"16 of them {format_bytes(16 * one)}"
        )
confront("kv_mha_ratio")

# %% [markdown]
# ### What fits
#
# A device's memory holds the weights, some room for activations and fragmentation (the
# **headroom**, often 10 to 20 %), and caches. Two questions follow: how many users, and how long
# may they talk?
#
# *Worked example.* 80 GB, 16 GB of weights, no headroom: 64 GB for caches. A sequence of 8,192
# tokens takes 1.074 GB, so 59.6 of them would fit, that is 59. The 60th would not.

# %% exercise="largest_batch"
from inferlab.kv_cache import largest_batch

# %% check="largest_batch"
check("largest_batch")

# %% exercise="longest_context"
from inferlab.kv_cache import longest_context

# %% check="longest_context"
check("longest_context")

# %% [markdown]
# Now turn the knobs. The weights are counted exactly (8.03 billion at 2 bytes: 16.06 GB), and what **your**
# `kv_cache_bytes` says of the cache stands under the picture. Try: at which context do 16 users of the
# 8B-style model no longer fit on 80 GB? Does a 70B-style model in bf16 ever fit there? What does one byte
# a number buy?

# %%
if ready("kv_cache_bytes"):
    explore("04", kv_cache_bytes)

# %% [markdown]
# <details><summary>What you should have found</summary>
#
# Above 30,488 tokens. Never on one such device: its weights alone take 141 GB. One byte a number in
# place of two: twice the tokens, or twice the users; the weights stay as they are.
# </details>

# %% [markdown]
# ## 4. Measure
#
# Now a trained model: SmolLM2-135M-Instruct, 30 layers, 9 query heads, 3 KV heads, `d_head` 64, on
# your machine. First its words, made with your `generate_cached`.

# %%
model = trained_model("smollm2")
if model and ready("generate_cached"):
    prompt = model.tokenizer.chat_prompt("Why is the sky blue?")
    new_tokens = generate_cached(model, prompt, 40)
    print(model.tokenizer.decode(new_tokens))

# %% [markdown]
# Is it the same text, token for token, as without a cache? Here is the long way beside it.

# %%
if model and ready("generate_cached"):
    tokens = list(prompt)
    for _ in range(12):
        tokens.append(int(np.argmax(model.next_logits(tokens))))  # the whole text, every time
    same = tokens[len(prompt) :] == new_tokens[:12]
    print("the first 12 tokens are the same" if same else "they differ: this should not happen")

# %% [markdown]
# ### The bytes, grown and predicted
#
# The cache of this model, while a text grows to 80 tokens, against your formula. The engine works
# in float32, so a number takes 4 bytes.

# %%
if model and ready("kv_cache_bytes"):
    cache = model.new_cache(capacity=16)
    lengths, held, reserved = [], [], []
    for n_new in [12] + 68 * [1]:  # a prefill, then one token a step
        model.next_logits([5] * n_new, cache)
        lengths.append(cache.n_tokens)
        held.append(cache.n_bytes)
        reserved.append(cache.keys.nbytes + cache.values.nbytes)
    predicted = [kv_cache_bytes(model.config, n, 1, 4) for n in lengths]
    kv_figures.bytes_grown(lengths, held, predicted, reserved)
    print(
        f"{lengths[-1]} tokens: {format_bytes(held[-1])}, predicted {format_bytes(predicted[-1])}"
    )

# %% [markdown]
# ### The time of one step
#
# How long does the next token take when `n` tokens are there already? Without a cache the pass runs
# all `n`; with a cache it runs one. Beside each measurement stands its bound: the pass must read
# every weight once (and the cache), and it must do its arithmetic; it cannot be faster than the
# slower of the two. Bandwidth and peak are measured on your machine first.
#
# **Before you run it:** which of the two curves will be flat, and which bound decides it?

# %%
if model and ready("kv_cache_bytes"):
    bandwidth, peak = timing.read_bandwidth(), timing.matmul_peak()
    print(describe("cpu", "float32"))
    print(f"measured: {bandwidth / 1e9:.1f} GB/s read, {peak / 1e9:.0f} GFLOP/s")
    lengths, without, with_cache = [4, 8, 16, 32, 64, 128, 256], [], []
    for n in lengths:
        text = [5] * n
        cache = model.new_cache(capacity=n)
        model.next_logits(text[:-1], cache)

        def cached_step(cache=cache, n=n):
            cache.truncate(n - 1)
            model.next_logits([5], cache)

        both = timing.interleaved(
            {"without": lambda text=text: model.next_logits(text), "with": cached_step}, rounds=3
        )
        without.append(both["without"].median_s)
        with_cache.append(both["with"].median_s)
        print(f"{n:4d} tokens: without {both['without']}, with {both['with']}")

# %%
if model and ready("kv_cache_bytes"):
    # The bounds, with your own kv_cache_bytes: weights and cache are read once a pass.
    bound_with = []
    for n in lengths:
        reading = (model.weight_bytes + kv_cache_bytes(model.config, n - 1, 1, 4)) / bandwidth
        bound_with.append(max(reading, forward_flops(model.config, 1, n - 1) / peak))
    bound_without = [step_bound_s(model.config, n, 0, bandwidth, peak) for n in lengths]
    kv_figures.step_times(lengths, without, with_cache, bound_without, bound_with, describe())
    ratio = without[-1] / with_cache[-1]
    print(f"at {lengths[-1]} tokens the cache saves a factor of {ratio:.1f}")
    print(
        f"the bound of a cached step is {bound_with[-1] / with_cache[-1]:.0%} of the time measured"
    )
    confront("kv_step_ratio", f"{ratio:.1f}x")

# %% [markdown]
# **Reading it.** The cached step is flat: it reads the same weights whatever the length, and 256
# tokens of cache are small beside 538 MB of weights. The step without a cache is bound by the same
# reading while it is very short, and by arithmetic after that; there it grows with `n`. At 256 tokens
# it does about 200 times the arithmetic (the output head runs for one token either way), but takes far
# less than 200 times the time, because a cached step leaves the arithmetic units idle. Both stay above
# their bounds: Python, small operations (norms, rotations, softmax) and cache misses are in neither.
#
# ### The same on another device
#
# Projecting keys and values for all rows, or for one, in PyTorch on the fastest device you have. The
# sizes are this model's: `d_model` 576, and 3 KV heads of 64 numbers.

# %%
if not grading():
    from labkit.measure.device import pick

    device = pick()
    for n in (64, 256, 1024):
        cost = timing.recompute_cost(n, d_model=576, d_kv=192, device=device)
        print(f"{n:5d} rows {cost.all_rows}; one row {cost.one_row}; {cost.ratio:.1f}x ({device})")
    if device == "cpu":
        not_measured("the same on a GPU needs a CUDA or MPS device")

# %% [markdown]
# One row costs nearly the same whatever `n` is; small changes come from what the large product before
# it left in the processor's caches. All rows cost more with every token, and far less than `n` times
# as much: the more rows share a weight that was read, the better the arithmetic units are used.

# %% [markdown]
# ## 5. Explain
#
# In five to eight sentences, for a colleague who knows neural networks but not language models:
# **why may an engine keep keys and values, and what does that cost?** Say what would break if
# attention were not causal, and in which layers; name the two quantities that the cache grows
# with; and give one number with its unit for a model of your choice.

# %% [markdown] written="kv_explain" points=3
# **Sample answer.** Each token's key and value are made from that token's row alone. With causal
# attention a row depends only on tokens up to its own position, so nothing that comes later can
# change it, and a stored key is exactly what would be computed again. If attention could look
# ahead, the first layer's keys would still be right (they see only embeddings), but its outputs at
# past positions would change with each new token, and so would the keys of every later layer.
# Queries are not stored: each is used once. The saving is large: a step projects one row in place
# of the whole prefix, and the whole model runs on one token. The price is memory that grows with
# tokens and with sequences: 2 · layers · KV heads · d_head · bytes for each token of each user. For
# an 8B-style model in bf16 that is 131,072 bytes a token, or 17.18 GB for 16 users of 8,192 tokens,
# more than its weights.
#
# **Rubric** (1 point each): *mechanism*: causality makes stored keys final, with the role of the
# second layer; *number*: a size that is right, with its unit; *limit*: memory grows with tokens and
# sequences (or: queries are not kept, or a window that slides).

# %% [markdown]
# ## 6. In the wild
#
# **What to read in a `config.json`.** `num_hidden_layers`, `num_key_value_heads` and `head_dim`.
# Where `head_dim` is missing *or* null, it is `hidden_size / num_attention_heads`; where
# `num_key_value_heads` is missing, every query head has its own. Do not guess the rest: Qwen3-0.6B
# has `head_dim` 128 with 16 heads on a `hidden_size` of 1,024.
#
# Your formula on published models:

# %%
if ready("kv_bytes_per_token"):
    shown = ["gpt2", "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-0.6b"]
    models = load_models()
    published = {name: models[name]["computed"]["kv_bytes_per_token_bf16"] for name in shown}
    yours = {name: kv_bytes_per_token(model_preset(name)) for name in shown}
    kv_figures.model_bars(shown, list(yours.values()))
    print("all as published" if all(yours[n] == published[n] for n in shown) else "they differ")

# %% [markdown]
# Llama-2-7B keeps four times as much a token as Llama-3-8B, which is the larger model: it has 32 KV
# heads where the other has 8. Two families need another formula. Models with **latent attention**
# (DeepSeek) keep one compressed row a layer, and models with **sliding windows** stop growing in
# some layers: lesson 05.
#
# **What engines do with it.**
#
# - *transformers*: `DynamicCache` grows by joining arrays (in sliding layers only up to the window),
#   `StaticCache` is allocated whole; `model.generate(..., use_cache=True)` is the default.
# - *vLLM*: the cache takes what `--gpu-memory-utilization` leaves beside the weights and the largest
#   activations, in pages of 16 tokens by default (lesson 10); `--max-model-len` bounds a sequence; `--kv-cache-dtype fp8` stores one
#   byte a number, with a scale of 1 unless calibrated, so that large values saturate.
# - *llama.cpp*: `-c` sets the context that is allocated; `--cache-type-k q8_0` stores keys
#   in 8 bits and a scale for every 32 of them.
#
# **What breaks.** Out of memory that shows only when several long requests meet. A window off by
# one. A cache that is not rolled back after rejected guesses. Half the bytes a number doubles the
# users that fit; it does not double the speed, since the weights are read as before.
#
# The next cell looks at the cache of `transformers`, if you have it.

# %%
if not grading():
    try:
        import torch
        from transformers import DynamicCache
    except ImportError:
        not_measured("transformers' cache needs that package: pip install transformers")
    else:
        theirs = DynamicCache()
        for n_new in (5, 1, 1):  # a prefill of 5 tokens, then two steps
            k = torch.zeros(1, 3, n_new, 64)
            keys, values = theirs.update(k, k, layer_idx=0)
            print(f"{n_new} new: keys are {tuple(keys.shape)}, that is (B, n_kv_heads, S, d_head)")

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 MB"`, `"3 GiB"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("kv_q_token")

# %% answer="kv_q_token"
answers["kv_q_token"] = "24,576 B"

# %% answer_check="kv_q_token"
answers.check("kv_q_token")

# %%
answers.ask("kv_q_sequence")

# %% answer="kv_q_sequence"
answers["kv_q_sequence"] = "0.65625 GiB"

# %% answer_check="kv_q_sequence"
answers.check("kv_q_sequence")

# %%
answers.ask("kv_q_fits")

# %% answer="kv_q_fits"
answers["kv_q_fits"] = "49"

# %% answer_check="kv_q_fits"
answers.check("kv_q_fits")

# %%
answers.ask("kv_q_rows")

# %% answer="kv_q_rows"
answers["kv_q_rows"] = "1,122"

# %% answer_check="kv_q_rows"
answers.check("kv_q_rows")

# %%
answers.ask("kv_q_steps")

# %% answer="kv_q_steps"
answers["kv_q_steps"] = "842"

# %% answer_check="kv_q_steps"
answers.check("kv_q_steps")

# %%
answers.ask("kv_q_halve")

# %% answer="kv_q_halve"
answers["kv_q_halve"] = "1.2195x"

# %% answer_check="kv_q_halve"
answers.check("kv_q_halve")

# %%
answers.ask("kv_q_query")

# %% answer="kv_q_query"
answers["kv_q_query"] = "c"

# %% answer_check="kv_q_query"
answers.check("kv_q_query")

# %%
answers.ask("kv_q_causal")

# %% answer="kv_q_causal"
answers["kv_q_causal"] = "c"

# %% answer_check="kv_q_causal"
answers.check("kv_q_causal")

# %%
answers.ask("kv_q_growth")

# %% answer="kv_q_growth"
answers["kv_q_growth"] = "d"

# %% answer_check="kv_q_growth"
answers.check("kv_q_growth")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>Why cache K and V, but not Q?</b></summary>
#
# Past queries are never used again; past keys and values are used by every later query.
# *Follow-up: why is a cached key still right?* Causality, through all layers: no past row depends
# on a later token.
# </details>
#
# <details><summary><b>How large is one 32k-token sequence of Llama-3-70B in bf16?</b></summary>
#
# 2 · 80 · 8 · 128 · 2 = 327,680 B a token; times 32,768 = 10,737,418,240 B: 10.74 GB, 10 GiB.
# *Follow-up: how many fit on eight 80 GB devices with 10 % headroom?* 576 GB less 141.1 GB of weights
# leaves 434.9 GB: 40.
# </details>
#
# <details><summary><b>How many 8,192-token users of an 8B model fit on 80 GB?</b></summary>
#
# (80 − 16) GB / 1.0737 GB = 59.6, so 59. *Follow-up: with 10 % headroom?* 52. *And if "80 GB" is
# 80 GiB?* 65: ask which one is meant.
# </details>
#
# <details><summary><b>64 query heads, 8 KV heads: how much smaller is the cache than with
# multi-head attention?</b></summary>
#
# 64 / 8 = 8 times. *Follow-up: do the parameters shrink as much?* No: only the key and value
# projections do. In the 8B shape (32 heads, 8 KV heads) what is saved is 10 % of the weights it has.
# </details>
#
# <details><summary><b>Halving the bytes of the cache: what doubles?</b></summary>
#
# The number of sequences, or the context, where the cache is the limit. Not the speed: with 16 GB of
# weights and 17.18 GB of cache a step becomes (16 + 17.18) / (16 + 8.59) = 1.35 times as fast.
# *Follow-up: when would it come close to 2?* When the cache dwarfs the weights.
# </details>
#
# <details><summary><b>hidden_size 1,024, 16 heads, head_dim 128. What is d_head?</b></summary>
#
# 128. Dividing 1,024 by 16 gives 64, and half the true cache. *Follow-up: which projections are then
# not square?* The query projection is 1,024 × 2,048, the output projection the reverse.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("04_kv_cache", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - Causality makes keys and values final, so they may be kept. It takes two layers to see why.
# - Without a cache `n` tokens cost `n(n + 1)` projected rows, with one `2n`; and the whole model
#   runs on one token a step in place of all.
# - Bytes = 2 · layers · KV heads · `d_head` · tokens · sequences · bytes per number. Query heads and
#   parameters are not in it.
# - A cached step is bound by reading the weights and the cache. That is why it is far from `n` times
#   as fast, and why batching (lesson 10) is nearly free.
#
# **Common mistakes.** Query heads in place of KV heads. The factor 2 or the batch forgotten. GB and
# GiB mixed. `d_head` taken as `d_model / n_heads`. Unused slots attended to. 500 tokens taken as
# 500 decode steps: the prefill gives the first, 499 steps give the rest.
#
# **References**
#
# - Vaswani et al., *Attention Is All You Need*, 2017, arXiv 1706.03762
# - Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019, arXiv 1911.02150
# - Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv 2211.05102
# - Ainslie et al., *GQA*, 2023, arXiv 2305.13245
# - Jiang et al., *Mistral 7B*, 2023, arXiv 2310.06825 (sliding windows)
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*,
#   2023, arXiv 2309.06180
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("04_kv_cache")
