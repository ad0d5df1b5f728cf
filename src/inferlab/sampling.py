"""From logits to a token: the law that is sampled from, and the draw.

A *law* here is a probability distribution over the vocabulary, an array (vocab_size,) that sums to
1. The filters take a law and give a law. They are applied in one fixed order: temperature, top-k,
top-p, min-p, each on the renormalised result of the one before.

Source: Fan et al. 2018 (arXiv 1805.04833), top-k; Holtzman et al. 2020 (arXiv 1904.09751), top-p;
Nguyen et al. 2025 (arXiv 2407.01082), min-p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

LawOf = Callable[[np.ndarray], np.ndarray]
"""Logits (vocab_size,) -> the law to sample from (vocab_size,): one setting of sampling_law."""

PREFILL_CHUNK = 512  # tokens a pass: bounds the score matrix, however long the prompt


class Engine(Protocol):
    """What is needed of a model: Model, FastModel, TorchModel and the like."""

    @property
    def config(self) -> Any: ...
    def new_cache(self, capacity: int = ...) -> Any: ...
    def forward(self, tokens: Any, cache: Any = ..., last_only: bool = ...) -> Any: ...
    def next_logits(self, tokens: Sequence[int], cache: Any = ...) -> np.ndarray: ...


def temperature_law(logits: np.ndarray, temperature: float) -> np.ndarray:
    """The softmax of logits / temperature; at temperature 0 the law of greedy decoding.

    Above 0: law[i] is proportional to exp(logits[i] / temperature). Subtract the largest logit
    first, so that nothing overflows. A logit may be -inf: its probability is 0.
    At 0: all the mass on the largest logit; where several are largest, on the first of them.

    logits: (vocab_size,) -> law (vocab_size,), float64
    Example: logits log 1, log 4, log 2: temperature 1 -> 1/7, 4/7, 2/7; temperature 0.5 ->
    1/21, 16/21, 4/21; temperature 0 -> 0, 1, 0.
    Raises ValueError for a negative temperature.
    """
    if temperature < 0:
        raise ValueError(f"temperature must be 0 or more, given {temperature}")
    logits = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        law = np.zeros(len(logits))
        law[np.argmax(logits)] = 1
        return law
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def keep_top_k(law: np.ndarray, k: int) -> np.ndarray:
    """Keep the k most probable tokens, set the others to 0, and renormalise.

    Exactly k are kept: of tokens that are equally probable, the lower ids come first. A k of
    vocab_size or more keeps all. Every token stays at its own place: index i is token i.

    law: (vocab_size,), sums to 1 -> (vocab_size,), sums to 1
    Example: law 0.2, 0.4, 0.2, 0.2 with k = 2 -> 1/3, 2/3, 0, 0.
    Raises ValueError if k is below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, given {k}")
    best = np.argsort(-law, kind="stable")[:k]  # most probable first; the lower id first on ties
    kept = np.zeros(len(law))
    kept[best] = law[best]
    return kept / kept.sum()


def keep_top_p(law: np.ndarray, top_p: float) -> np.ndarray:
    """Keep the smallest set of most probable tokens whose mass reaches top_p, and renormalise.

    Go through the tokens from the most probable on (the lower id first where two are equal) and
    keep them until the sum of what is kept is top_p or more. The token that crosses the threshold
    is kept, so at least one token always is. top_p = 1 keeps all.

    law: (vocab_size,), sums to 1 -> (vocab_size,), sums to 1
    Example: law 0.3, 0.5, 0.05, 0.15: top_p 0.7 keeps 0.5 and 0.3 -> 0.375, 0.625, 0, 0;
    top_p 0.1 keeps 0.5 alone -> 0, 1, 0, 0.
    Raises ValueError unless 0 < top_p <= 1.
    Source: Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.
    """
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, given {top_p}")
    if top_p == 1:
        return law / law.sum()
    order = np.argsort(-law, kind="stable")  # most probable first; the lower id first on ties
    n_before = int(np.searchsorted(np.cumsum(law[order]), top_p))  # sums that are below top_p
    best = order[: n_before + 1]  # and the token that crosses
    kept = np.zeros(len(law))
    kept[best] = law[best]
    return kept / kept.sum()


def keep_min_p(law: np.ndarray, min_p: float) -> np.ndarray:
    """Keep the tokens at least min_p times as probable as the most probable one; renormalise.

    The threshold moves with the law: where the model is sure, few tokens pass, where it is not,
    many do. A token exactly at the threshold is kept; min_p = 0 keeps all.

    law: (vocab_size,), sums to 1 -> (vocab_size,), sums to 1
    Example: law 0.5, 0.25, 0.125, 0.125 with min_p = 0.5: the threshold is 0.25 -> 2/3, 1/3, 0, 0.
    Raises ValueError unless 0 <= min_p <= 1.
    Source: Nguyen et al. 2025 (arXiv 2407.01082), section 3.
    """
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p must be between 0 and 1, given {min_p}")
    kept = np.where(law >= min_p * law.max(), law, 0)
    return kept / kept.sum()


def sampling_law(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray:
    """The law that is really sampled from: temperature first, then top-k, then top-p, then min-p.

    Each filter works on the renormalised law that the one before has left. top_k None, top_p 1
    and min_p 0 are off.

    logits: (vocab_size,) -> law (vocab_size,)
    Example: logits log 4, log 3, log 2, log 1, top_k 2, top_p 0.55: top-k leaves 4/7 and 3/7; the
    first is above 0.55 already -> 1, 0, 0, 0. (Of the unfiltered law it would be 0.4.)
    Raises ValueError where one of the steps does.
    """
    law = temperature_law(logits, temperature)
    if top_k is not None:
        law = keep_top_k(law, top_k)
    return keep_min_p(keep_top_p(law, top_p), min_p)


def draw_token(law: np.ndarray, uniform: float) -> int:
    """The token that a uniform number in [0, 1) stands for: the inverse of the cumulative law.

    Line the tokens up by id, each as long as its probability; the answer is the token on whose
    piece `uniform` lies. A piece begins at its left end and ends just before its right end, so it
    is the first token whose cumulative sum is larger than `uniform`. Cumulative sums may end just
    below 1 by rounding: what lies beyond belongs to the last token of the law that is not 0. A
    token of probability 0 must never be drawn.

    law: (vocab_size,), sums to 1; 0 <= uniform < 1 -> a token id
    Example: law 0.25, 0.5, 0.25: uniform 0.2 -> 0; 0.25 -> 1; 0.7 -> 1; 0.75 -> 2.
    """
    token = np.searchsorted(np.cumsum(law), uniform, side="right")
    return int(min(token, np.flatnonzero(law)[-1]))


def prefilled(model: Engine, tokens: Sequence[int], capacity: int = 16) -> Any:
    """A cache of `model` that holds all of `tokens` but the last, which is still to be run.

    Raises ValueError where there is no token at all.
    """
    if len(tokens) == 0:
        raise ValueError("the prompt has no tokens; at least 1 is needed")
    cache = model.new_cache(max(capacity, len(tokens)))
    for start in range(0, len(tokens) - 1, PREFILL_CHUNK):
        model.next_logits(tokens[start : min(start + PREFILL_CHUNK, len(tokens) - 1)], cache)
    return cache


def sampled_tokens(
    model: Engine, prompt: Sequence[int], n_new: int, law_of: LawOf, rng: np.random.Generator
) -> Iterator[int]:
    """Yield n_new tokens, one for each pass, each drawn from law_of(its logits)."""
    cache = prefilled(model, prompt, len(prompt) + n_new)
    token = prompt[-1]
    for _ in range(n_new):
        token = draw_token(law_of(model.next_logits([token], cache)), rng.random())
        yield token
