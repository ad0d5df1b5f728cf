"""`python -m inferlab.serve`: the server with the reference's parts, and nothing of the grader.

`inferlab serve` has the same options, and `--mine` on top.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from inferlab.serve.options import add_arguments
from inferlab.serve.run import run_serve


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop. -> exit status; 2: asked wrongly"""
    parser = argparse.ArgumentParser(
        prog="python -m inferlab.serve",
        description="Serve a model over HTTP, as OpenAI's API does.",
    )
    add_arguments(parser)
    try:
        return run_serve(parser.parse_args(argv))
    except (ValueError, OSError) as trouble:
        print(f"inferlab: {trouble}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
