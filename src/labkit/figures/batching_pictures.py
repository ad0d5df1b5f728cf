"""Pictures of how the serving engine works: seats, pages, names of pages, steps.

Each comes as a pair: name_figure(...) gives (figure, alt text), and name(...) shows it. What a
colour says is said by a hatch or a word too. What cannot be drawn readably raises ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from inferlab.batching import Job, seat_use
from labkit.figures.look import BELOW, GREY, RED, Drawn, Look, listed, require_between, shown
from labkit.figures.show import INK, ORANGE, PALE, SKY, apply_style, axes

LETTERS = "ABCDEFGHIJKL"
IDLE: Look = {"facecolor": "white", "edgecolor": GREY, "linewidth": 1, "hatch": "////"}
OWN: Look = {"facecolor": SKY, "edgecolor": INK, "linewidth": 1}
SHARED: Look = {"facecolor": ORANGE, "edgecolor": INK, "linewidth": 1, "hatch": "///"}
FREE: Look = {"facecolor": "white", "edgecolor": GREY, "linewidth": 1, "linestyle": ":"}
ONLY_HERE: Look = {"facecolor": PALE, "edgecolor": INK, "linewidth": 1}
ARROW: Look = {"arrowstyle": "-|>", "mutation_scale": 14, "color": INK, "linewidth": 1.4}
PLAIN: Look = {"facecolor": "white", "alpha": 0.9, "pad": 1.5, "linewidth": 0}

# ---- seats -------------------------------------------------------------------------------------


def seat_timeline_figure(
    jobs: Sequence[Job], n_seats: int, static: Sequence[int], continuous: Sequence[int]
) -> Drawn:
    """Which job sits where in which step, static above and continuous below. Up to 12 jobs.

    static, continuous: the step in which each job begins.
    """
    require_between("the number of jobs", len(jobs), 2, len(LETTERS))
    require_between("n_seats", n_seats, 1, 6)
    apply_style()
    height = 2.3 + 0.75 * n_seats
    figure, panels = plt.subplots(2, 1, figsize=(7.8, height), layout="constrained", sharex=True)
    ways = {"static batching": static, "continuous batching": continuous}
    said, last = [], 0
    for plot, (name, starts) in zip(panels, ways.items(), strict=True):
        end = max(s + job.n_steps for s, job in zip(starts, jobs, strict=True))
        use = f"{end} steps, {seat_use(jobs, starts, n_seats):.0%} of the seats do work"
        plot.set_title(f"{name}: {use}", fontsize=13)
        _seats(plot, jobs, starts, n_seats, end)
        last = max(last, end)
        said.append(f"{name}: {use}; jobs begin in steps {listed([str(s) for s in starts])}")
    panels[1].set_xlabel("step (number)")
    panels[1].set_xlim(0, last)
    handles = [Patch(label="a job's steps", **OWN), Patch(label="an empty seat", **IDLE)]
    figure.legend(handles=handles, ncols=2, **BELOW)
    return figure, (
        f"Two timelines of {n_seats} seats for {len(jobs)} jobs. {'. '.join(said)}. In the upper "
        "one seats stay empty until the longest job of a batch is done."
    )


def _seats(plot: Axes, jobs: Sequence[Job], starts: Sequence[int], n_seats: int, end: int) -> None:
    for seat in range(n_seats):
        plot.add_patch(Rectangle((0, seat + 0.1), end, 0.8, **IDLE))
    free_at = [0] * n_seats
    for i, (job, start) in enumerate(zip(jobs, starts, strict=True)):
        seat = next(s for s in range(n_seats) if free_at[s] <= start)
        free_at[seat] = start + job.n_steps
        plot.add_patch(Rectangle((start, seat + 0.1), job.n_steps, 0.8, **OWN))
        middle = (start + job.n_steps / 2, seat + 0.5)
        plot.text(*middle, LETTERS[i], ha="center", va="center", weight="bold")
    plot.set(ylim=(n_seats, 0), ylabel="seat (number)")
    plot.set_yticks([seat + 0.5 for seat in range(n_seats)], [str(s) for s in range(n_seats)])
    plot.xaxis.set_major_locator(MaxNLocator(integer=True))
    plot.grid(False)


# ---- page tables -------------------------------------------------------------------------------


def page_tables_figure(
    tables: Sequence[Sequence[int]], ref_counts: Sequence[int], page_size: int
) -> Drawn:
    """Page tables of a few sequences on the left, the pages with their holders on the right.

    tables: 1 to 4, of 1 to 6 pages each. ref_counts: holders of each page, 4 to 16 of them.
    """
    require_between("the number of tables", len(tables), 1, 4)
    require_between("the longest table", max(map(len, tables)), 1, 6)
    require_between("the number of pages", len(ref_counts), 4, 16)
    figure, plot = _sheet(
        7.8, 4.0, f"Page tables, and {len(ref_counts)} pages of {page_size} tokens"
    )
    for row, table in enumerate(tables):
        y = 0.7 + 1.25 * row
        plot.text(0, y + 0.4, f"sequence {LETTERS[row]}", va="center", fontsize=12)
        for column, page in enumerate(table):
            look = SHARED if ref_counts[page] > 1 else OWN
            _box(plot, 2.6 + column, y, 0.9, 0.8, str(page), look)
    left = 2.6 + max(map(len, tables)) + 1.0
    plot.text(2.6, 0.35, "page table", fontsize=12)
    plot.text(left, 0.35, "pages, and their holders", fontsize=12)
    for page, count in enumerate(ref_counts):
        look = FREE if count == 0 else SHARED if count > 1 else OWN
        x, y = left + 1.55 * (page % 4), 0.7 + 1.25 * (page // 4)
        _box(plot, x, y, 1.4, 0.95, f"{page}", look, f"held {count}×" if count else "free")
    plot.set_xlim(-0.1, left + 6.2)
    plot.set_ylim(1.3 + 1.25 * (max(len(tables), -(-len(ref_counts) // 4)) - 1) + 0.6, 0)
    looks = {"one holder": OWN, "shared": SHARED, "free": FREE}
    figure.legend(handles=[Patch(label=n, **look) for n, look in looks.items()], ncols=3, **BELOW)
    lists = "; ".join(f"{LETTERS[i]} {list(table)}" for i, table in enumerate(tables))
    counts = ", ".join(f"page {p} {n}" for p, n in enumerate(ref_counts) if n > 1)
    return figure, (
        f"Page tables of {len(tables)} sequences: {lists}. Beside them {len(ref_counts)} pages, "
        f"each with the number of its holders: {counts or 'none'} of them shared, "
        f"{sum(n == 0 for n in ref_counts)} are free."
    )


def _sheet(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """A figure without axes, to draw boxes on."""
    apply_style()
    figure, plot = plt.subplots(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=14)
    plot.axis("off")
    return figure, plot


def _box(
    plot: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str,
    look: Look,
    more: str = "",
) -> None:
    plot.add_patch(Rectangle((x, y), width, height, **look))
    words = f"{text}\n{more}" if more else text
    behind: Look = {"bbox": PLAIN} if "hatch" in look else {}
    middle = (x + width / 2, y + height / 2)
    plot.text(*middle, words, ha="center", va="center", fontsize=11, **behind)


# ---- names of pages ----------------------------------------------------------------------------


def hash_chain_figure(
    prompts: Sequence[Sequence[int]], names: Sequence[Sequence[bytes]], page_size: int
) -> Drawn:
    """The pages of 2 or 3 prompts in a row each, with the first digits of their names.

    prompts: tokens, 1 to 4 full pages each; names: of each prompt, as page_hashes gives them.
    """
    require_between("the number of prompts", len(prompts), 2, 3)
    require_between("the most pages", max(map(len, names)), 1, 4)
    figure, plot = _sheet(7.8, 1.1 + 1.15 * len(prompts), "A page's name holds the name before it")
    every = [name for chain in names for name in chain]
    for row, (tokens, chain) in enumerate(zip(prompts, names, strict=True)):
        y = 1.5 * row
        plot.text(0, y + 0.5, f"prompt {LETTERS[row]}", va="center", fontsize=12)
        for column, name in enumerate(chain):
            page = " ".join(str(t) for t in tokens[column * page_size : (column + 1) * page_size])
            look = SHARED if every.count(name) > 1 else ONLY_HERE
            x = 1.5 + 2.6 * column
            _box(plot, x, y, 2.0, 1.0, page, look, name.hex()[:6])
            if column:
                plot.add_patch(FancyArrowPatch((x - 0.62, y + 0.5), (x, y + 0.5), **ARROW))
    plot.set_xlim(-0.1, 1.5 + 2.6 * max(map(len, names)))
    plot.set_ylim(1.5 * len(prompts) - 0.3, -0.2)
    looks = {"same name: one page for all": SHARED, "a name that only one has": ONLY_HERE}
    figure.legend(handles=[Patch(label=n, **look) for n, look in looks.items()], ncols=2, **BELOW)
    shared = len({name for name in every if every.count(name) > 1})
    return figure, (
        f"Rows of pages of {len(prompts)} prompts, {page_size} tokens each, with arrows from each "
        "page to the next and the first digits of its name. Names that occur more than once: "
        f"{shared}; behind the first page that differs all names differ, even where the tokens are "
        "equal."
    )


# ---- steps of the scheduler --------------------------------------------------------------------


def budget_steps_figure(
    steps: Sequence[Sequence[tuple[str, int, bool]]], token_budget: int
) -> Drawn:
    """What each step computes, as stacked bars under the token budget. Up to 12 steps.

    steps: for each, (request, tokens, whether it decodes) in the order planned.
    """
    require_between("the number of steps", len(steps), 1, 12)
    require_between("token_budget", token_budget, 1, 32)
    title = f"Steps of the scheduler, budget {token_budget} tokens"
    figure, plot = axes(title, "step (number)", "computed in the pass (tokens)", size=(7.8, 4.6))
    said = []
    for number, parts in enumerate(steps):
        bottom = 0
        for name, n, decodes in parts:
            look = OWN if decodes else SHARED
            plot.bar(number, n, bottom=bottom, width=0.8, **look)
            words = name if n == 1 else f"{name}: {n}"
            plot.text(
                number, bottom + n / 2, words, ha="center", va="center", fontsize=11, bbox=PLAIN
            )
            bottom += n
        said.append(f"step {number}: " + (", ".join(f"{a} {n}" for a, n, _ in parts) or "nothing"))
    plot.axhline(token_budget, color=RED, linestyle="--", linewidth=1.8)
    plot.set_ylim(0, token_budget * 1.1)
    plot.set_xticks(range(len(steps)))
    plot.grid(False, axis="x")
    looks = {"decodes": OWN, "a part of a prompt": SHARED}
    handles = [Patch(label=name, **look) for name, look in looks.items()]
    line = plt.Line2D([], [], color=RED, linestyle="--", marker="", label="token budget")
    figure.legend(handles=[*handles, line], ncols=3, **BELOW)
    return figure, (
        f"A stacked bar for each of {len(steps)} steps: the tokens that each request has in it, "
        f"under a line at the budget of {token_budget}. {'; '.join(said)}."
    )


seat_timeline = shown(seat_timeline_figure)
page_tables = shown(page_tables_figure)
hash_chain = shown(hash_chain_figure)
budget_steps = shown(budget_steps_figure)
