"""Matrices in oneDNN's order, and attention in blocks: against PyTorch's public functions."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from inferlab.config import ModelConfig
from inferlab.engines.pytorch import attention as torch_attention
from inferlab.engines.pytorch import dense_ops
from inferlab.engines.pytorch.cache import Places, TorchCache

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="NOT TESTED: this PyTorch has no oneDNN"
)


@pytest.fixture(autouse=True)
def _one_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(n_threads)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- dense products ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_rows", [1, 2, 7, 64, 600])
@pytest.mark.parametrize(("d_out", "d_in"), [(48, 32), (33, 65), (1, 5), (100, 1)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_that_of_the_plain_matrix(dtype, n_rows, d_out, d_in, with_bias):
    x, w = draw(n_rows, d_in, dtype=dtype), draw(d_out, d_in, dtype=dtype, seed=1)
    bias = draw(d_out, dtype=dtype, seed=2) if with_bias else None
    got = dense_ops.linear(x, dense_ops.arrange(w), bias)
    wide = [None if t is None else t.double() for t in (x, w, bias)]
    size = F.linear(*(None if t is None else t.abs() for t in wide))  # before anything cancels
    # Rounded once at the end, and sums of up to 65 products in float32.
    relative = torch.finfo(dtype).eps + 65 * torch.finfo(torch.float32).eps
    assert got.shape == (n_rows, d_out)
    assert got.dtype == dtype
    assert (
        (got.double() - F.linear(*wide)).abs() <= relative * size + torch.finfo(dtype).tiny
    ).all()


@needs_onednn
def test_float32_is_arranged_and_the_numbers_are_kept():
    w = draw(40, 24)
    arranged = dense_ops.arrange(w)
    assert arranged.is_mkldnn, "this PyTorch has lost oneDNN's private calls"
    assert (arranged.shape, arranged.dtype) == (w.shape, w.dtype)
    assert torch.equal(arranged.to_dense(), w)


@pytest.mark.parametrize("gone", ["no oneDNN", "no calls", "no bfloat16"])
def test_without_the_calls_the_matrix_stays_as_it_is(monkeypatch, gone):
    w = draw(8, 8, dtype=torch.bfloat16 if gone == "no bfloat16" else torch.float32)
    ops = type("Ops", (), {})()  # an object with none of the names
    if gone == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    elif gone == "no bfloat16":
        ops._reorder_linear_weight = ops._linear_pointwise = None
        ops._is_mkldnn_bf16_supported = lambda: False
        monkeypatch.setattr(torch.ops, "mkldnn", ops)
    else:
        monkeypatch.setattr(torch.ops, "mkldnn", ops)
    assert dense_ops.arrange(w) is w


# ---- attention ---------------------------------------------------------------------------------


def config(n_heads: int, n_kv_heads: int, d_head: int) -> ModelConfig:
    return ModelConfig(1, 32, n_heads, n_kv_heads, d_head, 48, 67, 1024)


def by_definition(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every query alone, in float64: (B, n_heads, T, d_head) -> (B * T, n_heads * d_head)"""
    B, n_heads, T, d_head = q.shape
    n_shared, S = n_heads // k.shape[1], k.shape[2]
    out = torch.empty(B, T, n_heads, d_head, dtype=torch.float64)
    for h in range(n_heads):
        keys, values = k[:, h // n_shared].double(), v[:, h // n_shared].double()
        for t in range(T):
            end = S - T + t + 1
            scores = keys[:, :end] @ q[:, h, t].double()[..., None] / math.sqrt(d_head)
            out[:, t, h] = (scores.softmax(1) * values[:, :end]).sum(1)
    return out.reshape(B * T, n_heads * d_head)


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "d_head"), [(6, 2, 8), (3, 3, 10), (4, 1, 6)])
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("n_cached", [0, 5])
@pytest.mark.parametrize("T", [128, 131, 300])
def test_attention_in_blocks_is_attention(n_heads, n_kv_heads, d_head, B, n_cached, T):
    c, S = config(n_heads, n_kv_heads, d_head), n_cached + T
    cache = TorchCache(c, B, capacity=S + 7)  # the slots beyond S hold what must not be seen
    cache.keys.fill_(1e4), cache.values.fill_(1e4)
    cache.lengths = [n_cached] * B
    places = Places(T, torch.device("cpu"), cache)
    q = draw(B, T, n_heads, d_head).transpose(1, 2)  # as it comes out of a projection
    k, v = draw(B, n_kv_heads, S, d_head, seed=1), draw(B, n_kv_heads, S, d_head, seed=2)
    for held, new in ((cache.keys, k), (cache.values, v)):
        held[0, :, :, :n_cached] = new[:, :, :n_cached]
    seen = places.store(0, k[:, :, n_cached:], v[:, :, n_cached:])
    got = torch_attention.attend(q, *seen, places)
    torch.testing.assert_close(got.double(), by_definition(q, k, v), rtol=1e-4, atol=1e-5)


def test_scores_in_the_thousands_do_not_overflow():
    q, k, v = draw(1, 2, 130, 8) * 300, draw(1, 2, 130, 8, seed=1), draw(1, 2, 130, 8, seed=2)
    got = torch_attention.attend_in_blocks(q, k, v)
    torch.testing.assert_close(got.double(), by_definition(q, k, v), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("T", "lengths", "window", "blocks"),
    [
        (128, [0, 0], None, True),
        (128, [9, 9], None, True),
        (128, [9, 9], 137, True),
        (127, [0, 0], None, False),
        (128, [9, 4], None, False),  # unequal lengths need a mask for each sequence
        (128, [9, 9], 136, False),  # the window hides the oldest key
        (1, [500, 500], None, False),
    ],
)
def test_blocks_are_used_where_nothing_but_the_future_is_hidden(
    monkeypatch, T, lengths, window, blocks
):
    c, used = config(4, 2, 8), []
    real = torch_attention.attend_in_blocks
    monkeypatch.setattr(
        torch_attention, "attend_in_blocks", lambda *args: used.append(1) or real(*args)
    )
    cache = TorchCache(c, 2, capacity=700)
    cache.lengths = lengths
    places = Places(T, torch.device("cpu"), cache, window=window)
    q, k, v = draw(2, 4, T, 8), draw(2, 2, T, 8, seed=1), draw(2, 2, T, 8, seed=2)
    assert torch_attention.attend(q, *places.store(0, k, v), places).shape == (2 * T, 32)
    assert bool(used) == blocks
