"""The command `inferlab generate`: an answer as it comes, and one line of timing."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferlab.commands import speculate as speculate_cli
from inferlab.engines.choose import load_engine
from inferlab.engines.fast_numpy.model import FastModel
from inferlab.generate import Stop, encode_prompt, stream_tokens, tokenizer_of
from inferlab.model import Model
from inferlab.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from inferlab.engines.pytorch.model import TorchModel


@dataclass(frozen=True)
class Timing:
    """Seconds of one generation, measured from the start of the prefill."""

    n_prompt: int
    n_new: int
    ttft_s: float  # time to first token
    total_s: float

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: n - 1 steps; None for a single token."""
        return (self.total_s - self.ttft_s) / (self.n_new - 1) if self.n_new > 1 else None

    def line(self, where: str = "cpu, float32", bytes_per_s: float = 0, step_bytes: int = 0) -> str:
        """One line for people.

        where: device and number format. With the bandwidth and the bytes that a step reads: the
        share of the fastest pace at which memory could deliver them.
        """
        tpot = self.tpot_s
        pace = "TPOT - (one token)"
        if tpot is not None:
            pace = f"TPOT {1e3 * tpot:.1f} ms over {self.n_new - 1} steps, {1 / tpot:.1f} tokens/s"
            if step_bytes and bytes_per_s:
                share = step_bytes / bytes_per_s / tpot
                pace += f" = {share:.0%} of what {bytes_per_s / 1e9:.1f} GB/s allow"
        return (
            f"{self.n_prompt} prompt + {self.n_new} new tokens: TTFT {1e3 * self.ttft_s:.0f} ms, "
            f"{pace} ({where})"
        )


def run_generate(args: argparse.Namespace) -> int:
    """`inferlab generate "text" [--model M] [--max-new-tokens N] [--raw] ...` -> exit code.

    args: text, model, max_new_tokens, raw, and device, dtype, engine as for engines.load_engine.
    The answer goes to stdout as it comes, one line of timing to stderr; an error is one line on
    stderr and exit code 1 (2 for a wrong argument).
    """
    if args.max_new_tokens < 1:
        print(
            f"inferlab: --max-new-tokens {args.max_new_tokens} must be at least 1", file=sys.stderr
        )
        return 2
    try:
        engine = load_engine(args.model, args.engine, args.device, args.dtype)
        timing, stop = _print_answer(engine.model, args)
    except (ValueError, OSError) as error:
        print(f"inferlab: {error}", file=sys.stderr)
        return 1
    if stop.startswith("the context"):
        print(f"stopped: {stop}", file=sys.stderr)
    n_cached = timing.n_prompt + timing.n_new // 2  # the middle step
    bandwidth = engine.bandwidth() if timing.n_new > 1 else 0
    print(timing.line(engine.where, bandwidth, engine.step_bytes(n_cached)), file=sys.stderr)
    if hasattr(args, "speculation"):
        print(args.speculation, file=sys.stderr)
    return 0


def _print_answer(
    model: Model | FastModel | TorchModel, args: argparse.Namespace
) -> tuple[Timing, Stop]:
    tokenizer = tokenizer_of(model)
    prompt = encode_prompt(tokenizer, args.text, chat=not args.raw)
    decoder = StreamDecoder(tokenizer)
    started = time.perf_counter()
    arrivals: list[float] = []
    stop = Stop("")
    tokens = (
        speculate_cli.stream_tokens(model, prompt, args)
        if speculate_cli.asked_for(args)
        else stream_tokens(model, prompt, args.max_new_tokens)
    )
    for token in tokens:
        if isinstance(token, Stop):
            stop = token
            # An end-of-text token took a step like any other.
            if stop == "end of text":
                arrivals.append(time.perf_counter())
        else:
            arrivals.append(time.perf_counter())
            print(decoder.push(token), end="", flush=True)
    print(decoder.flush(), flush=True)
    return Timing(len(prompt), len(arrivals), arrivals[0] - started, arrivals[-1] - started), stop
