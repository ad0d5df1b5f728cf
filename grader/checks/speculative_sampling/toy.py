"""Small models for the checks of lesson 08: every pass of theirs is written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferlab.model import Model
from labkit.measure.toy_model import N_STATES, ToyModel


def toy_pair(rng: np.random.Generator, vocab_size: int, noise: float) -> tuple[ToyModel, ToyModel]:
    """A target and a draft that agrees with it the less, the more noise there is."""
    table = 1.5 * rng.normal(size=(N_STATES, vocab_size))
    return ToyModel(table), ToyModel(table + noise * rng.normal(size=table.shape))


class Watched:
    """A model that remembers its caches, and where each of its passes began and ended."""

    for_answers = ("config", "new_cache", "forward", "next_logits")

    def __init__(self, model: ToyModel | Model) -> None:
        self.model, self.config = model, model.config
        self.caches: list[Any] = []
        self.passes: list[tuple[int, int]] = []  # (tokens held before, tokens held after)

    def new_cache(self, capacity: int = 16, n_sequences: int = 1) -> Any:
        self.caches.append(self.model.new_cache(capacity, n_sequences))
        return self.caches[-1]

    def forward(self, tokens: Any, cache: Any = None, last_only: bool = False) -> np.ndarray:
        ids = np.asarray(tokens)
        start = 0 if cache is None else cache.n_tokens
        self.passes.append((start, start + ids.shape[1]))
        return self.model.forward(ids, cache, last_only)

    def next_logits(self, tokens: Sequence[int], cache: Any = None) -> np.ndarray:
        return self.forward(np.asarray(tokens)[None], cache, last_only=True)[0, 0]

    @property
    def n_tokens_run(self) -> int:
        return sum(end - start for start, end in self.passes)

    def holds(self, text: Sequence[int]) -> str:
        """What its cache holds, compared with the text: the numbers, not only their count."""
        if len(self.caches) != 1:
            return f"{len(self.caches)} caches were made"
        cache = self.caches[0]
        n = cache.n_tokens
        if n >= len(text):
            return "the newest token or more"
        fresh = self.model.new_cache()
        if n:
            self.model.forward(np.array([text[:n]]), fresh)
        kept, right = (c.keys[:, :, :, :n] for c in (cache, fresh))
        return "a beginning of the text" if np.allclose(kept, right, atol=1e-9) else "other tokens"
