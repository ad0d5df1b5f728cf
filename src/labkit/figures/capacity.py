"""The figures of the lesson on sizing and serving.

As in look.py, name_figure(...) gives (figure, alt text) and name(...) shows it; the numbers of
the alt text come from the data. What cannot be drawn raises ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from labkit.display import put, table
from labkit.figures.look import BELOW, Drawn, Look, Numbers, require_between, shown
from labkit.figures.show import COLOURS, INK, LINES, MARKERS, axes, plain_log
from labkit.units import format_seconds

PARTS: dict[str, Look] = {
    "weights": {"facecolor": COLOURS[0], "edgecolor": INK, "linewidth": 1},
    "overhead": {"facecolor": "#c9cdd3", "edgecolor": INK, "linewidth": 1, "hatch": ".."},
    "keys and values": {"facecolor": "#f7b27a", "edgecolor": INK, "linewidth": 1, "hatch": "///"},
    "unused": {"facecolor": "white", "edgecolor": INK, "linewidth": 1, "linestyle": ":"},
    "headroom": {"facecolor": "#eef1f4", "edgecolor": INK, "linewidth": 1, "hatch": "xx"},
}
LIMIT: Look = {"color": COLOURS[1], "linestyle": "--", "marker": "", "linewidth": 2.2}


# ---- the memory of one device ------------------------------------------------------------------


def memory_bar_figure(bars: Mapping[str, Mapping[str, float]], memory_bytes: float) -> Drawn:
    """What lies in one device's memory. bars: 1 to 6, name -> bytes by the names of PARTS.

    What is more than memory_bytes sticks out over the device's edge.
    """
    require_between("the number of bars", len(bars), 1, 6)
    if not 0 < memory_bytes < math.inf:
        raise ValueError(f"memory_bytes={memory_bytes!r} must be a positive number")
    title, x = "What lies in the memory of one device", "memory of one device (GB)"
    figure, plot = axes(title, x, "deployment (name)", size=(8.0, 2.2 + 0.85 * len(bars)))
    said = []
    for row, (name, parts) in enumerate(bars.items()):
        left, words = 0.0, []
        for part, look in PARTS.items():
            size = parts.get(part, 0.0) / 1e9
            if not 0 <= size < math.inf:
                raise ValueError(f"{name}: {part}={size!r} GB must be 0 or more")
            if size:
                plot.barh([row], [size], left=left, height=0.44, **look)
                words.append(f"{part} {size:.1f} GB")
            left += size
        stray = set(parts) - set(PARTS)
        if stray:
            raise ValueError(f"{name}: unknown parts {sorted(stray)}; known: {', '.join(PARTS)}")
        over = left > memory_bytes / 1e9 * 1.0001
        label = f"{name}{': does not fit' if over else ''}"
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the end of memory
        clear: Look = {"xytext": (4, 0), "textcoords": "offset points", "zorder": 5}  # of the axis
        plot.annotate(label, (0, row - 0.36), va="center", bbox=ground, **clear)
        said.append(f"{name}{' (does not fit)' if over else ''}: {', '.join(words)}")
    plot.axvline(memory_bytes / 1e9, label="end of memory", **LIMIT)
    plot.set_xlim(0, None)
    plot.set_ylim(len(bars) - 0.6, -0.7)
    plot.set_yticks([])
    plot.grid(False, axis="y")
    used = {part for parts in bars.values() for part, size in parts.items() if size}
    handles = [Patch(label=part, **look) for part, look in PARTS.items() if part in used]
    figure.legend(handles=[*handles, *plot.get_lines()[:1]], ncols=3, **BELOW)
    return figure, (
        f"Bars, one a deployment, of the memory of one device of {memory_bytes / 1e9:.0f} GB. "
        f"{'; '.join(said)}."
    )


# ---- users against context ---------------------------------------------------------------------


def users_by_context_figure(
    contexts: Sequence[int], users: Mapping[str, Sequence[int]], what: str
) -> Drawn:
    """How many sequences fit, by their length, for 1 to 6 variants: name -> one count a context."""
    require_between("the number of variants", len(users), 1, 6)
    _require_rising("contexts", contexts)
    title = f"Users by context: {what}"
    figure, plot = axes(title, "context (tokens)", "users that fit (sequences)", size=(8, 5.2))
    said = []
    for number, (name, counts) in enumerate(users.items()):
        if len(counts) != len(contexts) or min(counts) < 0:
            raise ValueError(f"{name}: needs {len(contexts)} counts of 0 or more; given {counts}")
        drawn = [n or math.nan for n in counts]  # a logarithm has no 0
        plot.plot(contexts, drawn, label=name, linestyle=LINES[number], marker=MARKERS[number])
        said.append(f"{name}: {counts[0]:,} at {contexts[0]:,}, {counts[-1]:,} at {contexts[-1]:,}")
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.set_xticks(list(contexts), [_short(n) for n in contexts])
    plot.xaxis.set_minor_formatter(NullFormatter())
    plain_log(plot.yaxis)
    figure.legend(ncols=2, handlelength=3, **BELOW)
    return figure, (
        f"Lines on logarithmic axes: users that fit by context, for {what}. {'; '.join(said)}."
    )


# ---- what a token costs ------------------------------------------------------------------------


def cost_by_batch_figure(
    batches: Sequence[int],
    usd_per_million: Mapping[str, Numbers],
    last_within: Mapping[str, int],
    limit_s: float,
) -> Drawn:
    """Cost of a million tokens by batch, for 1 to 4 deployments, and where each stays in its SLO.

    last_within: the largest batch within limit_s a token; beyond it the line is thin and dotted.
    """
    require_between("the number of deployments", len(usd_per_million), 1, 4)
    _require_rising("batches", batches)
    title = "What a million output tokens cost"
    x, y = "users at once (sequences)", "cost (dollars per million tokens)"
    figure, plot = axes(title, x, y, size=(8, 5.2))
    said = []
    for number, (name, costs) in enumerate(usd_per_million.items()):
        if len(costs) != len(batches) or min(costs) <= 0:
            raise ValueError(f"{name}: needs {len(batches)} costs above 0; given {list(costs)}")
        most, colour = last_within[name], COLOURS[number]
        inside = [(b, c) for b, c in zip(batches, costs, strict=True) if b <= most]
        style: Look = {"color": colour, "marker": ""}
        plot.plot(batches, costs, linestyle=":", linewidth=1.6, **style)
        if inside:
            # Two deployments may cost the same: the one below is seen through the other's gaps.
            look: Look = {"linestyle": LINES[number], "linewidth": 3, "markevery": [-1]}
            ends: Look = {"color": colour, "marker": MARKERS[number], "markersize": 12}
            plot.plot(*zip(*inside, strict=True), **look, **ends, label=name)
            said.append(f"{name}: down to {inside[-1][1]:.2f} dollars at {inside[-1][0]:,} users")
        else:
            plot.plot([], [], linestyle=":", **style, label=f"{name}: never within")
            said.append(f"{name}: never within the limit")
    plot.set_xscale("log")
    plot.set_yscale("log")
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.3g}"))
        axis.set_minor_formatter(NullFormatter())
    figure.legend(ncols=1, **BELOW, title=f"thick: within {format_seconds(limit_s)} a token")
    return figure, (
        "Falling lines on logarithmic axes: the cost of a million tokens by the number of users. "
        f"Thick up to the last batch within {format_seconds(limit_s)} a token, dotted beyond. "
        f"{'; '.join(said)}."
    )


# ---- the planner's table -----------------------------------------------------------------------

COLUMNS = {
    "name": "deployment", "users": "users", "ttft": "TTFT", "tpot": "TPOT",
    "usd_per_hour": "$/hour", "usd_per_million": "$/million tokens", "obstacle": "verdict",
}  # fmt: skip
REASONS = {
    None: "", "memory": "does not fit", "ttft": "first token too late", "tpot": "tokens too slow",
    "users": "too slow beside others' prompts",
}  # fmt: skip


def plan_rows(plans: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of the planner's table, one row a plan.

    A plan has name, obstacle, usd_per_hour, and users, ttft_s, tpot_s and usd_per_million, which
    are None where the obstacle leaves nothing to say; usd_per_hour is None where it is not known.
    """
    rows = []
    for plan in plans:
        seconds = [plan[key] for key in ("ttft_s", "tpot_s")]
        hour, cost = (plan[key] for key in ("usd_per_hour", "usd_per_million"))
        obstacle = plan["obstacle"] or (None if plan["users"] else "users")
        rows.append(
            [
                str(plan["name"]),
                f"{plan['users']:,}" if plan["users"] else "–",
                *("–" if value is None else format_seconds(value) for value in seconds),
                *("–" if usd is None else f"{usd:.2f}" for usd in (hour, cost)),
                REASONS[obstacle],
            ]
        )
    return rows


def plan_table(plans: Sequence[Mapping[str, Any]], caption: str) -> None:
    """Show plans as a table: HTML where it can be shown, else text."""
    rows, heads = plan_rows(plans), list(COLUMNS.values())
    if plans and all(plan["usd_per_hour"] is None for plan in plans):
        priced = [i for i, name in enumerate(COLUMNS) if name.startswith("usd")]
        *rows, heads = ([x for i, x in enumerate(r) if i not in priced] for r in (*rows, heads))
    numbers = range(1, len(heads) - 1)
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [
        "  ".join(
            text.ljust(w) if i == 0 else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heads, *rows]
    ]
    put(table(caption, heads, rows, numbers), "\n".join([caption, *lines]))


# ---- a measured load test ----------------------------------------------------------------------


def load_timeline_figure(
    sent_s: Numbers,
    token_s: Sequence[Numbers],
    ttft_bound_s: float,
    tpot_bound_s: float,
    device: str,
) -> Drawn:
    """Every request of a load test on one clock, and beside it when its bound would have ended.

    sent_s: when each was sent; token_s: seconds after that at which its tokens came; 1 to 60
    requests. The bound of a request with n tokens is ttft_bound_s + (n - 1) * tpot_bound_s.
    """
    require_between("the number of requests", len(sent_s), 1, 60)
    if len(token_s) != len(sent_s) or not all(len(times) for times in token_s):
        raise ValueError(f"{len(sent_s)} requests need as many lists of token times, none empty")
    title = "The load test: every request, every token"
    figure, plot = axes(
        title, "time since the start (s)", "request (number)", size=(8.0, 3.2 + 0.1 * len(sent_s))
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.set_title(device, fontsize=11, pad=8)
    for row, (sent, times) in enumerate(zip(sent_s, token_s, strict=True)):
        bound = ttft_bound_s + (len(times) - 1) * tpot_bound_s
        label = (lambda text: text) if row == 0 else (lambda text: f"_{text}")
        plot.barh([row], [times[0]], left=sent, height=0.7, color="#c9cdd3", label=label("TTFT"))
        ticks = [sent + t for t in times]
        look: Look = {"linestyle": "", "marker": "|", "markersize": 7, "markeredgewidth": 1.4}
        plot.plot(ticks, [row] * len(ticks), color=COLOURS[0], label=label("a token"), **look)
        end: Look = {"linestyle": "", "marker": "D", "markersize": 5, "color": COLOURS[1]}
        plot.plot([sent + bound], [row], label=label("its end by the bound"), **end)
    plot.set_ylim(len(sent_s) - 0.4, -0.6)
    plot.yaxis.set_major_locator(MaxNLocator(integer=True))
    plot.set_xlim(0, None)
    plot.grid(False, axis="y")
    figure.legend(ncols=3, **BELOW)
    last = max(sent + times[-1] for sent, times in zip(sent_s, token_s, strict=True))
    ttft = sorted(times[0] for times in token_s)[len(token_s) // 2]
    return figure, (
        f"A time line of {len(sent_s)} requests on {device}, the last token at {last:.2f} s. Each "
        f"row: a grey bar until the first token ({format_seconds(ttft)} in the median), a mark for "
        f"every token, and where the request would end by the bound "
        f"({format_seconds(ttft_bound_s)} to the first token, {format_seconds(tpot_bound_s)} for "
        "each further one)."
    )


# ---- shared ------------------------------------------------------------------------------------


def _short(n: int) -> str:
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else f"{n:,}"


def _require_rising(name: str, values: Sequence[int]) -> None:
    if len(values) < 2 or any(b <= a for a, b in pairwise(values)):
        raise ValueError(f"{name} must rise and be two or more; given {list(values)}")
    if values[0] < 1:
        raise ValueError(f"{name} must be 1 or more; given {values[0]}")


memory_bar = shown(memory_bar_figure)
users_by_context = shown(users_by_context_figure)
cost_by_batch = shown(cost_by_batch_figure)
load_timeline = shown(load_timeline_figure)
