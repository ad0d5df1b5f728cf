"""A model that is a table: small enough to generate with it thousands of times.

It keeps the token ids themselves as keys of a real KVCache. Its logits depend on every token and
position that the cache holds, so a rejected token left in it changes what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from inferlab.kv_cache import KVCache

N_STATES = 13


@dataclass(frozen=True, eq=False, repr=False)
class ToyModel:
    """table: of logits, (N_STATES, vocab_size); the text so far decides on the row."""

    table: np.ndarray

    @property
    def config(self) -> SimpleNamespace:
        return SimpleNamespace(vocab_size=self.table.shape[1], max_context=10_000)

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
