"""Products with float weights on a CPU, by oneDNN, with the matrices stored in its own order.

F.linear takes the matrix as it lies, (d_out, d_in). For float32 it calls MKL, for bfloat16 oneDNN,
which then first brings the matrix into the order that its kernel reads, at every call. Here that is
done once, when the model is made. Measured on two cores of a server (AMD EPYC, Zen 4), the body of
SmolLM2-135M, F.linear's time over this one's:

| rows | float32 | bfloat16 |
|---|---|---|
| 1 | 1.6 | 1.2 |
| 4 | 2.4 | 1.5 |
| 16 | 1.8 | 1.4 |
| 512 | 1.2 | 1.05 |

PyTorch has both calls under private names, for its compiler. They are named here and nowhere else;
where they are missing (another device or release), everything goes through F.linear, as right.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

# The rows to plan for: from one to this many, an order made for 512 was 1 to 10 % faster than one
# made for no number.
ROWS = 512


def arrange(w: Tensor) -> Tensor:
    """The matrix in oneDNN's order where that is possible, else as it is. w: (d_out, d_in)

    The result keeps shape and dtype, but its numbers can be had back by to_dense() only.
    """
    if not (w.is_cpu and _has_onednn(w.dtype)):
        return w
    return torch.ops.mkldnn._reorder_linear_weight(w, ROWS)


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ w.T + bias for a matrix out of `arrange`. x: (n, d_in) -> (n, d_out)"""
    if not w.is_mkldnn:
        return F.linear(x, w, bias)
    return torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], "")


def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether this PyTorch has the calls, and this CPU the instructions."""
    if not torch.backends.mkldnn.is_available():
        return False
    ops = torch.ops.mkldnn
    if not (hasattr(ops, "_reorder_linear_weight") and hasattr(ops, "_linear_pointwise")):
        return False
    if dtype == torch.bfloat16:
        supported = getattr(ops, "_is_mkldnn_bf16_supported", None)
        return supported is not None and bool(supported())
    return dtype == torch.float32
