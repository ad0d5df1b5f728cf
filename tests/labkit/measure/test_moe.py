"""What is measured of a model's experts: by hand on small arrays, and on the shipped model."""

import numpy as np
import pytest

from inferlab import moe
from inferlab.data import ROOT
from inferlab.generate import generate_cached
from inferlab.model import Model, load_model
from inferlab.moe_sizes import touched_experts
from inferlab.weights import random_weights
from labkit.measure import moe as moe_measure


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny-moe")


def test_shares_and_entropy_by_hand():
    experts = np.array([[[0, 1], [0, 2]], [[1, 0], [0, 1]]])
    shares = moe_measure.shares(experts, 4)
    assert shares.tolist() == [[0.5, 0.25, 0.25, 0.0], [0.5, 0.5, 0.0, 0.0]]
    assert moe_measure.entropy_bits(shares).tolist() == [1.5, 1.0]
    assert moe_measure.entropy_bits(np.full((1, 8), 1 / 8)) == pytest.approx(3.0)


def test_distinct_experts_are_counted_and_follow_the_law_where_choices_are_even():
    rng = np.random.default_rng(0)
    even = np.argsort(rng.random((1, 5000, 8)), axis=-1)[..., :2]
    counted = moe_measure.distinct(even, [1, 4, 16], rng, n_draws=600)
    assert counted[0] == pytest.approx([touched_experts(8, 2, n) for n in (1, 4, 16)], abs=0.12)
    by_shares = moe_measure.distinct_by_shares(np.full((1, 8), 1 / 8), 2, [1, 4, 16])
    assert by_shares[0] == pytest.approx([touched_experts(8, 2, n) for n in (1, 4, 16)])
    same = np.zeros((1, 10, 1), dtype=int)
    assert moe_measure.distinct(same, [5], rng, 9).tolist() == [[1.0]]
    skewed = moe_measure.distinct_by_shares(np.array([[0.5, 0.5, 0, 0]]), 2, [3])
    assert skewed.tolist() == [[2.0]]


def test_scores_are_those_of_the_run(tiny):
    """The recorded scores give the output of each layer's mixture, and the run is not disturbed."""
    tokens = moe_measure.windows(tiny, "When shall we three meet again in thunder?", 5, 2)
    assert tokens.shape == (2, 5)
    before = tiny.forward(tokens)
    seen = []

    def recorded(x, w_router, *rest):
        seen.append(x @ w_router)
        return moe_forward(x, w_router, *rest)

    moe_forward = moe.moe_forward
    with moe_measure.experts_by(recorded):
        tiny.forward(tokens)
    assert moe.moe_forward is moe_forward
    np.testing.assert_array_equal(moe_measure.router_scores(tiny, tokens), np.stack(seen))
    np.testing.assert_array_equal(tiny.forward(tokens), before)


def test_the_engine_runs_what_it_is_given(tiny):
    prompt = tiny.tokenizer.encode("MACBETH:")
    expected = generate_cached(tiny, prompt, 6)
    with moe_measure.experts_by(moe.dense_mixture):
        assert generate_cached(tiny, prompt, 6) == expected
    with moe_measure.experts_by(lambda x, *rest: np.zeros_like(x)):
        assert generate_cached(tiny, prompt, 6) != expected


def test_the_card_of_the_shipped_model(tiny):
    """A part of the held-out text is used much like the whole of it: shares as on the card."""
    from grader.checks.moe.predictions import card_shares

    text = (ROOT / "data" / "tiny" / "heldout.txt").read_text(encoding="utf-8")
    scores = moe_measure.router_scores(tiny, moe_measure.windows(tiny, text, 256, 16))
    assert scores.shape == (4, 16, 256, 8)
    experts = np.stack([moe.router_weights(s.reshape(-1, 8), 2)[0] for s in scores])
    shares = moe_measure.shares(experts, 8)
    for layer in range(4):
        assert shares[layer] == pytest.approx(card_shares(layer), abs=0.03)
    counted = moe_measure.distinct(experts, [8], np.random.default_rng(0))
    assert (counted[1:] < touched_experts(8, 2, 8) - 0.3).all()  # skewed layers: fewer
    assert counted[0] == pytest.approx(touched_experts(8, 2, 8), abs=0.15)


def test_what_cannot_be_measured_is_refused(tiny):
    from inferlab.config import ModelConfig

    config = ModelConfig(1, 8, 2, 1, 4, 12, 30)
    dense = Model(config, random_weights(config, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="no experts"):
        moe_measure.router_scores(dense, np.array([[1, 2]]))
    with pytest.raises(ValueError, match="at least length=50"):
        moe_measure.windows(tiny, "too short", 50)
    with pytest.raises(ValueError, match="no tokenizer"):
        moe_measure.windows(dense, "text", 1)
