"""Lesson 02: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from grader.checks.forward_pass.lesson import LESSON
from inferlab.data import model_preset
from labkit.interview.questions import Question
from labkit.predictions import Prediction

SENTENCE = "Explain the roofline model in one sentence."  # 7 words and a full stop


@lru_cache(maxsize=1)
def n_sentence_tokens() -> int:
    """Tokens of SENTENCE in the small model that comes with the course."""
    from inferlab.model import tiny_model_folder
    from inferlab.tokenizer import Tokenizer

    folder = tiny_model_folder("tiny-target")
    return len(Tokenizer.from_file(folder / "tokenizer.json", ()).encode(SENTENCE))


def mlp_share(d_model: int, n_heads: int, n_kv_heads: int, d_head: int, d_ff: int) -> float:
    """Percent of a layer's matrix FLOPs that the gated MLP takes; the scores are left out."""
    projections = 2 * d_model * d_head * (n_heads + n_kv_heads)
    mlp = 3 * d_model * d_ff
    return 100 * mlp / (projections + mlp)


def _qwen_share() -> float:
    c = model_preset("qwen2.5-7b")
    return mlp_share(c.d_model, c.n_heads, c.n_kv_heads, c.d_head, c.d_ff)


PREDICTIONS = (
    Prediction(
        id="fp_tokens",
        question=f"“{SENTENCE}” has 7 words and a full stop. How many tokens is it for the small "
        "model that comes with this course, whose vocabulary has 2,048 entries?",
        unit="tok",
        answer=lambda: float(n_sentence_tokens()),
        because="A token is a frequent piece of text, not a word. A small vocabulary has no entry "
        "for *roofline* and spells it; SmolLM2, with 49,152 entries, needs 9 tokens for the same "
        "sentence. Count tokens, never words.",
    ),
    Prediction(
        id="fp_score_size",
        question="The numbers of a query and a key are drawn at random with standard deviation 1, "
        "and `d_head` is 64. What is the standard deviation of their dot product?",
        unit="",
        answer=lambda: math.sqrt(64),
        because="64 products of variance 1 add up to a variance of 64: a deviation of 8. Scores of "
        "that size make the softmax nearly one-hot; dividing by sqrt(d_head) brings it back to 1.",
    ),
    Prediction(
        id="fp_mlp_share",
        question="Qwen2.5-7B: `d_model` 3,584, 28 query heads and 4 KV heads of 128 numbers, gated "
        "MLP with `d_ff` 18,944. Of the FLOPs that a layer's seven matrices cost, how many percent "
        "are the MLP's?",
        unit="%",
        answer=_qwen_share,
        because="The MLP has 3 · 3,584 · 18,944 weights, attention 2 · 3,584 · 128 · (28 + 4): "
        "87.4 % against 12.6 %. The old rule of ⅓ to ⅔ holds for a plain MLP of 4 · d_model and a "
        "key head for every query head.",
    ),
    Prediction(
        id="fp_layout",
        question="RoPE turns numbers in pairs: i with i + d_head/2 in one kind of checkpoint, 2i "
        "with 2i + 1 in another. You load a model and pair them the other way. What happens?",
        choices=(
            "an error: the shapes do not fit",
            "nothing: scores depend on distances only",
            "it runs, and the logits are far off",
            "it runs, and only long texts suffer",
        ),
        answer=lambda: "it runs, and the logits are far off",
        because="Every shape fits, and scores still depend on distances only, so tests of "
        "consistency pass. But the weights were trained for other pairs: in SmolLM2 logits are off "
        "by 30 and more, and the top token changes at more than a third of the positions.",
    ),
)

# ---- the knowledge check ------------------------------------------------------------------------


def n_visible(T: int, S: int) -> int:
    """True entries of causal_mask(T, S)."""
    return T * (S - T) + T * (T + 1) // 2


def _draw_mask(rng: np.random.Generator) -> dict[str, Any]:
    T = int(rng.integers(3, 9))
    return {"T": T, "S": T + int(rng.integers(5, 20))}


def _draw_sizes(rng: np.random.Generator) -> dict[str, Any]:
    """Sizes where n_heads * d_head is not d_model, and heads are shared."""
    n_kv_heads = int(rng.choice([2, 4, 8]))
    return {
        "d_model": int(rng.choice([1024, 2048, 2560])),
        "n_heads": n_kv_heads * int(rng.choice([3, 5, 7])),
        "n_kv_heads": n_kv_heads,
        "d_head": int(rng.choice([96, 128])),
    }


def _qkv(p: dict[str, Any]) -> int:
    return p["d_model"] * p["d_head"] * (p["n_heads"] + 2 * p["n_kv_heads"])


def _draw_share(rng: np.random.Generator) -> dict[str, Any]:
    while True:
        p = _draw_sizes(rng) | {"d_ff": int(rng.choice([6144, 8192, 11008]))}
        shares = (mlp_share(**p), _square_share(p), _plain_share(p), 200 / 3)
        if min(abs(a - b) for i, a in enumerate(shares) for b in shares[:i]) > 1.5:
            return p


def _square_share(p: dict[str, Any]) -> float:
    """With Q, K, V and O taken as d_model x d_model."""
    return 100 * 3 * p["d_ff"] / (3 * p["d_ff"] + 4 * p["d_model"])


def _plain_share(p: dict[str, Any]) -> float:
    """With two matrices in the MLP."""
    mlp = 2 * p["d_ff"]
    return 100 * mlp / (mlp + 2 * p["d_head"] * (p["n_heads"] + p["n_kv_heads"]))


def _draw_angle(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "position": int(rng.integers(20, 400)),
        "pair": int(rng.integers(3, 7)),
        "d_head": int(rng.choice([32, 64])),
        "theta": int(rng.choice([100_000, 500_000, 1_000_000])),
    }


def _angle(position: int, pair: float, d_head: int, theta: float) -> float:
    return position * theta ** (-2 * pair / d_head)


def _draw_heads(rng: np.random.Generator) -> dict[str, Any]:
    """Drawn until the right head and every slip are different numbers."""
    while True:
        n_kv_heads, shared = int(rng.choice([4, 8])), int(rng.choice([3, 4, 5, 7]))
        p = {"n_kv_heads": n_kv_heads, "n_heads": n_kv_heads * shared}
        p["head"] = int(rng.integers(n_kv_heads, p["n_heads"]))
        found = {p["head"] // shared, p["head"] % n_kv_heads, p["head"] // n_kv_heads}
        if len(found) == 3 and 0 not in found:
            return p


def _draw_position(rng: np.random.Generator) -> dict[str, Any]:
    return {"n_prompt": int(rng.integers(40, 200)), "n_new": int(rng.integers(5, 30))}


def _draw_softmax(rng: np.random.Generator) -> dict[str, Any]:
    return {"high": 1000 + int(rng.integers(1, 9)) / 4, "low": 1000}


def _second(p: dict[str, Any]) -> float:
    return 1 / (1 + math.exp(p["high"] - p["low"]))


def _sink_share(p: dict[str, Any]) -> float:
    return p["S"] / (p["S"] + p["e_sink"])


QUESTIONS = (
    Question(
        id="fp_q_qkv",
        lesson=LESSON,
        points=1,
        draw=_draw_sizes,
        text=lambda p: (
            f"A layer has d_model {p['d_model']:,}, {p['n_heads']} query heads and "
            f"{p['n_kv_heads']} KV heads, d_head {p['d_head']}, no biases. How many weights do its "
            "query, key and value projections have together?"
        ),
        answer=lambda p: float(_qkv(p)),
        slips={
            "three matrices of d_model x d_model: their width is heads times d_head": lambda p: (
                3.0 * p["d_model"] ** 2
            ),
            "keys and values have KV heads only, not a head for every query head": lambda p: (
                3.0 * p["d_model"] * p["n_heads"] * p["d_head"]
            ),
            "keys were counted, values were not": lambda p: float(
                p["d_model"] * p["d_head"] * (p["n_heads"] + p["n_kv_heads"])
            ),
        },
        why=lambda p: (
            f"{p['d_model']:,} · {p['d_head']} · ({p['n_heads']} + 2 · {p['n_kv_heads']}) = "
            f"{_qkv(p):,}. Neither square nor equal."
        ),
    ),
    Question(
        id="fp_q_mask",
        lesson=LESSON,
        points=1,
        draw=_draw_mask,
        text=lambda p: (
            f"{p['T']} new tokens run on top of {p['S'] - p['T']} cached ones, so that there are "
            f"{p['S']} keys. How many entries of the causal mask, {p['T']} × {p['S']}, are True?"
        ),
        answer=lambda p: float(n_visible(p["T"], p["S"])),
        tolerance=1e-6,
        slips={
            "the staircase was put in the upper left: the cached keys are visible to all": (
                lambda p: p["T"] * (p["T"] + 1) / 2
            ),
            "a token sees itself too": lambda p: float(n_visible(p["T"], p["S"]) - p["T"]),
            "all entries: the new tokens do not see each other's future": lambda p: float(
                p["T"] * p["S"]
            ),
        },
        why=lambda p: (
            f"Each of {p['T']} queries sees {p['S'] - p['T']} cached keys, and 1 to {p['T']} new "
            f"ones: {p['T']} · {p['S'] - p['T']} + {p['T']} · {p['T'] + 1} / 2 = "
            f"{n_visible(p['T'], p['S'])}."
        ),
    ),
    Question(
        id="fp_q_heads",
        lesson=LESSON,
        points=1,
        draw=_draw_heads,
        text=lambda p: (
            f"{p['n_heads']} query heads share {p['n_kv_heads']} KV heads. All are counted from 0. "
            f"Which KV head does query head {p['head']} read?"
        ),
        answer=lambda p: float(p["head"] // (p["n_heads"] // p["n_kv_heads"])),
        tolerance=1e-6,
        slips={
            "h mod n_kv_heads: neighbours share a head, they do not take turns": lambda p: float(
                p["head"] % p["n_kv_heads"]
            ),
            "divided by the number of KV heads; divide by the query heads that share one": (
                lambda p: float(p["head"] // p["n_kv_heads"])
            ),
        },
        why=lambda p: (
            f"{p['n_heads'] // p['n_kv_heads']} neighbours share one: {p['head']} // "
            f"{p['n_heads'] // p['n_kv_heads']} = "
            f"{p['head'] // (p['n_heads'] // p['n_kv_heads'])}."
        ),
    ),
    Question(
        id="fp_q_softmax",
        lesson=LESSON,
        points=1,
        draw=_draw_softmax,
        text=lambda p: (
            f"Two logits: {p['high']:g} and {p['low']}. What is the probability of the **second**? "
            "Give at least three digits, as 0.xyz."
        ),
        answer=_second,
        slips={
            "that is the first one's": lambda p: 1 - _second(p),
            "logits are not shares of a sum: take exponentials first": lambda p: (
                p["low"] / (p["low"] + p["high"])
            ),
            "divided by the largest, not by the sum": lambda p: math.exp(p["low"] - p["high"]),
        },
        why=lambda p: (
            f"Only the difference counts: 1 / (1 + exp({p['high'] - p['low']:g})) = "
            f"{_second(p):.4f}. exp(1000) itself would overflow."
        ),
    ),
    Question(
        id="fp_q_angle",
        lesson=LESSON,
        points=1,
        draw=_draw_angle,
        text=lambda p: (
            f"RoPE with theta {p['theta']:,} and d_head {p['d_head']}. By how many radians is pair "
            f"{p['pair']} (the first is pair 0) turned at position {p['position']}? Do not reduce "
            "it to one turn; three digits suffice."
        ),
        answer=lambda p: _angle(**p),
        slips={
            "the exponent is -2i/d_head, not -i/d_head": lambda p: _angle(
                **p | {"pair": p["pair"] / 2}
            ),
            "pairs are counted from 0": lambda p: _angle(**p | {"pair": p["pair"] - 1}),
            "that is with theta 10,000: every model has its own": lambda p: _angle(
                **p | {"theta": 10_000}
            ),
        },
        why=lambda p: (
            f"{p['position']} · {p['theta']:,}^(−2 · {p['pair']} / {p['d_head']}) = "
            f"{_angle(**p):.4g}."
        ),
    ),
    Question(
        id="fp_q_position",
        lesson=LESSON,
        points=1,
        draw=_draw_position,
        text=lambda p: (
            f"A prompt of {p['n_prompt']} tokens was run, and {p['n_new']} new tokens were run "
            "after it, one a pass. At which position is the next token's query rotated?"
        ),
        answer=lambda p: float(p["n_prompt"] + p["n_new"]),
        tolerance=1e-6,
        slips={
            "positions do not start again after the prompt": lambda p: float(p["n_new"]),
            "one too many: the first token stands at position 0": lambda p: float(
                p["n_prompt"] + p["n_new"] + 1
            ),
            "that is the position of the token before it": lambda p: float(
                p["n_prompt"] + p["n_new"] - 1
            ),
        },
        why=lambda p: (
            f"{p['n_prompt'] + p['n_new']} tokens stand before it, at positions 0 … "
            f"{p['n_prompt'] + p['n_new'] - 1}."
        ),
    ),
    Question(
        id="fp_q_share",
        lesson=LESSON,
        points=1,
        draw=_draw_share,
        text=lambda p: (
            f"d_model {p['d_model']:,}, {p['n_heads']} query heads, {p['n_kv_heads']} KV heads, "
            f"d_head {p['d_head']}, gated MLP with d_ff {p['d_ff']:,}. Of the FLOPs of a layer's "
            "seven matrices, how many percent does the MLP take?"
        ),
        answer=lambda p: mlp_share(**p),
        unit="%",
        slips={
            "two thirds is a rule for other shapes: count": lambda p: 200 / 3,
            "the attention matrices are not d_model x d_model": _square_share,
            "a gated MLP has three matrices": _plain_share,
            "that is attention's share": lambda p: 100 - mlp_share(**p),
        },
        why=lambda p: (
            f"MLP 3 · d_model · {p['d_ff']:,}; attention 2 · d_model · {p['d_head']} · "
            f"({p['n_heads']} + {p['n_kv_heads']}); d_model cancels: {mlp_share(**p):.1f} %."
        ),
    ),
    Question(
        id="fp_q_scalar",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "d_head": int(rng.choice([64, 128, 256])),
            "scalar": int(rng.choice([100, 144, 196, 225])),
        },
        text=lambda p: (
            f"A `config.json` says head_dim {p['d_head']} and query_pre_attn_scalar "
            f"{p['scalar']}. By which number are the scores of its attention divided?"
        ),
        answer=lambda p: p["scalar"] ** 0.5,
        slips={
            "the root of head_dim: where the config names a scalar, its root is taken": (
                lambda p: p["d_head"] ** 0.5
            ),
            "the scalar itself, not its root": lambda p: p["scalar"],
        },
        why=lambda p: (
            f"The root of {p['scalar']} is {p['scalar'] ** 0.5:g}. Gemma-2-27B has 144 there "
            "beside a head_dim of 128. An engine that reads head_dim alone gives wrong weights, "
            "a little, in every layer."
        ),
    ),
    Question(
        id="fp_q_sink",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {"S": int(rng.integers(10, 30)), "e_sink": int(rng.integers(2, 9))},
        text=lambda p: (
            f"gpt-oss has an *attention sink*: each head owns one learned number z, and e^z joins "
            f"the **denominator** of the softmax. A query sees {p['S']} keys, all with score 0, "
            f"and e^z is {p['e_sink']}. To what do its {p['S']} weights add up?"
        ),
        answer=_sink_share,
        slips={
            "they sum to 1 only without a sink: it takes a share and gives no value": (
                lambda p: 1.0
            ),
            "that is the sink's share": lambda p: 1 - _sink_share(p),
        },
        why=lambda p: (
            f"{p['S']} · e^0 / ({p['S']} + {p['e_sink']}) = {_sink_share(p):.4f}. A head can "
            "attend to nothing. Adding z to the output would be another thing altogether."
        ),
    ),
    Question(
        id="fp_q_scale",
        lesson=LESSON,
        points=1,
        text=lambda p: "Why are scores divided by the square root of d_head?",
        choices=(
            "to keep their spread near 1 for any head width",
            "to make the weights of every query sum to 1",
            "to keep exponentials of scores from overflowing",
            "to make each of the heads count the same in w_o",
        ),
        notes={
            "to make the weights of every query sum to 1": "the softmax does that for any scores",
            "to keep exponentials of scores from overflowing": "subtracting the largest score does "
            "that; the scale keeps the softmax from being one-hot",
        },
        why=lambda p: (
            "A dot product of d_head numbers spreads with sqrt(d_head), and a softmax of widely "
            "spread scores is nearly one-hot: it mixes nothing and, in training, learns nothing."
        ),
    ),
    Question(
        id="fp_q_layout",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Your RoPE pairs 2i with 2i + 1 in queries and keys alike; the checkpoint wants i with "
            "i + d_head/2. Which test finds it?"
        ),
        choices=(
            "logits compared with those of another engine",
            "a score depends on the distance of positions",
            "the length of every query is kept by turning",
            "decoding with a cache equals doing without it",
        ),
        notes={
            "a score depends on the distance of positions": "that holds in either layout",
            "the length of every query is kept by turning": "that holds in either layout",
            "decoding with a cache equals doing without it": "both runs make the same mistake",
        },
        why=lambda p: (
            "The wrong layout is consistent with itself. Only numbers from outside (reference "
            "logits, or the perplexity of a real text) can tell."
        ),
    ),
    Question(
        id="fp_q_padding",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Two prompts, of 5 and 9 tokens, run as one batch of a model with RoPE; the shorter is "
            "padded on the left with 4 tokens. What is enough to give it the right logits?"
        ),
        choices=(
            "hiding the padding's keys from the real tokens",
            "starting its positions behind the padding, at 0",
            "setting the padding's keys and values to zero",
            "nothing: the causal mask hides the padding",
        ),
        notes={
            "starting its positions behind the padding, at 0": "RoPE sees distances only; the "
            "padding would still get attention",
            "setting the padding's keys and values to zero": "a key of zero has the score 0, and "
            "e^0 is a weight: the others would shrink",
            "nothing: the causal mask hides the padding": "padding on the left lies in the past, "
            "where a causal mask lets every token look",
        },
        why=lambda p: (
            "Padding on the left stands before the text, so the causal mask shows it: it needs a "
            "mask of its own. Positions may stay shifted under RoPE; with learned positions the "
            "first real token must have position 0."
        ),
    ),
    Question(
        id="fp_q_residual",
        lesson=LESSON,
        points=1,
        text=lambda p: "In a pre-norm block, what is added to the output of attention?",
        choices=(
            "the stream as it came in, before the norm",
            "the stream after the norm, as attention saw it",
            "the embedding of the token, in every layer",
            "the MLP's output of the same block, normed",
        ),
        notes={
            "the stream after the norm, as attention saw it": "then every block would rescale all "
            "that earlier ones wrote",
        },
        why=lambda p: (
            "x + attention(norm(x)): the norm shapes what a part reads, never the stream itself."
        ),
    ),
)
