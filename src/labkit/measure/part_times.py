"""How long each component of a forward pass takes on this machine, measured inside the engine."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from inferlab.components import COMPONENTS
from inferlab.model import Model
from labkit.measure.rewire import REFERENCE, Part, wired

REST = "everything else"  # norms, rotations, masks, adding up
WITHIN = {"attention": "attention scores", "swiglu": "MLP"}


def component_times(
    model: Model, n_new: int, n_cached: int = 0, rounds: int = 3
) -> dict[str, float]:
    """Seconds that each of COMPONENTS takes, and REST: medians over some passes of the engine.

    Each pass runs n_new tokens on top of n_cached ones, with logits for the last one only.
    """
    if min(n_new, rounds) < 1 or n_cached < 0:
        raise ValueError(f"{n_new=} and {rounds=} must be at least 1, {n_cached=} at least 0")
    cache = model.new_cache(capacity=n_new + n_cached)
    if n_cached:
        model.next_logits([5] * n_cached, cache)
    tokens = np.full((1, n_new), 5)
    passes = []
    for _ in range(rounds + 1):
        cache.truncate(n_cached)
        passes.append(_one_pass(model, tokens, cache))
    names = [*COMPONENTS, REST]
    return {name: statistics.median(p[name] for p in passes[1:]) for name in names}  # 0 warms up


def _one_pass(model: Model, tokens: np.ndarray, cache: Any) -> dict[str, float]:
    spent = dict.fromkeys([*COMPONENTS, REST], 0.0)
    inside = ["forward"]  # parts being run, outermost first

    def component(name: str) -> str | None:
        """Which component a call counts for; None: it is part of another, or of REST."""
        if name == "project" and inside[-1] in ("self_attention", "forward"):
            return "attention projections" if inside[-1] == "self_attention" else "output head"
        return WITHIN.get(name)

    def wrap(name: str, part: Part) -> Part:
        if name not in ("project", "self_attention", *WITHIN):
            return part

        def timed(*args: Any, **kwargs: Any) -> Any:
            counted = component(name)
            inside.append(name)
            started = perf_counter()
            result = part(*args, **kwargs)
            if counted:
                spent[counted] += perf_counter() - started
            inside.pop()
            return result

        return timed

    forward: Callable = wired(REFERENCE, wrap)["forward"]
    started = perf_counter()
    forward(model.weights, model.config, tokens, cache, last_only=True)
    total = perf_counter() - started
    spent[REST] = max(0.0, total - sum(spent.values()))
    return spent
