"""The figures of lesson 09 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

from inferlab.data import load_models, model_preset
from inferlab.moe import router_weights
from inferlab.moe_sizes import total_and_active_params, touched_experts
from labkit.figures import moe as figures

SHARES = np.array([[0.125] * 8, [0.04, 0.08, 0.15, 0.06, 0.08, 0.28, 0.18, 0.13]])
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def _held():
    names = [name for name, m in load_models().items() if m["moe"]]
    pairs = {n: total_and_active_params(model_preset(n)) for n in names}
    return figures.held_and_used_figure({n: (2 * t, 2 * a) for n, (t, a) in pairs.items()})


def _routing(n_tokens=5, n_experts=8, n_chosen=2):
    rng = np.random.default_rng(4)
    experts, weights = router_weights(1.5 * rng.normal(size=(n_tokens, n_experts)), n_chosen)
    words = ["Fair", "is", "foul,", "and", "foul", "is", "fair", ":"][:n_tokens]
    return figures.routing_figure(words, experts, weights, n_experts)


def _curves():
    series = {f"{k} of {E}": [touched_experts(E, k, n) for n in BATCHES] for E, k in KINDS}
    return figures.curves_figure("Experts", "experts taken (count)", BATCHES, series)


STEP_MS, FORMULA_MB, COUNTED_MB = [1.5, 3, 4, 8], [6, 8, 11, 13.8], [6, 7.9, 10.5, 12.9]
KINDS = ((8, 2), (16, 2), (128, 8), (256, 8))
EXAMPLES = {
    "held_and_used": _held,
    "routing": _routing,
    "routing, largest": lambda: _routing(8, 10, 2),
    "routing, smallest": lambda: _routing(1, 2, 1),
    "use_map": lambda: figures.use_map_figure(SHARES, [3.0, 2.78], "tiny-moe: who is chosen"),
    "shares": lambda: figures.shares_figure({"before": SHARES[1], "after": SHARES[0]}, "Layer 3"),
    "curves": _curves,
    "step": lambda: figures.step_figure([1, 2, 4, 8], STEP_MS, FORMULA_MB, COUNTED_MB, "a cpu"),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    require_apart(words.texts)


def test_held_and_used_in_gigabytes():
    figure, alt = figures.held_and_used_figure({"small": (14e9, 2.6e9), "large": (1342e9, 75.1e9)})
    plot = figure.axes[0]
    lines = {line.get_label(): list(line.get_xdata()) for line in plot.lines}
    assert lines["held in memory"] == [14, 1342]
    assert lines["used by one token"] == [2.6, 75.1]
    words = [text.get_text() for text in plot.texts]
    assert words == ["2.6", "14  (1 in 5.4)", "75", "1,342  (1 in 17.9)"]
    assert "large 1,342 and 75" in alt


def test_routing_draws_a_line_for_each_choice_as_thick_as_its_weight():
    experts, weights = np.array([[2, 0], [2, 1]]), np.array([[0.75, 0.25], [0.5, 0.5]])
    figure, alt = figures.routing_figure(["one", "two"], experts, weights, 4)
    plot = figure.axes[0]
    boxes = {t.get_text(): t.get_position()[1] for t in plot.texts}
    ends = [line.get_ydata()[1] for line in plot.lines]
    names = ["expert 0: 1 row", "expert 1: 1 row", "expert 2: 2 rows", "expert 3: 0 rows"]
    expected = [boxes[names[e]] for e in (0, 2, 1, 2)]  # of each token the upper line first
    assert ends == expected
    assert [line.get_linewidth() for line in plot.lines] == pytest.approx([2.3, 5.3, 3.8, 3.8])
    assert sum(isinstance(p, Rectangle) for p in plot.patches) == 2 + 4
    assert "one: expert 2 with 0.75, expert 0 with 0.25" in alt
    assert alt.endswith("Without tokens: 3.")


def test_the_map_shows_every_share():
    figure, alt = EXAMPLES["use_map"]()
    plot = figure.axes[0]
    np.testing.assert_allclose(plot.images[0].get_array(), SHARES)
    cells = [t.get_text() for t in plot.texts if t.get_text().endswith("%")]
    assert cells == [f"{100 * v:.0f} %" for v in SHARES.ravel()]
    assert "Even use would be 12.5 percent and 3 bits" in alt
    assert "layer 1: 4, 8, 15, 6, 8, 28, 18, 13 percent, entropy 2.78 bits" in alt


def test_shares_are_drawn_beside_even_use():
    figure, alt = EXAMPLES["shares"]()
    plot = figure.axes[0]
    before, after = plot.containers
    assert [bar.get_height() for bar in before] == pytest.approx(100 * SHARES[1])
    assert [bar.get_height() for bar in after] == pytest.approx(100 * SHARES[0])
    assert {line.get_label(): line.get_ydata()[0] for line in plot.lines} == {"even (12.5)": 12.5}
    assert "before: 4.0, 8.0, 15.0" in alt


def test_curves_start_at_zero_and_hold_the_numbers():
    figure, alt = _curves()
    plot = figure.axes[0]
    assert plot.get_ylim()[0] == 0
    lines = {line.get_label(): line for line in plot.lines}
    assert list(lines["2 of 16"].get_xdata()) == BATCHES
    assert lines["2 of 16"].get_ydata()[4] == pytest.approx(14.11, abs=0.005)
    assert "2 of 16: 2 at 1" in alt


def test_a_step_shows_time_and_bytes_side_by_side():
    figure, alt = EXAMPLES["step"]()
    time, read = figure.axes
    assert list(time.lines[0].get_ydata()) == [1.5, 3, 4, 8]
    lines = {line.get_label(): list(line.get_ydata()) for line in read.lines}
    assert lines == {"bytes, formula": FORMULA_MB, "bytes, counted": COUNTED_MB}
    assert time.get_ylabel() == "time of a step (ms)"
    assert "8: 8 ms, 13.8 MB by the formula, 12.9 MB counted" in alt


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.held_and_used_figure({}), "at least 1"),
        (lambda: figures.held_and_used_figure({"a": (1e9, float("nan"))}), "finite"),
        (lambda: figures.routing_figure(["a"], np.zeros((2, 1), int), np.ones((2, 1)), 3), "1, n"),
        (lambda: figures.routing_figure([], np.zeros((0, 1), int), np.ones((0, 1)), 3), "1 to 8"),
        (lambda: figures.use_map_figure(np.ones((2, 3)), [1, 1], "t"), "sum to 1"),
        (lambda: figures.use_map_figure(SHARES, [1.0], "t"), "one a layer"),
        (lambda: figures.shares_figure({"a": [1.0]}, "t"), "2 or 3"),
        (lambda: figures.curves_figure("t", "y (x)", [1, 2], {"a": [1.0]}), "one length"),
        (lambda: figures.curves_figure("t", "y", [1], {"a": [1.0]}), "no unit"),
        (lambda: figures.step_figure([1], [-1.0], [1.0], [1.0], "cpu"), "at least 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_each_figure_can_be_shown():
    for name in ("held_and_used", "routing", "use_map", "shares", "curves", "step"):
        assert getattr(figures, name).__name__ == name
    assert figures.held_and_used({"a": (2e9, 1e9)}) is None
