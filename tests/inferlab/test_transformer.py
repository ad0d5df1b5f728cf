"""The forward pass agrees with PyTorch, with transformers, and with itself cut into pieces."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from drawn_models import TINY, tiny_model

from inferlab import operators
from inferlab.config import ModelConfig
from inferlab.kv_cache import KVCache
from inferlab.model import Model

RNG = np.random.default_rng(7)


def torch_forward(model: Model, tokens: np.ndarray) -> np.ndarray:
    """An independent float64 oracle: complex RoPE, torch's own norm, attention and silu."""
    c, w = model.config, model.weights
    t, t_float = torch.from_numpy, torch.float64
    B, T = tokens.shape
    half = c.d_head // 2
    turn = torch.tensor([c.rope_theta ** (-2 * i / c.d_head) for i in range(half)], dtype=t_float)
    phase = torch.polar(
        torch.ones(T, half, dtype=t_float), torch.outer(torch.arange(T, dtype=t_float), turn)
    )

    def heads(x):
        return x.view(B, T, -1, c.d_head).transpose(1, 2)

    def turned(x):
        pairs = torch.complex(x[..., :half], x[..., half:]) * phase
        return torch.cat([pairs.real, pairs.imag], -1)

    x = F.embedding(t(tokens), t(w.embedding))
    for layer in w.layers:
        h = F.rms_norm(x, (c.d_model,), t(layer.attention_gain), c.norm_eps)
        q, k, v = (heads(h @ t(m)) for m in (layer.w_q, layer.w_k, layer.w_v))
        mixed = F.scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=True
        )
        x = x + mixed.transpose(1, 2).reshape(B, T, -1) @ t(layer.w_o)
        h = F.rms_norm(x, (c.d_model,), t(layer.mlp_gain), c.norm_eps)
        x = x + (F.silu(h @ t(layer.w_gate)) * (h @ t(layer.w_up))) @ t(layer.w_down)
    return (F.rms_norm(x, (c.d_model,), t(w.final_gain), c.norm_eps) @ t(w.head)).numpy()


def random_tokens(config: ModelConfig, B: int = 2, T: int = 13) -> np.ndarray:
    return np.random.default_rng(3).integers(0, config.vocab_size, (B, T))


@pytest.mark.parametrize("kind", TINY)
def test_float64_logits_equal_an_independent_torch_forward(kind):
    model = tiny_model(kind)
    tokens = random_tokens(model.config)
    logits = model.forward(tokens)
    assert logits.dtype == np.float64
    assert np.abs(logits).max() > 0.5, "logits near zero would agree with anything"
    np.testing.assert_allclose(logits, torch_forward(model, tokens), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", TINY)
def test_float32_stays_float32_and_close_to_float64(kind):
    model32, model64 = tiny_model(kind, np.float32), tiny_model(kind)
    tokens = random_tokens(model32.config)
    logits = model32.forward(tokens)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, model64.forward(tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", TINY)
def test_chunks_through_a_cache_equal_one_pass(kind):
    model = tiny_model(kind)
    tokens = random_tokens(model.config, B=2, T=13)
    full = model.forward(tokens)
    cache = model.new_cache(capacity=2, n_sequences=2)
    pieces = [model.forward(tokens[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 12), (12, 13))]
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), full, rtol=0, atol=1e-10)
    assert cache.n_tokens == 13


def test_last_only_and_next_logits_are_the_last_row():
    model = tiny_model()
    tokens = random_tokens(model.config, B=1)
    full = model.forward(tokens)
    np.testing.assert_allclose(model.forward(tokens, last_only=True)[:, 0], full[:, -1], atol=1e-12)
    np.testing.assert_allclose(model.next_logits(tokens[0].tolist()), full[0, -1], atol=1e-12)


def test_the_past_does_not_see_the_future():
    model = tiny_model()
    tokens = random_tokens(model.config, B=1)
    changed = tokens.copy()
    changed[0, -1] = (changed[0, -1] + 1) % model.config.vocab_size
    before, after = model.forward(tokens), model.forward(changed)
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert np.abs(before[:, -1] - after[:, -1]).max() > 1e-3


@pytest.mark.parametrize(("T", "S"), [(1, 9), (4, 9), (9, 9), (1, 1)])
@pytest.mark.parametrize("n_kv_heads", [6, 3, 1])
def test_attention_equals_torch(T, S, n_kv_heads):
    q = RNG.standard_normal((2, 6, T, 8))
    k, v = RNG.standard_normal((2, 2, n_kv_heads, S, 8))
    visible = operators.causal_mask(T, S)
    expected = F.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), attn_mask=torch.from_numpy(visible), enable_gqa=True
    )
    np.testing.assert_allclose(
        operators.attention(q, k, v, visible), expected.numpy(), rtol=0, atol=1e-12
    )


def test_attention_refuses_a_blind_query_and_uneven_heads():
    q, k = np.zeros((1, 4, 2, 8)), np.zeros((1, 2, 3, 8))
    with pytest.raises(ValueError, match="at least one key"):
        operators.attention(q, k, k, np.array([[True, False, False], [False, False, False]]))
    with pytest.raises(ValueError, match=r"n_heads=4.*n_kv_heads=3"):
        operators.attention(q, np.zeros((1, 3, 3, 8)), k, operators.causal_mask(2, 3))


def test_causal_mask_by_a_loop():
    mask = operators.causal_mask(3, 5)
    for t in range(3):
        for s in range(5):
            assert mask[t, s] == (s <= 5 - 3 + t)
    assert operators.causal_mask(1, 4).all()
    with pytest.raises(ValueError, match=r"T=3.*S=2"):
        operators.causal_mask(3, 2)


def test_rotation_turns_pairs_half_a_head_apart():
    np.testing.assert_allclose(
        operators.rope_angles(np.array([0, 3]), 4, 100.0), [[0, 0], [3, 0.3]], atol=1e-15
    )
    x = RNG.standard_normal((1, 1, 2, 4))
    out = operators.rotate(x, np.array([[0.0, 0.0], [3.0, 0.3]]))
    np.testing.assert_array_equal(out[0, 0, 0], x[0, 0, 0])
    a, b = x[0, 0, 1, 1], x[0, 0, 1, 3]
    assert out[0, 0, 1, 1] == pytest.approx(a * math.cos(0.3) - b * math.sin(0.3))
    assert out[0, 0, 1, 3] == pytest.approx(a * math.sin(0.3) + b * math.cos(0.3))
    with pytest.raises(ValueError, match="even"):
        operators.rope_angles(np.arange(2), 5, 1e4)


def test_a_score_depends_on_the_distance_only():
    q, k = RNG.standard_normal((2, 1, 1, 1, 16))

    def score(i, j):
        turned_q = operators.rotate(q, operators.rope_angles(np.array([i]), 16, 1e4))
        turned_k = operators.rotate(k, operators.rope_angles(np.array([j]), 16, 1e4))
        return float((turned_q * turned_k).sum())

    assert score(9, 4) == pytest.approx(score(1005, 1000), rel=1e-9)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_small_functions_equal_torch():
    x = RNG.standard_normal((3, 5)) * 10
    gain = RNG.uniform(0.5, 2, 5)
    t = torch.from_numpy
    np.testing.assert_allclose(operators.softmax(x), F.softmax(t(x), -1), atol=1e-14)
    np.testing.assert_allclose(
        operators.rms_norm(x, gain, 1e-5), F.rms_norm(t(x), (5,), t(gain), 1e-5), atol=1e-12
    )
    np.testing.assert_allclose(operators.silu(x), F.silu(t(x)), atol=1e-12)
    np.testing.assert_allclose(
        operators.rms_norm(np.array([3.0, 4.0]), np.array([1.0, 2.0]), 0.0),
        [0.8485, 2.2627],
        atol=1e-4,
    )


def test_nothing_overflows_in_float32():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        big = np.array([-1e4, -100, 0, 100, 1e4], dtype=np.float32)
        np.testing.assert_allclose(operators.silu(big), [0, 0, 0, 100, 1e4], atol=1e-20)
        np.testing.assert_array_equal(operators.softmax(big), [0, 0, 0, 0, 1])


def test_heads_split_and_merge():
    x = RNG.standard_normal((2, 3, 12))
    heads = operators.split_heads(x, 4)
    assert heads.shape == (2, 3, 3, 4)
    np.testing.assert_array_equal(heads[1, 2, 0], x[1, 0, 8:12])
    np.testing.assert_array_equal(operators.merge_heads(heads), x)
    with pytest.raises(ValueError, match=r"12.*d_head=5"):
        operators.split_heads(x, 5)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((1, 65), int), r"65 tokens are more than max_context=64"),
        (np.array([[0, 67]]), r"token id 67 must be in 0\.\.66"),
        (np.array([[-1]]), r"token id -1"),
        (np.zeros((1, 0), int), r"at least one token"),
        (np.zeros(3, int), r"\(B, T\)"),
        (np.zeros((1, 2)), r"whole numbers"),
    ],
)
def test_forward_refuses_bad_tokens(tokens, message):
    with pytest.raises(ValueError, match=message):
        tiny_model().forward(tokens)


def test_the_context_counts_cached_tokens():
    model = tiny_model()
    cache = model.new_cache()
    model.next_logits([1] * 60, cache)
    with pytest.raises(ValueError, match=r"65 tokens \(60 of them cached\).*max_context=64"):
        model.next_logits([1] * 5, cache)
    assert isinstance(cache, KVCache)
    assert cache.n_tokens == 60, "a refused step must leave the cache as it was"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_heads": 3}, r"n_heads=4 must be a multiple of n_kv_heads=3"),
        ({"d_head": 7}, r"d_head=7 must be even"),
        ({"n_layers": 0}, r"n_layers=0"),
        ({"d_ff": 2.5}, r"d_ff=2\.5"),
        ({"rope_theta": -1.0}, r"rope_theta=-1\.0"),
        ({"norm_eps": float("nan")}, r"norm_eps=nan"),
        ({"eos_ids": (67,)}, r"token id 67 must be below vocab_size=67"),
    ],
)
def test_config_refuses_nonsense_with_both_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{**vars(TINY["gqa"]), **changes})


def test_n_params_counts_every_array():
    for kind in TINY:
        model = tiny_model(kind, np.float32)
        assert model.n_params * 4 == model.weight_bytes
