"""A load generator for any OpenAI-compatible server: open-loop arrivals, times of every token.

Requests are sent when their time has come, whatever the server does meanwhile (open loop): users
do not wait for each other. Nothing but the standard library is needed.

    python -m inferlab.serve.load_client http://127.0.0.1:8000 --rate 4 --requests 40 > load.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import ssl
import statistics
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from inferlab.latency_metrics import (
    RequestTrace,
    goodput,
    latency_report,
    request_latencies,
    throughput,
)


@dataclass
class Sample:
    """One request, as its user saw it: seconds after it was sent. failed: why, or ""."""

    sent_s: float  # since the start of the run
    token_s: list[float] = field(default_factory=list)
    n_prompt: int = 0
    n_output: int = 0
    failed: str = ""

    @property
    def trace(self) -> RequestTrace:
        """The same on the clock of the run, as the metrics of lesson 11 take it."""
        times = tuple(self.sent_s + token for token in self.token_s)
        return RequestTrace(self.sent_s, times, failed=bool(self.failed) or not times)

    @property
    def itl_s(self) -> list[float]:
        """The gaps between its tokens."""
        gaps: list[float] = request_latencies(self.trace)["itl_s"] if self.token_s else []
        return gaps


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
    """p50 and p95 of TTFT, ITL, TPOT and end to end (seconds), and what was delivered.

    As in latency_report, a failed request is infinitely late: it moves the percentiles. The means
    are those of the complete ones. Rates run from the start to the last token.
    """
    traces = [sample.trace for sample in samples]
    report = latency_report(traces, (50, 95))
    means = _means([request_latencies(trace) for trace in traces if not trace.failed])
    lasted = _lasted_s(traces)
    # A window ends before its end_s: the last token is to be in it.
    delivered = throughput(traces, 0.0, math.nextafter(lasted, math.inf)) if lasted else {}
    return {
        "n_requests": report["n_requests"],
        "n_failed": report["n_failed"],
        "failures": sorted({s.failed for s in samples if s.failed})[:3],
        "requests_per_s": delivered.get("requests_per_s", 0.0),
        "output_tokens_per_s": delivered.get("tokens_per_s", 0.0),
        **{
            name: {
                **({"mean": means[name]} if name in means else {}),
                **{f"p{p}": value for p, value in report[name].items()},
            }
            for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s")
        },
    }


def _means(seen: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of the complete requests; an answer of one token has no time between tokens."""
    values = {
        "ttft_s": [one["ttft_s"] for one in seen],
        "itl_s": [gap for one in seen for gap in one["itl_s"]],
        "tpot_s": [one["tpot_s"] for one in seen if one["itl_s"]],
        "e2e_s": [one["e2e_s"] for one in seen],
    }
    return {name: statistics.fmean(found) for name, found in values.items() if found}


def _lasted_s(traces: Sequence[RequestTrace]) -> float:
    return max((t.token_times_s[-1] for t in traces if t.token_times_s), default=0.0)


def goodput_per_s(samples: Sequence[Sample], ttft_limit_s: float, tpot_limit_s: float) -> float:
    """Requests a second, over the whole run, that met both limits and did not fail."""
    traces = [sample.trace for sample in samples]
    lasted = _lasted_s(traces)
    limits = {"ttft_s": ttft_limit_s, "tpot_s": tpot_limit_s}
    return goodput(traces, limits, lasted) if lasted else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Load a server and print what came of it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m inferlab.serve.load_client")
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
    found = {"summary": _finite(summary(samples)), "requests": list(map(vars, samples))}
    print(json.dumps(found, indent=1, allow_nan=False))
    return 0 if all(not s.failed for s in samples) else 1


def _finite(value: Any) -> Any:
    """JSON has no infinity: null stands for "never"."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if value == math.inf else value


if __name__ == "__main__":
    raise SystemExit(main())
