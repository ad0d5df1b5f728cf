"""The figures of lesson 06 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle

import inferlab.attention
from inferlab.flash_attention import (
    count_tiles,
    flash_traffic_bytes,
    merge_partials,
    partial_attention,
    standard_traffic_bytes,
)
from inferlab.generate import generate_cached
from inferlab.model import load_model
from labkit.figures import flash_attention as figures
from labkit.measure import flash_attention as flash_measure

BLOCKS = [[1, 2.5, 0.5, 2], [3, 1, 4.5, 2], [2, 3, 1, 0.5], [6, 5, 4, 1]]
LENGTHS = [256, 512, 1024, 2048, 4096]
GROWING = [1e6 * 4**i for i in range(5)]


def _running():
    return figures.running_stats_figure(BLOCKS, [2.5, 4.5, 4.5, 6], [1.96, 1.6, 1.96, 1.95])


def _growth():
    return figures.memory_growth_figure(LENGTHS, GROWING, [4e5] * 5, [2e5 * 2**i for i in range(5)],
                                        [262144 * 4**i for i in range(5)])  # fmt: skip


EXAMPLES = {
    "traffic_bars": lambda: figures.traffic_bars_figure(8192, 64, 128),
    "tile_map": lambda: figures.tile_map_figure(12, 12, 3, 3),
    "tile_map, more keys": lambda: figures.tile_map_figure(7, 20, 3, 6),
    "tile_map, largest": lambda: figures.tile_map_figure(24, 40, 4, 5),
    "running_stats": _running,
    "split_merge": lambda: figures.split_merge_figure([400, 400, 224], [3.1, 5.2, 4.7]),
    "split_merge, far apart": lambda: figures.split_merge_figure([4000, 1, 9, 30], [-900, 1, 2, 3]),
    "memory_growth": _growth,
    "time_growth": lambda: figures.time_growth_figure(
        LENGTHS, [1e-3 * 4**i for i in range(5)], [4e-3] * 5, [2e-4] * 5, "cpu: some chip, 2 cores"
    ),
    "traffic_curve": lambda: figures.traffic_curve_figure(
        [49152, 98304, 196608], [3e8, 1.5e8, 7e7], [3e8, 1.5e8, 7e7], 5.4e8
    ),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    require_apart(words.texts)


# ---- what is drawn ------------------------------------------------------------------------------


def test_the_bars_are_the_bytes_of_the_reference():
    figure, alt = figures.traffic_bars_figure(8192, 64, 128)
    totals: dict[int, float] = {}
    for bar in figure.axes[0].patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        totals[row] = totals.get(row, 0) + bar.get_width() * 1e6
    assert totals[0] == pytest.approx(standard_traffic_bytes(8192, 8192, 64))
    for row, causal in ((1, False), (2, True)):
        exact = flash_traffic_bytes(8192, 8192, 64, 128, 128, causal=causal)
        assert totals[row] == pytest.approx(exact)
        assert f"{exact / 1e6:,.0f} MB" in alt


@pytest.mark.parametrize("sizes", [(12, 12, 3, 3), (7, 20, 3, 6), (24, 40, 4, 5), (5, 9, 5, 2)])
def test_the_tiles_are_those_of_count_tiles(sizes):
    figure, alt = figures.tile_map_figure(*sizes)
    tiles = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    looks = {"whole": 0, "on the edge": 0, "skipped": 0}
    for tile in tiles:
        hatched, dotted = tile.get_hatch() is not None, tile.get_linestyle() == ":"
        looks["on the edge" if hatched else "skipped" if dotted else "whole"] += 1
    assert tuple(looks.values()) == count_tiles(*sizes)
    assert sum(p.get_width() * p.get_height() for p in tiles) == sizes[0] * sizes[1]
    for kind, n in looks.items():
        assert f"{n} {kind}" in alt


def test_the_edge_of_the_mask_is_where_the_mask_is():
    figure, _ = figures.tile_map_figure(7, 20, 3, 6)
    edge = figure.axes[0].lines[0].get_xdata()
    assert list(edge) == [x for t in range(7) for x in (20 - 7 + t + 1,) * 2]


def test_the_running_maximum_and_sum_are_drawn():
    figure, alt = _running()
    top, bottom = figure.axes
    assert list(top.lines[0].get_ydata()) == [s for block in BLOCKS for s in block]
    assert list(top.lines[1].get_ydata()) == [2.5, 2.5, 4.5, 4.5, 4.5, 4.5, 6, 6]
    bars = [bar for group in bottom.containers for bar in group]
    assert [bar.get_height() for bar in bars] == [1.96, 1.6, 1.96, 1.95]
    assert "2.5, 4.5, 4.5, 6" in alt


def test_the_weights_of_the_splits_are_those_of_the_merge():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(1, 4)), *rng.normal(size=(2, 1, 9, 4))
    a, b = (partial_attention(q, k[:, s], v[:, s]) for s in (slice(0, 6), slice(6, 9)))
    shares = figures.split_shares([float(a[1][0]), float(b[1][0])])
    assert np.allclose(merge_partials(*a, *b)[0], shares[0] * a[0] + shares[1] * b[0])
    figure, alt = figures.split_merge_figure([6, 3], [float(a[1][0]), float(b[1][0])])
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert {f"× {share:.3f}" for share in shares} <= set(texts)
    assert f"merged lse {float(merge_partials(*a, *b)[1][0]):.2f}" in alt


def test_growth_is_drawn_in_its_unit():
    figure, alt = _growth()
    plain = next(line for line in figure.axes[0].lines if line.get_label() == "plain (NumPy)")
    assert np.allclose(plain.get_ydata(), np.array(GROWING) / 1e6)
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
    assert "256.0 MB" in alt


def test_the_curve_says_whether_formula_and_count_agree():
    sizes = [49152, 98304]
    _, same = figures.traffic_curve_figure(sizes, [3e6, 2e6], [3e6, 2e6], 5e6)
    _, other = figures.traffic_curve_figure(sizes, [3e6, 2e6], [3e6, 2e6 + 8], 5e6)
    assert "exactly as counted" in same
    assert "off by at most 8 bytes" in other


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: figures.traffic_bars_figure(100, 8, 64), "block_q=64"),
        (lambda: figures.tile_map_figure(30, 40, 4, 4), "T=30"),
        (lambda: figures.tile_map_figure(5, 4, 2, 2), "T=5"),
        (lambda: figures.running_stats_figure(BLOCKS, [1], [1]), "4 blocks"),
        (lambda: figures.split_merge_figure([3, 0], [1, 1]), "each of 2"),
        (lambda: figures.traffic_curve_figure([1024], [1], [0], 5), "counted"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- what the lesson measures -------------------------------------------------------------------


def test_the_engine_uses_another_attention_only_inside_the_block():
    model, seen = load_model("tiny-target"), []
    own = inferlab.attention.attention

    def watched(q, k, v, visible):
        seen.append(q.shape)
        return own(q, k, v, visible)

    prompt = [1, 2, 3]
    before = generate_cached(model, prompt, 3)
    with flash_measure.engine_attention(watched):
        assert generate_cached(model, prompt, 3) == before
    assert len(seen) == 3 * model.config.n_layers
    assert inferlab.attention.attention is own
    with pytest.raises(ZeroDivisionError), flash_measure.engine_attention(lambda *a: 1 / 0):
        model.next_logits(prompt)
    assert inferlab.attention.attention is own


def test_captured_heads_are_those_of_the_layer():
    model = load_model("tiny-target")
    q, k, v, out = flash_measure.captured_heads(model, [5, 6, 7, 8], layer=1)
    c = model.config
    assert q.shape == out.shape == (c.n_heads, 4, c.d_head)
    assert k.shape == v.shape == (c.n_kv_heads, 4, c.d_head)
    assert np.allclose(out[:, 0], np.repeat(v[:, 0], c.n_heads // c.n_kv_heads, 0), atol=1e-6)
    with pytest.raises(ValueError, match="layer must be 0 to"):
        flash_measure.captured_heads(model, [5], layer=99)


def test_peaks_of_torch_tell_fused_from_plain():
    plain = flash_measure.torch_attention(1024, 32, fused=False, device="cpu")
    fused = flash_measure.torch_attention(1024, 32, fused=True, device="cpu")
    assert plain.peak_bytes >= 2 * 4 * 1024**2  # scores and their masked copy
    assert fused.peak_bytes < 4 * 1024**2  # not one score matrix
    peak = flash_measure.peak_bytes(lambda: torch.ones(1000, dtype=torch.float64), "cpu", torch)
    assert 8000 <= peak < 9000
