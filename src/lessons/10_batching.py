# %% [markdown]
# # 10 · Batching: the serving engine
#
# One user leaves a GPU idle. Sixteen users share the reading of the weights, and each of them hardly
# notices the others. That is the whole economy of serving, and it takes an engine to get it: users come
# when they like, their answers end when they end, and their caches do not fit. In this lesson you
# write the parts of that engine: who runs in the next step, in which memory, and what happens when
# there is none left. At the end your scheduler serves a trained model.
#
# **You will be able to**
#
# - compute what a batch gains, for all users and for one, and where the gain ends;
# - say what continuous batching is worth on a given trace, and why "5 to 20 times" is no answer;
# - write an allocator of pages that neither leaks nor frees twice, and attention over pages;
# - share pages between requests: copies on write, a prefix cache by chained hashes, eviction;
# - write a scheduler with a token budget, chunked prefill, preemption and resumption.
#
# **Time** about 4½ hours: 2 h 39 min for the exercises, the rest for reading, measuring, the
# written answer and the knowledge check.
#
# **You need** the decode bound of lesson 01, attention from lesson 02, the KV cache from lesson 04.
# What is used is said again where it is needed.
#
# | symbol | meaning | symbol | meaning |
# |---|---|---|---|
# | `B` | sequences in the batch | `n_heads`, `n_kv_heads` | query heads, key/value heads |
# | `T` | tokens computed now (queries) | `d_head` | numbers in one query, key or value |
# | `S` | tokens that may be seen (keys) | `P` | physical pages |
# | `page_size` | tokens a page holds | `page_table` | numbers of a sequence's pages, in order |
#
# GB is 10⁹ bytes, MiB is 2²⁰ bytes. A *page* is what some engines call a block.

# %%
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from grader import Answers, check, confront, drill, hint, predict, progress, ready, solution
from inferlab.batching import Job, exponential_gain, seat_use
from inferlab.config import ModelConfig
from inferlab.data import load_devices, model_preset
from inferlab.generate import generate_cached
from inferlab.kv_cache import largest_batch
from inferlab.operators import attention, causal_mask
from inferlab.paging import OutOfPages, PagePool
from inferlab.prefix_cache import digest
from inferlab.roofline import compute_bound_batch, step_bound_s
from inferlab.scheduler import Request, Work
from labkit.figures import batching as batching_figures
from labkit.figures import batching_pictures
from labkit.measure import batching as batching_measure
from labkit.measure import timing
from labkit.measure.device import describe, grading, not_measured, pick
from labkit.measure.models import trained_model
from labkit.units import format_bytes, format_seconds

# %% [markdown]
# ## 1. Why it matters
#
# A server has seats: so many sequences can decode in one pass. Seven requests come, and three
# seats are there. **Static batching** takes three requests, decodes until the *longest* of them is
# done, and takes the next three. **Continuous batching** asks anew before every step: whoever is
# done leaves, and whoever waits takes the seat.

# %%
jobs = [Job(0, 10), Job(0, 2), Job(0, 3), Job(1, 4), Job(2, 2), Job(3, 8), Job(5, 1)]
batching_pictures.seat_timeline(
    jobs, 3, static=[0, 0, 0, 10, 10, 10, 18], continuous=[0, 0, 0, 2, 3, 5, 6]
)

# %% [markdown]
# The same work in 13 steps and not in 19. Nothing was computed faster: seats were not left empty. Look
# at job G, which wants a single token. It came before step 5 and gets it in step 6; in the upper
# picture it waits until step 18.
#
# The lower picture asks a lot of the engine. Sequences of any length must share a pass; a newcomer's
# prompt must be computed while the others decode; and memory must be found for it at any moment, in
# whatever holes the others left. Three ideas make that possible: **scheduling by step** (Orca, 2022),
# **pages** (vLLM, 2023) and **chunks** of a prompt (Sarathi, 2023). You will write all three.

# %% [markdown]
# ## 2. Predict
#
# Lodge your guesses first. The first one counts.

# %%
predict("ba_gain")

# %%
predict("ba_batch")

# %%
predict("ba_hit")

# %%
predict("ba_latency")

# %% [markdown]
# ## 3. Build
#
# ### What a batch gains
#
# In lesson 01 you bounded the time of one step: it cannot take less than reading the weights and
# the caches, nor less than its arithmetic. With `B` users the weights are read **once**; caches and
# arithmetic are needed for each user:
#
# $$ t_\text{step} = \max\!\left(\frac{\text{weights} + B \cdot \text{cache of one}}{\text{bandwidth}},\;
#    \frac{B \cdot \text{FLOPs of one}}{\text{peak}}\right). $$
#
# A step gives every user one token. So one user gets $1 / t_\text{step}$ tokens a second and all
# together $B / t_\text{step}$. **They move in opposite directions**, and "tokens per second" without
# saying whose is half an answer.
#
# *Worked example.* Weights of 15 GB, 1 GB of cache for each of 10 users, 2,500 GB/s: 25 GB take
# 10 ms. One user gets 100 tokens/s, all of them 1,000.

# %% exercise="decode_speeds"
from inferlab.batching import decode_speeds

# %% check="decode_speeds"
check("decode_speeds")

# %% [markdown]
# Your function, for Llama-3-8B in bf16 on an H100 with 80 GB:

# %%
if ready("decode_speeds"):
    llama, h100 = model_preset("llama-3-8b"), load_devices()["h100-sxm"]
    rates = (h100["bandwidth_gb_s"] * 1e9, h100["peak_dense_tflops"]["bf16"] * 1e12)
    batches, contexts = [2**i for i in range(12)], (200, 1000, 8192)
    speeds = {S: [decode_speeds(llama, S, B, *rates) for B in batches] for S in contexts}
    ends = {S: largest_batch(llama, S, 80e9, 2 * llama.n_params) for S in contexts}
    begins = {S: compute_bound_batch(llama, S, *rates, 2) for S in contexts}
    batching_figures.batch_curve(batches, speeds, ends, begins)
    for S in (0, 681, 1000, 8192):
        one, total = decode_speeds(llama, S, 32, *rates)
        print(f"32 users of {S:5,d} tokens: {one:5.0f} tokens/s for one, {total:6,.0f} for all")

# %% [markdown]
# Read three things from it.
#
# - **Context eats the gain.** One user of 1,000 tokens gets 221 tokens/s. 32 of them get 174 each
#   and 5,582 together. It is often said that a batch of 32 gives "more than 6,000 tokens/s and hardly
#   changes anybody's latency". That holds up to 681 tokens of context. (If you round the weights to
#   16 GB, up to 445.) At 8,192 tokens it is 2,171 together, and 68 for each.
# - **Memory ends first.** At 8,192 tokens the caches of 59 users fill the device, long before
#   arithmetic is the limit. In fact it never is: lesson 01 showed that with this model and more than 393
#   tokens of context, every user adds more reading than arithmetic. Throughput flattens all the
#   same, since caches grow with the batch as tokens do.
# - **A batch never helps latency.** Below the roof one user loses what the others' caches add to the
#   reading: little with short contexts, two thirds with 32 users of 8,192 tokens. At the roof, where
#   arithmetic is the limit, throughput stops growing and one user's speed falls as 1/B.

# %%
confront("ba_latency")

# %% [markdown]
# So an operator chooses a point on these curves: the largest batch at which one user is still fast
# enough. That number goes into the engine's settings as the most sequences that may run at once.
#
# ### Seats on a trace
#
# How many seats are really taken? Forget the model for a moment. A *job* comes before step
# `arrival` and needs a seat for `n_steps`. The rest is bookkeeping.
#
# *Worked example*, static, 2 seats: jobs of 3 and 1 steps are there at step 0, one of 2 steps comes
# before step 1. The first two begin in step 0; the batch is done after 3 steps, so the third begins
# in step 3.

# %% exercise="static_starts"
from inferlab.batching import static_starts

# %% check="static_starts"
check("static_starts")

# %% [markdown]
# Now continuous batching, and with it the second thing that a job needs: memory. A job holds
# `n_pages` from its first step to its last, and whoever does not fit must wait, however many seats
# are free. The queue is fair: if the first one waiting does not fit, nobody behind it is let in. (A
# small job could always slip past a large one, which might then wait for ever.)
#
# *Worked example*, 2 seats. The same jobs, which hold 5, 4 and 4 pages. With 9 pages the third begins
# in step 1, where the second has left. With 8 pages the second does not fit beside the first: it
# begins in step 3, and the third with it, as 4 + 4 = 8.

# %% exercise="continuous_starts"
from inferlab.batching import continuous_starts

# %% check="continuous_starts"
check("continuous_starts")

# %% [markdown]
# ### What continuous batching is worth
#
# In a static batch every seat is held for as long as the longest job, so with enough work waiting the
# gain is $E[\max] / E[\text{mean}]$: the longest of `B` lengths over the mean. It depends on how the
# lengths spread and on the number of seats, and on nothing else:
#
# | lengths | gain | B = 8 | B = 32 |
# |---|---|---|---|
# | all equal | 1 | 1 | 1 |
# | uniform between 0 and a maximum | 2B / (B + 1) | 1.78 | 1.94 |
# | exponential | 1 + 1/2 + … + 1/B | 2.72 | 4.06 |
#
# The last line is the harmonic number $H_B$. When `B` exponential jobs run, the first of them ends
# after 1/B of the mean; then `B - 1` run, and so on: the sum of these waits is the longest. Your two
# functions, on 2,048 exponential jobs:

# %%
if ready("static_starts", "continuous_starts"):
    for n_seats in (8, 32):
        simulated = batching_measure.simulated_gain(
            n_seats, 2048, static=static_starts, continuous=continuous_starts
        )
        print(f"{n_seats:2d} seats: {simulated:.2f}x, expected {exponential_gain(n_seats):.2f}x")
confront("ba_gain")

# %% [markdown]
# (The simulation stays a little below: at the end of the trace seats run empty, whoever schedules.)
# You will read that continuous batching gives "5 to 20 times" the throughput. Orca reports 36.9
# times, vLLM 2 to 4. Such numbers hold other effects too: better kernels, a larger batch that fits
# because memory is used better, another baseline. Ask for the distribution of lengths first.
#
# ### Memory without holes
#
# How much memory does a newcomer need? Nobody knows how long its answer will be. The old way was to
# reserve the longest that is allowed, in one piece. Kwon et al. (2023) measured what became of it:
# between 20.4 % and 38.2 % of the memory for keys and values held tokens. The rest was reserved for
# tokens that never came (*internal* waste), or lay in gaps too small for the next reservation
# (*external* waste).
#
# Operating systems solved this long ago. Cut the memory into **pages** of a few tokens, and give a
# sequence a page when it needs one. Any free page will do, so there are no gaps; and only the last page
# of a sequence is partly empty.
#
# *Worked example.* 17 tokens in pages of 16: two pages, of which the second holds one token. 15
# slots are empty.

# %% exercise="pages_needed"
from inferlab.paging import pages_needed

# %% check="pages_needed"
check("pages_needed")

# %% exercise="wasted_share"
from inferlab.paging import wasted_share

# %% check="wasted_share"
check("wasted_share")

# %%
if ready("pages_needed", "wasted_share"):
    lengths = np.random.default_rng(0).integers(1, 2048, 1000).tolist()
    for page_size in (1, 16, 64, 256, 2048, 8192):
        n_slots = page_size * sum(pages_needed(n, page_size) for n in lengths)
        each = (n_slots - sum(lengths)) / len(lengths)
        print(
            f"pages of {page_size:4d}: {wasted_share(lengths, page_size):5.1%} wasted, "
            f"{each:6.1f} slots a sequence, (page_size - 1) / 2 = {(page_size - 1) / 2:6.1f}"
        )

# %% [markdown]
# As long as pages are small beside the sequences, the last page has anything from 1 to `page_size`
# tokens in it, and on average (`page_size` - 1) / 2 slots are empty. The last two lines are the old way:
# one huge page for everyone.
#
# Why not pages of one token, then? Every page costs an entry in a table, a lookup in the kernel, a
# name in the prefix cache (below), and memory is read in runs: 16 tokens of an 8B-style model are
# 2 MiB over all layers, but only 32 KiB for the keys of one layer. Most engines take 16 to 64.
#
# ### The allocator
#
# Somebody must know which pages are free. It is a list, and a second list for something that pays off
# soon: how many *holders* each page has. A page may belong to several sequences at once, and it is
# free only when the last of them lets go. Three rules must hold after every call:
#
# 1. a page is in `free` exactly when its count is 0;
# 2. no page is in `free` twice (else it is handed out twice, and two users read each other's text);
# 3. the counts are the holders that there are (else memory leaks away until the server stops).
#
# *Worked example.* 3 pages: `free` is `[2, 1, 0]`. `allocate()` gives 0, `share(0)` counts 2 holders,
# `release(0)` counts 1, `release(0)` counts 0 and puts it back: `[2, 1, 0]`. Another `release(0)` is
# somebody's mistake, and raises.

# %% exercise="PageAllocator" write="allocate share release"
from inferlab.paging import PageAllocator

# %% check="PageAllocator"
check("PageAllocator")

# %% [markdown]
# ### Page tables
#
# A sequence no longer has one stretch of memory. It has a **page table**: the numbers of its pages in
# the order of its text. Three sequences that begin alike may look like this. Their first 32 tokens are
# the same, so they hold the same two pages.

# %%
batching_pictures.page_tables(
    [[7, 2, 5], [7, 2, 0, 9], [7, 2, 4]], [1, 0, 3, 0, 1, 1, 0, 3, 0, 1, 0, 0], page_size=16
)

# %% [markdown]
# Where is a token? The one at position `p` stands in entry `p // page_size` of the table, at place
# `p % page_size` in that page. Lay all pages one behind the other, and it has a row number of its own,
# its *slot*.
#
# *Worked example.* Page table `[7, 2]`, pages of 4. Position 3 is the last place of page 7: slot
# 7 · 4 + 3 = 31. Position 4 is the first place of page 2: slot 8.

# %% exercise="token_slots"
from inferlab.paging import token_slots

# %% check="token_slots"
check("token_slots")

# %% [markdown]
# ### Attention over pages
#
# Attention does not care where keys lie, as long as each query meets its own sequence's keys and no
# others. So: collect them through the page table, and attend as ever. Real kernels do not collect
# first; they go through the page table page by page, as your tiles in lesson 06 went through the
# keys. The result is the same.
#
# Here `q` has the `T` new queries of one sequence, and `visible` says which of its `S` tokens each of them
# may see.

# %% exercise="paged_attention"
from inferlab.paging import paged_attention

# %% check="paged_attention"
check("paged_attention")

# %% [markdown]
# Is it the same? 50 tokens, scattered over pages, beside the same 50 in one stretch:

# %%
if ready("token_slots", "paged_attention"):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(9, 1, 64)), *rng.normal(size=(2, 3, 50, 64))
    key_pages, value_pages = np.full((2, 40, 16, 3, 64), np.nan)  # nobody has written here
    table = [31, 4, 17, 8]
    slots = token_slots(table, 0, 50, 16)
    key_pages.reshape(-1, 3, 64)[slots] = k.swapaxes(0, 1)
    value_pages.reshape(-1, 3, 64)[slots] = v.swapaxes(0, 1)
    visible = causal_mask(1, 50)
    paged = paged_attention(q, key_pages, value_pages, table, visible)
    contiguous = attention(q[None], k[None], v[None], visible)[0]
    print(f"largest difference to one stretch: {np.abs(paged - contiguous).max():.1e}")

# %% [markdown]
# ### One past, two futures
#
# Ask for three answers to one prompt, and three sequences have the same past. With pages that costs
# nothing: a **fork** is a second page table with the same numbers, and one holder more for each page.

# %% exercise="fork"
from inferlab.paging import fork

# %% check="fork"
check("fork")

# %% [markdown]
# Then they go on, and each writes its own next token, into the same half-filled page. The first one to
# write must not touch what the other reads. It copies that page, and that page only: **copy on
# write**, as when a process forks. The last of the holders finds a count of 1 and writes without
# copying.
#
# *Worked example.* Tables `[7, 2]` and `[7, 2]`; pages 7 and 2 have 2 holders. The first one wants to
# write into its entry 1: it takes page 5, copies page 2 into it, and lets go of 2. Now `[7, 5]` and
# `[7, 2]`; page 7 has 2 holders still. If no page is free, `allocate` raises, and then nothing may have
# changed.

# %% exercise="own_page"
from inferlab.paging import own_page

# %% check="own_page"
check("own_page")

# %% [markdown]
# ### Pages that are found again
#
# A thousand users send the same system prompt. Its keys and values are the same for all of them, and
# in pages they can be shared, if somebody notices. So give every full page a **name**, made from what
# is in it, and look names up.
#
# What is in a page? Not only its own tokens. A key in the second layer is made from a row that has
# attended to *everything before it* (lesson 04). The same sixteen tokens behind another beginning have
# other keys. So a page's name is a hash over its tokens **and the name of the page before it**
# (`digest`, which is given). Then two equal names mean that all tokens up to there are equal.
#
# The first page has the **salt** before it: a word that keeps apart what must never be shared, such as
# two models, two adapters (small sets of extra weights for one customer), or two customers who should not
# find out, by the time an answer takes, what the other has asked.

# %% exercise="page_hashes"
from inferlab.prefix_cache import page_hashes

# %% check="page_hashes"
check("page_hashes")

# %% [markdown]
# Three prompts of three pages, named by your function. Prompt B differs from A in the second page, and C
# in its very first token. Look at the last column: the tokens are equal, the names are not.

# %%
if ready("page_hashes"):
    a = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    b, c = [*a[:4], 7, 9, 2, 6, *a[8:]], [1, *a[1:]]
    batching_pictures.hash_chain([a, b, c], [page_hashes(x, 4) for x in (a, b, c)], page_size=4)

# %% [markdown]
# ### The prefix cache
#
# A dictionary from names to pages. It counts as a holder of every page in it, so a page outlives the
# request that filled it. `store` is given; you write how pages are found and how they go.
#
# **lookup.** Take the pages of the first names that are known, up to the first that is not. One thing
# is easily overlooked: a prompt that is known from end to end. If all of its tokens came from the
# cache, nothing would be computed, and there would be no logits to choose the first new token from. So
# at least one token is left over, and as pages are shared whole, that is one page less.
#
# *Worked example.* Pages of 16. 1,000 of a prompt's 1,200 tokens are known: 62 full pages, 992 tokens.
# All 1,008 of a prompt of 1,008 are known, 63 pages: at most 1,007 tokens may be taken, so again 62.
#
# **evict.** When no page is free, the cache lets one go: the least recently used of those that nobody
# else holds. A page that a running request holds may not go: that would free no memory. And the *end* of
# a chain must go before its beginning, since what lies behind a gap is never found. That is what `touch`
# is for: it marks a chain from its last page to its first, so that a page is always older than the one
# before it.

# %% exercise="PrefixCache" write="lookup evict"
from inferlab.prefix_cache import PrefixCache

# %% check="PrefixCache.lookup"
check("PrefixCache.lookup")

# %% check="PrefixCache.evict"
check("PrefixCache.evict")

# %%
if ready("PageAllocator", "page_hashes", "PrefixCache.lookup"):
    allocator = PageAllocator(100)
    cache, prompt = PrefixCache(allocator, 16), list(range(1008))
    cache.store(prompt, [allocator.allocate() for _ in range(63)])
    for name, tokens in {
        "the same prompt": prompt,
        "one token more": [*prompt, 7],
        "1,000 of 1,200": prompt[:1000] + [7] * 200,
        "its second half": prompt[504:],
    }.items():
        print(f"{name}: {16 * len(cache.lookup(tokens))} of {len(tokens)} tokens are cached")
confront("ba_hit")

# %% [markdown]
# ### The scheduler
#
# Everything comes together. Before each pass the scheduler decides who computes how many tokens in it. It
# keeps a queue of **waiting** requests and a list of **running** ones. A `Request` knows its `prompt`,
# what it has `generated`, its `page_table`, and `n_computed`: how many of its tokens have their keys
# and values in the pages. What is missing, `n_to_compute`, is the same question for everybody. It is 1
# for a request that decodes (its newest token), and many for one whose prompt is still to be read.
# There are no two kinds of steps: a pass is some tokens of some requests.
#
# **The token budget** bounds a pass. Those who decode take one token each, and what is left goes to
# prompts. A prompt of 20 tokens that finds room for 6 computes 6, and goes on in the next step: it is
# computed in **chunks**. Nobody who is in the middle of an answer is kept waiting by somebody else's
# long prompt.
#
# Chunks are not free, and they save nothing. The arithmetic is the same; every chunk reads the keys
# and values of all chunks before it, and the weights, once more. 8,192 tokens in chunks of 512 read
# 61,440 tokens' keys and values on top. The prompt's own first token comes *later*. What is gained is
# that others wait less. An 8B-style model beside 32 users of 1,024 tokens on an H100: a step takes
# 6.06 ms, bound by reading; with 256 tokens of a prompt in it still 6.06 ms, since the arithmetic
# units were idle; with 512 it takes 8.80 ms, and with 2,048 it takes 33.64 ms.
#
# You write four methods. `add`, `finish`, `commit` (the pass was computed) and the helpers
# `make_room`, `find_prefix`, `give_back` are given.
#
# - **reserve** finds pages for the next tokens of one request: new ones, or its own copy of a shared
#   one; where none is free, the prefix cache is asked to give one up.
# - **preempt** takes a running request's pages away. Its tokens are kept, so nothing that a user has
#   seen is lost; only keys and values go, and they are computed again, prompt and answer in one go, as if
#   it were one long prompt. With luck the prefix cache still knows most of its pages.
# - **admit** lets waiting requests in.
# - **plan** is the step: running requests in order, then newcomers. These come in only when tokens are
#   left, so nobody but the last of `running` can be in the middle of a prompt. If pages run out, the
#   request that came **last** is preempted: it has the least to lose, and the oldest one always goes on,
#   so that everybody ends.
#
# *Worked example.* Budget 8; a and b decode, c waits with a prompt of 20 tokens. Planned: a 1, b 1, c 6.
# The next two steps are the same. Then c lacks 2 tokens: 1, 1, 2, and c has its first token.

# %% exercise="Scheduler" write="reserve preempt admit plan"
from inferlab.scheduler import Scheduler

# %% check="Scheduler.reserve"
check("Scheduler.reserve")

# %% check="Scheduler.preempt"
check("Scheduler.preempt")

# %% check="Scheduler.admit"
check("Scheduler.admit")

# %% check="Scheduler.plan"
check("Scheduler.plan")

# %% [markdown]
# Your scheduler at work, with no model behind it. Three requests: a and b come first, c with its 20
# tokens before step 2.

# %%
PARTS = ("pages_needed", "PageAllocator", "fork", "own_page", "page_hashes", "PrefixCache.lookup")
PARTS += ("PrefixCache.evict", "Scheduler.reserve", "Scheduler.preempt", "Scheduler.admit")
PARTS += ("Scheduler.plan",)
if ready(*PARTS):
    small = ModelConfig(1, 8, 2, 1, 4, 8, 100)
    arrivals = [
        (0, Request("a", [1] * 5, 8)), (0, Request("b", [2] * 6, 7)), (2, Request("c", [3] * 20, 3)),
    ]  # fmt: skip
    scheduler = Scheduler(PagePool(small, 24, page_size=4), token_budget=8, max_running=4)
    steps = batching_measure.play_steps(scheduler, arrivals)
    batching_pictures.budget_steps(steps, token_budget=8)

# %% [markdown]
# ### Three corners
#
# Where engines break: a prompt that is known whole; no page left; and a preempted request that comes
# back and finds its own pages in the prefix cache. Here your scheduler runs the model that ships with
# the course, on far too few pages. Each answer must be what the same prompt gives alone.

# %%
tiny = trained_model("tiny-target")
if tiny and ready(*PARTS):
    texts = ["To be, or not to be", "Shall I compare thee", "Now is the winter", "Once more unto"]
    prompts = [tiny.tokenizer.encode(text) for text in texts]
    engine = batching_measure.engine_with(tiny, Scheduler, n_pages=24, page_size=4, max_running=4)
    known = engine.add("the first prompt, before the others", prompts[0], 1)
    list(engine.run())
    served = [engine.add(text, p, 30) for text, p in zip(texts, prompts, strict=True)]
    list(engine.run())
    for request, prompt in zip(served, prompts, strict=True):
        same = request.generated == generate_cached(tiny, prompt, 30)
        print(
            f"{request.id!r:24} {len(prompt)} tokens, {request.n_cached} cached, "
            f"preempted {request.n_preemptions}x, {'as alone' if same else 'NOT AS ALONE'}"
        )
    asked = sum(len(p) + 29 for p in prompts) + len(prompts[0])
    computed = sum(r.n_prefill_tokens + r.n_decode_tokens for r in engine.records)
    found = known.n_cached + sum(r.n_cached for r in served)
    print(f"{asked} tokens asked for, {found} of them cached at first, {computed} computed: "
          f"preemption cost {computed + found - asked} tokens computed twice")  # fmt: skip
    scheduler = engine.scheduler
    scheduler.allocator.require_sound(scheduler.holders())
    print("every page is free or held by the prefix cache: nothing leaked")

# %% [markdown]
# ## 4. Measure
#
# ### What a batch gains, on your machine
#
# SmolLM2-135M, in the engine of the course with your scheduler: 1, 4 and 16 users decode together.
# Beside each measurement stands the bound that your `decode_speeds` gives with the bandwidth and the
# peak measured here.
#
# **Before you run it:** reading 538 MB of weights is the bound of one user. At which batch will
# arithmetic take over?

# %%
model = trained_model("smollm2")
if model and ready("decode_speeds", *PARTS):
    rates = (timing.read_bandwidth(), timing.matmul_peak(), 4)  # float32: 4 bytes a number
    print(f"measured: {rates[0] / 1e9:.1f} GB/s read, {rates[1] / 1e9:.0f} GFLOP/s")
    prompt = model.tokenizer.encode(
        "The three things a serving engine must never do are, in order,"
    )
    begins = compute_bound_batch(model.config, len(prompt) + 5, *rates)
    print("by these two, arithmetic takes over at a batch of", begins or "no size")
    batches = (1, 4, 16)
    measured = [
        batching_measure.decode_rate(
            batching_measure.engine_with(model, Scheduler, use_prefix_cache=False), [prompt] * B, 8
        )
        for B in batches
    ]
    bound = [decode_speeds(model.config, len(prompt) + 5, B, *rates)[1] for B in batches]
    batching_figures.batch_speeds(batches, measured, bound, describe("cpu", "float32"))
    confront("ba_batch", f"{measured[2] / measured[0]:.1f}x")

# %% [markdown]
# **Reading it.** The total rises with the batch, though far less than the bound allows. Between 1 row
# and 4 rows something changes that is not in the bound: for a single row the library walks through the
# weights once; for several it first copies each weight matrix into an order that suits its kernel, in
# every pass. So a product of 2 rows takes about twice as long as one of 1, and from there on more rows
# are nearly free. Engines arrange the weights once, when they are loaded. The rest is Python: attention runs
# for each sequence alone here, 30 layers times 16 sequences, where a real engine has one kernel for all.
#
# The same model in PyTorch, if you have a GPU:

# %%
if model and not grading():
    device = pick()
    if device == "cpu":
        not_measured("the same on a GPU needs a CUDA or MPS device")
    else:
        for B in (1, 4, 16, 64):
            rate = batching_measure.torch_decode_rate(model, B, device)
            print(f"batch {B:2d} on {describe(device, 'float32')}: {rate:7,.0f} tokens/s together")

# %% [markdown]
# ### A trace, served
#
# 40 requests come at random, in bursts and lulls; half of them begin with the same 32 tokens; the
# lengths of their answers are exponential. Eight seats, 24 pages of 16 tokens, 32 tokens a pass. The
# static line is your `static_starts` on the same trace.

# %%
if tiny and ready("static_starts", *PARTS):
    trace = batching_measure.random_trace(tiny, 40, mean_gap=3, mean_new=25)
    engine = batching_measure.engine_with(tiny, Scheduler, 24, 16, token_budget=32, max_running=8)
    records = batching_measure.run_trace(engine, trace)
    jobs = batching_measure.jobs_of(trace)
    starts = static_starts(jobs, 8)
    static = batching_measure.seats_busy(jobs, starts)
    batching_figures.run_over_time(records, 8, 24, 16, static)
    busy = [r.n_running for r in records]
    print(f"continuous: {len(records)} steps, {sum(busy) / (8 * len(busy)):.0%} of the seats taken")
    print(f"static:     {len(static)} steps, {seat_use(jobs, starts, 8):.0%} of the seats at work")
    print(f"preemptions: {sum(r.n_preempted for r in records)}")

# %% [markdown]
# **Reading it.** *Above*: static batching shows its teeth, again and again: eight seats, then two, then
# one, then the next eight. Continuous batching follows the load; where the line is low and pages are
# left, nobody waits. *Middle*: the grey pages are finished requests' pages that the prefix cache keeps,
# for nobody knows whom. They cost nothing: they go, oldest first, as soon as somebody needs a page. A
# monitor that shows "memory 100 % used" shows an engine in good health. Where the blue pages reach the
# line, newcomers wait, and at times somebody is preempted; nobody's text shows it. *Below*: the share of
# slots that hold no token. Each sequence has half a page of them on average, so the share falls as
# sequences grow.
#
# ### A shared system prompt
#
# Time to first token, for a prompt of some 240 tokens that begins as one before it did; with the prefix
# cache and without.

# %%
if model and ready(*PARTS):
    system = model.tokenizer.encode("You are a patient teacher. Answer in plain words. " * 22)[:240]
    for cached in (True, False):
        engine = batching_measure.engine_with(model, Scheduler, use_prefix_cache=cached)
        for name in ("first", "second"):
            question = model.tokenizer.encode(f"The {name} question: why is the sky blue?")
            took, n = batching_measure.time_to_first_token(engine, name, system + question)
            print(f"prefix cache {'on ' if cached else 'off'}, {name:6} request: "
                  f"{format_seconds(took)} to the first token, {n} tokens cached")  # fmt: skip

# %% [markdown]
# The second request pays for its own question only. Nothing else changes: the tokens that follow take as
# long as before. A prefix cache speeds up prefill; it does nothing for a decode step.
#
# ### A long prompt, in chunks
#
# One user is in the middle of an answer. Another sends 200 tokens. How long does the first one wait for
# a token, at the worst, and when does the second get its first?

# %%
if model and ready(*PARTS):
    for budget in (16, 64, 256):
        engine = batching_measure.engine_with(
            model, Scheduler, token_budget=budget, use_prefix_cache=False
        )
        gap, first = batching_measure.longest_gap(engine, [1, 2, 3], system[:200])
        print(f"budget {budget:3d}: longest wait of the first {format_seconds(gap)}, "
              f"the second's first token after {format_seconds(first)}")  # fmt: skip

# %% [markdown]
# **Reading it.** A small budget keeps the answer flowing; the newcomer pays, with many passes that each
# read all weights. It is a dial between two users' patience. Lesson 11 measures what both feel.

# %% [markdown]
# ## 5. Explain
#
# In six to nine sentences, for a colleague who runs a server that takes eight requests at a time,
# reserves the longest context for each, and starts the next eight when all are done: **what would
# continuous batching and pages change, and what would they not?** Say what decides the gain in seats
# and give a number; what decides the gain in memory; what happens when memory runs out; and what a
# single user would notice.

# %% [markdown] written="ba_explain" points=3
# **Sample answer.** Today a seat is held until the longest of its eight answers is done. If you ask anew
# before every step and give each free seat to whoever waits, the same hardware gives as many times
# the tokens as the longest length is over the mean: nothing if all answers are equally long, 2.72
# times for eight exponential lengths. It is the spread of the lengths that decides. In memory, reserving
# the longest context leaves most of it empty. In pages of 16 tokens only the last page of a sequence is
# partly empty, 7.5 slots on average, so several times as many requests fit, and a larger batch
# shares each reading of the weights. Equal beginnings can hold the same pages, copied only when somebody
# writes. As nobody knows how long answers will be, memory can run out in the middle: then the newest
# request gives its pages back, keeps its tokens, and computes keys and values again later, so it pauses
# but says the same. A single user waits less in the queue, but a token does not come sooner: a step of a
# larger batch takes longer, and past the point where arithmetic is the limit, a larger batch only makes
# everybody slower.
#
# **Rubric** (1 point each): *mechanism*: seats filled by step and pages on demand, with what they
# replace; *number*: a gain or a waste with the quantity it depends on; *limit*: no user's token comes
# sooner, or preemption and recomputing, or no gain with equal lengths.

# %% [markdown]
# ## 6. In the wild
#
# **The settings, and what you know about them now.**
#
# - *vLLM*: `--max-num-seqs` is your `max_running`, `--max-num-batched-tokens` your `token_budget`,
#   `--block-size` your `page_size` (it says *block* for a page; 16 by default on most GPUs),
#   `--gpu-memory-utilization` decides how many pages there are. Prefix caching
#   (`--enable-prefix-caching`) and chunked prefill are on by default in its current engine; names of
#   pages are chained hashes as yours, with a `cache_salt` that a request may bring. Preemption is by
#   recomputing; older versions could also **swap** pages to the processor's memory.
# - *SGLang*: the prefix cache is a **radix tree** over tokens: each edge is a run of tokens, requests walk
#   down it, and leaves are evicted first, the least recently used first. It finds the longest common
#   beginning token by token (`--page-size` 1), where hashes find whole pages. It also serves waiting
#   requests in the order of their hits. `--disable-radix-cache`, `--chunked-prefill-size`,
#   `--max-running-requests`, `--mem-fraction-static`.
# - *TGI*: `--max-concurrent-requests`, `--max-batch-prefill-tokens`, `--max-batch-total-tokens`.
# - *llama.cpp*: `llama-server -np 8` has eight *slots*. By default they share the context that `-c` sets
#   (each gets an eighth of it, unless the cache is unified), and continuous batching is on.
# - *transformers*: `ContinuousBatchingConfig` and `model.generate_batch`; the next cell looks.
#
# **Two machines.** Prefill wants arithmetic, decode wants bandwidth, and chunks are a compromise
# between them. DistServe and Splitwise (2024) put them on different machines. Then the prompt's keys and
# values must be sent: 8,192 tokens of an 8B-style model are 1.074 GB, which takes 2.39 ms over a link of
# 450 GB/s and 16.8 ms over one of 64 GB/s. It is worth it where prompts disturb those who decode
# so much that they miss their target, and the link is fast.
#
# **What breaks.** Requests rejected or preempted over and over, as several long answers coincide
# (watch the counter of preemptions: now and then is fine, all the time means too many seats for the
# memory). A time stamp at the *front* of a system prompt: no page of it is ever found again; put what
# changes last. A prefix cache that forgets to tell adapters apart. Monitors that read a full cache as
# "out of memory". A batch that is full of one user's requests.
#
# How many pages would a real server have? All from functions of yours:

# %%
if ready("pages_needed"):
    for name, gpu in (("llama-3-8b", "h100-sxm"), ("llama-3-8b", "a10g"), ("llama-2-7b", "a10g")):
        config, device = model_preset(name), load_devices()[gpu]
        room = device["memory_gb"] * 1e9 * 0.9 - 2 * config.n_params
        page_bytes = 16 * 2 * config.n_layers * config.n_kv_heads * config.d_head * 2
        n_pages = int(room // page_bytes)
        n_chats = n_pages // pages_needed(2000, 16)
        print(f"{name} on {device['name']}: pages of {format_bytes(page_bytes)}; "
              f"{n_pages:,} of them; {n_chats} chats of 2,000 tokens")  # fmt: skip

# %%
if not grading():
    try:
        from transformers import ContinuousBatchingConfig
    except ImportError:
        not_measured(
            "transformers' continuous batching needs that package: pip install transformers"
        )
    else:
        defaults = ContinuousBatchingConfig()
        for name in ("page_size", "max_batch_tokens", "allow_block_sharing", "scheduler_type"):
            print(f"transformers, {name}: {getattr(defaults, name, 'not in this version')}")

# %% [markdown]
# ## 7. Knowledge check
#
# Put your name or student id between the quotation marks: it decides the numbers in the questions.
# Write each answer with its unit where it has one (`"12.5 MB"`, `"3 GiB"`, `"4x"`), or the letter.

# %%
answers = Answers("")

# %%
answers.ask("ba_q_total")

# %% answer="ba_q_total"
answers["ba_q_total"] = "1,166.67 tok/s"

# %% answer_check="ba_q_total"
answers.check("ba_q_total")

# %%
answers.ask("ba_q_static")

# %% answer="ba_q_static"
answers["ba_q_static"] = "43.5606 %"

# %% answer_check="ba_q_static"
answers.check("ba_q_static")

# %%
answers.ask("ba_q_gain")

# %% answer="ba_q_gain"
answers["ba_q_gain"] = "2.59286x"

# %% answer_check="ba_q_gain"
answers.check("ba_q_gain")

# %%
answers.ask("ba_q_pages")

# %% answer="ba_q_pages"
answers["ba_q_pages"] = "9"

# %% answer_check="ba_q_pages"
answers.check("ba_q_pages")

# %%
answers.ask("ba_q_hit")

# %% answer="ba_q_hit"
answers["ba_q_hit"] = "832"

# %% answer_check="ba_q_hit"
answers.check("ba_q_hit")

# %%
answers.ask("ba_q_whole")

# %% answer="ba_q_whole"
answers["ba_q_whole"] = "224"

# %% answer_check="ba_q_whole"
answers.check("ba_q_whole")

# %%
answers.ask("ba_q_chunks")

# %% answer="ba_q_chunks"
answers["ba_q_chunks"] = "53,760"

# %% answer_check="ba_q_chunks"
answers.check("ba_q_chunks")

# %%
answers.ask("ba_q_budget")

# %% answer="ba_q_budget"
answers["ba_q_budget"] = "1,013"

# %% answer_check="ba_q_budget"
answers.check("ba_q_budget")

# %%
answers.ask("ba_q_ship")

# %% answer="ba_q_ship"
answers["ba_q_ship"] = "9.39524 ms"

# %% answer_check="ba_q_ship"
answers.check("ba_q_ship")

# %%
answers.ask("ba_q_roof")

# %% answer="ba_q_roof"
answers["ba_q_roof"] = "b"

# %% answer_check="ba_q_roof"
answers.check("ba_q_roof")

# %%
answers.ask("ba_q_suffix")

# %% answer="ba_q_suffix"
answers["ba_q_suffix"] = "b"

# %% answer_check="ba_q_suffix"
answers.check("ba_q_suffix")

# %%
answers.ask("ba_q_phase")

# %% answer="ba_q_phase"
answers["ba_q_phase"] = "b"

# %% answer_check="ba_q_phase"
answers.check("ba_q_phase")

# %%
answers.ask("ba_q_victim")

# %% answer="ba_q_victim"
answers["ba_q_victim"] = "c"

# %% answer_check="ba_q_victim"
answers.check("ba_q_victim")

# %% [markdown]
# ## 8. Interview corner
#
# Say the answer aloud before you open it. Then the follow-up: that is where interviews are decided.
#
# <details><summary><b>1,000 tokens in pages of 16: how many pages, how much waste?</b></summary>
#
# 63 pages, 8 empty slots. *Follow-up: expected waste, and why not pages of 1?* (16 − 1) / 2 = 7.5 slots a
# sequence. Small pages cost tables, lookups and short reads.
# </details>
#
# <details><summary><b>Why did servers before paging waste 60 to 80 % of KV memory?</b></summary>
#
# They reserved the longest context in one piece: slots for tokens that never came, slots for tokens
# still to come, and gaps between reservations. *Follow-up: what does paging cost?* A lookup for each
# page, and kernels that can follow a page table.
# </details>
#
# <details><summary><b>Why does throughput flatten before the compute roof at long context?</b></summary>
#
# Caches grow with the batch as tokens do: the limit is bandwidth / cache of one. *Follow-up: which
# lever moves it?* Fewer KV heads, fewer bits, a window. For the 8B-style model at 8,192 tokens on
# 3,350 GB/s it is 3,120 tokens/s.
# </details>
#
# <details><summary><b>Answers of 10, 2 and 3 tokens in a static batch: utilisation?</b></summary>
#
# 15 / (3 · 10) = 50 %. *Follow-up: gain of continuous batching for exponential lengths, 32 seats?* 4.06.
# </details>
#
# <details><summary><b>Continuous batching in one sentence; what must the memory offer?</b></summary>
#
# Let in and dismiss at every step. Pages, allocated and freed on demand. *Follow-up: preempt by
# swapping or recomputing?* Recomputing needs no room elsewhere, and a prefill is fast; swapping wins
# for long sequences on a fast link.
# </details>
#
# <details><summary><b>Chunked prefill: who gains, who pays?</b></summary>
#
# Those who decode wait less at the worst. The prompt in chunks pays with a later first token, and keys,
# values and weights are read again. *Follow-up: 8,192 tokens in chunks of 512?* 61,440 tokens read again.
# </details>
#
# <details><summary><b>An 8B model at 989.4 TFLOP/s, 32 users decode: the largest chunk under 20 ms?</b></summary>
#
# A token takes 16 GFLOP, so 1,236 tokens fit, less 32: 1,204. *Follow-up: and if reading alone takes longer than
# that?* Then no chunk helps: fewer users, or fewer bytes.
# </details>
#
# <details><summary><b>Prefill and decode on two machines: when?</b></summary>
#
# When prompts disturb decoding beyond its target and the link can carry keys and values in time.
# *Follow-up: 8,192 tokens of 131,072 B at 450 GB/s?* 2.39 ms.
# </details>
#
# <details><summary><b>1,000 of 1,200 prompt tokens are known, pages of 16. What is saved?</b></summary>
#
# 992 tokens of prefill. *Follow-up: all of 1,008 are known. Why not 1,008?* One token must be computed for
# its logits, and pages are shared whole: 992.
# </details>
#
# <details><summary><b>Two requests share a suffix. A hit?</b></summary>
#
# No: keys and values depend on everything before. *Follow-up: what goes into a page's name?* The name
# before it, its tokens, and a salt for model, adapter and customer.
# </details>
#
# Press *start* for a timed drill of this lesson's questions, with fresh numbers.

# %%
drill("10_batching", minutes=6)

# %% [markdown]
# ## 9. Summary
#
# - A step reads the weights once for all users. Throughput rises with the batch until caches or
#   arithmetic take as long; one user's speed only falls.
# - Static batching holds every seat for the longest answer. Refilling seats gains the longest length over
#   the mean: 1 for equal lengths, 4.06 for 32 exponential ones.
# - Pages end reservation. Half a page a sequence is empty, on average (`page_size` - 1) / 2 slots.
# - A page has a count of holders: free at 0, shared above 1, copied before a write. A name chained to all
#   that came before finds it again; the last token of a prompt is always computed.
# - A pass is some tokens of some requests, under a budget. Who came last gives way; tokens are kept, keys
#   and values are computed again, and every answer is what it would be alone.
#
# **Common mistakes.** Tokens per second, without saying whose. Caches left out of the step. Pages rounded
# down. A page freed while others hold it, or freed twice. A page written that is shared. A hash of the
# page alone, or without a salt. A whole prompt from the cache, and no logits. Eviction of what is in
# use. Newcomers before those who run. An answer thrown away at preemption. "Chunks make prefill
# faster." Calling it continuous while newcomers wait for the batch to end.
#
# **References**
#
# - Yu, Jeong, Kim, Kim and Chun, *Orca: A Distributed Serving System for Transformer-Based Generative
#   Models*, OSDI 2022
# - Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv 2211.05102
# - Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*,
#   2023, arXiv 2309.06180
# - Agrawal et al., *SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills*,
#   2023, arXiv 2308.16369
# - Agrawal et al., *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve*, 2024,
#   arXiv 2403.02310
# - Zheng et al., *SGLang: Efficient Execution of Structured Language Model Programs*, 2023, arXiv
#   2312.07104
# - Zhong et al., *DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large Language
#   Model Serving*, 2024, arXiv 2401.09670
# - Patel et al., *Splitwise: Efficient Generative LLM Inference Using Phase Splitting*, 2023, arXiv
#   2311.18677
# - Prabhu et al., *vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention*,
#   2024, arXiv 2405.04437
# - Allal et al., *SmolLM2*, 2025, arXiv 2502.02737 (the model measured here)

# %%
progress("10_batching")
