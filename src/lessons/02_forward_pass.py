# %% [markdown]
# # 02 · The forward pass: the transformer, whole
#
# A language model is a function. Token ids go in, and for each possible next token a number comes
# out. This lesson builds that function from nothing but NumPy: every norm, every rotation, every
# product. At its end your own code reads the weights of a trained model and completes its
# sentences; nothing is left that you did not write or see.
#
# **You will be able to**
#
# - follow one token from its id to the logits, and say the shape of everything on the way;
# - write attention with a causal mask, shared key heads and rotary positions, and test it where it
#   usually breaks;
# - find the first wrong line of somebody else's port of a model, by comparing layer by layer;
# - say where the floating-point operations and the bytes of a pass go, from a config alone.
#
# **Time** about 3 h 30 min: 2 hours for thirteen exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** NumPy, and to have seen a neural network: matrices of weights, a non-linear function
# between them. No transformer.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B` | sequences in the batch | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `T` | tokens computed now (queries) | `d_model`, `d_head`, `d_ff` | width of a token's row, of a head, inside the MLP |
# | `S` | tokens that may be seen (keys) | `n_layers`, `vocab_size` | decoder layers, possible tokens |
#
# Weights are `(d_in, d_out)`, so a projection is `x @ w`. Positions, pairs, heads and layers are
# counted from 0.

# %%
import dataclasses
import math

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.attention import Cache
from inferlab.components import component_bytes, component_flops, component_params
from inferlab.config import ModelConfig
from inferlab.data import load_config, model_preset
from inferlab.operators import project
from inferlab.transformer import check_tokens
from inferlab.weights import LayerWeights, Weights
from labkit.figures import forward_pass as forward_figures
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured, pick, torch_module
from labkit.measure.diverge import calls, first_divergence
from labkit.measure.models import trained_model
from labkit.measure.part_times import REST, component_times

# %% [markdown]
# ## 1. Why it matters
#
# Everything else in this course is about running this one function faster, for more people, in less
# memory. The KV cache keeps two of its intermediate results; FlashAttention reorders one of its
# steps; quantization shrinks its matrices; batching runs it on many sequences at once. Whoever has
# written it knows which of these can change a result and which cannot.
#
# Here it is, whole. Read it from below.

# %%
forward_figures.block_diagram(n_layers=30)

# %% [markdown]
# The upright line is the **residual stream**: one row of `d_model` numbers for each token, which
# goes straight through. Nothing on its way replaces it. Each part *reads* a normed copy of it and
# *adds* what it found. Attention is the only part in which tokens learn of each other; norm, MLP and
# head treat every row alone, with the same weights.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything; the first one you lodge is the one you will be confronted
# with.

# %%
predict("fp_tokens")

# %%
predict("fp_score_size")

# %%
predict("fp_layout")

# %%
predict("fp_mlp_share")

# %% [markdown]
# ## 3. Build
#
# Every exercise is judged **alone**: where your function calls another part, the check puts the
# course's own in its place. So an unfinished rotation does not stop you from writing the decoder
# block. The cells that *run* a model use your own functions, all of them. If one part will not come,
# `from inferlab.operators import rotate` (say) puts the course's in your notebook, so that you can
# go on; it earns no points.
#
# ### Tokens, and rows of numbers
#
# A model does not see letters or words. A **tokenizer** cuts text into pieces from a fixed list, the
# vocabulary, and gives the number of each: its **token id**. The pieces were chosen by how often they
# occur, so a frequent word is one token, a rare one several. The blank in front of a word belongs to
# the token.

# %%
tiny = trained_model("tiny-target")
if tiny:
    for text in ("To be, or not to be", "Explain the roofline model in one sentence."):
        ids = tiny.tokenizer.encode(text)
        print(len(ids), "tokens:", " | ".join(tiny.tokenizer.decode([i]) for i in ids))
confront("fp_tokens")

# %% [markdown]
# The first matrix of the model, the **embedding**, has one row of `d_model` numbers for each token of
# the vocabulary. Looking up is all that happens: `embedding[tokens]` turns ids `(B, T)` into the
# stream `(B, T, d_model)`. From here on there are only rows of numbers.
#
# ### RMSNorm
#
# The stream grows as parts add to it. Before a part reads it, each row is brought to a standard size:
# divided by the root of the mean of its squares, and multiplied by a trained **gain**, one number for
# each of the `d_model` columns.
#
# $$ \operatorname{rms\_norm}(x)_i = g_i \cdot \frac{x_i}{\sqrt{\frac{1}{d}\sum_j x_j^2 + \varepsilon}} $$
#
# $\varepsilon$ is a small number (1e-5 or 1e-6, the config says which) that protects a row of zeros.
#
# *Worked example.* The row `[3, 4]`: squares 9 and 16, mean 12.5, root 3.5355. Divided: `[0.8485,
# 1.1314]`. With the gain `[1, 2]`: `[0.8485, 2.2627]`.

# %% exercise="rms_norm"
from inferlab.operators import rms_norm

# %% check="rms_norm"
check("rms_norm")

# %% [markdown]
# ### Softmax
#
# Attention is a weighted average, and a weight must not be negative, nor may a row of weights sum to
# anything but 1. The **softmax** makes such weights from any scores:
#
# $$ w_i = \frac{e^{z_i}}{\sum_j e^{z_j}}. $$
#
# Only differences of scores count: adding the same number to all of them changes nothing. That is
# also the way out of an overflow. `np.exp(89)` is already infinite in float32, and trained models
# have scores beyond that; subtract the row's largest score, and the largest exponent is 0.
#
# *Worked example.* Scores `[0, log 3]` have exponentials 1 and 3: weights ¼ and ¾. Scores
# `[1000, 1000]` give ½ and ½, whatever `np.exp(1000)` may be.

# %% exercise="softmax"
from inferlab.operators import softmax

# %% check="softmax"
check("softmax")

# %% [markdown]
# ### Queries, keys and values
#
# What should a token take from the others? In the sentence *The cat sat on the mat because it was
# warm*, the row of *it* should learn something of what was warm. Each token makes three rows from its
# own, with three matrices:
#
# - a **query**: what am I looking for?
# - a **key**: what do I offer?
# - a **value**: what do I hand over to whoever finds me useful?
#
# How well key $k_s$ fits query $q_t$ is their dot product. The softmax over all keys turns these
# **scores** into weights, and token $t$ gets the weighted average of the values:
#
# $$ \text{out}_t = \sum_s w_{ts}\, v_s, \qquad
#    w_{t} = \operatorname{softmax}_s\!\left( \frac{q_t \cdot k_s}{\sqrt{d_\text{head}}} \right). $$
#
# Why the root? A dot product of $d$ independent numbers of size 1 has the size $\sqrt d$. The cell
# draws many and measures.

# %%
rng = np.random.default_rng(0)
for d_head in (16, 64, 256):
    queries, keys = rng.normal(size=(2, 20_000, d_head))
    scores = (queries * keys).sum(axis=-1)
    print(f"d_head {d_head:3d}: scores have a standard deviation of {scores.std():5.2f}")
if ready("softmax"):
    four = np.array([1.0, 0.5, -0.5, -1.0])
    print("scores of size 1:", softmax(four).round(2), "  the same 8 times as large:",
          softmax(8 * four).round(2))  # fmt: skip
confront("fp_score_size")

# %% [markdown]
# Scores of that size make the softmax nearly all-or-nothing: one key gets everything, and a small
# change of the others no longer matters. Dividing by $\sqrt{d_\text{head}}$ keeps the spread at 1 for
# heads of any width. It is the width of *one head*, not of the row.
#
# ### Who may look where
#
# A language model is trained to predict the next token from those before it. So a token may look at
# itself and at earlier ones, never at later ones: the **causal mask**. A hidden key gets the score
# −∞ *before* the softmax. Then its weight is exactly 0, and the others still sum to 1.
#
# Often not all tokens are computed in one pass. In a chat the first 1,000 tokens were run earlier,
# their keys and values are kept (the KV cache of lesson 04), and the newest `T` ask `S` keys, old and
# new. The queries are the *last* `T` of the `S` tokens: query `t` stands at position `S − T + t`.
#
# *Worked example.* Two queries, three keys. The first query stands at position 1 and sees keys 0
# and 1; the second at 2 and sees all three.

# %% exercise="causal_mask"
from inferlab.operators import causal_mask

# %% check="causal_mask"
check("causal_mask")

# %% [markdown]
# Your mask for the last three of seven tokens. The staircase ends in the lower right corner: the
# newest query sees everything. A mask that starts in the upper left is the classic mistake, and no
# test with `T = S` finds it.

# %%
if ready("causal_mask"):
    words = ["The", "cat", "sat", "on", "the", "mat", "."]
    forward_figures.mask_grid(causal_mask(3, 7), words)

# %% [markdown]
# ### Attention, in many heads
#
# One average a token would be little. So a layer has several **heads**, each with its own queries,
# keys and values of `d_head` numbers, and each looks for something else. They work side by side, as an
# axis of the arrays: `(B, n_heads, T, d_head)`.
#
# Queries are cheap: they are used once. Keys and values are kept for all later tokens and read again
# and again, so most models have fewer of them: **grouped-query attention**. With 6 query heads on 2
# key/value heads, query heads 0, 1, 2 read KV head 0, and 3, 4, 5 read KV head 1: neighbours share.
# That is `np.repeat`, not `np.tile`.
#
# *Worked example.* One head, a query of zeros: every score is 0. If two keys of three are visible,
# their weights are ½ and ½, and the result is the mean of their values.

# %% exercise="attention"
from inferlab.operators import attention

# %% check="attention"
check("attention")

# %% [markdown]
# ### Cutting into heads
#
# The projections give each token one row of `n_heads * d_head` numbers. To have heads in front, the
# row is cut into pieces and the axes are swapped. A reshape alone gives the right *shape* and the wrong
# numbers: it never moves a number in memory, so head 0 would be filled with the whole first tokens.
#
# *Worked example.* Two tokens `[1, 2, 3, 4]` and `[5, 6, 7, 8]`, `d_head` 2. Head 0 is `[1, 2]` and
# `[5, 6]`; head 1 is `[3, 4]` and `[7, 8]`. A plain reshape would make head 0 `[1, 2]` and `[3, 4]`.

# %% exercise="split_heads"
from inferlab.operators import split_heads

# %% check="split_heads"
check("split_heads")

# %% [markdown]
# And back, so that one matrix can mix what the heads found:

# %% exercise="merge_heads"
from inferlab.operators import merge_heads

# %% check="merge_heads"
check("merge_heads")

# %% [markdown]
# ### Where does a token stand?
#
# A sum over keys has no order: shuffle the earlier tokens and attention gives the same. *The dog bit
# the man* would be *The man bit the dog*. The order must be put into queries and keys.
#
# **Rotary position embedding** (RoPE) takes the numbers of a head in pairs, and turns each pair, as a
# hand on a clock face, by an angle that grows with the position. Query and key of two tokens are
# turned by different amounts, and their dot product depends on the *difference* of the angles, so on
# how far apart the tokens are, and on nothing else of their positions. Pairs turn at different speeds, like the hands of a
# clock: fast ones tell neighbours apart, slow ones tell the beginning of a book from its end.
#
# Pair $i$ at position $p$ turns by $p \cdot \theta^{-2i/d_\text{head}}$ radians. The **base**
# $\theta$ is a number of the config: 10,000 in the first models, 500,000 in Llama 3, 100,000 in
# SmolLM2.
#
# *Worked example.* `d_head` 4 has two pairs, $\theta = 100$: they turn by $100^0 = 1$ and
# $100^{-1/2} = 0.1$ per token. At position 3: 3 and 0.3 radians.

# %% exercise="rope_angles"
from inferlab.operators import rope_angles

# %% check="rope_angles"
check("rope_angles")

# %% [markdown]
# Your angles, as clocks:

# %%
if ready("rope_angles"):
    forward_figures.rope_clocks(rope_angles(np.arange(8), d_head=8, theta=100.0))

# %% [markdown]
# Turning a pair $(a, b)$ by the angle $\alpha$ gives $(a\cos\alpha - b\sin\alpha,\;
# a\sin\alpha + b\cos\alpha)$. Which two numbers are a pair? Here, and in the Llama checkpoints that
# `transformers` loads, number `i` and number `i + d_head/2`: the head is cut into two halves, and
# pairs lie across the cut.
#
# *Worked example.* A head `[1, 2, 0, 0]`, angles π/2 and 0. Pairs are (1, 0) and (2, 0). The first
# makes a quarter turn to (0, 1), the second stays: `[0, 2, 1, 0]`.

# %% exercise="rotate"
from inferlab.operators import rotate

# %% check="rotate"
check("rotate")

# %% [markdown]
# ### Two layouts
#
# GPT-J and the files of llama.cpp pair **neighbours**, `2i` with `2i + 1`. Neither layout is better.
# But weights trained for one are wrong in the other, and nothing crashes: all shapes fit, and scores
# still depend on distances only.
#
# The way from one to the other is to reorder the columns of the query and key matrices, once, when a
# model is loaded. The cell shows that this is enough: neighbours of reordered heads give the same
# scores as halves of the old ones. Without the reordering they do not.


# %%
def rotate_neighbours(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """RoPE in the other layout: pairs are numbers 2i and 2i + 1."""
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


if ready("rope_angles", "rotate"):
    order = np.arange(8).reshape(2, 4).T.ravel()
    print("new place:", np.arange(8), "  gets number:", order)
    q, k = rng.normal(size=(2, 1, 1, 5, 8))
    angles = rope_angles(np.arange(5), 8, 100.0)

    def scores_of(turn, q, k):
        return turn(q, angles) @ turn(k, angles).swapaxes(-1, -2)

    halves = scores_of(rotate, q, k)
    reordered = scores_of(rotate_neighbours, q[..., order], k[..., order])
    as_they_are = scores_of(rotate_neighbours, q, k)
    print(f"neighbours, reordered: scores differ by {np.abs(halves - reordered).max():.0e}")
    print(f"neighbours, not reordered: by {np.abs(halves - as_they_are).max():.1f}")

# %% [markdown]
# ### Self-attention
#
# Now the parts in their order: project to queries, keys and values, cut into heads, turn queries and
# keys (not values: they say *what*, not *where*), attend, merge, project back to the stream's width.
#
# The matrices are not square. The query projection is `d_model × (n_heads · d_head)`, those of keys
# and values are `d_model × (n_kv_heads · d_head)`, and `n_heads · d_head` need not be `d_model`.
#
# `project(x, w)` is `x @ w` for a whole batch. `to_heads` is given: it projects and splits. What the
# engine's own version knows beyond that, some models need: Qwen2 adds a bias, Qwen3 norms each head.
#
# About the `cache`: a pass that runs only the newest tokens needs the keys and values of the older
# ones. `cache.append(layer, k, v)` stores the new ones and gives back all of them. You build it in
# lesson 04; here you only call it.
#
# *Worked example.* One token alone: its only weight is 1, so each query head gets the value of the KV
# head that it reads, and the result is these values, side by side, times `w_o`.


# %%
def to_heads(x, w, config, bias=None, gain=None):
    """(B, T, d_model) -> (B, heads, T, d_head), with your split_heads."""
    return split_heads(project(x, w), config.d_head)


# %% exercise="self_attention"
from inferlab.attention import self_attention

# %% check="self_attention"
check("self_attention")

# %% [markdown]
# ### The gated MLP
#
# Attention gathers; the MLP thinks about what was gathered, token by token. It widens the row to
# `d_ff` numbers, bends them by a non-linear function, and narrows it again. Current models use a
# **gate**: two projections up, and one decides, number by number, how much of the other passes.
#
# $$ \operatorname{swiglu}(x) = \big(\operatorname{silu}(x W_\text{gate}) \odot x W_\text{up}\big)
#    W_\text{down}, \qquad \operatorname{silu}(z) = z \cdot \frac{1}{1 + e^{-z}}. $$
#
# ($\odot$ multiplies number by number.) SiLU lets large numbers through, damps negative ones to
# nearly 0, and is smooth between.
#
# *Worked example.* silu(0) = 0, silu(10) = 9.9995, silu(−10) = −0.00045. A gate of 2 and an up of 3:
# silu(2) · 3 = 1.7616 · 3 = 5.285.

# %% exercise="silu"
from inferlab.operators import silu

# %% check="silu"
check("silu")

# %% exercise="swiglu"
from inferlab.operators import swiglu

# %% check="swiglu"
check("swiglu")

# %% [markdown]
# ### The decoder block
#
# One block is two lines of one form: *the stream, plus a part of the normed stream*. The norm stands
# before the part ("pre-norm"), and never on the stream itself, so that what an early layer wrote is
# still there for a late one.
#
# Two joints are given, so that the block need not know what kind of model it is in: `mix_tokens` is
# your self-attention, `feed_forward` your MLP. Lesson 09 puts a choice of experts in place of the
# MLP, lesson 05 another kind of attention, and the block stays as you write it.
#
# *Worked example.* If `w_o` and `w_down` are zero, both parts give zeros, and the block returns `x`.


# %%
def mix_tokens(x, weights, config, angles, visible, cache=None, layer=0):
    """Your self-attention."""
    return self_attention(x, weights, config, angles, visible, cache, layer)


def feed_forward(x, weights, config, layer=0):
    """Your gated MLP, with this layer's three matrices."""
    return swiglu(x, weights.w_gate, weights.w_up, weights.w_down)


# %% exercise="decoder_block"
from inferlab.transformer import decoder_block

# %% check="decoder_block"
check("decoder_block")

# %% [markdown]
# ### From ids to logits
#
# The whole: look up, run the blocks one after the other, norm, and project to one number for each
# entry of the vocabulary, the **logits**. A softmax of the last row's logits gives the probability of
# each next token. In many models the head is the embedding turned round ("tied"): the same numbers
# say what a token means on the way in and how well it fits on the way out.
#
# Two more joints are given: `position_angles` is your `rope_angles` with the model's numbers, and
# `visible_keys` your causal mask (some models see only a window of the past).
#
# *Worked example.* 5 tokens with an empty cache: positions 0 to 4, a mask of 5 × 5. Then 2 more with
# that cache: positions 5 and 6, a mask of 2 × 7, and the blocks store 2 more keys a layer.


# %%
def position_angles(positions, config):
    """Your RoPE angles, with the model's head width and base."""
    return rope_angles(positions, config.d_head, config.rope_theta)


def visible_keys(T, S, config):
    """Your causal mask."""
    return causal_mask(T, S)


# %% exercise="forward"
from inferlab.transformer import forward

# %% check="forward"
check("forward")

# %% [markdown]
# ### It speaks
#
# Every part is yours. The small model that comes with the course (6 layers, 8 query heads on 2 KV
# heads, `d_model` 256, trained on Shakespeare's plays and on nothing else) is only its weights now; your
# `forward` is what makes it a language model. Here it writes the likeliest token, again and again,
# running the whole text each time. It is far too small to make sense, but it knows how a play looks.

# %%
PARTS = ("rms_norm", "softmax", "causal_mask", "attention", "split_heads", "merge_heads", "rope_angles",
         "rotate", "self_attention", "silu", "swiglu", "decoder_block", "forward")  # fmt: skip
if tiny and ready(*PARTS):
    text = tiny.tokenizer.encode("The king said to his son")
    for _ in range(24):
        logits = forward(tiny.weights, tiny.config, np.array([text]), last_only=True)
        text.append(int(logits[0, -1].argmax()))
    print(tiny.tokenizer.decode(text))

# %% [markdown]
# ### When it does not: the first difference
#
# A port of a model that is wrong somewhere still gives logits, of the right shape. Looking at them
# tells nothing. The method that always works: run a right implementation beside it on the same tokens,
# record every part in both, and look for the **first** place where they part.
#
# `first_divergence` does that. It goes from the first layer to the last; in the first call that
# differs it goes down, as long as what came *in* is still right. So it ends at the part that makes the
# mistake, or that hands on a wrong argument. First your own functions, as they are:

# %%
if tiny and ready(*PARTS):
    speech = tiny.tokenizer.encode(
        "To be, or not to be: that is the question:\nWhether 'tis nobler"
    )
    print(first_divergence(globals(), tiny, speech) or "your forward and the course's agree")

# %% [markdown]
# Now three mistakes, planted one at a time in a copy of your notebook. Read what the debugger says of
# each, and how many top tokens are right all the same.


# %%
def block_with_wrong_gain(x, weights, config, angles, visible, cache=None, layer=0):
    """A copy-and-paste mistake, from layer 3 on."""
    gain = weights.mlp_gain if layer >= 3 else weights.attention_gain
    normed = rms_norm(x, gain, config.norm_eps)
    x = x + mix_tokens(normed, weights, config, angles, visible, cache, layer)
    return x + feed_forward(rms_norm(x, weights.mlp_gain, config.norm_eps), weights, config, layer)


if tiny and ready(*PARTS):
    planted = {
        "RoPE in neighbouring pairs": {"rotate": rotate_neighbours},
        "a wrong gain from layer 3 on": {"decoder_block": block_with_wrong_gain},
        "eps of 0.1 in place of the config's": {
            "rms_norm": lambda x, gain, eps=1e-6: (
                gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.1)
            )
        },
    }
    drifts = {}
    for name, change in planted.items():
        found = first_divergence(globals() | change, tiny, speech)
        drifts[name] = found.by_layer
        print(f"{name}:\n{found}\n")
    forward_figures.drift(drifts)

# %% [markdown]
# A wrong layout is loud from the first layer on. The wrong gain changes nothing before layer 3: until
# then its line shows rounding only, about 1e-6 of the numbers or nothing at all. That is the sight to
# look for: where the error jumps is where to read code.
#
# **A bug hunt.** A loader forgot the reordering: below, the columns of all query and key matrices are
# in the order of llama.cpp's files. The code is right, the weights are not. Where will the debugger
# point?


# %%
def in_file_order(w: np.ndarray, d_head: int) -> np.ndarray:
    """Columns of each head in the order 0, d_head/2, 1, d_head/2 + 1, …"""
    halves = w.reshape(len(w), -1, 2, d_head // 2)
    return np.ascontiguousarray(halves.swapaxes(2, 3)).reshape(w.shape)


def forgot_to_reorder(model):
    d_head = model.config.d_head
    layers = tuple(
        dataclasses.replace(
            one, w_q=in_file_order(one.w_q, d_head), w_k=in_file_order(one.w_k, d_head)
        )
        for one in model.weights.layers
    )
    return dataclasses.replace(model, weights=dataclasses.replace(model.weights, layers=layers))


if tiny and ready(*PARTS):
    print(first_divergence(globals(), forgot_to_reorder(tiny), speech, right=tiny))

# %% [markdown]
# <details><summary>What you should have found</summary>
#
# Layer 0, self-attention: a wrong `w` goes into a projection. The input of the projection is right and
# the code is right, so what remains is the matrix: look at the loader.
# </details>

# %% [markdown]
# ## 4. Measure
#
# ### What comes next
#
# Now a real model: SmolLM2-135M-Instruct, 30 layers, 9 query heads on 3 KV heads, `d_head` 64,
# `d_model` 576, 49,152 tokens. The same `forward` runs it: only the numbers differ.

# %%
model = trained_model("smollm2")
if model and ready(*PARTS):
    for prompt in ("The capital of France is", "Water freezes at zero degrees"):
        ids = np.array([model.tokenizer.encode(prompt)])
        shares = softmax(forward(model.weights, model.config, ids, last_only=True)[0, -1])
        best = np.argsort(-shares)[:8]
        names = [model.tokenizer.decode([int(i)]) for i in best]
        forward_figures.next_token_bars(prompt, names, shares[best])

# %% [markdown]
# ### What a head looks at
#
# Attention weights can be seen. The cell takes the queries and keys that your self-attention hands to
# your attention, in two heads of this model, and draws their weights over a sentence.

# %%
if model and ready(*PARTS):
    sentence = "The cat sat on the mat because it was warm."
    ids = model.tokenizer.encode(sentence)
    words = [model.tokenizer.decode([i]).strip() for i in ids]
    seen = calls(globals(), model, ids, "attention")
    shared = model.config.n_heads // model.config.n_kv_heads
    for layer, head in ((16, 0), (13, 8)):
        q, k = seen[layer].inputs["q"][0, head], seen[layer].inputs["k"][0, head // shared]
        scores = np.where(causal_mask(len(ids), len(ids)), q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
        title = f"SmolLM2, layer {layer}, query head {head}"
        forward_figures.attention_map(softmax(scores), words, title)

# %% [markdown]
# **Reading it.** The first head looks at the token just before: its weights lie beside the diagonal.
# Only positions can tell it that, so it lives by RoPE. The second one looks back to *cat*, from *it*
# with four fifths of its weight, though nobody told it what a pronoun is. Many heads look mostly at the
# first token: weights must sum to 1, and a head that finds nothing has to put them somewhere.
#
# ### What a wrong layout does
#
# The planted RoPE mistake once more, in this model, on a real paragraph. What did you predict?

# %%
if model and ready(*PARTS):
    paragraph = model.tokenizer.encode(
        "The Eiffel Tower is a wrought-iron lattice tower on the Champ de Mars in Paris, France. It is "
        "named after the engineer Gustave Eiffel, whose company designed and built the tower."
    )
    print(first_divergence(globals() | {"rotate": rotate_neighbours}, model, paragraph))
confront("fp_layout")

# %% [markdown]
# ### Where the work goes
#
# Count from the config alone. Per token a matrix of `d_in × d_out` costs `2 · d_in · d_out` FLOPs (a
# multiply and an add each) and is read once a pass, however many tokens there are. The scores have no
# weights; they cost FLOPs for every pair of query and key, and the reading of keys and values.
#
# **Before you run it:** which part is larger in bytes than in FLOPs, and in which kind of pass? The
# seconds are measured inside the course's NumPy engine, which is built as yours is.

# %%
if model:
    print("measured on", describe("cpu", "float32"))
    for n_new, n_cached, kind in (
        (128, 0, "128 tokens in one pass"),
        (1, 128, "1 token on top of 128"),
    ):
        flops = component_flops(model.config, n_new, n_cached, skip_hidden=False)
        moved = component_bytes(model.config, n_new, n_cached)
        seconds = component_times(model, n_new, n_cached)
        rows = {"FLOPs": flops | {REST: 0}, "bytes read": moved | {REST: 0}, "seconds": seconds}
        forward_figures.shares(f"SmolLM2: {kind}", rows)
        print(f"{kind}: {sum(flops.values()) / 1e9:.2f} GFLOP, {sum(moved.values()) / 1e6:.0f} MB, "
              f"{1e3 * sum(seconds.values()):.0f} ms")  # fmt: skip

# %% [markdown]
# **Reading it.** In the long pass the head is a fifth of the reading and next to nothing of the FLOPs:
# its matrix is the largest of all, and one row of logits is enough. The seconds follow the FLOPs there.
# With one token FLOPs and bytes have nearly the same shares, since every weight that is read is used
# once; so the shares cannot tell which of the two sets the time. The totals can: the long pass does
# about a hundred times the FLOPs and takes far less than a hundred times as long. One token is bound by
# reading. Lesson 03 is about these two bottlenecks. *Everything else*, norms, rotations, masks, has next
# to no FLOPs and still takes time; fusing such steps into their neighbours is what compilers are for.
#
# A rule of thumb says that a third of a layer's matrix FLOPs is attention's and two thirds are the MLP's.
# It holds for an MLP of two matrices, four times as wide as the stream, and for a key head for every
# query head. Llama-2-7B, with a gated MLP of about the same size, still obeys it. Look at the others:

# %%
rows = {}
for name in ("llama-2-7b", "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "qwen3-0.6b"):
    weights = component_params(model_preset(name))
    rows[name] = {part: weights[part] for part in ("attention projections", "MLP")}
forward_figures.shares("Matrix FLOPs of a layer", rows, y="model (name)")
confront("fp_mlp_share")

# %% [markdown]
# The scores are not in that picture, since they depend on the length of the text. In Llama-3-8B
# they cost a token 524,288 FLOPs for each key that it sees, over all layers, beside 13,958,643,712 for
# the matrices: at a context of 8,192 tokens that is 31 % on top.
#
# ### The same on another device
#
# Attention's projections and the MLP of one layer of this size in PyTorch, on the fastest device you
# have: for one row, and for 256 rows.

# %%
if not grading():
    torch, device = torch_module(), pick()
    sizes = model_preset("smollm2-135m")
    widths = {k: n // (sizes.n_layers * sizes.d_model) for k, n in component_params(sizes).items()}
    for n_rows in (1, 256):
        x = torch.ones(n_rows, sizes.d_model, device=device)
        w = {
            k: torch.ones(sizes.d_model, widths[k], device=device)
            for k in ("attention projections", "MLP")
        }
        work = {k: (lambda x=x, m=m: x @ m) for k, m in w.items()}
        both = timing.interleaved(work, rounds=5, device=device, torch=torch)
        print(f"{n_rows:3d} rows ({device}): " + ", ".join(f"{k} {t}" for k, t in both.items()))
    if device == "cpu":
        not_measured("the same on a GPU needs a CUDA or MPS device")

# %% [markdown]
# The MLP has about three times the weights of attention's projections here, and takes about three times
# as long where something is bound by work or by reading. On a fast device and with one row it is not:
# starting a kernel takes longer than running it.

# %% [markdown]
# ## 5. Explain
#
# In six to ten sentences, for a colleague who knows neural networks: **what happens to one token's row
# between its id and the logits?** Say which part lets tokens learn of each other and which do not; why
# scores are divided by the root of `d_head`, and why the mask comes before the softmax; how order gets
# in; and give one shape that is not square, with the numbers of a model of your choice.

# %% [markdown] written="fp_explain" points=3
# **Sample answer.** The id picks a row of `d_model` numbers from the embedding, and this row goes through
# all layers as a stream that parts only add to. In each block a normed copy makes queries, keys and
# values; a token's query is compared with the keys of itself and of earlier tokens, and the weighted mean
# of their values, through `w_o`, is added. This is the only place where tokens meet; norms, MLP and head
# treat each row alone. Scores are divided by the root of `d_head` because a dot product of so many numbers
# spreads by that factor, and a softmax of widely spread scores is nearly one-hot. Hidden keys get minus
# infinity before the softmax, so that the remaining weights still sum to 1. Order comes in by turning
# queries and keys by angles that grow with the position: scores then depend on distances. A second norm
# and a gated MLP follow, token by token. Behind the last block a norm and the head give one logit for each
# entry of the vocabulary. In Llama-3-8B the key projection is 4,096 × 1,024, since 8 KV heads of 128
# numbers serve 32 query heads.
#
# **Rubric** (1 point each): *mechanism*: the stream with two additions a block, attention as the only
# mixing of tokens; *reasons*: the scale, the mask before the softmax, the rotation of queries and keys;
# *number*: a projection that is not square, with sizes that are right.

# %% [markdown]
# ## 6. In the wild
#
# **What to read in a `config.json`.** Sizes: `hidden_size`, `num_hidden_layers`,
# `num_attention_heads`, `num_key_value_heads` (missing: one for each query head), `head_dim` (missing or
# null: `hidden_size / num_attention_heads`), `intermediate_size`, `vocab_size`. And the ones that no shape
# gives away, where a wrong value only makes the text worse:

# %%
QUIET = ("rope_theta", "rms_norm_eps", "hidden_act", "tie_word_embeddings")
for name in ("llama-3-8b", "qwen2.5-7b", "qwen3-0.6b", "mistral-7b-v0.1", "smollm2-135m"):
    config = load_config(name)
    print(f"{name:16s}", {field: config.get(field) for field in QUIET})
gemma = load_config("gemma-2-27b")
print(
    "gemma-2-27b",
    {k: gemma.get(k) for k in ("head_dim", "query_pre_attn_scalar", "hidden_activation")},
)

# %% [markdown]
# - `rope_theta`: code that falls back to 10,000 runs a Llama 3 with the wrong clocks. `rope_scaling`
#   slows the late pairs for contexts longer than the model was trained on.
# - `query_pre_attn_scalar`: Gemma 2 divides by the root of this number. In its 27B model it is 144 while
#   `head_dim` is 128: there the root of `d_head` is wrong.
# - Gemma multiplies by 1 + gain in its norms and scales its embeddings; gpt-oss adds a learned **sink** to
#   the softmax's denominator, so that a head's weights sum to less than 1; Qwen2 has biases on queries,
#   keys and values; Qwen3 norms each head of queries and keys.
#
# **How engines do it.**
#
# - *transformers*: `modeling_llama.py` reads like your functions: `rotate_half` is your half-split layout,
#   `repeat_kv` the sharing of heads. `attn_implementation="eager"` computes the whole weight matrix as you
#   do, `"sdpa"` and `"flash_attention_2"` do not.
# - *vLLM*: `is_neox_style` of its rotary embedding says which layout a model has. Queries, keys and values
#   are one joined matrix, gate and up another: fewer, larger products.
# - *llama.cpp*: its converter reorders the query and key matrices of Llama models for neighbouring pairs;
#   other architectures keep halves. The two are called NORM and NEOX there.
#
# **What breaks.** A batch padded on the left: padding lies in the past, so the causal mask shows it, and
# it needs a mask of its own. A missing first token (BOS) that the model was trained with. An eps or a base
# left at a default. A tied head that was loaded as random numbers. Sums in 16 bits: real engines keep the
# norm's mean of squares and the softmax in float32 whatever the weights are in.
#
# If you have `transformers`, the next cell runs the course's small model in it, beside yours.

# %%
if not grading() and tiny and ready(*PARTS):
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        not_measured("a comparison with transformers needs that package: pip install transformers")
    else:
        from inferlab.model import tiny_model_folder

        torch.set_num_threads(1)
        theirs = AutoModelForCausalLM.from_pretrained(
            tiny_model_folder("tiny-target"), dtype=torch.float32
        )
        with torch.no_grad():
            expected = theirs(torch.tensor([speech])).logits[0].numpy()
        yours = forward(tiny.weights, tiny.config, np.array([speech]))[0]
        print(f"logits between {expected.min():.1f} and {expected.max():.1f}; "
              f"yours differ by at most {np.abs(yours - expected).max():.0e}")  # fmt: skip

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions. Write
# each answer with its unit where it has one (`"66 %"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("fp_q_qkv")

# %% answer="fp_q_qkv"
answers["fp_q_qkv"] = "17,694,720"

# %% answer_check="fp_q_qkv"
answers.check("fp_q_qkv")

# %%
answers.ask("fp_q_mask")

# %% answer="fp_q_mask"
answers["fp_q_mask"] = "46"

# %% answer_check="fp_q_mask"
answers.check("fp_q_mask")

# %%
answers.ask("fp_q_heads")

# %% answer="fp_q_heads"
answers["fp_q_heads"] = "7"

# %% answer_check="fp_q_heads"
answers.check("fp_q_heads")

# %%
answers.ask("fp_q_softmax")

# %% answer="fp_q_softmax"
answers["fp_q_softmax"] = "0.377541"

# %% answer_check="fp_q_softmax"
answers.check("fp_q_softmax")

# %%
answers.ask("fp_q_angle")

# %% answer="fp_q_angle"
answers["fp_q_angle"] = "13.8706"

# %% answer_check="fp_q_angle"
answers.check("fp_q_angle")

# %%
answers.ask("fp_q_position")

# %% answer="fp_q_position"
answers["fp_q_position"] = "64"

# %% answer_check="fp_q_position"
answers.check("fp_q_position")

# %%
answers.ask("fp_q_share")

# %% answer="fp_q_share"
answers["fp_q_share"] = "91.4894 %"

# %% answer_check="fp_q_share"
answers.check("fp_q_share")

# %%
answers.ask("fp_q_scalar")

# %% answer="fp_q_scalar"
answers["fp_q_scalar"] = "12"

# %% answer_check="fp_q_scalar"
answers.check("fp_q_scalar")

# %%
answers.ask("fp_q_sink")

# %% answer="fp_q_sink"
answers["fp_q_sink"] = "0.684211"

# %% answer_check="fp_q_sink"
answers.check("fp_q_sink")

# %%
answers.ask("fp_q_scale")

# %% answer="fp_q_scale"
answers["fp_q_scale"] = "c"

# %% answer_check="fp_q_scale"
answers.check("fp_q_scale")

# %%
answers.ask("fp_q_layout")

# %% answer="fp_q_layout"
answers["fp_q_layout"] = "a"

# %% answer_check="fp_q_layout"
answers.check("fp_q_layout")

# %%
answers.ask("fp_q_padding")

# %% answer="fp_q_padding"
answers["fp_q_padding"] = "c"

# %% answer_check="fp_q_padding"
answers.check("fp_q_padding")

# %%
answers.ask("fp_q_residual")

# %% answer="fp_q_residual"
answers["fp_q_residual"] = "b"

# %% answer_check="fp_q_residual"
answers.check("fp_q_residual")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>Two new tokens arrive with five cached. Write the mask.</b></summary>
#
# Two rows, seven columns: key j is visible to new query i if j ≤ i + 5. The first row shows six keys, the
# second seven. *Follow-up: what does a lower triangle from the upper left do?* It shows the first query one
# key and the second one two: five cached tokens are forgotten.
# </details>
#
# <details><summary><b>8 query heads, 2 KV heads: which KV head does query head 1 read?</b></summary>
#
# 1 // 4 = 0: neighbours share. Tiling would give 1 mod 2 = 1. *Follow-up: which heads do not tell the two
# apart?* Heads 0, 2, 5 and 7: both give the same there.
# </details>
#
# <details><summary><b>After a prompt of 100 tokens, at which position is the next token's query
# rotated?</b></summary>
#
# 100: positions count from 0, and the prompt has 0 to 99. *Follow-up: what if a step starts again at 0?*
# Every distance to the past is wrong, and by another amount at each step.
# </details>
#
# <details><summary><b>Softmax of [1000, 1001]?</b></summary>
#
# 0.269 and 0.731: only the difference counts, and the largest is subtracted first. *Follow-up: a row that
# is masked wholly?* There is no right answer: 0/0. Refuse it, or define it as zeros, and say so.
# </details>
#
# <details><summary><b>“Q, K and V are three d × d matrices.” Right?</b></summary>
#
# Only without grouped heads and where the heads' widths add up to d. In Qwen3-0.6B queries are 1,024 ×
# 2,048, keys and values 1,024 × 1,024. *Follow-up: what goes wrong in a parameter count for Llama-3-8B?*
# It is 805,306,368 too large: 32 layers · 2 · 4,096 · 3,072.
# </details>
#
# <details><summary><b>Your port gives fluent, slightly silly text. What do you do?</b></summary>
#
# Run the reference beside it on the same ids, in float32, and compare the stream behind every block. The
# first block that differs, opened up, names the part. Usual finds: the layout of RoPE, its base, an eps, a
# gain, a missing BOS. *Follow-up: why not compare the text?* Greedy text can be the same for a dozen tokens
# with logits that are wrong.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("02_forward_pass", minutes=6)

# %% [markdown]
# ## 9. Summary
#
# - A pass: look up, blocks, norm, head. A block: stream plus attention of the normed stream, plus MLP of
#   the normed stream.
# - Attention is a weighted mean of values, with weights from a softmax of scaled dot products; hidden keys
#   get −∞ before it. Heads share keys in neighbouring groups.
# - RoPE turns pairs of numbers of queries and keys; a score depends on the distance. Layout and base belong
#   to the checkpoint.
# - Two passes that should agree are compared part by part, and the first difference is the bug.
# - The MLP takes most FLOPs, the more so the fewer KV heads there are; scores grow with the context.
#
# **Common mistakes.** A mask that starts in the upper left when keys are cached. The scale of the whole row
# in place of one head's. `tile` in place of `repeat`. A reshape without a swap. A mask after the softmax.
# Values rotated. Neighbouring pairs for a half-split checkpoint. The gain, the eps or the residual of the
# wrong place. Words counted in place of tokens.
#
# **References**
#
# - Vaswani et al., *Attention Is All You Need*, 2017, arXiv 1706.03762
# - Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019, arXiv 1910.07467
# - Shazeer, *GLU Variants Improve Transformer*, 2020, arXiv 2002.05202
# - Su et al., *RoFormer: Enhanced Transformer with Rotary Position Embedding*, 2021, arXiv 2104.09864
# - Ainslie et al., *GQA*, 2023, arXiv 2305.13245
# - Touvron et al., *LLaMA*, 2023, arXiv 2302.13971 (the shape that most open models have)
# - Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2023, arXiv 2309.17453
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("02_forward_pass")
