"""The explorer's three pictures: memory, roofline, tokens a second. And their words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from labkit.explorer.setting import PRECISIONS
from labkit.explorer.state import BATCHES, Pass, State, curves, roof
from labkit.figures.look import GREY
from labkit.figures.show import COLOURS, INK, ORANGE, PALE, STYLE
from labkit.units import format_quantity

Look = dict[str, Any]
BLUE, RED, PURPLE, DEEP = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3]
GRID, PAPER = "#dfe2e6", "#ffffff"
# A colour as it is drawn -> the custom property by which the page changes it.
PROPERTIES = {
    INK: "ink", PAPER: "paper", GRID: "grid", GREY: "grey", PALE: "pale", BLUE: "blue", RED: "red",
    PURPLE: "purple", DEEP: "deep", ORANGE: "cache",
}  # fmt: skip
PARTS: dict[str, Look] = {
    "weights": {"facecolor": BLUE, "edgecolor": INK},
    "KV cache": {"facecolor": ORANGE, "edgecolor": INK, "hatch": ".."},
    "headroom": {"facecolor": PALE, "edgecolor": GREY, "hatch": "xx"},
    "free": {"facecolor": PAPER, "edgecolor": GREY},
    "does not fit": {"facecolor": PAPER, "edgecolor": RED, "hatch": "////"},
}
_SMALL = 11
PLACED_STYLE: Any = {**STYLE, "figure.constrained_layout.use": False}  # every plot has its place


# ---- memory ------------------------------------------------------------------------------------


def memory_parts(state: State) -> dict[str, float]:
    """Bytes of each part, as they are stacked in the bar. The free part, or what is missing, last.

    "does not fit" is that part of the others which lies beyond the memory's end.
    """
    parts = {
        "weights": state.weight_bytes,
        "KV cache": state.cache_bytes,
        "headroom": state.headroom_bytes,
        "free": max(0.0, state.left_bytes),
        "does not fit": max(0.0, -state.left_bytes),
    }
    return {name: size for name, size in parts.items() if size}


def verdict(state: State) -> str:
    """Whether it fits, in a few words."""
    if state.fits:
        return f"fits, {gigabytes(state.left_bytes)} left"
    return f"does not fit, {gigabytes(-state.left_bytes)} short"


def gigabytes(n_bytes: float) -> str:
    """Bytes in GB, also thousands of them; less than one in what is smaller."""
    if n_bytes < 1e9:
        return format_quantity(n_bytes, "B", 3)
    return f"{n_bytes / 1e9:,.0f} GB" if n_bytes >= 1e12 else f"{n_bytes / 1e9:.4g} GB"


def prepare_memory(plot: Axes) -> None:
    plot.set_ylim(-0.12, 1.3)
    plot.set_yticks([])
    plot.spines["left"].set_visible(False)
    plot.grid(False)
    plot.tick_params(labelsize=_SMALL)


def draw_memory(plot: Axes, state: State) -> None:
    """One bar: what is held, what stays free, and what does not fit."""
    limit, parts = state.memory_bytes / 1e9, memory_parts(state)
    total = max(limit, state.needed_bytes / 1e9)
    edge = min(1.04 * total, 2.2 * limit)
    start = 0.0
    for name in (name for name in parts if name != "does not fit"):
        stop = min(start + parts[name] / 1e9, edge)
        inside = max(start, min(stop, limit))
        for left, right, part in ((start, inside, name), (inside, stop, "does not fit")):
            if right > left:
                box = Rectangle((left, 0), right - left, 1, linewidth=1, **PARTS[part])
                plot.add_patch(box)
        start = stop
    plot.plot([limit, limit], [-0.12, 1.3], color=INK, linestyle="--", linewidth=2, marker="")
    look: Look = {"ha": "right", "va": "bottom", "fontsize": _SMALL, "weight": "bold"}
    plot.text(limit - 0.006 * edge, 1.06, f"{limit:,.0f} GB", **look)
    if total > edge:
        frame = {"boxstyle": "round,pad=0.25", "facecolor": PAPER, "edgecolor": RED}
        text = f"needs {total:,.0f} GB →"
        plot.text(edge * 0.99, 0.5, text, ha="right", va="center", fontsize=_SMALL, bbox=frame)
    plot.set_xlim(0, edge)
    _title(plot, f"Memory in GB: {verdict(state)}", 17, RED if not state.fits else INK)


def draw_keys(figure: Figure, state: State, x: float, y: float, width: float) -> None:
    """The parts of the bar by name, with their sizes, from height y down; all in inches."""
    parts = memory_parts(state)
    w, h = figure.get_size_inches()
    columns = max(4, len(parts)) if width > 7 else 2
    for place, (name, size) in enumerate(parts.items()):
        left = x + place % columns * width / columns
        y -= 0.27 * (place > 0 and place % columns == 0)
        box: Look = {"transform": figure.transFigure, "linewidth": 1, **PARTS[name]}
        figure.add_artist(Rectangle((left / w, (y - 0.08) / h), 0.26 / w, 0.16 / h, **box))
        text = f"{name} {gigabytes(size)}"
        figure.text((left + 0.33) / w, y / h, text, va="center", fontsize=_SMALL)


def memory_alt(state: State) -> str:
    return (
        f"A bar of the memory of {state.setting.record['name']}, {gigabytes(state.memory_bytes)}: "
        f"weights {gigabytes(state.weight_bytes)}, KV cache {gigabytes(state.cache_bytes)}"
        + (f", headroom {gigabytes(state.headroom_bytes)}" if state.headroom_bytes else "")
        + f". It {verdict(state)}."
    )


# ---- the roofline ------------------------------------------------------------------------------


def prepare_roofline(plot: Axes) -> None:
    _log_axes(plot, "arithmetic intensity (FLOP/byte)", "attainable (TFLOP/s)")


def draw_roofline(plot: Axes, state: State) -> None:
    """The device's roof, decode and prefill on it, and where the batch moves decode."""
    d, trail = state.deployment, curves(state.setting)
    least = 0.1 * min(1.0, *trail.intensities)
    most = 4 * max(state.ridge * 20, state.prefill.intensity)
    corners = (least, state.ridge, most)
    heights = [roof(d, i) / 1e12 for i in corners]
    plot.plot(corners, heights, color=INK, linestyle="-", marker="", linewidth=2)
    attained = [flops / 1e12 for flops in trail.attained]
    plot.plot(trail.intensities, attained, color=BLUE, linestyle="-", marker="", linewidth=7,
              alpha=0.3, solid_capstyle="round")  # fmt: skip
    plot.axvline(state.ridge, color=GREY, linestyle=(0, (1, 2)), marker="", linewidth=1.6, zorder=1)
    for name, (step, colour, marker) in _points(state).items():
        height = roof(d, step.intensity) / 1e12
        face = colour if state.fits or name == "prefill" else PAPER
        plot.plot([step.intensity], [height], marker=marker, color=colour, markersize=11, zorder=4,
                  clip_on=False,
                  markerfacecolor=face, markeredgecolor=INK, linestyle="")  # fmt: skip
        _name(plot, name, {"xy": (step.intensity, height), **_beside(step, name)})
    plot.set_xlim(least, most)
    plot.set_ylim(0.5 * heights[0], 2.2 * d.peak_flops_per_s / 1e12)
    rows = [_said(name, state, step.intensity) for name, (step, *_) in _points(state).items()]
    _rows(plot, rows)
    _title(plot, f"Roofline: ridge at {state.ridge:,.0f} FLOP/byte", 44)


def _points(state: State) -> dict[str, tuple[Any, str, str]]:
    return {"decode": (state.decode, BLUE, "o"), "prefill": (state.prefill, DEEP, "s")}


def _said(name: str, state: State, intensity: float) -> str:
    share = roof(state.deployment, intensity) / state.deployment.peak_flops_per_s
    percent = f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"
    digits = ",.0f" if intensity >= 100 else ".3g"
    return f"{name}: {intensity:{digits}} FLOP/byte, {percent} of the peak"


def _beside(step: Pass, name: str) -> Look:
    """Where a point's name stands: decode's above the roof, prefill's below it."""
    side = 1 if name == "decode" else -1
    va = "bottom" if side > 0 else "top"
    if step.bound == "compute":  # on the flat part
        return {"xytext": (0, 9 * side), "ha": "center", "va": va}
    return {"xytext": (-9 * side, 2 * side), "ha": "right" if side > 0 else "left", "va": va}


def roofline_alt(state: State) -> str:
    d = state.deployment
    said = "; ".join(_said(n, state, step.intensity) for n, (step, *_) in _points(state).items())
    peak = format_quantity(d.peak_flops_per_s, "FLOP/s")
    return (
        f"The roofline of {state.setting.record['name']} in {PRECISIONS[state.setting.precision]}: "
        f"{format_quantity(d.bandwidth_bytes_per_s, 'B/s')}, at most {peak}, ridge at "
        f"{state.ridge:,.0f} FLOP/byte. It shows {said}. A band shows where decoding lies with "
        f"1 to {BATCHES[-1]:,} sequences."
    )


# ---- tokens a second ---------------------------------------------------------------------------


def prepare_speed(plot: Axes) -> None:
    _log_axes(plot, "batch (sequences)", "speed (tokens/s)")
    plot.set_xticks((1, 4, 16, 64, 256, 1024), ["1", "4", "16", "64", "256", "1k"])


def draw_speed(plot: Axes, state: State) -> None:
    """Tokens a second of one user and of all, by batch; where memory ends and compute begins."""
    c, first, last = curves(state.setting), BATCHES[0], curves(state.setting).batches[-1]
    is_plain = state.setting.gamma == 0
    above: Look = {"xy": (last, c.all_per_s[-1]), "xytext": (-2, 5), "ha": "right", "va": "bottom"}
    _series(plot, state, c.all_per_s, {"color": DEEP, "linestyle": "-"}, "D")
    _name(plot, "all together", above)
    below: Look = {"xy": (last, c.user_per_s[-1]), "xytext": (-4, -4), "ha": "right", "va": "top"}
    if not is_plain:  # a third line, and it ends where the name would stand
        below |= {"xy": (first, c.user_per_s[0]), "xytext": (4, -5), "ha": "left"}
        look: Look = {"color": GREY, "linestyle": (0, (1, 1)), "marker": "", "linewidth": 1.4}
        plot.plot(c.batches, c.plain_user_per_s, **look)
    _series(plot, state, c.user_per_s, {"color": BLUE, "linestyle": "--"}, "o")
    _name(plot, "each user", below)
    plot.set_xlim(first, last)
    plot.set_ylim(min(*c.user_per_s, *c.plain_user_per_s) / 2, max(c.all_per_s) * 2.2)
    _limits(plot, state, first, last)
    _title(plot, "Tokens a second, at most" if is_plain else "Tokens/s (grey: no draft)", 44)


def _series(plot: Axes, state: State, values: Sequence[float], look: Look, marker: str) -> None:
    """One line, dotted where memory has ended, and a mark at the batch of the setting."""
    batches, n = curves(state.setting).batches, state.setting.n_sequences
    n_fit = sum(batch <= state.fits_sequences for batch in batches)
    beyond = slice(max(0, n_fit - 1), None)
    dotted: Look = {**look, "linestyle": ":", "linewidth": 1.5, "marker": ""}
    plot.plot(batches[beyond], values[beyond], **dotted)
    if n_fit:
        plot.plot(batches[:n_fit], values[:n_fit], linewidth=2.6, marker="", **look)
    face = look["color"] if state.fits else PAPER
    plot.plot([n], [values[batches.index(n)]], color=look["color"], linestyle="", marker=marker,
              markersize=9, markerfacecolor=face, markeredgecolor=INK, zorder=4,
              clip_on=False)  # fmt: skip


def _name(plot: Axes, text: str, where: Look) -> None:
    plot.annotate(text, textcoords="offset points", fontsize=_SMALL, weight="bold", **where)


def _limits(plot: Axes, state: State, first: int, last: int) -> None:
    """The two marks, and a word for each in a row of its own above the plot."""
    fits, begins = state.fits_sequences, state.compute_from
    if fits < last:
        left = max(first, fits)
        plot.axvspan(left, last, facecolor=PALE, edgecolor=GRID, hatch="//", linewidth=0, zorder=0)
        plot.axvline(left, color=RED, linestyle="-.", linewidth=2, marker="")
    if begins is not None and begins <= last:
        plot.axvline(begins, color=PURPLE, linestyle=":", linewidth=2.4, marker="")
    _rows(plot, [memory_ends(state), compute_begins(state)], (RED, PURPLE))


def memory_ends(state: State) -> str:
    fits = state.fits_sequences
    if not fits:
        return "memory: not even one sequence fits"
    return f"memory ends (–·–) after {fits:,}"


def compute_begins(state: State) -> str:
    """From which batch a plain decode step computes longer than it reads."""
    plain = ", no draft" if state.setting.gamma else ""
    if state.compute_from is None:
        return f"compute-bound (···): at no batch{plain}"
    return f"compute-bound (···) from {state.compute_from:,}{plain}"


def limits_said(state: State) -> str:
    """Both limits as a sentence, without the marks by which the picture shows them."""
    ends, begins = memory_ends(state), compute_begins(state)
    return f"{ends.replace(' (–·–)', '').capitalize()}; {begins.replace(' (···)', '')}."


def speed_alt(state: State) -> str:
    s = state.setting
    speculating = f", {state.gain:.2f} times as fast by speculation" if s.gamma else ""
    return (
        f"Tokens a second by batch, on logarithmic axes. With {s.n_sequences:,} of {s.n_tokens:,} "
        f"tokens each user gets at most {state.user_per_s:,.1f} and all together "
        f"{state.all_per_s:,.0f}{speculating}. {limits_said(state)}"
    )


# ---- shared ------------------------------------------------------------------------------------


def _title(plot: Axes, text: str, pad: float, colour: str = INK) -> None:
    # With y given, matplotlib does not look for a free place: the dearest part of a redraw.
    plot.set_title(text, y=1, pad=pad, fontsize=13, color=colour, weight="bold")


def _rows(plot: Axes, texts: list[str], colours: tuple[str, ...] = (INK, INK)) -> None:
    """Lines of text between the title and the plot."""
    for row, (text, colour) in enumerate(zip(texts, colours, strict=True)):
        plot.annotate(text, (0, 1), (0, 24 - 17 * row), xycoords="axes fraction", color=colour,
                      textcoords="offset points", va="bottom", fontsize=_SMALL)  # fmt: skip


def _log_axes(plot: Axes, x: str, y: str) -> None:
    """Two logarithmic axes with these labels, at a fixed distance: that too is quicker."""
    plot.set_xscale("log")
    plot.set_yscale("log")
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_locator(LogLocator(numticks=7))
        axis.set_major_formatter(FuncFormatter(_tick))
        axis.set_minor_locator(NullLocator())
    plot.tick_params(labelsize=_SMALL)
    plot.set_xlabel(x)
    plot.set_ylabel(y)
    plot.xaxis.set_label_coords(0.5, -34 / plot.bbox.height)
    plot.yaxis.set_label_coords(-47 / plot.bbox.width, 0.5)


def _tick(value: float, _: Any = None) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


# ---- all three -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """What is drawn once (prepare), what is drawn for a state, and its words."""

    prepare: Callable[[Axes], None]
    draw: Callable[[Axes, State], None]
    alt: Callable[[State], str]


PICTURES = {
    "memory": Picture(prepare_memory, draw_memory, memory_alt),
    "roofline": Picture(prepare_roofline, draw_roofline, roofline_alt),
    "speed": Picture(prepare_speed, draw_speed, speed_alt),
}


def alt_text(state: State) -> str:
    """All three in words."""
    return " ".join(picture.alt(state) for picture in PICTURES.values())
