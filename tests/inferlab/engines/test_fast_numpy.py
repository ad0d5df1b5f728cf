"""The fast NumPy engine computes what the readable one computes, and no less exactly."""

from dataclasses import fields, replace

import numpy as np
import pytest
from drawn_models import TINY, tiny_model

from inferlab.config import ModelConfig
from inferlab.engines.arena import Arena, arena_bytes
from inferlab.engines.fast_numpy import model as fast_numpy
from inferlab.engines.fast_numpy import step as fast_step
from inferlab.engines.fast_numpy.model import FastModel
from inferlab.generate import generate_cached
from inferlab.model import Model
from inferlab.sizes import RopeScaling, UnsupportedModel
from inferlab.weights import LayerWeights, Weights, random_weights


def draw(model, B: int, T: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, (B, T))


def as_float64(model: Model) -> Model:
    """The same weights in float64: the readable engine then rounds a billion times less."""
    w = model.weights
    layers = tuple(
        LayerWeights(**{name: a.astype(np.float64) for name, a in layer.arrays().items()})
        for layer in w.layers
    )
    wide = [a.astype(np.float64) for a in (w.embedding, w.final_gain, w.head)]
    return replace(model, weights=Weights(wide[0], layers, wide[1], wide[2]))


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize(("B", "T"), [(1, 1), (1, 2), (1, 3), (1, 9), (3, 1), (2, 1), (3, 7)])
def test_logits_are_those_of_the_readable_engine(kind, B, T):
    model = tiny_model(kind)
    tokens = draw(model, B, T)
    expected = model.forward(tokens)
    assert np.ptp(expected) > 3
    fast = FastModel.of(model)
    logits = fast.forward(tokens)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    last = fast.forward(tokens, last_only=True)
    np.testing.assert_allclose(last, expected[:, -1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("cuts", [[1] * 40, [40], [7, 1, 1, 20, 11], [2, 3, 35]])
@pytest.mark.parametrize("B", [1, 2])
def test_any_cut_of_the_text_through_a_cache_gives_the_same_logits(monkeypatch, kind, cuts, B):
    # Small blocks, so that 40 tokens cross the borders of passes and of blocks of queries and keys.
    monkeypatch.setattr(fast_step, "KEYS", 16)
    monkeypatch.setattr(fast_numpy, "ROWS", 12)
    monkeypatch.setattr(fast_numpy, "QUERY_ROWS", 5)
    model = tiny_model(kind)
    fast, tokens = FastModel.of(model), draw(model, B, 40)
    cache = fast.new_cache(capacity=4, n_sequences=B)
    parts, start = [], 0
    for n in cuts:
        parts.append(fast.forward(tokens[:, start : start + n], cache))
        start += n
        assert cache.n_tokens == start
    joined = np.concatenate(parts, axis=1)
    np.testing.assert_allclose(joined, model.forward(tokens), rtol=0, atol=1e-5)


def test_a_truncated_cache_goes_on_from_there():
    model = tiny_model()
    fast, tokens = FastModel.of(model), draw(model, 1, 20)
    cache = fast.new_cache()
    fast.forward(tokens[:, :12], cache)
    fast.forward(draw(model, 1, 5, seed=1), cache)
    cache.truncate(12)
    rest = fast.forward(tokens[:, 12:], cache)
    np.testing.assert_allclose(rest, model.forward(tokens)[:, 12:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", TINY)
def test_greedy_tokens_are_those_of_the_readable_engine(kind):
    model = tiny_model(kind)
    prompt = draw(model, 1, 5)[0].tolist()
    assert generate_cached(FastModel.of(model), prompt, 50) == generate_cached(model, prompt, 50)


def test_stretched_rope_is_followed():
    scaling = RopeScaling(factor=4.0, original_context=16)
    config = replace(TINY["gqa"], rope_scaling=scaling)
    model = Model(config, random_weights(config, np.random.default_rng(0), np.float64))
    tokens = draw(model, 1, 60)
    plain = replace(model, config=replace(config, rope_scaling=None)).forward(tokens)
    assert np.abs(plain - model.forward(tokens)).max() > 1e-2
    logits = FastModel.of(model).forward(tokens)
    np.testing.assert_allclose(logits, model.forward(tokens), rtol=0, atol=1e-5)


def test_huge_scores_and_gates_do_not_overflow():
    model = tiny_model()
    first = model.weights.layers[0]
    loud = replace(first, w_q=first.w_q * 300, w_gate=first.w_gate * 300)
    weights = replace(model.weights, layers=(loud, *model.weights.layers[1:]))
    model = replace(model, weights=weights)
    tokens = draw(model, 1, 30)
    with np.errstate(all="raise", under="ignore"):
        logits = FastModel.of(model).forward(tokens)
        cache = FastModel.of(model).new_cache()
        stepped = [FastModel.of(model).next_logits([t], cache) for t in tokens[0, :4]]
    expected = model.forward(tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-2)
    np.testing.assert_allclose(np.stack(stepped), expected[0, :4], rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"qk_norm": True},
        {"sliding_window": 8},
        {"n_experts": 4, "n_experts_per_token": 2, "d_expert": 16},
    ],
)
def test_what_it_does_not_do_is_refused_by_name(changes):
    config = replace(TINY["gqa"], **changes)
    with pytest.raises(UnsupportedModel, match=f"{next(iter(changes))}=.*readable"):
        FastModel(config, tiny_model().weights)


def test_every_field_of_a_configuration_is_known_or_refused():
    """A new field that is on must not be ignored: it is refused unless it is listed."""
    names = {f.name for f in fields(ModelConfig)}
    assert names >= fast_numpy._KNOWN_FIELDS
    refused = names - fast_numpy._KNOWN_FIELDS
    assert {"attention_bias", "qk_norm", "sliding_window", "n_experts", "mla"} <= refused


def test_wrong_tokens_are_refused_as_in_the_readable_engine():
    model = tiny_model()
    for engine in (model, FastModel.of(model)):
        with pytest.raises(ValueError, match="token id 67 must be in"):
            engine.next_logits([67])
        with pytest.raises(ValueError, match="more than max_context=64"):
            engine.forward(draw(model, 1, 65))
        with pytest.raises(ValueError, match="at least one token"):
            engine.next_logits([])


@pytest.mark.model
def test_on_the_real_model_it_is_as_close_to_float64_as_the_readable_engine(real_model):
    fast, exact = FastModel.of(real_model), as_float64(real_model)
    tokens = real_model.tokenizer.encode("def mean(xs):\n    return sum(xs) / len(xs)\n\nprint(")
    truth = exact.forward(np.array([tokens]))[0]
    cache = fast.new_cache()
    stepped = np.stack([fast.next_logits([token], cache) for token in tokens])
    readable = np.abs(real_model.forward(np.array([tokens]))[0] - truth).max()
    assert readable < 3e-4
    for logits in (fast.forward(np.array([tokens]))[0], stepped):
        assert np.abs(logits - truth).max() < max(2 * readable, 1e-4)
        assert (logits.argmax(axis=-1) == truth.argmax(axis=-1)).all()


@pytest.mark.model
def test_on_the_real_model_greedy_text_is_identical(real_model):
    prompt = real_model.tokenizer.chat_prompt("Why is the sky blue?")
    fast = FastModel.of(real_model)
    assert generate_cached(fast, prompt, 40) == generate_cached(real_model, prompt, 40)


def test_an_arena_hands_out_separate_aligned_arrays_and_refuses_more_than_it_has():
    shapes = [(3, 5), (7,), (2, 2)]
    arena = Arena(arena_bytes(shapes))
    arrays = [arena.empty(shape) for shape in shapes]
    for number, array in enumerate(arrays):
        array[...] = number
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    assert [array.min() for array in arrays] == [array.max() for array in arrays] == [0, 1, 2]
    with pytest.raises(ValueError, match="needs 64 bytes, 0 are left"):
        arena.empty((1,))
    with pytest.raises(ValueError, match="at least 1"):
        Arena(0)


@pytest.mark.parametrize("fails", ["no constant", "no permission"])
def test_an_arena_works_where_there_are_no_large_pages(monkeypatch, fails):
    import mmap

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no permission")

    if fails == "no constant":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    else:
        monkeypatch.setattr(mmap, "mmap", refuse)
    array = Arena(4096).empty((10, 10))
    array[...] = 1
    assert array.sum() == 100
