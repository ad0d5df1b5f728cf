"""Lesson 04: every number in its text is computed, and computed rightly."""

import pytest
from lesson_text import stated_numbers

from grader.checks.kv_cache.quiz import decode_steps, kv_rows_cached, kv_rows_uncached
from grader.judging import registry
from inferlab.data import model_preset
from inferlab.kv_cache import kv_bytes_per_token, kv_cache_bytes, largest_batch, longest_context
from inferlab.roofline import forward_flops, step_bound_s

EIGHT_B, SEVENTY_B = model_preset("8b-style"), model_preset("70b-style")
LLAMA_70B, SMOL = model_preset("llama-3-70b"), model_preset("smollm2-135m")


def gb(n_bytes: float, digits: int) -> str:
    return f"{n_bytes / 1e9:,.{digits}f}"


def gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:g}"


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    batch_of_16 = kv_cache_bytes(EIGHT_B, 8192, 16)
    seventy = kv_cache_bytes(SEVENTY_B, 8192)
    long_70b = kv_cache_bytes(LLAMA_70B, 32768)
    room_70b = 8 * 80e9 * 0.9 - 2 * LLAMA_70B.n_params
    k_and_v_saved = 2 * 32 * 4096 * 128 * (32 - 8) / (2 * 8e9) * 2
    return {
        str(kv_rows_uncached(8)), str(kv_rows_cached(8)),
        f"{kv_bytes_per_token(EIGHT_B):,}", f"{kv_bytes_per_token(EIGHT_B) // 2:,}",
        f"{kv_bytes_per_token(EIGHT_B) // 1024}",
        gb(batch_of_16, 2), gb(batch_of_16 / 2, 2),
        f"{kv_cache_bytes(EIGHT_B, 8192):,}", gb(kv_cache_bytes(EIGHT_B, 8192), 3),
        gb(kv_cache_bytes(EIGHT_B, 8192), 4),
        f"{2 * 32}", f"{2 * 32 * 8}",
        f"{kv_bytes_per_token(SEVENTY_B):,}", f"{kv_bytes_per_token(SEVENTY_B) // 1024}",
        f"{kv_bytes_per_token(SEVENTY_B) / 1e3:g}", gb(seventy, 3), gib(seventy),
        f"{320e3 * 8000 / 1e9:.2f}", gb(32 * seventy, 2), gib(32 * seventy),
        f"{(80e9 - 16e9) / kv_cache_bytes(EIGHT_B, 8192):.1f}",
        f"{(80e9 - 16e9) / 1e9:.0f}",
        str(largest_batch(EIGHT_B, 8192, 80e9, 16e9)),
        str(largest_batch(EIGHT_B, 8192, 80e9, 16e9) + 1),
        str(largest_batch(EIGHT_B, 8192, 80e9, 16e9, 0.1)),
        str(largest_batch(EIGHT_B, 8192, 80 * 2**30, 16e9)),
        f"{long_70b:,}", gb(long_70b, 2), gib(long_70b),
        gb(2 * LLAMA_70B.n_params, 1), gb(room_70b, 1), f"{8 * 80 * 0.9:.0f}",
        str(largest_batch(LLAMA_70B, 32768, 8 * 80e9, 2 * LLAMA_70B.n_params, 0.1)),
        f"{(16 + 17.18) / (16 + 8.59):.2f}", f"{k_and_v_saved:.0%}".rstrip("%"),
        gb(4 * SMOL.n_params, 3).removeprefix("0."), str(decode_steps(500)),
        f"{1024 // 16}", f"{16 * 128:,}",
        f"{longest_context(EIGHT_B, 16, 80e9, 2 * EIGHT_B.n_params):,}",
        f"{EIGHT_B.n_params / 1e9:.2f}", gb(2 * EIGHT_B.n_params, 2), gb(2 * SEVENTY_B.n_params, 0),
        f"{forward_flops(SMOL, 256) / forward_flops(SMOL, 1, 255):.0e}".replace("2e+02", "200"),
        f"{SMOL.d_model}",
    }  # fmt: skip


# Sizes that the text takes as given: model shapes, contexts, devices, prompt lengths, settings.
GIVEN = {
    "01", "02", "03", "04", "05", "08", "16", "20", "24", "30", "32", "40", "50", "80", "110",
    "128", "135", "256", "500", "1,024", "4,096", "8,192", "32,768", "32k", "10⁹", "2³⁰",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers("04_kv_cache") - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Against published figures and closed forms that this project did not compute."""
    assert kv_bytes_per_token(EIGHT_B) == 131_072
    assert kv_bytes_per_token(model_preset("qwen3-0.6b")) == 114_688
    assert kv_bytes_per_token(model_preset("gpt2")) == 36_864
    assert kv_cache_bytes(SEVENTY_B, 8192) == 2_684_354_560  # 2.5 GiB, not 2.56 GB
    assert kv_cache_bytes(LLAMA_70B, 32768, 4) == 42_949_672_960
    assert LLAMA_70B.n_params == 70_553_706_496
    assert SMOL.n_params == 134_515_008
    assert kv_rows_uncached(12) == sum(2 * t for t in range(1, 13)) == 156
    assert decode_steps(500) == 499


def test_the_flops_and_the_bound_of_a_pass():
    """Llama-3-8B: published matmul parameters, attention 524,288 FLOPs a key."""
    llama = model_preset("llama-3-8b")
    assert forward_flops(llama, 1, 0) == 2 * 7_504_658_432 + 524_288
    assert forward_flops(llama, 1, 99) - forward_flops(llama, 1, 0) == 99 * 524_288
    one_by_one = sum(forward_flops(llama, 1, i) for i in range(7))
    heads = 6 * 2 * llama.d_model * llama.vocab_size
    assert forward_flops(llama, 7, 0) == one_by_one - heads
    # One H100 in bf16, no cache: reading bounds it; 7.5e9 weights at 3.35 TB/s.
    bound = step_bound_s(llama, 1, 0, 3.35e12, 989.4e12, 2)
    assert bound == pytest.approx(7_504_658_432 * 2 / 3.35e12)
    assert step_bound_s(llama, 4096, 0, 3.35e12, 989.4e12, 2) == pytest.approx(
        forward_flops(llama, 4096) / 989.4e12
    )
    with pytest.raises(ValueError, match="n_new=0"):
        forward_flops(llama, 0)


def test_predictions_have_an_answer():
    predictions = registry.predictions("04_kv_cache")
    assert 2 <= len(predictions) <= 4
    answers = {p.id: p.answer() for p in predictions}
    assert answers["kv_rows_12"] == 156
    assert answers["kv_mha_ratio"] == 4
    assert 1 < answers["kv_step_ratio"] < 256
    assert answers["kv_bidirectional"] in next(p for p in predictions if p.choices).choices
