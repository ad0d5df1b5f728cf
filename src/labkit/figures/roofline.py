"""The figures of the lesson on what a forward pass costs.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. Functions that
draw a roof or a bound are handed in, so it is the learner's own that draw. Series of unequal
length, empty ones and numbers that cannot be drawn raise ValueError.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from labkit.figures.look import BELOW, BLUE, GREY, RED, Drawn, Look, Numbers, shown
from labkit.figures.show import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    ORANGE,
    PALE,
    apply_style,
    axes,
    plain_log,
    plain_number,
)
from labkit.units import format_quantity, format_seconds

Roof = Callable[[float, float, float], float]  # intensity, bytes/s, peak FLOP/s -> FLOP/s

READS: Look = {"color": BLUE, "linestyle": "--", "marker": ""}
COMPUTES: Look = {"color": RED, "linestyle": ":", "marker": ""}
MEASURED: Look = {"color": INK, "linestyle": "-", "marker": "o"}
PARTS: dict[str, Look] = {
    "attention": {"facecolor": BLUE, "edgecolor": INK},
    "MLP": {"facecolor": ORANGE, "edgecolor": INK, "hatch": ".."},
    "embedding and head": {"facecolor": PALE, "edgecolor": GREY, "hatch": "///"},
}

# ---- a matrix product --------------------------------------------------------------------------


def product_figure(n_rows: int, d_in: int, d_out: int) -> Drawn:
    """x @ w as three grids; marked, the row and the column that give one number. Sizes: 2 to 9."""
    for name, size in {"n_rows": n_rows, "d_in": d_in, "d_out": d_out}.items():
        if not 2 <= size <= 9:
            raise ValueError(f"{name}={size} must be from 2 to 9, to stay readable")
    apply_style()
    gap = 1.6
    width, height = d_in + 2 * d_out + 2 * gap, max(n_rows, d_in)
    figure, plot = plt.subplots(figsize=(7.6, 0.5 + 7.6 * (height + 2.4) / (width + 1)))
    plot.set_aspect("equal")
    plot.axis("off")
    left = (0.0, d_in + gap, d_in + d_out + 2 * gap)
    _cells(plot, left[0], n_rows, d_in, row=1)
    _cells(plot, left[1], d_in, d_out, column=1)
    _cells(plot, left[2], n_rows, d_out, row=1, column=1)
    names = ("x, one row a token", "w, the weights", "the result")
    sizes = ((n_rows, d_in), (d_in, d_out), (n_rows, d_out))
    for start, name, (rows, columns) in zip(left, names, sizes, strict=True):
        middle = start + columns / 2
        plot.text(middle, -0.35, name, ha="center", va="bottom", weight="bold", fontsize=12)
        plot.text(middle, rows + 0.2, f"{rows} × {columns}", ha="center", va="top", fontsize=12)
    for start, sign in ((left[1], "@"), (left[2], "=")):
        plot.text(start - gap / 2, height / 2, sign, ha="center", va="center", fontsize=18)
    plot.set_title("A row of x and a column of w give one number of the result", pad=4)
    plot.set_xlim(-0.5, width + 0.5)
    plot.set_ylim(height + 1.1, -1.3)
    flops = 2 * n_rows * d_in * d_out
    return figure, (
        f"Three grids: x of {n_rows} rows and {d_in} columns, times w of {d_in} rows and {d_out} "
        f"columns, gives a result of {n_rows} rows and {d_out} columns. Marked: one row of x, one "
        f"column of w, and the one number that they give: {d_in} products, added up. In all "
        f"{n_rows} × {d_out} numbers of {d_in} products, {flops} FLOPs."
    )


def _cells(
    plot: Axes, left: float, rows: int, columns: int, row: int = -1, column: int = -1
) -> None:
    """A grid; marked is the row, the column, or where both are given their one cell."""
    for r in range(rows):
        for c in range(columns):
            marked = (r == row and c == column) if row >= 0 <= column else r == row or c == column
            look: Look = {"facecolor": BLUE, "hatch": "//"} if marked else {"facecolor": PALE}
            plot.add_patch(Rectangle((left + c, r), 1, 1, edgecolor=INK, linewidth=0.9, **look))


# ---- two clocks --------------------------------------------------------------------------------


def two_clocks_figure(passes: Sequence[str], reads_s: Numbers, computes_s: Numbers) -> Drawn:
    """How long each pass reads and how long it computes, as two bars a pass."""
    _require({"passes": passes, "reads_s": reads_s, "computes_s": computes_s})
    figure, plot = axes(
        "Two clocks: the slower one decides",
        "at least (ms)",
        "pass (name)",
        size=(7.6, 1.9 + 0.95 * len(passes)),
    )
    sides: list[tuple[str, Numbers, float, Look]] = [
        ("reading weights", reads_s, -0.19, {"facecolor": BLUE, "edgecolor": INK}),
        ("computing", computes_s, 0.19, {"facecolor": ORANGE, "edgecolor": INK, "hatch": "//"}),
    ]
    for label, seconds, shift, look in sides:
        places = [position + shift for position in range(len(passes))]
        bars = plot.barh(places, [1e3 * s for s in seconds], height=0.36, label=label, **look)
        plot.bar_label(bars, [format_seconds(s) for s in seconds], padding=4, fontsize=11)
    plot.set_yticks(range(len(passes)), passes)
    plot.invert_yaxis()
    plot.set_xlim(0, 1.2e3 * max(*reads_s, *computes_s))
    plot.grid(False, axis="y")
    figure.legend(ncols=2, **BELOW)
    said = [
        f"{name}: reading {format_seconds(r)}, computing {format_seconds(c)}"
        for name, r, c in zip(passes, reads_s, computes_s, strict=True)
    ]
    return figure, f"Pairs of bars, the least time of a pass. {'; '.join(said)}."


# ---- roofs -------------------------------------------------------------------------------------


def roofs_figure(
    devices: Mapping[str, tuple[float, float]], points: Mapping[str, float], attainable: Roof
) -> Drawn:
    """Rooflines of up to six devices, and where some work lies.

    devices: name -> (bytes/s, peak FLOP/s); points: what -> its intensity in FLOP/byte, ascending;
    attainable(intensity, bytes_per_s, peak) draws.
    """
    if not 1 <= len(devices) <= len(COLOURS):
        raise ValueError(f"{len(devices)} devices must be from 1 to {len(COLOURS)}")
    _require({"points": list(points.values())})
    figure, plot = axes(
        "What each device allows",
        "arithmetic intensity (FLOP/byte)",
        "attainable (TFLOP/s)",
        size=(7.6, 5.2),
    )
    ridges = [peak / bandwidth for bandwidth, peak in devices.values()]
    grid = np.geomspace(
        0.5 * min(*points.values(), *ridges), 4 * max(*points.values(), *ridges), 400
    )
    for (name, (bandwidth, peak)), colour, line in zip(
        devices.items(), COLOURS, LINES, strict=False
    ):
        heights = [attainable(float(i), bandwidth, peak) / 1e12 for i in grid]
        label = f"{name} (ridge {peak / bandwidth:,.0f})"
        plot.plot(grid, heights, color=colour, linestyle=line, marker="", label=label)
    _log_log(plot)
    for what, intensity in points.items():
        plot.axvline(
            intensity, color=GREY, linestyle=(0, (1, 2)), marker="", linewidth=1.6, zorder=1
        )
        top: Look = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        plot.annotate(what, (intensity, 1), (0, 4), ha="center", va="bottom", fontsize=11, **top)
    plot.set_title("What each device allows", pad=24)
    figure.legend(ncols=2, handlelength=3, **BELOW)
    return figure, _roofs_alt(devices, points, attainable)


def _roofs_alt(
    devices: Mapping[str, tuple[float, float]], points: Mapping[str, float], attainable: Roof
) -> str:
    roofs = "; ".join(
        f"{name} up to {format_quantity(peak, 'FLOP/s')}, ridge at {peak / bandwidth:,.0f}"
        for name, (bandwidth, peak) in devices.items()
    )
    first, (bandwidth, peak) = next(iter(devices.items()))
    marks = "; ".join(
        f"{what} at {i:,.3g} FLOP/byte, where {first} allows "
        f"{attainable(i, bandwidth, peak) / peak:.1%} of its peak"
        for what, i in points.items()
    )
    return (
        "Rooflines on logarithmic axes: attainable FLOP/s rise with the arithmetic intensity up to "
        f"the ridge and are flat behind it. {roofs}. Marked: {marks}."
    )


# ---- a product measured ------------------------------------------------------------------------


def own_roof_figure(
    n_rows: Sequence[int],
    intensities: Numbers,
    flops_per_s: Numbers,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    attainable: Roof,
    device: str,
) -> Drawn:
    """Measured matrix products under the roof of this device; the roof is drawn by attainable."""
    _require({"n_rows": n_rows, "intensities": intensities, "flops_per_s": flops_per_s})
    title = "Matrix products on their own roofline"
    x, y = "arithmetic intensity (FLOP/byte)", "speed (GFLOP/s)"
    figure, plot = axes(title, x, y, size=(7.6, 5.2))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(textwrap.fill(device, 84), fontsize=11, pad=8)
    grid = np.geomspace(0.6 * min(intensities), 1.7 * max(intensities), 300)
    roof = [attainable(float(i), bandwidth_bytes_per_s, peak_flops_per_s) for i in grid]
    plot.plot(grid, _giga(roof), color=RED, linestyle="--", marker="", label="the roof (predicted)")
    plot.plot(intensities, _giga(flops_per_s), label="measured", clip_on=False, **MEASURED)
    look: Look = {"textcoords": "offset points", "ha": "left", "va": "top", "fontsize": 11}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the roof
    for n, i, speed in zip(n_rows, intensities, flops_per_s, strict=True):
        text = f"{n} row{'s' * (n > 1)}" if n in (n_rows[0], n_rows[-1]) else str(n)
        plot.annotate(text, (i, speed / 1e9), (7, -7), **look)
    _log_log(plot)
    low, high = plot.get_ylim()
    plot.set_ylim(low / 1.6, high)
    plot.set_xlim(grid[0], grid[-1] * 1.5)
    figure.legend(ncols=2, handlelength=3, **BELOW)
    shares = [
        f"{n} row{'s' * (n > 1)} {s / attainable(i, bandwidth_bytes_per_s, peak_flops_per_s):.0%}"
        for n, i, s in zip(n_rows, intensities, flops_per_s, strict=True)
    ]
    return figure, (
        f"Measured speed of matrix products on {device}, under the roof of "
        f"{bandwidth_bytes_per_s / 1e9:,.1f} GB/s and {peak_flops_per_s / 1e9:,.0f} GFLOP/s, on "
        f"logarithmic axes. Share of the roof reached: {', '.join(shares)}."
    )


def _giga(values: Numbers) -> list[float]:
    return [value / 1e9 for value in values]


# ---- where the weights are ---------------------------------------------------------------------


def shares_figure(models: Sequence[str], parts: Mapping[str, Sequence[int]]) -> Drawn:
    """Shares of each model's numbers, stacked. parts: each name in PARTS -> one count a model."""
    if set(parts) != set(PARTS):
        raise ValueError(f"parts must be {sorted(PARTS)}; given {sorted(parts)}")
    _require({"models": models, **parts})
    totals = [sum(counts) for counts in zip(*parts.values(), strict=True)]
    figure, plot = axes(
        "Where a model's numbers are",
        "share of all trained numbers (%)",
        "model (name)",
        size=(7.6, 1.8 + 0.5 * len(models)),
    )
    left = [0.0] * len(models)
    for name, counts in parts.items():
        widths = [100 * n / total for n, total in zip(counts, totals, strict=True)]
        bars = plot.barh(
            models, widths, left=left, height=0.64, label=name, linewidth=1, **PARTS[name]
        )
        texts = [f"{w:.0f}" if w >= 4 else "" for w in widths]
        frame = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        for label in plot.bar_label(bars, texts, label_type="center", fontsize=11):
            if label.get_text():
                label.set_bbox(frame)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    plot.set_xlim(0, 100)
    plot.invert_yaxis()
    plot.grid(False, axis="y")
    figure.legend(ncols=3, **BELOW)
    said = [
        f"{model}: "
        + ", ".join(f"{name} {counts[i] / totals[i]:.1%}" for name, counts in parts.items())
        for i, model in enumerate(models)
    ]
    return figure, f"Stacked bars of shares. {'; '.join(said)}."


# ---- the rule of thumb -------------------------------------------------------------------------


def rule_figure(n_keys: Sequence[int], ratios: Mapping[str, Numbers]) -> Drawn:
    """FLOPs of one token over 2 for each parameter, against the context, one line a model."""
    if not 1 <= len(ratios) <= len(COLOURS):
        raise ValueError(f"{len(ratios)} models must be from 1 to {len(COLOURS)}")
    _require({"n_keys": n_keys, **ratios})
    title = "One token's FLOPs against the rule of 2 a parameter"
    figure, plot = axes(
        title, "keys that the token sees (tokens)", "exact / rule (ratio)", size=(7.6, 4.6)
    )
    for (name, values), colour, line, marker in zip(
        ratios.items(), COLOURS, LINES, MARKERS, strict=False
    ):
        plot.plot(n_keys, values, color=colour, linestyle=line, marker=marker, label=name)
    plot.axhline(1, color=INK, linewidth=1.2, linestyle="-", marker="")
    plot.set_xscale("log")
    plot.set_xticks(list(n_keys), [f"{n:,}" for n in n_keys])
    plot.xaxis.set_minor_locator(NullLocator())
    figure.legend(ncols=3, handlelength=3, **BELOW)
    said = [
        f"{name}: {values[0]:.2f} at {n_keys[0]:,} keys, {values[-1]:.2f} at {n_keys[-1]:,}"
        for name, values in ratios.items()
    ]
    return figure, f"Lines: exact FLOPs of a token over twice the parameters. {'; '.join(said)}."


# ---- the times of a step -----------------------------------------------------------------------


def bound_figure(
    title: str,
    x_label: str,
    x: Numbers,
    reads_s: Numbers,
    computes_s: Numbers,
    measured_s: Numbers | None = None,
    device: str = "",
) -> Drawn:
    """Seconds of reading and of computing against x, and what was measured, on logarithmic axes."""
    series = {"x": x, "reads_s": reads_s, "computes_s": computes_s}
    _require(series if measured_s is None else {**series, "measured_s": measured_s})
    figure, plot = axes(title, x_label, "time of one step (ms)", size=(7.6, 4.9))
    if device:
        figure.suptitle(title, x=0.01, ha="left", fontsize=14)
        plot.set_title(textwrap.fill(device, 84), fontsize=11, pad=8)
    if measured_s is not None:
        plot.plot(x, _milli(measured_s), label="measured", **MEASURED)
    plot.plot(x, _milli(reads_s), label="reading, at least", **READS)
    plot.plot(x, _milli(computes_s), label="computing, at least", **COMPUTES)
    _log_log(plot)
    plot.set_xticks(list(x), [f"{value:,g}" for value in x])
    plot.xaxis.set_minor_locator(NullLocator())
    figure.legend(ncols=3, handlelength=3, **BELOW)
    said = f"Reading takes {_range(x, reads_s)}; computing {_range(x, computes_s)}."
    if measured_s is not None:
        said += f" Measured on {device}: {_range(x, measured_s)}."
    return figure, f"{title}: times on logarithmic axes. {said} {_longer(x, reads_s, computes_s)}"


def _longer(x: Numbers, reads_s: Numbers, computes_s: Numbers) -> str:
    first = [value for value, r, c in zip(x, reads_s, computes_s, strict=True) if c >= r]
    if not first:
        return "Reading takes longer everywhere."
    return f"Computing takes longer at {', '.join(f'{value:,g}' for value in first)}."


def _range(x: Numbers, seconds: Numbers) -> str:
    return (
        f"{format_seconds(seconds[0])} at {x[0]:,g} and {format_seconds(seconds[-1])} at {x[-1]:,g}"
    )


def _milli(seconds: Numbers) -> list[float]:
    return [1e3 * s for s in seconds]


# ---- the batch that turns the bound ------------------------------------------------------------


def batch_figure(
    n_cached: Sequence[int], batches: Mapping[str, Sequence[int | None]], most: int = 10_000
) -> Drawn:
    """Sequences from which a decode step is compute-bound, against the context; None is never."""
    if not 1 <= len(batches) <= len(COLOURS):
        raise ValueError(f"{len(batches)} series must be from 1 to {len(COLOURS)}")
    for name, values in batches.items():
        _require({"n_cached": n_cached, name: [most if v is None else v for v in values]})
    title = "From which batch on is decoding compute-bound?"
    figure, plot = axes(title, "context (tokens)", "batch (sequences)", size=(7.6, 4.9))
    said = []
    for (name, values), colour, line in zip(batches.items(), COLOURS, LINES, strict=False):
        reached = [(n, b) for n, b in zip(n_cached, values, strict=True) if b is not None]
        never = next((n for n, b in zip(n_cached, values, strict=True) if b is None), None)
        end = f"never from {never:,} tokens on" if never is not None else "at every context shown"
        plot.plot(
            [n for n, _ in reached],
            [b for _, b in reached],
            color=colour,
            linestyle=line,
            marker="",
            label=f"{name}: {end}",
        )
        if never is not None:
            plot.axvline(never, color=colour, linestyle=line, linewidth=1.1, marker="")
        said.append(f"{name}: {reached[0][1]:,} at {reached[0][0]:,} tokens, {end}" if reached
                    else f"{name}: never")  # fmt: skip
    plot.set_yscale("log")
    plot.set_ylim(top=most)
    plot.set_xlim(min(n_cached), max(n_cached))
    plot.yaxis.set_major_formatter(FuncFormatter(plain_number))
    plot.yaxis.set_minor_formatter(NullFormatter())
    plot.xaxis.set_major_formatter(FuncFormatter(plain_number))
    figure.legend(ncols=1, handlelength=3, **BELOW)
    return figure, f"Lines that rise without end towards a context. {'; '.join(said)}."


# ---- shared ------------------------------------------------------------------------------------


def _log_log(plot: Axes) -> None:
    plot.set_xscale("log")
    plot.set_yscale("log")
    plain_log(plot.yaxis)
    plot.xaxis.set_major_formatter(FuncFormatter(plain_number))
    plot.xaxis.set_minor_formatter(NullFormatter())


def _require(series: Mapping[str, Sequence[object]]) -> None:
    """Raise ValueError unless all are equally long, not empty, and every number is above 0."""
    lengths = {name: len(values) for name, values in series.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"the series must be equally long and not empty; given {lengths}")
    for name, values in series.items():
        for value in values:
            if isinstance(value, str) or (name == "n_cached" and value == 0):
                continue
            if not isinstance(value, (int, float, np.number)) or not 0 < value < math.inf:
                raise ValueError(f"{name} holds {value!r}; every number must be more than 0")


product = shown(product_figure)
two_clocks = shown(two_clocks_figure)
roofs = shown(roofs_figure)
own_roof = shown(own_roof_figure)
shares = shown(shares_figure)
rule = shown(rule_figure)
bound = shown(bound_figure)
batch = shown(batch_figure)
