"""The serving engine: whatever comes when, every request gets the tokens it would get alone."""

import numpy as np
import pytest
from drawn_models import TINY, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab.config import ModelConfig
from inferlab.engines.pytorch.model import TorchModel
from inferlab.generate import generate_uncached
from inferlab.model import Model
from inferlab.serve.engine import ServingEngine
from inferlab.weights import random_weights

WINDOW = ModelConfig(2, 32, 4, 2, 8, 48, 67, 64, sliding_window=5)
EXPERTS = ModelConfig(2, 32, 4, 2, 8, 48, 67, 64, n_experts=4, n_experts_per_token=2, d_expert=24)
MODELS = {name: tiny_model(name) for name in TINY}
MODELS |= {
    name: Model(config, random_weights(config, np.random.default_rng(3), np.float64))
    for name, config in {"sliding window": WINDOW, "experts": EXPERTS}.items()
}


ORACLES = dict(MODELS)  # the engine that is asked alone: for each kind the NumPy one
for _name in (*TINY, "sliding window"):
    MODELS[f"{_name}, PyTorch"] = TorchModel.from_model(ORACLES[_name])
    ORACLES[f"{_name}, PyTorch"] = ORACLES[_name]


def prompts_of(rng, n, vocab_size, shared=0):
    """n prompts of 1 to 20 tokens; each may begin with a part of one shared text."""
    common = rng.integers(0, vocab_size, 12).tolist()
    return [
        common[: int(rng.integers(0, shared + 1))]
        + rng.integers(0, vocab_size, int(rng.integers(1, 9))).tolist()
        for _ in range(n)
    ]


def drive(engine, prompts, n_new, arrivals):
    """Add request i before step arrivals[i]; check the pages after every step. -> their tokens"""
    got = {str(i): [] for i in range(len(prompts))}
    step, left = 0, dict(enumerate(arrivals))
    while left or not engine.is_idle:
        for i in [i for i, at in left.items() if at <= step]:
            engine.add(str(i), prompts[i], n_new[i])
            del left[i]
        for event in engine.step():
            got[event.request_id].append(event.token)
        scheduler = engine.scheduler
        scheduler.allocator.require_sound(scheduler.holders())
        assert all(r.n_computed == 0 and not r.page_table for r in scheduler.waiting)
        step += 1
        assert step < 2000
    return list(got.values())


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_request_gets_the_tokens_it_would_get_alone(kind, seed):
    rng = np.random.default_rng(seed)
    model = MODELS[kind]
    n = int(rng.integers(1, 7))
    prompts = prompts_of(rng, n, model.config.vocab_size, shared=12)
    n_new = rng.integers(1, 9, n).tolist()
    engine = ServingEngine(
        model,
        n_pages=int(rng.integers(14, 30)),  # at times too few for all: somebody is preempted
        page_size=int(rng.integers(2, 5)),
        token_budget=int(rng.integers(4, 12)),
        max_running=int(rng.integers(1, 5)),
        use_prefix_cache=bool(rng.integers(2)),
    )
    oracle = ORACLES[kind]
    alone = [generate_uncached(oracle, p, k) for p, k in zip(prompts, n_new, strict=True)]
    assert drive(engine, prompts, n_new, rng.integers(0, 12, n).tolist()) == alone
    allocator, cache = engine.scheduler.allocator, engine.scheduler.prefix_cache
    n_kept = 0 if cache is None else len(cache.pages)
    assert len(allocator.free) + n_kept == allocator.n_pages  # nobody else holds a page


@pytest.mark.parametrize("kind", ["gqa", "gqa, PyTorch"])
def test_preemption_happens_and_changes_nothing(kind):
    model = MODELS[kind]
    prompts = prompts_of(np.random.default_rng(0), 4, model.config.vocab_size)
    engine = ServingEngine(model, n_pages=8, page_size=4, max_running=4, token_budget=16)
    alone = [generate_uncached(ORACLES[kind], p, 16) for p in prompts]
    assert drive(engine, prompts, [16] * 4, [0] * 4) == alone
    assert sum(record.n_preempted for record in engine.records) > 0


@pytest.mark.parametrize("kind", ["gqa", "gqa, PyTorch"])
def test_a_shared_beginning_is_computed_once(kind):
    model = MODELS[kind]
    system = list(range(16))
    engine = ServingEngine(model, n_pages=40, page_size=4)
    first = engine.add("a", [*system, 40], 2)
    list(engine.run())
    second = engine.add("b", [*system, 41], 2)
    list(engine.run())
    whole = engine.add("c", system, 1)  # all of it is known; one token must still be computed
    list(engine.run())
    assert (first.n_cached, second.n_cached, whole.n_cached) == (0, 16, 12)
    assert whole.generated == generate_uncached(ORACLES[kind], system, 1)
    assert [r.n_prefill_tokens for r in engine.records if r.n_prefill_tokens] == [17, 1, 4]


def test_a_long_prompt_does_not_stop_those_who_decode():
    model = MODELS["gqa"]
    engine = ServingEngine(model, n_pages=40, page_size=4, token_budget=6, max_running=4)
    engine.add("talks", [1, 2], 12)
    engine.step()
    engine.add("reads", list(range(30)), 2)
    events = [engine.step() for _ in range(4)]
    assert all("talks" in {e.request_id for e in step} for step in events)
    assert [r.n_prefill_tokens for r in engine.records[1:5]] == [5, 5, 5, 5]


@pytest.mark.parametrize("kind", ["gqa", "gqa, PyTorch"])
def test_a_fork_shares_pages_until_the_two_differ(kind):
    model = MODELS[kind]
    engine = ServingEngine(model, n_pages=20, page_size=4, use_prefix_cache=False)
    request = engine.add("a", [1, 2, 3, 4, 5, 6], 6)
    engine.step()
    twin = engine.scheduler.fork(request, "b")
    twin.generated[-1] = (request.generated[-1] + 1) % model.config.vocab_size
    engine.live["b"] = type(engine.live["a"])(twin, engine.live["a"].choose, frozenset())
    assert twin.page_table == request.page_table
    list(engine.run())
    assert request.generated == generate_uncached(ORACLES[kind], request.prompt, 6)
    rest = generate_uncached(ORACLES[kind], [*twin.prompt, twin.generated[0]], 5)
    assert twin.generated[1:] == rest
    assert len(engine.scheduler.allocator.free) == 20


def test_an_aborted_request_frees_its_pages_at_once():
    engine = ServingEngine(MODELS["gqa"], n_pages=8, page_size=4, use_prefix_cache=False)
    engine.add("a", [1] * 9, 20)
    engine.step()
    assert len(engine.scheduler.allocator.free) == 5
    engine.abort("a")
    assert len(engine.scheduler.allocator.free) == 8
    assert engine.is_idle
    assert engine.step() == []


REFUSED = {
    "empty prompt": (([], 3), "a prompt of 1 token"),
    "nothing to generate": (([1], 0), "1 to generate"),
    "token outside": (([67], 1), "token 67 is outside 0..66"),
    "too long for the model": (([1] * 60, 5), "max_context=64"),
    "too long for the pages": (([1] * 20, 20), "39 tokens need 10 pages of 4; there are 8"),
}


@pytest.mark.parametrize(("asked", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_served_is_refused_with_the_numbers(asked, message):
    engine = ServingEngine(MODELS["gqa"], n_pages=8, page_size=4)
    with pytest.raises(ValueError, match=message):
        engine.add("a", *asked)
    assert engine.is_idle
