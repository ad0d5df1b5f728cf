"""What the server counts and times, for Prometheus and for the live page."""

from __future__ import annotations

from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """One server's figures, in a registry of their own."""

    def __init__(self, n_pages: int) -> None:
        self.registry = CollectorRegistry()
        self.prompt_tokens = self._counter("prompt_tokens", "tokens of prompts")
        self.cached_tokens = self._counter("prompt_tokens_cached", "found in the prefix cache")
        self.new_tokens = self._counter("generation_tokens", "tokens generated")
        self.preemptions = self._counter("preemptions", "times that pages were given back")
        self.requests = Counter(
            "inferlab_requests", "requests by end", ["finish"], registry=self.registry
        )
        self.running = self._gauge("requests_running", "requests in the batch")
        self.waiting = self._gauge("requests_waiting", "requests in the queue")
        self.pages_used = self._gauge("pages_used", "pages that hold something")
        self._gauge("pages", "pages there are").set(n_pages)
        self.ttft = self._histogram("time_to_first_token_seconds", "TTFT")
        self.itl = self._histogram("inter_token_latency_seconds", "ITL")
        self.e2e = self._histogram("request_latency_seconds", "end to end")
        self.recent_ttft: deque[float] = deque(maxlen=200)
        self.recent_itl: deque[float] = deque(maxlen=200)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"inferlab_{name}", text, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"inferlab_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"inferlab_{name}", text, buckets=LATENCIES, registry=self.registry)

    def first_token(self, seconds: float) -> None:
        self.ttft.observe(seconds)
        self.recent_ttft.append(seconds)

    def next_token(self, seconds: float) -> None:
        self.itl.observe(seconds)
        self.recent_itl.append(seconds)

    def text(self) -> bytes:
        """Everything in Prometheus's text format."""
        return generate_latest(self.registry)
