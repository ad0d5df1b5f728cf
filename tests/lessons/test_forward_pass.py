"""Lesson 02: every number in its text is computed; its parts agree with outside oracles."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from lesson_text import cells, stated_numbers

from grader.checks.forward_pass.drawn import DrawnWeights
from grader.checks.forward_pass.quiz import mlp_share, n_sentence_tokens, n_visible
from grader.judging import registry
from grader.judging.judge import judge
from grader.judging.verdict import Outcome
from inferlab import operators
from inferlab.components import component_bytes, component_flops, component_params, shares
from inferlab.data import load_config, model_preset
from inferlab.kv_cache import kv_cache_bytes
from inferlab.model import load_model
from inferlab.roofline import body_params, forward_flops
from inferlab.transformer import forward
from labkit.measure.diverge import first_divergence
from labkit.measure.part_times import REST, component_times
from labkit.measure.rewire import IN_OPERATORS, IN_TRANSFORMER, REFERENCE, alone

LESSON = "02_forward_pass"
LLAMA, SMOL = model_preset("llama-3-8b"), model_preset("smollm2-135m")


def computed() -> set[str]:
    """Every number that the lesson's text states as a result, as it is written there."""
    per_key = component_flops(LLAMA, 1)["attention scores"]
    matrices = 2 * body_params(LLAMA)
    two = operators.softmax(np.array([1000.0, 1001.0]))
    qwen = model_preset("qwen3-0.6b")
    gate = float(operators.silu(np.array(2.0)))
    return {
        f"{two[0]:.3f}", f"{two[1]:.3f}", f"{gate:.4f}", f"{3 * gate:.3f}",
        f"{float(operators.silu(np.array(10.0))):.4f}",
        f"{-float(operators.silu(np.array(-10.0))):.5f}",
        f"{(3**2 + 4**2) / 2}", f"{math.sqrt(12.5):.4f}",
        f"{operators.rope_angles(np.array([3]), 4, 100.0)[0, 1]:.1f}",
        f"{per_key:,}", f"{matrices:,}", f"{8192 * per_key / matrices:.0%}".rstrip("%"),
        f"{32 * 2 * 4096 * (4096 - 8 * 128):,}", f"{4096 - 8 * 128:,}", f"{8 * 128:,}",
        f"{qwen.n_heads * qwen.d_head:,}", f"{qwen.d_model:,}", f"{100 - 1}",
        str(load_config("gemma-2-27b")["query_pre_attn_scalar"]),
        f"{SMOL.d_model}", f"{SMOL.vocab_size:,}", f"{SMOL.n_layers}", f"{SMOL.d_head}",
        f"{load_config('smollm2-135m')['rope_theta']:,}",
        f"{load_config('llama-3-8b')['rope_theta']:,.0f}",
        f"{load_config('llama-3-8b')['hidden_size']:,}",
    }  # fmt: skip


# Inputs of worked examples, sizes and settings that the text takes as given.
GIVEN = {
    "02", "03", "04", "05", "09", "10", "16", "32", "100", "128", "256", "1,000", "1000", "1001",
    "8,192", "10,000",
}  # fmt: skip


def test_every_number_in_the_text_is_computed():
    assert stated_numbers(LESSON) - computed() - GIVEN == set()


def test_the_sources_of_those_numbers_are_right():
    """Against published figures and closed forms that this project did not compute."""
    assert component_flops(LLAMA, 1)["attention scores"] == 524_288
    assert 2 * body_params(LLAMA) + 2 * 4096 * 128_256 == 15_009_316_864
    assert mlp_share(4096, 32, 8, 128, 14336) == pytest.approx(80.8, abs=0.05)
    assert mlp_share(8192, 64, 8, 128, 28672) == pytest.approx(82.4, abs=0.05)
    # the rule of a third: a plain MLP of 4 d (8 d² weights, as a gated one of 8/3 d), MHA
    assert mlp_share(768, 12, 12, 64, 2048) == pytest.approx(200 / 3)
    assert n_visible(2, 7) == 6 + 7
    assert n_sentence_tokens() == 17
    assert load_config("gemma-2-27b")["head_dim"] == 128


@pytest.mark.parametrize("name", ["llama-3-8b", "smollm2-135m", "qwen3-0.6b", "llama-2-7b"])
def test_components_add_up(name):
    config = model_preset(name)
    for n_new, n_cached in ((1, 0), (1, 99), (7, 0), (5, 12)):
        assert sum(component_flops(config, n_new, n_cached).values()) == forward_flops(
            config, n_new, n_cached
        )
    full = component_flops(config, 5, 2, skip_hidden=False)["attention scores"]
    assert full == 4 * config.n_layers * config.n_heads * config.d_head * 5 * 7
    params = component_params(config)
    assert params["attention projections"] + params["MLP"] == body_params(config)
    read = component_bytes(config, 3, 10, 2)
    assert read["attention scores"] == kv_cache_bytes(config, 13)
    assert read["output head"] == 2 * config.d_model * config.vocab_size
    assert sum(shares(read).values()) == pytest.approx(1)


def test_components_refuse_nonsense():
    with pytest.raises(ValueError, match="n_new=0"):
        component_flops(SMOL, 0)
    with pytest.raises(ValueError, match="n_cached=-1"):
        component_bytes(SMOL, 1, -1)
    with pytest.raises(ValueError, match="more than 0"):
        shares({"a": 0.0})


def test_times_of_components_cover_the_pass():
    model = load_model("tiny-target")
    times = component_times(model, 12, 5, rounds=1)
    assert list(times) == [*component_params(model.config), REST]
    assert min(times.values()) >= 0
    assert times["MLP"] > 0
    assert times["attention projections"] > 0
    assert times["attention scores"] > 0
    assert times["output head"] > 0
    with pytest.raises(ValueError, match="n_new=0"):
        component_times(model, 0)


def test_predictions_have_the_answers_that_the_text_explains():
    predictions = {p.id: p for p in registry.predictions(LESSON)}
    assert 2 <= len(predictions) <= 4
    assert predictions["fp_score_size"].answer() == 8
    assert predictions["fp_mlp_share"].answer() == pytest.approx(87.4, abs=0.05)
    assert predictions["fp_tokens"].answer() == 17
    assert predictions["fp_layout"].answer() in predictions["fp_layout"].choices


# ---- the reference against outside oracles -------------------------------------------------------


def test_parts_equal_a_slow_loop_and_torch():
    rng = np.random.default_rng(0)
    x, gain = rng.normal(size=(2, 3, 10)), rng.uniform(0.5, 2, 10)
    w_gate, w_up = rng.normal(size=(2, 10, 7))
    w_down = rng.normal(size=(7, 10))
    t = torch.from_numpy
    mlp = (F.silu(t(x) @ t(w_gate)) * (t(x) @ t(w_up))) @ t(w_down)
    np.testing.assert_allclose(
        operators.swiglu(x, w_gate, w_up, w_down), mlp.numpy(), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        operators.rms_norm(x, gain, 1e-3), F.rms_norm(t(x), (10,), t(gain), 1e-3), atol=1e-12
    )
    for T, S in ((1, 5), (3, 5), (5, 5)):
        by_hand = [[s <= S - T + i for s in range(S)] for i in range(T)]
        np.testing.assert_array_equal(operators.causal_mask(T, S), by_hand)


def test_rope_equals_that_of_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    config = LlamaConfig(
        hidden_size=48,
        num_attention_heads=3,
        head_dim=16,
        rope_theta=5e5,
        max_position_embeddings=64,
    )
    q, k = np.random.default_rng(1).normal(size=(2, 2, 3, 7, 16)).astype(np.float32)
    positions = np.arange(5, 12)
    cos, sin = LlamaRotaryEmbedding(config)(torch.from_numpy(q), torch.from_numpy(positions)[None])
    theirs = apply_rotary_pos_emb(torch.from_numpy(q), torch.from_numpy(k), cos, sin)
    angles = operators.rope_angles(positions, 16, 5e5)
    for mine, other in zip((q, k), theirs, strict=True):
        np.testing.assert_allclose(operators.rotate(mine, angles), other.numpy(), rtol=0, atol=2e-5)


def test_stretched_angles_are_plain_ones_where_nothing_stretches():
    positions = np.array([0, 3, 1000])
    plain = operators.rope_angles(positions, 8, 1e4)
    np.testing.assert_array_equal(operators.stretched_angles(positions, 8, 1e4, None), plain)


# ---- what the text claims of trained models ------------------------------------------------------


@pytest.mark.model
def test_a_wrong_layout_is_as_bad_in_the_real_model_as_the_text_says(real_model):
    planted = {**REFERENCE, "rotate": neighbours}
    text = (
        "The Eiffel Tower is a wrought-iron lattice tower on the Champ de Mars in Paris, France. "
        "It is named after the engineer Gustave Eiffel, whose company designed and built the tower."
    )
    found = first_divergence(planted, real_model, real_model.tokenizer.encode(text))
    assert (found.layer, found.part) == (0, "rotate")
    assert found.logits_error > 30
    assert found.n_same_top < 2 / 3 * found.n_positions


@pytest.mark.model
def test_the_two_heads_look_where_the_text_says(real_model):
    from labkit.measure.diverge import calls

    ids = real_model.tokenizer.encode("The cat sat on the mat because it was warm.")
    words = [real_model.tokenizer.decode([i]).strip() for i in ids]
    softmaxes = calls(REFERENCE, real_model, ids, "softmax")
    before = softmaxes[16].output[0, 0]
    assert np.mean([before[t, t - 1] for t in range(1, len(ids))]) > 0.7
    back = softmaxes[13].output[0, 8]
    assert back[words.index("it"), words.index("cat")] == pytest.approx(0.8, abs=0.05)


@pytest.mark.model
def test_the_head_is_a_fifth_of_what_a_step_reads(real_model):
    read = shares(component_bytes(real_model.config, 1, 128))
    assert read["output head"] == pytest.approx(0.2, abs=0.02)
    long = component_flops(real_model.config, 128)
    assert shares(component_bytes(real_model.config, 128))["output head"] > 0.19
    assert shares(long)["output head"] < 0.005
    assert 80 < sum(long.values()) / sum(component_flops(SMOL, 1, 128).values()) < 120
    params = component_params(SMOL)
    assert params["MLP"] / params["attention projections"] == pytest.approx(3, abs=0.05)
    assert len(real_model.tokenizer.encode("Explain the roofline model in one sentence.")) == 9


def neighbours(x, angles):
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


# ---- every exercise can be solved alone ---------------------------------------------------------

NOTEBOOK = "\n\n".join(
    c.source
    for c in cells(LESSON)
    if c.cell_type == "code" and c.source.startswith("def ") and "ready(" not in c.source
)
IMPORTS = """
import math
import numpy as np
from inferlab.attention import Cache
from inferlab.config import ModelConfig
from inferlab.operators import project
from inferlab.transformer import check_tokens
from inferlab.weights import LayerWeights, Weights
"""


def notebook(written: dict[str, str]) -> dict:
    """A learner's namespace: the given cells, some parts written, the others stubs."""
    namespace: dict = {"__name__": "__main__"}
    exec(IMPORTS + NOTEBOOK, namespace)
    for exercise in registry.exercises(LESSON):
        stub = f"def {exercise.id}(*args, **kwargs):\n    raise NotImplementedError('write this')"
        exec(written.get(exercise.id, stub), namespace)
    return namespace


def source(name: str) -> str:
    import inspect

    return inspect.getsource(REFERENCE[name])


def test_the_joints_of_the_notebook_are_the_ones_expected():
    for joint in ("to_heads", "mix_tokens", "feed_forward", "position_angles", "visible_keys"):
        assert f"def {joint}(" in NOTEBOOK


@pytest.mark.parametrize("exercise", registry.exercises(LESSON), ids=lambda e: e.id)
def test_an_exercise_passes_while_all_others_are_stubs(exercise):
    namespace = notebook({exercise.id: source(exercise.id)})
    verdict = judge(exercise, namespace[exercise.id], hidden=True)
    assert verdict.passed, verdict.text()


@pytest.mark.parametrize("exercise", registry.exercises(LESSON), ids=lambda e: e.id)
def test_a_stub_among_right_parts_is_not_written(exercise):
    others = {e.id: source(e.id) for e in registry.exercises(LESSON) if e.id != exercise.id}
    verdict = judge(exercise, notebook(others)[exercise.id])
    assert verdict.outcome is Outcome.NOT_RUN


def test_a_wrong_part_does_not_drag_others_down():
    """Who failed RoPE can still do self-attention, the block and the pass."""
    wrong = "def rotate(x, angles):\n    return x * 2"
    written = {e.id: source(e.id) for e in registry.exercises(LESSON)} | {"rotate": wrong}
    namespace = notebook(written)
    outcomes = {e.id: judge(e, namespace[e.id]).passed for e in registry.exercises(LESSON)}
    assert [i for i, passed in outcomes.items() if not passed] == ["rotate"]
    model = load_model("tiny-target")
    found = first_divergence(namespace, model, [3, 1, 4, 1, 5])
    assert (found.layer, found.part) == (0, "rotate")


def test_a_helper_of_the_learners_own_is_taken_along():
    helper = "def attend(q, k, v, visible):\n    return attention(q, k, v, visible)"
    body = source("self_attention").replace("merge_heads(attention(", "merge_heads(attend(")
    namespace = notebook({"self_attention": body})
    exec(helper, namespace)
    exercise = registry.exercise("self_attention")
    assert judge(exercise, namespace["self_attention"]).passed


def test_a_wrong_body_of_the_block_is_still_named():
    body = source("decoder_block").replace("weights.mlp_gain", "weights.attention_gain")
    verdict = judge(
        registry.exercise("decoder_block"), notebook({"decoder_block": body})["decoder_block"]
    )
    assert verdict.outcome is Outcome.FAILED
    assert "both norms use attention_gain" in verdict.diagnosis


def test_alone_leaves_foreign_functions_and_the_notebook_as_they_are():
    assert alone(np.tanh, "silu") is np.tanh
    assert alone(operators.softmax, "softmax") is operators.softmax
    namespace = notebook({e.id: source(e.id) for e in registry.exercises(LESSON)})
    before = dict(namespace)
    alone(namespace["forward"], "forward")
    assert namespace == before


def test_the_learners_own_functions_run_a_trained_model():
    """All thirteen in one namespace give the engine's logits: nothing of the engine's is called."""
    namespace = notebook({e.id: source(e.id) for e in registry.exercises(LESSON)})
    model = load_model("tiny-target")
    tokens = np.array([[5, 17, 200, 3, 900]])
    mine = namespace["forward"](model.weights, model.config, tokens)
    np.testing.assert_allclose(mine, model.forward(tokens), rtol=0, atol=1e-4)
    cache = model.new_cache()
    first = namespace["forward"](model.weights, model.config, tokens[:, :2], cache)
    rest = namespace["forward"](model.weights, model.config, tokens[:, 2:], cache)
    np.testing.assert_allclose(np.concatenate([first, rest], 1), mine, rtol=0, atol=1e-4)


def test_reference_names_every_exercise_and_joint():
    assert {e.id for e in registry.exercises(LESSON)} < set(REFERENCE)
    assert len(set(IN_OPERATORS) | set(IN_TRANSFORMER)) == len(IN_OPERATORS) + len(IN_TRANSFORMER)


def test_drawn_weights_show_themselves_in_few_words():
    inputs = registry.exercise("forward").visible_cases()[0].make()
    assert isinstance(inputs["weights"], DrawnWeights)
    assert repr(inputs["weights"]) == "random, 3 layers"
    same = dataclasses.replace(inputs["weights"])
    logits = forward(same, inputs["config"], inputs["tokens"])
    assert logits.shape == (*inputs["tokens"].shape, inputs["config"].vocab_size)
