"""Keys and values of the PyTorch engine: one preallocated tensor each, sequences of any length."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from inferlab.cache_sizes import layer_cache_numbers
from inferlab.config import ModelConfig
from inferlab.engines.pytorch.attention import attend


class TorchCache:
    """Keys and values of every layer, in two preallocated tensors.

    keys, values: (n_layers, B, n_kv_heads, capacity, d_head). Sequence b has used the first
    lengths[b] slots of the capacity axis, in every layer; what lies beyond means nothing. Each
    sequence starts at slot 0, so a batch of unequal prompts needs no padding.

    Under a sliding window all tokens are kept too, and Places hides the old ones: truncate can then
    go back to any token, as rejected drafts need. What memory a ring would save, and how it works,
    is kv_cache.SlidingWindowCache.
    """

    def __init__(
        self,
        config: ModelConfig,
        n_sequences: int = 1,
        capacity: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        shape = (config.n_layers, n_sequences, config.n_kv_heads, capacity, config.d_head)
        if min(shape) < 1:
            raise ValueError(f"every size must be at least 1, given {shape}")
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.config, self.lengths = config, [0] * n_sequences

    @property
    def n_sequences(self) -> int:
        """Rows of the batch: B."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that fit without growing."""
        return self.keys.shape[3]

    @property
    def n_tokens(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values in use, over all layers and sequences."""
        numbers = self.config.n_layers * layer_cache_numbers(self.config)  # of one token
        return sum(self.lengths) * numbers * self.keys.element_size()

    def reserve(self, n_tokens: int) -> None:
        """Make room for n_tokens tokens a sequence, by doubling; what is held stays."""
        if n_tokens <= self.capacity:
            return
        capacity = self.capacity
        while capacity < n_tokens:
            capacity *= 2
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((*old.shape[:3], capacity, old.shape[4]))
            new[:, :, :, : old.shape[3]] = old
            setattr(self, name, new)

    def truncate(self, n_tokens: int, row: int | None = None) -> None:
        """Keep the first n_tokens tokens and forget the rest: of one sequence, or of each that has
        more. The memory stays allocated.

        Raises ValueError if n_tokens is negative or larger than what is held.
        """
        held = self.n_tokens if row is None else self.lengths[row]
        if not 0 <= n_tokens <= held:
            raise ValueError(f"n_tokens must be between 0 and {held}, given {n_tokens}")
        for b in range(self.n_sequences) if row is None else (row,):
            self.lengths[b] = min(self.lengths[b], n_tokens)


class Places:
    """Where the T new tokens of each sequence go in the cache, and what their queries may see.

    All sequences of the cache are meant, or one of them: row.
    positions: (T,) for sequences of one length, (B, T) otherwise. plain: the sequences have one
    length, and each query sees all keys up to its own. causal: the same, of T > 1 new tokens that
    are the first ones.
    """

    def __init__(
        self,
        T: int,
        device: torch.device,
        cache: TorchCache | None = None,
        row: int | None = None,
        window: int | None = None,
    ) -> None:
        self.T, self.cache, self.window = T, cache, window
        n_sequences = cache.n_sequences if cache is not None else 0
        self.rows = range(n_sequences) if row is None else range(row, row + 1)
        starts = [cache.lengths[b] for b in self.rows] if cache is not None else [0]
        self.even = len(set(starts)) == 1
        self.start, self.S = starts[0], max(starts) + T
        self.first = 0  # the first key that anyone sees
        new = torch.arange(T, device=device)
        if self.even:
            self.positions = new + self.start
            if T == 1 and window is not None:
                self.first = max(0, self.S - window)
        else:
            self.positions = torch.tensor(starts, device=device)[:, None] + new
            self.row_index = torch.tensor(self.rows, device=device)[:, None]
        self.plain = self.even and (window is None or window >= self.S)
        self.causal = self.plain and T > 1 and self.start == 0
        if self.even and cache is not None:
            self._cut(cache)

    def _cut(self, cache: TorchCache) -> None:
        """Views of new and visible slots of all layers at once: cheaper than one by one."""
        keys, values = (x[:, self.rows.start : self.rows.stop] for x in (cache.keys, cache.values))
        self.new_keys = keys[:, :, :, self.start : self.S].unbind()
        self.new_values = values[:, :, :, self.start : self.S].unbind()
        self.seen_keys = keys[:, :, :, self.first : self.S].unbind()
        self.seen_values = values[:, :, :, self.first : self.S].unbind()

    @cached_property  # made where it is asked for, and for all layers at once
    def mask(self) -> Tensor | None:
        """True where a query may look, (T, S) or (B, 1, T, S); None where it may see all keys."""
        if self.even and self.T == 1:
            return None
        key = torch.arange(self.S, device=self.positions.device)
        query = self.positions[..., None]  # (T, 1) or (B, T, 1)
        mask = key <= query
        if self.window is not None:
            mask &= key > query - self.window
        return mask if self.even else mask[:, None]

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put new keys and values in place; -> all that the queries may see, (B, n_kv_heads, S, ..)

        k, v: (B, n_kv_heads, T, d_head)
        """
        if self.cache is None:
            return k, v
        if self.even:
            self.new_keys[layer].copy_(k)
            self.new_values[layer].copy_(v)
            if self.T > 1 and self.start == 0:  # no others are held, and these need no conversion
                return k, v
            return self.seen_keys[layer], self.seen_values[layer]
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.row_index, :, self.positions] = k.transpose(1, 2).to(keys.dtype)
        values[self.row_index, :, self.positions] = v.transpose(1, 2).to(values.dtype)
        return keys[:, :, : self.S], values[:, :, : self.S]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store new keys and values, and attend to all that the queries may see: rows, as attend.

        q: (B, n_heads, T, d_head); k, v: (B, n_kv_heads, T, d_head)
        """
        return attend(q, *self.store(layer, k, v), self)

    def advance(self) -> None:
        """After the last layer: the new tokens are held."""
        for b in self.rows:
            if self.cache is not None:
                self.cache.lengths[b] += self.T
