"""Small models for the checks of lesson 08: they read their cache, and every pass is written down.

A ToyModel keeps the token ids themselves as keys of a real KVCache. Its logits depend on every
token and position that the cache holds, so a rejected token left in it changes what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from inferlab.kv_cache import KVCache
from inferlab.model import Model

N_STATES = 13


class ToyModel:
    """A table of logits, (N_STATES, vocab_size); the text so far decides on the row."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table
        self.config = SimpleNamespace(vocab_size=table.shape[1], max_context=10_000)

    def new_cache(self, capacity: int = 16, n_sequences: int = 1) -> KVCache:
        return KVCache(1, 1, 1, n_sequences, capacity, np.float64)

    def forward(self, tokens: Any, cache: Any = None, last_only: bool = False) -> np.ndarray:
        cache = self.new_cache() if cache is None else cache
        ids = np.asarray(tokens, dtype=np.float64)[:, None, :, None]  # (1, 1, T, 1)
        seen, _ = cache.append(0, ids, ids)
        text = seen[0, 0, :, 0]  # all that the cache holds
        sums = np.cumsum((text + 1) * (1 + np.arange(len(text)) % 5))
        logits = self.table[(sums[-ids.size :] % N_STATES).astype(int)][None]
        return logits[:, -1:] if last_only else logits

    def next_logits(self, tokens: Sequence[int], cache: Any = None) -> np.ndarray:
        return self.forward([tokens], cache, last_only=True)[0, -1]


def toy_pair(rng: np.random.Generator, vocab_size: int, noise: float) -> tuple[ToyModel, ToyModel]:
    """A target and a draft that agrees with it the less, the more noise there is."""
    table = 1.5 * rng.normal(size=(N_STATES, vocab_size))
    return ToyModel(table), ToyModel(table + noise * rng.normal(size=table.shape))


class Watched:
    """A model that remembers its caches, and where each of its passes began and ended."""

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
