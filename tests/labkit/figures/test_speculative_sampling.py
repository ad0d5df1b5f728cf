"""The figures of lesson 08 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import numpy as np
import pytest
from figure_words import drawn_words, require_apart, require_readable
from matplotlib.patches import Rectangle

from inferlab.sampling import sampling_law
from inferlab.speculative_sampling import best_gamma, kept_law, speedup, verify_cost
from labkit.figures import speculative_sampling as figures

TARGET, DRAFT = [0.2, 0.5, 0.3], [0.6, 0.3, 0.1]
BATCHES = [1, 16, 256]
LOGITS = np.log([0.05, 0.40, 0.02, 0.30, 0.13, 0.10])
KEPT = [0, 0, 1, 4, 4, 2, 4, 3]


def _laws():
    laws = {
        "temperature 1": sampling_law(LOGITS),
        "temperature 0": sampling_law(LOGITS, 0),
        "top-k 2": sampling_law(LOGITS, top_k=2),
        "top-p 0.75": sampling_law(LOGITS, top_p=0.75),
        "min-p 0.2": sampling_law(LOGITS, min_p=0.2),
    }
    return figures.laws_figure(laws, ["sat", "ran", "hid", "lay", "sang", "fell"])


def _by_batch():
    speeds = {
        gamma: [speedup(0.8, gamma, 0.05, verify_cost(gamma, B, 295)) for B in BATCHES]
        for gamma in (1, 4)
    }
    return figures.speed_by_batch_figure(BATCHES, speeds)


EXAMPLES = {
    "a rejection": lambda: figures.rounds_picture_figure(
        ["the", "quick", "red", "fox"], 2, "brown"
    ),
    "all kept": lambda: figures.rounds_picture_figure(["the", "quick"], 2, "fox"),
    "nothing kept": lambda: figures.rounds_picture_figure(["the", "quick"], 0, "a"),
    "laws": _laws,
    "two laws": lambda: figures.two_laws_figure(TARGET, DRAFT, ["a", "b", "c"]),
    "by gamma": lambda: figures.speed_by_gamma_figure(speedup, [0.5, 0.8, 0.9], 0.05),
    "by batch": _by_batch,
    "kept": lambda: figures.kept_histogram_figure(KEPT, kept_law(0.7, 4)),
    "rates": lambda: figures.rate_spread_figure(np.linspace(0.2, 1.0, 101)),
    "speeds": lambda: figures.speeds_figure(["NumPy", "PyTorch"], [0.8, 1.6], [0.7, 1.5]),
}


def _heights(figure, n=None):
    bars = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    return [p.get_height() for p in bars[:n]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_text_leaves_the_figure_is_tiny_or_lies_over_another(name):
    words = drawn_words(EXAMPLES[name])
    require_readable(words, alt_above=60, texts_above=0)
    require_apart(words.texts, blank_px=1)


def test_a_round_shows_what_is_kept_and_what_the_target_adds():
    _, alt = EXAMPLES["a rejection"]()
    assert "first 2 are kept" in alt
    assert "adds 3 tokens" in alt
    _, alt = EXAMPLES["all kept"]()
    assert "bonus" in alt
    with pytest.raises(ValueError, match="n_kept"):
        figures.rounds_picture_figure(["a"], 2, "b")


def test_the_bars_of_two_laws_are_overlap_excess_and_residual():
    figure, alt = EXAMPLES["two laws"]()
    assert _heights(figure) == pytest.approx([0.2, 0.3, 0.1, 0.4, 0, 0, 0, 0.2, 0.2])
    assert "0.60 in all" in alt


def test_each_panel_draws_its_law_and_marks_what_is_cut():
    figure, alt = _laws()
    panel = figure.axes[2]
    assert panel.get_title() == "" or panel.get_title(loc="left") == "top-k 2"
    assert [p.get_height() for p in panel.patches] == pytest.approx([0, 4 / 7, 0, 3 / 7, 0, 0])
    assert [t.get_text() for t in panel.texts] == ["0"] * 4
    assert "top-k 2: 0.00, 0.57, 0.00, 0.43" in alt
    with pytest.raises(ValueError, match="2 to 6 laws"):
        figures.laws_figure({"one": np.ones(2) / 2}, ["a", "b"])


def test_the_peak_of_each_curve_is_the_best_gamma():
    figure, alt = EXAMPLES["by gamma"]()
    lines = figure.axes[0].lines
    for i, a in enumerate((0.5, 0.8, 0.9)):
        assert lines[2 * i].get_ydata()[4] == pytest.approx(speedup(a, 4, 0.05))
        assert lines[2 * i + 1].get_xdata()[0] == best_gamma(a, 0.05)
        assert f"acceptance {a:g}: best at {best_gamma(a, 0.05)}" in alt


def test_the_batch_curve_falls_below_one():
    figure, alt = _by_batch()
    four = figure.axes[0].lines[1].get_ydata()
    assert four[0] == pytest.approx(2.80, abs=0.005)
    assert four[-1] < 1
    assert "0.74 at 256" in alt
    with pytest.raises(ValueError, match="1 speeds for 3"):
        figures.speed_by_batch_figure(BATCHES, {4: [1.0]})


def test_the_histogram_counts_rounds_beside_the_geometric_law():
    figure, alt = EXAMPLES["kept"]()
    assert _heights(figure, 5) == pytest.approx([2 / 8, 1 / 8, 1 / 8, 1 / 8, 3 / 8])
    assert _heights(figure)[5:] == pytest.approx(kept_law(0.7, 4))
    assert "8 rounds" in alt
    for bad in ([], [5]):
        with pytest.raises(ValueError, match="0 to 4"):
            figures.kept_histogram_figure(bad, kept_law(0.7, 4))


def test_the_spread_says_mean_and_tenths():
    figure, alt = EXAMPLES["rates"]()
    assert sum(_heights(figure)) == 101
    assert "Mean 0.60; a tenth of the positions lie below 0.28, a tenth above 0.92" in alt
    with pytest.raises(ValueError, match="between 0 and 1"):
        figures.rate_spread_figure([1.2])


def test_the_speeds_stand_side_by_side():
    figure, alt = EXAMPLES["speeds"]()
    assert _heights(figure) == pytest.approx([0.8, 1.6, 0.7, 1.5])
    assert "NumPy: 0.80 by the formula, 0.70 measured" in alt
    with pytest.raises(ValueError, match="one of each"):
        figures.speeds_figure(["a"], [1.0], [])


def test_the_notebook_s_names_show_and_return_nothing(capsys):
    assert figures.two_laws(TARGET, DRAFT, ["a", "b", "c"]) is None
    assert capsys.readouterr().out == ""
