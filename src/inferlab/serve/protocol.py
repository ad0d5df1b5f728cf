"""What a client may ask, in OpenAI's words, and the shape of the answers.

Source: OpenAI's API reference, "Completions" and "Chat completions"; the fields beyond it (top_k,
min_p, ignore_eos) are those of vLLM's server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationOptions(BaseModel):
    """The fields that both kinds of request share. Unknown ones are ignored, as OpenAI does."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)  # 0 and -1: off
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    n: int = Field(1, ge=1, le=1)  # one answer a request
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def stop_texts(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def token_limit(self, default: int) -> int:
        """Most tokens to generate: the newer name first."""
        return self.max_completion_tokens or self.max_tokens or default


class CompletionRequest(GenerationOptions):
    """POST /v1/completions: a text, or its token ids, to continue."""

    prompt: str | list[int] | list[str]


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def turn(self) -> tuple[str, str]:
        """Role and text; "developer" is OpenAI's newer name of "system"."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return role, self.content
        return role, "".join(part.text for part in self.content)


class ChatRequest(GenerationOptions):
    """POST /v1/chat/completions: a conversation to answer."""

    messages: list[Message] = Field(min_length=1)


class ApiError(Exception):
    """An error in OpenAI's shape: status and what to tell the client."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message, "type": self.kind, "param": self.param, "code": None,
            }
        }  # fmt: skip


@dataclass(frozen=True)
class Usage:
    """Tokens of one request; n_cached of the prompt were found in the prefix cache."""

    n_prompt: int
    n_completion: int
    n_cached: int

    def body(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.n_prompt,
            "completion_tokens": self.n_completion,
            "total_tokens": self.n_prompt + self.n_completion,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
        }


@dataclass(frozen=True)
class Shape:
    """How answers of one request look: chat or plain, whole or in chunks."""

    request_id: str
    model: str
    is_chat: bool
    created: int

    @classmethod
    def new(cls, request_id: str, model: str, is_chat: bool) -> Shape:
        return cls(request_id, model, is_chat, int(time.time()))

    def whole(self, text: str, finish: str, usage: Usage) -> dict[str, Any]:
        """The answer in one piece."""
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return self._body("", [choice], usage)

    def chunk(self, text: str, finish: str | None, first: bool) -> dict[str, Any]:
        """One token of a stream."""
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"delta": {**({"role": "assistant"} if first else {}), "content": text}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return self._body(".chunk", [choice], None)

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The last chunk of a stream that was asked for usage: no choices."""
        return self._body(".chunk", [], usage)

    def _body(self, suffix: str, choices: list[Any], usage: Usage | None) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.is_chat else "text_completion"
        body: dict[str, Any] = {
            "id": self.request_id, "object": kind, "created": self.created,
            "model": self.model, "choices": choices,
        }  # fmt: skip
        if usage is not None:
            body["usage"] = usage.body()
        return body
