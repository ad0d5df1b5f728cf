"""Lesson 09: the knowledge check."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.checks.moe.lesson import LESSON
from inferlab.moe import expert_capacity
from inferlab.moe_sizes import moe_step_bytes, touched_experts
from labkit.interview.questions import Question

Params = dict[str, Any]


def _draw_model(rng: np.random.Generator) -> Params:
    """Billions: a weights for every token, E experts of e, k of them a token."""
    return {
        "a": int(rng.choice([2, 3, 5, 6])),
        "e": float(rng.choice([0.5, 1.5, 2.5])),
        "E": int(rng.choice([12, 24, 32])),
        "k": int(rng.choice([2, 3, 4])),
    }


def _model(p: Params) -> str:
    return (
        f"A model has {p['a']} billion weights that every token uses and {p['E']} experts of "
        f"{p['e']:g} billion weights each; a token takes {p['k']} of them."
    )


def _total(p: Params) -> float:
    return p["a"] + p["E"] * p["e"]


def _active(p: Params) -> float:
    return p["a"] + p["k"] * p["e"]


def _draw_batch(rng: np.random.Generator) -> Params:
    return {**_draw_model(rng), "B": int(rng.choice([5, 6, 9]))}


def _touched(p: Params) -> float:
    return touched_experts(p["E"], p["k"], p["B"])


def _step(p: Params) -> float:
    return moe_step_bytes(p["a"] * 1e9, p["e"] * 1e9, p["E"], p["k"], p["B"])


def _draw_ridge(rng: np.random.Generator) -> Params:
    return {
        "ridge": int(rng.choice([150, 200, 250, 300])),
        "E": int(rng.choice([32, 64, 128])),
        "k": int(rng.choice([2, 4])),
    }


def _draw_capacity(rng: np.random.Generator) -> Params:
    """Drawn until rounding up matters."""
    while True:
        p = {
            "n": int(rng.integers(60, 300)),
            "E": int(rng.choice([6, 12, 20])),
            "k": int(rng.choice([2, 4])),
            "factor": float(rng.choice([1.25, 1.5])),
        }
        if 0.1 < p["factor"] * p["k"] * p["n"] / p["E"] % 1 < 0.9:
            return p


def _capacity(p: Params) -> float:
    return float(expert_capacity(p["n"], p["E"], p["k"], p["factor"]))


def _draw_config(rng: np.random.Generator) -> Params:
    expert = int(rng.choice([512, 768, 1024]))
    return {
        "d": int(rng.choice([1536, 2048, 3072])),
        "wide": expert * int(rng.choice([6, 8, 12])),
        "expert": expert,
        "E": int(rng.choice([48, 64, 96])),
        "shared": int(rng.choice([1, 2])),
    }


def _in_layer(p: Params) -> float:
    return 3.0 * p["d"] * p["expert"] * (p["E"] + p["shared"])


QUESTIONS = (
    Question(
        id="me_q_flops",
        lesson=LESSON,
        points=1,
        draw=_draw_model,
        text=lambda p: (
            f"{_model(p)} How many GFLOP does one token cost, by the rule of 2 FLOPs for each "
            "weight that it uses?"
        ),
        answer=lambda p: 2e9 * _active(p),
        unit="GFLOP",
        slips={
            "all experts were counted: a token runs through those it takes": lambda p: (
                2e9 * _total(p)
            ),
            "a multiply and an add are two operations": lambda p: 1e9 * _active(p),
            "the weights that every token uses were left out": lambda p: 2e9 * p["k"] * p["e"],
        },
        why=lambda p: f"2 · ({p['a']} + {p['k']} · {p['e']:g}) = {2 * _active(p):g} GFLOP.",
    ),
    Question(
        id="me_q_resident",
        lesson=LESSON,
        points=1,
        draw=_draw_model,
        text=lambda p: f"{_model(p)} How much memory do its weights take in bf16?",
        answer=lambda p: 2e9 * _total(p),
        unit="GB",
        slips={
            "the active weights only: every expert must be in memory": lambda p: 2e9 * _active(p),
            "bf16 takes 2 bytes a weight": lambda p: 1e9 * _total(p),
            "the weights that every token uses were left out": lambda p: 2e9 * p["E"] * p["e"],
        },
        why=lambda p: (
            f"2 B · ({p['a']} + {p['E']} · {p['e']:g}) · 10⁹ = {2 * _total(p):g} GB, although "
            f"a token uses {_active(p):g} billion of them."
        ),
    ),
    Question(
        id="me_q_touched",
        lesson=LESSON,
        points=1,
        draw=_draw_batch,
        text=lambda p: (
            f"{p['B']} users' tokens each take {p['k']} of {p['E']} experts, every choice equally "
            "likely. How many different experts are taken on average? (Two decimals.)"
        ),
        answer=_touched,
        slips={
            "as if no two users took the same expert": lambda p: float(
                min(p["E"], p["k"] * p["B"])
            ),
            "a token's choices are all different: the power is the number of tokens": lambda p: (
                p["E"] * (1 - (1 - 1 / p["E"]) ** (p["k"] * p["B"]))
            ),
            "those that are missed, not those taken": lambda p: p["E"] - _touched(p),
        },
        why=lambda p: f"{p['E']} · (1 − (1 − {p['k']}/{p['E']})^{p['B']}) = {_touched(p):.2f}.",
    ),
    Question(
        id="me_q_bytes",
        lesson=LESSON,
        points=1,
        draw=_draw_batch,
        text=lambda p: (
            f"{_model(p)} How many bytes of weights does a decode step for {p['B']} users read on "
            "average, in bf16?"
        ),
        answer=_step,
        unit="GB",
        slips={
            "the active weights: that is a step for one user": lambda p: 2e9 * _active(p),
            "every expert: so small a batch does not take them all": lambda p: 2e9 * _total(p),
            "once for each user: what is read serves all of them": lambda p: (
                p["B"] * 2e9 * _active(p)
            ),
        },
        why=lambda p: (
            f"{_touched(p):.2f} experts are taken: 2 B · ({p['a']} + {_touched(p):.2f} · "
            f"{p['e']:g}) · 10⁹ = {_step(p) / 1e9:.1f} GB."
        ),
    ),
    Question(
        id="me_q_batch",
        lesson=LESSON,
        points=1,
        draw=_draw_ridge,
        text=lambda p: (
            f"A matrix in bf16 is compute-bound on a device from {p['ridge']} rows on. A mixture "
            f"has {p['E']} experts, {p['k']} a token, evenly used. From how many sequences in a "
            "decode step on do its experts get that many rows each?"
        ),
        answer=lambda p: p["ridge"] * p["E"] / p["k"],
        tolerance=1e-6,
        slips={
            "that many rows in all: they are shared out among the experts": lambda p: float(
                p["ridge"]
            ),
            "each sequence sends a row to several experts": lambda p: float(p["ridge"] * p["E"]),
            "upside down: an expert sees fewer rows than there are sequences": lambda p: (
                p["ridge"] * p["k"] / p["E"]
            ),
        },
        why=lambda p: (
            f"An expert gets B · {p['k']}/{p['E']} rows, so B = {p['ridge']} · {p['E']}/{p['k']} = "
            f"{p['ridge'] * p['E'] // p['k']:,}."
        ),
    ),
    Question(
        id="me_q_capacity",
        lesson=LESSON,
        points=1,
        draw=_draw_capacity,
        text=lambda p: (
            f"{p['n']} tokens, {p['E']} experts, {p['k']} a token, capacity factor "
            f"{p['factor']:g}. How many rows does each expert take at the most?"
        ),
        answer=_capacity,
        unit="row",
        tolerance=1e-6,
        slips={
            "rounded down: room for a part of a row is room for a row": lambda p: _capacity(p) - 1,
            "each token makes several choices": lambda p: float(
                expert_capacity(p["n"], p["E"], 1, p["factor"])
            ),
            "the capacity factor is missing": lambda p: float(
                expert_capacity(p["n"], p["E"], p["k"])
            ),
        },
        why=lambda p: (
            f"{p['factor']:g} · {p['k']} · {p['n']} / {p['E']} = "
            f"{p['factor'] * p['k'] * p['n'] / p['E']:.2f}, rounded up: {_capacity(p):.0f}."
        ),
    ),
    Question(
        id="me_q_config",
        lesson=LESSON,
        points=1,
        draw=_draw_config,
        text=lambda p: (
            f"A `config.json` says `hidden_size` {p['d']:,}, `intermediate_size` {p['wide']:,}, "
            f"`moe_intermediate_size` {p['expert']:,}, `n_routed_experts` {p['E']}, "
            f"`n_shared_experts` {p['shared']}. How many weights have the experts of one mixture, "
            "shared ones included, without the router and without biases?"
        ),
        answer=_in_layer,
        tolerance=1e-6,
        slips={
            "intermediate_size is the width of a plain MLP, not of an expert": lambda p: (
                3.0 * p["d"] * p["wide"] * (p["E"] + p["shared"])
            ),
            "the shared experts are not among n_routed_experts": lambda p: (
                3.0 * p["d"] * p["expert"] * p["E"]
            ),
            "an expert has three matrices: gate, up and down": lambda p: _in_layer(p) * 2 / 3,
        },
        why=lambda p: (
            f"3 · {p['d']:,} · {p['expert']:,} · ({p['E']} + {p['shared']}) = {_in_layer(p):,.0f}."
        ),
    ),
    Question(
        id="me_q_softmax",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A softmax over all experts' scores, then the best k; or the best k, then a "
            "softmax over their scores. When do both give the same weights?"
        ),
        choices=(
            "when the first is divided by the sum of its k weights",
            "always, since the softmax does not change the order",
            "never, since the sums run over different experts",
            "only when the k best experts have equal scores",
        ),
        notes={
            "always, since the softmax does not change the order": "the same experts are "
            "chosen, but without dividing their weights sum to less than 1, as in OLMoE",
        },
        why=lambda p: (
            "exp(s) / Σ_all, divided by the sum over the k chosen, is exp(s) / Σ_k: the sum "
            "over all cancels. Models with norm_topk_prob false, such as OLMoE, do not divide."
        ),
    ),
    Question(
        id="me_q_drop",
        lesson=LESSON,
        points=1,
        text=lambda p: "Every expert that a token chose is full. What goes into the next layer?",
        choices=(
            "the token's stream as it was before the mixture",
            "a row of zeros, since nothing was computed for it",
            "the mean of what the experts gave to all others",
            "nothing: the token is left out of the sequence",
        ),
        notes={
            "a row of zeros, since nothing was computed for it": "the mixture adds 0 to "
            "the residual stream; the stream itself goes on",
        },
        why=lambda p: (
            "x + 0 = x: a full expert adds nothing, and the residual stream carries x on."
        ),
    ),
    Question(
        id="me_q_bias",
        lesson=LESSON,
        points=1,
        text=lambda p: "What does the balancing bias of DeepSeek-V3's router change?",
        choices=(
            "which experts are chosen, not how much they weigh",
            "how much the experts weigh, not which are chosen",
            "which experts are chosen, and how much they weigh",
            "the loss in training, but nothing when it answers",
        ),
        notes={
            "the loss in training, but nothing when it answers": "it stands in for a loss; it is "
            "stored with the model and used in every choice",
        },
        why=lambda p: (
            "The best sums of affinity and bias are chosen; the weights are made of the affinities "
            "alone, so balancing does not distort what the experts contribute."
        ),
    ),
    Question(
        id="me_q_gradient",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "The load-balance loss multiplies f (the shares of the choices) with P (the mean "
            "probabilities). Why not simply the sum of f²?"
        ),
        choices=(
            "f is a count: it has no gradient to learn from",
            "f² is smallest when one expert gets all tokens",
            "f² would have to be added up over the layers",
            "f sums to 1, so the sum of f² never changes",
        ),
        why=lambda p: (
            "A choice jumps from one expert to the other; its derivative is 0. P moves "
            "smoothly with the scores, and f says which experts' P to push down."
        ),
    ),
)
