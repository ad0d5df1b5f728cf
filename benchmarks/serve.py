"""Two load clients against one server: ours, and guidellm. Do they measure the same?

    python -m benchmarks.serve [--rounds N] [--out DIR]     (make bench-serve)

The same server, the same load (evenly spaced requests, random prompts of equal length), one client
after the other, round after round, so that what slows the machine for a while meets both. Their
medians should agree within 20 %. The model is a real one: a step of the course's small models takes
no longer than a client takes for one token, and then the clients' own work is what differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from inferlab.model import load_model
from inferlab.serve import load_guidellm
from inferlab.serve.load_client import load, summary
from inferlab.serve.process import running_server
from labkit.files import write_whole
from labkit.measure.load_test import random_prompts

FIGURES = ("ttft_s", "itl_s", "e2e_s")
AGREE = 0.2
RESULTS = Path(__file__).parent / "results" / "serve"  # apart from those of the engines


def one_round(url: str, model: str, sizes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Both clients, in turn. -> client -> its summary"""
    found: dict[str, Any] = {}
    here = load_model(model)
    assert here.tokenizer is not None, f"{model} came without a tokenizer"
    turns = ("ours", "guidellm") if seed % 2 == 0 else ("guidellm", "ours")
    for client in turns:
        if client == "guidellm":
            found[client] = load_guidellm.run(url, model, here.tokenizer, **sizes)
            continue
        n = sizes["n_requests"]
        arrivals = [i / sizes["rate_per_s"] for i in range(n)]
        prompts: list[Any] = random_prompts(n, sizes["n_prompt"], here.config.vocab_size, seed)
        samples = load(url, prompts, arrivals_s=arrivals, max_tokens=sizes["n_output"])
        found[client] = summary(samples)
    return found


def compared(rounds: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each figure's median by both clients, and the median ratio of a round: ours / guidellm."""
    table = {}
    for name in FIGURES:
        for kind in ("p50", "mean"):
            ours, theirs = (
                [r[client][name][kind] for r in rounds] for client in ("ours", "guidellm")
            )
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            table[f"{name} {kind}"] = {
                "ours": statistics.median(ours),
                "guidellm": statistics.median(theirs),
                "ratio": statistics.median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
            }
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, write the record. 0: the clients agree; 1: they do not; 2: not measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--model", default="smollm2", help="fetched before (default: smollm2)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if load_guidellm.program() is None:
        print('not measured: guidellm is missing (pip install "inferlab[bench]")', file=sys.stderr)
        return 2
    sizes = {
        "rate_per_s": args.rate, "n_requests": args.requests, "n_prompt": 64, "n_output": 16,
    }  # fmt: skip
    rounds, loads = [], [os.getloadavg()[0]]
    # guidellm draws the same prompts every time: kept pages would spare it the later prefills.
    with running_server("--pages", "512", "--no-prefix-cache", model=args.model) as url:
        load(url, ["warm up"], arrivals_s=[0.0], max_tokens=8)
        for number in range(args.rounds):
            rounds.append(one_round(url, args.model, sizes, number))
            loads.append(os.getloadavg()[0])
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    table = compared(rounds)
    failed = sum(r[client]["n_failed"] for r in rounds for client in r)
    agree = all(abs(row["ratio"] - 1) <= AGREE for row in table.values()) and not failed
    record = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(1), "load_average": loads, "guidellm": load_guidellm.version(),
        "model": args.model, "sizes": sizes, "n_failed": failed,
        "agree_within": AGREE, "agree": agree, "compared": table, "rounds": rounds,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"cpu-{os.cpu_count()}-cores.json"
    write_whole(path, json.dumps(record, indent=1) + "\n")
    for name, row in table.items():
        ours, theirs = (1e3 * row[client] for client in ("ours", "guidellm"))
        print(
            f"{name:<11} ours {ours:8.2f} ms   guidellm {theirs:8.2f} ms"
            f"   ratio {row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
        )
    print(f"{'they agree' if agree else 'they DISAGREE'} within {AGREE:.0%}; {path}")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
