"""Lesson 02: the decoder block; judged on the course's own parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grader.checks.forward_pass.drawn import EXPERTS
from grader.checks.forward_pass.lesson import LESSON
from grader.checks.forward_pass.mixing import (
    LAYER_COMPARISON,
    draw_layer,
    drive_layer,
)
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab import operators as ops
from inferlab.attention import self_attention
from inferlab.sizes import MlaConfig
from inferlab.transformer import decoder_block
from labkit.measure.rewire import REFERENCE


def _norm(x, gain, config):
    return ops.rms_norm(x, gain, config.norm_eps)


def _block(
    first: Callable = _norm,
    second: Callable = _norm,
    gains: tuple[str, str] = ("attention_gain", "mlp_gain"),
    add: Callable = lambda x, normed, part: x + part,
    add_mlp: Callable | None = None,
    finish: Callable = lambda x, weights, config: x,
    mlp_sees: Callable = lambda x, mixed: mixed,
    hand_on: Callable = lambda cache, layer: (cache, layer),
    layer_of: Callable = lambda layer: layer,
) -> Callable:
    """decoder_block with one step replaced."""

    def block(x, weights, config, angles, visible, cache=None, layer=0):
        normed = first(x, getattr(weights, gains[0]), config)
        part = REFERENCE["mix_tokens"](
            normed, weights, config, angles, visible, *hand_on(cache, layer)
        )
        mixed = add(x, normed, part)
        normed = second(mlp_sees(x, mixed), getattr(weights, gains[1]), config)
        part = REFERENCE["feed_forward"](normed, weights, config, layer_of(layer))
        return finish((add_mlp or add)(mixed, normed, part), weights, config)

    return block


def _not_normed(x, gain, config):
    return x


def _block_in_place(x, weights, config, angles, visible, cache=None, layer=0):
    x += REFERENCE["mix_tokens"](
        _norm(x, weights.attention_gain, config), weights, config, angles, visible, cache, layer
    )
    x += REFERENCE["feed_forward"](_norm(x, weights.mlp_gain, config), weights, config, layer)
    return x


def _block_post_norm(x, weights, config, angles, visible, cache=None, layer=0):
    mixed = REFERENCE["mix_tokens"](x, weights, config, angles, visible, cache, layer)
    x = _norm(x + mixed, weights.attention_gain, config)
    return _norm(x + REFERENCE["feed_forward"](x, weights, config, layer), weights.mlp_gain, config)


def _block_parallel(x, weights, config, angles, visible, cache=None, layer=0):
    normed = _norm(x, weights.attention_gain, config)
    mixed = REFERENCE["mix_tokens"](normed, weights, config, angles, visible, cache, layer)
    return x + mixed + REFERENCE["feed_forward"](normed, weights, config, layer)


def _block_mlp_first(x, weights, config, angles, visible, cache=None, layer=0):
    normed = _norm(x, weights.mlp_gain, config)
    x = x + REFERENCE["feed_forward"](normed, weights, config, layer)
    normed = _norm(x, weights.attention_gain, config)
    return x + REFERENCE["mix_tokens"](normed, weights, config, angles, visible, cache, layer)


def _block_from_input(x, weights, config, angles, visible, cache=None, layer=0):
    normed = _norm(x, weights.attention_gain, config)
    mixed = x + REFERENCE["mix_tokens"](normed, weights, config, angles, visible, cache, layer)
    normed = _norm(mixed, weights.mlp_gain, config)
    return x + REFERENCE["feed_forward"](normed, weights, config, layer)


def _default_eps(x, gain, config):
    return ops.rms_norm(x, gain)


def _block_direct(x, weights, config, angles, visible, cache=None, layer=0):
    """Without the joints: the parts of a Llama by name."""
    h = self_attention(
        x=ops.rms_norm(x, weights.attention_gain, eps=config.norm_eps),
        weights=weights, config=config, angles=angles, visible=visible, cache=cache, layer=layer,
    ) + x  # fmt: skip
    normed = ops.rms_norm(h, weights.mlp_gain, eps=config.norm_eps)
    return ops.swiglu(normed, weights.w_gate, weights.w_up, weights.w_down) + h


def _block_written_out(x, weights, config, angles, visible, cache=None, layer=0):
    out = x.copy()
    mean = (out**2).mean(-1, keepdims=True)
    out += REFERENCE["mix_tokens"](
        out / np.sqrt(mean + config.norm_eps) * weights.attention_gain,
        weights, config, angles, visible, cache, layer,
    )  # fmt: skip
    mean = (out**2).mean(-1, keepdims=True)
    normed = out / np.sqrt(mean + config.norm_eps) * weights.mlp_gain
    return np.add(REFERENCE["feed_forward"](normed, weights, config, layer=layer), out)


def _block_in_a_loop(x, weights, config, angles, visible, cache=None, layer=0):
    halves = (
        (weights.attention_gain, "mix_tokens", (angles, visible, cache, layer)),
        (weights.mlp_gain, "feed_forward", (layer,)),
    )
    for gain, part, more in halves:
        x = x + REFERENCE[part](_norm(x, gain, config), weights, config, *more)
    return x


def _experts() -> Inputs:
    return draw_layer(np.random.default_rng(14), n_heads=12, **EXPERTS)


def _latent() -> Inputs:
    mla = MlaConfig(d_latent=6, d_nope=2, d_rope=2, d_value=3)
    return draw_layer(np.random.default_rng(15), n_heads=8, n_kv_heads=8, d_head=4, mla=mla)


DECODER_BLOCK = Exercise(
    id="decoder_block",
    reference=decoder_block,
    lesson=LESSON,
    points=2,
    minutes=8,
    difficulty=2,
    drive=drive_layer("decoder_block"),
    hints=(
        "Two lines for each half: norm the stream, then add what the part makes of the normed one "
        "to the stream itself (not to the normed one).",
        "normed = rms_norm(x, weights.attention_gain, config.norm_eps); x = x + mix_tokens(normed, "
        "weights, config, angles, visible, cache, layer). Not x += …: that changes the input.",
        "The second half is the same with weights.mlp_gain and feed_forward(normed, weights, "
        "config, layer), on the new x.",
    ),
    cases=(
        Case("experts in this layer, behind a plain one", _experts),
        Case("latent attention", _latent),
    ),
    draw=draw_layer,
    n_draws=3,
    comparison=LAYER_COMPARISON,
    wrong={
        "the parts of a Llama by name: mix_tokens and feed_forward know which ones the model has": (
            _block_direct
        ),
        "the number of the layer is not handed to feed_forward: it decides who has experts": (
            _block(layer_of=lambda layer: 0)
        ),
        "the input is not added to what attention gives": _block(
            add=lambda x, normed, part: part, add_mlp=lambda x, normed, part: x + part
        ),
        "the MLP's result is not added to the stream": _block(add_mlp=lambda x, normed, part: part),
        "the normed x is added; the stream itself goes past the norm": _block(
            add=lambda x, normed, part: normed + part
        ),
        "the MLP's result is added to its normed input; add it to the stream": _block(
            add_mlp=lambda x, normed, part: normed + part
        ),
        "the MLP's result is added to the block's input: what attention added is lost": (
            _block_from_input
        ),
        "attention gets x without its norm": _block(first=_not_normed),
        "the MLP gets x without its norm": _block(second=_not_normed),
        "the norms come after the sums (post-norm, as in 2017); here they stand before the parts": (
            _block_post_norm
        ),
        "the two gains are exchanged": _block(gains=("mlp_gain", "attention_gain")),
        "both norms use attention_gain; the second one has mlp_gain": _block(
            gains=("attention_gain", "attention_gain")
        ),
        "both norms use mlp_gain; the first one has attention_gain": _block(
            gains=("mlp_gain", "mlp_gain")
        ),
        "eps is left at its default; use config.norm_eps": _block(
            first=_default_eps, second=_default_eps
        ),
        "eps is left at its default in the first norm": _block(first=_default_eps),
        "eps is left at its default in the second norm": _block(second=_default_eps),
        "the MLP works on the block's input; it works on the sum after attention": _block(
            mlp_sees=lambda x, mixed: x
        ),
        "both parts read one norm of x, side by side (as in GPT-J); here they follow each other": (
            _block_parallel
        ),
        "the MLP comes before attention": _block_mlp_first,
        "the cache is not handed on: later tokens find nothing of the earlier ones": _block(
            hand_on=lambda cache, layer: (None, layer)
        ),
        "the number of the layer is not handed on: every layer stores into layer 0": _block(
            hand_on=lambda cache, layer: (cache, 0)
        ),
        "a third norm at the end; the last one belongs after all the blocks": _block(
            finish=lambda x, weights, config: _norm(x, weights.mlp_gain, config)
        ),
        "it changes its input x in place; work on a copy": _block_in_place,
    },
    right={
        "norms written out, one sum": _block_written_out,
        "half by half, in a loop": _block_in_a_loop,
        "the halves with names of their own": _block(),
    },
)
