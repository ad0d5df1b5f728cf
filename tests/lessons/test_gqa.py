"""Lesson 05: every number in its text is computed; its functions against independent oracles."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from lesson_text import cells, stated_numbers

from grader.checks.gqa.predictions import kv_weights_saved
from grader.judging import registry
from grader.judging.judge import judge
from grader.judging.verdict import Outcome
from inferlab.attention import (
    ArrayMemory,
    grouped_attention,
    kv_head_of,
    pool_kv_heads,
    repeat_kv,
)
from inferlab.cache_sizes import (
    cache_bytes,
    cache_bytes_per_device,
    decode_attention_intensity,
    grow_and_cap_bytes,
    layer_cache_numbers,
)
from inferlab.config import ModelConfig
from inferlab.counted_memory import CountedMemory
from inferlab.data import load_config, load_devices, load_models, model_preset
from inferlab.kv_cache import kv_cache_bytes
from inferlab.mla import absorb_query, absorbing_pays
from inferlab.model import Model, load_model
from inferlab.operators import attention, causal_mask, softmax
from inferlab.weights import random_weights
from labkit.measure import gqa as gqa_measure

ALL = list(load_models())
EIGHT_B, V3, LITE = (model_preset(n) for n in ("8b-style", "deepseek-v3", "deepseek-v2-lite"))
LLAMA_70B, QWEN = model_preset("llama-2-70b"), model_preset("qwen2.5-7b")
GPT_OSS, GEMMA = model_preset("gpt-oss-20b"), model_preset("gemma-3-27b")
FALCON, MISTRAL = model_preset("falcon-7b"), model_preset("mistral-7b-v0.1")
MHA, MQA = replace(EIGHT_B, n_kv_heads=32), replace(EIGHT_B, n_kv_heads=1)


def gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f}"


def absorbing_limit(S: int) -> int:
    """The most queries over S keys for which V3 absorbs."""
    assert V3.mla is not None
    return max(T for T in range(1, 400) if absorbing_pays(V3.mla, T, S))


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    h100 = load_devices()["h100-sxm"]
    ridge = 1e3 * h100["peak_dense_tflops"]["bf16"] / h100["bandwidth_gb_s"]
    growing, cap = grow_and_cap_bytes(GPT_OSS)
    at_128k = cache_bytes(GPT_OSS, 131_072)
    moved = absorb_query(np.array([[[[1.0, 10.0]]]]), np.arange(1.0, 7.0).reshape(3, 2))
    kept = [layer_cache_numbers(c) for c in (EIGHT_B, V3, GPT_OSS, QWEN)]
    assert V3.mla is not None
    assert LITE.mla is not None
    saved, saved_70b = kv_weights_saved(EIGHT_B), kv_weights_saved(LLAMA_70B)
    return {
        *(f"{cache_bytes(c, 1):,}" for c in (EIGHT_B, MHA, MQA)),
        *(gb(cache_bytes(c, 8192, 16)) for c in (EIGHT_B, MHA, MQA)),
        gb(2 * EIGHT_B.n_params),
        f"{saved:,}", f"{saved / EIGHT_B.n_params:.1%}"[:-1],
        gb(saved_70b), f"{saved_70b / LLAMA_70B.n_params:.1%}"[:-1],
        f"{layer_cache_numbers(V3)}", f"{kept[0]:,}", f"{kept[0] / kept[1]:.2f}",
        f"{kept[1] / (2 * 128):g}", f"{kept[2] * 2:,}", f"{kept[3]:,}",
        f"{cache_bytes(V3, 1):,}", f"{cache_bytes(QWEN, 1):,}",
        f"{V3.n_layers}", f"{QWEN.n_layers}", f"{GEMMA.n_layers}", f"{GEMMA.n_window_layers}",
        f"{growing:,}", f"{cap:,}", f"{at_128k:,}", gb(at_128k),
        gb(kv_cache_bytes(GPT_OSS, 131_072)),
        f"{cache_bytes(GPT_OSS, 100):,}",
        gb(cache_bytes(GEMMA, 32_768)), gb(kv_cache_bytes(GEMMA, 32_768)),
        f"{cache_bytes_per_device(EIGHT_B, 1, 4):,}", f"{cache_bytes_per_device(EIGHT_B, 1, 8):,}",
        f"{16 * LITE.d_head:,}", f"{16 * LITE.mla.d_value:,}", f"{LITE.d_head}",
        f"{absorbing_limit(8192) // 10 * 10 + 10}", f"{V3.mla.d_latent}",
        *(f"{n:.0f}" for n in moved.ravel()), f"{10 * 8}", f"{6 + 10 * 8}",
        f"{np.mean([3.0**2, 4.0**2]):g}", f"{np.sqrt(12.5):.2f}",
        f"{decode_attention_intensity(MHA, 4)}", f"{decode_attention_intensity(MQA, 4):.0f}",
        f"{decode_attention_intensity(FALCON):.0f}", f"{decode_attention_intensity(V3):.0f}",
        f"{ridge:.0f}", f"{model_preset('smollm2-135m').vocab_size:,}",
        f"{2 * 9 * 4 * 8}",
    }  # fmt: skip


# Sizes that the text takes as given: shapes, contexts, lesson numbers, durations, powers of two.
GIVEN = {
    "01", "02", "04", "05", "12", "15", "16", "20", "24", "28", "32", "62", "64", "100", "128",
    "1,024", "4,096", "8,192", "32,768", "131,072",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers("05_gqa") - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Against figures that this project did not compute."""
    assert cache_bytes(EIGHT_B, 1) == 131_072
    assert cache_bytes(V3, 1) == 70_272
    assert cache_bytes(model_preset("deepseek-v2"), 1) == 69_120
    assert cache_bytes(QWEN, 1) == 57_344
    assert cache_bytes(FALCON, 1) == 8_192
    assert cache_bytes(GPT_OSS, 131_072) == 3_224_371_200
    assert cache_bytes(GEMMA, 32_768) == 3_120_562_176
    assert cache_bytes(MISTRAL, 100_000) == 536_870_912
    assert kv_weights_saved(EIGHT_B) == 805_306_368
    assert kv_weights_saved(LLAMA_70B) / LLAMA_70B.n_params == pytest.approx(0.136, abs=5e-4)
    assert decode_attention_intensity(V3) == pytest.approx(241.78, abs=0.005)
    assert 160 < absorbing_limit(8192) < absorbing_limit(10**6) <= 170


def test_predictions_have_an_answer():
    answers = {p.id: p.answer() for p in registry.predictions("05_gqa")}
    assert answers == {
        "gq_head_six": "KV head 2",
        "gq_weights_saved": "about 10 %",
        "gq_larger_cache": "DeepSeek-V3",
        "gq_attention_ratio": 4.0,
    }


# ---- heads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(6, 2), (9, 3), (8, 8), (5, 1)])
def test_the_engines_attention_reads_the_heads_that_kv_head_of_names(n_heads, n_kv_heads):
    rng = np.random.default_rng(0)
    q, see_all = rng.normal(size=(1, n_heads, 1, 4)), np.ones((1, 3), bool)
    k, v = rng.normal(size=(2, 1, n_kv_heads, 3, 4))
    before = attention(q, k, v, see_all)
    for kv_head in range(n_kv_heads):
        moved = v.copy()
        moved[0, kv_head] += 1
        change = np.abs(attention(q, k, moved, see_all) - before).max(axis=(0, 2, 3))
        readers = [h for h in range(n_heads) if kv_head_of(h, n_heads, n_kv_heads) == kv_head]
        assert np.flatnonzero(change > 0.5).tolist() == readers


def test_a_repeat_is_that_of_torch_and_of_transformers():
    from transformers.models.llama.modeling_llama import repeat_kv as theirs

    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    got, tensor = repeat_kv(x, 12), torch.from_numpy(x)
    np.testing.assert_array_equal(got, tensor.repeat_interleave(4, dim=1).numpy())
    np.testing.assert_array_equal(got, theirs(tensor, 4).numpy())


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "T", "S"), [(6, 2, 3, 7), (4, 1, 1, 9)])
def test_grouped_attention_is_that_of_torch_and_loads_each_byte_once(n_heads, n_kv_heads, T, S):
    rng = np.random.default_rng(1)
    q, visible = rng.normal(size=(n_heads, T, 8)), causal_mask(T, S)
    k, v = rng.normal(size=(2, n_kv_heads, S, 8))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    tensors = (torch.from_numpy(a)[None] for a in (q, k, v))
    expected = sdpa(*tensors, torch.from_numpy(visible), enable_gqa=True)[0].numpy()
    memory = CountedMemory(q=q, k=k, v=v, out=np.zeros_like(q))
    grouped_attention(memory, visible)
    np.testing.assert_allclose(memory.result("out"), expected, rtol=0, atol=1e-12)
    assert memory.loaded_bytes == q.nbytes + k.nbytes + v.nbytes
    assert memory.stored_bytes == q.nbytes
    plain = ArrayMemory(q=q, k=k, v=v, out=np.zeros_like(q))
    grouped_attention(plain, visible)
    np.testing.assert_array_equal(plain.arrays["out"], memory.result("out"))
    repeated = (repeat_kv(a[None], n_heads) for a in (k, v))
    np.testing.assert_allclose(
        attention(q[None], *repeated, visible)[0], expected, rtol=0, atol=1e-12
    )


def test_pooling_heads_that_are_alike_keeps_every_logit():
    """An MHA model with equal heads in each group says what the GQA model pooled from it says."""
    config = ModelConfig(2, 24, 6, 2, 4, 32, 50, 64, tied_embeddings=False)
    weights = random_weights(config, np.random.default_rng(0), np.float64)

    def spread(w: np.ndarray) -> np.ndarray:
        return np.repeat(w.reshape(24, 2, 1, 4), 3, axis=2).reshape(24, 24)

    wide = [replace(w, w_k=spread(w.w_k), w_v=spread(w.w_v)) for w in weights.layers]
    mha = Model(replace(config, n_kv_heads=6), replace(weights, layers=tuple(wide)))
    pooled = [
        replace(w, w_k=pool_kv_heads(w.w_k, 2, 4), w_v=pool_kv_heads(w.w_v, 2, 4)) for w in wide
    ]
    gqa = Model(config, replace(weights, layers=tuple(pooled)))
    text = np.arange(11)[None]
    np.testing.assert_allclose(gqa.forward(text), mha.forward(text), rtol=0, atol=1e-12)


def _scored(q, latent, k_rope, w_k, visible, d_rope):
    rope = q[..., -d_rope:] @ k_rope[:, None].swapaxes(2, 3)
    scores = absorb_query(q[..., :-d_rope], w_k) @ latent.swapaxes(2, 3) + rope
    return softmax(np.where(visible, scores / q.shape[-1] ** 0.5, -np.inf))


def _copies_latents(q, latent, k_rope, w_k, w_v, visible):
    latent = np.repeat(latent[:, None], q.shape[1], axis=1)
    weights = _scored(q, latent, k_rope, w_k, visible, k_rope.shape[-1])
    return weights @ latent @ np.stack(np.hsplit(w_v, q.shape[1]))


def _values_head_by_head(q, latent, k_rope, w_k, w_v, visible):
    weights = _scored(q, latent[:, None], k_rope, w_k, visible, k_rope.shape[-1])
    heads = enumerate(np.hsplit(w_v, q.shape[1]))
    return np.stack([weights[:, h] @ (latent @ w) for h, w in heads], axis=1)


@pytest.mark.parametrize("answer", [_copies_latents, _values_head_by_head])
def test_absorbed_attention_builds_nothing_of_a_heads_own_for_each_token(answer):
    """Every number is right; only what is held tells."""
    verdict = judge(registry.exercise("absorbed_attention"), answer)
    assert (verdict.outcome, verdict.case) == (
        Outcome.FAILED,
        "6 heads, 2,000 keys: what is held shows",
    )
    assert "all heads read the same" in verdict.diagnosis


# ---- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_model_costs_what_is_recorded_of_it(name):
    config, record = model_preset(name), load_models()[name]["computed"]
    growing, cap = grow_and_cap_bytes(config)
    assert growing == record["kv_bytes_growing_per_token_bf16"]
    assert cap == record["kv_bytes_sliding_cap_bf16"]
    assert config.n_layers * layer_cache_numbers(config) == record["kv_elems_per_token"]
    assert cache_bytes(config, 1) == record["kv_bytes_per_token_bf16"]


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-3-1b", "mistral-7b-v0.1", "llama-3-8b"])
@pytest.mark.parametrize("n_tokens", [1, 127, 129, 600, 5000])
def test_a_cache_filled_token_by_token_holds_as_much(name, n_tokens):
    """Layers as lists that forget; which layers have a window is read from the real config.json."""
    raw = load_config(name)
    n_layers, window = raw["num_hidden_layers"], raw.get("sliding_window")
    kinds = raw.get("layer_types")
    if kinds is None:
        every = raw.get("sliding_window_pattern", 0)
        is_full = [every > 0 and (i + 1) % every == 0 for i in range(n_layers)]
        kinds = ["full_attention" if full or window is None else "sliding" for full in is_full]
    d_head = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    layers = [deque(maxlen=None if kind == "full_attention" else window) for kind in kinds]
    for token in range(n_tokens):
        for layer in layers:
            layer.append(token)
    numbers = sum(map(len, layers)) * 2 * raw["num_key_value_heads"] * d_head
    assert cache_bytes(model_preset(name), n_tokens, 3, 1) == 3 * numbers


@pytest.mark.parametrize("kind", ["gqa", "mla"])
def test_the_engines_own_caches_hold_as_many_bytes(kind):
    config = ModelConfig(2, 32, 4, 2, 8, 48, 67)
    if kind == "mla":
        small = replace(V3.mla, d_latent=12, d_nope=6, d_rope=4, d_value=10, d_query_latent=None)
        config = ModelConfig(2, 32, 4, 4, 10, 48, 67, mla=small)
    model = Model(config, random_weights(config, np.random.default_rng(0)))
    cache = model.new_cache(n_sequences=3)
    model.forward(np.zeros((3, 9), int), cache)
    assert cache.n_bytes == cache_bytes(config, 9, 3, 4)


def test_transformers_keeps_one_token_less_in_a_full_window():
    """As the lesson says: the newest token brings its own key."""
    from transformers import DynamicCache, Gemma3TextConfig

    sizes = {"num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 8}
    cache = DynamicCache(config=Gemma3TextConfig(sliding_window=16, **sizes))
    for layer, n_new in [(layer, n) for layer in range(6) for n in (100, 1)]:
        k = torch.zeros(1, 1, n_new, 8)
        seen, _ = cache.update(k, k, layer_idx=layer)
    assert [layer.keys.shape[2] for layer in cache.layers] == [15] * 5 + [101]
    assert seen.shape[2] == 101


@pytest.mark.parametrize("n_devices", [1, 2, 4, 8, 16, 32])
def test_devices_hold_the_heads_that_their_queries_read(n_devices):
    """All devices are dealt out; the first one's KV heads are counted by name."""
    for config in (EIGHT_B, MHA, MQA, replace(EIGHT_B, n_kv_heads=2)):
        mine = range(config.n_heads // n_devices)
        heads = {kv_head_of(h, config.n_heads, config.n_kv_heads) for h in mine}
        one_head = 2 * 32 * 128 * 2
        assert cache_bytes_per_device(config, 1, n_devices) == len(heads) * one_head
    assert cache_bytes_per_device(V3, 1, n_devices) == cache_bytes(V3, 1)


def test_heads_that_cannot_be_dealt_out_are_refused():
    with pytest.raises(ValueError, match="n_heads=28 must be a multiple of n_devices=8"):
        cache_bytes_per_device(QWEN, 1, 8)
    odd = ModelConfig(1, 64, 48, 8, 8, 64, 100)
    with pytest.raises(ValueError, match="3 devices cannot share n_kv_heads=8"):
        cache_bytes_per_device(odd, 1, 3)


@pytest.mark.parametrize("name", ["llama-3-8b", "falcon-7b", "smollm2-135m"])
def test_the_intensity_is_that_of_products_counted_by_torch(name):
    from torch.utils.flop_counter import FlopCounterMode

    config, S = model_preset(name), 50
    q = torch.zeros(config.n_kv_heads, config.n_heads // config.n_kv_heads, config.d_head)
    k, v = torch.zeros(2, config.n_kv_heads, S, config.d_head)
    with FlopCounterMode(display=False) as counter:
        torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
    intensity = counter.get_total_flops() / (k.numel() + v.numel()) / 2
    assert decode_attention_intensity(config) == intensity
    assert decode_attention_intensity(config) == config.n_heads / config.n_kv_heads


@pytest.mark.parametrize("config", [V3, LITE], ids=["V3", "V2-Lite"])
def test_the_intensity_of_latents_is_that_of_products_counted_by_torch(config):
    from torch.utils.flop_counter import FlopCounterMode

    S, widths = 50, config.mla
    q = torch.zeros(config.n_heads, widths.d_latent + widths.d_rope)
    key, latent = torch.zeros(S, widths.d_latent + widths.d_rope), torch.zeros(S, widths.d_latent)
    with FlopCounterMode(display=False) as counter:
        (q @ key.T).softmax(-1) @ latent
    assert decode_attention_intensity(config) == counter.get_total_flops() / (2 * key.numel())


# ---- what is measured --------------------------------------------------------------------------


def test_pooled_copies_are_one_pooled_head():
    """with_pooled_heads keeps the shape; a config with that many KV heads says the same."""
    model = load_model("tiny-target")
    pooled = gqa_measure.with_pooled_heads(model, pool_kv_heads, 1)
    d_head = model.config.d_head
    narrow = [
        replace(w, w_k=pool_kv_heads(w.w_k, 1, d_head), w_v=pool_kv_heads(w.w_v, 1, d_head))
        for w in model.weights.layers
    ]
    one = Model(replace(model.config, n_kv_heads=1), replace(model.weights, layers=tuple(narrow)))
    text = np.arange(20)[None]
    np.testing.assert_allclose(pooled.forward(text), one.forward(text), rtol=0, atol=1e-3)
    same = gqa_measure.with_pooled_heads(model, pool_kv_heads, 1, layers=())
    np.testing.assert_array_equal(same.forward(text), model.forward(text))
    last = gqa_measure.with_pooled_heads(model, pool_kv_heads, 1, layers=[5])
    assert last.weights.layers[0] is model.weights.layers[0]
    assert np.abs(last.forward(text) - model.forward(text)).max() > 0.1


def test_perplexity_is_that_of_torchs_cross_entropy():
    model = load_model("tiny-target")
    tokens = list(range(3, 40))
    logits = torch.from_numpy(model.forward(np.array([tokens]))[0, :-1]).double()
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])).exp()
    assert gqa_measure.text_perplexity(model, tokens) == pytest.approx(float(expected))


def test_similarity_and_first_heads_on_heads_known():
    one = np.arange(1.0, 7.0).reshape(3, 2)
    assert gqa_measure.head_similarity(np.hstack([one, 2 * one]), 2) == pytest.approx(1)
    assert gqa_measure.head_similarity(np.hstack([one, -one]), 2) == pytest.approx(-1)
    heads = np.hstack([one, 2 * one, 3 * one, 4 * one])
    np.testing.assert_array_equal(gqa_measure.first_heads(heads, 2, 2), np.hstack([one, 3 * one]))
    with pytest.raises(ValueError, match="needs 2 heads"):
        gqa_measure.head_similarity(one, 2)


def test_a_step_in_torch_is_timed_both_ways():
    times = gqa_measure.sdpa_step(4, 2, 8, 16, rounds=2)
    assert set(times) == {"rows", "enable_gqa"}
    assert all(t.median_s > 0 and t.n == 2 for t in times.values())
    with pytest.raises(ValueError, match="n_heads=4 must be a multiple of n_kv_heads=3"):
        gqa_measure.sdpa_step(4, 3, 8, 16)


def test_queries_as_rows_of_one_head_are_grouped_attention():
    """What the lesson and sdpa_step rest on."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(1, 6, 1, 8))
    k, v = rng.normal(size=(2, 1, 2, 9, 8))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    rows = sdpa(*(torch.from_numpy(a) for a in (q.reshape(1, 2, 3, 8), k, v))).numpy()
    expected = attention(q, k, v, np.ones((1, 9), bool))
    np.testing.assert_allclose(rows.reshape(expected.shape), expected, rtol=0, atol=1e-12)


def _text_of_the_lesson() -> str:
    source = next(c.source for c in cells("05_gqa") if c.source.startswith("TEXT = ("))
    found: dict[str, str] = {}
    exec(source.partition("model =")[0], found)
    return found["TEXT"]


@pytest.mark.model
def test_pooling_ruins_smollm2_as_the_lesson_says(real_model):
    """On its own text: as trained, pooled in every layer, first heads; all heads are unlike."""
    config = real_model.config
    tokens = real_model.tokenizer.encode(_text_of_the_lesson())
    ppl = {
        name: gqa_measure.text_perplexity(m, tokens)
        for name, m in {
            "trained": real_model,
            "mean": gqa_measure.with_pooled_heads(real_model, pool_kv_heads, 1),
            "first": gqa_measure.with_pooled_heads(real_model, gqa_measure.first_heads, 1),
        }.items()
    }
    assert ppl["trained"] < 100 < 1000 < ppl["mean"] < ppl["first"]
    assert ppl["first"] > config.vocab_size
    alike = [gqa_measure.head_similarity(w.w_k, config.d_head) for w in real_model.weights.layers]
    assert max(map(abs, alike)) < 0.1
