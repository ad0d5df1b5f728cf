"""The options of a server: apart from it, so that other verbs of `inferlab` start quickly."""

from __future__ import annotations

import argparse

from inferlab.engines.options import add_arguments as engine_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options but `--mine`, which `inferlab serve` adds."""
    parser.add_argument("--model", default="smollm2", help="a name or a path (default: smollm2)")
    parser.add_argument("--host", default="127.0.0.1", help="default: this machine only")
    parser.add_argument("--port", type=int, default=8000, metavar="N")
    parser.add_argument("--served-name", metavar="NAME", help="what clients call the model")
    parser.add_argument("--pages", type=int, default=1024, metavar="N", help="pages of the cache")
    parser.add_argument("--page-size", type=int, default=16, metavar="N", help="tokens a page")
    parser.add_argument("--max-running", type=int, default=16, metavar="N", help="largest batch")
    parser.add_argument("--token-budget", type=int, default=256, metavar="N", help="tokens a pass")
    parser.add_argument("--max-waiting", type=int, default=64, metavar="N", help="then: 429")
    parser.add_argument("--no-prefix-cache", action="store_true")
    engine_options(parser)
