"""The one way pictures and small tables reach a notebook.

JupyterLab shows alternative text only for an HTML <img alt>, so a figure is rendered here and
displayed as one. Every figure has a title, units on both axes, and colours, line styles and markers
that can be told apart without colour.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from labkit.display import ipython, put

# Six of Petroff's ten colours (arXiv:2107.02270): those with a contrast of 3 or more on white.
COLOURS = ("#3f90da", "#bd1f01", "#832db6", "#e76300", "#717581", "#a96b59")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#22252b"
# What words in INK may stand on: a contrast of 4.5 on a light page, and on a dark one, where both
# change places and stronger colours come too near the ink.
SKY, ORANGE, PALE = "#8fc1ee", "#f7b27a", "#eef1f4"
SHADES = LinearSegmentedColormap.from_list("shades", ["white", SKY])
# A white box glares on a dark page: there light and dark change places and the hues stay. The pages
# are JupyterLab's, VS Code's and the course's site; wherever style is stripped it stays white.
DARK_PAGES = (
    '[data-jp-theme-light="false"]',
    ".vscode-dark",
    'html[data-theme="dark"]',
)
ON_DARK = (
    f"<style>{','.join(f'{page} img.inferlab-figure' for page in DARK_PAGES)}"
    "{filter:invert(.93) hue-rotate(180deg)!important}</style>"
)

READABLE_PX = 9  # no letter of a figure gets smaller: on a narrower page the figure scrolls

STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=LINES) + cycler(marker=MARKERS),
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,  # inches: words keep off the picture's edge
    "figure.constrained_layout.h_pad": 0.08,
    "figure.figsize": (7.2, 4.2),
    "figure.dpi": 100,
    "font.size": 12,
    "axes.titlesize": 14,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dfe2e6",
    "grid.linewidth": 0.8,
    "axes.edgecolor": "#8a8f98",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 1.2,
}


@contextmanager
def style() -> Iterator[None]:
    """The course's look within a with block."""
    with mpl.rc_context(STYLE):
        yield


def apply_style() -> None:
    """The course's look for the rest of the session (axes() does this too)."""
    mpl.rcParams.update(STYLE)


def axes(
    title: str, x: str, y: str, *, size: tuple[float, float] = (7.2, 4.2)
) -> tuple[Figure, Axes]:
    """A new figure with one plot. x and y are labels that end in a unit: "context (tokens)".

    Raises ValueError for an empty title or a label without a unit in brackets.
    """
    if not title.strip():
        raise ValueError("a figure needs a title that says what it shows")
    for name, label in (("x", x), ("y", y)):
        if not re.search(r"\S\s*[(\[][^()\[\]]+[)\]]\s*$", label):
            raise ValueError(f'{name}={label!r} has no unit: write it as "context (tokens)"')
    apply_style()
    figure, plot = plt.subplots(figsize=size, layout="constrained")
    plot.set_title(title)
    plot.set_xlabel(x)
    plot.set_ylabel(y)
    return figure, plot


def sheet(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """A blank drawing, measured in inches, with its title: for diagrams that have no axes."""
    apply_style()
    figure = plt.figure(figsize=(width, height), layout="none")
    plot = figure.add_axes((0, 0, 1, 1))
    plot.set_axis_off()
    plot.set_xlim(0, width)
    plot.set_ylim(0, height)
    say(plot, 0.15, height - 0.27, title, size=14)
    return figure, plot


def plain_log(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: at the decades, at 2 and 5 too where those are few."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=20))
    axis.set_major_formatter(FuncFormatter(plain_number))
    axis.set_minor_formatter(NullFormatter())


def plain_number(value: float, _: object = None) -> str:
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def say(
    plot: Axes, x: float, y: float, text: str, ha: str = "left", size: int = 12, **look: str
) -> None:
    """Write a line of text with its middle at height y."""
    plot.text(x, y, text, ha=ha, va="center", fontsize=size, **look)  # type: ignore[arg-type]


def img(fig: Figure, alt: str) -> str:
    """A figure as an HTML <img> with its picture inside, at twice the screen's dots; closes it.

    Raises ValueError for an empty alt text: it is what a reader who cannot see the figure gets.
    """
    alt = " ".join(alt.split())
    if not alt:
        raise ValueError("alt is empty: say in a sentence or two what the figure shows")
    # The inline backend crops to the drawing; the course's figures keep their size.
    with mpl.rc_context({"savefig.bbox": None}):
        png = io.BytesIO()
        fig.savefig(png, format="png", dpi=2 * fig.dpi, metadata={"Software": None})
    width = round(fig.get_figwidth() * fig.dpi)
    plt.close(fig)
    return framed("image/png", png.getvalue(), alt, width, least_width(fig))


def least_width(fig: Figure) -> int:
    """The width in pixels at which the smallest letters of a drawn figure are READABLE_PX high."""
    sizes = [float(t.get_fontsize()) for t in fig.findobj(Text) if t.get_visible() and t.get_text()]
    smallest_px = min(sizes, default=12) * fig.dpi / 72
    return round(min(1, READABLE_PX / smallest_px) * fig.get_figwidth() * fig.dpi)


def framed(kind: str, picture: bytes, alt: str, width: int, least: int) -> str:
    """An HTML <img> in a frame that scrolls where the page has less than its least width."""
    data = base64.b64encode(picture).decode("ascii")
    look = f"max-width:100%;min-width:{least}px;height:auto"
    return (
        f'<div class="inferlab-frame" tabindex="0" style="overflow-x:auto">'
        f'<img alt="{html.escape(alt, quote=True)}" class="inferlab-figure" width="{width}" '
        f'style="{look}" src="data:{kind};base64,{data}"></div>{ON_DARK}'
    )


def show(fig: Figure, alt: str) -> str | None:
    """Show a figure with its alternative text, and close it.

    In a notebook: displays and returns None. Elsewhere: returns the HTML and writes nothing.
    """
    picture = img(fig, alt)
    if ipython() is None:
        return picture
    put(picture, alt)
    return None
