"""`inferlab serve`: load a model, open a port, answer until told to stop."""

from __future__ import annotations

import argparse
import signal
import sys

import uvicorn

from inferlab.model import load_model
from inferlab.serve.app import Server
from inferlab.serve.loop import EngineLoop
from inferlab.serving import ServingEngine

DRAIN_S = 30  # on SIGTERM: what has begun may take so long to end


def make_server(args: argparse.Namespace, parts: dict[str, str] | None = None) -> Server:
    """The server that these options describe. Raises ValueError for what does not fit together.

    parts: exercise -> "yours" or "reference", for the page.
    """
    model = load_model(args.model)
    if model.tokenizer is None:
        raise ValueError(f"{args.model} came without a tokenizer; a server needs one")
    engine = ServingEngine(
        model,
        n_pages=args.pages,
        page_size=args.page_size,
        token_budget=args.token_budget,
        max_running=args.max_running,
        use_prefix_cache=not args.no_prefix_cache,
    )
    loop = EngineLoop(engine, args.max_waiting)
    return Server(loop, model.tokenizer, args.served_name or str(args.model), parts or {})


def run_serve(args: argparse.Namespace, parts: dict[str, str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; then end what has begun. -> exit code"""
    server = make_server(args, parts)
    pool = server.loop.engine.pool
    print(
        f"serving {server.name} at http://{args.host}:{args.port}  "
        f"({args.pages} pages of {args.page_size} tokens, "
        f"{args.pages * pool.page_bytes / 1e6:.0f} MB; a live page is at /)",
        file=sys.stderr,
        flush=True,
    )
    # uvicorn raises the signal again once it has drained: that is no reason to die of it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        server.app(),
        host=args.host,
        port=args.port,
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_S,
    )
    return 0
