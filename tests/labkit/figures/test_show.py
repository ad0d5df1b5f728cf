"""Figures reach the reader with alternative text, readable, and not by colour alone."""

from __future__ import annotations

import base64
import html
import re
import struct
import sys
import types

import matplotlib as mpl
import pytest
from dark_page import contrasts
from matplotlib import pyplot as plt

from labkit import display
from labkit.figures import show as figures


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for IPython's display: a list of what was shown."""
    shown: list[dict] = []
    monkeypatch.setattr(display, "ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr(figures, "ipython", display.ipython)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    return shown


def _figure():
    figure, plot = figures.axes("Title", "context (tokens)", "time (ms)", size=(4, 3))
    plot.plot([1, 2], [3, 4])
    return figure


def test_a_figure_is_an_img_with_escaped_alt_text_and_is_closed():
    figure = _figure()
    markup = figures.show(figure, alt='a "line"\n rising < 4')
    assert html.unescape(re.search('alt="([^"]*)"', markup)[1]) == 'a "line" rising < 4'
    assert "max-width:100%" in markup
    assert not plt.fignum_exists(figure.number)


def test_the_picture_has_twice_the_dots_it_is_shown_with():
    markup = figures.show(_figure(), alt="a line")
    png = base64.b64decode(re.search('base64,([^"]+)', markup)[1])
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (800, 600)
    assert 'width="400"' in markup


def test_the_same_figure_gives_the_same_bytes():
    assert figures.show(_figure(), alt="a") == figures.show(_figure(), alt="a")


@pytest.mark.parametrize("alt", ["", "  \n"])
def test_an_empty_alt_text_is_refused(alt):
    figure = _figure()
    with pytest.raises(ValueError, match="alt is empty"):
        figures.show(figure, alt=alt)
    plt.close(figure)


def test_in_a_notebook_it_is_displayed_and_nothing_is_returned(notebook):
    assert figures.show(_figure(), alt="a line") is None
    (data,) = notebook
    assert '<img alt="a line"' in data["text/html"]
    assert data["text/plain"] == "a line"


@pytest.mark.parametrize(
    ("title", "x", "y", "message"),
    [
        (" ", "context (tokens)", "time (ms)", "needs a title"),
        ("T", "context", "time (ms)", "x='context' has no unit"),
        ("T", "context (tokens)", "time ()", "has no unit"),
    ],
)
def test_a_title_and_units_are_demanded(title, x, y, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        figures.axes(title, x, y)


@pytest.mark.parametrize("colour", figures.COLOURS)
def test_every_colour_stands_out_from_the_page(colour):
    assert min(contrasts(colour, "white")) >= 3  # WCAG 2.2, 1.4.11


SHADES = [figures.SHADES(share) for share in (0, 0.25, 0.5, 0.75, 1)]


@pytest.mark.parametrize("colour", ["white", figures.SKY, figures.ORANGE, figures.PALE, *SHADES])
def test_words_can_be_read_on_every_fill_light_and_dark(colour):
    assert min(contrasts(figures.INK, colour)) >= 4.5  # WCAG 2.2, 1.4.3


@pytest.mark.parametrize(("fontsize", "least"), [(11, 236), (4, 400)])
def test_no_letter_is_shown_smaller_than_nine_pixels(fontsize, least):
    figure = _figure()  # 400 pixels wide; its ticks are of 11 points
    figure.axes[0].xaxis.label.set_fontsize(fontsize)
    markup = figures.show(figure, alt="a line")
    assert f"min-width:{least}px" in markup
    assert 11 / 72 * 100 * least / 400 >= 9  # 100 dots an inch, shown at least / 400 of its width
    assert markup.index("overflow-x:auto") < markup.index("<img ")  # in a frame that scrolls


def test_lines_differ_in_more_than_colour():
    with figures.style():
        _, plot = plt.subplots()
        lines = [plot.plot([0, 1], [i, i])[0] for i in range(6)]
    assert len({line.get_marker() for line in lines}) == 6
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 6


def test_style_ends_with_its_block_and_text_is_readable():
    before = mpl.rcParams["axes.titlesize"]
    with figures.style():
        sizes = [
            v
            for k, v in figures.STYLE.items()
            if k.endswith(("size", "labelsize"))
            and k != "lines.markersize"
            and not k.startswith("figure")
        ]
        assert min(sizes) >= 11
        assert mpl.rcParams["savefig.facecolor"] == "white"
    assert mpl.rcParams["axes.titlesize"] == before


def test_outside_ipython_text_is_printed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    display.put("<b>rich</b>", "plain")
    assert capsys.readouterr().out == "plain\n"
    assert not display.in_kernel()


def test_inline_html_escapes_before_it_marks_up():
    assert (
        display.inline_html("`a<b` is **so** & so") == "<code>a&lt;b</code> is <b>so</b> &amp; so"
    )
