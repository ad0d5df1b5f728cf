"""The figures of the lesson on the KV cache.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. What a colour
says is said by a hatch, a marker or a word too; the numbers of the alt text come from the data.
Series of unequal length, empty ones and numbers that cannot be drawn raise ValueError.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from labkit.figures.look import (
    BELOW,
    BLUE,
    BOUND,
    EMPTY,
    HELD,
    KEPT,
    NEW,
    RED,
    ROOMY,
    Drawn,
    Look,
    Numbers,
    listed,
    require_between,
    shown,
    token_count,
)
from labkit.figures.show import (
    INK,
    ORANGE,
    apply_style,
    axes,
    plain_number,
)
from labkit.units import format_seconds

WITHOUT: Look = {"color": RED, "marker": "s", "linestyle": "-"}
WITH: Look = {"color": BLUE, "marker": "o", "linestyle": "-"}


# ---- the work of every step --------------------------------------------------------------------


def work_triangle_figure(n_tokens: int = 8) -> Drawn:
    """What each decode step projects, without and with a cache. n_tokens: 2 to 12."""
    require_between("n_tokens", n_tokens, 2, 12)
    n = n_tokens
    apply_style()
    figure, panels = plt.subplots(1, 2, figsize=(8, 5.15), layout=ConstrainedLayoutEngine(**ROOMY))
    figure.suptitle("Which keys and values does each step compute?", x=0.01, ha="left", fontsize=15)
    _work_panel(panels[0], n, "without a cache", False, f"{n} × {n + 1} = {n * (n + 1)} rows")
    _work_panel(panels[1], n, "with a cache", True, f"2 × {n} = {2 * n} rows")
    new, kept = "key and value computed in this step (2 rows)", "remembered"
    figure.legend(handles=[Patch(label=new, **NEW), Patch(label=kept, **KEPT)], ncols=2, **BELOW)
    counts = listed([2 * (t + 1) for t in range(n)])
    return figure, (
        f"Two grids, one row for each of {n} decode steps, one column for each token. Without a "
        "cache, step t computes the keys and values of tokens 0 to t again, a filled triangle: "
        f"{counts} rows, {n * (n + 1)} in all. With a cache, each step computes those of its "
        "newest token only, a filled diagonal, and remembers the rest: 2 rows a step, "
        f"{2 * n} in all."
    )


def _work_panel(plot: Axes, n: int, title: str, cached: bool, total: str) -> None:
    _grid(plot, n, n, "token (position)", "decode step (number)")
    plot.set_title(title, pad=8, weight="bold", fontsize=13)
    inch = n / 2.9  # in cells
    right, bottom = n - 0.5 + 0.45 * inch, n - 0.5
    for step in range(n):
        for token in range(step + 1):
            _cell(plot, step, token, KEPT if cached and token < step else NEW)
        rows = 2 if cached else 2 * (step + 1)
        plot.text(right, step, str(rows), ha="right", va="center", fontsize=12)
    _head(plot, right, "rows", ha="right")
    rule = bottom + 0.05 * inch
    plot.plot([-0.45, right], [rule, rule], color=INK, linewidth=1.2, linestyle="-", marker="")
    plot.text(
        right, bottom + 0.24 * inch, total, ha="right", va="center", weight="bold", fontsize=13
    )
    plot.set_xlim(-0.5, right + 0.03 * inch)
    plot.set_ylim(bottom + 0.38 * inch, -0.5)


# ---- time of a step ----------------------------------------------------------------------------


def step_times_figure(
    lengths: Sequence[int],
    without_s: Numbers,
    with_s: Numbers,
    bound_without_s: Numbers,
    bound_with_s: Numbers,
    device: str,
) -> Drawn:
    """Measured seconds of one step against the tokens so far, over their lower bounds.

    lengths: tokens so far, ascending; the others: seconds, one for each length.
    """
    series = {"without_s": without_s, "with_s": with_s}
    series |= {"bound_without_s": bound_without_s, "bound_with_s": bound_with_s}
    _require_numbers({"lengths": lengths, **series})
    title = "Time of one decode step"
    figure, plot = axes(title, "tokens so far (tokens)", "time of one step (ms)", size=(7.6, 5.2))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(_wrapped(device), fontsize=11, pad=8)
    curves = [
        ("without a cache", WITHOUT, without_s, bound_without_s),
        ("with a cache", WITH, with_s, bound_with_s),
    ]
    for label, look, seconds, lower in curves:
        plot.plot(lengths, _ms(seconds), label=f"{label}, measured", **look)
        plot.plot(lengths, _ms(lower), label=f"{label}, lower bound", **(look | BOUND))
    _log_scales(plot, lengths, _ms([s for values in series.values() for s in values]))
    figure.legend(ncols=2, handlelength=3, **BELOW)
    said = [_curve(label, lengths, seconds, lower) for label, _, seconds, lower in curves]
    return figure, (
        f"Measured time of one decode step on {device}, on logarithmic axes, lower bounds as "
        f"dashed lines. {' '.join(said)} At {token_count(lengths[-1])} a step without a cache "
        f"takes {without_s[-1] / with_s[-1]:,.1f} times as long as one with it."
    )


def _curve(label: str, lengths: Sequence[int], seconds: Numbers, lower: Numbers) -> str:
    return (
        f"{label.capitalize()}: {format_seconds(seconds[0])} at {token_count(lengths[0])}, "
        f"{format_seconds(seconds[-1])} at {token_count(lengths[-1])} "
        f"(lower bound there {format_seconds(lower[-1])})."
    )


def _ms(seconds: Numbers) -> list[float]:
    return [1e3 * s for s in seconds]


def _wrapped(device: str) -> str:
    """In lines short enough for the figure, broken after commas."""
    whole = ", ".join(part.replace(" ", "\u00a0") for part in device.split(", "))
    return textwrap.fill(whole, 84).replace("\u00a0", " ")


def _log_scales(plot: Axes, lengths: Sequence[int], milliseconds: Numbers) -> None:
    """Ticks at the measured lengths (at most eight), plain numbers for the milliseconds."""
    plot.set_xscale("log")
    plot.set_yscale("log")
    shown = list(lengths)[::-1][:: math.ceil(len(lengths) / 8)]
    plot.set_xticks(shown, [f"{n:,}" for n in shown])
    plot.xaxis.set_minor_locator(NullLocator())
    decades = math.log10(max(milliseconds) / min(milliseconds))
    plot.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=20))
    plot.yaxis.set_major_formatter(FuncFormatter(plain_number))
    plot.yaxis.set_minor_formatter(NullFormatter())


# ---- bytes of a growing cache ------------------------------------------------------------------


def bytes_grown_figure(
    n_tokens: Sequence[int],
    measured_bytes: Numbers,
    predicted_bytes: Numbers,
    capacity_bytes: Numbers,
) -> Drawn:
    """Bytes that the cache holds as it grows: measured, predicted, and room allocated."""
    series = {"measured_bytes": measured_bytes, "predicted_bytes": predicted_bytes}
    series |= {"capacity_bytes": capacity_bytes}
    _require_numbers({"n_tokens": n_tokens, **series}, or_zero=True)
    size, unit = _binary(max(max(values) for values in series.values()))
    measured, predicted, room = ([b / size for b in values] for values in series.values())
    title, y = "The cache grows in a line, its memory in doublings", f"keys and values ({unit})"
    figure, plot = axes(title, "length of the cache (tokens)", y, size=(7.6, 4.8))
    every = math.ceil(len(n_tokens) / 24)
    dots: Look = {"color": BLUE, "linestyle": "", "marker": "o", "markersize": 7, "zorder": 4}
    plot.plot(n_tokens, measured, markevery=every, clip_on=False, label="measured", **dots)
    plot.plot(n_tokens, predicted, color=RED, linestyle="--", marker="", label="predicted")
    # A step goes up before its sample, so the line of what is held never crosses the room for it.
    plot.step(n_tokens, room, where="pre", color=INK, linestyle="-", marker="", label="allocated")
    unused: Look = {"facecolor": "white", "edgecolor": "#b5bac2", "hatch": "///", "linewidth": 0}
    unused["label"] = "allocated, not used yet"
    plot.fill_between(n_tokens, measured, room, step="pre", **unused)
    plot.set_xlim(0, 1.04 * max(*n_tokens, 1))
    plot.set_ylim(0, 1.08 * (max(*measured, *predicted, *room) or 1))
    figure.legend(ncols=4, **BELOW)
    return figure, _bytes_grown_alt(n_tokens, measured, predicted, room, unit)


def _bytes_grown_alt(
    n_tokens: Sequence[int], measured: Numbers, predicted: Numbers, room: Numbers, unit: str
) -> str:
    apart = max(abs(m - p) for m, p in zip(measured, predicted, strict=True))
    agrees = "exactly as predicted" if apart == 0 else f"at most {apart:.3g} {unit} off prediction"
    levels = list(dict.fromkeys(f"{r:,.3g}" for r in room))
    return (
        "Bytes of keys and values against tokens in the cache. "
        f"Measured: {measured[0]:,.3g} {unit} at {token_count(n_tokens[0])}, "
        f"{measured[-1]:,.3g} {unit} at {token_count(n_tokens[-1])}, {agrees}. "
        f"The memory allocated is a staircase: {listed(levels)} {unit}."
    )


def _binary(n_bytes: float) -> tuple[float, str]:
    """The largest binary unit that n_bytes reaches: its size in bytes, its name."""
    power = min(3, int(math.log2(n_bytes) // 10)) if n_bytes >= 1 else 0
    return 1024.0**power, ("B", "KiB", "MiB", "GiB")[power]


# ---- do past keys move? ------------------------------------------------------------------------


def drift_bars_figure(causal: Numbers, bidirectional: Numbers) -> Drawn:
    """Largest change of a past key when one token is added, layer by layer (at most 12)."""
    _require_numbers({"causal": causal, "bidirectional": bidirectional}, or_zero=True)
    require_between("the number of layers", len(causal), 1, 12)
    title = "One token is added: how far do the past keys move?"
    y = "largest change of a past key (absolute)"
    figure, plot = axes(title, "layer (number)", y, size=(7.6, 4.6))
    both: Look = {"facecolor": ORANGE, "edgecolor": INK, "linewidth": 1, "hatch": "///"}
    _drift_series(plot, causal, -0.2, NEW, "causal: a token sees only the past")
    _drift_series(plot, bidirectional, 0.2, both, "bidirectional: every token sees all")
    room = 1.3 if len(causal) > 6 else 1.15  # for the labels, which then stand upright
    plot.set_ylim(0, room * max(*causal, *bidirectional) or 1)
    plot.set_xlim(-0.6, len(causal) - 0.4)
    plot.set_xticks(range(len(causal)))
    plot.yaxis.set_major_formatter(FuncFormatter(plain_number))
    plot.grid(False, axis="x")
    figure.legend(ncols=2, **BELOW)
    return figure, (
        "Bars: the largest change of a past key when one token is added, layer by layer from 0. "
        f"Causal attention: {listed([_short(v) for v in causal])}. Bidirectional attention: "
        f"{listed([_short(v) for v in bidirectional])}."
    )


def _drift_series(plot: Axes, values: Numbers, shift: float, look: Look, label: str) -> None:
    places = [layer + shift for layer in range(len(values))]
    bars = plot.bar(places, values, width=0.38, label=label, **look)
    labels, turn = [_short(v) for v in values], 90 if len(values) > 6 else 0
    plot.bar_label(bars, labels, padding=3, fontsize=12, rotation=turn)


def _short(value: float) -> str:
    """Two significant digits; 0 is written 0."""
    return f"{value:.2g}" if value else "0"


# ---- the ring of a sliding window --------------------------------------------------------------


def ring_slots_figure(window: int, n_tokens: int) -> Drawn:
    """What each slot of the ring holds, token by token. window: 2 to 8, n_tokens: 3 to 16."""
    require_between("window", window, 2, 8)
    require_between("n_tokens", n_tokens, 3, 16)
    apply_style()
    last = window + max(4.4, 0.19 * len(listed(_held(n_tokens - 1, window))) + 0.6)
    size = (0.8 + 0.41 * (last + 3.4), 1.75 + 0.42 * n_tokens)  # 0.41 inch a cell
    figure, plot = plt.subplots(figsize=size, layout=ConstrainedLayoutEngine(**ROOMY))
    title = f"A ring of {window} slots: token p goes to slot p mod {window}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    _grid(plot, n_tokens, window, "slot (number)", "after token (position)")
    for newest in range(n_tokens):
        _ring_row(plot, newest, window, last)
    _head(plot, window, "oldest to newest")
    _head(plot, last, "overwritten")
    plot.set_xlim(-0.5, last + 2.9)
    plot.set_ylim(n_tokens - 0.5, -0.5)
    kinds = [("newest token", NEW), ("held", HELD), ("empty", EMPTY)]
    figure.legend(handles=[Patch(label=name, **look) for name, look in kinds], ncols=3, **BELOW)
    return figure, _ring_alt(window, n_tokens)


def _ring_row(plot: Axes, newest: int, window: int, last: float) -> None:
    held = _held(newest, window)
    for token in held:
        _cell(plot, newest, token % window, NEW if token == newest else HELD, str(token))
    for slot in range(len(held), window):
        _cell(plot, newest, slot, EMPTY)
    plot.text(window, newest, listed(held), va="center", fontsize=12)
    gone = newest - window if newest >= window else "–"
    plot.text(last, newest, str(gone), va="center", fontsize=12)


def _held(newest: int, window: int) -> list[int]:
    """Tokens in the ring, oldest first."""
    return list(range(max(0, newest - window + 1), newest + 1))


def _ring_alt(window: int, n_tokens: int) -> str:
    newest = n_tokens - 1
    held = _held(newest, window)
    by_slot = sorted(held, key=lambda token: token % window)
    first = f"Token {window} is the first to overwrite one: token 0, in slot 0. "
    return (
        f"A grid, one row after each new token, one column for each of {window} slots; token p "
        f"lies in slot p mod {window}. {first if newest >= window else ''}After token {newest} the "
        f"slots from 0 on hold tokens {listed(by_slot)}; "
        f"the newest is in slot {newest % window}; oldest to newest: {listed(held)}."
    )


# ---- models compared ---------------------------------------------------------------------------


def model_bars_figure(names: Sequence[str], bytes_per_token: Numbers) -> Drawn:
    """Bytes of keys and values that one token takes, model by model, in the order given."""
    _require_numbers({"bytes_per_token": bytes_per_token})
    if len(names) != len(bytes_per_token) or len(set(names)) != len(names):
        raise ValueError(
            f"each of {len(bytes_per_token)} models needs a name of its own: {list(names)}"
        )
    kib = [b / 1024 for b in bytes_per_token]
    title, x = "What one token costs in the KV cache", "keys and values of one token (KiB)"
    figure, plot = axes(title, x, "model (name)", size=(7.6, 1.7 + 0.5 * len(names)))
    bars = plot.barh(names, kib, height=0.62, **NEW)
    plot.bar_label(bars, [_kib(value) for value in kib], padding=5, fontsize=12)
    plot.set_xlim(0, 1.22 * max(kib))
    plot.xaxis.set_major_locator(MaxNLocator(6))
    plot.xaxis.set_major_formatter(FuncFormatter(plain_number))
    plot.invert_yaxis()
    plot.grid(False, axis="y")
    listed = "; ".join(f"{name} {_kib(value)}" for name, value in zip(names, kib, strict=True))
    return figure, f"Bars: keys and values that one token takes. {listed}."


def _kib(value: float) -> str:
    return f"{value:,.4g} KiB" if value < 1000 else f"{value:,.0f} KiB"


# ---- shared ------------------------------------------------------------------------------------


def _grid(plot: Axes, n_rows: int, n_columns: int, x: str, y: str) -> None:
    """Room for square cells, counted from 0, columns numbered at the top."""
    plot.set_aspect("equal")
    plot.grid(False)
    plot.spines[:].set_visible(False)
    plot.tick_params(length=0, pad=3, top=True, bottom=False, labeltop=True, labelbottom=False)
    plot.xaxis.set_label_position("top")
    plot.set_xlabel(x, loc="left", labelpad=7)
    plot.set_ylabel(y)
    plot.set_xticks(range(n_columns))
    plot.set_yticks(range(n_rows))


def _cell(plot: Axes, row: int, column: int, look: Look, text: str = "") -> None:
    plot.add_patch(Rectangle((column - 0.45, row - 0.45), 0.9, 0.9, **look))
    weight = "bold" if look is NEW else "normal"
    plot.text(column, row, text, ha="center", va="center", fontsize=12, weight=weight)


def _head(plot: Axes, column: float, text: str, ha: str = "left") -> None:
    """A heading in line with the numbers of the columns."""
    look: Look = {"textcoords": "offset points", "ha": ha, "va": "bottom", "annotation_clip": False}
    plot.annotate(text, (column, -0.5), (0, 3), fontsize=12, weight="bold", **look)


def _require_numbers(series: dict[str, Any], or_zero: bool = False) -> None:
    """Raise ValueError unless all are of one length, not empty, finite and positive."""
    lengths = {name: len(values) for name, values in series.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"the series must be equally long and not empty; given {lengths}")
    least = "0 or more" if or_zero else "more than 0"
    for name, values in series.items():
        for value in values:
            if not math.isfinite(value) or value < 0 or (value == 0 and not or_zero):
                raise ValueError(f"{name} holds {value!r}; every number must be {least}")


work_triangle = shown(work_triangle_figure)
step_times = shown(step_times_figure)
bytes_grown = shown(bytes_grown_figure)
drift_bars = shown(drift_bars_figure)
ring_slots = shown(ring_slots_figure)
model_bars = shown(model_bars_figure)
