"""`inferlab serve`: load a model, open a port, answer until told to stop."""

from __future__ import annotations

import argparse
import errno
import signal
import socket
import sys

import uvicorn

from inferlab.engines.choose import load_engine
from inferlab.engines.fast_numpy.model import FastModel
from inferlab.serve.app import Server
from inferlab.serve.engine import ServingEngine
from inferlab.serve.loop import EngineLoop

DRAIN_S = 30  # on SIGTERM: what has begun may take so long to end


def make_server(args: argparse.Namespace, parts: dict[str, str] | None = None) -> Server:
    """The server that these options describe. Raises ValueError for what does not fit together.

    parts: exercise -> "yours" or "reference", for the page.
    """
    model = load_engine(args.model, args.engine, args.device, args.dtype).model
    if isinstance(model, FastModel):
        raise ValueError("--engine fast has no paged cache; numpy and torch can serve")
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
    opened = open_port(args.host, args.port)  # first: what is taken is said before a model is read
    server = make_server(args, parts)
    pool = server.loop.engine.pool
    print(
        f"serving {server.name} at http://{args.host}:{opened.getsockname()[1]}  "
        f"({args.pages} pages of {args.page_size} tokens, "
        f"{args.pages * pool.page_bytes / 1e6:.0f} MB; a live page is at /)",
        file=sys.stderr,
        flush=True,
    )
    # uvicorn raises the signal again once it has drained: that is no reason to die of it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    config = uvicorn.Config(server.app(), log_level="warning", timeout_graceful_shutdown=DRAIN_S)
    uvicorn.Server(config).run(sockets=[opened])
    return 0


def open_port(host: str, port: int) -> socket.socket:
    """Take this port; 0 takes any that is free. Raises ValueError, in plain words, if it is not."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # right after one has ended
    try:
        opened.bind((host, port))
        return opened
    except OSError as error:
        taken = "; another program listens there" if error.errno == errno.EADDRINUSE else ""
        raise ValueError(
            f"cannot open port {port} of {host} ({error.strerror}){taken}. "
            "Choose another with --port N (0: any that is free)"
        ) from None
    except OverflowError:
        raise ValueError(f"--port {port} must be between 0 and 65535") from None
