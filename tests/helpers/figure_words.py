"""The words of a figure as they are drawn, and what every figure's words must be."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from dark_page import RGB, contrasts
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

Boxes = Sequence[tuple[Text, Bbox]]


class Words(NamedTuple):
    """A figure, its text alternative, and each text that is drawn with its box in pixels.

    grounds: the colour that most of a text stands on, for each of texts.
    """

    figure: Figure
    alt: str
    texts: Boxes
    grounds: Sequence[RGB]


def drawn_words(make: Callable[[], tuple[Figure, str]]) -> Words:
    """Draw the figure that make() gives, and note every text that is drawn.

    It is drawn with twice its dots, as it is saved: fonts are a little wider there.
    """
    figure, alt = make()
    figure.dpi *= 2
    canvas = FigureCanvasAgg(figure)  # in pixels, whatever canvas pyplot has in use
    drawn: list[Text] = []
    draw = Text.draw
    figure.draw_without_rendering()  # the layout settles
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Text, "draw", lambda self, *a: (drawn.append(self), draw(self, *a)))
        for letters in ("draw_text", "draw_mathtext"):  # only what lies under them is drawn
            patched.setattr(RendererAgg, letters, lambda *a, **k: None)
        canvas.draw()
    shown = {id(text): text for text in drawn if text.get_visible() and text.get_text().strip()}
    boxes = [(text, text.get_window_extent()) for text in shown.values()]
    paper = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    grounds = [_ground(paper, box) for _, box in boxes]
    figure.dpi /= 2
    return Words(figure, alt, [(text, Bbox(box.get_points() / 2)) for text, box in boxes], grounds)


def words_of(examples: Mapping[str, Callable[[], tuple[Figure, str]]]) -> Any:
    """A fixture for a file of tests: the words of each of these figures, by name, in turn.

    Each is drawn once: drawing takes a hundred times as long as what is asked of it.
    """

    @pytest.fixture(scope="module", params=examples)
    def words(request: pytest.FixtureRequest) -> Words:
        return drawn_words(examples[request.param])

    return words


def _ground(paper: np.ndarray, box: Bbox) -> RGB:
    """The colour of most of the pixels in a box."""
    left, low, right, high = (max(0, round(edge)) for edge in box.extents)
    red, green, blue = paper[low:high, left:right].reshape(-1, 3).astype(np.uint32).T
    colours, counts = np.unique(red << 16 | green << 8 | blue, return_counts=True)
    most = int(colours[counts.argmax()])
    return (most >> 16) / 255, (most >> 8 & 255) / 255, (most & 255) / 255


def require_readable(
    words: Words,
    alt_above: int = 40,
    texts_above: int = 5,
    inside_px: float = -1,
    may_be_small: Callable[[str], bool] = lambda text: False,
) -> None:
    """The figure fits a page, says enough in its alt text; no text is tiny, pale or cut off.

    inside_px: how far each text must stay from the figure's edge; -1 leaves a pixel to rounding.
    """
    figure, alt, texts, grounds = words
    assert len(alt) > alt_above
    assert figure.get_figwidth() * figure.dpi <= 800
    assert len(texts) > texts_above
    for text, box in texts:
        assert text.get_fontsize() >= 11 or may_be_small(text.get_text()), text.get_text()
        assert box.x0 >= inside_px, text.get_text()
        assert box.y0 >= inside_px, text.get_text()
        assert box.x1 <= figure.bbox.x1 - inside_px, text.get_text()
        assert box.y1 <= figure.bbox.y1 - inside_px, text.get_text()
    for (text, _), ground in zip(texts, grounds, strict=True):
        least = min(contrasts(text.get_color(), ground))  # on a light page, on a dark one
        assert least >= 4.5, f"{text.get_text()!r} has a contrast of {least:.2f}"


def require_apart(texts: Boxes, blank_px: float = 3) -> None:
    """No two texts lie over each other. blank_px: what belongs to a line of text, above it."""
    for (one, box), (other, beside) in itertools.combinations(texts, 2):
        across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
        along = min(box.y1, beside.y1) - max(box.y0, beside.y0)
        assert across <= 1 or along <= blank_px, f"{one.get_text()!r} lies on {other.get_text()!r}"
