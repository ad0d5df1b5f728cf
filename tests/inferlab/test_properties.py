"""What holds for all shapes: masks, heads, rotations, softmax, attention and the whole forward."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lattice_models import KINDS, model_of

from inferlab import operators
from inferlab.sizes import RopeScaling

QUICK = settings(derandomize=True, deadline=None, max_examples=30)
FEW = settings(derandomize=True, deadline=None, max_examples=6)

small = st.integers(1, 7)
seeds = st.integers(0, 2**16)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@QUICK
@given(small, small)
def test_causal_mask_lets_query_t_see_just_the_past(T, more):
    S = T + more - 1
    mask = operators.causal_mask(T, S)
    assert mask.shape == (T, S)
    assert mask.dtype == bool
    for t in range(T):
        assert mask[t].tolist() == [s <= S - T + t for s in range(S)]


@QUICK
@given(small, small, st.integers(1, 20))
def test_window_mask_is_the_newest_keys_of_the_causal_mask(T, more, window):
    S = T + more - 1
    mask, causal = operators.window_mask(T, S, window), operators.causal_mask(T, S)
    for row, allowed in zip(mask, causal, strict=True):
        newest = np.flatnonzero(allowed)[-window:]
        assert np.flatnonzero(row).tolist() == newest.tolist()


def test_window_mask_refuses_no_window_and_too_few_keys():
    with pytest.raises(ValueError, match="window=0"):
        operators.window_mask(2, 3, 0)
    with pytest.raises(ValueError, match=r"T=3.*S=2"):
        operators.window_mask(3, 2, 5)


@QUICK
@given(small, small, small, small, seeds)
def test_heads_split_and_merge_without_loss(B, T, n_heads, d_head, seed):
    x = numbers(seed, B, T, n_heads * d_head)
    heads = operators.split_heads(x, d_head)
    assert heads.shape == (B, n_heads, T, d_head)
    for h in range(n_heads):
        np.testing.assert_array_equal(heads[:, h], x[:, :, h * d_head : (h + 1) * d_head])
    np.testing.assert_array_equal(operators.merge_heads(heads), x)


@QUICK
@given(small, small, small, st.integers(0, 10**5), seeds)
def test_rotation_keeps_lengths_and_can_be_undone(n_heads, T, half, position, seed):
    x = numbers(seed, 2, n_heads, T, 2 * half)
    angles = operators.rope_angles(np.arange(position, position + T), 2 * half, 1e4)
    turned = operators.rotate(x, angles)
    np.testing.assert_allclose((turned**2).sum(-1), (x**2).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(operators.rotate(turned, -angles), x, atol=1e-12)


@QUICK
@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 5000), st.booleans(), seeds)
def test_scores_depend_on_relative_position_only(i, j, shift, stretched, seed):
    q, k = numbers(seed, 2, 1, 1, 1, 16)
    scaling = RopeScaling(original_context=64) if stretched else None

    def score(i: int, j: int) -> float:
        at_i, at_j = (operators.stretched_angles(np.array([p]), 16, 1e4, scaling) for p in (i, j))
        return float((operators.rotate(q, at_i) * operators.rotate(k, at_j)).sum())

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), abs=1e-8)


@QUICK
@given(st.floats(1, 32), st.floats(0.5, 2), st.floats(0.1, 8), st.integers(16, 10**4))
def test_stretching_lies_between_nothing_and_the_whole_factor(factor, low, gap, context):
    scaling = RopeScaling(factor, low, low + gap, context)
    turn = 1e4 ** (-np.arange(64) / 64)
    ratio = operators.stretch(turn, scaling) / turn
    n_turns = turn * context / (2 * math.pi)
    assert (ratio <= 1 + 1e-12).all()
    assert (ratio >= 1 / factor - 1e-12).all()
    np.testing.assert_allclose(ratio[n_turns >= low + gap], 1)
    np.testing.assert_allclose(ratio[n_turns <= low], 1 / factor)
    assert (np.diff(ratio) <= 1e-12).all(), "slower pairs are slowed down at least as much"


@QUICK
@given(small, small, st.floats(0, 1e4), seeds)
def test_softmax_rows_are_weights_that_ignore_a_shift(n, S, scale, seed):
    scores = numbers(seed, n, S) * scale
    weights = operators.softmax(scores)
    assert ((weights >= 0) & (weights <= 1)).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(operators.softmax(scores + 3.0), weights, atol=1e-9)
    assert (weights.argmax(-1) == scores.argmax(-1)).all()


@QUICK
@given(st.integers(1, 2), small, small, st.sampled_from([(6, 6), (6, 3), (6, 1)]), small, seeds)
def test_attention_equals_a_loop(B, T, more, heads, d_value, seed):
    n_heads, n_kv_heads = heads
    S, d_head = T + more - 1, 4
    q, k = numbers(seed, B, n_heads, T, d_head), numbers(seed + 1, B, n_kv_heads, S, d_head)
    v = numbers(seed + 2, B, n_kv_heads, S, d_value)
    visible = np.random.default_rng(seed).random((T, S)) < 0.5
    visible[:, 0] = True
    got = operators.attention(q, k, v, visible)
    assert got.shape == (B, n_heads, T, d_value)
    for b, h, t in np.ndindex(B, n_heads, T):
        kv = h // (n_heads // n_kv_heads)
        seen = [s for s in range(S) if visible[t, s]]
        fits = [math.exp(q[b, h, t] @ k[b, kv, s] / math.sqrt(d_head)) for s in seen]
        expected = sum(f * v[b, kv, s] for f, s in zip(fits, seen, strict=True)) / sum(fits)
        np.testing.assert_allclose(got[b, h, t], expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(T=st.integers(2, 9), kept=st.integers(1, 8), seed=seeds)
def test_later_tokens_do_not_change_what_came_before(kind, T, kept, seed):
    model = model_of(kind)
    kept = min(kept, T - 1)
    tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, (2, T))
    whole, prefix = model.forward(tokens), model.forward(tokens[:, :kept])
    assert whole.shape == (2, T, model.config.vocab_size)
    np.testing.assert_allclose(whole[:, :kept], prefix, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_a_batch_do_not_touch_each_other(kind):
    model = model_of(kind)
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (3, 8))
    together = model.forward(tokens)
    for b in range(3):
        np.testing.assert_allclose(
            model.forward(tokens[b : b + 1])[0], together[b], rtol=0, atol=1e-10
        )
