"""The figures of lesson 03 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

from labkit.figures import prefill_decode as figures

LENGTHS = [8, 16, 32, 64, 128, 256, 512]
RATES = [70, 120, 190, 230, 260, 270, 260]
AT_MOST = [150, 280, 301, 302, 303, 304, 296]
PASSES = {"decode step, 1 user": 1.03, "decode step, 32 users": 25.9, "prefill of 2,000": 1930.0}
DEVICE = "cpu: some chip, 2 cores, float32"
LONG = ", ".join(["a very long part"] * 8)


def _timeline(n_steps=3):
    return figures.request_timeline_figure(2000, 0.030, [0.004 + 0.001 * i for i in range(n_steps)])


def _roofline(passes=None):
    shown = passes or PASSES
    return figures.phase_roofline_figure(
        list(shown), list(shown.values()), 3.35e12, 989.4e12, "an H100 in bf16"
    )


def _bars():
    return figures.workload_bars_figure(
        ["chat: 300 in, 300 out", "one label: 2,000 in, 2 out", "reasoning: 200 in, 8,000 out"],
        [0.0045, 0.03, 0.0045],
        [1.3455, 0.0075, 37.2],
    )


def _rates(device=DEVICE):
    return figures.phase_rates_figure(LENGTHS, RATES, AT_MOST, 14.0, 20.0, 18, device)


def _gaps(n=24, device=DEVICE):
    gaps = [0.19, *[0.06 + 0.001 * (i % 5) for i in range(n - 1)]]
    return figures.token_gaps_figure(gaps, 0.12, 0.045, device)


EXAMPLES = {
    "request_timeline": _timeline,
    "request_timeline, 24 steps": lambda: _timeline(24),
    "weight_reuse": figures.weight_reuse_figure,
    "weight_reuse, few rows": lambda: figures.weight_reuse_figure(16, 576, 1536),
    "phase_roofline": _roofline,
    "phase_roofline, eight": lambda: _roofline({f"pass number {i}": 0.5 * 4**i for i in range(8)}),
    "workload_bars": _bars,
    "phase_rates": _rates,
    "phase_rates, long device": lambda: _rates(LONG),
    "token_gaps": _gaps,
    "token_gaps, two": lambda: _gaps(2),
    "token_gaps, many": lambda: _gaps(100, LONG),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    require_apart(words.texts)


def test_a_request_is_drawn_to_scale_in_milliseconds():
    figure, alt = _timeline()
    plot = figure.axes[0]
    blocks = [(p.get_x(), p.get_width()) for p in plot.patches if isinstance(p, Rectangle)]
    assert np.allclose(blocks, [(0, 30), (30, 4), (34, 5), (39, 6)])
    assert {p.get_hatch() for p in plot.patches[1:4]} == {"///"}  # told apart without colour
    (marks,) = plot.lines
    assert np.allclose(marks.get_xdata(), [30, 34, 39, 45])  # one token for each pass
    words = [t.get_text() for t in plot.texts]
    assert "TTFT 30.0 ms" in words
    assert "3 steps, TPOT 5.0 ms" in words
    assert "one output token comes at each ▼: 4 in all" in words
    assert "30.0 ms (TTFT). Then 3 narrow blocks, one decode step each, 5.0 ms on average" in alt
    assert "the last one at 45.0 ms" in alt


def test_both_products_read_the_same_weights():
    figure, alt = figures.weight_reuse_figure(2000, 4096, 1024)
    for plot, rows, uses, flops in zip(
        figure.axes, (2000, 1), ("2,000 times", "once"), (16.8e9, 8.39e6), strict=True
    ):
        words = [t.get_text() for t in plot.texts]
        assert f"{rows:,} row{'s' if rows > 1 else ''}" in words
        assert "read: 8.389 MB of weights" in words  # 2 bytes a weight
        assert f"each weight is used {uses}" in words
        assert 2 * rows * 4096 * 1024 == pytest.approx(flops, rel=0.002)
        assert f"computed: {'16.8 GFLOP' if rows > 1 else '8.39 MFLOP'}" in words
        heights = [p.get_height() for p in plot.patches]
        assert heights[0] == heights[2]  # as many rows come out as go in
    assert figure.axes[0].patches[0].get_height() > 5 * figure.axes[1].patches[0].get_height()
    assert "used 2,000 times, 16.8 GFLOP" in alt


def test_passes_lie_on_the_roof():
    figure, alt = _roofline()
    plot = figure.axes[0]
    points = {line.get_label(): line for line in plot.lines if "_" not in line.get_label()}
    for (name, intensity), (label, line) in zip(PASSES.items(), points.items(), strict=True):
        assert label.startswith(f"{name}: ")
        (speed,) = line.get_ydata()
        assert line.get_xdata()[0] == intensity
        assert speed == pytest.approx(min(989.4, 3.35 * intensity))
    assert len({line.get_marker() for line in points.values()}) == 3
    roof = plot.lines[0]
    assert np.allclose(roof.get_xdata()[1], 989.4 / 3.35)
    assert np.allclose(roof.get_ydata()[1:], 989.4)
    assert (plot.get_xscale(), plot.get_yscale()) == ("log", "log")
    assert "decode step, 1 user: 1.03 FLOP/byte, 0.35 % of peak, bound by reading" in alt
    assert "prefill of 2,000: 1,930 FLOP/byte, 100 % of peak, bound by computing" in alt
    assert "ridge at 295 FLOP/byte" in alt


def test_workloads_are_shares_of_seconds():
    figure, alt = _bars()
    plot = figure.axes[0]
    widths = [bar.get_width() for bar in plot.patches]
    assert np.allclose(widths[:3], [100 * 0.0045 / 1.35, 80, 100 * 0.0045 / 37.2045])
    assert np.allclose(np.add(widths[:3], widths[3:]), 100)
    assert [bar.get_x() for bar in plot.patches[3:]] == pytest.approx(widths[:3])
    assert {bar.get_hatch() for bar in plot.patches[:3]} == {None}
    assert {bar.get_hatch() for bar in plot.patches[3:]} == {"///"}
    line = "one label: 2,000 in, 2 out: prefill 30.0 ms (80 %), decode 7.50 ms"
    assert line in [t.get_text() for t in plot.texts]
    assert line in alt
    assert "prefill 4.50 ms (0.33 %), decode 1.35 s" in alt
    assert plot.get_ylim()[0] > plot.get_ylim()[1]  # the first on top


def test_rates_measured_and_at_most():
    figure, alt = _rates()
    plot = figure.axes[0]
    lines = {line.get_label(): line for line in plot.lines}
    assert list(lines["prefill, measured"].get_ydata()) == RATES
    bends = {**dict(zip(LENGTHS, AT_MOST, strict=True)), 18: 304}  # at the knee, not above the rest
    assert dict(lines["prefill, at most"].get_xydata()) == bends
    assert list(lines["prefill, at most"].get_xdata()) == sorted(bends)
    assert set(lines["decode, measured"].get_ydata()) == {14.0}
    assert set(lines["decode, at most"].get_ydata()) == {20.0}
    assert set(lines["knee: 18 tokens"].get_xdata()) == {18}
    for phase in ("prefill", "decode"):
        assert lines[f"{phase}, measured"].get_linestyle() == "-"
        assert lines[f"{phase}, at most"].get_linestyle() == "--"
    assert lines["prefill, measured"].get_marker() == "o"
    assert [t.get_text() for t in plot.get_xticklabels()] == [str(n) for n in LENGTHS]
    assert "70 at 8 tokens, 260 at 512 tokens (at most 296). Decode: 14 (at most 20)" in alt
    assert "knee at 18 tokens" in alt


def test_gaps_begin_with_the_time_to_first_token():
    figure, alt = _gaps(6)
    plot = figure.axes[0]
    heights = [bar.get_height() for bar in plot.patches]
    assert np.allclose(heights, [190, 60, 61, 62, 63, 64])
    assert [round(bar.get_x() + bar.get_width() / 2) for bar in plot.patches] == [1, 2, 3, 4, 5, 6]
    assert plot.patches[0].get_hatch() != plot.patches[1].get_hatch()
    first, rest = plot.lines
    assert set(first.get_ydata()) == {120.0}
    assert set(rest.get_ydata()) == {45.0}
    assert first.get_xdata()[1] < 2 <= rest.get_xdata()[1]
    assert "The first, TTFT: 190 ms (lower bound 120 ms)" in alt
    assert "62.0 ms on average, 60.0 ms to 64.0 ms (lower bound 45.0 ms)" in alt


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: _timeline(1), "number of steps=1 must be from 2 to 24"),
        (lambda: figures.request_timeline_figure(5, 0.0, [1, 1]), "seconds holds 0.0"),
        (lambda: figures.weight_reuse_figure(0), "n_rows=0"),
        (lambda: _roofline({"one": 1.0}), "number of passes=1"),
        (lambda: _roofline({"one": 1.0, "two": float("nan")}), "holds nan"),
        (
            lambda: figures.phase_roofline_figure(["a", "b"], [1.0], 1, 1, "x"),
            "equally long",
        ),
        (lambda: figures.workload_bars_figure(["a", "a"], [1, 1], [1, 1]), "a name of its own"),
        (lambda: figures.workload_bars_figure(["a"], [1], [1, 1]), "equally long"),
        (lambda: figures.workload_bars_figure([], [], []), "not empty"),
        (
            lambda: figures.phase_rates_figure([8], [1.0], [1.0], -1.0, 1.0, 3, "x"),
            "decode and knee holds -1.0",
        ),
        (lambda: figures.token_gaps_figure([0.1], 1, 1, "x"), "number of tokens=1"),
        (lambda: figures.token_gaps_figure([0.1, 0.1], 1, 0, "x"), "bounds holds 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize(
    "name",
    [
        "request_timeline", "weight_reuse", "phase_roofline", "workload_bars", "phase_rates",
        "token_gaps",
    ],
)  # fmt: skip
def test_each_figure_has_a_function_that_shows_it(name):
    show_it, make = getattr(figures, name), getattr(figures, f"{name}_figure")
    assert (show_it.__name__, show_it.__doc__) == (name, make.__doc__)
    assert inspect.signature(show_it).parameters == inspect.signature(make).parameters
