"""Lesson 12: every number in its text is computed, and computed rightly."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from lesson_text import prose, stated_numbers

from grader.judging import registry
from inferlab.cache_sizes import cache_bytes
from inferlab.capacity import (
    Deployment,
    all_reduce_seconds,
    cache_room_bytes,
    devices_needed,
    max_context,
    pass_seconds,
    sequences_that_fit,
    steady_tpot_s,
    tensor_parallel_sizes,
    users_within,
    weights_read,
)
from inferlab.checkpoints.hf_stored import read_stored
from inferlab.checkpoints.read_config import read_config
from inferlab.config import ModelConfig
from inferlab.data import ROOT, load_config, load_devices, model_preset
from inferlab.kv_cache import kv_cache_bytes, largest_batch
from inferlab.planner import (
    choose_offer,
    cost_per_million_tokens,
    first_obstacle,
    lever_gain,
    speculation_gain,
)
from inferlab.roofline import step_bound_s, step_bytes

LESSON = "12_capacity"
H100 = load_devices()["h100-sxm"]
LLAMA_8B, LLAMA_70B = model_preset("llama-3-8b"), model_preset("llama-3-70b")
STYLE_8B = model_preset("8b-style")
FOUR = Deployment.on(H100, LLAMA_70B, 4, overhead_bytes=7.5e9)
REAL = replace(FOUR, efficiency=0.7)
FP8 = {"bytes_per_weight": 1, "bytes_per_number": 1}
TINY = read_config(ROOT / "data" / "tiny" / "target")


def gb(n_bytes: float, digits: int) -> str:
    return f"{n_bytes / 1e9:,.{digits}f}"


def ms(seconds: float, digits: int = 1) -> str:
    return f"{1e3 * seconds:.{digits}f}"


def best_gamma(acceptance: float, n_users: int = 1) -> int:
    eight = Deployment.on(H100, STYLE_8B)
    return int(
        np.argmax([speculation_gain(eight, 0, n_users, acceptance, g, 0.05) for g in range(65)])
    )


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    token = kv_cache_bytes(LLAMA_70B, 1)
    weights = 2 * LLAMA_70B.n_params
    both = {b: b * LLAMA_70B.n_params + cache_bytes(LLAMA_70B, 32_768, 4) for b in (1, 2)}
    room = 4 * cache_room_bytes(FOUR)
    long = cache_bytes(LLAMA_70B, 32_768)
    step, full = pass_seconds(FOUR, 1, 1274, 298), pass_seconds(FOUR, 1, 1524, 298)
    fp8_users = [
        users_within(d, 1024, 500, 0.04)
        for d in (REAL, replace(REAL, bytes_per_weight=1), replace(REAL, **FP8))
    ]
    fp8_fit = [
        sequences_that_fit(d, 1524)
        for d in (replace(REAL, bytes_per_weight=1), replace(REAL, **FP8))
    ]
    gains = [
        lever_gain(FOUR, replace(FOUR, **change), 1500, 310)
        for change in ({"bytes_per_weight": 1}, {"bytes_per_number": 1})
    ]
    heads = replace(LLAMA_70B, n_kv_heads=64)
    pages = math.ceil(1000 / 16)
    eighty = replace(Deployment.on(H100, LLAMA_70B, headroom=0.1), n_devices=16)
    return {
        # section 1
        f"{token:,}", f"{token // 1024}", ms(1500 * token / 1e9),
        str(int(150e9 // (1500 * token))), str(sequences_that_fit(FOUR, 1524)),
        str(sequences_that_fit(FOUR, 1524, 1)),
        str(sequences_that_fit(replace(FOUR, n_devices=2), 1524)),
        # worked examples
        f"{24 - 2.4 - 2 - 5:g}", f"{0.1 * 24:g}", str(pages), f"{16 * pages:,}",
        f"{16 * pages * 32_768 / 1e6:.2f}", f"{14.6e9 / (16 * pages * 32_768):.2f}",
        str(int(14.6e9 // (16 * pages * 32_768))),
        f"{10e9 / (0.7 * 2e12) * 1e3:.2f}", f"{100e9 / (0.7 * 500e12) * 1e3:.3f}",
        f"{100 * 1000 * 2:,}", f"{2 * 3 / 4:g}", f"{4 * 200_000 * 1.5 / 1e6:g}",
        f"{4 * 200_000 * 1.5 / 100e9 * 1e3:g}", f"{20 + 0.5 * 30:.0f}", f"{8 + 0.5 * 30:.0f}",
        f"{100 / 200:g}", f"{(70 + 60) / (35 + 60):.2f}", f"{135 / 100:g}", f"{100 + 35}",
        f"{1 + 0.5 + 0.25:g}", f"{0.5**2:g}", f"{1.75 / (1.2 + 2 * 0.1):g}", f"{1.2 + 0.2:g}",
        f"{40 / 0.020:,.0f}", f"{40 / 0.020 * 3600 / 1e6:g}",
        f"{2 * 3 / (40 / 0.020 * 3600) * 1e6:.2f}", f"{2 * 3 / (40 / 0.020 * 1800) * 1e6:.2f}",
        f"{10 / 60:.2f}", f"{7 / 35:.2f}",
        # devices
        gb(both[2], 0), gb(both[1], 0), gb(weights, 1), gb(room, 1), gb(weights / 2 * 2, 0),
        # speed
        ms(max(step)), ms(max(full)), ms(full[1]), ms(pass_seconds(FOUR, 1024, 0)[1]),
        f"{pass_seconds(FOUR, 1024, 0)[1] * 1e3:.0f}", f"{max(step) * 1e3:.0f}",
        ms(steady_tpot_s(FOUR, 1024, 500, 298)), f"{1e3 * steady_tpot_s(FOUR, 1024, 500, 298):.0f}",
        ms(steady_tpot_s(FOUR, 1024, 500, 298, True)),
        ms(steady_tpot_s(replace(FOUR, efficiency=0.7), 1024, 500, 298, True)),
        ms(all_reduce_seconds(FOUR, 298, 450e9)),
        ms(steady_tpot_s(REAL, 1024, 500, 171)), ms(steady_tpot_s(REAL, 1024, 500, 172)),
        *map(str, fp8_users), str(fp8_users[0] + 1), *map(str, fp8_fit),
        str(users_within(REAL, 1024, 500, 0.04, True)), str(by_rounder_formulas()),
        str(users_within(replace(FOUR, efficiency=0.8), 1024, 500, 0.04)),
        gb(pass_seconds(FOUR, 1, 1524, 295)[0] * 4 * 3.35e12, 0), f"{math.ceil(1524 / 16) * 16:,}",
        # levers
        *(f"{gain[key]:.2f}" for gain in gains for key in gain), f"{heads_gain():.2f}",
        gb(heads.n_params - LLAMA_70B.n_params, 1), f"{4 + 16 / 128:g}",
        str(best_gamma(0.9)), str(best_gamma(0.95)), str(best_gamma(0.8, 300)),
        # interview
        f"{2 * 2.5 / 2 / (2000 * 3600) * 1e6:.3f}", f"{20_000 / 22_000:.0%}".rstrip("%"),
        gb(20_000 * kv_cache_bytes(STYLE_8B, 1), 2), f"{kv_cache_bytes(STYLE_8B, 1):,}",
        gb(30 * 20_000 * kv_cache_bytes(STYLE_8B, 1), 1), f"{long:,}", gb(long, 2),
        f"{long / 2**30:g}", f"{8 * 80 * 0.9:.0f}", gb(8 * 80e9 * 0.9 - weights, 1),
        str(largest_batch(LLAMA_70B, 32_768, 8 * 80e9, weights, 0.1)),
        str(sequences_that_fit(eighty, 32_768, 1)), gb(kv_cache_bytes(STYLE_8B, 8192), 4),
        f"{64 / 1.0737:.1f}", str(largest_batch(STYLE_8B, 8192, 80e9, 16e9)),
        str(largest_batch(STYLE_8B, 8192, 80 * 2**30, 16e9)),
        str(largest_batch(STYLE_8B, 8192, 80e9, 16e9, 0.1)),
        gb(16e9 + kv_cache_bytes(STYLE_8B, 8192, 64), 2),
        gb(70e9 * 4.125 / 8, 1), gb(kv_cache_bytes(LLAMA_70B, 8192, 8), 1),
        gb(70e9 * 4.125 / 8 + kv_cache_bytes(LLAMA_70B, 8192, 8), 1),
        gb(kv_cache_bytes(LLAMA_70B, 8192, 8, 1), 2),
        gb(70e9 + kv_cache_bytes(LLAMA_70B, 8192, 8, 1), 2),
        f"{(70e9 + kv_cache_bytes(LLAMA_70B, 8192, 8, 1)) / 80e9 - 1:.1%}".rstrip("%"),
        gb(1536 * token, 3).removeprefix("0."), f"{85_198_045_184 / 2**30:.2f}",
        # a file of the hub
        read_stored(load_config("gpt-oss-20b")).format.split("(")[1].split()[0],
        # the models that are measured
        f"{TINY.n_params / 1e6:.2f}", f"{4 * TINY.n_params / 1e6:.0f}",
        f"{4 * model_preset('smollm2-135m').n_params / 1e6:.0f}",
    }  # fmt: skip


# What the text takes as given: sizes, prices, limits, workloads, settings, numbers of lessons.
GIVEN = {
    "01", "04", "05", "08", "09", "10", "11", "12", "16", "24", "25", "30", "32", "35", "40", "50",
    "60", "64", "70", "80", "90", "100", "128", "140", "150", "170", "200", "201", "220", "250",
    "256", "300", "310", "320", "400", "480", "500", "0.1", "0.5", "0.7", "0.9", "0.95", "1.0",
    "1.2", "2.50", "3.00", "95", "1,000", "1,024", "1,500", "1,524", "2,000", "8,000", "8,192",
    "20,000", "22,000", "32,768", "320,000", "10⁹", "2³⁰", "12.5", "31", "1.4",
}  # fmt: skip


def heads_gain() -> float:
    many = replace(FOUR, config=replace(LLAMA_70B, n_kv_heads=64))
    return lever_gain(many, FOUR, 1500, 310)["users"]


def by_rounder_formulas() -> int:
    """2 FLOPs a parameter, the attention of the prompt, every weight read: done by hand."""
    params, seconds = 70_553_706_496, 4 * 3.35e12
    prefill = (2 * (params - 8192 * 128_256) * 1024 + 2 * 80 * 8192 * 1024 * 1025) / (4 * 989.4e12)
    users = itertools.takewhile(
        lambda n: ((2 * params + n * 1274 * 327_680) / seconds + n * prefill / 499) / 0.7 <= 0.040,
        itertools.count(1),
    )
    return max(users)


def test_every_number_in_the_text_is_computed():
    assert stated_numbers(LESSON) - computed() - GIVEN == set()


def test_the_flagship_sizing_and_its_correction():
    """The source's 310 users: 305 with its own round numbers, 298 really; 171 served."""
    assert 4 * cache_room_bytes(FOUR) == pytest.approx(320e9 - 30e9 - 141_107_412_992)
    assert int(150e9 // kv_cache_bytes(LLAMA_70B, 1500)) == 305
    assert sequences_that_fit(FOUR, 1524, 1) == 298
    assert sequences_that_fit(FOUR, 1524) == sequences_that_fit(FOUR, 1536, 1) == 295
    reading, computing = pass_seconds(FOUR, 1, 1524, 298)
    assert reading == pytest.approx(21.64e-3, rel=0.01)  # published with the embedding read too
    assert computing == pytest.approx(10.77e-3, rel=0.01)
    assert pass_seconds(FOUR, 1024, 0)[1] == pytest.approx(36.2e-3, rel=0.02)
    assert users_within(REAL, 1024, 500, 0.040) == 171
    assert by_rounder_formulas() == 168
    assert all_reduce_seconds(FOUR, 310, 450e9) == pytest.approx(2.71e-3, rel=1e-3)


def test_exact_gains_of_the_levers():
    gain = lever_gain(FOUR, replace(FOUR, bytes_per_weight=1), 1500, 310)
    assert gain["users"] == pytest.approx(220 / 150, rel=0.01)
    assert gain["speed"] == pytest.approx(292.37 / 222.37, rel=0.005)
    halved = lever_gain(FOUR, replace(FOUR, bytes_per_number=1), 1500, 310)
    assert halved["users"] == 2
    one = replace(Deployment.on(H100, STYLE_8B))
    alone = lever_gain(one, replace(one, bytes_per_weight=1), 8192, 1)
    assert alone["speed"] == pytest.approx(1.882, rel=0.01)  # 1.882 with 16 GB of weights


def test_the_four_readings_of_how_many():
    asked = Deployment.on(H100, LLAMA_70B, headroom=0.1)
    names = ("weights", "with_cache", "with_headroom", "usable")
    found = [
        tuple(devices_needed(replace(asked, bytes_per_weight=b), 32_768, 4)[n] for n in names)
        for b in (2, 1)
    ]
    assert found == [(2, 3, 3, 4), (1, 2, 2, 2)]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("llama-3-70b", [1, 2, 4, 8, 16, 32, 64]),
        ("qwen2.5-7b", [1, 2, 4, 28]),
        ("falcon-7b", [1]),
        ("smollm2-135m", [1, 3, 9]),
    ],
)
def test_tensor_parallel_sizes_of_real_models(name, sizes):
    assert tensor_parallel_sizes(model_preset(name)) == sizes


def test_a_pass_on_one_device_is_the_bound_of_lesson_01():
    one = Deployment.on(H100, LLAMA_8B, bytes_per_weight=1)
    for n_new, n_cached, n in ((1, 5000, 7), (1, 5000, 900), (300, 0, 1), (2000, 0, 1)):
        bound = step_bound_s(LLAMA_8B, n_new, n_cached, 3.35e12, 989.4e12, 2, n, 1)
        assert max(pass_seconds(one, n_new, n_cached, n)) == pytest.approx(bound)


def test_weights_read_by_a_mixture_of_experts():
    """One token reads the active weights; a huge batch everything but the embedding and gains."""
    mixtral = model_preset("mixtral-8x7b")
    assert weights_read(mixtral, 1) == pytest.approx(step_bytes(mixtral, 0, 1, 1))
    embedding = mixtral.vocab_size * mixtral.d_model
    assert weights_read(mixtral, 10_000) == pytest.approx(mixtral.n_params - embedding, rel=1e-5)
    rng = np.random.default_rng(0)
    taken = [
        len({e for _ in range(6) for e in rng.choice(8, 2, replace=False)}) for _ in range(4000)
    ]
    expert = 3 * mixtral.d_model * mixtral.d_expert * mixtral.n_layers
    seen = (weights_read(mixtral, 6) - weights_read(mixtral, 1)) / expert + 2
    assert seen == pytest.approx(np.mean(taken), rel=0.01)


def test_the_longest_context_is_the_last_that_fits():
    window = ModelConfig(24, 1536, 24, 8, 64, 4096, 32_000, sliding_window=900, n_window_layers=20)
    for config in (window, LLAMA_8B, model_preset("deepseek-v2-lite")):
        d = Deployment.on(H100, config, 2, headroom=0.1, overhead_bytes=2e9)
        longest = max_context(d, 20)
        assert sequences_that_fit(d, longest, 1) >= 20 > sequences_that_fit(d, longest + 1, 1)
    assert max_context(Deployment.on(H100, LLAMA_8B, headroom=0.1), 1) == 426_784
    assert max_context(replace(FOUR, n_devices=1), 1) == 0


def test_steady_state_is_what_a_simulation_gives():
    """Serve users one token a step; whoever is done is replaced and its prefill is run at once."""
    n_users, n_output = 20, 50
    d = replace(Deployment.on(H100, LLAMA_8B), efficiency=0.8)
    prefill, clock, steps = max(pass_seconds(d, 900, 0)), 0.0, 0
    done = [i * (n_output - 1) // n_users for i in range(n_users)]  # staggered, as in a service
    while steps < 40 * (n_output - 1):
        reads = np.mean([900 + n for n in done])
        clock += max(pass_seconds(d, 1, round(reads), n_users))
        steps += 1
        for user in range(n_users):
            done[user] += 1
            if done[user] == n_output - 1:
                done[user] = 0
                clock += prefill
    expected = steady_tpot_s(d, 900, n_output, n_users)
    assert clock / steps == pytest.approx(expected, rel=0.01)


def test_speculation_costs_speed_at_a_large_batch():
    eight = Deployment.on(H100, STYLE_8B)
    gains = [speculation_gain(eight, 0, n, 0.8, 4, 0.05) for n in (1, 16, 64, 128, 256)]
    assert gains[:2] == pytest.approx([3.3616 / 1.2] * 2)
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] == pytest.approx(0.783, abs=0.001)
    assert [best_gamma(a) for a in (0.6, 0.8, 0.9, 0.95, 0.99)] == [4, 8, 13, 21, 55]


def test_cost_and_choice():
    one = Deployment.on(H100, LLAMA_8B)
    assert cost_per_million_tokens(one, 50, 0.025, 2.5) == pytest.approx(0.3472, abs=1e-4)
    offers = [
        {"name": n, "users": u, "usd_per_hour": p, "obstacle": o}
        for n, u, p, o in (("a", 60, 10, None), ("b", 35, 7, None), ("c", 0, 1, "tpot"))
    ]
    assert choose_offer(offers, 100) == {"name": "a", "copies": 2, "usd_per_hour": 20}
    with pytest.raises(ValueError, match="c: tpot"):
        choose_offer(offers[2:], 5)
    assert first_obstacle(replace(FOUR, n_devices=1), 1024, 500, 9, 9) == "memory"


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "data" / "configs").glob("*.json"))
)
@pytest.mark.parametrize("device", sorted(load_devices()))
def test_any_config_json_and_any_device_can_be_sized(name, device):
    config = read_config(load_config(name))
    precision = "bf16" if load_devices()[device]["peak_dense_tflops"]["bf16"] else "fp16"
    for n in tensor_parallel_sizes(config, 8):
        d = Deployment.on(load_devices()[device], config, n, precision, headroom=0.1)
        obstacle = first_obstacle(d, 2000, 300, 2.0, 0.1)
        users = users_within(d, 2000, 300, 0.1)
        assert obstacle in (None, "memory", "ttft", "tpot")
        assert (users == 0) if obstacle == "memory" else users <= sequences_that_fit(d, 2300)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="headroom=1"):
        replace(FOUR, headroom=1.0)
    with pytest.raises(ValueError, match="n_devices=0"):
        replace(FOUR, n_devices=0)
    with pytest.raises(ValueError, match="memory_bytes=-1"):
        replace(FOUR, memory_bytes=-1)
    with pytest.raises(ValueError, match="no peak for 'fp8'"):
        Deployment.on(load_devices()["a100-80-sxm"], LLAMA_8B, precision="fp8")
    with pytest.raises(ValueError, match="n_output=1"):
        steady_tpot_s(FOUR, 10, 1, 1)


def test_every_worked_example_in_a_docstring_holds():
    """The numbers of the docstrings, from the functions themselves."""
    assert cache_room_bytes(FOUR) == pytest.approx(37.22e9, rel=1e-4)
    assert pass_seconds(FOUR, 1, 1524, 298) == pytest.approx((0.02148, 0.01077), rel=1e-3)
    assert pass_seconds(FOUR, 1024, 0) == pytest.approx((0.01037, 0.03577), rel=1e-3)
    assert steady_tpot_s(FOUR, 1024, 500, 298) == pytest.approx(0.04102, rel=1e-3)
    assert steady_tpot_s(FOUR, 1024, 500, 298, True) == pytest.approx(0.03208, rel=1e-3)
    assert max_context(Deployment.on(H100, LLAMA_8B, headroom=0.1), 16) == 26_674
    limits = {0.5: None, 0.03: "ttft"}
    assert {k: first_obstacle(FOUR, 1024, 500, k, 0.040) for k in limits} == limits
    assert first_obstacle(FOUR, 1024, 500, 0.5, 0.010) == "tpot"


def test_predictions_and_what_they_say():
    predictions = {p.id: p for p in registry.predictions(LESSON)}
    assert predictions["ca_users"].answer() == 171
    assert predictions["ca_fp8"].answer() == pytest.approx(1.313, abs=0.001)
    said = predictions["ca_users"].because
    step, prefill = max(pass_seconds(REAL, 1, 1274, 171)), max(pass_seconds(REAL, 1024, 0))
    assert f"{1e3 * 171 / 499 * prefill:.1f} ms" in said
    assert f"{1e3 * step:.1f} ms" in said
    text = " ".join(prose(LESSON))
    assert "312" not in text
    assert "2.56 GB" not in text
