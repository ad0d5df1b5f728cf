"""The equality lattice: a model says the same, whichever way it is run.

Rows are ways to run (no cache, cache, chunked prefill, batched, with rejected guesses), columns
are kinds of model. All in float64, so that equal tokens mean equal mathematics; that the first
row is right is shown against transformers in test_engine_oracles.py.
"""

from collections.abc import Callable

import numpy as np
import pytest
from lattice_models import KINDS, MLA, model_of

from inferlab.config import ModelConfig
from inferlab.generate import generate_cached, generate_uncached
from inferlab.kv_cache import KVCache
from inferlab.mla import LatentCache
from inferlab.model import Model

N_PROMPT, N_NEW, B = 11, 12, 3


def prompts(config: ModelConfig) -> np.ndarray:
    """(B, N_PROMPT)"""
    return np.random.default_rng(2).integers(0, config.vocab_size, (B, N_PROMPT))


def greedy(logits: np.ndarray) -> np.ndarray:
    """(B, T, vocab_size) -> (B, 1), the best token after the last"""
    return logits[:, -1].argmax(axis=-1)[:, None]


def in_chunks(n_chunk: int) -> Callable[[Model, np.ndarray], list[list[int]]]:
    def run(model: Model, batch: np.ndarray) -> list[list[int]]:
        return [chunked(model, prompt.tolist(), n_chunk) for prompt in batch]

    return run


def chunked(model: Model, prompt: list[int], n_chunk: int) -> list[int]:
    cache = model.new_cache(capacity=1)
    for start in range(0, len(prompt), n_chunk):
        logits = model.next_logits(prompt[start : start + n_chunk], cache)
    new = [int(logits.argmax())]
    while len(new) < N_NEW:
        new.append(int(model.next_logits(new[-1:], cache).argmax()))
    return new


def no_cache(model: Model, batch: np.ndarray) -> list[list[int]]:
    return [generate_uncached(model, prompt.tolist(), N_NEW) for prompt in batch]


def with_cache(model: Model, batch: np.ndarray) -> list[list[int]]:
    return [generate_cached(model, prompt.tolist(), N_NEW) for prompt in batch]


def batched_without_cache(model: Model, batch: np.ndarray) -> list[list[int]]:
    text = batch
    for _ in range(N_NEW):
        text = np.concatenate([text, greedy(model.forward(text))], axis=1)
    return text[:, N_PROMPT:].tolist()


def batched(model: Model, batch: np.ndarray) -> list[list[int]]:
    cache = model.new_cache(n_sequences=len(batch))
    new = [greedy(model.forward(batch, cache))]
    while len(new) < N_NEW:
        new.append(greedy(model.forward(new[-1], cache)))
    return np.concatenate(new, axis=1).tolist()


def with_rejected_guesses(model: Model, batch: np.ndarray) -> list[list[int]]:
    """After each step run three wrong tokens and forget them, as speculative sampling does."""
    cache = model.new_cache(n_sequences=len(batch))
    new = [greedy(model.forward(batch, cache))]
    while len(new) < N_NEW:
        kept = cache.n_tokens
        model.forward(np.full((len(batch), 3), 7), cache)
        cache.truncate(kept)
        new.append(greedy(model.forward(new[-1], cache)))
    return np.concatenate(new, axis=1).tolist()


WAYS: dict[str, Callable[[Model, np.ndarray], list[list[int]]]] = {
    "cache": with_cache,
    **{f"prefill in chunks of {n}": in_chunks(n) for n in (1, 2, 3, 5, 10, N_PROMPT)},
    "batched without cache": batched_without_cache,
    "batched": batched,
    "with rejected guesses": with_rejected_guesses,
}


@pytest.fixture(scope="module", params=KINDS)
def column(request) -> tuple[Model, np.ndarray, list[list[int]]]:
    """A kind of model, its prompts, and what it says without a cache."""
    model = model_of(request.param)
    batch = prompts(model.config)
    return model, batch, no_cache(model, batch)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_tokens(column, way):
    model, batch, expected = column
    assert WAYS[way](model, batch) == expected


@pytest.mark.parametrize("cuts", [(4,), (1, 2, 10), (5, 6, 7)])
def test_the_same_logits_in_pieces(column, cuts):
    model, batch, _ = column
    cache = model.new_cache(capacity=2, n_sequences=B)
    pieces = [model.forward(piece, cache) for piece in np.split(batch, cuts, axis=1)]
    np.testing.assert_allclose(
        np.concatenate(pieces, axis=1), model.forward(batch), rtol=0, atol=1e-10
    )


def test_the_lattice_could_fail(column):
    """The tokens vary, and their lead over the next best is far beyond rounding."""
    model, batch, expected = column
    assert len({token for row in expected for token in row}) > B
    for prompt, new in zip(batch.tolist(), expected, strict=True):
        best = np.sort(model.forward([prompt + new])[0, N_PROMPT - 1 : -1], axis=-1)
        assert (best[:, -1] - best[:, -2]).min() > 1e-6


def test_what_the_cache_holds_matters(column):
    model, batch, _ = column
    cache = model.new_cache(n_sequences=B)
    model.forward(batch, cache)
    whole = model.forward(batch[:, :1], cache)
    cache.truncate(N_PROMPT)
    held = cache.latents if isinstance(cache, LatentCache) else cache.values
    held[0, ..., N_PROMPT - 2, :] += 1.0
    assert np.abs(model.forward(batch[:, :1], cache) - whole).max() > 1e-3


def test_a_latent_cache_is_small_and_counted_by_hand():
    model = model_of("MLA")
    cache = model.new_cache(capacity=2, n_sequences=B)
    assert isinstance(cache, LatentCache)
    model.forward(prompts(model.config), cache)
    assert cache.n_bytes == N_PROMPT * B * 3 * (12 + 4) * 8  # layers, latent + shared key, float64
    assert cache.latents.shape[2] == cache.keys.shape[2] == cache.capacity == 16
    plain = model_of("MHA").new_cache(n_sequences=B)
    assert isinstance(plain, KVCache)


def test_a_latent_cache_refuses_what_does_not_fit():
    cache = LatentCache(2, MLA, n_sequences=1, dtype=np.float64)
    good = np.zeros((1, 3, 12)), np.zeros((1, 3, 4))
    latents, keys = cache.append(0, *good)
    assert (latents.shape, keys.shape) == ((1, 3, 12), (1, 3, 4))
    assert cache.n_tokens == 0, "the second layer holds nothing yet"
    cache.append(1, *good)
    for wrong in ((good[1], good[0]), (good[0], good[1][:, :2]), (good[0][0], good[1][0])):
        with pytest.raises(ValueError, match=r"latent and k_rope must be .* given"):
            cache.append(0, *wrong)
    with pytest.raises(ValueError, match="between 0 and 3, given 4"):
        cache.truncate(4)
    with pytest.raises(ValueError, match="at least 1"):
        LatentCache(0, MLA)
