"""A decode step of one row against the general code: the same logits, the same cache."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_models import TINY

from inferlab.config import ModelConfig
from inferlab.engines.fast_numpy.step import KEYS, scores_of_row
from inferlab.engines.pytorch.attention import QUERY_ROWS, attend
from inferlab.engines.pytorch.cache import Places, TorchCache
from inferlab.engines.pytorch.model import TorchModel
from inferlab.model import Model
from inferlab.sizes import RopeScaling
from inferlab.weights import random_weights

WIDE = ModelConfig(2, 64, 4, 2, 16, 96, 128, 600)  # multiples of 32, so it can be quantized
KINDS = {
    "plain": WIDE,
    "one query head a key head": replace(WIDE, n_kv_heads=4),
    "untied": replace(WIDE, tied_embeddings=False),
    "biases": replace(WIDE, attention_bias=True),
    "window": replace(WIDE, sliding_window=5),
    "scaled rope": replace(WIDE, rope_scaling=RopeScaling(original_context=16)),
}
NORMED = replace(WIDE, qk_norm=True)


@pytest.fixture(autouse=True)
def _one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def engine_of(config: ModelConfig, dtype: str = "float32") -> TorchModel:
    model = Model(config, random_weights(config, np.random.default_rng(0)))
    return TorchModel.from_model(model, dtype=dtype)


def tokens_of(config: ModelConfig, n: int) -> list[int]:
    return np.random.default_rng(1).integers(0, config.vocab_size, n).tolist()


def counted(engine: TorchModel) -> list[int]:
    """The tokens that go the short way from here on."""
    taken: list[int] = []
    step = engine.step
    assert step is not None

    def spy(model, token, cache, row):
        taken.append(token)
        return step(model, token, cache, row)

    engine.step = spy
    return taken


def run_both(engine: TorchModel, tokens: list[int], n_prompt: int) -> list[tuple]:
    """Logits of each token after the prompt, and the cache: by the short way, and without it."""
    found = []
    for step in (engine.step, None):
        engine.step = step
        cache = engine.new_cache(n_prompt)  # it grows on the way
        engine.next_logits(tokens[:n_prompt], cache)
        logits = np.stack([engine.next_logits([t], cache) for t in tokens[n_prompt:]])
        found.append((logits, cache))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_float32_step_is_that_of_the_general_code(kind):
    engine = engine_of(KINDS[kind])
    assert engine.step is not None
    (got, cache), (expected, other) = run_both(engine, tokens_of(WIDE, 24), 9)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert cache.lengths == other.lengths == [24]
    for held, wanted in ((cache.keys, other.keys), (cache.values, other.values)):
        torch.testing.assert_close(held[..., :24, :], wanted[..., :24, :], rtol=1e-5, atol=1e-5)


def test_a_long_context_is_taken_in_blocks():
    tokens = tokens_of(WIDE, 2 * KEYS + 5)
    (got, _), (expected, _) = run_both(engine_of(WIDE), tokens, 2 * KEYS - 2)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "biases", "window"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_step_of_quantized_weights_differs_by_rounding_only(kind, dtype):
    engine = engine_of(KINDS[kind], dtype)
    (got, _), (expected, _) = run_both(engine, tokens_of(WIDE, 24), 9)
    # bfloat16 keeps 8 bits: rows that are rounded once more or less differ by some 2**-8.
    assert np.abs(got - expected).max() <= 0.03 * np.abs(expected).max()
    assert np.abs(got - expected).mean() <= 0.005 * np.abs(expected).max()


def test_one_sequence_of_several_is_stepped_and_the_others_stay():
    engine = engine_of(WIDE)
    tokens = tokens_of(WIDE, 12)
    alone = engine.new_cache(16)
    cache = engine.new_cache(16, 3)
    for row, n in enumerate((2, 7, 4)):
        engine.prefill(tokens[:n], cache, row)
    before = cache.keys.clone()
    engine.next_logits(tokens[:7], alone)
    taken = counted(engine)
    got = engine.prefill([tokens[7]], cache, 1).numpy()
    np.testing.assert_allclose(got, engine.next_logits([tokens[7]], alone), atol=1e-5)
    assert taken == [tokens[7]] * 2
    assert cache.lengths == [2, 8, 4]
    changed = (cache.keys != before).nonzero()
    assert set(changed[:, 1].tolist()) == {1}
    assert set(changed[:, 3].tolist()) == {7}


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_only_single_rows_on_a_cache_go_the_short_way(dtype):
    engine = engine_of(WIDE, dtype)
    taken = counted(engine)
    cache = engine.new_cache(4)
    engine.forward([[1]])  # no cache
    engine.next_logits([1, 2, 3], cache)
    engine.decode([4, 5], engine.new_cache(4, 2))
    assert taken == []
    engine.next_logits([6], cache)
    engine.decode([7], cache)
    engine.prefill([8, 9], cache, chunk=1)
    assert taken == [6, 7, 8, 9]


def test_a_model_that_nobody_holds_is_gone_at_once():
    engine = engine_of(WIDE, "int4")
    held = weakref.ref(engine.layers[0].qkv.weight.packed)
    engine.next_logits([1], engine.new_cache())
    del engine
    assert held() is None  # without a garbage collection: nothing in it points back at it


def test_models_that_do_not_fit_have_no_short_way():
    assert engine_of(NORMED).step is None
    assert engine_of(WIDE, "bfloat16").step is None
    assert engine_of(WIDE, "float16").step is None


@pytest.mark.parametrize(
    ("dtype", "held"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("int8", torch.float32),
        ("int4", torch.float32),
    ],
)
def test_the_cache_is_float32_where_the_short_way_needs_it(dtype, held):
    cache = engine_of(WIDE, dtype).new_cache()
    assert (cache.keys.dtype, cache.values.dtype) == (held, held)


def test_a_gate_far_below_zero_closes_without_a_warning():
    config = replace(WIDE, n_layers=1)
    weights = random_weights(config, np.random.default_rng(0))
    layer = replace(weights.layers[0], w_gate=weights.layers[0].w_gate * 1e4)
    engine = TorchModel(config, replace(weights, layers=(layer,)))
    with np.errstate(all="raise", under="ignore"):
        (got, _), (expected, _) = run_both(engine, tokens_of(config, 8), 4)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


# ---- its parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("S", [1, KEYS - 1, KEYS, KEYS + 1, 3 * KEYS + 7])
def test_scores_in_blocks_of_keys_are_the_scores(S):
    rng = np.random.default_rng(S)
    held = rng.standard_normal((3, S + 5, 8), dtype=np.float32)
    q = rng.standard_normal((3, 2, 8), dtype=np.float32)
    out = np.full((3, 2, S), np.nan, np.float32)
    assert scores_of_row(q, held[:, :S], out) is out
    np.testing.assert_allclose(out, np.einsum("hqd,hsd->hqs", q, held[:, :S]), atol=1e-5)


@pytest.mark.parametrize("T", [1, 5, QUERY_ROWS, QUERY_ROWS + 3])
@pytest.mark.parametrize("lengths", [[6, 6], [6, 2]])
def test_16_bit_queries_over_a_float32_cache(T, lengths):
    """Against the same queries over the same cache, all in float32."""
    config = TINY["gqa"]
    draw = torch.Generator().manual_seed(0)
    shape = (2, config.n_kv_heads, T, config.d_head)
    cache = TorchCache(config, 2, 6 + T)
    cache.keys.normal_(generator=draw), cache.values.normal_(generator=draw)
    cache.lengths = list(lengths)
    q = torch.randn(2, config.n_heads, T, config.d_head, generator=draw).bfloat16()
    k, v = (torch.randn(shape, generator=draw).bfloat16() for _ in range(2))
    seen = Places(T, torch.device("cpu"), cache).store(0, k, v)
    assert seen[0].dtype == torch.float32
    got = attend(q, *seen, Places(T, torch.device("cpu"), cache))
    expected = attend(q.float(), *seen, Places(T, torch.device("cpu"), cache))
    assert got.dtype == torch.bfloat16
    # Scores of many queries are rounded to bfloat16 too, before the softmax.
    limit = 0.01 if T < QUERY_ROWS else 0.05
    assert (got.float() - expected).abs().max() <= limit * expected.abs().max()
