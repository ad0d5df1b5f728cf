"""A plan for a model: every device, every number of them that the heads allow, sized in rows.

Lesson 12 makes its table of it with the learner's functions, `inferlab plan` with the reference's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from inferlab.cache_sizes import cache_bytes, grow_and_cap_bytes
from inferlab.capacity import (
    Deployment,
    pass_seconds,
    steady_tpot_s,
    tensor_parallel_sizes,
    users_within,
)
from inferlab.checkpoints.hf_stored import Stored, read_stored
from inferlab.config import ModelConfig
from inferlab.data import ROOT, load_devices
from inferlab.moe_sizes import total_and_active_params
from inferlab.planner import cost_per_million_tokens, first_obstacle
from labkit.plan_options import Workload
from labkit.units import format_bytes

Parts = Mapping[str, Callable[..., Any]]

REFERENCE: Parts = {
    part.__name__: part
    for part in (
        tensor_parallel_sizes,
        first_obstacle,
        users_within,
        steady_tpot_s,
        pass_seconds,
        cost_per_million_tokens,
    )
}
OVERHEAD_SHARE = 0.09  # of a device's memory, for activations, buffers and the runtime


def plan(
    config: ModelConfig,
    usd_per_hour: Mapping[str, float | None],
    workload: Workload,
    parts: Parts = REFERENCE,
    largest: int = 8,
    **more: Any,
) -> list[dict[str, Any]]:
    """Rows for capacity_figures.plan_table and choose_offer, one for each deployment.

    usd_per_hour: ids of data/devices.json, and what an hour of one costs (None: not known).
    parts: the functions of the planner, by name. more: fields of Deployment.
    Raises ValueError for a device that is not known.
    """
    known = load_devices()
    rows = []
    for name, usd in usd_per_hour.items():
        if name not in known:
            raise ValueError(f"no device is called {name!r}; known: {', '.join(known)}")
        device = known[name]
        fields = {
            "precision": "bf16" if device["peak_dense_tflops"]["bf16"] else "fp16",
            "overhead_bytes": OVERHEAD_SHARE * device["memory_gb"] * 1e9,
            "efficiency": 0.7,
            **more,
        }
        for n in parts["tensor_parallel_sizes"](config, largest):
            deployment = Deployment.on(device, config, n, **fields)
            rows.append({"name": f"{n} x {name}", **_row(deployment, workload, parts, usd)})
    return rows


def _row(d: Deployment, workload: Workload, parts: Parts, usd: float | None) -> dict[str, Any]:
    obstacle = parts["first_obstacle"](d, **asdict(workload))
    sizes = {"n_prompt": workload.n_prompt, "n_output": workload.n_output}
    users = 0
    if not obstacle:
        users = parts["users_within"](d, **sizes, tpot_limit_s=workload.tpot_limit_s)
    tpot_s = parts["steady_tpot_s"](d, **sizes, n_sequences=users) if users else None
    cost = None
    if users and usd is not None:
        cost = parts["cost_per_million_tokens"](d, users, tpot_s, usd)
    return {
        "obstacle": obstacle,
        "users": users,
        "ttft_s": max(parts["pass_seconds"](d, workload.n_prompt, 0)) if users else None,
        "tpot_s": tpot_s,
        "usd_per_hour": None if usd is None else d.n_devices * usd,
        "usd_per_million": cost,
    }


# ---- inferlab plan -----------------------------------------------------------------------------


def run_plan(args: argparse.Namespace) -> int:
    """Print what the model is and what each deployment serves. -> 1 where none serves anybody"""
    from labkit.figures.capacity import plan_table

    kept = ROOT / "data" / "configs" / f"{args.config}.json"
    stored = read_stored(kept if kept.is_file() else args.config)
    if args.output < 2 or args.prompt < 1:
        raise ValueError(
            f"--prompt {args.prompt} must be at least 1, --output {args.output} at least 2"
        )
    workload = Workload(args.prompt, args.output, args.ttft, args.tpot)
    print("\n".join(describe(stored, workload.n_prompt + workload.n_output, args.kv_bytes)))
    rows = plan(
        stored.config,
        dict.fromkeys(args.device.split(",")),
        workload,
        largest=args.devices,
        bytes_per_weight=args.weight_bytes or stored.bytes_per_weight,
        bytes_per_number=args.kv_bytes,
        headroom=args.headroom,
        efficiency=args.efficiency,
    )
    print()
    plan_table(rows, f"{workload}; {args.efficiency:.0%} of the rates, prefills in turns")
    if any(row["users"] for row in rows):
        return 0
    print("\nNone of these serves even one user; the last column says what is in the way.")
    return 1


def describe(stored: Stored, n_tokens: int, bytes_per_number: int = 2) -> list[str]:
    """What a model weighs and what its cache takes, in lines for people."""
    config = stored.config
    grow, cap = grow_and_cap_bytes(config, bytes_per_number)
    weights = f"{config.n_params:,} weights"
    if config.n_experts:
        weights += f", {total_and_active_params(config)[1]:,} for one token"
    cache = f"cache: {grow:,} bytes for each token"
    if config.sliding_window is not None:
        n_layers = config.n_window_layers or config.n_layers
        cache += (
            f", and up to {format_bytes(cap)} in {n_layers} layers that keep "
            f"{config.sliding_window:,} tokens"
        )
    one = cache_bytes(config, n_tokens, 1, bytes_per_number)
    cache += f"; {format_bytes(one)} for {n_tokens:,} tokens"
    return [
        f"{weights}; {format_bytes(stored.weight_bytes)} as {stored.format}",
        cache,
        *(f"note: {note}" for note in stored.notes),
    ]
