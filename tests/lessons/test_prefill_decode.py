"""Lesson 03: its two phases against engines of others, and every number in its text computed."""

import re
from dataclasses import replace

import numpy as np
import pytest
from drawn_models import TINY, tiny_model
from lesson_text import prose, stated_numbers

from grader.checks.prefill_decode.quiz import (
    READ_AND_WRITE,
    device_of,
    flops_ratio,
    longer_phase,
    seconds_ratio,
)
from grader.judging import registry
from inferlab.attention import self_attention
from inferlab.config import ModelConfig
from inferlab.data import load_config, load_devices, model_preset
from inferlab.generate import (
    ModelParts,
    attend_with_past,
    chunked_prefill,
    decode_step,
    generate_cached,
    generate_uncached,
    prefill,
)
from inferlab.kv_cache import kv_cache_bytes
from inferlab.model import Model, load_model
from inferlab.operators import causal_mask, rope_angles
from inferlab.prefill_decode import (
    end_to_end_s,
    pass_intensity,
    pass_read_bytes,
    phase_flops,
    prefill_knee,
    prefill_share,
    tpot_bound_s,
    ttft_bound_s,
)
from inferlab.roofline import body_params, forward_flops, step_bound_s
from inferlab.sizes import MlaConfig, RopeScaling
from inferlab.weights import random_weights

LESSON = "03_prefill_decode"
EIGHT_B, LLAMA_8B = model_preset("8b-style"), model_preset("llama-3-8b")
SMOL = model_preset("smollm2-135m")
H100 = (3.35e12, 989.4e12)
RIDGE = H100[1] / H100[0]


def in_ms(seconds: float, digits: int) -> str:
    return f"{1e3 * seconds:.{digits}f}"


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    read_s = pass_read_bytes(EIGHT_B) / H100[0]
    ttft_s = ttft_bound_s(EIGHT_B, 2000, *H100)
    step_s = tpot_bound_s(EIGHT_B, 2000, 15, *H100)
    long_read_s = ttft_bound_s(EIGHT_B, 8000, *H100)
    long_write_s = 49 * tpot_bound_s(EIGHT_B, 8000, 50, *H100)
    end_s = end_to_end_s(0.2, 0.025, 300)
    knee = prefill_knee(EIGHT_B, *H100)
    chunk = 20e-3 * H100[1] / (2 * 8e9)
    first_step_flops = forward_flops(EIGHT_B, 1)
    return {
        in_ms(ttft_s, 1), in_ms(ttft_s, 2), in_ms(ttft_s, 0), in_ms(step_s, 1),
        in_ms(read_s, 3), in_ms(read_s, 2), in_ms(read_s, 1), in_ms(16e9 / H100[0], 1),
        f"{round(2000 / ttft_s, -2):,.0f}", f"{1 / step_s:.0f}", f"{H100[0] / 16e9:.0f}",
        f"{round(H100[1] / first_step_flops, -2):,.0f}", f"{first_step_flops / 1e9:.0f}",
        f"{end_s:.3f}", f"{end_s + 0.025:.1f}", f"{1 / 0.025:.0f}", f"{300 / end_s:.1f}",
        f"{300 - 1}", f"{500 - 1}", f"{50 - 1}", str(5 + 6 + 7),
        f"{RIDGE:.0f}", f"{RIDGE / 2:.0f}", str(knee), str(knee - 1),
        f"{read_s * H100[1] / 1e12:.3f}", f"{forward_flops(EIGHT_B, 2000) / 1e12:.2f}",
        f"{body_params(EIGHT_B):,}", f"{EIGHT_B.d_model * EIGHT_B.vocab_size:,}",
        f"{body_params(EIGHT_B) + EIGHT_B.d_model * EIGHT_B.vocab_size:,}",
        f"{pass_read_bytes(EIGHT_B) / 1e9:.2f}", f"{pass_read_bytes(EIGHT_B) / 1e9:.0f}",
        f"{kv_cache_bytes(EIGHT_B, 1):,}", f"{kv_cache_bytes(EIGHT_B, 8192) / 1e9:.3f}",
        f"{kv_cache_bytes(EIGHT_B, 8192, 16) / 1e9:.2f}",
        f"{100 * kv_cache_bytes(EIGHT_B, 2000) / pass_read_bytes(EIGHT_B):.1f}",
        f"{100 * pass_intensity(EIGHT_B, 1, 1000) / RIDGE:.2f}",
        f"{pass_read_bytes(EIGHT_B, 2000):,}", f"{pass_read_bytes(EIGHT_B, 2001):,}",
        in_ms(tpot_bound_s(EIGHT_B, 2000, 3, *H100), 3),
        f"{long_read_s:.3f}", f"{long_write_s:.3f}", f"{long_read_s + long_write_s:.3f}",
        f"{prefill_share(EIGHT_B, 8000, 50, *H100):.2f}", f"{100 * 8000 / 8050:.1f}",
        f"{4.8 / 3.35:.2f}", f"{512 * sum(range(16)):,}", f"{int(chunk):,}",
        f"{int(chunk) - 32:,}", f"{(16 + 17.18) / (8 + 17.18):.2f}",
        f"{sum(e.minutes for e in registry.exercises(LESSON)) % 60}",
    }  # fmt: skip


# Sizes that the text takes as given: model shapes, lengths, devices, metrics of an example.
GIVEN = {
    "01", "02", "03", "04", "10", "11", "12", "15", "16", "20", "25", "30", "32", "50", "128",
    "200", "300", "500", "512", "576", "2,000", "8,000", "8,192", "32,768", "0.2", "0.025",
    "3.35", "4.8", "989.4", "2,001",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers(LESSON) - computed() - GIVEN == set()


def test_the_time_stated_is_that_of_the_exercises():
    minutes = sum(e.minutes for e in registry.exercises(LESSON))
    assert f"{minutes // 60} h {minutes % 60} min for thirteen exercises" in " ".join(
        "\n".join(prose(LESSON)).split()
    )
    assert len(registry.exercises(LESSON)) == 13


def test_the_knowledge_check_never_says_500_steps():
    text = "\n".join(prose(LESSON))
    assert re.search(r"500 tokens takes \*\*499\*\*", text)


# ---- the arithmetic, against published figures and closed forms ---------------------------------


def test_the_sources_of_those_numbers_are_right():
    """Llama-3-8B: 7,504,658,432 weights a token, 524,288 FLOPs a key, 131,072 B kept a token."""
    assert pass_read_bytes(LLAMA_8B, 3, 5) == 2 * 7_504_658_432 + 15 * 131_072
    prefill_flops, decode_flops = phase_flops(LLAMA_8B, 2000, 500)
    head = 2 * 4096 * 128_256
    body = 15_009_316_864 - head
    assert prefill_flops == 2000 * body + head + 524_288 * 2000 * 2001 // 2
    steps = sum(15_009_316_864 + 524_288 * (2000 + i) for i in range(1, 500))  # 499 of them
    assert decode_flops == steps
    assert prefill_flops / 1e12 == pytest.approx(27.918 + 1.049, abs=1e-3)
    assert device_of("h100-sxm") == H100
    assert load_devices()["h200-sxm"]["bandwidth_gb_s"] == 4800
    # Each weight read is used in 2 FLOPs: 1 FLOP/byte in bf16, 2 in 8 bits, 1/2 in float32.
    for b in (1, 2, 4):
        assert pass_intensity(LLAMA_8B, 1, 0, 1, b) == pytest.approx(2 / b, rel=1e-4)
    assert pass_intensity(LLAMA_8B, 1, 8192, 16) == pytest.approx(9.596, abs=1e-3)


def test_the_bounds_are_those_of_a_pass():
    for n_prompt in (1, 50, 2000):
        for b in (1, 2, 4):
            bound = step_bound_s(EIGHT_B, n_prompt, 0, *H100, b)
            assert ttft_bound_s(EIGHT_B, n_prompt, *H100, b, 0.25) == bound + 0.25
    steps = [step_bound_s(SMOL, 1, 40 + i, 1e10, 5e10, 4) for i in range(9)]
    assert tpot_bound_s(SMOL, 40, 10, 1e10, 5e10, 1, 4) == pytest.approx(np.mean(steps), rel=1e-12)
    assert tpot_bound_s(SMOL, 40, 1, 1e10, 5e10) is None


def test_a_batch_reads_the_weights_once_and_every_past():
    """16 users of 8,192 tokens on 3 TB/s: the decode step of a well-known worked example."""
    whole = pass_read_bytes(EIGHT_B, 8192, 16)
    assert whole == 15_009_316_864 + 17_179_869_184
    assert tpot_bound_s(EIGHT_B, 8192, 2, 3e12, 1e15, 16) == pytest.approx(whole / 3e12)
    # As many users as the ridge, nearly no past: computing takes over.
    crowd = 2000 * forward_flops(EIGHT_B, 1, 1) / H100[1]
    assert tpot_bound_s(EIGHT_B, 1, 2, *H100, 2000) == pytest.approx(crowd)


@pytest.mark.parametrize(("config", "b"), [(EIGHT_B, 1), (EIGHT_B, 2), (SMOL, 4)])
def test_the_knee_divides_reading_from_computing(config, b):
    knee = prefill_knee(config, *H100, b)
    reading = pass_read_bytes(config, 0, 1, b) / H100[0]
    assert ttft_bound_s(config, knee - 1, *H100, b) == reading
    assert forward_flops(config, knee) / H100[1] >= reading
    if config is EIGHT_B:  # the rule of thumb is near: the head is read, and used for one token
        assert knee == pytest.approx(RIDGE * b / 2, rel=0.08)
    assert prefill_knee(config, 1e12, 1.0) == 1


def test_the_whole_request():
    assert end_to_end_s(0.2, 0.025, 300) == pytest.approx(7.675)
    assert end_to_end_s(0.4, None, 1) == end_to_end_s(0.4, 9.0, 1) == 0.4
    for n_output, tpot_s in ((0, 0.1), (-3, 0.1), (2, None)):
        with pytest.raises(ValueError, match=f"n_output={n_output}"):
            end_to_end_s(0.4, tpot_s, n_output)


def test_phases_are_compared_in_seconds():
    """8,000 in and 50 out: decoding takes longer. One answer token: all of it is prefill."""
    share = prefill_share(EIGHT_B, 8000, 50, *H100)
    assert 0.3 < share < 0.5
    assert prefill_share(EIGHT_B, 8000, 1, *H100) == 1.0
    assert longer_phase().startswith("the decode")
    shapes = {(300, 300): 0, (8000, 300): 0, (20_000, 100): 0, (200, 8000): 0, (2000, 2): 1}
    for (n_prompt, n_output), dominates in shapes.items():
        assert round(prefill_share(EIGHT_B, n_prompt, n_output, *H100)) == dominates


def test_docstrings_state_what_their_functions_give():
    """The examples in the statements, as a learner reads them."""
    assert phase_flops(EIGHT_B, 1000, 1001) == (14_222_100_529_152, 15_796_011_008_000)
    assert pass_read_bytes(EIGHT_B) == 15_009_316_864
    assert pass_read_bytes(EIGHT_B, 1) - pass_read_bytes(EIGHT_B) == 131_072
    assert round(pass_intensity(EIGHT_B, 2000)) == 1930
    assert prefill_knee(EIGHT_B, *H100) == 316
    assert ttft_bound_s(EIGHT_B, 2000, *H100) == pytest.approx(0.02928, abs=5e-6)
    assert tpot_bound_s(EIGHT_B, 2000, 300, *H100) == pytest.approx(0.004564, abs=1e-6)
    assert prefill_share(EIGHT_B, 8000, 50, *H100) == pytest.approx(0.356, abs=5e-4)


def test_chunks_do_not_save_operations():
    """8,192 tokens in chunks of 512: the same FLOPs but for 15 more heads; far more is read."""
    starts = range(0, 8192, 512)
    cut = sum(forward_flops(EIGHT_B, 512, start) for start in starts)
    heads = 15 * 2 * EIGHT_B.d_model * EIGHT_B.vocab_size
    assert cut == forward_flops(EIGHT_B, 8192) + heads
    read = sum(pass_read_bytes(EIGHT_B, start) for start in starts)
    assert read == 16 * pass_read_bytes(EIGHT_B) + kv_cache_bytes(EIGHT_B, 61_440)
    # The text says that arithmetic still hides it, chunk by chunk.
    for start in starts:
        reading = pass_read_bytes(EIGHT_B, start) / H100[0]
        assert forward_flops(EIGHT_B, 512, start) / H100[1] > reading


def test_what_the_text_says_of_many_users():
    one, many = (tpot_bound_s(EIGHT_B, 8192, 2, *H100, n) for n in (1, 32))
    assert many / one == pytest.approx(3, abs=0.1)
    short, short_many = (tpot_bound_s(EIGHT_B, 100, 2, *H100, n) for n in (1, 32))
    assert short_many / short < 1.05
    gain = pass_intensity(EIGHT_B, 1, 1000, 32) / pass_intensity(EIGHT_B, 1, 1000)
    assert 20 < gain < 28
    assert pass_intensity(EIGHT_B, 50) < RIDGE < pass_intensity(EIGHT_B, 2000)


def test_the_configs_that_the_text_reads():
    assert load_config("gemma-3-1b")["eos_token_id"] == [1, 106]
    assert load_config("smollm2-135m")["max_position_embeddings"] == 8192


def test_a_pass_says_what_it_wants_in_place_of_a_bare_token():
    parts = ModelParts(tiny_model("gqa"))
    for tokens in (5, [[5]]):
        with pytest.raises(ValueError, match=re.escape(f"as [5] is; given: {tokens}")):
            prefill(parts, tokens)
    assert parts.passes == []


def test_predictions_have_an_answer():
    answers = {p.id: p.answer() for p in registry.predictions(LESSON)}
    assert answers["pd_flops_ratio"] == flops_ratio() == pytest.approx(1.11, abs=0.01)
    assert answers["pd_time_ratio"] == pytest.approx(50, abs=0.1)
    assert seconds_ratio(*READ_AND_WRITE) == pytest.approx(316, abs=1)  # as its reason says
    assert in_ms(ttft_bound_s(EIGHT_B, 1000, *H100), 1) == "14.4"
    assert in_ms(ttft_bound_s(EIGHT_B, 50, *H100), 1) == "4.5"
    assert 1 < answers["pd_speed_ratio"] < 256
    assert answers["pd_rag"] == "the decode steps: writing 50"


# ---- the passes, against the engine and against transformers -----------------------------------


def greedy(model: Model, prompt: list[int], n_new: int) -> tuple[list[int], list[int]]:
    """New tokens by prefill and decode steps, and the tokens of each pass."""
    parts, new = ModelParts(model), []
    logits, kept = prefill(parts, prompt)
    while True:
        new.append(int(np.argmax(logits)))
        if len(new) == n_new:
            return new, parts.passes
        logits, kept = decode_step(parts, new[-1], kept)


@pytest.mark.parametrize("kind", TINY)
def test_two_phases_write_what_the_other_generators_write(kind):
    model, prompt = tiny_model(kind), [5, 1, 33, 8]
    tokens, passes = greedy(model, prompt, 20)
    assert tokens == generate_uncached(model, prompt, 20) == generate_cached(model, prompt, 20)
    assert passes == [4] + 19 * [1]  # n - 1 decode steps


STRETCHED = replace(TINY["gqa"], rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32), sliding_window=4)
MOE = replace(TINY["gqa"], n_experts=4, n_experts_per_token=2, d_expert=12)


@pytest.mark.parametrize("config", [*TINY.values(), STRETCHED, MOE], ids=[*TINY, "window", "moe"])
def test_a_pass_is_the_engines_forward_pass(config):
    """Logits against the whole text run at once; keys and values against the engine's cache."""
    model = Model(config, random_weights(config, np.random.default_rng(3), np.float64))
    parts, cache = ModelParts(model), model.new_cache()
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    logits, kept = prefill(parts, text[:5])
    assert np.allclose(logits, model.next_logits(text[:5], cache), rtol=1e-11, atol=1e-12)
    logits, kept = prefill(parts, text[5:7], kept)
    logits, kept = decode_step(parts, text[7], kept)
    model.next_logits(text[5:], cache)
    assert np.allclose(logits, model.next_logits(text), rtol=1e-11, atol=1e-12)
    for layer, (k, v) in enumerate(kept):
        assert np.allclose(k, cache.keys[layer, :, :, :8], rtol=1e-11, atol=1e-12)
        assert np.allclose(v, cache.values[layer, :, :, :8], rtol=1e-11, atol=1e-12)
    assert parts.passes == [5, 2, 1]


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 5, 11, 12])
def test_a_prompt_in_chunks_of_any_size_is_the_prompt_in_one_pass(chunk_size):
    model = tiny_model("mqa, d_head != d_model / n_heads")
    prompt = [int(t) for t in np.random.default_rng(0).integers(41, size=11)]
    logits, kept = prefill(ModelParts(model), prompt)
    parts = ModelParts(model)
    chunked, chunks_kept = chunked_prefill(parts, prompt, chunk_size)
    assert np.allclose(chunked, logits, rtol=1e-11, atol=1e-12)
    for pair, whole in zip(chunks_kept, kept, strict=True):
        assert all(
            np.allclose(a, b, rtol=1e-11, atol=1e-12) for a, b in zip(pair, whole, strict=True)
        )
    assert parts.passes == [min(chunk_size, 11 - s) for s in range(0, 11, chunk_size)]
    with pytest.raises(ValueError, match="chunk_size must be at least 1, given 0"):
        chunked_prefill(parts, prompt, 0)


def test_the_attention_of_this_lesson_is_the_engines():
    config = ModelConfig(1, 30, 6, 2, 8, 12, 11, rope_theta=70.0)
    rng = np.random.default_rng(5)
    weights, x = random_weights(config, rng, np.float64).layers[0], rng.normal(size=(3, 7, 30))
    empty = np.zeros((3, 2, 0, 8))
    angles = rope_angles(np.arange(7), 8, 70.0)
    whole = self_attention(x, weights, config, angles, causal_mask(7, 7))
    first, k, v = attend_with_past(x[:, :4], weights, config, empty, empty)
    rest, k, v = attend_with_past(x[:, 4:], weights, config, k, v)
    assert np.allclose(np.concatenate([first, rest], axis=1), whole, rtol=1e-12, atol=1e-13)
    assert k.shape == v.shape == (3, 2, 7, 8)


def test_a_model_that_keeps_latents_is_refused():
    mla = MlaConfig(d_latent=8, d_nope=4, d_rope=4, d_value=4)
    config = ModelConfig(1, 16, 2, 2, 8, 12, 11, mla=mla)
    with pytest.raises(ValueError, match="MLA"):
        ModelParts(Model(config, random_weights(config, np.random.default_rng(0))))


def test_both_phases_agree_with_transformers(tmp_path):
    """The same random Llama there: logits of both phases, and greedy tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2, head_dim=8, initializer_range=0.3,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    ).double().eval()  # fmt: skip
    theirs.save_pretrained(tmp_path)
    ours, text = load_model(tmp_path), [3, 1, 4, 1, 5, 9]
    with torch.inference_mode():
        expected = theirs(torch.tensor([text])).logits[0].numpy()
        tokens = theirs.generate(
            torch.tensor([text]), attention_mask=torch.ones(1, 6), max_new_tokens=12,
            do_sample=False,
        )  # fmt: skip
    logits, kept = chunked_prefill(ModelParts(ours), text[:5], 2)
    assert np.allclose(logits, expected[4], atol=1e-4)
    logits, _ = decode_step(ModelParts(ours), text[5], kept)
    assert np.allclose(logits, expected[5], atol=1e-4)
    assert greedy(ours, text, 12)[0] == tokens[0, 6:].tolist()


@pytest.mark.model
def test_the_trained_model_writes_the_same_in_two_phases(real_model):
    prompt = real_model.tokenizer.encode("The capital of France is")
    tokens, _ = greedy(real_model, prompt, 6)
    assert tokens == generate_cached(real_model, prompt, 6)
    assert "Paris" in real_model.tokenizer.decode(tokens)
