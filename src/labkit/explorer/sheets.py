"""The explorer's pictures on sheets: all three for a notebook, each for the page. Quick to redraw.

The page shows each as SVG whose colours follow its light or dark scheme; a notebook shows all three
as one picture on white, as every figure of the course.
"""

from __future__ import annotations

import io
import re
from functools import lru_cache
from threading import Lock

from matplotlib import rc_context
from matplotlib.figure import Figure

from labkit.explorer.pictures import PICTURES, PLACED_STYLE, PROPERTIES, alt_text, draw_keys
from labkit.explorer.state import State
from labkit.figures.show import framed, least_width

# Sheet -> its size, and where each picture stands on it: left, bottom, width, height; in inches.
Place = tuple[float, float, float, float]
SHEETS: dict[str, tuple[tuple[float, float], dict[str, Place]]] = {
    "board": ((8, 6.7), {
        "memory": (0.15, 5.42, 7.7, 0.72), "roofline": (0.75, 0.6, 3.05, 3.2),
        "speed": (4.75, 0.6, 3.05, 3.2),
    }),
    "memory": ((9.6, 1.75), {"memory": (0.1, 0.68, 9.4, 0.62)}),
    "memory, narrow": ((5.2, 2), {"memory": (0.1, 0.95, 5, 0.6)}),
    "roofline": ((5, 4.2), {"roofline": (0.75, 0.6, 4.1, 2.75)}),
    "speed": ((5, 4.2), {"speed": (0.75, 0.6, 4.1, 2.75)}),
}  # fmt: skip


class Sheet:
    """A figure with some of the pictures. It can be drawn again: axes and ticks are kept."""

    def __init__(self, name: str) -> None:
        size, self.places = SHEETS[name]
        with rc_context(PLACED_STYLE):
            self.figure = Figure(figsize=size, dpi=100)
            self.plots = {}
            for picture, place in self.places.items():
                left, bottom, width, height = place
                shares = left / size[0], bottom / size[1], width / size[0], height / size[1]
                self.plots[picture] = self.figure.add_axes(shares)
                PICTURES[picture].prepare(self.plots[picture])

    def draw(self, state: State) -> Figure:
        for artist in [*self.figure.texts, *self.figure.artists]:
            artist.remove()
        with rc_context(PLACED_STYLE):
            for name, plot in self.plots.items():
                for artist in [*plot.lines, *plot.patches, *plot.texts]:
                    artist.remove()
                PICTURES[name].draw(plot, state)
            if "memory" in self.places:
                left, bottom, width, _ = self.places["memory"]
                draw_keys(self.figure, state, left, bottom - 0.5, width)
        return self.figure


_kept = lru_cache(maxsize=len(SHEETS))(Sheet)
_drawing = Lock()  # a kept sheet serves one request at a time


def board(state: State) -> tuple[Figure, str]:
    """All three pictures in one, for a notebook, and their alternative text."""
    return Sheet("board").draw(state), alt_text(state)


def board_img(state: State) -> str:
    """The same as an HTML <img> that is quick to draw: an SVG, on white."""
    drawn = _svg_text("board", state).encode()
    width = round(SHEETS["board"][0][0] * 100)
    least = least_width(_kept("board").figure)
    return framed("image/svg+xml", drawn, alt_text(state), width, least)


def svg(name: str, state: State, narrow: bool = False) -> str:
    """One picture as an SVG element; its colours are custom properties with these as defaults."""
    sheet = f"{name}, narrow" if narrow and f"{name}, narrow" in SHEETS else name
    return _themed(_svg_text(sheet, state, transparent=True))


def _svg_text(name: str, state: State, transparent: bool = False) -> str:
    """A sheet's SVG element. Its letters are text, not outlines: a third quicker to write."""
    text = io.StringIO()
    with _drawing, rc_context({**PLACED_STYLE, "svg.fonttype": "none", "svg.hashsalt": name}):
        figure = _kept(name).draw(state)
        figure.patch.set_visible(not transparent)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    whole = text.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", whole[whole.index("<svg") :], flags=re.DOTALL)


def _themed(text: str) -> str:
    """Every colour by its name."""
    text = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', text)
    for colour, name in PROPERTIES.items():
        text = text.replace(f": {colour}", f": var(--x-{name}, {colour})")
    return text
