"""Lesson 08: what to predict before any code, and the knowledge check after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON
from inferlab.speculative_sampling import (
    acceptance_rate,
    best_gamma,
    expected_tokens,
    speedup,
    verify_cost,
)
from labkit.interview.questions import Question
from labkit.predictions import Prediction

RIDGE_8B_H100 = (
    989.4e12 / 3.35e12
)  # tokens a pass: FLOP/s over bytes/s, 2 FLOP and 2 bytes a weight


def switched_off(n_sequences: int) -> float:
    """Speed-up of an 8B model on an H100, no cache: acceptance 0.8, gamma 4, draft cost 0.05."""
    return speedup(0.8, 4, 0.05, verify_cost(4, n_sequences, RIDGE_8B_H100))


PREDICTIONS = (
    Prediction(
        id="sp_tokens",
        question="A draft proposes 4 tokens a round; each is accepted with probability 0.8, and "
        "the first rejection ends the round. How many tokens does a round give on average?",
        unit="tok",
        answer=lambda: expected_tokens(0.8, 4),
        because="1 + 0.8 + 0.8² + 0.8³ + 0.8⁴ = 3.36. The later a token stands, the more must be "
        "accepted before it; and the pass of the target gives one token in any case.",
    ),
    Prediction(
        id="sp_law",
        question="A rejected draft token must be replaced. From which law must the replacement be "
        "drawn, so that the whole comes out exactly as the target alone would write?",
        choices=(
            "from the target's law, renormalised or not",
            "from what the target has beyond the draft",
            "from the draft's law without that token",
        ),
        answer=lambda: "from what the target has beyond the draft",
        because="Accepted tokens already bring min(target, draft) of each token. What is missing "
        "is max(target - draft, 0), and nothing else.",
    ),
    Prediction(
        id="sp_batch",
        question="An 8B model on an H100: acceptance 0.8, 4 draft tokens, a draft that costs 0.05 "
        "of a step. With one user that is 2.8 times as fast. And with 256 users at once?",
        unit="x",
        answer=lambda: switched_off(256),
        because="256 users verify 1,280 tokens in a pass; beyond about 295 tokens the device is "
        "bound by arithmetic. The pass takes 4.3 times as long as a step: 3.36 tokens for 4.5 "
        "steps. Speculation makes this server slower.",
    ),
    Prediction(
        id="sp_equal",
        question="Draft and target are the same model, temperature 1, 4 draft tokens. How many "
        "tokens does a round give?",
        unit="tok",
        answer=lambda: expected_tokens(1.0, 4),
        because="Equal laws: everything is accepted, and the bonus comes on top: 4 + 1 = 5. The "
        "formula (1 - a⁵) / (1 - a) is 0 / 0 there.",
    ),
)


# ---- questions ----------------------------------------------------------------------------------


def _draw_round(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "a": float(rng.choice([0.55, 0.6, 0.65, 0.7, 0.75, 0.85, 0.9])),
        "gamma": int(rng.integers(3, 8)),
        "c": float(rng.choice([0.04, 0.06, 0.08, 0.1, 0.12])),
    }


def _draw_laws(rng: np.random.Generator) -> dict[str, Any]:
    """Two laws of three tokens, in twentieths, whose slips give other numbers."""
    while True:
        target, draft = ((rng.multinomial(17, np.ones(3) / 3) + 1) / 20 for _ in range(2))
        rate = np.minimum(target, draft).sum()
        slips = [(target * draft).sum(), 1 - rate, 1 - np.abs(target - draft).sum()]
        if 0.4 < rate < 0.85 and all(abs(s - rate) > 0.05 for s in slips) and slips[2] > 0.05:
            return {"target": target, "draft": draft}


def _rate(p: dict[str, Any]) -> float:
    return acceptance_rate(p["target"], p["draft"])


def _listed(law: np.ndarray) -> str:
    return ", ".join(f"{x:g}" for x in law)


def _draw_residual(rng: np.random.Generator) -> dict[str, Any]:
    """A token that the target wants more of, but not the only one."""
    while True:
        p = _draw_laws(rng)
        left = np.maximum(p["target"] - p["draft"], 0)
        token = int(np.argmax(left))
        share = float(left[token] / left.sum())
        others = [left[token], p["target"][token]]
        if (left > 0.01).sum() == 2 and all(abs(share - x) > 0.03 for x in others):
            return {**p, "token": token}


def _residual(p: dict[str, Any]) -> float:
    left = np.maximum(p["target"] - p["draft"], 0)
    return float(left[p["token"]] / left.sum())


def _draw_best(rng: np.random.Generator) -> dict[str, Any]:
    pairs = [(0.6, 0.05), (0.7, 0.05), (0.8, 0.05), (0.9, 0.1), (0.85, 0.05), (0.8, 0.1)]
    a, c = pairs[rng.integers(len(pairs))]
    return {"a": a, "c": c}


def _draw_server(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "a": float(rng.choice([0.7, 0.75, 0.8])),
        "gamma": int(rng.integers(3, 6)),
        "n": int(rng.choice([192, 224, 256])),
        "ridge": int(rng.choice([280, 300, 320])),
    }


def _server(p: dict[str, Any]) -> float:
    return speedup(p["a"], p["gamma"], 0.05, verify_cost(p["gamma"], p["n"], p["ridge"]))


def _draw_match(rng: np.random.Generator) -> dict[str, Any]:
    """A draft that is wrong once in the middle and right again after it."""
    chosen = (rng.permutation(80)[:8] + 10).tolist()
    drafted, wrong = chosen[:7], int(rng.integers(2, 5))
    drafted = [*drafted[:wrong], 99, *drafted[wrong + 1 :]]
    return {"drafted": drafted, "chosen": chosen, "wrong": wrong}


QUESTIONS = (
    Question(
        id="sp_q_penalty",
        lesson=LESSON,
        points=1,
        draw=lambda rng: {
            "theta": float(rng.choice([1.2, 1.25, 1.5])),
            "logit": -float(rng.choice([0.6, 0.9, 1.5, 2.4])),
        },
        text=lambda p: (
            "Many servers have a *repetition penalty*: tokens that stand in the text already are "
            "to become **less** likely, by a factor on their logits, before the softmax. The "
            f"penalty is {p['theta']:g} and such a token has the logit {p['logit']:g}. What does "
            "the logit become?"
        ),
        answer=lambda p: p["logit"] * p["theta"],
        slips={
            "divided: that brings a negative logit nearer to 0, so the token becomes likelier": (
                lambda p: p["logit"] / p["theta"]
            ),
            "the penalty is a factor, it is not subtracted": lambda p: p["logit"] - p["theta"],
        },
        why=lambda p: (
            f"{p['logit']:g} · {p['theta']:g} = {p['logit'] * p['theta']:g}. Positive logits are "
            "divided by the penalty, negative ones multiplied: both go down (Keskar et al. 2019, "
            "CTRL, arXiv 1909.05858, and every engine since)."
        ),
    ),
    Question(
        id="sp_q_tokens",
        lesson=LESSON,
        points=1,
        draw=_draw_round,
        text=lambda p: (
            f"Each draft token is accepted with probability {p['a']:g}, {p['gamma']} are drafted a "
            "round. How many tokens does a round give on average?"
        ),
        answer=lambda p: expected_tokens(p["a"], p["gamma"]),
        unit="tok",
        slips={
            "the replacement or bonus token is missing": lambda p: (
                expected_tokens(p["a"], p["gamma"]) - 1
            ),
            "each draft token counted alone; a later one needs all before it": lambda p: (
                1 + p["gamma"] * p["a"]
            ),
            "one power too few in (1 - a^(gamma + 1)) / (1 - a)": lambda p: expected_tokens(
                p["a"], p["gamma"] - 1
            ),
        },
        why=lambda p: (
            f"(1 − {p['a']:g}^{p['gamma'] + 1}) / (1 − {p['a']:g}) = "
            f"{expected_tokens(p['a'], p['gamma']):.4f}"
        ),
    ),
    Question(
        id="sp_q_speed",
        lesson=LESSON,
        points=1,
        draw=_draw_round,
        text=lambda p: (
            f"Acceptance {p['a']:g}, {p['gamma']} draft tokens a round, one draft step takes "
            f"{p['c']:g} of the time of a target step, and verifying takes as long as a step. How "
            "many times as fast is it as plain decoding?"
        ),
        answer=lambda p: speedup(p["a"], p["gamma"], p["c"]),
        unit="x",
        slips={
            "the target's own pass is missing from the round's time": lambda p: (
                expected_tokens(p["a"], p["gamma"]) / (p["gamma"] * p["c"])
            ),
            "one draft step only; a round takes gamma of them": lambda p: (
                expected_tokens(p["a"], p["gamma"]) / (1 + p["c"])
            ),
            "the draft is not free": lambda p: expected_tokens(p["a"], p["gamma"]),
        },
        why=lambda p: (
            f"{expected_tokens(p['a'], p['gamma']):.4f} tokens in the time of 1 + {p['gamma']} · "
            f"{p['c']:g} = {1 + p['gamma'] * p['c']:g} steps."
        ),
    ),
    Question(
        id="sp_q_rate",
        lesson=LESSON,
        points=1,
        draw=_draw_laws,
        text=lambda p: (
            f"The target's law over three tokens is {_listed(p['target'])}, the draft's "
            f"{_listed(p['draft'])}. With what probability is a token drawn from the draft "
            "accepted?"
        ),
        answer=_rate,
        slips={
            "that is how often two independent samples agree": lambda p: float(
                (p["target"] * p["draft"]).sum()
            ),
            "that is the probability of a rejection": lambda p: 1 - _rate(p),
            "the differences count twice what moves: half of them": lambda p: (
                1 - float(np.abs(p["target"] - p["draft"]).sum())
            ),
        },
        why=lambda p: (
            "The sum of the smaller ones: "
            + " + ".join(f"{x:g}" for x in np.minimum(p["target"], p["draft"]))
            + f" = {_rate(p):g}."
        ),
    ),
    Question(
        id="sp_q_residual",
        lesson=LESSON,
        points=1,
        draw=_draw_residual,
        text=lambda p: (
            f"The same kind of pair: target {_listed(p['target'])}, draft {_listed(p['draft'])}. A "
            f"draft token was rejected. With what probability is token {p['token']} (counted from "
            "0) its replacement?"
        ),
        answer=_residual,
        slips={
            "the residual is not renormalised": lambda p: float(
                p["target"][p["token"]] - p["draft"][p["token"]]
            ),
            "that is the target's own probability": lambda p: float(p["target"][p["token"]]),
        },
        why=lambda p: (
            "max(target − draft, 0) = "
            + _listed(np.round(np.maximum(p["target"] - p["draft"], 0), 4))
            + f"; token {p['token']} has {_residual(p):.4g} of its sum."
        ),
    ),
    Question(
        id="sp_q_best",
        lesson=LESSON,
        points=1,
        draw=_draw_best,
        text=lambda p: (
            f"Acceptance {p['a']:g}, draft cost {p['c']:g}, free verification. Which number of "
            "draft tokens a round is the fastest? (Your `best_gamma` may be asked.)"
        ),
        answer=lambda p: float(best_gamma(p["a"], p["c"])),
        tolerance=1e-6,
        slips={
            "the largest you may try: later tokens are rarely kept, and cost the same": lambda p: (
                64.0
            ),
        },
        why=lambda p: (
            f"At {best_gamma(p['a'], p['c'])} the speed-up is "
            f"{speedup(p['a'], best_gamma(p['a'], p['c']), p['c']):.3f}; one more token or one "
            "fewer gives less."
        ),
    ),
    Question(
        id="sp_q_server",
        lesson=LESSON,
        points=1,
        draw=_draw_server,
        text=lambda p: (
            f"{p['n']} sequences decode together; the device becomes compute-bound at "
            f"{p['ridge']} tokens a pass. Acceptance {p['a']:g}, {p['gamma']} draft tokens, draft "
            "cost 0.05. What is the speed-up?"
        ),
        answer=_server,
        unit="x",
        slips={
            "verification is not free at this batch": lambda p: speedup(p["a"], p["gamma"], 0.05),
            "the ridge was compared with one sequence's tokens times gamma": lambda p: speedup(
                p["a"], p["gamma"], 0.05, p["n"] * p["gamma"] / p["ridge"]
            ),
            "tokens cost nothing until the pass is compute-bound": lambda p: speedup(
                p["a"], p["gamma"], 0.05, p["gamma"] + 1
            ),
        },
        why=lambda p: (
            f"A pass verifies {p['n']} · {p['gamma'] + 1} = {p['n'] * (p['gamma'] + 1):,} tokens: "
            f"{verify_cost(p['gamma'], p['n'], p['ridge']):.3f} steps. The speed-up is "
            f"{_server(p):.3f}: {'switch it off' if _server(p) < 1 else 'it just pays'}."
        ),
    ),
    Question(
        id="sp_q_match",
        lesson=LESSON,
        points=1,
        draw=_draw_match,
        text=lambda p: (
            f"Temperature 0. The draft is {', '.join(map(str, p['drafted']))}; the target's "
            f"choices at these positions and the next are {', '.join(map(str, p['chosen']))}. How "
            "many tokens does this round add to the text?"
        ),
        answer=lambda p: float(p["wrong"] + 1),
        tolerance=1e-6,
        slips={
            "what agrees after the first wrong token follows a text that does not exist": (
                lambda p: 7.0
            ),
            "the target's own token at the mismatch is added too": lambda p: float(p["wrong"]),
        },
        why=lambda p: (
            f"{p['wrong']} tokens agree from the start, and the target's own takes the place of "
            "the wrong one."
        ),
    ),
    Question(
        id="sp_q_alpha",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "A log says: 4 tokens drafted a round, 59 % of all drafted tokens accepted. A "
            "colleague puts 0.59 into the formula as the chance of each token. What is wrong?"
        ),
        choices=(
            "tokens after a rejection were never tested: the chance is higher",
            "accepted tokens are counted twice by the log: the chance is lower",
            "the bonus is among the accepted tokens: the chance is much lower",
            "nothing is wrong: for any gamma the two numbers are the same one",
        ),
        notes={
            "nothing is wrong: for any gamma the two numbers are the same one": "only for gamma 1: "
            "at a chance of 0.8 and gamma 4, (3.3616 − 1) / 4 = 0.59 of the drafted are accepted",
        },
        why=lambda p: (
            "Accepted over proposed is (E − 1) / gamma: 0.5904 where each test passes with 0.8."
        ),
    ),
    Question(
        id="sp_q_filter",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Draft tokens are drawn after top-p, but the test divides by the draft's unfiltered "
            "softmax. What happens?"
        ),
        choices=(
            "the output no longer has the law of the target",
            "only fewer tokens are accepted, the law is kept",
            "nothing: the factor cancels in the residual law",
            "the law is kept if target and draft agree on it",
        ),
        notes={
            "only fewer tokens are accepted, the law is kept": "the rule needs the law that the "
            "token was really drawn from; another one shifts the output",
        },
        why=lambda p: "Both laws in the rule must be the ones that are sampled from.",
    ),
    Question(
        id="sp_q_families",
        lesson=LESSON,
        points=1,
        text=lambda p: (
            "Qwen2.5-7B shall be drafted for by Qwen2.5-0.5B. What breaks first in most engines?"
        ),
        choices=(
            "their vocabularies have different sizes",
            "their layers have different head widths",
            "their caches have different page sizes",
            "their context lengths are not the same",
        ),
        why=lambda p: "152,064 against 151,936 entries: the two laws have no common axis.",
    ),
    Question(
        id="sp_q_lossy",
        lesson=LESSON,
        points=1,
        text=lambda p: "Which of these does in general not keep the law of the target?",
        choices=(
            "Medusa heads with typical acceptance",
            "prompt lookup, verified by the rule",
            "a draft model far worse than the target",
            "drafting with some of the own layers",
        ),
        notes={
            "a draft model far worse than the target": "a bad draft costs time, never quality: the "
            "rule repairs whatever was proposed",
        },
        why=lambda p: (
            "Typical acceptance takes what is plausible enough. The rule keeps the law whatever "
            "the draft is."
        ),
    ),
)
