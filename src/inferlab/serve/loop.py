"""The engine in a thread of its own, stepped while there is work; requests come from an event loop.

Only the thread touches the engine. Others leave notes (a new request, an abort) that it reads
between two steps, and get events back through a queue of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferlab.scheduler import Request
from inferlab.serve.engine import Choose, Event, ServingEngine
from inferlab.serve.metrics import Metrics

log = logging.getLogger("inferlab.serve")


class QueueFull(RuntimeError):
    """More requests are waiting than the server keeps."""


class Draining(RuntimeError):
    """The server is stopping: it ends what it has begun and takes nothing new."""


class EngineFailed(RuntimeError):
    """A pass of the model raised; every request in it is lost, the server goes on."""


@dataclass(eq=False)
class Ticket:
    """One request as its client sees it."""

    id: str
    prompt: Sequence[int]
    max_new_tokens: int
    choose: Choose
    stop_ids: Sequence[int]
    reply: Callable[[Any], object]  # called in the engine's thread
    asked_at: float = field(default_factory=time.perf_counter)
    last_token_at: float = 0.0
    request: Request | None = None

    @property
    def n_cached(self) -> int:
        return 0 if self.request is None else self.request.n_cached


class EngineLoop:
    """Runs a ServingEngine. max_waiting: requests that may queue beyond those in the batch."""

    def __init__(self, engine: ServingEngine, max_waiting: int = 64) -> None:
        self.engine, self.max_waiting = engine, max_waiting
        self.metrics = Metrics(engine.n_pages)
        self.snapshot: dict[str, Any] = _snapshot(engine)
        self.tickets: dict[str, Ticket] = {}
        self.is_draining = False
        self._notes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self.n_open = 0  # requests; counted in the event loop, so a full queue is seen at once
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 30) -> None:
        """End the thread after the pass that runs now. Requests still open are told so."""
        self.is_draining = True
        self._notes.put(None)
        self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # ---- the event loop's side -----------------------------------------------------------------

    async def generate(
        self, prompt: Sequence[int], max_new_tokens: int, choose: Choose, stop_ids: Sequence[int]
    ) -> AsyncIterator[tuple[Ticket, Event]]:
        """Tokens as they come. Leaving early gives the request up and frees its pages.

        Raises QueueFull, Draining, ValueError for what the engine refuses, EngineFailed.
        """
        if self.is_draining:
            raise Draining("the server is shutting down")
        if self.n_open >= self.engine.max_running + self.max_waiting:
            raise QueueFull(f"{self.n_open} requests are being served or wait; try again later")
        events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        ticket = Ticket(
            f"r{next(self._numbers)}", prompt, max_new_tokens, choose, stop_ids,
            lambda reply: loop.call_soon_threadsafe(events.put_nowait, reply),
        )  # fmt: skip
        self.n_open += 1
        self._notes.put(lambda: self._admit(ticket))
        try:
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                yield ticket, event
                if event.finish:
                    return
        finally:
            self.n_open -= 1
            self._notes.put(lambda: self._drop(ticket))

    # ---- the engine's thread -------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            while self.engine.is_idle or not self._notes.empty():
                note = self._notes.get()
                if note is None:
                    self._fail_all(Draining("the server has shut down"))
                    return
                self._heed(note)
                self._publish()
            self._step()

    def _heed(self, note: Callable[[], None]) -> None:
        """One bad request must not end the thread that serves all."""
        try:
            note()
        except Exception as error:
            log.exception("a request could not be taken up or given up: %s", _told(error))

    def _step(self) -> None:
        try:
            events = self.engine.step()
        except Exception as error:
            log.exception("a pass of the model failed: %s", _told(error))
            self._fail_all(EngineFailed(_told(error)))
            return
        now = time.perf_counter()
        for event in events:
            self._deliver(event, now)
        self._publish()

    def _admit(self, ticket: Ticket) -> None:
        try:
            ticket.request = self.engine.add(
                ticket.id, ticket.prompt, ticket.max_new_tokens, ticket.choose, ticket.stop_ids
            )
        except ValueError as error:
            ticket.reply(error)
            return
        except Exception as error:
            ticket.reply(EngineFailed(_told(error)))
            raise
        self.tickets[ticket.id] = ticket
        self.metrics.prompt_tokens.inc(len(ticket.prompt))

    def _deliver(self, event: Event, now: float) -> None:
        ticket = self.tickets[event.request_id]
        self.metrics.new_tokens.inc()
        if ticket.last_token_at:
            self.metrics.next_token(now - ticket.last_token_at)
        else:
            self.metrics.first_token(now - ticket.asked_at)
            self.metrics.cached_tokens.inc(ticket.n_cached)
        ticket.last_token_at = now
        if event.finish:
            self._close(ticket, event.finish, now)
        ticket.reply(event)

    def _drop(self, ticket: Ticket) -> None:
        """The client has gone, or has all it asked for."""
        if ticket.id in self.tickets:
            self.engine.abort(ticket.id)
            self._close(ticket, "abort", time.perf_counter())

    def _close(self, ticket: Ticket, finish: str, now: float) -> None:
        del self.tickets[ticket.id]
        self.metrics.requests.labels(finish).inc()
        self.metrics.e2e.observe(now - ticket.asked_at)
        if ticket.request is not None:
            self.metrics.preemptions.inc(ticket.request.n_preemptions)

    def _fail_all(self, error: Exception) -> None:
        for ticket in list(self.tickets.values()):
            self._heed(lambda ticket=ticket: self.engine.abort(ticket.id))  # type: ignore[misc]
            self._close(ticket, "error", time.perf_counter())
            ticket.reply(error)
        self._publish()

    def _publish(self) -> None:
        scheduler = self.engine.scheduler
        self.metrics.running.set(len(scheduler.running))
        self.metrics.waiting.set(len(scheduler.waiting))
        self.metrics.pages_used.set(self.engine.n_pages - len(scheduler.allocator.free))
        self.snapshot = _snapshot(self.engine)  # replaced whole: readers see the old or the new


def _told(error: Exception) -> str:
    """The error and its notes in one line: a note says whose part it was."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


def _snapshot(engine: ServingEngine) -> dict[str, Any]:
    """What the live page shows of the engine, as plain data."""
    scheduler = engine.scheduler
    cached = set() if scheduler.prefix_cache is None else set(scheduler.prefix_cache.pages.values())
    return {
        "running": [_seen(request) for request in scheduler.running],
        "waiting": len(scheduler.waiting),
        "max_running": engine.max_running,
        "token_budget": engine.token_budget,
        "page_size": engine.page_size,
        "ref_counts": list(scheduler.allocator.ref_counts),
        "cached": sorted(cached),
        "last": vars(engine.records[-1]) if engine.records else None,
    }


def _seen(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "n_prompt": len(request.prompt),
        "n_computed": request.n_computed,
        "n_generated": len(request.generated),
        "max_new_tokens": request.max_new_tokens,
        "n_cached": request.n_cached,
        "n_preemptions": request.n_preemptions,
        "pages": list(request.page_table),
    }
