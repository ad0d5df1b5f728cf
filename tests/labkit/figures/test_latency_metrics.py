"""The figures of lesson 11 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

from inferlab.latency_metrics import RequestTrace, percentile
from inferlab.workload import bursty_arrivals, mm1_percentile, poisson_arrivals
from labkit.figures import latency_metrics as figures

TRACE = RequestTrace(5.0, (5.42, 5.48, 5.53, 5.6, 5.65, 5.95, 6.0, 6.06), 5.18)
RNG = np.random.default_rng(0)
TTFTS = 0.05 + RNG.lognormal(-2.2, 0.8, 2000).clip(0, 1.4)
POINTS = RNG.lognormal(-1.2, 0.6, 80), RNG.lognormal(-3.3, 0.4, 80)
UNIFORMS = RNG.random(80)
RATES = [2, 5, 8, 10, 13]
SWEEP = {
    "TTFT p50": [0.03, 0.04, 0.05, 0.1, 0.5],
    "TTFT p95": [0.05, 0.06, 0.1, 0.4, 2],
    "ITL p50": [0.01, 0.02, 0.02, 0.03, 0.03],
    "ITL p95": [0.02, 0.03, 0.04, 0.04, 0.05],
}


def _patterns():
    return {"clockwork": np.arange(1, 61) / 3, "Poisson": poisson_arrivals(3, UNIFORMS),
            "bursty": bursty_arrivals(3, 1, 4, UNIFORMS)}  # fmt: skip


EXAMPLES = {
    "token_timeline": lambda: figures.token_timeline_figure(TRACE),
    "tail": lambda: figures.tail_figure(TTFTS, percentile),
    "goodput_region": lambda: figures.goodput_region_figure(*POINTS, 0.5, 0.05),
    "arrival_patterns": lambda: figures.arrival_patterns_figure(_patterns(), 20),
    "hockey_stick": lambda: figures.hockey_stick_figure(RATES, SWEEP, "Latency and load", 10.2),
    "hockey_stick, with a model": lambda: figures.hockey_stick_figure(
        RATES, {"measured": SWEEP["TTFT p95"]}, "End to end", 10.2,
        lambda rate: mm1_percentile(rate, 10.2, 95),
    ),
    "two_clocks": lambda: figures.two_clocks_figure(
        np.arange(50) / 10, np.linspace(0.05, 1.4, 50), [0.06] * 50
    ),
}  # fmt: skip


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words, alt_above=60)


def test_no_words_overlap(words):
    require_apart(words.texts)


# ---- what is drawn ------------------------------------------------------------------------------


def test_the_time_line_counts_from_the_arrival():
    figure, alt = figures.token_timeline_figure(TRACE)
    plot = figure.axes[0]
    assert np.allclose(plot.lines[0].get_xdata(), 1e3 * (np.array(TRACE.token_times_s) - 5.0))
    parts = [p for p in plot.patches if isinstance(p, Rectangle)]
    assert [round(p.get_x() + p.get_width()) for p in parts] == [180, 420, 1060]
    said = {t.get_text() for t in plot.texts}
    assert {"TTFT 420 ms", "7 gaps, mean = TPOT 91 ms", "ITL 300 ms", "end to end 1060 ms"} <= said
    assert "between tokens 5 and 6, is 300 ms" in alt


def test_the_marks_of_the_tail_are_mean_and_percentiles():
    figure, alt = figures.tail_figure(TTFTS, percentile)
    plot = figure.axes[0]
    at = sorted(line.get_xdata()[0] for line in plot.lines)
    marks = [TTFTS.mean(), *(percentile(TTFTS, p) for p in (50, 95, 99))]
    assert np.allclose(at, sorted(1e3 * np.array(marks)))
    heights = [bar.get_height() for bar in plot.patches]
    assert sum(heights) == pytest.approx(100)
    assert f"p95 {1e3 * marks[2]:.0f} ms" in alt


def test_the_good_are_those_in_the_rectangle():
    figure, alt = figures.goodput_region_figure(*POINTS, 0.5, 0.05)
    good, bad = figure.axes[0].lines
    inside = (POINTS[0] <= 0.5) & (POINTS[1] <= 0.05)
    assert np.allclose(good.get_xdata(), 1e3 * POINTS[0][inside])
    assert np.allclose(bad.get_ydata(), 1e3 * POINTS[1][~inside])
    (region,) = figure.axes[0].patches
    assert (region.get_width(), region.get_height()) == (500, 50)
    assert f"{inside.sum()} requests lie in it" in alt


def test_each_arrival_is_a_tick():
    figure, alt = figures.arrival_patterns_figure(_patterns(), 20)
    rows = figure.axes[0].collections
    for lines, (name, times) in zip(rows, _patterns().items(), strict=True):
        ticks = [segment[0][0] for segment in lines.get_segments()]
        assert np.allclose(ticks, [t for t in times if t < 20])
        assert f"{name}: {len(ticks)} requests" in alt


def test_the_hockey_stick_has_the_measurements_and_the_model():
    figure, alt = EXAMPLES["hockey_stick, with a model"]()
    measured, model, wall = figure.axes[0].lines
    assert list(measured.get_xdata()) == RATES
    assert np.allclose(measured.get_ydata(), 1e3 * np.array(SWEEP["TTFT p95"]))
    for x, y in zip(model.get_xdata(), model.get_ydata(), strict=True):
        assert y == pytest.approx(1e3 * -math.log(0.05) / (10.2 - x))
    assert set(wall.get_xdata()) == {10.2}
    assert figure.axes[0].get_yscale() == "log"
    assert "2.00 s at 13.0" in alt


def test_the_two_clocks_are_both_drawn():
    figure, alt = EXAMPLES["two_clocks"]()
    from_asking, from_sending = figure.axes[0].lines
    assert max(from_asking.get_ydata()) == pytest.approx(1400)
    assert set(from_sending.get_ydata()) == {60}
    assert "1.40 s" in alt
    assert "60.0 ms" in alt


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: figures.token_timeline_figure(RequestTrace(0.0, (1.0, 2.0, 3.0))), "start_s=None"),
        (lambda: figures.token_timeline_figure(RequestTrace(0.0, (1.0,), 0.5)), "1 tokens"),
        (lambda: figures.tail_figure([0.1] * 19, percentile), "given 19"),
        (lambda: figures.tail_figure([0.1] * 19 + [math.inf], percentile), "finite"),
        (lambda: figures.goodput_region_figure([1.0], [], 1, 1), "given 1 and 0"),
        (lambda: figures.arrival_patterns_figure({}, 1), "given 0"),
        (lambda: figures.hockey_stick_figure([1], {"a": [1, 2]}, "t", 1), "a: needs 1"),
        (lambda: figures.hockey_stick_figure([1], {"a": [0]}, "t", 1), "above 0"),
        (lambda: figures.two_clocks_figure([], [], []), "1 or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("token_timeline", (TRACE,)),
        ("tail", (TTFTS, percentile)),
        ("goodput_region", (*POINTS, 0.5, 0.05)),
        ("arrival_patterns", ({"one": [0.5]}, 2)),
        ("hockey_stick", ([1, 2], {"a": [1, 2]}, "A title", 1.5)),
        ("two_clocks", ([0.0], [1.0], [1.0])),
    ],
)
def test_each_figure_has_a_function_that_shows_it(name, arguments, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.figures.look.show", lambda fig, alt: shown.append(alt))
    show_it, make = getattr(figures, name), getattr(figures, f"{name}_figure")
    assert (show_it.__name__, show_it.__doc__) == (name, make.__doc__)
    assert inspect.signature(show_it).parameters == inspect.signature(make).parameters
    assert show_it(*arguments) is None
    assert shown == [make(*arguments)[1]]
