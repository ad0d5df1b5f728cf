"""The figures of lesson 05 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from inferlab.attention import kv_head_of
from inferlab.cache_sizes import cache_bytes, decode_attention_intensity
from inferlab.data import model_preset
from labkit.figures import gqa as figures

CONTEXTS = [2**i for i in range(7, 18)]
NAMES = ("llama-2-7b", "qwen2.5-7b", "mistral-7b-v0.1", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3")
SIZES = {name: [cache_bytes(model_preset(name), n) for n in CONTEXTS] for name in NAMES}
SIZES["llama-2-7b"] = SIZES["llama-2-7b"][:6]  # its context ends at 4,096
POINTS = {name: decode_attention_intensity(model_preset(name)) for name in (*NAMES[:2], NAMES[5])}
MEASURED = {"MHA, 32 KV heads": [1e-3, 2e-3], "GQA, 8": [4e-4, 9e-4], "repeated": [3e-3, 7e-3]}
BOUNDS = {"GQA, 8": [2e-4, 4e-4]}


def _times(device="cpu: some chip, 2 cores, float32"):
    return figures.decode_times_figure([512, 1024], MEASURED, BOUNDS, device)


def _five_ways():
    ways = {f"GQA, {n} KV heads, repeated": [n / 1e3, n / 500, n / 200] for n in (1, 2, 4, 8, 16)}
    return figures.decode_times_figure([512, 2048, 8192], ways, ways, "cpu: " + "long, " * 20)


EXAMPLES = {
    "four_ways": figures.four_ways_figure,
    "four_ways, few": lambda: figures.four_ways_figure(2, 1),
    "four_ways, 6 on 3": lambda: figures.four_ways_figure(6, 3),
    "cache_growth": lambda: figures.cache_growth_figure(CONTEXTS, SIZES),
    "roofline": lambda: figures.roofline_figure(POINTS, 3.35e12, 989.4e12, "one H100 (bf16)"),
    "roofline, above the ridge": lambda: figures.roofline_figure({"a": 16.0}, 1e10, 5e10, "a CPU"),
    "decode_times": _times,
    "decode_times, most": _five_ways,
    "pooled_layers": lambda: figures.pooled_layers_figure([0, 10, 20, 30], [24, 79, 231, 2e4], 30),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    require_apart(words.texts)


def _lines(plot) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in plot.get_lines()
    }


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(8, 2), (6, 3), (4, 4)])
def test_four_ways_joins_each_query_head_to_what_it_reads(n_heads, n_kv_heads):
    figure, alt = figures.four_ways_figure(n_heads, n_kv_heads)
    kinds = [n_heads, n_kv_heads, 1]
    for plot, n in zip(figure.axes, kinds, strict=False):
        names = [t.get_text() for t in plot.texts]
        assert [f"K{i}" in names and f"V{i}" in names for i in range(n)] == [True] * n
        assert f"K{n}" not in names
        assert f"2 × {n} × d_head numbers a token" in names
        places = {t.get_text(): t.get_position()[0] for t in plot.texts}
        joins = {
            (round(float(line.get_xdata()[0]), 6), round(float(line.get_xdata()[1]), 6))
            for line in plot.get_lines()
        }
        expected = {
            (round(places[f"Q{h}"], 6), round(places[f"K{kv_head_of(h, n_heads, n)}"], 6))
            for h in range(n_heads)
        }
        assert joins == expected
        assert sum(isinstance(p, Rectangle) for p in plot.patches) == n_heads + 2 * n
    latent = figure.axes[3]
    assert len(latent.get_lines()) == 2 * n_heads
    assert {"latent", "rotated key"} <= {t.get_text() for t in latent.texts}
    assert f"read by {n_heads // n_kv_heads} neighbouring" in alt


def test_cache_growth_draws_gigabytes_of_every_model():
    figure, alt = figures.cache_growth_figure(CONTEXTS, SIZES)
    lines = _lines(figure.axes[0])
    assert set(lines) == set(NAMES)
    for name, (x, y) in lines.items():
        assert x == CONTEXTS[: len(SIZES[name])]
        np.testing.assert_allclose(y, np.array(SIZES[name]) / 1e9)
    assert "llama-2-7b: 67.11 MB (64.00 MiB) at 128 tokens" in alt
    assert "gpt-oss-20b" in alt
    assert "at 131,072" in alt
    flat = lines["mistral-7b-v0.1"][1][5:]
    assert set(flat) == {536_870_912 / 1e9}
    styles = [(li.get_color(), li.get_linestyle(), li.get_marker()) for li in
              figure.axes[0].get_lines()]  # fmt: skip
    assert len({s[2] for s in styles}) == len(styles), "markers tell lines apart without colour"


def test_the_roof_has_its_ridge_and_every_point_lies_on_it():
    figure, alt = figures.roofline_figure(POINTS | {"far": 900.0}, 3.35e12, 989.4e12, "a GPU")
    plot = figure.axes[0]
    roof = plot.get_lines()[0]
    assert roof.get_xdata()[1] == pytest.approx(989.4 / 3.35)
    assert roof.get_ydata()[1] == roof.get_ydata()[2] == pytest.approx(989.4)
    for name, (x, y) in _lines(plot).items():
        if ": " in name:
            intensity = (POINTS | {"far": 900.0})[name.partition(":")[0]]
            assert x == [intensity]
            assert y == [pytest.approx(min(989.4, intensity * 3.35))]
    assert "ridge: 295" in [t.get_text() for t in plot.texts]
    assert "deepseek-v3 at 242 FLOP/byte, 810 TFLOP/s" in alt


def test_decode_times_are_in_milliseconds_with_bounds_dashed():
    figure, alt = _times()
    lines = _lines(figure.axes[0])
    assert set(lines) == {*MEASURED, "GQA, 8: bound"}
    for name, seconds in MEASURED.items():
        np.testing.assert_allclose(lines[name][1], [1e3 * s for s in seconds])
    dashed = [li for li in figure.axes[0].get_lines() if li.get_linestyle() == "--"]
    assert [li.get_label() for li in dashed] == ["GQA, 8: bound"]
    np.testing.assert_allclose(dashed[0].get_ydata(), [0.2, 0.4])
    assert "At 1,024 tokens: MHA, 32 KV heads: 2.00 ms" in alt
    assert "GQA, 8: 900 µs (bound 400 µs)" in alt


def test_pooled_layers_says_its_numbers():
    figure, alt = figures.pooled_layers_figure([0, 10, 30], [24.3, 79.2, 20_928], 30)
    (x, y) = next(iter(_lines(figure.axes[0]).values()))
    assert x == [0, 10, 30]
    assert y == [24.3, 79.2, 20_928]
    assert {"24", "79", "20,928"} <= {t.get_text() for t in figure.axes[0].texts}
    assert "24 at 0, 79 at 10, 20,928 at 30" in alt
    assert figure.axes[0].get_yscale() == "log"


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="n_heads=7 must be a multiple of n_kv_heads=2"):
        figures.four_ways_figure(7, 2)
    with pytest.raises(ValueError, match="n_heads=9 must be from 2 to 8"):
        figures.four_ways_figure(9, 3)
    with pytest.raises(ValueError, match="holds 3 numbers"):
        figures.cache_growth_figure([1, 2], {"a": [1, 2, 3]})
    with pytest.raises(ValueError, match="more than 0"):
        figures.roofline_figure({"a": 0.0}, 1, 1, "x")
    with pytest.raises(ValueError, match="needs a measurement at each"):
        figures.decode_times_figure([1, 2], {"a": [1.0]}, {}, "x")
    with pytest.raises(ValueError, match="perplexities"):
        figures.pooled_layers_figure([0, 1], [24.0], 30)


def test_shown_figures_are_html_with_alternative_text(capsys):
    figures.four_ways()
    assert plt.get_fignums() == []
    assert capsys.readouterr().out == ""
