"""The parts of the PyTorch engine: projections in every number format, and one decoder block.

The structure is that of transformer.py and attention.py; what differs is for speed. Each reason is
given where it is used. Projections are stored (d_out, d_in): the rows that a decode step reads lie
one after the other in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from inferlab.config import ModelConfig
from inferlab.engines.pytorch import dense_ops, quant_ops
from inferlab.engines.pytorch.cache import Places
from inferlab.engines.pytorch.paged import PagedPlaces
from inferlab.weights import LayerWeights, Weights


class Projection(Protocol):
    """A matrix to multiply by."""

    n_bytes: int  # what one product with few rows reads

    def __call__(self, x: Tensor) -> Tensor:
        """(n, d_in) -> (n, d_out)"""


class Table(Protocol):
    """A matrix to look rows up in: an embedding."""

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the matrix as numbers, (n,) -> (n, d_in)"""


class Dense:
    """A projection in the dtype of the activations."""

    def __init__(self, w: Tensor, bias: Tensor | None = None) -> None:
        self.w, self.bias = dense_ops.arrange(w), bias
        self.n_bytes = w.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return dense_ops.linear(x, self.w, self.bias)


class DenseTable:
    """A table in the dtype of the activations."""

    def __init__(self, w: Tensor) -> None:
        self.w = w

    def rows(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.w)


class Packed:
    """A projection of 8- or 4-bit weights, and a table of them: see quant_ops."""

    def __init__(
        self, w: Tensor, bits: int, dtype: torch.dtype, bias: Tensor | None, table: bool
    ) -> None:
        weight = quant_ops.quantize(w, bits, dtype)
        self.weight = weight if table else quant_ops.without_codes(weight)
        self.bias, self.n_bytes = bias, weight.n_bytes

    def __call__(self, x: Tensor) -> Tensor:
        y = quant_ops.linear(x, self.weight)
        return y if self.bias is None else y + self.bias

    def rows(self, index: Tensor) -> Tensor:
        return quant_ops.dequantize(self.weight, index)


def lay_side_by_side(projections: Sequence[Projection]) -> None:
    """Move the packed ones among these matrices into one block of memory, in this order."""
    packed = [p for p in projections if isinstance(p, Packed)]
    for p, weight in zip(packed, quant_ops.side_by_side([p.weight for p in packed]), strict=True):
        p.weight = weight


@dataclass(frozen=True)
class Format:
    """Where the weights go, and as what."""

    device: str
    dtype: str  # of the weights: one of device.DTYPES
    compute: torch.dtype  # of activations, gains and cache

    def tensor(self, array: np.ndarray) -> Tensor:
        """An array as it is, in the dtype of the activations."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self.compute)

    @property
    def residual(self) -> torch.dtype:
        """The numbers between the blocks: of 8- and 4-bit models float32.

        They are few, and each is a sum of sixty terms: rounding them to bfloat16 after every block
        added 0.0005 to SmolLM2's mean KL divergence from float32, half of what int4 has in all.
        """
        return torch.float32 if self.dtype in ("int8", "int4") else self.compute

    @property
    def cache(self) -> torch.dtype:
        """The numbers of the cache: see step.py for why 8- and 4-bit models differ on a CPU."""
        return self.residual if self.device == "cpu" else self.compute

    def gain(self, array: np.ndarray) -> Tensor:
        """The gain of a norm on those numbers."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self.residual)

    def head_and_embedding(self, weights: Weights) -> tuple[Projection, Table]:
        """The head, and the table that token ids are looked up in: the same numbers if tied.

        8-bit ones beside 8- and 4-bit weights.
        """
        tied = np.may_share_memory(weights.head, weights.embedding)
        head = self.projection(weights.head, head=True)
        if isinstance(head, Packed):
            return head, head if tied else self.projection(weights.embedding.T, head=True)
        if tied and not head.w.is_mkldnn:
            return head, DenseTable(head.w)
        return head, DenseTable(self.tensor(weights.embedding))  # of float32 no copy is made

    def projection(self, *matrices: np.ndarray, bias: Any = None, head: bool = False) -> Any:
        """One projection of several matrices (d_in, ...) side by side: one pass for all of them."""
        stacked = np.concatenate([np.ascontiguousarray(m.T) for m in matrices])
        w = torch.from_numpy(np.ascontiguousarray(stacked, dtype=np.float32)).to(self.device)
        offset = None if bias is None else self.tensor(np.concatenate(bias))
        if self.dtype in ("int8", "int4"):
            bits = 8 if head or self.dtype == "int8" else 4
            return Packed(w, bits, self.compute, offset, table=head)
        return Dense(w.to(self.compute), offset)


class Block:
    """One decoder layer on the rows of all sequences: x (B * T, d_model) -> the same shape."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, to: Format) -> None:
        biases = (weights.b_q, weights.b_k, weights.b_v)
        self.config = config
        self.compute = to.compute
        self.attention_gain = to.gain(weights.attention_gain)
        self.mlp_gain = to.gain(weights.mlp_gain)
        # Fused: four passes over memory a layer where there would be seven.
        self.qkv = to.projection(
            weights.w_q, weights.w_k, weights.w_v, bias=None if weights.b_q is None else biases
        )
        self.out = to.projection(weights.w_o)
        self.gate_up = to.projection(weights.w_gate, weights.w_up)
        self.down = to.projection(weights.w_down)
        self.gains: tuple[Tensor, Tensor] | None = None  # of the norms of queries and keys
        if weights.q_gain is not None and weights.k_gain is not None:
            self.gains = to.tensor(weights.q_gain), to.tensor(weights.k_gain)

    @property
    def n_bytes(self) -> int:
        """Bytes of weights that one step reads."""
        gains = self.attention_gain.nbytes + self.mlp_gain.nbytes
        return gains + sum(part.n_bytes for part in self.projections)

    @property
    def projections(self) -> tuple[Projection, ...]:
        """In the order in which they are read."""
        return self.qkv, self.out, self.gate_up, self.down

    def __call__(
        self, x: Tensor, turn: tuple[Tensor, Tensor], places: Places | PagedPlaces, layer: int
    ) -> Tensor:
        eps = self.config.norm_eps
        normed = rms_norm(x, self.attention_gain, eps).to(self.compute)
        x = x + self.out(self._attend(self.qkv(normed), turn, places, layer))
        normed = rms_norm(x, self.mlp_gain, eps).to(self.compute)
        gate, up = self.gate_up(normed).chunk(2, dim=-1)
        return x + self.down(F.silu(gate).mul_(up))

    def _attend(
        self, qkv: Tensor, turn: tuple[Tensor, Tensor], places: Places | PagedPlaces, layer: int
    ) -> Tensor:
        """(B * T, (n_heads + 2 n_kv_heads) d_head) -> (B * T, n_heads * d_head)"""
        c = self.config
        n_turned = c.n_heads + c.n_kv_heads
        heads = qkv.view(-1, places.T, n_turned + c.n_kv_heads, c.d_head)
        turned = heads.narrow(2, 0, n_turned)  # q and k
        v = heads.narrow(2, n_turned, c.n_kv_heads)
        if self.gains is not None:
            turned = self._norm_heads(turned, self.gains)
        turned = rotate(turned.transpose(1, 2), turn)  # (B, n_heads + n_kv_heads, T, d_head)
        q, k = turned.narrow(1, 0, c.n_heads), turned.narrow(1, c.n_heads, c.n_kv_heads)
        return places.attend(layer, q, k, v.transpose(1, 2))

    def _norm_heads(self, turned: Tensor, gains: tuple[Tensor, Tensor]) -> Tensor:
        """Norm queries and keys, head by head or (OLMoE) all heads as one vector."""
        c = self.config
        q_and_k = turned.split((c.n_heads, c.n_kv_heads), dim=2)
        pairs = zip(q_and_k, gains, strict=True)
        if c.qk_norm_per_head:
            normed = [rms_norm(x, gain, c.norm_eps) for x, gain in pairs]
        else:
            normed = [rms_norm(x.flatten(2), gain, c.norm_eps).view(x.shape) for x, gain in pairs]
        return torch.cat(normed, dim=2)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """See operators.rms_norm. x: (..., d), gain: (d,) -> (..., d); the mean is taken in float32."""
    if len(x) == 1 and x.dim() == 2 and x.is_cpu and x.dtype == torch.float32:
        # Three operations where PyTorch's own norm has seven; a step has 2 n_layers + 1 norms.
        mean_square = float(torch.dot(x[0], x[0])) / x.shape[1]
        return (x * gain).mul_(1 / math.sqrt(mean_square + eps))
    return F.rms_norm(x, x.shape[-1:], gain, eps)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each half-split pair (a, b) to (a cos - b sin, a sin + b cos): see operators.rotate.

    turn: (cos, cos) and (-sin, sin) of each position, (..., T, d_head): with the signs in the
    table, three operations do it.
    """
    cos, signed_sin = turn
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
