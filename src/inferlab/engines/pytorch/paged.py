"""The PyTorch engine over pages: what paged_forward.py does in NumPy, for a batch that is served.

The rows of all requests share one pass, as there. What differs is for speed: requests that decode
attend together, their keys collected into one array padded to the longest; a prompt's chunk
attends alone, since it has a matrix of queries of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from inferlab.config import ModelConfig
from inferlab.engines.pytorch.attention import attend
from inferlab.paged_forward import Chunk, rows_of
from inferlab.paging import PagePool, token_slots


class TorchPagePool(PagePool):
    """The pages on a device. keys, values: (n_layers, P, page_size, n_kv_heads, d_head)"""

    def __init__(
        self,
        config: ModelConfig,
        n_pages: int,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.device = device
        super().__init__(config, n_pages, page_size, dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of new tokens. slots: (N,); k, v: (N, n_kv_heads, d_head)"""
        for pages, new in ((self.keys, k), (self.values, v)):
            pages[layer].view(-1, *pages.shape[3:])[slots] = new


@dataclass(frozen=True)
class Group:
    """Requests that attend together: rows of the pass, and where the keys that they see lie.

    rows: (B * T,); slots: (B, S); mask, plain and causal as in cache.Places.
    """

    rows: slice | Tensor
    T: int
    slots: Tensor
    mask: Tensor | None
    plain: bool
    causal: bool


class PagedPlaces:
    """Places for the tokens of several requests: each token is a row of its own, T is 1."""

    T, even = 1, False

    def __init__(
        self, pool: TorchPagePool, chunks: Sequence[Chunk], device: torch.device, window: int | None
    ) -> None:
        _, positions, slots = rows_of(chunks, pool.page_size)
        self.pool, self.device, self.window = pool, device, window
        self.positions = torch.as_tensor(positions, device=device)[:, None]  # (N, T = 1)
        self.slots = torch.as_tensor(slots, device=device)
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks]).tolist()
        single = [(end - 1, c) for end, c in zip(ends, chunks, strict=True) if len(c.tokens) == 1]
        self.groups = [self._together(single)] if single else []
        self.groups += [
            self._alone(end, chunk)
            for end, chunk in zip(ends, chunks, strict=True)
            if len(chunk.tokens) > 1
        ]

    def _together(self, single: Sequence[tuple[int, Chunk]]) -> Group:
        """Those with one new token: keys beyond a request's own are hidden."""
        lengths = torch.tensor([chunk.end for _, chunk in single], device=self.device)
        longest = max(chunk.end for _, chunk in single)
        slots = np.zeros((len(single), longest), np.int64)
        for row, (_, chunk) in enumerate(single):
            slots[row, : chunk.end] = token_slots(
                chunk.page_table, 0, chunk.end, self.pool.page_size
            )
        mask = self._visible(lengths[:, None] - 1, longest)[:, None, None]  # (B, 1, 1, S)
        rows = torch.tensor([row for row, _ in single], device=self.device)
        return Group(rows, 1, torch.as_tensor(slots, device=self.device), mask, False, False)

    def _alone(self, end: int, chunk: Chunk) -> Group:
        """A chunk of T tokens: the last of its queries sees all S keys of its request."""
        T, S = len(chunk.tokens), chunk.end
        slots = token_slots(chunk.page_table, 0, S, self.pool.page_size)
        plain = self.window is None or self.window >= S
        queries = torch.arange(chunk.start, S, device=self.device)
        return Group(
            rows=slice(end - T, end),
            T=T,
            slots=torch.as_tensor(slots, device=self.device)[None],
            mask=self._visible(queries, S),
            plain=plain,
            causal=plain and chunk.start == 0,
        )

    def _visible(self, positions: Tensor, S: int) -> Tensor:
        """True where the query at a position may look: (..., S)"""
        key = torch.arange(S, device=self.device)
        query = positions if positions.dim() > 1 else positions[:, None]
        mask = key <= query
        return mask if self.window is None else mask & (key > query - self.window)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: (N, n_heads, 1, d_head); k, v: (N, n_kv_heads, 1, d_head) -> (N, n_heads * d_head)"""
        self.pool.store(layer, self.slots, k[:, :, 0], v[:, :, 0])
        keys, values = (x[layer].flatten(0, 1) for x in (self.pool.keys, self.pool.values))
        mixed = q.new_empty(len(q), q.shape[1] * q.shape[3])
        for group in self.groups:
            queries = q[group.rows].reshape(-1, group.T, *q.shape[1::2]).transpose(1, 2)
            k_seen, v_seen = (pages[group.slots].transpose(1, 2) for pages in (keys, values))
            mixed[group.rows] = attend(queries, k_seen, v_seen, group)
        return mixed
