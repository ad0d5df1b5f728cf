# %% [markdown]
# # 01 · The roofline: what a forward pass costs
#
# A language model is arithmetic on numbers that lie in memory. Two things take time: bringing the
# numbers, and computing with them. This lesson counts both exactly, for one matrix product and then
# for a whole model, and turns the counts into seconds on a device that you know by two figures of
# its data sheet. Everything later in the course is an attempt to move one of these two counts.
#
# **You will be able to**
#
# - count the operations and the bytes of a matrix product, and say what limits it;
# - read a data sheet without being fooled, and draw the roofline of a device;
# - count the parameters of a published model from its configuration, to the last one;
# - bound the time of a prompt and of each word of the answer, for one user or for a hundred;
# - say from which number of users on, if from any, arithmetic is the limit.
#
# **Time** about 3 h 30 min: 1 h 55 min for fourteen exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** NumPy, and to have seen a neural network. No transformer is supposed.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `n_rows` | tokens that go through a matrix together | `n_layers` | decoder layers |
# | `d_in`, `d_out` | width of a row before and behind a matrix | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `d_model`, `d_ff` | width of a token's row, of the MLP inside | `d_head` | width of one head |
# | `n_new`, `n_cached` | tokens run now, tokens run before | `vocab_size` | tokens that there are |
#
# **FLOP** is a floating-point operation, one multiply or one add; FLOPs is the plural, FLOP/s a
# speed. GB is 10⁹ bytes, GiB is 2³⁰ bytes.

# %%
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from inferlab.checkpoints.read_config import read_config
from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.config import ModelConfig
from inferlab.data import load_config, load_devices, load_models, model_preset
from inferlab.kv_cache import kv_cache_bytes
from inferlab.roofline import body_params
from labkit.explorer import explore
from labkit.figures import roofline as roofline_figures
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured, pick
from labkit.measure.models import trained_model
from labkit.units import format_bytes, format_quantity, format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# Some words first; they carry the whole course.
#
# - A **token** is a piece of text, a word or a part of one. A model knows a fixed list of them, its
#   **vocabulary**, and sees a text as a row of whole numbers.
# - Inside, each token is a row of `d_model` numbers. It passes through a stack of **layers**, each
#   of which changes the row and hands it on.
# - A layer multiplies rows by matrices. The numbers in these matrices were found by training; they
#   are the model's **parameters**, or weights. Llama-3-8B has 8.03 billion of them.
# - Behind the last layer one more matrix, the **head**, gives a number for each token of the
#   vocabulary: the larger, the likelier that this token comes next. One is chosen.
#
# So a model reads a **prompt** and then writes an answer, one token at a time, and each new token
# goes through the whole model to give the next one. Reading the prompt, all of its tokens together
# in one pass, is the **prefill**. Each pass after it, for one token, is a **decode step**.
#
# Now the riddle of this lesson. An H100 computes 989 trillion operations a second. A token needs two
# for each weight it is multiplied with. That would be 65,900 tokens a second. In fact a single user
# gets 223, at the very most. Where do the others go?
#
# For each token all weights must be brought from the device's memory to its arithmetic units: 15 GB
# at 3,350 GB/s. That takes far longer than the arithmetic. The picture shows both clocks.

# %%
weights, bandwidth, peak = 7.5e9, 3.35e12, 989.4e12  # weights multiplied, bytes/s, FLOP/s
roofline_figures.two_clocks(
    ["one token"],
    reads_s=[2 * weights / bandwidth],  # 2 bytes a weight
    computes_s=[2 * weights / peak],  # 2 FLOPs a weight
)

# %% [markdown]
# A token of the answer leaves the arithmetic units idle for 99.7 % of its time. And a prompt, whose
# tokens all go through in one pass? Many users who share a pass, fewer bytes a weight, a chip that
# computes faster: which of them helps, whom, and *how much*? To say that, we must count.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you count anything. A wrong guess is worth more than none: it shows where
# your picture of the machine is off. The first one you lodge is the one you will be confronted with.

# %%
predict("rl_prefill_ratio")

# %%
predict("rl_twice_flops")

# %%
predict("rl_rows_ratio")

# %%
predict("rl_never")

# %% [markdown]
# ## 3. Build
#
# ### The operations of a matrix product
#
# Nearly all of a model's work is one thing: rows `x`, one for each token, times a matrix `w` of
# weights. Each number of the result belongs to one row of `x` and one column of `w`: multiply
# them number by number, and add up.

# %%
roofline_figures.product(n_rows=3, d_in=4, d_out=5)

# %% [markdown]
# *Worked example.* In the picture the result has 3 · 5 = 15 numbers. Each is the sum of 4 products: 4
# multiplies and, starting from 0, 4 adds. That makes 15 · 8 = 120 FLOPs.
#
# By convention a multiply and an add count as **two**, although most processors do both at once;
# data sheets count the same way.

# %% exercise="matmul_flops"
from inferlab.roofline import matmul_flops

# %% check="matmul_flops"
check("matmul_flops")

# %% [markdown]
# ### The bytes of a matrix product
#
# Numbers lie in memory, and a processor has room for only a few of them beside its arithmetic units.
# So `x` and `w` must be read, and the result must be written. How many bytes that is depends on how a
# number is stored:
#
# | format | bytes | |
# |---|---|---|
# | `float32` | 4 | what NumPy models here use |
# | `bf16`, `fp16` | 2 | 16 bits; how most models are published |
# | `int8`, `fp8` | 1 | 8 bits, lesson 07 |
# | `int4` | ½ | 4 bits, two to a byte; weights only, as a rule |
#
# bf16 ("brain float") is the upper half of a `float32`: the same range of sizes, but only 2 to 3
# significant digits. Weights may be stored in fewer bytes than the rows that meet them.
#
# *Worked example.* (3 × 4) times (4 × 5) in bf16: 12 numbers of x, 20 of w and 15 of the result, 47 in
# all, 94 bytes. With 8-bit weights the 20 take one byte each: 74.

# %% exercise="matmul_bytes"
from inferlab.roofline import matmul_bytes

# %% check="matmul_bytes"
check("matmul_bytes")

# %% [markdown]
# This is the least that must move. A real program may move more, when it reads a matrix twice
# because it did not fit beside the arithmetic units.
#
# ### Arithmetic intensity
#
# Now divide the two: how many operations does each moved byte pay for? This one number, the
# **arithmetic intensity**, decides what the work waits for.
#
# *Worked example.* 120 FLOPs for 94 bytes: 1.28 FLOP/byte.

# %% exercise="matmul_intensity"
from inferlab.roofline import matmul_intensity

# %% check="matmul_intensity"
check("matmul_intensity")

# %% [markdown]
# Put tokens through a matrix of 4,096 × 4,096, a usual size, and watch it grow:

# %%
if ready("matmul_intensity"):
    print("rows   bf16     8-bit weights   4-bit weights   (FLOP/byte)")
    for n_rows in (1, 2, 32, 2000, 100_000):
        by_width = [matmul_intensity(n_rows, 4096, 4096, 2, b) for b in (2, 1, 0.5)]
        print(f"{n_rows:7,d}" + "".join(f"{value:10.2f}     " for value in by_width))

# %% [markdown]
# With few rows the weights are nearly all that moves, and each of them does 2 FLOPs a row. So the
# intensity of **one** row is 2 divided by the bytes a weight takes: 1 in bf16, 2 in 8 bits, 4 in 4
# bits. Each further row adds as much, at first. But rows have to move as well: 2,000 rows
# reach 1,012 FLOP/byte, not 2,000, and no number of rows passes 2,048 in bf16.
#
# ### Two figures of a data sheet
#
# What a device can do fits in two numbers. Its **memory bandwidth** says how many bytes reach the
# arithmetic units in a second. Its **peak** says how many FLOPs they do in a second, at best; it
# depends on the **precision**, the format that they compute in. Data sheets mix prefixes: GB/s and
# TB/s for the first, TFLOP/s for the second.
#
# And they like to print the peak *with sparsity*: twice the number, reached only by weights of which
# every second one is zero in a fixed pattern. Models that you meet are **dense**. The course's
# records hold dense peaks only. Where a device has no units for a precision, the record says `None`.

# %%
record = load_devices()["h100-sxm"]
print({key: record[key] for key in ("name", "memory_gb", "bandwidth_gb_s", "peak_dense_tflops")})

# %% [markdown]
# *Worked example.* From that record, in bf16: `(3.35e12, 9.894e14)`. For `"fp4"` there is no peak, so
# it is a `ValueError`.

# %% exercise="device_rates"
from inferlab.roofline import device_rates

# %% check="device_rates"
check("device_rates")

# %% [markdown]
# ### The ridge
#
# Work with $F$ FLOPs and $M$ bytes takes at least $M / \text{bandwidth}$ seconds to bring and
# $F / \text{peak}$ seconds to compute. The two happen at the same time, so the longer one decides. They
# are equal where the intensity $F / M$ is $\text{peak} / \text{bandwidth}$. This is the device's
# **ridge point**. Below it work is *memory-bound*, above it *compute-bound*.
#
# *Worked example.* A device of 1,000 TFLOP/s and 3,000 GB/s: $10^{15} / (3 \cdot 10^{12}) = 333.3$
# FLOP/byte. One row in bf16 has an intensity of 1, so it uses 1/333 of the peak: 0.3 %.

# %% exercise="ridge_point"
from inferlab.roofline import ridge_point

# %% check="ridge_point"
check("ridge_point")

# %% [markdown]
# The ridge moves with the precision of the *arithmetic*. Weights that are stored in 4 bits but turned
# into bf16 before they are multiplied leave it where it is; they raise the intensity.
#
# ### The roofline
#
# What speed is left, then? Each byte pays for `intensity` FLOPs, and bandwidth says how many bytes
# come in a second. That is a slope. The peak is a ceiling. Together they look like a roof.
#
# *Worked example.* The device of before: at 1 FLOP/byte 3 TFLOP/s, at 100 it is 300, at 1,000 it is the
# peak of 1,000 and no more.

# %% exercise="attainable_flops_per_s"
from inferlab.roofline import attainable_flops_per_s

# %% check="attainable_flops_per_s"
check("attainable_flops_per_s")

# %% [markdown]
# Six devices, with the roof drawn by **your** function. The dotted lines are products with a matrix of
# 4,096 × 4,096: one row (one user gets a token), 32 rows (32 users share a step), 2,000 rows (a prompt).

# %%
if ready("attainable_flops_per_s", "matmul_intensity", "device_rates"):
    shown = {
        "h100-sxm": "H100 SXM", "h200-sxm": "H200 SXM", "a100-80-sxm": "A100 80 GB SXM",
        "l4": "L4", "apple-m4-max": "Apple M4 Max", "laptop-cpu": "8-core laptop CPU",
    }  # fmt: skip
    devices = load_devices()
    roofline_figures.roofs(
        {label: device_rates(devices[name], "bf16") for name, label in shown.items()},
        {
            "1 row": matmul_intensity(1, 4096, 4096),
            "32 rows": matmul_intensity(32, 4096, 4096),
            "2,000 rows": matmul_intensity(2000, 4096, 4096),
        },
        attainable_flops_per_s,
    )

# %% [markdown]
# Three things to see. At one row the order of the devices is that of their *bandwidths*: the peak
# plays no part. The H200 has the H100's peak and 1.43 times its bandwidth: it helps on the slope and
# not on the ceiling. And the laptop reaches its ceiling with a dozen rows; a big GPU needs hundreds.
# The confrontation with your prediction:

# %%
confront("rl_twice_flops")

# %% [markdown]
# ### What a model is made of
#
# Now from one matrix to all of them. A layer has two parts. In **attention** a token gathers from the
# tokens before it; in the **MLP** it is worked on alone.
#
# Attention has four matrices. Three make, from a token's row, its **query** (what am I looking for?),
# its **key** (what do I offer?) and its **value** (what do I hand over?). A token's query is compared
# with the keys of all tokens up to itself, and their values are mixed accordingly. The fourth
# matrix, the **output**, turns the mix back into a row of `d_model`.
#
# All this happens in several **heads** side by side, each with `d_head` numbers a query, key or
# value. Often several query heads share one head of keys and values, a **KV head** (lesson 05): so
# queries are `n_heads * d_head` wide, keys and values `n_kv_heads * d_head`. And `d_head` is a number
# of its own: Qwen3-0.6B has `d_model` 1,024, 16 heads, and `d_head` 128, not 64.
#
# Some models add small things. A **bias** is one more number for each column of a matrix, added to
# the result. A **gain** is one for each number of a row that was *normed*, brought to size 1 on average,
# before it is used.
#
# *Worked example.* `d_model` 10, 4 query heads and 2 KV heads of 3 numbers: queries 10 · 12, keys and
# values 10 · 6 each, output 12 · 10. Together 360.

# %% exercise="attention_params"
from inferlab.params import attention_params

# %% check="attention_params"
check("attention_params")

# %% [markdown]
# The MLP is two matrices: *up* widens a row from `d_model` to `d_ff`, *down* brings it back, and a
# bending function stands between. Most current models have a third, the **gate**, as large as *up*:
# its result is multiplied with that of *up*, number by number (lesson 02).
#
# *Worked example.* `d_model` 10, `d_ff` 7: 70 numbers a matrix; 210 with a gate, 140 without.

# %% exercise="mlp_params"
from inferlab.params import mlp_params

# %% check="mlp_params"
check("mlp_params")

# %% [markdown]
# Before the first layer stands the **embedding**: a table with a row of `d_model` numbers for each
# token of the vocabulary. A token's row is looked up there, nothing is multiplied. Behind the last
# layer stands the head, a matrix of the same size. Some models use one array for both; their embeddings
# are **tied**. A **norm** has one gain for each of `d_model` numbers (an older kind, *layer norm*, has
# a bias for each as well).
#
# *Worked example.* `d_model` 10, 50 tokens, tied, 3 layers of 360 + 210 numbers with two norms each, a
# last norm: 500 + 3 · (570 + 20) + 10 = 2,280.

# %% exercise="dense_params"
from inferlab.params import dense_params

# %% check="dense_params"
check("dense_params")

# %% [markdown]
# Your count against what was published, for every dense model in the course's data (models whose
# MLP is split into experts come in lesson 09, another kind of attention in lesson 05):

# %%
if ready("attention_params", "mlp_params", "dense_params"):
    dense = [m for m in load_models().values() if not m["moe"] and not m["mla"]]
    right = 0
    for model in dense:
        yours, published = (
            dense_params(model_preset(model["id"])),
            model["computed"]["params_total"],
        )
        right += yours == published
        print(
            f"{model['id']:<16} {yours:>15,d}  {'as published' if yours == published else published}"
        )
    print(f"{right} of {len(dense)} to the last parameter")

# %%
if ready("attention_params", "mlp_params", "dense_params"):
    names = ["gpt2", "llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-0.6b"]
    configs = [model_preset(name) for name in names]
    attention = [c.n_layers * attention_params(c) for c in configs]
    mlp = [c.n_layers * mlp_params(c) for c in configs]
    outside = [dense_params(c) - a - m for c, a, m in zip(configs, attention, mlp, strict=True)]
    roofline_figures.shares(
        names, {"attention": attention, "MLP": mlp, "embedding and head": outside}
    )

# %% [markdown]
# You will read that "one third is attention, two thirds are MLP". That was so: with 4 square matrices
# and an MLP of two that are four times as wide, a layer has 4 and 8 parts. GPT-2 and Llama-2-7B still
# look like it. Shared KV heads make attention smaller and gates make the MLP larger: in the layers of
# Llama-3-8B it is 19 % and 81 %. Count; do not quote. (A cache of
# keys and values, by contrast, knows nothing of parameters: lesson 04.)
#
# ### The FLOPs of one token
#
# Every weight of a matrix meets the token's row once: 2 FLOPs each. Which weights are in a matrix?
# The projections of attention and the MLP, together the **body**; `body_params(config)`, given, counts
# them. And the head. Not the embedding: it is only looked up. Gains and biases are too few to matter.
#
# Attention comes on top. In each query head of each layer the token compares its query with every
# key that it sees, `d_head` multiplies and adds, and mixes as many values: `d_head` multiplies and
# adds again. This grows with the text.
#
# *Worked example.* Llama-3-8B: 7,504,658,432 weights in body and head, so 15,009,316,864 FLOPs. Each key
# costs 4 · 32 layers · 32 heads · 128 = 524,288 more. With 8,192 keys that is 4.29 billion: 29 % on top.

# %% exercise="token_flops"
from inferlab.roofline import token_flops

# %% check="token_flops"
check("token_flops")

# %% [markdown]
# The rule that everybody quotes is "2 FLOPs for each parameter and token", or **2P**. It is a good rule
# and it is wrong in two directions: it counts the embedding of an untied model, which multiplies
# nothing, and it forgets attention. (2P is also the *bytes* of a model in bf16: the same digits, another
# thing, and only in bf16.) Here is the exact count divided by the rule:

# %%
if ready("token_flops", "dense_params"):
    n_keys = [1, 8, 64, 512, 4096, 32_768]
    ratios = {}
    for name in ("llama-3-8b", "llama-3-70b", "qwen3-0.6b"):
        config = model_preset(name)
        rule = 2 * dense_params(config)
        ratios[name] = [token_flops(config, n) / rule for n in n_keys]
        print(f"{name}: {ratios[name][0]:.3f} at 1 key, {ratios[name][-1]:.2f} at {n_keys[-1]:,}")
    roofline_figures.rule(n_keys, ratios)

# %% [markdown]
# For the 8B model at its first token the rule says 7 % too much; at 32,768 tokens half of what is done.
# Small models with many heads leave it earliest. Use it for short texts and large models, and say so.
#
# ### The FLOPs of a pass
#
# A prefill runs many tokens in one pass. Each sees the tokens before it and itself: the first sees one
# key, the second two, and so on (attention looks back only). If earlier tokens were run before, their
# keys and values are kept in memory, the **KV cache** (lesson 04), and are seen as well.
#
# One thing is *not* done for all. The head tells what comes next, and for a prompt that is asked
# behind its last token only.
#
# *Worked example.* Two new tokens on top of 5: they see 6 and 7 keys. Both pay for the body, the
# second alone for the head.

# %% exercise="forward_flops"
from inferlab.roofline import forward_flops

# %% check="forward_flops"
check("forward_flops")

# %%
if ready("forward_flops"):
    config = model_preset("llama-3-8b")
    print("prompt     exact          2P rule        of it attention")
    for n in (50, 2000, 8192, 32_768):
        exact, rule = forward_flops(config, n), 2 * config.n_params * n
        attention = 2 * config.n_layers * config.n_heads * config.d_head * n * (n + 1)
        print(
            f"{n:6,d}   {exact / 1e12:8.2f} TFLOP {rule / 1e12:8.2f} TFLOP   {attention / exact:6.1%}"
        )

# %% [markdown]
# Running the head at all 2,000 positions would add 2.10 TFLOP, and an array of 2,000 × 128,256 logits
# that nobody reads. Attention's share grows with the prompt, because its work grows with the square:
# at some 53,000 tokens it equals that of the weights.
#
# ### The bytes of a pass
#
# A pass reads every weight of body and head **once**, however many tokens and users it runs. That is
# what they share. And it reads what they do not share: the kept keys and values of each user, whom
# engines call a **sequence**; those that share a pass are a **batch**. `kv_cache_bytes(config,
# n_tokens, n_sequences, bytes_per_number)` counts the kept ones; it is given here, and you will write
# it in lesson 04: for each layer, KV head and token, one key and one value of `d_head` numbers.
#
# *Worked example.* Llama-3-8B in bf16 keeps 131,072 bytes a token. Two sequences of 1,000 tokens:
# 15.01 GB of weights and 0.26 GB of cache, 15.27 GB in all.

# %% exercise="step_bytes"
from inferlab.roofline import step_bytes

# %% check="step_bytes"
check("step_bytes")

# %% [markdown]
# ### The time of a pass
#
# You have bytes and FLOPs; a device gives bytes a second and FLOPs a second. The larger of the two
# times is a **lower bound**: as if reading and computing overlapped perfectly and nothing else took
# time. (Their *sum* is what it would take if they took turns, at most twice as much. It is no lower
# bound.)
#
# *Worked example.* Llama-3-8B on an H100, one decode step of one user with 1,000 tokens: 15.14 GB /
# 3,350 GB/s = 4.52 ms of reading, 15.5 GFLOP / 989.4 TFLOP/s = 0.016 ms of computing. So 4.52 ms,
# or 221 tokens a second at the very most.

# %% exercise="step_bound_s"
from inferlab.roofline import step_bound_s

# %% check="step_bound_s"
check("step_bound_s")

# %%
if ready("step_bound_s", "device_rates"):
    config, h100 = model_preset("llama-3-8b"), device_rates(load_devices()["h100-sxm"], "bf16")
    for n in (50, 295, 2000, 8192):
        print(
            f"prefill of {n:5,d} tokens    {format_seconds(step_bound_s(config, n, 0, *h100, 2))}"
        )
    for n_sequences, n_cached in ((1, 1), (1, 8192), (32, 1), (32, 1024), (32, 8192)):
        step_s = step_bound_s(config, 1, n_cached, *h100, 2, n_sequences)
        print(
            f"decode, {n_sequences:2d} x {n_cached:5,d} tokens   {format_seconds(step_s)}, "
            f"{1 / step_s:5.0f} tokens/s a user, {n_sequences / step_s:6,.0f} in all"
        )
confront("rl_prefill_ratio")

# %% [markdown]
# The two clocks again, by **your** functions: one token, and a prompt of 2,000.

# %%
if ready("step_bytes", "forward_flops", "device_rates"):
    config, h100 = model_preset("llama-3-8b"), device_rates(load_devices()["h100-sxm"], "bf16")
    passes = {"one token": (1, 0), "a prompt of 2,000 tokens": (2000, 0)}  # new, cached
    roofline_figures.two_clocks(
        list(passes),
        reads_s=[step_bytes(config, n_cached, 1, 2) / h100[0] for _, n_cached in passes.values()],
        computes_s=[forward_flops(config, *n) / h100[1] for n in passes.values()],
    )

# %% [markdown]
# Read picture and table slowly; they are the economy of serving.
#
# - The prompt does nearly 2,000 times the arithmetic of a token and takes less than seven times as
#   long: both passes bring the same weights, once.
# - A prompt of 50 tokens takes no less than one of 200: both wait for the weights. The prefill of
#   *this* model on *this* device is compute-bound from about 300 tokens on, not "always".
# - 32 users get nearly 32 times the tokens of one, while their texts are short. You will read "over
#   6,000 tokens a second"; that holds up to 681 tokens each. At 8,192 tokens the caches of 14 users
#   outweigh the weights, and 32 users fall to less than a third of the speed of one.
# - "Tokens a second" are two numbers: what one user sees, and what the server makes. A batch raises
#   the second and never the first.
# - A decode step does not take constant time. It grows with each token that is kept.
#
# ### Where the balance turns
#
# So how many users must share a step until arithmetic is the limit? The answer you will read is "the
# ridge, about 300". Look at both times as the batch grows, with 100 and with 8,192 tokens of context:

# %%
if ready("step_bytes", "forward_flops", "device_rates"):
    config, h100 = model_preset("llama-3-8b"), device_rates(load_devices()["h100-sxm"], "bf16")
    batches = [1, 4, 16, 64, 256, 1024, 4096]
    for n_cached in (100, 8192):
        roofline_figures.bound(
            f"Llama-3-8B on an H100: a decode step with {n_cached:,} tokens of context",
            "sequences in the batch (count)",
            batches,
            reads_s=[step_bytes(config, n_cached, b, 2) / h100[0] for b in batches],
            computes_s=[b * forward_flops(config, 1, n_cached) / h100[1] for b in batches],
        )

# %% [markdown]
# With $n$ sequences reading takes $w + n r$ seconds ($w$ for the weights, $r$ for one cache) and
# computing takes $n c$. If $c > r$ the second catches up, at $n = w / (c - r)$. If $r \ge c$ it never
# does: each further user adds more reading than computing.
#
# *Worked example.* No context, so $r = 0$: $w / c$. One token does 2 FLOPs for each weight, so this is
# the ridge times the bytes of a weight, divided by 2. In bf16 that is the ridge itself; with 8-bit
# weights and bf16 arithmetic half of it, with 4-bit weights a quarter. (8-bit arithmetic doubles the
# ridge too: back to the same number.)

# %% exercise="compute_bound_batch"
from inferlab.roofline import compute_bound_batch

# %% check="compute_bound_batch"
check("compute_bound_batch")

# %%
if ready("compute_bound_batch", "device_rates"):
    h100 = device_rates(load_devices()["h100-sxm"], "bf16")
    contexts = list(range(1601))
    roofline_figures.batch(
        contexts,
        {
            name: [compute_bound_batch(model_preset(name), n, *h100, 2) for n in contexts]
            for name in ("llama-3-8b", "llama-3-70b", "llama-2-7b")
        },
    )
confront("rl_never")

# %% [markdown]
# Llama-3-8B on an H100 is never compute-bound in decoding when its users hold more than 393 tokens
# each, whatever the batch. Llama-3-70B lasts to 1,476: it does nine times the arithmetic a token and
# keeps two and a half times the cache. Llama-2-7B, where every query head has keys and values
# of its own, ends at 85. So "a large enough batch makes decoding compute-bound" holds for short texts
# only. And note what a batch past the balance would do: throughput stays, and everybody waits longer.
#
# The same arithmetic with knobs. Raise the batch, then the context: watch the decode step climb the roof,
# the two speeds part, and the mark of the memory come closer. Lodge what you expect under "try it" first.

# %%
explore("01")

# %% [markdown]
# ## 4. Measure
#
# Two figures describe *your* machine as well, and they need no data sheet: time a product that only
# reads, and one that only computes. Then the same matrix is multiplied by 1 row, 2 rows, up to 512.
# It takes 134 MB in `float32`. That is on purpose: processors keep what they used last in small fast
# memories, their **caches** (no relation of the KV cache), up to tens of MB. A matrix that fits there
# is not read from memory at all, and would beat the roof.

# %%
if not grading() and ready("matmul_flops", "matmul_intensity", "attainable_flops_per_s"):
    bandwidth, peak = timing.read_bandwidth(repeat=9), timing.matmul_peak()
    print(describe("cpu", "float32"))
    print(
        f"measured: {bandwidth / 1e9:.1f} GB/s, {peak / 1e9:.0f} GFLOP/s, ridge {peak / bandwidth:.1f}"
    )
    rows, d_in, d_out = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], 4096, 8192
    w, seconds = np.ones((d_in, d_out), dtype=np.float32), []
    for n in rows:
        x, out = np.ones((n, d_in), np.float32), np.empty((n, d_out), np.float32)
        timed = timing.measure(lambda x=x, out=out: np.matmul(x, w, out=out), repeat=3)
        seconds.append(timed.low_s)
    intensities = [matmul_intensity(n, d_in, d_out, 4) for n in rows]
    speeds = [matmul_flops(n, d_in, d_out) / s for n, s in zip(rows, seconds, strict=True)]
    roofline_figures.own_roof(
        rows, intensities, speeds, bandwidth, peak, attainable_flops_per_s, describe()
    )

# %% [markdown]
# The prediction beside the measurement, as times:

# %%
if not grading() and ready("matmul_flops", "matmul_intensity", "attainable_flops_per_s"):
    print("rows   at least     measured    share of the roof reached")
    for n, i, s in zip(rows, intensities, seconds, strict=True):
        least = matmul_flops(n, d_in, d_out) / attainable_flops_per_s(i, bandwidth, peak)
        print(f"{n:4d}   {format_seconds(least):>9}   {format_seconds(s):>9}    {least / s:.0%}")
    confront("rl_rows_ratio", f"{seconds[rows.index(64)] / seconds[0]:.1f}x")

# %% [markdown]
# **Reading it.** One row comes close to the slope, and hundreds of rows to the ceiling. Between 2 and 16
# rows the time hardly changes with the rows: that is the free ride of a batch. Behind the ridge it
# doubles with them. But look at the jump from 1 row to 2. A product of one row only reads. For more,
# the library first copies `w` into the order that its inner loop likes (*packing*): the matrix
# is read, written and read again, where the roof counts one reading. With many rows that is paid once
# for all. And at the corner the roof supposes that reading and computing overlap perfectly, which no
# processor does.
#
# A share a little above 100 % says that the roof itself was measured while the machine did something
# else; one far above it, that your processor's cache holds the matrix, so that memory was not asked.
#
# On a GPU, in 16-bit numbers, the same with the GPU's own two figures:

# %%
if not grading() and ready("matmul_flops", "matmul_intensity", "attainable_flops_per_s"):
    device = pick()
    if device == "cpu":
        not_measured("the same on a GPU needs a CUDA or MPS device")
    else:
        import torch

        dtype = "bfloat16" if device == "cuda" and torch.cuda.is_bf16_supported() else "float16"
        bandwidth_there = timing.read_bandwidth(2**30, device=device)
        peak_there = timing.matmul_peak(8192, device=device, dtype=dtype)
        w_there = torch.ones(8192, 8192, device=device, dtype=getattr(torch, dtype))
        speeds_there, intensities_there = [], [matmul_intensity(n, 8192, 8192) for n in rows]
        for n in rows:
            x_there = torch.ones(n, 8192, device=device, dtype=getattr(torch, dtype))
            timed = timing.measure(
                lambda x=x_there: x @ w_there, repeat=20, warmup=3, device=device, torch=torch
            )
            speeds_there.append(matmul_flops(n, 8192, 8192) / timed.median_s)
        roofline_figures.own_roof(
            rows, intensities_there, speeds_there, bandwidth_there, peak_there,
            attainable_flops_per_s, describe(device, dtype),
        )  # fmt: skip

# %% [markdown]
# ### A whole model
#
# SmolLM2-135M-Instruct, a trained model of 134,515,008 parameters, on your processor in `float32`. One
# decode step with 16 to 1,024 tokens in its cache, beside your bounds. **Before you run it:** by how
# much will the step at 1,024 tokens be slower than that at 16?

# %%
model = trained_model("smollm2")
if model and ready("step_bytes", "forward_flops"):
    config, lengths, measured = model.config, [16, 64, 256, 1024], []
    bandwidth, peak = timing.read_bandwidth(repeat=9), timing.matmul_peak()
    cache = model.new_cache(capacity=1040)
    for n in lengths:
        model.next_logits([5] * (n - cache.n_tokens), cache)

        def step(n=n):
            model.next_logits([5], cache)
            cache.truncate(n)

        measured.append(timing.measure(step, repeat=5).median_s)
    reads = [step_bytes(config, n, 1, 4) / bandwidth for n in lengths]
    computes = [forward_flops(config, 1, n) / peak for n in lengths]
    roofline_figures.bound(
        "SmolLM2-135M: one decode step", "length of the cache (tokens)",
        lengths, reads, computes, measured, describe(),
    )  # fmt: skip
    for n, seconds_n, r in zip(lengths, measured, reads, strict=True):
        weights = step_bytes(config, 0, 1, 4) / step_bytes(config, n, 1, 4)
        print(
            f"{n:5,d} tokens: {format_seconds(seconds_n)}, bound {format_seconds(r)} "
            f"({r / seconds_n:.0%} reached); {weights:.0%} of the bytes are weights"
        )

# %% [markdown]
# **Reading it.** The bound is that of reading, by far, and it hardly grows: 1,024 tokens of this model's
# cache are 47 MB beside 538 MB of weights. The measured step stays above it. It does more than the
# bound knows: hundreds of small operations (norms, softmax, adding up) that are started one by one
# from Python, and attention over the cache in pieces too small to use the memory well. That is why
# the measured time grows faster with the cache than the bytes do.
#
# The share that is reached has a name, **bandwidth utilisation**. On GPUs good engines reach 60 to
# 80 % of it in decoding. Above 100 % would mean that an assumption is wrong: fewer bytes a weight than
# you thought, a cache that holds the weights, or several tokens a step (lesson 08).

# %% [markdown]
# ## 5. Explain
#
# In five to eight sentences, for a colleague who buys hardware: **a chip with twice the peak FLOP/s and
# the same memory is on offer. For whom is it worth its price?** Say what limits a prompt and what limits
# each token of an answer; give one number with its unit for a model and a device of your choice; and
# name a case in which your answer would be another one.

# %% [markdown] written="rl_explain" points=3
# **Sample answer.** A pass must read its weights and compute with them, and the slower of the two
# decides. For one user's next token each 2-byte weight does 2 FLOPs, so the arithmetic intensity is
# 1 FLOP/byte, while an H100 needs 295 before its arithmetic units are the limit. Llama-3-8B reads
# 15 GB a token, 4.5 ms at 3,350 GB/s, whatever the peak is: the new chip streams no faster. A prompt
# runs thousands of tokens through the same weights; from about 300 tokens on it is compute-bound, and
# its time, the wait for the first word, would halve. So it is worth its price for long prompts and
# short answers: search over documents, summaries, classification. For chats and reasoning buy
# bandwidth, or store fewer bytes a weight. It would be otherwise if hundreds of users with short texts
# shared each step: then decoding is compute-bound too. With long texts it never is, since each user's
# keys and values must be read as well.
#
# **Rubric** (1 point each): *mechanism*: reading against computing, with prompt and answer on different
# sides; *number*: a time, a ridge or an intensity that is right, with its unit; *limit*: a case in which
# it turns (large batch and short context, short prompt, or the cache's share).

# %% [markdown]
# ## 6. In the wild
#
# **From a `config.json` to seconds.** Every model on the Hugging Face hub carries one. These fields are
# all that your functions need; the course keeps copies.

# %%
raw = load_config("llama-3-8b")
print({key: raw[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers",
                                 "num_attention_heads", "num_key_value_heads", "vocab_size",
                                 "tie_word_embeddings", "torch_dtype")})  # fmt: skip

# %%
if ready("attention_params", "mlp_params", "dense_params", "step_bound_s", "device_rates"):
    for name in ("llama-3-8b", "qwen2.5-7b", "qwen3-0.6b", "smollm2-135m"):
        config = read_config(load_config(name))
        n_params = dense_params(config)
        print(f"{name}: {n_params:,} parameters, {format_bytes(2 * n_params)} in bf16")
        for device_name in ("h100-sxm", "rtx-4090", "laptop-cpu"):
            rates = device_rates(load_devices()[device_name], "bf16")
            token_s = step_bound_s(config, 1, 1000, *rates, 2)
            prompt_s = step_bound_s(config, 2000, 0, *rates, 2)
            print(
                f"    {device_name:<11} prompt of 2,000 tokens {format_seconds(prompt_s):>8}, "
                f"then at most {1 / token_s:,.0f} tokens/s"
            )

# %% [markdown]
# Traps: `head_dim` missing or null means `hidden_size / num_attention_heads`, present it means what it
# says. `tie_word_embeddings` missing means *true* in some families and *false* in others: ask the
# library. `torch_dtype` is what the file stores, not what an engine must compute in.
#
# **What to distrust on a data sheet.**
#
# - *Sparse peaks.* NVIDIA's H100 page prints 1,979 TFLOP/s for bf16, with sparsity. Dense: 989.4.
# - *Prefixes and bits.* 3.35 TB/s is 3,350 GB/s. A link "of 400 Gb/s" carries bits: 50 GB/s.
# - *Names.* An H100 PCIe has 2,000 GB/s and 756.5 TFLOP/s, an H100 SXM 3,350 and 989.4. An A10G is not
#   an A10. GeForce cards do half the rate when they add up in `float32`, which is what models need.
# - *Precision.* A T4 has no bf16 units; a laptop's processor is no faster in bf16 than in `float32`.
# - *Size.* An "80 GB" A100 reports 85,198,045,184 bytes: 79.3 GiB.
# - *Peaks are not reached.* The best measured products come to about 80 % of the peak on an H100 and
#   half of it on an MI300X.
#
# **What tools say.** `nvidia-smi` shows "GPU-Util 100 %" when *some* program was running on the GPU all
# the time. A decode step of one user does that with 0.3 % of the arithmetic in use. `llama-bench`
# prints two speeds, `pp512` (a prompt of 512 tokens) and `tg128` (128 tokens of an answer): one for each
# side of the ridge. In vLLM `--max-num-seqs` bounds the batch of a step and
# `--max-num-batched-tokens` the tokens of a pass: the two axes of this lesson.
#
# **What breaks.** A speed promised from FLOPs. A batch size tuned at 100 tokens of context and run at
# 8,000. A model "quantized to 4 bits" that computes in bf16: each answer is faster, prompts are not.
#
# PyTorch counts FLOPs as well. Do you agree?

# %%
if not grading() and ready("matmul_flops"):
    try:
        import torch
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        not_measured("PyTorch's counter needs that package: pip install torch")
    else:
        with FlopCounterMode(display=False) as counter:
            torch.ones(200, 300) @ torch.ones(300, 500)
        print(f"PyTorch counts {counter.get_total_flops():,}, you {matmul_flops(200, 300, 500):,}")

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 ms"`, `"3 GFLOP"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("rl_q_product")

# %% answer="rl_q_product"
answers["rl_q_product"] = "4.02653 GFLOP"

# %% answer_check="rl_q_product"
answers.check("rl_q_product")

# %%
answers.ask("rl_q_ridge")

# %% answer="rl_q_ridge"
answers["rl_q_ridge"] = "346.250 FLOP/B"

# %% answer_check="rl_q_ridge"
answers.check("rl_q_ridge")

# %%
answers.ask("rl_q_decode")

# %% answer="rl_q_decode"
answers["rl_q_decode"] = "123.077 tok/s"

# %% answer_check="rl_q_decode"
answers.check("rl_q_decode")

# %%
answers.ask("rl_q_aggregate")

# %% answer="rl_q_aggregate"
answers["rl_q_aggregate"] = "761.905 tok/s"

# %% answer_check="rl_q_aggregate"
answers.check("rl_q_aggregate")

# %%
answers.ask("rl_q_attention")

# %% answer="rl_q_attention"
answers["rl_q_attention"] = "19,660,800"

# %% answer_check="rl_q_attention"
answers.check("rl_q_attention")

# %%
answers.ask("rl_q_prompt")

# %% answer="rl_q_prompt"
answers["rl_q_prompt"] = "80 tok"

# %% answer_check="rl_q_prompt"
answers.check("rl_q_prompt")

# %%
answers.ask("rl_q_bound")

# %% answer="rl_q_bound"
answers["rl_q_bound"] = "7.80000 ms"

# %% answer_check="rl_q_bound"
answers.check("rl_q_bound")

# %%
answers.ask("rl_q_halve")

# %% answer="rl_q_halve"
answers["rl_q_halve"] = "1.35135x"

# %% answer_check="rl_q_halve"
answers.check("rl_q_halve")

# %%
answers.ask("rl_q_beyond")

# %% answer="rl_q_beyond"
answers["rl_q_beyond"] = "c"

# %% answer_check="rl_q_beyond"
answers.check("rl_q_beyond")

# %%
answers.ask("rl_q_never")

# %% answer="rl_q_never"
answers["rl_q_never"] = "c"

# %% answer_check="rl_q_never"
answers.check("rl_q_never")

# %%
answers.ask("rl_q_thirds")

# %% answer="rl_q_thirds"
answers["rl_q_thirds"] = "d"

# %% answer_check="rl_q_thirds"
answers.check("rl_q_thirds")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>A user says “your model is slow”. What do you ask first?</b></summary>
#
# Which phase: a long wait for the first word (queue and prefill), or a slow stream (decode)? Then the
# lengths of prompt and answer, and how many users at once. *Follow-up: one fix that helps only each
# phase?* More FLOP/s for the prompt; fewer bytes a weight for the stream.
# </details>
#
# <details><summary><b>Why does a petaflop-class GPU give one user only a few hundred tokens a
# second?</b></summary>
#
# Each token reads every weight once and does 2 FLOPs with it: 1 FLOP/byte in bf16 against a ridge of
# hundreds. *Follow-up: which figure of the data sheet predicts it?* Bandwidth over the bytes of the
# weights: 3,350 / 16.06 = 209 tokens/s for all of Llama-3-8B, 223 for what is really read.
# </details>
#
# <details><summary><b>The ridge of an H100 in bf16, and in FP8?</b></summary>
#
# 989.4 / 3.35 = 295.3 FLOP/byte; 1,978.9 / 3.35 = 590.7. *Follow-up: 4-bit weights and bf16
# arithmetic?* The ridge stays at 295; a token's intensity rises from 1 to 4.
# </details>
#
# <details><summary><b>From which prompt length on is a prefill compute-bound?</b></summary>
#
# About ridge · bytes a weight / 2: 295 tokens in bf16 on an H100. *Follow-up: what bounds a prompt of
# 50?* Reading the weights once, 4.48 ms for Llama-3-8B.
# </details>
#
# <details><summary><b>Does a large enough batch always make decoding compute-bound?</b></summary>
#
# No. Each sequence adds its own cache to the reading. At 8,192 tokens Llama-3-8B's intensity tends to
# 18 FLOP/byte, whatever the batch; beyond 393 tokens it stays below the H100's ridge. *Follow-up: why does
# sharing KV heads help?* Less cache for the same arithmetic: without it Llama-2-7B ends at 85.
# </details>
#
# <details><summary><b>Is max(memory, compute) a lower or an upper bound on time?</b></summary>
#
# A lower one: perfect overlap and nothing else. The sum is at most twice it. *Follow-up: three things
# that neither holds?* Starting the operations, communication between devices, choosing the token.
# </details>
#
# <details><summary><b>How long does a prompt of 8,192 tokens take at least, at 1,000 TFLOP/s?</b></summary>
#
# For Llama-3-8B: 114.3 TFLOP by the weights and 17.6 by attention: 132 ms. The 2P rule says 131.6: two
# errors that cancel here. *Follow-up: at 32,768 tokens?* 739 ms against 526.
# </details>
#
# <details><summary><b>An engine streams 84.3 tokens/s with 15.23 GB read a token on 2,039 GB/s. How good
# is that?</b></summary>
#
# 84.3 · 15.23 = 1,284 GB/s: 63 % of the bandwidth. *Follow-up: it shows 120 %. What now?* Fewer bytes
# are read than you think, or several tokens come from one pass.
# </details>
#
# <details><summary><b>H100 to H200 for a 70B chat: what do you expect?</b></summary>
#
# 4.8 / 3.35 = 1.43 times the tokens a second; the same wait for the first one. *Follow-up: and halving
# the bytes of the weights?* Less than twice: the caches are read as before.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("01_roofline", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - A product of n rows with a matrix does 2 · n · d_in · d_out FLOPs and moves three matrices once.
# - Intensity (FLOP/byte) against the ridge (peak / bandwidth) says what the work waits for.
# - Parameters: attention by heads and KV heads, the MLP by its gate, tables by whether they are tied.
# - A token costs 2 FLOPs for each weight of body and head, and 4 · layers · heads · d_head for each key.
# - A pass reads the weights once and every sequence's cache. Its time is at least the larger of
#   reading and computing. Prefill is on the computing side from some hundred tokens on; decoding is
#   on the reading side, and with long texts no batch brings it over.
#
# **Common mistakes.** Decode speed from FLOPs. The peak with sparsity. The ridge upside down, or TFLOP/s
# over GB/s. Caches left out of a step, or counted once for all users; weights counted once for each.
# One user's speed taken for the server's. The sum of the two times called a lower bound. Keys and
# values counted with all query heads. A tied head counted twice. Intensity of a prompt taken as its
# length. Half the bytes a weight taken as twice the speed.
#
# **References**
#
# - Williams, Waterman, Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, 2009, Communications of the ACM 52(4)
# - Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv 2001.08361 (the 2P rule)
# - Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*, 2019, arXiv 1911.02150
# - Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv 2211.05102
# - Grattafiori et al., *The Llama 3 Herd of Models*, 2024, arXiv 2407.21783
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("01_roofline")
