"""The record of one run: samples as they come, and what follows from them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plan import BASELINE, VARIANTS, Sizes
from labkit.files import write_whole

RATES = ("decode", "prefill", "batch")  # tokens a second each


@dataclass
class Record:
    """Everything that a run has measured so far.

    samples: metric -> variant -> one number a round (None where that round failed to give one).
    """

    machine: dict[str, Any]
    model: str
    sizes: Sizes
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    samples: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    bounds: dict[str, list[float]] = field(default_factory=dict)
    lookup: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    load: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    load_average: list[float] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)  # how long each round took
    bytes_per_token: dict[str, int] = field(default_factory=dict)
    agreement: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    def add(self, metric: str, variant: str, value: float | None) -> None:
        """One sample of one round; None where the round gave none."""
        self.samples.setdefault(metric, {}).setdefault(variant, []).append(value)

    def as_json(self) -> dict[str, Any]:
        """The whole record with its summary, as plain data."""
        return {"summary": self.summary(), **asdict(self)}

    def summary(self) -> dict[str, Any]:
        """Medians, spread and ratios: what the table in the README shows."""
        bandwidth = best_bandwidth(self.bounds)
        rates = {
            metric: {
                name: summary_of(values, self.samples[metric].get(BASELINE, []))
                for name, values in self.samples[metric].items()
                if any(value is not None for value in values)
            }
            for metric in RATES
            if metric in self.samples
        }
        for name, found in rates.get("decode", {}).items():
            if bandwidth and name in self.bytes_per_token:
                read = found["median"] * self.bytes_per_token[name]
                found["share_of_bandwidth"] = read / bandwidth
        return {
            **rates,
            "bandwidth_bytes_per_s": bandwidth,
            "bounds": {name: statistics.median(values) for name, values in self.bounds.items()},
            "lookup": {kind: _lookup_summary(answers) for kind, answers in self.lookup.items()},
            "load": load_summary(self.load),
        }

    def write(self, path: Path) -> None:
        """Write all of it, in one move: a reader never sees half a file."""
        write_whole(path, json.dumps(self.as_json(), indent=1) + "\n")


def summary_of(
    samples: Sequence[float | None], baseline: Sequence[float | None]
) -> dict[str, float]:
    """Median and spread of samples, and the median of their ratios to the baseline's.

    Ratios are taken round by round: what slows the machine down for a while slows both.
    """
    summary = _spread([value for value in samples if value is not None])
    ratios = [a / b for a, b in zip(samples, baseline, strict=False) if a and b]
    if ratios:
        found = _spread(ratios)
        summary |= {
            "ratio": found["median"],
            "ratio_low": found["low"],
            "ratio_high": found["high"],
        }
    return summary


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, high = min(values), max(values)
    return {"median": statistics.median(values), "low": low, "high": high, "n": len(values)}


def best_bandwidth(bounds: dict[str, list[float]]) -> float | None:
    """The fastest way found to read float32 weights, by its median over the rounds."""
    medians = [
        statistics.median(values)
        for name, values in bounds.items()
        if name.endswith("bytes_per_s") and values
    ]
    return max(medians, default=None)


def _lookup_summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "speedup": statistics.median(a["speedup"] for a in answers),
        "acceptance": statistics.median(a["acceptance"] for a in answers),
        "identical": all(a["identical"] for a in answers),
        "n": len(answers),
    }


def load_summary(load: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians for each loader, and how the first compares with the second."""
    medians: dict[str, Any] = {
        who: {key: statistics.median(a[key] for a in answers) for key in answers[0]}
        for who, answers in load.items()
        if answers
    }
    if {"inferlab", "transformers"} <= medians.keys():
        ours, theirs = medians["inferlab"], medians["transformers"]
        medians["times_as_fast"] = theirs["load_s"] / ours["load_s"]
        medians["share_of_memory"] = ours["peak_bytes"] / theirs["peak_bytes"]
    return medians


def compare_logits(logits: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """How far next-token distributions are from the reference's: both (n, vocab_size).

    kl: mean over positions of the Kullback-Leibler divergence, in nats; agreement: share of
    positions with the same first choice; largest difference of two logits.
    """
    ours, theirs = (_log_softmax(x.astype(np.float64)) for x in (logits, reference))
    return {
        "kl": float((np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean()),
        "agreement": float((ours.argmax(axis=-1) == theirs.argmax(axis=-1)).mean()),
        "largest_difference": float(np.abs(logits - reference).max()),
    }


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def label(name: str) -> str:
    """What a variant is called in a table."""
    return next(v.label for v in VARIANTS if v.name == name)
