"""The figures of the lesson on speculative sampling.

Each comes as a pair: name_figure(...) gives (figure, alt text), name(...) shows it. What a colour
says is said by a hatch, a marker or a word too; the numbers of the alt text come from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from labkit.figures.look import Drawn, listed, shown, token_count
from labkit.figures.show import COLOURS, INK, LINES, MARKERS, ORANGE, PALE, apply_style, axes

BLUE, RED, GREY = COLOURS[0], COLOURS[1], "#8a8f98"
ACCEPTED: dict[str, Any] = {"facecolor": "#bcd8f3", "edgecolor": INK, "linewidth": 1}
REJECTED: dict[str, Any] = {
    "facecolor": "white", "edgecolor": RED, "linewidth": 1.2, "hatch": "xx", "linestyle": "--",
}  # fmt: skip
LEFT: dict[str, Any] = {"facecolor": ORANGE, "edgecolor": INK, "linewidth": 1, "hatch": "///"}
PLAIN: dict[str, Any] = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 1}
BELOW: dict[str, Any] = {"loc": "outside lower left", "handleheight": 1.2, "columnspacing": 1.6}


# ---- one round ---------------------------------------------------------------------------------


def rounds_picture_figure(drafted: Sequence[str], n_kept: int, last: str) -> Drawn:
    """One round: what the draft proposes, what the target judges, what is added to the text.

    drafted: the proposed tokens, as words; n_kept of them are kept; last: the target's own token.
    """
    gamma = len(drafted)
    if not 0 <= n_kept <= gamma or not 1 <= gamma <= 8:
        raise ValueError(f"need 0 <= n_kept <= gamma, gamma of 1 to 8; given {n_kept}, {gamma}")
    apply_style()
    figure, plot = plt.subplots(figsize=(8, 3.7), layout="constrained")
    plot.set_title("One round: draft, verify, keep", loc="left")
    plot.axis("off")
    plot.set_xlim(-2.75, gamma + 1.05)
    plot.set_ylim(2.95, -0.35)
    rows = (
        f"draft model\n{gamma} small steps",
        "target model\none pass",
        f"added to the text\n{n_kept + 1} token{'s' if n_kept else ''}",
    )
    for row, label in enumerate(rows):
        plot.text(-0.15, row + 0.35, label, ha="right", va="center", fontsize=12)
    for i, word in enumerate(drafted):
        _box(plot, i, 0, word, PLAIN)
        verdict = "keep" if i < n_kept else "reject" if i == n_kept else "not judged"
        _box(plot, i, 1, verdict, ACCEPTED if i < n_kept else REJECTED if i == n_kept else PLAIN)
        if i < n_kept:
            _box(plot, i, 2, word, ACCEPTED)
    _box(plot, n_kept, 2, last, LEFT)
    if n_kept == gamma:
        _box(plot, gamma, 1, "bonus", LEFT)
    kind = "the bonus token" if n_kept == gamma else "its replacement"
    ends = (
        "All are kept, and the same pass gives a bonus token"
        if n_kept == gamma
        else f"Token {n_kept + 1} is rejected and replaced, what follows it is not judged"
    )
    figure.legend(
        handles=[Patch(label="kept", **ACCEPTED), Patch(label="rejected", **REJECTED),
                 Patch(label=f"from the target: {kind}", **LEFT)],
        ncols=3, **BELOW,
    )  # fmt: skip
    return figure, (
        f"Three rows of boxes. The draft model proposes {', '.join(drafted)} in {gamma} small "
        f"steps. The target model judges all of them in one pass: the first {n_kept} are kept. "
        f"{ends}: {last}. The round adds {n_kept + 1} tokens to the text."
    )


def _box(plot: Axes, column: float, row: float, word: str, look: dict[str, Any]) -> None:
    plot.add_patch(Rectangle((column + 0.04, row), 0.92, 0.7, **look))
    box: Any = {"facecolor": "white", "edgecolor": "none", "pad": 1.2} if "hatch" in look else None
    plot.text(
        column + 0.5, row + 0.35, word, ha="center", va="center", fontsize=11, bbox=box, zorder=3
    )


# ---- laws --------------------------------------------------------------------------------------


def laws_figure(laws: Mapping[str, np.ndarray], tokens: Sequence[str]) -> Drawn:
    """One small panel of bars for each named law over the same tokens; removed ones stay empty.

    laws: 2 to 6 of them, the first one unfiltered.
    """
    if not 2 <= len(laws) <= 6 or any(len(law) != len(tokens) for law in laws.values()):
        raise ValueError(f"need 2 to 6 laws over {len(tokens)} tokens, given {len(laws)}")
    apply_style()
    n_columns = 2  # with three the words below a panel touch
    n_rows = -(-len(laws) // n_columns)
    figure, panels = plt.subplots(
        n_rows, n_columns, figsize=(7.6, 1.8 * n_rows + 0.8), sharex=True, sharey=True,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    figure.suptitle("The same logits, sampled in different ways", x=0.01, ha="left", fontsize=14)
    x = np.arange(len(tokens))
    for plot, (name, law) in zip(panels.flat, laws.items(), strict=False):
        plot.bar(x, law, color="#bcd8f3", edgecolor=INK, linewidth=1, width=0.75)
        for i in np.flatnonzero(np.asarray(law) == 0):
            plot.text(i, 0.01, "0", ha="center", va="bottom", color=RED, fontsize=11)
        plot.set_title(name, fontsize=12, pad=4)
        plot.set_xticks(x, tokens)
        plot.grid(axis="x", visible=False)
    for plot in panels.flat[len(laws) :]:
        plot.axis("off")
    figure.supylabel("probability (share of 1)", fontsize=12)
    figure.supxlabel("token (word)", fontsize=12)
    said = "; ".join(f"{name}: {listed([_short(p) for p in law])}" for name, law in laws.items())
    return figure, f"Bars of the probabilities of {', '.join(tokens)}. {said}."


def _short(p: float) -> str:
    return f"{p:.2f}"


def two_laws_figure(target: np.ndarray, draft: np.ndarray, tokens: Sequence[str]) -> Drawn:
    """The two laws over each other: what is accepted, what the draft has too much, what is left."""
    target, draft = np.asarray(target, float), np.asarray(draft, float)
    if not len(target) == len(draft) == len(tokens):
        raise ValueError(f"{len(target)}, {len(draft)} and {len(tokens)} must be one length")
    overlap = np.minimum(target, draft)
    rate = float(overlap.sum())
    title = f"Accepted: the overlap of the two laws, {rate:.2f}"
    figure, plot = axes(title, "token (word)", "probability (share of 1)", size=(7.6, 4.4))
    x = np.arange(len(tokens))
    plot.bar(x, overlap, width=0.5, label="in both: accepted", **ACCEPTED)
    plot.bar(x, draft - overlap, bottom=overlap, width=0.5,
             label="draft has too much: rejected", **REJECTED)  # fmt: skip
    plot.bar(x, target - overlap, bottom=overlap, width=0.5,
             label="target has more: the residual", **LEFT)  # fmt: skip
    for i, (t, d) in enumerate(zip(target, draft, strict=True)):
        line: dict[str, Any] = {"color": INK, "marker": "", "linewidth": 1.8}
        plot.plot([i - 0.52, i + 0.25], [t, t], linestyle="-", **line)
        plot.plot([i - 0.25, i + 0.43], [d, d], linestyle=":", **line)
        plot.text(i - 0.52, t, "target", ha="left", va="bottom", fontsize=11)
        plot.text(i + 0.27, d - 0.004, "draft", ha="left", va="top", fontsize=11)
    plot.set_xticks(x, tokens)
    plot.set_xlim(-0.7, len(tokens) - 0.35)
    plot.set_ylim(0, 1.18 * max(target.max(), draft.max()))
    plot.grid(axis="x", visible=False)
    figure.legend(ncols=2, **BELOW)
    return figure, (
        f"Bars for {len(tokens)} tokens. Target {listed([_short(p) for p in target])}, draft "
        f"{listed([_short(p) for p in draft])}. The part in both laws, {rate:.2f} in all, is "
        f"accepted; where the draft is above the target the excess is rejected; where the target "
        f"is above the draft, {listed([_short(p) for p in target - overlap])} is left: the "
        "residual."
    )


# ---- does it pay -------------------------------------------------------------------------------


def speed_by_gamma_figure(
    speedup: Callable[[float, int, float], float],
    acceptances: Sequence[float],
    draft_cost: float,
    largest: int = 24,
) -> Drawn:
    """The speed-up against the number of draft tokens, one curve for each acceptance."""
    title = f"More draft tokens help, up to a point (draft cost {draft_cost:g})"
    figure, plot = axes(title, "draft tokens a round (tokens)", "speed-up (times)", size=(7.8, 4.6))
    gammas, said = np.arange(largest + 1), []
    looks = zip(COLOURS, LINES, MARKERS, strict=True)
    for acceptance, (colour, line, marker) in zip(acceptances, looks, strict=False):
        speeds = [speedup(acceptance, int(gamma), draft_cost) for gamma in gammas]
        best = int(np.argmax(speeds))
        plot.plot(gammas, speeds, color=colour, linestyle=line, marker="", label=f"{acceptance:g}")
        plot.plot([best], [speeds[best]], color=colour, marker=marker, linestyle="", markersize=9)
        plot.annotate(
            f"{best}: {speeds[best]:.2f}x", (best, speeds[best]), xytext=(0, -20),
            textcoords="offset points", ha="center", fontsize=11,
        )  # fmt: skip
        said.append(f"acceptance {acceptance:g}: best at {best}, {speeds[best]:.2f} times as fast")
    plot.axhline(1, color=INK, linewidth=1.2, linestyle=":", marker="")
    plot.text(largest, 0.83, "plain decoding", ha="right", va="top", fontsize=11)
    plot.set_ylim(
        0, 1.15 * max(speedup(a, g, draft_cost) for a in acceptances for g in gammas.tolist())
    )
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(title="acceptance", ncols=len(acceptances), handlelength=3, **BELOW)
    return figure, (
        f"Speed-up against 0 to {largest} draft tokens a round, draft cost {draft_cost:g}. "
        f"{'; '.join(said)}. Every curve starts at 1, rises to its peak and falls."
    )


def speed_by_batch_figure(batches: Sequence[int], speeds: Mapping[int, Sequence[float]]) -> Drawn:
    """The speed-up against the batch; speeds: gamma -> one number for each batch."""
    title = "Verification is free only at a small batch"
    figure, plot = axes(
        title, "sequences in the batch (sequences)", "speed-up (times)", size=(7.8, 4.6)
    )
    looks = zip(COLOURS, LINES, MARKERS, strict=True)
    for (gamma, values), (colour, line, marker) in zip(speeds.items(), looks, strict=False):
        if len(values) != len(batches):
            raise ValueError(f"{len(values)} speeds for {len(batches)} batches")
        plot.plot(batches, values, color=colour, linestyle=line, marker=marker,
                  label=f"draft of {token_count(gamma)}")  # fmt: skip
    plot.axhline(1, color=INK, linewidth=1.2, linestyle=":", marker="")
    plot.text(batches[0], 1.04, "plain decoding", ha="left", va="bottom", fontsize=11)
    plot.set_xscale("log", base=2)
    plot.set_xticks(batches, [f"{b:,}" for b in batches])
    plot.set_ylim(0, 1.1 * max(max(v) for v in speeds.values()))
    figure.legend(ncols=len(speeds), handlelength=3, **BELOW)
    said = "; ".join(
        f"draft of {token_count(gamma)}: {values[0]:.2f} at {batches[0]}, "
        f"{values[-1]:.2f} at {batches[-1]}"
        for gamma, values in speeds.items()
    )
    return figure, f"Speed-up against the batch, {batches[0]} to {batches[-1]} sequences. {said}."


# ---- measured ----------------------------------------------------------------------------------


def kept_histogram_figure(kept: Sequence[int], expected: np.ndarray) -> Drawn:
    """How many draft tokens the rounds kept, beside the geometric law of the same mean rate.

    kept: 0 to gamma for each full round; expected: (gamma + 1,) probabilities.
    """
    counts = np.bincount(kept, minlength=len(expected))
    if len(counts) != len(expected) or len(kept) == 0:
        raise ValueError(f"kept must be 0 to {len(expected) - 1} and not empty, given {set(kept)}")
    share = counts / counts.sum()
    title = f"Draft tokens kept in a round ({len(kept):,} rounds)"
    figure, plot = axes(title, "kept (tokens)", "rounds (share of 1)", size=(7.4, 4.4))
    x = np.arange(len(expected))
    plot.bar(x - 0.2, share, width=0.38, label="measured", **ACCEPTED)
    plot.bar(x + 0.2, expected, width=0.38, label="if each were kept independently", **LEFT)
    plot.set_xticks(x)
    plot.set_ylim(0, 1.12 * max(share.max(), expected.max()))
    plot.grid(axis="x", visible=False)
    figure.legend(ncols=2, **BELOW)
    return figure, (
        f"Share of {len(kept):,} rounds by draft tokens kept, 0 to {len(expected) - 1}. Measured "
        f"{listed([_short(s) for s in share])}; by the geometric law "
        f"{listed([_short(p) for p in expected])}."
    )


def rate_spread_figure(rates: Sequence[float]) -> Drawn:
    """How the acceptance rate differs from one position of the text to the next."""
    values = np.asarray(rates, dtype=float)
    if values.size == 0 or values.min() < 0 or values.max() > 1 + 1e-9:
        raise ValueError("rates must be numbers between 0 and 1, at least one")
    mean = float(values.mean())
    title = f"Acceptance at {values.size:,} positions of a text"
    figure, plot = axes(title, "acceptance rate (share of 1)", "positions (count)", size=(7.4, 4))
    plot.hist(values, bins=np.linspace(0, 1, 21).tolist(), **ACCEPTED)
    plot.axvline(mean, color=RED, linestyle="--", marker="", linewidth=2)
    top = plot.get_ylim()[1]
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the bars
    plot.text(mean - 0.02, 0.93 * top, f"mean {mean:.2f}", ha="right", color=RED, bbox=ground)
    plot.set_xlim(0, 1)
    tenth, ninety = np.quantile(values, (0.1, 0.9))
    return figure, (
        f"Histogram of the acceptance rate at {values.size:,} positions. Mean {mean:.2f}; a tenth "
        f"of the positions lie below {tenth:.2f}, a tenth above {ninety:.2f}."
    )


def speeds_figure(names: Sequence[str], predicted: Sequence[float], measured: Sequence[float]
                  ) -> Drawn:  # fmt: skip
    """Speed-ups, predicted from measured costs and measured whole, side by side."""
    if not len(names) == len(predicted) == len(measured) > 0:
        raise ValueError(f"{len(names)}, {len(predicted)}, {len(measured)}: one of each is needed")
    title = "Speed-up: formula and clock"
    figure, plot = axes(title, "engine (name)", "speed-up (times)", size=(7.8, 4.4))
    x = np.arange(len(names))
    for shift, values, look, label in (
        (-0.2, predicted, LEFT, "by your formula, costs measured"), (0.2, measured, ACCEPTED,
                                                                     "measured whole"),
    ):  # fmt: skip
        plot.bar(x + shift, values, width=0.38, label=label, **look)
        for i, value in enumerate(values):
            place: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 11, "zorder": 4}
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the dotted line
            plot.text(i + shift, value + 0.02, f"{value:.2f}", bbox=behind, **place)
    plot.axhline(1, color=INK, linewidth=1.2, linestyle=":", marker="")
    plot.set_xticks(x, names)
    plot.set_ylim(0, 1.18 * max(*predicted, *measured, 1))
    plot.grid(axis="x", visible=False)
    figure.legend(ncols=2, **BELOW)
    said = "; ".join(
        f"{name}: {p:.2f} by the formula, {m:.2f} measured"
        for name, p, m in zip(names, predicted, measured, strict=True)
    )
    return figure, f"Speed-up over plain decoding. {said}. The dotted line is 1."


rounds_picture = shown(rounds_picture_figure)
laws = shown(laws_figure)
two_laws = shown(two_laws_figure)
speed_by_gamma = shown(speed_by_gamma_figure)
speed_by_batch = shown(speed_by_batch_figure)
kept_histogram = shown(kept_histogram_figure)
rate_spread = shown(rate_spread_figure)
speeds = shown(speeds_figure)
