"""Prompt lookup: guess the next tokens from what the text has said before, verify them at once.

Answers often repeat the prompt: a summary, an edit, code with the same names. So the last few
tokens are looked up earlier in the text, and what followed them there is the draft. One forward
pass over the draft gives the logits at all its positions; the longest part that greedy decoding
would have chosen itself is kept, with one token more that the pass has found in any case. The
output is that of plain greedy decoding, whatever the draft: a bad one only wastes time. When
tokens are sampled, the draft's law is one-hot, and verify_draft keeps the target's law.

Source: Saxena 2023, "Prompt Lookup Decoding"; Yang et al. 2023 (arXiv 2304.04487); the check is
the greedy case of Leviathan et al. 2023 (arXiv 2211.17192), section 2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferlab.sampling import Engine, LawOf, draw_token
from inferlab.speculative_sampling import greedy_match, laws_after, verify_draft


class NgramIndex:
    """Where each run of n_min to n_max tokens was last followed by something.

    tokens: the text so far. follows: a run, as a tuple -> the position of the token that came
    after it, where it last occurred. Extending the text by a token costs n_max - n_min + 1
    entries of a dictionary, however long it is.
    """

    def __init__(self, n_min: int = 2, n_max: int = 6) -> None:
        if not 1 <= n_min <= n_max:
            raise ValueError(f"need 1 <= n_min <= n_max, given n_min={n_min}, n_max={n_max}")
        self.n_min, self.n_max = n_min, n_max
        self.tokens: list[int] = []
        self.follows: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end of the text, one after the other.

        Before a token is added at position len(self.tokens), every run of n_min to n_max tokens
        that ends the text at that moment (and fits into it) is entered in self.follows with that
        position, as a tuple. A run that occurred before gets the new position.

        Example: n_min 1, n_max 2, text 7, 8, then extend([9]): follows[(8,)] = 2 and
        follows[(7, 8)] = 2; the text is 7, 8, 9. The run (9,) is not entered: nothing follows yet.
        """
        for token in tokens:
            position = len(self.tokens)
            for n in range(self.n_min, min(self.n_max, position) + 1):
                self.follows[tuple(self.tokens[position - n :])] = position
            self.tokens.append(int(token))

    def draft(self, n_draft: int) -> list[int]:
        """Guess the next tokens: what followed the longest known run at the end of the text.

        Try the last n_max tokens of the text as a run, then one fewer, down to n_min; the first
        that self.follows knows decides. The guess is self.tokens from its position on. Where that
        reaches the end of the text, what followed is repeated from its beginning: the text has
        then a period, which goes on. No known run, or n_draft below 1: the guess is empty.

        -> n_draft token ids, or none
        Example: n_min 2, n_max 3, text 1, 2, 3, 9, 5, 1, 2, 3: the run 1, 2, 3 was followed by the
        token at position 3: draft(2) -> 9, 5, and draft(7) -> 9, 5, 1, 2, 3, 9, 5.
        """
        if n_draft < 1:
            return []
        for n in range(min(self.n_max, len(self.tokens)), self.n_min - 1, -1):
            start = self.follows.get(tuple(self.tokens[-n:]))
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


Verify = Callable[[list[int], list[int], Any], list[int]]
"""(text so far, draft, cache) -> the new tokens; afterwards the cache lacks only the last one."""


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
    rounds = lookup_rounds(model, prompt, n_new, index=index, record=record, stats=stats)
    return [token for new in rounds for token in new]


def lookup_rounds(
    model: Engine,
    prompt: Sequence[int],
    n_new: int,
    law_of: LawOf | None = None,
    rng: np.random.Generator | None = None,
    *,
    index: NgramIndex | None = None,
    record: TrackRecord | None = None,
    stats: LookupStats | None = None,
) -> Iterator[list[int]]:
    """Generate with prompt lookup; yield round by round the tokens that were added.

    Greedy without law_of; with it (and rng) the tokens are sampled, and have the law that plain
    sampling from law_of(logits) gives. The other arguments are those of generate_lookup.
    """
    index, record = index or NgramIndex(), record or TrackRecord()
    stats = stats or LookupStats()
    verify = _greedy(model) if law_of is None else _sampled(model, law_of, rng)
    if n_new < 1:
        return
    cache = model.new_cache(capacity=len(prompt) + n_new)
    tokens, end = list(prompt), len(prompt) + n_new
    new = verify(tokens, [], cache)
    index.extend([*prompt, *new])
    while True:
        tokens += new
        yield new
        if len(tokens) >= end:
            return
        # The pass itself finds one token more than was drafted.
        n_draft = min(record.ask(), end - len(tokens) - 1)
        guess = index.draft(max(1, n_draft))
        draft = guess[:n_draft]
        new = verify(tokens, draft, cache)
        cache.truncate(len(tokens) + len(new) - 1)
        record.tell(guess, new)
        stats.n_passes += 1
        stats.n_drafted += len(draft)
        stats.n_accepted += len(new) - 1
        index.extend(new)


def _greedy(model: Engine) -> Verify:
    """Verify by comparison with the largest logits: no law needs to be made."""

    def verify(tokens: list[int], draft: list[int], cache: Any) -> list[int]:
        if not draft:
            return [int(np.argmax(model.next_logits(tokens[cache.n_tokens :], cache)))]
        logits = model.forward(np.array([[tokens[-1], *draft]]), cache)[0]
        return greedy_match(draft, np.asarray(logits).argmax(axis=-1).tolist())

    return verify


def _sampled(model: Engine, law_of: LawOf, rng: np.random.Generator | None) -> Verify:
    """Verify by the law; that of a looked-up token is one-hot."""
    rng = rng or np.random.default_rng()

    def verify(tokens: list[int], draft: list[int], cache: Any) -> list[int]:
        target_laws = laws_after(model, cache, tokens, draft, law_of)
        if not draft:
            return [draw_token(target_laws[0], rng.random())]
        draft_laws = np.zeros((len(draft), len(target_laws[0])))
        draft_laws[np.arange(len(draft)), draft] = 1
        return verify_draft(target_laws, list(draft_laws), draft, rng.random(len(draft) + 1))

    return verify
