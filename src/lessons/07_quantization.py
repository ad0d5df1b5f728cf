# %% [markdown]
# # 07 · Quantization: fewer bytes
#
# A decode step is bound by reading: every weight, once, for every token. So the plainest way to a
# faster model is a smaller one. Eight bits a weight in place of sixteen, or four, and the bytes are
# half or a quarter. What is lost depends on where the few levels that remain are put, and there
# most of the craft lies. This lesson builds that craft from one division and one rounding up to the
# methods behind the files that people run.
#
# **You will be able to**
#
# - quantize a matrix with one scale in all, one a channel or one a group, and say what each costs;
# - find the damage that a whole-matrix error hides;
# - pack 4-bit codes bit by bit, multiply without ever unpacking the whole matrix, and round to FP8;
# - use activations to protect the weights that matter, and prove that random ones do not need it;
# - predict the speed and the room that fewer bytes buy: rarely the ratio of the bits.
#
# **Time** about 4 hours: 2 h 45 min for fifteen exercises, the rest for reading, measuring, the written
# answer and the knowledge check.
#
# **You need** NumPy. Lesson 04 (the KV cache) helps; what is used of it is said again.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B` | sequences in the batch | `d_in`, `d_out` | input and output channels of a matrix |
# | `T` | tokens (rows of `x`) | `n_kv_heads`, `d_head` | key/value heads, width of one |
# | `S` | tokens in the cache | `bits`, `group` | bits of a code, weights that share a scale |
#
# **Mind the layout.** Weights are `(d_in, d_out)` here, so that `x @ w` needs no transpose: an *output
# channel* is a **column** of `w`, an *input channel* is a row of `w` and a column of `x`. Papers and
# PyTorch often store `(d_out, d_in)`, where "one scale a row" means what "one scale a column" means
# here.
#
# GB is 10⁹ bytes.

# %%
import math
from collections.abc import Sequence

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.counted_memory import CountedMemory
from inferlab.data import model_preset
from inferlab.fp8 import FORMATS
from inferlab.kv_cache import kv_cache_bytes
from inferlab.quantization import expected_largest, matrix_with_outliers
from inferlab.quantized_model import (
    calibration_inputs,
    kl_divergence,
    log_probabilities,
    perplexity,
    with_changed_weights,
)
from labkit.explorer import explore
from labkit.figures import quantization as quant_figures
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured
from labkit.measure.models import trained_model
from labkit.units import format_bytes

# %% [markdown]
# ## 1. Why it matters
#
# An 8B-style model holds 8 billion weights: 16 GB in bf16. Every decode step reads all of them, and
# the keys and values of every user. With 8 bits a weight it is 8 GB, with 4 bits a little over 4 GB.
# Here are the bytes of one step for a single user with 8,192 tokens.

# %%
cache_gb = kv_cache_bytes(model_preset("8b-style"), 8192) / 1e9
quant_figures.step_bytes(["bf16", "int8", "int4, groups of 128"], [16, 8, 4.125], 3 * [cache_gb])

# %% [markdown]
# Two things to see. The cache, narrow here, is read as before. And int4 is not exactly half a byte:
# something else is stored beside the codes.
#
# Speed is one reason; room is the other. A 70B-style model takes 140 GB in bf16 and fits on no single
# device of 80 GB; in 4 bits it does, with room for users.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. The first one you lodge is the one you will be confronted
# with.

# %%
predict("qz_int4_bytes")

# %%
predict("qz_zero_share")

# %%
predict("qz_batch_speed")

# %%
predict("qz_decode_speed")

# %% [markdown]
# ## 3. Build
#
# ### Codes and a scale
#
# A weight is kept as a small whole number, its **code**, and many weights share one floating-point
# number, their **scale**: weight ≈ scale · code. With 8 bits a signed code runs from -127 to 127 (the
# 256th pattern, -128, is left out: the range stays symmetric). **Absmax** chooses the scale so that
# the largest magnitude gets the code 127:
#
# $$ \text{scale} = \frac{\max |w|}{2^{\text{bits} - 1} - 1}, \qquad
#    \text{code} = \operatorname{round}\!\left(\frac{w}{\text{scale}}\right). $$
#
# *Worked example.* 4 bits, so codes up to 7; weights `[0.7, -0.31, 0.05]`. The scale is 0.7 / 7 = 0.1,
# the codes are `[7, -3, 0]`: back in numbers that is `[0.7, -0.3, 0.0]`.
#
# Which weights share a scale is the question of the first half of this lesson. `axis` says it: all
# of the matrix, each column, or each row. A column or row of zeros has no largest magnitude to divide
# by: its scale is 1.

# %% exercise="quantize_absmax"
from inferlab.quantization import quantize_absmax

# %% check="quantize_absmax"
check("quantize_absmax")

# %% [markdown]
# ### And back
#
# Restoring is one multiplication. Codes of the kind that comes later have a **zero point**, the code
# that stands for 0.0, which is subtracted first.
#
# *Worked example.* Code 3, scale 0.5: 1.5. Code 3, scale 0.5, zero point 128: 0.5 · (3 − 128) = −62.5.

# %% exercise="dequantize"
from inferlab.quantization import dequantize

# %% check="dequantize"
check("dequantize")

# %% [markdown]
# ### What one scale does to the small
#
# Trained models have a few output channels (or input channels) whose weights are many times larger
# than the others'. Let us make such a matrix: 61 ordinary columns and 3 that are 40 times as large.
# Below are 20 weights of an ordinary column, first on the levels of one scale for the whole matrix,
# then on those of a scale for that column.

# %%
w = matrix_with_outliers()  # (512, 64): 512 input channels, 64 output channels
few = w[20:40, 1]
steps = {
    "one scale for the matrix": abs(w).max() / 127,
    "one for this column": abs(w[:, 1]).max() / 127,
}
quant_figures.shared_step(few, steps)

# %% [markdown]
# With one scale, a step is as long as the ordinary weights' standard deviation. Each of them becomes
# -1, 0 or 1 steps, rarely more. How would you notice? The usual number is the relative error of the
# matrix, $\lVert w - \hat w \rVert / \lVert w \rVert$, a norm being the root of a sum of squares. The
# next function takes it over the whole matrix, or over each column or row.
#
# *Worked example.* `w` is `[[3, 4], [100, 0]]` and `[[0, 4], [100, 0]]` came back. The whole matrix: the
# error is 3, the size √(9 + 16 + 10,000) = 100.1: 3 %. By rows: 3/5 = 60 %, and 0 %.

# %% exercise="relative_error"
from inferlab.quantization import relative_error

# %% check="relative_error"
check("relative_error")

# %% [markdown]
# Now look at the matrix with outliers through your own three functions.

# %%
if ready("quantize_absmax", "dequantize", "relative_error"):
    restored = {axis: dequantize(*quantize_absmax(w, 8, axis)) for axis in (None, 0)}
    whole = {axis: float(relative_error(w, r)) for axis, r in restored.items()}
    columns = {axis: relative_error(w, r, 0) for axis, r in restored.items()}
    codes, _ = quantize_absmax(w)
    zeros = (codes[:, :-3] == 0).mean()
    ordinary = float(relative_error(w[:, :-3], restored[None][:, :-3]))
    quant_figures.channel_errors(columns[None], columns[0], whole[None])
    print(f"one scale: whole matrix {whole[None]:.1%}, ordinary columns {ordinary:.1%}")
    print(f"           {zeros:.1%} of the ordinary weights became 0")
    print(f"one scale a column: whole matrix {whole[0]:.2%}, worst column {columns[0].max():.2%}")
confront("qz_zero_share")

# %% [markdown]
# The whole matrix is off by 3.5 %, which sounds harmless. The ordinary columns are off by 30.8 %, and
# 40.9 % of their weights are gone. The norm of the matrix is nearly all in the three large columns, and
# those came through well. **Measure the error by channel**, and give every output channel its own scale:
# 64 scales in place of one bring every column below 1 %.
#
# ### What error to expect
#
# A number that lies anywhere between two levels with equal chance is off by up to half a step, and its
# mean square error is $\text{step}^2 / 12$ (the variance of a uniform distribution of that width). The
# step is the largest magnitude divided by the top code. For weights that are normally distributed the
# largest of `n` grows slowly with `n`; `expected_largest(n)` gives it, in standard deviations: 2.83 for
# 128 numbers, 3.04 for 256.
#
# *Worked example.* 8 bits, 256 weights a scale: 3.044 / (127 · √12) = 0.00692, that is 0.7 %. In 4 bits
# and groups of 128: 2.828 / (7 · √12) = 0.1166. A bit more has twice the levels: half the error, or
# 6.02 dB.

# %% exercise="expected_error"
from inferlab.quantization import expected_error

# %% check="expected_error"
check("expected_error")

# %% [markdown]
# The rule assumes steps that are short beside the weights. Here it is against what your functions
# measure, on ordinary weights with 128 to a scale, and on the matrix with outliers and one scale.

# %%
if ready("quantize_absmax", "dequantize", "relative_error", "expected_error"):
    some_bits = [8, 7, 6, 5, 4, 3]
    normal = w[:128, :-3]  # 128 inputs: one scale a column is one for 128 weights
    measured = {
        "128 ordinary weights a scale": [
            float(relative_error(normal, dequantize(*quantize_absmax(normal, b, 0))))
            for b in some_bits
        ],
        "one scale with outliers": [
            float(relative_error(w[:, :-3], dequantize(*quantize_absmax(w, b))[:, :-3]))
            for b in some_bits
        ],
    }
    quant_figures.error_by_bits(some_bits, [expected_error(b, 128) for b in some_bits], measured)

# %% [markdown]
# Where a step is longer than about two standard deviations, nearly every weight rounds to 0, and the
# error is the weight itself: 100 %, whatever the formula says.
#
# ### A range that is not round zero
#
# Some numbers lie mostly on one side of zero: what comes out of an activation function, or a group of
# weights that happens to be positive. A symmetric range wastes codes on the empty side. The
# **asymmetric** form maps `low .. high` onto 0 to 255 and keeps the code of 0.0, the zero point. The
# range must reach 0, so that 0.0 has a code of its own, exactly: padding and masks are full of it.
#
# *Worked example.* `[-1, 0, 4]`: low −1, high 4, scale 5/255 = 0.0196, zero point 51. The codes are
# `[0, 51, 255]`. Symmetric, the scale would be 4/127 = 0.0315, steps 1.6 times as long.

# %% exercise="quantize_asymmetric"
from inferlab.quantization import quantize_asymmetric

# %% check="quantize_asymmetric"
check("quantize_asymmetric")

# %% [markdown]
# ### Groups: a scale for every few inputs
#
# With 4 bits there are only 15 levels, and one large weight among 4,096 in a column costs all others.
# So the column is cut into **groups** of 128, 64 or 32 *consecutive inputs*, each with its own scale.
# The groups run along the **input** axis, down a column: these are the weights that are multiplied by
# neighbouring inputs and summed up.
#
# *Worked example.* The column `[1, 2, 10, 20]` in groups of 2: scales 2/7 and 20/7, codes `[4, 7, 4, 7]`.
# With one scale for all, 20/7, the first two codes would be 0 and 1.

# %% exercise="quantize_groups"
from inferlab.quantization import quantize_groups

# %% check="quantize_groups"
check("quantize_groups")

# %% [markdown]
# ### Two codes in one byte
#
# Memory is addressed in bytes, so two 4-bit codes share one. Which goes where must be agreed. **Here**
# rows `2i` and `2i + 1` of a column share byte row `i`, the even row in the **low** half. A negative
# code is kept in *two's complement*: four bits count 0 to 15, and 8 to 15 stand for −8 to −1.

# %%
quant_figures.nibble_layout([1, -8, 7, -1])

# %% [markdown]
# *Worked example.* Code −8 is 1000 in bits, code 1 is 0001. With 1 in the low half the byte is
# 1000 0001, that is 0x81 or 129.
#
# The tools: `a & b` keeps the bits that both have, `a | b` those that either has, `a << 4` moves bits up
# by four places, `a >> 4` down. Other layouts are as good; GGUF, the file format of llama.cpp, puts
# number `i` of 32 in the low half and number `16 + i` in the high half of byte `i`.

# %% exercise="pack_nibbles"
from inferlab.quantization import pack_nibbles

# %% check="pack_nibbles"
check("pack_nibbles")

# %% exercise="unpack_nibbles"
from inferlab.quantization import unpack_nibbles

# %% check="unpack_nibbles"
check("unpack_nibbles")

# %% [markdown]
# ### What it really takes
#
# Codes, scales and zero points, all of them:
#
# $$ \text{bits a weight} = \text{bits} + \frac{\text{scale bits} + \text{zero bits}}{\text{group}}. $$
#
# *Worked example.* 4 bits, groups of 128, 16-bit scales: 4 + 16/128 = 4.125 bits. 8 billion weights take
# 4.125 GB, 3 % more than half a byte each; with 4-bit zero points 4.15625 GB.

# %% exercise="quantized_bytes"
from inferlab.quantization import quantized_bytes

# %% check="quantized_bytes"
check("quantized_bytes")

# %%
if ready("quantized_bytes"):
    formats = {
        "int8, one scale for 4,096": (8, 4096, 16, 0),
        "int4, groups of 128": (4, 128, 16, 0),
        "GGUF Q4_0 (32, scale)": (4, 32, 16, 0),
        "GGUF Q4_1 (32, scale and minimum)": (4, 32, 16, 16),
        "GGUF Q8_0 (32, scale)": (8, 32, 16, 0),
        "MXFP4 (32, 8-bit scale)": (4, 32, 8, 0),
        "NVFP4 (16, 8-bit scale)": (4, 16, 8, 0),
    }
    n_weights = 8 * 10**9
    for name, (bits, group, scale_bits, zero_bits) in formats.items():
        n_bytes = quantized_bytes(n_weights, bits, group, scale_bits, zero_bits)
        print(f"{name:34s} {8 * n_bytes / n_weights:.4g} bits, {n_bytes / 1e9:.3f} GB for 8B")
confront("qz_int4_bytes")

# %% [markdown]
# **Not everything is quantized.** The matrices of the layers are; the gains of the norms stay in 16 or
# 32 bits (a few thousand numbers a layer, and everything passes through them), as do, in most
# recipes, the embedding, the output head and the router of a mixture of experts. A small model with a
# large vocabulary shrinks less than its name says.
#
# ### Multiply without unpacking it all
#
# A kernel for weight-only quantization reads the packed bytes, dequantizes a small tile on the chip,
# multiplies, and forgets the tile. Writing the dequantized matrix back to memory would cost more than
# was saved. You write that loop, against a memory that counts: each byte of `packed`, `scales` and `x`
# is loaded once, and the whole matrix is never there.
#
# *Worked example.* `x` is `[[1, 1]]`, one byte 0x21 (codes 1 and 2), scale 0.5: the tile is
# `[[0.5], [1.0]]`, the product 1.5.
#
# A scale of a group stands inside the sum over the inputs: each group's part must be scaled before the
# parts are added. That is the price of groups.

# %% exercise="matmul_packed"
from inferlab.quantization import matmul_packed

# %% check="matmul_packed"
check("matmul_packed")

# %% [markdown]
# What did that loop read, beside a product in 16 and in 32 bits?

# %%
if ready("matmul_packed", "quantize_groups", "pack_nibbles"):
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(1024, 768)), rng.normal(size=(1, 1024)).astype(np.float16)
    codes, scales = quantize_groups(weight, 128)
    memory = CountedMemory(
        x=x, packed=pack_nibbles(codes), scales=scales.astype(np.float16), y=np.zeros((1, 768))
    )
    matmul_packed(memory, 128)
    from_weights = memory.loaded_bytes - x.nbytes
    print(
        f"loaded for the weights: {from_weights:,} B, {8 * from_weights / weight.size:.4g} bits each"
    )
    print(f"in 16 bits: {2 * weight.size:,} B; in 32 bits: {4 * weight.size:,} B")

# %% [markdown]
# ### Whole numbers times whole numbers
#
# If the activations are quantized as well, the product itself can run in 8-bit integers, which
# processors do twice as fast as 16-bit floats or faster: that is what speeds up a long **prefill**,
# where arithmetic is the bound. Each token (row of `x`) has a scale, each output channel (column of
# `w`) has one, and both stand outside the sum:
#
# $$ y_{tj} = a_t\, b_j \sum_i \text{code}^x_{ti}\, \text{code}^w_{ij}. $$
#
# A scale for each *input* channel could not: it depends on $i$. Remember that; it is the reason for
# the last two exercises.
#
# *Worked example.* One product is up to 127 · 127 = 16,129, far above the 127 of int8. Three of them pass
# 32,767, the end of int16. 16 of them make 258,064. So sums are kept in 32 bits, where 133,144 products
# fit at the least.

# %% exercise="matmul_int8"
from inferlab.quantization import matmul_int8

# %% check="matmul_int8"
check("matmul_int8")

# %% [markdown]
# ### Eight bits with a floating point
#
# Integers have evenly spaced levels. A floating-point format spaces them by size: in each **octave**,
# from $2^e$ to $2^{e+1}$, there are equally many. **E4M3** has 4 bits of exponent and 3 of mantissa: 8
# numbers an octave, up to 448. **E5M2** has 4 an octave, up to 57,344. Below the smallest full octave
# ($2^{-6}$ and $2^{-14}$) the spacing stays as it is down to zero: the *subnormal* numbers.
#
# To round a number, find the step of its octave, $2^{e - \text{mantissa bits}}$, divide, round a half to
# the even neighbour, multiply.
#
# *Worked example.* 21 lies in the octave from 16 to 32. With 3 bits of mantissa its step is 2: 21/2 = 10.5,
# which goes to the even 10: 20.
#
# **Too large.** E4M3 has no infinity, and what a conversion does above 448 is a matter of choice: ml_dtypes
# gives nan above 464 (up to there 448 is the nearest), PyTorch 2.13 gives 448; for what E5M2 cannot hold
# both give infinity. Here both formats **saturate**: ±448 and ±57,344, as engines do when they convert.

# %% exercise="round_fp8"
from inferlab.fp8 import round_fp8

# %% check="round_fp8"
check("round_fp8")

# %% [markdown]
# int8 with a scale of 448/127 covers the same range. Which keeps a number better?

# %%
if ready("round_fp8", "quantize_absmax", "dequantize"):
    numbers = np.geomspace(2.0**-10, 448, 4000)
    int8 = dequantize(*quantize_absmax(numbers[None]))[0]
    kept = {"int8": int8, "E4M3": round_fp8(numbers), "E5M2": round_fp8(numbers, "e5m2")}
    quant_figures.rounding_error(
        numbers, {name: abs(k - numbers) / numbers for name, k in kept.items()}
    )

# %% [markdown]
# An integer is better near the top of its range, a float everywhere else. If one scale must serve
# numbers of very different size, as in activations, FP8 forgives more.
#
# **MXFP4 and NVFP4** go on in this direction: 4-bit floats (±0, 0.5, 1, 1.5, 2, 3, 4, 6) with a scale for
# every 32 or 16 of them. In MXFP4 the scale is a power of two, $2^{\lfloor \log_2 \max \rfloor - 2}$: for a
# largest magnitude of 24 it is 4, since 24/4 = 6 is the largest code.
#
# ### A cache of codes
#
# Keys and values can be quantized too: half the cache is twice the users where the cache is the limit.
# A token comes, is rounded and stored, and is never rounded again. Each head of each token gets its
# own scale, because that much is known when the token arrives.
#
# *Worked example.* One head of 4 numbers, `[2, -1, 0.5, 0]`, 8 bits: scale 2/127, codes
# `[127, -64, 32, 0]`. A next token of `[200, 0, 0, 0]` has its own scale and changes nothing of this.

# %% exercise="QuantizedKVCache" write="append"
from inferlab.quantized_model import QuantizedKVCache

# %% check="QuantizedKVCache"
check("QuantizedKVCache")

# %% [markdown]
# ### Outliers, moved
#
# Activations are harder than weights: a few *input channels* are large, at every token. A scale a
# token is then ruined by them, and a scale an input channel cannot stand outside the sum. The idea of
# **SmoothQuant**: divide channel $i$ of `x` by some $s_i$ and multiply row $i$ of `w` by it. The product
# is the same, the outlier is shared between the two.
#
# *Worked example.* Channel maxima 16 in `x` and 4 in `w`, alpha 0.5: s = √16 / √4 = 2. Afterwards both
# maxima are 8.

# %% exercise="migrate_outliers"
from inferlab.quantization import migrate_outliers

# %% check="migrate_outliers"
check("migrate_outliers")

# %% [markdown]
# ### Scales that heed the activations
#
# The same trick helps when only the weights are rounded (**AWQ**). Nobody multiplies a weight alone:
# what counts is the error of the *output*, and there the rows of `w` that meet large activations count
# most. Multiply such a row by a large $s_i$ before rounding and divide by it after: its error becomes
# smaller by about $s_i$, as long as the group's largest weight, and so the step, hardly grows. How far
# to go is searched: $s_i = (\text{mean } |x_i|)^{\alpha}$ for a few values of alpha, and the one with the
# smallest output error wins. Alpha 0 is plain rounding, so nothing can get worse on the text it was
# calibrated on.
#
# *Worked example.* Mean magnitudes 4 and 1, alpha 0.5: s = `[2, 1]`. The first row is rounded as if its
# weights were twice as large.
#
# The check runs your function on activations of a trained model, and also tries *your* scales on
# channels drawn at random. They must help in the first case and hurt in the second; otherwise it
# would be something else that helps.

# %% exercise="search_scales"
from inferlab.quantization import search_scales

# %% check="search_scales"
check("search_scales")

# %% [markdown]
# ## 4. Measure
#
# The model is SmolLM2-135M-Instruct. One thing must be said first: the file that the course fetches is
# **itself quantized**, with 4-bit weights in groups of 32 (Q4_1). What we call "as it was" are those
# numbers. Our own levels lie elsewhere, so rounding again costs what it costs; but do not compare with
# published figures of the original.
#
# ### Channels of a real model
#
# What do the matrices read? A short text is run through the model, and the inputs of every matrix are
# recorded.

# %%
CALIBRATION = (
    "Bread is made from flour, water, salt and yeast. The yeast feeds on the sugar in the flour and "
    "gives off gas, which makes the dough rise. After an hour the baker folds it, lets it rest again "
    "and puts it into a hot oven. The capital of France is Paris, which lies on the river Seine."
)
model = trained_model("smollm2")
if model:
    inputs = calibration_inputs(model, model.tokenizer.encode(CALIBRATION)[:56])
    for layer in (1, 10, 20):
        size = np.abs(inputs[layer]["attention"]).mean(axis=0)
        print(
            f"layer {layer}: the largest input channel of attention is "
            f"{size.max() / np.median(size):.0f} times as large as the median one"
        )

# %% [markdown]
# First int8 times int8, with your `matmul_int8`, on what the attention of layer 10 reads: as it is, and
# after your `migrate_outliers`.

# %%
if model and ready("matmul_int8", "migrate_outliers", "quantize_absmax", "relative_error"):
    x = inputs[10]["attention"].astype(np.float64)
    w_q = model.weights.layers[10].w_q.astype(np.float64)
    for name, (a, b) in {"as it is": (x, w_q), "migrated": migrate_outliers(x, w_q)}.items():
        (a_codes, a_scales), (b_codes, b_scales) = (
            quantize_absmax(a, 8, 1),
            quantize_absmax(b, 8, 0),
        )
        product = matmul_int8(a_codes, b_codes, a_scales, b_scales)
        print(
            f"{name}: relative error of the product {float(relative_error(x @ w_q, product)):.2%}"
        )

# %% [markdown]
# Then 4-bit weights: the output error with your scales, relative to plain rounding, and with the same
# scales on channels drawn at random.

# %%
GROUP, ALPHAS = 64, (0.0, 0.25, 0.5)


def restore_groups(weight: np.ndarray, s: np.ndarray, bits: int = 4) -> np.ndarray:
    """weight, scaled by s a row, rounded in groups, restored and scaled back."""
    codes, scales = quantize_groups(weight * s[:, None], GROUP, bits)
    return dequantize(codes, scales.repeat(GROUP, axis=0)) / s[:, None]


if model and ready("search_scales", "quantize_groups", "dequantize"):
    names, aware, at_random = [], [], []
    for layer in (1, 10, 20, 29):
        weights = model.weights.layers[layer]
        for what, weight in {
            "attention": weights.w_q,
            "mlp": weights.w_up,
            "hidden": weights.w_down,
        }.items():
            x = inputs[layer][what]
            s = search_scales(x, weight, GROUP, ALPHAS)
            shuffled = np.random.default_rng(layer).permutation(s)
            errors = [
                np.mean((x @ (weight - restore_groups(weight, scale))) ** 2)
                for scale in (np.ones_like(s), s, shuffled)
            ]
            names.append(f"{layer}, {what}")
            aware.append(errors[1] / errors[0])
            at_random.append(errors[2] / errors[0])
    quant_figures.protected(names, aware, at_random)

# %% [markdown]
# ### Quality, scheme by scheme
#
# **Perplexity** is e to the mean surprise (negative log probability) at each next token of a text: about
# how many tokens the model hesitates between. Below, the matrices of all 30 layers are rounded by your
# functions, scheme by scheme, and the model reads one text. Matrices that read the same input are rounded
# side by side, as one. The scales by activations come from the text above; the perplexity is measured
# on another one. Beside it stands **KL**, the mean divergence of the next-token distributions from the
# exact ones: 0 where nothing changed.
#
# **Before you run it:** which int4 scheme will be usable? (It takes about twenty seconds.)

# %%
TEXT = (
    "The water cycle describes how water moves above, on and below the surface of the Earth. The sun "
    "warms the oceans, and water evaporates into the air. As the moist air rises it cools, the vapour "
    "condenses into clouds, and the water falls again as rain or snow. Some of it runs off into rivers "
    "and lakes, some of it soaks into the ground, and some of it is taken up by plants, which give it "
    "back to the air through their leaves. Over time all of this water returns to the sea, and the "
    "cycle begins again. The total amount of water on Earth stays almost the same, but the share that "
    "is held as ice changes with the climate."
)


def rounded(bits: int, axis: int | None):
    """Absmax of whole matrices or of their columns, by your functions."""
    return lambda weight, layer, what: dequantize(*quantize_absmax(weight, bits, axis))


def grouped(weight, layer, what):
    return restore_groups(weight, np.ones(len(weight), weight.dtype))


def by_activations(weight, layer, what):
    return restore_groups(weight, search_scales(inputs[layer][what], weight, GROUP, ALPHAS))


needed = ("quantize_absmax", "dequantize", "quantize_groups", "search_scales", "quantized_bytes")
if model and ready(*needed):
    tokens = model.tokenizer.encode(TEXT)
    n_body = sum(
        array.size
        for layer in model.weights.layers
        for array in layer.arrays().values()
        if array.ndim == 2
    )
    schemes = {  # name: (how to round, bits, weights to a scale)
        "float16": (lambda weight, *_: weight.astype(np.float16).astype(np.float32), 16, None),
        "int8, one scale": (rounded(8, None), 8, 10**6),
        "int8, one a channel": (rounded(8, 0), 8, 576),
        "int4, one scale": (rounded(4, None), 4, 10**6),
        "int4, one a channel": (rounded(4, 0), 4, 576),
        "int4, groups of 64": (grouped, 4, GROUP),
        "int4, groups, by activations": (by_activations, 4, GROUP),
    }
    exact = log_probabilities(model, tokens)
    found = {"as it was": (perplexity(exact, tokens), 32.0)}
    print(f"as it was: perplexity {found['as it was'][0]:.3f} over {len(tokens) - 1} tokens")
    for name, (change, bits, group) in schemes.items():
        changed = log_probabilities(with_changed_weights(model, change), tokens)
        size = 8 * quantized_bytes(n_body, bits, group) / n_body if group else bits
        found[name] = perplexity(changed, tokens), size
        print(f"{name}: perplexity {found[name][0]:,.3f}, KL {kl_divergence(exact, changed):.4f}")
    quant_figures.quality_bars(
        list(found), [p for p, _ in found.values()], [b for _, b in found.values()], "SmolLM2-135M"
    )

# %% [markdown]
# **Reading it.** 16 bits change nothing that one could see, nor do 8 bits with one scale a channel. In
# 8 bits with one scale for all this text's perplexity hardly moves either, but KL is more than ten times
# as large: it looks at the whole distribution, perplexity at one token a place, where gains and losses
# cancel. **Measure more than perplexity.** In 4 bits one scale for all gives a model that babbles. A scale
# a channel is bad, groups repair much of it, and scales by activations nearly as much again, for next to no
# memory: one number an input channel, which is folded into the norm before it.
#
# A larger model suffers less from the same scheme: 135 million parameters leave little to spare.
#
# The small model that ships with the course was trained in another way and has hardly any outliers. On
# it all of this is harmless:

# %%
small = trained_model("tiny-target")
if small and ready("quantize_absmax", "dequantize"):
    from inferlab.data import ROOT

    heldout = (ROOT / "data" / "tiny" / "heldout.txt").read_text(encoding="utf-8")
    play = small.tokenizer.encode(heldout)[:400]
    spread = [
        np.abs(m.weights.layers[1].w_o).max() / m.weights.layers[1].w_o.std()
        for m in (small, model)
        if m
    ]
    print("largest weight in standard deviations, small model and SmolLM2:", np.round(spread, 1))
    print(f"as it was: perplexity {perplexity(log_probabilities(small, play), play):.2f}")
    for name, change in {"int8": rounded(8, None), "int4": rounded(4, None)}.items():
        changed = log_probabilities(with_changed_weights(small, change), play)
        print(f"{name}, one scale a matrix: perplexity {perplexity(changed, play):.2f}")

# %% [markdown]
# ### A cache in 8 and in 4 bits
#
# The weights are exact again; now only keys and values are rounded, by your `QuantizedKVCache`, inside
# the model's own forward pass. Its 4-bit codes still lie in whole bytes here; a real cache packs them.

# %%
if model and ready("QuantizedKVCache"):
    config, tokens = model.config, model.tokenizer.encode(TEXT)
    exact, plain = log_probabilities(model, tokens), model.new_cache()
    model.next_logits(tokens, plain)

    def new_cache(bits):
        return QuantizedKVCache(config.n_layers, config.n_kv_heads, config.d_head, bits=bits)

    for bits in (8, 4):
        cache = new_cache(bits)
        changed = log_probabilities(model, tokens, cache)
        alike = (exact.argmax(axis=-1) == changed.argmax(axis=-1)).mean()
        print(
            f"{bits} bits: KL {kl_divergence(exact, changed):.5f}, perplexity "
            f"{perplexity(changed, tokens):.3f} (exact {perplexity(exact, tokens):.3f}), "
            f"same best token in {alike:.0%} of places"
        )
    print(
        f"held in whole bytes: {format_bytes(cache.n_bytes)}, in float32 {format_bytes(plain.n_bytes)}"
    )

    def answer(cache, n_new=16):
        """Greedy tokens, each step reading what the cache gives back."""
        new = [int(np.argmax(model.next_logits(prompt, cache)))]
        while len(new) < n_new:
            new.append(int(np.argmax(model.next_logits(new[-1:], cache))))
        return new

    prompt = model.tokenizer.chat_prompt("Why is the sky blue?")
    texts = {name: answer(cache) for name, cache in
             {"exact": model.new_cache(), "8 bits": new_cache(8), "4 bits": new_cache(4)}.items()}  # fmt: skip
    for name, new_tokens in texts.items():
        same = [a == b for a, b in zip(new_tokens, texts["exact"], strict=True)]
        first = f"parts ways at token {same.index(False) + 1}" if not all(same) else "the same"
        print(f"{name} ({first}): {model.tokenizer.decode(new_tokens)!r}")

# %% [markdown]
# Eight bits are nearly free. That a greedy answer takes another way all the same is no contradiction: at
# the first place where two tokens are nearly as likely, a tiny change decides, and everything after it
# is another text. So compare distributions (KL) on a given text, not the words of two answers. Four bits
# with one scale a token are not free: keys have large numbers in fixed *channels*, and one of them sets
# the step of its whole head. KIVI therefore gives keys a scale a channel, over a block of tokens, and
# values a scale a token.
#
# ### Decode speed
#
# The course's PyTorch engine keeps weights in 8 or 4 bits, in groups of 32 with a 16-bit scale and a
# 16-bit zero, and multiplies with a packed kernel. Its output head always has 8 bits, and an 8-bit
# matrix is kept as two 4-bit halves, each with scales of its own: 10 bits a weight. First the bytes that
# a step reads, by **your** `quantized_bytes`, then the time.

# %%
if model and ready("quantized_bytes"):
    from inferlab.roofline import body_params
    from inferlab.quantized_model import first_layers
    from inferlab.engines.pytorch.model import TorchModel

    short = first_layers(model, 10)  # of 30: four engines are built in a third of the time
    body, head = body_params(short.config), short.config.d_model * short.config.vocab_size
    ten_bits = 2 * quantized_bytes(head, 4, 32, 16, 16)
    predicted = {
        "float32": 4 * (body + head),
        "bfloat16": 2 * (body + head),
        "int8": 2 * quantized_bytes(body, 4, 32, 16, 16) + ten_bits,
        "int4": quantized_bytes(body, 4, 32, 16, 16) + ten_bits,
    }
    engines = {name: TorchModel.from_model(short, "cpu", name) for name in predicted}
    for name, n_bytes in predicted.items():
        print(f"{name:9s} a step reads {n_bytes:,} B, the engine says {engines[name].step_bytes:,}")

# %%
if model and ready("quantized_bytes"):
    caches = {name: engine.new_cache(64) for name, engine in engines.items()}
    for name, engine in engines.items():
        engine.next_logits([5] * 32, caches[name])

    def one_step(name):
        def step():
            caches[name].truncate(32)
            engines[name].next_logits([5], caches[name])

        return step

    times = timing.interleaved({name: one_step(name) for name in engines}, rounds=3)
    bandwidth = timing.read_bandwidth()
    quant_figures.decode_times(
        list(engines),
        [times[name].median_s for name in engines],
        [predicted[name] / bandwidth for name in engines],
        describe("cpu", "by format"),
    )
    gain = times["float32"].median_s / times["int4"].median_s
    print(f"{bandwidth / 1e9:.1f} GB/s read; int4 is {gain:.1f} times as fast as float32")
    confront("qz_decode_speed", f"{gain:.1f}x")
    not_measured(
        "a GPU, which needs kernels of its own for each format: vLLM and torchao have them"
    )

# %% [markdown]
# **Reading it.** The engine counts a little more than was predicted: the gains of the layers' norms,
# 46,080 B in 8 and 4 bits. On a quiet machine the bytes predict most of the gain. What remains above the
# bars of reading alone is unpacking, attention, norms and Python, which do not shrink with the weights.
# bfloat16 is a case of its own: a processor without instructions for it converts every number, and can be
# slower than with float32. A format is fast only where a kernel for it is.
#
# The whole model, from the command line:
# `inferlab generate "Why is the sky blue?" --engine torch --dtype int4`. The next cell runs the same
# command on the small model that ships with the course (it knows Shakespeare and nothing else).

# %%
if not grading():
    from grader.cli import main

    main(["generate", "KING HENRY:", "--model", "tiny-target", "--raw", "--max-new-tokens", "24",
          "--engine", "torch", "--dtype", "int4"])  # fmt: skip

# %% [markdown]
# ### What fewer bytes buy, again
#
# Back to the prediction about a batch. And to a sentence that is often heard: "int8 weights give twice
# the capacity and twice the speed". A 70B model on 320 GB, 30 GB of them kept free: in bf16 150 GB are
# left for caches, in int8 220 GB. That is 1.47 times, not twice. With 310 users of 1,500 tokens a step
# reads 292.37 GB or 222.37 GB: 1.31 times as fast. Only a single user comes close to two: 1.993 times.

# %%
confront("qz_batch_speed")

# %%
cache_gb = kv_cache_bytes(model_preset("8b-style"), 8192, n_sequences=16) / 1e9
quant_figures.step_bytes(["bf16", "int8", "int4, groups of 128"], [16, 8, 4.125], 3 * [cache_gb])

# %% [markdown]
# The same picture as at the start, for 16 users in place of one. What fewer bytes buy depends on what
# else is read: turn the precision of weights and cache, then the batch. Lodge what you expect under
# "try it" first.

# %%
explore("07")

# %% [markdown]
# ## 5. Explain
#
# In six to ten sentences, for a colleague who wants to ship a 4-bit model next week: **what does
# quantization buy, where can it go wrong, and how would you decide?** Say which phase gets faster with
# weight-only quantization and which does not; why one scale a matrix is a bad idea and why the usual
# error measure hides it; and give one number with its unit.

# %% [markdown] written="qz_explain" points=3
# **Sample answer.** Decoding at small batch is bound by reading the weights, so with a quarter of the
# bytes it becomes faster, by the bytes before over the bytes after: for an 8B-style model with 16 users
# of 8,192 tokens that is (16 + 17.18) / (4.125 + 17.18) = 1.56 times, not four, because the cache stays.
# Long prefills are bound by arithmetic; weight-only int4 does not help them, and dequantizing may even
# slow them down. For those, weights and activations must both be in 8 bits. The weights take 4.125 GB in
# place of 16, scales included, so more users fit as well. One scale for a matrix fails when a few
# channels are large: the step then is as long as ordinary weights are, and many become 0. The error of
# the whole matrix hides it, since its norm is nearly all in the large channels; in our example 3.5 % in
# all were 30.8 % on ordinary columns. So I would use groups along the inputs and a method that
# looks at activations. I would not ship because the chat looks fine: I would compare both models on
# mathematics, code, long documents and rare languages, with the same prompts, and look at the
# differences with their uncertainty.
#
# **Rubric** (1 point each): *gain*: which phase, and a number that is right, with its unit, the cache or
# the scales included; *harm*: outliers and what the whole-matrix error hides; *decision*: paired
# evaluation on tasks that suffer first, not on chat alone.

# %% [markdown]
# ## 6. In the wild
#
# **GGUF** (llama.cpp) stores blocks of 32: `Q4_0` is a 16-bit scale and 32 four-bit numbers, 18 bytes, 4.5
# bits a weight; `Q4_1` adds a 16-bit minimum, 20 bytes, 5.0 bits; `Q8_0` is 34 bytes, 8.5 bits. The newer K
# types (`Q4_K_M` and others) quantize the scales too and give important matrices more bits. Here is the
# file of our model, type by type:

# %%
if model:
    from collections import Counter

    from inferlab.checkpoints.fetch import fetched_path
    from inferlab.checkpoints.gguf_read import BLOCK_TYPES, read_gguf

    _, tensors = read_gguf(fetched_path("smollm2"))
    stored: Counter = Counter()
    for tensor in tensors.values():
        kind = BLOCK_TYPES[tensor.kind]
        stored[kind.name, 8 * kind.n_bytes / kind.n_numbers] += math.prod(tensor.shape)
    for (name, bits), n in stored.items():
        print(f"{name:5s} {bits:4.1f} bits a weight: {n:,} numbers")

# %% [markdown]
# The matrices are Q4_1, the embedding (and head) Q8_0, the gains of the norms F32: not everything is
# quantized.
#
# **What to read in a `config.json`.** The block `quantization_config`:
#
# - GPTQ: `"quant_method": "gptq"`, `bits`, `group_size`, `desc_act` (columns quantized in the order of
#   their activations), `sym`. GPTQ rounds one input channel after another and corrects the rest for the
#   error made, by second derivatives; it needs calibration text.
# - AWQ: `"quant_method": "awq"`, `bits` (older files: `w_bit`), `group_size`, `zero_point`. Calibration
#   text too.
# - bitsandbytes: `load_in_8bit` (its LLM.int8() keeps outlier channels in 16 bits, `llm_int8_threshold`),
#   `load_in_4bit`, `bnb_4bit_quant_type` (`nf4`: levels spaced for normal weights),
#   `bnb_4bit_use_double_quant` (scales quantized too). No calibration.
# - compressed-tensors (what vLLM's tools write): `config_groups` with `num_bits`, `type` (`int` or `float`),
#   `symmetric`, `strategy` (`tensor`, `channel`, `group`, `token`), and `ignore`, the list of what stays as it
#   is: nearly always `lm_head`.
#
# The next cell reads such blocks. The first two are of the shape that published files have.

# %%
EXAMPLES = {
    "a GPTQ file": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "an AWQ file": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "a w8a8 file": {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
                "input_activations": {"num_bits": 8, "type": "int", "strategy": "token"},
            }
        },
    },
}
if ready("quantized_bytes"):
    for name, block in EXAMPLES.items():
        if block["quant_method"] in ("gptq", "awq"):
            zero_bits = 0 if block.get("sym", not block.get("zero_point")) else block["bits"]
            size = quantized_bytes(10**9, block["bits"], block["group_size"], 16, zero_bits)
            print(f"{name}: {8 * size / 1e9:.4g} bits a weight, activations in 16 bits: for decode")
        else:
            part = block["config_groups"]["group_0"]
            print(
                f"{name}: weights {part['weights']['num_bits']} bits a {part['weights']['strategy']}, "
                f"activations too, a {part['input_activations']['strategy']}: for prefill and decode"
            )

# %% [markdown]
# **Flags.** vLLM: `--quantization fp8` rounds a 16-bit checkpoint on loading (`awq`, `gptq_marlin` and others
# are read from the config by themselves); `--kv-cache-dtype fp8` stores E4M3 with a scale of 1 unless the
# checkpoint brings calibrated ones, so that a key of 900 becomes 448. llama.cpp: `llama-quantize model.gguf
# out.gguf Q4_K_M`, `--cache-type-k q8_0`. transformers: `quantization_config=BitsAndBytesConfig(...)` or
# `TorchAoConfig(...)`. torchao: `quantize_(model, Int4WeightOnlyConfig(group_size=32))`, also
# `Int8DynamicActivationInt8WeightConfig` and `Float8DynamicActivationFloat8WeightConfig`.
#
# | what is small | which phase it helps | why |
# |---|---|---|
# | weights only (int4, int8) | decode at small batch | fewer bytes to read; arithmetic as before |
# | weights and activations (int8, FP8) | prefill, and decode | faster arithmetic, and fewer bytes |
# | the cache (FP8, int8) | decode with many or long contexts | fewer bytes, and more users |
#
# **What breaks.** A kernel that wants widths in multiples of 16 or 128. A `group_size` that the tensor-parallel
# split cuts through. A checkpoint for which no kernel exists on the device: it is dequantized at
# every step and slower than before. A quantized model that passes chat evaluations and fails at
# mathematics or long-document recall. Two files of the same name and different recipe.

# %%
if not grading():
    try:
        from torchao.quantization import Int4WeightOnlyConfig
    except ImportError:
        not_measured("torchao's configurations need that package: pip install torchao")
    else:
        print(Int4WeightOnlyConfig())

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 GB"`, `"4x"`, `"3.2 %"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("qz_q_bits")

# %% answer="qz_q_bits"
answers["qz_q_bits"] = "4.75"

# %% answer_check="qz_q_bits"
answers.check("qz_q_bits")

# %%
answers.ask("qz_q_parts")

# %% answer="qz_q_parts"
answers["qz_q_parts"] = "7.375 GB"

# %% answer_check="qz_q_parts"
answers.check("qz_q_parts")

# %%
answers.ask("qz_q_speed")

# %% answer="qz_q_speed"
answers["qz_q_speed"] = "1.36842x"

# %% answer_check="qz_q_speed"
answers.check("qz_q_speed")

# %%
answers.ask("qz_q_room")

# %% answer="qz_q_room"
answers["qz_q_room"] = "1.30208x"

# %% answer_check="qz_q_room"
answers.check("qz_q_room")

# %%
answers.ask("qz_q_error")

# %% answer="qz_q_error"
answers["qz_q_error"] = "12.7842 %"

# %% answer_check="qz_q_error"
answers.check("qz_q_error")

# %%
answers.ask("qz_q_fp8")

# %% answer="qz_q_fp8"
answers["qz_q_fp8"] = "7.5"

# %% answer_check="qz_q_fp8"
answers.check("qz_q_fp8")

# %%
answers.ask("qz_q_mx")

# %% answer="qz_q_mx"
answers["qz_q_mx"] = "8"

# %% answer_check="qz_q_mx"
answers.check("qz_q_mx")

# %%
answers.ask("qz_q_saturate")

# %% answer="qz_q_saturate"
answers["qz_q_saturate"] = "c"

# %% answer_check="qz_q_saturate"
answers.check("qz_q_saturate")

# %%
answers.ask("qz_q_axes")

# %% answer="qz_q_axes"
answers["qz_q_axes"] = "c"

# %% answer_check="qz_q_axes"
answers.check("qz_q_axes")

# %%
answers.ask("qz_q_hidden")

# %% answer="qz_q_hidden"
answers["qz_q_hidden"] = "d"

# %% answer_check="qz_q_hidden"
answers.check("qz_q_hidden")

# %%
answers.ask("qz_q_noise")

# %% answer="qz_q_noise"
answers["qz_q_noise"] = "a"

# %% answer_check="qz_q_noise"
answers.check("qz_q_noise")

# %%
answers.ask("qz_q_kivi")

# %% answer="qz_q_kivi"
answers["qz_q_kivi"] = "a"

# %% answer_check="qz_q_kivi"
answers.check("qz_q_kivi")

# %%
answers.ask("qz_q_phase")

# %% answer="qz_q_phase"
answers["qz_q_phase"] = "c"

# %% answer_check="qz_q_phase"
answers.check("qz_q_phase")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>8 billion weights, 4 bits, groups of 128, 16-bit scales: how many bytes?</b></summary>
#
# 4 + 16/128 = 4.125 bits each: 4.125 GB. *Follow-up: with 4-bit zero points?* 4.15625 bits, 4.156 GB.
# *And MXFP4, NVFP4?* 4 + 8/32 = 4.25 and 4 + 8/16 = 4.5 bits.
# </details>
#
# <details><summary><b>Weight-only int4: which phase speeds up?</b></summary>
#
# Decode at small batch. A long prefill is bound by arithmetic, which stays in 16 bits; it may slow down.
# *Follow-up: and FP8 for weights and activations?* Both: bytes halve, and the arithmetic runs at twice the
# rate.
# </details>
#
# <details><summary><b>An 8B model goes from bf16 to int8. How much faster is a decode step?</b></summary>
#
# One user with 8,192 tokens: (16 + 1.0737) / (8 + 1.0737) = 1.882 times. *Follow-up: with 16 such users?*
# 33.18 / 25.18 = 1.318. *And int4 in groups of 128, one user?* 17.0737 / 5.1987 = 3.284.
# </details>
#
# <details><summary><b>Why does one outlier column ruin int8 with one scale?</b></summary>
#
# All share its step. In this lesson's matrix the step is 1.07 standard deviations of the ordinary weights:
# 30.8 % error, 40.9 % zeros. *Follow-up: why did the whole matrix look like 3.5 %?* Its norm is nearly
# all in the outliers. Ask for the error by channel.
# </details>
#
# <details><summary><b>Which scales can be pulled out of x @ w?</b></summary>
#
# One a token and one an output channel; not one an input channel, which the sum runs over. *Follow-up: how
# do group scales cope?* Each group's partial sum is scaled before it is added.
# </details>
#
# <details><summary><b>What error do you expect from absmax on normal weights?</b></summary>
#
# The expected largest magnitude over (top code · √12): 8 bits and 256 weights 0.00692, 4 bits and 128
# weights 0.1166. *Follow-up: one bit more?* About half, 6.02 dB. *When is it wrong?* When a step is longer
# than most of the weights.
# </details>
#
# <details><summary><b>E4M3 or E5M2? And what becomes of 500?</b></summary>
#
# E4M3 (up to 448, 3 bits of mantissa) for weights and activations; E5M2 (up to 57,344, 2 bits) for
# gradients. 500 saturates at 448 or becomes nan, by convention; there is no infinity in E4M3. *Follow-up: a
# KV cache in FP8 with scale 1 and a key of 900?* 448 is read, silently.
# </details>
#
# <details><summary><b>GPTQ, AWQ, SmoothQuant: one line each.</b></summary>
#
# Rounds column after column and corrects the rest by second-order information; scales up the channels
# that meet large activations; moves activation outliers into the weights. *Follow-up: which is for weights
# and activations in 8 bits?* SmoothQuant; all three need calibration text.
# </details>
#
# <details><summary><b>Keys a channel, values a token: why?</b></summary>
#
# Key outliers live in fixed channels; value errors average out over tokens (KIVI). *Follow-up: before or
# after the rotary embedding?* Before, channels are steadier: rotation mixes pairs of them by position.
# </details>
#
# <details><summary><b>Chat evaluations pass after int4. Ship?</b></summary>
#
# No: mathematics, code, long-context recall and rare languages suffer first. *Follow-up: design the
# gate.* Same prompts for both models, the difference with a confidence interval, a limit agreed
# beforehand.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("07_quantization", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - A quantized weight is a whole number times a scale. How many weights share a scale decides nearly
#   everything: a tensor, a channel, a group.
# - The error is about step / √12. One large channel sets the step of all that share its scale; measure
#   by channel, for the whole-matrix error hides it.
# - Scales a token and an output channel stand outside the sum; those of groups and input channels do
#   not. Sums of int8 products need 32 bits.
# - Activations tell which weights matter: scale their channels up before rounding, and divide after.
# - The gain is bytes before over bytes after, with the cache and the scales in both.
#
# **Common mistakes.** A zero column and a scale of 0. The maximum in place of the largest magnitude. Groups
# along the output axis. 128 in an int8. Swapped nibbles, or no signs. E4M3 taken to end at 240 or to have
# an infinity. Scales left out of the bytes. "Half the bytes, twice the speed". Calibrating on the text that
# is evaluated.
#
# **References**
#
# - Jacob et al., *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
#   Inference*, 2018, arXiv 1712.05877
# - Nagel et al., *A White Paper on Neural Network Quantization*, 2021, arXiv 2106.08295
# - Dettmers et al., *LLM.int8()*, 2022, arXiv 2208.07339
# - Frantar et al., *GPTQ*, 2023, arXiv 2210.17323
# - Xiao et al., *SmoothQuant*, 2023, arXiv 2211.10438
# - Lin et al., *AWQ*, 2024, arXiv 2306.00978
# - Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, arXiv 2209.05433
# - Rouhani et al., *Microscaling Data Formats for Deep Learning*, 2023, arXiv 2310.10537
# - Liu et al., *KIVI*, 2024, arXiv 2402.02750; Hooper et al., *KVQuant*, 2024, arXiv 2401.18079
# - Kurtic et al., *"Give Me BF16 or Give Me Death"? Accuracy-Performance Trade-Offs in LLM
#   Quantization*, 2024, arXiv 2411.02355
# - Bennett, *Spectra of Quantized Signals*, Bell System Technical Journal 27, 1948

# %%
progress("07_quantization")
