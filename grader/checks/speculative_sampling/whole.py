"""Lesson 08: whole speculative generation, with two models and two caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON
from grader.checks.speculative_sampling.toy import Watched, toy_pair
from grader.judging.compare import as_list, raised
from grader.judging.exercise import Case, Exercise, Inputs, many
from grader.judging.law import Law
from inferlab.config import ModelConfig
from inferlab.model import Model
from inferlab.sampling import draw_token, prefilled, sampling_law, temperature_law
from inferlab.speculative_sampling import (
    greedy_match,
    laws_after,
    require_same_vocab,
    speculative_rounds,
    verify_draft,
)
from inferlab.weights import random_weights
from labkit.measure.toy_model import N_STATES, ToyModel

GREEDY = partial(sampling_law, temperature=0.0)
PLAIN = partial(temperature_law, temperature=1.0)
COLD = partial(sampling_law, temperature=0.5, top_k=2)  # far from the plain softmax
N_GENERATIONS = 150

# ---- inputs -------------------------------------------------------------------------------------


def _greedy_inputs(seed: int, prompt: Any, n_new: int, gamma: int, noise: float = 0.5) -> Inputs:
    models = toy_pair(np.random.default_rng(seed), 7, noise)
    return {"models": models, "prompt": prompt, "n_new": n_new, "gamma": gamma, "law_of": GREEDY}


def _draw_greedy(rng: np.random.Generator) -> Inputs:
    """Drawn until there are rounds that keep nothing, some and all of a draft."""
    while True:
        prompt = rng.integers(7, size=int(rng.integers(2, 6))).tolist()
        inputs = _greedy_inputs(int(rng.integers(10_000)), prompt, 25, 3)
        target, draft = inputs["models"]
        rounds = speculative_rounds(target, draft, prompt, 25, 3, GREEDY, _rng())
        kept = [len(new) - 1 for new in rounds][:-1]
        if {0, 1, 2, 3} <= set(kept):
            return inputs


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _real_models() -> Inputs:
    """Two small decoders with real keys and values."""
    # layers, d_model, query heads, KV heads, d_head, d_ff, vocabulary
    target, draft = ModelConfig(2, 24, 4, 2, 8, 32, 11), ModelConfig(1, 16, 2, 2, 8, 32, 11)
    models = tuple(
        Model(config, random_weights(config, np.random.default_rng(seed), np.float64))
        for config, seed in ((target, 3), (draft, 4))
    )
    return {
        "models": models, "prompt": [3, 1, 4, 1, 5], "n_new": 14, "gamma": 3, "law_of": GREEDY,
    }  # fmt: skip


def _sampled_inputs(target: Any, draft: Any, n_new: int, law_of: Callable = sampling_law) -> Inputs:
    """Two models with the same logits after every text: few generations show what is off."""
    models = tuple(ToyModel(np.tile(logits, (N_STATES, 1))) for logits in (target, draft))
    return {
        "models": models, "prompt": [1, 0, 1], "n_new": n_new, "gamma": n_new - 1,
        "law_of": law_of, "seed": 5,
    }  # fmt: skip


def _cold() -> Inputs:
    """The laws are 0.2 and 0.8, 0.9 and 0.1; the plain softmax spreads over ten tokens more."""
    tail = [-0.05] * 10
    return _sampled_inputs([0.0, 0.7, *tail], [1.1, 0.0, *tail], 2, COLD)


def _other_vocabulary() -> Inputs:
    inputs = _greedy_inputs(0, [1, 2], 4, 2)
    small = ToyModel(inputs["models"][1].table[:, :6])
    return {**inputs, "models": (inputs["models"][0], small)}


# ---- running it ---------------------------------------------------------------------------------


def _drive_rounds(answer: Any, inputs: Inputs) -> dict[str, Any]:
    if "seed" in inputs:
        return _frequencies(answer, inputs)
    target, draft = (Watched(model) for model in inputs["models"])
    prompt, n_new, gamma = (inputs[name] for name in ("prompt", "n_new", "gamma"))
    try:
        result = answer(target, draft, list(prompt), n_new, gamma, inputs["law_of"], _rng())
        rounds = [_tokens(new) for new in result]
    except ValueError as error:
        if not _mismatch(inputs):
            raise
        n_passes = len(target.passes) + len(draft.passes)
        return {"vocabularies of 7 and 6": raised(error).kind, "passes before": n_passes}
    if _mismatch(inputs):
        return {"vocabularies of 7 and 6": "accepted"}
    tokens = [token for new in rounds for token in new]
    text, n_prompt = [*prompt, *tokens], len(prompt)
    return {
        "tokens": tokens,
        "tokens of each round": rounds,
        "passes of the target after the prefill": sum(e >= n_prompt for _, e in target.passes),
        "tokens run by the target": target.n_tokens_run,
        "the target's cache holds": target.holds(text),
        "the draft's cache holds": draft.holds(text),
    }


def _tokens(new: Any) -> list[int]:
    items = as_list(new)
    if items is None:
        raise TypeError("yield lists of tokens, one list a round")
    return [int(token) for token in items]


def _mismatch(inputs: Inputs) -> bool:
    target, draft = inputs["models"]
    return target.config.vocab_size != draft.config.vocab_size


def _frequencies(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """How often each first token came out, and each text as a whole."""
    rng, n = np.random.default_rng(inputs["seed"]), inputs["models"][0].config.vocab_size
    settings = (inputs["n_new"], inputs["gamma"], inputs["law_of"], rng)
    results = many(answer, N_GENERATIONS, *inputs["models"], list(inputs["prompt"]), *settings)
    drawn = [[int(token) for new in rounds for token in new] for rounds in results]
    texts = np.array([d[: inputs["n_new"]] for d in drawn])
    return {
        "law of the first token": np.bincount(texts[:, 0], minlength=n),
        "law of the whole text": np.bincount(
            np.ravel_multi_index(tuple(texts.T), (n,) * inputs["n_new"]),
            minlength=n ** inputs["n_new"],
        ),
    }


def _expected_rounds(inputs: Inputs) -> Any:
    if "seed" not in inputs:
        return _drive_rounds(speculative_rounds, inputs)
    first = whole = inputs["law_of"](inputs["models"][0].next_logits(inputs["prompt"]))
    for _ in range(inputs["n_new"] - 1):
        whole = np.multiply.outer(whole, first)
    return {"law of the first token": first, "law of the whole text": whole.ravel()}


# ---- wrong and right answers --------------------------------------------------------------------


def _rounds(
    check: Callable = require_same_vocab,
    n_draft: Callable = lambda gamma, left: min(gamma, left - 1),
    uniforms: Callable = lambda n, rng: rng.random(n),
    verify: Callable = verify_draft,
    roll_target: Callable = lambda cache, n: cache.truncate(min(cache.n_tokens, n)),
    roll_draft: Callable = lambda cache, n: cache.truncate(min(cache.n_tokens, n)),
    keep: Callable = lambda new: new,
    draw: Callable = draw_token,
    fresh: bool = True,
    target_law: Callable | None = None,
) -> Callable:
    """speculative_rounds with one step replaced."""

    def generate(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
        check(target_model, draft_model)
        tokens, end, rounds = list(prompt), len(prompt) + n_new, []
        caches = prefilled(target_model, prompt), prefilled(draft_model, prompt)
        while len(tokens) < end:
            drafted: list[int] = []
            laws: list[Any] = []
            once = rng.random()
            for _ in range(n_draft(gamma, end - len(tokens))):
                laws += laws_after(draft_model, caches[1], tokens + drafted, [], law_of)
                drafted.append(draw(laws[-1], rng.random() if fresh else once))
            judged = laws_after(target_model, caches[0], tokens, drafted, target_law or law_of)
            new = keep(verify(judged, laws, drafted, uniforms(len(drafted) + 1, rng)))
            tokens += new
            roll_target(caches[0], len(tokens) - 1)
            roll_draft(caches[1], len(tokens) - 1)
            rounds.append(new)
        return rounds

    return generate


def _cut_off(*inputs):
    """Every round drafts gamma tokens; of the last one only what is still needed is added."""
    still_needed = [0]

    def n_draft(gamma, left):
        still_needed[0] = left
        return gamma

    return _rounds(n_draft=n_draft, keep=lambda new: new[: still_needed[0]])(*inputs)


def _raw_draft_laws(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
    """Draft tokens come from law_of, but are judged by the draft's plain softmax."""
    tokens, end, rounds = list(prompt), len(prompt) + n_new, []
    require_same_vocab(target_model, draft_model)
    caches = prefilled(target_model, prompt), prefilled(draft_model, prompt)
    while len(tokens) < end:
        drafted: list[int] = []
        laws: list[Any] = []
        for _ in range(min(gamma, end - len(tokens) - 1)):
            text = [*tokens, *drafted]
            logits = draft_model.next_logits(text[caches[1].n_tokens :], caches[1])
            drafted.append(draw_token(law_of(logits), rng.random()))
            laws.append(PLAIN(logits))
        judged = laws_after(target_model, caches[0], tokens, drafted, law_of)
        new = verify_draft(judged, laws, drafted, rng.random(len(drafted) + 1))
        tokens += new
        rounds.append(new)
        for cache in caches:
            cache.truncate(min(cache.n_tokens, len(tokens) - 1))
    return rounds


def _one_by_one(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
    """Right tokens, but the target runs the draft token by token."""
    require_same_vocab(target_model, draft_model)
    tokens, end, rounds = list(prompt), len(prompt) + n_new, []
    caches = prefilled(target_model, prompt), prefilled(draft_model, prompt)
    while len(tokens) < end:
        drafted: list[int] = []
        laws: list[Any] = []
        for _ in range(min(gamma, end - len(tokens) - 1)):
            laws += laws_after(draft_model, caches[1], tokens + drafted, [], law_of)
            drafted.append(draw_token(laws[-1], rng.random()))
        judged = [
            laws_after(target_model, caches[0], tokens + drafted[:i], [], law_of)[0]
            for i in range(len(drafted) + 1)
        ]
        new = verify_draft(judged, laws, drafted, rng.random(len(drafted) + 1))
        tokens += new
        rounds.append(new)
        for cache in caches:
            cache.truncate(min(cache.n_tokens, len(tokens) - 1))
    return rounds


def _fresh_target_cache(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
    """Right tokens, but the target reads the whole text again in every round."""
    require_same_vocab(target_model, draft_model)
    tokens, end, rounds = list(prompt), len(prompt) + n_new, []
    draft_cache = prefilled(draft_model, prompt)
    target_cache = target_model.new_cache()
    while len(tokens) < end:
        drafted: list[int] = []
        laws: list[Any] = []
        for _ in range(min(gamma, end - len(tokens) - 1)):
            laws += laws_after(draft_model, draft_cache, tokens + drafted, [], law_of)
            drafted.append(draw_token(laws[-1], rng.random()))
        judged = laws_after(target_model, target_cache, tokens, drafted, law_of)
        new = verify_draft(judged, laws, drafted, rng.random(len(drafted) + 1))
        tokens += new
        rounds.append(new)
        target_cache.truncate(0)
        draft_cache.truncate(min(draft_cache.n_tokens, len(tokens) - 1))
    return rounds


def _flat(*arguments):
    return [token for new in speculative_rounds(*arguments) for token in new]


def _rounds_anew(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
    tokens, end, rounds = list(prompt), len(prompt) + n_new, []
    require_same_vocab(target_model, draft_model)
    while len(tokens) < end:
        settings = (end - len(tokens), gamma, law_of, rng)
        new = next(speculative_rounds(target_model, draft_model, tokens, *settings))
        tokens += new
        rounds.append(new)
    return rounds


def _greedy_rule(judged: Any, laws: Any, drafted: list[int], uniforms: Any) -> list[int]:
    return greedy_match(drafted, [int(np.argmax(law)) for law in judged])


def _same_uniform(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.full(n, rng.random())


def _leave(cache: Any, n: int) -> None:
    """No rollback at all."""


def _too_far(cache: Any, n: int) -> None:
    cache.truncate(min(cache.n_tokens, n + 1))


def _as_generator(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
    """By hand: models run on what their caches lack, the round's uniforms as they are needed."""
    require_same_vocab(target_model, draft_model)
    text = [int(token) for token in prompt]
    target_cache, draft_cache = prefilled(target_model, text), prefilled(draft_model, text)
    left = n_new
    while left > 0:
        guess: list[int] = []
        laws = np.zeros((min(gamma, left - 1), target_model.config.vocab_size))
        for i in range(len(laws)):
            pending = (text + guess)[draft_cache.n_tokens :]
            laws[i] = law_of(draft_model.next_logits(pending, draft_cache))
            guess.append(int(rng.choice(laws.shape[1], p=laws[i])))
        batch = np.array([text[target_cache.n_tokens :] + guess])
        logits = target_model.forward(batch, target_cache)[0]
        judged = [law_of(row) for row in logits[len(logits) - len(guess) - 1 :]]
        new = list(verify_draft(judged, list(laws), guess, rng.random(len(guess) + 1)))
        text, left = text + new, left - len(new)
        for cache in (target_cache, draft_cache):
            if cache.n_tokens > len(text) - 1:
                cache.truncate(len(text) - 1)
        yield new


def _draft_in_step(target_model, draft_model, prompt, n_new, gamma, law_of, rng):
    """The draft runs its last token too, so that its cache is always as long as the target's."""
    require_same_vocab(target_model, draft_model)
    tokens, rounds = list(prompt), []
    caches = prefilled(target_model, prompt), prefilled(draft_model, prompt)
    while len(tokens) < len(prompt) + n_new:
        n = min(gamma, len(prompt) + n_new - len(tokens) - 1)
        drafted: list[int] = []
        laws: list[Any] = []
        for i in range(n + 1):
            law = laws_after(draft_model, caches[1], tokens + drafted, [], law_of)[0]
            if i < n:
                laws.append(law)
                drafted.append(draw_token(law, rng.random()))
        judged = laws_after(target_model, caches[0], tokens, drafted, law_of)
        rounds.append(verify_draft(judged, laws, drafted, rng.random(n + 1)))
        tokens.extend(rounds[-1])
        for cache in caches:
            cache.truncate(len(tokens) - 1)
    return rounds


ROUNDS = Exercise(
    id="speculative_rounds",
    reference=speculative_rounds,
    lesson=LESSON,
    points=4,
    minutes=20,
    difficulty=4,
    uses=("draw_token", "verify_draft"),
    hints=(
        "Keep one list, tokens: the prompt and all that was added. Each round: draft, verify, add, "
        "roll back, yield. laws_after runs what a cache lacks, so you never count positions.",
        "Draft: draft_laws += laws_after(draft_model, draft_cache, tokens + drafted, [], law_of); "
        "drafted.append(draw_token(draft_laws[-1], rng.random())). Verify: laws_after of the "
        "target with tokens and drafted.",
        "After tokens += new: for cache in (target_cache, draft_cache): "
        "cache.truncate(min(cache.n_tokens, len(tokens) - 1)). The newest token was never run; "
        "what was rejected is beyond that length.",
    ),
    cases=(
        Case("greedy, 25 tokens, gamma 3", lambda: _greedy_inputs(1, [2, 5, 0, 6], 25, 3)),
        Case("two small decoders", _real_models),
        Case("a perfect draft", lambda: _greedy_inputs(2, [4, 4, 1], 20, 4, noise=0.0)),
        Case("a prompt of one token", lambda: _greedy_inputs(5, [3], 9, 2)),
        Case("no draft at all", lambda: _greedy_inputs(4, [3, 0], 6, 0)),
        Case("one new token", lambda: _greedy_inputs(6, [3, 0, 2], 1, 5)),
        Case("vocabularies that differ", _other_vocabulary),
        Case("sampled at temperature 0.5, top-k 2", _cold),
        Case(
            "sampled: the draft is sure, the target is not",
            lambda: _sampled_inputs([0.0, 0.0], [3.5, 0.0], 5),
        ),
        Case(
            "sampled: both are torn between two tokens",
            lambda: _sampled_inputs([0.0, 0.0], [0.0, 0.0], 5),
        ),
    ),
    draw=_draw_greedy,
    n_draws=2,
    drive=_drive_rounds,
    expected=_expected_rounds,
    comparison=Law(false_alarm=5e-7),  # two laws: 1e-6 together
    wrong={
        "no rollback of the target's cache: rejected tokens stay in it and are attended to": (
            _rounds(roll_target=_leave)
        ),
        "no rollback of the draft's cache: it drafts after tokens that were rejected": (
            _rounds(roll_draft=_leave)
        ),
        "the target's cache keeps one token too many: the newest token was never run, what stands "
        "in its place is a rejected one": _rounds(roll_target=_too_far),
        "the draft's cache keeps one token too many": _rounds(roll_draft=_too_far),
        "the caches are cut to one length although the draft's may be shorter": _rounds(
            roll_draft=lambda cache, n: cache.truncate(n)
        ),
        "right tokens, but the target runs the draft token by token: one pass is enough": (
            _one_by_one
        ),
        "right tokens, but the target runs the whole text again in every round": (
            _fresh_target_cache
        ),
        "the last round drafts too many: with its extra token there are more than n_new": _rounds(
            n_draft=lambda gamma, left: gamma
        ),
        "the last round drafts gamma tokens and what is too many is cut off: draft fewer": (
            _cut_off
        ),
        "one draft token too few in the last round": _rounds(
            n_draft=lambda gamma, left: max(0, min(gamma, left - 2))
        ),
        "only the kept draft tokens are added: the target's own token of each round is lost": (
            _rounds(keep=lambda new: new[:-1] or new)
        ),
        "models with different vocabularies are accepted: call require_same_vocab first": _rounds(
            check=lambda target_model, draft_model: None
        ),
        "draft tokens come from law_of but are judged by the draft's plain softmax: both laws must "
        "be the ones that are sampled from": _raw_draft_laws,
        "the target's laws are its plain softmax, without the temperature: law_of makes both": (
            _rounds(target_law=PLAIN)
        ),
        "the draft proposes its most probable token; it must be drawn from the draft's law": (
            _rounds(draw=lambda law, uniform: int(np.argmax(law)))
        ),
        "each round is judged by the greedy rule, whatever law_of is: use verify_draft": _rounds(
            verify=_greedy_rule
        ),
        "target and draft are swapped: the text is that of the draft": (
            lambda target_model, draft_model, *rest: speculative_rounds(
                draft_model, target_model, *rest
            )
        ),
        "one flat list of tokens; the tokens of each round are asked": _flat,
        "both caches are made anew in every round: the whole text is read again": _rounds_anew,
        "one random number for all decisions of a round": _rounds(uniforms=_same_uniform),
        "one random number for all tests of a round: each draft token needs its own": _rounds(
            uniforms=lambda n, rng: np.append(_same_uniform(n - 1, rng), rng.random())
        ),
        "one random number draws all draft tokens of a round: each needs its own": _rounds(
            fresh=False
        ),
    },
    right={
        "a generator that runs the models itself": _as_generator,
        "the draft runs its last token too": _draft_in_step,
        "the rounds in a list": _rounds(),
    },
)
