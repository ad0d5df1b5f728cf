"""The figures of lesson 12 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import math

import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

from labkit.figures import capacity as figures

MEMORY = {
    "1 device": {"weights": 141.1e9, "overhead": 7.5e9, "keys and values": 2.5e9},
    "4 devices": {
        "weights": 35.3e9, "overhead": 7.5e9, "keys and values": 20e9, "unused": 13.2e9,
        "headroom": 4e9,
    },
}  # fmt: skip
CONTEXTS = [1024, 4096, 16_384]
USERS = {"bf16": [443, 110, 27], "64 KV heads": [48, 12, 0]}
BATCHES = [1, 4, 16, 64]
COSTS = {"4 H100": [40.0, 11.0, 3.0, 1.1], "slow": [90.0, 25.0, 8.0, 4.0]}
WITHIN = {"4 H100": 20, "slow": 0}


def timeline():
    return figures.load_timeline_figure(
        [0.0, 0.5], [[0.1, 0.2, 0.4], [0.2, 0.3]], 0.05, 0.02, "cpu: some chip"
    )


EXAMPLES = {
    "memory_bar": lambda: figures.memory_bar_figure(MEMORY, 80e9),
    "users_by_context": lambda: figures.users_by_context_figure(CONTEXTS, USERS, "a model"),
    "cost_by_batch": lambda: figures.cost_by_batch_figure(BATCHES, COSTS, WITHIN, 0.04),
    "load_timeline": timeline,
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words, alt_above=100)


def test_no_words_overlap(words):
    require_apart(words.texts)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_axis_has_its_unit(name):
    (plot,) = EXAMPLES[name]()[0].axes
    assert plot.get_xlabel().endswith(")")
    assert plot.get_ylabel().endswith(")")


def test_the_memory_bar_is_to_scale_and_says_what_does_not_fit():
    figure, alt = EXAMPLES["memory_bar"]()
    (plot,) = figure.axes
    widths = [p.get_width() for p in plot.patches if isinstance(p, Rectangle)]
    assert widths == pytest.approx([141.1, 7.5, 2.5, 35.3, 7.5, 20.0, 13.2, 4.0])
    assert plot.get_lines()[0].get_xdata()[0] == 80
    shown = [t.get_text() for t in plot.texts]
    assert shown == ["1 device: does not fit", "4 devices"]
    assert "weights 141.1 GB" in alt
    with pytest.raises(ValueError, match="unknown parts"):
        figures.memory_bar_figure({"a": {"wights": 1.0}}, 80e9)
    with pytest.raises(ValueError, match="0 or more"):
        figures.memory_bar_figure({"a": {"weights": -1.0}}, 80e9)


def test_users_by_context_draws_every_count_and_leaves_out_zero():
    figure, alt = EXAMPLES["users_by_context"]()
    (plot,) = figure.axes
    lines = {line.get_label(): list(line.get_ydata()) for line in plot.get_lines()}
    assert lines["bf16"] == [443, 110, 27]
    assert lines["64 KV heads"][:2] == [48, 12]
    assert math.isnan(lines["64 KV heads"][2])
    assert "0 at 16,384" in alt
    with pytest.raises(ValueError, match="must rise"):
        figures.users_by_context_figure([4, 4], {"a": [1, 1]}, "x")
    with pytest.raises(ValueError, match="needs 3 counts"):
        figures.users_by_context_figure(CONTEXTS, {"a": [1, 1]}, "x")


def test_cost_by_batch_is_thick_only_within_the_limit():
    figure, alt = EXAMPLES["cost_by_batch"]()
    (plot,) = figure.axes
    thick = [line for line in plot.get_lines() if line.get_linewidth() == 3]
    (inside,) = thick
    assert list(inside.get_xdata()) == [1, 4, 16]
    assert list(inside.get_ydata()) == [40.0, 11.0, 3.0]
    assert "down to 3.00 dollars at 16 users" in alt
    assert "slow: never within" in alt


def test_the_timeline_shows_every_token_and_the_bound():
    figure, alt = timeline()
    (plot,) = figure.axes
    points = [tuple(line.get_xdata()) for line in plot.get_lines()]
    assert points[0] == pytest.approx((0.1, 0.2, 0.4))
    assert points[1] == pytest.approx((0.05 + 2 * 0.02,))
    assert points[2] == pytest.approx((0.7, 0.8))
    assert points[3] == pytest.approx((0.5 + 0.05 + 0.02,))
    assert "2 requests" in alt
    with pytest.raises(ValueError, match="none empty"):
        figures.load_timeline_figure([0.0], [[]], 0.1, 0.1, "x")


def test_the_planners_table_in_words():
    plans = [
        {"name": "1 x a", "obstacle": "memory", "users": 0, "ttft_s": None, "tpot_s": None,
         "usd_per_hour": 2.5, "usd_per_million": None},
        {"name": "4 x a", "obstacle": None, "users": 1171, "ttft_s": 0.0511, "tpot_s": 0.0399,
         "usd_per_hour": 10, "usd_per_million": 0.6497},
    ]  # fmt: skip
    first, second = figures.plan_rows(plans)
    assert first == ["1 x a", "–", "–", "–", "2.50", "–", "does not fit"]
    assert second == ["4 x a", "1,171", "51.1 ms", "39.9 ms", "10.00", "0.65", ""]


def test_the_table_is_shown_as_text_outside_a_notebook(capsys):
    figures.plan_table([], "nothing")
    assert capsys.readouterr().out.startswith("nothing\ndeployment")
