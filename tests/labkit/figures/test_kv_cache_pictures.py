"""The drawings of lesson 04 show what the real classes do, say it in words, and stay readable."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from drawn_models import tiny_model
from figure_words import require_apart, require_readable, words_of
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from inferlab.generate import generate_cached
from inferlab.kv_cache import KVCache
from inferlab.operators import attention
from labkit.figures import kv_cache_pictures as pictures

EXAMPLES = {
    "head_sharing": pictures.head_sharing_figure,
    "head_sharing, MHA": lambda: pictures.head_sharing_figure(12, 12),
    "head_sharing, MQA": lambda: pictures.head_sharing_figure(12, 1),
    "head_sharing, smallest": lambda: pictures.head_sharing_figure(1, 1),
    "cache_slots": lambda: pictures.cache_slots_figure([5, 5, 3], 8, n_new=2),
    "cache_slots, largest": lambda: pictures.cache_slots_figure([12] * 5 + [11], 12),
    "cache_slots, first layer": lambda: pictures.cache_slots_figure([0, 0], 2),
    "cache_slots, prefill": lambda: pictures.cache_slots_figure([12, 0, 0], 12, 12),
    "cache_slots, two digits": lambda: pictures.cache_slots_figure([10] * 6, 12),
    "timeline": pictures.generation_timeline_figure,
    "timeline, largest": lambda: pictures.generation_timeline_figure(7, 5),
    "timeline, smallest": lambda: pictures.generation_timeline_figure(1, 1),
    "timeline, decode only": lambda: pictures.generation_timeline_figure(1, 5),
}


words = words_of(EXAMPLES)


def test_type_is_readable_and_nothing_is_clipped(words):
    require_readable(words, inside_px=5)


def test_no_words_overlap(words):
    require_apart(words.texts)


def test_words_in_a_box_stay_in_it(words):
    figure, _, texts, _ = words
    boxes = [p.get_window_extent() for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    n_inside = 0
    for text, box in texts:
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        for around in (b for b in boxes if b.contains(x, y)):
            n_inside += 1
            assert around.x0 <= box.x0, text.get_text()
            assert box.x1 <= around.x1, text.get_text()
    assert n_inside > 0


def _texts(figure) -> list[Text]:
    return [text for text in figure.axes[0].texts if text.get_text()]


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


# ---- heads -------------------------------------------------------------------------------------


def _readers(n_heads, n_kv_heads):
    """KV head -> query heads whose output moves when its values move, in the real attention."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(1, n_heads, 1, 4))
    k, v = rng.normal(size=(2, 1, n_kv_heads, 3, 4))
    see_all = np.ones((1, 3), bool)
    before = attention(q, k, v, see_all)
    readers = {}
    for kv_head in range(n_kv_heads):
        moved = v.copy()
        moved[0, kv_head] += 1
        change = np.abs(attention(q, k, moved, see_all) - before).max(axis=(0, 2, 3))
        readers[kv_head] = np.flatnonzero(change > 0.5).tolist()
    return readers


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(8, 2), (9, 3), (4, 4), (6, 1), (12, 6)])
def test_the_lines_join_the_heads_that_attention_joins(n_heads, n_kv_heads):
    figure, alt = pictures.head_sharing_figure(n_heads, n_kv_heads)
    heads = {(t.get_text()[0], f"{t.get_position()[0] + 1e-9:.2f}"): t for t in _texts(figure)}
    drawn = {kv_head: [] for kv_head in range(n_kv_heads)}
    for line in figure.axes[0].lines:
        query, kept = (f"{x + 1e-9:.2f}" for x in line.get_xdata())
        (kv_head,) = _numbers(heads["K", kept].get_text())
        assert heads["V", kept].get_text() == f"V{kv_head}"
        drawn[kv_head] += _numbers(heads["Q", query].get_text())
    assert drawn == _readers(n_heads, n_kv_heads)
    for kv_head, readers in drawn.items():
        named = ", ".join(map(str, readers))
        assert re.search(rf"uery heads? {named} reads? KV head {kv_head}[;.]", alt)


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "kind"),
    [(8, 8, "Multi-head"), (8, 2, "Grouped-query"), (8, 1, "Multi-query"), (1, 1, "Multi-head")],
)
def test_the_kind_of_attention_and_its_cost_are_said(n_heads, n_kv_heads, kind):
    figure, alt = pictures.head_sharing_figure(n_heads, n_kv_heads)
    said = " ".join(text.get_text() for text in _texts(figure))
    cache = KVCache(1, n_kv_heads, 16)
    cache.append(0, np.zeros((1, n_kv_heads, 1, 16)), np.zeros((1, n_kv_heads, 1, 16)))
    numbers = cache.n_bytes // cache.keys.itemsize
    assert f"2 × {numbers // 2 // 16} × d_head numbers" in said
    assert f"{kind} attention" in said
    assert alt.startswith(f"{kind} attention")
    assert ("multi-head attention would keep" in said) == (n_heads > n_kv_heads)
    for word in ("used once", "kept in the cache"):
        assert word in said


# ---- slots -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_before", "n_new", "n_done", "n_layers", "capacity"),
    [(3, 2, 2, 3, 8), (0, 5, 0, 2, 8), (6, 1, 2, 4, 12), (11, 1, 5, 6, 12), (0, 2, 1, 2, 2)],
)
def test_the_slots_are_those_that_a_real_cache_fills(n_before, n_new, n_done, n_layers, capacity):
    cache = KVCache(n_layers, 1, 1, capacity=capacity)

    def append(layer, positions):
        rows = np.array(positions, float).reshape(1, 1, -1, 1) + 1  # an unused slot holds 0
        return cache.append(layer, rows, rows)

    for layer in range(n_layers):
        append(layer, range(n_before))
    for layer in range(n_done):
        append(layer, range(n_before, n_before + n_new))
    lengths = list(cache.lengths)
    figure, alt = pictures.cache_slots_figure(lengths, capacity, n_new)

    before = cache.keys[:, 0, 0, :, 0].astype(int) - 1
    append(n_done, range(n_before, n_before + n_new))
    after = cache.keys[:, 0, 0, :, 0].astype(int) - 1
    assert cache.capacity == capacity
    expected = [
        [str(b) if b >= 0 else "new" if a >= 0 else "" for b, a in zip(*rows, strict=True)]
        for rows in zip(before, after, strict=True)
    ]
    assert _slots(figure, capacity) == expected
    said = [text.get_text() for text in _texts(figure)]
    start, end = n_before, cache.lengths[n_done]
    for word in (f"start = {start}", f"end = {end}", f"capacity = {capacity}"):
        assert word in said
    assert f"lengths[{n_done}] = {start}, then {end}" in said
    assert f"Layers hold {', '.join(map(str, lengths))} tokens" in alt
    assert f"Layer {n_done} appends next" in alt


def _slots(figure, capacity) -> list[list[str]]:
    """What is written in each box, row by row; the look of each box must say the same."""
    texts = {tuple(np.round(t.get_position(), 3)): t.get_text() for t in _texts(figure)}
    boxes = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    found = []
    for box in sorted(boxes, key=lambda b: (-round(b.get_y(), 3), b.get_x())):
        found.append(texts.get(tuple(np.round(box.get_center(), 3)), ""))
        assert (box.get_hatch() is not None) == (found[-1] == "new")
        assert (box.get_linestyle() == ":") == (found[-1] == "")
    return [found[i : i + capacity] for i in range(0, len(found), capacity)]


def test_the_arrows_point_at_the_edges_of_the_new_slots():
    figure, _ = EXAMPLES["cache_slots"]()
    new = [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_hatch()]
    left, right = min(p.get_x() for p in new), max(p.get_x() + p.get_width() for p in new)
    arrows = sorted(t.xy[0] for t in figure.axes[0].texts if getattr(t, "arrow_patch", None))
    assert arrows == pytest.approx([left, right], abs=0.05)


def test_the_capacity_edge_lies_behind_the_last_slot():
    figure, _ = EXAMPLES["cache_slots"]()
    plot = figure.axes[0]
    last = max(p.get_x() + p.get_width() for p in plot.patches if isinstance(p, Rectangle))
    assert plot.lines
    for line in plot.lines:
        (x,) = set(line.get_xdata())
        assert last < x < last + 0.06


# ---- passes ------------------------------------------------------------------------------------


class _Recorder:
    """A real model that writes down what each pass runs, gives, and leaves in the cache."""

    def __init__(self):
        self.model, self.passes = tiny_model(), []

    def new_cache(self):
        return self.model.new_cache()

    def next_logits(self, tokens, cache):
        logits = self.model.next_logits(tokens, cache)
        self.passes.append((list(tokens), int(np.argmax(logits)), cache.n_tokens))
        return logits


@pytest.mark.parametrize(("n_prompt", "n_new"), [(5, 3), (1, 1), (7, 5), (4, 2), (1, 4)])
def test_the_timeline_shows_the_passes_of_the_real_generator(n_prompt, n_new):
    recorder = _Recorder()
    prompt = list(range(10, 10 + n_prompt))
    given = generate_cached(recorder, prompt, n_new)
    figure, alt = pictures.generation_timeline_figure(n_prompt, n_new)
    rows = _rows(figure)

    n_run = [len(tokens) for tokens, _, _ in recorder.passes]
    shown = re.sub(r"\s", "", "".join(rows["tokens run"]))
    assert shown == "+".join(map(str, n_run)) + f"={sum(n_run)}"
    assert [int(n) for n in rows["then cached"]] == [n for _, _, n in recorder.passes]
    assert rows["comes out"] == [f"new {i + 1}" for i in range(len(given))]
    assert rows["goes in"][:n_prompt] == [str(i) for i in range(n_prompt)]
    fed = rows["goes in"][n_prompt:]
    for word, (tokens, _, _) in zip(fed, recorder.passes[1:], strict=True):
        assert [given[_numbers(word)[0] - 1]] == tokens
    total = f"{n_prompt} + {n_new} − 1 = {sum(n_run)}"
    assert total in next(t.get_text() for t in _texts(figure) if "tokens run:" in t.get_text())
    assert total in alt.replace(" - ", " − ")
    assert len([t for t in _texts(figure) if t.get_text().startswith("pass ")]) == len(n_run)


def _rows(figure) -> dict[str, list[str]]:
    """Name at the left -> what is written beside it, from left to right."""
    texts = sorted(_texts(figure), key=lambda t: t.get_position()[0])
    names = [t for t in texts if t.get_weight() == "bold" and t.get_position()[0] < 0.5]
    return {
        name.get_text(): [
            t.get_text() for t in texts if t.get_position()[1] == name.get_position()[1]
        ][1:]
        for name in names
    }


def test_the_last_token_is_marked_as_never_run():
    figure, alt = pictures.generation_timeline_figure(5, 3)
    (never,) = [t for t in _texts(figure) if t.get_text() == "never run"]
    above = [t for t in _texts(figure) if t.get_position() == (never.get_position()[0], 2.2)]
    assert [t.get_text() for t in above] == ["new 3"]
    dotted = [p for p in figure.axes[0].patches if p.get_linestyle() == ":"]
    assert [p.get_center()[0] for p in dotted] == pytest.approx([never.get_position()[0]])
    assert "New token 3 is chosen but never run" in alt


def test_the_time_axis_says_that_it_has_no_scale():
    figure, alt = pictures.generation_timeline_figure()
    assert any("not to scale" in t.get_text() for t in _texts(figure))
    assert "not to scale" in alt


# ---- what all share ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: pictures.head_sharing_figure(13, 1), "n_heads=13 must be from 1 to 12"),
        (
            lambda: pictures.head_sharing_figure(8, 3),
            "n_heads=8 must be a multiple of n_kv_heads=3",
        ),
        (lambda: pictures.head_sharing_figure(8, 0), "n_kv_heads=0"),
        (lambda: pictures.cache_slots_figure([], 8), "number of layers=0"),
        (lambda: pictures.cache_slots_figure([1], 13), "capacity=13 must be from 2 to 12"),
        (lambda: pictures.cache_slots_figure([5, 5, 3], 8, 1), "appends n_new=1 tokens"),
        (lambda: pictures.cache_slots_figure([3, 5], 8, 2), r"lengths=\[3, 5\] is no pass"),
        (
            lambda: pictures.cache_slots_figure([5, 4, 5, 4], 8),
            r"lengths=\[5, 4, 5, 4\] is no pass",
        ),
        (lambda: pictures.cache_slots_figure([3], 8, 0), "n_new=0"),
        (lambda: pictures.cache_slots_figure([-1], 8), r"lengths=\[-1\]"),
        (lambda: pictures.cache_slots_figure([7], 8, 2), "needs 9 slots, more than capacity=8"),
        (lambda: pictures.generation_timeline_figure(8, 1), "n_prompt=8 must be from 1 to 7"),
        (lambda: pictures.generation_timeline_figure(1, 0), "n_new=0 must be from 1 to 5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("head_sharing", (4, 2)), ("cache_slots", ([1, 0], 4)), ("generation_timeline", (2, 2))],
)
def test_each_figure_has_a_function_that_shows_it(name, arguments, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.figures.look.show", lambda fig, alt: shown.append(alt))
    show_it, make = getattr(pictures, name), getattr(pictures, f"{name}_figure")
    assert (show_it.__name__, show_it.__doc__) == (name, make.__doc__)
    assert inspect.signature(show_it).parameters == inspect.signature(make).parameters
    assert show_it(*arguments) is None
    assert shown == [make(*arguments)[1]]
