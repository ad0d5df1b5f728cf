"""Predictions are lodged before they are confronted, and confronting never raises."""

from __future__ import annotations

import types

import pytest

from labkit import display, predictions, store
from labkit.predictions import Prediction


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path))
    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)


GROWTH = Prediction(
    "growth",
    "From 8 to 2 `n_kv_heads`: how much smaller is the **cache**?",
    lambda: 4.0,
    "Only KV heads are cached.",
    unit="x",
)
SIZE = Prediction("size", "How big?", lambda: 320 * 1024.0, "Each layer.", unit="KiB")
WHICH = Prediction(
    "which",
    "What grows?",
    lambda: "the KV cache",
    "Each token adds to it.",
    choices=("the weights", "the KV cache"),
)


@pytest.mark.parametrize(
    ("prediction", "typed", "stored"),
    [
        (GROWTH, "4x", "4x"),
        (GROWTH, 4, "4x"),
        (GROWTH, "4", "4x"),
        (SIZE, " 320 KiB ", "320 KiB"),
        (SIZE, "0.3 MB", "0.3 MB"),
        (WHICH, "B", "the KV cache"),
        (WHICH, "b)", "the KV cache"),
        (WHICH, "The KV  Cache", "the KV cache"),
    ],
)
def test_what_is_typed_is_stored_so_that_it_reads_back(prediction, typed, stored):
    assert predictions.lodge(prediction, typed).value == stored


@pytest.mark.parametrize(
    ("prediction", "typed", "message"),
    [
        (SIZE, 320, 'no unit: write it as "320 KiB"'),
        (SIZE, "3 s", "is measured in s; this asks for B"),
        (GROWTH, "many", "does not start with a number"),
        (WHICH, "c", "a\\) the weights; b\\) the KV cache"),
    ],
)
def test_what_cannot_be_lodged_says_why_and_stores_nothing(prediction, typed, message):
    with pytest.raises(ValueError, match=message):
        predictions.lodge(prediction, typed)
    assert store.prediction(prediction.id) is None


def test_the_first_prediction_is_the_one_confronted():
    predictions.lodge(GROWTH, "8x")
    predictions.lodge(GROWTH, "4x")
    seen = predictions.confrontation(GROWTH)
    assert (seen.yours, seen.computed, seen.measured) == ("8x", "4x", None)
    assert seen.ratio == "2x too large"
    assert "later you said 4x" in predictions.how(GROWTH)
    predictions.lodge(SIZE, "3 MB")
    predictions.lodge(SIZE, "3 MB")
    assert "later" not in predictions.how(SIZE)


@pytest.mark.parametrize(
    ("measured", "shown", "ratio"),
    [(4.1, "4.1x", "1.95x too large"), ("16x", "16x", "2x too small"), (8.0, "8x", "1: exact")],
)
def test_a_measurement_is_confronted_too(measured, shown, ratio):
    predictions.lodge(GROWTH, "8x")
    seen = predictions.confrontation(GROWTH, measured)
    assert (seen.measured, seen.ratio) == (shown, ratio)


def test_choices_are_confronted_in_words():
    predictions.lodge(WHICH, "a")
    assert predictions.confrontation(WHICH).ratio == "not as you said"
    assert predictions.confrontation(WHICH, "the weights").ratio == "as you said"


def test_sizes_are_shown_in_both_systems():
    predictions.lodge(SIZE, "327.68 KB")
    seen = predictions.confrontation(SIZE)
    assert seen.computed == "327.7 kB (320.0 KiB)"
    assert seen.ratio == "1: exact"


def test_without_a_prediction_the_answer_is_kept_and_it_is_said_how_to_lodge_one(capsys):
    predictions.confront(GROWTH)
    out = capsys.readouterr().out
    assert "Lodge a prediction first" in out
    assert 'predict("growth", "2.5x")' in out
    assert "Only KV heads are cached." not in out
    assert "4x" not in out


@pytest.mark.parametrize("measured", [None, "nonsense", "3 s", float("nan"), 0.0, [1]])
def test_confronting_never_raises(measured, capsys):
    def broken() -> float:
        raise NotImplementedError("write this")

    prediction = Prediction("broken", "How much?", broken, "So.", unit="B")
    predictions.lodge(prediction, "3 MB")
    predictions.confront(prediction, measured)
    assert "could not be computed here (NotImplementedError: write this)" in capsys.readouterr().out


@pytest.mark.parametrize("measured", ["3 s", "nonsense", float("nan")])
def test_an_unusable_measurement_gives_no_ratio(measured):
    predictions.lodge(SIZE, "320 KiB")
    seen = predictions.confrontation(SIZE, measured)
    assert seen.ratio == "–"
    assert "not usable" in seen.measured or "nan" in seen.measured


def test_the_table_escapes_and_is_labelled(monkeypatch):
    shown = []
    monkeypatch.setattr(predictions, "put", lambda markup, text: shown.append(markup))
    prediction = Prediction("p", "Is a < b?", lambda: "<x>", "so", choices=("<x>", "y"))
    predictions.lodge(prediction, "y")
    predictions.confront(prediction)
    assert "&lt;x&gt;" in shown[0]
    assert "<x>" not in shown[0]
    assert '<th scope="col"' in shown[0]
    assert "<caption" in shown[0]


def test_a_form_lodges_by_its_button_and_says_so():
    form = predictions.form(GROWTH)
    question, row, state = form.children
    entry, button = row.children
    assert "<b>cache</b>" in question.value
    assert "nothing lodged yet" in state.value
    button.click()
    assert "nothing is entered yet" in state.value
    entry.value = "lots"
    button.click()
    assert "not lodged" in state.value
    assert store.prediction("growth") is None
    entry.value = "4x"
    button.click()
    assert "lodged: <b>4x</b> on" in state.value
    assert store.prediction("growth").value == "4x"
    assert "lodged: <b>4x</b>" in predictions.form(GROWTH).children[2].value


def test_a_form_of_choices_has_nothing_chosen_at_first():
    row = predictions.form(WHICH).children[1]
    radio, button = row.children
    assert radio.value is None
    radio.value = "the KV cache"
    button.click()
    assert store.prediction("which").value == "the KV cache"


def test_every_control_has_a_label():
    for prediction in (GROWTH, WHICH):
        entry, button = predictions.form(prediction).children[1].children
        assert entry.description
        assert button.description == "lodge"
        assert prediction.question.split()[0] in button.tooltip


def test_without_widgets_the_form_is_text_with_what_to_type(capsys):
    predictions.show_form(WHICH)
    out = capsys.readouterr().out
    assert "b) the KV cache" in out
    assert 'predict("which", "a")' in out


def test_in_a_kernel_the_form_carries_the_text_for_front_ends_without_widgets(monkeypatch):
    shown = []
    monkeypatch.setattr(display, "ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    predictions.show_form(GROWTH)
    assert "application/vnd.jupyter.widget-view+json" in shown[0]
    assert 'predict("growth", "2.5x")' in shown[0]["text/plain"]


def test_while_grading_the_form_is_text(monkeypatch, capsys):
    monkeypatch.setattr(display, "ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    predictions.show_form(GROWTH)
    assert "predict(" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "either a unit or choices"),
        ({"unit": "x", "choices": ("a", "b")}, "either a unit or choices"),
        ({"unit": "furlong"}, "unknown unit"),
        ({"choices": ("a", "a")}, "different choices"),
    ],
)
def test_a_prediction_that_cannot_work_is_refused(extra, message):
    with pytest.raises(ValueError, match=message):
        Prediction("p", "?", lambda: 1.0, "so", **extra)
