"""The load test of lesson 12: whose parts serve, what is sent, what stands beside the bounds."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np

from inferlab.tokenizer import Tokenizer
from labkit.measure.device import not_measured
from labkit.units import format_seconds

ASSEMBLE_S = 300


def show_parts() -> int:
    """Print the table of `inferlab assemble`; -> how many parts are the learner's own.

    Only the lessons of which something is yours are printed in full.
    """
    command = [sys.executable, "-m", "grader.cli", "assemble"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASSEMBLE_S)
    if done.returncode:
        print(f"inferlab assemble failed: {done.stderr[-500:]}")
        return 0
    *lessons, last = done.stdout.strip().split("\n\n")
    for block in lessons:
        head, *parts = block.splitlines()
        own = sum(bool(re.search(r" yours\b", line)) for line in parts)
        print(f"{head}: {own} of {len(parts)} yours")
        print("\n".join(parts) if own else f"  all {len(parts)} from the reference")
    print(last)
    return int(last.split()[0])


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
