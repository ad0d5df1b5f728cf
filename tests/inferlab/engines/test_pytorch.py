"""The PyTorch engine against the NumPy reference: logits, tokens, caches, batches, formats."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_models import TINY, tiny_model

from inferlab.config import ModelConfig
from inferlab.engines.pytorch.cache import TorchCache
from inferlab.engines.pytorch.model import TorchModel, generate_batch
from inferlab.generate import Stop, generate_cached, generate_uncached, stream_tokens
from inferlab.model import Model
from inferlab.paged_forward import Chunk
from inferlab.sizes import MlaConfig, RopeScaling, UnsupportedModel
from inferlab.weights import random_weights

# One configuration more for each thing that the engine claims to do.
BASE = TINY["gqa"]
KINDS = TINY | {
    "biases": replace(BASE, attention_bias=True),
    "qk norm": replace(BASE, qk_norm=True),
    "qk norm over all heads": replace(BASE, qk_norm=True, qk_norm_per_head=False),
    "window": replace(BASE, sliding_window=5),
    "scaled rope": replace(BASE, rope_scaling=RopeScaling(original_context=16)),
}
WIDE = ModelConfig(2, 64, 4, 2, 16, 96, 128, 64)  # multiples of 32, so it can be quantized
TEXT = (
    "The lighthouse stood at the edge of the cliff, where the wind never rested. Every evening "
    "old Martin climbed the one hundred and twelve steps to light the lamp, as his father had "
    "done before him. In the winter of 1953 a storm came from the north-west, and for three days "
    "no ship could enter the harbour. On the fourth morning the sea was calm, and the fishermen "
    "found a small boat, empty, with its sail still set."
)


@pytest.fixture(autouse=True)
def _one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def model_of(config: ModelConfig, seed: int = 0) -> Model:
    return Model(config, random_weights(config, np.random.default_rng(seed)))


def pair(kind: str) -> tuple[Model, TorchModel]:
    model = model_of(KINDS[kind])
    return model, TorchModel.from_model(model)


def some_tokens(model: Model, n: int, B: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, (B, n))


def kl(reference: np.ndarray, other: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of the next token's distribution, in nats."""
    p, q = (torch.from_numpy(x).double().log_softmax(-1) for x in (reference, other))
    return float((p.exp() * (p - q)).sum(-1).mean())


# ---- float32 is the reference ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_the_reference(kind):
    model, engine = pair(kind)
    tokens = some_tokens(model, 17, B=2)
    np.testing.assert_allclose(engine.forward(tokens), model.forward(tokens), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_logits_through_the_cache_equal_the_reference_in_chunks_and_steps(kind, chunk):
    model, engine = pair(kind)
    tokens = some_tokens(model, 20)[0].tolist()
    expected = model.forward(np.array([tokens]))[0]
    cache = engine.new_cache(capacity=3)
    np.testing.assert_allclose(
        engine.next_logits(tokens[:15], cache, chunk), expected[14], atol=1e-4
    )
    for t in range(15, 20):
        np.testing.assert_allclose(engine.next_logits([tokens[t]], cache), expected[t], atol=1e-4)
    assert cache.n_tokens == 20


@pytest.mark.parametrize("kind", KINDS)
def test_logits_over_pages_equal_the_reference(kind):
    """One pass: two that decode on pasts of unlike lengths, a first chunk, and a later one."""
    model, engine = pair(kind)
    texts = some_tokens(model, 16, B=4).tolist()
    pasts, news = (5, 12, 0, 6), (1, 1, 7, 4)
    tables = [[9, 3, 11, 0], [1, 8, 2, 7], [4, 10, 5, 6], [12, 14, 13, 15]]
    found = []
    for one in (model, engine):
        pool = one.new_pool(16, page_size=4)
        first = [
            Chunk(text[:past], 0, table)
            for text, past, table in zip(texts, pasts, tables, strict=True)
            if past
        ]
        one.paged_forward(pool, first)
        both = zip(texts, pasts, news, tables, strict=True)
        chunks = [Chunk(text[past : past + n], past, table) for text, past, n, table in both]
        found.append(one.paged_forward(pool, chunks))
        assert pool.page_bytes == pool.keys.nbytes * 2 // 16
    alone = [
        model.next_logits(text[: past + n])
        for text, past, n in zip(texts, pasts, news, strict=True)
    ]
    np.testing.assert_allclose(found[0], alone, atol=1e-4)
    np.testing.assert_allclose(found[1], alone, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_the_same_without_a_cache_with_one_and_streamed(kind):
    model, engine = pair(kind)
    model = replace(model, config=replace(model.config, eos_ids=()))
    engine.config = model.config
    expected = generate_uncached(model, [5, 1, 33], 20)
    assert generate_uncached(engine, [5, 1, 33], 20) == expected
    assert generate_cached(engine, [5, 1, 33], 20) == expected
    assert list(stream_tokens(engine, [5, 1, 33], 20)) == [*expected, Stop("max_new_tokens")]


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_a_ragged_batch_equals_its_run_alone(kind):
    model, engine = pair(kind)
    prompts = [some_tokens(model, n, seed=n)[0].tolist() for n in (1, 9, 4, 30, 9)]
    alone = [generate_uncached(model, prompt, 12) for prompt in prompts]
    assert generate_batch(engine, prompts, 12) == alone


@pytest.mark.parametrize("kind", KINDS)
def test_several_tokens_more_for_sequences_of_different_lengths(kind):
    model, engine = pair(kind)
    tokens = some_tokens(model, 12, B=3)
    cache = engine.new_cache(4, 3)
    for row, n in enumerate((2, 8, 5)):
        engine.prefill(tokens[row, :n], cache, row)
    more = np.stack([tokens[row, n : n + 3] for row, n in enumerate((2, 8, 5))])
    got = engine.forward(more, cache)
    for row, n in enumerate((2, 8, 5)):
        expected = model.forward(tokens[row : row + 1, : n + 3])[0, n:]
        np.testing.assert_allclose(got[row], expected, atol=1e-4)
    assert cache.lengths == [5, 11, 8]


# ---- the cache ---------------------------------------------------------------------------------


def test_what_is_truncated_leaves_no_trace():
    model, engine = pair("gqa")
    tokens = some_tokens(model, 12)[0].tolist()
    cache = engine.new_cache()
    engine.next_logits(tokens[:6], cache)
    engine.next_logits([7, 7, 7, 7], cache)
    cache.truncate(6)
    np.testing.assert_allclose(
        engine.next_logits(tokens[6:], cache), model.next_logits(tokens), atol=1e-4
    )


def test_the_cache_counts_bytes_of_each_sequence_and_grows_by_doubling():
    config = TINY["gqa"]
    cache = TorchCache(config, n_sequences=2, capacity=4, dtype=torch.bfloat16)
    cache.keys[:] = 1
    cache.lengths = [3, 4]
    # 2 (K and V) x 2 layers x 2 KV heads x 8 numbers x 2 bytes, for 7 tokens
    assert cache.n_bytes == 7 * 128
    assert cache.n_tokens == 4
    cache.reserve(9)
    assert cache.capacity == 16
    assert cache.keys[..., :4, :].eq(1).all()
    cache.truncate(2, row=1)
    assert cache.lengths == [3, 2]
    for n_tokens, row in ((-1, None), (4, None), (3, 1)):
        with pytest.raises(ValueError, match=f"given {n_tokens}"):
            cache.truncate(n_tokens, row)
    with pytest.raises(ValueError, match="at least 1"):
        TorchCache(config, n_sequences=0)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    _, engine = pair("gqa")  # 64 tokens of context, 67 words
    cache = engine.new_cache(8, 2)
    engine.prefill([1, 2, 3], cache, 1)
    for call, message in (
        (lambda: engine.forward([[67], [1]], cache), "token id 67"),
        (lambda: engine.forward([[1]], cache), "holds 2 sequences, given tokens of B=1"),
        (lambda: engine.prefill([1] * 62, cache, 1, chunk=8), r"65 tokens \(3 of them cached\)"),
        (lambda: engine.prefill([], cache, 0), "at least one token"),
        (lambda: engine.prefill([1], cache, 2), r"row=2 must be in 0\.\.1"),
        (lambda: engine.prefill([1], cache, 0, chunk=0), "chunk=0"),
        (lambda: engine.next_logits([1], cache), "holds 2 sequences; needed: 1"),
        (lambda: generate_batch(engine, [], 3), "0 prompts"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert cache.lengths == [0, 3]


# ---- other formats, other models, other devices ------------------------------------------------


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.02), ("float16", 0.001)])
def test_16_bit_models_are_close_to_the_reference(dtype, limit):
    model = model_of(WIDE)
    engine = TorchModel.from_model(model, dtype=dtype)
    tokens = some_tokens(model, 30)
    assert kl(model.forward(tokens), engine.forward(tokens)) < limit
    assert engine.new_cache().keys.dtype == getattr(torch, dtype)


@pytest.mark.parametrize(("dtype", "bits"), [("int8", (8, 8)), ("int4", (4, 8))])
def test_quantized_models_equal_the_reference_on_dequantized_weights(dtype, bits):
    """The oracle is the NumPy engine in float32 on the weights as they were rounded."""
    from inferlab.engines.pytorch.quant_ops import dequantize, quantize

    def rounded(w: np.ndarray, n_bits: int) -> np.ndarray:
        matrix = torch.from_numpy(np.ascontiguousarray(w.T))
        return dequantize(quantize(matrix, n_bits, torch.bfloat16)).float().numpy().T

    model = model_of(WIDE)
    body, head = bits
    matrices = ("w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down")
    layers = tuple(
        replace(layer, **{name: rounded(getattr(layer, name), body) for name in matrices})
        for layer in model.weights.layers
    )
    table = rounded(model.weights.head, head)
    weights = replace(model.weights, layers=layers, head=table, embedding=table.T)
    tokens = some_tokens(model, 30)
    expected = replace(model, weights=weights).forward(tokens)
    engine = TorchModel.from_model(model, dtype=dtype)
    assert kl(expected, engine.forward(tokens)) < 0.002
    cache = engine.new_cache()  # token by token: the packed kernel
    steps = np.stack([engine.next_logits([t], cache) for t in tokens[0].tolist()])
    assert kl(expected[0], steps) < 0.002


def test_the_bytes_of_a_step_are_the_weights_of_the_body_and_the_head():
    model = model_of(WIDE)
    config = model.config
    gains = config.n_layers * 2 * config.d_model
    matrices = model.weights.n_bytes / 4 - gains - config.d_model  # tied: the head counts once
    head = config.vocab_size * config.d_model
    assert TorchModel.from_model(model).step_bytes == 4 * (matrices + gains)
    # 5 bits a weight in the body and 10 in the head; gains stay float32.
    quantized = TorchModel.from_model(model, dtype="int4").step_bytes
    assert quantized == (matrices - head) * 5 / 8 + head * 10 / 8 + 4 * gains


def test_an_untied_quantized_model_looks_its_embedding_up():
    model = model_of(replace(WIDE, tied_embeddings=False))
    engine = TorchModel.from_model(model, dtype="int8")
    tokens = some_tokens(model, 20)
    assert kl(model.forward(tokens), engine.forward(tokens)) < 0.01


def test_models_with_parts_that_are_not_there_are_refused_by_name():
    experts = replace(WIDE, n_experts=4, n_experts_per_token=2, d_expert=32)
    latent = replace(WIDE, n_kv_heads=4, mla=MlaConfig(16, 8, 8, 16))
    weights = model_of(WIDE).weights
    for config, message in ((experts, "no experts.*n_experts=4"), (latent, "latent attention")):
        with pytest.raises(UnsupportedModel, match=message):
            TorchModel(config, weights)
    with pytest.raises(ValueError, match="multiples of 32, given 20"):
        TorchModel.from_model(tiny_model("mqa, d_head != d_model / n_heads"), dtype="int4")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_every_device_and_format_decodes_a_ragged_batch(device, dtype):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"NOT TESTED: {dtype} on cuda needs an NVIDIA or AMD GPU")
    if device == "mps" and not torch.backends.mps.is_available():
        pytest.skip(f"NOT TESTED: {dtype} on mps needs an Apple GPU")
    model = model_of(WIDE)
    engine = TorchModel.from_model(model, device, dtype)
    tokens = some_tokens(model, 20)
    assert kl(model.forward(tokens), engine.forward(tokens)) < 0.1
    prompts = [[1, 2, 3], [4], [5] * 10]
    got = generate_batch(engine, prompts, 6)
    assert [len(row) for row in got] == [6, 6, 6]
    if dtype == "float32":
        assert got == [generate_uncached(model, prompt, 6) for prompt in prompts]


# ---- the real model ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(real_model: Model) -> tuple[Model, np.ndarray, np.ndarray]:
    """The model, a real text of about ninety tokens, and its float32 logits."""
    tokens = np.array([real_model.tokenizer.encode(TEXT)])
    assert tokens.shape[1] > 85
    return real_model, tokens, real_model.forward(tokens)[0]


def both_ways(engine: TorchModel, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits (T, vocab_size) of one pass, and of token by token."""
    cache = engine.new_cache(tokens.size)
    steps = np.stack([engine.next_logits([t], cache) for t in tokens[0].tolist()])
    return engine.forward(tokens)[0], steps


@pytest.mark.model
def test_float32_equals_numpy_on_the_real_model(real):
    model, tokens, expected = real
    engine = TorchModel.from_model(model)
    for got in both_ways(engine, tokens):
        np.testing.assert_allclose(got, expected, atol=1e-3)
    prompts = [tokens[0, :n].tolist() for n in (3, 40, 17)]
    alone = [generate_cached(model, prompt, 12) for prompt in prompts]
    assert [generate_cached(engine, prompt, 12) for prompt in prompts] == alone
    assert generate_batch(engine, prompts, 12) == alone


@pytest.mark.model
@pytest.mark.parametrize(
    ("dtype", "limit", "megabytes"),
    [("bfloat16", 0.01, 269), ("int8", 0.002, 168), ("int4", 0.005, 102)],
)
def test_smaller_formats_stay_close_on_the_real_model(real, dtype, limit, megabytes):
    model, tokens, expected = real
    engine = TorchModel.from_model(model, dtype=dtype)
    for got in both_ways(engine, tokens):
        assert kl(expected, got) <= limit
    assert engine.step_bytes / 1e6 == pytest.approx(megabytes, rel=0.01)
