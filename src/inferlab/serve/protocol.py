"""What a client may ask, in OpenAI's words, and the shape of the answers.

Source: OpenAI's API reference, "Completions" and "Chat completions"; the fields beyond it (top_k,
min_p, ignore_eos) are those of vLLM's server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class StreamOptions(BaseModel):
    include_usage: bool = False


REFUSED = {
    "n": "one answer a request: send the request n times",
    "best_of": "one answer a request: best_of is not implemented",
    "logprobs": "log-probabilities are not returned by this server",
    "top_logprobs": "log-probabilities are not returned by this server",
    "echo": "the prompt is not repeated in the answer: put it before the answer yourself",
    "suffix": "the model continues a text; it cannot fill in before a suffix",
    "logit_bias": "logit_bias is not implemented: temperature, top_p, top_k and min_p are",
    "presence_penalty": "penalties are not implemented",
    "frequency_penalty": "penalties are not implemented",
    "repetition_penalty": "penalties are not implemented",
    "tools": "the model calls no tools",
    "functions": "the model calls no functions",
    "response_format": "answers are plain text; JSON is not enforced",
}
"""What would change the answer and is not implemented. It is refused, never silently left out."""

HARMLESS = (None, False, 0, "", {"type": "text"})  # values of those that ask for nothing


class GenerationOptions(BaseModel):
    """The fields that both kinds of request share.

    A null is as if the field were missing. Unknown fields are ignored, as OpenAI does; REFUSED
    ones are not.
    """

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, why in REFUSED.items():
            asked = given.get(name)
            idle = asked in HARMLESS or asked in ([], {})
            if name in ("n", "best_of", "repetition_penalty"):
                idle = asked is None or (not isinstance(asked, bool) and asked == 1)
            if name == "logprobs" and asked == 0 and not isinstance(asked, bool):
                idle = False  # OpenAI's completions: 0 asks for those of the chosen tokens
            if not idle:
                raise ApiError(400, f"{name}={asked!r} is not supported: {why}", param=name)
        return {name: value for name, value in given.items() if value is not None}

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
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message, "type": self.kind, "param": self.param,
                "code": self.code,
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
