"""Judge random code by the law of its results, with a stated risk of a false alarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.judging.compare import Comparison, Difference, Raised, as_array, show


@dataclass(frozen=True)
class Law(Comparison):
    """Expected: the probabilities of K outcomes. Got: how often each came up.

    Each frequency is tested by Chernoff's bound, which holds for every n: a right answer strays
    further than KL(frequency || probability) = ln(2 K / false_alarm) / n with at most
    probability false_alarm, over all K outcomes together. How the answer came to its results,
    and how many random numbers it took for them, plays no part.

    An observation may be a dict that holds other things too: arrays are judged by their law,
    everything else exactly. Each law has its own false_alarm.
    """

    false_alarm: float = 1e-6

    def difference(
        self, expected: Any, got: Any, inputs: Mapping[str, Any], where: str = ""
    ) -> Difference | None:
        if not isinstance(expected, np.ndarray) or isinstance(got, Raised):
            return super().difference(expected, got, inputs, where)
        counts = as_array(got)
        law = np.asarray(expected, dtype=np.float64)
        law = law / law.sum()  # counts serve as well: a diagnosis compares two samples
        if counts is None or counts.shape != law.shape or counts.sum() == 0:
            return super().difference(law, got, inputs, where)
        n = int(counts.sum())
        frequency = counts / n
        surprise = n * _divergence(frequency, law)
        limit = float(np.log(2 * law.size / self.false_alarm))
        if (surprise <= limit).all():
            return None
        i = int(np.argmax(surprise))
        return Difference(
            "value",
            (
                f"{where}outcome {i}: expected probability {show(float(law[i]))}   "
                f"got frequency {show(float(frequency[i]))} in {n:,} draws",
                f"  a right answer strays this far with probability below {self.false_alarm:g}",
            ),
        )


def _divergence(frequency: np.ndarray, law: np.ndarray) -> np.ndarray:
    """KL of two coins: (K,), (K,) -> (K,); infinite where the impossible happened."""

    def term(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(a > 0, a * np.log(a / b), 0.0)

    return term(frequency, law) + term(1 - frequency, 1 - law)
