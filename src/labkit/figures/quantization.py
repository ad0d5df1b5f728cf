"""The figures of the lesson on quantization.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. What a colour
says is said by a marker, a hatch or a word too; the numbers of the alt text come from the data.
Series of unequal length, empty ones and numbers that cannot be drawn raise ValueError.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from labkit.figures.look import BELOW, HELD, KEPT, NEW, Drawn, Look, Numbers, shown
from labkit.figures.show import COLOURS, INK, apply_style, axes

BLUE, RED, PURPLE, GREY = COLOURS[0], COLOURS[1], COLOURS[2], "#8a8f98"
DOTS: Look = {"linestyle": "", "markersize": 7}


def step_bytes_figure(names: Sequence[str], weights_gb: Numbers, cache_gb: Numbers) -> Drawn:
    """Bytes that a decode step reads, weights and cache, one bar a format; the first is 1x."""
    _require({"names": names, "weights_gb": weights_gb, "cache_gb": cache_gb})
    title = "Bytes that one decode step reads"
    figure, plot = axes(title, "read in one step (GB)", "format (name)", size=(7.6, 4.4))
    rows = range(len(names))
    plot.barh(rows, weights_gb, height=0.6, label="weights", **NEW)
    plot.barh(rows, cache_gb, left=weights_gb, height=0.6, label="cache", **KEPT)
    totals = [w + c for w, c in zip(weights_gb, cache_gb, strict=True)]
    gains = [totals[0] / total for total in totals]
    for row, total, gain in zip(rows, totals, gains, strict=True):
        plot.text(total + 0.01 * max(totals), row, f" {total:.2f} GB, {gain:.2f}x", va="center")
    plot.set_yticks(rows, names)
    plot.invert_yaxis()
    plot.set_xlim(0, 1.32 * max(totals))
    plot.grid(False, axis="y")
    figure.legend(ncols=2, **BELOW)
    said = [
        f"{n}: {w:.2f} GB of weights, {c:.2f} GB of cache, {g:.2f} times as fast as the first."
        for n, w, c, g in zip(names, weights_gb, cache_gb, gains, strict=True)
    ]
    return figure, f"Stacked bars, bytes read in one decode step. {' '.join(said)}"


def shared_step_figure(weights: Numbers, steps: Mapping[str, float]) -> Drawn:
    """Where the same weights land on the levels of several scales: name -> step."""
    _require({"weights": weights, "steps": list(steps.values())}, equal=False)
    apply_style()
    figure, panels = plt.subplots(len(steps), 1, figsize=(7.6, 2.2 * len(steps)), sharex=True)
    figure.suptitle("The same weights on the levels of two scales", x=0.01, ha="left", fontsize=14)
    said = []
    largest = max(abs(w) for w in weights)
    reach = 1.08 * max(largest, *(step * round(largest / step) for step in steps.values()))
    for plot, (name, step) in zip(np.atleast_1d(panels), steps.items(), strict=True):
        rounded = [step * round(w / step) for w in weights]
        n_zero = sum(r == 0 for r in rounded)
        _landing(plot, weights, rounded, step, reach)
        zeros = f"{n_zero} of {len(weights)} weights become 0"
        plot.set_title(f"{name}: step {step:.3g}, {zeros}", fontsize=12, pad=6)
        said.append(f"{name}: levels {step:.3g} apart, {zeros}.")
    plot.set_xlabel("weight (standard deviations)")
    return figure, f"Weights as dots, their rounded values below on tick marks. {' '.join(said)}"


def _landing(plot: Axes, weights: Numbers, rounded: Numbers, step: float, reach: float) -> None:
    n = math.floor(reach / step)
    levels = [step * k for k in range(-n, n + 1)]
    plot.vlines(levels, -0.18, 0.18, color=GREY, linewidth=1.2 if step > 0.2 else 0.5)
    for w, r in zip(weights, rounded, strict=True):
        plot.plot([w, r], [1, 0.2], color=INK, linewidth=0.8, linestyle="-", marker="")
    plot.plot(weights, [1] * len(weights), color=BLUE, marker="o", **DOTS)
    plot.plot(rounded, [0] * len(rounded), color=RED, marker="s", **DOTS)
    plot.set_yticks([0, 1], ["stored", "weight"])
    plot.set_ylim(-0.5, 1.5)
    plot.set_xlim(-reach, reach)
    plot.grid(False)


def channel_errors_figure(per_tensor: Numbers, per_channel: Numbers, whole: float) -> Drawn:
    """Relative error of each output channel, with one scale in all and with one for each."""
    _require({"per_tensor": per_tensor, "per_channel": per_channel})
    title = "int8: how far off is each output channel?"
    figure, plot = axes(title, "output channel (number)", "relative error (%)", size=(7.6, 4.8))
    places = range(len(per_tensor))
    percent = [[100 * e for e in errors] for errors in (per_tensor, per_channel)]
    plot.plot(places, percent[0], color=RED, marker="s", label="one scale in all", **DOTS)
    plot.plot(places, percent[1], color=BLUE, marker="o", label="one scale a channel", **DOTS)
    plot.axhline(100 * whole, color=INK, linestyle="--", label="whole matrix, one scale in all")
    _log_percent(plot)
    figure.legend(ncols=3, **BELOW)
    return figure, (
        f"Relative error of {len(per_tensor)} output channels on a logarithmic axis. One scale in "
        f"all: median {np.median(percent[0]):.3g} %, from {min(percent[0]):.2g} to "
        f"{max(percent[0]):.3g} %. One scale a channel: from {min(percent[1]):.2g} to "
        f"{max(percent[1]):.2g} %. The whole matrix with one scale, a dashed line: "
        f"{100 * whole:.3g} %."
    )


def _log_percent(plot: Axes) -> None:
    plot.set_yscale("log")
    low, high = plot.get_ylim()
    plot.set_ylim(low / 1.4, high * 1.6)
    plot.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    plot.yaxis.set_minor_formatter(NullFormatter())


def nibble_layout_figure(codes: Sequence[int]) -> Drawn:
    """How the codes of one column, -8 .. 7, share bytes: an even number of them, at most 8."""
    if len(codes) % 2 or not 2 <= len(codes) <= 8 or not all(-8 <= c <= 7 for c in codes):
        raise ValueError(f"codes must be 2, 4, 6 or 8 numbers from -8 to 7, given {list(codes)}")
    apply_style()
    figure, plot = plt.subplots(figsize=(7.6, 0.9 + 0.75 * len(codes)), layout="constrained")
    plot.set_title("Two 4-bit codes in one byte", pad=14)
    said = []
    for i in range(0, len(codes), 2):
        low, high = codes[i] & 15, codes[i + 1] & 15
        byte = low | high << 4
        for row, code, look in ((i, codes[i], NEW), (i + 1, codes[i + 1], KEPT)):
            _box(plot, 0, row, 1.6, look)
            plot.text(0.8, row, f"row {row}: {code}", ha="center", va="center", **_plate())
        for place, half, look in ((3.2, high, KEPT), (4.8, low, NEW)):
            _box(plot, place, i + 0.5, 1.6, look)
            label = f"{half:04b}"
            plot.text(place + 0.8, i + 0.5, label, ha="center", va="center", **_plate())
        arrow = {"arrowstyle": "->", "color": INK, "linewidth": 1.2}
        plot.annotate("", (3.15, i + 0.6), (1.65, i + 1), arrowprops=arrow)
        plot.annotate("", (5.0, i + 0.08), (1.65, i), arrowprops=arrow)
        plot.text(6.6, i + 0.5, f"= 0x{byte:02X} = {byte}", va="center")
        said.append(f"{codes[i]} and {codes[i + 1]} make {high:04b} {low:04b}, byte {byte}.")
    plot.text(4.0, -0.72, "high half", ha="center")
    plot.text(5.6, -0.72, "low half", ha="center")
    plot.set_xlim(-0.1, 8.4)
    plot.set_ylim(len(codes) - 0.4, -0.95)
    plot.axis("off")
    return figure, (
        "Codes of one column, each even row in the low half of a byte, the odd row after it in "
        f"the high half. {' '.join(said)}"
    )


def _plate() -> Look:
    return {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 2}}


def _box(plot: Axes, x: float, row: float, width: float, look: Look) -> None:
    plot.add_patch(Rectangle((x, row - 0.36), width, 0.72, **look))


def rounding_error_figure(
    magnitudes: Numbers, errors: Mapping[str, Numbers], title: str = "How well is a number kept?"
) -> Drawn:
    """Largest relative rounding error in each octave (2**e to 2**(e + 1)), one curve a format."""
    for name, values in errors.items():
        _require({"magnitudes": magnitudes, name: values})
    figure, plot = axes(title, "number (value)", "relative error (%)", size=(7.6, 4.8))
    octaves = np.frexp(np.asarray(magnitudes))[1] - 1
    edges = [2.0**e for e in range(octaves.min(), octaves.max() + 2)]
    looks = zip((BLUE, RED, PURPLE), ("-", "--", ":"), strict=True)
    said = []
    for (name, values), (colour, line) in zip(errors.items(), looks, strict=False):
        found = [100 * np.asarray(values)[octaves == e].max() for e in np.unique(octaves)]
        plot.stairs(
            found, edges, baseline=None, color=colour, linestyle=line, linewidth=2.4, label=name
        )
        parts = [f"{p:.3g} % at {e:g}" for p, e in zip(found[::4], edges[::4], strict=False)]
        said.append(f"{name}: {', '.join(parts)}.")
    plot.set_xscale("log")
    plot.set_yscale("log")
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
        axis.set_minor_formatter(NullFormatter())
    figure.legend(ncols=3, **BELOW)
    return figure, (
        f"Largest relative rounding error in each octave, both axes logarithmic. {' '.join(said)}"
    )


def error_by_bits_figure(
    bits: Sequence[int], expected: Numbers, measured: Mapping[str, Numbers]
) -> Drawn:
    """Relative error against bits: theory as a line, measurements as markers."""
    title = "Every bit halves the error, as long as steps are short"
    figure, plot = axes(title, "bits of a code (bits)", "relative error (%)", size=(7.6, 4.8))
    _require({"bits": bits, "expected": expected})
    percent = [100 * e for e in expected]
    plot.plot(bits, percent, color=INK, linestyle="--", marker="", label="expected")
    looks = zip((BLUE, RED), ("o", "s"), strict=True)
    said = [
        f"Expected: {', '.join(f'{b} bits {p:.3g} %' for b, p in zip(bits, percent, strict=True))}."
    ]
    for (name, values), (colour, marker) in zip(measured.items(), looks, strict=False):
        _require({"bits": bits, name: values})
        plot.plot(bits, [100 * v for v in values], color=colour, marker=marker, label=name, **DOTS)
        ends = f"{100 * values[0]:.3g} % at {bits[0]} bits, {100 * values[-1]:.3g} % at {bits[-1]}"
        said.append(f"{name}: {ends}.")
    _log_percent(plot)
    plot.set_xticks(list(bits))
    figure.legend(ncols=3, **BELOW)
    return figure, f"Relative error against the number of bits. {' '.join(said)}"


def quality_bars_figure(
    names: Sequence[str], perplexities: Numbers, bits_per_weight: Numbers, model: str
) -> Drawn:
    """Perplexity of one text, one bar a scheme; the first is the model as it was.

    A bar of more than three times the first is cut off there, and its number says so.
    """
    _require({"names": names, "perplexities": perplexities, "bits_per_weight": bits_per_weight})
    title = f"Perplexity of {model} by scheme"
    height = 1.6 + 0.44 * len(names)
    figure, plot = axes(title, "perplexity (lower is better)", "scheme (name)", size=(7.8, height))
    rows, cap = range(len(names)), 3 * perplexities[0]
    for row, value in zip(rows, perplexities, strict=True):
        cut = value > cap
        look = HELD if row == 0 else KEPT if cut else NEW
        plot.barh(row, min(value, cap), height=0.62, **look)
        beside: Look = {"xytext": (5, 0), "textcoords": "offset points"}
        text = f"{_number(value)} (cut off)" if cut else _number(value)
        plot.annotate(text, (min(value, cap), row), va="center", **beside)
    labels = [f"{n} ({b:.4g} bits)" for n, b in zip(names, bits_per_weight, strict=True)]
    plot.set_yticks(rows, labels)
    plot.set_xlim(0, 1.55 * min(cap, max(perplexities)))
    plot.invert_yaxis()
    plot.grid(False, axis="y")
    plot.axvline(perplexities[0], color=INK, linestyle="--", linewidth=1.2)
    said = [f"{n}: {_number(v)}" for n, v in zip(labels, perplexities, strict=True)]
    return figure, f"Bars, perplexity of {model}. {'; '.join(said)}."


def _number(value: float) -> str:
    """Four digits, or whole thousands: 9.067, 273,733."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def protected_figure(names: Sequence[str], aware: Numbers, random: Numbers) -> Drawn:
    """Output error beside plain rounding (1.0): scales by activation, and the same at random."""
    _require({"names": names, "aware": aware, "random": random})
    title = "Protecting channels: the right ones, and random ones"
    y = "output error (times plain rounding)"
    figure, plot = axes(title, "matrices (layer, input)", y, size=(7.8, 5))
    places = range(len(names))
    plot.plot(places, aware, color=BLUE, marker="o", label="by activations", **DOTS)
    plot.plot(places, random, color=RED, marker="s", label="random channels", **DOTS)
    plot.axhline(1, color=INK, linestyle="--", label="plain rounding")
    plot.set_yscale("log")
    plot.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    plot.yaxis.set_minor_formatter(NullFormatter())
    low, high = min(*aware, *random), max(*aware, *random)
    plot.set_ylim(0.8 * low, 1.25 * high)
    ticks = [t for t in (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10) if 0.8 * low <= t <= 1.25 * high]
    plot.set_yticks(ticks)
    plot.set_xticks(places, names, rotation=35, ha="right")
    figure.legend(ncols=3, **BELOW)
    return figure, (
        f"Output error of 4-bit weights relative to plain rounding, for {len(names)} inputs. "
        f"Scales by activations: {min(aware):.2f} to {max(aware):.2f}. The same scales on random "
        f"channels: {min(random):.2f} to {max(random):.2f}."
    )


def decode_times_figure(
    names: Sequence[str], measured_s: Numbers, bound_s: Numbers, device: str
) -> Drawn:
    """Seconds of one decode step beside the time that reading its bytes takes, by format."""
    _require({"names": names, "measured_s": measured_s, "bound_s": bound_s})
    title = "Time of one decode step"
    figure, plot = axes(title, "format (name)", "time of one step (ms)", size=(7.6, 4.8))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(textwrap.fill(device, 84), fontsize=11, pad=8)
    places = np.arange(len(names))
    plot.bar(places - 0.2, [1e3 * s for s in measured_s], 0.38, label="measured", **NEW)
    plot.bar(places + 0.2, [1e3 * s for s in bound_s], 0.38, label="reading alone", **KEPT)
    top = 1e3 * max(*measured_s, *bound_s)
    for shift, seconds in ((-0.2, measured_s), (0.2, bound_s)):
        for place, s in zip(places, seconds, strict=True):
            plot.text(place + shift, 1e3 * s + 0.015 * top, f"{1e3 * s:.3g}", ha="center")
    plot.set_xticks(places, names)
    plot.set_ylim(0, 1.12 * top)
    plot.grid(False, axis="x")
    figure.legend(ncols=2, **BELOW)
    said = [
        f"{n}: {1e3 * m:.3g} ms, reading alone {1e3 * b:.3g} ms"
        for n, m, b in zip(names, measured_s, bound_s, strict=True)
    ]
    return figure, f"Bars, time of one decode step on {device}. {'; '.join(said)}."


def _require(series: Mapping[str, Sequence], equal: bool = True) -> None:
    lengths = {name: len(values) for name, values in series.items()}
    if 0 in lengths.values() or (equal and len(set(lengths.values())) > 1):
        raise ValueError(f"series must be of equal length and not empty, given {lengths}")
    for name, values in series.items():
        numbers = [v for v in values if not isinstance(v, str)]
        if not all(math.isfinite(v) for v in numbers):
            raise ValueError(f"{name} has a number that cannot be drawn: {numbers}")


step_bytes: Callable[..., None] = shown(step_bytes_figure)
shared_step: Callable[..., None] = shown(shared_step_figure)
channel_errors: Callable[..., None] = shown(channel_errors_figure)
nibble_layout: Callable[..., None] = shown(nibble_layout_figure)
rounding_error: Callable[..., None] = shown(rounding_error_figure)
error_by_bits: Callable[..., None] = shown(error_by_bits_figure)
quality_bars: Callable[..., None] = shown(quality_bars_figure)
protected: Callable[..., None] = shown(protected_figure)
decode_times: Callable[..., None] = shown(decode_times_figure)
