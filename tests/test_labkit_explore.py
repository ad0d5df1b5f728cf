"""The memory bars: right numbers, drawn by the learner's function, never by colour alone."""

from __future__ import annotations

import types
from time import perf_counter

import numpy as np
import pytest
from matplotlib import pyplot as plt

from labkit import display, explore
from labkit.explore import Memory, Setting

CONFIGS = {
    "8b": types.SimpleNamespace(n_params=8_000_000_000, per_token=65_536),
    "tiny": types.SimpleNamespace(n_params=1_000_000, per_token=100),
}


def kv_bytes(config, n_tokens, n_sequences, bytes_per_number):
    return config.per_token * n_tokens * n_sequences * bytes_per_number


@pytest.fixture(autouse=True)
def _no_grading(monkeypatch):
    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)
    yield
    plt.close("all")


def _row(**values) -> Memory:
    return explore.memory(Setting(**{"model": "8b", **values}), CONFIGS, kv_bytes)


def test_memory_is_weights_and_cache_beside_the_limit():
    row = _row(n_tokens=8192, n_sequences=16)
    assert (row.weights, row.kv, row.limit) == (16e9, 65_536 * 8192 * 16 * 2, 80e9)
    assert row.fits
    assert row.left == 80e9 - 16e9 - row.kv
    assert row.line().endswith("on a device of 80 GB: fits, 46.8 GB left.")
    assert "17.18 GB (16.00 GiB)" in row.line()


def test_what_does_not_fit_is_said_with_what_is_missing():
    row = _row(n_tokens=131_072, n_sequences=16)
    assert not row.fits
    assert "does not fit: 210.9 GB short" in row.line()


@pytest.mark.parametrize("bad", [None, "3", -1, float("nan"), float("inf")])
def test_a_function_that_gives_no_bytes_is_refused(bad):
    with pytest.raises(ValueError, match="must be a number of 0 or more"):
        explore.memory(Setting(model="8b"), CONFIGS, lambda *_: bad)


def test_numpy_numbers_are_numbers():
    row = explore.memory(Setting(model="8b"), CONFIGS, lambda *_: np.int64(7))
    assert row.kv == 7.0


def _drawn(row: Memory):
    plot = explore.memory_figure([row]).axes[0]
    bars = [(round(b.get_x(), 3), round(b.get_width(), 3), b.get_hatch()) for b in plot.patches]
    return bars, [text.get_text().strip() for text in plot.texts]


def test_the_bar_stacks_to_the_limit():
    bars, texts = _drawn(_row(n_tokens=8192, n_sequences=16))
    assert bars == [(0, 16, None), (16, 17.18, ".."), (33.18, 46.82, None)]
    assert texts == ["80 GB"]


def test_what_does_not_fit_is_hatched_and_written():
    bars, texts = _drawn(_row(n_tokens=32_768, n_sequences=16))
    assert bars == [(0, 16, None), (16, 64, ".."), (80, 4.719, "////")]
    assert texts == ["does not fit: needs 85 GB", "80 GB"]


def test_a_bar_far_too_long_ends_at_the_edge_with_an_arrow():
    bars, texts = _drawn(_row(n_tokens=131_072, n_sequences=64))
    assert sum(width for _, width, _ in bars) == pytest.approx(1.06 * 160, abs=0.01)
    assert texts[0] == "does not fit: needs 1,116 GB →"


def test_weights_alone_may_not_fit():
    bars, _ = _drawn(_row(memory_gb=8, n_tokens=1024, n_sequences=1))
    assert [(x, hatch) for x, _, hatch in bars] == [(0, None), (8, "////")]


def test_title_and_units_are_there():
    plot = explore.memory_figure([_row()]).axes[0]
    assert "8b" in plot.get_title(loc="left")
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("memory (GB)", "context (tokens)")


def test_the_static_picture_says_its_numbers_in_words():
    markup = explore.static_view(kv_bytes, CONFIGS)
    assert markup.count("on a device of 80 GB") == 4
    assert "does not fit" in markup


def _kernel(monkeypatch) -> list[dict]:
    shown: list[dict] = []
    monkeypatch.setattr(display, "ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr("labkit.figures.ipython", display.ipython)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    return shown


def test_in_a_kernel_a_picture_stands_above_the_controls(monkeypatch):
    shown = _kernel(monkeypatch)
    explore.kv_explorer(kv_bytes, CONFIGS)
    assert shown[0]["text/html"].startswith('<img alt="Bars of memory.')
    assert "application/vnd.jupyter.widget-view+json" in shown[-1]


def test_while_grading_there_is_only_the_picture(monkeypatch):
    shown = _kernel(monkeypatch)
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    explore.kv_explorer(kv_bytes, CONFIGS)
    assert [list(data) for data in shown] == [["text/html", "text/plain"]]


def test_moving_a_control_redraws_with_the_learners_function(monkeypatch):
    shown = _kernel(monkeypatch)
    asked = []

    def watched(*arguments):
        asked.append(arguments)
        return kv_bytes(*arguments)

    *controls, _ = explore.kv_widget(watched, CONFIGS).children
    model, context, sequences, per_number, device = controls
    assert asked[-1] == (CONFIGS["8b"], 8192, 16, 2)
    context.value, sequences.value, per_number.value = 131_072, 1, 1
    model.value = "tiny"
    device.value = 24
    assert asked[-1] == (CONFIGS["tiny"], 131_072, 1, 1)
    assert "on a device of 24 GB: fits" in shown[-1]["text/html"]
    assert '<img alt="Bars of memory. tiny' in shown[-2]["text/html"]
    assert not context.continuous_update
    assert not sequences.continuous_update
    assert all(control.description for control in controls)
    assert [value for _, value in context.options] == [1024 * 2**i for i in range(8)]


def test_a_redraw_is_quick(monkeypatch):
    _kernel(monkeypatch)
    *controls, _ = explore.kv_widget(kv_bytes, CONFIGS).children
    seconds = []
    for n_sequences in (2, 3, 4):
        start = perf_counter()
        controls[2].value = n_sequences
        seconds.append(perf_counter() - start)
    assert min(seconds) < 0.3


def test_an_unwritten_function_is_said_and_not_raised(capsys):
    def kv_cache_bytes(*_):
        raise NotImplementedError("write this")

    explore.kv_explorer(kv_cache_bytes, CONFIGS)
    assert "`kv_cache_bytes` is not written yet" in capsys.readouterr().out
    explore.kv_explorer(lambda *_: None, CONFIGS)
    assert "could not be drawn: ValueError" in capsys.readouterr().out


def test_the_courses_presets_have_what_is_needed():
    presets = explore.presets()
    assert tuple(presets) == explore.PRESETS
    assert all(config.n_params > 1e8 for config in presets.values())
