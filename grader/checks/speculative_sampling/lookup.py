"""Lesson 08: prompt lookup, a draft from the text itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.speculative_sampling.lesson import LESSON
from grader.judging.exercise import Case, Exercise, Inputs, given
from inferlab.prompt_lookup import NgramIndex


def _draw_text(rng: np.random.Generator) -> Inputs:
    """Three letters, so that runs of every length come back with different followers."""
    n_min = int(rng.integers(1, 3))
    parts = [rng.integers(0, 3, size=int(rng.integers(1, 6))).tolist() for _ in range(16)]
    return {
        "n_min": n_min, "n_max": n_min + int(rng.integers(2, 4)), "parts": parts,
        "n_draft": int(rng.integers(5, 9)),
    }  # fmt: skip


def _drive_lookup(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Extend by one part after the other, and ask for a draft each time."""
    if not isinstance(answer, type):
        raise TypeError("NgramIndex must be a class with the methods extend and draft")
    index = answer(inputs["n_min"], inputs["n_max"])
    seen: dict[str, Any] = {"draft of an empty text": _list(index.draft(3))}
    for i, part in enumerate(inputs["parts"], start=1):
        index.extend(list(part))
        seen[f"text after part {i}"] = _list(index.tokens)
        seen[f"draft after part {i}"] = _list(index.draft(inputs["n_draft"]))
    seen["a draft of 1"] = _list(index.draft(1))
    seen["a draft of 0"] = _list(index.draft(0))
    seen["the text afterwards"] = _list(index.tokens)
    return seen


def _list(tokens: Any) -> Any:
    return [int(t) for t in tokens] if tokens is not None else None


def with_method(**methods: Callable) -> type:
    """NgramIndex with some methods replaced."""
    return type("NgramIndex", (NgramIndex,), methods)


def _extend(
    lengths: Callable = lambda self, position: range(self.n_min, min(self.n_max, position) + 1),
    put: Callable = lambda self, run, position: self.follows.__setitem__(run, position),
    after: bool = False,
) -> Callable:
    """extend with another choice of runs, or another entry."""

    def extend(self, tokens):
        for token in tokens:
            if after:
                self.tokens.append(token)
            position = len(self.tokens)
            for n in lengths(self, position):
                put(self, tuple(self.tokens[position - n :]), position)
            if not after:
                self.tokens.append(token)

    return extend


def _round_and_round(followed: list[int], n: int) -> list[int]:
    return (followed * n)[:n]


def _draft(
    lengths: Callable = lambda self: range(min(self.n_max, len(self.tokens)), self.n_min - 1, -1),
    go_on: Callable = _round_and_round,
    shift: int = 0,
) -> Callable:
    """draft with another order of the runs, or another way to go on at the end of the text."""

    def draft(self, n_draft):
        if n_draft < 1:
            return []
        for n in lengths(self):
            start = self.follows.get(tuple(self.tokens[len(self.tokens) - n :]))
            if start is not None:
                followed = self.tokens[start + shift : start + shift + n_draft]
                return go_on(followed, n_draft) if followed else []
        return []

    return draft


def _shortest_first(index: Any) -> range:
    return range(index.n_min, min(index.n_max, len(index.tokens)) + 1)


def _longest_only(index: Any) -> list[int]:
    return [index.n_max] if len(index.tokens) >= index.n_max else []


def _fill_last(followed: list[int], n: int) -> list[int]:
    return followed + [followed[-1]] * (n - len(followed))


def _draft_at_least_one(self, n_draft):
    return NgramIndex.draft(self, max(1, n_draft))


def _search(self, n_draft):
    """No index at all: look the run up in the text, from the newest place back."""
    text = list(self.tokens)
    for n in range(self.n_max, self.n_min - 1, -1):
        run = text[len(text) - n :]
        for start in range(len(text) - 1, n - 1, -1):
            if len(text) > n and text[start - n : start] == run and n_draft > 0:
                return (text[start:] * n_draft)[:n_draft]
    return []


def _extend_simple(self, tokens):
    self.tokens = [*self.tokens, *tokens]


def _extend_slices(self, tokens):
    """All runs of the whole text entered again, shortest first."""
    self.tokens.extend(tokens)
    for n in range(self.n_min, self.n_max + 1):
        for end in range(n, len(self.tokens)):
            self.follows[tuple(self.tokens[end - n : end])] = end


def _draft_growing(self, n_draft):
    """Token by token, going round what followed."""
    out: list[int] = []
    known = [
        self.follows[run]
        for n in range(self.n_min, min(self.n_max, len(self.tokens)) + 1)
        if (run := tuple(self.tokens[-n:])) in self.follows
    ]
    while known and len(out) < n_draft:
        tail = self.tokens[known[-1] :]
        out.append(tail[len(out) % len(tail)])
    return out


def _text(n_min: int, n_max: int, n_draft: int, *parts: list[int]) -> Case:
    name = f"runs of {n_min} to {n_max}, text {', '.join(str(t) for part in parts for t in part)}"
    return given(name, n_min=n_min, n_max=n_max, n_draft=n_draft, parts=list(parts))


LOOKUP = Exercise(
    id="NgramIndex",
    reference=NgramIndex,
    lesson=LESSON,
    points=3,
    minutes=15,
    difficulty=3,
    hints=(
        "extend: two loops, over the tokens and over n from n_min to min(n_max, position). A run "
        "of n is tuple(self.tokens[position - n :]), taken before the token is appended.",
        "draft: n from min(n_max, len(self.tokens)) down to n_min; "
        "self.follows.get(tuple(self.tokens[-n:])) is None where the run is not known.",
        "followed = self.tokens[start : start + n_draft]; it may be shorter than n_draft: "
        "[followed[i % len(followed)] for i in range(n_draft)]",
    ),
    cases=(
        _text(2, 3, 7, [1, 2, 3, 9, 5], [1, 2, 3]),
        _text(1, 2, 4, [7, 8], [9], [7]),
        _text(2, 6, 5, [4], [4, 4, 4, 4]),
        _text(2, 4, 3, [1, 2, 3, 4, 5, 6, 7]),
        _text(1, 3, 4, [1, 2, 8], [1, 2, 9], [3, 1, 2]),
    ),
    draw=_draw_text,
    n_draws=6,
    drive=_drive_lookup,
    wrong={
        "the shortest run decides; a longer one is better evidence, so try it first": with_method(
            draft=_draft(lengths=_shortest_first)
        ),
        "the first place where a run occurred is kept; the latest is asked": with_method(
            extend=_extend(put=lambda self, run, position: self.follows.setdefault(run, position))
        ),
        "a run is entered when it is complete, before anything follows it: it then finds itself": (
            with_method(extend=_extend(after=True))
        ),
        "the guess begins with the run itself; what followed it is asked": with_method(
            draft=_draft(shift=-1)
        ),
        "one token of what followed is skipped": with_method(draft=_draft(shift=1)),
        "the guess ends where the text ends; a period goes on": with_method(
            draft=_draft(go_on=lambda followed, n: followed)
        ),
        "at the end of the text the last token is repeated, not the whole period": with_method(
            draft=_draft(go_on=_fill_last)
        ),
        "only runs of n_max are looked up; shorter ones down to n_min count too": with_method(
            draft=_draft(lengths=_longest_only)
        ),
        "runs of n_max are never entered: the range ends one too early": with_method(
            extend=_extend(lengths=lambda self, p: range(self.n_min, min(self.n_max, p + 1)))
        ),
        "runs shorter than n_min are used: a single token says little": with_method(
            extend=_extend(lengths=lambda self, p: range(1, min(self.n_max, p) + 1)),
            draft=_draft(lengths=lambda self: range(min(self.n_max, len(self.tokens)), 0, -1)),
        ),
        "a draft of 0 tokens still gives one": with_method(draft=_draft_at_least_one),
    },
    right={
        "no index: a search in the text": with_method(extend=_extend_simple, draft=_search),
        "all runs entered anew": with_method(extend=_extend_slices),
        "token by token": with_method(draft=_draft_growing),
    },
)  # fmt: skip
