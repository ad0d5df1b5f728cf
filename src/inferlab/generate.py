"""Greedy generation: the plain loop, and the stream behind `inferlab generate`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inferlab.engines import load_engine
from inferlab.model import Model

if TYPE_CHECKING:
    from inferlab.torch_engine import TorchModel
from inferlab.tokenizer import StreamDecoder, Tokenizer

PREFILL_CHUNK = 512  # tokens a pass: bounds the score matrix at 512 rows, however long the prompt


def generate_uncached(model: Model, prompt: Sequence[int], n_new: int) -> list[int]:
    """Greedy generation that remembers nothing: every step runs the whole text again.

    Greedy: the next token is the index of the largest logit.

    prompt: at least one token id; n_new >= 0 -> the n_new generated ids, without the prompt
    Step i runs len(prompt) + i tokens, so n steps cost about n * len(prompt) + n² / 2 tokens.
    """
    tokens = list(prompt)
    for _ in range(n_new):
        logits = model.next_logits(tokens)  # (vocab_size,)
        tokens.append(int(np.argmax(logits)))
    return tokens[len(prompt) :]


class Stop(str):
    """Why a generation ended: a short text to show."""


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


def stream_tokens(
    model: Model | TorchModel, prompt: Sequence[int], max_new_tokens: int
) -> Iterator[int | Stop]:
    """Yield greedy tokens as they come, with a KV cache; at the end one Stop that says why.

    An end-of-text token is not yielded. The text ends at the latest when the context is full.

    Raises ValueError for an empty prompt, or one longer than the context (both numbers are named).
    """
    config = model.config
    if len(prompt) == 0:
        raise ValueError("the prompt has no tokens; at least 1 is needed")
    if len(prompt) > config.max_context:
        raise ValueError(
            f"the prompt has {len(prompt):,} tokens, more than max_context={config.max_context:,}; "
            "shorten it"
        )
    cache: Any = model.new_cache(capacity=min(len(prompt) + max_new_tokens, config.max_context))
    for start in range(0, len(prompt), PREFILL_CHUNK):
        logits = model.next_logits(prompt[start : start + PREFILL_CHUNK], cache)
    for _ in range(max_new_tokens):
        token = int(np.argmax(logits))
        if token in (model.tokenizer.eos_ids if model.tokenizer else config.eos_ids):
            yield Stop("end of text")
            return
        yield token
        if cache.n_tokens == config.max_context:
            yield Stop(f"the context of {config.max_context:,} tokens is full")
            return
        logits = model.next_logits([token], cache)
    yield Stop("max_new_tokens")


def encode_prompt(tokenizer: Tokenizer, text: str, chat: bool) -> list[int]:
    """Token ids of a prompt: as a question in the model's chat form, or as plain text to go on."""
    return tokenizer.chat_prompt(text) if chat else tokenizer.encode(text)


def stream(
    model: Model | TorchModel, prompt_text: str, max_new_tokens: int = 64, chat: bool = True
) -> Iterator[str]:
    """Yield the model's answer piece by piece; never half a character.

    Ends at the end-of-text token, after max_new_tokens, or, with a last piece in brackets that
    says so, where the context is full.

    Raises ValueError for a model without a tokenizer, an empty prompt, or one that is too long.
    """
    tokenizer = _tokenizer_of(model)
    prompt = encode_prompt(tokenizer, prompt_text, chat)
    decoder = StreamDecoder(tokenizer)
    for token in stream_tokens(model, prompt, max_new_tokens):
        if not isinstance(token, Stop):
            yield decoder.push(token)
        elif token.startswith("the context"):
            yield f"{decoder.flush()} [{token}]"
        else:
            yield decoder.flush()


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
    return 0


def _print_answer(model: Model | TorchModel, args: argparse.Namespace) -> tuple[Timing, Stop]:
    tokenizer = _tokenizer_of(model)
    prompt = encode_prompt(tokenizer, args.text, chat=not args.raw)
    decoder = StreamDecoder(tokenizer)
    started = time.perf_counter()
    arrivals: list[float] = []
    stop = Stop("")
    for token in stream_tokens(model, prompt, args.max_new_tokens):
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


def _tokenizer_of(model: Model | TorchModel) -> Tokenizer:
    if model.tokenizer is None:
        raise ValueError("this model came without a tokenizer (no tokenizer.json in its folder)")
    return model.tokenizer
