"""Greedy generation: without a memory, in two phases, and as a stream of tokens.

A generation has two phases. The prefill runs the whole prompt in one pass; each decode step runs
one token. Both are the same computation, T new tokens on top of what earlier passes kept, and this
file writes it in that plain form: lists of arrays go in, longer ones come out. KVCache (lesson 04)
is the structure that real engines use in their place.

Source: Pope et al. 2022 (arXiv 2211.05102), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from inferlab.model import Model
from inferlab.operators import (
    attention,
    causal_mask,
    merge_heads,
    project,
    rms_norm,
    rope_angles,
    rotate,
    split_heads,
)
from inferlab.sampling import Engine
from inferlab.tokenizer import StreamDecoder, Tokenizer
from inferlab.transformer import check_tokens, decoder_block, position_angles, visible_keys

if TYPE_CHECKING:
    from inferlab.config import ModelConfig
    from inferlab.weights import LayerWeights

Kept = list[tuple[np.ndarray, np.ndarray]]
"""Keys and values of every layer, (1, n_kv_heads, S, d_head) each: what a pass leaves behind."""

PREFILL_CHUNK = 512  # tokens a pass: bounds the score matrix at 512 rows, however long the prompt


def generate_uncached(model: Model, prompt: Sequence[int], n_new: int) -> list[int]:
    """Greedy generation that remembers nothing: every step runs the whole text again.

    model.next_logits(tokens) runs all of `tokens` and returns the logits (vocab_size,) that follow
    the last of them. Greedy: the next token is the index of the largest logit.

    prompt: at least one token id; n_new >= 0 -> the n_new generated ids, without the prompt; an
    end-of-text token is one like any other
    Step i (i = 0, 1, …) runs len(prompt) + i tokens; the prompt itself must not change.
    Example: a prompt of 5 tokens, n_new 3: the model runs 5, then 6, then 7 tokens, 18 in all.
    """
    tokens = list(prompt)
    for _ in range(n_new):
        logits = model.next_logits(tokens)  # (vocab_size,)
        tokens.append(int(np.argmax(logits)))
    return tokens[len(prompt) :]


# ---- one pass on top of what is kept -----------------------------------------------------------


def generate_cached(model: Model, prompt: Sequence[int], n_new: int) -> list[int]:
    """Greedy generation with a cache: the prompt is run once, then one token a step.

    model.new_cache() gives an empty cache. model.next_logits(tokens, cache) runs `tokens` on top
    of what the cache holds, stores their keys and values in it, and returns the logits
    (vocab_size,) that follow the last of them. Greedy: the next token is the index of the
    largest logit.

    prompt: at least one token id; n_new >= 1 -> the n_new generated ids, without the prompt
    The model must run exactly len(prompt) + n_new - 1 tokens: the prompt gives the first new
    token, and nobody needs what would follow the last one.
    """
    cache = model.new_cache()
    new_tokens: list[int] = []
    tokens_to_run: Sequence[int] = prompt
    while len(new_tokens) < n_new:
        logits = model.next_logits(tokens_to_run, cache)
        new_tokens.append(int(np.argmax(logits)))
        tokens_to_run = new_tokens[-1:]
    return new_tokens


def attend_with_past(
    x: np.ndarray,
    weights: LayerWeights,
    config: ModelConfig,
    k_past: np.ndarray,
    v_past: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The attention of one layer for T new tokens, on top of S - T tokens that were run before.

    1. Project x with weights.w_q, weights.w_k, weights.w_v and split into heads of config.d_head.
    2. Rotate the new queries and the new keys to their positions in the whole text: the past tokens
       hold positions 0 … S - T - 1, the new ones S - T … S - 1. Past keys are kept rotated: leave
       them. Values are never rotated. The angles use config.rope_theta.
    3. Join: the past first, then the new. Attend under the causal mask of T queries over S keys.
    4. Merge the heads and project with weights.w_o.

    x: (B, T, d_model); k_past, v_past: (B, n_kv_heads, S - T, d_head), with S - T = 0 at the start
    -> output (B, T, d_model), and all keys and all values (B, n_kv_heads, S, d_head) each
    Nothing that is given may change: other passes may start from the same past.
    Example: 5 past tokens, 2 new ones: positions 5 and 6, a (2, 7) mask, 7 keys to keep.
    """
    n_past, T = k_past.shape[2], x.shape[1]
    angles = rope_angles(np.arange(n_past, n_past + T), config.d_head, config.rope_theta)
    q = rotate(split_heads(project(x, weights.w_q), config.d_head), angles)
    k = rotate(split_heads(project(x, weights.w_k), config.d_head), angles)
    k = np.concatenate([k_past, k], axis=2)  # (B, n_kv_heads, S, d_head)
    v = np.concatenate([v_past, split_heads(project(x, weights.w_v), config.d_head)], axis=2)
    mixed = attention(q, k, v, causal_mask(T, n_past + T))
    return project(merge_heads(mixed), weights.w_o), k, v


class ModelParts:
    """A model taken apart into what a pass does in order: embed, block after block, logits.

    parts.config has the sizes. parts.passes lists how many tokens each pass ran, oldest first.
    Raises ValueError for a model that keeps no keys and values (multi-head latent attention).
    """

    def __init__(self, model: Model) -> None:
        if model.config.mla is not None:
            raise ValueError("this model keeps latents (MLA); needed: one that keeps K and V")
        self.config, self._weights = model.config, model.weights
        self.passes: list[int] = []

    def nothing_kept(self) -> Kept:
        """Keys and values of no tokens, for every layer: how a request begins."""
        c = self.config
        empty = np.zeros((1, c.n_kv_heads, 0, c.d_head), self._weights.embedding.dtype)
        return [(empty, empty) for _ in range(c.n_layers)]

    def embed(self, tokens: Sequence[int]) -> np.ndarray:
        """Begin a pass: the rows of T tokens, (1, T, d_model). Counts them in self.passes."""
        if np.ndim(tokens) != 1:
            raise ValueError(f"tokens must be a list of token ids, as [5] is; given: {tokens}")
        batch = check_tokens(np.asarray(tokens)[None], self.config)
        self.passes.append(batch.shape[1])
        return self._weights.embedding[batch]

    def block(
        self, layer: int, x: np.ndarray, k: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decoder block number `layer` for T new rows, on top of this layer's kept keys and values.

        x: (1, T, d_model); k, v: (1, n_kv_heads, S - T, d_head)
        -> new x (1, T, d_model), and all k and v of this layer (1, n_kv_heads, S, d_head)
        """
        c, T = self.config, x.shape[1]
        S = k.shape[2] + T
        angles, visible = position_angles(np.arange(S - T, S), c), visible_keys(T, S, c)
        kept = OneLayer(k, v)
        x = decoder_block(x, self._weights.layers[layer], c, angles, visible, kept, layer)
        return x, kept.k, kept.v

    def logits(self, x: np.ndarray) -> np.ndarray:
        """End a pass: the logits (vocab_size,) of the token that follows the last row of x."""
        w = self._weights
        return project(rms_norm(x[:, -1:], w.final_gain, self.config.norm_eps), w.head)[0, 0]


class OneLayer:
    """What decoder_block needs of a cache, for one layer, with joined arrays in place of slots."""

    def __init__(self, k: np.ndarray, v: np.ndarray) -> None:
        self.k, self.v = k, v

    @property
    def n_tokens(self) -> int:
        return self.k.shape[2]

    def append(self, layer: int, k: np.ndarray, v: np.ndarray, /) -> tuple[np.ndarray, np.ndarray]:
        self.k = np.concatenate([self.k, k], axis=2)
        self.v = np.concatenate([self.v, v], axis=2)
        return self.k, self.v


def prefill(
    parts: ModelParts, tokens: Sequence[int], kept: Kept | None = None
) -> tuple[np.ndarray, Kept]:
    """Run tokens in one pass, on top of what is kept; return the last logits and what to keep.

    A pass is: x = parts.embed(tokens); then, for layer = 0, 1, … in order,
    x, k, v = parts.block(layer, x, k, v) with the k and v kept of this layer, which returns the
    longer k and v to keep; then parts.logits(x).

    kept: a list with one (k, v) for each layer, each (1, n_kv_heads, S - T, d_head); None at the
    start of a request, when nothing is kept: use parts.nothing_kept()
    -> logits (vocab_size,) that follow the last token, and a new list of (k, v), each
       (1, n_kv_heads, S, d_head). The list that was given stays as it is.
    Example: 30 layers and a prompt of 7: one pass, 30 pairs (k, v) of 7 tokens each.
    """
    kept = parts.nothing_kept() if kept is None else kept
    x = parts.embed(tokens)
    longer: Kept = []
    for layer, (k, v) in enumerate(kept):
        x, k, v = parts.block(layer, x, k, v)
        longer.append((k, v))
    return parts.logits(x), longer


def decode_step(parts: ModelParts, token: int, kept: Kept) -> tuple[np.ndarray, Kept]:
    """Run one token on top of what is kept: the pass that a generation repeats for each token.

    token: the id that was chosen last, not run yet; kept: as prefill returns it
    -> logits (vocab_size,) that follow this token, and what to keep, one token longer
    Example: after a prompt of 7 tokens the first step runs 1 token, at position 7, and keeps 8.
    """
    return prefill(parts, [token], kept)


def chunked_prefill(
    parts: ModelParts, prompt: Sequence[int], chunk_size: int
) -> tuple[np.ndarray, Kept]:
    """Run a prompt in several passes of at most chunk_size tokens: the same result as in one pass.

    Each chunk is run on top of what the chunks before it left behind. Only the last may be shorter.

    prompt: at least one token id
    -> logits (vocab_size,) that follow the last token of the prompt, and what to keep of all of it
    Raises ValueError if chunk_size is less than 1.
    Example: a prompt of 11 tokens in chunks of 4: passes of 4, 4 and 3 tokens.
    Source: Agrawal et al. 2023 (SARATHI, arXiv 2308.16369), section 4.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, given {chunk_size}")
    kept = parts.nothing_kept()
    for start in range(0, len(prompt), chunk_size):
        logits, kept = prefill(parts, prompt[start : start + chunk_size], kept)
    return logits, kept


# ---- a stream of tokens ------------------------------------------------------------------------


class Writer(Engine, Protocol):
    """An engine that may know its tokenizer: every one of ours."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...


class Stop(str):
    """Why a generation ended: a short text to show."""


def stream_tokens(
    model: Writer, prompt: Sequence[int], max_new_tokens: int
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
    model: Writer,
    prompt_text: str,
    max_new_tokens: int = 64,
    chat: bool = True,
) -> Iterator[str]:
    """Yield the model's answer piece by piece; never half a character.

    Ends at the end-of-text token, after max_new_tokens, or, with a last piece in brackets that
    says so, where the context is full.

    Raises ValueError for a model without a tokenizer, an empty prompt, or one that is too long.
    """
    tokenizer = tokenizer_of(model)
    prompt = encode_prompt(tokenizer, prompt_text, chat)
    decoder = StreamDecoder(tokenizer)
    for token in stream_tokens(model, prompt, max_new_tokens):
        if not isinstance(token, Stop):
            yield decoder.push(token)
        elif token.startswith("the context"):
            yield f"{decoder.flush()} [{token}]"
        else:
            yield decoder.flush()


def tokenizer_of(model: Writer) -> Tokenizer:
    """Its tokenizer; raises ValueError where it came without one."""
    if model.tokenizer is None:
        raise ValueError("this model came without a tokenizer (no tokenizer.json in its folder)")
    return model.tokenizer
