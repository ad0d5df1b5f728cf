"""The figures of lesson 02 show the data they are given, say it in words, and stay readable."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Circle, Rectangle

from inferlab.components import component_bytes, component_flops, component_params
from inferlab.data import model_preset
from inferlab.operators import causal_mask, rope_angles, softmax
from labkit.figures import forward_pass as figures


def head(n: int) -> np.ndarray:
    scores = np.random.default_rng(n).normal(size=(n, n)) * 3
    return softmax(np.where(causal_mask(n, n), scores, -np.inf))


SMOL = model_preset("smollm2-135m")
WORDS = ["The", "cat", "sat", "on", "the", "mat", "because", "it", "was", "warm", "."]
AMOUNTS = {
    "FLOPs": component_flops(SMOL, 256),
    "bytes read": component_bytes(SMOL, 256),
}
EXAMPLES = {
    "block": figures.block_diagram_figure,
    "block, one layer": lambda: figures.block_diagram_figure(1),
    "clocks": lambda: figures.rope_clocks_figure(rope_angles(np.arange(8), 8, 100.0)),
    "clocks, most": lambda: figures.rope_clocks_figure(rope_angles(np.arange(10), 12, 500.0)),
    "clocks, least": lambda: figures.rope_clocks_figure(rope_angles(np.arange(2), 2, 10.0)),
    "mask": lambda: figures.mask_grid_figure(causal_mask(3, 7), WORDS[:7]),
    "mask, largest": lambda: figures.mask_grid_figure(causal_mask(12, 12)),
    "mask, one": lambda: figures.mask_grid_figure(causal_mask(1, 1)),
    "attention": lambda: figures.attention_map_figure(head(11), WORDS, "layer 3, head 2"),
    "attention, largest": lambda: figures.attention_map_figure(
        head(14), [*WORDS, "and", "very", "soft"], "layer 12, head 10"
    ),
    "next": lambda: figures.next_token_bars_figure(
        "The capital of France is", [" Paris", " the", " London"], [0.77, 0.065, 0.012]
    ),
    "next, sure": lambda: figures.next_token_bars_figure("1, 2, 3, 4,", [" 5"], [1.0]),
    "shares": lambda: figures.shares_figure("SmolLM2: 256 tokens in one pass", AMOUNTS),
    "drift": lambda: figures.drift_figure(
        {
            "RoPE in neighbouring pairs": [0.3, 0.7, 1.1],
            "a wrong gain from layer 1 on": [0, 0.03, 0],
        }
    ),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(
        words, texts_above=2, inside_px=1, may_be_small=lambda text: text.startswith("$")
    )


@pytest.mark.parametrize("words", [n for n in EXAMPLES if "attention" not in n], indirect=True)
def test_no_words_overlap(words):
    """(Slanted names have boxes that overlap though the words do not.)"""
    require_apart(words.texts)


@pytest.mark.parametrize("words", ["block", "mask", "mask, largest"], indirect=True)
def test_words_in_a_box_stay_in_it(words):
    figure, _, texts, _ = words
    boxes = [p.get_window_extent() for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    inside = 0
    for text, box in texts:
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        for around in (b for b in boxes if b.contains(x, y)):
            inside += 1
            assert around.x0 <= box.x0, text.get_text()
            assert box.x1 <= around.x1, text.get_text()
    assert inside > 0


@pytest.mark.parametrize("name", sorted(n for n in vars(figures) if n.endswith("_figure")))
def test_every_figure_is_shown_by_the_same_name(name):
    show = getattr(figures, name.removesuffix("_figure"))
    assert (
        inspect.signature(show).parameters == inspect.signature(getattr(figures, name)).parameters
    )


def test_the_diagram_names_every_part_and_the_layers():
    figure, alt = figures.block_diagram_figure(17)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts.count("RMSNorm") == 3
    assert texts.count("+") == 2
    assert any("17" in t for t in texts)
    assert "17 decoder blocks" in alt
    heights = {t.get_text().split(":")[0]: t.get_position()[1] for t in figure.axes[0].texts}
    order = ["tokens", "embedding", "attention", "gated MLP", "output head", "logits"]
    assert sorted(order, key=heights.get) == order
    with pytest.raises(ValueError, match="n_layers=0"):
        figures.block_diagram_figure(0)


def test_each_hand_stands_at_its_angle():
    angles = rope_angles(np.arange(6), 6, 50.0)
    figure, alt = figures.rope_clocks_figure(angles)
    plot = figure.axes[0]
    circles = [p for p in plot.patches if isinstance(p, Circle)]
    hands = [t for t in plot.texts if getattr(t, "arrow_patch", None) is not None]
    assert len(circles) == len(hands) == angles.size
    for hand, angle in zip(hands, angles.T.ravel(), strict=True):
        (tip_x, tip_y), (x, y) = hand.xy, hand.xyann
        assert math.cos(math.atan2(tip_y - y, tip_x - x) - angle) == pytest.approx(1)
    for i in range(3):
        assert f"pair {i} by {angles[1, i]:.3g} radians" in alt
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        figures.rope_clocks_figure(angles[:1])


@pytest.mark.parametrize(("T", "S"), [(1, 4), (3, 7), (5, 5)])
def test_the_grid_is_the_mask(T, S):
    mask = causal_mask(T, S)
    figure, alt = figures.mask_grid_figure(mask)
    seen = {t.get_position() for t in figure.axes[0].texts if t.get_text() == "sees"}
    assert seen == {(s, t) for t, s in np.argwhere(mask)}
    assert f"“{S - 1}” sees {S}" in alt
    labels = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    assert labels == [str(s) for s in range(S - T, S)]


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"T <= S"):
        figures.mask_grid_figure(np.ones((3, 2), bool))
    with pytest.raises(ValueError, match="needed 4, given 2"):
        figures.mask_grid_figure(causal_mask(2, 4), ["a", "b"])


def test_the_map_shows_the_weights():
    weights = head(6)
    figure, alt = figures.attention_map_figure(weights, WORDS[:6], "a head")
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), weights)
    for text in figure.axes[0].texts:
        s, t = text.get_position()
        assert text.get_text() == f"{100 * weights[t, s]:.0f}"
    assert len(figure.axes[0].texts) == (np.tril(weights) >= 0.095).sum()
    last = int(weights[5].argmax())
    assert f"“mat” at “{WORDS[last]}” ({weights[5, last]:.0%})" in alt
    with pytest.raises(ValueError, match="for 5 words"):
        figures.attention_map_figure(weights, WORDS[:5], "a head")


def test_the_bars_are_the_probabilities():
    figure, alt = figures.next_token_bars_figure("Go", [" on", " up"], [0.5, 0.25])
    assert [bar.get_width() for bar in figure.axes[0].patches] == [50, 25]
    assert "“ on” 50.0 %" in alt
    with pytest.raises(ValueError, match="probabilities"):
        figures.next_token_bars_figure("Go", ["a", "b"], [0.9, 0.9])
    with pytest.raises(ValueError, match="given 0"):
        figures.next_token_bars_figure("Go", [], [])


def test_a_bar_is_cut_by_shares():
    rows = {"one": {"a": 1.0, "b": 3.0}, "two": {"a": 2.0, "b": 0.0}}
    figure, alt = figures.shares_figure("Parts", rows)
    widths = [p.get_width() for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert widths == [25, 75, 100, 0]
    assert "one: a 25%" in alt
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", "b"]
    hatches = [p.get_hatch() for p in figure.axes[0].patches[:2]]
    assert hatches[0] != hatches[1]
    for bad in ({}, {"one": {"a": 1.0}, "two": {"b": 1.0}}, {"one": {"a": 0.0}}):
        with pytest.raises(ValueError, match=r"parts|amounts"):
            figures.shares_figure("Parts", bad)


def test_a_part_of_a_pass_looks_the_same_in_every_figure():
    weights = {name: n for name, n in component_params(SMOL).items() if name != "attention scores"}
    looks = []
    for rows in (AMOUNTS, {"SmolLM2": weights}):
        bars = figures.shares_figure("Parts", rows)[0].axes[0].patches
        part_looks = [(p.get_facecolor(), p.get_hatch()) for p in bars]
        looks.append(dict(zip(next(iter(rows.values())), part_looks, strict=False)))
    whole, matrices = looks
    assert matrices.items() <= whole.items()
    assert len(set(whole.values())) == len(whole)


def test_the_lines_are_the_errors_and_zero_lies_on_the_floor():
    figure, alt = figures.drift_figure({"x": [0.0, 0.5], "y": [0.1, 0.2]})
    lines = figure.axes[0].get_lines()
    assert list(lines[0].get_ydata()) == [1e-8, 0.5]
    assert list(lines[1].get_ydata()) == [0.1, 0.2]
    assert lines[0].get_linestyle() != lines[1].get_linestyle()
    assert "x: 0.0e+00 behind block 0, 5.0e-01 behind the last" in alt
    with pytest.raises(ValueError, match="at least one"):
        figures.drift_figure({})
