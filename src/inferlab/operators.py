"""The small functions of a decoder: each is one formula on arrays, and knows no model.

Weights are (d_in, d_out), so a projection is `x @ w`; attention is heads-first,
(B, n_heads, T, d_head). Every function keeps the dtype of its input, so the same code runs in
float32 and in float64.
"""

import math

import numpy as np

from inferlab.sizes import RopeScaling


def softmax(scores: np.ndarray) -> np.ndarray:
    """Turn each row of scores into weights: all in [0, 1], with sum 1.

    weight i = exp(score i) / (sum of exp over the last axis), each row on its own. Scores may be in
    the thousands, of either sign: subtract the row's largest score before np.exp. A score of -inf
    gets the weight 0 (a row has at least one finite score).

    scores: (..., S) -> (..., S)
    Example: softmax([0, log 3]) = [0.25, 0.75]; softmax([1000, 1000]) = [0.5, 0.5].
    """
    # Subtract the row maximum first: exp(89) overflows float32, and the ratios are unchanged.
    shifted = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return weights / weights.sum(axis=-1, keepdims=True)


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """Scale x to unit root-mean-square over its last axis, then by gain.

    Divide each row by the root of its mean square, then multiply by gain, number by number. eps is
    added to the mean square before the root. Unlike LayerNorm, no mean is subtracted.

    x: (..., d_model), gain: (d_model,) -> (..., d_model)
    Example: rms_norm([3, 4], gain [1, 2], eps 0) = [3, 8] / sqrt(12.5) = [0.8485, 2.2627].
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", section 3.
    """
    mean_square = np.mean(x * x, axis=-1, keepdims=True)  # (..., 1)
    return gain * x / np.sqrt(mean_square + eps)


def rope_angles(positions: np.ndarray, d_head: int, theta: float) -> np.ndarray:
    """How far RoPE turns each of the d_head/2 pairs of numbers, in radians.

    Pair i (i = 0 … d_head/2 - 1) at position p turns by p * theta ** (-2 i / d_head): the first
    pair by p itself, later pairs ever more slowly. Compute in float64, since a long context needs
    p to many digits.

    positions: (T,) whole numbers, counted from 0, in any order -> (T, d_head // 2)
    Example: positions [0, 3], d_head 4, theta 100 -> [[0, 0], [3, 0.3]].
    Raises ValueError for an odd d_head.
    Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864), section 3.2.2.
    """
    if d_head % 2:
        raise ValueError(f"d_head={d_head} must be even: RoPE turns numbers in pairs")
    pair = np.arange(d_head // 2)
    turn_per_token = float(theta) ** (-2.0 * pair / d_head)  # (d_head // 2,)
    return np.asarray(positions, dtype=np.float64)[:, None] * turn_per_token


def stretched_angles(
    positions: np.ndarray, d_head: int, theta: float, scaling: RopeScaling | None
) -> np.ndarray:
    """rope_angles, with the late pairs slowed down further where the model asks for it.

    positions: (T,) -> (T, d_head // 2)
    """
    if scaling is None:
        return rope_angles(positions, d_head, theta)
    turn_per_token = rope_angles(np.ones(1), d_head, theta)[0]
    return np.asarray(positions, dtype=np.float64)[:, None] * stretch(turn_per_token, scaling)


def stretch(turn_per_token: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Slow RoPE's slow pairs down, as Llama 3.1 does for contexts longer than it first knew.

    A pair that makes fewer than low_freq_factor full turns within the original context would meet
    angles never seen in training, so it is slowed by factor; one that makes more than
    high_freq_factor turns tells near tokens apart and stays; in between, a share of each.

    turn_per_token: (d_head // 2,) radians -> (d_head // 2,)
    Source: Dubey et al. 2024 (arXiv 2407.21783), section 3.4.2; the code that came with Llama 3.1.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    n_turns = turn_per_token * scaling.original_context / (2 * math.pi)
    kept = np.clip((n_turns - low) / (high - low), 0, 1)  # share that stays as it was
    return turn_per_token * (kept + (1 - kept) / scaling.factor)


def rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Turn the queries or keys of each position by that position's angles (half-split layout).

    Pair i is made of numbers i and i + d_head/2 of a head (the layout of Llama checkpoints on
    Hugging Face; GPT-J and llama.cpp pair neighbours, 2i and 2i + 1). The pair (a, b) becomes
    (a cos - b sin, a sin + b cos), each number in its old place. All sequences and heads turn
    alike; angles[t] belongs to token t. The result has the dtype of x: cast cos and sin to it, not
    the angles: float32 has too few digits for those of far positions.

    x: (B, n_heads, T, d_head), angles: (T, d_head // 2) -> (B, n_heads, T, d_head), dtype of x
    Example: d_head 4, one token [1, 2, 0, 0], angles [pi/2, 0] -> [0, 2, 1, 0]: the pair (1, 0)
    made a quarter turn to (0, 1), the pair (2, 0) stayed.
    Source: Su et al. 2021, "RoFormer", section 3.4.2.
    """
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = np.split(x, 2, axis=-1)  # (B, n_heads, T, d_head // 2) each
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def causal_mask(T: int, S: int) -> np.ndarray:
    """Which of S keys each of the last T queries may see: those not after itself.

    The T queries are the newest tokens, so query t (from 0) stands at position S - T + t, and sees
    the keys 0 … S - T + t: its own too.

    -> (T, S) bool, True where a query may look
    Example: causal_mask(2, 3) = [[True, True, False], [True, True, True]].
    Raises ValueError if T > S: a token's own key must be among the keys.
    """
    if T > S:
        raise ValueError(f"T={T} queries need at least as many keys; given: S={S}")
    query_position = np.arange(S - T, S)[:, None]  # (T, 1)
    return np.arange(S) <= query_position


def window_mask(T: int, S: int, window: int) -> np.ndarray:
    """Which of S keys each of the last T queries may see: the last `window` up to itself.

    -> (T, S) bool, True where a query may look
    Example: window_mask(2, 4, 2) = [[False, True, True, False], [False, False, True, True]].
    Raises ValueError if T > S or window < 1.
    Source: Jiang et al. 2023, "Mistral 7B" (arXiv 2310.06825), section 2.
    """
    if window < 1:
        raise ValueError(f"window={window} must be at least 1: a token sees itself")
    query_position = np.arange(S - T, S)[:, None]  # (T, 1)
    return causal_mask(T, S) & (np.arange(S) > query_position - window)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Average v, weighted by the softmax of how well each key fits the query.

    A score is query . key / sqrt(d_head). A hidden key gets the score -inf, before the softmax over
    the keys. n_heads is a multiple of n_kv_heads: query head h reads key/value head
    h // (n_heads // n_kv_heads), so neighbours share one. (Repeating keys and values is fine;
    the course's own version does without, and lesson 05 shows how.)

    q: (B, n_heads, T, d_head); k: (B, n_kv_heads, S, d_head); v: (B, n_kv_heads, S, d_value)
    visible: (T, S) bool, True where a query may look -> (B, n_heads, T, d_value)
    (d_value is d_head in nearly every model.)
    Example: a query of zeros fits all keys equally, so it gets the plain mean of the visible v.
    Raises ValueError if n_heads is no multiple of n_kv_heads, or some query may look nowhere.
    Source: Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023 (GQA), section 2.2.
    """
    B, n_heads, T, d_head = q.shape
    n_kv_heads, S = k.shape[1], k.shape[2]
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    if not visible.any(axis=-1).all():
        raise ValueError("every query must see at least one key; a row of visible is all False")
    # The queries that share a key head become rows of one matrix: the keys are read once.
    grouped = q.reshape(B, n_kv_heads, -1, d_head)  # (B, n_kv_heads, n_heads // n_kv_heads * T, ..)
    scores = grouped @ k.swapaxes(-1, -2) / math.sqrt(d_head)
    scores = scores.reshape(B, n_heads, T, S)
    weights = softmax(np.where(visible, scores, -np.inf))
    mixed = weights.reshape(B, n_kv_heads, -1, S) @ v
    return mixed.reshape(B, n_heads, T, v.shape[-1])


def split_heads(x: np.ndarray, d_head: int) -> np.ndarray:
    """Cut the last axis into heads and put the heads before the tokens.

    Head h of a token is its numbers h * d_head … (h + 1) * d_head - 1.

    x: (B, T, n_heads * d_head) -> (B, n_heads, T, d_head)
    Example: d_head 2, two tokens [1, 2, 3, 4] and [5, 6, 7, 8] -> head 0 holds [1, 2] and [5, 6],
    head 1 holds [3, 4] and [7, 8].
    Raises ValueError if the last axis is no multiple of d_head.
    """
    B, T, width = x.shape
    if width % d_head:
        raise ValueError(f"the width {width} must be a multiple of d_head={d_head}")
    heads = x.reshape(B, T, width // d_head, d_head)
    return heads.swapaxes(1, 2)  # (B, n_heads, T, d_head)


def merge_heads(heads: np.ndarray) -> np.ndarray:
    """Undo split_heads: the heads of a token side by side again, head 0 first.

    heads: (B, n_heads, T, d_head) -> (B, T, n_heads * d_head)
    Example: two tokens, head 0 holds [1, 2] and [5, 6], head 1 holds [3, 4] and [7, 8] ->
    [1, 2, 3, 4] and [5, 6, 7, 8].
    """
    B, n_heads, T, d_head = heads.shape
    return heads.swapaxes(1, 2).reshape(B, T, n_heads * d_head)


def project(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x @ w, with the tokens of all sequences as the rows of one matrix.

    NumPy would multiply a (B, T, d_in) array sequence by sequence, and read w from memory B times.

    x: (B, T, d_in), w: (d_in, d_out) -> (B, T, d_out)
    """
    rows = x.reshape(-1, x.shape[-1])  # (B * T, d_in)
    return (rows @ w).reshape(*x.shape[:-1], w.shape[-1])


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x) = x / (1 + exp(-x)), element by element; never inf or nan for finite x.

    x: (...) -> (...)
    Example: silu(0) = 0; silu(10) = 9.9995; silu(-10) = -0.00045.
    """
    # exp(89) overflows float32; below -80 silu is 0 to thirty digits, so stop there.
    return x / (1 + np.exp(-np.maximum(x, -80)))


def swiglu(x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray) -> np.ndarray:
    """The gated MLP of Llama: (silu(x w_gate) * x w_up) w_down, every token on its own.

    The star is number by number; the others are matrix products, such as project(x, w_gate).

    x: (B, T, d_model); w_gate, w_up: (d_model, d_ff); w_down: (d_ff, d_model) -> (B, T, d_model)
    Source: Shazeer 2020, "GLU Variants Improve Transformer", section 2.
    """
    return project(silu(project(x, w_gate)) * project(x, w_up), w_down)
