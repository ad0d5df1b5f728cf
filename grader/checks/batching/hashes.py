"""Lesson 10: names of pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.judging.exercise import Exercise, Inputs, given
from inferlab.prefix_cache import digest, page_hashes


def _draw_tokens(rng: np.random.Generator) -> Inputs:
    page_size = int(rng.integers(2, 6))
    n = page_size * int(rng.integers(3, 6)) + int(rng.integers(0, page_size))
    return {
        "tokens": rng.integers(0, 300, n).tolist(),
        "page_size": page_size,
        "salt": str(rng.choice(["", "tenant-7"])),
    }


def _drive_hashes(answer: Any, inputs: Inputs) -> dict[str, Any]:
    """Names, and which of them agree between prompts: the names alone would tell nobody much."""
    tokens, size, salt = inputs["tokens"], inputs["page_size"], inputs["salt"]
    other = [(tokens[0] + 1 if tokens else 1), *tokens[1:]]
    named = {
        "this prompt": answer(list(tokens), size, salt),
        "another first token": answer(other, size, salt),
        "one token more": answer([*tokens, 7], size, salt),
        "another salt": answer(list(tokens), size, salt + "x"),
        "no salt named": answer(list(tokens), size),
    }
    mine = named["this prompt"]
    seen: dict[str, Any] = {f"number of names, {k}": len(v) for k, v in named.items()}
    seen |= {
        f"names shared with {k}": len(set(v) & set(mine))
        for k, v in named.items()
        if k != "this prompt"
    }
    seen["names that occur twice"] = len(mine) - len(set(mine))
    seen["names"] = [n.hex() if isinstance(n, bytes) else str(n) for n in mine]
    return seen


def _hashes(
    before: Callable = lambda names, salt: names[-1] if names else salt.encode(),
    page: Callable = lambda tokens, start, size: tokens[start : start + size],
    starts: Callable = lambda n, size: range(0, n - size + 1, size),
):
    """page_hashes with one step replaced."""

    def answer(tokens, page_size, salt=""):
        names: list[bytes] = []
        for start in starts(len(tokens), page_size):
            names.append(digest(before(names, salt), page(tokens, start, page_size)))
        return names

    return answer


def _hash_recursive(tokens, page_size, salt=""):
    n_full = len(tokens) // page_size
    if n_full == 0:
        return []
    earlier = _hash_recursive(tokens[: (n_full - 1) * page_size], page_size, salt)
    before = earlier[-1] if earlier else salt.encode()
    return [*earlier, digest(before, tokens[(n_full - 1) * page_size : n_full * page_size])]


def _hash_reduce(tokens, page_size, salt=""):
    from itertools import accumulate

    pages = np.asarray(tokens)[: len(tokens) // page_size * page_size].reshape(-1, page_size)
    return list(accumulate(pages.tolist(), digest, initial=salt.encode()))[1:]


def _hash_tokens_as_text(tokens, page_size, salt=""):
    import hashlib

    names, name = [], salt.encode()
    for start in range(0, len(tokens) - page_size + 1, page_size):
        text = "".join(str(t) for t in tokens[start : start + page_size])
        name = hashlib.sha256(name + b"|" + text.encode()).digest()
        names.append(name)
    return names


HASHES = Exercise(
    id="page_hashes",
    reference=page_hashes,
    lesson=LESSON,
    points=2,
    minutes=9,
    difficulty=2,
    hints=(
        "A loop over the full pages: there are len(tokens) // page_size. Keep the name of the page "
        "before.",
        "name = salt.encode() before the first page. In each round name = digest(name, the tokens "
        "of this page), and the new name is appended.",
        "for end in range(page_size, len(tokens) + 1, page_size): name = digest(name, "
        "tokens[end - page_size : end]); names.append(name)",
    ),
    cases=(
        given("9 tokens by 4", tokens=[5, 1, 4, 1, 5, 9, 2, 6, 5], page_size=4, salt=""),
        given("8 tokens by 4: both pages are full", tokens=[5, 1, 4, 1, 5, 9, 2, 6], page_size=4,
              salt=""),
        given("two equal pages", tokens=[1, 2, 3, 1, 2, 3], page_size=3, salt="a"),
        given("less than a page", tokens=[1, 2], page_size=3, salt=""),
        given("no token", tokens=[], page_size=3, salt=""),
    ),
    draw=_draw_tokens,
    drive=_drive_hashes,
    wrong={
        "only the page's own tokens: an equal page behind another past would be taken for it": (
            _hashes(before=lambda names, salt: salt.encode())
        ),
        "the salt is left out: what must be kept apart would be shared": _hashes(
            before=lambda names, salt: names[-1] if names else b""
        ),
        "the salt stands before the second page, too: only the first page has it": _hashes(
            before=lambda names, salt: salt.encode() + (names[-1] if names else b"")
        ),
        "the partly filled last page gets a name: more tokens will come into it": _hashes(
            starts=lambda n, size: range(0, n, size)
        ),
        "a full page at the very end has no name": _hashes(
            starts=lambda n, size: range(0, n - size, size)
        ),
        "a name for every token: only full pages are shared": _hashes(
            starts=lambda n, size: range(0, n - size + 1)
        ),
        "the name of the first page stands before all others: it is the one just before": _hashes(
            before=lambda names, salt: names[0] if names else salt.encode()
        ),
        "all tokens so far are hashed behind the name before: the name holds them already": (
            _hashes(page=lambda tokens, start, size: tokens[: start + size])
        ),
        "each name is made from all tokens so far: chain the name before and this page's tokens": (
            _hashes(
                before=lambda names, salt: salt.encode(),
                page=lambda tokens, start, size: tokens[: start + size],
            )
        ),
        "the first token of each page only: all of them decide": _hashes(
            page=lambda tokens, start, size: tokens[start : start + 1]
        ),
        "the tokens are sorted: their order matters": _hashes(
            page=lambda tokens, start, size: sorted(tokens[start : start + size])
        ),
        "tokens are joined without a mark between them, [1, 23] as [12, 3]: call digest": (
            _hash_tokens_as_text
        ),
    },
    right={
        "recursion": _hash_recursive,
        "accumulate over a table of pages": _hash_reduce,
        "start in place of end": _hashes(),
    },
)  # fmt: skip
