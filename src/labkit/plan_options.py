"""The options of `inferlab plan`: apart from the planner, so that other verbs start quickly."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from labkit.units import format_seconds


@dataclass(frozen=True)
class Workload:
    """What users send, and what they were promised."""

    n_prompt: int = 1024
    n_output: int = 500
    ttft_limit_s: float = 0.5
    tpot_limit_s: float = 0.040

    def __str__(self) -> str:
        ttft, tpot = map(format_seconds, (self.ttft_limit_s, self.tpot_limit_s))
        sizes = f"{self.n_prompt:,} tokens in, {self.n_output:,} out"
        return f"{sizes}, TTFT within {ttft}, TPOT within {tpot}"


DEVICES = "l40s,a100-80-sxm,h100-sxm,h200-sxm,mi300x,b200-sxm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    asked = Workload()
    parser.add_argument("config", help="a config.json, its folder, or a name in data/configs")
    parser.add_argument(
        "--device",
        default=DEVICES,
        metavar="ID,ID,...",
        help=f"of data/devices.json (default: {DEVICES})",
    )
    for name, default, what in (
        ("--prompt", asked.n_prompt, "tokens in a prompt"),
        ("--output", asked.n_output, "tokens in an answer"),
        ("--devices", 8, "most devices that share one copy"),
        ("--kv-bytes", 2, "bytes of a number in the cache: 2, or 1 for FP8"),
    ):
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"{what} (default: {default})"
        )
    for name, value, what in (
        ("--ttft", asked.ttft_limit_s, "longest wait for the first token, in seconds"),
        ("--tpot", asked.tpot_limit_s, "longest time for each other one, in seconds"),
        ("--headroom", 0.0, "share of memory that stays free"),
        ("--efficiency", 0.7, "share of the data sheet's rates that is reached"),
    ):
        parser.add_argument(
            name, type=float, default=value, metavar="X", help=f"{what} (default: {value})"
        )
    parser.add_argument(
        "--weight-bytes", type=float, metavar="X", help="bytes of a weight (default: as stored)"
    )
