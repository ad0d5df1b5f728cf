"""The drawings of the lesson on the KV cache: what is shared, where it lies, when it is written.

As in look.py, name_figure(...) gives (figure, alt text) and name(...) shows it. A drawing is
placed by hand, in inches from the lower left corner. Sizes that do not fit raise ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from labkit.figures.look import (
    BLUE,
    EMPTY,
    HELD,
    NEW,
    Drawn,
    Look,
    listed,
    require_between,
    shown,
    token_count,
)
from labkit.figures.show import INK, say, sheet

NEXT: Look = {"facecolor": "#e3eefa", "edgecolor": BLUE, "linewidth": 1.2, "hatch": "///"}
FRAME: Look = {"facecolor": "white", "edgecolor": INK, "linewidth": 1.2}
LINE: Look = {"color": INK, "linewidth": 1.2, "linestyle": "-", "marker": ""}
ARROW: Look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
EDGE: Look = LINE | {"linewidth": 2.5, "solid_capstyle": "butt"}
START, CELL, DECODE = 1.4, 0.32, 0.7  # inches: first pass, prompt token, decode pass

RUNGS = {3.1: "goes in", 2.2: "comes out", 1.42: "tokens run", 1.08: "then cached"}


# ---- which query heads share a KV head ---------------------------------------------------------


def head_sharing_figure(n_heads: int = 8, n_kv_heads: int = 2) -> Drawn:
    """Which KV head each query head reads, and what of it is cached. n_heads: 1 to 12."""
    require_between("n_heads", n_heads, 1, 12)
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    shared = n_heads // n_kv_heads
    title = f"{_kind(n_heads, n_kv_heads)}: {_heads(n_heads, 'query')}, {_heads(n_kv_heads, 'KV')}"
    figure, plot = sheet(7.8, 4.3, title)
    say(plot, 0.15, 3.62, f"query head h reads KV head h // ({n_heads} // {n_kv_heads})")
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
        kept += f":\n1/{shared} of the 2 × {n_heads} × d_head that multi-head attention would keep"
    say(plot, 0.15, 0.42, f"{kept}.")
    return figure, _head_sharing_alt(n_heads, n_kv_heads)


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
        named = f"query head{'s' if shared > 1 else ''} {listed(readers)}"
        groups.append(f"{named} read{'s' if shared == 1 else ''} KV head {kv_head}")
    return (
        f"{_kind(n_heads, n_kv_heads)}: a row of {_heads(n_heads, 'query')}, used once, each with "
        f"a line to the KV head that it reads; {_heads(n_kv_heads, 'KV')} below, "
        f"kept in the cache as keys and values. Q{'; '.join(groups)[1:]}."
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
    top = 1.9 + 0.5 * len(lengths)  # of the boxes
    left, pitch = 0.95, min(0.52, 4.45 / capacity)
    edge = left + capacity * pitch
    figure, plot = sheet(
        7.8, top + 0.9, f"The slots of a KV cache: layer {layer} appends {token_count(n_new)} next"
    )
    say(plot, 0.15, top + 0.17, "slot", weight="bold")
    for slot in range(capacity):
        say(plot, left + pitch * (slot + 0.5), top + 0.17, str(slot), ha="center")
    for row, held in enumerate(lengths):
        y = top - 0.25 - 0.5 * row - (0.45 if row > layer else 0)
        written = range(start, end) if row == layer else range(0)
        _slots_row(plot, y, left, pitch, _slot_looks(held, written, capacity))
        say(plot, 0.15, y, f"layer {row}", weight="bold")
        plot.plot([edge + 0.02] * 2, [y - 0.25, y + 0.25], **EDGE)
        then = f", then {end}" if row == layer else ""
        say(plot, edge + 0.16, y, f"lengths[{row}] = {held}{then}")
        if row == layer:
            _pointer(plot, left + pitch * start, y, f"start = {start}", "right")
            _pointer(plot, left + pitch * end, y, f"end = {end}", "left")
    plot.plot([edge + 0.02] * 2, [top, top + 0.29], **EDGE)
    say(plot, edge + 0.16, top + 0.17, f"capacity = {capacity}", weight="bold")
    _slots_key(plot)
    return figure, _cache_slots_alt(lengths, capacity, layer, start, end)


def _slot_looks(held: int, written: range, capacity: int) -> list[Look]:
    return [HELD if s < held else NEXT if s in written else EMPTY for s in range(capacity)]


def _slots_row(plot: Axes, y: float, left: float, pitch: float, looks: Sequence[Look]) -> None:
    for slot, look in enumerate(looks):
        text = "new" if look is NEXT else str(slot) if look is HELD else ""
        _box(plot, left + pitch * (slot + 0.5), y, look, text, pitch - 0.05)


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
    say(plot, x + (0.08 if ha == "left" else -0.08), y - 0.49, text, ha=ha)


def _slots_key(plot: Axes) -> None:
    kinds = [
        ("in use (position inside)", HELD),
        ("written by the next append", NEXT),
        ("unused", EMPTY),
    ]
    handles = [Patch(label=name, **look) for name, look in kinds]
    look: Look = {"loc": "center left", "handleheight": 1.2, "columnspacing": 1.6, "borderpad": 0}
    look["borderaxespad"] = 0
    place: Look = {"bbox_to_anchor": (0.15, 1.05), "bbox_transform": plot.transData}
    plot.legend(handles=handles, ncols=3, **place, **look)
    shape = "keys, values: (n_layers, B, n_kv_heads, capacity, d_head)"
    box = "one box: the B × n_kv_heads × d_head numbers of one layer and slot, in each array"
    say(plot, 0.15, 0.43, f"{shape}\n{box}")


def _cache_slots_alt(
    lengths: Sequence[int], capacity: int, layer: int, start: int, end: int
) -> str:
    written = f"slot {start}" if end == start + 1 else f"slots {start} to {end - 1}"
    return (
        f"A row of {capacity} slots for each of {len(lengths)} layers, from layer 0 down; a line "
        f"behind the last slot marks the capacity. Layers hold {listed(lengths)} tokens, in the "
        f"first slots. Layer {layer} appends next: it writes {written} (start {start}, end {end}); "
        "the slots that remain are unused."
    )


# ---- the passes of a generation ----------------------------------------------------------------


def generation_timeline_figure(n_prompt: int = 5, n_new: int = 3) -> Drawn:
    """Which tokens each pass runs and what it gives. n_prompt: 1 to 7, n_new: 1 to 5."""
    require_between("n_prompt", n_prompt, 1, 7)
    require_between("n_new", n_new, 1, 5)
    passes = f"{n_new} pass{'es' if n_new > 1 else ''}"
    figure, plot = sheet(
        7.8, 4.75, f"Generating {token_count(n_new)} after a prompt of {n_prompt} takes {passes}"
    )
    total = f"n_prompt + n_new − 1 = {n_prompt} + {n_new} − 1 = {n_prompt + n_new - 1}"
    say(plot, 0.15, 4.12, f"tokens run: {total}, in n_new = {passes}")
    for y, name in RUNGS.items():
        say(plot, 0.15, y, name, weight="bold")
    widths = [max(DECODE, CELL * n_prompt + 0.1)] + [DECODE] * (n_new - 1)
    gap = min(0.5, (7.4 - START - sum(widths)) / n_new)
    left = START
    for number, width in enumerate(widths):
        _pass(plot, number, left, width, n_prompt)
        _given(plot, number + 1, left + width / 2, n_new)
        left += width + gap
        if number < n_new - 1:
            _feed(plot, left - gap - width / 2 + 0.3, left - gap / 2, left)
    say(plot, left - gap / 2, 1.42, f"= {n_prompt + n_new - 1}", ha="center", weight="bold")
    plot.annotate("", (max(left, START + 3.3), 0.65), (START, 0.65), arrowprops=ARROW)
    say(plot, START, 0.42, "time, from pass to pass (not to scale)")
    return figure, _timeline_alt(n_prompt, n_new)


def _pass(plot: Axes, number: int, left: float, width: float, n_prompt: int) -> None:
    """One pass: its name, its frame with what it runs, and its numbers."""
    x = left + width / 2
    say(plot, x, 3.72, f"pass {number + 1}", ha="center")
    say(plot, x, 3.5, "decode" if number else "prefill", ha="center", weight="bold")
    plot.add_patch(Rectangle((left, 2.84), width, 0.52, **FRAME))
    if number:
        _box(plot, x, 3.1, NEW, f"new {number}", 0.6)
    for token in range(0 if number else n_prompt):
        _box(plot, x + CELL * (token - (n_prompt - 1) / 2), 3.1, HELD, str(token), CELL - 0.04)
    say(plot, x, 1.42, str(1 if number else n_prompt), ha="center")
    say(plot, x, 1.08, str(n_prompt + number), ha="center")


def _given(plot: Axes, token: int, x: float, n_new: int) -> None:
    """What a pass gives: new token number `token`, under it."""
    plot.annotate("", (x, 2.41), (x, 2.84), arrowprops=ARROW)
    _box(plot, x, 2.2, NEW if token < n_new else EMPTY, f"new {token}", 0.6)
    if token == n_new:
        say(plot, x, 1.86, "never run", ha="center")


def _feed(plot: Axes, given: float, bend: float, taken: float) -> None:
    """The way of a new token into the next pass, and a plus between their numbers."""
    plot.plot([given, bend, bend], [2.2, 2.2, 3.1], **LINE, solid_joinstyle="round")
    plot.annotate("", (taken, 3.1), (bend, 3.1), arrowprops=ARROW)
    say(plot, bend, 1.42, "+", ha="center")


def _timeline_alt(n_prompt: int, n_new: int) -> str:
    decode = "".join(
        f" Pass {i + 1}, decode, runs new token {i} and gives new token {i + 1}; "
        f"{token_count(n_prompt + i)} cached."
        for i in range(1, n_new)
    )
    return (
        f"{token_count(n_new)} generated in passes along a time axis that is not to scale. Pass 1, "
        f"prefill, runs the whole prompt, {token_count(n_prompt)}, and gives new token 1; "
        f"{token_count(n_prompt)} cached.{decode} New token {n_new} is chosen but never run: "
        f"{n_prompt} + {n_new} - 1 = {token_count(n_prompt + n_new - 1)} run in all."
    )


# ---- shared ------------------------------------------------------------------------------------


def _box(plot: Axes, x: float, y: float, look: Look, text: str, width: float) -> None:
    """A box of 0.38 inch round (x, y)."""
    plot.add_patch(Rectangle((x - width / 2, y - 0.19), width, 0.38, **look))
    weight = "bold" if look is NEW else "normal"
    halo: Look = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 1}
    behind = {"bbox": halo} if "hatch" in look else {}
    plot.text(x, y, text, ha="center", va="center", fontsize=11, weight=weight, **behind)


def _row_name(plot: Axes, y: float, name: str, note: str) -> None:
    say(plot, 0.15, y, name, weight="bold")
    say(plot, 0.15, y - 0.22, note)


head_sharing = shown(head_sharing_figure)
cache_slots = shown(cache_slots_figure)
generation_timeline = shown(generation_timeline_figure)
