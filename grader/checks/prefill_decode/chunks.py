"""Lesson 03: a prompt in chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.prefill_decode.lesson import LESSON
from grader.checks.prefill_decode.passes import PASS_COMPARISON, looked_at, parts_of, token_ids
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.generate import chunked_prefill, prefill


def _drive_chunked(answer: Any, inputs: Inputs) -> dict[str, Any]:
    parts = inputs["parts"]
    result = answer(parts=parts, prompt=inputs["prompt"], chunk_size=inputs["chunk_size"])
    return looked_at(result) | {"tokens run in each pass": list(parts.passes)}


def _chunk_inputs(n_prompt: int, chunk_size: int, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    return {"parts": parts_of(seed), "prompt": token_ids(rng, n_prompt), "chunk_size": chunk_size}


def _draw_chunked(rng: np.random.Generator) -> Inputs:
    """At least three chunks, the last one shorter."""
    chunk_size = int(rng.integers(3, 6))
    n_prompt = 2 * chunk_size + int(rng.integers(1, chunk_size))
    return _chunk_inputs(n_prompt, chunk_size, int(rng.integers(1000)))


def _in_chunks(
    starts: Callable = lambda n, c: range(0, n, c),
    end: Callable = lambda start, c: start + c,
    onward: bool = True,
    check: bool = True,
    result: Callable = lambda all_logits, kept, new: (all_logits[-1], kept),
    order: int = 1,
):
    """chunked_prefill with one step replaced."""

    def run(parts, prompt, chunk_size):
        if check and chunk_size < 1:
            raise ValueError("chunk_size must be at least 1")
        kept, all_logits = parts.nothing_kept(), []
        for start in list(starts(len(prompt), max(chunk_size, 1)))[::order]:
            chunk = prompt[start : end(start, max(chunk_size, 1))]
            logits, longer = prefill(parts, chunk, kept if onward else None)
            kept = longer
            all_logits.append(logits)
        return result(all_logits, kept, len(chunk))

    return run


def _padded(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    filled = list(prompt) + [0] * (-len(prompt) % chunk_size)
    return _in_chunks()(parts, filled, chunk_size)


def _whole_chunks(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    kept = None
    for i in range(len(prompt) // chunk_size):
        logits, kept = prefill(parts, prompt[i * chunk_size : (i + 1) * chunk_size], kept)
    return logits, kept


def _on_the_first_alone(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    logits, kept = prefill(parts, prompt[:chunk_size])
    for start in range(chunk_size, len(prompt), chunk_size):
        logits, _ = prefill(parts, prompt[start : start + chunk_size], kept)
    return logits, kept


def _rest_apart(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    kept, n_rest = parts.nothing_kept(), len(prompt) % chunk_size
    for start in range(0, len(prompt) - n_rest, chunk_size):
        _, kept = prefill(parts, prompt[start : start + chunk_size], kept)
    return prefill(parts, prompt[-n_rest:], kept)


def _shorter_first(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    kept, first = parts.nothing_kept(), len(prompt) % chunk_size or chunk_size
    for start, end in zip(
        [0, *range(first, len(prompt), chunk_size)],
        range(first, len(prompt) + 1, chunk_size),
        strict=True,
    ):
        logits, kept = prefill(parts, prompt[start:end], kept)
    return logits, kept


def _even_chunks(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    kept = parts.nothing_kept()
    for chunk in np.array_split(np.array(prompt), -(-len(prompt) // chunk_size)):
        logits, kept = prefill(parts, list(chunk), kept)
    return logits, kept


def _so_many_chunks(parts, prompt, chunk_size):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    return _in_chunks()(parts, prompt, -(-len(prompt) // chunk_size))


def _chunks_recursive(parts, prompt, chunk_size, kept=None):
    if chunk_size < 1:
        raise ValueError("chunk_size must be at least 1")
    logits, kept = prefill(parts, prompt[:chunk_size], kept)
    rest = prompt[chunk_size:]
    return _chunks_recursive(parts, rest, chunk_size, kept) if rest else (logits, kept)


def _chunks_while(parts, prompt, chunk_size):
    if not chunk_size > 0:
        raise ValueError(chunk_size)
    waiting, kept = list(prompt), parts.nothing_kept()
    while waiting:
        x, now = parts.embed(waiting[:chunk_size]), []
        del waiting[:chunk_size]
        for layer, pair in enumerate(kept):
            x, *pair = parts.block(layer, x, *pair)
            now.append(pair)
        kept = now
    return parts.logits(x), kept


def _chunks_split(parts, prompt, chunk_size):
    if chunk_size <= 0:
        raise ValueError("a chunk has tokens")
    kept = parts.nothing_kept()
    for chunk in np.split(np.array(prompt), range(chunk_size, len(prompt), chunk_size)):
        logits, kept = prefill(parts, list(chunk), kept)
    return logits, kept


CHUNKED = Exercise(
    id="chunked_prefill",
    reference=chunked_prefill,
    lesson=LESSON,
    points=2,
    minutes=10,
    difficulty=2,
    uses=("prefill",),
    hints=(
        "range(0, len(prompt), chunk_size) gives where each chunk begins. A slice that reaches "
        "past the end is cut off by Python: the last chunk needs no care.",
        "Begin with kept = parts.nothing_kept(). Each round runs one chunk on top of kept and "
        "takes the longer kept from it.",
        "logits, kept = prefill(parts, prompt[start : start + chunk_size], kept). After the loop, "
        "logits are those of the last chunk. Before it, refuse chunk_size < 1.",
    ),
    cases=(
        Case("11 tokens in chunks of 4", lambda: _chunk_inputs(11, 4, 1)),
        Case("6 tokens in chunks of 3: no chunk is shorter", lambda: _chunk_inputs(6, 3, 2)),
        Case("5 tokens, a chunk has room for 8", lambda: _chunk_inputs(5, 8, 3)),
        Case("4 tokens in chunks of 1", lambda: _chunk_inputs(4, 1, 4)),
        Case("chunk_size 0 is refused", lambda: _chunk_inputs(4, 0, 5)),
        Case("chunk_size -2 is refused", lambda: _chunk_inputs(4, -2, 6)),
    ),
    draw=_draw_chunked,
    n_draws=3,
    drive=_drive_chunked,
    comparison=PASS_COMPARISON,
    wrong={
        "each chunk starts on nothing: it must see what the chunks before it kept": _in_chunks(
            onward=False
        ),
        "the shorter last chunk is left out: those tokens belong to the prompt": _in_chunks(
            starts=lambda n, c: range(0, n - c + 1, c) if n >= c else range(0, n, c)
        ),
        "only whole chunks are run: the tokens that are left over are a chunk too": _whole_chunks,
        "every chunk starts on the first one's: what a chunk keeps goes on to the next": (
            _on_the_first_alone
        ),
        "the last chunk is filled up with token 0: no token may be invented": _padded,
        "the prompt runs in one pass: chunk_size is ignored": _in_chunks(
            starts=lambda n, c: range(1), end=lambda start, c: None
        ),
        "chunk_size is taken as the number of chunks: it is the tokens in each": _so_many_chunks,
        "prompt[-rest:] with a rest of 0 is the whole prompt: it runs once more": _rest_apart,
        "right, but the shorter chunk comes first: it comes last": _shorter_first,
        "right, but the chunks are evened out: each but the last has chunk_size tokens": (
            _even_chunks
        ),
        "chunks overlap by one token: that token gets two places in the text": _in_chunks(
            end=lambda start, c: start + c + 1
        ),
        "a chunk has one token too few: some tokens are never run": _in_chunks(
            end=lambda start, c: start + max(c - 1, 1)
        ),
        "an empty chunk is run where chunk_size divides the prompt": _in_chunks(
            starts=lambda n, c: range(0, n + 1, c)
        ),
        "the chunks run from the last to the first": _in_chunks(order=-1),
        "the logits of the first chunk come back: those after the last token are asked": (
            _in_chunks(result=lambda all_logits, kept, new: (all_logits[0], kept))
        ),
        "only the last chunk's keys and values come back: those of all chunks are asked": (
            _in_chunks(
                result=lambda all_logits, kept, new: (
                    all_logits[-1],
                    [(k[:, :, -new:], v[:, :, -new:]) for k, v in kept],
                )
            )
        ),
        "a chunk_size below 1 is accepted": _in_chunks(check=False),
    },
    right={
        "recursion": _chunks_recursive,
        "a while loop over layers of its own": _chunks_while,
        "np.split": _chunks_split,
    },
)
