"""Lesson 01: the FLOPs of a token and of a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.roofline.lesson import LESSON
from grader.checks.roofline.sizes import draw_config
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.config import ModelConfig
from inferlab.data import model_preset
from inferlab.roofline import body_params, forward_flops, token_flops

LLAMA, QWEN, GPT2 = (model_preset(name) for name in ("llama-3-8b", "qwen3-0.6b", "gpt2"))
EXPERTS = ModelConfig(  # a plain layer, then two with experts; no two sizes are equal
    3, 96, 6, 2, 16, 200, 1000, tied_embeddings=False, mlp_is_gated=False,
    n_experts=9, n_experts_per_token=2, d_expert=56, n_shared_experts=1, n_dense_layers=1,
)  # fmt: skip


def head(c: Any) -> int:
    """Weights of the head, the matrix that gives the logits."""
    return c.d_model * c.vocab_size


def per_key(c: Any) -> int:
    """FLOPs of attention for each key that a token sees: score and weighted value."""
    return 4 * c.n_layers * c.n_heads * c.d_head


def _draw_token(rng: np.random.Generator) -> Inputs:
    config = draw_config(rng, tied_embeddings=True)
    return {"config": config, "n_keys": int(rng.integers(1000, 9000))}


def _token(change: Callable[[Any, int], Any]) -> Callable:
    def answer(config, n_keys):
        if n_keys < 1:
            raise ValueError("n_keys must be at least 1")
        return change(config, n_keys)

    return answer


def _weights(c: Any) -> int:
    return 2 * (body_params(c) + head(c))


def _token_in_parts(c, n):
    """Matrix by matrix, layer by layer."""
    d_query, d_kv = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    widths = [(c.d_model, d_query + 2 * d_kv), (d_query, c.d_model)]
    widths += [(c.d_model, c.d_ff)] * (2 if c.mlp_is_gated else 1) + [(c.d_ff, c.d_model)]
    total = 2 * c.d_model * c.vocab_size
    for _ in range(c.n_layers):
        total += sum(2 * d_in * d_out for d_in, d_out in widths)
        total += sum(2 * c.d_head * n + 2 * n * c.d_head for _ in range(c.n_heads))
    return total


TOKEN = Exercise(
    id="token_flops",
    reference=token_flops,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=3,
    hints=(
        "Two sums: what the weights cost, which is the same for every token, and what attention "
        "costs, which grows with n_keys.",
        "Weights: 2 * (body_params(config) + d_model * vocab_size). Attention: 2 * d_head for a "
        "score and 2 * d_head for a value, for each key, in each query head of each layer.",
        "2 * (body_params(config) + d_model * vocab_size) + 4 * n_layers * n_heads * d_head * "
        "n_keys, after the check of n_keys.",
    ),
    cases=(
        given("Llama-3-8B, the first token", config=LLAMA, n_keys=1),
        given("Llama-3-8B, 8,192 keys", config=LLAMA, n_keys=8192),
        given("Qwen3-0.6B: tied, d_head 128", config=QWEN, n_keys=500),
        given("GPT-2: no gate", config=GPT2, n_keys=1024),
        given("experts", config=EXPERTS, n_keys=7),
        given("no key at all", config=LLAMA, n_keys=0),
    ),
    draw=_draw_token,
    wrong={
        "2 for each trained number: the embedding is a look-up, and attention comes on top": _token(
            lambda c, n: 2 * c.n_params
        ),
        "the embedding is multiplied too: it is only looked up": _token(
            lambda c, n: _weights(c) + 2 * head(c) + per_key(c) * n
        ),
        "the head is left out: it is a matrix like any other": _token(
            lambda c, n: 2 * body_params(c) + per_key(c) * n
        ),
        "a tied head is left out: the same numbers, but a product all the same": _token(
            lambda c, n: (
                2 * body_params(c) + (not c.tied_embeddings) * 2 * head(c) + per_key(c) * n
            )
        ),
        "1 for each weight: a multiply and an add are two": _token(
            lambda c, n: _weights(c) // 2 + per_key(c) * n
        ),
        "attention is left out: it grows with n_keys": _token(lambda c, n: _weights(c)),
        "scores or values alone: attention does both, 2 * d_head each": _token(
            lambda c, n: _weights(c) + per_key(c) // 2 * n
        ),
        "KV heads in place of query heads: every query head computes its own scores": _token(
            lambda c, n: _weights(c) + 4 * c.n_layers * c.n_kv_heads * c.d_head * n
        ),
        "d_model in place of n_heads * d_head": _token(
            lambda c, n: _weights(c) + 4 * c.n_layers * c.d_model * n
        ),
        "the attention of one layer only": _token(
            lambda c, n: _weights(c) + per_key(c) // c.n_layers * n
        ),
        "every token against every other: one token sees n_keys keys": _token(
            lambda c, n: _weights(c) + per_key(c) * n * n
        ),
        "one key too many: n_keys counts the token's own already": _token(
            lambda c, n: _weights(c) + per_key(c) * (n + 1)
        ),
        "n_keys of 0 is accepted: a token sees at least itself": lambda config, n_keys: (
            _weights(config) + per_key(config) * n_keys
        ),
        "a dense model's matrices written out: body_params counts the experts that a token takes": (
            _token(_token_in_parts)
        ),
        "config.n_params, gains and embedding too: what multiplies is body_params and the head": (
            _token(lambda c, n: 2 * c.n_params + per_key(c) * n)
        ),
    },
    right={
        "layer by layer": _token(
            lambda c, n: _weights(c) + sum(n * per_key(c) // c.n_layers for _ in range(c.n_layers))
        ),
        "in NumPy's 64-bit integers": _token(
            lambda c, n: np.int64(2) * (body_params(c) + head(c))
            + np.prod([4, c.n_layers, c.n_heads, c.d_head, n], dtype=np.int64)
        ),
        "twice the multiplies": _token(
            lambda c, n: 2 * (body_params(c) + head(c) + 2 * c.n_layers * c.n_heads * c.d_head * n)
        ),
    },
)  # fmt: skip

# ---- a pass -------------------------------------------------------------------------------------


def _draw_pass(rng: np.random.Generator) -> Inputs:
    n_new, n_cached = int(rng.integers(3, 40)), int(rng.integers(300, 900))
    return {"config": draw_config(rng), "n_new": n_new, "n_cached": n_cached}


def _forward(change: Callable[[Any, int, int], Any]) -> Callable:
    def answer(config, n_new, n_cached=0):
        if n_new < 1 or n_cached < 0:
            raise ValueError("n_new must be 1 or more, n_cached 0 or more")
        return change(config, n_new, n_cached)

    return answer


def _pass(c: Any, n_new: int, pairs: float, n_heads_run: int = 1) -> Any:
    """Weights for n_new tokens, the head for n_heads_run, attention for so many query-key pairs."""
    return 2 * body_params(c) * n_new + 2 * head(c) * n_heads_run + per_key(c) * pairs


def _pairs(n_new: int, n_cached: int) -> int:
    return n_new * n_cached + n_new * (n_new + 1) // 2


def _forward_numpy(c, n_new, n_cached):
    seen = np.arange(n_cached + 1, n_cached + n_new + 1, dtype=np.int64)
    return 2 * body_params(c) * n_new + 2 * head(c) + per_key(c) * seen.sum()


FORWARD = Exercise(
    id="forward_flops",
    reference=forward_flops,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=3,
    uses=("token_flops",),
    hints=(
        "Add up token_flops over the new tokens, each with the keys it sees; then take away what "
        "is not done.",
        "Token i of the new ones (i = 0, 1, …) sees n_cached + i + 1 keys. The head runs once, "
        "so n_new - 1 heads of 2 * d_model * vocab_size FLOPs come off.",
        "sum(token_flops(config, n_cached + i + 1) for i in range(n_new)) - (n_new - 1) * 2 * "
        "d_model * vocab_size, after the check of both counts.",
    ),
    cases=(
        given("the worked example", config=LLAMA, n_new=2, n_cached=5),
        given("a prefill of 2,000 tokens", config=LLAMA, n_new=2000),
        given("a decode step on 8,191 tokens", config=LLAMA, n_new=1, n_cached=8191),
        given("GPT-2, a prefill", config=GPT2, n_new=100),
        given("experts", config=EXPERTS, n_new=3, n_cached=4),
        given("no new token", config=LLAMA, n_new=0, n_cached=5),
        given("a negative cache", config=LLAMA, n_new=1, n_cached=-1),
    ),
    draw=_draw_pass,
    wrong={
        "the head for every token: only the last one's logits are needed": _forward(
            lambda c, n, k: _pass(c, n, _pairs(n, k), n)
        ),
        "no head at all: the last token's logits are needed": _forward(
            lambda c, n, k: _pass(c, n, _pairs(n, k), 0)
        ),
        "2 for each trained number and token: no attention, the embedding, too many heads": (
            _forward(lambda c, n, k: 2 * c.n_params * n)
        ),
        "attention is left out": _forward(lambda c, n, k: _pass(c, n, 0)),
        "every new token sees all: token i sees n_cached + i + 1 keys (causal)": _forward(
            lambda c, n, k: _pass(c, n, n * (k + n))
        ),
        "the cached tokens are not seen": _forward(lambda c, n, k: _pass(c, n, _pairs(n, 0))),
        "only the cached tokens are seen: the new ones see each other too": _forward(
            lambda c, n, k: _pass(c, n, n * k)
        ),
        "a token does not see itself: its own key counts": _forward(
            lambda c, n, k: _pass(c, n, _pairs(n, k) - n)
        ),
        "half of the square: n (n + 1) / 2 pairs, as a token sees itself": _forward(
            lambda c, n, k: _pass(c, n, n * k + n * n / 2)
        ),
        "the cached tokens are run again: their keys and values are kept": _forward(
            lambda c, n, k: _pass(c, n + k, _pairs(n + k, 0))
        ),
        "every token costs as much as the last": _forward(
            lambda c, n, k: _pass(c, n, n * (k + n), n)
        ),
        "no check: n_new of 0, or a negative cache, must be refused": (
            lambda config, n_new, n_cached=0: _pass(config, n_new, _pairs(n_new, n_cached))
        ),
    },
    right={
        "token by token": _forward(
            lambda c, n, k: sum(token_flops(c, k + i + 1) for i in range(n)) - (n - 1) * 2 * head(c)
        ),
        "an array of the keys seen": _forward(_forward_numpy),
        "the triangle and the rectangle": _forward(lambda c, n, k: _pass(c, n, _pairs(n, k))),
    },
)
