"""A load generator for any OpenAI-compatible server: open-loop arrivals, times of every token.

Requests are sent when their time has come, whatever the server does meanwhile (open loop): users
do not wait for each other. Nothing but the standard library is needed.

    python -m inferlab.load_client http://127.0.0.1:8000 --rate 4 --requests 40 > load.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from inferlab.metrics import percentile


@dataclass
class Sample:
    """One request, as its user saw it: seconds after it was sent. failed: why, or ""."""

    sent_s: float  # since the start of the run
    token_s: list[float] = field(default_factory=list)
    n_prompt: int = 0
    n_output: int = 0
    failed: str = ""

    @property
    def tpot_s(self) -> float | None:
        """None for an answer of one token: there is no gap."""
        n = len(self.token_s)
        return (self.token_s[-1] - self.token_s[0]) / (n - 1) if n > 1 else None

    @property
    def itl_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_s)]


async def run(
    url: str,
    prompts: Sequence[str | list[int]],
    arrivals_s: Sequence[float],
    max_tokens: int,
    model: str | None = None,
    timeout_s: float = 60,
) -> list[Sample]:
    """Send prompts[i] at arrivals_s[i], stream each answer, and wait for all of them."""
    start = perf_counter()

    async def one(prompt: str | list[int], arrival_s: float) -> Sample:
        await asyncio.sleep(max(0.0, arrival_s - (perf_counter() - start)))
        sent = perf_counter()
        sample = Sample(sent - start)
        asked = {
            "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, "model": model,
        }  # fmt: skip
        try:
            async with asyncio.timeout(timeout_s):
                async for event in events(f"{url}/v1/completions", asked):
                    if event.get("choices"):
                        sample.token_s.append(perf_counter() - sent)
                    if usage := event.get("usage"):
                        sample.n_prompt = usage["prompt_tokens"]
                        sample.n_output = usage["completion_tokens"]
        except (
            OSError,
            ValueError,
            asyncio.IncompleteReadError,
        ) as error:  # a timeout is an OSError
            sample.failed = f"{type(error).__name__}: {error}".strip(": ")
        if not sample.token_s:
            sample.failed = sample.failed or "no token came"
        return sample

    return await asyncio.gather(*map(one, prompts, arrivals_s))


def load(url: str, prompts: Sequence[str | list[int]], **more: Any) -> list[Sample]:
    """run(), from code that is not asynchronous itself (a notebook has a loop of its own)."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run(url, prompts, **more))).result()


async def events(url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """POST body as JSON; the server-sent events of the answer. Raises ValueError for an error."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if secure else 80),
        ssl=ssl.create_default_context() if secure else None,
    )
    try:
        data = json.dumps({k: v for k, v in body.items() if v is not None}).encode()
        head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        chunked = "transfer-encoding: chunked" in answer.lower()
        status = answer.split(" ", 2)[1]
        if status != "200":
            rest = await (_whole(reader) if chunked else reader.read())
            raise ValueError(f"HTTP {status}: {rest.decode('utf-8', 'replace')[:200]}")
        async for line in _lines(reader, chunked):
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(event["error"].get("message", str(event["error"])))
                yield event
        raise ValueError("the stream ended without [DONE]")
    finally:
        writer.close()


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """The body as it comes; HTTP's chunks are unpacked."""
    while not chunked and (piece := await reader.read(65_536)):
        yield piece
    while chunked and (size := int((await reader.readline()).split(b";")[0] or b"0", 16)):
        yield (await reader.readexactly(size + 2))[:-2]


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in _pieces(reader, chunked):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")


async def _whole(reader: asyncio.StreamReader) -> bytes:
    return b"".join([piece async for piece in _pieces(reader, True)])


# ---- what the samples say ----------------------------------------------------------------------


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Mean, median and p95 of TTFT, ITL, TPOT and end to end (seconds), and what was delivered.

    Failed requests are counted, not timed.
    """
    done = [s for s in samples if not s.failed]
    lasted = max((s.sent_s + s.token_s[-1] for s in done), default=0.0)
    return {
        "n_requests": len(samples),
        "n_failed": len(samples) - len(done),
        "failures": sorted({s.failed for s in samples if s.failed})[:3],
        "requests_per_s": len(done) / lasted if lasted else 0.0,
        "output_tokens_per_s": sum(len(s.token_s) for s in done) / lasted if lasted else 0.0,
        "ttft_s": _spread([s.token_s[0] for s in done]),
        "itl_s": _spread([gap for s in done for gap in s.itl_s]),
        "tpot_s": _spread([s.tpot_s for s in done if s.tpot_s is not None]),
        "e2e_s": _spread([s.token_s[-1] for s in done]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "mean": statistics.fmean(values),
        "p50": statistics.median(values),
        "p95": percentile(values, 95),
    }


def goodput_per_s(samples: Sequence[Sample], ttft_limit_s: float, tpot_limit_s: float) -> float:
    """Requests a second, over the whole run, that met both limits and did not fail."""
    ends = [s.sent_s + s.token_s[-1] for s in samples if s.token_s]
    good = [
        s
        for s in samples
        if not s.failed and s.token_s[0] <= ttft_limit_s and (s.tpot_s or 0.0) <= tpot_limit_s
    ]
    return len(good) / max(ends) if ends else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Load a server and print what came of it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m inferlab.load_client")
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second, evenly spaced")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--prompt", default="The quick brown fox jumps over the lazy dog. ")
    parser.add_argument("--model")
    args = parser.parse_args(argv)
    prompts = [f"{i} {args.prompt}" for i in range(args.requests)]  # none is another's prefix
    arrivals = [i / args.rate for i in range(args.requests)]
    samples = asyncio.run(run(args.url, prompts, arrivals, args.max_tokens, args.model))
    print(json.dumps({"summary": summary(samples), "requests": list(map(vars, samples))}, indent=1))
    return 0 if all(not s.failed for s in samples) else 1


if __name__ == "__main__":
    raise SystemExit(main())
