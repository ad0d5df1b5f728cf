# %% [markdown]
# # 09 · Mixture of experts: many experts, few active
#
# Most of a model's weights sit in its MLPs, and every token runs through all of them. A mixture of
# experts puts many MLPs in a layer and sends each token through a few. The model grows, the arithmetic
# of a token does not. What is saved in FLOPs is paid for in memory, and what a decode step must *read*
# lies in between: it depends on who is served together. This lesson builds the layer and all three
# accounts.
#
# **You will be able to**
#
# - write a router as real models have it, and say what their configurations mean;
# - run a mixture by gathering rows and scattering answers, and prove it equal to the obvious way;
# - count total, active and resident weights of any published mixture, to the last one;
# - predict how many experts, and how many bytes, a batch reads, and compare with a trained model;
# - explain what keeps experts evenly used, and what happens to a token whose expert is full.
#
# **Time** about 3 h 30 min: 2 h for fourteen exercises, the rest for reading, measuring, the written
# answer and the knowledge check.
#
# **You need** NumPy, the gated MLP (lesson 02) and reading against computing (lesson 01). What is used
# here is said again when it is needed.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B`, `T` | sequences in the batch, tokens computed now | `n_experts`, $E$ | routed experts of a layer |
# | `n_tokens` | all of them together, `B * T` | `n_chosen`, $k$ | experts that one token takes |
# | `d_model` | width of a token's row | `d_ff`, `d_expert` | width inside an MLP, inside an expert |
#
# GB is 10⁹ bytes, GiB is 2³⁰ bytes.

# %%
import math
from collections.abc import Callable

import numpy as np

from inferlab.checkpoints.read_config import read_config
from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.config import ModelConfig
from inferlab.data import ROOT, load_config, load_models, model_preset
from inferlab.generate import generate_cached
from inferlab.moe import dense_mixture
from inferlab.moe_sizes import other_params, touched_by_enumeration
from inferlab.operators import softmax, swiglu
from inferlab.params import count_params, expert_params, router_params
from inferlab.weights import LayerWeights, present
from labkit.explorer import explore
from labkit.figures import moe as moe_figures
from labkit.measure import moe as expert_use
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured, pick
from labkit.measure.models import trained_model
from labkit.units import format_bytes

# %% [markdown]
# ## 1. Why it matters
#
# In a layer of a language model attention lets a token gather from earlier ones; then an MLP works on
# the token alone. In Llama-3-8B 81 % of a layer's weights are in the MLP. A **mixture of experts**
# replaces it by $E$ MLPs of the same kind, the **experts**, and a small matrix, the **router**, that
# scores them for each token. The token goes through the best $k$ of them and gets their weighted sum.
#
# So two numbers describe such a model, where one was enough: all its weights, and those that one
# token uses. Each line below is a published model. The square is what must lie in memory, the dot is
# what one token is multiplied with.

# %%
mixtures = {name: m["computed"] for name, m in load_models().items() if m["moe"]}
by_size = sorted(mixtures, key=lambda name: mixtures[name]["params_total"])
moe_figures.held_and_used(
    {n: (2 * mixtures[n]["params_total"], 2 * mixtures[n]["params_active"]) for n in by_size}
)

# %% [markdown]
# DeepSeek-V3 holds 671 billion weights and uses 37.6 billion of them for a token: 1 in 17.9. It answers
# at the arithmetic of a model that fits on one device, and it fills a whole server.
#
# One example goes through the lesson. **4 billion** weights serve every token: attention, embeddings,
# routers. There are **16 experts of 2 billion** each (one expert of every layer, added up), and a token
# takes **2** of them.
#
# A token uses 4 + 2 · 2 = 8 billion weights. So it costs 2 · 8 = 16 GFLOP (lesson 01: 2 FLOPs for each
# weight that it uses), like a dense model of 8 billion.

# %% [markdown]
# ## 2. Predict
#
# Lodge a guess before you build anything. A wrong guess is worth more than none: it shows where
# your picture of the machine is off. The first one you lodge is the one you will be confronted with.

# %%
predict("me_touched")

# %%
predict("me_step_ratio")

# %%
predict("me_batch")

# %%
predict("me_busiest")

# %% [markdown]
# ## 3. Build
#
# ### The router
#
# The router is one matrix, `d_model` × `n_experts`: a token's row times it gives one **score** for each
# expert. A softmax, $p_i = e^{s_i} / \sum_j e^{s_j}$, turns scores into probabilities. The $k$ largest
# are chosen. How much does each of them count? There are two conventions, and a checkpoint works with
# the one it was trained with:
#
# - **divide** the $k$ probabilities by their sum, so that they add up to 1 (Mixtral, Qwen3-MoE);
# - **leave** them as they are, so that they add up to less than 1 (OLMoE, DeepSeek-V2-Lite).
#
# The first is the same as a softmax over the $k$ best scores alone, since the sum over all experts
# cancels:
#
# $$ \frac{e^{s_i} / \sum_\text{all} e^{s_j}}{\sum_\text{chosen} e^{s_j} / \sum_\text{all} e^{s_j}}
#    = \frac{e^{s_i}}{\sum_\text{chosen} e^{s_j}}. $$
#
# "Softmax before or after the top $k$?" is therefore the wrong question. The right one is: *are the
# weights divided by their sum?* `config.json` answers it in `norm_topk_prob`.
#
# *Worked example.* Scores 2, 1, 0, −1: probabilities 0.644, 0.237, 0.087, 0.032. The best two, divided
# by 0.881: 0.731 and 0.269. Not divided: 0.644 and 0.237, which let 12 % of the layer's answer go.

# %% exercise="router_weights"
from inferlab.moe import router_weights

# %% check="router_weights"
check("router_weights")

# %% [markdown]
# Five tokens and eight experts, chosen by **your** function. Look at the right side: some experts get
# several rows, some get none. Nobody told the router to be fair.

# %%
if ready("router_weights"):
    rng = np.random.default_rng(4)
    chosen, shares = router_weights(1.5 * rng.normal(size=(5, 8)), 2)
    moe_figures.routing(["Fair", "is", "foul,", "and", "foul"], chosen, shares, 8)

# %% [markdown]
# ### From tokens to experts
#
# The router says which experts a token takes. To run an expert once for all of its tokens we need the
# same turned round: which tokens does an expert get? And at which **place** of the token's choice does
# it stand, so that the right weight is found.
#
# *Worked example.* Token 0 chose experts 2 and 0, token 1 chose 0 and 1. Expert 0 gets tokens 0 and 1; it
# is the second choice (place 1) of the one and the first (place 0) of the other.

# %% exercise="route"
from inferlab.moe import route

# %% check="route"
check("route")

# %% [markdown]
# ### Gather, run, scatter
#
# Now the layer. The obvious way runs every token through every expert and multiplies most answers by 0.
# That costs $E / k$ times the arithmetic and reads all experts. Instead: **gather** the rows of an expert,
# run them together, **scatter** the answers back to the rows they came from.
#
# An expert is the gated MLP of lesson 02; `swiglu(rows, w_gate, w_up, w_down)` is given. The tokens of
# all sequences go through the experts side by side: for a mixture `B` and `T` make no difference.
#
# *Worked example.* 3 tokens, 2 experts each, 4 experts: 6 rows are run in all, in as many passes as there
# are experts with tokens. The check counts the rows, and it fills experts that nobody chose with NaN.

# %% exercise="moe_forward"
from inferlab.moe import moe_forward

# %% check="moe_forward"
check("moe_forward")

# %% [markdown]
# Is it the same as the obvious way? `dense_mixture` runs every token through every expert.

# %%
if ready("moe_forward"):
    rng = np.random.default_rng(0)
    x, w_router = rng.normal(size=(4, 8, 32)), rng.normal(size=(32, 8)) / 6
    w_gate, w_up = rng.normal(size=(2, 8, 32, 48)) / 6
    w_down = rng.normal(size=(8, 48, 32)) / 7
    arrays = (x, w_router, w_gate, w_up, w_down, 2)
    apart = np.abs(moe_forward(*arrays) - dense_mixture(*arrays)).max()
    print(f"rows run: {32 * 2} in place of {32 * 8}; largest difference of the outputs {apart:.1e}")

# %% [markdown]
# ### Experts that everybody takes
#
# Some knowledge is needed by every token, and it would be learned again in every expert. DeepSeek's
# models therefore have **shared experts**: the router has no say, each token runs through them, and
# their answer is added with weight 1. They are **not** among the $E$ and not among the $k$: DeepSeek-V3
# has 256 routed experts, of which a token takes 8, and 1 shared one on top. Several of them side by side
# are one wider MLP, and stored as one.
#
# *Worked example.* Routed part [1, 2], shared part [10, 20]: the layer gives [11, 22].

# %% exercise="mixture_of_experts"
from inferlab.moe import mixture_of_experts

# %% check="mixture_of_experts"
check("mixture_of_experts")

# %% [markdown]
# ### The first account: weights held, weights used
#
# An expert has three matrices of `d_model` × `d_expert`. Mind the width: where a configuration has both
# `intermediate_size` and `moe_intermediate_size`, the first is that of a *plain* MLP, the second that of
# an expert. Qwen3-30B-A3B says 6,144 and 768. With 6,144 in its experts it would have 233.5 billion
# weights, not 30.5 billion.
#
# *Worked example.* `d_model` 10, `d_expert` 7: an expert has 210 weights. With 6 experts, 1 shared and a
# router of 60: 7 · 210 + 60 = 1,530. A token that takes 2 uses (2 + 1) · 210 + 60 = 690.

# %% exercise="moe_layer_params"
from inferlab.moe_sizes import moe_layer_params

# %% check="moe_layer_params"
check("moe_layer_params")

# %% [markdown]
# Not every layer has a mixture. In DeepSeek's models the first ones are plain (`first_k_dense_replace`).
# `other_params(config)`, given, counts all that stands beside the mixtures: tables, attention, norms, and
# those plain MLPs.
#
# *Worked example.* 5 layers, the first 2 plain, 4,000 weights beside: 4,000 + 3 · 1,530 = 8,590 in all,
# 4,000 + 3 · 690 = 6,070 a token.

# %% exercise="total_and_active_params"
from inferlab.moe_sizes import total_and_active_params

# %% check="total_and_active_params"
check("total_and_active_params")

# %% [markdown]
# Your counts, for every mixture in the course's data:

# %%
if ready("total_and_active_params"):
    right = 0
    for name in by_size:
        total, active = total_and_active_params(model_preset(name))
        recorded = (mixtures[name]["params_total"], mixtures[name]["params_active"])
        right += (total, active) == recorded
        print(f"{name:<17} {total:>17,d} in all {active:>15,d} a token, 1 in {total / active:.1f}")
    print(f"{right} of {len(by_size)} as recorded, to the last weight")

# %% [markdown]
# Names mislead. Mixtral 8x7B is not 8 · 7 = 56 billion: only the MLPs come eightfold, attention and tables
# do not, so it is 46.7. And "active" is counted in more than one way: gpt-oss-20b's card says 3.6 billion,
# without the embedding; your count has it.
#
# ### The second account: memory
#
# A token uses 8 of 36 billion weights. Can the other 28 stay away? Which experts the next token takes
# is known when it reaches the layer, and then it is too late to fetch them: from a disk or over a slow
# bus that takes far longer than the computing. **All experts are resident.** At 2 bytes a weight the
# example takes 72 GB, not 16.
#
# Since nearly all weights are experts, and each is used rarely, they are often stored in fewer bits than
# the rest. gpt-oss keeps the matrices of its experts in 4.25 bits (4-bit numbers, and 8 bits of scale for
# every 32 of them) and all else in bf16. Routers, norms and tables are *not* quantized: they are few, and
# an error of the router sends a token elsewhere.
#
# *Worked example.* 8,590 weights, 3,780 of them in the matrices of routed experts. At 2 bytes: 17,180. With
# half a byte for those: 2 · 4,810 + 1,890 = 11,510.

# %% exercise="resident_bytes"
from inferlab.moe_sizes import resident_bytes

# %% check="resident_bytes"
check("resident_bytes")

# %%
if ready("resident_bytes", "total_and_active_params"):
    for name, width in (("gpt-oss-20b", 4.25 / 8), ("gpt-oss-120b", 4.25 / 8), ("deepseek-v3", 1)):
        config = model_preset(name)
        _, active = total_and_active_params(config)
        held = resident_bytes(config, 1 if width == 1 else 2, width)
        print(
            f"{name}: {format_bytes(held)} resident; in bf16 {format_bytes(resident_bytes(config))}, "
            f"and the active weights alone {format_bytes(2 * active)}"
        )

# %% [markdown]
# For gpt-oss-20b that is 13,761,264,768 bytes: byte for byte the tensors of the published checkpoint.
#
# ### The third account: what a batch reads
#
# A decode step reads every weight that anybody in the batch needs, once. For one sequence that is the
# active weights. With more sequences the shared part stays, but other tokens take other experts. How many
# *different* ones?
#
# Look at one expert. A token misses it with probability $1 - k/E$. If tokens choose independently, $n$ of
# them miss it with $(1 - k/E)^n$. So
#
# $$ \text{experts taken} = E \left(1 - \left(1 - \frac{k}{E}\right)^n\right). $$
#
# The power is $n$, not $k n$: a token's $k$ experts are all different, and $k$ is in the bracket already.
#
# *Worked example.* 16 experts, 2 chosen. One token: 2. Two tokens: 16 · (1 − (7/8)²) = 3.75, a little less
# than 4, because now and then they agree.

# %% exercise="touched_experts"
from inferlab.moe_sizes import touched_experts

# %% check="touched_experts"
check("touched_experts")

# %% [markdown]
# A law that one can try out should be tried out. Here are all choices that 3 tokens can make among 4
# experts, 6³ = 216 of them, and a few more cases:

# %%
if ready("touched_experts"):
    for n_experts, n_chosen, n_tokens in ((4, 2, 3), (5, 2, 3), (6, 3, 3), (8, 2, 3)):
        tried = touched_by_enumeration(n_experts, n_chosen, n_tokens)
        law = touched_experts(n_experts, n_chosen, n_tokens)
        print(f"{n_tokens} tokens, {n_chosen} of {n_experts}: tried {tried:.6f}, formula {law:.6f}")
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    kinds = {"Mixtral 8x7B, 2 of 8": (8, 2), "the example, 2 of 16": (16, 2)}
    kinds |= {"Qwen3-30B-A3B, 8 of 128": (128, 8), "DeepSeek-V3, 8 of 256": (256, 8)}
    moe_figures.curves(
        "How much of a layer's experts does a batch take?",
        "experts taken (% of the layer's)",
        batches,
        {
            name: [100 * touched_experts(E, k, n) / E for n in batches]
            for name, (E, k) in kinds.items()
        },
    )
confront("me_touched")

# %% [markdown]
# You will read that "at large batch nearly every expert is read". How large? In the example 16 users take
# 14.11 of 16. In Qwen3-30B-A3B 16 users take 82.4 of 128; in DeepSeek-V3 32 users take 163.3 of 256, not
# quite two thirds. With a prompt of a thousand tokens it is all of them, in every layer.
#
# Bytes follow. The shared part is read once, the experts that are taken once each.
#
# *Worked example.* One user: 2 · (4 + 2 · 2) = 16 GB. Sixteen: 2 · (4 + 14.11 · 2) = 64.4 GB.

# %% exercise="moe_step_bytes"
from inferlab.moe_sizes import moe_step_bytes

# %% check="moe_step_bytes"
check("moe_step_bytes")

# %%
if ready("moe_step_bytes"):
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    read = [moe_step_bytes(4e9, 2e9, 16, 2, n) for n in batches]
    moe_figures.curves(
        "Weights that a decode step reads",
        "weights read (GB)",
        batches,
        {
            "mixture: 4B and 2 of 16 experts of 2B": [b / 1e9 for b in read],
            "dense, 8B": [16.0] * len(batches),
            "dense, 36B": [72.0] * len(batches),
        },
    )
    print("users   GB read   GB a user   FLOP/byte   (a dense 8B: FLOP/byte)")
    for n, b in zip(batches, read, strict=True):
        flops = n * 2 * 8e9  # 8 billion active weights
        print(f"{n:5d} {b / 1e9:9.1f} {b / n / 1e9:11.2f} {flops / b:11.2f} {flops / 16e9:15.0f}")
confront("me_step_ratio")
confront("me_batch")

# %% [markdown]
# Read the last two columns. They are arithmetic intensities (lesson 01): a device is compute-bound above
# its ridge, some 295 FLOP/byte on an H100 in bf16. A dense model gets there with 295 users. In a mixture
# $n$ users send $n k / E$ rows to each expert, so **it takes $E / k$ times the batch** until its experts
# are compute-bound: 8 times in the example, 4 times for Mixtral 8x7B (1,181 users), 32 times for
# DeepSeek-V3 (9,451). (The last rows of the table differ by 36 / 8 = 4.5, not by 8: they average the
# experts with the 4 billion shared weights, which get a row from every user.) That is why large mixtures
# are served by many devices and thousands of users together, and why one user at home reads 16 GB a token
# and is happy.
#
# What a mixture buys, in one line: memory of 36 billion, arithmetic of 8 billion, and reading that walks
# from the one to the other as the batch grows. (Keys and values come on top, as in any model: lesson 04.
# With them a step may stay memory-bound at any batch; the explorer counts them and says so.)
#
# Turn the batch of a mixture, and watch how many experts a step reads; then try a dense model beside it.

# %%
explore("09")

# %% [markdown]
# ### Who keeps the experts busy?
#
# A router that is left alone learns to send everything to a few experts: they get the training, get
# better, and are chosen more. So training adds a **load-balance loss**. Let $f_i$ be expert $i$'s share of
# all choices, and $P_i$ its probability, averaged over the tokens. Both sum to 1. Then
#
# $$ \text{loss} = \alpha \, E \sum_{i} f_i P_i . $$
#
# Why not $\sum f_i^2$? A choice jumps from one expert to the next: $f$ is a count and has no gradient. $P$
# moves smoothly with the scores, so the gradient goes through $P$, and $f$ says whose probability to push
# down. The factor $E$ makes even use cost $\alpha$, however many experts there are. (Conventions differ:
# transformers adds $f$ up over the $k$ choices and gets $k \alpha$ for even use. Here it is $\alpha$.)
#
# *Worked example.* Two experts, two tokens, probabilities (0.7, 0.3) and (0.6, 0.4), both choose expert 0:
# $f$ = (1, 0), $P$ = (0.65, 0.35), loss = 2 · 0.65 = 1.3 times $\alpha$.

# %% exercise="load_balance_loss"
from inferlab.moe import load_balance_loss

# %% check="load_balance_loss"
check("load_balance_loss")

# %% [markdown]
# Follow its gradient. 64 tokens like the later experts better; each step moves the scores against the
# gradient of the loss, with $f$ held fixed, as an optimiser would see it.

# %%
if ready("router_weights", "load_balance_loss"):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(64, 8)) + np.linspace(0, 2, 8)
    for step in range(401):
        probabilities, (experts, _) = softmax(scores), router_weights(scores, 2)
        f = np.bincount(experts.ravel(), minlength=8) / experts.size
        if step % 100 == 0:
            loss = load_balance_loss(probabilities, experts)
            print(f"step {step:3d}: loss {loss:.3f}, busiest expert {max(f):.1%} (even: 12.5%)")
        # d/ds of E * sum(f P): P is the mean of a softmax, so each token adds p * (f - p . f) / n
        scores -= 8 / 64 * probabilities * (f - probabilities @ f[:, None]) * 20

# %% [markdown]
# ### A bias in place of a loss
#
# The loss has a price: its gradient disturbs what the router is there for. DeepSeek-V3 balances in another
# way. Each expert has a **bias** that is added to its score *when experts are chosen*, and only then. After
# each training step the bias of a busy expert goes down a little, that of an idle one up. No gradient is
# involved. The weights are made of the scores without the bias, so how much an expert counts is not bent.
#
# Its scores differ too: not a softmax but a **sigmoid**, $1 / (1 + e^{-s})$, for each expert alone, called
# its *affinity*. The weights are divided by their sum and multiplied by `routed_scaling_factor` (2.5).
#
# *Worked example.* Affinities 0.5, 0.5, 0.75, bias 0.1, 0.5, 0: sums 0.6, 1.0, 0.75. Experts 1 and 2 are
# chosen; their weights are 0.5 / 1.25 = 0.4 and 0.75 / 1.25 = 0.6.

# %% exercise="biased_router_weights"
from inferlab.moe import biased_router_weights

# %% check="biased_router_weights"
check("biased_router_weights")

# %% [markdown]
# ### Experts that are full
#
# Hardware likes arrays of a fixed size. So training, and some servers, give every expert the same room, its
# **capacity**: a *capacity factor* times what even use would bring, rounded **up**.
#
# *Worked example.* 10 tokens, 1 choice each, 4 experts, factor 1.25: 1.25 · 10 / 4 = 3.125, so 4 rows.

# %% exercise="expert_capacity"
from inferlab.moe import expert_capacity

# %% check="expert_capacity"
check("expert_capacity")

# %% [markdown]
# What does not fit is **dropped**. Somebody must decide who: by the usual rule all first choices come
# before all second choices, and earlier tokens before later ones. (So what you get can depend on who is
# served beside you. Engines for inference avoid drops for that reason.)
#
# *Worked example.* Capacity 1; choices (0, 1), (0, 2), (2, 0). First choices: token 0 gets expert 0, token 1
# finds it full, token 2 gets expert 2. Second choices: token 0 gets expert 1, the others find theirs full.

# %% exercise="within_capacity"
from inferlab.moe import within_capacity

# %% check="within_capacity"
check("within_capacity")

# %% [markdown]
# And the token that was dropped? It is not lost and it does not become zero. A layer *adds* to the
# **residual stream**, the row that is handed from layer to layer: `stream + mixture(normed stream)`. An
# expert that is full adds nothing, and the stream goes on as it was.
#
# *Worked example.* Stream [3, 4]. Served with weight 1 and answer [10, 20]: [13, 24]. Dropped: [3, 4].

# %% exercise="add_served"
from inferlab.moe import add_served

# %% check="add_served"
check("add_served")

# %%
if ready("router_weights", "expert_capacity", "within_capacity"):
    rng = np.random.default_rng(1)
    even, skewed = rng.normal(size=(2, 512, 8))
    for what, scores in {"evenly liked": even, "skewed": skewed + np.linspace(0, 1.5, 8)}.items():
        experts, _ = router_weights(scores, 2)
        for factor in (1.0, 1.25, 2.0):
            served = within_capacity(experts, expert_capacity(512, 8, 2, factor))
            print(
                f"{what}, factor {factor}: {1 - served.mean():.1%} of the choices dropped, "
                f"{(~served.any(axis=1)).mean():.1%} of the tokens skip the layer"
            )

# %% [markdown]
# ## 4. Measure
#
# `tiny-moe` comes with the course: 3,743,424 weights, 4 layers, 8 experts in each, 2 a token, trained on
# Shakespeare without *Macbeth* and *Twelfth Night*, with a load-balance loss. First its words. For as long
# as the `with` block lasts the engine runs its experts through **your** `moe_forward`.

# %%
model = trained_model("tiny-moe")
if model and ready("moe_forward"):
    prompt = model.tokenizer.encode("KING HENRY:")
    with expert_use.experts_by(moe_forward):
        words = generate_cached(model, prompt, 48)
    print(model.tokenizer.decode(prompt + words))
    same = words == generate_cached(model, prompt, 48)
    print("\nthe same tokens as with the course's own experts" if same else "\nthey differ")

# %% [markdown]
# The engine also runs the mixture from the command line. This writes the same text, and how fast it came:
#
# ```
# inferlab generate --model tiny-moe "KING HENRY:" --raw --max-new-tokens 48
# ```
#
# ### Who is chosen?
#
# The first 4,096 tokens of *Macbeth*, which the model never saw. The scores of all its routers are
# recorded; **your** `router_weights` chooses. Even use would be 12.5 % for each expert. **Entropy** sums it
# up in one number: $-\sum_i f_i \log_2 f_i$ is 3 bits if 8 experts are used alike, 0 if one gets all.

# %%
if model and ready("router_weights"):
    text = (ROOT / "data" / "tiny" / "heldout.txt").read_text(encoding="utf-8")
    scores = expert_use.router_scores(model, expert_use.windows(model, text, 256, 16))
    scores = scores.reshape(4, -1, 8)  # (layers, tokens, experts)
    experts = np.stack([router_weights(layer, 2)[0] for layer in scores])
    use = expert_use.shares(experts, 8)
    moe_figures.use_map(use, expert_use.entropy_bits(use), "tiny-moe on Macbeth: who is chosen")
    confront("me_busiest", f"{8 * use[3].max():.2f}x")

# %% [markdown]
# **Reading it.** The first layer is nearly even. The later ones are not: an expert in the last layer gets
# about a third of all choices. The balancing loss was small beside the loss of the next token, and it
# was taken over other texts: on this one some experts are simply wanted more. What does that do to the
# number of different experts in a batch? Count it: tokens from random places of the play, as if so many
# users were served.

# %%
if model and ready("router_weights", "touched_experts"):
    batches = [1, 2, 4, 8, 16, 32]
    counted = expert_use.distinct(experts, batches, np.random.default_rng(0))
    skewed = expert_use.distinct_by_shares(use, 2, batches)
    formula = [touched_experts(8, 2, n) for n in batches]
    moe_figures.curves(
        "tiny-moe: different experts that a batch takes",
        "experts taken (count)",
        batches,
        {
            "your formula, even use": formula,
            "counted, layer 0": counted[0],
            "counted, layer 3": counted[3],
            "independent, with layer 3's shares": skewed[3],
        },
    )
    for n, law, real, by_shares in zip(batches, formula, counted[3], skewed[3], strict=True):
        print(f"{n:2d} users: formula {law:.2f}, counted in layer 3 {real:.2f}, "
              f"independent with its shares {by_shares:.2f}")  # fmt: skip

# %% [markdown]
# **Reading it.** The nearly even layer lies on your formula. The skewed one lies below it: when many
# tokens want the same expert, fewer different ones are taken. The third curve keeps independence and puts the
# counted shares in place of even ones, $\sum_i (1 - (1 - k f_i)^n)$, and that explains nearly all of the gap.
# Even use is the *worst* case for reading, and the best one for computing side by side. Tokens that stand next
# to each other in one text (a prompt, or the guesses of lesson 08) agree even more:

# %%
if model and ready("router_weights", "touched_experts"):
    for n in (4, 8):
        runs = [experts[:, i : i + n] for i in range(0, experts.shape[1] - n, 37)]
        row = np.mean([[len(np.unique(layer)) for layer in run] for run in runs], axis=0)
        apart = counted[:, batches.index(n)]
        print(f"{n} tokens in a row: {row.round(2)} experts by layer; {n} users: {apart.round(2)}")

# %% [markdown]
# ### The time of a step
#
# One decode step of tiny-moe in NumPy for 1, 2, 4 and 8 sequences, each with 63 tokens of *Macbeth* behind
# it, beside the bytes that your formula predicts (`float32`, 4 bytes). **Before you run it:** a dense model's
# step would hardly grow. What will this one do?

# %%
if model and ready("moe_step_bytes", "router_weights"):
    rows = expert_use.windows(model, text, 64, 8)
    steps = {}
    for n in (1, 2, 4, 8):
        cache = model.new_cache(capacity=64, n_sequences=n)
        model.forward(rows[:n, :-1], cache, last_only=True)

        def step(cache=cache, n=n):
            cache.truncate(63)
            model.forward(rows[:n, -1:], cache, last_only=True)

        steps[n] = step
    timed = timing.interleaved({str(n): step for n, step in steps.items()}, rounds=9)
    always, per_expert = count_params(model.config, 0), 4 * expert_params(model.config)
    predicted = [moe_step_bytes(always, per_expert, 8, 2, n, 4) for n in steps]
    milliseconds = [1e3 * timed[str(n)].low_s for n in steps]
    taken = expert_use.distinct(experts, list(steps), np.random.default_rng(1)).sum(axis=0)
    seen = [4 * (always + n_taken * expert_params(model.config)) for n_taken in taken]
    megabytes = ([b / 1e6 for b in read] for read in (predicted, seen))
    moe_figures.step(list(steps), milliseconds, *megabytes, describe())
    for n, ms, b, real in zip(steps, milliseconds, predicted, seen, strict=True):
        print(
            f"{n} sequences: {ms:.2f} ms, {ms / n:.2f} ms a token; {b / 1e6:.1f} MB predicted, "
            f"{real / 1e6:.1f} MB counted on Macbeth's choices"
        )

# %% [markdown]
# **Reading it.** The time grows with the batch, as the bytes do, where a dense model's hardly would. (The
# counted bytes stay a little below the formula: uneven use.) But memory is not the reason here: 15 MB fit in
# the caches of many processors. Each expert that is taken is a round of its own in Python, with three small
# products of one or two rows. In a large engine the same shows up as many small products that fill no GPU:
# hence *grouped* products, which run all experts of a layer in one launch. Per token the batch still pays. (Steps
# this short feel everything else that the machine does. If a point looks out of line, run the cell again.)
#
# ### Balance by the bias
#
# The last layer of tiny-moe is skewed. Let the bias of DeepSeek-V3 even it out: 200 times 512 tokens, and
# after each the bias of every expert goes up or down by 0.005, as its load was below or above even. **Your**
# function chooses.

# %%
if model and ready("biased_router_weights", "router_weights"):
    rng, bias, last = np.random.default_rng(0), np.zeros(8), scores[3]
    before = expert_use.shares(biased_router_weights(last, bias, 2)[0][None], 8)[0]
    for _ in range(200):
        chosen, _ = biased_router_weights(last[rng.integers(len(last), size=512)], bias, 2)
        bias += 0.005 * np.sign(1 / 8 - expert_use.shares(chosen[None], 8)[0])
    after = expert_use.shares(biased_router_weights(last, bias, 2)[0][None], 8)[0]
    moe_figures.shares(
        {"without the bias": before, "with it": after}, "Layer 3: a bias evens the choices out"
    )
    print("bias:", bias.round(3))

# %% [markdown]
# Nearly even, and no weight of the model was touched. But the model was not trained with this bias: tokens
# now go to experts that never saw their like, and its words would suffer. In DeepSeek-V3 the bias moves *during*
# training, and is fixed afterwards.
#
# ### The same on a GPU
#
# One layer of Mixtral's shape (8 experts of 4,096 × 14,336, 2.8 GB in bf16), random choices, against the bytes
# of your formula.

# %%
if not grading() and ready("moe_step_bytes"):
    if pick() != "cuda":
        not_measured("a layer of Mixtral's size needs a CUDA device with 4 GB free")
    else:
        import torch

        place = {"device": "cuda", "dtype": torch.bfloat16}
        bandwidth = timing.read_bandwidth(2**30, device="cuda")
        gate, up = (torch.randn(8, 4096, 14336, **place) for _ in range(2))
        down = torch.randn(8, 14336, 4096, **place)
        for n in (1, 2, 4, 8, 16, 64):
            choice = torch.rand(n, 8).argsort(dim=1)[:, :2]
            groups = [(e, (choice == e).any(dim=1).nonzero()[:, 0].cuda()) for e in choice.unique()]
            x = torch.randn(n, 4096, **place)

            def layer(groups=groups, x=x):
                for e, tokens in groups:
                    some = x[tokens]
                    torch.nn.functional.silu(some @ gate[e]) * (some @ up[e]) @ down[e]

            took = timing.measure(layer, repeat=20, warmup=3, device="cuda", torch=torch).median_s
            least = len(groups) * 3 * 4096 * 14336 * 2 / bandwidth
            mean = moe_step_bytes(0, 3 * 4096 * 14336, 8, 2, n) / 1e9
            print(f"{n:3d} tokens: {len(groups)} experts taken, {1e3 * took:.2f} ms, reading them "
                  f"{1e3 * least:.2f} ms; formula {mean:.2f} GB on average")  # fmt: skip

# %% [markdown]
# ## 5. Explain
#
# In five to eight sentences, for a colleague who plans a server: **"It has only 8 billion active
# parameters, so it needs the memory and the speed of an 8B model." What is right in this, and what is
# wrong?** Keep apart memory, arithmetic and the bytes of a decode step; give one number with its unit for a
# model of your choice; and say what changes between one user and many.

# %% [markdown] written="me_explain" points=3
# **Sample answer.** Right is the arithmetic: a token runs through the shared weights and its two experts, 8
# billion weights, so 16 GFLOP, as in a dense 8B. Wrong is the memory: which experts the next token takes is
# known only when it reaches the layer, so all 36 billion weights are resident, 72 GB in bf16 and not 16. The
# speed is right for one user: a decode step reads 16 GB. With 16 users other tokens take other experts, 14.11
# of 16 on average, and the step reads 64.4 GB, four times as much, where a dense 8B would read 16 GB still.
# That serves 16 tokens, so the batch pays, but less than in a dense model. Each expert sees only n · k / E rows,
# so it takes E / k times the batch until arithmetic is the limit. Real routing is uneven: that lowers the bytes a
# little, and makes the busiest expert, and the device it lies on, the slowest part.
#
# **Rubric** (1 point each): *mechanism*: memory by all experts, arithmetic by the chosen ones, and why;
# *number*: resident bytes, bytes of a step or FLOPs of a token that are right, with their unit; *limit*: what
# changes with the batch (different experts taken, rows for each expert, or uneven use).

# %% [markdown]
# ## 6. In the wild
#
# **What to read in a `config.json`.** The same things have many names.

# %%
fields = {
    "routed experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "of them a token": ("num_experts_per_tok",),
    "width of an expert": ("moe_intermediate_size", "intermediate_size"),
    "shared": ("n_shared_experts",),
    "plain layers first": ("first_k_dense_replace",),
    "weights sum to 1": ("norm_topk_prob",),
    "scores": ("scoring_func",),
    "choice": ("topk_method",),
}
names = (
    "mixtral-8x7b",
    "olmoe-1b-7b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "deepseek-v2-lite",
    "deepseek-v3",
)
print(" " * 20 + "".join(f"{name:>18}" for name in names))
for what, keys in fields.items():
    found = (next((raw[k] for k in keys if k in raw), "–") for raw in map(load_config, names))
    print(f"{what:<20}" + "".join(f"{value!s:>18}" for value in found))

# %% [markdown]
# A dash means that the field is missing, and then the model's code decides: Mixtral and gpt-oss always divide by
# the sum. Traps:
#
# - `intermediate_size` *is* an expert's width in Mixtral, OLMoE and gpt-oss. In Qwen3-MoE it is not used at all,
#   in DeepSeek's models it belongs to the plain layers; there `moe_intermediate_size` counts.
# - `n_shared_experts` come on top of `n_routed_experts`.
# - `scoring_func` "sigmoid" with `topk_method` "noaux_tc" is the router with the bias that you wrote. It has one
#   more twist: the experts lie in `n_group` 8 groups, and only the best `topk_group` 4 groups take part, so that a
#   token travels to few devices.
# - An engine that does not know `norm_topk_prob` runs, and writes slightly worse text. Nothing crashes.
#
# Your counts, straight from the files:

# %%
if ready("total_and_active_params"):
    for name in ("mixtral-8x7b", "olmoe-1b-7b", "deepseek-v2-lite"):
        config = read_config(load_config(name))
        total, active = total_and_active_params(config)
        divides = "sum to 1" if config.norm_topk else "stay as they are"
        print(f"{name}: {total:,} weights, {active:,} a token; the router's weights {divides}")

# %% [markdown]
# **What engines do with it.**
#
# - *transformers*: `output_router_logits=True` returns the scores; `router_aux_loss_coef` is $\alpha$.
# - *vLLM*: with `--tensor-parallel-size` alone every device holds a slice of every expert; with
#   `--enable-expert-parallel` it holds whole experts, and tokens travel to them and back (*all-to-all*).
#   Products stay large, where a slice of a small expert is tiny, for two exchanges a layer.
# - *llama.cpp*: `--cpu-moe` keeps all experts in the computer's own memory and the rest on the GPU,
#   `--n-cpu-moe 20` those of the first 20 layers. It works because a token reads so few of them.
#
# **What breaks.** *Imbalance*: the step waits for the device with the busiest expert; serving engines keep copies
# of busy experts. *Small batches for each expert*: n · k / E rows fill no arithmetic units. *Batch-dependent
# results*: with capacities, who is dropped depends on the others in the batch. *Fine-tuning* without the
# balancing term: experts die. *Quantizing the router*: a score that moves a little sends tokens elsewhere.
# *Speculation* (lesson 08): several tokens are verified in one pass and take more experts, so it is less free.
#
# Does `transformers` route as you do? Its Mixtral layer on random weights, beside your `moe_forward`:

# %%
if not grading() and ready("moe_forward"):
    try:
        import torch
        from transformers import MixtralConfig, MixtralForCausalLM
    except ImportError:
        not_measured("transformers' Mixtral needs that package: pip install transformers")
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64}
        theirs = MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=8)).eval()
        named = {n.split("layers.0.")[-1]: p.detach() for n, p in theirs.named_parameters()}
        router = next(p for n, p in named.items() if n.endswith("gate.weight"))
        stacked = {n.rsplit(".", 1)[-1]: p.numpy() for n, p in named.items() if p.ndim == 3}
        if set(stacked) == {"gate_up_proj", "down_proj"}:  # as transformers 5 keeps them
            gate_up = stacked["gate_up_proj"].swapaxes(1, 2)  # (experts, 32, 2 * 48)
            x = torch.randn(2, 5, 32)
            with torch.no_grad():
                answer = theirs.model.layers[0].mlp(x)
            answer = (answer[0] if isinstance(answer, tuple) else answer).numpy()
            yours = moe_forward(
                x.numpy(), router.numpy().T, gate_up[..., :48], gate_up[..., 48:],
                stacked["down_proj"].swapaxes(1, 2), 2,
            )  # fmt: skip
            apart = np.abs(yours - answer).max() / np.abs(answer).max()
            print(f"largest difference to transformers' layer: {apart:.1e} of its largest number")
        else:
            not_measured("this version of transformers keeps its experts in another form")

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 GB"`, `"3 GFLOP"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("me_q_flops")

# %% answer="me_q_flops"
answers["me_q_flops"] = "10.0000 GFLOP"

# %% answer_check="me_q_flops"
answers.check("me_q_flops")

# %%
answers.ask("me_q_resident")

# %% answer="me_q_resident"
answers["me_q_resident"] = "16.0000 GB"

# %% answer_check="me_q_resident"
answers.check("me_q_resident")

# %%
answers.ask("me_q_touched")

# %% answer="me_q_touched"
answers["me_q_touched"] = "17.6385"

# %% answer_check="me_q_touched"
answers.check("me_q_touched")

# %%
answers.ask("me_q_bytes")

# %% answer="me_q_bytes"
answers["me_q_bytes"] = "68.1952 GB"

# %% answer_check="me_q_bytes"
answers.check("me_q_bytes")

# %%
answers.ask("me_q_batch")

# %% answer="me_q_batch"
answers["me_q_batch"] = "6,400"

# %% answer_check="me_q_batch"
answers.check("me_q_batch")

# %%
answers.ask("me_q_capacity")

# %% answer="me_q_capacity"
answers["me_q_capacity"] = "62"

# %% answer_check="me_q_capacity"
answers.check("me_q_capacity")

# %%
answers.ask("me_q_config")

# %% answer="me_q_config"
answers["me_q_config"] = "471,859,200"

# %% answer_check="me_q_config"
answers.check("me_q_config")

# %%
answers.ask("me_q_softmax")

# %% answer="me_q_softmax"
answers["me_q_softmax"] = "b"

# %% answer_check="me_q_softmax"
answers.check("me_q_softmax")

# %%
answers.ask("me_q_drop")

# %% answer="me_q_drop"
answers["me_q_drop"] = "b"

# %% answer_check="me_q_drop"
answers.check("me_q_drop")

# %%
answers.ask("me_q_bias")

# %% answer="me_q_bias"
answers["me_q_bias"] = "a"

# %% answer_check="me_q_bias"
answers.check("me_q_bias")

# %%
answers.ask("me_q_gradient")

# %% answer="me_q_gradient"
answers["me_q_gradient"] = "b"

# %% answer_check="me_q_gradient"
answers.check("me_q_gradient")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>4B shared weights and 16 experts of 2B, 2 a token: total, active, memory,
# FLOPs?</b></summary>
#
# 36B, 8B, 72 GB in bf16, 16 GFLOP a token. *Follow-up: does decoding for one user need all 72 GB resident?* It
# reads 16 GB a token, but which 16 changes from token to token and from layer to layer: yes, or the rest lies
# in a slower memory and is waited for.
# </details>
#
# <details><summary><b>How many of 16 experts do 16 users take, 2 each?</b></summary>
#
# 16 · (1 − (14/16)¹⁶) = 14.11, if all choices are equally likely and independent. *Follow-up: how many bytes is a
# step?* 2 · (4 + 14.11 · 2) = 64.4 GB, against 16 GB for one user. *And on real text?* A little less: uneven use
# and tokens that agree.
# </details>
#
# <details><summary><b>Why does a mixture need E/k times the batch to be compute-bound?</b></summary>
#
# Each expert sees n · k / E rows, and it is the rows for each weight that decide. *Follow-up: what does expert
# parallelism trade?* Each device holds a part of the experts and gets the tokens of everybody: less memory and
# reading a device, more rows an expert. In return tokens are sent to the experts and back, two all-to-all
# exchanges a layer, and the busiest device decides.
# </details>
#
# <details><summary><b>Softmax before or after the top k: is it the same?</b></summary>
#
# If and only if the first is divided by the sum over the chosen k. *Follow-up: name a model that does not divide.*
# OLMoE (`norm_topk_prob` false); DeepSeek-V2-Lite as well.
# </details>
#
# <details><summary><b>What is wrong with "8x7B means 56 billion"?</b></summary>
#
# Only the MLPs come eightfold: 46.7 billion in all, 12.9 billion a token. *Follow-up: what did you assume about
# the width of an expert?* In Mixtral it is `intermediate_size`; in Qwen3-MoE it is `moe_intermediate_size`.
# </details>
#
# <details><summary><b>Why is the balancing loss f · P, and not f²?</b></summary>
#
# f is a count without gradient; P has one. *Follow-up: how does DeepSeek-V3 do without it?* With a bias in the
# choice alone, moved up or down by the load.
# </details>
#
# <details><summary><b>A token's experts are full. What happens to it?</b></summary>
#
# The mixture adds nothing; the residual stream carries the token on. *Follow-up: why do inference engines avoid
# capacities?* An answer would depend on who else is in the batch.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("09_moe", minutes=5)

# %% [markdown]
# ## 9. Summary
#
# - A router scores experts, the best k are chosen, their answers are added with weights that sum to 1 or do not:
#   `norm_topk_prob` says which.
# - Gather rows, run each expert once, scatter the answers: the same as running everything, for k / E of the work.
# - Three accounts: memory by **all** experts, arithmetic by those a token takes, reading by those the batch takes:
#   E(1 − (1 − k/E)ⁿ) of each layer.
# - n users give an expert n · k / E rows: E / k times the batch until it is compute-bound.
# - Balance comes from a loss whose gradient flows through P, or from a bias that only chooses. What finds no room
#   adds nothing, and the stream goes on.
#
# **Common mistakes.** Active weights taken for memory. `intermediate_size` taken for an expert's width. Shared
# experts forgotten, or counted among the routed ones. min(E, k · n) different experts. The active bytes at every
# batch. Weights divided by their sum where the model does not, or the reverse. Answers added to the wrong rows.
# The factor E left out of the loss. Capacity rounded down. Dropped tokens set to zero.
#
# **References**
#
# - Shazeer et al., *Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer*, 2017, arXiv
#   1701.06538
# - Lepikhin et al., *GShard*, 2020, arXiv 2006.16668 (capacity)
# - Fedus et al., *Switch Transformers*, 2021, arXiv 2101.03961 (the balancing loss)
# - Gale et al., *MegaBlocks*, 2022, arXiv 2211.15841 (no drops, grouped products)
# - Jiang et al., *Mixtral of Experts*, 2024, arXiv 2401.04088
# - Dai et al., *DeepSeekMoE*, 2024, arXiv 2401.06066 (shared experts)
# - Wang et al., *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, 2024, arXiv 2408.15664
# - Muennighoff et al., *OLMoE*, 2024, arXiv 2409.02060
# - DeepSeek-AI, *DeepSeek-V3 Technical Report*, 2024, arXiv 2412.19437

# %%
progress("09_moe")
