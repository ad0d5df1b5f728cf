"""The figures of the lesson on latency: token times, tails, limits, arrivals, the hockey stick.

As in look.py, name_figure(...) gives (figure, alt text) and name(...) shows it. What a colour
says is said by a marker, a hatch or a word too; the numbers of the alt text come from the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from inferlab.latency_metrics import RequestTrace
from labkit.figures.look import BELOW, BLUE, GREY, RED, Drawn, Look, Numbers, shown
from labkit.figures.show import COLOURS, INK, ORANGE, PALE, axes
from labkit.units import format_seconds

SPAN: Look = {"arrowstyle": "<|-|>", "color": INK, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
TOKEN: Look = {"linestyle": "", "marker": "o", "markersize": 9, "color": BLUE}
GOOD: Look = {"linestyle": "", "marker": "o", "markersize": 7, "color": BLUE}
BAD: Look = {"linestyle": "", "marker": "X", "markersize": 8, "color": RED}
PARTS: dict[str, Look] = {
    "in the queue": {"facecolor": PALE, "edgecolor": GREY, "hatch": "..."},
    "prefill": {"facecolor": ORANGE, "edgecolor": INK, "hatch": "///"},
    "decoding": {"facecolor": "#cfe2f6", "edgecolor": BLUE},
}

MARKS: dict[str, Look] = {
    "mean": {"color": COLOURS[2], "linestyle": "-."},
    "p50": {"color": COLOURS[4], "linestyle": ":"},
    "p95": {"color": COLOURS[3], "linestyle": "--"},
    "p99": {"color": RED, "linestyle": "-"},
}

# ---- one request ---------------------------------------------------------------------------------


def token_timeline_figure(trace: RequestTrace) -> Drawn:
    """One request on a line: when it came, waited, was prefilled, and wrote each token.

    Needs a start and 3 to 12 tokens; raises ValueError otherwise.
    """
    n, start = len(trace.token_times_s), trace.start_s
    if start is None or not 3 <= n <= 12:
        raise ValueError(f"needs a start and 3 to 12 tokens, given start_s={start}, {n} tokens")
    times = 1e3 * (np.array(trace.token_times_s) - trace.arrival_s)
    begun, first, last = 1e3 * (start - trace.arrival_s), float(times[0]), float(times[-1])
    figure, plot = axes(
        "One request, as its user feels it", "since the request arrived (ms)", "event (kind)",
        size=(7.8, 4.0),
    )  # fmt: skip
    ends = {"in the queue": (0.0, begun), "prefill": (begun, first), "decoding": (first, last)}
    for name, (left, right) in ends.items():
        plot.add_patch(Rectangle((left, -0.22), right - left, 0.44, linewidth=1, **PARTS[name]))
    plot.plot(times, np.zeros(n), **TOKEN)
    gaps = np.diff(times)
    worst = int(np.argmax(gaps))
    _span(plot, 0.0, first, 1.15, f"TTFT {first:.0f} ms")
    _span(plot, first, last, 1.15, f"{n - 1} gaps, mean = TPOT {gaps.mean():.0f} ms")
    _span(plot, float(times[worst]), float(times[worst + 1]), 0.55, f"ITL {gaps[worst]:.0f} ms")
    _span(plot, 0.0, last, 1.8, f"end to end {last:.0f} ms")
    for i, x in enumerate(times, 1):
        plot.text(x, -0.36, str(i), ha="center", va="top")
    plot.set_yticks([])
    plot.set_ylabel("")
    plot.set_ylim(-0.85, 2.25)
    plot.set_xlim(-0.02 * last, 1.03 * last)
    plot.grid(False)
    looks = [Patch(label=name, **look) for name, look in PARTS.items()]
    figure.legend(handles=[*looks, plot.lines[0]], labels=[*PARTS, "token"], ncols=4, **BELOW)
    return figure, (
        f"A time line of one request with {n} tokens: {begun:.0f} ms in the queue, prefill until "
        f"{first:.0f} ms, then tokens until {last:.0f} ms. TTFT {first:.0f} ms, queue included; "
        f"TPOT {gaps.mean():.0f} ms, the mean of {n - 1} gaps; the largest gap, between tokens "
        f"{worst + 1} and {worst + 2}, is {gaps[worst]:.0f} ms; end to end {last:.0f} ms."
    )


def _span(plot: Axes, left: float, right: float, y: float, text: str) -> None:
    plot.annotate("", (right, y), (left, y), arrowprops=SPAN)
    plot.text((left + right) / 2, y + 0.08, text, ha="center", va="bottom")


# ---- a distribution ------------------------------------------------------------------------------


def tail_figure(
    values_s: Numbers, of: Callable[[Sequence[float], float], float], name: str = "TTFT"
) -> Drawn:
    """A histogram of latencies, with their mean and the percentiles 50, 95 and 99 by `of`."""
    values = [float(value) for value in values_s]
    if len(values) < 20 or not all(map(math.isfinite, values)):
        raise ValueError(f"needs 20 finite values or more, given {len(values)}")
    marks = {"mean": sum(values) / len(values)}
    marks |= {f"p{p}": of(values, p) for p in (50, 95, 99)}
    title = f"{len(values):,} requests: where the mean lies, and the tail"
    figure, plot = axes(title, f"{name} (ms)", "share (%)")
    top = 1.05 * max(values) * 1e3
    weights = np.full(len(values), 100 / len(values))
    heights, _, _ = plot.hist(
        [1e3 * v for v in values], bins=40, range=(0, top), weights=weights,
        color="#cfe2f6", edgecolor=BLUE, linewidth=0.8,
    )  # fmt: skip
    high = float(np.max(heights))
    # The leftmost mark is the highest, so that its words pass over the others.
    for i, label in enumerate(sorted(marks, key=marks.__getitem__)):
        value, height = 1e3 * marks[label], high * (1.36 - 0.1 * i)
        plot.plot([value] * 2, [0, height], marker="", **MARKS[label])
        plot.text(value + 0.012 * top, height, f"{label} {value:.0f} ms", va="top", ha="left")
    plot.set_ylim(0, 1.42 * high)
    plot.set_xlim(0, 1.16 * top)
    said = ", ".join(f"{label} {format_seconds(value)}" for label, value in marks.items())
    return (
        figure,
        f"Histogram of {name} of {len(values):,} requests and where they lie: {said}.",
    )


# ---- limits --------------------------------------------------------------------------------------


def goodput_region_figure(
    ttfts_s: Numbers, tpots_s: Numbers, max_ttft_s: float, max_tpot_s: float
) -> Drawn:
    """Each request as a point (TTFT, TPOT): good are those within both limits."""
    x, y = 1e3 * np.asarray(ttfts_s, dtype=float), 1e3 * np.asarray(tpots_s, dtype=float)
    if x.shape != y.shape or x.size == 0:
        raise ValueError(f"as many TTFTs as TPOTs, 1 or more: given {x.size} and {y.size}")
    in_time, steady = x <= 1e3 * max_ttft_s, y <= 1e3 * max_tpot_s
    good = in_time & steady
    title = f"{good.sum()} of {x.size} requests keep both limits"
    figure, plot = axes(title, "TTFT (ms)", "TPOT (ms a token)", size=(7.2, 4.6))
    plot.add_patch(
        Rectangle(
            (0, 0), 1e3 * max_ttft_s, 1e3 * max_tpot_s,
            facecolor="#e3eefa", edgecolor=BLUE, linewidth=1.5, zorder=0,
        )
    )  # fmt: skip
    plot.plot(x[good], y[good], **GOOD, label="good")
    plot.plot(x[~good], y[~good], **BAD, label="too late in one or both")
    plot.set_xlim(0, 1.1 * max(x.max(), 1e3 * max_ttft_s))
    plot.set_ylim(0, 1.15 * max(y.max(), 1e3 * max_tpot_s))
    figure.legend(ncols=2, **BELOW)
    return figure, (
        f"Scatter of {x.size} requests by TTFT and TPOT. Limits {format_seconds(max_ttft_s)} and "
        f"{format_seconds(max_tpot_s)} a token make a rectangle: {good.sum()} requests lie in it. "
        f"{in_time.sum()} keep the TTFT limit, {steady.sum()} the TPOT limit, "
        f"{(in_time | steady).sum()} at least one."
    )


# ---- arrivals ------------------------------------------------------------------------------------


def arrival_patterns_figure(patterns: Mapping[str, Numbers], seconds: float) -> Drawn:
    """A row of ticks for each pattern of arrivals, from 0 to `seconds`. Up to five patterns."""
    if not 1 <= len(patterns) <= 5:
        raise ValueError(f"1 to 5 patterns can be drawn, given {len(patterns)}")
    size = (7.8, 1.7 + 0.75 * len(patterns))
    figure, plot = axes("When requests come", "time (s)", "arrivals (pattern)", size=size)
    said = []
    for row, (name, times) in enumerate(patterns.items()):
        inside = [t for t in times if 0 <= t < seconds]
        colour = COLOURS[row % len(COLOURS)]
        plot.vlines(inside, row - 0.32, row + 0.32, color=colour, linewidth=1.6)
        in_a_second = np.bincount(np.floor(inside).astype(int), minlength=math.ceil(seconds))
        said.append(f"{name}: {len(inside)} requests, at most {in_a_second.max()} in a second")
    plot.set_yticks(range(len(patterns)), list(patterns))
    plot.set_ylabel("")
    plot.set_ylim(len(patterns) - 0.45, -0.55)
    plot.set_xlim(0, seconds)
    plot.grid(False, axis="y")
    return figure, f"Ticks on a time line of {seconds:g} s, a row a pattern. {'; '.join(said)}."


# ---- latency against load ------------------------------------------------------------------------


def hockey_stick_figure(
    rates_per_s: Numbers,
    measured_s: Mapping[str, Numbers],
    title: str,
    served_per_s: float,
    curve_s: Callable[[float], float] | None = None,
) -> Drawn:
    """Latencies against the rate of arrivals, log scale, with a line at the rate served.

    curve_s: what a model gives for a rate below served_per_s, drawn dashed. Raises ValueError for
    series of another length than the rates, and numbers that are not above 0.
    """
    for name, values in measured_s.items():
        if len(values) != len(rates_per_s) or min(values) <= 0:
            raise ValueError(f"{name}: needs {len(rates_per_s)} numbers above 0")
    figure, plot = axes(title, "arrivals (requests/s)", "latency (ms, log)", size=(7.8, 4.6))
    for i, (name, values) in enumerate(measured_s.items()):
        look: Look = {"color": COLOURS[i], "marker": ("o", "s", "^", "D")[i % 4]}
        plot.plot(rates_per_s, [1e3 * v for v in values], label=name, linestyle="-", **look)
    if curve_s is not None:
        x = np.linspace(0.02, 0.985, 60) * served_per_s
        y = [1e3 * curve_s(float(rate)) for rate in x]
        plot.plot(x, y, color=INK, linestyle="--", marker="", label="M/M/1 with that rate")
    plot.axvline(served_per_s, color=GREY, linestyle=":", marker="", linewidth=2)
    plot.set_yscale("log")
    plot.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    plot.yaxis.set_minor_formatter(NullFormatter())
    plot.set_xlim(0, 1.08 * max(*rates_per_s, served_per_s))
    plot.text(
        served_per_s, 1.01, f"served at most: {served_per_s:.1f}/s", ha="right", va="bottom",
        transform=plot.get_xaxis_transform(),
    )  # fmt: skip
    plot.set_title(title, pad=26)
    figure.legend(ncols=4, **BELOW)
    said = "; ".join(
        f"{name} from {format_seconds(values[0])} at {rates_per_s[0]:.1f} requests/s to "
        f"{format_seconds(values[-1])} at {rates_per_s[-1]:.1f}"
        for name, values in measured_s.items()
    )
    model = " A dashed curve shows an M/M/1 queue with that rate." if curve_s else ""
    return figure, (
        f"Latency against arrivals, with a line at {served_per_s:.1f} requests/s served at most. "
        f"{said}.{model}"
    )


def two_clocks_figure(arrivals_s: Numbers, open_s: Numbers, closed_s: Numbers) -> Drawn:
    """The same requests timed twice: from when the user asked, and from when they were sent."""
    if not len(arrivals_s) == len(open_s) == len(closed_s) > 0:
        raise ValueError("needs as many arrivals as latencies of both kinds, 1 or more")
    figure, plot = axes(
        "One overloaded run, two clocks", "when the user asked (s)", "TTFT (ms)", size=(7.8, 4.2)
    )
    plot.plot(
        arrivals_s, [1e3 * v for v in open_s], **BAD, label="from when the user asked (open loop)"
    )
    plot.plot(
        arrivals_s, [1e3 * v for v in closed_s], **GOOD, label="from when it was sent (closed loop)"
    )
    plot.set_ylim(bottom=0)
    figure.legend(ncols=2, **BELOW)
    return figure, (
        f"TTFT of the same {len(arrivals_s)} requests. Counted from when the user asked it goes up "
        f"to {format_seconds(max(open_s))}; counted from when a slot was free and the request was "
        f"sent, never above {format_seconds(max(closed_s))}."
    )


token_timeline = shown(token_timeline_figure)
tail = shown(tail_figure)
goodput_region = shown(goodput_region_figure)
arrival_patterns = shown(arrival_patterns_figure)
hockey_stick = shown(hockey_stick_figure)
two_clocks = shown(two_clocks_figure)
