"""Lesson 07: every number in its text is computed, and its functions agree with other sources."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from lesson_text import stated_numbers

from grader.checks.quantization.channels import ALPHAS, _real_activations
from grader.checks.quantization.quiz import engine_step_bytes, speed_gain, zero_share
from grader.cli import main
from grader.judging import registry
from inferlab.checkpoints.gguf_read import BLOCK_TYPES
from inferlab.config import ModelConfig
from inferlab.counted_memory import CountedMemory
from inferlab.data import model_preset
from inferlab.fp8 import FORMATS, all_values, round_fp8
from inferlab.generate import generate_cached
from inferlab.kv_cache import kv_cache_bytes
from inferlab.model import Model, load_model
from inferlab.quantization import (
    dequantize,
    expected_error,
    expected_largest,
    matmul_int8,
    matmul_packed,
    matrix_with_outliers,
    migrate_outliers,
    pack_nibbles,
    quantize_absmax,
    quantize_asymmetric,
    quantize_groups,
    quantized_bytes,
    relative_error,
    search_scales,
    unpack_nibbles,
)
from inferlab.quantized_model import (
    QuantizedKVCache,
    calibration_inputs,
    first_layers,
    kl_divergence,
    log_probabilities,
    perplexity,
    with_changed_weights,
)
from inferlab.weights import random_weights

EIGHT_B = model_preset("8b-style")
RNG = np.random.default_rng(7)


def bits_a_weight(*scheme: int) -> float:
    return 8 * quantized_bytes(3840, *scheme) / 3840


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    one_user, batch = (kv_cache_bytes(EIGHT_B, 8192, n) / 1e9 for n in (1, 16))
    w = matrix_with_outliers()
    codes, scales = quantize_absmax(w)
    restored = dequantize(codes, scales)
    users = 310 * kv_cache_bytes(model_preset("70b-style"), 1500) / 1e9
    _, asym_scale, asym_zero = quantize_asymmetric(np.array([-1.0, 0, 4]))
    asym_scale, asym_zero = float(asym_scale[0]), int(asym_zero[0])
    norm = math.sqrt(9 + 16 + 100**2)
    return {
        f"{batch:.2f}", f"{16 + batch:.2f}", f"{8 + batch:.2f}", f"{one_user:.4f}",
        f"{16 + one_user:.4f}", f"{speed_gain(16, 8, one_user):.3f}",
        f"{speed_gain(16, 8, batch):.3f}", f"{speed_gain(16, 4.125, one_user):.3f}",
        f"{speed_gain(16, 4.125, batch):.2f}", f"{2 * 70}",
        f"{127 * 127:,}", f"{16 * 127 * 127:,}", f"{(2**31 - 1) // 127**2:,}", f"{2**15 - 1:,}",
        f"{0.7 / 7:.1f}", f"{0.5 * (3 - 128):.1f}".lstrip("-"), f"{norm:.1f}",
        f"{3 / norm:.0%}"[:-1],
        f"{3 / 5:.0%}"[:-1], f"{100**2:,}",
        f"{100 * float(relative_error(w, restored)):.1f}",
        f"{100 * float(relative_error(w[:, :-3], restored[:, :-3])):.1f}",
        f"{zero_share():.1f}", f"{float(scales.item()):.2f}",
        f"{expected_largest(128):.2f}", f"{expected_largest(128):.3f}",
        f"{expected_largest(256):.2f}", f"{expected_largest(256):.3f}",
        f"{expected_error(8, 256):.5f}", f"{100 * expected_error(8, 256):.1f}",
        f"{expected_error(4, 128):.4f}", f"{20 * math.log10(2):.2f}",
        f"{asym_scale:.4f}", str(asym_zero), f"{4 / 127:.4f}", f"{4 / 127 / asym_scale:.1f}",
        f"{bits_a_weight(4, 128):g}", f"{bits_a_weight(4, 128, 16, 4):g}",
        f"{bits_a_weight(4, 128, 16, 4):.3f}", f"{bits_a_weight(4, 32):g}",
        f"{bits_a_weight(4, 32, 8):g}", f"{bits_a_weight(8, 32):g}",
        f"{bits_a_weight(4, 32, 16, 16):.1f}",
        str(int(pack_nibbles(np.array([[1], [-8]]))[0, 0])),
        f"{21 / 2}", str(int(round_fp8(np.array([21.0]))[0])),
        f"{int(FORMATS['e4m3'].largest)}", f"{int(FORMATS['e5m2'].largest):,}",
        f"{320 - 30 - 140}", f"{320 - 30 - 70}", f"{220 / 150:.2f}", f"{140 + users:.2f}",
        f"{70 + users:.2f}", f"{speed_gain(140, 70, users):.2f}",
        f"{speed_gain(140, 70, users / 310):.3f}",
        f"{2 * 10 * 576 * 4:,}", *(str(BLOCK_TYPES[kind].n_bytes) for kind in (2, 3, 8)),
        f"{2 * (2**3 - 1) + 1}", str(2 * quantized_bytes(8, 4, 32, 16, 16)),
    }  # fmt: skip


# Sizes that the text takes as given: times, model shapes, devices, ends of number types, examples.
GIVEN = {
    "04", "07", "45", "0001", "1000", "0.0", "0.5", "1.5", "2.13", "10", "12", "16", "20", "21",
    "24", "30", "32", "40", "61", "64", "80", "100", "127", "128", "135", "240", "255", "256",
    "310", "320", "464", "500", "900", "1,500", "4,096", "8,192",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers("07_quantization") - computed() - GIVEN == set()


def test_predictions_have_an_answer():
    answers = {p.id: p.answer() for p in registry.predictions("07_quantization")}
    assert answers["qz_int4_bytes"] == 5e9
    assert answers["qz_zero_share"] == pytest.approx(40, abs=1.5)
    assert answers["qz_batch_speed"] == pytest.approx(1.3177, abs=1e-4)
    assert answers["qz_decode_speed"] == engine_step_bytes(None) / engine_step_bytes(4)


# ---- published numbers --------------------------------------------------------------------------


def test_bytes_as_published():
    assert quantized_bytes(8 * 10**9, 4, 128) == 4_125_000_000
    assert quantized_bytes(8 * 10**9, 4, 128, 16, 4) == 4_156_250_000
    for kind, scheme in ((2, (4, 32)), (3, (4, 32, 16, 16)), (8, (8, 32))):  # ggml's own blocks
        assert quantized_bytes(32, *scheme) == BLOCK_TYPES[kind].n_bytes
    assert bits_a_weight(4, 32, 8) == 4.25  # MXFP4
    assert bits_a_weight(4, 16, 8) == 4.5  # NVFP4
    assert 8 * quantized_bytes(128 * 128, 8, 128 * 128, 32) / 128**2 == pytest.approx(
        8.002, abs=1e-4
    )


def test_expected_error_as_published_and_as_simulated():
    table = {
        (8, 128): 0.00643,
        (8, 256): 0.00692,
        (4, 32): 0.0968,
        (4, 64): 0.1071,
        (4, 128): 0.1166,
    }
    for (bits, group), value in table.items():
        assert expected_error(bits, group) == pytest.approx(value, abs=6e-5)
    assert expected_largest(1) == pytest.approx(math.sqrt(2 / math.pi), abs=1e-6)
    drawn = np.abs(RNG.standard_normal((4000, 64))).max(axis=1)
    assert expected_largest(64) == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 4000**0.5)


@pytest.mark.parametrize(("bits", "group"), [(8, 128), (6, 64), (4, 128)])
def test_the_rule_is_what_rounding_gives(bits, group):
    w = RNG.standard_normal((group, 1500))
    measured = relative_error(w, dequantize(*quantize_absmax(w, bits, 0)))
    assert float(measured) == pytest.approx(expected_error(bits, group), rel=0.02)


def test_the_rule_fails_where_a_step_is_longer_than_the_weights():
    w = matrix_with_outliers()
    restored = dequantize(*quantize_absmax(w, 4))
    assert float(relative_error(w[:, :-3], restored[:, :-3])) == pytest.approx(1)
    step = abs(w).max() / 7
    assert step / math.sqrt(12) > 5  # what the rule says, in standard deviations


def test_a_whole_matrix_error_hides_what_happened_to_ordinary_channels():
    w = matrix_with_outliers()
    restored = dequantize(*quantize_absmax(w))
    assert float(relative_error(w, restored)) < 0.04
    assert relative_error(w, restored, 0)[:-3].min() > 0.25
    by_column = dequantize(*quantize_absmax(w, axis=0))
    assert relative_error(w, by_column, 0).max() < 0.01


def test_decode_speed_as_published():
    """Step bytes of an 8B and a 70B model: facts that were computed elsewhere."""
    kv = kv_cache_bytes(EIGHT_B, 8192) / 1e9
    assert speed_gain(16, 8, 0) == 2
    assert speed_gain(16, 8, kv) == pytest.approx(1.882, abs=5e-4)
    assert speed_gain(16, 4, kv) == pytest.approx(3.365, abs=5e-4)
    assert speed_gain(16, 4.125, kv) == pytest.approx(3.284, abs=5e-4)
    assert speed_gain(140, 70, 152.37) == pytest.approx(292.37 / 222.37)


# ---- other implementations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "theirs", "torchs"),
    [
        ("e4m3", ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2, torch.float8_e5m2),
    ],
)
def test_fp8_is_that_of_ml_dtypes_and_torch(form, theirs, torchs):
    largest = FORMATS[form].largest
    values = all_values(form)
    assert np.array_equal(values, values.astype(theirs).astype(float))
    assert len(values) == {"e4m3": 127, "e5m2": 124}[form]
    assert float(ml_dtypes.finfo(theirs).max) == largest == values[-1]
    middles = (values[1:] + values[:-1]) / 2  # every tie there is
    around = np.concatenate([np.nextafter(middles, 0), middles, np.nextafter(middles, np.inf)])
    drawn = RNG.uniform(1, 2, 4000) * 2.0 ** RNG.integers(-20, 17, 4000)
    x = np.concatenate([values, around, drawn, -drawn]).astype(np.float32)
    x = x[np.abs(x) <= largest]
    ours = round_fp8(x, form)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, x.astype(theirs).astype(np.float32))
    assert np.array_equal(ours, torch.tensor(x).to(torchs).float().numpy())


def test_beyond_the_largest_number_conversions_differ_and_ours_saturates():
    x = np.array([465.0, 500, 1e6, np.inf], np.float32)
    assert round_fp8(x).tolist() == [448.0] * 4
    assert np.isnan(x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()
    assert x[:1].astype(ml_dtypes.float8_e4m3fn).view(np.uint8)[0] & 127 == 127
    assert np.float32(464).astype(ml_dtypes.float8_e4m3fn) == 448
    assert torch.tensor(x).to(torch.float8_e4m3fn).float().tolist() == [448.0] * 4
    wide = np.array([61_440.0, 1e9, np.inf], np.float32)
    assert round_fp8(wide, "e5m2").tolist() == [57_344.0] * 3
    assert np.isinf(wide.astype(ml_dtypes.float8_e5m2).astype(np.float32)).all()
    assert torch.isinf(torch.tensor(wide).to(torch.float8_e5m2).float()).all()
    assert np.isnan(round_fp8(np.array([np.nan]))[0])
    with pytest.raises(ValueError, match="e4m3, e5m2"):
        round_fp8(x, "e3m4")


def test_asymmetric_codes_are_torchs():
    w = RNG.normal(size=(6, 50)) + 0.4
    codes, scales, zeros = quantize_asymmetric(w, 8, axis=1)
    theirs = torch.fake_quantize_per_channel_affine(
        torch.tensor(w),
        torch.tensor(scales[:, 0]).float(),
        torch.tensor(zeros[:, 0].astype(np.int32)),
        0,
        0,
        255,
    )
    assert np.allclose(dequantize(codes, scales, zeros), theirs.numpy(), rtol=1e-5, atol=1e-9)
    error = np.abs(dequantize(codes, scales, zeros) - w)
    assert (error <= scales).all()  # half a step, and half a step at most for the zero point


def test_every_pair_of_nibbles_survives_packing():
    codes = np.array([(a, b) for a in range(-8, 8) for b in range(-8, 8)], np.int8).T
    packed = pack_nibbles(codes)
    assert packed.shape == (1, 256)
    assert len(set(packed[0].tolist())) == 256
    assert np.array_equal(unpack_nibbles(packed), codes)
    for a, b, byte in zip(*codes, packed[0], strict=True):
        assert int(byte) == int(f"{b % 16:x}{a % 16:x}", 16)


def test_products_of_codes_equal_products_of_restored_numbers():
    w, x = RNG.normal(size=(96, 33)), RNG.normal(size=(4, 96))
    codes, scales = quantize_groups(w, 16)
    memory = CountedMemory(x=x, packed=pack_nibbles(codes), scales=scales, y=np.zeros((4, 33)))
    matmul_packed(memory, 16)
    restored = np.concatenate([codes[i : i + 16] * scales[i // 16] for i in range(0, 96, 16)])
    assert np.allclose(memory.result("y"), x @ restored, rtol=1e-12)
    assert memory.loaded_bytes == x.nbytes + 96 * 33 // 2 + scales.nbytes
    (xc, xs), (wc, ws) = quantize_absmax(x, 8, 1), quantize_absmax(w, 8, 0)
    assert np.allclose(matmul_int8(xc, wc, xs, ws), (xc * xs) @ (wc * ws), rtol=1e-12)
    ours = torch._int_mm(torch.tensor(np.repeat(xc, 8, axis=0)), torch.tensor(wc[:, :32]))
    assert np.array_equal(ours[::8].numpy(), (matmul_int8(xc, wc, xs / xs, ws / ws))[:, :32])


def test_migration_keeps_the_product_and_helps_the_rounding():
    x, w = RNG.normal(size=(20, 12)), RNG.normal(size=(12, 9))
    x[:, 3] *= 80
    moved = migrate_outliers(x, w)
    assert np.allclose(moved[0] @ moved[1], x @ w, rtol=1e-12)

    def error(a, b):
        return float(relative_error(x @ w, matmul_int8(*_both_codes(a, b))))

    assert error(*moved) < error(x, w) / 2


def _both_codes(a, b):
    (ac, scale_a), (bc, scale_b) = quantize_absmax(a, 8, 1), quantize_absmax(b, 8, 0)
    return ac, bc, scale_a, scale_b


@pytest.mark.parametrize("layer", range(6))
def test_scales_by_activations_help_and_random_channels_do_not(layer):
    """On every layer of the trained model that ships with the course."""
    given = _real_activations(layer, 704, 256)
    x, w, group = given["x"], given["w"], given["group"]

    def error(s):
        codes, scales = quantize_groups(w * s[:, None], group)
        restored = dequantize(codes, scales.repeat(group, axis=0)) / s[:, None]
        return np.mean((x @ (w - restored)) ** 2)

    s, plain = search_scales(x, w, group, ALPHAS), error(np.ones(len(w)))
    assert error(s) < 0.9 * plain
    for seed in range(3):
        assert error(np.random.default_rng(seed).permutation(s)) > plain


# ---- whole models -------------------------------------------------------------------------------

TINY = ModelConfig(
    n_layers=3, d_model=24, n_heads=6, n_kv_heads=2, d_head=8, d_ff=40, vocab_size=61
)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return Model(TINY, random_weights(TINY, np.random.default_rng(0)))


def test_recorded_inputs_are_what_the_matrices_read(tiny, monkeypatch):
    tokens = [5, 1, 60, 7, 7]
    seen = []
    import inferlab.attention
    import inferlab.operators
    from inferlab.operators import project

    def watched(x, w):
        seen.append((x[0], w))
        return project(x, w)

    recorded = calibration_inputs(tiny, tokens)
    monkeypatch.setattr(inferlab.attention, "project", watched)
    monkeypatch.setattr(inferlab.operators, "project", watched)
    tiny.forward(np.array(tokens)[None])
    read = {id(w): x for x, w in seen}
    names = {"attention": "w_k", "mixed heads": "w_o", "mlp": "w_up", "hidden": "w_down"}
    for layer, weights in enumerate(tiny.weights.layers):
        for what, name in names.items():
            exact = read[id(getattr(weights, name))]
            assert np.allclose(recorded[layer][what], exact, atol=1e-5), (layer, what)


def test_unchanged_weights_give_the_same_model_and_changed_ones_reach_every_matrix(tiny):
    tokens = [3, 9, 20]
    seen = []

    def keep(w, layer, what):
        seen.append((layer, what, w.shape))
        return w

    same = with_changed_weights(tiny, keep)
    assert np.array_equal(log_probabilities(same, tokens), log_probabilities(tiny, tokens))
    assert seen[:4] == [
        (0, "attention", (24, 48 + 16 + 16)), (0, "mixed heads", (48, 24)),
        (0, "mlp", (24, 80)), (0, "hidden", (40, 24)),
    ]  # fmt: skip
    zeroed = with_changed_weights(tiny, lambda w, *_: 0 * w)
    names = ("w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down")
    assert all(not getattr(layer, n).any() for layer in zeroed.weights.layers for n in names)
    assert zeroed.weights.embedding is tiny.weights.embedding


def test_perplexity_and_kl_against_torch(tiny):
    tokens = [3, 9, 20, 33, 1]
    exact = log_probabilities(tiny, tokens)
    logits = torch.tensor(tiny.forward(np.array(tokens)[None])[0]).double()
    nats = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    assert perplexity(exact, tokens) == pytest.approx(math.exp(nats.item()), rel=1e-6)
    other = torch.log_softmax(logits * 0.7, dim=-1)
    kl = torch.nn.functional.kl_div(
        other, torch.log_softmax(logits, -1), log_target=True, reduction="batchmean"
    )
    assert kl_divergence(exact, other.numpy()) == pytest.approx(kl.item(), rel=1e-5)
    assert kl_divergence(exact, exact) == 0
    uniform = np.full((5, 61), -math.log(61))
    assert perplexity(uniform, tokens) == pytest.approx(61)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_cache_runs_inside_a_model(tiny, bits):
    """In one pass and in chunks the same; close to exact in 8 bits; bytes as computed."""
    tokens = [int(t) for t in RNG.integers(61, size=14)]

    def cache():
        return QuantizedKVCache(TINY.n_layers, TINY.n_kv_heads, TINY.d_head, bits=bits)

    whole, parts = cache(), cache()
    once = log_probabilities(tiny, tokens, whole)
    steps = [
        log_probabilities(tiny, part, parts) for part in (tokens[:9], tokens[9:10], tokens[10:])
    ]
    assert np.allclose(once, np.concatenate(steps), atol=1e-4)
    assert whole.n_tokens == parts.n_tokens == 14
    n_rows = 2 * TINY.n_layers * TINY.n_kv_heads * 14
    assert whole.n_bytes == n_rows * (TINY.d_head + 4)  # a byte a code, a float32 scale a row
    kl = kl_divergence(log_probabilities(tiny, tokens), once)
    assert 0 < kl < (1e-3 if bits == 8 else 1)


def test_greedy_text_with_an_8_bit_cache_is_that_of_a_trained_model():
    model = load_model("tiny-target")
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode("KING HENRY:\nMy lords,")
    config = model.config
    cache = QuantizedKVCache(config.n_layers, config.n_kv_heads, config.d_head)
    logits, tokens = model.next_logits(prompt, cache), []
    for _ in range(12):
        tokens.append(int(np.argmax(logits)))
        logits = model.next_logits(tokens[-1:], cache)
    assert tokens == generate_cached(model, prompt, 12)


def test_the_bytes_of_a_step_are_those_of_the_engine():
    from inferlab.engines.pytorch.model import TorchModel

    config = replace(model_preset("smollm2-135m"), n_layers=2, vocab_size=2048)
    model = Model(config, random_weights(config, np.random.default_rng(0)))
    gains = 2 * config.n_layers * config.d_model * 4
    body = config.n_layers * (2 * 576 * 64 * 12 + 3 * 576 * 1536)
    head = 576 * 2048
    int4, int8 = (bits * body // 8 for bits in (5, 10))
    for dtype, layers in {"int4": int4, "int8": int8}.items():
        engine = TorchModel.from_model(model, "cpu", dtype)
        assert engine.step_bytes == layers + 10 * head // 8 + gains
    full = engine_step_bytes(4, 30)
    assert full == 5 * 106_168_320 // 8 + 10 * 28_311_552 // 8
    assert engine_step_bytes(8, 30) == 10 * 134_479_872 // 8
    assert engine_step_bytes(None, 30) == 4 * 134_479_872


def test_a_model_cut_off_after_some_layers(tiny):
    short = first_layers(tiny, 2)
    assert short.config.n_layers == len(short.weights.layers) == 2
    assert short.next_logits([1, 2]).shape == (61,)
    with pytest.raises(ValueError, match="n_layers=4"):
        first_layers(tiny, 4)


def test_quantized_generation_runs_from_the_command_line_on_a_trained_model(capsys):
    command = ["generate", "KING HENRY:\nMy lords,", "--model", "tiny-target", "--raw"]
    texts = {}
    for dtype in ("float32", "int8", "int4"):
        arguments = ["--max-new-tokens", "12", "--engine", "torch", "--dtype", dtype]
        assert main([*command, *arguments]) == 0
        seen = capsys.readouterr()
        assert f"cpu, {dtype}" in seen.err
        texts[dtype] = seen.out
    assert texts["int8"] == texts["float32"]
    assert "lord" in texts["int4"]


@pytest.mark.parametrize("size", [1e-4, 1e-5, 1e-6, 2e-7])
@pytest.mark.parametrize("sign", [1, -1])
def test_tiny_float16_numbers_keep_their_sign_and_most_of_their_size(size, sign):
    row = np.array([[sign * size, -sign * size / 2, 0]], np.float16)
    codes, scales = quantize_absmax(row, axis=1)
    assert scales.dtype == np.float16
    assert codes[0, 0] * sign > 0
    assert codes[0, 2] == 0
    restored = codes.astype(float) * scales.astype(float)
    assert np.abs(restored - row).max() < 0.3 * size  # the type has a digit or two there
    codes, scales, zeros = quantize_asymmetric(row, axis=1)
    restored = scales.astype(float) * (codes.astype(float) - zeros)
    assert np.abs(restored - row).max() < 0.5 * size


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_an_int8_product_has_the_number_type_of_its_scales(kind):
    x, w = np.full((2, 300), 127, np.int8), np.full((300, 1), -127, np.int8)
    y = matmul_int8(x, w, np.full((2, 1), 0.01, kind), np.full((1, 1), 0.5, kind))
    assert y.dtype == kind
    exact = -300 * 127 * 127 * float(kind(0.01)) * 0.5
    assert np.allclose(y.astype(float), exact, rtol=float(np.finfo(kind).eps))
