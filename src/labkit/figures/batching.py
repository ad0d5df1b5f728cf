"""The curves of the lesson on batching: speed against the batch, and a served trace over time.

Each comes as a pair: name_figure(...) gives (figure, alt text), and name(...) shows it. Series of
unequal length and numbers that cannot be drawn raise ValueError. The pictures of how the engine
works are in batching_pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from inferlab.serve.engine import StepRecord
from labkit.figures.look import BELOW, BLUE, BOUND, GREY, RED, Drawn, Look, Numbers, listed, shown
from labkit.figures.show import COLOURS, INK, LINES, apply_style, axes

STATIC: Look = {"color": RED, "linestyle": "--", "marker": "", "linewidth": 1.6}
ENGINE: Look = {"color": BLUE, "linestyle": "-", "marker": "", "linewidth": 2.2}
THIN: Look = {"color": INK, "linestyle": ":", "marker": "", "linewidth": 1.6}


def batch_curve_figure(
    batches: Sequence[int],
    speeds: Mapping[int, Sequence[tuple[float, float]]],
    memory_ends: Mapping[int, int],
    compute_begins: Mapping[int, int | None],
) -> Drawn:
    """Tokens/s of one user and of all against the batch, one line for each context.

    speeds: context -> (one user, all) for each batch. memory_ends: context -> the largest batch
    that fits; compute_begins: context -> the batch at which arithmetic is the limit, or None.
    A line is solid as far as memory goes and faint beyond.
    """
    if any(len(rows) != len(batches) for rows in speeds.values()) or len(speeds) > 4:
        raise ValueError(f"give up to 4 contexts, each with {len(batches)} pairs of speeds")
    apply_style()
    figure, panels = plt.subplots(1, 2, figsize=(8, 4.9), layout="constrained")
    figure.suptitle("Decoding speed against the batch", x=0.01, ha="left", fontsize=14)
    said = []
    for i, (context, rows) in enumerate(speeds.items()):
        end, begin = memory_ends[context], compute_begins[context]
        for side, plot in enumerate(panels):
            values = [row[1 - side] for row in rows]
            _curve(plot, batches, values, end, begin, COLOURS[i], LINES[i])
        roof = f"compute-bound from {begin:,}" if begin else "never compute-bound"
        said.append(f"{context:,} tokens: memory ends at {end:,}, {roof}")
    for plot, name in zip(panels, ("all users (tokens/s)", "one user (tokens/s)"), strict=True):
        plot.set(xscale="log", yscale="log", xlabel="batch (sequences)", ylabel=name)
        for axis in (plot.xaxis, plot.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
            axis.set_minor_formatter(NullFormatter())
    dashes: tuple[Any, ...] = LINES
    lines = [
        Line2D(
            [], [], color=COLOURS[i], linestyle=dashes[i], marker="", label=f"{context:,} tokens"
        )
        for i, context in enumerate(speeds)
    ]
    marks = [
        Line2D([], [], color=INK, linestyle="", marker="X", markersize=9, label="memory ends"),
        Line2D([], [], color=INK, linestyle="", marker="^", markersize=9, label="compute begins"),
    ]
    figure.legend(handles=[*lines, *marks], ncols=3, **BELOW)
    return figure, (
        "Two log-log plots against the batch, one line for each context: tokens a second of all "
        f"users rise and flatten, those of one user fall. {'; '.join(said)}. Beyond the end of "
        "memory the lines are faint."
    )


def _curve(
    plot: Axes,
    batches: Sequence[int],
    values: Numbers,
    end: int,
    begin: int | None,
    colour: str,
    line: Any,
) -> None:
    def at(batch: int) -> float:
        """The curve between two batches, as a log-log plot draws it."""
        return float(np.exp(np.interp(np.log(batch), np.log(batches), np.log(values))))

    marked = {end: "X"} | ({begin: "^"} if begin else {})
    marked = {b: mark for b, mark in marked.items() if batches[0] <= b <= batches[-1]}
    points = sorted({*batches, *marked})
    look: Look = {"color": colour, "marker": ""}
    beyond = [b for b in points if b >= end]
    fits = [b for b in points if b <= end]
    plot.plot(beyond, [at(b) for b in beyond], alpha=0.3, linewidth=1.5, linestyle="-", **look)
    plot.plot(fits, [at(b) for b in fits], linestyle=line, **look)
    for batch, mark in marked.items():
        plot.plot(batch, at(batch), color=colour, marker=mark, markersize=10, linestyle="")


def batch_speeds_figure(
    batches: Sequence[int], measured: Numbers, bound: Numbers, device: str
) -> Drawn:
    """Tokens/s of all users, measured, beside the bound, for a few batches."""
    if not len(batches) == len(measured) == len(bound) >= 2:
        raise ValueError(f"{len(batches)} batches need as many measurements and bounds, 2 or more")
    figure, plot = axes(
        "All users together", "batch (sequences)", "speed (tokens/s)", size=(7.2, 4.4)
    )
    x = range(len(batches))
    plot.bar(x, measured, width=0.6, facecolor=BLUE, edgecolor=INK, linewidth=1)
    for i, (value, top) in enumerate(zip(measured, bound, strict=True)):
        plot.plot([i - 0.36, i + 0.36], [top, top], color=RED, **(BOUND | {"linewidth": 2.4}))
        plot.text(i + 0.39, value, f"{value:,.0f}", va="center", weight="bold")
    plot.set_xticks(list(x), [str(b) for b in batches])
    plot.set_xlim(-0.5, len(batches) - 0.2)
    plot.set_ylim(0, 1.12 * max(*measured, *bound))
    plot.grid(False, axis="x")
    line = Line2D([], [], color=RED, linestyle="--", marker="", label="bound")
    bar = Patch(label="measured", facecolor=BLUE, edgecolor=INK)
    figure.legend(handles=[bar, line], ncols=2, title=device, alignment="left", **BELOW)
    pairs = [
        f"batch {b}: {m:,.0f} tokens/s measured, bound {t:,.0f}"
        for b, m, t in zip(batches, measured, bound, strict=True)
    ]
    return figure, f"Bars of the speed of all users together on {device}. {'; '.join(pairs)}."


def run_over_time_figure(
    records: Sequence[StepRecord],
    n_seats: int,
    n_pages: int,
    page_size: int,
    static_busy: Sequence[int],
) -> Drawn:
    """A served trace, step by step: seats, pages, and empty slots in the pages of who runs.

    static_busy: seats that do work in each step of static batching on the same trace.
    """
    if len(records) < 2:
        raise ValueError(f"a run of {len(records)} steps cannot be drawn over time")
    apply_style()
    figure, (seats, pages, waste) = plt.subplots(
        3, 1, figsize=(7.8, 7.2), layout="constrained", sharex=True, height_ratios=(3, 3, 2)
    )
    figure.suptitle("A trace with random arrivals, served", x=0.01, ha="left", fontsize=14)
    steps = range(len(records))
    running = [r.n_running for r in records]
    seats.plot(range(len(static_busy)), static_busy, drawstyle="steps-post", **STATIC)
    seats.plot(steps, running, drawstyle="steps-post", **ENGINE)
    seats.set(ylabel="working (seats)", ylim=(0, n_seats * 1.1))
    kept = [r.n_pages_kept for r in records]
    used = [r.n_pages_used - r.n_pages_kept for r in records]
    pages.stackplot(
        steps, used, kept, colors=[BLUE, "#dfe2e6"], edgecolor=GREY, step="post", linewidth=0.3
    )
    pages.axhline(n_pages, **THIN)
    pages.set(ylabel="in use (pages)", ylim=(0, n_pages * 1.12))
    share = [
        100 * r.n_empty_slots / max(1, page_size * (r.n_pages_used - r.n_pages_kept))
        for r in records
    ]
    waste.plot(steps, share, drawstyle="steps-post", **ENGINE)
    waste.set(ylabel="empty slots (%)", xlabel="step (number)", ylim=(0, max(10, *share) * 1.1))
    handles = [
        Line2D([], [], label="continuous, measured", **ENGINE),
        Line2D([], [], label="static, simulated", **STATIC),
        Patch(label="pages of who runs", facecolor=BLUE, edgecolor=GREY),
        Patch(label="kept by the prefix cache", facecolor="#dfe2e6", edgecolor=GREY),
        Line2D([], [], label="all pages", **THIN),
    ]
    figure.legend(handles=handles, ncols=3, **BELOW)
    said = listed([f"preemptions: {sum(r.n_preempted for r in records)}",
                   f"at most {max(used)} of {n_pages} pages held by those who run",
                   f"{sum(share) / len(share):.0f} % of their slots empty on average"])  # fmt: skip
    return figure, (
        f"Three plots over {len(records)} steps. Seats at work: {sum(running) / len(records):.1f} "
        f"of {n_seats} on average with continuous batching; static batching takes "
        f"{len(static_busy)} steps, with {sum(static_busy) / len(static_busy):.1f}. "
        f"Pages and empty slots: {said}."
    )


batch_curve = shown(batch_curve_figure)
batch_speeds = shown(batch_speeds_figure)
run_over_time = shown(run_over_time_figure)
