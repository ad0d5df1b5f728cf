"""What the figures of all lessons share: their colours, hatches and lines, and small helpers.

A lesson's figures come in pairs: name_figure(...) gives (figure, alt text), name(...) shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from matplotlib.figure import Figure

from labkit.figures.show import COLOURS, INK, PALE, SKY, show

Drawn = tuple[Figure, str]
Numbers = Sequence[float]
Look = dict[str, Any]
P = ParamSpec("P")

BLUE, RED, GREY = COLOURS[0], COLOURS[1], "#8a8f98"
NEW: Look = {"facecolor": SKY, "edgecolor": INK, "linewidth": 1}
KEPT: Look = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 1, "hatch": "///"}
HELD: Look = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 1}
EMPTY: Look = {"facecolor": "white", "edgecolor": GREY, "linewidth": 1, "linestyle": ":"}
BOUND: Look = {"linestyle": "--", "marker": "", "linewidth": 1.8}
ROOMY: Look = {"h_pad": 0.13, "wspace": 0.05}
BELOW: Look = {"loc": "outside lower left", "handleheight": 1.2, "columnspacing": 1.6}


def shown(make: Callable[P, Drawn]) -> Callable[P, None]:
    """The same with the same arguments, but shown in place of returned."""

    @wraps(make)
    def show_it(*args: P.args, **kwargs: P.kwargs) -> None:
        figure, alt = make(*args, **kwargs)
        show(figure, alt=alt)

    show_it.__name__ = make.__name__.removesuffix("_figure")
    return show_it


def listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


def token_count(n: int) -> str:
    return f"{n:,} token{'s' if n != 1 else ''}"


def require_between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name}={value} must be from {low} to {high}, to stay readable")
