"""The routes of the server: OpenAI's two, and what one needs to look after it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from inferlab.sampling import draw_token, sampling_law
from inferlab.serve.engine import Choose, Event, greedy
from inferlab.serve.loop import Draining, EngineFailed, EngineLoop, QueueFull, Ticket
from inferlab.serve.protocol import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationOptions,
    Shape,
    Usage,
)
from inferlab.serve.text import TextStream
from inferlab.tokenizer import Tokenizer

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass
class Server:
    """A model behind HTTP. name: what clients call it; parts: "yours" or "reference" by name."""

    loop: EngineLoop
    tokenizer: Tokenizer
    name: str
    parts: dict[str, str] = field(default_factory=dict)
    started: int = field(default_factory=lambda: int(time.time()))

    def app(self) -> FastAPI:
        """The ASGI application; its start and stop are those of the engine's thread."""

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            self.loop.start()
            yield
            self.loop.stop()

        app = FastAPI(title="inferlab", docs_url=None, redoc_url=None, lifespan=lifespan)
        app.add_exception_handler(ApiError, _api_error)
        app.add_exception_handler(RequestValidationError, _invalid)
        app.add_exception_handler(HTTPException, _no_such_route)
        looked_at: dict[str, Callable[..., Any]] = {
            "/health": self.health, "/v1/models": self.models, "/v1/models/{name:path}": self.model,
            "/metrics": self.metrics, "/live": self.live, "/": self.page,
        }  # fmt: skip
        for path, answer in looked_at.items():
            app.api_route(path, methods=["GET", "HEAD"], response_model=None)(answer)
        app.post("/v1/completions", response_model=None)(self.completions)
        app.post("/v1/chat/completions", response_model=None)(self.chat)
        return app

    # ---- looking after it ----------------------------------------------------------------------

    async def health(self) -> Response:
        if not self.loop.is_alive or self.loop.is_draining:
            return JSONResponse({"status": "stopping"}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._described()]}

    async def model(self, name: str) -> dict[str, Any]:
        self._require_name(name)
        return self._described()

    def _described(self) -> dict[str, Any]:
        return {
            "id": self.name, "object": "model", "created": self.started, "owned_by": "inferlab",
            "max_model_len": self.loop.engine.config.max_context,
        }  # fmt: skip

    def _require_name(self, asked: str) -> None:
        if asked != self.name:
            text = f"no model {asked!r} here; it is {self.name!r}"
            raise ApiError(404, text, param="model", code="model_not_found")

    async def metrics(self) -> Response:
        return Response(self.loop.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def live(self) -> dict[str, Any]:
        """What the page draws: batch, pages, latencies."""
        figures = self.loop.metrics
        return {
            **self.loop.snapshot,
            "model": self.name,
            "parts": self.parts,
            "ttft_s": _spread(figures.recent_ttft),
            "itl_s": _spread(figures.recent_itl),
        }

    async def page(self) -> HTMLResponse:
        return HTMLResponse(files("inferlab.serve").joinpath("page.html").read_text("utf-8"))

    # ---- generating ----------------------------------------------------------------------------

    async def completions(self, asked: CompletionRequest, http: Request) -> Response:
        return await self._answer(asked, self._prompt(asked), COMPLETION_TOKENS, http, "cmpl")

    async def chat(self, asked: ChatRequest, http: Request) -> Response:
        try:
            prompt = self.tokenizer.chat_tokens([m.turn for m in asked.messages])
        except ValueError as error:
            raise ApiError(400, str(error), param="messages") from None
        room = self.loop.engine.config.max_context - len(prompt)
        return await self._answer(asked, prompt, max(room, 1), http, "chatcmpl")

    def _prompt(self, asked: CompletionRequest) -> list[int]:
        prompt = asked.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not all(isinstance(token, int) for token in prompt):
            raise ApiError(400, "one prompt a request, given several texts", param="prompt")
        return [int(token) for token in prompt]

    async def _answer(
        self,
        asked: GenerationOptions,
        prompt: list[int],
        default_tokens: int,
        http: Request,
        kind: str,
    ) -> Response:
        if asked.model is not None:
            self._require_name(asked.model)
        stop_ids = () if asked.ignore_eos else self.tokenizer.eos_ids
        events = self.loop.generate(
            prompt, asked.token_limit(default_tokens), _choose(asked), stop_ids
        )
        try:  # what is refused is refused before any byte of a stream
            first = await anext(events)
        except Exception as error:
            raise _as_api_error(error) from error
        shape = Shape.new(f"{kind}-{first[0].id}", self.name, is_chat=kind == "chatcmpl")
        text = TextStream(self.tokenizer, asked.stop_texts, stop_ids)
        pieces = _pieces(first, events, text, len(prompt))
        if asked.stream:
            lines = _stream(pieces, shape, asked.wants_usage)
            return StreamingResponse(lines, media_type="text/event-stream")
        return await _collect(pieces, shape, http)


@dataclass(frozen=True)
class Piece:
    """The text that one token brought. finish: None until the last."""

    text: str
    finish: str | None
    usage: Usage


async def _pieces(
    first: tuple[Ticket, Event],
    events: AsyncIterator[tuple[Ticket, Event]],
    text: TextStream,
    n_prompt: int,
) -> AsyncIterator[Piece]:
    n_tokens, item = 0, first
    try:
        while True:
            ticket, event = item
            assert event.token is not None
            n_tokens += 1
            shown = text.push(event.token, is_last=bool(event.finish))
            finish = "stop" if text.stopped else event.finish or None
            yield Piece(shown, finish, Usage(n_prompt, n_tokens, ticket.n_cached))
            if finish:
                return
            item = await anext(events)
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # the pages are given back


async def _stream(pieces: AsyncIterator[Piece], shape: Shape, usage: bool) -> AsyncIterator[str]:
    is_first, piece = True, None
    try:
        async for piece in pieces:
            yield _line(shape.chunk(piece.text, piece.finish, is_first))
            is_first = False
    except (EngineFailed, Draining) as error:
        yield _line(_as_api_error(error).body())
        return
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]
    if usage and piece is not None:
        yield _line(shape.usage_chunk(piece.usage))
    yield "data: [DONE]\n\n"


async def _collect(pieces: AsyncIterator[Piece], shape: Shape, http: Request) -> Response:
    texts = []
    try:
        async for piece in pieces:
            texts.append(piece.text)
            if piece.finish:
                body = shape.whole("".join(texts), piece.finish, piece.usage)
                return JSONResponse(body)
            if await http.is_disconnected():
                return Response(status_code=499)
    except (EngineFailed, Draining) as error:
        raise _as_api_error(error) from error
    finally:
        await pieces.aclose()  # type: ignore[attr-defined]
    raise AssertionError("a generation ended without saying why")


def _line(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def _choose(asked: GenerationOptions) -> Choose:
    """How this request picks its tokens; with a seed, the same ones every time."""
    rng = np.random.default_rng(asked.seed)
    top_k = asked.top_k if asked.top_k > 0 else None

    def choose(logits: np.ndarray) -> int:
        law = sampling_law(logits, asked.temperature, top_k, asked.top_p, asked.min_p)
        return draw_token(law, rng.random())

    return greedy if asked.temperature == 0 else choose


def _spread(seconds: Any) -> dict[str, float | int]:
    values = sorted(seconds)
    if not values:
        return {"n": 0}
    cut = statistics.quantiles(values, n=100) if len(values) > 1 else [values[0]] * 99
    return {"n": len(values), "p50": cut[49], "p95": cut[94], "max": values[-1]}


# ---- errors ------------------------------------------------------------------------------------


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), "rate_limit_error")
    if isinstance(error, Draining):
        return ApiError(503, str(error), "service_unavailable_error")
    if isinstance(error, ValueError):
        return ApiError(400, str(error))
    return ApiError(500, str(error), "server_error")


async def _api_error(http: Request, error: Exception) -> Response:
    known = _as_api_error(error)
    headers = {"Retry-After": "1"} if known.status in (429, 503) else None
    return JSONResponse(known.body(), status_code=known.status, headers=headers)


async def _no_such_route(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{http.method} {http.url.path}: {error.detail}"
    body = ApiError(error.status_code, text, code="unknown_url").body()
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _invalid(http: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field_name = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{field_name}: {first['msg']}" if field_name else str(first["msg"])
    return JSONResponse(ApiError(400, message, param=field_name or None).body(), status_code=400)
