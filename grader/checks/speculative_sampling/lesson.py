"""The name of the lesson that these checks judge, and the laws that they draw."""

from __future__ import annotations

import numpy as np

from grader.judging.compare import Comparison

LESSON = "08_speculative_sampling"

TARGET, DRAFT = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.3, 0.1])  # the lesson's example

LAW = Comparison(
    terms=lambda i: 4 + max(len(v) for v in i.values() if isinstance(v, np.ndarray)),
    magnitude=lambda i: 1.0,
    why="a sum over the vocabulary, a quotient; probabilities are at most 1",
)


def draw_law(rng: np.random.Generator, vocab_size: int) -> np.ndarray:
    """A law without tiny entries, its tokens in no order."""
    weights = rng.uniform(0.2, 1.0, vocab_size) ** 2
    return weights / weights.sum()
