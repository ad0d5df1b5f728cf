"""The figures of lesson 01 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.colors import to_hex

from inferlab.roofline import attainable_flops_per_s
from labkit.figures import roofline as figures

DEVICES = {"big": (3e12, 1e15), "small": (1e11, 1e12), "flat": (2e12, 5e13)}
POINTS = {"1 row": 1.0, "32 rows": 31.5, "2,000 rows": 1012.0}
ROWS = [2**i for i in range(10)]
INTENSITIES = [0.4998 * n / (1 + n / 4000) for n in ROWS]
SPEEDS = [0.8 * attainable_flops_per_s(i, 2e10, 1e11) for i in INTENSITIES]
CHIP = "cpu: some chip, 2 cores, float32, numpy 2.4.6"
PARTS = {"attention": [30, 10], "MLP": [60, 70], "embedding and head": [10, 120]}
CONTEXTS = list(range(0, 1001, 10))
BATCHES = [int(300 / (1 - n / 401)) if n < 401 else None for n in CONTEXTS]


LONG = "Llama-3-8B on an H100: a decode step with 8,192 tokens of context"  # the lesson's longest


def _bound(measured=None, device="", title="A decode step"):
    x = [1, 4, 16, 64, 256, 1024, 4096]
    reads = [0.0045 + 4e-6 * n for n in x]
    computes = [1.5e-5 * n for n in x]
    label = "sequences in the batch (count)"
    return figures.bound_figure(title, label, x, reads, computes, measured, device)


EXAMPLES = {
    "product": lambda: figures.product_figure(3, 4, 5),
    "product, tall": lambda: figures.product_figure(9, 2, 3),
    "product, wide": lambda: figures.product_figure(2, 6, 9),
    "two_clocks": lambda: figures.two_clocks_figure(
        ["one token", "a prompt of 2,000 tokens"], [0.00448, 0.00448], [1.52e-5, 0.0303]
    ),
    "roofs": lambda: figures.roofs_figure(DEVICES, POINTS, attainable_flops_per_s),
    "roofs, six": lambda: figures.roofs_figure(
        {f"device {i}": (1e12 / 3**i, 1e15 / 4**i) for i in range(6)},
        POINTS,
        attainable_flops_per_s,
    ),
    "own_roof": lambda: figures.own_roof_figure(
        ROWS, INTENSITIES, SPEEDS, 2e10, 1e11, attainable_flops_per_s, CHIP
    ),
    "own_roof, long device": lambda: figures.own_roof_figure(
        ROWS, INTENSITIES, SPEEDS, 2e10, 1e11, attainable_flops_per_s,
        ", ".join(["a long part"] * 12),
    ),
    "own_roof, a GPU": lambda: figures.own_roof_figure(
        ROWS, INTENSITIES, [s * 3e4 for s in SPEEDS], 3e12, 8e14, attainable_flops_per_s, CHIP
    ),
    "shares": lambda: figures.shares_figure(["old", "new"], PARTS),
    "rule": lambda: figures.rule_figure([1, 64, 4096], {"a": [0.9, 1, 1.5], "b": [1, 1.1, 7.25]}),
    "bound": _bound,
    "bound, long title": lambda: _bound(title=LONG),
    "bound, measured": lambda: _bound([0.01] * 6 + [0.3], CHIP),
    "batch": lambda: figures.batch_figure(CONTEXTS, {"a": BATCHES, "b": [400] * len(CONTEXTS)}),
}  # fmt: skip


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    require_apart(words.texts)


def _lines(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_the_product_marks_a_row_a_column_and_their_number():
    figure, alt = figures.product_figure(3, 4, 5)
    cells = figure.axes[0].patches
    assert len(cells) == 3 * 4 + 4 * 5 + 3 * 5
    assert sum(cell.get_hatch() is not None for cell in cells) == 4 + 4 + 1
    assert "120 FLOPs" in alt
    assert [t.get_text() for t in figure.axes[0].texts if "×" in t.get_text()] == [
        "3 × 4", "4 × 5", "3 × 5",
    ]  # fmt: skip


def test_the_clocks_are_drawn_in_milliseconds():
    figure, alt = EXAMPLES["two_clocks"]()
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert np.allclose(widths, [4.48, 4.48, 0.0152, 30.3])
    assert "a prompt of 2,000 tokens: reading 4.48 ms, computing 30.3 ms" in alt
    assert "15.2 µs" in alt


def test_the_roofs_are_drawn_by_the_function_handed_in():
    asked = []

    def roof(intensity, bandwidth, peak):
        asked.append((bandwidth, peak))
        return 7e12

    figure, _ = figures.roofs_figure(DEVICES, POINTS, roof)
    assert set(asked) == set(DEVICES.values())
    curves = [line for line in figure.axes[0].lines if "ridge" in str(line.get_label())]
    assert all(np.allclose(line.get_ydata(), 7) for line in curves)


def test_the_roofs_bend_at_the_ridge_and_mark_the_points():
    figure, alt = EXAMPLES["roofs"]()
    lines = _lines(figure)
    big = lines["big (ridge 333)"]
    x, y = np.asarray(big.get_xdata()), np.asarray(big.get_ydata())
    assert np.allclose(y, np.minimum(1000, 3 * x))
    assert {line.get_linestyle() for name, line in lines.items() if "ridge" in name} == {
        "-", "--", "-.",
    }  # fmt: skip
    marks = [line.get_xdata()[0] for name, line in lines.items() if "ridge" not in name]
    assert marks == list(POINTS.values())
    assert "1 row at 1 FLOP/byte, where big allows 0.3% of its peak" in alt


def test_the_measured_points_lie_under_their_own_roof():
    figure, alt = EXAMPLES["own_roof"]()
    measured, roof = (_lines(figure)[n] for n in ("measured", "the roof (predicted)"))
    assert np.allclose(measured.get_xdata(), INTENSITIES)
    assert np.allclose(measured.get_ydata(), np.array(SPEEDS) / 1e9)
    x = np.asarray(roof.get_xdata())
    assert np.allclose(roof.get_ydata(), np.minimum(100, 20 * x))
    assert "1 row 80%, 2 rows 80%" in alt
    labels = [t.get_text() for t in figure.axes[0].texts]
    assert labels == ["1 row", "2", "4", "8", "16", "32", "64", "128", "256", "512 rows"]


def test_shares_add_up_to_a_hundred():
    figure, alt = EXAMPLES["shares"]()
    bars = figure.axes[0].patches
    for model in (0, 1):
        assert sum(bar.get_width() for bar in bars[model::2]) == pytest.approx(100)
    assert "new: attention 5.0%, MLP 35.0%, embedding and head 60.0%" in alt
    assert len({(to_hex(bar.get_facecolor()), bar.get_hatch()) for bar in bars}) == 3


def test_the_rule_is_a_line_at_one():
    figure, alt = EXAMPLES["rule"]()
    lines = _lines(figure)
    assert list(lines["b"].get_ydata()) == [1, 1.1, 7.25]
    assert [line.get_ydata()[0] for line in figure.axes[0].lines][-1] == 1
    assert "b: 1.00 at 1 keys, 7.25 at 4,096" in alt


def test_bounds_are_drawn_in_milliseconds_and_the_turn_is_said():
    figure, alt = EXAMPLES["bound, measured"]()
    lines = _lines(figure)
    assert lines["measured"].get_ydata()[-1] == pytest.approx(300)
    assert lines["reading, at least"].get_ydata()[0] == pytest.approx(4.504)
    assert lines["computing, at least"].get_ydata()[2] == pytest.approx(0.24)
    styles = {lines[name].get_linestyle() for name in lines}
    assert len(styles) == 3
    assert "Computing takes longer at 1,024, 4,096." in alt
    assert "measured" not in _lines(_bound()[0])
    never = figures.bound_figure("t", "x (count)", [1, 2], [1.0, 1.0], [0.1, 0.2])[1]
    assert "Reading takes longer everywhere." in never


def test_the_batch_ends_where_it_never_comes():
    figure, alt = EXAMPLES["batch"]()
    lines = _lines(figure)
    curve = lines["a: never from 410 tokens on"]
    assert max(curve.get_xdata()) == 400
    assert list(curve.get_ydata()) == [b for b in BATCHES if b]
    assert "a: 300 at 0 tokens, never from 410 tokens on" in alt
    assert "b: 400 at 0 tokens, at every context shown" in alt
    walls = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [410, 410]]
    assert len(walls) == 1


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.product_figure(1, 4, 5), "n_rows=1 must be from 2 to 9"),
        (lambda: figures.two_clocks_figure(["a"], [1.0, 2.0], [1.0]), "equally long"),
        (lambda: figures.two_clocks_figure(["a"], [0.0], [1.0]), "reads_s holds 0.0"),
        (lambda: figures.roofs_figure({}, POINTS, min), "0 devices must be from 1 to 6"),
        (lambda: figures.own_roof_figure([1], [1.0], [float("nan")], 1, 1, min, "x"), "holds nan"),
        (lambda: figures.shares_figure(["a"], {"MLP": [1]}), "parts must be"),
        (lambda: figures.rule_figure([1], {}), "0 models must be from 1 to 6"),
        (lambda: figures.bound_figure("t", "x (s)", [], [], []), "not empty"),
        (lambda: figures.batch_figure([0, 1], {"a": [3]}), "equally long"),
        (lambda: figures.batch_figure([0], {"a": [0]}), "a holds 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize(
    "name",
    ["product", "two_clocks", "roofs", "own_roof", "shares", "rule", "bound", "batch"],
)
def test_each_figure_has_a_function_that_shows_it(name, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.figures.look.show", lambda fig, alt: shown.append((fig, alt)))
    show_it, make = getattr(figures, name), getattr(figures, f"{name}_figure")
    assert (show_it.__name__, show_it.__doc__) == (name, make.__doc__)
    assert inspect.signature(show_it).parameters == inspect.signature(make).parameters
    if name == "product":
        assert show_it(2, 3, d_out=4) is None
        assert "48 FLOPs" in shown[0][1]
