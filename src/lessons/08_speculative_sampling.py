# %% [markdown]
# # 08 · Speculative sampling: draft, then verify
#
# A decode step reads all weights of the model to make one token, and leaves the arithmetic units
# idle. So let a small model guess a few tokens, and let the large one check them all in one pass. Done
# right, the text is as if the large model had written it alone: not nearly, *exactly* the same
# probabilities. This lesson builds the whole of it, proves that sentence, and finds out when it pays.
#
# **You will be able to**
#
# - turn logits into the law that is really sampled from: temperature, top-k, top-p, min-p, in order;
# - write the rule that accepts or replaces a drafted token, and prove that it keeps the law;
# - generate with two models and two caches, with rollback, token for token the same when greedy;
# - predict the speed-up from three measured numbers, and say when to switch speculation off.
#
# **Time** about 3 hours 30 min: 2 h 15 min for eighteen exercises, most of them three lines, the rest
# for reading, measuring, the written answer and the knowledge check.
#
# **You need** NumPy, and to have seen a neural network. Lesson 04 (the cache and its `truncate`) helps;
# what is used of it is said again.
#
# | word | meaning |
# |---|---|
# | law | a probability distribution over the vocabulary: an array `(vocab_size,)` that sums to 1 |
# | `target`, `draft` | the laws of the large model, whose text we want, and of the small one |
# | `gamma` | tokens drafted in a round |
# | uniform | a random number from 0 up to, not including, 1 |
#
# The two papers behind this lesson both write p and q, each the other way round. Here the laws have names.

# %%
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.data import ROOT
from inferlab.generate import generate_cached
from inferlab.model import Model
from inferlab.prompt_lookup import LookupStats, generate_lookup
from inferlab.sampling import Engine, LawOf, prefilled, sampled_tokens
from inferlab.speculative_sampling import kept_law, laws_after, require_same_vocab
from labkit.explorer import explore
from labkit.figures import speculative_sampling as speculative_figures
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured, pick, torch_module
from labkit.measure.models import trained_model

# %% [markdown]
# ## 1. Why it matters
#
# Generating a token is bound by memory: each step reads every weight once, whether it works on one
# token or on five. So five tokens *at known positions* cost about one step. Only the next token's
# input is not known before this one is chosen. A **draft** supplies guesses; a wrong guess costs some
# work, a right one saves a whole step.

# %%
speculative_figures.rounds_picture(["the", "quick", "red", "fox"], n_kept=2, last="brown")

# %% [markdown]
# The draft model proposes four tokens, one small step each. The target model runs all four in one pass
# and has, at every position, its own law of the next token. Two are kept, the third is not, and the
# target puts its own token there. The fourth followed a text that does not exist, so nobody looks at it.
# One pass of the large model gave three tokens.
#
# Nothing is approximated. The draft may be as bad as it likes: it costs time, never quality.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. The first one you lodge is the one you will be confronted with.

# %%
predict("sp_tokens")

# %%
predict("sp_law")

# %%
predict("sp_batch")

# %%
predict("sp_equal")

# %% [markdown]
# ## 3. Build
#
# ### From logits to a law
#
# A pass gives **logits**, one number for each token, the larger the likelier. The softmax makes a law
# of them. The **temperature** T divides the logits first:
#
# $$ \text{law}_i = \frac{e^{z_i / T}}{\sum_j e^{z_j / T}}. $$
#
# Below 1 it sharpens, above 1 it flattens; towards 0 all the mass goes to the largest logit, and at 0
# that is what we *define*: greedy decoding is the case T = 0.
#
# *Worked example.* Weights 1, 4, 2 (that is, logits log 1, log 4, log 2). At T = 1 the law is 1/7, 4/7,
# 2/7. At T = 0.5 every weight is squared: 1, 16, 4, so 1/21, 16/21, 4/21. Dividing the *probabilities*
# by T and renormalising would change nothing at all.

# %% exercise="temperature_law"
from inferlab.sampling import temperature_law

# %% check="temperature_law"
check("temperature_law")

# %% [markdown]
# ### Filters
#
# The tail of a law holds thousands of tokens, each hardly possible, that together come up often. Three
# filters cut it. Each takes a law and gives a law, in which every token keeps its place.
#
# **Top-k** keeps a fixed number of tokens. *Worked example.* 0.2, 0.4, 0.2, 0.2 with k = 2: the second
# is kept for sure; three tie for the other place, and we let the lower id win. Kept 0.2 and 0.4,
# divided by 0.6: 1/3, 2/3, 0, 0.

# %% exercise="keep_top_k"
from inferlab.sampling import keep_top_k

# %% check="keep_top_k"
check("keep_top_k")

# %% [markdown]
# **Top-p** (nucleus sampling) keeps as many as are needed for a given mass, the one that crosses the
# threshold included. *Worked example.* 0.3, 0.5, 0.05, 0.15 with top_p = 0.7: the largest, 0.5, is not
# enough; with 0.3 it is 0.8, which is. Kept 0.3 and 0.5: 0.375, 0.625, 0, 0. With top_p = 0.1 the
# largest crosses at once and stays alone.

# %% exercise="keep_top_p"
from inferlab.sampling import keep_top_p

# %% check="keep_top_p"
check("keep_top_p")

# %% [markdown]
# **Min-p** asks each token to be at least a given share as likely as the likeliest. *Worked example.*
# 0.5, 0.25, 0.125, 0.125 with min_p = 0.5: the threshold is 0.25; kept 0.5 and 0.25: 2/3, 1/3, 0, 0.

# %% exercise="keep_min_p"
from inferlab.sampling import keep_min_p

# %% check="keep_min_p"
check("keep_min_p")

# %% [markdown]
# ### The order
#
# The filters do not commute. Top-p after a temperature counts other masses than before it; top-p after
# top-k works on what top-k has left, *renormalised*. Engines differ (section 6); this course fixes
# **temperature, top-k, top-p, min-p**, each on the renormalised law of the one before.
#
# *Worked example.* Weights 4, 3, 2, 1 with top_k = 2 and top_p = 0.55. Top-k leaves 4/7 = 0.571 and
# 3/7; top-p is content with the first: 1, 0, 0, 0. Top-p first would have seen 0.4, 0.3, 0.2, 0.1 and
# kept two.

# %% exercise="sampling_law"
from inferlab.sampling import sampling_law

# %% check="sampling_law"
check("sampling_law")

# %%
if ready("sampling_law"):
    logits = np.log([0.05, 0.40, 0.02, 0.30, 0.13, 0.10])
    settings = {
        "temperature 1": {},
        "temperature 0.5": {"temperature": 0.5},
        "temperature 0": {"temperature": 0.0},
        "top-k 2": {"top_k": 2},
        "top-p 0.75": {"top_p": 0.75},
        "min-p 0.2": {"min_p": 0.2},
    }
    shown = {name: sampling_law(logits, **setting) for name, setting in settings.items()}
    speculative_figures.laws(shown, ["sat", "ran", "hid", "lay", "sang", "fell"])

# %% [markdown]
# ### The draw
#
# A computer's random numbers are uniform. To draw from a law, line the tokens up by id on the interval
# from 0 to 1, each as long as its probability, and see on whose piece the uniform falls.
#
# *Worked example.* 0.25, 0.5, 0.25: the pieces end at 0.25, 0.75 and 1. The uniform 0.2 is on the first;
# 0.25 already belongs to the second, and so does 0.7.
#
# Two traps. A token of probability 0 must never come out, not even at a uniform of exactly 0. And ten
# times 0.1 adds up to 0.9999999999999999 in floating point: a uniform may lie beyond the last end.

# %% exercise="draw_token"
from inferlab.sampling import draw_token

# %% check="draw_token"
check("draw_token")

# %% [markdown]
# ### Accept, or not
#
# Now the rule. The draft has proposed a token, drawn from its own law. If the target likes that token at
# least as much, keep it. If the target likes it less, keep it in proportion:
#
# $$ \text{accept with probability } \min\!\left(1, \frac{\text{target}[x]}{\text{draft}[x]}\right). $$
#
# *Worked example*, used from here on: target 0.2, 0.5, 0.3, draft 0.6, 0.3, 0.1. The draft proposes
# token 0 three times as often as it should: it is kept one time in three. Tokens 1 and 2 always are.

# %% exercise="acceptance_probability"
from inferlab.speculative_sampling import acceptance_probability

# %% check="acceptance_probability"
check("acceptance_probability")

# %% [markdown]
# ### And the replacement
#
# What has been kept so far? Token x is proposed with probability draft[x] and kept with the ratio, so it
# comes out with probability min(draft[x], target[x]): the **overlap** of the two laws. What is missing
# to the target is target[x] − min(draft[x], target[x]), which is max(target[x] − draft[x], 0). From
# *that*, renormalised, a replacement must be drawn.

# %%
speculative_figures.two_laws([0.2, 0.5, 0.3], [0.6, 0.3, 0.1], ["token 0", "token 1", "token 2"])

# %% [markdown]
# *Worked example.* The differences are −0.4, 0.2, 0.2. Token 0 came often enough; 0.2 and 0.2 are left,
# so the residual law is 0, 0.5, 0.5.

# %% exercise="residual_law"
from inferlab.speculative_sampling import residual_law

# %% check="residual_law"
check("residual_law")

# %% [markdown]
# **The proof, in one line.** With a the probability that the proposal is kept, a rejection happens with
# probability 1 − a. The target sums to 1 and the kept part to a, so what is missing sums to 1 − a too.
# Token x comes out with probability
#
# $$ \min(\text{draft}_x, \text{target}_x) +
#    (1 - a)\, \frac{\max(\text{target}_x - \text{draft}_x, 0)}{1 - a} = \text{target}_x. $$
#
# Had the replacement come from the target itself, token 0 above would come out with probability
# 0.2 + 0.4 · 0.2 = 0.28 in place of 0.2.
#
# ### One token
#
# This exercise is judged by its **law**: it is run thousands of times with a random generator, and the
# frequencies must fit. The test would reject a right answer less than once in a million times, however
# many random numbers that answer draws.

# %% exercise="speculative_token"
from inferlab.speculative_sampling import speculative_token

# %% check="speculative_token"
check("speculative_token")

# %% [markdown]
# Look at it with your own eyes. The standard error says how far a frequency strays by chance; with
# 20,000 draws and a probability near ½ it is 0.0035, so "equal to three digits" would be luck.

# %%
if ready("speculative_token"):
    rng = np.random.default_rng(0)
    target, draft = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])
    drawn = [speculative_token(target, draft, rng) for _ in range(20_000)]
    frequency = np.bincount([token for token, _ in drawn]) / len(drawn)
    error = np.sqrt(target * (1 - target) / len(drawn))
    for x in range(3):
        print(f"token {x}: {frequency[x]:.4f}, target {target[x]} (± {error[x]:.4f})")
    print(f"kept: {np.mean([kept for _, kept in drawn]):.4f}")
confront("sp_law")

# %% [markdown]
# ### How often it is kept
#
# *Worked example.* The overlap: 0.2 + 0.3 + 0.1 = 0.6. That is *not* the chance that two independent
# samples agree, which is 0.2 · 0.6 + 0.5 · 0.3 + 0.3 · 0.1 = 0.30.

# %% exercise="acceptance_rate"
from inferlab.speculative_sampling import acceptance_rate

# %% check="acceptance_rate"
check("acceptance_rate")

# %% [markdown]
# ### A whole draft at once
#
# Gamma tokens are drafted one after the other, each from its own law. One pass of the target over all of
# them gives gamma + 1 laws: one to judge each drafted token by, and one for the position after the last.
# Go from left to right; the first rejection ends the round, since what was drafted after it belongs to
# another text. If nothing is rejected, the last law is there for free: a **bonus** token.
#
# Here the random numbers are handed in, and the statement says which is used for what. So the result is
# exact, and one of the checks goes through *every* draft and every outcome of the uniforms.
#
# *Worked example.* Three drafted, uniforms 0.9, 0.3, 0.8, 0.6; the acceptance probabilities are 1, 0.25,
# 1. The first is kept, the second is not (0.3 is not below 0.25), and 0.6 draws its replacement. The
# third is never looked at, nor is 0.8. Two tokens come out.

# %% exercise="verify_draft"
from inferlab.speculative_sampling import verify_draft

# %% check="verify_draft"
check("verify_draft")

# %% [markdown]
# ### The greedy case
#
# At temperature 0 both laws are one-hot. A drafted token is accepted with probability 1 if it is the
# target's choice and with 0 if it is not; the residual is the target's choice. No chance is left, and
# the rule becomes: keep the longest beginning that agrees, then take the target's token. "Longest
# matching prefix" is this case only; when sampling, a token that is *not* the target's favourite is
# often kept.
#
# *Worked example.* Draft 5, 9, 7; the target chooses 5, 3, 7, 1. Out come 5, 3. The second 7 agrees, but
# it was chosen after a 9 that is not in the text.

# %% exercise="greedy_match"
from inferlab.speculative_sampling import greedy_match

# %% check="greedy_match"
check("greedy_match")

# %% [markdown]
# ### How many tokens a round gives
#
# Suppose each drafted token is accepted with the same probability a, whatever happened before. The first
# token of a round always comes, the second needs one acceptance, the third two:
#
# $$ E = 1 + a + a^2 + \dots + a^{\gamma} = \frac{1 - a^{\gamma + 1}}{1 - a}. $$
#
# *Worked example.* a = 0.8 and gamma = 4: 1 + 0.8 + 0.64 + 0.512 + 0.4096 = 3.3616.

# %% exercise="expected_tokens"
from inferlab.speculative_sampling import expected_tokens

# %% check="expected_tokens"
check("expected_tokens")

# %%
if ready("expected_tokens"):
    for a in (0.5, 0.8, 0.95, 1.0):
        print(f"acceptance {a:4}: {expected_tokens(a, 4):.4f} tokens a round of 4 drafted ones")
confront("sp_tokens")
confront("sp_equal")

# %% [markdown]
# **A log is not a chance.** An engine reports 59 % of the drafted tokens accepted. That is not a: tokens
# behind a rejection were never tested, yet they count as drafted. With a = 0.8 and gamma = 4 the share is
# (3.3616 − 1) / 4 = 0.5904. Putting 0.59 back into the formula as a would promise 2.27 tokens a round in
# place of 3.36.
#
# ### Tokens are not time
#
# A round runs the draft gamma times and the target once, over gamma + 1 tokens. In units of one plain
# decode step of the target: a draft step takes `draft_cost`, the verifying pass `verify_cost`. Both are
# ratios of *times*. A draft with a tenth of the parameters is not ten times as fast: launching a layer
# costs the same for a small one.
#
# *Worked example.* 3.3616 tokens in 1 + 4 · 0.05 = 1.2 steps: 2.80 times as fast. With a = 0.5 only 1.9375
# tokens come in the same time: 1.61 times.

# %% exercise="speedup"
from inferlab.speculative_sampling import speedup

# %% check="speedup"
check("speedup")

# %%
if ready("speedup"):
    speculative_figures.speed_by_gamma(speedup, [0.5, 0.7, 0.8, 0.9], draft_cost=0.05)

# %% [markdown]
# ### When verification stops being free
#
# The pass over gamma + 1 tokens costs one step *because both are bound by reading the weights*. A device
# has a ridge: beyond so many tokens a pass, arithmetic takes longer than reading (lesson 01). For an H100
# in bf16 it is 295 tokens: 989.4 TFLOP/s over 3.35 TB/s, at 2 FLOPs and 2 bytes a weight. One user with
# gamma = 4 runs 5 tokens. With 256 users it is 1,280 a pass.
#
# *Worked example.* Ridge 300, gamma 4. With 120 users a decode step runs 120 tokens: one reading. The
# verifying pass runs 600: as long as two readings. `verify_cost` is 2. With 600 users the decode step
# itself is bound by arithmetic: 3,000 tokens against 600, that is 5.

# %% exercise="verify_cost"
from inferlab.speculative_sampling import verify_cost

# %% check="verify_cost"
check("verify_cost")

# %%
if ready("speedup", "verify_cost"):
    ridge = 989.4e12 / 3.35e12
    batches = [1, 4, 16, 64, 128, 256]
    by_batch = {
        gamma: [speedup(0.8, gamma, 0.05, verify_cost(gamma, B, ridge)) for B in batches]
        for gamma in (1, 4, 8)
    }
    speculative_figures.speed_by_batch(batches, by_batch)
    print("gamma 4:", {B: round(s, 2) for B, s in zip(batches, by_batch[4], strict=True)})
confront("sp_batch")

# %% [markdown]
# An 8B model, acceptance 0.8, gamma 4, keys and values left out: 2.80 times as fast with 16 users, 2.62
# with 64, 1.42 with 128, and 0.74 with 256. The last one is a *slowdown*; with a gamma of 1 the same
# server would be just even. Long contexts push the limit out, since reading the cache keeps a step
# memory-bound for longer.
#
# ### How many to draft
#
# *Worked example.* Draft cost 0.05: with acceptance 0.8 the best gamma is 8 (3.09 times as fast), with
# 0.95 it is 21, with 0.99 it is 55. A search from 1 to 15 would miss the last two, and it would miss
# the answer 0: where no gamma beats plain decoding, the right setting is *off*. Some gamma pays exactly
# when the acceptance is above the draft cost, as long as verifying is free.

# %% exercise="best_gamma"
from inferlab.speculative_sampling import best_gamma

# %% check="best_gamma"
check("best_gamma")

# %% [markdown]
# Turn acceptance, draft length and batch: at which batch does speculation stop paying? The dotted grey
# line is each user without it.

# %%
explore("08")

# %% [markdown]
# ### A draft for nothing
#
# A draft need not be a model. Answers repeat their prompt: a summary, an edit of a file, code that uses
# the same names. So look up the last few tokens earlier in the text, and propose what followed them
# there. The draft cost is close to 0, so even a low acceptance pays, *while verifying is free*.
#
# *Worked example.* The text is 1, 2, 3, 9, 5, 1, 2, 3. The longest known run at its end is 1, 2, 3, which
# was followed by 9, 5. So that is the draft, and if more is asked it goes round: 9, 5, 1, 2, 3, 9, 5.

# %% exercise="NgramIndex" write="extend draft"
from inferlab.prompt_lookup import NgramIndex

# %% check="NgramIndex"
check("NgramIndex")

# %% [markdown]
# ### All of it, with two models
#
# Two models, two caches, one text. A cache holds the keys and values of the tokens that were run:
# `cache.n_tokens` of them, and `cache.truncate(n)` forgets all but the first n (lesson 04). At the end of
# a round:
#
# - the target has run the whole draft, the rejected part too: its cache must be cut;
# - the draft model has run all drafted tokens *but the last*, which nobody needed a law after. If all
#   were kept, its cache lacks that token and the bonus. It is *shorter*, not longer;
# - the newest token of the text was made by a law, not run: no cache holds it yet.
#
# So one rule serves both: each cache holds a beginning of the text without its last token. And
# `laws_after(model, cache, tokens, drafted, law_of)`, which is given, runs whatever is missing: it
# compares the length of the cache with the text. `law_of` makes a law of logits: it is your
# `sampling_law` with its settings filled in, for *both* models. Judging a token by another law than the
# one it was drawn from breaks the proof.
#
# Both laws must be over the same tokens, too: `require_same_vocab(target_model, draft_model)`, also given,
# raises ValueError where the vocabularies differ in size.
#
# *Worked example.* The text has 10 tokens, gamma is 3. Both caches hold 9. The draft runs the tenth and
# two of its own guesses: 12. The target runs the tenth and all three guesses in one pass: 13. One guess is
# kept: the text now has 10 + 1 + 1 = 12 tokens, so both caches are cut to 11. If all three had been
# kept, the text would have 14: the target keeps its 13, the draft its 12.

# %% exercise="speculative_rounds"
from inferlab.speculative_sampling import speculative_rounds

# %% check="speculative_rounds"
check("speculative_rounds")

# %% [markdown]
# ## 4. Measure
#
# Two models come with the course: `tiny-target`, a decoder of 4.8 million parameters trained on
# Shakespeare's plays, and `tiny-draft`, of 0.3 million, which was trained to imitate it. First greedy: is
# it the same text, token for token?

# %%
target_model, draft_model = trained_model("tiny-target"), trained_model("tiny-draft")
greedy = partial(sampling_law, temperature=0.0)
if target_model and draft_model and ready("speculative_rounds", "sampling_law"):
    prompt = target_model.tokenizer.encode("KING HENRY:\nMy lords,")
    plain = generate_cached(target_model, prompt, 60)
    rng = np.random.default_rng(0)
    rounds = list(speculative_rounds(target_model, draft_model, prompt, 60, 4, greedy, rng))
    tokens = [token for new in rounds for token in new]
    print("the same 60 tokens" if tokens == plain else "they differ: this should not happen")
    print(f"in {len(rounds)} passes of the target in place of 60")
    print(target_model.tokenizer.decode(tokens))

# %% [markdown]
# ### Acceptance, computed and counted
#
# Temperature 1, a text that neither model has seen. At each of 480 positions your `acceptance_rate`
# says how likely a drafted token would be kept there.

# %%
sample = partial(sampling_law, temperature=1.0)
if target_model:
    play = (ROOT / "data" / "tiny" / "heldout.txt").read_text(encoding="utf-8")
    heldout = target_model.tokenizer.encode(play)
if target_model and draft_model and ready("acceptance_rate", "sampling_law"):
    passage = np.array([heldout[:480]])
    target_laws = [sample(row) for row in target_model.forward(passage)[0]]
    draft_laws = [sample(row) for row in draft_model.forward(passage)[0]]
    rates = [acceptance_rate(t, d) for t, d in zip(target_laws, draft_laws, strict=True)]
    speculative_figures.rate_spread(rates)
    neighbours = np.corrcoef(rates[:-1], rates[1:])[0, 1]
    print(f"mean {np.mean(rates):.3f}; correlation of neighbouring positions {neighbours:.2f}")

# %% [markdown]
# The chance is not one number. Where only a line break can follow, as after a speaker's name, it is near 1;
# inside a word that the draft hardly knows, from "Wit" to "ch", it is about 0.3. And it comes in
# stretches: next to an easy position the next one is easier too. The formula took it for the same
# everywhere. Now generate, and count what each round keeps.

# %%
NEEDED = ("sampling_law", "acceptance_rate", "speculative_rounds")
if target_model and draft_model and ready(*NEEDED):
    rng, kept = np.random.default_rng(1), []
    for start in (0, 200, 400):
        text = heldout[start : start + 40]
        rounds = list(speculative_rounds(target_model, draft_model, text, 200, 4, sample, rng))
        kept += [len(new) - 1 for new in rounds[:-1]]  # the last one may be shorter
    n_tested = sum(k + (k < 4) for k in kept)  # the kept ones, and the one that ended the round
    acceptance = sum(kept) / n_tested
    print(f"mean of the computed rates:        {np.mean(rates):.3f}")
    print(f"accepted of the tokens tested:     {acceptance:.3f}")
    print(f"accepted of all drafted tokens:    {sum(kept) / (4 * len(kept)):.3f}")
    print(f"tokens a round: {1 + np.mean(kept):.2f} counted", end=", ")
    if ready("expected_tokens"):
        print(f"{expected_tokens(acceptance, 4):.2f} by the formula")
    after = [sum(k > i for k in kept) / sum(k >= i for k in kept) for i in range(4)]
    print("accepted at position 1, 2, 3, 4, if all before were:", *(f"{a:.2f}" for a in after))
    speculative_figures.kept_histogram(kept, kept_law(acceptance, 4))

# %% [markdown]
# **Reading it.** Computed and counted acceptance are close; the share of *all* drafted tokens is far lower,
# as it must be. The histogram is the geometric law only roughly: a round begins where the last one was
# rejected, often in a hard place, and one that got going is often in an easy one. On average the formula is
# still close. How far it can be off: if half the rounds have a = 0.6 and half have 1.0, they give 3.65 tokens
# on average, and the formula at the mean, 0.8, says 3.36.
#
# ### Time
#
# Three numbers decide: acceptance, the cost of a draft step, and the cost of the verifying pass. Measure
# the last two, on two engines with the same weights: the readable one in NumPy, and PyTorch.
#
# **Before you run it:** for which of the two is a pass over five tokens the cheaper, compared with one?

# %%
if target_model and draft_model and ready("speculative_rounds", "speedup"):
    from inferlab.engines.pytorch.model import TorchModel

    torch = torch_module()
    torch.set_num_threads(1)  # for models this small, several threads wait for each other
    device = pick()
    pairs = {
        "NumPy": (target_model, draft_model),
        "PyTorch": tuple(TorchModel.from_model(m, device) for m in (target_model, draft_model)),
    }

    def step(model, n):
        """Run n tokens on top of 100."""
        cache = prefilled(model, heldout[:101])
        return lambda: (cache.truncate(100), model.forward(np.array([heldout[:n]]), cache))

    costs = {}
    for name, (big, small) in pairs.items():
        times = timing.interleaved(
            {"step": step(big, 1), "verify": step(big, 5), "draft": step(small, 1)}, rounds=15
        )
        one = times["step"].median_s
        costs[name] = times["draft"].median_s / one, times["verify"].median_s / one
        print(f"{name}: a step {1e3 * one:.2f} ms; draft {costs[name][0]:.2f} of it,", end=" ")
        print(f"five tokens {costs[name][1]:.2f}")

# %%
if target_model and draft_model and ready("speedup", *NEEDED):
    predicted = [speedup(acceptance, 4, *costs[name]) for name in pairs]
    whole, text = [], heldout[:40]
    for name, (big, small) in pairs.items():
        runs = timing.interleaved(
            {
                "plain": lambda big=big: list(
                    sampled_tokens(big, text, 80, sample, np.random.default_rng(2))
                ),
                "speculative": lambda big=big, small=small: list(
                    speculative_rounds(big, small, text, 80, 4, sample, np.random.default_rng(2))
                ),
            },
            rounds=3,
        )
        whole.append(runs["plain"].median_s / runs["speculative"].median_s)
        print(f"{name}: predicted {predicted[len(whole) - 1]:.2f}x, measured {whole[-1]:.2f}x")
    speculative_figures.speeds(list(pairs), predicted, whole)
    print(describe(device, "float32"))

# %% [markdown]
# **Reading it.** The same models, the same acceptance, the same rounds, and yet two engines, two gains. In
# NumPy a step of one row is a matrix-vector product; five rows take another routine that has to repack the
# weights first, and these weights are small enough to lie in the processor's cache, so there is little
# waiting for memory that more rows could share. Verification is not free there, the gain is small or even a
# loss, and the formula says so *before* you try. In PyTorch a pass is dominated by the price of starting each
# operation, one token or five. On a GPU with a large model it is the reading of the weights. The reason
# differs, the number to measure is the same. What the formula leaves out: making laws of the logits,
# drawing, and the prefill of the draft.
#
# ### Which draft?
#
# Any model of the same vocabulary can draft: also the target itself with its last layers left out, or
# with its weights rounded to 4 bits (lesson 07). What would they be accepted?

# %%
if target_model and draft_model and ready("speedup", "best_gamma", *NEEDED):

    def first_layers(n):
        """The target without its later layers."""
        config = dataclasses.replace(target_model.config, n_layers=n)
        layers = target_model.weights.layers[:n]
        return Model(config, dataclasses.replace(target_model.weights, layers=layers))

    drafts = {"tiny-draft": (draft_model, costs["PyTorch"][0])}
    n_layers = target_model.config.n_layers
    drafts |= {
        f"first {n} of {n_layers} layers": (first_layers(n), n / n_layers) for n in (1, 3, 5)
    }
    drafts["int4 copy"] = (TorchModel.from_model(target_model, "cpu", "int4"), 1 / 4)
    for name, (model, cost) in drafts.items():
        laws = [sample(row) for row in model.forward(passage)[0]]
        rate = np.mean([acceptance_rate(t, d) for t, d in zip(target_laws, laws, strict=True)])
        gamma = best_gamma(rate, cost)
        print(
            f"{name:>18}: accepted {rate:.2f}, cost about {cost:.2f}; best gamma {gamma},", end=" "
        )
        print(f"at best {speedup(rate, gamma, cost):.2f}x")

# %% [markdown]
# The costs of the cut and rounded copies are what their share of the bytes would suggest, not measured;
# verification is taken as free. Leaving out layers without any training is a clean negative result: five
# of six layers cost more than they are accepted. Models that are *trained* to be left early do better. A
# rounded copy agrees almost always; it pays if your device really runs it that much faster.
#
# ### Prompt lookup on a real model
#
# SmolLM2-135M-Instruct, with *your* `NgramIndex`: once on a task that copies, once on an open question.
# Tokens are drafted only after the lookup has guessed right twice in a row, so that open text costs
# nothing.

# %%
model = trained_model("smollm2")
if model and ready("NgramIndex"):
    letter = "Dear Ms Lindqvist, your 12 oak shelves left our workshop in Gothenburg on Tuesday."
    tasks = {
        "copy": f"Copy this letter word for word, twice:\n\n{letter}",
        "open": "Why is the sky blue?",
    }

    def timed(work):
        """(what it returns, the seconds it took)"""
        result = []
        seconds = timing.once(lambda: result.append(work()))
        return result[0], seconds

    for (name, task), n in zip(tasks.items(), (36, 20), strict=True):
        prompt, stats = model.tokenizer.chat_prompt(task), LookupStats()
        plain, plain_s = timed(partial(generate_cached, model, prompt, n))
        with_lookup = partial(generate_lookup, model, prompt, n, index=NgramIndex(), stats=stats)
        looked_up, lookup_s = timed(with_lookup)
        same = "the same tokens" if looked_up == plain else "they differ!"
        print(f"{name}: {same}; {stats.n_passes} passes in place of {n - 1};", end=" ")
        print(f"{stats.n_accepted} of {stats.n_drafted} drafted tokens accepted;", end=" ")
        print(f"{plain_s:.1f} s plain, {lookup_s:.1f} s with lookup")

# %% [markdown]
# Copying takes a fraction of the passes, but not the same fraction of the time: on a processor a pass over
# 8 or 16 drafted tokens and one more costs several steps. Where verification is free, the time follows
# the passes.

# %% [markdown]
# ## 5. Explain
#
# In five to eight sentences, for a colleague who knows language models but not this trick: **why does
# speculative sampling not change what is written, and when does it not pay?** Give the rule for a token
# and for its replacement, say why their sum is the target's law, and name two situations in which you
# would switch it off, one of them with a number.

# %% [markdown] written="sp_explain" points=3
# **Sample answer.** A cheap draft proposes a token from its law; it is kept with probability min(1,
# target / draft). So each token comes out by acceptance with probability min(draft, target). If it is
# rejected, a replacement is drawn from max(target − draft, 0), renormalised, which is exactly what the
# target's law still lacks; the sum is the target, whatever the draft was. Gamma tokens are verified in
# one pass of the target, which is cheap because a decode step waits for the weights and not for the
# arithmetic; the first rejection ends the round, and if there is none, the pass gives a bonus token. With
# acceptance 0.8 and 4 drafted tokens a round gives 3.36 tokens, and with a draft of 0.05 of a step it is
# 2.8 times as fast. I would switch it off at a large batch: an 8B model on an H100 with 256 users runs at
# 0.74 of its speed, since verifying 1,280 tokens a pass is bound by arithmetic. I would also switch it off
# where the acceptance is below the cost of a draft step, as in open, creative text with a slow draft.
#
# **Rubric** (1 point each): *rule*: acceptance and residual, and why they add up to the target;
# *number*: a right one, for tokens a round, a speed-up or a batch; *limits*: two situations with their
# reason (batch, low acceptance, slow draft, memory of two models).

# %% [markdown]
# ## 6. In the wild
#
# **Sampling order.** *transformers*: temperature, top-k, top-p, min-p; all tokens that tie with the k-th are
# kept. *vLLM*: temperature, then min-p, then top-k and top-p. *llama.cpp*: top-k, top-p and min-p first, the
# temperature last. The same settings give three different laws. When you compare two engines, hold more
# than the settings fixed. Your order against that of transformers, if you have it:

# %%
if not grading() and ready("sampling_law"):
    try:
        import torch
        from transformers import (
            LogitsProcessorList,
            MinPLogitsWarper,
            TemperatureLogitsWarper,
            TopKLogitsWarper,
            TopPLogitsWarper,
        )
    except ImportError:
        not_measured("transformers' order needs that package: pip install transformers")
    else:
        logits = np.random.default_rng(3).normal(size=50) * 2
        warpers = (TemperatureLogitsWarper(0.7), TopKLogitsWarper(12))
        chain = LogitsProcessorList([*warpers, TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)])
        theirs = torch.softmax(chain(None, torch.from_numpy(logits)[None]), dim=-1)[0].numpy()
        ours = sampling_law(logits, temperature=0.7, top_k=12, top_p=0.9, min_p=0.05)
        print(f"largest difference of the two laws: {np.abs(ours - theirs).max():.1e}")

# %% [markdown]
# **Switching it on.**
#
# - *transformers*: `model.generate(**inputs, assistant_model=draft)`, or `prompt_lookup_num_tokens=10` for
#   the lookup. One sequence at a time. It drafts up to 20 tokens by default and stops early where the
#   draft is unsure (`assistant_confidence_threshold`).
# - *vLLM*: `speculative_config={"method": "draft_model", "model": "Qwen/Qwen3-0.6B",
#   "num_speculative_tokens": 4}`; `"method": "ngram"` with `prompt_lookup_max` for the lookup; `"eagle3"`,
#   `"mtp"` and others for trained heads. Draft models came late to its second engine: versions up to
#   0.13.0 refuse them.
# - *llama.cpp*: `-m target.gguf -md draft.gguf`.
# - here: `inferlab generate "…" --draft NAME`, or `--draft lookup`; `--temperature`, `--top-k`, `--top-p`,
#   `--min-p`, `--seed`, `--draft-tokens`.
#
# **What breaks first** is the vocabulary. Qwen2.5-7B has 152,064 entries, Qwen2.5-0.5B 151,936, although
# both come from one family and share a tokenizer: the larger is padded. vLLM refuses the
# pair, *transformers* too unless it is given both tokenizers; llama.cpp lets the sizes differ by up to 128,
# just enough. Qwen3-8B with Qwen3-0.6B fits (151,936 both), and so does Llama-3.1-8B with Llama-3.2-1B.
# `require_same_vocab` names both sizes:

# %%
smol, tiny = trained_model("smollm2"), trained_model("tiny-draft")
if smol and tiny:
    try:
        require_same_vocab(smol, tiny)
    except ValueError as error:
        print(error)

# %% [markdown]
# **Relatives, often mixed up.**
#
# - *Self-speculation* (2023): the model drafts with some of its own layers skipped, and verifies with all.
# - *Medusa* (January 2024): extra heads on the last layer guess several tokens ahead; a tree of guesses is
#   verified. Its "typical acceptance" takes what is plausible enough, and does **not** keep the law.
# - *EAGLE* (2024, to EAGLE-3 in 2025): a small head that continues the target's own features; lossless with
#   the rule of this lesson.
# - *Lookahead* and *prompt lookup*: no second model at all.
#
# Prefix caching and chunked prefill are sometimes filed next to these; they act on the prefill.
#
# **What to watch.** Accepted tokens *by position* (vLLM counts
# `vllm:spec_decode_num_accepted_tokens_per_pos`), tokens a pass, the time of a pass beside that of a plain
# step, and the batch. The second model needs memory too, for weights and for a cache of its own. And gaps
# between streamed tokens become uneven, since a round's tokens arrive together (lesson 11).

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer to three digits, with its unit where it has one (`"4.21 tok"`, `"1.85x"`), or the
# letter.

# %%
answers = Answers("")

# %%
answers.ask("sp_q_penalty")

# %% answer="sp_q_penalty"
answers["sp_q_penalty"] = "-0.720000"

# %% answer_check="sp_q_penalty"
answers.check("sp_q_penalty")

# %%
answers.ask("sp_q_tokens")

# %% answer="sp_q_tokens"
answers["sp_q_tokens"] = "2.71708 tok"

# %% answer_check="sp_q_tokens"
answers.check("sp_q_tokens")

# %%
answers.ask("sp_q_speed")

# %% answer="sp_q_speed"
answers["sp_q_speed"] = "2.3906x"

# %% answer_check="sp_q_speed"
answers.check("sp_q_speed")

# %%
answers.ask("sp_q_rate")

# %% answer="sp_q_rate"
answers["sp_q_rate"] = "0.650000"

# %% answer_check="sp_q_rate"
answers.check("sp_q_rate")

# %%
answers.ask("sp_q_residual")

# %% answer="sp_q_residual"
answers["sp_q_residual"] = "0.800000"

# %% answer_check="sp_q_residual"
answers.check("sp_q_residual")

# %%
answers.ask("sp_q_best")

# %% answer="sp_q_best"
answers["sp_q_best"] = "6"

# %% answer_check="sp_q_best"
answers.check("sp_q_best")

# %%
answers.ask("sp_q_server")

# %% answer="sp_q_server"
answers["sp_q_server"] = "0.854644x"

# %% answer_check="sp_q_server"
answers.check("sp_q_server")

# %%
answers.ask("sp_q_match")

# %% answer="sp_q_match"
answers["sp_q_match"] = "4"

# %% answer_check="sp_q_match"
answers.check("sp_q_match")

# %%
answers.ask("sp_q_alpha")

# %% answer="sp_q_alpha"
answers["sp_q_alpha"] = "d"

# %% answer_check="sp_q_alpha"
answers.check("sp_q_alpha")

# %%
answers.ask("sp_q_filter")

# %% answer="sp_q_filter"
answers["sp_q_filter"] = "d"

# %% answer_check="sp_q_filter"
answers.check("sp_q_filter")

# %%
answers.ask("sp_q_families")

# %% answer="sp_q_families"
answers["sp_q_families"] = "a"

# %% answer_check="sp_q_families"
answers.check("sp_q_families")

# %%
answers.ask("sp_q_lossy")

# %% answer="sp_q_lossy"
answers["sp_q_lossy"] = "a"

# %% answer_check="sp_q_lossy"
answers.check("sp_q_lossy")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>Why can verifying five tokens cost about as much as one step?</b></summary>
#
# A decode step is bound by reading the weights, and five tokens read them once as well.
# *Follow-up: at what batch does that end?* When batch · (gamma + 1) reaches the ridge: for an H100 in bf16
# at 295 tokens a pass, 59 users with gamma 4.
# </details>
#
# <details><summary><b>Acceptance 0.8, four drafted tokens: how many tokens a pass?</b></summary>
#
# (1 − 0.8⁵) / 0.2 = 3.36. *Follow-up: and the speed-up if a draft step costs 0.05?* 3.3616 / 1.2 = 2.80.
# *At acceptance 0.5?* 1.61.
# </details>
#
# <details><summary><b>How many tokens would you draft?</b></summary>
#
# At cost 0.05: 4 for acceptance 0.6, 8 for 0.8, 13 for 0.9. *Follow-up: when none at all?* Where the
# acceptance is below the draft cost, or the batch has made verification expensive.
# </details>
#
# <details><summary><b>Prove that the output has the target's law.</b></summary>
#
# Accepted: min(draft, target). Rejected, with probability 1 − a: the residual, whose sum before
# normalising is 1 − a. Together the target. *Follow-up: what if the replacement comes from the target?*
# Tokens that the draft overrates come out too often: 0.28 in place of 0.2 in this lesson's example.
# </details>
#
# <details><summary><b>Laws 0.2, 0.5, 0.3 and 0.6, 0.3, 0.1: what is the acceptance?</b></summary>
#
# The overlap, 0.6. *Follow-up: why is 0.30, the chance that two samples agree, not the answer?* The rule
# keeps a token by its probability; the target need not have drawn it.
# </details>
#
# <details><summary><b>What happens at temperature 0?</b></summary>
#
# Keep drafted tokens while they are the target's choices, then take the target's. *Follow-up: draft 5, 9,
# 7, choices 5, 3, 7, 1?* Out come 5, 3.
# </details>
#
# <details><summary><b>Speculation made the server slower. Name three causes.</b></summary>
#
# A high batch (0.74 times at 256 users in the example), low acceptance, a draft that is slow to launch;
# and the memory of a second cache, which shrinks the batch. *Follow-up: what would you watch?* Accepted
# tokens by position, and the time of a verifying pass over that of a step.
# </details>
#
# <details><summary><b>Tree or chain? Medusa, EAGLE, n-gram?</b></summary>
#
# A tree verifies several guesses for a position at once: more accepted, more tokens in the pass. Medusa:
# heads that guess independently; EAGLE: a small autoregressive head on features; n-gram: copies, for
# nothing. *Follow-up: which are lossless?* All with this lesson's rule; Medusa's typical acceptance is not.
# </details>
#
# <details><summary><b>Qwen2.5-7B with the 0.5B draft: what fails first?</b></summary>
#
# The sizes of the vocabularies: 152,064 and 151,936. *Follow-up: a way round it?* Cut both laws to the
# tokenizer's real size before they are renormalised, or take a pair that fits.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("08_speculative_sampling", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - A decode step waits for memory. Verifying gamma guesses costs about one step, as long as it does.
# - Keep with min(1, target / draft), replace from max(target − draft, 0): the law is the target's, exactly.
# - Both laws are the ones that are sampled from, after temperature and filters.
# - A round gives 1 + a + … + a^gamma tokens and takes gamma · draft_cost + verify_cost steps.
# - After each round both caches are cut back to a beginning of the text.
# - Zero is a valid gamma: at a large batch, or with a poor draft, speculation is a loss.
#
# **Common mistakes.** The ratio upside down. The replacement from the target. One random number for two
# decisions. The bonus forgotten. Acceptance read off a log as accepted over drafted. A rejected token left
# in a cache. Parameters taken for time. Vocabularies assumed equal.
#
# **Failure modes.** Slower at peak load, when it is least welcome. A draft that was fine on code and is
# not on chat. Greedy tokens that differ in bf16, where a pass over five rows rounds otherwise than five
# passes over one: near ties flip. Two caches where memory was planned for one.
#
# **References**
#
# - Stern et al., *Blockwise Parallel Decoding for Deep Autoregressive Models*, 2018, arXiv 1811.03115
# - Leviathan et al., *Fast Inference from Transformers via Speculative Decoding*, 2023, arXiv 2211.17192
# - Chen et al., *Accelerating Large Language Model Decoding with Speculative Sampling*, 2023,
#   arXiv 2302.01318
# - Zhang et al., *Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
#   Decoding*, 2023, arXiv 2309.08168
# - Cai et al., *Medusa*, 2024, arXiv 2401.10774
# - Li et al., *EAGLE*, 2024, arXiv 2401.15077; *EAGLE-3*, 2025, arXiv 2503.01840
# - Fu et al., *Break the Sequential Dependency of LLM Inference Using Lookahead Decoding*, 2024,
#   arXiv 2402.02057
# - Liu et al., *Optimizing Speculative Decoding for Serving Large Language Models Using Goodput*, 2024,
#   arXiv 2406.14066
# - Saxena, *Prompt Lookup Decoding*, 2023
# - Fan et al., *Hierarchical Neural Story Generation*, 2018, arXiv 1805.04833 (top-k)
# - Holtzman et al., *The Curious Case of Neural Text Degeneration*, 2020, arXiv 1904.09751 (top-p)
# - Nguyen et al., *Turning Up the Heat: Min-p Sampling*, 2025, arXiv 2407.01082

# %%
progress("08_speculative_sampling")
