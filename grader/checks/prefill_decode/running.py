"""Lesson 03: generation without a memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grader.checks.prefill_decode.lesson import LESSON
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.config import ModelConfig
from inferlab.generate import generate_uncached
from inferlab.model import Model
from inferlab.weights import random_weights

TINY = ModelConfig(
    n_layers=2,
    d_model=24,
    n_heads=4,
    n_kv_heads=2,
    d_head=8,
    d_ff=32,
    vocab_size=61,
    tied_embeddings=False,  # a tied one of random weights likes to repeat its last token
    eos_ids=tuple(range(1, 61, 3)),  # many: an answer that stops at one of them is found out
)


class WatchedModel:
    """The part of a model that generation needs. Remembers how many tokens each pass ran."""

    for_answers = ("config", "next_logits")

    def __init__(self, seed: int) -> None:
        self._model = Model(TINY, random_weights(TINY, np.random.default_rng(seed), np.float64))
        self.config = TINY
        self.passes: list[int] = []

    def next_logits(self, tokens: Sequence[int]) -> np.ndarray:
        self.passes.append(len(tokens))
        return self._model.next_logits([int(token) for token in tokens])


def _drive_uncached(answer: Any, inputs: Inputs) -> dict[str, Any]:
    model, prompt, n_new = inputs["model"], inputs["prompt"], inputs["n_new"]
    seen = {"tokens": answer(model=model, prompt=prompt, n_new=n_new)}
    seen["tokens run in each pass"] = list(model.passes)
    seen["the prompt afterwards"] = list(prompt)
    return {**seen, "a second time, same model": answer(model=model, prompt=prompt, n_new=n_new)}


def _draw_uncached(rng: np.random.Generator) -> Inputs:
    prompt = [int(token) for token in rng.integers(TINY.vocab_size, size=rng.integers(3, 7))]
    return {"model": WatchedModel(int(rng.integers(1000))), "prompt": prompt, "n_new": 6}


def _uncached(
    run: Callable = lambda tokens, prompt: tokens,
    pick: Callable = np.argmax,
    put: Callable = lambda tokens, new: tokens.append(new),
    start: Callable = list,
    steps: Callable = lambda n: n,
    result: Callable = lambda tokens, prompt, n: tokens[len(prompt) :],
    extra: bool = False,
):
    """generate_uncached with one step replaced."""

    def generate(model, prompt, n_new):
        tokens, n_prompt = start(prompt), list(prompt)
        for _ in range(steps(n_new)):
            put(tokens, int(pick(model.next_logits(run(tokens, n_prompt)))))
        if extra:
            model.next_logits(tokens)
        return result(tokens, n_prompt, n_new)

    return generate


def _top_of_one_pass(model, prompt, n_new):
    order = np.argsort(-model.next_logits(prompt))
    return [int(token) for token in order[:n_new]]


def _until_enough(model, prompt, n_new):
    new: list[int] = []
    while True:
        new.append(int(np.argmax(model.next_logits([*prompt, *new]))))
        if len(new) >= n_new:
            return new


def _until_end_of_text(model, prompt, n_new):
    new: list[int] = []
    while len(new) < n_new and not (new and new[-1] in model.config.eos_ids):
        new.append(int(np.argmax(model.next_logits([*prompt, *new]))))
    return new


def _uncached_recursive(model, prompt, n_new):
    if n_new == 0:
        return []
    logits = model.next_logits(prompt)
    token = max(range(len(logits)), key=lambda i: logits[i])
    return [token, *_uncached_recursive(model, [*prompt, token], n_new - 1)]


def _uncached_array(model, prompt, n_new):
    tokens = np.zeros(len(prompt) + n_new, dtype=np.int64)
    tokens[: len(prompt)] = prompt
    for end in range(len(prompt), len(tokens)):
        tokens[end] = model.next_logits(tokens[:end]).argmax()
    return tokens[len(prompt) :]


UNCACHED = Exercise(
    id="generate_uncached",
    reference=generate_uncached,
    lesson=LESSON,
    points=1,
    minutes=6,
    difficulty=1,
    hints=(
        "One loop of n_new rounds. Each round runs the whole text so far, prompt and new tokens, "
        "and makes it one token longer.",
        "Begin with a copy, tokens = list(prompt): the caller's list must stay as it is. The next "
        "token is int(np.argmax(model.next_logits(tokens))).",
        "Append it to tokens. After the loop return the new ones only: tokens[len(prompt):].",
    ),
    cases=(
        Case(
            "a prompt of one token, three new ones",
            lambda: {"model": WatchedModel(5), "prompt": [7], "n_new": 3},
        ),
        Case(
            "no new tokens: nothing is run",
            lambda: {"model": WatchedModel(6), "prompt": [3, 1, 4], "n_new": 0},
        ),
        Case(
            "a tuple as prompt, 12 new tokens",
            lambda: {"model": WatchedModel(7), "prompt": (3, 1, 4, 1, 5), "n_new": 12},
        ),
    ),
    draw=_draw_uncached,
    drive=_drive_uncached,
    wrong={
        "runs the last token alone: without a memory the model then knows nothing else": _uncached(
            run=lambda tokens, prompt: tokens[-1:]
        ),
        "runs the new tokens alone after the first pass: the prompt belongs to the text": _uncached(
            run=lambda tokens, prompt: tokens[len(prompt) :] or tokens
        ),
        "runs the prompt alone each time: the new token must become part of the text": _uncached(
            run=lambda tokens, prompt: prompt
        ),
        "takes the n largest logits of one pass: each new token needs a pass of its own": (
            _top_of_one_pass
        ),
        "the prompt is returned as well; only the new tokens are asked": _uncached(
            result=lambda tokens, prompt, n: tokens
        ),
        "picks the smallest logit; greedy takes the largest": _uncached(pick=np.argmin),
        "new tokens are put in front of the text; they belong behind it": _uncached(
            put=lambda tokens, new: tokens.insert(0, new),
            result=lambda tokens, prompt, n: tokens[:n][::-1],
        ),
        "one token too many: the first pass already gives a new token": _uncached(
            steps=lambda n: n + 1
        ),
        "one token too few: n_new passes give n_new tokens": _uncached(
            steps=lambda n: max(n - 1, 0)
        ),
        "one pass too many: nobody needs what follows the last token": _uncached(extra=True),
        "it changes its input prompt in place; work on a copy": _uncached(
            start=lambda prompt: prompt
        ),
        "gives a token even where none is asked: test before the pass, not after it": _until_enough,
        "stops at an end-of-text token: n_new tokens are asked, whichever they are": (
            _until_end_of_text
        ),
    },
    right={
        "recursion, without NumPy's argmax": _uncached_recursive,
        "an array filled from the left": _uncached_array,
    },
)
