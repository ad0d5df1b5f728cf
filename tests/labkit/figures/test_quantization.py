"""The figures of lesson 07 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

from inferlab.fp8 import round_fp8
from inferlab.quantization import dequantize, matrix_with_outliers, quantize_absmax, relative_error
from labkit.figures import quantization as figures

MAGNITUDES = np.geomspace(2.0**-10, 447, 3000)


def _errors(axis):
    w = matrix_with_outliers()
    return relative_error(w, dequantize(*quantize_absmax(w, axis=axis)), 0)


def _rounding():
    e4m3, e5m2 = (
        np.abs(round_fp8(MAGNITUDES, form) - MAGNITUDES) / MAGNITUDES for form in ("e4m3", "e5m2")
    )
    codes, scales = quantize_absmax(MAGNITUDES[None])
    int8 = np.abs(dequantize(codes, scales)[0] - MAGNITUDES) / MAGNITUDES
    return figures.rounding_error_figure(
        MAGNITUDES, {"int8, scale 3.46": int8, "E4M3": e4m3, "E5M2": e5m2}
    )


SCHEMES = ["as it was", "int8, one scale", "int4, one scale a channel", "int4, groups, scaled"]
INPUTS = [f"{layer}, {name}" for layer in (0, 15, 29) for name in ("attention", "mixed heads", "mlp", "hidden")]  # fmt: skip  # noqa: E501
EXAMPLES = {
    "step_bytes": lambda: figures.step_bytes_figure(
        ["bf16", "int8", "int4, groups of 128"], [16, 8, 4.125], [17.18, 17.18, 17.18]
    ),
    "shared_step": lambda: figures.shared_step_figure(
        matrix_with_outliers()[:16, 0],
        {"one scale for all columns": 1.0675, "one scale for this column": 0.0246},
    ),
    "channel_errors": lambda: figures.channel_errors_figure(_errors(None), _errors(0), 0.035),
    "nibble_layout": lambda: figures.nibble_layout_figure([1, -8, 7, -1]),
    "nibble_layout, largest": lambda: figures.nibble_layout_figure([0, 1, 2, 3, -4, -5, -6, -7]),
    "rounding_error": _rounding,
    "error_by_bits": lambda: figures.error_by_bits_figure(
        [8, 6, 4, 3, 2],
        [0.0069, 0.028, 0.1166, 0.27, 0.82],
        {"normal weights": [0.0069, 0.028, 0.117, 0.26, 0.6], "outliers": [0.3, 0.9, 1, 1, 1]},
    ),
    "quality_bars": lambda: figures.quality_bars_figure(
        SCHEMES, [7.8, 7.9, 14.4, 9.1], [32, 8.0, 4.01, 4.25], "SmolLM2"
    ),
    "quality_bars, far apart": lambda: figures.quality_bars_figure(
        SCHEMES, [7.8, 7.9, 273_733, 9.1], [32, 8.0, 4.01, 4.25], "SmolLM2"
    ),
    "protected": lambda: figures.protected_figure(INPUTS, [0.35] * 12, [1.4] * 12),
    "decode_times": lambda: figures.decode_times_figure(
        ["float32", "bfloat16", "int8", "int4"],
        [0.03, 0.018, 0.013, 0.011],
        [0.027, 0.0135, 0.0084, 0.005],
        "cpu: some chip, 2 cores",
    ),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    upright = [(t, b) for t, b in words.texts if not t.get_rotation() % 90]
    require_apart(upright)


def test_step_bytes_stacks_weights_and_cache_and_names_the_gain():
    figure, alt = EXAMPLES["step_bytes"]()
    bars = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert [bar.get_width() for bar in bars] == [16, 8, 4.125, 17.18, 17.18, 17.18]
    assert [bar.get_x() for bar in bars[3:]] == [16, 8, 4.125]
    assert "1.32 times as fast" in alt
    assert "1.56 times as fast" in alt  # (16 + 17.18) / (4.125 + 17.18)


def test_shared_step_draws_each_weight_and_the_level_it_lands_on():
    weights = [0.2, -0.4, 1.3, 2.0]
    figure, alt = figures.shared_step_figure(weights, {"a": 1.0, "b": 0.5})
    for plot, stored in zip(figure.axes, ([0, 0, 1, 2], [0, -0.5, 1.5, 2]), strict=True):
        dots = [line.get_xdata() for line in plot.lines if line.get_marker() in ("o", "s")]
        assert list(dots[0]) == weights
        assert list(dots[1]) == stored
    assert "a: levels 1 apart, 2 of 4 weights become 0" in alt


def test_channel_errors_are_drawn_in_percent():
    figure, alt = figures.channel_errors_figure([0.3, 0.01], [0.007, 0.008], 0.035)
    drawn = [list(line.get_ydata()) for line in figure.axes[0].lines]
    assert drawn == [[30.0, 1.0], pytest.approx([0.7, 0.8]), pytest.approx([3.5, 3.5])]
    assert "3.5 %" in alt


def test_the_nibbles_shown_are_those_of_the_bytes():
    figure, alt = figures.nibble_layout_figure([1, -8, 7, -1])
    texts = [text.get_text() for text in figure.axes[0].texts]
    for said in ("row 1: -8", "1000", "0001", "= 0x81 = 129", "1111", "0111", "= 0xF7 = 247"):
        assert said in texts
    assert "7 and -1 make 1111 0111, byte 247" in alt
    for bad in ([1], [8, 0], list(range(-8, 8))):
        with pytest.raises(ValueError, match="codes must be"):
            figures.nibble_layout_figure(bad)


def test_rounding_error_says_what_the_formats_allow():
    """Half a step over the number: at most 1/17 with three bits of mantissa, 1/9 with two."""
    figure, alt = _rounding()
    int8, e4m3, e5m2 = (patch.get_data() for patch in figure.axes[0].patches)
    at_one = list(e4m3.edges).index(1.0)
    assert 100 / 18 < e4m3.values[at_one] <= 100 / 17
    assert 100 / 10 < e5m2.values[at_one] <= 100 / 9
    assert int8.values[0] == pytest.approx(100)  # the smallest numbers become 0
    assert int8.values[-1] < e4m3.values[-1]
    assert f"{e4m3.values[0]:.3g} % at 0.000976562" in alt


def test_error_by_bits_draws_theory_and_measurements():
    figure, alt = EXAMPLES["error_by_bits"]()
    lines = figure.axes[0].lines
    assert list(lines[0].get_ydata()) == pytest.approx([0.69, 2.8, 11.66, 27, 82])
    assert list(lines[2].get_ydata()) == pytest.approx([30, 90, 100, 100, 100])
    assert "4 bits 11.7 %" in alt


@pytest.mark.parametrize("name", ["quality_bars", "quality_bars, far apart"])
def test_quality_bars_end_at_the_perplexity(name):
    figure, alt = EXAMPLES[name]()
    bars = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    ends = [bar.get_x() + bar.get_width() for bar in bars]
    assert ends == pytest.approx([7.8, 7.9, 14.4 if name == "quality_bars" else 3 * 7.8, 9.1])
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written[2] == ("14.4" if name == "quality_bars" else "273,733 (cut off)")
    assert "int4, groups, scaled (4.25 bits): 9.1" in alt


def test_protected_and_decode_times_draw_what_they_are_given():
    figure, alt = figures.protected_figure(["0, mlp", "1, mlp"], [0.4, 0.8], [1.2, 2.4])
    assert [list(line.get_ydata()) for line in figure.axes[0].lines][:2] == [[0.4, 0.8], [1.2, 2.4]]
    assert "1.20 to 2.40" in alt
    figure, alt = EXAMPLES["decode_times"]()
    heights = [p.get_height() for p in figure.axes[0].patches]
    assert heights == pytest.approx([30, 18, 13, 11, 27, 13.5, 8.4, 5])
    assert "int4: 11 ms, reading alone 5 ms" in alt


def test_series_that_do_not_match_or_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        figures.step_bytes_figure(["a", "b"], [1], [2, 3])
    with pytest.raises(ValueError, match="not empty"):
        figures.channel_errors_figure([], [], 0.1)
    with pytest.raises(ValueError, match="cannot be drawn"):
        figures.decode_times_figure(["a"], [float("nan")], [1.0], "cpu")
