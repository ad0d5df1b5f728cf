"""The Triton kernel gives what PyTorch's own attention gives. An extra: skipped where it is not."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason='NOT TESTED: the Triton kernel. Triton is not installed: pip install "inferlab[triton]"',
)


@pytest.fixture(scope="module")
def kernel():
    """The kernel, compiled where there is a GPU, and interpreted in Python where there is none."""
    before = os.environ.get("TRITON_INTERPRET")
    if not HAS_GPU:
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        from inferlab.kernels.flash_attention import flash_attention

        yield flash_attention
    finally:
        os.environ.pop("TRITON_INTERPRET", None)
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


def _inputs(n_heads, n_kv_heads, T, S, d_head, scale=1.0):
    torch.manual_seed(0)
    q = scale * torch.randn(n_heads, T, d_head, device=DEVICE)
    k, v = torch.randn(2, n_kv_heads, S, d_head, device=DEVICE)
    return q, k, v


def _oracle(q, k, v, causal):
    """PyTorch's attention in float64, with the mask written out."""
    T, S = q.shape[1], k.shape[1]
    visible = torch.ones(T, S, dtype=torch.bool, device=DEVICE)
    if causal:
        visible = visible.tril(S - T)
    k, v = (a.repeat_interleave(len(q) // len(k), 0).double() for a in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, attn_mask=visible)


@pytest.mark.parametrize(
    ("heads", "sizes", "blocks", "causal"),
    [
        ((2, 2), (32, 32), (16, 16), True),
        ((4, 2), (37, 53), (16, 32), True),  # blocks divide neither; more keys than queries
        ((3, 1), (21, 40), (32, 16), False),
        ((2, 1), (1, 70), (16, 16), True),  # one decode step
        ((1, 1), (5, 5), (16, 16), True),  # blocks larger than everything
    ],
)
def test_the_kernel_equals_pytorch(kernel, heads, sizes, blocks, causal):
    q, k, v = _inputs(*heads, *sizes, 32)
    got = kernel(q, k, v, causal, *blocks).double()
    assert torch.isfinite(got).all()
    # float32: S terms in another order, and an error in a score of size about 6
    assert (got - _oracle(q, k, v, causal)).abs().max() < 8 * 2**-23 * (32 + sizes[1])


def test_large_scores_do_not_overflow(kernel):
    q, k, v = _inputs(2, 1, 20, 33, 16, scale=100.0)
    got = kernel(q, k, v, True, 16, 16).double()
    largest = float((q.abs().max() * k.abs().sum(-1).max()) / 4)
    assert (got - _oracle(q, k, v, True)).abs().max() < 8 * 2**-23 * largest * float(v.abs().max())


@pytest.mark.parametrize(
    ("shape", "blocks", "message"),
    [
        ((2, 2, 4, 4, 24), (16, 16), "d_head=24"),
        ((2, 2, 4, 4, 16), (8, 16), "block_q=8"),
        ((3, 2, 4, 4, 16), (16, 16), "n_heads=3"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(kernel, shape, blocks, message):
    with pytest.raises(ValueError, match=message):
        kernel(*_inputs(*shape), True, *blocks)
