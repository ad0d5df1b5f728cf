"""One token of one sequence through TorchModel on a CPU: a decode step, arranged for speed.

Read layers.py first: it says what is done, for any number of rows on any device. In a step of
one row, some thirty small operations a layer stand beside four products. With 4-bit weights they
took a third of its time. So here:

- NumPy does them, in place, in float32: an operation on 576 numbers costs 0.5 µs there and 1 to 2
  in PyTorch. Both see the same memory, and nothing is copied but what rounds a row to the dtype of
  the products, and back.
- Buffers and views are made once a step, not once a layer.
- Attention is two products and a softmax. For SmolLM2, a query and 100 keys, they take 8 µs in
  float32, and F.scaled_dot_product_attention 16; on a bfloat16 cache it takes 25. So 8- and 4-bit
  models keep a float32 cache on a CPU.

SmolLM2-135M in int4 on a server's core (AMD EPYC, Zen 4): everything but the products takes 1.4 ms
of CPU time a step, and took 3.4 to 3.8 in the general code, of 13 and 15 in all. As the rows stay
float32 between the products, its mean KL divergence from float32 fell from 0.0025 to 0.0018 (48
tokens of a letter), that of int8 from 0.0020 to 0.0014.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from inferlab.config import ModelConfig
from inferlab.engines.fast_numpy.step import KEYS, normed_row, scores_of_row, silu_times
from inferlab.engines.pytorch.cache import TorchCache
from inferlab.engines.pytorch.layers import Block, Projection, Table


class Decoder(Protocol):
    """What a step needs of the model that it belongs to; see TorchModel."""

    config: ModelConfig
    layers: list[Block]
    embedding: Table
    head: Projection
    final_gain: Tensor
    device: str
    cache_dtype: torch.dtype
    compute: torch.dtype
    turn: tuple[Tensor, Tensor]


class RowStep:
    """Runs one token of one sequence: what TorchModel.run does, for the models that fit."""

    def __init__(self, model: Decoder) -> None:
        self.attention_gains = [block.attention_gain.numpy() for block in model.layers]
        self.mlp_gains = [block.mlp_gain.numpy() for block in model.layers]
        self.final_gain = model.final_gain.numpy()

    @staticmethod
    def fits(model: Decoder) -> bool:
        """On a CPU, with a float32 cache, and without norms of queries and keys."""
        on_cpu = model.device == "cpu" and model.cache_dtype == torch.float32
        return on_cpu and not model.config.qk_norm

    def __call__(self, model: Decoder, token: int, cache: TorchCache, row: int = 0) -> Tensor:
        """-> logits (1, vocab_size), in the dtype of the products.

        The token is the next one of sequence `row` of the cache, which has room for it.
        """
        buffers = _Buffers(model, token, cache, row)
        with np.errstate(over="ignore"):  # exp of a gate below -88: silu is 0 then, as it should
            for i, block in enumerate(model.layers):
                buffers.attention(i, block, self.attention_gains[i])
                buffers.mlp(block, self.mlp_gains[i])
        cache.lengths[row] += 1
        return buffers.project(model.head, self.final_gain)


class _Buffers:
    """One step's row x, and the memory of what comes in between: NumPy's view and PyTorch's, _t."""

    def __init__(self, model: Decoder, token: int, cache: TorchCache, row: int) -> None:
        c = model.config
        self.eps = c.norm_eps
        n_turned = c.n_heads + c.n_kv_heads
        x = model.embedding.rows(torch.tensor([token]))[0]
        self.x = np.array(x.float().numpy())  # a copy: of a float32 table, x is a part
        self.normed_t, self.normed = _shared(1, c.d_model)
        self.added_t, self.added = _shared(1, c.d_model)
        self.qkv_t, qkv = _shared(1, (n_turned + c.n_kv_heads) * c.d_head)
        heads = qkv.reshape(-1, c.d_head)
        self.q = heads[: c.n_heads].reshape(c.n_kv_heads, -1, c.d_head)
        self.k, self.v = heads[c.n_heads : n_turned], heads[n_turned:]
        self.mixed_t, mixed = _shared(1, c.n_heads * c.d_head)
        self.mixed = mixed.reshape(self.q.shape)
        self.gate_up_t, gate_up = _shared(1, 2 * c.d_ff)
        self.gate, self.up = gate_up[0, : c.d_ff], gate_up[0, c.d_ff :]
        self.inner_t, self.inner = _shared(1, c.d_ff)
        # Rows to multiply, in the dtype of the products.
        self.normed_in, self.mixed_in, self.inner_in = (
            torch.empty_like(t, dtype=model.compute)
            for t in (self.normed_t, self.mixed_t, self.inner_t)
        )
        self._open(cache, row, c.sliding_window)
        self.turn = _Turn(model.turn, cache.lengths[row], heads[:n_turned], c.n_heads)

    def _open(self, cache: TorchCache, row: int, window: int | None) -> None:
        """Views of the new and the visible slots of all layers, and room for the scores."""
        keys, values = cache.keys.numpy()[:, row], cache.values.numpy()[:, row]
        new, end = cache.lengths[row], cache.lengths[row] + 1
        seen = slice(0 if window is None else max(0, end - window), end)
        self.new_keys, self.new_values = keys[:, :, new], values[:, :, new]
        self.keys, self.values = keys[:, :, seen], values[:, :, seen]
        self.scores_t, self.scores = _shared(*self.q.shape[:2], self.keys.shape[2])

    def project(self, matrix: Projection, gain: np.ndarray) -> Tensor:
        """The normed row times a matrix: (1, d_out)"""
        np.multiply(normed_row(self.x, self.eps, self.normed[0]), gain, out=self.normed[0])
        return matrix(self.normed_in.copy_(self.normed_t))

    def attention(self, i: int, block: Block, gain: np.ndarray) -> None:
        """The first half of layer i."""
        self.qkv_t.copy_(self.project(block.qkv, gain))
        self.turn()
        self.new_keys[i], self.new_values[i] = self.k, self.v
        scores_of_row(self.q, self.keys[i], self.scores)
        torch.softmax(self.scores_t, -1, out=self.scores_t)
        self._mix(self.values[i])
        self.added_t.copy_(block.out(self.mixed_in.copy_(self.mixed_t)))
        self.x += self.added[0]

    def _mix(self, values: np.ndarray) -> None:
        """Scores times values (n_kv_heads, S, d_head), KEYS at a time: OpenBLAS does so few on one
        thread. Its others would wait busily for more, beside PyTorch's."""
        np.matmul(self.scores[..., :KEYS], values[:, :KEYS], out=self.mixed)
        for first in range(KEYS, values.shape[1], KEYS):
            block = slice(first, first + KEYS)
            self.mixed += self.scores[..., block] @ values[:, block]

    def mlp(self, block: Block, gain: np.ndarray) -> None:
        """The second half of a layer."""
        self.gate_up_t.copy_(self.project(block.gate_up, gain))
        silu_times(self.gate, self.up, self.inner[0])
        self.added_t.copy_(block.down(self.inner_in.copy_(self.inner_t)))
        self.x += self.added[0]


class _Turn:
    """RoPE of the queries and keys of one position, in place; 1/sqrt(d_head) goes with the queries.

    tables: see layers.rotate; heads: (n_heads + n_kv_heads, d_head), the queries first
    """

    def __init__(
        self, tables: tuple[Tensor, Tensor], position: int, heads: np.ndarray, n_heads: int
    ) -> None:
        n, d_head = heads.shape
        scale = np.ones((n, 1), np.float32)
        scale[:n_heads] = 1 / math.sqrt(d_head)
        cos, sin = (table[position].float().numpy() * scale for table in tables)
        halves = (n, 2, d_head // 2)
        self.heads, self.cos = heads, cos
        self.swapped, self.sin = heads.reshape(halves)[:, ::-1], sin.reshape(halves)
        self.crossed = np.empty_like(heads)
        self.crossed_halves = self.crossed.reshape(halves)

    def __call__(self) -> None:
        np.multiply(self.swapped, self.sin, out=self.crossed_halves)
        self.heads *= self.cos
        self.heads += self.crossed


def _shared(*shape: int) -> tuple[Tensor, np.ndarray]:
    """Float32 memory that PyTorch and NumPy both see."""
    tensor = torch.empty(shape)
    return tensor, tensor.numpy()
