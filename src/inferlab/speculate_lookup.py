"""Prompt lookup: guess the next tokens from what the text has said before, verify them at once.

Answers often repeat the prompt: a summary, an edit, code with the same names. So the last few
tokens are looked up earlier in the text, and what followed them there is the draft. One forward
pass over the draft gives the logits at all its positions; the longest part that greedy decoding
would have chosen itself is kept, with one token more that the pass has found in any case. The
output is that of plain greedy decoding, whatever the draft: a bad one only wastes time.

Source: Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023 (arXiv 2304.04487); the check is
the greedy case of Leviathan et al. 2023 (arXiv 2211.17192), section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


class Engine(Protocol):
    """What is needed of a model: Model, FastModel and the like."""

    @property
    def config(self) -> Any: ...
    def new_cache(self, capacity: int = ...) -> Any: ...
    def forward(self, tokens: Any, cache: Any = ..., last_only: bool = ...) -> Any: ...
    def next_logits(self, tokens: Sequence[int], cache: Any = ...) -> np.ndarray: ...


class NgramIndex:
    """Where each run of n_min to n_max tokens was last followed by something.

    Extending it by a token costs n_max - n_min + 1 dictionary entries, however long the text.
    """

    def __init__(self, n_min: int = 2, n_max: int = 6) -> None:
        if not 1 <= n_min <= n_max:
            raise ValueError(f"need 1 <= n_min <= n_max, given n_min={n_min}, n_max={n_max}")
        self.n_min, self.n_max = n_min, n_max
        self.tokens: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}  # a run -> position of what followed it

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end of the text."""
        for token in tokens:
            position = len(self.tokens)
            for n in range(self.n_min, min(self.n_max, position) + 1):
                self._follows[tuple(self.tokens[position - n :])] = position
            self.tokens.append(token)

    def draft(self, n_draft: int) -> list[int]:
        """Up to n_draft tokens that followed the longest known run at the end of the text.

        Where what followed reaches the end of the text, it is repeated from its beginning on:
        the text has then a period, which goes on.
        """
        if n_draft < 1:
            return []
        for n in range(min(self.n_max, len(self.tokens)), self.n_min - 1, -1):
            start = self._follows.get(tuple(self.tokens[-n:]))
            if start is not None:
                followed = self.tokens[start : start + n_draft]
                return [followed[i % len(followed)] for i in range(n_draft)]
        return []


@dataclass
class TrackRecord:
    """How many tokens to draft: none, until the lookup has guessed right a few times in a row.

    A pass over several tokens costs more than a step (3 steps for 9 tokens in fp32 on a CPU), so
    a draft must be likely to pay. A guess of one token costs nothing as long as it is not run: it
    is compared with what the model chose anyway. After n_right right guesses `first` tokens are
    drafted, after more `largest`; a wrong one ends it. On open-ended text hardly any is.
    """

    n_right: int = 2
    first: int = 8
    largest: int = 16
    run: int = field(init=False, default=0)  # right guesses in a row, drafted or not

    def __post_init__(self) -> None:
        if not (self.n_right >= 0 and 1 <= self.first <= self.largest):
            raise ValueError(
                f"need n_right >= 0 and 1 <= first <= largest, given n_right={self.n_right}, "
                f"first={self.first}, largest={self.largest}"
            )

    def ask(self) -> int:
        """The number of tokens to draft now."""
        if self.run < self.n_right:
            return 0
        return self.first if self.run == self.n_right else self.largest

    def tell(self, guess: Sequence[int], chosen: Sequence[int]) -> None:
        """Compare a guess with the tokens that the model chose in its place, as far as both go."""
        pairs = list(zip(guess, chosen, strict=False))
        if all(guessed == right for guessed, right in pairs):
            self.run += len(pairs)
        else:
            self.run = 0


@dataclass
class LookupStats:
    """What a generation did: forward passes after the prefill, tokens drafted and accepted."""

    n_passes: int = 0
    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Share of drafted tokens that were kept; 0 where none was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0


def generate_lookup(
    model: Engine,
    prompt: Sequence[int],
    n_new: int,
    *,
    index: NgramIndex | None = None,
    record: TrackRecord | None = None,
    stats: LookupStats | None = None,
) -> list[int]:
    """Greedy generation with prompt lookup: -> the n_new ids that plain greedy gives as well.

    That holds exactly where a pass over several tokens rounds as a step over one does, or where no
    two logits are closer than that rounding: in float32 in practice, in bfloat16 not always.

    prompt: at least one token id; n_new >= 0. index, record and stats may be handed in to choose
    other settings or to read them afterwards; index must be empty.
    """
    if n_new < 1:
        return []
    index, record = index or NgramIndex(), record or TrackRecord()
    stats = stats or LookupStats()
    cache = model.new_cache(capacity=len(prompt) + n_new)
    token = int(np.argmax(model.next_logits(prompt, cache)))
    index.extend([*prompt, token])
    new_tokens = [token]
    while len(new_tokens) < n_new:
        # The pass itself finds one token more than was drafted.
        n_draft = min(record.ask(), n_new - len(new_tokens) - 1)
        guess = index.draft(max(1, n_draft))
        draft = guess[:n_draft]
        found = _verify(model, new_tokens[-1], draft, cache)
        record.tell(guess, found)
        stats.n_passes += 1
        stats.n_drafted += len(draft)
        stats.n_accepted += len(found) - 1
        index.extend(found)
        new_tokens += found
    return new_tokens


def _verify(model: Engine, last: int, draft: list[int], cache: Any) -> list[int]:
    """The tokens of the draft that greedy decoding chooses as well, and the one after them.

    Afterwards the cache holds `last` and what was kept of the draft, and no trace of the rest.
    """
    if not draft:
        return [int(np.argmax(model.next_logits([last], cache)))]
    n_before = cache.n_tokens
    logits = model.forward(np.array([[last, *draft]]), cache)[0]  # (1 + n_draft, vocab_size)
    chosen = np.asarray(logits).argmax(axis=-1).tolist()
    n_kept = 0
    while n_kept < len(draft) and draft[n_kept] == chosen[n_kept]:
        n_kept += 1
    cache.truncate(n_before + 1 + n_kept)
    return chosen[: n_kept + 1]
