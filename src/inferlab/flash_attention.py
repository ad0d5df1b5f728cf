"""Exact attention in tiles: the scores are used where they are made, and never kept.

Attention needs T x S scores, but no two rows of them at once, and of one row no more than a block
at a time: a running maximum and a running sum are enough to normalise at the end. This file holds
that idea from its smallest piece (two numbers a row) to the whole forward pass, split decoding,
and the bytes that both move.

Source: Milakov and Gimelshein 2018 (arXiv 1805.02867); Dao et al. 2022 (arXiv 2205.14135);
Dao 2023 (arXiv 2307.08691), whose order of loops is used here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

Partial = tuple[np.ndarray, np.ndarray]  # an output, and the log-sum-exp of its scores


class Memory(Protocol):
    """The large, slow memory. Everything an answer reads or writes there goes through it."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the array `name`; costs nothing."""

    def load(self, name: str, *index: Any) -> np.ndarray:
        """A copy of array[index] on chip: load("k", 0, slice(64, 128))."""

    def store(self, name: str, value: np.ndarray, *index: Any) -> None:
        """Write value to array[index]: store("out", tile, 0, slice(0, 64))."""


def score_matrix_bytes(
    T: int, S: int, n_heads: int = 1, n_sequences: int = 1, bytes_per_number: int = 2
) -> int:
    """Bytes of all attention scores of one layer: T queries against S keys, in every head.

    Every query head of every sequence has a matrix of its own. Scores that the causal mask will
    hide count too: the plain way computes the full rectangle first and masks afterwards.

    Example: 8,192 queries and keys, one head, 16 bit -> 134,217,728 bytes (134 MB).
    """
    return n_sequences * n_heads * T * S * bytes_per_number


def online_normalizer(score_blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The maximum of each row of scores, and sum(exp(score - maximum)), block by block.

    score_blocks gives at least one block (n_rows, width); widths may differ. Each block comes
    once and is gone when the next one comes, so keep two numbers a row: the largest score so far
    and the sum so far. When a block raises the maximum from m to m_new, the old sum was taken
    relative to m: multiply it by exp(m - m_new) before the block's own terms are added.

    Scores may be -inf (masked). A row that is -inf so far has maximum -inf and sum 0. Careful:
    -inf - (-inf) is NaN. Subtract 0 where the maximum is -inf; exp(-inf) is 0, as it should be.

    -> row_max (n_rows,), row_sum (n_rows,)
    Example: one row in the blocks [[1, 2]] and [[4]]: after the first (2, 1.368), after the second
    (4, 1.368 * exp(2 - 4) + 1) = (4, 1.185).
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), algorithm 3.
    """
    row_max: Any = -np.inf
    row_sum: Any = 0.0
    for scores in score_blocks:
        new_max = np.maximum(row_max, scores.max(axis=-1))  # (n_rows,)
        shift = np.where(new_max == -np.inf, 0, new_max)
        weights = np.exp(scores - shift[:, None])  # (n_rows, width)
        row_sum = np.exp(row_max - shift) * row_sum + weights.sum(axis=-1)
        row_max = new_max
    return row_max, row_sum


def online_update(
    row_max: np.ndarray, row_sum: np.ndarray, acc: np.ndarray, scores: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take one more block of keys into account; return the new row_max, row_sum and acc.

    row_max (n_rows,): largest score of each row so far; row_sum (n_rows,): sum of exp(score -
    row_max) so far; acc (n_rows, d_head): sum of exp(score - row_max) * value so far, not yet
    divided by row_sum. At the start they are -inf, 0 and 0.
    scores (n_rows, width) and v (width, d_head) are the block's. As in online_normalizer, what is
    kept is rescaled when the maximum rises: the sum, and acc row by row.

    Scores may be -inf (masked), whole rows of them too: those rows must come through without NaN.
    Return new arrays; leave the given ones as they are.

    Example: row_max [2], row_sum [1], acc [[6, 0]], scores [[2, 2]], v [[0, 1], [0, 3]]
    -> [2], [3], [[6, 4]]; the attention output so far is acc / row_sum = [2, 1.333].
    Source: Dao 2023 (arXiv 2307.08691), algorithm 1, lines 9 and 10.
    """
    new_max = np.maximum(row_max, scores.max(axis=-1))
    shift = np.where(new_max == -np.inf, 0, new_max)
    weights = np.exp(scores - shift[:, None])  # (n_rows, width)
    rescale = np.exp(row_max - shift)  # (n_rows,): 1 where the maximum did not rise
    new_sum = rescale * row_sum + weights.sum(axis=-1)
    return new_max, new_sum, rescale[:, None] * acc + weights @ v


def n_key_blocks(query_end: int, T: int, S: int, block_k: int) -> int:
    """How many key blocks, counted from the first, the queries before query_end may see.

    Keys are cut into blocks of block_k, the last one may be shorter. The T queries are the newest
    of S tokens, so query t stands at position S - T + t and sees the keys 0 ... S - T + t. The last
    query of the tile, query_end - 1, sees the most; a block counts as soon as it sees one key in
    it. The blocks after these are masked for the whole tile: nobody needs to load them.

    1 <= query_end <= T <= S
    Example: T = S = 8, block_k 4: queries 0 to 3 (query_end 4) need 1 block, 4 to 7 need 2.
    Example: T = 2, S = 7, block_k 3: query 0 (query_end 1) sees 6 keys, so 2 blocks; query 1 sees
    7, so 3.
    """
    keys_seen = S - T + query_end
    return math.ceil(keys_seen / block_k)


def count_tiles(T: int, S: int, block_q: int, block_k: int) -> tuple[int, int, int]:
    """Sort the tiles of a causal score matrix: (whole, masked in part, skipped).

    A tile is one block of queries against one block of keys; the last of each may be shorter.
    skipped: no query of the tile sees any key of it. whole: every query sees every key, no mask is
    needed. The rest lie on the edge of the mask. Use n_key_blocks for what is needed at all; how
    many of those are whole follows from the tile's FIRST query, which sees the fewest keys.

    Example: T = S = 8, block_q = block_k = 4 -> (1, 2, 1).
    Source: Dao 2023 (arXiv 2307.08691), section 3.1.1, "Causal masking".
    """
    n_blocks = math.ceil(S / block_k)
    whole = needed = n_tiles = 0
    for start in range(0, T, block_q):
        end = min(start + block_q, T)
        fewest_keys = S - T + start + 1  # seen by the first query
        whole += n_blocks if fewest_keys == S else fewest_keys // block_k
        needed += n_key_blocks(end, T, S, block_k)
        n_tiles += n_blocks
    return whole, needed - whole, n_tiles - needed


def tiled_attention(memory: Memory, block_q: int, block_k: int, causal: bool = True) -> None:
    """Attention through a slow memory, tile by tile; the scores are never stored.

    memory holds q (n_heads, T, d_head), k and v (n_kv_heads, S, d_head), and room for the result,
    out (n_heads, T, d_head). Query head h reads KV head h // (n_heads // n_kv_heads).
    memory.shape(name) is free; memory.load(name, head, slice(a, b)) copies rows on chip;
    memory.store("out", tile, head, slice(a, b)) writes. A slice that runs past the end is cut off;
    n_key_blocks needs the end itself cut off: at most T.

    For each query head, for each block of block_q queries: load its q once. For each block of
    block_k keys that it may see (n_key_blocks; all of them when causal is False), in order: load k
    and v, compute the scores q . k / sqrt(d_head), set those that the causal mask hides to -inf
    (query t sees key s where s <= S - T + t), and call online_update. Then store acc / row_sum.

    Exactly these loads and stores are counted and graded, and so is what you hold at once: a few
    tiles, never a row of scores over all keys and never all of k.
    Source: Dao 2023 (arXiv 2307.08691), algorithm 1.
    """
    (n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("q"), memory.shape("k")
    for head in range(n_heads):
        kv_head = head // (n_heads // n_kv_heads)
        for start in range(0, T, block_q):
            end = min(start + block_q, T)
            q = memory.load("q", head, slice(start, end)) / math.sqrt(d_head)
            row_max, row_sum = np.full(len(q), -np.inf, q.dtype), np.zeros(len(q), q.dtype)
            acc = np.zeros_like(q)
            last_key = S - T + np.arange(start, end)[:, None]  # that each query sees
            n_blocks = n_key_blocks(end, T, S, block_k) if causal else math.ceil(S / block_k)
            for first in range(0, n_blocks * block_k, block_k):
                keys = slice(first, min(first + block_k, S))
                k, v = memory.load("k", kv_head, keys), memory.load("v", kv_head, keys)
                scores = q @ k.T  # (block_q, block_k): on chip, and never stored
                if causal:
                    scores[np.arange(keys.start, keys.stop) > last_key] = -np.inf
                row_max, row_sum, acc = online_update(row_max, row_sum, acc, scores, v)
            memory.store("out", acc / row_sum[:, None], head, slice(start, end))


def partial_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Partial:
    """Attention of one query over SOME of the keys, and how much weight they have together.

    Each head alone: scores are q . k / sqrt(d_head); out is the softmax over these S keys times
    their values; lse = log(sum(exp(scores))), the logarithm of what the softmax divided by. Take
    the maximum out before exp and add it back after log: exp(900) overflows. No keys at all
    (S = 0): out is 0 and lse is -inf.

    q: (n_heads, d_head); k, v: (n_heads, S, d_head) -> out (n_heads, d_head), lse (n_heads,)
    Example: one head, scores 0 and 0, values [1] and [3] -> out [2], lse log 2 = 0.693.
    """
    if k.shape[1] == 0:
        return np.zeros_like(q), np.full(len(q), -np.inf, q.dtype)
    scores = np.einsum("hd,hsd->hs", q, k) / np.sqrt(q.shape[-1])
    row_max = scores.max(axis=-1)
    weights = np.exp(scores - row_max[:, None])
    row_sum = weights.sum(axis=-1)
    out = np.einsum("hs,hsd->hd", weights, v) / row_sum[:, None]
    return out, row_max + np.log(row_sum)


def merge_partials(
    out_a: np.ndarray, lse_a: np.ndarray, out_b: np.ndarray, lse_b: np.ndarray
) -> Partial:
    """Attention over the keys of a and b together, from the results over each alone.

    A part whose scores sum to exp(lse) has that share of the weight: the merged output is
    (exp(lse_a) out_a + exp(lse_b) out_b) / (exp(lse_a) + exp(lse_b)), and the merged lse is the
    logarithm of that denominator. lse may be near +900 or -900: take the larger one out first.
    A part without keys has lse -inf and no weight; two such parts give out 0 and lse -inf.

    out_a, out_b: (n_heads, d_head); lse_a, lse_b: (n_heads,)
    -> out (n_heads, d_head), lse (n_heads,)
    Example: outputs 2 and 8, lse log 3 and log 1 -> (3 * 2 + 1 * 8) / 4 = 3.5, lse log 4.
    Source: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference".
    """
    larger = np.maximum(lse_a, lse_b)
    shift = np.where(larger == -np.inf, 0, larger)
    weight_a, weight_b = np.exp(lse_a - shift)[:, None], np.exp(lse_b - shift)[:, None]
    total = weight_a + weight_b  # (n_heads, 1); 0 only where neither part has keys
    out = (weight_a * out_a + weight_b * out_b) / np.where(total == 0, 1, total)
    return out, np.logaddexp(lse_a, lse_b)


def split_kv_decode(memory: Memory, split_lengths: Sequence[int]) -> None:
    """One decode step with the keys cut into splits: each attended to alone, results merged.

    memory holds q (n_heads, d_head), k and v (n_heads, S, d_head), and room for out
    (n_heads, d_head). The first split has split_lengths[0] keys, and so on; some may have none.
    Load q once: load("q"). For each split load its k and v, all heads: load("k", slice(None),
    slice(a, b)); call partial_attention, and merge with what there is so far: start from out 0 and
    lse -inf. On a GPU each split is another processor's work; here they come one after the other,
    and no more than one split may be held at once. Store out once.

    Raises ValueError unless the lengths add up to S.
    Example: S = 10, split_lengths (4, 4, 2).
    """
    n_heads, S, _ = memory.shape("k")
    if sum(split_lengths) != S:
        raise ValueError(f"split_lengths must add up to S={S}, given {list(split_lengths)}")
    q = memory.load("q")
    out, lse = np.zeros_like(q), np.full(n_heads, -np.inf, q.dtype)
    start = 0
    for length in split_lengths:
        part = (slice(None), slice(start, start + length))
        partial = partial_attention(q, memory.load("k", *part), memory.load("v", *part))
        out, lse = merge_partials(out, lse, *partial)
        start += length
    memory.store("out", out)


def standard_traffic_bytes(
    T: int, S: int, d_head: int, n_heads: int = 1, bytes_per_number: int = 2
) -> int:
    """Bytes between chip and memory when attention is three steps, each with its result stored.

    In each head: read q (T, d_head) and k (S, d_head), write the scores (T, S); read the scores,
    write the weights (T, S); read the weights and v (S, d_head), write out (T, d_head). All masked
    scores are moved as well.

    Example: T = S = 8,192, d_head 128, one head, 16 bit -> 545,259,520 bytes, 98 % of them scores
    and weights.
    Source: Dao et al. 2022 (arXiv 2205.14135), algorithm 0.
    """
    rows = 2 * T * d_head + 2 * S * d_head  # q and out; k and v
    return n_heads * (rows + 4 * T * S) * bytes_per_number  # 4: scores and weights, out and in


def flash_traffic_bytes(
    T: int,
    S: int,
    d_head: int,
    block_q: int,
    block_k: int,
    n_heads: int = 1,
    bytes_per_number: int = 2,
    causal: bool = True,
) -> int:
    """Bytes that tiled_attention loads and stores: equal to what is counted, to the byte.

    In each head every q row is loaded once and every out row is stored once. Every block of queries
    loads k and v of the key blocks that it may see: n_key_blocks of them when causal (the last key
    block of all has fewer than block_k rows where block_k does not divide S), all S rows otherwise.
    With fewer KV heads than query heads the number is the same: each query head loads for itself.

    Example: T = S = 8, d_head 2, blocks of 4, one head, 2 bytes: q and out 2 * 8 * 2 = 32 numbers;
    the first queries load 4 keys, the others 8: 12 * 2 * 2 = 48; (32 + 48) * 2 B = 160 B.
    """
    keys_loaded = 0
    for start in range(0, T, block_q):
        end = min(start + block_q, T)
        keys_loaded += min(S, n_key_blocks(end, T, S, block_k) * block_k) if causal else S
    numbers = 2 * T * d_head + 2 * keys_loaded * d_head  # q and out; k and v
    return n_heads * numbers * bytes_per_number


def on_chip_numbers(block_q: int, block_k: int, d_head: int) -> int:
    """Numbers that one step of tiled_attention needs on chip at least.

    q and acc (block_q, d_head), k and v (block_k, d_head), the scores (block_q, block_k), and two
    numbers a row: row_max and row_sum.
    """
    return 2 * block_q * d_head + 2 * block_k * d_head + block_q * block_k + 2 * block_q


def largest_block_q(
    on_chip_bytes: int, d_head: int, block_k: int, bytes_per_number: int = 2
) -> int:
    """The most queries whose tiles fit on chip: fewer passes over k and v, less traffic.

    On chip at once: q and acc (block_q, d_head), k and v (block_k, d_head), the scores (block_q,
    block_k), and row_max and row_sum, one number a row each. Matrix units work on 16 rows at a
    time: round block_q down to a multiple of 16.

    Raises ValueError if not even 16 queries fit.
    Example: 49,152 bytes, d_head 64, block_k 64, 16 bit: k and v take 2 * 64 * 64 of 24,576
    numbers, a query 2 * 64 + 64 + 2 = 194; 16,384 / 194 = 84.5 -> 80.
    """
    free_numbers = on_chip_bytes // bytes_per_number - 2 * block_k * d_head
    numbers_per_query = 2 * d_head + block_k + 2
    block_q = free_numbers // numbers_per_query // 16 * 16
    if block_q < 16:
        raise ValueError(f"on_chip_bytes={on_chip_bytes} holds no 16 queries beside k and v")
    return block_q
