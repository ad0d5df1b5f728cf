"""Boxes and arrows: what the pictures in docs/ are drawn with.

Colours are blue, orange and grey (told apart by colour-blind readers), and every kind of box also
has its own border, so that nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch

# kind -> face, edge, line style
KINDS = {
    "flow": ("#dbe9f6", "#1f5a94", "-"),
    "memory": ("#fde3c8", "#b35900", "--"),
    "measure": ("#eeeeee", "#555555", ":"),
}
HEIGHT = 0.95
# The file that comes with matplotlib: a computer's own may number its glyphs otherwise.
FONT = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
SIZE = 9.5
Point = tuple[float, float]


@contextmanager
def picture(path: Path, title: str, alt: str, width: float, top: float) -> Iterator[plt.Axes]:
    """Axes to draw on, saved to path as SVG afterwards; the same bytes each time."""
    own: Any = {"svg.hashsalt": "inferlab", "font.size": SIZE}
    with plt.style.context("default"), plt.rc_context(own):
        figure, axes = plt.subplots(figsize=(11, 5))
        axes.set(xlim=(-0.2, width), ylim=(-0.3, top))
        axes.axis("off")
        axes.set_title(title, loc="left", font=font(12))
        yield axes
        about = {"Date": None, "Creator": None, "Title": alt}
        figure.savefig(path, bbox_inches="tight", metadata=about)
        plt.close(figure)


def font(size: float = SIZE) -> FontProperties:
    return FontProperties(fname=FONT, size=size)


def box(axes, text: str, badge: str, x: float, y: float, width: float, kind: str) -> None:
    """A box with its lower left corner at (x, y). badge: a small label on its upper left corner."""
    face, edge, style = KINDS[kind]
    shape = "round,pad=0,rounding_size=0.12"
    patch: Any = {"facecolor": face, "edgecolor": edge, "linestyle": style, "linewidth": 1.6}
    axes.add_patch(FancyBboxPatch((x, y), width, HEIGHT, boxstyle=shape, **patch))
    axes.text(x + width / 2, y + HEIGHT / 2, text, ha="center", va="center", font=font())
    if badge:
        look = {"boxstyle": "round,pad=0.2", "facecolor": edge, "edgecolor": "none"}
        axes.text(x + 0.02, y + HEIGHT, badge, color="white", font=font(8), bbox=look, va="center")


def arrow(axes, start: Point, end: Point, bend: float = 0.0, style: str = "-|>") -> None:
    """An arrow; style "<|-|>" has two heads."""
    look = {"arrowstyle": style, "color": "#222222", "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", xy=end, xytext=start, arrowprops=look)


def note(axes, x: float, y: float, text: str, ha: str = "center") -> None:
    """Words beside an arrow."""
    axes.text(x, y, text, font=font(8.5), ha=ha, va="center")
