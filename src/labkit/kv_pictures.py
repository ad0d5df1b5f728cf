"""The drawings of the lesson on the KV cache: what is shared, where it lies, when it is written.

As in kv_figures, name_figure(...) gives (figure, alt text) and name(...) shows it. A drawing is
placed by hand, in inches from the lower left corner. Sizes that do not fit raise ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from labkit.figures import INK, apply_style
from labkit.kv_figures import BLUE, EMPTY, GREY, HELD, NEW, Drawn, Look
from labkit.kv_figures import _require_between as require_between
from labkit.kv_figures import _series as series
from labkit.kv_figures import _shown as shown
from labkit.kv_figures import _tokens as tokens

NEXT: Look = {"facecolor": "#e3eefa", "edgecolor": BLUE, "linewidth": 1.2, "hatch": "///"}
LINE: Look = {"color": INK, "linewidth": 1.2, "linestyle": "-", "marker": ""}
ARROW: Look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}


# ---- which query heads share a KV head ---------------------------------------------------------


def head_sharing_figure(n_heads: int = 8, n_kv_heads: int = 2) -> Drawn:
    """Which KV head each query head reads, and what of it is cached. n_heads: 1 to 12."""
    require_between("n_heads", n_heads, 1, 12)
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    shared = n_heads // n_kv_heads
    title = f"{_kind(n_heads, n_kv_heads)}: {_heads(n_heads, 'query')}, {_heads(n_kv_heads, 'KV')}"
    plot = _sheet(7.8, 4.3, title)
    _say(plot, 0.15, 3.62, f"query head h reads KV head h // ({n_heads} // {n_kv_heads})")
    left, pitch = 1.75, min(0.72, 5.9 / n_heads)
    places = [left + pitch * (h + 0.5) for h in range(n_heads)]
    for kv_head in range(n_kv_heads):
        _shared_head(plot, kv_head, places[kv_head * shared :][:shared], pitch)
    for head, x in enumerate(places):
        _box(plot, x, 2.97, EMPTY, f"Q{head}", 0.86 * pitch)
    _row_name(plot, 3.07, "query heads", "used once")
    _row_name(plot, 1.4, "KV heads", "kept in the cache")
    kept = f"One token keeps 2 × {n_kv_heads} × d_head numbers in each layer (2: K and V)"
    if shared > 1:
        kept += f",\n1/{shared} of the 2 × {n_heads} × d_head of a KV head for each query head"
    _say(plot, 0.15, 0.4, f"{kept}.")
    return plot.figure, _head_sharing_alt(n_heads, n_kv_heads)


def _shared_head(plot: Axes, kv_head: int, readers: Sequence[float], pitch: float) -> None:
    """The K and V boxes of one KV head, under the query heads that read it."""
    middle = sum(readers) / len(readers)
    for x in readers:
        plot.plot([x, middle], [2.77, 1.73], **LINE)
    _box(plot, middle, 1.53, NEW, f"K{kv_head}", 0.86 * pitch)
    _box(plot, middle, 1.13, NEW, f"V{kv_head}", 0.86 * pitch)


def _kind(n_heads: int, n_kv_heads: int) -> str:
    if n_kv_heads == n_heads:
        return "Multi-head attention"
    return "Multi-query attention" if n_kv_heads == 1 else "Grouped-query attention"


def _heads(n: int, kind: str) -> str:
    return f"{n} {kind} head{'s' if n != 1 else ''}"


def _head_sharing_alt(n_heads: int, n_kv_heads: int) -> str:
    shared = n_heads // n_kv_heads
    groups = []
    for kv_head in range(n_kv_heads):
        readers = range(kv_head * shared, (kv_head + 1) * shared)
        named = f"query head{'s' if shared > 1 else ''} {series(readers)}"
        groups.append(f"{named} read{'s' if shared == 1 else ''} KV head {kv_head}")
    return (
        f"{_kind(n_heads, n_kv_heads)}: a row of {_heads(n_heads, 'query')}, used once, each with "
        f"a line to one of {_heads(n_kv_heads, 'KV')} below, kept in the cache as a key and a "
        f"value. {'; '.join(groups).capitalize().replace('kv', 'KV')}."
    )


# ---- the slots of a cache ----------------------------------------------------------------------


def cache_slots_figure(lengths: Sequence[int], capacity: int, n_new: int = 1) -> Drawn:
    """The slots of each layer in the middle of a forward pass that appends n_new tokens.

    lengths: tokens that each layer holds (1 to 6 layers): layers that have appended already hold
    n_new more than the others. The first of the others appends next. capacity: 2 to 12.
    """
    require_between("the number of layers", len(lengths), 1, 6)
    require_between("capacity", capacity, 2, 12)
    layer, start, end = _next_append(lengths, capacity, n_new)
    top = 1.75 + 0.5 * len(lengths) + 0.5  # of the first row's box
    plot = _sheet(7.8, top + 1.15, "The slots of a KV cache in the middle of a forward pass")
    _say(plot, 0.15, top + 0.62, "slot (number)", weight="bold")
    left, pitch = 1.1, min(0.52, 4.7 / capacity)
    edge = left + capacity * pitch
    for slot in range(capacity):
        _say(plot, left + pitch * (slot + 0.5), top + 0.17, str(slot), ha="center")
    for row, held in enumerate(lengths):
        y = top - 0.25 - 0.5 * row - (0.5 if row > layer else 0)
        looks = [NEXT if start <= s < end and row == layer else EMPTY for s in range(capacity)]
        looks[:held] = [HELD] * held
        for slot, look in enumerate(looks):
            text = "new" if look is NEXT else str(slot) if look is HELD else ""
            _box(plot, left + pitch * (slot + 0.5), y, look, text, pitch - 0.06)
        _say(plot, 0.15, y, f"layer {row}", weight="bold")
        then = f", then {end}" if row == layer else ""
        _say(plot, edge + 0.25, y, f"lengths[{row}] = {held}{then}")
        if row == layer:
            _pointer(plot, left + pitch * start, y, f"start = {start}", "right")
            _pointer(plot, left + pitch * end, y, f"end = {end}", "left")
    plot.plot([edge, edge], [1.3, top + 0.72], **(LINE | {"linewidth": 2.5}))
    _say(plot, edge + 0.12, top + 0.62, f"capacity = {capacity}", weight="bold")
    _slots_key(plot)
    return plot.figure, _cache_slots_alt(lengths, capacity, layer, start, end)


def _next_append(lengths: Sequence[int], capacity: int, n_new: int) -> tuple[int, int, int]:
    """The layer that appends next, the slot where it starts, and the slot behind its last one."""
    start = lengths[-1]
    end = start + n_new
    layer = sum(held != start for held in lengths)
    if n_new < 1 or start < 0 or list(lengths) != [end] * layer + [start] * (len(lengths) - layer):
        raise ValueError(
            f"lengths={list(lengths)} is no pass that appends n_new={n_new} tokens layer by layer: "
            "the first layers must hold n_new (at least 1) more than the others"
        )
    if end > capacity:
        raise ValueError(f"layer {layer} needs {end} slots, more than capacity={capacity}")
    return layer, start, end


def _pointer(plot: Axes, x: float, y: float, text: str, ha: str) -> None:
    """An arrow from below to the edge of a slot."""
    plot.annotate("", (x, y - 0.22), (x, y - 0.58), arrowprops=ARROW)
    _say(plot, x + (0.08 if ha == "left" else -0.08), y - 0.49, text, ha=ha)


def _slots_key(plot: Axes) -> None:
    kinds = [("in use (position inside)", HELD), ("next append", NEXT), ("unused", EMPTY)]
    handles = [Patch(label=name, **look) for name, look in kinds]
    look: Look = {"loc": "center left", "handleheight": 1.2, "columnspacing": 1.6, "borderpad": 0}
    width, height = plot.figure.get_size_inches()
    plot.legend(handles=handles, ncols=3, bbox_to_anchor=(0.15 / width, 1.02 / height), **look)
    shape = "keys, values: (n_layers, B, n_kv_heads, capacity, d_head)"
    box = "one box: the B × n_kv_heads × d_head numbers of one layer and slot, in each array"
    _say(plot, 0.15, 0.43, f"{shape}\n{box}")


def _cache_slots_alt(
    lengths: Sequence[int], capacity: int, layer: int, start: int, end: int
) -> str:
    written = f"slot {start}" if end == start + 1 else f"slots {start} to {end - 1}"
    return (
        f"A row of {capacity} slots for each of {len(lengths)} layers, from layer 0 down; a line "
        f"behind the last slot marks the capacity. Layers hold {series(lengths)} tokens, in the "
        f"first slots. Layer {layer} appends next: it writes {written} (start {start}, end {end}); "
        "all other slots are unused."
    )


# ---- the passes of a generation ----------------------------------------------------------------


def generation_timeline_figure(n_prompt: int = 5, n_new: int = 3) -> Drawn:
    """Which tokens each pass runs and what it gives. n_prompt: 1 to 8, n_new: 1 to 6."""
    require_between("n_prompt", n_prompt, 1, 8)
    require_between("n_new", n_new, 1, 6)
    total = n_prompt + n_new - 1
    passes = "1 pass" if n_new == 1 else f"{n_new} passes"
    plot = _sheet(7.8, 4.65, f"{tokens(total)} run in {passes}, {tokens(n_new)} generated")
    left, cell, gap = 1.5, 0.34, 0.14
    widths = [max(0.66, cell * n_prompt + 0.1)] + [0.66] * (n_new - 1)
    for number, width in enumerate(widths):
        middle = left + width / 2
        _pass(plot, number, middle, width)
        for token in range(n_prompt if number == 0 else 0):
            place = middle + cell * (token - (n_prompt - 1) / 2)
            _box(plot, place, 3.1, HELD, str(token), cell - 0.04)
        if number:
            _box(plot, middle, 3.1, NEW, f"new {number}", 0.56)
        last = number == n_new - 1
        _box(plot, middle, 2.2, EMPTY if last else NEW, f"new {number + 1}", 0.56)
        if last:
            _say(plot, middle, 1.81, "never run", ha="center")
        else:
            bend = ARROW | {"connectionstyle": "angle,angleA=0,angleB=90,rad=5"}
            ahead = left + width + gap + 0.33
            plot.annotate("", (ahead, 2.88), (middle + 0.28, 2.2), arrowprops=bend)
        _say(plot, middle, 1.4, str(n_prompt if number == 0 else 1), ha="center")
        _say(plot, middle, 1.06, str(n_prompt + number), ha="center")
        left += width + gap
    return plot.figure, ""
