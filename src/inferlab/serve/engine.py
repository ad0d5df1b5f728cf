"""The serving engine: requests come and go while the model runs, one pass after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from inferlab.config import ModelConfig
from inferlab.paged_forward import Chunk
from inferlab.paging import PagePool
from inferlab.scheduler import Request, Scheduler, Work

Choose = Callable[[np.ndarray], int]
"""How the next token is chosen from the logits (vocab_size,)."""


def greedy(logits: np.ndarray) -> int:
    """The likeliest token; of equals the first."""
    return int(np.argmax(logits))


@dataclass(frozen=True)
class Event:
    """A request has a new token, or has ended. finish: "", "stop", "length" or "abort"."""

    request_id: str
    token: int | None
    finish: str = ""


@dataclass
class StepRecord:
    """What one pass did, for pictures and metrics.

    n_pages_used counts the pages of running requests and of the prefix cache. n_pages_kept is
    those of them that only the prefix cache holds; n_empty_slots the places for tokens in the
    pages of running requests that hold none.
    """

    n_prefill_tokens: int
    n_decode_tokens: int
    n_running: int
    n_waiting: int
    n_pages_used: int
    n_preempted: int = 0
    n_pages_kept: int = 0
    n_empty_slots: int = 0


class PagedModel(Protocol):
    """What an engine must offer to be served: memory in pages, and a pass over them."""

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""

    def new_pool(self, n_pages: int, page_size: int = 16) -> PagePool:
        """Empty pages of this model's sizes."""

    def paged_forward(self, pool: Any, chunks: Sequence[Chunk]) -> np.ndarray:
        """Logits after the last token of each chunk: (n_chunks, vocab_size)"""


@dataclass
class _Live:
    request: Request
    choose: Choose
    stop_ids: frozenset[int]


@dataclass
class ServingEngine:
    """Continuous batching over a real model, with paged keys and values.

    model: inferlab.model.Model, or TorchModel on any device.
    n_pages pages of page_size tokens are all the memory there is for caches.
    """

    model: PagedModel
    n_pages: int = 512
    page_size: int = 16
    token_budget: int = 256
    max_running: int = 16
    use_prefix_cache: bool = True
    records: list[StepRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = self.model.new_pool(self.n_pages, self.page_size)
        self.scheduler = Scheduler(
            self.pool, self.token_budget, self.max_running, self.use_prefix_cache
        )
        self.live: dict[str, _Live] = {}

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def is_idle(self) -> bool:
        return not self.live

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_new_tokens: int,
        choose: Choose = greedy,
        stop_ids: Sequence[int] = (),
    ) -> Request:
        """Queue a request. The stop token, if it comes, is the last one and is reported.

        Raises ValueError for an id in use, tokens outside the vocabulary, more tokens than
        max_context, or more than all pages hold.
        """
        if request_id in self.live:
            raise ValueError(f"the request id {request_id!r} is in use")
        bad = [token for token in prompt if not 0 <= token < self.config.vocab_size]
        if bad:
            raise ValueError(f"token {bad[0]} is outside 0..{self.config.vocab_size - 1}")
        n_tokens = len(prompt) + max_new_tokens
        if n_tokens > self.config.max_context:
            raise ValueError(
                f"{len(prompt):,} prompt tokens and {max_new_tokens:,} new ones are more than "
                f"max_context={self.config.max_context:,}"
            )
        request = Request(request_id, [int(token) for token in prompt], max_new_tokens)
        self.scheduler.add(request)
        self.live[request_id] = _Live(request, choose, frozenset(stop_ids))
        return request

    def abort(self, request_id: str) -> None:
        """Forget a request, whatever it is doing; its pages are free at once."""
        live = self.live.pop(request_id, None)
        if live is not None:
            self.scheduler.finish(live.request)

    def step(self) -> list[Event]:
        """One pass of the model. -> a new token for each request that got one

        With nothing to do: no events.
        """
        n_waiting = len(self.scheduler.waiting)
        work = self.scheduler.plan()
        if not work:
            return []
        self._record(work, len(self.scheduler.waiting) - n_waiting)
        logits = self.model.paged_forward(self.pool, [_chunk(w) for w in work])
        events = []
        for item, row in zip(work, logits, strict=True):
            finishes = item.finishes
            self.scheduler.commit(item)
            if finishes:
                events.append(self._emit(item.request, row))
        return events

    def run(self) -> Iterator[Event]:
        """Step until every request has ended."""
        while not self.is_idle:
            yield from self.step()

    def _emit(self, request: Request, logits: np.ndarray) -> Event:
        live = self.live[request.id]
        token = live.choose(logits)
        request.generated.append(token)
        finish = ""
        if token in live.stop_ids:
            finish = "stop"
        elif len(request.generated) == request.max_new_tokens:
            finish = "length"
        if finish:
            del self.live[request.id]
            self.scheduler.finish(request)
        return Event(request.id, token, finish)

    def _record(self, work: Sequence[Work], more_waiting: int) -> None:
        decoding = sum(item.n_tokens == 1 and bool(item.request.generated) for item in work)
        running, allocator = self.scheduler.running, self.scheduler.allocator
        n_used = self.n_pages - len(allocator.free)
        n_tokens = sum(r.n_computed for r in running) + sum(item.n_tokens for item in work)
        n_slots = self.page_size * sum(len(request.page_table) for request in running)
        self.records.append(
            StepRecord(
                n_prefill_tokens=sum(item.n_tokens for item in work) - decoding,
                n_decode_tokens=decoding,
                n_running=len(running),
                n_waiting=len(self.scheduler.waiting),
                n_pages_used=n_used,
                n_preempted=max(0, more_waiting),
                n_pages_kept=n_used - len({page for r in running for page in r.page_table}),
                n_empty_slots=n_slots - n_tokens,
            )
        )


def _chunk(work: Work) -> Chunk:
    end = work.start + work.n_tokens
    return Chunk(work.request.tokens[work.start : end], work.start, work.request.page_table)
