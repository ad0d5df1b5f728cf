"""Lesson 06: every number in its text is computed, and the reference is right by other means."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lesson_text import stated_numbers

from grader.checks.flash_attention.tiles import peak_limit_bytes
from grader.judging import registry
from grader.judging.judge import judge
from inferlab import flash_attention as flash
from inferlab.counted_memory import CountedMemory
from inferlab.operators import attention, causal_mask

LESSON = "06_flash_attention"
EIGHT_K = 8192


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    one_head = flash.score_matrix_bytes(EIGHT_K, EIGHT_K)
    standard = flash.standard_traffic_bytes(EIGHT_K, EIGHT_K, 64)
    chip_numbers = 192 * 1024 // 2
    m, total = flash.online_normalizer(iter([np.array([[1.0, 2]]), np.array([[4.0]])]))
    first = flash.online_normalizer(iter([np.array([[1.0, 2]])]))[1]
    state = (np.array([2.0]), np.array([1.0]), np.array([[6.0, 0]]))
    v = np.array([[0.0, 1], [0, 3]])
    _, same_sum, same_acc = flash.online_update(*state, np.array([[2.0, 2]]), v)
    _, up_sum, up_acc = flash.online_update(*state, np.array([[4.0, 4]]), v)
    two_keys = flash.partial_attention(np.zeros((1, 1)), np.ones((1, 2, 1)), np.ones((1, 2, 1)))
    softmax = np.exp([-1.0, 0]) / np.exp([-1.0, 0]).sum()
    assert m[0] == 4
    return {
        f"{one_head:,}", f"{one_head // 2:,}", f"{one_head / 1e6:.0f}",
        f"{flash.score_matrix_bytes(EIGHT_K, EIGHT_K, 32) / 1e9:.3f}",
        f"{flash.score_matrix_bytes(1, EIGHT_K):,}", f"{4 * one_head / standard:.0%}".rstrip("%"),
        f"{flash.standard_traffic_bytes(2, 5, 3, 1, 1)}", f"{2 * 2 * 3 + 2 * 5 * 3}", f"{4 * 10}",
        f"{first[0]:.3f}", f"{total[0]:.3f}",
        f"{same_acc[0, 1] / same_sum[0]:.3f}", f"{up_sum[0]:.3f}", f"{up_acc[0, 0]:.3f}",
        f"{math.exp(-2):.3f}", f"{20 - 7 + 2}", f"{20 - 7 + 3}",
        f"{flash.flash_traffic_bytes(8, 8, 2, 4, 4) // 2}",
        f"{flash.flash_traffic_bytes(8, 8, 2, 4, 4)}", f"{2 * 8}", f"{2 * (4 + 8)}", f"{4 + 8}",
        f"{48 * 1024:,}", f"{48 * 512:,}", f"{2 * 64 * 64:,}", f"{48 * 512 - 2 * 64 * 64:,}",
        f"{2 * 64}", f"{2 * 64 + 64 + 2}", f"{(48 * 512 - 8192) // 194}",
        f"{flash.largest_block_q(49_152, 64, 64)}", f"{chip_numbers // 64**2}",
        f"{two_keys[1][0]:.3f}", f"{(3 * 2 + 1 * 8) / 4}", *(f"{w:.3f}" for w in softmax),
    }  # fmt: skip


# Sizes that the text takes as given: shapes, devices, block sizes, scores, settings, versions.
GIVEN = {
    "02", "04", "05", "06", "07", "10", "12", "15", "16", "20", "30", "32", "40", "48", "64", "80",
    "108", "128", "192", "200", "256", "288", "900", "1.5", "10⁹", "2³⁰", "2¹⁰", "1,000", "8,192",
    "1000", "1001",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers(LESSON) - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Published figures, and arithmetic done by hand."""
    assert flash.score_matrix_bytes(8192, 8192) == 134_217_728
    assert flash.score_matrix_bytes(8192, 8192, 32) == 4_294_967_296
    assert flash.standard_traffic_bytes(8192, 8192, 128) == 8 * (8192 * 128 + 8192**2)
    assert flash.flash_traffic_bytes(8, 8, 2, 4, 4) == 160
    assert flash.largest_block_q(49_152, 64, 64) == 80
    assert flash.count_tiles(8, 8, 4, 4) == (1, 2, 1)
    assert sum(e.minutes for e in registry.exercises(LESSON)) == 130  # "2 h 10 min"
    assert round(108 * 192 / 1000) == 21  # MB; the paper rounds down to 20


def test_predictions_have_the_right_answers():
    answers = {p.id: p.answer() for p in registry.predictions(LESSON)}
    assert answers["fa_scores"] == 8192**2 * 32 * 2
    assert answers["fa_exact"] == "the same but for rounding"
    assert answers["fa_double"] == pytest.approx(4, rel=0.02)
    tiles = 2 * 128 * 64 + 2 * 128 * 64 + 128 * 128 + 2 * 128
    assert answers["fa_memory"] == pytest.approx(4096**2 / tiles)


# ---- the reference against other means ----------------------------------------------------------


def memory_of(rng, n_heads, n_kv_heads, T, S, d_head, dtype=np.float64):
    q = rng.normal(size=(n_heads, T, d_head)).astype(dtype)
    k, v = rng.normal(size=(2, n_kv_heads, S, d_head)).astype(dtype)
    return CountedMemory(q=q, k=k, v=v, out=np.full_like(q, np.nan))


sizes = st.tuples(
    st.sampled_from([(1, 1), (4, 2), (6, 2), (3, 1)]),
    st.integers(1, 20), st.integers(0, 20), st.integers(1, 9), st.integers(1, 9),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(sizes, st.booleans())
def test_tiles_equal_the_plain_formula_and_torch_and_move_what_is_predicted(shape, causal):
    heads, T, more, block_q, block_k = shape
    S, d_head = T + more, 5
    memory = memory_of(np.random.default_rng(T * 100 + more), *heads, T, S, d_head)
    flash.tiled_attention(memory, block_q, block_k, causal)
    q, k, v = (memory.result(name) for name in "qkv")
    visible = causal_mask(T, S) if causal else np.ones((T, S), bool)
    out = memory.result("out")
    assert np.abs(out - attention(q[None], k[None], v[None], visible)[0]).max() < 1e-12
    k, v = (np.repeat(a, heads[0] // heads[1], 0) for a in (k, v))
    torch_out = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), attn_mask=torch.from_numpy(visible)
    )
    assert np.abs(out - torch_out.numpy()).max() < 1e-12
    moved = memory.loaded_bytes + memory.stored_bytes
    given_sizes = (T, S, d_head, block_q, block_k, heads[0], 8, causal)
    assert moved == flash.flash_traffic_bytes(*given_sizes)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 12), st.integers(1, 12))
def test_tiles_are_counted_as_the_mask_says(T, more, block_q, block_k):
    S, found = T + more, [0, 0, 0]
    visible = causal_mask(T, S)
    for i in range(0, T, block_q):
        for j in range(0, S, block_k):
            tile = visible[i : i + block_q, j : j + block_k]
            found[0 if tile.all() else 1 if tile.any() else 2] += 1
    assert flash.count_tiles(T, S, block_q, block_k) == tuple(found)


def test_float32_stays_float32_and_is_not_bit_exact():
    memory = memory_of(np.random.default_rng(0), 1, 1, 1000, 1000, 64, np.float32)
    flash.tiled_attention(memory, 128, 64)
    plain = attention(*(memory.result(n)[None] for n in "qkv"), causal_mask(1000, 1000))[0]
    out = memory.result("out")
    assert out.dtype == np.float32
    assert 0 < np.abs(out - plain).max() < 1e-5
    assert (out == plain).mean() < 0.9


def test_normaliser_and_partial_results_against_torch():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(5, 23)) * 30
    row_max, row_sum = flash.online_normalizer(iter(np.split(scores, [4, 11, 20], axis=1)))
    lse = torch.logsumexp(torch.from_numpy(scores), -1).numpy()
    assert np.allclose(row_max + np.log(row_sum), lse, rtol=1e-13)
    q, k, v = rng.normal(size=(3, 4)), *rng.normal(size=(2, 3, 17, 4))
    out, lse = flash.partial_attention(q, k, v)
    oracle = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q[:, None], k, v))
    )
    assert np.allclose(out, oracle[:, 0].numpy(), rtol=1e-12)
    raw = torch.from_numpy(np.einsum("hd,hsd->hs", q, k) / 2)
    assert np.allclose(lse, torch.logsumexp(raw, -1).numpy(), rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_splits_merge_to_the_whole_in_any_grouping(lengths):
    rng = np.random.default_rng(sum(lengths))
    q, k, v = rng.normal(size=(2, 6)), *rng.normal(size=(2, 2, sum(lengths), 6)) * 3
    memory = CountedMemory(q=q, k=k, v=v, out=np.full_like(q, np.nan))
    flash.split_kv_decode(memory, lengths)
    whole, lse = flash.partial_attention(q, k, v)
    assert np.allclose(memory.result("out"), whole, rtol=1e-12)
    assert memory.loaded_bytes == q.nbytes + k.nbytes + v.nbytes
    ends = np.cumsum(lengths)
    parts = [
        flash.partial_attention(q, k[:, e - n : e], v[:, e - n : e])
        for n, e in zip(lengths, ends, strict=True)
    ]
    merged = parts[-1]
    for part in parts[-2::-1]:  # from behind
        merged = flash.merge_partials(*part, *merged)
    assert np.allclose(merged[0], whole, rtol=1e-12)
    assert np.allclose(merged[1], lse, rtol=1e-12)


def test_a_wrong_sum_of_lengths_is_refused_with_both_numbers():
    memory = CountedMemory(**dict.fromkeys("kv", np.zeros((1, 7, 2))), q=np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"S=7, given \[3, 3\]"):
        flash.split_kv_decode(memory, [3, 3])


def test_the_block_is_the_largest_that_fits():
    for on_chip_bytes in range(30_000, 300_000, 7_777):
        for d_head, block_k in ((64, 32), (64, 64), (128, 32)):
            block_q = flash.largest_block_q(on_chip_bytes, d_head, block_k)
            fits = flash.on_chip_numbers(block_q, block_k, d_head) * 2 <= on_chip_bytes
            larger = flash.on_chip_numbers(block_q + 16, block_k, d_head) * 2 <= on_chip_bytes
            assert fits
            assert not larger
    with pytest.raises(ValueError, match="on_chip_bytes=10000"):
        flash.largest_block_q(10_000, 128, 64)


def test_traffic_is_quadratic_in_the_context_and_falls_with_the_chip():
    """Θ(S² d² / M): the law, with the constant of this loop: 6 where block_k is d_head."""
    d_head, S = 64, 65_536
    for kib in (256, 512, 1024):
        numbers = kib * 512
        block_q = flash.largest_block_q(kib * 1024, d_head, d_head)
        moved = flash.flash_traffic_bytes(S, S, d_head, block_q, d_head, 1, 1, causal=False)
        assert moved == pytest.approx(6 * S * S * d_head**2 / numbers, rel=0.12)
        twice = flash.flash_traffic_bytes(2 * S, 2 * S, d_head, block_q, d_head, 1, 1, False)
        assert twice / moved == pytest.approx(4, rel=0.02)


def test_the_bound_on_what_is_held_lets_tiles_through_and_nothing_larger():
    T, S, d_head, block = 32, 1024, 8, 16
    limit = peak_limit_bytes(block, block, d_head)
    memory = memory_of(np.random.default_rng(0), 2, 1, T, S, d_head)
    with memory.watching():
        flash.tiled_attention(memory, block, block)
    assert memory.peak_bytes < limit / 2  # twice what the reference needs is allowed
    assert limit < S * d_head * 8  # all keys of a head
    assert limit < block * S * 8  # a row of tiles


@pytest.mark.parametrize("name", ["row_max", "row_sum", "acc", "scores"])
def test_an_update_in_place_is_told_which_argument_it_changed(name):
    """Not that an earlier result was wrong: that array is the same one, changed later."""

    def in_place(**arrays):
        fresh = dict(zip(("row_max", "row_sum", "acc"), flash.online_update(**arrays), strict=True))
        arrays[name][:] = fresh.get(name, 1.0)
        return tuple((fresh | ({name: arrays[name]} if name in fresh else {})).values())

    def answer(row_max, row_sum, acc, scores, v):
        return in_place(row_max=row_max, row_sum=row_sum, acc=acc, scores=scores, v=v)

    update = next(e for e in registry.exercises(LESSON) if e.id == "online_update")
    text = judge(update, answer).text()
    assert "changed in place: expected 'none'" in text
    assert f"got '{name}'" in text
