# %% [markdown]
# # 06 · FlashAttention: exact, in tiles
#
# Attention compares every query with every key it may see. Written as a textbook does, that makes a
# matrix of scores which grows with the square of the context, is written to memory, read back,
# written again and read again. It is the largest thing in the whole layer, and nobody wants it: it
# is only a step on the way. This lesson computes the same result without ever having it.
#
# **You will be able to**
#
# - compute the bytes of a score matrix, and say which part of attention is quadratic and which is not;
# - derive the online softmax, and merge two partial results by their log-sum-exp;
# - write attention in tiles, with a causal mask, for any block sizes, and prove by counting what it
#   moves and what it holds;
# - choose a block size from the memory on chip, and predict the traffic to the byte;
# - say what FlashAttention does not do.
#
# **Time** about 3½ hours: 2 h 10 min for twelve exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** attention from lesson 02, the KV cache from lesson 04, and that several query heads
# may share one KV head (lesson 05). What is used is said again where it is needed.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `T` | tokens computed now (queries) | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `S` | tokens that may be seen (keys) | `d_head` | numbers in one query, key or value |
# | `block_q`, `block_k` | queries and keys in one tile | `M` | numbers that fit on chip |
#
# GB is 10⁹ bytes, GiB is 2³⁰ bytes, KiB is 2¹⁰ bytes. A *block* here is always a run of tokens.

# %%
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.counted_memory import CountedMemory, traced_peak
from inferlab.flash_attention import Memory, Partial, on_chip_numbers
from inferlab.generate import generate_cached
from inferlab.operators import attention, causal_mask
from labkit.figures import flash_attention as flash_figures
from labkit.measure import flash_attention as flash_measure
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured, pick
from labkit.measure.models import trained_model
from labkit.units import format_bytes, format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# A GPU has two kinds of memory, and the difference between them is the whole lesson.
#
# | | size | speed | who sees it |
# |---|---|---|---|
# | **HBM**, the "80 GB" of the data sheet | 40 to 288 GB | 1.5 to 8 TB/s | all processors |
# | **on chip**: SRAM ("shared memory") and registers | some 200 KiB a processor | about ten times that | one processor |
#
# A GPU is a hundred or more small processors (an A100 has 108, each with 192 KB on chip: 20 MB in
# all). Numbers are only ever computed on chip. What does not stay there is stored to HBM and loaded
# again, and that is what takes the time: softmax itself is nearly no arithmetic.
#
# Plain attention is three steps, each of which reads its input from HBM and writes its result there:
# scores, weights (the softmax of the scores), output. The picture counts what crosses, for one head
# of width 64 and 16-bit numbers.

# %%
flash_figures.traffic_bars(8192, d_head=64, block_q=128)

# %% [markdown]
# 99 % of the traffic is scores and weights, which are nothing but steps on the way. In tiles of 128
# queries they never leave the chip; keys and values are read anew by each of the 64 blocks of queries,
# and it still is a quarter. With a causal mask half of the tiles need not be touched at all.
#
# The other gain is room. The plain way keeps a score for every pair of a query and a key, in every head.
# In tiles, what is on chip does not depend on the context at all, and in HBM there are only q, k, v and
# the output, which grow in a line.

# %% [markdown]
# ## 2. Predict
#
# Lodge your guesses first. The first one counts.

# %%
predict("fa_scores")

# %%
predict("fa_exact")

# %%
predict("fa_double")

# %%
predict("fa_memory")

# %% [markdown]
# ## 3. Build
#
# ### The matrix that nobody wants
#
# One score is one number for a query **and** a key, in every query head of every sequence: `T · S` of
# them a head. There is no `d_head` in it, and KV heads that are shared do not make it smaller.
#
# *Worked example.* 8,192 queries, 8,192 keys, 16 bit: 67,108,864 scores (64 Mi, which is more than 64
# million), times 2 bytes is 134,217,728 bytes (134 MB) a head. A decode step has `T` = 1: 16,384 bytes.
# It is prefill that hurts.

# %% exercise="score_matrix_bytes"
from inferlab.flash_attention import score_matrix_bytes

# %% check="score_matrix_bytes"
check("score_matrix_bytes")

# %%
if ready("score_matrix_bytes"):
    for T in (1024, 8192, 32768):
        print(f"{T:6,d} tokens, 32 heads: {format_bytes(score_matrix_bytes(T, T, 32))} a layer")
confront("fa_scores")

# %% [markdown]
# ### What it costs to move it
#
# Holding it is one thing; moving it is another, and that is what takes the time. Count every array
# that crosses between chip and HBM when the three steps run one after the other.
#
# *Worked example.* 2 queries, 5 keys, `d_head` 3: q and the output have 2 · 3 numbers each, k and v
# 5 · 3 each, together 42. The 10 scores are written and read, the 10 weights as well: 40 more.
# 82 numbers.

# %% exercise="standard_traffic_bytes"
from inferlab.flash_attention import standard_traffic_bytes

# %% check="standard_traffic_bytes"
check("standard_traffic_bytes")

# %% [markdown]
# ### A softmax that sees one block at a time
#
# The softmax of a row divides by a sum over the *whole* row, so it seems that the whole row must be
# there. It need not be. Recall the stable form: with $z_s$ the scores of the row and $m$ the largest,
#
# $$ w_s = \frac{e^{z_s - m}}{\ell}, \qquad \ell = \sum_s e^{z_s - m}. $$
#
# Suppose only the first block of keys has been seen: we know its maximum $m$ and its sum $\ell$. Now
# a second block comes, with a larger score in it. The right maximum would have been $m'$, and every
# term of the old sum would have been $e^{z - m'} = e^{z - m} \cdot e^{m - m'}$. That last factor is the
# same for all of them. So the old sum can be mended with **one multiplication**, without the scores
# it was made of:
#
# $$ m' = \max(m, \max_s z_s), \qquad \ell' = e^{m - m'}\, \ell + \sum_s e^{z_s - m'}. $$
#
# This is the *online softmax*. Begin with $m = -\infty$ and $\ell = 0$. *Worked example.* Scores 1 and
# 2 in the first block: $m = 2$, $\ell = e^{-1} + 1 = 1.368$. Then a block with the score 4: $m' = 4$,
# $\ell' = 1.368 \cdot e^{-2} + 1 = 1.185$. All at once: $e^{-3} + e^{-2} + e^{0} = 1.185$.
#
# **One trap.** A causal mask sets scores to $-\infty$, and a whole row of a block may be masked. Then
# $m' = -\infty$, and $-\infty - (-\infty)$ is NaN: not a number, and everything it touches becomes NaN
# too. Subtract 0 in its place, and each $e^{-\infty}$ is 0, which is right.

# %% exercise="online_normalizer"
from inferlab.flash_attention import online_normalizer

# %% check="online_normalizer"
check("online_normalizer")

# %% [markdown]
# Here is your function at work. Where the line rises, the bar below it was scaled down before the
# new block was added.

# %%
if ready("online_normalizer"):
    row = [[1, 2.5, 0.5, 2], [3, 1, 4.5, 2], [2, 3, 1, 0.5], [6, 5, 4, 1]]
    seen = [
        online_normalizer(np.array([block], float) for block in row[: i + 1])
        for i in range(len(row))
    ]
    flash_figures.running_stats(row, [float(m[0]) for m, _ in seen], [float(s[0]) for _, s in seen])

# %% [markdown]
# Two orders of blocks hide two different bugs. If the maxima **fall**, the first block has the largest
# and nothing ever needs to be rescaled: a missing factor goes unseen. If they **rise**, each block's own
# maximum *is* the running one: using the wrong one goes unseen. A test needs both, and the checks here
# have both.
#
# ### The values come along
#
# Attention does not want the weights, it wants the weighted values. They obey the same rule: let
# `acc` be $\sum_s e^{z_s - m}\, v_s$, not divided by anything yet. When the maximum rises, every term
# in it is off by the same factor, and a block adds its own weights times its values. One division by
# $\ell$ at the very end gives the output.
#
# *Worked example.* One row, maximum 2, sum 1, `acc` `[6, 0]`; a block of two keys with scores 2 and
# 2 and values `[0, 1]` and `[0, 3]`. The maximum stays, both weights are 1: sum 3, `acc` `[6, 4]`,
# output `[2, 1.333]`. Had the block had the scores 4 and 4: maximum 4, factor $e^{-2} = 0.135$, sum
# 2.135, `acc` `[0.812, 4]`.

# %% exercise="online_update"
from inferlab.flash_attention import online_update

# %% check="online_update"
check("online_update")

# %% [markdown]
# ### Tiles
#
# Cut the queries into blocks of `block_q` and the keys into blocks of `block_k`. A block of queries
# against a block of keys is a **tile** of the score matrix. The mask sorts the tiles into three
# kinds: *whole* ones that need no mask, those *on the edge* that need one, and those that lie in the
# future of all their queries and are *skipped*: never loaded, never computed.

# %%
flash_figures.tile_map(12, 12, block_q=3, block_k=3)

# %% [markdown]
# Mind where the queries stand. After a prefill in chunks, or with a cache, there are more keys than
# queries: the `T` queries are the **newest** of `S` tokens, and query `t` stands at position `S - T + t`.
# Here 7 queries over 20 keys, in tiles of 3 by 6; the last block of each kind is shorter.

# %%
flash_figures.tile_map(7, 20, block_q=3, block_k=6)

# %% [markdown]
# *Worked example.* In that picture the first block of queries ends before query 3. Query 2 stands at
# position 20 - 7 + 2 = 15, and sees 16 keys: that is 2 whole blocks of 6 and a part of a third: 3 key
# blocks are needed, the fourth is skipped.

# %% exercise="n_key_blocks"
from inferlab.flash_attention import n_key_blocks

# %% check="n_key_blocks"
check("n_key_blocks")

# %% exercise="count_tiles"
from inferlab.flash_attention import count_tiles

# %% check="count_tiles"
check("count_tiles")

# %%
if ready("count_tiles"):
    for T in (1024, 8192, 65536):
        whole, edge, skipped = count_tiles(T, T, 128, 128)
        n_tiles = whole + edge + skipped
        print(
            f"{T:6,d} tokens: {n_tiles:7,d} tiles, {edge / n_tiles:5.1%} on the edge, {skipped / n_tiles:.1%} skipped"
        )

# %% [markdown]
# The longer the context, the closer to half. That halves the arithmetic, too. It is the only saving of
# arithmetic in this lesson; everything else is about moving and holding.
#
# ### Attention in tiles
#
# Now all of it. A slow memory stands in for HBM: `memory.load` copies a part of an array on chip,
# `memory.store` writes a part back, and **it counts every byte**. The loops are those of
# FlashAttention-2: for each head, for each block of queries, for each block of keys that it may see.
#
# ```
# for each head
#     for each block of queries            (on a GPU: one processor each, all at once)
#         load q;  row_max = -inf, row_sum = 0, acc = 0
#         for each block of keys up to the mask
#             load k and v
#             scores = q kᵀ / √d_head, hidden ones -inf      (block_q × block_k, on chip only)
#             row_max, row_sum, acc = online_update(...)
#         store acc / row_sum
# ```
#
# Graded are the result (within rounding), the bytes loaded and stored (exactly), and the most that is
# held at once: a few tiles, wherever the context ends.

# %% exercise="tiled_attention"
from inferlab.flash_attention import tiled_attention

# %% check="tiled_attention"
check("tiled_attention")

# %% [markdown]
# Is it the same? 1,000 tokens in float32, your tiles beside the plain formula:

# %%
if ready("tiled_attention"):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 1000, 64)).astype(np.float32)
    memory = CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q))
    tiled_attention(memory, block_q=128, block_k=64)
    plain = attention(q[None], k[None], v[None], causal_mask(1000, 1000))[0]
    tiles = memory.result("out")
    print(f"largest difference {np.abs(tiles - plain).max():.1e}")
    print(f"numbers that are the same to the last bit: {(tiles == plain).mean():.0%}")
confront("fa_exact")

# %% [markdown]
# In real arithmetic nothing was dropped: the algorithm is exact. In floating point a sum depends on
# the order of its terms, so the last bits differ: about 1e-7 relative in float32, 4e-3 in bf16. A test
# compares within a tolerance, never with `==`. (This is also one reason why the same prompt can give
# another text at another batch size: kernels choose other blocks, and a near tie falls the other way.)
#
# ### The traffic, to the byte
#
# You wrote the loop, so you can say what it moves without running it. q and the output cross once.
# k and v cross once *for each block of queries*, up to the mask.
#
# *Worked example.* 8 tokens, blocks of 4, `d_head` 2: q and out 2 · 8 rows. The first block of
# queries loads 4 keys, the second 8: 12 rows of k and 12 of v. (16 + 24) · 2 numbers = 80; at 2 bytes,
# 160 bytes.

# %% exercise="flash_traffic_bytes"
from inferlab.flash_attention import flash_traffic_bytes

# %% check="flash_traffic_bytes"
check("flash_traffic_bytes")

# %%
if ready("flash_traffic_bytes"):
    for S in (8192, 16384):
        moved = flash_traffic_bytes(S, S, 128, block_q=96, block_k=64, causal=False)
        print(f"{S:6,d} tokens, one head of width 128, no mask: {format_bytes(moved)}")
confront("fa_double")

# %% [markdown]
# **Still quadratic.** It is often said that FlashAttention makes the traffic linear. It does not. What
# becomes linear in the context is the memory that is *held* (q, k, v and the output). Let us see what
# the traffic is.
#
# ### How large a block?
#
# Per block of queries, k and v cross once, so the larger `block_q`, the less traffic:
# `T / block_q` passes. What limits it is the chip. At once there must be q and acc, k and v, a tile of
# scores, and two numbers a row (with $d$ for `d_head`):
#
# $$ \underbrace{2\, \text{block\_q}\, d}_{q,\ \text{acc}} + \underbrace{2\, \text{block\_k}\, d}_{k,\ v} +
#    \underbrace{\text{block\_q} \cdot \text{block\_k}}_{\text{scores}} + 2\, \text{block\_q} \le M. $$
#
# *Worked example.* 49,152 bytes (48 KiB) of 16-bit numbers are 24,576 numbers. With `d_head` 64 and
# `block_k` 64, k and v take 8,192 and leave 16,384; a query needs 128 + 64 + 2 = 194. So 84 fit, and
# as matrix units work on 16 rows at a time, 80.

# %% exercise="largest_block_q"
from inferlab.flash_attention import largest_block_q

# %% check="largest_block_q"
check("largest_block_q")

# %% [markdown]
# Put the two together. With `block_k` = $d$ and $M$ much larger than $d^2$, `block_q` is close to
# $M / 3d$. Then k and v move $2\,d \cdot S \cdot T / (M / 3d) = 6\, T S d^2 / M$ numbers. This is the
# $\Theta(S^2 d^2 / M)$ of the paper: **quadratic in the context, and smaller the more fits on chip.** The three
# steps move $4\, T S$. So the gain is of the order of $M / d^2$: with 192 KiB of 16-bit numbers on chip,
# that is 24 for heads of 64, but 6 for heads of 128.
#
# Theory is cheap; here is the confrontation. Your loop runs with the block that your
# `largest_block_q` gives for each size of chip, and its bytes are counted. Beside it is your formula.

# %%
if ready("tiled_attention", "flash_traffic_bytes", "largest_block_q", "standard_traffic_bytes"):
    T, d_head, block_k = 1536, 64, 32
    q, k, v = np.ones((3, 1, T, d_head), np.float32)
    chips = [1024 * kib for kib in (48, 96, 192, 384)]
    counted, predicted = [], []
    for on_chip_bytes in chips:
        block_q = largest_block_q(on_chip_bytes, d_head, block_k, 4)
        memory = CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q))
        tiled_attention(memory, block_q, block_k, causal=False)
        counted.append(memory.loaded_bytes + memory.stored_bytes)
        predicted.append(flash_traffic_bytes(T, T, d_head, block_q, block_k, 1, 4, causal=False))
        print(f"{on_chip_bytes // 1024:4d} KiB on chip: block_q {block_q:4d}, {counted[-1]:,} B")
    flash_figures.traffic_curve(
        chips, predicted, counted, standard_traffic_bytes(T, T, d_head, 1, 4)
    )
    print("formula and count are equal" if counted == predicted else "they differ: look again")

# %% [markdown]
# Twice the chip, about half the bytes. No exact algorithm can do fundamentally better while $M$ is
# at least $d^2$ (Saha and Ye 2024).
#
# ### One query: decoding
#
# In a decode step `T` is 1. There is one row of scores, 16,384 bytes at 8,192 keys: no matrix to avoid.
# Every key and value must be read once, and once is what the plain way reads them. **So
# FlashAttention saves a decode step of one sequence nothing in traffic.** What is wrong there is
# something else: one block of queries a head is work for one processor, and a GPU has a hundred.
# *Flash-decoding* cuts the **keys** into splits, gives each split to another processor, and merges the
# results.
#
# To merge, each split must hand over two things: its output, and how much weight its keys have
# together. That weight is its *log-sum-exp*, $\text{lse} = \log \sum_s e^{z_s} = m + \log \ell$: maximum
# and sum in one number, written as a logarithm because $e^{900}$ does not fit even in float64.
#
# *Worked example.* Two keys with scores 0 and 0 and values 1 and 3: output 2, lse $\log 2 = 0.693$.

# %% exercise="partial_attention"
from inferlab.flash_attention import partial_attention

# %% check="partial_attention"
check("partial_attention")

# %% [markdown]
# ### The merge
#
# Part $a$ has divided by $e^{\text{lse}_a}$, part $b$ by $e^{\text{lse}_b}$. Multiply back, add, and divide by
# both together:
#
# $$ \text{out} = \frac{e^{\text{lse}_a}\, \text{out}_a + e^{\text{lse}_b}\, \text{out}_b}
#    {e^{\text{lse}_a} + e^{\text{lse}_b}}, \qquad
#    \text{lse} = \log\left(e^{\text{lse}_a} + e^{\text{lse}_b}\right). $$
#
# *Worked example.* Outputs 2 and 8, weights 3 and 1 (lse $\log 3$ and $\log 1$): (3 · 2 + 1 · 8) / 4 =
# 3.5. The plain average would be 5. A part without keys has weight 0, that is lse $-\infty$.

# %% exercise="merge_partials"
from inferlab.flash_attention import merge_partials

# %% check="merge_partials"
check("merge_partials")

# %% [markdown]
# The result of a merge is again an output with an lse, so it can be merged further, and the order does
# not matter (but for rounding). The same three lines of arithmetic join splits of a cache, parts of a
# sequence that lies on several GPUs (*ring attention*), and a prefix that many users share with what
# each of them wrote (*cascade attention*).

# %% exercise="split_kv_decode"
from inferlab.flash_attention import split_kv_decode

# %% check="split_kv_decode"
check("split_kv_decode")

# %%
if ready("split_kv_decode", "partial_attention"):
    rng = np.random.default_rng(3)
    lengths = (400, 400, 224)
    q, k = 2 * rng.normal(size=(1, 32)), rng.normal(size=(1, 1024, 32))
    v = rng.normal(size=(1, 1024, 32))
    memory = CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q))
    split_kv_decode(memory, lengths)
    print(f"k and v have {k.nbytes + v.nbytes:,} bytes; loaded: {memory.loaded_bytes - q.nbytes:,}")
    ends = np.cumsum(lengths)
    parts = [slice(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    lse = [float(partial_attention(q, k[:, part], v[:, part])[1][0]) for part in parts]
    flash_figures.split_merge(lengths, lse)

# %% [markdown]
# ## 4. Measure
#
# ### A trained model's own heads
#
# First a real layer: the queries, keys and values of layer 15 of SmolLM2-135M-Instruct (9 query heads
# on 3 KV heads, `d_head` 64), taken from the engine while it reads a prompt, and your tiles beside the
# engine's attention.

# %%
model = trained_model("smollm2")
if model and ready("tiled_attention"):
    prompt = model.tokenizer.chat_prompt("Why does the moon not fall down?")
    q, k, v, theirs = flash_measure.captured_heads(model, prompt, layer=15)
    memory = CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q))
    tiled_attention(memory, block_q=16, block_k=16)
    apart = np.abs(memory.result("out") - theirs).max()
    print(f"q {q.shape}, k {k.shape}: largest difference {apart:.1e} of {np.abs(theirs).max():.2f}")

# %% [markdown]
# Now in all 30 layers: the engine calls your function in place of its own, in the prefill and in
# every decode step (there `T` is 1 and the keys come from the cache). The greedy tokens should be the
# same.

# %%
if model and ready("tiled_attention"):

    def attend_in_tiles(q, k, v, visible):
        out = np.empty_like(q)
        for b in range(len(q)):  # one sequence after the other
            memory = CountedMemory(q=q[b], k=k[b], v=v[b], out=np.zeros_like(q[b]))
            tiled_attention(memory, block_q=32, block_k=32)
            out[b] = memory.result("out")
        return out

    plain_tokens = generate_cached(model, prompt, 12)
    with flash_measure.engine_attention(attend_in_tiles):
        tiled_tokens = generate_cached(model, prompt, 12)
    print(model.tokenizer.decode(tiled_tokens))
    print("the same tokens" if tiled_tokens == plain_tokens else "other tokens: a near tie fell")

# %% [markdown]
# ### Memory and time as the context grows
#
# One head of width 64, float32, causal. Three ways: the plain formula in NumPy, your tiles in NumPy,
# and PyTorch's `scaled_dot_product_attention`, which on a CPU is a fused tiled kernel too. First the
# most that each holds at once, beside the score matrix that you predict.

# %%
contexts, ways = (256, 512, 1024, 2048, 4096), ("plain", "tiled", "fused")
if not grading() and ready("tiled_attention", "score_matrix_bytes"):
    rng = np.random.default_rng(0)
    heads = {S: rng.normal(size=(3, 1, S, 64)).astype(np.float32) for S in contexts}

    def plain_way(S):
        return attention(*(a[None] for a in heads[S]), causal_mask(S, S))

    def tiled_way(S):
        tiled_attention(memories[S], block_q=128, block_k=128)

    memories = {
        S: CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q)) for S, (q, k, v) in heads.items()
    }
    peaks = {way: [] for way in ways}
    fused = [flash_measure.torch_attention(S, 64, device="cpu") for S in contexts]
    scores = [score_matrix_bytes(S, S, bytes_per_number=4) for S in contexts]
    for S, torch_run in zip(contexts, fused, strict=True):
        for way, work in (("plain", plain_way), ("tiled", tiled_way)):
            with traced_peak() as peak:
                work(S)
            peaks[way].append(peak["bytes"])
        peaks["fused"].append(torch_run.peak_bytes)
        print(f"{S:5,d} tokens: {', '.join(f'{w} {peaks[w][-1] / 1e6:.2f} MB' for w in ways)}")
    flash_figures.memory_growth(contexts, *peaks.values(), scores)
    ratio = peaks["plain"][-1] / peaks["tiled"][-1]
    print(f"at {contexts[-1]:,} tokens the plain way holds {ratio:.0f} times as much as your tiles")
    confront("fa_memory")

# %% [markdown]
# **Reading it.** The plain way grows fourfold with each doubling, and stays above the predicted matrix:
# scores, masked scores, shifted scores and weights are several arrays of that size. Your tiles
# do not grow at all. PyTorch's kernel holds its output (which grows in a line) and a scratch tile for
# each thread.
#
# Now the time.
# **Before you run it:** the tiles do half the arithmetic, as they skip what the mask hides. Will they
# be faster in NumPy?

# %%
if not grading() and ready("tiled_attention", "score_matrix_bytes"):
    seconds = {way: [] for way in ways}
    for S, torch_run in zip(contexts, fused, strict=True):
        both = timing.interleaved(
            {"plain": lambda S=S: plain_way(S), "tiled": lambda S=S: tiled_way(S)}, rounds=2
        )
        for way in ("plain", "tiled"):
            seconds[way].append(both[way].median_s)
        seconds["fused"].append(torch_run.time.median_s)
        print(f"{S:5,d} tokens: {', '.join(f'{w} {format_seconds(seconds[w][-1])}' for w in ways)}")
    flash_figures.time_growth(contexts, *seconds.values(), describe())

# %% [markdown]
# **Reading it.** Take the blue line with care. At short contexts each tile pays for a Python loop and a
# dozen small NumPy calls, which cost more than its arithmetic. At long contexts the tiles usually win
# even here: half of them are skipped, and those that are left stay in the processor's cache, while the
# plain way goes through arrays of many megabytes. But NumPy stores every intermediate array; the "chip"
# is only a way of counting. What this lesson shows in NumPy is the *memory*. The *speed* of
# FlashAttention comes from one fused kernel, which is what PyTorch's line stands for (on a CPU that
# other programs use, it jumps about: its threads wait for each other).
#
# ### The same on the fastest device you have
#
# Eight heads of width 64 in PyTorch: all scores at once, and fused.

# %%
if not grading():
    device = pick()
    for S in (512, 1024) if device == "cpu" else (1024, 8192):
        plain = flash_measure.torch_attention(S, 64, 8, fused=False, device=device)
        one = flash_measure.torch_attention(S, 64, 8, fused=True, device=device)
        held = [format_bytes(p.peak_bytes) if p.peak_bytes else "?" for p in (plain, one)]
        print(f"{S:5,d} tokens on {device}: plain {plain.time}, holds {held[0]}")
        print(f"{'':12} on {device}: fused {one.time}, holds {held[1]}")
    if device == "cpu":
        not_measured("the same on a GPU needs a CUDA or MPS device")

# %% [markdown]
# ### An extra: your loop as a GPU kernel
#
# `inferlab/kernels/flash_attention.py` is `tiled_attention` once more, in Triton, a Python dialect that is compiled
# for GPUs. The two outer loops have become the grid of programs that run at once; the inner loop reads
# as yours does. It needs the package `triton` (Linux) and is not graded.

# %%
if not grading():
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        not_measured('the Triton kernel needs that package: pip install "inferlab[triton]" (Linux)')
    elif pick() != "cuda":
        not_measured("the Triton kernel needs a GPU; TRITON_INTERPRET=1 pytest checks it without")
    else:
        import torch

        from inferlab.kernels.flash_attention import flash_attention

        q, k, v = torch.randn(3, 8, 4096, 64, device="cuda", dtype=torch.float16)
        run = timing.measure(lambda: flash_attention(q, k, v), device="cuda", torch=torch)
        print(f"8 heads, 4,096 tokens, float16: {run} ({describe('cuda', 'float16')})")

# %% [markdown]
# ## 5. Explain
#
# In five to eight sentences, for a colleague who has read that "FlashAttention is a fast approximation
# that makes attention linear": **what does it do, and what does it not do?** Say how a softmax can be
# normalised without the whole row; name what becomes linear in the context and what stays
# quadratic; and say what it does for a decode step of one sequence.

# %% [markdown] written="fa_explain" points=3
# **Sample answer.** FlashAttention computes exactly the attention that the formula says; it only never
# stores the scores. It takes a block of queries on chip, goes over the keys and values block by block,
# and keeps for each row the largest score so far, the sum of exponentials relative to it, and the
# weighted values. When a larger score comes, sum and values are multiplied by the exponential of the
# old maximum minus the new one, so after the last block one division gives the exact softmax. Results
# differ from the plain way in the last bits only, because sums are added in another order. The memory that
# is held goes from quadratic to linear: at 8,192 tokens, 32 heads and 16 bit the scores of one layer
# would take 4.295 GB. The traffic does not become linear: each block of queries reads all keys that it
# may see, of the order of S² d² / M numbers with M numbers on chip. The arithmetic stays quadratic as
# well, and the KV cache keeps its size. A decode step of one sequence reads every key and value once
# either way, so it gains nothing in traffic; splitting the keys over processors and merging by
# log-sum-exp makes use of more of the GPU.
#
# **Rubric** (1 point each): *mechanism*: running maximum and sum with rescaling, exact but for
# rounding; *scaling*: held memory linear, traffic and arithmetic still quadratic; *limit*: the KV cache
# is no smaller, or a decode step of one sequence moves no fewer bytes.

# %% [markdown]
# ## 6. In the wild
#
# **Which one runs?** Hardly anybody calls a kernel by name; a back end is chosen for you, and it may
# silently choose the slow one.
#
# - *PyTorch*: `scaled_dot_product_attention` picks among a FlashAttention kernel, a memory-efficient
#   one, cuDNN's and plain "math". An explicit `attn_mask` rules the FlashAttention kernel out; use
#   `is_causal=True` where that is what you mean. Mind its corner: with `T` ≠ `S` PyTorch's `is_causal`
#   hangs the mask from the upper **left**, not from the lower right as generation needs.
#   `torch.nn.attention.sdpa_kernel` forces one back end and fails loudly where it cannot run.
# - *transformers*: `attn_implementation="sdpa"`, `"flash_attention_2"` (needs the package `flash-attn`
#   and 16-bit numbers) or `"eager"` (plain; the only one that can return the weights).
# - *vLLM*: `--attention-backend` (older versions: the variable `VLLM_ATTENTION_BACKEND`) with
#   `FLASH_ATTN`, `FLASHINFER`, `TRITON_ATTN` and others. All of them read keys and values through page
#   tables (lesson 10).
# - *llama.cpp*: `-fa on`, `off` or `auto`; a quantized V cache (`--cache-type-v`) needs it on.
# - *Versions*: FlashAttention (2022) has keys in the outer loop and stores its running results;
#   version 2 (2023) has queries there, as you did; version 3 (2024) overlaps loading with arithmetic on
#   Hopper GPUs and adds fp8.
#
# **What breaks.** Heads wider than a kernel supports (256 for FlashAttention-2), masks it does not know
# (an arbitrary bias, padding on the left), a need for the weights themselves, float32 where the
# kernel wants 16 bits. Each of them quietly leads back to the plain way, and a long prompt then runs out
# of memory. Watch the peak, not only the time.
#
# What does your PyTorch have, and what does its corner of the mask look like?

# %%
if not grading():
    import torch

    for name in ("flash", "mem_efficient", "math", "cudnn"):
        allowed = getattr(torch.backends.cuda, f"{name}_sdp_enabled", lambda: "unknown")()
        print(f"{name:14} allowed on CUDA: {allowed}")
    value = torch.arange(5.0)[
        :, None
    ]  # 5 keys; equal scores, so the output is the mean of what is seen
    zeros = torch.zeros(2, 1), torch.zeros(5, 1)
    seen = torch.nn.functional.scaled_dot_product_attention(*zeros, value, is_causal=True)
    print(f"2 queries over the values 0 to 4, is_causal: {seen.ravel().tolist()}")
    print("the newest two of five tokens should get 1.5 and 2.0: this mask hangs upper left")

# %% [markdown]
# **When it applies.** It is why long prompts are possible at all, and it speeds up prefill, more so the
# longer the prompt. It does nothing for the weights that decoding reads, nor for the KV cache: those
# need fewer KV heads (lesson 05), fewer bits (lesson 07), batching (lesson 10).

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 MB"`, `"3 GiB"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("fa_q_scores")

# %% answer="fa_q_scores"
answers["fa_q_scores"] = "5.36871 GB"

# %% answer_check="fa_q_scores"
answers.check("fa_q_scores")

# %%
answers.ask("fa_q_update")

# %% answer="fa_q_update"
answers["fa_q_update"] = "1.687"

# %% answer_check="fa_q_update"
answers.check("fa_q_update")

# %%
answers.ask("fa_q_merge")

# %% answer="fa_q_merge"
answers["fa_q_merge"] = "10.294"

# %% answer_check="fa_q_merge"
answers.check("fa_q_merge")

# %%
answers.ask("fa_q_skipped")

# %% answer="fa_q_skipped"
answers["fa_q_skipped"] = "78"

# %% answer_check="fa_q_skipped"
answers.check("fa_q_skipped")

# %%
answers.ask("fa_q_longer")

# %% answer="fa_q_longer"
answers["fa_q_longer"] = "16x"

# %% answer_check="fa_q_longer"
answers.check("fa_q_longer")

# %%
answers.ask("fa_q_block")

# %% answer="fa_q_block"
answers["fa_q_block"] = "176"

# %% answer_check="fa_q_block"
answers.check("fa_q_block")

# %%
answers.ask("fa_q_splits")

# %% answer="fa_q_splits"
answers["fa_q_splits"] = "3.3 GB"

# %% answer_check="fa_q_splits"
answers.check("fa_q_splits")

# %%
answers.ask("fa_q_what")

# %% answer="fa_q_what"
answers["fa_q_what"] = "c"

# %% answer_check="fa_q_what"
answers.check("fa_q_what")

# %%
answers.ask("fa_q_linear")

# %% answer="fa_q_linear"
answers["fa_q_linear"] = "b"

# %% answer_check="fa_q_linear"
answers.check("fa_q_linear")

# %%
answers.ask("fa_q_equal")

# %% answer="fa_q_equal"
answers["fa_q_equal"] = "b"

# %% answer_check="fa_q_equal"
answers.check("fa_q_equal")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>Is FlashAttention approximate?</b></summary>
#
# No. Nothing is dropped; only the order of the sums differs. *Follow-up: should a test use equality?*
# No: a tolerance, about 1e-7 relative in float32 and 4e-3 in bf16, times what the sums pile up.
# </details>
#
# <details><summary><b>What drops from quadratic to linear, and what does not?</b></summary>
#
# The memory that is held. Arithmetic and traffic stay quadratic; the traffic is Θ(S² d² / M).
# *Follow-up: how large would the scores be at 8,192 tokens, 32 heads, 16 bit?* 4.295 GB a layer.
# </details>
#
# <details><summary><b>Derive the online softmax.</b></summary>
#
# m' = max(m, block maximum); ℓ' = exp(m − m') ℓ + Σ exp(s − m'); the weighted values likewise; divide
# at the end. *Follow-up: which order of blocks hides a missing rescale, and which a block-local
# maximum?* Falling maxima hide the first, rising ones the second.
# </details>
#
# <details><summary><b>How do you merge two partial attentions over different keys?</b></summary>
#
# Weigh each output by exp(its lse − the joint lse). *Follow-up: where is it used?* Split-KV decoding,
# ring attention, a shared prefix (cascade attention).
# </details>
#
# <details><summary><b>Does FlashAttention speed up decoding for one user?</b></summary>
#
# Not by traffic: keys and values are read once anyway. Splitting the keys keeps more processors busy.
# *Follow-up: what would reduce the traffic?* GQA, MLA, a quantized cache, a window.
# </details>
#
# <details><summary><b>The softmax of 1000 and 1001?</b></summary>
#
# 0.269 and 0.731, after the maximum is subtracted. *Follow-up: and of a fully masked row?* There is
# none: the sum is 0. Running state must come through such a block without NaN, and a row that is masked
# in all blocks needs a convention (output 0, lse −∞).
# </details>
#
# <details><summary><b>The head is twice as wide. What happens to the gain?</b></summary>
#
# It is of the order of M / d²: a quarter. *Follow-up: why not one large tile then?* It must fit on
# chip; and fewer, larger blocks of queries leave processors idle.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("06_flash_attention", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - The score matrix is `T · S` numbers a head: 134 MB at 8,192 tokens in 16 bit, 4.295 GB for 32 heads.
#   Nobody needs it; the plain way holds it several times and moves it four times.
# - A running maximum and a running sum normalise a softmax without the row. When the maximum rises, what
#   was kept is multiplied by exp(old − new), the values too.
# - In tiles the memory held is linear (q, k, v and the output; what is on chip does not grow), and the
#   traffic is what your formula says: Θ(S² d² / M), quadratic still. Exact, but not bit for bit.
# - Tiles in the future are skipped: nearly half of a long prefill.
# - Outputs with their log-sum-exp can be merged in any grouping: split decoding, ring, shared prefixes.
# - The KV cache stays as large as it was, and a decode step of one sequence moves as many bytes.
#
# **Common mistakes.** A missing rescale (of the sum, of the values, of both). Each block's own maximum.
# A maximum that starts at 0. NaN from a masked block. A ragged last block left out, or filled up with
# zeros that count. Averages in place of a merge. The mask's corner where `T` ≠ `S`. `==` in a test.
#
# **References**
#
# - Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018, arXiv 1805.02867
# - Rabe and Staats, *Self-attention Does Not Need O(n²) Memory*, 2021, arXiv 2112.05682
# - Dao, Fu, Ermon, Rudra and Ré, *FlashAttention: Fast and Memory-Efficient Exact Attention with
#   IO-Awareness*, 2022, arXiv 2205.14135
# - Dao, *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning*, 2023,
#   arXiv 2307.08691
# - Dao, Haziza, Massa and Sizov, *Flash-Decoding for long-context inference*, 2023 (blog post)
# - Liu, Zaharia and Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*,
#   2023, arXiv 2310.01889
# - Shah et al., *FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision*,
#   2024, arXiv 2407.08608
# - Saha and Ye, *The I/O Complexity of Attention, or How Optimal is FlashAttention?*, 2024, arXiv
#   2402.07443
# - Ye et al., *FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving*,
#   2025, arXiv 2501.01005
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("06_flash_attention")
