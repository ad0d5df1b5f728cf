"""The figures of the lesson on fewer keys and values.

As in look.py, name_figure(...) gives (figure, alt text) and name(...) shows it. What a colour
says is said by a marker, a line style or a word too. Sizes that do not fit raise ValueError.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from labkit.figures.look import BELOW, BOUND, EMPTY, NEW, Drawn, Look, require_between, shown
from labkit.figures.show import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    apply_style,
    axes,
    plain_log,
    plain_number,
)
from labkit.units import format_bytes, format_seconds

Numbers = Sequence[float]
LATENT: Look = NEW | {"hatch": "..", "facecolor": "#bcd9f3"}

# ---- four ways to share ------------------------------------------------------------------------


def four_ways_figure(n_heads: int = 8, n_kv_heads: int = 2) -> Drawn:
    """What the query heads read in MHA, GQA, MQA and MLA. n_heads: 2 to 8."""
    require_between("n_heads", n_heads, 2, 8)
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} must be a multiple of n_kv_heads={n_kv_heads}")
    apply_style()
    figure, panels = plt.subplots(2, 2, figsize=(7.8, 6.2), layout="none")
    figure.subplots_adjust(0.02, 0.02, 0.98, 0.91, wspace=0.06, hspace=0.16)
    title = f"Four ways for {n_heads} query heads to share what is cached"
    figure.suptitle(title, x=0.02, y=0.985, ha="left", fontsize=14)
    kinds = {"MHA": n_heads, "GQA": n_kv_heads, "MQA": 1}
    for plot, (kind, n) in zip(panels.flat, kinds.items(), strict=False):
        kept = f"2 × {n} × d_head numbers a token"
        _panel(plot, n_heads, f"{kind}: {n} KV head{'s' if n > 1 else ''}", kept)
        for i in range(n):
            readers = range(i * n_heads // n, (i + 1) * n_heads // n)
            _shared_head(plot, [_place(h, n_heads) for h in readers], f"K{i}", f"V{i}")
    plot = panels[1, 1]
    _panel(plot, n_heads, "MLA: a latent and one rotated key", "d_latent + d_rope numbers a token")
    for head in range(n_heads):
        for x in (3.0, 5.6):
            _line(plot, _place(head, n_heads), x)
    _box(plot, 3.0, 1.55, 2.1, LATENT, "latent")
    _box(plot, 5.6, 1.55, 2.1, LATENT, "rotated key")
    return figure, (
        f"Four drawings of {n_heads} query heads in a row, with lines to what they read. MHA: each "
        f"has a key head and a value head of its own, {n_heads} of each. GQA: {n_kv_heads} KV "
        f"heads, each read by {n_heads // n_kv_heads} neighbouring query heads. MQA: all read one "
        "KV head. MLA: all read one latent and one rotated key; no head has keys or values in the "
        "cache."
    )


def _panel(plot: Axes, n_heads: int, title: str, kept: str) -> None:
    """A sheet of 8 by 5 units with its title, the query heads, and what a token keeps."""
    plot.set_axis_off()
    plot.set_xlim(0, 8)
    plot.set_ylim(0, 5)
    plot.text(0.1, 4.6, title, fontsize=12, weight="bold", va="center")
    plot.text(0.1, 0.3, kept, fontsize=12, va="center")
    for head in range(n_heads):
        _box(plot, _place(head, n_heads), 3.6, 0.78 * 7.8 / n_heads, EMPTY, f"Q{head}")


def _place(head: int, n_heads: int) -> float:
    return 0.1 + 7.8 * (head + 0.5) / n_heads


def _shared_head(plot: Axes, readers: Sequence[float], key: str, value: str) -> None:
    middle = sum(readers) / len(readers)
    for x in readers:
        _line(plot, x, middle, to=2.35)
    _box(plot, middle, 2.0, 0.78, NEW, key)
    _box(plot, middle, 1.2, 0.78, NEW, value)


def _line(plot: Axes, x: float, to_x: float, to: float = 1.9) -> None:
    plot.plot([x, to_x], [3.25, to], color=INK, linewidth=1, linestyle="-", marker="")


def _box(plot: Axes, x: float, y: float, width: float, look: Look, text: str) -> None:
    plot.add_patch(Rectangle((x - width / 2, y - 0.35), width, 0.7, **look))
    halo: Look = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 1}
    behind = {"bbox": halo} if "hatch" in look else {}
    plot.text(x, y, text, ha="center", va="center", fontsize=11, **behind)


# ---- bytes of real models against the context --------------------------------------------------


def cache_growth_figure(contexts: Sequence[int], sizes: Mapping[str, Numbers]) -> Drawn:
    """Cache bytes of one sequence against its tokens, model by model (at most 6), on log axes.

    sizes: model -> bytes at each context; a shorter list ends where the model's context does.
    """
    require_between("the number of models", len(sizes), 1, 6)
    for name, values in sizes.items():
        _require_positive(name, values, at_most=len(contexts))
    title = "One sequence in the cache: windows bend the line"
    figure, plot = axes(title, "context (tokens)", "cache of one sequence (GB)", size=(7.8, 5.6))
    for i, (name, values) in enumerate(sizes.items()):
        look: Look = {"color": COLOURS[i], "linestyle": LINES[i], "marker": MARKERS[i]}
        plot.plot(contexts[: len(values)], [b / 1e9 for b in values], label=name, **look)
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.xaxis.set_major_locator(FixedLocator(list(contexts)[:: math.ceil(len(contexts) / 7)]))
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    plot.set_xlim(0.8 * contexts[0], 1.5 * contexts[-1])
    plain_log(plot.yaxis)
    figure.legend(ncols=3, handlelength=3.2, **BELOW)
    ends = "; ".join(
        f"{name}: {format_bytes(values[0])} at {contexts[0]:,} tokens, {format_bytes(values[-1])} "
        f"at {contexts[len(values) - 1]:,}"
        for name, values in sizes.items()
    )
    return figure, (
        "Lines on logarithmic axes: bytes in the cache of one sequence against its context. With "
        "sliding windows they rise more slowly, or not at all, once the windows are full. "
        f"{ends}."
    )


# ---- where decode attention stands on the roofline ---------------------------------------------


def roofline_figure(
    intensities: Mapping[str, float], bytes_per_s: float, flops_per_s: float, device: str
) -> Drawn:
    """Decode attention of several models (at most 6) under a device's roof, on log axes."""
    require_between("the number of models", len(intensities), 1, 6)
    _require_positive("intensities", list(intensities.values()))
    ridge = flops_per_s / bytes_per_s
    title = f"Decode attention under the roof of {device}"
    x, y = "arithmetic intensity (FLOP/byte)", "attainable (TFLOP/s)"
    figure, plot = axes(title, x, y, size=(7.8, 5.4))
    low, high = 0.5 * min(1.0, *intensities.values()), 4 * max(ridge, *intensities.values())
    roof = [(low, low * bytes_per_s), (ridge, flops_per_s), (high, flops_per_s)]
    plot.plot(*zip(*[(i, f / 1e12) for i, f in roof], strict=True), color=INK, ls="-", marker="")
    reached = {name: min(flops_per_s, i * bytes_per_s) / 1e12 for name, i in intensities.items()}
    for i, (name, intensity) in enumerate(intensities.items()):
        look: Look = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 10, "linestyle": ""}
        label = f"{name}: {intensity:,.3g} FLOP/byte"
        plot.plot([intensity], [reached[name]], label=label, zorder=4, **look)
    plot.axvline(ridge, color=INK, linewidth=1.2, linestyle=":", marker="")
    plot.annotate(
        f"ridge: {ridge:,.0f}", (ridge, 0.03), (-6, 0), xycoords=("data", "axes fraction"),
        textcoords="offset points", ha="right", fontsize=11,
    )  # fmt: skip
    plot.set_xscale("log")
    plot.set_yscale("log")
    plot.xaxis.set_major_formatter(FuncFormatter(plain_number))
    plain_log(plot.yaxis)
    figure.legend(ncols=2, **BELOW)
    said = "; ".join(
        f"{name} at {intensities[name]:,.3g} FLOP/byte, {reached[name]:,.3g} TFLOP/s"
        for name in intensities
    )
    return figure, (
        f"The roof of {device} on logarithmic axes: it rises with the arithmetic intensity up to "
        f"the ridge at {ridge:,.0f} FLOP/byte, then stays at {flops_per_s / 1e12:,.3g} TFLOP/s. "
        f"Points on it: {said}."
    )


# ---- measured decode attention -----------------------------------------------------------------


def decode_times_figure(
    contexts: Sequence[int],
    measured_s: Mapping[str, Numbers],
    bounds_s: Mapping[str, Numbers],
    device: str,
) -> Drawn:
    """Seconds of one step's attention against the context: measured, over lower bounds.

    measured_s: way -> seconds at each context (at most 5 ways); bounds_s: the same for some ways.
    """
    require_between("the number of ways", len(measured_s), 1, 5)
    for name, values in [*measured_s.items(), *bounds_s.items()]:
        _require_positive(name, values)
        if len(values) != len(contexts) or name not in measured_s:
            raise ValueError(f"{name!r} needs a measurement at each of {len(contexts)} contexts")
    title = "Attention of one decode step, one layer"
    x, y = "length of the cache (tokens)", "time (ms)"
    figure, plot = axes(title, x, y, size=(7.8, 5.8))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(textwrap.fill(device, 84), fontsize=11, pad=8)
    for i, (name, values) in enumerate(measured_s.items()):
        look: Look = {"color": COLOURS[i], "marker": MARKERS[i], "linestyle": "-"}
        plot.plot(contexts, [1e3 * s for s in values], label=name, **look)
        if name in bounds_s:
            lower = [1e3 * s for s in bounds_s[name]]
            plot.plot(contexts, lower, label=f"{name}: bound", **(look | BOUND))
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.xaxis.set_major_locator(FixedLocator(list(contexts)))
    plot.xaxis.set_minor_locator(NullLocator())
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    plain_log(plot.yaxis)
    figure.legend(ncols=2, handlelength=3, **BELOW)
    said = "; ".join(
        f"{name}: {format_seconds(values[-1])}"
        + (f" (bound {format_seconds(bounds_s[name][-1])})" if name in bounds_s else "")
        for name, values in measured_s.items()
    )
    return figure, (
        f"Measured time of one step's attention in one layer on {device}, on logarithmic axes, "
        f"bounds as dashed lines. At {contexts[-1]:,} tokens: {said}."
    )


# ---- the damage of pooling ---------------------------------------------------------------------


def pooled_layers_figure(n_pooled: Sequence[int], perplexities: Numbers, n_layers: int) -> Drawn:
    """Perplexity of a text against the number of layers whose KV heads were pooled."""
    _require_positive("perplexities", perplexities)
    if len(n_pooled) != len(perplexities):
        raise ValueError(f"{len(n_pooled)} numbers of layers, {len(perplexities)} perplexities")
    title = "KV heads averaged without any training afterwards"
    x = f"last layers pooled to one KV head (of {n_layers} layers)"
    figure, plot = axes(title, x, "perplexity (1 is perfect)", size=(7.4, 4.4))
    look: Look = {"color": COLOURS[1], "marker": "s", "linestyle": "-"}
    plot.plot(n_pooled, perplexities, **look)
    plot.set_yscale("log")
    plot.set_ylim(0.4 * min(perplexities), 3 * max(perplexities))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    plot.yaxis.set_minor_formatter(NullFormatter())
    for n, value in zip(n_pooled, perplexities, strict=True):
        place: Look = {"textcoords": "offset points", "ha": "left", "va": "top", "fontsize": 11}
        plot.annotate(f"{value:,.0f}", (n, value), (5, -5), **place)
    plot.set_xlim(-0.04 * n_layers, 1.15 * n_layers)
    points = ", ".join(f"{v:,.0f} at {n}" for n, v in zip(n_pooled, perplexities, strict=True))
    return figure, (
        "A line on a logarithmic axis: perplexity of a text against the number of last layers, of "
        f"{n_layers}, whose KV heads were averaged into one: {points}."
    )


# ---- shared ------------------------------------------------------------------------------------


def _require_positive(name: str, values: Numbers, at_most: int | None = None) -> None:
    if not values or (at_most is not None and len(values) > at_most):
        raise ValueError(f"{name} holds {len(values)} numbers; needed: 1 to {at_most or 'any'}")
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} holds {value!r}; every number must be more than 0")


four_ways = shown(four_ways_figure)
cache_growth = shown(cache_growth_figure)
roofline = shown(roofline_figure)
decode_times = shown(decode_times_figure)
pooled_layers = shown(pooled_layers_figure)
