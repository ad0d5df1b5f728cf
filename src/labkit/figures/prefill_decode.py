"""The figures of the lesson on the two phases of a generation.

As in look.py, name_figure(...) gives (figure, alt text) and name(...) shows it; the numbers of
the alt text come from the data. What cannot be drawn raises ValueError.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import accumulate, pairwise

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from labkit.figures.look import (
    BELOW,
    BLUE,
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
from labkit.figures.show import COLOURS, INK, apply_style, axes
from labkit.units import format_bytes, format_quantity, format_seconds

ORANGE = "#f7b27a"
STEP: Look = {"facecolor": ORANGE, "edgecolor": INK, "linewidth": 1, "hatch": "///"}
WEIGHTS: Look = {"facecolor": "#eef1f4", "edgecolor": INK, "linewidth": 1.2}
SPAN: Look = {"arrowstyle": "|-|", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
BOUND: Look = {"linestyle": "--", "marker": "", "linewidth": 1.8}


# ---- one request over time ---------------------------------------------------------------------


def request_timeline_figure(n_prompt: int, prefill_s: float, steps_s: Numbers) -> Drawn:
    """One request to scale: a prefill, then decode steps (2 to 24), and when each token comes."""
    require_between("the number of steps", len(steps_s), 2, 24)
    _require_positive({"seconds": [prefill_s, *steps_s]})
    ends = [1e3 * t for t in accumulate([prefill_s, *steps_s])]  # ms; token i + 1 comes at ends[i]
    apply_style()
    figure, plot = plt.subplots(figsize=(8, 3.6), layout=ConstrainedLayoutEngine(**ROOMY))
    figure.suptitle("One request: read the prompt, then write", x=0.01, ha="left", fontsize=15)
    plot.add_patch(Rectangle((0, 0), ends[0], 1, **NEW))
    for start, end in pairwise(ends):
        plot.add_patch(Rectangle((start, 0), end - start, 1, **STEP))
    plot.plot(ends, [1.22] * len(ends), linestyle="", marker="v", color=INK, markersize=7)
    _span(plot, 0, ends[0], -0.3, f"TTFT {ends[0]:.1f} ms")
    _span(plot, ends[0], ends[-1], -0.3, f"{len(steps_s)} steps, TPOT {_mean_gap(ends):.1f} ms")
    plot.text(0, 1.5, f"one output token comes at each ▼: {len(ends)} in all", fontsize=12)
    plot.set_xlim(-0.01 * ends[-1], 1.01 * ends[-1])
    plot.set_ylim(-0.95, 1.8)
    plot.set_yticks([])
    plot.grid(False)
    plot.spines["left"].set_visible(False)
    plot.set_xlabel("time since the request began to run (ms)")
    handles = [
        Patch(label=f"prefill: {token_count(n_prompt)} in one pass", **NEW),
        Patch(label="decode step: 1 token a pass", **STEP),
    ]
    figure.legend(handles=handles, ncols=2, **BELOW)
    return figure, (
        f"A time line, to scale. One wide block: the prefill of {token_count(n_prompt)}, "
        f"{ends[0]:.1f} ms (TTFT). Then {len(steps_s)} narrow blocks, one decode step each, "
        f"{_mean_gap(ends):.1f} ms on average (TPOT). A mark at the end of the prefill and of each "
        f"step, {len(ends)} in all: there an output token comes; the last one at {ends[-1]:.1f} ms."
    )


def _mean_gap(ends: Numbers) -> float:
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _span(plot: Axes, left: float, right: float, y: float, text: str) -> None:
    plot.annotate("", (right, y), (left, y), arrowprops=SPAN)
    plot.text((left + right) / 2, y - 0.42, text, ha="center", va="center", fontsize=12)


# ---- how often a weight is used ----------------------------------------------------------------


def weight_reuse_figure(n_rows: int = 2000, d_in: int = 4096, d_out: int = 4096) -> Drawn:
    """One weight matrix (bf16) under the rows of a prefill, and under the row of a decode step."""
    if min(n_rows, d_in, d_out) < 1:
        raise ValueError(f"{n_rows=}, {d_in=}, {d_out=} must all be 1 or more")
    apply_style()
    figure, panels = plt.subplots(1, 2, figsize=(8, 4.6), layout=ConstrainedLayoutEngine(**ROOMY))
    title = "The same weights are read: how often is each one used?"
    figure.suptitle(title, x=0.01, ha="left", fontsize=15)
    _product(panels[0], "prefill", n_rows, 1.7, d_in, d_out, NEW)
    _product(panels[1], "decode step", 1, 0.1, d_in, d_out, STEP)
    flops = [_flops(n, d_in, d_out) for n in (n_rows, 1)]
    return figure, (
        f"Two products of rows with one weight matrix of {d_in:,} × {d_out:,} numbers, "
        f"{format_bytes(2 * d_in * d_out)} in bf16. Prefill: a tall block of {n_rows:,} rows; each "
        f"weight is read once and used {n_rows:,} times, {flops[0]}. Decode step: a single row; "
        f"each weight is read once and used once, {flops[1]}. Both read the same bytes."
    )


def _product(
    plot: Axes, name: str, n_rows: int, height: float, d_in: int, d_out: int, look: Look
) -> None:
    """A picture of rows @ weights = rows, 4.6 units wide, and what it reads and computes."""
    plot.set_axis_off()
    plot.set_aspect("equal")
    plot.set_xlim(-0.1, 4.7)
    plot.set_ylim(-2.05, 2.35)
    plot.set_title(name, fontsize=13, weight="bold")
    plot.add_patch(Rectangle((0, 0.85 - height / 2), 1, height, **look))
    plot.add_patch(Rectangle((1.6, 0.35), 1, 1, **WEIGHTS))
    plot.add_patch(Rectangle((3.3, 0.85 - height / 2), 1, height, **look))
    for x, sign in ((1.3, "×"), (2.95, "=")):
        plot.text(x, 0.85, sign, ha="center", va="center", fontsize=16)
    plot.text(2.1, 0.85, "weights", ha="center", va="center", fontsize=12)
    rows = f"{n_rows:,} row{'s' if n_rows > 1 else ''}"
    plot.text(0.5, 0.85 + height / 2 + 0.28, rows, ha="center", va="center", fontsize=12)
    times = f"{n_rows:,} times" if n_rows > 1 else "once"
    lines = (
        f"read: {format_bytes(2 * d_in * d_out).split(' (')[0]} of weights",
        f"each weight is used {times}",
        f"computed: {_flops(n_rows, d_in, d_out)}",
    )
    for line, y in zip(lines, (-0.55, -1.05, -1.55), strict=True):
        plot.text(0, y, line, va="center", fontsize=12)


def _flops(n_rows: int, d_in: int, d_out: int) -> str:
    return format_quantity(2 * n_rows * d_in * d_out, "FLOP", 3)


# ---- the phases on the roofline ----------------------------------------------------------------


def phase_roofline_figure(
    labels: Sequence[str],
    intensities: Numbers,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
    device: str,
) -> Drawn:
    """Passes (2 to 8) on the roofline of a device, by their FLOP for each byte read."""
    _require_positive({"intensities": intensities, "labels": [1.0] * len(labels)})
    _require_positive({"device": [bandwidth_bytes_per_s, peak_flops_per_s]})
    require_between("the number of passes", len(labels), 2, 8)
    ridge = peak_flops_per_s / bandwidth_bytes_per_s
    title = f"Both phases on the roofline of {device}"
    x, y = "arithmetic intensity (FLOP/byte)", "at most (TFLOP/s)"
    figure, plot = axes(title, x, y, size=(7.8, 5.0))
    low, high = min(0.4, min(intensities) / 3), 4 * max(ridge, *intensities)
    roof = [low, ridge, high]
    speeds = [min(peak_flops_per_s, i * bandwidth_bytes_per_s) / 1e12 for i in roof]
    plot.plot(roof, speeds, color=INK, linestyle="-", marker="", linewidth=2.2)
    plot.axvline(ridge, color=INK, linestyle=":", linewidth=1.4)
    base = speeds[0] / 1.5
    plot.text(ridge * 0.9, base * 1.15, f"ridge {ridge:.0f}", ha="right", fontsize=12)
    said = []
    for number, (label, intensity) in enumerate(zip(labels, intensities, strict=True)):
        speed = min(peak_flops_per_s, intensity * bandwidth_bytes_per_s)
        bound = "reading" if intensity < ridge else "computing"
        look: Look = {"color": COLOURS[number % len(COLOURS)], "marker": "osD^vPXh"[number]}
        name = (
            f"{label}: {_plain(intensity)} FLOP/byte, {_percent(speed / peak_flops_per_s)} of peak"
        )
        plot.plot([intensity], [speed / 1e12], linestyle="", markersize=10, label=name, **look)
        said.append(f"{name}, bound by {bound}")
    plot.set_xscale("log")
    plot.set_yscale("log")
    plot.set_xlim(low, high)
    plot.set_ylim(base, 2.2 * speeds[-1])
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_formatter(FuncFormatter(_plain))
        axis.set_minor_formatter(NullFormatter())
    figure.legend(ncols=1, **(BELOW | {"handletextpad": 0.4}))
    return figure, (
        f"Roofline of {device} on logarithmic axes: a slope of "
        f"{format_quantity(bandwidth_bytes_per_s, 'B/s')} up to the ridge at {ridge:.0f} FLOP/byte"
        f", then flat at {format_quantity(peak_flops_per_s, 'FLOP/s')}. Passes: {'; '.join(said)}."
    )


# ---- workloads in seconds ----------------------------------------------------------------------


def workload_bars_figure(names: Sequence[str], prefill_s: Numbers, decode_s: Numbers) -> Drawn:
    """Each workload's seconds, split between the phases. names: 1 to 8, "chat: 200 in, 300 out"."""
    _require_positive({"prefill_s": prefill_s, "decode_s": decode_s})
    if len(names) != len(prefill_s) or len(set(names)) != len(names):
        raise ValueError(f"each of {len(prefill_s)} workloads needs a name of its own: {names}")
    require_between("the number of workloads", len(names), 1, 8)
    title, x = "Where the seconds of a request go", "share of its seconds (%)"
    figure, plot = axes(title, x, "request (tokens)", size=(7.8, 1.9 + 0.72 * len(names)))
    shares = [100 * p / (p + d) for p, d in zip(prefill_s, decode_s, strict=True)]
    places = range(len(names))
    plot.barh(places, shares, height=0.42, label="prefill", **NEW)
    plot.barh(places, [100 - s for s in shares], left=shares, height=0.42, label="decode", **STEP)
    said = []
    for row, (name, p, d) in enumerate(zip(names, prefill_s, decode_s, strict=True)):
        share = _percent(shares[row] / 100)
        both = f"prefill {format_seconds(p)} ({share}), decode {format_seconds(d)}"
        plot.text(0.7, row - 0.36, f"{name}: {both}", va="center", fontsize=12)
        said.append(f"{name}: {both}")
    plot.set_xlim(0, 100)
    plot.set_ylim(len(names) - 0.6, -0.65)
    plot.set_yticks([])
    plot.grid(False, axis="y")
    figure.legend(ncols=2, **BELOW)
    return figure, f"Bars, one a workload, split into prefill and decode. {'; '.join(said)}."


# ---- measured: tokens a second by prompt length ------------------------------------------------


def _with_the_knee(
    lengths: Sequence[int], bound_tok_s: Numbers, knee: int
) -> list[tuple[int, float]]:
    """The bound's points, and its corner: up to the knee it grows with the prompt's length."""
    points = dict(zip(lengths, bound_tok_s, strict=True))
    if lengths[0] < knee < lengths[-1]:
        points.setdefault(knee, min(bound_tok_s[0] * knee / lengths[0], max(bound_tok_s)))
    return sorted(points.items())


def phase_rates_figure(
    lengths: Sequence[int],
    prefill_tok_s: Numbers,
    bound_tok_s: Numbers,
    decode_tok_s: float,
    decode_bound_tok_s: float,
    knee: int,
    device: str,
) -> Drawn:
    """Prefill tokens a second by prompt length, measured and bound; decode's; and the knee."""
    series = {"lengths": lengths, "prefill_tok_s": prefill_tok_s, "bound_tok_s": bound_tok_s}
    _require_positive(series)
    _require_positive({"decode and knee": [decode_tok_s, decode_bound_tok_s, knee]})
    title = "Tokens a second: reading a prompt, and writing"
    x, y = "prompt length (tokens)", "speed (tokens/s)"
    figure, plot = axes(title, x, y, size=(7.8, 5.3))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(_wrapped(device), fontsize=11, pad=8)
    blue: Look = {"color": BLUE, "marker": "o", "linestyle": "-"}
    red: Look = {"color": RED, "marker": "", "linestyle": "-"}
    plot.plot(lengths, prefill_tok_s, label="prefill, measured", **blue)
    corners = _with_the_knee(lengths, bound_tok_s, knee)
    plot.plot(*zip(*corners, strict=True), label="prefill, at most", **(blue | BOUND))
    ends = [min(lengths), max(lengths)]
    plot.plot(ends, [decode_tok_s] * 2, label="decode, measured", **red)
    plot.plot(ends, [decode_bound_tok_s] * 2, label="decode, at most", **(red | BOUND))
    plot.axvline(knee, color=INK, linestyle=":", linewidth=1.6, label=f"knee: {knee:,} tokens")
    plot.set_xscale("log")
    plot.set_yscale("log")
    plot.set_xticks(list(lengths), [f"{n:,}" for n in lengths])
    plot.xaxis.set_minor_locator(NullLocator())
    plot.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    plot.yaxis.set_major_formatter(FuncFormatter(_plain))
    plot.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(ncols=3, handlelength=3, **BELOW)
    return figure, (
        f"Tokens a second on {device}, logarithmic axes, bounds dashed. Prefill: "
        f"{prefill_tok_s[0]:,.3g} at {token_count(lengths[0])}, {prefill_tok_s[-1]:,.3g} at "
        f"{token_count(lengths[-1])} (at most {bound_tok_s[-1]:,.3g}). Decode: {decode_tok_s:,.3g} "
        f"(at most {decode_bound_tok_s:,.3g}). A vertical line marks the knee at "
        f"{token_count(knee)}: shorter prompts are bound by reading the weights."
    )


# ---- measured: when the tokens of one generation came ------------------------------------------


def token_gaps_figure(
    gaps_s: Numbers, ttft_bound_s: float, tpot_bound_s: float, device: str
) -> Drawn:
    """The wait before each output token of one generation: TTFT first, then every gap (ITL)."""
    _require_positive({"gaps_s": gaps_s})
    _require_positive({"bounds": [ttft_bound_s, tpot_bound_s]})
    require_between("the number of tokens", len(gaps_s), 2, 100)
    title = "How long each token of one answer took"
    figure, plot = axes(title, "output token (number)", "wait before it (ms)", size=(7.8, 4.9))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(_wrapped(device), fontsize=11, pad=8)
    waits = [1e3 * gap for gap in gaps_s]
    rest = range(2, len(waits) + 1)
    width = max(0.35, len(waits) / 120)
    plot.bar([1], waits[:1], width=0.8, label="TTFT: the prefill", **NEW)
    plot.bar(rest, waits[1:], width=0.8, label="ITL: one decode step each", **STEP)
    bound: Look = {"color": RED, "linestyle": "--", "marker": "", "linewidth": 2.2}
    plot.plot([1 - width, 1 + width], [1e3 * ttft_bound_s] * 2, label="lower bound", **bound)
    plot.plot([1.6, len(waits) + 0.4], [1e3 * tpot_bound_s] * 2, **bound)
    plot.set_xlim(0.3, len(waits) + 0.7)
    plot.set_xticks(sorted({1, *range(5, len(waits) + 1, max(5, 5 * (len(waits) // 40)))}))
    plot.grid(False, axis="x")
    figure.legend(ncols=3, **BELOW)
    mean = sum(gaps_s[1:]) / (len(gaps_s) - 1)
    return figure, (
        f"Bars on {device}: the wait before each of {len(waits)} output tokens. The first, TTFT: "
        f"{format_seconds(gaps_s[0])} (lower bound {format_seconds(ttft_bound_s)}). The others, "
        f"one decode step each: {format_seconds(mean)} on average, "
        f"{format_seconds(min(gaps_s[1:]))} to {format_seconds(max(gaps_s[1:]))} "
        f"(lower bound {format_seconds(tpot_bound_s)})."
    )


# ---- shared ------------------------------------------------------------------------------------


def _plain(value: float, _: object = None) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _percent(share: float) -> str:
    """Two significant digits: 0.0034 -> "0.34 %", 1.0 -> "100 %"."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def _wrapped(device: str) -> str:
    return textwrap.fill(device, 88)


def _require_positive(series: dict[str, Numbers]) -> None:
    """Raise ValueError unless all are of one length, not empty, finite and more than 0."""
    lengths = {name: len(values) for name, values in series.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"the series must be equally long and not empty; given {lengths}")
    for name, values in series.items():
        for value in values:
            if not math.isfinite(value) or value <= 0:
                raise ValueError(
                    f"{name} holds {value!r}; needed: numbers above 0 ({listed(values)})"
                )


request_timeline = shown(request_timeline_figure)
weight_reuse = shown(weight_reuse_figure)
phase_roofline = shown(phase_roofline_figure)
workload_bars = shown(workload_bars_figure)
phase_rates = shown(phase_rates_figure)
token_gaps = shown(token_gaps_figure)
