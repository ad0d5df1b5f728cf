"""Lesson 09: every number in its text is computed, and computed rightly."""

import subprocess
import sys
from itertools import product
from math import comb

import numpy as np
import pytest
from lesson_text import stated_numbers

from grader.checks.moe.predictions import card_shares, example_params, example_step_bytes
from grader.judging import registry
from inferlab.data import load_config, load_devices, load_models, model_preset
from inferlab.model import load_model
from inferlab.moe import (
    biased_router_weights,
    expert_capacity,
    load_balance_loss,
    router_weights,
    within_capacity,
)
from inferlab.moe_sizes import (
    moe_layer_params,
    moe_step_bytes,
    other_params,
    resident_bytes,
    total_and_active_params,
    touched_by_enumeration,
    touched_experts,
)
from inferlab.operators import softmax
from inferlab.params import attention_params, count_params, expert_params, mlp_params

MODELS = load_models()
MIXTURES = [name for name, m in MODELS.items() if m["moe"]]
H100 = load_devices()["h100-sxm"]
RIDGE = H100["peak_dense_tflops"]["bf16"] / H100["bandwidth_gb_s"] * 1e3


def billions(n: float, digits: int = 1) -> str:
    return f"{n / 1e9:.{digits}f}"


def with_wide_experts() -> int:
    """Qwen3-30B-A3B's weights if its experts had the width of intermediate_size."""
    raw, config = load_config("qwen3-30b-a3b"), model_preset("qwen3-30b-a3b")
    more = raw["intermediate_size"] - raw["moe_intermediate_size"]
    return config.n_params + 48 * config.n_experts * 3 * config.d_model * more


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    llama, v3, oss = (model_preset(n) for n in ("llama-3-8b", "deepseek-v3", "gpt-oss-20b"))
    (total, active), (v3_total, v3_active) = example_params(), total_and_active_params(v3)
    mixtral, mixtral_active = total_and_active_params(model_preset("mixtral-8x7b"))
    mlp = mlp_params(llama) / (mlp_params(llama) + attention_params(llama))
    p = softmax(np.array([[2.0, 1, 0, -1]]))[0]
    _, halves = router_weights(np.array([[2.0, 1, 0, -1]]), 2)
    small = (7 * 210 + 60, 3 * 210 + 60)
    tiny = load_model("tiny-moe")
    return {
        f"{100 * mlp:.0f}", billions(v3_total, 0), billions(v3_active),
        f"{v3_total / v3_active:.1f}", billions(total, 0), f"{2 * active / 1e9:.0f}",
        f"{total / active}",
        f"{(total - active) / 1e9:.0f}", f"{2 * total / 1e9:.0f}",
        *(f"{x:.3f}" for x in p), f"{p[:2].sum():.3f}", *(f"{x:.3f}" for x in halves[0]),
        f"{100 * (1 - p[:2].sum()):.0f}",
        "10", "20", f"{1 + 10}", f"{2 + 20}",
        billions(with_wide_experts()), billions(model_preset("qwen3-30b-a3b").n_params),
        f"{3 * 10 * 7}", f"{10 * 6}", *(f"{n:,}" for n in small),
        f"{4000 + 3 * small[0]:,}", f"{4000 + 3 * small[1]:,}",
        f"{8 * 7}", billions(mixtral), billions(mixtral_active),
        f"{3 * 6 * 210:,}", f"{2 * 8590:,}", f"{8590 - 3780:,}", f"{3780 // 2:,}",
        f"{2 * 4810 + 1890:,}", f"{resident_bytes(oss, 2, 4.25 / 8):,.0f}",
        billions(total_and_active_params(oss)[1] - oss.d_model * oss.vocab_size),
        f"{comb(4, 2) ** 3}", f"{model_preset('qwen3-30b-a3b').n_experts}",
        f"{touched_experts(16, 2, 2):g}", f"{touched_experts(16, 2, 16):.2f}",
        f"{touched_experts(128, 8, 16):.1f}", f"{touched_experts(256, 8, 32):.1f}",
        f"{example_step_bytes(1) / 1e9:.0f}", f"{example_step_bytes(16) / 1e9:.1f}",
        f"{RIDGE:.0f}", f"{RIDGE * 8 / 2:,.0f}", f"{RIDGE * 256 / 8:,.0f}", f"{256 // 8}",
        f"{(0.7 + 0.6) / 2:.2f}", f"{(0.3 + 0.4) / 2:.2f}",
        f"{0.5 + 0.75}", f"{1.25 * 10 / 4}", f"{3 + 10}", f"{4 + 20}",
        f"{tiny.n_params:,}", f"{100 / 8}", f"{16 * 256:,}",
        f"{4 * tiny.n_params / 1e6:.0f}", billions(8 * 3 * 4096 * 14336 * 2),
    }  # fmt: skip


# Sizes that the text takes as given: shapes, settings, lessons, factors, worked inputs.
GIVEN = {
    "01", "02", "04", "08", "09", "14", "16", "20", "30", "32", "60", "63", "64", "200", "256",
    "512", "768", "2.5", "4.25", "0.5", "0.75", "0.1", "0.6", "0.4", "0.7", "0.3", "1.0", "1.25",
    "0.005", "6,144", "4,000", "4,096", "14,336", "1.3", "10⁹", "2³⁰",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers("09_moe") - computed() - GIVEN == set()


def test_what_the_text_says_in_words():
    """Comparisons that the prose draws without a number of their own."""
    assert 4.0 < example_step_bytes(16) / example_step_bytes(1) < 4.1  # "four times as much"
    assert 0.6 < touched_experts(256, 8, 32) / 256 < 2 / 3  # "not quite two thirds"
    for E, k in ((8, 2), (128, 8), (256, 8)):
        assert touched_experts(E, k, 1000) > E - 1e-9  # a prompt takes them all
    assert 0.3 < max(card_shares(3)) < 0.36  # "about a third of all choices"
    assert max(card_shares(0)) < 0.16  # "nearly even"
    _, active = total_and_active_params(model_preset("deepseek-v3"))
    assert 2 * active < 80e9  # "a model that fits on one device"
    for name in ("mixtral-8x7b", "olmoe-1b-7b", "gpt-oss-20b"):
        assert load_config(name)["intermediate_size"] == model_preset(name).d_expert
    for name in ("qwen3-30b-a3b", "deepseek-v3", "deepseek-v2-lite"):
        assert load_config(name)["moe_intermediate_size"] == model_preset(name).d_expert
    raw = load_config("deepseek-v3")
    assert (raw["n_group"], raw["topk_group"], raw["routed_scaling_factor"]) == (8, 4, 2.5)


# ---- the reference against figures and methods that are not its own ----------------------------


@pytest.mark.parametrize("name", MIXTURES)
def test_counts_are_the_recorded_ones(name):
    config, recorded = model_preset(name), MODELS[name]["computed"]
    total, active = total_and_active_params(config)
    assert (total, active) == (recorded["params_total"], recorded["params_active"])
    if MODELS[name]["published"]["exact"]:
        assert total == MODELS[name]["published"]["params_total"]
    assert expert_params(config) == recorded["params_one_expert"]
    in_layer, used = moe_layer_params(config)
    n_out = config.n_experts - config.n_experts_per_token
    assert in_layer - used == n_out * recorded["params_one_expert"]
    beside = recorded["params_embedding"] + recorded["params_lm_head"] + recorded["params_norms"]
    beside += config.n_layers * recorded["params_attention_per_layer"]
    beside += config.n_dense_layers * recorded["params_dense_mlp_per_layer"]
    assert other_params(config) == beside


def test_resident_bytes_are_those_of_the_published_checkpoints():
    """gpt-oss: the tensors of the checkpoint, byte for byte; the others at 2 bytes a number."""
    published = {"gpt-oss-20b": 13_761_264_768, "gpt-oss-120b": 65_248_815_744}
    for name, n_bytes in published.items():
        assert resident_bytes(model_preset(name), 2, 4.25 / 8) == n_bytes
    for name in MIXTURES:
        recorded = MODELS[name]["computed"]["weight_bytes_bf16"]
        assert resident_bytes(model_preset(name)) == recorded


@pytest.mark.parametrize("E", [2, 3, 4, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_the_law_of_touched_experts_by_enumeration(E, n):
    for k in range(1, E + 1):
        assert touched_experts(E, k, n) == pytest.approx(touched_by_enumeration(E, k, n))


def test_touched_experts_known_values():
    known = {1: 2.00, 4: 6.62, 8: 10.50, 16: 14.11, 32: 15.78}
    for n, value in known.items():
        assert touched_experts(16, 2, n) == pytest.approx(value, abs=0.005)
    assert touched_experts(16, 2, 16) == pytest.approx(14.1109266, abs=1e-7)
    assert touched_experts(128, 8, 16) == pytest.approx(82.4225, abs=1e-4)
    assert touched_experts(256, 8, 32) == pytest.approx(163.314, abs=1e-3)
    rng = np.random.default_rng(0)
    drawn = np.argsort(rng.random((4000, 6, 16)), axis=-1)[..., :2].reshape(4000, -1)
    counted = np.mean([len(set(row)) for row in drawn.tolist()])
    assert counted == pytest.approx(touched_experts(16, 2, 6), abs=0.08)
    with pytest.raises(ValueError, match=r"n_chosen=9 must be in 1\.\.8"):
        touched_experts(8, 9, 1)
    with pytest.raises(ValueError, match="n_tokens=-1"):
        touched_experts(8, 2, -1)


def test_step_bytes_between_active_and_total():
    assert example_step_bytes(1) == 16e9
    assert example_step_bytes(16) == pytest.approx(64.4437e9, rel=1e-5)
    assert example_step_bytes(10_000) == pytest.approx(72e9)
    config = model_preset("mixtral-8x7b")
    always, expert = count_params(config, 0), 32 * expert_params(config)
    total, active = total_and_active_params(config)
    assert moe_step_bytes(always, expert, 8, 2, 1) == pytest.approx(2 * active)
    assert moe_step_bytes(always, expert, 8, 2, 500) == pytest.approx(2 * total)


def test_the_loss_is_that_of_transformers_divided_by_the_choices():
    """Their f is summed over the places of the choice, so even use costs n_chosen there."""
    import torch

    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    scores = np.random.default_rng(0).normal(size=(30, 8)) + np.linspace(0, 2, 8)
    for k in (1, 2, 3):
        experts, _ = router_weights(scores, k)
        theirs = mixtral.load_balancing_loss_func((torch.from_numpy(scores),), 8, k)
        assert k * load_balance_loss(softmax(scores), experts) == pytest.approx(float(theirs))
    even = np.array([[i, (i + 1) % 8] for i in range(8)])
    assert load_balance_loss(np.full((8, 8), 1 / 8), even, 0.01) == pytest.approx(0.01)


def test_the_gradient_that_the_lesson_follows_is_torchs():
    import torch

    scores = torch.tensor(np.random.default_rng(1).normal(size=(6, 4)), requires_grad=True)
    experts, _ = router_weights(scores.detach().numpy(), 2)
    f = torch.tensor(np.bincount(experts.ravel(), minlength=4) / experts.size)
    p = scores.softmax(-1)
    (4 * (f * p.mean(0)).sum()).backward()
    probabilities, share = p.detach().numpy(), f.numpy()
    by_hand = 4 / 6 * probabilities * (share - probabilities @ share[:, None])
    np.testing.assert_allclose(scores.grad.numpy(), by_hand, rtol=0, atol=1e-12)


def test_the_biased_router_is_that_of_deepseek_v3():
    """transformers' own router, with one group of experts, on random scores and a random bias."""
    import torch

    theirs = pytest.importorskip("transformers.models.deepseek_v3")
    config = theirs.DeepseekV3Config(
        hidden_size=12, n_routed_experts=12, num_experts_per_tok=4, n_group=1, topk_group=1,
        routed_scaling_factor=2.5, norm_topk_prob=True,
    )  # fmt: skip
    router = theirs.modeling_deepseek_v3.DeepseekV3TopkRouter(config)
    scores = np.random.default_rng(2).normal(size=(9, 12)).astype(np.float32)
    bias = 0.3 * np.random.default_rng(3).normal(size=12).astype(np.float32)
    with torch.no_grad():
        router.weight.copy_(torch.eye(12))  # a token's row is its scores
        router.e_score_correction_bias.copy_(torch.from_numpy(bias))
        _, their_weights, their_experts = router(torch.from_numpy(scores))
    expected, got = np.zeros((2, 9, 12))
    np.put_along_axis(expected, their_experts.numpy(), their_weights.numpy(), axis=-1)
    experts, weights = biased_router_weights(scores, bias, 4, 2.5)
    np.put_along_axis(got, experts, weights, axis=-1)
    assert (expected > 0).sum() == 9 * 4
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    plain, _ = router_weights(scores, 4)
    assert not np.array_equal(np.sort(plain), np.sort(experts)), "the bias turned no choice"


def test_capacity_and_who_is_served():
    assert expert_capacity(10, 4, 1, 1.25) == 4
    assert expert_capacity(64, 8, 2) == 16
    for choices in product(range(3), repeat=4):
        experts = np.array(choices).reshape(4, 1)
        served = within_capacity(experts, 2)[:, 0]
        for e in range(3):
            mine = np.flatnonzero(experts[:, 0] == e)
            assert served[mine].tolist() == [True] * min(2, len(mine)) + [False] * max(
                0, len(mine) - 2
            )


def test_the_command_line_runs_the_mixture():
    """What the lesson tells the reader to type writes the tokens of the engine."""
    command = [sys.executable, "-m", "grader.cli", "generate", "--model", "tiny-moe", "KING HENRY:"]
    run = subprocess.run(
        [*command, "--raw", "--max-new-tokens", "12"], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    model = load_model("tiny-moe")
    tokens = model.tokenizer.encode("KING HENRY:")
    for _ in range(12):
        tokens.append(int(model.next_logits(tokens).argmax()))
    written = model.tokenizer.decode(tokens).removeprefix("KING HENRY:").strip()
    assert written
    assert written in run.stdout


def test_predictions_have_an_answer():
    answers = {p.id: p.answer() for p in registry.predictions("09_moe")}
    assert answers["me_batch"] == pytest.approx(RIDGE * 16 / 2, rel=0.002) == 2360
    assert answers["me_touched"] == pytest.approx(14.11, abs=0.005)
    assert answers["me_step_ratio"] == pytest.approx(4.03, abs=0.005)
    assert answers["me_busiest"] == pytest.approx(8 * 0.3369)
