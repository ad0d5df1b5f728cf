"""Taking tokens back from the cache (lesson 04)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from grader.checks.kv_cache.lesson import LESSON
from grader.checks.kv_cache.structures import (
    cache_inputs,
    contents,
    fill,
    new_cache,
    only,
    raised_by,
    with_method,
)
from grader.judging.exercise import Exercise, Inputs
from inferlab.kv_cache import KVCache


def _drive_truncate(answer: type, inputs: Inputs) -> dict[str, Any]:
    """Hold 6 tokens, keep 4, go on with 1; then ask for the impossible."""
    cache, rows = new_cache(only("truncate", answer), inputs, capacity=4)
    fill(cache, rows, 5, 1)
    cache.append(0, rows(1), rows(1))  # layer 0 holds 7, the others 6
    seen: dict[str, Any] = {}
    refused = raised_by(lambda: cache.truncate(7))
    seen["truncate(7) where one layer holds 7 and two hold 6 raises"] = refused and refused.kind
    cache.truncate(6)
    seen["lengths after truncate(6)"] = list(cache.lengths)
    if cache.n_tokens >= 4:
        cache.truncate(4)
        seen["lengths after truncate(4)"] = list(cache.lengths)
    if set(cache.lengths) != {4}:  # what follows would only raise
        return seen
    seen |= {"n_tokens after truncate(4)": cache.n_tokens, "n_bytes": cache.n_bytes}
    seen["capacity after truncate(4)"] = cache.capacity
    fill(cache, rows, 1)
    seen |= {f"then, {name}": value for name, value in contents(cache).items()}
    for n in (7, -1):
        refused = raised_by(partial(cache.truncate, n))
        seen[f"truncate({n}) with 5 held raises"] = refused and refused.kind
        if not refused:
            return seen
    cache.truncate(0)
    return {**seen, "lengths after truncate(0)": list(cache.lengths)}


def _truncater(lengths: Callable[[Any, int], list[int]], check: bool = True) -> type:
    def truncate(self, n_tokens):
        if check and not 0 <= n_tokens <= self.n_tokens:
            raise ValueError("out of range")
        self.lengths = lengths(self, n_tokens)

    return with_method(truncate=truncate)


def _truncate_zeroes(self, n_tokens):
    if not 0 <= n_tokens <= self.n_tokens:
        raise ValueError("out of range")
    self.keys[:, :, :, n_tokens:] = 0
    self.values[:, :, :, n_tokens:] = 0


def _truncate_keeps_last(self, n_tokens):
    if not 0 <= n_tokens <= self.n_tokens:
        raise ValueError("out of range")
    first = self.n_tokens - n_tokens
    for array in (self.keys, self.values):
        array[:, :, :, :n_tokens] = array[:, :, :, first : first + n_tokens].copy()
    self.lengths = [n_tokens] * len(self.lengths)


def _truncate_cuts(self, n_tokens):
    if not 0 <= n_tokens <= self.n_tokens:
        raise ValueError("out of range")
    self.keys = self.keys[:, :, :, : max(n_tokens, 1)].copy()
    self.values = self.values[:, :, :, : max(n_tokens, 1)].copy()
    self.lengths = [n_tokens] * len(self.lengths)


def _truncate_copies(self, n_tokens):
    if n_tokens < 0 or n_tokens > self.n_tokens:
        raise ValueError("out of range")
    self.keys, self.values = self.keys[:, :, :, :].copy(), self.values.copy()
    self.keys[:, :, :, n_tokens:] = self.values[:, :, :, n_tokens:] = 0
    self.lengths = [n_tokens for _ in self.lengths]


def _truncate_loop(self, n_tokens):
    if n_tokens not in range(self.n_tokens + 1):
        raise ValueError("out of range")
    for layer in range(len(self.lengths)):
        self.lengths[layer] = min(self.lengths[layer], n_tokens)


TRUNCATE = Exercise(
    id="KVCache.truncate",
    reference=KVCache,
    lesson=LESSON,
    points=1,
    minutes=5,
    difficulty=1,
    hints=(
        "What a layer holds is defined by its length alone. Slots beyond it are unused, whatever "
        "numbers they contain.",
        "Check the range first: 0 <= n_tokens <= self.n_tokens, else raise ValueError with both "
        "numbers.",
        "self.lengths = [n_tokens] * len(self.lengths)",
    ),
    draw=cache_inputs,
    n_draws=2,
    drive=_drive_truncate,
    wrong={
        "drops n_tokens tokens; it must keep n_tokens": _truncater(
            lambda self, n: [self.n_tokens - n] * len(self.lengths)
        ),
        "keeps the last n_tokens tokens; it must keep the first": with_method(
            truncate=_truncate_keeps_last
        ),
        "only layer 0 is shortened": _truncater(lambda self, n: [n, *self.lengths[1:]]),
        "the slots are zeroed but the lengths stay: zeros keep getting attention": with_method(
            truncate=_truncate_zeroes
        ),
        "every layer loses equally many: one that is ahead keeps a tail of rejected tokens": (
            _truncater(lambda self, n: [held - (self.n_tokens - n) for held in self.lengths])
        ),
        "keeps one token too many": _truncater(
            lambda self, n: [min(n + 1, self.n_tokens)] * len(self.lengths)
        ),
        "the arrays are cut: the memory must stay allocated for the next append": with_method(
            truncate=_truncate_cuts
        ),
        "an impossible length is accepted": _truncater(
            lambda self, n: [n] * len(self.lengths), check=False
        ),
    },
    right={
        "zeroes the rest as well": with_method(truncate=_truncate_copies),
        "layer by layer": with_method(truncate=_truncate_loop),
    },
)
