"""MLA in both forms: one equals the other, a step never expands the cache, transformers agrees."""

from dataclasses import replace

import numpy as np
import pytest
from their_models import TOKENS, their_logits, their_model

from inferlab import mla
from inferlab.cache_sizes import cache_bytes
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.engines.choose import Engine
from inferlab.mla import absorbed_attention, absorbing_pays, expand_latent
from inferlab.model import Model, load_model
from inferlab.operators import attention, causal_mask
from inferlab.sizes import MlaConfig
from inferlab.weights import random_weights

WIDTHS = MlaConfig(d_latent=12, d_nope=6, d_rope=4, d_value=10)


def operands(n_heads: int, T: int, S: int, dtype: type = np.float64, B: int = 2) -> tuple:
    rng = np.random.default_rng(n_heads + 10 * T + 100 * S)
    shapes = (
        (B, n_heads, T, WIDTHS.d_nope + WIDTHS.d_rope),
        (B, S, WIDTHS.d_latent),
        (B, S, WIDTHS.d_rope),
        (WIDTHS.d_latent, n_heads * WIDTHS.d_nope),
        (WIDTHS.d_latent, n_heads * WIDTHS.d_value),
    )
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


@pytest.mark.parametrize(("n_heads", "T", "S"), [(1, 1, 1), (3, 1, 9), (5, 4, 7), (2, 6, 6)])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_the_absorbed_form_equals_the_expanded_one(n_heads, T, S, dtype, error):
    q, latent, k_rope, w_k, w_v = operands(n_heads, T, S, dtype)
    visible = causal_mask(T, S)
    expected = attention(q, *expand_latent(latent, k_rope, w_k, w_v, n_heads), visible)
    got = absorbed_attention(q, latent, k_rope, w_k, w_v, visible)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=0, atol=error)


def test_the_form_that_takes_fewer_multiplications_is_chosen():
    """Counted by loops over both forms' products; a prefill never absorbs, a step nearly always."""

    def multiplications(widths: MlaConfig, T: int, S: int, absorbed: bool) -> int:
        moved = sum(widths.d_latent * d for d in (widths.d_nope, widths.d_value))
        rows = T if absorbed else S
        scored = (widths.d_latent if absorbed else widths.d_nope) + widths.d_rope
        mixed = widths.d_latent if absorbed else widths.d_value
        return rows * moved + T * S * (scored + mixed)

    v3 = model_preset("deepseek-v3").mla
    assert v3 is not None
    for widths in (v3, WIDTHS):
        for T, S in [(1, 1), (1, 2), (1, 5000), (3, 40), (100, 8192), (180, 8192), (512, 512)]:
            counts = [multiplications(widths, T, S, absorbed) for absorbed in (True, False)]
            assert absorbing_pays(widths, T, S) == (counts[0] < counts[1]), (T, S)
        assert absorbing_pays(widths, 1, 100)
        assert not absorbing_pays(widths, 100, 100)
    assert absorbing_pays(v3, 150, 100_000)
    assert not absorbing_pays(v3, 190, 100_000)


def tiny(n_layers: int = 2) -> Model:
    config = ModelConfig(
        n_layers, 32, 4, 4, 10, 48, 97, max_context=64, tied_embeddings=False, mla=WIDTHS
    )
    return Model(config, random_weights(config, np.random.default_rng(1), np.float64))


def test_a_decode_step_expands_nothing_and_a_prefill_does(monkeypatch):
    model, expanded = tiny(), []

    def counted(latent, *rest):
        expanded.append(latent.shape[1])
        return expand_latent(latent, *rest)

    monkeypatch.setattr(mla, "expand_latent", counted)
    cache = model.new_cache()
    model.next_logits(list(range(9)), cache)
    assert expanded == [9, 9], "each layer of the prefill expands its 9 tokens"
    model.next_logits([5], cache)
    assert expanded == [9, 9]


def test_a_model_says_the_same_with_only_one_of_the_forms(monkeypatch):
    model, text = tiny(3), np.arange(20)[None] % 7
    answers = []
    for pays in (True, False):
        monkeypatch.setattr(mla, "absorbing_pays", lambda *sizes, pays=pays: pays)
        answers.append(model.forward(text))
    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["deepseek-v2, dense", "deepseek-v2, experts"])
def test_decoding_step_by_step_gives_the_logits_of_transformers(kind, tmp_path):
    """One token a pass, in the absorbed form, against their full pass without a cache."""
    original = their_model(kind)
    original.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    widths = model.config.mla
    assert widths is not None
    assert absorbing_pays(widths, 1, 2)
    expected = their_logits(original, TOKENS)
    cache = model.new_cache(n_sequences=len(TOKENS))
    steps = [model.forward(TOKENS[:, t : t + 1], cache) for t in range(TOKENS.shape[1])]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), expected, rtol=0, atol=1e-4)


def test_their_cache_holds_the_latent_too(tmp_path):
    """What the lesson says of transformers: kept compressed, in as many numbers as ours."""
    import torch

    original = their_model("deepseek-v2, dense")
    with torch.no_grad():
        cache = original(torch.from_numpy(TOKENS), use_cache=True).past_key_values
    n_numbers = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    original.save_pretrained(tmp_path)
    config = load_model(tmp_path).config
    assert 4 * n_numbers == cache_bytes(config, TOKENS.shape[1], len(TOKENS), 4)


def test_a_step_reads_the_latents_and_the_weights():
    model = tiny()
    engine = Engine(model, "numpy", "cpu", "float32")
    held = 2 * 30 * (WIDTHS.d_latent + WIDTHS.d_rope) * 4
    in_weights = model.weights.n_bytes - model.weights.embedding.nbytes
    assert engine.step_bytes(30) == held + in_weights
    experts = replace(model.config, n_experts=2, n_experts_per_token=1, d_expert=8)
    assert Engine(replace(model, config=experts), "numpy", "cpu", "float32").step_bytes(30) == 0
