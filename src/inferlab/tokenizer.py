"""Text to token ids and back, with a stream that never shows half a character.

The work is done by the `tokenizers` package; this file gets its settings from a Hugging Face
tokenizer.json or from the lists in a GGUF file, and knows the ChatML form of a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from inferlab.sizes import InvalidModelFile, UnsupportedModel

SMOLLM_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What SmolLM2-Instruct's own chat template says first when a conversation has no system turn."""

CONTROL, USER_DEFINED = 3, 4  # token types of GGUF: never typed by a user; added after training


class Tokenizer:
    """Encodes and decodes text for one model.

    eos_ids end an answer. chat_template is the model's own template (Jinja source) where it has
    one; it is not run, only asked for its system text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        eos_ids: Sequence[int] = (),
        chat_template: str = "",
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        end = backend.token_to_id("<|im_end|>")
        self.eos_ids = tuple(dict.fromkeys([*eos_ids, *([] if end is None else [end])]))

    @classmethod
    def from_file(cls, path: str | PathLike[str], eos_ids: Sequence[int] = ()) -> Tokenizer:
        """Read a Hugging Face tokenizer.json, and the chat template that lies beside it, if any.

        Raises FileNotFoundError, or InvalidModelFile for a file that is no tokenizer.
        """
        path = Path(path)
        text = path.read_text(encoding="utf-8")
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises bare Exception
            raise InvalidModelFile(f"{path} is no tokenizer.json ({error})") from None
        return cls(backend, eos_ids, _template_beside(path))

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Rebuild the tokenizer from the token and merge lists in a GGUF header.

        Raises UnsupportedModel for other kinds than byte-level BPE in the SmolLM or GPT-2 manner,
        InvalidModelFile for lists that do not fit together.
        """
        eos = metadata.get("tokenizer.ggml.eos_token_id")
        return cls(
            _backend_from_gguf(metadata),
            () if eos is None else (eos,),
            metadata.get("tokenizer.chat_template", ""),
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids, special ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as a tokenizer.json, whatever it was read from."""
        self._backend.save(str(path))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; a marker such as <|im_start|> in it becomes its one token."""
        return self._backend.encode(text).ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which markers are mere characters: no user can forge a turn."""
        return self._plain_backend.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids, markers included; bytes that are no UTF-8 come out as U+FFFD."""
        return self._backend.decode(list(tokens), skip_special_tokens=False)

    def token_id(self, token: str) -> int | None:
        """Id of one token by its text, None where the vocabulary lacks it."""
        return self._backend.token_to_id(token)

    def chat_prompt(self, user: str, system: str | None = None) -> list[int]:
        """Token ids of a one-turn conversation, ready for the model's answer: see chat_tokens.

        system None means the model's own default (SmolLM2 has one), "" none at all.
        """
        turns = [("user", user)]
        return self.chat_tokens(turns if system is None else [("system", system), *turns])

    def chat_tokens(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a conversation of (role, text) in ChatML, ready for the model's answer:

        <|im_start|>system ⏎ {text}<|im_end|> ⏎ <|im_start|>user ⏎ {text}<|im_end|> ⏎ …
        <|im_start|>assistant ⏎

        Without a system turn the model's own default comes first, where it has one.
        Raises ValueError where the vocabulary has no ChatML markers, and for an unknown role.
        """
        start, end = self.token_id("<|im_start|>"), self.token_id("<|im_end|>")
        if start is None or end is None:
            raise ValueError(
                "this model has no ChatML markers (<|im_start|>, <|im_end|>), so its chat form is "
                "not known; give a plain text to continue instead"
            )
        if unknown := {role for role, _ in turns} - {"system", "user", "assistant"}:
            raise ValueError(f"roles are system, user and assistant, given {sorted(unknown)}")
        if not any(role == "system" for role, _ in turns):
            has_default = SMOLLM_SYSTEM in self._chat_template
            turns = [("system", SMOLLM_SYSTEM if has_default else ""), *turns]
        newline = self.encode_plain("\n")
        tokens: list[int] = []
        for role, text in turns:
            if text or role != "system":
                tokens += [start, *self.encode_plain(f"{role}\n{text}"), end, *newline]
        return [*tokens, start, *self.encode_plain("assistant\n")]

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        plain = tokenizers.Tokenizer.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        return plain


class StreamDecoder:
    """Turns tokens into text as they come, holding back a character until it is whole.

    A token of a byte-level vocabulary may be a part of a character: an emoji takes up to four.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = 0  # tokens from here are decoded again, for what precedes the new ones
        self._shown = 0  # tokens up to here have been handed out

    def push(self, token: int) -> str:
        """The text that this token completes, often "" within a character."""
        self._tokens.append(token)
        piece = self._pending()
        if piece.endswith("\ufffd"):
            return ""
        self._context, self._shown = self._shown, len(self._tokens)
        return piece

    def flush(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that never became whole."""
        piece = self._pending()
        self._context = self._shown = len(self._tokens)
        return piece

    def _pending(self) -> str:
        known = self._tokenizer.decode(self._tokens[self._context : self._shown])
        return self._tokenizer.decode(self._tokens[self._context :])[len(known) :]


def _template_beside(path: Path) -> str:
    """The chat template of a Hugging Face folder: its own file, or in tokenizer_config.json."""
    template = path.with_name("chat_template.jinja")
    if template.exists():
        return template.read_text(encoding="utf-8")
    settings = path.with_name("tokenizer_config.json")
    if not settings.exists():
        return ""
    try:
        found = json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise InvalidModelFile(f"{settings} is not a JSON object ({error})") from None
    return found if isinstance(found, str) else ""


def _backend_from_gguf(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    tokens, merges = _gguf_lists(metadata)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        n_repeats = len(tokens) - len(vocabulary)
        raise InvalidModelFile(f"{n_repeats} of {len(tokens)} tokens are repeats")
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # the package raises bare Exception
        raise InvalidModelFile(f"the merges do not fit the tokens ({error})") from None
    kind = metadata.get("tokenizer.ggml.pre", "default")
    backend.pre_tokenizer = _pre_tokenizer(kind)
    if kind == "qwen2":  # é as one character and as e with an accent are the same token to it
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    kinds = list(zip(tokens, types, strict=True))
    backend.add_special_tokens([_added(t, special=True) for t, kind in kinds if kind == CONTROL])
    backend.add_tokens([_added(t, special=False) for t, kind in kinds if kind == USER_DEFINED])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return backend


def _gguf_lists(metadata: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModel(
            f"a tokenizer of the kind {kind!r} is not implemented; needed: 'gpt2' (byte-level BPE)"
        )
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise InvalidModelFile("the header lacks tokenizer.ggml.tokens or tokenizer.ggml.merges")
    pairs = []
    for merge in merges:
        left, blank, right = merge.partition(" ")
        if not (left and blank and right):
            raise InvalidModelFile(f"the merge {merge!r} is not two tokens with a blank between")
        pairs.append((left, right))
    return tokens, pairs


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging: bytes in GPT-2's words; SmolLM also cuts every digit off.

    Qwen has words of its own: a digit alone, line breaks together, one sign before a word.
    """
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "gpt-2":
        return words
    if kind == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if kind == "qwen2":
        cut = pre_tokenizers.Split(tokenizers.Regex(QWEN_WORDS), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([cut, plain])
    raise UnsupportedModel(
        f"the pre-tokenizer {kind!r} is not implemented; needed: 'smollm', 'gpt-2' or 'qwen2'"
    )


QWEN_WORDS = "|".join(
    (
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


def _added(token: str, *, special: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(token, special=special, normalized=False)
