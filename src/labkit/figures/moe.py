"""The figures of the lesson on mixtures of experts.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. What a colour
says is said by a marker, a hatch or a number too; the numbers of the alt text come from the data.
Series of unequal length, empty ones and numbers that cannot be drawn raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from labkit.figures.look import BELOW, BLUE, GREY, Drawn, Look, Numbers, shown
from labkit.figures.show import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    ORANGE,
    PALE,
    SHADES,
    SKY,
    apply_style,
    axes,
)

# ---- held and used ------------------------------------------------------------------------------


def held_and_used_figure(models: Mapping[str, tuple[float, float]]) -> Drawn:
    """Memory of all weights and of those that a token uses; models: name -> both, in bytes."""
    _require(dict(models))
    title = "Weights held, weights used by one token"
    size = (7.6, 1.9 + 0.42 * len(models))
    figure, plot = axes(title, "weights in bf16 (GB)", "model (name)", size=size)
    rows = range(len(models))
    held, used = ([pair[i] / 1e9 for pair in models.values()] for i in (0, 1))
    plot.hlines(rows, used, held, color=GREY, linewidth=2, zorder=2)
    dots: Look = {"linestyle": "", "markersize": 10, "zorder": 3}
    plot.plot(used, rows, color=BLUE, marker="o", label="used by one token", **dots)
    plot.plot(held, rows, color=COLOURS[1], marker="s", label="held in memory", **dots)
    for row, (h, u) in enumerate(zip(held, used, strict=True)):
        beside: Look = {"textcoords": "offset points", "va": "center", "fontsize": 11}
        plot.annotate(_gb(u), (u, row), (-10, 0), ha="right", **beside)
        plot.annotate(f"{_gb(h)}  (1 in {h / u:.1f})", (h, row), (10, 0), ha="left", **beside)
    plot.set_xscale("log")
    plot.set_xlim(min(used) / 4, max(held) * 22)
    plot.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    plot.xaxis.set_minor_locator(NullLocator())
    plot.set_yticks(rows, list(models))
    plot.set_ylim(len(models) - 0.4, -0.6)
    plot.grid(False, axis="y")
    figure.legend(ncols=2, **BELOW)
    said = [f"{name} {_gb(h)} and {_gb(u)}" for name, h, u in zip(models, held, used, strict=True)]
    return figure, (
        "Two marks for each model on a logarithmic axis, joined by a line: GB of weights held in "
        f"memory, and GB that one token uses. {'; '.join(said)}."
    )


def _gb(gigabytes: float) -> str:
    return f"{gigabytes:,.0f}" if gigabytes >= 10 else f"{gigabytes:.1f}"


# ---- who takes whom -----------------------------------------------------------------------------


def routing_figure(
    words: Sequence[str], experts: np.ndarray, weights: np.ndarray, n_experts: int
) -> Drawn:
    """Lines from tokens to the experts they chose, as thick as the weight; 1 to 8 tokens.

    experts, weights: (n_tokens, n_chosen)
    """
    if not 1 <= len(words) <= 8 or not 2 <= n_experts <= 10:
        raise ValueError(
            f"{len(words)} tokens and n_experts={n_experts} must be 1 to 8 and 2 to 10"
        )
    if experts.shape != weights.shape or len(experts) != len(words):
        raise ValueError(f"{experts.shape=} and {weights.shape=} must be ({len(words)}, n_chosen)")
    apply_style()
    figure, plot = plt.subplots(figsize=(7.6, 1.2 + 0.47 * max(len(words), n_experts)))
    plot.axis("off")
    tall = max(len(words), n_experts)
    at_word = [(i + 0.5) * tall / len(words) for i in range(len(words))]
    at_expert = [(i + 0.5) * tall / n_experts for i in range(n_experts)]
    for start, chosen, shares in zip(at_word, experts, weights, strict=True):
        _links(plot, start, [at_expert[e] for e in chosen], [float(w) for w in shares])
    for word, y in zip(words, at_word, strict=True):
        _box(plot, 0, y, word, SKY)
    for expert, y in enumerate(at_expert):
        n = int((experts == expert).sum())
        _box(plot, 6, y, f"expert {expert}: {n} row{'s' * (n != 1)}", ORANGE if n else PALE)
    plot.text(0, -0.35, "tokens", ha="center", va="bottom", weight="bold", fontsize=12)
    plot.text(6, -0.35, "experts", ha="center", va="bottom", weight="bold", fontsize=12)
    plot.set_title("Who goes where, and with which weight", pad=22)
    plot.set_xlim(-1.3, 7.4)
    plot.set_ylim(tall + 0.2, -0.4)
    said = [
        f"{word}: " + ", ".join(f"expert {e} with {w:.2f}" for e, w in zip(es, ws, strict=True))
        for word, es, ws in zip(words, experts, weights, strict=True)
    ]
    idle = [str(e) for e in range(n_experts) if not (experts == e).any()]
    return figure, (
        "Tokens on the left, experts on the right, a line for each choice, as thick as its weight. "
        f"{'; '.join(said)}. Without tokens: {', '.join(idle) or 'none'}."
    )


def _links(plot: Axes, start: float, ends: Sequence[float], weights: Sequence[float]) -> None:
    """The lines of one token; each leaves from beside its weight, the upper one to the upper."""
    gap = 0.66 / max(2, len(ends))
    order = np.argsort(ends, kind="stable")
    for rank, choice in enumerate(order):
        y, weight = start + (rank - (len(ends) - 1) / 2) * gap, weights[choice]
        plot.text(1.2, y, f"{weight:.2f}", ha="left", va="center", fontsize=11, zorder=3)
        look: Look = {"linewidth": 0.8 + 6 * weight, "solid_capstyle": "butt", "zorder": 1}
        plot.plot([1.85, 4.9], [y, ends[choice]], color=GREY, linestyle="-", marker="", **look)


def _box(plot: Axes, x: float, y: float, text: str, face: str, wide: float = 2.1) -> None:
    look: Look = {"facecolor": face, "edgecolor": INK, "linewidth": 1, "zorder": 2}
    plot.add_patch(Rectangle((x - wide / 2, y - 0.33), wide, 0.66, **look))
    plot.text(x, y, text, ha="center", va="center", fontsize=12, zorder=3)


# ---- how evenly ---------------------------------------------------------------------------------


def use_map_figure(share: np.ndarray, entropy_bits: Sequence[float], title: str) -> Drawn:
    """Each expert's share of the choices, layer by layer; (n_layers, n_experts), rows sum to 1."""
    share = np.asarray(share, dtype=float)
    if share.ndim != 2 or not np.allclose(share.sum(axis=1), 1) or (share < 0).any():
        raise ValueError("share must be (n_layers, n_experts) with rows that sum to 1")
    n_layers, n_experts = share.shape
    if len(entropy_bits) != n_layers:
        raise ValueError(f"{len(entropy_bits)} entropies must be {n_layers}, one a layer")
    size = (7.6, 1.9 + 0.62 * n_layers)
    figure, plot = axes(title, "expert (number)", "layer (number)", size=size)
    top = max(0.01, share.max())
    plot.imshow(share, cmap=SHADES, vmin=0, vmax=top, aspect="auto")
    for layer in range(n_layers):
        for expert in range(n_experts):
            value = share[layer, expert]
            text = f"{100 * value:.0f} %"
            plot.text(expert, layer, text, ha="center", va="center", fontsize=12)
        plot.text(n_experts - 0.3, layer, f"{entropy_bits[layer]:.2f} bits", va="center")
    plot.text(n_experts - 0.3, -0.62, "entropy", va="bottom", fontsize=12, weight="bold")
    plot.set_xlim(-0.5, n_experts + 0.9)
    plot.set_xticks(range(n_experts))
    plot.set_yticks(range(n_layers))
    plot.grid(False)
    for side in ("left", "bottom"):
        plot.spines[side].set_visible(False)
    said = [
        f"layer {i}: {', '.join(f'{100 * v:.0f}' for v in row)} percent, entropy "
        f"{entropy_bits[i]:.2f} bits"
        for i, row in enumerate(share)
    ]
    return figure, (
        f"Table of shares of the choices, one row a layer, one column an expert. Even use would be "
        f"{100 / n_experts:.3g} percent and {math.log2(n_experts):.3g} bits. {'; '.join(said)}."
    )


def shares_figure(series: Mapping[str, np.ndarray], title: str) -> Drawn:
    """Shares of the experts of one layer, two or three ways, as grouped bars beside even use."""
    if not 2 <= len(series) <= 3:
        raise ValueError(f"{len(series)} series must be 2 or 3")
    _require(series)
    n = len(next(iter(series.values())))
    figure, plot = axes(title, "expert (number)", "share of the choices (%)", size=(7.6, 4.4))
    looks: list[Look] = [
        {"facecolor": ORANGE, "hatch": "//"},
        {"facecolor": BLUE},
        {"facecolor": PALE, "hatch": ".."},
    ]
    width = 0.8 / len(series)
    for i, ((name, values), look) in enumerate(zip(series.items(), looks, strict=False)):
        places = [e + (i - (len(series) - 1) / 2) * width for e in range(n)]
        bars = plot.bar(
            places, [100 * v for v in values], width=0.94 * width, label=name, edgecolor=INK, **look
        )
        labels = [f"{100 * v:.0f}" for v in values]
        for label in plot.bar_label(bars, labels, padding=3, fontsize=11):
            label.set_bbox({"boxstyle": "square,pad=0.05", "facecolor": "white", "linewidth": 0})
    even: Look = {"color": INK, "linestyle": "--", "marker": "", "linewidth": 1.6, "zorder": 0.9}
    plot.axhline(100 / n, label=f"even ({100 / n:.3g})", **even)
    plot.set_xticks(range(n))
    plot.set_ylim(0, 115 * max(max(v) for v in series.values()))
    plot.grid(False, axis="x")
    figure.legend(ncols=len(series) + 1, **BELOW)
    said = [f"{name}: {', '.join(f'{100 * v:.1f}' for v in vs)}" for name, vs in series.items()]
    return figure, (
        f"Bars, shares of the choices in percent, expert by expert; even would be {100 / n:.3g}. "
        f"{'; '.join(said)}."
    )


# ---- what a batch touches -----------------------------------------------------------------------


def curves_figure(
    title: str, y: str, batches: Sequence[int], series: Mapping[str, Numbers]
) -> Drawn:
    """Up to six curves against the batch, on a logarithmic axis of sequences; y ends in a unit."""
    if not 1 <= len(series) <= len(COLOURS):
        raise ValueError(f"{len(series)} series must be from 1 to {len(COLOURS)}")
    _require({"batches": batches, **series})
    figure, plot = axes(title, "sequences in the batch (count)", y, size=(7.6, 4.8))
    for (name, values), colour, line, marker in zip(
        series.items(), COLOURS, LINES, MARKERS, strict=False
    ):
        plot.plot(batches, values, color=colour, linestyle=line, marker=marker, label=name)
    _batch_axis(plot, batches)
    plot.set_ylim(0, 1.08 * max(max(values) for values in series.values()))
    figure.legend(ncols=2, handlelength=3, **BELOW)
    said = [
        f"{name}: {', '.join(f'{v:,.3g} at {b}' for b, v in zip(batches, values, strict=True))}"
        for name, values in series.items()
    ]
    return figure, f"Curves against the sequences in the batch. {'; '.join(said)}."


def step_figure(
    batches: Sequence[int],
    milliseconds: Numbers,
    formula_mb: Numbers,
    counted_mb: Numbers,
    device: str,
) -> Drawn:
    """Time of a decode step, and the megabytes of weights it reads, side by side over the batch."""
    _require({"batches": batches, "milliseconds": milliseconds})
    _require({"batches": batches, "formula_mb": formula_mb, "counted_mb": counted_mb})
    apply_style()
    figure, panels = plt.subplots(
        1, 2, figsize=(7.8, 4.5), layout=ConstrainedLayoutEngine(wspace=0.06)
    )
    figure.suptitle("tiny-moe: one decode step", x=0.01, ha="left", fontsize=14)
    red: Look = {"color": COLOURS[1], "marker": "s", "linestyle": "-"}
    blue: Look = {"color": BLUE, "marker": "o", "linestyle": "--"}
    sides: list[tuple[str, str, dict[str, tuple[Numbers, Look]]]] = [
        ("its time", "time of a step (ms)", {"time, measured": (milliseconds, red)}),
        (
            "its bytes",
            "weights read (MB)",
            {
                "bytes, formula": (formula_mb, blue),
                "bytes, counted": (counted_mb, {"color": INK, "marker": "^", "linestyle": "-"}),
            },
        ),
    ]
    for plot, (title, label, lines) in zip(panels, sides, strict=True):
        for name, (values, look) in lines.items():
            plot.plot(batches, values, label=name, **look)
        top = next(iter(lines.values()))[0]
        for b, v in zip(batches, top, strict=True):
            plot.annotate(
                f"{v:.3g}", (b, v), (0, 8), textcoords="offset points", ha="center", fontsize=11
            )
        plot.set_title(title, fontsize=13, pad=8)
        plot.set_ylabel(label)
        plot.set_xlabel("sequences in the batch (count)")
        _batch_axis(plot, batches)
        plot.margins(x=0.12)
        plot.set_ylim(0, 1.2 * max(max(values) for values, _ in lines.values()))
    figure.legend(ncols=3, handlelength=3, **BELOW)
    said = [
        f"{b}: {ms:.3g} ms, {mb:.3g} MB by the formula, {seen:.3g} MB counted"
        for b, ms, mb, seen in zip(batches, milliseconds, formula_mb, counted_mb, strict=True)
    ]
    return figure, (
        f"Two panels over the sequences in the batch: measured time of a decode step on {device}, "
        f"and megabytes of weights it reads. {'; '.join(said)}."
    )


def _batch_axis(plot: Axes, batches: Sequence[int]) -> None:
    plot.set_xscale("log")
    plot.set_xticks(list(batches), [f"{b:,}" for b in batches])
    plot.xaxis.set_minor_locator(NullLocator())


def _require(series: Mapping[str, Sequence[float] | np.ndarray]) -> None:
    """All of one length, none empty, all numbers finite and not below 0."""
    lengths = {name: len(values) for name, values in series.items()}
    if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"series must be of one length, at least 1; given {lengths}")
    for name, values in series.items():
        if not all(math.isfinite(v) and v >= 0 for v in values):
            raise ValueError(f"{name} must be finite numbers of at least 0; given {list(values)}")


held_and_used = shown(held_and_used_figure)
routing = shown(routing_figure)
use_map = shown(use_map_figure)
shares = shown(shares_figure)
curves = shown(curves_figure)
step = shown(step_figure)
