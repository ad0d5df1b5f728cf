"""Remember keys and values, do not compute them again.

In a causal decoder the key and the value of a token depend only on that token and on those before
it. They never change, so a generator may keep them. This file holds the mechanism from its
smallest piece (one query over cached keys) to the structure that a real engine uses, and the
arithmetic of what it costs in memory.

Source: Pope et al. 2022 (arXiv 2211.05102), section 2; Shazeer 2019 (arXiv 1911.02150).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from inferlab.config import ModelConfig


class AttentionLayer:
    """The three projections of one attention layer. It counts the rows it projects.

    w_q, w_k, w_v: (d_model, n_heads * d_head)
    """

    def __init__(self, w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, n_heads: int) -> None:
        self.w_q, self.w_k, self.w_v, self.n_heads = w_q, w_k, w_v, n_heads
        self.n_kv_rows = 0  # rows sent through w_k or w_v so far

    def query(self, x: np.ndarray) -> np.ndarray:
        """(T, d_model) -> (n_heads, T, d_head)"""
        return self._split(x @ self.w_q)

    def key(self, x: np.ndarray) -> np.ndarray:
        """(T, d_model) -> (n_heads, T, d_head); counts T rows"""
        self.n_kv_rows += len(x)
        return self._split(x @ self.w_k)

    def value(self, x: np.ndarray) -> np.ndarray:
        """(T, d_model) -> (n_heads, T, d_head); counts T rows"""
        self.n_kv_rows += len(x)
        return self._split(x @ self.w_v)

    def _split(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(rows), self.n_heads, -1).swapaxes(0, 1)


def attend_one(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention of one new token's query over the S keys and values seen so far.

    Each head works alone: its scores are the dot products of its query with its S keys, divided
    by sqrt(d_head); a softmax over the S positions turns them into weights; the output is the
    weighted sum of its values. No mask is needed: everything in the cache is in the past.
    Scores may be in the thousands: subtract each head's largest score before np.exp.

    q: (n_heads, d_head); k, v: (n_heads, S, d_head) -> (n_heads, d_head)
    Example: with one key, whatever q is, the output is that key's value.
    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1.
    """
    scores = np.einsum("hd,hsd->hs", q, k) / np.sqrt(q.shape[-1])  # (n_heads, S)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hs,hsd->hd", weights, v)


def decode_uncached(x: np.ndarray, layer: AttentionLayer) -> np.ndarray:
    """Decode token by token with no memory: at every step, project the whole prefix again.

    At step t (t = 0 … n-1) only rows x[: t + 1] exist. Compute the keys and values of all of
    them with layer.key and layer.value, the query of row t with layer.query, and call attend_one.
    layer.key(rows) takes (T, d_model) and returns (n_heads, T, d_head); so do query and value.

    x: (n, d_model) -> (n, n_heads, d_head), one output a step
    Afterwards layer.n_kv_rows has grown by exactly 2 * (1 + 2 + … + n) = n * (n + 1).
    """
    outputs = []
    for t in range(len(x)):
        prefix = x[: t + 1]  # (t + 1, d_model)
        q = layer.query(x[t : t + 1])[:, 0]  # (n_heads, d_head)
        outputs.append(attend_one(q, layer.key(prefix), layer.value(prefix)))
    return np.stack(outputs)


def decode_cached(x: np.ndarray, layer: AttentionLayer) -> np.ndarray:
    """The same decoding with a memory: each row is projected once and its key and value kept.

    At step t project row t only, append its key and value to those kept so far, and let its
    query attend to them with attend_one. Joining arrays with np.concatenate is fine here.

    x: (n, d_model) -> (n, n_heads, d_head), equal to decode_uncached(x, layer)
    Afterwards layer.n_kv_rows has grown by exactly 2 * n.
    """
    outputs = []
    keys = values = None
    for t in range(len(x)):
        row = x[t : t + 1]  # (1, d_model)
        k, v = layer.key(row), layer.value(row)  # (n_heads, 1, d_head)
        keys = k if keys is None else np.concatenate([keys, k], axis=1)
        values = v if values is None else np.concatenate([values, v], axis=1)
        outputs.append(attend_one(layer.query(row)[:, 0], keys, values))
    return np.stack(outputs)


class KVCache:
    """Keys and values of every layer, in two preallocated arrays.

    keys, values: (n_layers, B, n_kv_heads, capacity, d_head). Layer i has used the first
    lengths[i] slots of the capacity axis; what lies beyond is unused and means nothing.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        d_head: int,
        n_sequences: int = 1,
        capacity: int = 16,
        dtype: type = np.float32,
    ) -> None:
        shape = (n_layers, n_sequences, n_kv_heads, capacity, d_head)
        if min(shape) < 1:
            raise ValueError(f"every size must be at least 1, given {shape}")
        self.keys: np.ndarray = np.zeros(shape, dtype)
        self.values: np.ndarray = np.zeros(shape, dtype)
        self.lengths = [0] * n_layers

    @property
    def capacity(self) -> int:
        """Tokens that fit without growing."""
        return self.keys.shape[3]

    @property
    def n_tokens(self) -> int:
        """Tokens that every layer holds."""
        return min(self.lengths)

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values in use, over all layers and sequences."""
        n_layers, n_sequences, n_kv_heads, _, d_head = self.keys.shape
        numbers_per_token = 2 * n_layers * n_sequences * n_kv_heads * d_head  # 2: K and V
        return self.n_tokens * numbers_per_token * self.keys.itemsize

    def require_fit(self, k: np.ndarray, v: np.ndarray) -> None:
        """Raise ValueError unless k and v are (B, n_kv_heads, T, d_head) for this cache."""
        _, n_sequences, n_kv_heads, _, d_head = self.keys.shape
        needed = (n_sequences, n_kv_heads, k.shape[2] if k.ndim == 4 else "T", d_head)
        if k.shape != needed or v.shape != needed:
            raise ValueError(f"k and v must be {needed}, given k {k.shape} and v {v.shape}")

    def reserve(self, n_tokens: int) -> None:
        """Make room for n_tokens tokens a layer. Do nothing when they fit already.

        Otherwise double the capacity until they fit, allocate both arrays anew with that
        capacity, and copy over what is held: nothing stored may change. Doubling keeps the
        copying cheap: n appends copy fewer than 2n tokens in all.

        Example: capacity 4, reserve(9) -> capacity 16.
        """
        if n_tokens <= self.capacity:
            return
        capacity = self.capacity
        while capacity < n_tokens:
            capacity *= 2
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = np.zeros((*old.shape[:3], capacity, old.shape[4]), old.dtype)
            new[:, :, :, : old.shape[3]] = old
            setattr(self, name, new)

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Store the keys and values of T new tokens of one layer, behind those it holds.

        Call self.require_fit(k, v) first, then self.reserve for the new length of this layer.
        A forward pass calls append once per layer, so each layer has its own length in
        self.lengths; T is the prompt's length in a prefill and 1 in a decode step.

        k, v: (B, n_kv_heads, T, d_head)
        -> all keys and all values of this layer, oldest first, (B, n_kv_heads, S, d_head) each,
           where S = self.lengths[layer] after the call. Unused slots are not part of it.
        Raises ValueError (from require_fit) if k or v has another shape.
        """
        self.require_fit(k, v)
        start = self.lengths[layer]
        end = start + k.shape[2]
        self.reserve(end)
        self.keys[layer, :, :, start:end] = k
        self.values[layer, :, :, start:end] = v
        self.lengths[layer] = end
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def truncate(self, n_tokens: int) -> None:
        """Keep the first n_tokens tokens of every layer and forget the rest.

        Speculative sampling needs it (lesson 08): rejected draft tokens must leave no trace. The
        memory stays allocated; the next append writes over the forgotten slots.

        Raises ValueError if n_tokens is negative or larger than self.n_tokens.
        """
        if not 0 <= n_tokens <= self.n_tokens:
            raise ValueError(f"n_tokens must be between 0 and {self.n_tokens}, given {n_tokens}")
        self.lengths = [n_tokens] * len(self.lengths)


class SlidingWindowCache:
    """Keys and values of one layer that sees only its last `window` tokens, in a ring.

    keys, values: (n_kv_heads, window, d_head). Memory never grows: a new token takes the place
    of the oldest one.
    """

    def __init__(self, window: int, n_kv_heads: int, d_head: int) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, given {window}")
        self.window = window
        self.keys = np.zeros((n_kv_heads, window, d_head))
        self.values = np.zeros((n_kv_heads, window, d_head))
        self.n_seen = 0  # tokens appended since the start; the next one has this position

    def append(self, k: np.ndarray, v: np.ndarray) -> None:
        """Store one token, in place of the oldest when the ring is full.

        In a ring the token at position p takes slot p mod window. Count it in self.n_seen. Copy
        the numbers: the caller may use k and v again.

        k, v: (n_kv_heads, d_head)
        """
        slot = self.n_seen % self.window
        self.keys[:, slot] = k
        self.values[:, slot] = v
        self.n_seen += 1

    def ordered(self) -> tuple[np.ndarray, np.ndarray]:
        """What the newest token may see: the last min(n_seen, window) tokens, oldest first.

        -> keys, values, each (n_kv_heads, min(n_seen, window), d_head)
        Example: window 3 after tokens 0, 1, 2, 3, 4 -> tokens 2, 3, 4 in this order.
        """
        first = max(0, self.n_seen - self.window)
        slots = np.arange(first, self.n_seen) % self.window
        return self.keys[:, slots], self.values[:, slots]


def kv_bytes_per_token(config: ModelConfig, bytes_per_number: int = 2) -> int:
    """Bytes that one token's keys and values take, over all layers.

    config has n_layers, n_heads, n_kv_heads, d_head and d_model; use the ones that matter.
    bytes_per_number is 2 for bf16 or fp16, 1 for an 8-bit cache, 4 for float32.

    Example: 32 layers, 8 KV heads of 128 numbers, bf16 -> 131,072 bytes (128 KiB).
    """
    return 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number  # 2: K and V


def kv_cache_bytes(
    config: ModelConfig, n_tokens: int, n_sequences: int = 1, bytes_per_number: int = 2
) -> int:
    """Bytes of the keys and values of n_sequences sequences of n_tokens tokens each.

    Example: the model above, 16 sequences of 8,192 tokens -> 17,179,869,184 bytes (17.18 GB,
    which is exactly 16 GiB).
    """
    return n_sequences * n_tokens * kv_bytes_per_token(config, bytes_per_number)


def largest_batch(
    config: ModelConfig,
    n_tokens: int,
    memory_bytes: float,
    weight_bytes: float,
    headroom: float = 0.0,
    bytes_per_number: int = 2,
) -> int:
    """How many sequences of n_tokens tokens fit beside the weights.

    headroom is the share of the whole memory that must stay free (0.1 keeps 10 % of
    memory_bytes for activations and fragmentation). A sequence that fits by half does not fit;
    where not even the weights fit, the answer is 0.

    Example: 80 GB, 16 GB of weights, the model above at 8,192 tokens -> 59.
    """
    free_bytes = memory_bytes * (1 - headroom) - weight_bytes
    return max(0, int(free_bytes // kv_cache_bytes(config, n_tokens, 1, bytes_per_number)))


def longest_context(
    config: ModelConfig,
    n_sequences: int,
    memory_bytes: float,
    weight_bytes: float,
    headroom: float = 0.0,
    bytes_per_number: int = 2,
) -> int:
    """The most tokens that each of n_sequences sequences can hold beside the weights.

    headroom as in largest_batch; 0 where not even the weights fit.

    Example: 80 GB, 16 GB of weights, 10 % headroom, 16 sequences -> 26,702 tokens each.
    """
    free_bytes = memory_bytes * (1 - headroom) - weight_bytes
    bytes_per_step = n_sequences * kv_bytes_per_token(config, bytes_per_number)
    return max(0, int(free_bytes // bytes_per_step))


def key_drift(x: np.ndarray, layers: Sequence[AttentionLayer], causal: bool) -> list[float]:
    """How much the past keys of each layer move when the last token is added.

    Runs the rows x[:-1], then all of x, through a stack of attention layers with residual
    connections, and compares the keys of the first n - 1 tokens. A cache is valid exactly where
    the answer is 0. In the first layer it always is: its keys see only the embeddings. What a
    second layer sees depends on whether the first one lets the past look at the future.

    x: (n, d_model), with d_model = n_heads * d_head -> one largest change a layer
    """
    before, after = (_stack_keys(rows, layers, causal) for rows in (x[:-1], x))
    return [float(np.abs(old - new[:, :-1]).max()) for old, new in zip(before, after, strict=True)]


def _stack_keys(x: np.ndarray, layers: Sequence[AttentionLayer], causal: bool) -> list[np.ndarray]:
    """The keys (n_heads, n, d_head) of each layer of the stack."""
    keys = []
    for layer in layers:
        k, v, q = layer.key(x), layer.value(x), layer.query(x)
        keys.append(k)
        last = [t + 1 if causal else len(x) for t in range(len(x))]  # how far row t may look
        mixed = [attend_one(q[:, t], k[:, :s], v[:, :s]).ravel() for t, s in enumerate(last)]
        x = x + np.stack(mixed)
    return keys
