"""Lesson 03: a pass through all layers: the prefill and a decode step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.prefill_decode.lesson import LESSON, tried
from grader.judging.compare import Comparison, Raised
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.config import ModelConfig
from inferlab.generate import Kept, ModelParts, decode_step, prefill
from inferlab.model import Model
from inferlab.weights import random_weights

THREE_LAYERS = ModelConfig(
    n_layers=3, d_model=20, n_heads=6, n_kv_heads=2, d_head=10, d_ff=28, vocab_size=37
)


def parts_of(seed: int) -> ModelParts:
    weights = random_weights(THREE_LAYERS, np.random.default_rng(seed), np.float64)
    return ModelParts(Model(THREE_LAYERS, weights))


def token_ids(rng: np.random.Generator, n: int) -> list[int]:
    return [int(token) for token in rng.integers(THREE_LAYERS.vocab_size, size=n)]


PASS_COMPARISON = Comparison(
    terms=lambda i: (
        THREE_LAYERS.n_layers
        * (2 * THREE_LAYERS.d_model + THREE_LAYERS.d_ff + 2 * THREE_LAYERS.n_heads * 10 + 40)
    ),
    why="3 layers, each with sums of d_model, n_heads * d_head and d_ff numbers and over S keys",
)


# ---- observing a pass ---------------------------------------------------------------------------


def looked_at(result: Any, name: str = "") -> dict[str, Any]:
    """Logits and what is kept of each layer, by name; whatever it is where it is no such pair."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        return {f"{name}logits": result}
    logits, kept = result
    seen = {f"{name}logits": _copy(logits)}
    if not isinstance(kept, (tuple, list)):
        return {**seen, f"{name}kept": kept}
    seen[f"{name}layers kept"] = len(kept)
    for layer, pair in enumerate(kept):
        both = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else (pair, None)
        for side, array in zip(("keys", "values"), both, strict=True):
            seen[f"{name}{side} kept of layer {layer}"] = _copy(array)
    return seen


def _copy(value: Any) -> Any:
    return np.array(value) if isinstance(value, np.ndarray) else value


def _frozen(kept: Any) -> Any:
    """What is kept, copied: to see later whether it was changed."""
    return [[_copy(a) for a in pair] for pair in kept] if isinstance(kept, list) else kept


def _unchanged(kept: Any, before: Any) -> bool:
    same = isinstance(before, list) and len(kept) == len(before)
    return same and all(
        np.array_equal(a, b)
        for pair, old in zip(kept, before, strict=True)
        for a, b in zip(pair, old, strict=True)
    )


def _drive_prefill(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """The prompt; then more tokens on top, twice from the same place."""
    parts, more = inputs["parts"], inputs["more"]
    first = answer(parts=parts, tokens=inputs["tokens"])
    seen = looked_at(first)
    seen["tokens run in each pass"] = list(parts.passes)
    kept = prefill(parts, inputs["tokens"])[1]
    before, passes = _frozen(kept), len(parts.passes)
    for turn in ("on top of it, ", "again from the same place, "):
        result = tried(lambda: answer(parts=parts, tokens=more, kept=kept))
        raised_there = isinstance(result, Raised)
        seen |= {f"{turn}raised": result} if raised_there else looked_at(result, turn)
        seen[f"{turn}the list that was given is unchanged"] = _unchanged(kept, before)
    return {**seen, "tokens run in the passes on top": parts.passes[passes:]}


def _draw_prefill(rng: np.random.Generator) -> Inputs:
    return {
        "parts": parts_of(int(rng.integers(1000))),
        "tokens": token_ids(rng, int(rng.integers(4, 8))),
        "more": token_ids(rng, int(rng.integers(2, 4))),
    }


def _passing(
    begin: Callable = lambda parts, kept: parts.nothing_kept() if kept is None else kept,
    layers: Callable = lambda kept: range(len(kept)),
    hand_on: bool = True,
    keep: Callable = lambda k, v, T: (k, v),
    past: Callable = lambda kept, layer: kept[layer],
    join: Callable = lambda past, k, v: (k, v),
    result: Callable = lambda parts, x, now, kept: (parts.logits(x), now),
    into: Callable = lambda kept: [None] * len(kept),
):
    """prefill with one step replaced."""

    def run(parts, tokens, kept=None):
        kept = begin(parts, kept)
        x = parts.embed(tokens)
        now = into(kept)
        for layer in layers(kept):
            new_x, k, v = parts.block(layer, x, *past(kept, layer))
            now[layer] = keep(*join(past(kept, layer), k, v), len(tokens))
            x = new_x if hand_on else x
        return result(parts, x, now, kept)

    return run


def _one_token_a_pass(parts, tokens, kept=None):
    for token in tokens:
        logits, kept = prefill(parts, [token], kept)
    return logits, kept


def _all_passes_over(parts, tokens, kept=None):
    """Runs the tokens twice: once for the keys and values, once for the logits."""
    _, longer = prefill(parts, tokens, kept)
    return prefill(parts, tokens, kept)[0], longer


def _from_the_layer_before(parts, tokens, kept=None):
    kept = parts.nothing_kept() if kept is None else kept
    x, (k, v), now = parts.embed(tokens), kept[0], []
    for layer in range(len(kept)):
        x, k, v = parts.block(layer, x, k, v)
        now.append((k, v))
    return parts.logits(x), now


def _prefill_recursive(parts, tokens, kept=None):
    kept = kept or parts.nothing_kept()

    def onward(layer, x):
        if layer == len(kept):
            return parts.logits(x), []
        x, k, v = parts.block(layer, x, *kept[layer])
        logits, rest = onward(layer + 1, x)
        return logits, [(k, v), *rest]

    return onward(0, parts.embed(tokens))


def _prefill_index(parts, tokens, kept=None):
    x, now = parts.embed(np.array(tokens)), []
    for i in range(parts.config.n_layers):
        k, v = (parts.nothing_kept() if kept is None else kept)[i]
        x, k, v = parts.block(i, x, k, v)
        now += [[k, v]]
    return [parts.logits(x), tuple(now)]


PREFILL = Exercise(
    id="prefill",
    reference=prefill,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    hints=(
        "One loop over the layers. What a block returns goes two ways: x on to the next block, k "
        "and v into the list that you give back.",
        "kept[layer] is the pair (k, v) that this layer holds; with kept None begin with "
        "parts.nothing_kept(), which has such a pair for every layer.",
        "x, k, v = parts.block(layer, x, k, v); longer.append((k, v)) with longer = [] made anew. "
        "At the end: return parts.logits(x), longer.",
    ),
    cases=(
        Case(
            "a prompt of one token, then one more",
            lambda: {"parts": parts_of(3), "tokens": [5], "more": [7]},
        ),
    ),
    draw=_draw_prefill,
    n_draws=3,
    drive=_drive_prefill,
    comparison=PASS_COMPARISON,
    wrong={
        "what is kept is ignored: the new tokens then know nothing of the text so far": _passing(
            begin=lambda parts, kept: parts.nothing_kept()
        ),
        "x is not handed on: every block gets the embeddings": _passing(hand_on=False),
        "every layer goes on from layer 0's keys and values: each has its own": _passing(
            past=lambda kept, layer: kept[0]
        ),
        "each layer goes on from the keys and values of the layer before it: take its own": (
            _from_the_layer_before
        ),
        "the last layer's keys and values are returned for every layer": _passing(
            result=lambda parts, x, now, kept: (parts.logits(x), [now[-1]] * len(now))
        ),
        "the layers run from the last to the first": _passing(
            layers=lambda kept: range(len(kept))[::-1]
        ),
        "the list that was given comes back: the new keys and values are in the longer ones": (
            _passing(result=lambda parts, x, now, kept: (parts.logits(x), kept))
        ),
        "right, but it writes into the list that was given: make a new one": _passing(
            into=lambda kept: kept
        ),
        "only the new tokens are kept: the past must stay in front of them": _passing(
            keep=lambda k, v, T: (k[:, :, -T:], v[:, :, -T:])
        ),
        "keys and values are handed to the block in the wrong order: keys first": _passing(
            past=lambda kept, layer: kept[layer][::-1]
        ),
        "the past is joined once more: what a block returns holds it already": _passing(
            join=lambda past, *new: [
                np.append(*both, axis=2) for both in zip(past, new, strict=True)
            ]
        ),
        "keys and values are kept in the wrong order": _passing(keep=lambda k, v, T: (v, k)),
        "only the last layer's keys and values are kept: every layer needs its own": _passing(
            result=lambda parts, x, now, kept: (parts.logits(x), now[-1:])
        ),
        "the logits follow the first of the tokens: those after the last one are asked": _passing(
            result=lambda parts, x, now, kept: (parts.logits(x[:, :1]), now)
        ),
        "gives the chosen token in place of the logits": _passing(
            result=lambda parts, x, now, kept: (int(np.argmax(parts.logits(x))), now)
        ),
        "what to keep comes first: the logits come first": _passing(
            result=lambda parts, x, now, kept: (now, parts.logits(x))
        ),
        "right, but a pass for each token: all tokens fit into one": _one_token_a_pass,
        "right, but two passes: one gives the logits and what to keep": _all_passes_over,
    },
    right={
        "recursion over the layers": _prefill_recursive,
        "by layer number, lists in place of tuples": _prefill_index,
    },
)

# ---- one decode step ----------------------------------------------------------------------------


def _drive_step(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Two steps, one on top of what the other kept."""
    parts = inputs["parts"]
    kept = prefill(parts, inputs["prompt"])[1]
    before, (first, second) = _frozen(kept), inputs["tokens"]
    parts.passes.clear()
    one = answer(parts=parts, token=first, kept=kept)
    seen = looked_at(one)
    seen["tokens run"] = list(parts.passes)
    seen["the list that was given is unchanged"] = _unchanged(kept, before)
    onward = one[1] if isinstance(one, (tuple, list)) and len(one) == 2 else None
    result = tried(lambda: answer(parts=parts, token=second, kept=onward))
    name = "a second step, "
    if isinstance(result, Raised):
        return {**seen, f"{name}raised": result}
    return seen | looked_at(result, name)


def _draw_step(rng: np.random.Generator) -> Inputs:
    return {
        "parts": parts_of(int(rng.integers(1000))),
        "prompt": token_ids(rng, int(rng.integers(3, 7))),
        "tokens": token_ids(rng, 2),
    }


def _step_into_the_list(parts, token, kept):
    logits, longer = prefill(parts, [token], kept)
    kept[:] = longer
    return logits, kept


def _step_in_a_loop(parts, token, kept):
    x, longer = parts.embed([token]), []
    for layer in range(len(kept)):
        x, k, v = parts.block(layer, x, kept[layer][0], kept[layer][1])
        longer.append((k, v))
    return parts.logits(x), longer


def _shorter(kept: Kept) -> Kept:
    return [(k[:, :, :-1], v[:, :, :-1]) for k, v in kept]


STEP = Exercise(
    id="decode_step",
    reference=decode_step,
    lesson=LESSON,
    points=1,
    minutes=4,
    difficulty=1,
    uses=("prefill",),
    hints=(
        "What does a pass need to know? Which tokens to run, and what is kept. You wrote a "
        "function for that.",
        "A decode step is a pass of one token. prefill takes a list of tokens: [token].",
        "return prefill(parts, [token], kept)",
    ),
    draw=_draw_step,
    drive=_drive_step,
    comparison=PASS_COMPARISON,
    wrong={
        "the bare token is handed to prefill: it takes a list of tokens, [token]": (
            lambda parts, token, kept: prefill(parts, token, kept)
        ),
        "the token runs on top of nothing: the model has forgotten the text": (
            lambda parts, token, kept: prefill(parts, [token])
        ),
        "the old list comes back: this token's keys and values are lost for the next step": (
            lambda parts, token, kept: (prefill(parts, [token], kept)[0], kept)
        ),
        "the token is run twice: it gets two places in the text": (
            lambda parts, token, kept: prefill(parts, [token, token], kept)
        ),
        "gives the next token in place of the logits": (
            lambda parts, token, kept: (
                int(np.argmax(prefill(parts, [token], kept)[0])),
                prefill(parts, [token], kept)[1],
            )
        ),
        "right, but it writes into the list that was given: make a new one": _step_into_the_list,
        "what to keep comes first: the logits come first": (
            lambda parts, token, kept: prefill(parts, [token], kept)[::-1]
        ),
        "the newest kept token is dropped: it takes its place, it should come behind it": (
            lambda parts, token, kept: prefill(parts, [token], _shorter(kept))
        ),
        "only the new token's keys and values come back: the past must be kept too": (
            lambda parts, token, kept: (
                prefill(parts, [token], kept)[0],
                [(k[:, :, -1:], v[:, :, -1:]) for k, v in prefill(parts, [token], kept)[1]],
            )
        ),
    },
    right={
        "a loop over the layers": _step_in_a_loop,
        "an array of one token": (
            lambda parts, token, kept: prefill(parts, tuple(np.array([token])), list(kept))
        ),
    },
)
