"""What lesson 09 measures: the experts of a model that runs, and who is chosen.

The engine calls inferlab.moe for each mixture. For as long as a with block lasts, what is called
there is exchanged, as a forward hook would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import inferlab.moe
from inferlab.config import ModelConfig
from inferlab.model import Model
from inferlab.weights import LayerWeights, present

Forward = Callable[..., np.ndarray]


@contextmanager
def experts_by(moe_forward: Forward) -> Iterator[None]:
    """Within the block every model runs its experts through this function."""
    with patch("inferlab.moe.moe_forward", moe_forward):
        yield


def router_scores(model: Model, tokens: np.ndarray) -> np.ndarray:
    """What the router of each layer says of each token, in a run of the whole model.

    tokens: (B, T) -> (n_layers with experts, B, T, n_experts)
    """
    seen: list[np.ndarray] = []
    run = inferlab.moe.mixture_of_experts

    def watched(x: np.ndarray, weights: LayerWeights, config: ModelConfig) -> np.ndarray:
        seen.append(x @ present(weights.w_router))
        return run(x, weights, config)

    with patch("inferlab.transformer.mixture_of_experts", watched):
        model.forward(tokens, last_only=True)
    if not seen:
        raise ValueError("this model has no experts; needed: a mixture, such as tiny-moe")
    return np.stack(seen)


def windows(model: Model, text: str, length: int, n: int | None = None) -> np.ndarray:
    """The first n whole windows of a text (None: all), one a row: (n, length) tokens."""
    tokens = np.array(_tokenizer(model).encode(text))
    rows = tokens[: len(tokens) // length * length].reshape(-1, length)
    if len(rows) == 0:
        raise ValueError(f"the text has {len(tokens)} tokens; needed: at least length={length}")
    return rows[:n]


def _tokenizer(model: Model) -> Any:
    if model.tokenizer is None:
        raise ValueError("this model has no tokenizer, and text was given")
    return model.tokenizer


def shares(experts: np.ndarray, n_experts: int) -> np.ndarray:
    """Each expert's share of all choices, layer by layer.

    experts: (n_layers, ..., n_chosen) whole numbers -> (n_layers, n_experts), rows that sum to 1
    """
    counts = [np.bincount(layer.ravel(), minlength=n_experts) for layer in experts]
    return np.stack(counts) / experts[0].size


def entropy_bits(share: np.ndarray) -> np.ndarray:
    """How even each row of shares is: log2(n_experts) where all are alike, 0 where one has all."""
    safe = np.where(share > 0, share, 1)
    return -(safe * np.log2(safe) * (share > 0)).sum(axis=-1)


def distinct(
    experts: np.ndarray, batches: Sequence[int], rng: np.random.Generator, n_draws: int = 400
) -> np.ndarray:
    """Different experts that a batch takes, counted: the mean over random batches, layer by layer.

    Each batch is made of tokens from random places of the text, as if that many users were served.
    experts: (n_layers, n_tokens, n_chosen) -> (n_layers, len(batches))
    """
    n_layers, n_tokens, _ = experts.shape
    means = np.zeros((n_layers, len(batches)))
    for column, batch in enumerate(batches):
        for _ in range(n_draws):
            chosen = experts[:, rng.integers(n_tokens, size=batch)]
            means[:, column] += [len(np.unique(layer)) for layer in chosen]
    return means / n_draws


def distinct_by_shares(share: np.ndarray, n_chosen: int, batches: Sequence[int]) -> np.ndarray:
    """Different experts that a batch takes on average if tokens choose independently, but with
    these shares in place of even ones: (n_layers, n_experts) -> (n_layers, len(batches))

    An expert is taken by a token with probability n_chosen * share.
    """
    missed = 1 - n_chosen * share
    return np.stack([(1 - missed**batch).sum(axis=-1) for batch in batches], axis=-1)
