"""The explorer's numbers: those of inferlab, for every model on every device."""

import itertools

import pytest
from explorer_settings import DEVICES, MODELS, SETTINGS
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from inferlab.capacity import compute_bound_from, pass_seconds
from inferlab.data import load_devices, load_models, model_preset
from inferlab.kv_cache import largest_batch, longest_context
from inferlab.moe_sizes import resident_bytes
from inferlab.roofline import compute_bound_batch, device_rates, step_bound_s
from inferlab.speculative_sampling import speedup
from labkit.explorer.controls import FOCUS, controls, read
from labkit.explorer.pictures import memory_parts
from labkit.explorer.setting import OWN, WEIGHTS, Setting, adapted, variants
from labkit.explorer.state import BATCHES, compute, curves
from labkit.explorer.tasks import TASKS

PLAIN = [
    name for name in MODELS
    if (c := model_preset(name)).mla is None and not c.n_experts and c.sliding_window is None
]  # fmt: skip


def precision(device: str) -> str:
    return "bf16" if load_devices()[device]["peak_dense_tflops"]["bf16"] else "fp16"


@pytest.mark.parametrize("device", DEVICES)
def test_every_model_on_this_device_has_the_numbers_of_inferlab(device):
    bandwidth, peak = device_rates(load_devices()[device], precision(device))
    memory = load_devices()[device]["memory_gb"] * 1e9
    for name in MODELS:
        state, config = compute(Setting(model=name, device=device)), model_preset(name)
        assert state.weight_bytes == 2 * config.n_params
        assert state.memory_bytes == memory
        assert state.decode.seconds == max(pass_seconds(state.deployment, 1, 8192, 16))
        if config.n_experts:
            assert state.weight_bytes == resident_bytes(config)
        if name not in PLAIN:
            continue
        assert state.decode.seconds == pytest.approx(
            step_bound_s(config, 1, 8192, bandwidth, peak, 2, 16)
        )
        assert state.prefill.seconds == pytest.approx(
            step_bound_s(config, 8192, 0, bandwidth, peak, 2)
        )
        assert state.fits_sequences == largest_batch(config, 8192, memory, state.weight_bytes)
        assert min(state.longest_context, 10**6) == min(
            longest_context(config, 16, memory, state.weight_bytes), 10**6
        )


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("n_tokens", [0, 128, 1024])
def test_where_computing_begins_is_lesson_ones_answer(name, n_tokens):
    state = compute(Setting(model=name, device="h100-sxm", n_tokens=max(n_tokens, 1)))
    d = state.deployment
    rates = d.bandwidth_bytes_per_s, d.peak_flops_per_s
    ours = compute_bound_from(d, n_tokens)
    theirs = compute_bound_batch(d.config, n_tokens, *rates, 2)
    assert ours == (theirs if theirs is None or theirs <= 10**9 else None)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b"])
def test_where_computing_begins_holds_for_any_model(name):
    """The batch before it reads longer, it and twice it do not."""
    d = compute(Setting(model=name, device="h100-sxm", n_tokens=128)).deployment
    n = compute_bound_from(d, 16)
    assert n is not None
    assert n > 1
    for batch, computes in ((n - 1, False), (n, True), (2 * n, True)):
        reading_s, computing_s = pass_seconds(d, 1, 16, batch)
        assert (computing_s >= reading_s) == computes


def test_the_published_numbers_of_the_worked_example():
    """Written down elsewhere: 131,072 B a token, 59 sequences, 4 times the cache with MHA."""
    state = compute(Setting())
    assert state.grow_bytes == 131_072
    assert state.cache_bytes == 17_179_869_184
    assert state.fits_sequences == 59
    assert compute(Setting(attention="mha")).cache_bytes == 68_719_476_736
    assert compute(Setting(attention="mqa")).cache_bytes == 2_147_483_648
    assert compute(Setting(cache="fp8")).cache_bytes == 8_589_934_592
    assert state.ridge == pytest.approx(1000 / 3)
    one = compute(Setting(model="llama-3-8b", device="h100-sxm", n_sequences=1, n_tokens=393))
    assert one.compute_from is not None
    assert (
        compute(Setting(model="llama-3-8b", device="h100-sxm", n_tokens=394)).compute_from is None
    )


def test_four_bit_weights_carry_their_scales():
    assert WEIGHTS["int4"].bytes_per_weight == 4.125 / 8
    assert (
        compute(Setting(weights="int4")).weight_bytes
        == model_preset("8b-style").n_params * 4.125 / 8
    )


def test_a_device_without_fp8_computes_in_16_bit_and_says_so():
    old, new = (Setting(device=name, weights="fp8") for name in ("a100-80-sxm", "h100-sxm"))
    assert (old.precision, new.precision) == ("bf16", "fp8")
    assert "does not compute in FP8" in " ".join(old.notes())
    assert new.notes() == []
    assert compute(new).ridge == pytest.approx(1978.9 / 3.35, rel=1e-4)
    assert Setting(device="t4").precision == "fp16"


def test_speculation_is_lesson_eights_while_verifying_is_free():
    state = compute(Setting(n_sequences=1, gamma=4))
    assert state.gain == pytest.approx(speedup(0.8, 4, 0.05))
    assert state.user_per_s == pytest.approx(2.8013 / state.decode.seconds, rel=1e-4)
    crowded = Setting(n_sequences=256, n_tokens=1, gamma=4, device="h100-sxm")
    assert compute(crowded).gain < 1


# ---- attention ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_each_kind_of_attention_is_there_or_says_why_not(name):
    config = model_preset(name)
    found = variants(name)
    assert list(found) == [OWN, "mha", "gqa", "mqa", "mla"]
    assert found[OWN].config == config
    assert (found["mla"].config is None) == (config.mla is None)
    for kind, variant in found.items():
        if variant.config is None:
            assert name in variant.why_not
            with pytest.raises(ValueError, match="cannot be had"):
                Setting(model=name, attention=kind)
            continue
        n = variant.config.n_kv_heads
        assert {"mha": n == config.n_heads, "gqa": 1 < n < config.n_heads, "mqa": n == 1}.get(
            kind, True
        )
    caches = [
        compute(Setting(model=name, attention=kind)).cache_bytes
        for kind in ("mqa", "gqa", "mha") if found[kind].config
    ]  # fmt: skip
    assert caches == sorted(set(caches))


def test_an_attention_that_does_not_go_with_the_model_gives_way_and_says_so():
    setting, why = adapted({"model": "falcon-7b", "attention": "gqa"})
    assert setting == Setting(model="falcon-7b")
    assert "71 query heads" in why
    assert adapted({"model": "deepseek-v3", "attention": "mla"})[1] == ""


@pytest.mark.parametrize(
    "values",
    [
        {"model": "gpt5"}, {"device": "abacus"}, {"n_sequences": 0}, {"n_tokens": 2.5},
        {"weights": "int3"}, {"cache": "int4"}, {"headroom": 1.0}, {"acceptance": 1.1},
        {"gamma": -1}, {"n_sequences": True}, {"draft_cost": float("nan")}, {"attention": "linear"},
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused_with_what_was_given(values):
    ((name, value),) = values.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        Setting(**values)


def test_values_from_an_address_are_read_by_their_type():
    assert read({"n_sequences": "59", "headroom": "0.1", "model": "gpt2"}) == {
        "n_sequences": 59, "headroom": 0.1, "model": "gpt2",
    }  # fmt: skip
    with pytest.raises(ValueError, match="n_sequences='many'"):
        read({"n_sequences": "many"})
    with pytest.raises(ValueError, match="no control is called 'colour'"):
        read({"colour": "red"})


# ---- what must hold for every setting ----------------------------------------------------------


@hypothesis_settings(max_examples=150, deadline=None, derandomize=True)
@given(SETTINGS)
def test_sums_and_verdicts_agree(setting):
    state = compute(setting)
    held = state.weight_bytes + state.cache_bytes + state.headroom_bytes
    assert held + state.left_bytes == pytest.approx(state.memory_bytes)
    assert state.fits == (held <= state.memory_bytes)
    assert state.fits == (setting.n_sequences <= state.fits_sequences)
    parts = memory_parts(state)
    assert ("does not fit" in parts) == (not state.fits)
    stacked = sum(size for name, size in parts.items() if name != "does not fit")
    assert stacked - parts.get("does not fit", 0) == pytest.approx(state.memory_bytes)
    assert state.all_per_s == pytest.approx(setting.n_sequences * state.user_per_s)
    if state.fits:
        assert state.longest_context >= min(setting.n_tokens, 10**6)
    if state.compute_from is not None and setting.n_sequences >= state.compute_from:
        assert state.decode.bound == "compute"
    assert 0 < state.gain <= setting.gamma + 1


@hypothesis_settings(max_examples=40, deadline=None, derandomize=True)
@given(SETTINGS)
def test_the_curves_go_through_the_setting(setting):
    state, found = compute(setting), curves(setting)
    place = found.batches.index(setting.n_sequences)
    assert found.user_per_s[place] == state.user_per_s
    assert found.intensities[place] == state.decode.intensity
    plain = found.plain_user_per_s
    assert all(late <= early for early, late in itertools.pairwise(plain))
    assert set(BATCHES) <= set(found.batches)


# ---- the form ----------------------------------------------------------------------------------


def test_every_field_has_a_control_that_offers_what_is_begun_with():
    offered = {control.name: control for control in controls()}
    assert set(offered) == set(vars(Setting()))
    models = {value for _, value in offered["model"].options}
    assert models == set(load_models()) | {"8b-style", "70b-style", "small-mha"}
    assert {value for _, value in offered["device"].options} == set(DEVICES)
    starts = [focus.start for focus in FOCUS.values()]
    starts += [one for task in TASKS for one in (task.start, *(to for _, to in task.moves))]
    for start in starts:
        for name, value in vars(start).items():
            if name == "attention":
                assert variants(start.model)[value].config is not None
            else:
                assert value in {one for _, one in offered[name].options}, (name, value)
    assert all(control.label and control.options for control in offered.values())


def test_every_lesson_that_opens_it_begins_with_what_fits():
    for lesson, focus in FOCUS.items():
        assert compute(focus.start).fits, lesson
        assert set(focus.first) <= set(vars(Setting()))
