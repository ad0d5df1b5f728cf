"""The figures of the lesson on attention in tiles.

Each comes as a pair: name_figure(...) gives (figure, alt text), and name(...) shows it. What a
colour says is said by a hatch, a marker or a word too; the numbers of the alt text come from the
data. Sizes that cannot be drawn readably, and series of unequal length, raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from labkit.figures.look import (
    BELOW,
    BLUE,
    GREY,
    RED,
    Drawn,
    Look,
    Numbers,
    listed,
    require_between,
    shown,
)
from labkit.figures.show import COLOURS, INK, ORANGE, PALE, SKY, apply_style, axes
from labkit.units import format_bytes, format_seconds

ROWS: Look = {"facecolor": SKY, "edgecolor": INK, "linewidth": 1}
SCORES: Look = {"facecolor": ORANGE, "edgecolor": INK, "linewidth": 1, "hatch": "///"}
WEIGHTS: Look = {"facecolor": PALE, "edgecolor": INK, "linewidth": 1, "hatch": "..."}
WHOLE: Look = {"facecolor": BLUE, "edgecolor": "white", "linewidth": 2}
EDGE: Look = {"facecolor": ORANGE, "edgecolor": "white", "linewidth": 2, "hatch": "///"}
SKIPPED: Look = {"facecolor": "white", "edgecolor": GREY, "linewidth": 1, "linestyle": ":"}
KINDS = {"whole": WHOLE, "on the edge": EDGE, "skipped": SKIPPED}
ARROW: Look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}

# ---- what crosses the bus ----------------------------------------------------------------------


def traffic_bars_figure(T: int, d_head: int, block_q: int, bytes_per_number: int = 2) -> Drawn:
    """Bytes that one head moves over T tokens: step by step, in tiles, in tiles with a mask.

    T and block_q: multiples, so that the causal bar is simple: on average half the keys and half a
    block more. Raises ValueError where block_q does not divide T.
    """
    if T % block_q:
        raise ValueError(f"block_q={block_q} must divide T={T} in this picture")
    side, matrix = T * d_head * bytes_per_number, T * T * bytes_per_number
    n_blocks = T // block_q
    bars = {
        "in three steps": [(ROWS, 4 * side), (SCORES, 2 * matrix), (WEIGHTS, 2 * matrix)],
        "in tiles": [(ROWS, 2 * side + n_blocks * 2 * side)],
        "in tiles, causal": [(ROWS, 2 * side + (n_blocks + 1) * side)],
    }
    title, x = f"What one head moves, {T:,} tokens", "between chip and memory (MB)"
    figure, plot = axes(title, x, "how it is computed (way)", size=(7.8, 3.5))
    totals = {name: sum(size for _, size in parts) for name, parts in bars.items()}
    for y, parts in enumerate(bars.values()):
        left = 0.0
        for look, size in parts:
            plot.barh(y, size / 1e6, left=left, height=0.6, **look)
            left += size / 1e6
        plot.text(left + 6, y, f"{left:,.0f} MB", va="center", fontsize=12)
    plot.set_yticks(range(len(bars)), list(bars))
    plot.invert_yaxis()
    plot.set_xlim(0, 1.17 * max(totals.values()) / 1e6)
    plot.grid(False, axis="y")
    names = ("q, k, v, output", "scores, out and in", "weights, out and in")
    looks = (ROWS, SCORES, WEIGHTS)
    figure.legend(
        handles=[Patch(label=n, **look) for n, look in zip(names, looks, strict=True)],
        ncols=3,
        **BELOW,
    )
    said = "; ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in totals.items())
    share = 4 * matrix / totals["in three steps"]
    return figure, (
        f"Bars: bytes that one attention head of width {d_head} moves between chip and memory for "
        f"{T:,} tokens, blocks of {block_q} queries: {said}. In three steps {share:.0%} of it is "
        "scores and weights, written and read again; in tiles it is q, k, v and the output only."
    )


# ---- the tiles of a causal score matrix --------------------------------------------------------


def tile_map_figure(T: int, S: int, block_q: int, block_k: int) -> Drawn:
    """Which tiles are whole, on the edge of the mask, or skipped. Up to 24 queries, 40 keys."""
    require_between("T", T, 2, min(24, S))
    require_between("S", S, 1, 40)
    require_between("block_q", block_q, 1, T)
    require_between("block_k", block_k, 1, S)
    apply_style()
    cell = min(6.4 / S, 4.2 / T)
    figure, plot = plt.subplots(
        figsize=(max(6.8, 1.3 + cell * S), 1.75 + cell * T), layout="constrained"
    )
    figure.suptitle(
        f"{T} queries over {S} keys, tiles of {block_q} by {block_k}", x=0.01, ha="left"
    )
    found = dict.fromkeys(KINDS, 0)
    for top in range(0, T, block_q):
        for left in range(0, S, block_k):
            height, width = min(block_q, T - top), min(block_k, S - left)
            kind = tile_kind(S - T + top, height, left, width)
            found[kind] += 1
            plot.add_patch(Rectangle((left, top), width, height, **KINDS[kind]))
    edge_x = [x for t in range(T) for x in (S - T + t + 1, S - T + t + 1)]
    edge_y = [y for t in range(T) for y in (t, t + 1)]
    line: Look = {"color": INK, "linewidth": 2, "linestyle": "-", "marker": ""}
    plot.plot(edge_x, edge_y, **line, label="edge of the mask")
    plot.set(xlim=(0, S), ylim=(T, 0), xlabel="key (position)", ylabel="query (number)")
    plot.set_aspect("equal")
    plot.grid(False)
    plot.spines[:].set_visible(False)
    plot.set_xticks(range(0, S + 1, block_k))
    plot.set_yticks(range(0, T + 1, block_q))
    handles = [Patch(label=f"{kind}: {n}", **KINDS[kind]) for kind, n in found.items()]
    figure.legend(handles=[*handles, *plot.lines], ncols=4, **(BELOW | {"columnspacing": 1.1}))
    counts = ", ".join(f"{n} {kind}" for kind, n in found.items())
    return figure, (
        f"The score matrix of {T} queries over {S} keys, cut into tiles of {block_q} queries by "
        f"{block_k} keys. A staircase line is the edge of the causal mask. Tiles left of it are "
        f"whole, tiles that it crosses are masked in part, tiles right of it are skipped: {counts}."
    )


def tile_kind(position: int, n_queries: int, first_key: int, n_keys: int) -> str:
    """The kind of the tile whose first query stands at `position`."""
    if first_key + n_keys - 1 <= position:
        return "whole"
    return "on the edge" if first_key <= position + n_queries - 1 else "skipped"


# ---- a softmax that sees one block at a time ---------------------------------------------------


def running_stats_figure(blocks: Sequence[Numbers], maxima: Numbers, sums: Numbers) -> Drawn:
    """One row of scores in blocks, and the running maximum and sum after each of them.

    maxima, sums: one number for each block (2 to 8 blocks).
    """
    require_between("the number of blocks", len(blocks), 2, 8)
    if not len(blocks) == len(maxima) == len(sums):
        raise ValueError(f"{len(blocks)} blocks need as many maxima and sums")
    apply_style()
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(7.6, 5.0), layout="constrained", sharex=True, height_ratios=(3, 2)
    )
    figure.suptitle("One row of scores, seen block by block", x=0.01, ha="left", fontsize=14)
    ends = list(accumulate(len(block) for block in blocks))
    starts = [0, *ends[:-1]]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for plot in (top, bottom):
            if number % 2:
                plot.axvspan(start - 0.5, end - 0.5, color=PALE, zorder=0)
        middle = (start + end - 1) / 2
        bottom.bar(middle, sums[number], width=0.7 * (end - start), **ROWS)
        bottom.text(middle, sums[number], f"{sums[number]:.3g}", ha="center", va="bottom")
    scores = [score for block in blocks for score in block]
    top.plot(range(len(scores)), scores, color=INK, linestyle="", marker="o", label="score")
    edges = [x for s, e in zip(starts, ends, strict=True) for x in (s - 0.5, e - 0.5)]
    steps = [m for m in maxima for _ in range(2)]
    top.plot(edges, steps, color=RED, linestyle="-", marker="", label="maximum so far")
    top.set_ylabel("score (number)")
    bottom.set_ylabel("sum (number)")
    bottom.set_xlabel("key (position)")
    bottom.set_ylim(0, 1.25 * max(sums))
    bottom.set_xlim(-0.5, len(scores) - 0.5)
    bottom.set_xticks(starts)
    figure.legend(handles=top.lines, ncols=2, **BELOW)
    return figure, (
        f"Above: {len(scores)} scores in {len(blocks)} blocks, and the maximum so far as a line: "
        f"{listed([f'{m:.3g}' for m in maxima])} after each block. Below: bars of the sum so far, "
        f"relative to that maximum: {listed([f'{s:.3g}' for s in sums])}. Where the maximum rises, "
        "the old sum is scaled down."
    )


# ---- splits and their merge --------------------------------------------------------------------


def split_merge_figure(lengths: Sequence[int], lse: Numbers) -> Drawn:
    """Keys cut into splits, a partial result of each, and the weight it has in the merge.

    lengths: 2 to 4 splits, at least one key each; lse: the log-sum-exp of each split's scores.
    """
    require_between("the number of splits", len(lengths), 2, 4)
    if len(lse) != len(lengths) or min(lengths) < 1:
        raise ValueError(f"each of {len(lengths)} splits needs a key and an lse, given {list(lse)}")
    shares = split_shares(lse)
    apply_style()
    figure = plt.figure(figsize=(7.8, 4.3), layout="none")
    plot = figure.add_axes((0, 0, 1, 1))
    plot.set_axis_off()
    plot.set(xlim=(0, 7.8), ylim=(0, 4.3))
    _say(plot, 0.15, 4.03, "One query, its keys in splits, one merge", size=14)
    _say(plot, 0.15, 3.36, "keys", weight="bold")
    _say(plot, 0.15, 2.12, "each alone", weight="bold")
    _say(plot, 0.15, 0.95, "merged", weight="bold")
    left, total = 1.35, sum(lengths)
    room, gap = 6.25, 0.12
    centres = [left + room * (i + 0.5) / len(lengths) for i in range(len(lengths))]
    width = room / len(lengths) - gap
    for i, (length, centre) in enumerate(zip(lengths, centres, strict=True)):
        bar = max(0.52, width * length / max(lengths))
        plot.add_patch(Rectangle((centre - bar / 2, 3.17), bar, 0.38, **(ROWS | {"alpha": 0.35})))
        _say(plot, centre, 3.36, f"{length:,}", ha="center")
        _arrow(plot, centre, 3.13, centre, 2.5)
        box: Look = {"facecolor": PALE, "edgecolor": INK, "linewidth": 1}
        plot.add_patch(Rectangle((centre - width / 2, 1.76), width, 0.7, **box))
        _say(plot, centre, 2.27, f"out {i + 1}", ha="center", weight="bold")
        _say(plot, centre, 1.97, f"lse {lse[i]:.2f}", ha="center")
        _arrow(plot, centre, 1.72, centre, 1.2)
        _say(plot, centre + 0.07, 1.47, f"× {shares[i]:.3f}")
    plot.add_patch(Rectangle((left, 0.74), room - gap, 0.42, **ROWS))
    merged = max(lse) + math.log(sum(math.exp(x - max(lse)) for x in lse))
    _say(plot, left + room / 2, 0.95, f"out, lse {merged:.2f}", ha="center", weight="bold")
    _say(plot, 0.15, 0.35, "weight of a split = exp(its lse − merged lse); the weights sum to 1.")
    said = "; ".join(
        f"split {i + 1}: {length:,} keys, lse {x:.2f}, weight {share:.3f}"
        for i, (length, x, share) in enumerate(zip(lengths, lse, shares, strict=True))
    )
    return figure, (
        f"A diagram from top to bottom: {total:,} keys cut into {len(lengths)} splits; a partial "
        f"output and log-sum-exp of each; all merged into one output with weights. {said}; merged "
        f"lse {merged:.2f}."
    )


def split_shares(lse: Numbers) -> list[float]:
    """The share of the whole weight that each split has; they sum to 1."""
    weights = [math.exp(x - max(lse)) for x in lse]
    return [weight / sum(weights) for weight in weights]


def _say(
    plot: Axes, x: float, y: float, text: str, ha: str = "left", size: int = 12, **look: str
) -> None:
    plot.text(x, y, text, ha=ha, va="center", fontsize=size, **look)  # type: ignore[arg-type]


def _arrow(plot: Axes, x0: float, y0: float, x1: float, y1: float) -> None:
    plot.annotate("", (x1, y1), (x0, y0), arrowprops=ARROW)


# ---- measured growth ---------------------------------------------------------------------------

LOOKS: dict[str, Look] = {
    "plain": {"color": RED, "marker": "s", "linestyle": "-"},
    "tiled": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "fused": {"color": COLOURS[2], "marker": "^", "linestyle": "-"},
    "scores": {"color": INK, "marker": "", "linestyle": "--"},
}
NAMES = {
    "plain": "plain (NumPy)",
    "tiled": "your tiles (NumPy)",
    "fused": "PyTorch, fused",
    "scores": "score matrix, predicted",
}


def memory_growth_figure(
    lengths: Sequence[int], plain: Numbers, tiled: Numbers, fused: Numbers, scores: Numbers
) -> Drawn:
    """Peak bytes of three ways against the context, and the predicted score matrix."""
    series = {"plain": plain, "tiled": tiled, "fused": fused, "scores": scores}
    figure, _ = _growth("Memory held at once", lengths, series, "peak (MB)", 1e6)
    ends = "; ".join(f"{NAMES[n]} {format_bytes(s[-1])}" for n, s in series.items())
    return figure, (
        f"Peak memory against the context, {lengths[0]:,} to {lengths[-1]:,} tokens, on logarithmic"
        f" axes. At {lengths[-1]:,} tokens: {ends}."
    )


def time_growth_figure(
    lengths: Sequence[int], plain: Numbers, tiled: Numbers, fused: Numbers, device: str
) -> Drawn:
    """Seconds of three ways against the context."""
    series = {"plain": plain, "tiled": tiled, "fused": fused}
    figure, plot = _growth("Time of one head", lengths, series, "time (ms)", 1e-3)
    plot.set_title(device, fontsize=11, loc="left")
    figure.suptitle("Time of one attention head", x=0.01, ha="left", fontsize=14)
    ends = "; ".join(f"{NAMES[n]} {format_seconds(s[-1])}" for n, s in series.items())
    return figure, (
        f"Measured time of one attention head on {device} against the context, on logarithmic axes."
        f" At {lengths[-1]:,} tokens: {ends}."
    )


def _growth(
    title: str, lengths: Sequence[int], series: dict[str, Numbers], y: str, unit: float
) -> tuple[Figure, Axes]:
    _require_equal({"lengths": lengths, **series})
    figure, plot = axes(title, "context (tokens)", y, size=(7.6, 4.8))
    for name, values in series.items():
        plot.plot(lengths, [v / unit for v in values], label=NAMES[name], **LOOKS[name])
    _log(plot, lengths, [f"{n:,}" for n in lengths])
    figure.legend(ncols=2, **BELOW)
    return figure, plot


def _log(plot: Axes, ticks: Sequence[float], labels: Sequence[str]) -> None:
    plot.set_xscale("log")
    plot.set_yscale("log")
    plot.set_xticks(ticks, labels)
    plot.xaxis.set_minor_locator(NullLocator())
    low, high = plot.get_ylim()
    few = math.log10(high / low) > 2
    plot.yaxis.set_major_locator(LogLocator(subs=(1,) if few else (1, 2, 5), numticks=12))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.6g}"))
    plot.yaxis.set_minor_formatter(NullFormatter())


def _require_equal(series: dict[str, Numbers]) -> None:
    sizes = {name: len(values) for name, values in series.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(f"the series must be equally long and not empty; given {sizes}")
    for name, values in series.items():
        if not all(math.isfinite(v) and v > 0 for v in values):
            raise ValueError(f"{name} must be positive numbers, given {list(values)}")


# ---- traffic against on-chip memory ------------------------------------------------------------


def traffic_curve_figure(
    on_chip_bytes: Sequence[int], predicted: Numbers, counted: Numbers, standard_bytes: float
) -> Drawn:
    """Bytes moved against the size of the chip's memory: your formula, and what was counted."""
    _require_equal({"on_chip_bytes": on_chip_bytes, "predicted": predicted, "counted": counted})
    title = "More room on chip, less traffic"
    figure, plot = axes(title, "on-chip memory (KiB)", "bytes moved (MB)", size=(7.6, 4.8))
    kib = [b / 1024 for b in on_chip_bytes]
    plot.axhline(standard_bytes / 1e6, **(LOOKS["plain"] | {"marker": "", "linestyle": ":"}))
    plot.lines[-1].set_label("in three steps")
    plot.plot(kib, [b / 1e6 for b in predicted], **(LOOKS["scores"] | {"label": "your formula"}))
    dots: Look = {"color": BLUE, "marker": "o", "linestyle": "", "markersize": 8, "zorder": 4}
    plot.plot(kib, [b / 1e6 for b in counted], label="counted", **dots)
    plot.set_ylim(0.6 * min(counted) / 1e6, 1.8 * max(standard_bytes, *counted) / 1e6)
    _log(plot, kib, [f"{k:,.4g}" for k in kib])
    figure.legend(ncols=3, **BELOW)
    apart = max(abs(p - c) for p, c in zip(predicted, counted, strict=True))
    agrees = "exactly as counted" if apart == 0 else f"off by at most {apart:,.0f} bytes"
    return figure, (
        f"Bytes moved against on-chip memory, {kib[0]:,.4g} to {kib[-1]:,.4g} KiB, on logarithmic "
        f"axes: they fall from {format_bytes(counted[0])} to {format_bytes(counted[-1])}; the "
        f"formula is {agrees}. Three separate steps move {format_bytes(standard_bytes)}."
    )


traffic_bars = shown(traffic_bars_figure)
tile_map = shown(tile_map_figure)
running_stats = shown(running_stats_figure)
split_merge = shown(split_merge_figure)
memory_growth = shown(memory_growth_figure)
time_growth = shown(time_growth_figure)
traffic_curve = shown(traffic_curve_figure)
