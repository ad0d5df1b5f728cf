"""Lesson 01: every number in its text is computed, and computed rightly."""

import math

import numpy as np
import pytest
from lesson_text import stated_numbers

from grader.checks.roofline.predictions import D_IN, D_OUT, prefill_ratio
from grader.judging import registry
from inferlab.data import load_devices, load_models, model_preset
from inferlab.kv_cache import kv_bytes_per_token, kv_cache_bytes
from inferlab.model import Model
from inferlab.params import attention_params, dense_params, mlp_params
from inferlab.roofline import (
    attainable_flops_per_s,
    body_params,
    compute_bound_batch,
    device_rates,
    forward_flops,
    matmul_bytes,
    matmul_flops,
    matmul_intensity,
    ridge_point,
    step_bound_s,
    step_bytes,
    token_flops,
)
from inferlab.weights import random_weights

DEVICES, MODELS = load_devices(), load_models()
DENSE = [name for name, m in MODELS.items() if not m["moe"] and not m["mla"]]
LLAMA, LLAMA_2, LLAMA_70B, SMOL = (
    model_preset(n) for n in ("llama-3-8b", "llama-2-7b", "llama-3-70b", "smollm2-135m")
)
H100 = device_rates(DEVICES["h100-sxm"], "bf16")
BANDWIDTH, PEAK = H100


def last_context(config) -> int:
    """The longest context at which some batch is compute-bound on an H100 in bf16."""
    reached = (n for n in range(5000, -1, -1) if compute_bound_batch(config, n, *H100, 2))
    return next(reached)


def intensity_limit(config, n_cached: int) -> float:
    """FLOP/byte of a decode step as the batch grows without end."""
    return token_flops(config, n_cached) / kv_cache_bytes(config, n_cached)


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}"


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    multiplied = step_bytes(LLAMA, 0, 1, 1)
    one_s, in_attention = step_bound_s(LLAMA, 1, 1000, *H100, 2), attention_params(LLAMA)
    share = in_attention / (in_attention + mlp_params(LLAMA))
    long_prompt = forward_flops(LLAMA, 8192)
    prompt_attention = 4 * 32 * 32 * 128 * 8192 * 8193 // 2
    head_flops = 2 * LLAMA.d_model * LLAMA.vocab_size
    fast_enough = (32 * BANDWIDTH / 6000 - 2 * multiplied) / kv_cache_bytes(LLAMA, 1, 32)
    a100_gib = DEVICES["a100-80-sxm"]["memory_bytes_visible"] / 2**30
    return {
        f"{LLAMA.n_params / 1e9:.2f}", f"{PEAK / 1e12:.0f}", f"{PEAK / 1e12:.1f}",
        f"{round(PEAK / (2 * multiplied), -2):,.0f}",
        f"{1 / step_bound_s(LLAMA, 1, 1, *H100, 2):.0f}",
        f"{BANDWIDTH / 1e9:,.0f}", f"{BANDWIDTH / 1e12:.2f}", f"{2 * multiplied / 1e9:.0f}",
        percent(1 - 2 * multiplied / PEAK / (2 * multiplied / BANDWIDTH), 1),
        str(matmul_flops(3, 4, 5)), str(3 * 5), str(3 * 4), str(4 * 5), str(12 + 20 + 15),
        str(matmul_bytes(3, 4, 5)), str(matmul_bytes(3, 4, 5, 2, 1)),
        f"{matmul_intensity(3, 4, 5):.2f}",
        f"{matmul_intensity(2000, 4096, 4096):,.0f}", f"{4096 // 2:,}",
        f"{D_IN * D_OUT * 4 / 1e6:.0f}", f"{D_OUT:,}",
        f"{DEVICES['h200-sxm']['bandwidth_gb_s'] / 3350:.2f}",
        f"{ridge_point(DEVICES['synthetic'], 'bf16'):.0f}", percent(1 / 333, 1),
        f"{attainable_flops_per_s(100, 3e12, 1e15) / 1e12:.0f}",
        str(10 * 12), str(10 * 6), str(2 * 10 * 12 + 2 * 10 * 6), str(10 * 7), str(3 * 10 * 7),
        str(2 * 10 * 7), str(360 + 210), str(10 * 50), str(2 * 10), f"{500 + 3 * 590 + 10:,}",
        percent(share), percent(1 - share),
        f"{multiplied:,}", f"{2 * multiplied:,}", f"{4 * 32 * 32 * 128:,}",
        f"{8192 * 524_288 / 1e9:.2f}", percent(8192 * 524_288 / (2 * multiplied)),
        percent(2 * LLAMA.n_params / token_flops(LLAMA, 1) - 1),
        f"{1999 * head_flops / 1e12:.2f}",
        f"{round(body_params(LLAMA) / (32 * 32 * 128), -3):,.0f}",
        f"{kv_bytes_per_token(LLAMA):,}", f"{2 * multiplied / 1e9:.2f}",
        f"{kv_cache_bytes(LLAMA, 1000, 2) / 1e9:.2f}", f"{step_bytes(LLAMA, 1000, 2, 2) / 1e9:.2f}",
        f"{step_bytes(LLAMA, 1000, 1, 2) / 1e9:.2f}", f"{1e3 * one_s:.2f}",
        f"{forward_flops(LLAMA, 1, 1000) / 1e9:.1f}", f"{1 / one_s:.0f}",
        f"{1e3 * forward_flops(LLAMA, 1, 1000) / PEAK:.3f}",
        f"{math.floor(fast_enough)}", f"{2 * multiplied / kv_cache_bytes(LLAMA, 8192):.0f}",
        str(last_context(LLAMA)), f"{last_context(LLAMA_70B):,}", str(last_context(LLAMA_2)),
        f"{SMOL.n_params:,}", f"{kv_cache_bytes(SMOL, 1024, 1, 4) / 1e6:.0f}",
        f"{step_bytes(SMOL, 0, 1, 4) / 1e6:.0f}",
        f"{1e3 * step_bound_s(LLAMA, 1, 0, *H100, 2):.1f}", f"{PEAK / BANDWIDTH:.0f}",
        f"{DEVICES['h100-sxm']['peak_dense_tflops']['fp8']:,}", f"{2 * 989.4:,.0f}",
        f"{a100_gib:.1f}",
        f"{DEVICES['a100-80-sxm']['memory_bytes_visible']:,}",
        f"{DEVICES['h100-pcie']['peak_dense_tflops']['bf16']}", f"{400 / 8:.0f}",
        f"{2 * LLAMA.n_params / 1e9:.2f}", f"{BANDWIDTH / (2 * LLAMA.n_params):.0f}",
        f"{ridge_point(DEVICES['h100-sxm'], 'bf16'):.1f}",
        f"{ridge_point(DEVICES['h100-sxm'], 'fp8'):.1f}",
        f"{1e3 * step_bound_s(LLAMA, 50, 0, *H100, 2):.2f}", f"{intensity_limit(LLAMA, 8192):.0f}",
        f"{2 * body_params(LLAMA) * 8192 / 1e12:.1f}", f"{prompt_attention / 1e12:.1f}",
        f"{long_prompt / 1e12:.0f}", f"{2 * LLAMA.n_params * 8192 / 1e12:.1f}",
        f"{forward_flops(LLAMA, 32768) / 1e12:.0f}", f"{2 * LLAMA.n_params * 32768 / 1e12:.0f}",
        f"{84.3 * 15.23:,.0f}", percent(84.3 * 15.23 / 2039),
    }  # fmt: skip


# Sizes that the text takes as given: shapes, lengths, batches, devices, shares quoted, settings.
GIVEN = {
    "01", "02", "10", "16", "30", "32", "50", "55", "60", "64", "80", "100", "120", "200", "295",
    "300", "400", "512", "1,000", "1,024", "2,000", "3,000", "4,096", "6,000", "8,000", "8,192",
    "32,768", "128", "128,256", "04", "05", "07", "08", "09", "84.3", "15.23", "2,039", "4.8",
    "500", "70",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers("01_roofline") - computed() - GIVEN == set()


def test_what_the_text_says_in_words():
    """Comparisons that the prose draws without a number of their own."""
    assert prefill_ratio() < 7
    assert 30.3 / 4.48 < 7
    one, many = (step_bound_s(LLAMA, 1, n, *H100, 2, b) for n, b in ((1, 1), (8192, 32)))
    assert many > 3 * one
    assert step_bound_s(LLAMA, 50, 0, *H100, 2) == step_bound_s(LLAMA, 200, 0, *H100, 2)
    turn = next(
        n for n in range(1, 999) if forward_flops(LLAMA, n) / PEAK > 2 * 7_504_658_432 / BANDWIDTH
    )
    assert 290 < turn < 330  # "compute-bound from about 300 tokens on"
    assert 9 < token_flops(LLAMA_70B, 1) / token_flops(LLAMA, 1) < 9.5
    assert kv_bytes_per_token(LLAMA_70B) / kv_bytes_per_token(LLAMA) == 2.5
    assert 10 < ridge_point(DEVICES["laptop-cpu"], "bf16") < 13  # "a dozen rows"
    assert DEVICES["h200-sxm"]["peak_dense_tflops"]["bf16"] == 989.4
    assert 1.9 < token_flops(LLAMA, 32_768) / (2 * LLAMA.n_params) < 2.1  # "half of what is done"
    for name in ("gpt2", "llama-2-7b"):  # "still look like it"
        config = model_preset(name)
        part = attention_params(config) / (attention_params(config) + mlp_params(config))
        assert part == pytest.approx(1 / 3, abs=0.01)
    gain = (16e9 + 1.0737e9) / (8e9 + 1.0737e9)
    assert gain < 2  # halved weights do not double the speed


# ---- the reference against figures and methods that are not its own ----------------------------


def test_a_product_is_what_pytorch_counts_and_a_loop_does():
    from torch import ones
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        ones(7, 30) @ ones(30, 11)
    assert matmul_flops(7, 30, 11) == counter.get_total_flops()
    multiplies = adds = 0
    x, w = np.ones((3, 4)), np.ones((4, 5))
    for row in x:
        for column in w.T:
            total = 0.0
            for a, b in zip(row, column, strict=True):
                total += a * b
                multiplies, adds = multiplies + 1, adds + 1
    assert matmul_flops(3, 4, 5) == multiplies + adds == 120
    arrays = [np.ones(s, np.float16) for s in ((3, 4), (4, 5), (3, 5))]
    assert matmul_bytes(3, 4, 5) == sum(a.nbytes for a in arrays) == 94


def test_intensities_and_ridges_are_the_published_ones():
    assert matmul_intensity(2000, 4096, 4096) == pytest.approx(1011.86, abs=0.005)
    for b in (2, 1, 0.5):  # 2 / b a token, where the row itself is small
        assert matmul_intensity(1, 10**6, 10**6, 2, b) == pytest.approx(2 / b, rel=1e-4)
    for device in DEVICES.values():
        recorded = device["computed"]
        half = "fp16" if device["peak_dense_tflops"]["bf16"] is None else "bf16"
        assert ridge_point(device, half) == pytest.approx(
            recorded["ridge_flop_per_byte_16bit"], abs=1e-3
        )
        if recorded["ridge_flop_per_byte_fp8"]:
            assert ridge_point(device, "fp8") == pytest.approx(
                recorded["ridge_flop_per_byte_fp8"], abs=1e-3
            )
    with pytest.raises(ValueError, match="NVIDIA T4 has no peak for 'bf16'"):
        ridge_point(DEVICES["t4"], "bf16")
    with pytest.raises(ValueError, match="no peak for 'fp32'"):
        device_rates(DEVICES["h100-sxm"], "fp32")


def test_the_roof_meets_itself_at_the_ridge():
    for name in ("synthetic", "h100-sxm", "l4"):
        bandwidth, peak = device_rates(DEVICES[name], "fp16")
        ridge = ridge_point(DEVICES[name], "fp16")
        assert attainable_flops_per_s(ridge, bandwidth, peak) == pytest.approx(peak)
        assert attainable_flops_per_s(ridge / 2, bandwidth, peak) == pytest.approx(peak / 2)
        assert attainable_flops_per_s(ridge * 2, bandwidth, peak) == peak


@pytest.mark.parametrize("name", DENSE)
def test_parts_and_whole_are_the_recorded_ones(name):
    config, recorded = model_preset(name), MODELS[name]["computed"]
    assert attention_params(config) == recorded["params_attention_per_layer"]
    assert mlp_params(config) == recorded["params_dense_mlp_per_layer"]
    assert dense_params(config) == recorded["params_total"]
    if MODELS[name]["published"]["exact"]:
        assert dense_params(config) == MODELS[name]["published"]["params_total"]


@pytest.mark.parametrize("name", list(MODELS))
def test_the_weights_that_multiply_are_the_recorded_ones(name):
    """Experts and latent attention too; the head counts although it may be tied."""
    config = model_preset(name)
    multiplied = body_params(config) + config.d_model * config.vocab_size
    assert multiplied == MODELS[name]["computed"]["matmul_params_active"]


def test_latent_attention_is_refused():
    with pytest.raises(ValueError, match="latent attention"):
        attention_params(model_preset("deepseek-v3"))


def test_transformers_counts_the_same_parameters():
    """A small Llama of theirs, with d_head apart from d_model / n_heads, biases and tied tables."""
    transformers = pytest.importorskip("transformers")
    from inferlab.config import ModelConfig

    for tied in (True, False):
        sizes = {"num_hidden_layers": 3, "hidden_size": 24, "num_attention_heads": 6, "head_dim": 8}
        sizes |= {"num_key_value_heads": 2, "intermediate_size": 33, "vocab_size": 41}
        switches = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": tied}
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **switches))
        ours = ModelConfig(3, 24, 6, 2, 8, 33, 41, tied_embeddings=tied, attention_bias=True,
                           output_bias=True, mlp_bias=True)  # fmt: skip
        assert dense_params(ours) == sum(p.numel() for p in theirs.parameters())


def test_a_pass_does_the_flops_that_pytorch_counts():
    """The engine's own pass in PyTorch, whose fused attention the counter does not see; and
    attention head by head, token by token, as plain products."""
    from torch import ones
    from torch.utils.flop_counter import FlopCounterMode

    from inferlab.config import ModelConfig
    from inferlab.engines.pytorch.model import TorchModel

    config, n = ModelConfig(2, 32, 4, 2, 8, 48, 67, 64), 6
    weights = random_weights(config, np.random.default_rng(0), np.float32)
    # In half precision: products in float32 go to a library call that the counter does not know.
    model = TorchModel.from_model(Model(config, weights), dtype="float16")
    with FlopCounterMode(display=False) as projections:
        model.next_logits(list(range(n)))
    with FlopCounterMode(display=False) as attention:
        for _ in range(config.n_layers * config.n_heads):
            for n_keys in range(1, n + 1):
                scores = ones(1, config.d_head) @ ones(config.d_head, n_keys)
                scores @ ones(n_keys, config.d_head)
    counted = projections.get_total_flops() + attention.get_total_flops()
    assert counted == forward_flops(config, n)


def test_a_pass_is_the_sum_of_its_tokens():
    head = 2 * LLAMA.d_model * LLAMA.vocab_size
    one_by_one = sum(token_flops(LLAMA, 40 + i + 1) for i in range(9))
    assert forward_flops(LLAMA, 9, 40) == one_by_one - 8 * head
    assert token_flops(LLAMA, 1) == 15_009_316_864 + 524_288
    assert forward_flops(LLAMA, 1, 8191) == token_flops(LLAMA, 8192)
    assert forward_flops(LLAMA, 2000) == 2 * 6_979_321_856 * 2000 + head + 524_288 * 2_001_000
    with pytest.raises(ValueError, match="n_keys=0"):
        token_flops(LLAMA, 0)
    with pytest.raises(ValueError, match="n_new=0"):
        forward_flops(LLAMA, 0)


def test_the_bound_is_the_larger_time_and_counts_every_cache():
    """The 8B shape's published bounds, in closed form."""
    weights, per_token = 2 * 7_504_658_432, 131_072
    for batch, context in ((1, 0), (1, 8192), (16, 8192), (32, 1024)):
        expected = (weights + batch * context * per_token) / BANDWIDTH
        assert step_bound_s(LLAMA, 1, context, *H100, 2, batch) == pytest.approx(expected)
    assert step_bound_s(LLAMA, 2000, 0, *H100, 2) == pytest.approx(
        forward_flops(LLAMA, 2000) / PEAK
    )
    int8 = step_bound_s(LLAMA, 1, 0, *H100, 2, 1, bytes_per_weight=1)
    assert int8 == pytest.approx(weights / 2 / BANDWIDTH)
    assert step_bytes(LLAMA, 100, 3, 2, 0.5) == weights / 4 + 3 * 100 * per_token


@pytest.mark.parametrize("width", [2, 1, 0.5])
@pytest.mark.parametrize("n_cached", [0, 60, 200, 390])
def test_the_batch_is_the_first_that_computes_as_long_as_it_reads(width, n_cached):
    batch = compute_bound_batch(LLAMA, n_cached, *H100, 2, width)

    def computes_longer(n):
        reading = step_bytes(LLAMA, n_cached, n, 2, width) / BANDWIDTH
        return n * forward_flops(LLAMA, 1, n_cached) / PEAK >= reading

    assert computes_longer(batch)
    assert not computes_longer(batch - 1)


def test_the_batches_and_contexts_that_are_known():
    """Closed forms: bytes_per_weight / 2 times the ridge; 2 P / (cache * ridge - attention)."""
    for width, first in ((2, 296), (1, 148), (0.5, 74)):
        assert compute_bound_batch(LLAMA, 0, *H100, 2, width) == first
    ends = {"llama-3-8b": 393, "llama-2-7b": 85, "qwen2.5-7b": 855, "llama-3-70b": 1476}
    for name, end in ends.items():
        config = model_preset(name)
        assert last_context(config) == end
        multiplied = MODELS[name]["computed"]["matmul_params_active"]
        per_key = 4 * config.n_layers * config.n_heads * config.d_head
        limit = 2 * multiplied / (kv_bytes_per_token(config) * PEAK / BANDWIDTH - per_key)
        assert limit - 1 < end < limit + 1
    assert compute_bound_batch(LLAMA, 394, *H100, 2) is None
    assert intensity_limit(LLAMA, 8192) == pytest.approx(17.98, abs=0.005)


def test_predictions_have_an_answer():
    predictions = {p.id: p for p in registry.predictions("01_roofline")}
    assert 2 <= len(predictions) <= 4
    assert predictions["rl_prefill_ratio"].answer() == pytest.approx(6.42, abs=0.005)
    assert 1 < predictions["rl_rows_ratio"].answer() <= 64
    assert compute_bound_batch(LLAMA, 8192, *H100, 2) is None  # "at no number of users"
    twice = (BANDWIDTH, 2 * PEAK)
    assert step_bound_s(LLAMA, 1, 500, *twice, 2) == step_bound_s(LLAMA, 1, 500, *H100, 2)
