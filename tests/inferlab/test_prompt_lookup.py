"""Prompt lookup gives the tokens of plain greedy decoding, whatever it drafts."""

import numpy as np
import pytest
from drawn_models import TINY, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.engines.fast_numpy.model import FastModel
from inferlab.engines.pytorch.model import TorchModel
from inferlab.generate import generate_cached
from inferlab.kv_cache import KVCache
from inferlab.prompt_lookup import LookupStats, NgramIndex, TrackRecord, generate_lookup

EAGER = {"n_right": 0, "first": 5, "largest": 5}


class Echo:
    """A model that repeats the text of a period, and counts the passes and tokens it runs.

    The logits after a token at position p favour text[p + 1].
    """

    config = None

    def __init__(self, text: list[int], vocab_size: int = 50) -> None:
        self.text, self.vocab_size = text, vocab_size
        self.n_passes = self.n_tokens = 0

    def new_cache(self, capacity: int = 16) -> KVCache:
        return KVCache(1, 1, 1, capacity=capacity)

    def forward(self, tokens, cache, last_only=False):
        start, T = cache.n_tokens, len(tokens[0])
        self.n_passes, self.n_tokens = self.n_passes + 1, self.n_tokens + T
        row = np.zeros((1, 1, T, 1), np.float32)
        cache.append(0, row, row)
        following = self.text[start + 1 : start + 1 + T]
        return np.eye(self.vocab_size)[following][None]

    def next_logits(self, tokens, cache):
        return self.forward([tokens], cache)[0, -1]


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("engine", [lambda model: model, FastModel.of, TorchModel.from_model])
@pytest.mark.parametrize("record", [EAGER, {}])
def test_tokens_are_those_of_greedy_decoding(kind, engine, record):
    model = tiny_model(kind, np.float32)
    for seed in range(4):
        prompt = np.random.default_rng(seed).integers(0, 20, 12).tolist()
        stats = LookupStats()
        tokens = generate_lookup(
            engine(model),
            prompt,
            45,
            index=NgramIndex(1, 3),
            record=TrackRecord(**record),
            stats=stats,
        )
        assert tokens == generate_cached(model, prompt, 45)
        assert stats.n_passes + stats.n_accepted == 44
        if record == EAGER:
            assert stats.n_drafted > 20


@settings(deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    n_new=st.integers(0, 30),
    n_right=st.integers(0, 3),
)
def test_every_draft_right_or_wrong_leaves_the_output_as_it_is(text, n_new, n_right):
    """Over four letters the lookup is often right for a few tokens and then wrong."""
    record = TrackRecord(n_right, 3, 9)
    assert generate_lookup(Echo(text), text[:10], n_new, record=record) == text[10 : 10 + n_new]


def test_repeated_text_takes_few_passes_and_the_cache_never_holds_a_rejected_token():
    text = list(range(20)) * 4
    model, stats = Echo(text), LookupStats()
    assert generate_lookup(model, text[:22], 50, stats=stats) == text[22:72]
    # Two steps whose guesses are right, one draft of 8, drafts of 16: 2 + 9 + 17 + 17 = 45 of 49.
    assert model.n_passes == 1 + stats.n_passes == 1 + 6
    assert stats.acceptance == 1


def test_text_without_repeats_costs_what_plain_decoding_costs():
    text = list(np.random.default_rng(0).permutation(200))
    model = Echo(text, 200)
    stats = LookupStats()
    assert generate_lookup(model, text[:10], 100, stats=stats) == text[10:110]
    assert (model.n_tokens, stats.n_drafted, stats.acceptance) == (10 + 99, 0, 0)


def test_drafting_stops_after_a_wrong_guess():
    record = TrackRecord(n_right=2, first=4, largest=8)
    assert record.ask() == 0
    record.tell([7], [7])
    assert record.ask() == 0
    record.tell([7], [7])
    assert record.ask() == 4
    record.tell([1, 2, 3, 4], [1, 2, 3, 4, 5])
    assert record.ask() == 8
    record.tell([1, 2, 3], [1, 9])
    assert record.ask() == 0
    record.tell([], [3])
    assert record.ask() == 0


def test_a_draft_continues_the_longest_known_run_and_goes_round_in_a_period():
    index = NgramIndex(2, 3)
    index.extend([1, 2, 3, 9, 5, 2, 3, 4, 8, 1, 2, 3])
    assert index.draft(3) == [9, 5, 2]  # after 1 2 3, not after the later 2 3
    assert NgramIndex().draft(3) == index.draft(0) == []
    index.extend([7, 7, 7])
    assert index.draft(4) == [7, 7, 7, 7]


def test_nonsense_settings_are_refused():
    with pytest.raises(ValueError, match="n_min=3, n_max=2"):
        NgramIndex(3, 2)
    with pytest.raises(ValueError, match="first=9, largest=8"):
        TrackRecord(first=9, largest=8)


@pytest.mark.model
def test_on_the_real_model_a_copied_text_is_drafted_and_identical(real_model):
    fast, tokenizer = FastModel.of(real_model), real_model.tokenizer
    letter = (
        "Dear Ms Lindqvist, thank you for your order of 12 oak shelves and 3 brass lamps. The "
        "shelves left our workshop in Gothenburg on Tuesday and should reach you by Friday."
    )
    prompt = tokenizer.chat_prompt(f"Copy this letter word for word:\n\n{letter}")
    stats = LookupStats()
    assert generate_lookup(fast, prompt, 45, stats=stats) == generate_cached(fast, prompt, 45)
    assert stats.n_accepted > 20
