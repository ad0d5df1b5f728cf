"""Experts: the router by hand, and gather and scatter against a loop over tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlab import moe
from inferlab.operators import softmax, swiglu

QUICK = settings(derandomize=True, deadline=None, max_examples=25)


def test_router_weights_by_hand():
    scores = np.log([[1.0, 2.0, 5.0]])
    experts, weights = moe.router_weights(scores, 2)
    assert experts.tolist() == [[2, 1]]
    np.testing.assert_allclose(weights, [[5 / 7, 2 / 7]])
    _, weights = moe.router_weights(scores, 2, norm_topk=False)
    np.testing.assert_allclose(weights, [[5 / 8, 2 / 8]])
    experts, _ = moe.router_weights(np.zeros((1, 4)), 3)
    assert experts.tolist() == [[0, 1, 2]], "of equal scores the lower number comes first"


@pytest.mark.parametrize("n_chosen", [0, 4])
def test_the_router_chooses_between_one_and_all(n_chosen):
    with pytest.raises(ValueError, match=rf"n_chosen={n_chosen} must be in 1\.\.3"):
        moe.router_weights(np.zeros((1, 3)), n_chosen)


@QUICK
@given(st.integers(1, 6), st.integers(1, 7), st.data())
def test_normed_weights_are_a_softmax_of_the_chosen_scores(n_tokens, n_experts, data):
    n_chosen = data.draw(st.integers(1, n_experts))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scores = rng.standard_normal((n_tokens, n_experts)) * 5
    experts, weights = moe.router_weights(scores, n_chosen)
    chosen = np.take_along_axis(scores, experts, axis=-1)
    np.testing.assert_allclose(weights, softmax(chosen), rtol=1e-12)
    for row, best in zip(scores, experts, strict=True):
        assert len(set(best)) == n_chosen
        left_out = np.delete(row, best)
        assert len(left_out) == 0 or left_out.max() <= row[best].min()


@QUICK
@given(st.integers(1, 9), st.integers(1, 6), st.data())
def test_every_choice_is_routed_once(n_tokens, n_experts, data):
    n_chosen = data.draw(st.integers(1, n_experts))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    experts, _ = moe.router_weights(rng.standard_normal((n_tokens, n_experts)), n_chosen)
    routed = moe.route(experts, n_experts)
    assert len(routed) == n_experts
    triples = {
        (int(token), int(place), expert)
        for expert, (tokens, places) in enumerate(routed)
        for token, place in zip(tokens, places, strict=True)
    }
    assert triples == {
        (token, place, int(experts[token, place]))
        for token in range(n_tokens)
        for place in range(n_chosen)
    }


@QUICK
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.booleans(), st.data())
def test_gather_and_scatter_equal_a_loop_over_tokens(B, T, n_experts, norm_topk, data):
    n_chosen = data.draw(st.integers(1, n_experts))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.standard_normal((B, T, 6))
    w_router = rng.standard_normal((6, n_experts))
    w_gate, w_up = rng.standard_normal((2, n_experts, 6, 4))
    w_down = rng.standard_normal((n_experts, 4, 6))
    expected = np.zeros_like(x)
    for b in range(B):
        for t in range(T):
            probabilities = np.exp(x[b, t] @ w_router)
            probabilities /= probabilities.sum()
            best = sorted(range(n_experts), key=lambda e: -probabilities[e])[:n_chosen]
            total = sum(probabilities[e] for e in best) if norm_topk else 1.0
            for e in best:
                answer = swiglu(x[b : b + 1, t : t + 1], w_gate[e], w_up[e], w_down[e])
                expected[b, t] += probabilities[e] / total * answer[0, 0]
    got = moe.moe_forward(x, w_router, w_gate, w_up, w_down, n_chosen, norm_topk)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


def test_an_expert_without_tokens_is_not_touched():
    """Its weights may be anything: no row is multiplied by them."""
    x = np.ones((1, 2, 3))
    w_router = np.array([[1.0, -1.0]] * 3)  # all tokens prefer expert 0
    w = np.stack([np.ones((3, 3)), np.full((3, 3), np.nan)])
    assert np.isfinite(moe.moe_forward(x, w_router, w, w, w, 1)).all()


@QUICK
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.booleans(), st.data())
def test_the_slow_way_gives_the_same(B, T, n_experts, norm_topk, data):
    n_chosen = data.draw(st.integers(1, n_experts))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shapes = ((B, T, 6), (6, n_experts), (n_experts, 6, 4), (n_experts, 6, 4), (n_experts, 4, 6))
    arrays = [rng.standard_normal(shape) for shape in shapes]
    fast = moe.moe_forward(*arrays, n_chosen, norm_topk)
    slow = moe.dense_mixture(*arrays, n_chosen, norm_topk)
    np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-10)


def test_the_biased_router_by_hand():
    scores, bias = np.array([[0.0, 0.0, np.log(3)]]), np.array([0.1, 0.5, 0.0])
    experts, weights = moe.biased_router_weights(scores, bias, 2)
    assert experts.tolist() == [[1, 2]]
    np.testing.assert_allclose(weights, [[0.4, 0.6]])
    _, scaled = moe.biased_router_weights(scores, bias, 2, 2.5)
    np.testing.assert_allclose(scaled, 2.5 * weights)
    with np.errstate(all="raise", under="ignore"):
        experts, weights = moe.biased_router_weights(np.array([[1e3, -1e3]]), np.zeros(2), 1)
    assert (experts.tolist(), weights.tolist()) == ([[0]], [[1.0]])
    with pytest.raises(ValueError, match=r"n_chosen=4 must be in 1\.\.3"):
        moe.biased_router_weights(scores, bias, 4)


def test_capacity_drops_choices_but_not_the_stream():
    experts = np.array([[0, 1], [0, 2], [2, 0]])
    served = moe.within_capacity(experts, 1)
    assert served.tolist() == [[True, True], [False, False], [True, False]]
    stream, normed = np.array([[3.0], [5.0], [7.0]]), np.array([[1.0], [2.0], [3.0]])
    weights = np.array([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]])
    ran = []

    def run_expert(e, rows):
        ran.append((e, rows.tolist()))
        return 10 * (e + 1) * rows

    out = moe.add_served(stream, normed, experts, weights, served, run_expert)
    # token 0: 3 + 0.75 * 10 + 0.25 * 20; token 1 goes on as it was; token 2: 7 + 0.5 * 30 * 3
    assert out.tolist() == [[15.5], [5.0], [52.0]]
    assert ran == [(0, [[1.0]]), (1, [[1.0]]), (2, [[3.0]])]
    assert stream.tolist() == [[3.0], [5.0], [7.0]]


@QUICK
@given(st.integers(1, 9), st.integers(2, 6), st.integers(0, 9), st.data())
def test_nobody_is_served_beyond_capacity_and_room_is_never_left(n_tokens, n_experts, room, data):
    n_chosen = data.draw(st.integers(1, n_experts))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    experts, _ = moe.router_weights(rng.standard_normal((n_tokens, n_experts)), n_chosen)
    served = moe.within_capacity(experts, room)
    for e in range(n_experts):
        wanted = int((experts == e).sum())
        assert int(((experts == e) & served).sum()) == min(room, wanted)


def test_all_served_is_the_mixture_on_top_of_the_stream():
    rng = np.random.default_rng(5)
    x, w_router = rng.standard_normal((1, 7, 6)), rng.standard_normal((6, 5))
    w_gate, w_up = rng.standard_normal((2, 5, 6, 4))
    w_down = rng.standard_normal((5, 4, 6))
    experts, weights = moe.router_weights(x[0] @ w_router, 2)
    out = moe.add_served(
        x[0], x[0], experts, weights, np.ones((7, 2), bool),
        lambda e, rows: swiglu(rows, w_gate[e], w_up[e], w_down[e]),
    )  # fmt: skip
    mixed = moe.moe_forward(x, w_router, w_gate, w_up, w_down, 2)
    np.testing.assert_allclose(out, x[0] + mixed[0], rtol=0, atol=1e-12)
