"""Lesson 10: every number in its text is computed, and the reference is right by other means."""

import hashlib
import math
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lesson_text import cells, stated_numbers

from grader.checks.batching.quiz import empty_slots, static_use
from grader.judging import registry
from inferlab import batching
from inferlab.batching import Job
from inferlab.config import ModelConfig
from inferlab.data import load_devices, model_preset
from inferlab.kv_cache import kv_bytes_per_token, kv_cache_bytes, largest_batch
from inferlab.operators import causal_mask
from inferlab.paging import (
    OutOfPages,
    PageAllocator,
    PagePool,
    fork,
    own_page,
    paged_attention,
    pages_needed,
    token_slots,
    wasted_share,
)
from inferlab.prefix_cache import PrefixCache, page_hashes
from inferlab.roofline import body_params, compute_bound_batch
from inferlab.scheduler import Request, Scheduler
from labkit.measure import batching as batching_measure

LESSON = "10_batching"
LLAMA, H100 = model_preset("llama-3-8b"), load_devices()["h100-sxm"]
RATES = (H100["bandwidth_gb_s"] * 1e9, H100["peak_dense_tflops"]["bf16"] * 1e12)
KV = kv_bytes_per_token(LLAMA)
SEVEN = [Job(0, 10), Job(0, 2), Job(0, 3), Job(1, 4), Job(2, 2), Job(3, 8), Job(5, 1)]


def speeds(context: int, n: int) -> tuple[float, float]:
    return batching.decode_speeds(LLAMA, context, n, *RATES)


def context_of_6000(weight_bytes: float) -> int:
    """The longest context at which 32 users get 6,000 tokens/s from that bandwidth."""
    return int((32 * RATES[0] / 6000 - weight_bytes) // (32 * KV))


def mixed_step_ms(chunk: int) -> float:
    """8e9 weights, 32 users of 1,024 tokens, and a chunk of a prompt beside them."""
    reads = (16e9 + 32 * 1024 * KV) / RATES[0]
    return 1e3 * max(reads, 2 * 8e9 * (chunk + 32) / RATES[1])


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    body = 2 * (body_params(LLAMA) + LLAMA.d_model * LLAMA.vocab_size)
    ends = [
        max(s + j.n_steps for s, j in zip(starts, SEVEN, strict=True))
        for starts in (batching.static_starts(SEVEN, 3), batching.continuous_starts(SEVEN, 3, 1))
    ]
    gains = [batching.exponential_gain(n) for n in (8, 32)]
    ship = kv_cache_bytes(LLAMA, 8192)
    page = 16 * KV
    minutes = sum(e.minutes for e in registry.exercises(LESSON))
    return {
        str(ends[0]), str(ends[1]), str(batching.static_starts(SEVEN, 3)[-1]),
        f"{speeds(1000, 1)[0]:.0f}", f"{speeds(1000, 32)[0]:.0f}", f"{speeds(1000, 32)[1]:,.0f}",
        f"{speeds(8192, 32)[1]:,.0f}", f"{speeds(8192, 32)[0]:.0f}",
        str(context_of_6000(body)), str(context_of_6000(16e9)),
        str(largest_batch(LLAMA, 8192, 80e9, 2 * LLAMA.n_params)), "393",
        f"{(15e9 + 10e9) / 2.5e12 * 1e3:.0f}", f"{2.5e12 / 25e9:.0f}", f"{10 * 2.5e12 / 25e9:,.0f}",
        "25",
        *(f"{g:.2f}" for g in gains), *(f"{2 * n / (n + 1):.2f}" for n in (8, 32)),
        f"{16 * pages_needed(17, 16) - 17}", f"{page // 2**20}", f"{page // 32 // 2 // 1024}",
        f"{token_slots([7, 2], 3, 1, 4)[0]}", f"{7 * 4 + 3}",
        f"{batching.hit_tokens(1000, 1200, 16)}", f"{1000 // 16}", f"{1008 // 16}", f"{1008 - 1:,}",
        f"{batching.reread_tokens(8192, 512):,}", f"{ship / 1e9:.3f}",
        f"{1e3 * ship / 450e9:.2f}", f"{1e3 * ship / 64e9:.1f}",
        *(f"{mixed_step_ms(c):.2f}" for c in (0, 256, 512, 2048)),
        f"{(16 - 1) / 2}", f"{pages_needed(1000, 16)}", f"{RATES[0] / (8192 * KV):,.0f}",
        f"{sum([10, 2, 3])}", f"{static_use([10, 2, 3]):.0%}".rstrip("%"),
        f"{batching.largest_chunk(0.02, 0, 8e9, RATES[1]):,}",
        f"{batching.largest_chunk(0.02, 32, 8e9, RATES[1]):,}", f"{minutes - 120}",
        f"{4 * model_preset('smollm2-135m').n_params / 1e6:.0f}",
    }  # fmt: skip


# Sizes that the text takes as given: shapes, devices, page sizes, traces, published measurements.
GIVEN = {
    "01", "02", "04", "06", "10", "11", "15", "16", "17", "20", "24", "30", "32", "40",
    "60", "64", "80", "200", "240", "256", "450", "512", "1,000", "1,008", "1,024",
    "1,200", "2,048", "2,500", "3,350", "6,000", "8,192", "131,072", "989.4",
    "20.4", "38.2", "36.9",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers(LESSON) - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Published figures, and arithmetic done by hand."""
    assert compute_bound_batch(LLAMA, 393, *RATES, 2) is not None
    assert compute_bound_batch(LLAMA, 394, *RATES, 2) is None
    assert batching.exponential_gain(32) == pytest.approx(4.0585, abs=1e-4)
    assert batching.largest_chunk(0.02, 32, 8e9, 989.4e12) == 1204
    assert batching.reread_tokens(8192, 512) == 512 * 16 * 15 // 2
    assert batching.hit_tokens(1000, 1200, 16) == batching.hit_tokens(1008, 1008, 16) == 992
    assert (pages_needed(1000, 16), empty_slots(1000, 16)) == (63, 8)
    assert kv_cache_bytes(LLAMA, 8192) == 1_073_741_824
    step = (15_009_316_864 + 16 * 8192 * 131_072) / 3.35e12
    assert speeds(8192, 16) == pytest.approx((1 / step, 16 / step))
    assert [round(mixed_step_ms(c), 2) for c in (0, 256, 512, 1024)] == [6.06, 6.06, 8.8, 17.08]


def test_the_literals_of_the_first_picture_are_the_reference():
    code = next(c.source for c in cells(LESSON) if "seat_timeline" in c.source)
    assert f"static={batching.static_starts(SEVEN, 3)}" in code
    assert f"continuous={batching.continuous_starts(SEVEN, 3, 1)}" in code
    assert all(f"Job({j.arrival}, {j.n_steps})" in code for j in SEVEN)


def test_predictions_have_the_right_answers():
    answers = {p.id: p.answer() for p in registry.predictions(LESSON)}
    assert answers["ba_gain"] == sum(1 / k for k in range(1, 33))
    assert answers["ba_hit"] == 992
    assert 1 < answers["ba_batch"] <= 16
    assert answers["ba_latency"] == "each waits twice as long for a token"


# ---- seats --------------------------------------------------------------------------------------

job_lists = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(0, 7)), max_size=14
)


def as_jobs(rows) -> list[Job]:
    jobs, now = [], 0
    for gap, n_steps, n_pages in rows:
        now += gap
        jobs.append(Job(now, n_steps, n_pages))
    return jobs


@settings(max_examples=200, deadline=None)
@given(job_lists, st.integers(1, 4), st.integers(7, 15))
def test_continuous_batching_is_never_over_its_seats_or_pages_and_never_idle_for_nothing(
    rows, n_seats, n_pages
):
    jobs = as_jobs(rows)
    starts = batching.continuous_starts(jobs, n_seats, n_pages)
    assert starts == sorted(starts)
    for now in range(max([s + j.n_steps for s, j in zip(starts, jobs, strict=True)], default=0)):
        on = [j for s, j in zip(starts, jobs, strict=True) if s <= now < s + j.n_steps]
        assert len(on) <= n_seats
        assert sum(j.n_pages for j in on) <= n_pages
        waiting = [j for s, j in zip(starts, jobs, strict=True) if j.arrival <= now < s]
        if waiting:  # the first of them could not have come in
            room = n_pages - sum(j.n_pages for j in on)
            assert len(on) == n_seats or waiting[0].n_pages > room


@settings(max_examples=200, deadline=None)
@given(job_lists, st.integers(1, 4))
def test_static_batches_by_a_simulation_step_by_step(rows, n_seats):
    jobs = as_jobs(rows)
    waiting, starts, now, free_at = deque(jobs), [], 0, 0
    while waiting:
        if now >= free_at and waiting[0].arrival <= now:
            for _ in range(n_seats):
                if waiting and waiting[0].arrival <= now:
                    job = waiting.popleft()
                    starts.append(now)
                    free_at = max(free_at, now + job.n_steps)
        now += 1
    assert batching.static_starts(jobs, n_seats) == starts


def test_seat_use_and_the_gain_of_equal_uniform_and_exponential_lengths():
    assert batching.seat_use([Job(0, 3), Job(0, 1), Job(1, 2)], [0, 0, 3], 2) == 0.6
    rng = np.random.default_rng(0)
    draws = {"exponential": rng.exponential(1, (20_000, 8)), "uniform": rng.random((20_000, 8))}
    gain = {name: x.max(1).mean() / x.mean() for name, x in draws.items()}
    assert gain["exponential"] == pytest.approx(batching.exponential_gain(8), rel=0.02)
    assert gain["uniform"] == pytest.approx(2 * 8 / 9, rel=0.02)
    with pytest.raises(ValueError, match="no jobs"):
        batching.seat_use([], [], 2)


@pytest.mark.parametrize("n", [0, -1])
def test_no_users_have_no_speed(n):
    with pytest.raises(ValueError, match="at least 1"):
        speeds(10, n)


# ---- pages --------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 500), st.integers(1, 40))
def test_pages_needed_is_a_ceiling(n_tokens, page_size):
    assert pages_needed(n_tokens, page_size) == math.ceil(n_tokens / page_size)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 90), max_size=8), st.integers(1, 20))
def test_waste_by_filling_slots(lengths, page_size):
    slots = []
    for n in lengths:
        pages = [[i < n - start for i in range(page_size)] for start in range(0, n, page_size)]
        slots += [slot for page in pages for slot in page]
    share = 1 - sum(slots) / len(slots) if slots else 0.0
    assert wasted_share(lengths, page_size) == pytest.approx(share, abs=1e-12)


def test_the_mean_waste_is_half_a_page():
    n = np.random.default_rng(0).integers(1, 16 * 500, 40_000)
    assert (-n % 16).mean() == pytest.approx((16 - 1) / 2, rel=0.02)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("asr"), max_size=60), st.integers(1, 5), st.integers(0, 99))
def test_the_allocator_keeps_its_invariants(calls, n_pages, seed):
    allocator, held, rng = PageAllocator(n_pages), [], np.random.default_rng(seed)
    for call in calls:
        if call == "a":
            if allocator.free:
                held.append(allocator.allocate())
            else:
                with pytest.raises(OutOfPages):
                    allocator.allocate()
        elif held:
            page = held[rng.integers(len(held))]
            allocator.share(page) if call == "s" else allocator.release(page)
            held.append(page) if call == "s" else held.remove(page)
        allocator.require_sound([held])
    for page in set(range(n_pages)) - set(held):
        for action in (allocator.share, allocator.release):
            with pytest.raises(ValueError, match="not in use"):
                action(page)


sizes = st.tuples(st.integers(1, 4), st.integers(0, 20), st.integers(1, 7), st.integers(0, 999))


@settings(max_examples=60, deadline=None)
@given(sizes, st.sampled_from([(1, 1), (4, 2), (6, 2), (3, 3)]))
def test_paged_attention_equals_torch_on_one_stretch(shape, heads):
    T, more, page_size, seed = shape
    S, rng = T + more, np.random.default_rng(seed)
    q = rng.normal(size=(heads[0], T, 5))
    k, v = rng.normal(size=(2, heads[1], S, 5))
    n_pages = pages_needed(S, page_size)
    table = rng.permutation(n_pages + 3)[:n_pages].tolist()
    pages = np.full((2, n_pages + 3, page_size, heads[1], 5), np.nan)
    for position in range(S):  # token by token, without token_slots
        page, place = table[position // page_size], position % page_size
        pages[0, page, place], pages[1, page, place] = k[:, position], v[:, position]
    visible = causal_mask(T, S)
    out = paged_attention(q, *pages, table, visible)
    k, v = (np.repeat(a, heads[0] // heads[1], 0) for a in (k, v))
    right = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), attn_mask=torch.from_numpy(visible)
    )
    assert np.abs(out - right.numpy()).max() < 1e-12


def test_a_write_after_a_fork_leaves_the_other_as_it_was():
    config = ModelConfig(2, 12, 4, 2, 6, 16, 50, 512)
    allocator, pool = PageAllocator(4), PagePool(config, 4, page_size=4)
    first = [allocator.allocate(), allocator.allocate()]
    pool.keys[:] = np.arange(4)[None, :, None, None, None]
    second = fork(first, allocator)
    own_page(second, 1, allocator, pool)
    pool.keys[:, second[1]] = 99
    assert (pool.keys[:, first[1]] == first[1]).all()
    assert first[0] == second[0]
    allocator.require_sound([first, second])
    assert pool.page_bytes == 4 * 2 * 2 * 2 * 6 * 4  # tokens, sides, layers, heads, width, bytes


# ---- the prefix cache ---------------------------------------------------------------------------


def test_names_of_pages_are_chained_sha256():
    first = hashlib.sha256(b"s|5,1").digest()
    assert page_hashes([5, 1, 4, 1, 5], 2, "s") == [first, hashlib.sha256(first + b"|4,1").digest()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=14), st.lists(st.integers(0, 2), max_size=14),
       st.integers(1, 4))  # fmt: skip
def test_lookup_finds_what_the_formula_says(known, asked, page_size):
    allocator = PageAllocator(40)
    cache = PrefixCache(allocator, page_size)
    pages = [allocator.allocate() for _ in range(len(known) // page_size)]
    cache.store(known, pages)
    n_common = 0
    while n_common < min(len(known), len(asked)) and known[n_common] == asked[n_common]:
        n_common += 1
    n_known = n_common // page_size * page_size
    expected = batching.hit_tokens(n_known, max(1, len(asked)), page_size)
    found = cache.lookup(asked)
    assert found == pages[: expected // page_size]
    allocator.require_sound([pages, found, list(cache.pages.values())])


def test_eviction_takes_the_ends_of_chains_and_nothing_in_use():
    allocator = PageAllocator(9)
    cache = PrefixCache(allocator, 2)
    table = [allocator.allocate() for _ in range(4)]
    cache.store([1, 2, 3, 4, 5, 6, 7, 8], table)
    for page in table:
        allocator.release(page)
    held = cache.lookup([1, 2, 3, 4, 9])  # a request holds the first two pages
    assert [cache.evict() for _ in range(4)] == [True, True, False, False]
    assert cache.lookup([1, 2, 3, 4, 5, 6, 0]) == held


def test_other_salts_share_nothing():
    allocator = PageAllocator(9)
    cache, other = (PrefixCache(allocator, 2, salt) for salt in ("a", "b"))
    cache.store([1, 2, 3, 4], [allocator.allocate(), allocator.allocate()])
    other.pages = cache.pages  # even in one dictionary
    assert len(cache.lookup([1, 2, 3, 4, 5])) == 2
    assert other.lookup([1, 2, 3, 4, 5]) == []


# ---- the scheduler ------------------------------------------------------------------------------


def scheduler(n_pages: int, **sizes) -> Scheduler:
    return Scheduler(PagePool(ModelConfig(1, 8, 2, 1, 4, 8, 100), n_pages, page_size=4), **sizes)


def test_the_worked_example_of_the_budget():
    arrivals = [(0, Request("a", [1] * 5, 8)), (0, Request("b", [2] * 6, 7)),
                (2, Request("c", [3] * 20, 3))]  # fmt: skip
    steps = batching_measure.play_steps(scheduler(24, token_budget=8, max_running=4), arrivals)
    assert [[(a, n) for a, n, _ in step] for step in steps[2:6]] == [
        [("a", 1), ("b", 1), ("c", 6)], [("a", 1), ("b", 1), ("c", 6)],
        [("a", 1), ("b", 1), ("c", 6)], [("a", 1), ("b", 1), ("c", 2)],
    ]  # fmt: skip


def test_a_preempted_request_finds_its_own_pages_again():
    """Two requests on six pages: b is preempted and resumes behind what the cache still has."""
    served = scheduler(6, token_budget=16, max_running=2)
    a, b = Request("a", [1] * 8, 7), Request("b", [2] * 7, 6)
    for request in (a, b):
        served.add(request)
    starts = []
    while served.running or served.waiting:
        for item in served.plan():
            if item.request is b and item.n_tokens > 1:
                starts.append(item.start)
            finishes = item.finishes
            served.commit(item)
            item.request.generated += [0] * finishes
            if len(item.request.generated) == item.request.max_new_tokens:
                served.finish(item.request)
        served.allocator.require_sound(served.holders())
    assert b.n_preemptions == 1
    assert b.n_cached == 0  # at first nothing was known
    assert starts[0] == 0
    assert starts[1] > 0  # when it came back, pages of its own were
    assert (len(a.generated), len(b.generated)) == (7, 6)


def test_a_budget_below_the_seats_is_refused():
    with pytest.raises(ValueError, match="token_budget=2 must be at least max_running=4"):
        scheduler(6, token_budget=2, max_running=4)
