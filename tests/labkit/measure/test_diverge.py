"""The debugger names the first wrong part of many planted mistakes, and none in right code."""

import dataclasses

import numpy as np
import pytest
from drawn_models import tiny_model

from inferlab import operators as ops
from inferlab.attention import self_attention
from inferlab.transformer import decoder_block, feed_forward, forward, mix_tokens, position_angles
from inferlab.transformer import visible_keys as right_keys
from labkit.measure.diverge import TRACED, calls, first_divergence
from labkit.measure.rewire import REFERENCE

TOKENS = np.random.default_rng(5).integers(41, size=(2, 9))


@pytest.fixture(scope="module", params=["gqa", "mqa, d_head != d_model / n_heads"])
def model(request):
    return tiny_model(request.param)


def neighbours(x, angles):
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def block_with(first="attention_gain", second="mlp_gain", add=True, only=None):
    def block(x, weights, config, angles, visible, cache=None, layer=0):
        if only is not None and layer != only:
            return decoder_block(x, weights, config, angles, visible, cache, layer)
        normed = ops.rms_norm(x, getattr(weights, first), config.norm_eps)
        mixed = mix_tokens(normed, weights, config, angles, visible, cache, layer)
        x = x + mixed if add else mixed
        normed = ops.rms_norm(x, getattr(weights, second), config.norm_eps)
        return x + feed_forward(normed, weights, config, layer)

    return block


# The planted parts call other parts by name, so they are given REFERENCE's names as globals.
def planted_block(**kwargs):
    block = block_with(**kwargs)

    def decoder_block(x, weights, config, angles, visible, cache=None, layer=0):
        return block(x, weights, config, angles, visible, cache, layer)

    return decoder_block


def unscaled(q, k, v, visible):
    return ops.attention(q * np.sqrt(q.shape[-1]), k, v, visible)


def tiled(q, k, v, visible):
    shared = q.shape[1] // k.shape[1]
    return ops.attention(q, np.tile(k, (1, shared, 1, 1)), np.tile(v, (1, shared, 1, 1)), visible)


def values_turned(x, weights, config, angles, visible, cache=None, layer=0):
    w = weights
    q, k, v = (ops.split_heads(ops.project(x, m), config.d_head) for m in (w.w_q, w.w_k, w.w_v))
    q, k, v = ops.rotate(q, angles), ops.rotate(k, angles), ops.rotate(v, angles)
    return ops.project(ops.merge_heads(ops.attention(q, k, v, visible)), w.w_o)


def relu_gate(x, w_gate, w_up, w_down):
    return (np.maximum(x @ w_gate, 0) * (x @ w_up)) @ w_down


PLANTED = {
    "RoPE in neighbouring pairs": ("rotate", neighbours, 0, "rotate", "its inputs are right"),
    "no scale": ("attention", unscaled, 0, "attention", "its inputs are right"),
    "ReLU in the gate": ("swiglu", relu_gate, 0, "swiglu", "its inputs are right"),
    "a fixed eps": (
        "rms_norm",
        lambda x, gain, eps=0.0: gain * x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 0.1),
        0, "rms_norm", "its inputs are right",
    ),
    "a fixed base": (
        "rope_angles",
        lambda positions, d_head, theta: ops.rope_angles(positions, d_head, 500.0),
        None, "rope_angles", "its inputs are right",
    ),
    "everything visible": (
        "causal_mask", lambda T, S: np.ones((T, S), bool), None, "causal_mask", "inputs are right",
    ),
    "heads reshaped": (
        "split_heads",
        lambda x, d_head: x.reshape(len(x), -1, x.shape[1], d_head),
        0, "split_heads", "its inputs are right",
    ),
    "values turned": ("self_attention", values_turned, 0, "self_attention", ""),
    "no residual": ("decoder_block", planted_block(add=False), 0, "decoder_block", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found_where_it_is_made(model, name):
    part, wrong, layer, found_part, words = PLANTED[name]
    found = first_divergence({**REFERENCE, part: wrong}, model, TOKENS)
    assert (found.layer, found.part) == (layer, found_part), str(found)
    assert words in found.trouble
    assert found.logits_error > 1e-3
    assert found.n_positions == TOKENS.size
    assert f"{found_part}" in str(found)


def test_tiled_heads_are_found_where_heads_are_shared():
    model = tiny_model("gqa")
    found = first_divergence({**REFERENCE, "attention": tiled}, model, TOKENS)
    assert (found.layer, found.part) == (0, "attention")


def learners_block(x, weights, config, angles, visible, cache=None, layer=0):
    """Calls the parts by name, as a notebook does."""
    gain = weights.mlp_gain if layer == 1 else weights.attention_gain
    normed = rms_norm(x, gain, config.norm_eps)
    x = x + mix_tokens(normed, weights, config, angles, visible, cache, layer)
    normed = rms_norm(x, weights.mlp_gain, config.norm_eps)
    return x + feed_forward(normed, weights, config, layer)


rms_norm = ops.rms_norm  # learners_block reads it from here


def test_a_wrong_argument_is_blamed_on_the_caller_and_named(model):
    found = first_divergence({**REFERENCE, "decoder_block": learners_block}, model, TOKENS)
    assert (found.layer, found.part) == (1, "decoder_block")
    assert "wrong `gain`" in found.trouble
    assert "rms_norm" in found.trouble
    assert found.by_layer[0] < 1e-12 < found.by_layer[1]


def test_default_eps_counts_as_an_argument(model):
    def block(x, weights, config, angles, visible, cache=None, layer=0):
        x = x + mix_tokens(
            rms_norm(x, weights.attention_gain), weights, config, angles, visible, cache, layer
        )
        return x + feed_forward(rms_norm(x, weights.mlp_gain), weights, config, layer)

    big = dataclasses.replace(model, config=dataclasses.replace(model.config, norm_eps=0.3))
    found = first_divergence({**REFERENCE, "decoder_block": block}, big, TOKENS)
    assert (found.layer, found.part) == (0, "decoder_block")
    assert "wrong `eps`" in found.trouble


def test_a_wrong_stream_is_blamed_on_forward(model):
    def scaled(weights, config, tokens, cache=None, last_only=False):
        T = tokens.shape[1]
        x = weights.embedding[tokens] * 3
        for layer, one in enumerate(weights.layers):
            angles = position_angles(np.arange(T), config)
            x = decoder_block(x, one, config, angles, right_keys(T, T, config), cache, layer)
        return rms_norm(x, weights.final_gain, config.norm_eps) @ weights.head

    found = first_divergence({**REFERENCE, "forward": scaled}, model, TOKENS)
    assert (found.layer, found.part) == (None, "forward")
    assert "wrong `x` to decoder_block" in found.trouble


def test_weights_that_were_loaded_wrongly_are_found(model):
    first = model.weights.layers[0]
    bad = dataclasses.replace(first, w_k=first.w_k[:, ::-1].copy())
    weights = dataclasses.replace(model.weights, layers=(bad, *model.weights.layers[1:]))
    broken = dataclasses.replace(model, weights=weights)
    found = first_divergence(REFERENCE, broken, TOKENS, right=model)
    assert (found.layer, found.part) == (0, "self_attention")
    assert "wrong `w` to project" in found.trouble


def test_an_error_is_reported_with_its_place(model):
    def broken(x, w_gate, w_up, w_down):
        raise RuntimeError("no luck")

    found = first_divergence({**REFERENCE, "swiglu": broken}, model, TOKENS)
    assert (found.layer, found.part) == (0, "swiglu")
    assert "RuntimeError: no luck" in str(found)


# ---- right code, written otherwise ---------------------------------------------------------------


def keys_first(x, weights, config, angles, visible, cache=None, layer=0):
    w = weights
    v = ops.split_heads(x @ w.w_v, config.d_head)
    k = rotate(ops.split_heads(x @ w.w_k, config.d_head), angles)
    q = rotate(ops.split_heads(x @ w.w_q, config.d_head), angles)
    return ops.merge_heads(ops.attention(q, k, v, visible)) @ w.w_o


rotate = ops.rotate  # keys_first reads it from here


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"self_attention": keys_first},
        {"swiglu": lambda x, w_gate, w_up, w_down: ops.silu(x @ w_gate) * (x @ w_up) @ w_down},
    ],
    ids=["the course's own", "keys before queries, no project", "no project, no silu traced"],
)
def test_right_code_has_no_divergence(model, change):
    assert first_divergence({**REFERENCE, **change}, model, TOKENS) is None


def test_order_of_calls_hides_no_mistake(model):
    """Keys first, and then layer 0's MLP is wrong: the blame is the MLP's."""
    change = {"self_attention": keys_first, "swiglu": relu_gate}
    found = first_divergence({**REFERENCE, **change}, model, TOKENS)
    assert (found.layer, found.part) == (0, "swiglu")


def test_a_part_that_changes_its_input_is_recorded_as_it_was_given(model):
    def in_place(x, gain, eps=1e-6):
        out = ops.rms_norm(x, gain, eps)
        x[...] = out  # spoils the stream
        return out

    found = first_divergence({**REFERENCE, "rms_norm": in_place}, model, TOKENS)
    assert (found.layer, found.part) == (0, "decoder_block")


def test_one_sequence_of_ids_will_do(model):
    assert first_divergence(REFERENCE, model, TOKENS[0].tolist()) is None


def test_calls_gives_inputs_and_outputs_in_order(model):
    found = calls(REFERENCE, model, TOKENS, "attention")
    assert [c.layer for c in found] == list(range(model.config.n_layers))
    one = found[-1]
    np.testing.assert_allclose(one.output, ops.attention(**one.inputs), atol=1e-12)
    with pytest.raises(ValueError, match="'nonsense' is not recorded"):
        calls(REFERENCE, model, TOKENS, "nonsense")
    assert set(TRACED) <= set(REFERENCE)


def test_nothing_of_the_course_is_changed(model):
    before = (ops.rotate, self_attention, forward, forward.__globals__["rms_norm"])
    first_divergence({**REFERENCE, "rotate": neighbours}, model, TOKENS)
    assert before == (ops.rotate, self_attention, forward, forward.__globals__["rms_norm"])
    np.testing.assert_array_equal(
        forward(model.weights, model.config, TOKENS), model.forward(TOKENS)
    )
