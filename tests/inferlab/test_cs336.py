"""Our operators behind the signatures of Stanford CS336, assignment 1 ("basics").

That course's public tests ask a student for a list of operators, with weights (d_out, d_in) and any
number of batch axes. Here each is our operator behind a few lines of adapting: somebody who did the
one course can check what they built against the other. Oracles are PyTorch's own functions in
float64. Its training half (cross-entropy, AdamW, BPE training) is not this course's subject.

One thing differs in substance: that course's RoPE turns neighbouring numbers, 2i and 2i + 1, and
ours i and i + d_head/2, as Hugging Face checkpoints need it. It is the same turn after reordering
the numbers of a head, and `half_split` does that: of a vector for rope alone, of the rows of the
query and key matrices for a whole layer, where the dot products never notice.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from inferlab import operators
from inferlab.attention import self_attention
from inferlab.config import ModelConfig
from inferlab.transformer import decoder_block, forward
from inferlab.weights import LayerWeights, Weights

Array = NDArray[np.float64]
EPS = 1e-5  # of the norms in that course
LAYER = {
    "attention_gain": "ln1.weight",
    "w_q": "attn.q_proj.weight",
    "w_k": "attn.k_proj.weight",
    "w_v": "attn.v_proj.weight",
    "w_o": "attn.output_proj.weight",
    "mlp_gain": "ln2.weight",
    "w_gate": "ffn.w1.weight",
    "w_up": "ffn.w3.weight",
    "w_down": "ffn.w2.weight",
}


# ---- the adapters ------------------------------------------------------------------------------


def run_linear(weight: Array, x: Array) -> Array:
    return operators.project(x, weight.T)


def run_embedding(weight: Array, ids: np.ndarray) -> Array:
    return weight[ids]


def run_silu(x: Array) -> Array:
    return operators.silu(x)


def run_softmax(x: Array, dim: int) -> Array:
    """Ours works on the last axis."""
    return np.moveaxis(operators.softmax(np.moveaxis(x, dim, -1)), -1, dim)


def run_rmsnorm(eps: float, weight: Array, x: Array) -> Array:
    return operators.rms_norm(x, weight, eps)


def run_swiglu(w1: Array, w2: Array, w3: Array, x: Array) -> Array:
    return operators.swiglu(x, w1.T, w3.T, w2.T)


def run_scaled_dot_product_attention(q: Array, k: Array, v: Array, mask: np.ndarray) -> Array:
    """Any batch axes (ours has two), and a mask of its own for each entry or one for all."""
    masks = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2])).reshape(-1, *mask.shape[-2:])
    flat = [x.reshape(-1, 1, 1, *x.shape[-2:]) for x in (q, k, v)]
    each = [operators.attention(*qkv, one) for *qkv, one in zip(*flat, masks, strict=True)]
    return np.reshape(each, (*q.shape[:-1], v.shape[-1]))


def half_split(x: np.ndarray, n_heads: int = 1) -> np.ndarray:
    """The last axis with each head's numbers in the order 0, 2, 4, ..., 1, 3, 5, ..."""
    pairs = x.reshape(*x.shape[:-1], n_heads, -1, 2)
    return pairs.swapaxes(-1, -2).reshape(x.shape)


def neighbours(x: np.ndarray) -> np.ndarray:
    """Undo half_split, of one head."""
    return x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape)


def run_rope(theta: float, x: Array, positions: np.ndarray) -> Array:
    angles = operators.rope_angles(positions, x.shape[-1], theta)
    return neighbours(operators.rotate(half_split(x), angles))


def run_self_attention(
    n_heads: int, w: dict[str, Array], x: Array, theta: float | None = None, start: int = 0
) -> Array:
    """With RoPE where theta is given. The tokens are at positions start, start + 1, ..."""
    config = sizes(n_heads, x.shape[-1])
    layer = layer_weights({**w, **UNUSED}, n_heads)
    T = x.shape[-2]
    angles = np.zeros((T, config.d_head // 2))
    if theta is not None:
        angles = operators.rope_angles(np.arange(start, start + T), config.d_head, theta)
    return self_attention(x, layer, config, angles, operators.causal_mask(T, T))


def run_transformer_block(n_heads: int, theta: float, w: dict[str, Array], x: Array) -> Array:
    config, T = sizes(n_heads, x.shape[-1], theta), x.shape[-2]
    angles = operators.rope_angles(np.arange(T), config.d_head, theta)
    layer = layer_weights(w, n_heads)
    return decoder_block(x, layer, config, angles, operators.causal_mask(T, T))


def run_transformer_lm(
    n_layers: int, n_heads: int, theta: float, w: dict[str, Array], ids: np.ndarray
) -> Array:
    vocab_size, d_model = w["token_embeddings.weight"].shape
    config = sizes(n_heads, d_model, theta, n_layers, vocab_size)
    layers = tuple(
        layer_weights({name: w[f"layers.{i}.{name}"] for name in LAYER.values()}, n_heads)
        for i in range(n_layers)
    )
    table, head = w["token_embeddings.weight"], w["lm_head.weight"].T
    return forward(Weights(table, layers, w["ln_final.weight"], head), config, ids)


def layer_weights(w: dict[str, Array], n_heads: int) -> LayerWeights:
    """Matrices turned round to (d_in, d_out); columns of queries and keys in our order."""
    arrays = {field: w[name].T for field, name in LAYER.items()}
    for name in ("w_q", "w_k"):
        arrays[name] = half_split(arrays[name], n_heads)
    return LayerWeights(**arrays)


def sizes(
    n_heads: int, d_model: int, theta: float = 1e4, n_layers: int = 1, vocab_size: int = 8
) -> ModelConfig:
    d_head = d_model // n_heads
    return ModelConfig(
        n_layers, d_model, n_heads, n_heads, d_head, 8, vocab_size, 64, theta, EPS, False
    )


UNUSED = dict.fromkeys((f"ln{i}.weight" for i in (1, 2)), np.empty(0)) | dict.fromkeys(
    (f"ffn.w{i}.weight" for i in (1, 2, 3)), np.empty((0, 0))
)
"""Self-attention alone needs no norms and no MLP."""


# ---- the oracles, by PyTorch -------------------------------------------------------------------


def torch_rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Neighbouring numbers as one complex number, turned by multiplying."""
    d_head = x.shape[-1]
    pace = theta ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    turns = torch.polar(torch.ones(1, dtype=torch.float64), positions[:, None] * pace)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


def torch_attention(
    n_heads: int, w: dict[str, Tensor], x: Tensor, theta: float | None, start: int = 0
) -> Tensor:
    def heads(name: str) -> Tensor:
        projected = F.linear(x, w[f"attn.{name}_proj.weight"])
        return projected.unflatten(-1, (n_heads, -1)).transpose(-2, -3)

    q, k, v = heads("q"), heads("k"), heads("v")
    if theta is not None:
        positions = torch.arange(start, start + x.shape[-2], dtype=torch.float64)
        q, k = (torch_rope(y, positions, theta) for y in (q, k))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(mixed.transpose(-2, -3).flatten(-2), w["attn.output_proj.weight"])


def torch_block(n_heads: int, theta: float, w: dict[str, Tensor], x: Tensor) -> Tensor:
    d_model = x.shape[-1:]
    x = x + torch_attention(n_heads, w, F.rms_norm(x, d_model, w["ln1.weight"], EPS), theta)
    normed = F.rms_norm(x, d_model, w["ln2.weight"], EPS)
    gated = F.silu(F.linear(normed, w["ffn.w1.weight"])) * F.linear(normed, w["ffn.w3.weight"])
    return x + F.linear(gated, w["ffn.w2.weight"])


# ---- the comparisons ---------------------------------------------------------------------------


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def as_torch(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def draw_layer(d_model: int, d_ff: int, seed: int = 0) -> dict[str, Array]:
    """One layer's weights, (d_out, d_in), by that course's names."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(LAYER.values(), (d_model, d_model))
    shapes |= {"ln1.weight": (d_model,), "ln2.weight": (d_model,)}
    shapes |= {f"ffn.w{i}.weight": (d_ff, d_model) for i in (1, 3)}
    shapes["ffn.w2.weight"] = (d_model, d_ff)
    return {name: draw(*s, seed=seed + i) / 3 for i, (name, s) in enumerate(shapes.items())}


def assert_close(ours: Array, theirs: Tensor) -> None:
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [(), (3,), (2, 5), (2, 1, 4)])
def test_one_formula_each(batch):
    x, w = draw(*batch, 6, 10), draw(7, 10, seed=1)
    t = torch.from_numpy(x)
    assert_close(run_linear(w, x), F.linear(t, torch.from_numpy(w)))
    assert_close(run_silu(50 * x), F.silu(50 * t))
    assert_close(run_rmsnorm(EPS, w[0], x), F.rms_norm(t, (10,), torch.from_numpy(w[0]), EPS))
    for dim in range(-x.ndim, x.ndim):
        assert_close(run_softmax(1e3 * x, dim), F.softmax(1e3 * t, dim))
    ids = np.random.default_rng(2).integers(0, 7, (*batch, 6))
    assert_close(run_embedding(w, ids), F.embedding(torch.from_numpy(ids), torch.from_numpy(w)))


@pytest.mark.parametrize("batch", [(4,), (2, 3)])
def test_swiglu(batch):
    x, w1, w3, w2 = draw(*batch, 10), draw(14, 10, seed=1), draw(14, 10, seed=2), draw(10, 14)
    t, t1, t3, t2 = (torch.from_numpy(array) for array in (x, w1, w3, w2))
    expected = F.linear(F.silu(F.linear(t, t1)) * F.linear(t, t3), t2)
    assert_close(run_swiglu(w1, w2, w3, x), expected)


@pytest.mark.parametrize("batch", [(), (3,), (2, 4)])
@pytest.mark.parametrize("own_masks", [False, True])
def test_scaled_dot_product_attention(batch, own_masks):
    q, k, v = draw(*batch, 5, 8), draw(*batch, 9, 8, seed=1), draw(*batch, 9, 6, seed=2)
    mask = np.random.default_rng(3).random((*(batch if own_masks else ()), 5, 9)) < 0.6
    mask[..., 0] = True  # every query sees something
    tensors = (torch.from_numpy(array) for array in (q, k, v, mask))
    expected = F.scaled_dot_product_attention(*tensors)
    assert_close(run_scaled_dot_product_attention(q, k, v, mask), expected)


@given(
    half=st.integers(1, 16),
    start=st.integers(0, 1000),
    n_tokens=st.integers(1, 9),
    theta=st.sampled_from([10.0, 1e4, 5e5]),
    seed=st.integers(0, 99),
)
def test_rope_turns_neighbours_once_the_numbers_are_reordered(half, start, n_tokens, theta, seed):
    x = draw(2, 3, n_tokens, 2 * half, seed=seed)
    positions = np.arange(start, start + n_tokens)
    expected = torch_rope(torch.from_numpy(x), torch.from_numpy(positions).double(), theta)
    np.testing.assert_allclose(run_rope(theta, x, positions), expected, rtol=1e-9, atol=1e-9)


def test_without_reordering_rope_is_another_function():
    x, positions = draw(1, 1, 6, 8), np.arange(6)
    ours = operators.rotate(x, operators.rope_angles(positions, 8, 1e4))
    assert np.abs(ours - run_rope(1e4, x, positions)).max() > 0.5


@pytest.mark.parametrize(("theta", "start"), [(None, 0), (1e4, 0), (1e4, 37)])
@pytest.mark.parametrize("n_heads", [1, 2, 6])
def test_multi_head_self_attention_with_and_without_rope(n_heads, theta, start):
    w, x = draw_layer(24, 1), draw(3, 11, 24, seed=50)
    ours = run_self_attention(n_heads, w, x, theta, start)
    assert_close(ours, torch_attention(n_heads, as_torch(w), torch.from_numpy(x), theta, start))


@pytest.mark.parametrize("n_heads", [1, 4])
def test_transformer_block(n_heads):
    w, x = draw_layer(24, 40), draw(2, 9, 24, seed=50)
    expected = torch_block(n_heads, 1e4, as_torch(w), torch.from_numpy(x))
    assert_close(run_transformer_block(n_heads, 1e4, w, x), expected)


@pytest.mark.parametrize("n_tokens", [12, 5])
def test_transformer_lm(n_tokens):
    """The second length is their test of shorter inputs: nothing may be padded to the context."""
    d_model, n_heads, n_layers = 24, 4, 3
    layers = [draw_layer(d_model, 40, seed=20 * i) for i in range(n_layers)]
    w = {f"layers.{i}.{name}": x for i, layer in enumerate(layers) for name, x in layer.items()}
    w |= {"token_embeddings.weight": draw(31, d_model, seed=90), "ln_final.weight": draw(d_model)}
    w["lm_head.weight"] = draw(31, d_model, seed=91)
    ids = np.random.default_rng(5).integers(0, 31, (2, n_tokens))
    t = as_torch(w)
    x = F.embedding(torch.from_numpy(ids), t["token_embeddings.weight"])
    for layer in layers:
        x = torch_block(n_heads, 1e4, as_torch(layer), x)
    normed = F.rms_norm(x, (d_model,), t["ln_final.weight"], EPS)
    expected = F.linear(normed, t["lm_head.weight"])
    assert_close(run_transformer_lm(n_layers, n_heads, 1e4, w, ids), expected)
