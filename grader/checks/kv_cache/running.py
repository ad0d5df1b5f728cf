"""Lesson 04: the sliding-window ring and greedy generation with a cache."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grader.checks.kv_cache.lesson import LESSON
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.config import ModelConfig
from inferlab.generate import generate_cached
from inferlab.kv_cache import SlidingWindowCache
from inferlab.model import Model
from inferlab.weights import random_weights

# ---- sliding window -----------------------------------------------------------------------------


def _ring_inputs(window: int, n_tokens: int, seed: int = 0) -> Inputs:
    tokens = np.random.default_rng(seed).normal(size=(n_tokens, 2, 2, 3))
    return {"window": window, "n_tokens": n_tokens, "tokens": tokens}


def _draw_ring(rng: np.random.Generator) -> Inputs:
    window = int(rng.integers(2, 6))
    return _ring_inputs(window, 2 * window + int(rng.integers(1, window)), int(rng.integers(1000)))


def _drive_ring(answer: type, inputs: Inputs) -> dict[str, Any]:
    cache = answer(inputs["window"], n_kv_heads=2, d_head=3)
    seen: dict[str, Any] = {}

    def look(when: str) -> None:
        pair = cache.ordered()
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        keys, values = pair if is_pair else (pair, None)
        seen[f"keys {when}"] = np.array(keys) if keys is not None else None
        seen[f"values {when}"] = np.array(values) if values is not None else None

    def put(k: np.ndarray, v: np.ndarray) -> None:
        k, v = k.copy(), v.copy()
        cache.append(k, v)
        k[:] = v[:] = np.nan  # the caller uses its arrays again

    for t, (k, v) in enumerate(inputs["tokens"]):
        put(k, v)
        seen[f"n_seen after {t + 1} tokens"] = cache.n_seen
        look(f"after {t + 1} tokens")
    look("when read once more")
    for k, v in inputs["tokens"]:  # and the same tokens again, read only at the end
        put(k, v)
    held = _held_numbers(cache)
    look("after all tokens a second time")
    for k, v in inputs["tokens"]:
        put(k, v)
    return {**seen, "memory grows": _held_numbers(cache) > held, "n_seen": cache.n_seen}


def _held_numbers(value: Any, depth: int = 0) -> int:
    """Numbers in all arrays and lists that an object holds."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if depth > 4:
        return 0
    if isinstance(value, (list, tuple, deque)):
        return sum(_held_numbers(item, depth + 1) for item in value)
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return sum(_held_numbers(item, depth + 1) for item in inner.values())


def ring(**methods: Callable) -> type:
    """SlidingWindowCache with some methods replaced."""
    return type("SlidingWindowCache", (SlidingWindowCache,), methods)


def _append_at(slot: Callable[[Any], int], count: Callable[[Any], int]) -> Callable:
    def append(self, k, v):
        at = slot(self)
        self.keys[:, at], self.values[:, at] = k, v
        self.n_seen = count(self)

    return append


def _ordered_slots(slots: Callable[[Any], Any]) -> Callable:
    def ordered(self):
        chosen = slots(self)
        return self.keys[:, chosen], self.values[:, chosen]

    return ordered


def _held(self: Any) -> int:
    return min(self.n_seen, self.window)


def _append_deque(self, k, v):
    if self.n_seen == 0:
        self.kept = deque(maxlen=self.window)
    self.kept.append((k.copy(), v.copy()))
    self.n_seen += 1


def _ordered_deque(self):
    return tuple(np.stack(side, axis=1) for side in zip(*self.kept, strict=True))


def _append_shift(self, k, v):
    if self.n_seen >= self.window:
        self.keys, self.values = np.roll(self.keys, -1, 1), np.roll(self.values, -1, 1)
    at = min(self.n_seen, self.window - 1)
    self.keys[:, at], self.values[:, at] = k, v
    self.n_seen += 1


def _ordered_roll(self):
    turn = -(self.n_seen % self.window) if self.n_seen > self.window else 0
    n = _held(self)
    return np.roll(self.keys, turn, axis=1)[:, :n], np.roll(self.values, turn, axis=1)[:, :n]


RING = Exercise(
    id="SlidingWindowCache",
    reference=SlidingWindowCache,
    lesson=LESSON,
    points=3,
    minutes=15,
    difficulty=3,
    hints=(
        "Write down, for window 3, which slot tokens 0, 1, 2, 3, 4 go to: 0, 1, 2, 0, 1. That is "
        "the position modulo the window.",
        "append: slot = self.n_seen % self.window, store k and v at [:, slot], add 1 to n_seen.",
        "ordered: the positions held are max(0, n_seen - window) … n_seen - 1. Take them modulo "
        "the window with np.arange(first, self.n_seen) % self.window and index the slots.",
    ),
    cases=(
        Case("window 3, five tokens", lambda: _ring_inputs(3, 5)),
        Case("window 1, four tokens", lambda: _ring_inputs(1, 4)),
    ),
    draw=_draw_ring,
    drive=_drive_ring,
    wrong={
        "the slots come in memory order; after the first wrap that is not oldest first": ring(
            ordered=_ordered_slots(lambda self: slice(0, _held(self)))
        ),
        "slots that were never filled are returned: zeros would get attention": ring(
            ordered=_ordered_slots(
                lambda self: np.arange(self.n_seen - self.window, self.n_seen) % self.window
            )
        ),
        "the newest token comes first; oldest first is asked": ring(
            ordered=_ordered_slots(
                lambda self: (
                    np.arange(self.n_seen - 1, self.n_seen - 1 - _held(self), -1) % self.window
                )
            )
        ),
        "once full, the last slot is overwritten again and again": ring(
            append=_append_at(
                lambda self: min(self.n_seen, self.window - 1), lambda self: self.n_seen + 1
            )
        ),
        "n_seen stops at the window: the position of the next token is lost": ring(
            append=_append_at(
                lambda self: self.n_seen % self.window,
                lambda self: min(self.n_seen + 1, self.window),
            )
        ),
        "n_seen starts again when the ring is full: it counts all tokens since the start": ring(
            append=_append_at(
                lambda self: self.n_seen % self.window,
                lambda self: self.n_seen % self.window + 1,
            )
        ),
        "the ring is turned the wrong way: its oldest token is in slot n_seen mod window": ring(
            ordered=_ordered_slots(
                lambda self: (
                    (np.arange(_held(self)) - self.n_seen * (self.n_seen > self.window))
                    % self.window
                )
            )
        ),
        "one token too few: window tokens may be seen, the newest included": ring(
            ordered=_ordered_slots(
                lambda self: (
                    np.arange(max(0, self.n_seen - self.window + 1), self.n_seen) % self.window
                )
            )
        ),
        "one token too many: a window of w holds w tokens, the newest included": ring(
            ordered=_ordered_slots(
                lambda self: (
                    np.arange(max(0, self.n_seen - self.window - 1), self.n_seen) % self.window
                )
            )
        ),
        "the ring starts at slot 1: token 0 belongs in slot 0": ring(
            append=_append_at(
                lambda self: (self.n_seen + 1) % self.window, lambda self: self.n_seen + 1
            )
        ),
    },
    right={
        "a deque with a maximal length": ring(append=_append_deque, ordered=_ordered_deque),
        "shifts everything by one slot": ring(
            append=_append_shift, ordered=_ordered_slots(lambda self: slice(0, _held(self)))
        ),
        "turns the ring with np.roll": ring(ordered=_ordered_roll),
    },
)

# ---- generation ---------------------------------------------------------------------------------

TINY = ModelConfig(
    n_layers=2, d_model=24, n_heads=4, n_kv_heads=2, d_head=8, d_ff=32, vocab_size=61
)


class CountingModel:
    """The part of a model that generation needs. Counts the passes and the tokens it runs."""

    for_answers = ("config", "new_cache", "next_logits")

    def __init__(self, seed: int, config: ModelConfig = TINY) -> None:
        weights = random_weights(config, np.random.default_rng(seed), np.float64)
        self._model = Model(config, weights)
        self.config, self.n_passes, self.n_tokens_run = config, 0, 0

    def new_cache(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.new_cache(*args, **kwargs)

    def next_logits(self, tokens: Sequence[int], cache: Any = None) -> np.ndarray:
        self.n_passes += 1
        self.n_tokens_run += len(tokens)
        return self._model.next_logits([int(token) for token in tokens], cache)


def _draw_prompt(rng: np.random.Generator) -> Inputs:
    prompt = [int(token) for token in rng.integers(TINY.vocab_size, size=rng.integers(3, 7))]
    return {
        "model": CountingModel(int(rng.integers(1000))),
        "prompt": prompt,
        "n_new": int(rng.integers(6, 9)),
    }


def _one_token_prompt() -> Inputs:
    return {"model": CountingModel(5), "prompt": [7], "n_new": 1}


def _drive_generate(answer: Any, inputs: Inputs) -> dict[str, Any]:
    model, prompt = inputs["model"], inputs["prompt"]
    seen = {
        "tokens": answer(model, prompt, inputs["n_new"]),
        "tokens run through the model": model.n_tokens_run,
        "passes (one for the prompt, one a step)": model.n_passes,
        "the prompt afterwards": list(prompt),
    }
    return {**seen, "a second time, same model": answer(model, prompt, inputs["n_new"])}


LONG_SEED = 58  # its answer has all five ids in it


def _long_answer() -> Inputs:
    """40 new tokens of a vocabulary of 5, so that every id comes up; the prompt is a tuple."""
    config = dataclasses.replace(TINY, vocab_size=5)
    return {"model": CountingModel(LONG_SEED, config), "prompt": (3, 1, 4), "n_new": 40}


def _no_cache(model, prompt, n_new):
    tokens = list(prompt)
    for _ in range(n_new):
        tokens.append(int(np.argmax(model.next_logits(tokens))))
    return tokens[len(prompt) :]


def _generate(
    first: Callable = lambda prompt: prompt,
    then: Callable = lambda prompt, new: new[-1:],
    result: Callable = lambda prompt, new: new,
    extra: bool = False,
    fresh: bool = False,
    pick: Callable = np.argmax,
):
    """generate_cached with one step replaced."""

    def generate(model, prompt, n_new):
        cache = model.new_cache()
        new: list[int] = []
        tokens = first(prompt)
        while len(new) < n_new:
            if fresh:
                cache = model.new_cache()
            new.append(int(pick(model.next_logits(tokens, cache))))
            tokens = then(prompt, new)
        if extra:
            model.next_logits(tokens, cache)
        return result(prompt, new)

    return generate


def _prompt_by_token(model, prompt, n_new):
    cache, new = model.new_cache(), []
    for token in prompt:
        logits = model.next_logits([token], cache)
    while True:
        new.append(int(np.argmax(logits)))
        if len(new) == n_new:
            return new
        logits = model.next_logits(new[-1:], cache)


def _generate_for(model, prompt, n_new):
    cache = model.new_cache()
    logits = model.next_logits(np.array(prompt), cache)
    new = np.empty(n_new, dtype=np.int64)
    for i in range(n_new):
        new[i] = logits.argmax()
        if i + 1 < n_new:
            logits = model.next_logits(new[i : i + 1], cache)
    return new


def _generate_recursive(model, prompt, n_new, cache=None):
    cache = model.new_cache() if cache is None else cache
    token = max(enumerate(model.next_logits(prompt, cache)), key=lambda pair: pair[1])[0]
    if n_new == 1:
        return [token]
    return [token, *_generate_recursive(model, [token], n_new - 1, cache)]


GENERATE = Exercise(
    id="generate_cached",
    reference=generate_cached,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    hints=(
        "Two phases. The prefill runs the whole prompt once; each later pass runs one token: the "
        "one that was chosen last.",
        "cache = model.new_cache(); logits = model.next_logits(prompt, cache). The cache is "
        "changed in place: pass the same one every time.",
        "Append int(np.argmax(logits)) first, then run that token, and only if more are needed: "
        "the last token chosen is never run.",
    ),
    cases=(
        Case("a prompt of one token, one new token", _one_token_prompt),
        Case("a tuple as prompt, 40 new tokens", _long_answer),
    ),
    draw=_draw_prompt,
    drive=_drive_generate,
    wrong={
        "right tokens, but the whole sequence is run at every step: the cache is not used": (
            _no_cache
        ),
        "right tokens, but one decode step too many: nobody needs what follows the last token": (
            _generate(extra=True)
        ),
        "right tokens, but the prompt is run token by token; one pass suffices": _prompt_by_token,
        "runs the whole sequence on top of a full cache: every token is stored twice": (
            _generate(then=lambda prompt, new: [*prompt, *new])
        ),
        "the last prompt token is run again: it gets a second place in the cache": (
            _generate(then=lambda prompt, new: new[-1:] if len(new) > 1 else [prompt[-1], new[0]])
        ),
        "a new cache at every step: the model forgets the prompt": _generate(fresh=True),
        "only the last prompt token is run: the cache lacks the rest of the prompt": (
            _generate(first=lambda prompt: prompt[-1:])
        ),
        "the prompt is returned as well; only the new tokens are asked": (
            _generate(result=lambda prompt, new: [*prompt, *new])
        ),
        "picks the smallest logit; greedy takes the largest": _generate(pick=np.argmin),
        "one token too few": _generate(result=lambda prompt, new: new[:-1]),
    },
    right={
        "a for loop filling an array": _generate_for,
        "recursion": _generate_recursive,
    },
)
