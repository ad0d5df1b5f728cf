"""The same decoder in NumPy, arranged for speed. Read transformer.py first: it says what is done.

A decode step is bound by reading 4 bytes a weight, so the aim here is few calls, each of which
reads memory as fast as it comes. A prefill is bound by arithmetic, which OpenBLAS does on all
cores and NumPy's element-wise functions on one, so the aim is few passes over few numbers.
None of the tricks changes the mathematics. Rounding does differ; the tests hold it to at most twice
the readable engine's distance from float64.

What each gained with SmolLM2-135M on two cores of a server (AMD EPYC, Zen 4; OpenBLAS):

| trick | gain |
|---|---|
| matrices row-major (d_in, d_out), not the file's (d_out, d_in) turned round: OpenBLAS then adds up multiples of whole rows, in place of one dot product a column | decode 1.37x on one thread, 1.13x on two |
| all weights side by side in large pages (arena.py) | decode 1.06x |
| q, k, v and gate, up in one matrix each; gains and 1/sqrt(d_head) folded in; RoPE as one complex product; no mask; views made once | decode 1.15x on one thread, 1.2x on two, together |
| w_down, the one with fewer columns than rows, column-major | decode 1.04x |
| a decode step shared out between two processes, one of which reads ahead (team.py) | decode 1.2x |
| OpenBLAS's threads wait busily for 0.3 ms, not 20 (inferlab/__init__.py) | 24 tokens after a prefill: 1.4x as fast with a team |
| attention in blocks that end where the mask begins | prefill of 512: 1.14x |
| the query of a step times 256 keys at once, not all | decode on one thread 1.1x after 600 tokens, 1.26x after 1,500; nothing before 256 |
| two or three rows (a small batch, a short draft) row by row | 1.6x for two, 1.3x for three |
| scratch made once, exp and the rest in place, one row of logits | prefill of 512: 1.1x together |
"""  # noqa: E501

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from inferlab.config import ModelConfig
from inferlab.engines.arena import Arena, arena_bytes
from inferlab.engines.fast_numpy.layer import FastLayer
from inferlab.engines.fast_numpy.step import FastStep, exp_of_rows, silu_times
from inferlab.engines.fast_numpy.team import members_here
from inferlab.kv_cache import KVCache
from inferlab.model import Model
from inferlab.operators import stretched_angles
from inferlab.sizes import UnsupportedModel
from inferlab.transformer import check_tokens
from inferlab.weights import LayerWeights, Weights

if TYPE_CHECKING:
    from inferlab.tokenizer import Tokenizer

ROWS = 512  # tokens a pass: scratch memory stays below 20 MB, and a GEMM of 512 rows is at its peak
FEW_ROWS = 3  # up to here row by row beats OpenBLAS's GEMM, which first copies the whole matrix
TEAM_BYTES = 64 * 1024 * 1024  # smaller models stay in the caches, and need no team
QUERY_ROWS = 64  # queries whose scores are held at once: smaller blocks waste less under the mask


class FastModel:
    """A drop-in for Model: config, tokenizer, forward, next_logits, new_cache.

    Within a query or key head the numbers stand in the order 0, d_head/2, 1, d_head/2 + 1, ..., so
    that a pair of RoPE is one complex number. Scores do not change by it; a cache that another
    engine has filled is of no use here.

    Raises UnsupportedModel for anything but a plain Llama: biases, query and key norms, sliding
    windows, experts and latent attention run in the readable engine.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, tokenizer: "Tokenizer | None" = None
    ) -> None:
        _refuse_other_than_llama(config)
        self.config, self.tokenizer = config, tokenizer
        shapes = _layer_shapes(config) * config.n_layers + [weights.head.shape]
        arena = Arena(arena_bytes(shapes))
        self.layers = [_arranged(layer, config, arena) for layer in weights.layers]
        self.head = arena.empty(weights.head.shape)
        self.head[...] = weights.head
        self.embedding = weights.embedding
        self.final_gain = weights.final_gain.astype(np.float32)
        self._turns = np.empty((0, config.d_head // 2), np.complex64)
        n_members = members_here() if self.weight_bytes >= TEAM_BYTES else 1
        self._step = FastStep(config, self.layers, self.head, n_members)

    @classmethod
    def of(cls, model: Model) -> "FastModel":
        """Arrange the weights of a model anew; only the embedding is shared with it."""
        return cls(model.config, model.weights, model.tokenizer)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights that a decode step reads: all but the embedding's other rows."""
        layers = (getattr(layer, f.name) for layer in self.layers for f in fields(layer))
        return self.head.nbytes + sum(matrix.nbytes for matrix in layers)

    def new_cache(self, capacity: int = 16, n_sequences: int = 1) -> KVCache:
        """An empty cache of this model's sizes, with room for `capacity` tokens before it grows."""
        c = self.config
        return KVCache(c.n_layers, c.n_kv_heads, c.d_head, n_sequences, capacity, np.float32)

    def next_logits(self, tokens: Sequence[int], cache: KVCache | None = None) -> np.ndarray:
        """Logits after the last of `tokens`, one sequence: -> (vocab_size,). See Model."""
        batch = np.asarray(tokens, dtype=np.int64 if len(tokens) == 0 else None)[None]
        return self.forward(batch, cache, last_only=True)[0, 0]

    def forward(
        self, tokens: np.ndarray, cache: KVCache | None = None, last_only: bool = False
    ) -> np.ndarray:
        """Logits after each token, (B, T) -> (B, T, vocab_size): see transformer.forward."""
        tokens = check_tokens(tokens, self.config, 0 if cache is None else cache.n_tokens)
        B, T = tokens.shape
        if cache is None:
            cache = self.new_cache(T, B)
        cache.reserve(cache.n_tokens + T)
        self._prepare_turns(cache.n_tokens + T)
        # exp may overflow in silu: of a gate below -88, 1 / (1 + inf) is the 0 that is right.
        with np.errstate(over="ignore"):
            if B * T == 1:
                row, turn = self.embedding[tokens[0, 0]], self._turns[cache.n_tokens]
                return self._step(row, turn, self.final_gain, cache)[None, None]
            rows = max(1, ROWS // B)
            passes = [tokens[:, start : start + rows] for start in range(0, T, rows)]
            hidden = [self._pass(part, cache) for part in passes]
        if last_only:
            return self._logits(hidden[-1][:, -1:])
        return self._logits(np.concatenate(hidden, axis=1))

    def _logits(self, hidden: np.ndarray) -> np.ndarray:
        """(B, T, d_model) -> (B, T, vocab_size)"""
        rows = np.ascontiguousarray(hidden).reshape(-1, hidden.shape[-1])
        normed = _normed(rows, self.config.norm_eps, np.empty_like(rows))
        normed *= self.final_gain
        logits = np.empty((len(rows), self.config.vocab_size), np.float32)
        return _project(normed, self.head, logits).reshape(*hidden.shape[:2], -1)

    def _prepare_turns(self, n_tokens: int) -> None:
        """RoPE's turn of each pair at each position, as a complex number of length 1."""
        if n_tokens > len(self._turns):
            c = self.config
            positions = np.arange(min(max(n_tokens, 2 * len(self._turns), 256), c.max_context))
            angles = stretched_angles(positions, c.d_head, c.rope_theta, c.rope_scaling)
            self._turns = np.exp(1j * angles).astype(np.complex64)

    def _pass(self, tokens: np.ndarray, cache: KVCache) -> np.ndarray:
        """Several tokens through all layers: (B, T) -> (B, T, d_model). Scratch is made once."""
        c, eps = self.config, self.config.norm_eps
        B, T = tokens.shape
        start, end = cache.n_tokens, cache.n_tokens + T
        n_rows, n_turned = B * T, c.n_heads + c.n_kv_heads
        # One turn for every pair of every head, so that one pass over whole rows turns them.
        turn = np.tile(self._turns[start:end], (B, n_turned))  # (B * T, n_turned * d_head // 2)
        x = self.embedding[tokens].reshape(n_rows, c.d_model).astype(np.float32)
        normed, added = np.empty_like(x), np.empty_like(x)
        qkv = np.empty((n_rows, (n_turned + c.n_kv_heads) * c.d_head), np.float32)
        pairs = qkv[:, : n_turned * c.d_head].view(np.complex64)
        heads = qkv.reshape(B, T, -1, c.d_head).swapaxes(1, 2)  # (B, n, T, d_head)
        mixed = np.empty((n_rows, c.n_heads * c.d_head), np.float32)
        gate_up = np.empty((n_rows, 2 * c.d_ff), np.float32)
        inner = np.empty((n_rows, c.d_ff), np.float32)
        attend = _BlockAttention(c, T, end)
        for i, layer in enumerate(self.layers):
            _project(_normed(x, eps, normed), layer.w_qkv, qkv)
            pairs *= turn
            cache.keys[i, :, :, start:end] = heads[:, c.n_heads : n_turned]
            cache.values[i, :, :, start:end] = heads[:, n_turned:]
            for b in range(B):
                attend(heads[b], cache.keys[i, b], cache.values[i, b], mixed[b * T : (b + 1) * T])
            x += _project(mixed, layer.w_o, added)
            _project(_normed(x, eps, normed), layer.w_gate_up, gate_up)
            silu_times(gate_up[:, : c.d_ff], gate_up[:, c.d_ff :], inner)
            x += _project(inner, layer.w_down, added)
        cache.lengths = [end] * c.n_layers
        return x.reshape(B, T, c.d_model)


class _BlockAttention:
    """Causal attention of T new tokens over S, QUERY_ROWS queries at a time.

    A block of queries is multiplied with the keys up to its own last one only, so all of what the
    mask would hide is left out but a triangle of QUERY_ROWS. The scores of a block (QUERY_ROWS *
    n_shared * S numbers) stay in the second-level cache for the four passes of the softmax. The
    division by the sum comes last, on d_head numbers a query and not on S.
    """

    def __init__(self, config: ModelConfig, T: int, S: int) -> None:
        self.n_kv_heads, self.d_head = config.n_kv_heads, config.d_head
        self.n_shared = config.n_heads // config.n_kv_heads  # query heads on one key head
        self.T, self.S = T, S
        n_queries = min(T, QUERY_ROWS) * self.n_shared
        self.scores = np.empty(n_queries * S, np.float32)
        self.mixed = np.empty(n_queries * self.d_head, np.float32)
        n = min(T, QUERY_ROWS)
        self.hidden = np.triu(np.full((n, n), -np.inf, np.float32), 1)

    def __call__(self, heads: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray) -> None:
        """heads: (n, T, d_head), queries first; k, v: (n_kv_heads, capacity, d_head); into out.

        out: (T, n_heads * d_head)
        """
        out_heads = out.reshape(self.T, -1, self.d_head).swapaxes(0, 1)  # (n_heads, T, d_head)
        for first in range(0, self.T, QUERY_ROWS):
            last = min(first + QUERY_ROWS, self.T)
            n, S = last - first, self.S - self.T + last  # S: keys that the last of them sees
            n_queries = self.n_shared * n
            scores = self.scores[: n_queries * S].reshape(n_queries, S)
            newest = scores.reshape(self.n_shared, n, S)[:, :, S - n :]
            mixed = self.mixed[: n_queries * self.d_head].reshape(n_queries, self.d_head)
            for h in range(self.n_kv_heads):
                group = slice(h * self.n_shared, (h + 1) * self.n_shared)
                queries = heads[group, first:last].reshape(n_queries, self.d_head)
                np.matmul(queries, k[h, :S].T, out=scores)
                newest += self.hidden[:n, :n]
                sums = exp_of_rows(scores)
                np.matmul(scores, v[h, :S], out=mixed)
                mixed /= sums
                out_heads[group, first:last] = mixed.reshape(self.n_shared, n, self.d_head)


def _project(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> np.ndarray:
    """x @ w into out, (n, d_in) by (d_in, d_out): the second row finds w in the L3 cache."""
    if len(x) > FEW_ROWS:
        return np.matmul(x, w, out=out)
    for row, result in zip(x, out, strict=True):
        np.dot(row, w, out=result)
    return out


def _normed(x: np.ndarray, eps: float, out: np.ndarray) -> np.ndarray:
    """RMSNorm without a gain of rows, (n, d_model), into out."""
    mean_square = np.einsum("td,td->t", x, x) / x.shape[-1]  # no array of squares
    return np.multiply(x, (1 / np.sqrt(mean_square + eps))[:, None], out=out)


def _layer_shapes(config: ModelConfig) -> list[tuple[int, ...]]:
    """Shapes of the four matrices of a FastLayer."""
    c = config
    d_queries, d_keys = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    return [
        (c.d_model, d_queries + 2 * d_keys),
        (d_queries, c.d_model),
        (c.d_model, 2 * c.d_ff),
        (c.d_ff, c.d_model),
    ]


def _arranged(layer: LayerWeights, config: ModelConfig, arena: Arena) -> FastLayer:
    """The seven matrices of a layer in four, gains folded in, RoPE's pairs side by side."""
    w_qkv, w_o, w_gate_up = (arena.empty(shape) for shape in _layer_shapes(config)[:3])
    w_down = arena.empty(_layer_shapes(config)[3][::-1]).T  # see FastLayer
    d_queries, d_keys = layer.w_q.shape[1], layer.w_k.shape[1]
    gain = layer.attention_gain[:, None]
    w_qkv[:, :d_queries] = _paired(layer.w_q, config.d_head) * (gain / math.sqrt(config.d_head))
    w_qkv[:, d_queries : d_queries + d_keys] = _paired(layer.w_k, config.d_head) * gain
    w_qkv[:, d_queries + d_keys :] = layer.w_v * gain
    gain = layer.mlp_gain[:, None]
    w_gate_up[:, : config.d_ff] = layer.w_gate * gain
    w_gate_up[:, config.d_ff :] = layer.w_up * gain
    w_o[...], w_down[...] = layer.w_o, layer.w_down
    return FastLayer(w_qkv, w_o, w_gate_up, w_down)


def _paired(w: np.ndarray, d_head: int) -> np.ndarray:
    """Columns of each head in the order 0, d_head/2, 1, d_head/2 + 1, ..."""
    halves = w.reshape(len(w), -1, 2, d_head // 2)
    return halves.swapaxes(2, 3).reshape(w.shape)


_KNOWN_FIELDS = {
    "n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size", "max_context",
    "rope_theta", "rope_scaling", "norm_eps", "tied_embeddings", "bos_id", "eos_ids",
    "qk_norm_per_head", "norm_topk",  # these two mean nothing where qk_norm and n_experts are off
}  # fmt: skip


def _refuse_other_than_llama(config: ModelConfig) -> None:
    """Refuse by name whatever differs from a plain Llama, also in fields that come later."""
    for f in fields(config):
        value = getattr(config, f.name)
        if f.name not in _KNOWN_FIELDS and value != f.default:
            raise UnsupportedModel(
                f"{f.name}={value!r} is not implemented in the fast NumPy engine; "
                "run this model in the readable one"
            )
