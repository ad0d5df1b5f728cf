"""The figures of the lesson on the forward pass.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. What a colour
says is said by a word, a hatch or a number too. Data that cannot be drawn raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import MaxNLocator

from inferlab.components import COMPONENTS
from labkit.figures.look import BLUE, EMPTY, GREY, Drawn, Look, listed, shown
from labkit.figures.show import COLOURS, INK, PALE, SHADES, axes, say, sheet
from labkit.measure.part_times import REST

LINE: Look = {"color": INK, "linewidth": 1.4, "linestyle": "-", "marker": ""}
ARROW: Look = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
PART: Look = {"facecolor": "#dbeafa", "edgecolor": BLUE, "linewidth": 1.4}
SMALL: Look = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 1.2}
HATCHES = ("", "///", "...", "xx", "\\\\")


def _box(plot: Axes, x: float, y: float, text: str, look: Look, width: float = 2.3) -> None:
    """A box of 0.42 inch round (x, y)."""
    plot.add_patch(Rectangle((x - width / 2, y - 0.21), width, 0.42, zorder=4, **look))
    plot.text(x, y, text, ha="center", va="center", fontsize=12, zorder=5)


# ---- the whole pass ----------------------------------------------------------------------------

STEM, SIDE, TOP = 2.2, 5.35, 6.6  # inches: the stream, the parts beside it, the uppermost box


def block_diagram_figure(n_layers: int = 30) -> Drawn:
    """The path of tokens through a decoder: the stream upright, the parts beside it."""
    if n_layers < 1:
        raise ValueError(f"n_layers={n_layers} must be at least 1")
    figure, plot = sheet(7.8, TOP + 0.95, "One forward pass, from below")
    frame = {"facecolor": "none", "edgecolor": GREY, "linewidth": 1.3, "linestyle": (0, (4, 3))}
    plot.add_patch(Rectangle((0.95, 1.52), 6.55, 3.62, **frame))  # type: ignore[arg-type]
    say(plot, STEM + 0.3, 4.9, f"decoder block, {n_layers} of them")
    plot.annotate("", (STEM, TOP - 0.21), (STEM, 0.62), arrowprops=ARROW)
    _box(plot, STEM, 0.41, "tokens: ids", SMALL)
    _box(plot, STEM, 1.13, "embedding", PART)
    say(plot, STEM + 1.3, 0.41, "(B, T) whole numbers")
    say(plot, STEM + 1.3, 1.13, "one row of d_model numbers a token")
    mixing = "attention:\nlooks at earlier tokens"
    thinking = "gated MLP:\neach token alone"
    for y, part in ((1.95, mixing), (3.5, thinking)):
        _half(plot, y, part)
    _box(plot, STEM, 5.5, "RMSNorm", SMALL)
    _box(plot, STEM, 6.05, "output head", PART)
    _box(plot, STEM, TOP, "logits", SMALL)
    say(plot, STEM + 1.3, 6.05, "d_model → vocab_size")
    say(plot, STEM + 1.3, TOP, "one number for each possible next token")
    say(plot, 0.12, 3.2, "stream", size=12)
    plot.plot([0.72, STEM - 0.08], [3.2, 3.2], color=GREY, linewidth=1, linestyle=":", marker="")
    return figure, (
        "The forward pass from below: token ids, the embedding, then a stream that goes straight "
        f"up through {n_layers} decoder blocks. In a block the stream branches twice: through an "
        "RMSNorm and attention, which looks at earlier tokens, and through an RMSNorm and a gated "
        "MLP, which works on each token alone; each result is added to the stream. Behind the "
        "blocks come an RMSNorm, the output head, and logits, one number for each possible next "
        "token."
    )


def _half(plot: Axes, y: float, part: str) -> None:
    """A branch that leaves the stream at y, goes through norm and part, and is added higher up."""
    plot.plot([STEM, SIDE - 1.65], [y, y], **LINE)
    plot.annotate("", (SIDE - 1.65, y), (STEM + 0.7, y), arrowprops=ARROW)
    _box(plot, SIDE - 0.9, y, "RMSNorm", SMALL, width=1.5)
    plot.add_patch(Rectangle((SIDE - 0.4, y + 0.42), 2.4, 0.62, **PART))
    say(plot, SIDE + 0.8, y + 0.73, part, ha="center")
    plot.plot([SIDE - 0.15, SIDE + 0.8], [y, y], **LINE)
    plot.annotate("", (SIDE + 0.8, y + 0.42), (SIDE + 0.8, y), arrowprops=ARROW)
    plot.annotate("", (STEM + 0.16, y + 1.15), (SIDE + 0.8, y + 1.15), arrowprops=ARROW)
    plot.plot([SIDE + 0.8, SIDE + 0.8], [y + 1.04, y + 1.15], **LINE)
    plot.add_patch(Circle((STEM, y + 1.15), 0.16, facecolor="white", edgecolor=INK, zorder=5))
    plot.text(STEM, y + 1.14, "+", ha="center", va="center", fontsize=14, zorder=6)


# ---- rotations ---------------------------------------------------------------------------------


def rope_clocks_figure(angles: np.ndarray) -> Drawn:
    """A clock for each pair (row) and position (column): how far RoPE has turned it.

    angles: (T, n_pairs) radians, T 2 to 10, n_pairs 1 to 6; row t belongs to position t
    """
    angles = np.asarray(angles, dtype=float)
    if angles.ndim != 2 or not (2 <= angles.shape[0] <= 10 and 1 <= angles.shape[1] <= 6):
        raise ValueError(f"angles must be (2 to 10, 1 to 6), given {angles.shape}")
    T, n_pairs = angles.shape
    height = 1.35 + 0.78 * n_pairs
    figure, plot = sheet(7.8, height, "How far each pair is turned, by position")
    left, pitch = 1.75, min(0.78, 5.9 / T)
    for t in range(T):
        say(plot, left + pitch * (t + 0.5), height - 0.75, str(t), ha="center")
    say(plot, 0.15, height - 0.75, "position")
    for pair in range(n_pairs):
        y = height - 1.3 - 0.78 * pair
        say(plot, 0.15, y + 0.12, f"pair {pair}")
        say(plot, 0.15, y - 0.12, f"{angles[1, pair]:.3g} rad a token", size=11)
        for t in range(T):
            _clock(plot, left + pitch * (t + 0.5), y, angles[t, pair], 0.42 * pitch)
    say(plot, 0.15, 0.25, "The hand points right at no turn; it turns anticlockwise.")
    turns = [f"pair {i} by {angles[1, i]:.3g} radians" for i in range(n_pairs)]
    return figure, (
        f"A grid of clocks, {n_pairs} pairs by {T} positions. From one position to the next "
        f"{listed(turns)}. At position 0 all hands point right; the first pair turns fastest."
    )


def _clock(plot: Axes, x: float, y: float, angle: float, radius: float) -> None:
    plot.add_patch(Circle((x, y), radius, facecolor="white", edgecolor=GREY, linewidth=1))
    tip = (x + 0.92 * radius * math.cos(angle), y + 0.92 * radius * math.sin(angle))
    look = ARROW | {"color": COLOURS[1], "linewidth": 1.8}
    plot.annotate("", tip, (x, y), arrowprops=look)


# ---- masks -------------------------------------------------------------------------------------


def mask_grid_figure(visible: np.ndarray, words: Sequence[str] | None = None) -> Drawn:
    """A mask (T, S): which of S keys each of the newest T tokens may see; words: S of them."""
    visible = np.asarray(visible, dtype=bool)
    if visible.ndim != 2 or not (1 <= visible.shape[0] <= visible.shape[1] <= 12):
        raise ValueError(f"visible must be (T, S) with T <= S <= 12, given {visible.shape}")
    T, S = visible.shape
    words = [str(s) for s in range(S)] if words is None else list(words)
    if len(words) != S:
        raise ValueError(f"words: needed {S}, given {len(words)}")
    title = f"{T} queries, {S} keys: who may look where"
    size = (7.6, 1.9 + 0.42 * T)
    figure, plot = axes(title, "key (position)", "query (position)", size=size)
    for t in range(T):
        for s in range(S):
            look = PART if visible[t, s] else EMPTY
            plot.add_patch(Rectangle((s - 0.46, t - 0.44), 0.92, 0.88, **look))
            plot.text(s, t, "sees" if visible[t, s] else "–", ha="center", va="center",
                      fontsize=11)  # fmt: skip
    plot.set_xlim(-0.6, S - 0.4)
    plot.set_ylim(T - 0.4, -0.6)
    plot.set_xticks(range(S), words)
    plot.set_yticks(range(T), words[S - T :])
    plot.grid(False)
    rows = [f"“{words[S - T + t]}” sees {int(visible[t].sum())}" for t in range(T)]
    return figure, f"A grid of {T} queries by {S} keys. Of {S} keys {listed(rows)}."


# ---- attention of a trained head ---------------------------------------------------------------


def attention_map_figure(weights: np.ndarray, words: Sequence[str], title: str) -> Drawn:
    """Attention weights (T, T) of one head over the words of a text, at most 14 of them."""
    weights = np.asarray(weights, dtype=float)
    n = len(words)
    if weights.shape != (n, n) or not 1 <= n <= 14:
        raise ValueError(f"weights must be ({n}, {n}) for {n} words (1 to 14), {weights.shape}")
    figure, plot = axes(title, "looks at (token)", "the query of (token)", size=(7.6, 6.2))
    plot.imshow(weights, cmap=SHADES, vmin=0, vmax=1, aspect="auto")
    for t in range(n):
        for s in range(t + 1):
            if weights[t, s] >= 0.095:
                percent = f"{weights[t, s]:.0%}"[:-1]
                plot.text(s, t, percent, ha="center", va="center", fontsize=11)
    plot.set_xticks(range(n), words, rotation=45, ha="right", rotation_mode="anchor")
    plot.set_yticks(range(n), words)
    plot.grid(False)
    most = weights.argmax(axis=-1)
    said = [f"“{words[t]}” at “{words[most[t]]}” ({weights[t, most[t]]:.0%})" for t in range(n)]
    return figure, f"{title}. Numbers are percent. Most of all look: {listed(said)}."


# ---- the next token ----------------------------------------------------------------------------


def next_token_bars_figure(prompt: str, words: Sequence[str], shares: Sequence[float]) -> Drawn:
    """The likeliest next tokens and their probabilities, the best first; 1 to 12 of them."""
    if not 1 <= len(words) == len(shares) <= 12:
        raise ValueError(f"needs 1 to 12 words and as many shares, given {len(words)}")
    if min(shares) < 0 or sum(shares) > 1 + 1e-6:
        raise ValueError(f"shares must be probabilities, given {list(shares)}")
    n = len(words)
    title = f"“{prompt} …”"
    size = (7.4, 1.6 + 0.36 * n)
    figure, plot = axes(title, "probability (percent)", "next token (text)", size=size)
    percent = [100 * share for share in shares]
    plot.barh(range(n), percent, color=BLUE, edgecolor=INK, linewidth=0.8)
    for i, value in enumerate(percent):
        plot.text(value + 0.012 * max(percent), i, f"{value:.1f}", va="center", fontsize=11)
    plot.set_yticks(range(n), [f"“{word}”" for word in words])
    plot.set_ylim(n - 0.4, -0.6)
    plot.set_xlim(0, 1.12 * max(percent))
    plot.grid(False, axis="y")
    said = [f"“{word}” {value:.1f} %" for word, value in zip(words, percent, strict=True)]
    return figure, f"Probabilities of the next token after “{prompt}”: {listed(said)}."


# ---- where the work goes -----------------------------------------------------------------------


def shares_figure(
    title: str, rows: Mapping[str, Mapping[str, float]], y: str = "what is counted (kind)"
) -> Drawn:
    """One bar a row, each cut into the same named parts; a part's number is its share of the row.

    rows: label -> part -> amount (FLOPs, bytes, seconds: each row has its own unit)
    A part of a pass looks the same in every figure.
    """
    parts = list(next(iter(rows.values()), {}))
    if not parts or any(list(row) != parts for row in rows.values()):
        raise ValueError(
            f"every row needs the same parts, given {[list(r) for r in rows.values()]}"
        )
    if any(sum(row.values()) <= 0 or min(row.values()) < 0 for row in rows.values()):
        raise ValueError("amounts must not be negative, and a row must add up to more than 0")
    looks = _part_looks(parts)
    size = (7.8, 1.75 + 0.52 * len(rows))
    figure, plot = axes(title, "share (percent)", y, size=size)
    for place, row in enumerate(rows.values()):
        left, total = 0.0, sum(row.values())
        for part, look in looks.items():
            width = 100 * row[part] / total
            _slice(plot, place, left, width, look)
            left += width
    plot.set_yticks(range(len(rows)), list(rows))
    plot.set_ylim(len(rows) - 0.45, -0.55)
    plot.set_xlim(0, 100)
    plot.grid(False)
    handles = [Rectangle((0, 0), 1, 1, **look, label=part) for part, look in looks.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, handleheight=1.2)
    return figure, f"{title}. " + " ".join(_row_alt(label, row) for label, row in rows.items())


def _part_looks(parts: Sequence[str]) -> dict[str, Look]:
    """A look for each part: its own where all are parts of a pass, else by its place."""
    known = [*COMPONENTS, REST]
    order = known if set(parts) <= set(known) else list(parts)
    return {part: _part_look(order.index(part)) for part in parts}


def _part_look(i: int) -> Look:
    pale = ("#a9cdf2", "#f2c4bd", "#d5c1e6", "#f7d3b0", "#dcdfe3")
    return {"facecolor": pale[i % 5], "edgecolor": INK, "linewidth": 0.8, "hatch": HATCHES[i % 5]}


def _slice(plot: Axes, y: float, left: float, width: float, look: Look) -> None:
    plot.add_patch(Rectangle((left, y - 0.34), width, 0.68, **look))
    if width >= 4:
        halo = {"facecolor": look["facecolor"], "edgecolor": "none", "pad": 1.5}
        plot.text(left + width / 2, y, f"{width:.0f}", ha="center", va="center", fontsize=11,
                  bbox=halo)  # fmt: skip


def _row_alt(label: str, row: Mapping[str, float]) -> str:
    total = sum(row.values())
    return f"{label}: {listed([f'{part} {value / total:.0%}' for part, value in row.items()])}."


# ---- two passes drift apart --------------------------------------------------------------------


def drift_figure(series: Mapping[str, Sequence[float]]) -> Drawn:
    """Relative error behind each block, one line for each mistake; 0 is drawn at the floor."""
    if not series or any(len(values) == 0 for values in series.values()):
        raise ValueError("series needs at least one line with at least one layer")
    floor = 1e-8
    title = "A mistake on its way up: error behind each block"
    y = "largest error / largest number (ratio)"
    figure, plot = axes(title, "decoder block (number)", y, size=(7.6, 4.6))
    for name, values in series.items():
        plot.plot(range(len(values)), [max(v, floor) for v in values], label=name)
    plot.set_yscale("log")
    plot.set_ylim(floor / 2, 10)
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower left", ncols=2, handlelength=3)
    said = [f"{name}: {values[0]:.1e} behind block 0, {values[-1]:.1e} behind the last"
            for name, values in series.items()]  # fmt: skip
    return figure, f"{title}, on a logarithmic axis. {'; '.join(said)}."


block_diagram = shown(block_diagram_figure)
rope_clocks = shown(rope_clocks_figure)
mask_grid = shown(mask_grid_figure)
attention_map = shown(attention_map_figure)
next_token_bars = shown(next_token_bars_figure)
shares = shown(shares_figure)
drift = shown(drift_figure)
