# %% [markdown]
# # 03 · Prefill and decode: two phases of generation
#
# Ask a chat model something. For a moment nothing happens, then words stream at an even pace. The
# wait and the pace are two different computations on the same weights. One is bound by arithmetic,
# the other by memory; what cures one does little for the other. This lesson builds both, counts
# what each computes and reads, and puts a floor under both times.
#
# **You will be able to**
#
# - run a prompt in one pass or in chunks, and go on token by token, with the same result;
# - say which resource bounds each phase, for any model, prompt and device, and why;
# - compute the least time to the first token, the least time per token, and the whole;
# - tell which phase takes the seconds of a chat, of RAG, of an agent, of a reasoning model.
#
# **Time** about 3 hours: 1 h 52 min for thirteen exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** lesson 01 (FLOPs, bytes, the roofline) and lesson 02 (the forward pass, from tokens to
# **logits**: one number for each token of the vocabulary, the larger the likelier).
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B` | sequences in the batch | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `T` | tokens computed now | `d_model`, `d_head` | width of a token's row, of one head |
# | `S` | tokens that may be seen, `T` included | `n_layers` | decoder layers |
#
# GB is 10⁹ bytes, TB is 10¹² bytes. A FLOP is one multiplication or one addition.

# %%
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.config import ModelConfig
from inferlab.data import load_config, model_preset
from inferlab.generate import Kept, ModelParts
from inferlab.kv_cache import kv_cache_bytes
from inferlab.model import Model
from inferlab.operators import (
    attention,
    causal_mask,
    merge_heads,
    project,
    rope_angles,
    rotate,
    split_heads,
)
from inferlab.roofline import body_params, forward_flops, step_bound_s
from inferlab.tokenizer import StreamDecoder
from inferlab.weights import LayerWeights, random_weights
from labkit.figures import prefill_decode as phase_figures
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured
from labkit.measure.models import trained_model
from labkit.units import format_bytes, format_seconds

H100 = (3.35e12, 989.4e12)  # bytes/s, and FLOP/s in bf16 (dense: without the sparsity of brochures)
EIGHT_B = model_preset("8b-style")

# %% [markdown]
# ## 1. Why it matters
#
# A request arrives with a prompt of 2,000 tokens. An engine serves it in two phases:
#
# - the **prefill** runs all 2,000 tokens through the model in *one* pass. It gives the first new
#   token, and keeps what later tokens need of the prompt;
# - the **decode** steps run *one* token a pass: the newest one. Each gives the next.
#
# Here they are to scale: an 8B-style model in bf16 on an H100, at the very best that it could do.

# %%
prefill_s = step_bound_s(EIGHT_B, 2000, 0, *H100, 2)
steps_s = [step_bound_s(EIGHT_B, 1, 2000 + i, *H100, 2) for i in range(14)]
phase_figures.request_timeline(2000, prefill_s, steps_s)

# %% [markdown]
# In 29.3 ms the device reads 2,000 tokens: 68,300 tokens a second. Then it needs 4.6 ms for each
# single token: 219 a second, though it is the same model with the same weights.
#
# What a user feels has three names:
#
# - **TTFT**, time to first token: from the request's arrival to its first token. It is the wait
#   for a turn, plus the prefill.
# - **ITL**, inter-token latency: the gap before each later token. It is a list, one number a token.
# - **TPOT**, time per output token: the mean of those gaps, one number a request. Between `n` tokens
#   there are `n − 1` gaps, so TPOT = (time of the last token − time of the first) / (n − 1).
#
# The whole takes TTFT + (n − 1) · TPOT. With a TTFT of 200 ms, a TPOT of 25 ms and 300 tokens:
# 0.2 + 299 · 0.025 = 7.675 s. While it streams, the user sees 1 / 0.025 = 40 tokens a second; over
# the whole request it is 300 / 7.675 = 39.1.
#
# Why is a token that is read so much cheaper than one that is written? Look at one weight matrix:

# %%
phase_figures.weight_reuse(n_rows=2000)

# %% [markdown]
# A weight travels from memory to the arithmetic units. In the prefill it then serves 2,000 tokens,
# in a decode step a single one. A device that computes 295 FLOPs in the time it takes to read one
# byte is busy in the first case, and waits in the second.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. The first one counts; you will be confronted with it.

# %%
predict("pd_flops_ratio")

# %%
predict("pd_time_ratio")

# %%
predict("pd_rag")

# %%
predict("pd_speed_ratio")

# %% [markdown]
# ## 3. Build
#
# ### Writing with no memory
#
# The plainest generator knows one thing: a model gives the logits of the token that follows a text.
# So run the text, take the likeliest token (that is **greedy** decoding), put it behind the text,
# and run the longer text.
#
# *Worked example.* A prompt of 5 tokens, 3 new ones: the model runs 5, then 6, then 7 tokens. That
# is 18, for a text of 8.
#
# A real loop also stops when the model chooses its **end-of-text token** (EOS), which means "I am
# done". We add that later, and count tokens for now.

# %% exercise="generate_uncached"
from inferlab.generate import generate_uncached

# %% check="generate_uncached"
check("generate_uncached")

# %% [markdown]
# ### What a later token needs of an earlier one
#
# Most of that work is done again and again. A **causal** model lets a token see itself and earlier
# ones, never later ones. So nothing that was computed for a past token changes when a new one
# comes. And what does the new token ask of a past one? In each layer its query is compared with the
# past token's **key**, and takes a share of its **value**. Nothing else: not its query, not its row.
#
# So keep every layer's keys and values, and run only the new tokens. This lesson keeps them as plain
# arrays that grow; lesson 04 shows why that is valid in all layers, and builds the structure that
# real engines use.
#
# ### Attention on top of a past
#
# `T` new tokens arrive, `S − T` were run before. Three things must be right:
#
# 1. **Positions.** New tokens continue where the past ended. RoPE turns a query or key by an angle
#    that depends on its position, and attention feels the *difference* of two positions. Past keys
#    were turned when they were new: turning them again would move them.
# 2. **The mask.** Every new token sees the whole past, itself, and the new tokens before it.
# 3. **Order.** Past first, then new, for keys and for values alike.
#
# *Worked example.* 5 tokens kept, 2 new ones. They stand at positions 5 and 6. The mask has 2 rows
# and 7 columns (■ is "may look"):
#
# | | key 0 | 1 | 2 | 3 | 4 | 5 | 6 |
# |---|---|---|---|---|---|---|---|
# | query at 5 | ■ | ■ | ■ | ■ | ■ | ■ | |
# | query at 6 | ■ | ■ | ■ | ■ | ■ | ■ | ■ |
#
# Write it with the functions of lesson 02: `project(x, w)`, `split_heads(rows, d_head)`,
# `rope_angles(positions, d_head, theta)`, `rotate(heads, angles)`, `causal_mask(T, S)`,
# `attention(q, k, v, visible)` and `merge_heads(heads)`. `attention` lets several query heads share a
# KV head by itself.

# %% exercise="attend_with_past"
from inferlab.generate import attend_with_past

# %% check="attend_with_past"
check("attend_with_past")

# %% [markdown]
# Does it matter how a text is cut? Seven tokens through one layer: at once, as 5 and 2, and one by
# one, with your function.

# %%
if ready("attend_with_past"):
    rng = np.random.default_rng(0)
    small = ModelConfig(1, 48, 6, 2, 10, 64, 100)
    layer, rows = random_weights(small, rng, np.float64).layers[0], rng.normal(size=(1, 7, 48))
    at_once = None
    for cuts in ([7], [5, 2], [1] * 7):
        k = v = np.zeros((1, 2, 0, 10))
        outputs, start = [], 0
        for T in cuts:
            out, k, v = attend_with_past(rows[:, start : start + T], layer, small, k, v)
            outputs.append(out)
            start += T
        whole = np.concatenate(outputs, axis=1)
        at_once = whole if at_once is None else at_once
        print(f"{cuts!s:22} largest difference {np.abs(whole - at_once).max():.0e}")

# %% [markdown]
# The same, but for rounding: a sum of many terms may be added up in another order. (And not to the
# last bit: a test with `==` would fail for no good reason.)
#
# ### A pass through all layers
#
# A whole pass is lesson 02's forward pass, with two additions: every layer is handed the keys and
# values that it kept, and hands back longer ones. `ModelParts(model)` is a model taken apart so that
# you can write that loop:
#
# | call | what it does |
# |---|---|
# | `parts.embed(tokens)` | begins a pass: the rows `x` of the tokens, `(1, T, d_model)` |
# | `parts.block(layer, x, k, v)` | decoder block number `layer` on top of its past: `x, k, v`, `k` and `v` longer |
# | `parts.logits(x)` | ends a pass: final norm and head, for the last row only |
# | `parts.nothing_kept()` | how a request begins: a list of `(k, v)`, one for each layer, of no tokens |
#
# Note the last but one: only the last row goes through the head. The logits that follow the other
# prompt tokens would predict tokens that the prompt already has.
#
# *Worked example.* Two layers, a prompt of 4 tokens: embed 4 rows, block 0 with its empty past gives
# 4 keys and 4 values, block 1 as well; keep both pairs; the logits of row 3 choose the first new
# token. A later pass of 1 token finds 4 kept in each layer and leaves 5.

# %% exercise="prefill"
from inferlab.generate import prefill

# %% check="prefill"
check("prefill")

# %% [markdown]
# ### One decode step
#
# The pass that a generation repeats. You need not write a second loop: what is a decode step, seen
# from where you stand?

# %% exercise="decode_step"
from inferlab.generate import decode_step

# %% check="decode_step"
check("decode_step")

# %% [markdown]
# There is only one kind of pass: `T` tokens on top of `S − T`. Prefill and decode are its two ends.
# A *decode* step is a pass of one token, a *prefill* a pass of many.
#
# ### A prompt in chunks
#
# Between the two ends lies a **chunked prefill**. A prompt of 32,768 tokens in one pass has a score
# for every pair of tokens in every head, and keeps everybody else's next token waiting until it is
# through. In chunks, other users' decode steps run in between, and the scores of a pass are at most
# `chunk_size` rows.
#
# *Worked example.* 11 tokens in chunks of 4: a pass of 4 on nothing, a pass of 4 on top of 4, a pass
# of 3 on top of 8. Only the last one's logits are of use.

# %% exercise="chunked_prefill"
from inferlab.generate import chunked_prefill

# %% check="chunked_prefill"
check("chunked_prefill")

# %% [markdown]
# ### What each phase computes
#
# Now the arithmetic. `forward_flops(config, n_new, n_cached)` counts a pass of `n_new` tokens on top
# of `n_cached`, as in lesson 01. In words:
#
# - every new token goes through the weights of all layers: 2 FLOPs a weight, a multiplication and
#   an addition;
# - every new token attends to each token up to itself: `4 · n_heads · d_head` FLOPs a pair and layer
#   (2 for the score, 2 for the share of the value);
# - the head runs once a pass.
#
# An answer of 500 tokens takes **499** decode steps, not 500: the prefill gives the first token.
#
# *Worked example.* 3 tokens in, 3 out. The passes are `(n_new, n_cached)` = (3, 0), (1, 3), (1, 4).
# The third new token is chosen and never run.

# %% exercise="phase_flops"
from inferlab.prefill_decode import phase_flops

# %% check="phase_flops"
check("phase_flops")

# %%
if ready("phase_flops"):
    in_flops, out_flops = phase_flops(EIGHT_B, 1000, 1001)
    print(f"reading 1,000 tokens: {in_flops / 1e12:.2f} TFLOP")
    print(f"1,000 decode steps:   {out_flops / 1e12:.2f} TFLOP, {out_flops / in_flops:.2f} times")
confront("pd_flops_ratio")

# %% [markdown]
# So the arithmetic does not explain the picture at the top. Something else must.
#
# ### What each pass reads
#
# A pass must bring every weight from memory to the arithmetic units: once, however many tokens and
# users share it. And it must bring the keys and values that are kept: one key and one value of
# `d_head` numbers for each KV head, layer and token, and each user has their own.
#
# Look at the parameters of the next function: the number of new tokens is **not** among them.
#
# *Worked example.* 8B-style, bf16: 6,979,321,856 weights in the layers and 525,336,576 in the head
# make 7,504,658,432, times 2 bytes: 15.01 GB. (People say 16 GB: 8 billion times 2. They count the
# embedding, of which a pass looks up a few rows.) One kept token adds
# 2 · 32 · 8 · 128 · 2 = 131,072 bytes. 8,192 kept tokens of one user add 1.074 GB, those of 16 users
# 17.18 GB: the weights are shared, the past is not.

# %% exercise="pass_read_bytes"
from inferlab.prefill_decode import pass_read_bytes

# %% check="pass_read_bytes"
check("pass_read_bytes")

# %% [markdown]
# What a pass *writes*, the keys and values of its new tokens, is left out: 1.7 % of the weights for
# a prompt of 2,000 tokens here.
#
# ### How much arithmetic for each byte
#
# **Arithmetic intensity** is FLOPs divided by bytes read. A device has one too, its **ridge**: peak
# FLOP/s divided by bandwidth, 295 FLOP/byte for an H100 in bf16. A pass below the ridge waits for
# memory, one above it is limited by arithmetic.
#
# *Worked example.* A decode step in bf16 reads 2 bytes a weight and does 2 FLOPs with it: about 1.
# With 16 users it does 32 FLOPs with the same 2 bytes: about 16. A prompt of 2,000: about 2,000.

# %% exercise="pass_intensity"
from inferlab.prefill_decode import pass_intensity

# %% check="pass_intensity"
check("pass_intensity")

# %%
if ready("pass_intensity"):
    passes = {
        "decode step, 1 user of 1,000 tokens": pass_intensity(EIGHT_B, 1, 1000),
        "decode step, 32 users of 1,000 tokens": pass_intensity(EIGHT_B, 1, 1000, 32),
        "prefill of 50 tokens": pass_intensity(EIGHT_B, 50),
        "prefill of 2,000 tokens": pass_intensity(EIGHT_B, 2000),
    }
    phase_figures.phase_roofline(
        list(passes), list(passes.values()), *H100, "an H100, 8B-style in bf16"
    )

# %% [markdown]
# A single user's decode step can use 0.35 % of the arithmetic. Thirty-two users together use the
# weights thirty-two times; they do not reach thirty-two times the intensity, because each brings a
# past of their own (lesson 01: past some context no batch is large enough). And a prompt of 50 tokens
# is below the ridge too: "prefill is compute-bound" is a statement about long prompts.
#
# The two phases side by side; it is worth knowing by heart:
#
# | | prefill | decode |
# |---|---|---|
# | tokens a pass | the whole prompt (or a chunk) | 1 for each sequence |
# | passes for one request | 1, or one a chunk | n − 1, one after the other |
# | each weight read serves | all prompt tokens | 1 token for each sequence |
# | intensity in bf16 (FLOP/byte) | about the prompt's length | about the number of sequences, less with long pasts |
# | bound by | arithmetic, if the prompt is long enough | memory bandwidth, unless the batch is huge and the past short |
# | sets | TTFT | ITL and TPOT |
# | grows with | the prompt; attention with its square | the past, a little in every step |
# | helped by | FLOP/s, 8-bit arithmetic, prefix caching | bandwidth, batching, fewer bytes, speculative decoding |
# | hardly helped by | bandwidth, more sequences at once | FLOP/s |
# | what the user says | "it takes long to start" | "it types slowly" |
#
# ### The knee
#
# How long is long enough? A prefill reads the same bytes whatever its length, so short prompts all
# take the same time: that of reading the weights. The **knee** is the first length at which computing
# takes as long.
#
# By the rule of thumb each weight read (`b` bytes) does 2 FLOPs a token, so the knee is
# ridge · b / 2: on an H100 295 tokens for bf16, 148 for 8-bit weights with bf16 arithmetic. It is
# *not* the ridge whatever the precision. The exact count differs a little: the head is read
# whole, but computed for one token only, and attention adds some.
#
# *Worked example.* 8B-style, bf16, H100. Reading: 15.01 GB / 3.35 TB/s = 4.480 ms. In that time the
# device computes 4.433 TFLOP. 315 tokens need less, 316 need more: 316.

# %% exercise="prefill_knee"
from inferlab.prefill_decode import prefill_knee

# %% check="prefill_knee"
check("prefill_knee")

# %% [markdown]
# ### Time to first token
#
# The least time of a pass is the *longer* of reading and computing, not their sum: while one layer
# computes, the weights of the next can be on their way. The sum would be a pass without any overlap,
# at most twice as long. Waiting for a turn comes on top, and on a busy server it is often the larger
# part of TTFT.
#
# *Worked example.* 8B-style on the H100. 50 tokens: reading 4.48 ms, computing less: 4.48 ms. 2,000
# tokens: computing 28.97 TFLOP takes 29.28 ms, reading still 4.48: 29.28 ms.

# %% exercise="ttft_bound_s"
from inferlab.prefill_decode import ttft_bound_s

# %% check="ttft_bound_s"
check("ttft_bound_s")

# %% [markdown]
# ### Time per output token
#
# Each decode step reads all weights and all that is kept, and gives every sequence one token. Do not
# compute it from FLOPs: 989.4 TFLOP/s over 15 GFLOP a token would promise 65,900 tokens a second to a
# single user. And the past grows with every step, so later steps take longer; not by much.
#
# *Worked example.* 8B-style, 2,000 in, 3 out: two steps, on top of 2,000 and of 2,001 tokens. They
# read 15,271,460,864 and 15,271,591,936 bytes: 4.559 ms each.

# %% exercise="tpot_bound_s"
from inferlab.prefill_decode import tpot_bound_s

# %% check="tpot_bound_s"
check("tpot_bound_s")

# %%
if ready("tpot_bound_s", "ttft_bound_s"):
    for n_tokens in (100, 8192):
        for n_users in (1, 32):
            gap = tpot_bound_s(EIGHT_B, n_tokens, 2, *H100, n_users)
            print(
                f"users: {n_users:2d}, {n_tokens:5,d} tokens kept each: {1e3 * gap:5.2f} ms a step, "
                f"{1 / gap:3.0f} tokens/s each, {n_users / gap:5,.0f} together"
            )
    for n in (1000, 50):
        ratio = n * tpot_bound_s(EIGHT_B, n, n + 1, *H100) / ttft_bound_s(EIGHT_B, n, *H100)
        print(f"writing {n:,d} tokens takes {ratio:.0f} times as long as reading {n:,d}")
confront("pd_time_ratio")

# %% [markdown]
# "Tokens a second" is two numbers. From 1 user to 32, what each user sees falls, what the server
# gives grows; with short pasts the step takes hardly longer, with 8,192 tokens each it takes three
# times as long.
#
# ### The whole request
#
# *Worked example.* The one from the beginning: 0.2 + 299 · 0.025 = 7.675 s. `n · TPOT` would give
# 7.7 s: the first token came with TTFT already. And an answer of one token takes TTFT; its TPOT is
# not defined.

# %% exercise="end_to_end_s"
from inferlab.prefill_decode import end_to_end_s

# %% check="end_to_end_s"
check("end_to_end_s")

# %% [markdown]
# ### Which phase takes the seconds?
#
# "Long prompt, short answer: prefill-heavy." That is a statement about tokens, and tokens of the two
# phases do not cost the same. Take 8,000 tokens of documents and an answer of 50 tokens.
#
# *Worked example.* At best the prefill takes 0.130 s and the 49 steps 0.235 s. The prefill's share is
# 0.130 / 0.365 = 0.36, although it has 99.4 % of the tokens.

# %% exercise="prefill_share"
from inferlab.prefill_decode import prefill_share

# %% check="prefill_share"
check("prefill_share")

# %%
confront("pd_rag")
workloads = {
    "chat: 300 in, 300 out": (300, 300),
    "RAG: 8,000 in, 300 out": (8000, 300),
    "agent: 20,000 in, 100 out": (20_000, 100),
    "reasoning: 200 in, 8,000 out": (200, 8000),
    "one label: 2,000 in, 2 out": (2000, 2),
}
if ready("prefill_share", "ttft_bound_s"):
    reads, writes = [], []
    for n_prompt, n_output in workloads.values():
        reads.append(ttft_bound_s(EIGHT_B, n_prompt, *H100))
        share = prefill_share(EIGHT_B, n_prompt, n_output, *H100)
        writes.append(reads[-1] * (1 - share) / share)
    phase_figures.workload_bars(list(workloads), reads, writes)

# %% [markdown]
# For one user at a time, decoding takes most of the seconds nearly always: in a chat, with RAG, and
# overwhelmingly in a reasoning model. An agent that sends its long history in every turn comes near to
# half, and only where the answer is a word or two does the prefill dominate. So before you choose a
# device or a cure, ask for the distribution of both lengths.
#
# Two things move the balance. Many users at once share the decode steps' reading, while each brings a
# prefill of their own: on a full server the prefills' share of the *device's* seconds is much larger
# (lessons 10 and 12). And a prompt that begins like an earlier one need not be run again: prefix caching.

# %% [markdown]
# ## 4. Measure
#
# Now a trained model: SmolLM2-135M-Instruct, 30 layers, `d_model` 576, on your machine, with your
# functions.
#
# ### One answer, token by token
#
# The loop of a real generator: one prefill, then decode steps, until the model chooses its
# end-of-text token or the limit (`max_tokens`) is reached. Each token goes out as soon as it is
# chosen: that is **streaming**. `StreamDecoder` holds back half a character, since a token may be a
# part of one. The loop is worth a look: the last token chosen is never run.


# %%
def generate(parts, prompt, max_new, eos_ids):
    """Yield (token, seconds since the last one): TTFT first, then the gaps."""
    before = perf_counter()
    logits, kept = prefill(parts, prompt)
    for n_chosen in range(1, max_new + 1):
        token = int(np.argmax(logits))
        now = perf_counter()
        yield token, now - before
        if token in eos_ids or n_chosen == max_new:
            return
        before = now
        logits, kept = decode_step(parts, token, kept)


# %%
model = trained_model("smollm2")
if model and ready("prefill", "decode_step"):
    parts = ModelParts(model)
    prompt = model.tokenizer.chat_prompt("Name the planets of the solar system.")
    stream = StreamDecoder(model.tokenizer)
    gaps = []
    for token, seconds in generate(parts, prompt, 24, model.tokenizer.eos_ids):
        gaps.append(seconds)
        print(stream.push(token), end="", flush=True)
    print(stream.flush())
    print(f"{len(prompt)} tokens in, {len(gaps)} out, passes of {parts.passes} tokens")

# %% [markdown]
# What should that have taken at least? Bandwidth and peak of your machine, measured, go into your own
# bounds. The engine works in float32: 4 bytes a number.

# %%
NEEDED = ("prefill", "decode_step", "ttft_bound_s", "tpot_bound_s", "end_to_end_s")
if model and ready(*NEEDED):
    machine = (timing.read_bandwidth(), timing.matmul_peak())
    print(describe("cpu", "float32"))
    print(f"measured: {machine[0] / 1e9:.1f} GB/s read, {machine[1] / 1e9:.0f} GFLOP/s")
    ttft_s = ttft_bound_s(model.config, len(prompt), *machine, 4)
    tpot_s = tpot_bound_s(model.config, len(prompt), len(gaps), *machine, 1, 4)
    phase_figures.token_gaps(gaps, ttft_s, tpot_s, describe())
    mean_gap = sum(gaps[1:]) / (len(gaps) - 1)
    least = end_to_end_s(ttft_s, tpot_s, len(gaps))
    print(f"TTFT {format_seconds(gaps[0])}, at least {format_seconds(ttft_s)}")
    print(f"TPOT {format_seconds(mean_gap)}, at least {format_seconds(tpot_s)}")
    print(f"whole {format_seconds(sum(gaps))}, at least {format_seconds(least)}")

# %% [markdown]
# ### Two speeds, and the knee
#
# How many tokens a second does a prefill read, by the length of the prompt, and how many does
# decoding write? **Before you run it:** where will the curve bend, and what will it do after that?
# (It takes about ten seconds.)

# %%
if model and ready("prefill_knee", *NEEDED):
    lengths, rates, at_most = [4, 8, 16, 32, 64, 128, 256, 512], [], []
    for n in lengths:
        text = [int(token) for token in np.arange(n) % 1000 + 100]
        runs = [
            timing.once(lambda text=text: prefill(parts, text)) for _ in range(2 if n < 200 else 1)
        ]
        rates.append(n / min(runs))
        at_most.append(n / ttft_bound_s(model.config, n, *machine, 4))
    _, kept = prefill(parts, text[:256])
    step = timing.measure(lambda: decode_step(parts, 5, kept), repeat=5)
    writes, writes_at_most = (
        1 / step.median_s,
        1 / tpot_bound_s(model.config, 256, 2, *machine, 1, 4),
    )
    knee = prefill_knee(model.config, *machine, 4)
    phase_figures.phase_rates(lengths, rates, at_most, writes, writes_at_most, knee, describe())
    ratio = rates[lengths.index(256)] / writes
    print(f"at 256 tokens reading is {ratio:.1f} times as fast as writing")
    confront("pd_speed_ratio", f"{ratio:.1f}x")

# %% [markdown]
# **Reading it.** Left of the knee a longer prompt costs nearly nothing more, so its tokens a second
# grow with its length. Right of it the arithmetic units are busy, and the bound is flat: a token more
# costs a token's time. The measured curve bends later than its bound: a product of few rows does not
# reach the peak, which was measured on a large one. A CPU has a lower ridge than a GPU (it computes
# less for each byte that it reads), so its knee lies at about ten tokens or a few tens, and the two
# speeds differ by a factor of ten or so rather than of hundreds.
#
# **The gap to the bounds.** Both stay above their floor, for other reasons too. Norms, rotations, the
# softmax and SwiGLU's own arithmetic read and write memory as well. Attention in plain NumPy computes
# the whole square of scores and masks half of it; at 512 tokens you may see the curve fall a little.
# Python itself spends time on each of 30 layers. And this lesson's plain arrays are copied in every
# step to become one token longer, which lesson 04 puts right. `inferlab generate "your question"` runs
# the same loop on the engine's own cache and ends with a line of TTFT and TPOT.
#
# ### The same on a GPU

# %%
if model and not grading():
    from labkit.measure.device import pick

    device = pick()
    if device == "cpu":
        not_measured("the two speeds of a GPU need a CUDA or MPS device")
    else:
        from inferlab.engines.choose import load_engine

        engine = load_engine("smollm2", "torch", device, "float16")
        for n in (16, 128, 512, 2048):
            cache = engine.model.new_cache(capacity=n + 1)
            text = [int(token) for token in np.arange(n) % 1000 + 100]

            def read(cache=cache, text=text):
                cache.truncate(0)
                engine.model.next_logits(text, cache)

            def write(cache=cache, n=n):
                cache.truncate(n)
                engine.model.next_logits([5], cache)

            read_s, write_s = timing.measure(read).median_s, timing.measure(write).median_s
            print(f"{n:5,d} tokens: reads {n / read_s:9,.0f} tokens/s, writes {1 / write_s:5,.0f}")
        print(engine.where)

# %% [markdown]
# On a GPU a model this small is bound by neither: starting several hundred small operations, one after
# the other, takes longer than reading or computing. The floors come close for models that fill the
# device.

# %% [markdown]
# ## 5. Explain
#
# In five to eight sentences, for a colleague who watches a slow chat model on a dashboard: **why do
# prefill and decode need different cures?** Say what each phase reads and computes, what bounds it and
# when that is not so; name the metric that each one sets; and give one number with its unit, for a
# model and device of your choice.

# %% [markdown] written="pd_explain" points=3
# **Sample answer.** A prefill runs the whole prompt in one pass, a decode step runs one token. Both
# read every weight once, so in a prefill of 2,000 tokens each weight that was read does 2,000 tokens'
# work, in a decode step one token's. On an H100 the prefill of an 8B-style model is therefore bound by
# arithmetic, 29 ms at best, and each decode step by memory bandwidth, 15 GB / 3.35 TB/s = 4.5 ms at
# best. The prefill and the wait before it make TTFT; the decode steps make ITL and TPOT, and n tokens
# take n − 1 of them. More FLOP/s shorten the first, more bandwidth or fewer bytes the second, and more
# users at once raise the tokens a second of the server, not of one user. There are limits: a prompt
# shorter than about 300 tokens is bound by reading too, and a step gets slower as the text grows,
# because the keys and values of every token so far are read with the weights. So ask first whether
# the first token is late or the stream is slow.
#
# **Rubric** (1 point each): *mechanism*: the same weights are read for many tokens or for one, hence
# arithmetic or bandwidth; *number*: a time or rate that is right, with its unit; *limit*: short prompts
# are bound by reading (or: huge batches with short pasts by arithmetic, or the past's growing bytes).

# %% [markdown]
# ## 6. In the wild
#
# **When does it stop?** `eos_token_id` in a `config.json` or `generation_config.json` is one id *or a
# list*: chat models often have one token that ends a turn and another that ends a text. An engine that
# reads only one of them talks on to itself. `max_position_embeddings` is where the context ends.

# %%
for name in ("smollm2-135m", "llama-3-8b", "qwen3-0.6b", "gemma-3-1b", "deepseek-v3"):
    fields = load_config(name)
    print(
        f"{name:13} eos_token_id {fields['eos_token_id']!s:9} "
        f"max_position_embeddings {fields['max_position_embeddings']:,}"
    )

# %% [markdown]
# **What engines offer.**
#
# - *transformers*: `model.generate(..., max_new_tokens=…)` counts new tokens (`max_length` counts the
#   prompt too); `eos_token_id` takes a list; `streamer=` hands out text as it comes;
#   `prefill_chunk_size=` cuts the prompt.
# - *vLLM*: chunked prefill is on by default (`--enable-chunked-prefill`). `--max-num-batched-tokens` is
#   the budget of one pass: decode steps are put in first, prompt chunks fill what is left. A smaller
#   budget gives smoother ITL, a larger one better TTFT and throughput. Its benchmark prints TTFT, TPOT
#   and ITL one by one.
# - *llama.cpp*: `-b` is how many prompt tokens are handed over at a time, `-ub` how many of them a pass
#   really runs (512 by default); its report calls the phases `prompt eval time` and `eval time`.
# - *Two pools*: some services prefill on some devices, decode on others, and ship the keys and values
#   between them (DistServe, Splitwise), so that neither phase disturbs the other.
#
# **What chunks cost.** They do *not* save FLOPs, and they do not shorten the prompt's own TTFT. Every
# chunk reads the weights again, and the keys and values of the chunks before it:

# %%
if ready("pass_read_bytes"):
    n_prompt, chunk = 8192, 512
    starts = range(0, n_prompt, chunk)
    once, cut = (
        forward_flops(EIGHT_B, n_prompt),
        sum(forward_flops(EIGHT_B, chunk, s) for s in starts),
    )
    print(f"FLOPs: {once / 1e12:.2f} T in one pass, {cut / 1e12:.2f} T in {len(starts)} chunks")
    read = sum(pass_read_bytes(EIGHT_B, start) for start in starts)
    print(
        f"read: {pass_read_bytes(EIGHT_B) / 1e9:.1f} GB in one pass, {read / 1e9:.1f} GB in chunks"
    )
    print(f"tokens whose keys and values are read again: {sum(starts):,}")

# %% [markdown]
# With 512 tokens a chunk that is still hidden behind the arithmetic; with chunks below the knee it is
# not, and the prefill slows down.
#
# **What breaks.** A new token at position 0 after a prefill: the text falls apart after the first
# token. A long prompt that stalls everybody's stream for as long as it runs: the mean TPOT hardly
# moves, the tail of ITL does. A runaway answer without `max_tokens`. A benchmark that divides by `n`, or
# mixes TTFT into TPOT. And a plan made from tokens, or from FLOPs, where seconds were meant.
#
# The next cell lets `transformers`, if you have it, write 4 tokens after a prompt of 5, and counts the
# tokens of every pass that it runs: at once, then with the prompt in chunks of 2.

# %%
if not grading():
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        not_measured("transformers' passes need that package: pip install transformers")
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
        tiny = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes, **heads, **ends)).eval()
        passes = []
        tiny.model.embed_tokens.register_forward_hook(
            lambda module, given, out: passes.append(given[0].shape[1])
        )
        for chunk in (None, 2):
            passes.clear()
            prompt_ids = torch.tensor([[3, 1, 4, 1, 5]])
            tiny.generate(
                prompt_ids,
                attention_mask=torch.ones_like(prompt_ids),
                max_new_tokens=4,
                do_sample=False,
                prefill_chunk_size=chunk,
            )
            print(f"prefill_chunk_size {chunk!s:4}  passes of {passes} tokens")

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 ms"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("pd_q_passes")

# %% answer="pd_q_passes"
answers["pd_q_passes"] = "243"

# %% answer_check="pd_q_passes"
answers.check("pd_q_passes")

# %%
answers.ask("pd_q_end")

# %% answer="pd_q_end"
answers["pd_q_end"] = "9.97400 s"

# %% answer_check="pd_q_end"
answers.check("pd_q_end")

# %%
answers.ask("pd_q_tpot")

# %% answer="pd_q_tpot"
answers["pd_q_tpot"] = "30.0000 ms"

# %% answer_check="pd_q_tpot"
answers.check("pd_q_tpot")

# %%
answers.ask("pd_q_knee")

# %% answer="pd_q_knee"
answers["pd_q_knee"] = "147.672 tok"

# %% answer_check="pd_q_knee"
answers.check("pd_q_knee")

# %%
answers.ask("pd_q_step")

# %% answer="pd_q_step"
answers["pd_q_step"] = "157.491 tok/s"

# %% answer_check="pd_q_step"
answers.check("pd_q_step")

# %%
answers.ask("pd_q_reread")

# %% answer="pd_q_reread"
answers["pd_q_reread"] = "79,872 tok"

# %% answer_check="pd_q_reread"
answers.check("pd_q_reread")

# %%
answers.ask("pd_q_halve")

# %% answer="pd_q_halve"
answers["pd_q_halve"] = "1.21212x"

# %% answer_check="pd_q_halve"
answers.check("pd_q_halve")

# %%
answers.ask("pd_q_stall")

# %% answer="pd_q_stall"
answers["pd_q_stall"] = "b"

# %% answer_check="pd_q_stall"
answers.check("pd_q_stall")

# %%
answers.ask("pd_q_chip")

# %% answer="pd_q_chip"
answers["pd_q_chip"] = "b"

# %% answer_check="pd_q_chip"
answers.check("pd_q_chip")

# %%
answers.ask("pd_q_chunk")

# %% answer="pd_q_chunk"
answers["pd_q_chunk"] = "c"

# %% answer_check="pd_q_chunk"
answers.check("pd_q_chunk")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>A user says "your model is slow". What do you ask first?</b></summary>
#
# Which phase: is the first token late (waiting and prefill), or is the stream slow (decode)? Then the
# lengths in and out, how many users at once, and percentiles. *Follow-up: name a cure that helps only
# one phase.* Prefix caching helps TTFT, speculative decoding helps TPOT.
# </details>
#
# <details><summary><b>Why does a device of a petaflop give one user only some hundred tokens a
# second?</b></summary>
#
# Each token reads all weights once and does 2 FLOPs with each: 1 FLOP/byte in bf16, against a ridge of
# hundreds. *Follow-up: which number of the data sheet predicts decoding?* The bandwidth: 3.35 TB/s over
# 16 GB is 209 tokens a second, at most.
# </details>
#
# <details><summary><b>From which prompt length on is a prefill bound by arithmetic?</b></summary>
#
# About ridge · bytes a weight / 2: 295 tokens on an H100 in bf16. *Follow-up: what bounds a prompt of
# 50 tokens?* Reading the weights: 16 GB / 3.35 TB/s = 4.8 ms, or 4.5 without the embedding.
# </details>
#
# <details><summary><b>Does a device with more FLOP/s and the same bandwidth help a chat?</b></summary>
#
# TTFT of long prompts yes; TPOT no, until very many users decode together. *Follow-up: from an H100 to
# an H200 (4.8 TB/s) for a 70B chat model: TPOT?* At best 4.8 / 3.35 = 1.43 times as fast.
# </details>
#
# <details><summary><b>TTFT 200 ms, TPOT 25 ms, 300 tokens: when is the answer complete?</b></summary>
#
# 0.2 + 299 · 0.025 = 7.675 s. *Follow-up: and with one token?* 0.2 s; TPOT is then not defined.
# </details>
#
# <details><summary><b>Chunked prefill: who gains, who pays?</b></summary>
#
# Everybody else's ITL tail gains. The chunked request pays with its TTFT, and weights and kept keys and
# values are read again. *Follow-up: how many kept tokens are read again for 8,192 in chunks of 512?*
# 512 · (0 + 1 + … + 15) = 61,440.
# </details>
#
# <details><summary><b>Which chunk keeps a step under 20 ms, with 32 users decoding?</b></summary>
#
# If arithmetic bounds it: 2 · 8 · 10⁹ FLOPs a token, 989.4 TFLOP/s, 20 ms: 1,236 tokens in the pass,
# less the 32 of the users: 1,204. *Follow-up: and if memory alone takes longer than that?* Then no
# chunk is small enough: fewer users, fewer bytes, or more bandwidth.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("03_prefill_decode", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - There is one kind of pass: `T` new tokens on top of kept keys and values. A prefill is a long one, a
#   decode step a pass of one token, a chunk lies between.
# - New tokens continue the positions of the past, see all of it, and see each other causally.
# - Reading a token and writing a token cost nearly the same FLOPs. A pass reads the same bytes however
#   many tokens it runs: that is the whole difference.
# - A pass takes at least the longer of bytes / bandwidth and FLOPs / peak. Prefills beyond the knee are
#   bound by arithmetic, decode steps by reading.
# - TTFT is waiting plus prefill; `n` tokens take `n − 1` steps; the whole is TTFT + (n − 1) · TPOT.
# - Compare phases in seconds. For one user decoding nearly always takes more of them.
#
# **Common mistakes.** 500 tokens taken as 500 steps. Decode speed from FLOPs. The past's bytes left
# out, or counted once for all users. One "tokens a second" for a user and for the server. The ridge
# taken for the knee whatever the precision. "Prefill is compute-bound" said of 50 tokens. Chunks
# believed to save work. Half the bytes of the weights taken for twice the speed: with 16 GB of weights
# and 17.18 GB of cache it is 1.32 times.
#
# **References**
#
# - Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv 2211.05102
# - Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009
# - Agrawal et al., *SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills*,
#   2023, arXiv 2308.16369; *Sarathi-Serve*, 2024, arXiv 2403.02310
# - Zhong et al., *DistServe*, 2024, arXiv 2401.09670; Patel et al., *Splitwise*, 2023, arXiv 2311.18677
# - Yuan et al., *LLM Inference Unveiled: Survey and Roofline Model Insights*, 2024, arXiv 2402.16363
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("03_prefill_decode")
