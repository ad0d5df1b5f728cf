"""The explorer's pictures: right bars and marks, readable words, colours that follow the page."""

import re

import pytest
from figure_words import drawn_words, require_apart, require_readable
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle

from labkit.explorer.pictures import (
    INK,
    PICTURES,
    PROPERTIES,
    RED,
    alt_text,
    compute_begins,
    memory_ends,
    verdict,
)
from labkit.explorer.setting import Setting
from labkit.explorer.sheets import SHEETS, Sheet, board, board_img, svg
from labkit.explorer.state import State, compute

SETTINGS = {
    "fits": Setting(),
    "one too many": Setting(n_sequences=60),
    "weights alone are too many": Setting(model="70b-style", n_sequences=8, headroom=0.1),
    "far too large": Setting(model="kimi-k2", device="t4", n_sequences=1024),
    "speculation": Setting(
        model="llama-3-8b", device="h100-sxm", gamma=4, n_tokens=128, n_sequences=64
    ),
    "compute-bound": Setting(model="llama-3-8b", device="h100-sxm", n_tokens=128, n_sequences=800),
    "tiny": Setting(model="smollm2-135m", device="laptop-cpu", n_tokens=192, n_sequences=1),
}


def bars(state: State) -> list[tuple[float, float, str | None]]:
    """(start, width, hatch) of each part of the memory bar, in GB."""
    plot = Sheet("memory").draw(state).axes[0]
    boxes = [patch for patch in plot.patches if isinstance(patch, Rectangle)]
    return [(round(b.get_x(), 2), round(b.get_width(), 2), b.get_hatch()) for b in boxes]


def test_the_bar_stacks_weights_cache_and_what_is_free():
    assert bars(compute(Setting())) == [
        (0, 16.06, None),
        (16.06, 17.18, ".."),
        (33.24, 46.76, None),
    ]


def test_what_does_not_fit_is_hatched_and_said():
    state = compute(Setting(n_sequences=60))
    assert bars(state)[-1] == (80, 0.49, "////")
    assert verdict(state) == "does not fit, 485 MB short"
    title = Sheet("memory").draw(state).axes[0].title
    left = Sheet("memory").draw(state).axes[0].get_title(loc="left")
    assert "does not fit" in (title.get_text() or left)


def test_weights_that_are_too_many_are_cut_at_the_memorys_end():
    state = compute(Setting(model="70b-style", n_sequences=8))
    assert [(start, hatch) for start, _, hatch in bars(state)] == [
        (0, None), (80, "////"), (141.11, "////"),
    ]  # fmt: skip


def test_a_bar_far_too_long_ends_at_the_edge_and_says_how_long_it_is():
    plot = Sheet("memory").draw(compute(SETTINGS["far too large"])).axes[0]
    assert plot.get_xlim()[1] == pytest.approx(2.2 * 16)
    assert any("needs" in text.get_text() and "→" in text.get_text() for text in plot.texts)


def test_headroom_lies_behind_the_cache():
    state = compute(Setting(headroom=0.1))
    assert bars(state)[2] == (33.24, 8, "xx")
    assert compute(Setting(headroom=0.1, n_sequences=53)).fits is False


def test_where_memory_ends_and_computing_begins_is_marked():
    state = compute(SETTINGS["compute-bound"])
    plot = Sheet("speed").draw(state).axes[0]
    upright = {round(line.get_xdata()[0]) for line in plot.lines if len(line.get_xdata()) == 2
               and line.get_xdata()[0] == line.get_xdata()[1]}  # fmt: skip
    assert state.compute_from in upright
    assert memory_ends(state) == "memory ends (–·–) after 3,811"
    short = compute(Setting())
    plot = Sheet("speed").draw(short).axes[0]
    assert any(len(x := line.get_xdata()) == 2 and x[0] == x[1] == 59 for line in plot.lines)
    assert compute_begins(short) == "compute-bound (···): at no batch"


def test_the_points_of_the_roofline_lie_on_the_roof():
    state = compute(Setting())
    plot = Sheet("roofline").draw(state).axes[0]
    points = {line.get_marker(): line for line in plot.lines if len(line.get_xdata()) == 1}
    x, y = points["o"].get_xdata()[0], points["o"].get_ydata()[0]
    assert x == state.decode.intensity
    assert y * 1e12 == pytest.approx(state.decode.flops / state.decode.seconds)
    assert points["s"].get_ydata()[0] == 1000.0


@pytest.mark.parametrize("name", SETTINGS)
def test_a_sheet_drawn_again_is_as_one_drawn_afresh(name):
    """Nothing of the setting before is left behind."""
    used = Sheet("board")
    for other in SETTINGS.values():
        used.draw(compute(other))
    again, fresh = used.draw(compute(SETTINGS[name])), Sheet("board").draw(compute(SETTINGS[name]))
    for old, new in zip(again.axes, fresh.axes, strict=True):
        assert [t.get_text() for t in old.texts] == [t.get_text() for t in new.texts]
        assert len(old.lines) == len(new.lines)
        assert len(old.patches) == len(new.patches)
        assert (old.get_xlim(), old.get_ylim()) == (new.get_xlim(), new.get_ylim())
        assert old.get_title(loc="left") == new.get_title(loc="left")
    assert len(again.texts) == len(fresh.texts)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_words_can_be_read(name):
    words = drawn_words(lambda: board(compute(SETTINGS[name])))
    require_readable(words, alt_above=300, texts_above=20)
    require_apart(words.texts, blank_px=5)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_alternative_text_says_the_numbers(name):
    state = compute(SETTINGS[name])
    text = alt_text(state)
    assert verdict(state) in text
    assert f"{state.user_per_s:,.1f}" in text
    assert f"{state.all_per_s:,.0f}" in text
    assert f"ridge at {state.ridge:,.0f}" in text
    assert "decode: " in text
    assert "prefill: " in text
    if state.fits_sequences > 0:
        assert f"Memory ends after {state.fits_sequences:,}" in text


def test_a_notebook_gets_one_image_with_words():
    markup = board_img(compute(Setting()))
    assert markup.count("<img ") == 1
    assert "It fits, 46.76 GB left" in markup
    assert "data:image/svg+xml;base64," in markup
    assert 'class="inferlab-figure"' in markup  # dark on a dark page, as every figure


@pytest.mark.parametrize("name", [*PICTURES, "memory, narrow"])
def test_every_colour_of_the_page_follows_its_scheme(name):
    picture, _, narrow = name.partition(", ")
    for setting in SETTINGS.values():
        text = svg(picture, compute(setting), bool(narrow))
        bare = re.sub(r"var\(--x-[a-z]+, #[0-9a-f]{6}\)", "", text)
        assert re.findall(r"#[0-9a-f]{6}\b", bare) == []
        assert text.startswith("<svg")
        assert "<metadata>" not in text
        assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)


def test_each_colour_has_one_property_and_red_is_not_ink():
    assert len(set(PROPERTIES.values())) == len(PROPERTIES)
    assert not same_color(RED, INK)
    assert set(SHEETS) == {"board", *PICTURES, "memory, narrow"}
