"""The figures of the lesson on the KV cache.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. What a colour
says is said by a hatch, a marker or a word too; the numbers of the alt text come from the data.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from labkit.figures import COLOURS, INK, apply_style, axes, show
from labkit.units import format_seconds

Drawn = tuple[Figure, str]
Numbers = Sequence[float]

BLUE, RED = COLOURS[0], COLOURS[1]
GREY, PALE = "#8a8f98", "#eef1f4"
NEW: dict[str, Any] = {"facecolor": BLUE, "edgecolor": INK, "linewidth": 1}
KEPT: dict[str, Any] = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 1, "hatch": "///"}
WITHOUT: dict[str, Any] = {"color": RED, "marker": "s", "linestyle": "-"}
WITH: dict[str, Any] = {"color": BLUE, "marker": "o", "linestyle": "-"}


# ---- the work of every step --------------------------------------------------------------------


def work_triangle_figure(n_tokens: int = 8) -> Drawn:
    """What each decode step projects, without and with a cache. n_tokens: 2 to 16."""
    _require_between("n_tokens", n_tokens, 2, 16)
    apply_style()
    figure, panels = plt.subplots(1, 2, figsize=(8, 5.4), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    figure.suptitle("Which keys and values does each step compute?", x=0.01, ha="left", fontsize=15)
    n = n_tokens
    _work_panel(panels[0], n, "without a cache", False, f"{n} × {n + 1} = {n * (n + 1)} rows")
    _work_panel(panels[1], n, "with a cache", True, f"2 × {n} = {2 * n} rows")
    handles = [
        Patch(label="key and value computed in this step (2 rows)", **NEW),
        Patch(label="remembered", **KEPT),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, handleheight=1.3)
    return figure, (
        f"Two grids, one row for each of {n} decode steps, one column for each token. Without a "
        "cache, step t computes the keys and values of tokens 0 to t again: a filled triangle, "
        f"{_series([2 * (t + 1) for t in range(n)])} rows, {n * (n + 1)} in all. With a cache, each "
        "step computes those of its newest token only, a filled diagonal, and remembers the rest: "
        f"2 rows a step, {2 * n} in all."
    )


def work_triangle(n_tokens: int = 8) -> None:
    """Show what each decode step projects, without and with a cache."""
    _show(work_triangle_figure(n_tokens))


def _work_panel(plot: Axes, n: int, title: str, cached: bool, total: str) -> None:
    _grid(plot, n, n, "token (position)", "decode step (number)")
    plot.set_title(title, pad=10)
    for step in range(n):
        for token in range(step + 1):
            _cell(plot, step, token, KEPT if cached and token < step else NEW)
        _right_of(plot, n, step, "2" if cached else str(2 * (step + 1)))
    _right_of(plot, n, -0.95, "rows", weight="normal")
    plot.text(n + 0.95, n + 0.05, total, ha="right", va="center", weight="bold", fontsize=14)
    plot.plot([n - 0.5, n + 1], [n - 0.5] * 2, color=INK, linewidth=1.2, linestyle="-", marker="")
    plot.set_xlim(-0.6, n + 1)
    plot.set_ylim(n + 0.5, -1.4)


# ---- time of a step ----------------------------------------------------------------------------


def step_times_figure(
    lengths: Sequence[int],
    without_s: Numbers,
    with_s: Numbers,
    bound_without_s: Numbers,
    bound_with_s: Numbers,
    device: str,
) -> Drawn:
    """Measured seconds of one step against the tokens so far, over their lower bounds."""
    series = {"without_s": without_s, "with_s": with_s}
    series |= {"bound_without_s": bound_without_s, "bound_with_s": bound_with_s}
    _require_positive({"lengths": lengths, **series})
    title = "Time of one decode step"
    figure, plot = axes(title, "tokens so far (tokens)", "time of one step (ms)", size=(7.6, 5.2))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(textwrap.fill(device, 92), fontsize=11, pad=8)
    bound = {"linestyle": "--", "marker": "", "linewidth": 1.8}
    for label, look, seconds, lower in (
        ("without a cache", WITHOUT, without_s, bound_without_s),
        ("with a cache", WITH, with_s, bound_with_s),
    ):
        plot.plot(lengths, _ms(seconds), label=f"{label}, measured", **look)
        plot.plot(lengths, _ms(lower), label=f"{label}, lower bound", **(look | bound))
    plot.set_xscale("log")
    plot.set_yscale("log")
    _length_ticks(plot, lengths)
    _ms_ticks(plot, _ms([*without_s, *with_s, *bound_without_s, *bound_with_s]))
    figure.legend(loc="outside lower left", ncols=2, handlelength=3)
    return figure, _step_times_alt(lengths, without_s, with_s, bound_without_s, bound_with_s, device)


def step_times(
    lengths: Sequence[int],
    without_s: Numbers,
    with_s: Numbers,
    bound_without_s: Numbers,
    bound_with_s: Numbers,
    device: str,
) -> None:
    """Show measured seconds of one step against the tokens so far, over their lower bounds."""
    _show(
        step_times_figure(lengths, without_s, with_s, bound_without_s, bound_with_s, device)
    )


def _step_times_alt(
    lengths: Sequence[int],
    without_s: Numbers,
    with_s: Numbers,
    bound_without_s: Numbers,
    bound_with_s: Numbers,
    device: str,
) -> str:
    last = f"{lengths[-1]:,} tokens"

    def one(label: str, seconds: Numbers, lower: Numbers) -> str:
        first, final = format_seconds(seconds[0]), format_seconds(seconds[-1])
        return (
            f"{label}: {first} at {lengths[0]:,} tokens, {final} at {last} "
            f"(lower bound there {format_seconds(lower[-1])})."
        )

    return (
        f"Measured time of one decode step on {device}, on logarithmic axes, with lower bounds as "
        f"dashed lines. {one('Without a cache', without_s, bound_without_s)} "
        f"{one('With a cache', with_s, bound_with_s)} "
        f"At {last} a step without a cache takes {without_s[-1] / with_s[-1]:,.1f} times as long."
    )


def _ms(seconds: Numbers) -> list[float]:
    return [1e3 * s for s in seconds]


def _length_ticks(plot: Axes, lengths: Sequence[int]) -> None:
    """Ticks at the measured lengths, at most eight of them."""
    every = math.ceil(len(lengths) / 8)
    shown = list(lengths)[::-1][::every]
    plot.set_xticks(shown, [f"{n:,}" for n in shown])
    plot.xaxis.set_minor_locator(NullLocator())


def _ms_ticks(plot: Axes, milliseconds: Numbers) -> None:
    """Plain numbers; more of them where the values span few decades."""
    decades = math.log10(max(milliseconds) / min(milliseconds))
    plot.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=20))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
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
    _require_positive(
        {"n_tokens": n_tokens, "capacity_bytes": capacity_bytes, **series}, or_zero=True
    )
    size, name = _binary(max(*capacity_bytes, *measured_bytes, *predicted_bytes))
    measured, predicted, room = (
        [b / size for b in values] for values in (measured_bytes, predicted_bytes, capacity_bytes)
    )
    figure, plot = axes(
        "The cache grows in a line, its memory in doublings",
        "tokens in the cache (tokens)",
        f"keys and values ({name})",
        size=(7.6, 4.8),
    )
    # A step before each sample: the line of what is held never crosses the room for it.
    plot.fill_between(
        n_tokens, measured, room, step="pre", facecolor="white", edgecolor="#c9cdd3", hatch="///",
        linewidth=0, label="allocated, not used yet",
    )
    plot.step(n_tokens, room, where="pre", color=INK, linestyle="-", marker="", label="allocated")
    plot.plot(n_tokens, predicted, color=RED, linestyle="--", marker="", label="predicted")
    plot.plot(
        n_tokens, measured, color=BLUE, linestyle="", marker="o", markersize=7,
        markevery=max(1, math.ceil(len(n_tokens) / 24)), label="measured",
    )
    plot.set_xlim(left=0)
    plot.set_ylim(bottom=0, top=1.08 * max(*room, *measured, *predicted, 1e-9))
    figure.legend(loc="outside lower left", ncols=4, handlelength=2.4, columnspacing=1.4)
    return figure, _bytes_grown_alt(n_tokens, measured, predicted, room, name)


def bytes_grown(
    n_tokens: Sequence[int],
    measured_bytes: Numbers,
    predicted_bytes: Numbers,
    capacity_bytes: Numbers,
) -> None:
    """Show the bytes that the cache holds as it grows, against prediction and room allocated."""
    _show(bytes_grown_figure(n_tokens, measured_bytes, predicted_bytes, capacity_bytes))


def _bytes_grown_alt(
    n_tokens: Sequence[int], measured: Numbers, predicted: Numbers, room: Numbers, name: str
) -> str:
    apart = max(abs(m - p) for m, p in zip(measured, predicted, strict=True))
    agrees = "exactly as predicted" if apart == 0 else f"at most {apart:.3g} {name} off prediction"
    levels = list(dict.fromkeys(f"{r:,.3g}" for r in room))
    return (
        f"Bytes of keys and values against tokens in the cache. Measured: {measured[0]:,.3g} {name} "
        f"at {n_tokens[0]:,} tokens, {measured[-1]:,.3g} {name} at {n_tokens[-1]:,}, {agrees}. "
        f"The memory allocated is a staircase above it: {_series(levels)} {name}."
    )


def _binary(n_bytes: float) -> tuple[float, str]:
    """The largest binary unit that n_bytes reaches: size in bytes, name."""
    power = min(3, int(math.log2(n_bytes) // 10)) if n_bytes >= 1 else 0
    return 1024.0**power, ("B", "KiB", "MiB", "GiB")[power]


# ---- do past keys move? ------------------------------------------------------------------------


def drift_bars_figure(causal: Numbers, bidirectional: Numbers) -> Drawn:
    """Largest change of a past key when one token is added, layer by layer (at most 12)."""
    _require_positive({"causal": causal, "bidirectional": bidirectional}, or_zero=True)
    n_layers = len(causal)
    _require_between("the number of layers", n_layers, 1, 12)
    figure, plot = axes(
        "One token is added: how far do the past keys move?",
        "layer (number)",
        "largest change of a past key (absolute)",
        size=(7.6, 4.6),
    )
    causal_look = {"facecolor": BLUE, "edgecolor": INK}
    both_look = {"facecolor": "#f7b27a", "edgecolor": INK, "hatch": "///"}
    _drift_series(plot, causal, -0.2, causal_look, "causal: a token sees only the past")
    _drift_series(plot, bidirectional, 0.2, both_look, "bidirectional: every token sees all")
    top = max(*causal, *bidirectional)
    plot.set_ylim(0, 1.15 * top if top else 1)
    plot.set_xlim(-0.6, n_layers - 0.4)
    plot.set_xticks(range(n_layers))
    plot.grid(False, axis="x")
    figure.legend(loc="outside lower left", ncols=2, handleheight=1.2)
    return figure, (
        "Bars: the largest change of a past key when one token is added, layer by layer from 0. "
        f"Causal attention: {_series([_short(v) for v in causal])}. Bidirectional attention: "
        f"{_series([_short(v) for v in bidirectional])}."
    )


def drift_bars(causal: Numbers, bidirectional: Numbers) -> None:
    """Show how far past keys move when one token is added, layer by layer."""
    _show(drift_bars_figure(causal, bidirectional))


def _drift_series(plot: Axes, values: Numbers, shift: float, look: dict, label: str) -> None:
    places = [layer + shift for layer in range(len(values))]
    bars = plot.bar(places, values, width=0.38, linewidth=1, label=label, **look)
    labels = [_short(v) for v in values]
    crowded = len(values) > 6
    plot.bar_label(bars, labels, padding=3, fontsize=12, rotation=90 if crowded else 0)


def _short(value: float) -> str:
    """Two significant digits; 0 is written 0."""
    return f"{value:.2g}" if value else "0"


# ---- the ring of a sliding window --------------------------------------------------------------


def ring_slots_figure(window: int, n_tokens: int) -> Drawn:
    """Which token each slot of the ring holds after each new token. Both at most 12."""
    _require_between("window", window, 1, 12)
    _require_between("n_tokens", n_tokens, 1, 12)
    apply_style()
    size = (4.6 + 0.5 * window, 2.3 + 0.42 * n_tokens)
    figure, plot = plt.subplots(figsize=size, layout="constrained")
    figure.suptitle(f"A ring of {_count(window, 'slot')}", x=0.01, ha="left", fontsize=14)
    _grid(plot, n_tokens, window, "slot (number)", "after token (position)")
    for newest in range(n_tokens):
        for slot in range(window):
            _ring_cell(plot, newest, slot, window)
        _right_of(plot, window, newest, _order(newest, window), ha="left", weight="normal")
    _right_of(plot, window, -0.95, "oldest → newest", ha="left")
    plot.set_xlim(-0.6, window + max(3.2, 0.62 * window + 1))
    plot.set_ylim(n_tokens - 0.4, -1.4)
    return figure, ""


def model_bars_figure(names: Sequence[str], bytes_per_token: Numbers) -> Drawn:
    return plt.figure(), ""
