"""The figures of lesson 04 draw the right numbers, say them in words, and stay readable."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from inferlab.kv_cache import (
    AttentionLayer,
    KVCache,
    SlidingWindowCache,
    decode_cached,
    decode_uncached,
)
from inferlab.model import Model
from labkit.figures import kv_cache as figures
from labkit.measure import models

LENGTHS = [16, 64, 256]
WITHOUT_S, WITH_S = [0.02, 0.05, 0.2], [0.01, 0.011, 0.0125]
LOWER, LOW = [0.01, 0.03, 0.1], [0.005, 0.006, 0.007]


def _step_times(device="cpu: some chip, 2 cores"):
    return figures.step_times_figure(LENGTHS, WITHOUT_S, WITH_S, LOWER, LOW, device)


def _bytes_grown(n=40, capacity=16, wrong=0):
    cache = KVCache(2, 3, 4, capacity=capacity, dtype=np.float32)
    held, room = [], []
    for _ in range(n):
        for layer in range(2):
            cache.append(layer, np.zeros((1, 3, 1, 4)), np.zeros((1, 3, 1, 4)))
        held.append(cache.n_bytes)
        room.append(cache.keys.nbytes + cache.values.nbytes)
    tokens = list(range(1, n + 1))
    predicted = [2 * 2 * 3 * 4 * 4 * t + wrong for t in tokens]
    return figures.bytes_grown_figure(tokens, held, predicted, room)


EXAMPLES = {
    "work_triangle": figures.work_triangle_figure,
    "work_triangle, smallest": lambda: figures.work_triangle_figure(2),
    "work_triangle, largest": lambda: figures.work_triangle_figure(12),
    "step_times": _step_times,
    "step_times, long device": lambda: _step_times(", ".join(["a very long part"] * 9)),
    "bytes_grown": _bytes_grown,
    "drift_bars": lambda: figures.drift_bars_figure([0, 0, 0], [0, 0.431, 1.26]),
    "drift_bars, 12 layers": lambda: figures.drift_bars_figure([0] * 12, [1.25e-5] * 12),
    "ring_slots": lambda: figures.ring_slots_figure(4, 10),
    "ring_slots, largest": lambda: figures.ring_slots_figure(8, 16),
    "ring_slots, smallest": lambda: figures.ring_slots_figure(2, 3),
    "model_bars": lambda: figures.model_bars_figure(["small", "large"], [23_040, 3 * 2**20]),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words)


def test_no_words_overlap(words):
    require_apart(words.texts)


def _cells(plot) -> list[tuple[int, int, bool]]:
    """(row, column, filled) of every cell drawn."""
    return [
        (round(p.get_y() + 0.45), round(p.get_x() + 0.45), p.get_hatch() is None)
        for p in plot.patches
        if isinstance(p, Rectangle)
    ]


@pytest.mark.parametrize("n", [2, 8, 12])
def test_the_triangle_shows_the_rows_that_decoding_counts(n):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6))
    figure, alt = figures.work_triangle_figure(n)
    for plot, decode in zip(figure.axes, (decode_uncached, decode_cached), strict=True):
        layer = AttentionLayer(*rng.normal(size=(3, 6, 6)), n_heads=2)
        decode(x, layer)
        computed = sum(filled for _, _, filled in _cells(plot))
        assert 2 * computed == layer.n_kv_rows
        assert len(_cells(plot)) == n * (n + 1) // 2  # computed or remembered, one for each token
        words = [text.get_text() for text in plot.texts]
        assert any(word.endswith(f"= {layer.n_kv_rows} rows") for word in words)
        assert f"{layer.n_kv_rows} in all" in alt


def test_the_triangle_counts_each_step():
    figure, _ = figures.work_triangle_figure(3)
    without, with_cache = [
        [t.get_text() for t in plot.texts if t.get_text().isdigit()] for plot in figure.axes
    ]
    assert (without, with_cache) == (["2", "4", "6"], ["2", "2", "2"])


def test_step_times_are_drawn_in_milliseconds_with_dashed_bounds():
    figure, alt = _step_times()
    plot = figure.axes[0]
    lines = {line.get_label(): line for line in plot.lines}
    for label, seconds, lower in (
        ("without a cache", WITHOUT_S, LOWER),
        ("with a cache", WITH_S, LOW),
    ):
        measured, bound = lines[f"{label}, measured"], lines[f"{label}, lower bound"]
        assert list(measured.get_xdata()) == LENGTHS
        assert np.allclose(measured.get_ydata(), 1e3 * np.array(seconds))
        assert np.allclose(bound.get_ydata(), 1e3 * np.array(lower))
        assert (measured.get_linestyle(), bound.get_linestyle()) == ("-", "--")
    assert (plot.get_xscale(), plot.get_yscale()) == ("log", "log")
    assert "cpu: some chip" in plot.get_title(loc="left")
    assert "At 256 tokens a step without a cache takes 16.0 times as long" in alt
    assert "20.0 ms at 16 tokens, 200 ms at 256 tokens (lower bound there 100 ms)" in alt


def test_markers_tell_the_measured_lines_apart_without_colour():
    lines = _step_times()[0].axes[0].lines
    markers = {line.get_marker() for line in lines if "measured" in line.get_label()}
    assert len(markers) == 2
    assert "" not in markers


def test_the_room_of_a_real_cache_is_never_below_what_it_holds():
    figure, alt = _bytes_grown()
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    held, room = (np.array(lines[name].get_ydata()) for name in ("measured", "allocated"))
    assert (room >= held).all()
    assert len(set(room)) == 3  # 16, 32, 64 tokens
    assert "exactly as predicted" in alt
    assert "staircase: 3, 6, 12 KiB" in alt  # 2 layers, K and V, 3 heads, 4 numbers of 4 bytes


def test_a_wrong_prediction_is_said():
    assert "at most 1 KiB off prediction" in _bytes_grown(wrong=1024)[1]


def test_zeros_of_the_drift_are_written():
    figure, alt = EXAMPLES["drift_bars"]()
    assert [t.get_text() for t in figure.axes[0].texts] == ["0", "0", "0", "0", "0.43", "1.3"]
    assert "Causal attention: 0, 0, 0. Bidirectional attention: 0, 0.43, 1.3." in alt
    hatches = {bar.get_hatch() for bar in figure.axes[0].patches}
    assert hatches == {None, "///"}
    plain, _ = figures.drift_bars_figure([0, 0], [0, 0])
    assert plain.axes[0].get_ylim() == (0, 1)


@pytest.mark.parametrize(("window", "n_tokens"), [(2, 3), (4, 10), (8, 16), (5, 3)])
def test_the_ring_shows_what_the_cache_holds(window, n_tokens):
    cache = SlidingWindowCache(window, 1, 1)
    figure, alt = figures.ring_slots_figure(window, n_tokens)
    plot = figure.axes[0]
    texts = [t for t in plot.texts if not isinstance(t, Annotation)]
    inside = {
        (t.get_position()[1], t.get_position()[0]): t.get_text()
        for t in texts
        if t.get_position()[0] < window and t.get_text()
    }
    beside = {t.get_position()[1]: t.get_text() for t in texts if t.get_position()[0] == window}
    for token in range(n_tokens):
        cache.append(np.full((1, 1), token), np.zeros((1, 1)))
        for slot in range(min(window, token + 1)):
            assert inside[token, slot] == f"{cache.keys[0, slot, 0]:.0f}"
        in_order = cache.ordered()[0][0, :, 0].astype(int).tolist()
        assert beside[token] == ", ".join(map(str, in_order))
    assert f"oldest to newest: {beside[n_tokens - 1]}." in alt


def test_the_ring_says_what_is_overwritten():
    figure, alt = figures.ring_slots_figure(2, 4)
    last = max(t.get_position()[0] for t in figure.axes[0].texts)
    gone = [t.get_text() for t in figure.axes[0].texts if t.get_position()[0] == last]
    assert gone[:4] == ["–", "–", "0", "1"]
    assert "Token 2 is the first to overwrite one: token 0, in slot 0" in alt
    assert "overwrite" not in figures.ring_slots_figure(4, 4)[1]


def test_models_are_compared_in_kib():
    figure, alt = EXAMPLES["model_bars"]()
    plot = figure.axes[0]
    assert [bar.get_width() for bar in plot.patches] == [22.5, 3072]
    assert [t.get_text() for t in plot.texts] == ["22.5 KiB", "3,072 KiB"]
    assert "small 22.5 KiB; large 3,072 KiB" in alt
    assert plot.get_ylim()[0] > plot.get_ylim()[1]  # the first on top


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.work_triangle_figure(13), "n_tokens=13 must be from 2 to 12"),
        (lambda: figures.ring_slots_figure(9, 3), "window=9 must be from 2 to 8"),
        (lambda: figures.ring_slots_figure(3, 2), "n_tokens=2"),
        (lambda: figures.drift_bars_figure([0], [0, 1]), "equally long"),
        (lambda: figures.drift_bars_figure([], []), "not empty"),
        (lambda: figures.drift_bars_figure([0] * 13, [0] * 13), "number of layers=13"),
        (lambda: figures.drift_bars_figure([0], [float("nan")]), "holds nan"),
        (
            lambda: figures.step_times_figure([1], [0.0], [1], [1], [1], "x"),
            "without_s holds 0.0; every number must be more than 0",
        ),
        (lambda: figures.bytes_grown_figure([1], [-1], [1], [1]), "0 or more"),
        (lambda: figures.model_bars_figure(["a"], [1, 2]), "a name of its own"),
        (lambda: figures.model_bars_figure(["a", "a"], [1, 2]), "a name of its own"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize(
    "name",
    ["work_triangle", "step_times", "bytes_grown", "drift_bars", "ring_slots", "model_bars"],
)
def test_each_figure_has_a_function_that_shows_it(name, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.figures.look.show", lambda fig, alt: shown.append((fig, alt)))
    show_it, make = getattr(figures, name), getattr(figures, f"{name}_figure")
    assert (show_it.__name__, show_it.__doc__) == (name, make.__doc__)
    assert inspect.signature(show_it).parameters == inspect.signature(make).parameters
    if name == "drift_bars":
        assert show_it([0, 0], bidirectional=[0, 1]) is None
        ((_, alt),) = shown
        assert "Bidirectional attention: 0, 1." in alt


# ---- the trained model of the cells that measure -----------------------------------------------


@pytest.fixture
def _fresh(monkeypatch):
    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)
    models._loaded.cache_clear()
    yield
    models._loaded.cache_clear()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("variable", ["NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"])
def test_no_model_is_loaded_while_grading_and_it_is_said(variable, monkeypatch, capsys):
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("inferlab.model.load_model", lambda name: pytest.fail("loaded"))
    assert models.trained_model() is None
    assert "measurements are skipped while grading" in capsys.readouterr().out


@pytest.mark.usefixtures("_fresh")
def test_a_model_not_fetched_is_said_with_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path))
    assert models.trained_model() is None
    out = capsys.readouterr().out
    assert "not measured here: needs the trained model" in out
    assert "inferlab fetch smollm2" in out
    assert "98 MB" in out


@pytest.mark.usefixtures("_fresh")
def test_a_model_fetched_later_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_CACHE", str(tmp_path))
    assert models.trained_model() is None
    monkeypatch.setattr("inferlab.model.load_model", lambda name: f"model {name}")
    assert models.trained_model() == "model smollm2"


@pytest.mark.usefixtures("_fresh")
def test_a_model_is_loaded_once(monkeypatch, capsys):
    loaded = []
    monkeypatch.setattr("inferlab.model.load_model", lambda name: loaded.append(name) or object())
    assert models.trained_model() is models.trained_model("smollm2")
    assert loaded == ["smollm2"]
    assert capsys.readouterr().out == ""


def test_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match=r"no model is called 'gpt'; known: smollm2"):
        models.trained_model("gpt")


@pytest.mark.model
@pytest.mark.usefixtures("_fresh")
def test_the_real_model_is_loaded(real_model_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_CACHE", str(real_model_path.parent))
    model = models.trained_model()
    assert isinstance(model, Model)
    assert model.config.n_layers == 30
