"""Lesson 08: a whole draft verified at once, with supplied uniforms; and its greedy case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product, takewhile
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON, draw_law
from grader.judging.compare import Comparison
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.sampling import draw_token
from inferlab.speculative_sampling import (
    acceptance_probability,
    greedy_match,
    residual_law,
    verify_draft,
)

# ---- by the laws --------------------------------------------------------------------------------


def _draw_rounds(rng: np.random.Generator) -> Inputs:
    """Sixteen drafts of three tokens, drawn from the draft's laws."""
    target_laws, draft_laws = _laws(rng, 4, 5), _laws(rng, 3, 5)
    rounds = [
        ([draw_token(law, rng.random()) for law in draft_laws], rng.random(4)) for _ in range(16)
    ]
    return {"target_laws": target_laws, "draft_laws": draft_laws, "rounds": rounds}


def _laws(rng: np.random.Generator, n: int, vocab_size: int) -> np.ndarray:
    return np.stack([draw_law(rng, vocab_size) for _ in range(n)])


def _rounds(target_laws: Any, draft_laws: Any, *rounds: tuple[list[int], list[float]]) -> Inputs:
    target, draft = np.array(target_laws), np.array(draft_laws).reshape(-1, len(target_laws[0]))
    return {
        "target_laws": target,
        "draft_laws": draft,
        "rounds": [(drafted, np.array(uniforms)) for drafted, uniforms in rounds],
    }


def _statement() -> Inputs:
    """The example of the statement: accepted with probability 1, then 0.25."""
    laws = [[0.2, 0.6, 0.2], [0.5, 0.1, 0.4], [0.2, 0.2, 0.6]]
    return _rounds(
        laws, [[0.3, 0.4, 0.3], [0.3, 0.4, 0.3]],
        ([1, 1], [0.9, 0.3, 0.6]), ([1, 1], [0.9, 0.2, 0.6]), ([1, 1], [0.9, 0.25, 0.6]),
    )  # fmt: skip


def _nothing_drafted() -> Inputs:
    return _rounds([[0.2, 0.5, 0.3]], [], ([], [0.1]), ([], [0.65]), ([], [0.95]))


def _impossible_token() -> Inputs:
    """The target never says the drafted token: a uniform of 0.0 must not accept it."""
    return _rounds([[0.0, 0.5, 0.5], [0.2, 0.5, 0.3]], [[0.6, 0.2, 0.2]], ([0], [0.0, 0.7]))


def _greedy_laws() -> Inputs:
    """One-hot laws: draft 5, 9, 7, the target would say 5, 3, 7, 1."""
    eye = np.eye(10)
    return _rounds(eye[[5, 3, 7, 1]], eye[[5, 9, 7]], ([5, 9, 7], [0.5, 0.0, 0.5, 0.3]))


def _every_uniform() -> Inputs:
    rng = np.random.default_rng(8)
    return {"target_laws": _laws(rng, 3, 3), "draft_laws": _laws(rng, 2, 3), "rounds": None}


def _drive_verify(answer: Any, inputs: Inputs) -> Any:
    target_laws, draft_laws = inputs["target_laws"], inputs["draft_laws"]
    if inputs["rounds"] is None:
        return _output_law(answer, target_laws, draft_laws)
    return [
        answer(target_laws.copy(), draft_laws.copy(), list(drafted), uniforms.copy())
        for drafted, uniforms in inputs["rounds"]
    ]


def _output_law(answer: Any, target_laws: np.ndarray, draft_laws: np.ndarray) -> dict[str, Any]:
    """The exact law of what comes out, over every draft and every outcome of the uniforms."""
    gamma, vocab_size = draft_laws.shape
    first, second, lengths = np.zeros(vocab_size), np.zeros(vocab_size), np.zeros(gamma + 1)
    for weight, drafted, uniforms in outcomes(target_laws, draft_laws):
        tokens = [int(t) for t in answer(target_laws, draft_laws, list(drafted), uniforms)]
        first[tokens[0]] += weight
        lengths[len(tokens) - 1] += weight
        if len(tokens) > 1:
            second[tokens[1]] += weight
    return {
        "law of the first token": first,
        "law of the second, where there is one": second / second.sum(),
        "how many tokens come out: 1, 2, ...": lengths,
    }


def outcomes(
    target_laws: np.ndarray, draft_laws: np.ndarray
) -> Iterator[tuple[float, tuple[int, ...], np.ndarray]]:
    """(weight, drafted, uniforms) of all cases that a verification can tell apart.

    A uniform matters only by the side of a threshold on which it lies, so one in each piece
    stands for all of it: the acceptance probabilities for the tests, the ends of the laws that a
    last token may be drawn from for the last uniform.
    """
    gamma, vocab_size = draft_laws.shape
    pairs = list(zip(target_laws[:-1], draft_laws, strict=True))
    last = _pieces(np.cumsum([target_laws[-1], *(residual_law(t, d) for t, d in pairs)], axis=1))
    for drafted in product(range(vocab_size), repeat=gamma):
        tests = [
            _pieces(np.array([acceptance_probability(t, d, x)]))
            for (t, d), x in zip(pairs, drafted, strict=True)
        ]
        proposed = float(np.prod([d[x] for (_, d), x in zip(pairs, drafted, strict=True)]))
        for chosen in product(*tests, last):
            weight = proposed * float(np.prod([size for size, _ in chosen]))
            yield weight, drafted, np.array([middle for _, middle in chosen])


def _pieces(thresholds: np.ndarray) -> list[tuple[float, float]]:
    """(length, middle) of the pieces into which thresholds cut the interval from 0 to 1."""
    ends = np.unique(np.clip([0.0, *thresholds.ravel(), 1.0], 0, 1))
    return [(b - a, (a + b) / 2) for a, b in pairwise(ends) if b - a > 1e-12]


def _verify(
    accept: Callable = lambda i, u, p: u[i] < p,
    ratio: Callable = acceptance_probability,
    replace: Callable = lambda t, d, i, u: draw_token(residual_law(t[i], d[i]), u[-1]),
    bonus: Callable = lambda t, d, x, u: [*x, draw_token(t[-1], u[-1])],
    result: Callable = lambda x, i, token: [*x[:i], token],
) -> Callable:
    """verify_draft with one step replaced."""

    def verify(target_laws, draft_laws, drafted, uniforms):
        for i, token in enumerate(drafted):
            probability = ratio(target_laws[i], draft_laws[i], token)
            if not accept(i, uniforms, probability):
                return result(drafted, i, replace(target_laws, draft_laws, i, uniforms))
        return bonus(target_laws, draft_laws, drafted, uniforms)

    return verify


def _replaces_each(target_laws, draft_laws, drafted, uniforms):
    new = [
        token
        if uniform < acceptance_probability(target, draft, token)
        else draw_token(residual_law(target, draft), uniforms[-1])
        for target, draft, token, uniform in zip(
            target_laws, draft_laws, drafted, uniforms, strict=False
        )
    ]
    return [*new, draw_token(target_laws[-1], uniforms[-1])]


def _keeps_accepting(target_laws, draft_laws, drafted, uniforms):
    out, clean = [], True
    for i, token in enumerate(drafted):
        if uniforms[i] < acceptance_probability(target_laws[i], draft_laws[i], token):
            out.append(token)
        else:
            law = residual_law(target_laws[i], draft_laws[i])
            out.append(draw_token(law, uniforms[-1]))
            clean = False
    return [*out, draw_token(target_laws[-1], uniforms[-1])] if clean else out


def _bonus_always(target_laws, draft_laws, drafted, uniforms):
    out = []
    for i, token in enumerate(drafted):
        if uniforms[i] >= acceptance_probability(target_laws[i], draft_laws[i], token):
            out.append(draw_token(residual_law(target_laws[i], draft_laws[i]), uniforms[-1]))
            break
        out.append(token)
    return (
        [*out, draw_token(target_laws[len(out)], uniforms[-1])]
        if len(out) < len(target_laws)
        else out
    )


def _joint_ratio(target_laws, draft_laws, drafted, uniforms):
    ratio = 1.0
    for i, token in enumerate(drafted):
        ratio = min(1.0, ratio * float(target_laws[i][token] / draft_laws[i][token]))
        if uniforms[i] >= ratio:
            law = residual_law(target_laws[i], draft_laws[i])
            return [*drafted[:i], draw_token(law, uniforms[-1])]
    return [*drafted, draw_token(target_laws[-1], uniforms[-1])]


def _target_without(target_laws, draft_laws, drafted, uniforms):
    for i, token in enumerate(drafted):
        if uniforms[i] >= acceptance_probability(target_laws[i], draft_laws[i], token):
            left = np.where(np.arange(len(target_laws[i])) == token, 0, target_laws[i])
            return [*drafted[:i], draw_token(left / left.sum(), uniforms[-1])]
    return [*drafted, draw_token(target_laws[-1], uniforms[-1])]


def _by_argmax(target_laws, draft_laws, drafted, uniforms):
    for i, token in enumerate(drafted):
        if token != np.argmax(target_laws[i]):
            law = residual_law(target_laws[i], draft_laws[i])
            return [*drafted[:i], draw_token(law, uniforms[-1])]
    return [*drafted, draw_token(target_laws[-1], uniforms[-1])]


def _verify_vectorised(target_laws, draft_laws, drafted, uniforms):
    gamma = len(drafted)
    rows = np.arange(gamma)
    ratio = target_laws[rows, drafted] / draft_laws[rows, drafted] if gamma else np.zeros(0)
    kept = int(np.cumprod(np.asarray(uniforms)[:gamma] < ratio).sum())
    law = target_laws[kept].copy()
    if kept < gamma:
        law = np.maximum(law - draft_laws[kept], 0)
    ends = np.cumsum(law / law.sum())
    return np.append(drafted[:kept], min(np.searchsorted(ends, uniforms[gamma], "right"),
                                         np.flatnonzero(law)[-1])).astype(int)  # fmt: skip


def _verify_recursive(target_laws, draft_laws, drafted, uniforms):
    if len(drafted) == 0:
        return [draw_token(target_laws[0], uniforms[-1])]
    if uniforms[0] < acceptance_probability(target_laws[0], draft_laws[0], drafted[0]):
        rest = _verify_recursive(target_laws[1:], draft_laws[1:], drafted[1:], uniforms[1:])
        return [drafted[0], *rest]
    return [draw_token(residual_law(target_laws[0], draft_laws[0]), uniforms[-1])]


def _verify_zip(target_laws, draft_laws, drafted, uniforms):
    out: list[int] = []
    law = target_laws[len(drafted)]
    for u, x, t, d in zip(uniforms, drafted, target_laws, draft_laws, strict=False):
        if u * d[x] >= t[x]:
            law = residual_law(t, d)
            break
        out.append(x)
    out.append(draw_token(law, uniforms[len(drafted)]))
    return tuple(out)


VERIFY = Exercise(
    id="verify_draft",
    reference=verify_draft,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=4,
    uses=("draw_token", "acceptance_probability", "residual_law"),
    hints=(
        "A loop over the drafted tokens that leaves by `return` at the first rejection. What comes "
        "after the loop happens only if all were kept.",
        "In round i: if uniforms[i] >= acceptance_probability(target_laws[i], draft_laws[i], "
        "drafted[i]), the answer is drafted[:i] and one token from residual_law of these two laws.",
        "The last token is always drawn with uniforms[-1]: from the residual at a rejection "
        "([*drafted[:i], token]), from target_laws[-1] if all were kept ([*drafted, token]).",
    ),
    cases=(
        Case("the example of the statement", _statement),
        Case("nothing was drafted", _nothing_drafted),
        Case("a token that the target never says", _impossible_token),
        Case("one-hot laws, as at temperature 0", _greedy_laws),
        Case("all drafts and uniforms: the exact law of the output", _every_uniform),
    ),
    draw=_draw_rounds,
    drive=_drive_verify,
    comparison=Comparison(
        terms=lambda i: 500,
        magnitude=lambda i: 1.0,
        why="probabilities added up over up to 500 outcomes",
    ),
    wrong={
        "goes on after the first rejection: what follows a rejected token was drafted after a text "
        "that does not exist": _keeps_accepting,
        "no bonus: where all are kept, the pass has the law of one token more": _verify(
            bonus=lambda t, d, x, u: list(x)
        ),
        "nothing takes the place of the rejected token: a round would give no token at all": (
            _verify(result=lambda x, i, token: list(x[:i]))
        ),
        "one uniform for all the tests: each needs its own": _verify(
            accept=lambda i, u, p: u[0] < p
        ),
        "the replacement is drawn from the target, not from the residual": _verify(
            replace=lambda t, d, i, u: draw_token(t[i], u[-1])
        ),
        "the rejected token is only struck out of the target; draw from the residual": (
            _target_without
        ),
        "the residual is upside down: it is max(target - draft, 0)": _verify(
            replace=lambda t, d, i, u: draw_token(residual_law(d[i], t[i]), u[-1])
        ),
        "the acceptance ratio is upside down: it is target / draft": _verify(
            ratio=lambda t, d, x: min(1.0, d[x] / t[x]) if t[x] else 1.0
        ),
        "the replacement uses the next position's laws: the rejected token's own count": _verify(
            replace=lambda t, d, i, u: draw_token(t[i + 1], u[-1])
        ),
        "the uniform that failed the test draws the replacement: use the last one": _verify(
            replace=lambda t, d, i, u: draw_token(residual_law(t[i], d[i]), u[i])
        ),
        "the replacement is drawn with the uniform of the next test: use the last one": _verify(
            replace=lambda t, d, i, u: draw_token(residual_law(t[i], d[i]), u[i + 1])
        ),
        "goes on after the first rejection: the replacement ends the round": _replaces_each,
        "accepts at uniform <= probability: with 0.0 a token of probability 0 gets through": (
            _verify(accept=lambda i, u, p: u[i] <= p)
        ),
        "accepts above the probability: accept when the uniform is below it": _verify(
            accept=lambda i, u, p: u[i] >= p
        ),
        "the rejected token stays in, with its replacement behind it": _verify(
            result=lambda x, i, token: [*x[: i + 1], token]
        ),
        "the bonus comes from the law before the last one": _verify(
            bonus=lambda t, d, x, u: [*x, draw_token(t[max(len(t) - 2, 0)], u[-1])]
        ),
        "keeps a token only where it is the target's most probable one: that is the greedy rule, "
        "here the ratio of probabilities decides": _by_argmax,
        "the ratios are multiplied along the draft; each position has its own test": _joint_ratio,
        "a bonus also after a rejection: that position's text was never run": _bonus_always,
    },
    right={
        "vectorised": _verify_vectorised,
        "recursion": _verify_recursive,
        "zip, no division, a tuple": _verify_zip,
    },
)

# ---- greedy -------------------------------------------------------------------------------------


def _draw_match(rng: np.random.Generator) -> Inputs:
    """The first wrong token is in the middle; later ones agree again."""
    chosen = rng.permutation(50)[:8].tolist()
    drafted = chosen[:7]
    drafted[int(rng.integers(2, 5))] = 77
    return {"drafted": drafted, "chosen": chosen}


def _match_takewhile(drafted, chosen):
    pairs = list(takewhile(lambda pair: pair[0] == pair[1], zip(drafted, chosen, strict=False)))
    return [c for _, c in pairs] + [chosen[len(pairs)]]


def _match_numpy(drafted, chosen):
    same = np.asarray(drafted, dtype=int) == np.asarray(chosen[: len(drafted)], dtype=int)
    return np.asarray(chosen)[: int(np.cumprod(same).sum()) + 1]


def _match_for(drafted, chosen):
    out = []
    for i in range(len(chosen)):
        out.append(chosen[i])
        if i == len(drafted) or drafted[i] != chosen[i]:
            break
    return out


MATCH = Exercise(
    id="greedy_match",
    reference=greedy_match,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "How long is the longest beginning on which drafted and chosen agree? Call it n_kept.",
        "The round is drafted[:n_kept] and chosen[n_kept]. The kept tokens are the chosen ones, "
        "so that is chosen[: n_kept + 1].",
        "n_kept = 0; while n_kept < len(drafted) and drafted[n_kept] == chosen[n_kept]: n_kept "
        "+= 1; return list(chosen[: n_kept + 1])",
    ),
    cases=(
        given("the example: 5, 9, 7 against 5, 3, 7, 1", drafted=[5, 9, 7], chosen=[5, 3, 7, 1]),
        given("all agree", drafted=[4, 2, 6], chosen=[4, 2, 6, 8]),
        given("none agrees", drafted=[4, 2, 6], chosen=[2, 4, 6, 8]),
        given("nothing was drafted", drafted=[], chosen=[3]),
        given("only the last is wrong", drafted=[4, 2, 6], chosen=[4, 2, 7, 8]),
    ),
    draw=_draw_match,
    wrong={
        "counts agreements after the first wrong token too": lambda drafted, chosen: list(
            chosen[: 1 + sum(a == b for a, b in zip(drafted, chosen, strict=False))]
        ),
        "no token from the target at the end: a round always gives one more than is kept": (
            lambda drafted, chosen: list(greedy_match(drafted, chosen)[:-1])
        ),
        "the wrong drafted token is kept; the chosen one takes its place": (
            lambda drafted, chosen: list(drafted[: len(greedy_match(drafted, chosen))])
            if list(drafted) != list(chosen[: len(drafted)])
            else list(chosen)
        ),
        "all chosen tokens are taken: those after a wrong one follow a text that is not written": (
            lambda drafted, chosen: list(chosen)
        ),
        "the drafted tokens that agree are picked out; only the longest beginning counts": (
            lambda drafted, chosen: [a for a, b in zip(drafted, chosen, strict=False) if a == b]
            + [chosen[-1]]
        ),
        "no bonus: where all agree, the last chosen token comes on top": (
            lambda drafted, chosen: list(greedy_match(drafted, chosen)[: max(1, len(drafted))])
        ),
        "one wrong token throws the whole draft away: what came before it stays": (
            lambda drafted, chosen: list(chosen)
            if list(drafted) == list(chosen[: len(drafted)])
            else list(chosen[:1])
        ),
        "the draft is compared with what comes after it: chosen[i] belongs to drafted[i]": (
            lambda drafted, chosen: _match_for(drafted, [*chosen[1:], -1])
        ),
    },
    right={
        "takewhile": _match_takewhile,
        "a cumulative product": _match_numpy,
        "a loop that breaks": _match_for,
    },
)  # fmt: skip
