"""The options that choose an engine: apart from the engines, so that a parser is quick to make."""

from __future__ import annotations

import argparse

from inferlab.device import DEVICES, DTYPES

ENGINES = ("auto", "numpy", "fast", "torch")


def add_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """--engine, --device and --dtype; several: dtypes may be a list with commas."""
    parser.add_argument(
        "--engine",
        default="auto",
        choices=ENGINES,
        help="default: numpy for float32 on the cpu, else torch",
    )
    parser.add_argument("--device", default="cpu", choices=("auto", *DEVICES), help="default: cpu")
    if several:
        parser.add_argument(
            "--dtype", default="float32", metavar="D,D,...", help=f"of {', '.join(DTYPES)}"
        )
    else:
        parser.add_argument("--dtype", default="float32", choices=DTYPES, help="default: float32")
