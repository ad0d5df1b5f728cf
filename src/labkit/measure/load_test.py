"""The load test of lesson 12: what is sent, and what stands beside the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferlab.tokenizer import Tokenizer
from labkit.measure.device import not_measured
from labkit.units import format_seconds


def random_prompts(n: int, n_tokens: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """n prompts of n_tokens token ids each. None shares a prefix worth a page with another."""
    rng = np.random.default_rng(seed)
    return rng.integers(10, vocab_size, size=(n, n_tokens)).tolist()


def beside_bounds(measured: dict[str, float], bounds: dict[str, float]) -> None:
    """Print seconds measured beside their lower bounds, and the share of the bound."""
    for name, seconds in measured.items():
        bound = bounds[name]
        print(
            f"{name:<34} {format_seconds(seconds):>9}   bound {format_seconds(bound):>9}   "
            f"the bound is {bound / seconds:.0%} of it"
        )


def public_client(url: str, model: str, tokenizer: Tokenizer, **load: Any) -> dict[str, Any] | None:
    """guidellm's figures for the same server; None, and why, where it cannot be run."""
    from inferlab.serve import load_guidellm

    if load_guidellm.program() is None:
        not_measured('by a public client: pip install "inferlab[bench]" brings guidellm')
        return None
    try:
        return load_guidellm.run(url, model, tokenizer, **load)
    except RuntimeError as error:
        not_measured(f"by a public client: {error}")
        return None


def compare_clients(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Print two clients' medians side by side."""
    for name in ("ttft_s", "itl_s", "e2e_s"):
        a, b = ours[name]["p50"], theirs[name]["p50"]
        both = f"ours {format_seconds(a):>8}   guidellm {format_seconds(b):>8}"
        print(f"{name:<7} {both}   ratio {a / b:.2f}")
