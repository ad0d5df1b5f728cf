"""The explorer in a notebook: controls that redraw, tasks that wait for a prediction."""

import types
from html.parser import HTMLParser

import pytest

from inferlab.kv_cache import kv_cache_bytes
from labkit import display, store
from labkit.explorer import Explorer, Setting, explore, widget
from labkit.explorer.controls import FOCUS
from labkit.explorer.state import compute
from labkit.explorer.tasks import TASKS
from labkit.explorer.words import comparison, formula_table, sections
from labkit.predictions import lodge


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("INFERLAB_HOME", str(tmp_path))
    for name in ("NBGRADER_EXECUTION", "INFERLAB_CHECK_ONLY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shown(monkeypatch) -> list[tuple[dict, dict]]:
    """What is displayed and updated in a kernel: (data, how)."""
    seen: list[tuple[dict, dict]] = []
    monkeypatch.setattr(display, "ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr("labkit.figures.show.ipython", display.ipython)
    monkeypatch.setattr("IPython.display.display", lambda data, **how: seen.append((data, how)))
    monkeypatch.setattr(
        "IPython.display.update_display", lambda data, **how: seen.append((data, how))
    )
    return seen


def test_controls_stand_above_one_picture_that_stays_in_the_file(shown):
    explore("04", kv_cache_bytes)
    (controls, _), (picture, how) = shown
    assert "application/vnd.jupyter.widget-view+json" in controls
    assert '<img alt="A bar of the memory' in picture["text/html"]
    assert "the same" in picture["text/html"]
    assert 'class="x-formulas"' in picture["text/html"]
    assert how["display_id"].startswith("explorer-")


def test_a_control_redraws_the_same_picture(shown):
    found = Explorer("04")
    found.show()
    found.controls["n_sequences"].value = 60
    data, how = shown[-1]
    assert how["display_id"] == shown[1][1]["display_id"]
    assert "It does not fit" in data["text/html"]
    assert "does not fit, 485 MB short" in found.said.value
    assert 'role="status"' in found.said.value
    assert len(shown) == 3


@pytest.mark.parametrize("lesson", FOCUS)
def test_every_lesson_opens_with_its_own_controls_first(lesson, shown):
    found = Explorer(lesson)
    first = found.widget.children[0].children
    assert [found.controls[name] for name in FOCUS[lesson].first] == list(first)
    assert found.setting == FOCUS[lesson].start
    for control in found.controls.values():
        assert control.description
        assert getattr(control, "continuous_update", False) is False
    reached = str(found.widget.children)
    assert all(type(control).__name__ in reached for control in found.controls.values())


def test_an_unknown_lesson_is_refused():
    with pytest.raises(ValueError, match="'02' opens no explorer; these do: 01, 04"):
        explore("02")


def test_a_model_brings_its_own_kinds_of_attention(shown):
    found = Explorer("05")
    found.show()
    found.controls["attention"].value = "gqa"
    drawn = len(shown)
    found.controls["model"].value = "falcon-7b"
    assert found.setting == Setting(
        model="falcon-7b", device="h200-sxm", weights="fp8", attention="own"
    )
    assert {value for _, value in found.controls["attention"].options} == {"own", "mha", "mqa"}
    assert "71 query heads" in found.said.value
    assert len(shown) == drawn + 1, "one change, one picture"
    found.controls["model"].value = "deepseek-v3"
    found.controls["attention"].value = "mla"
    assert found.setting.attention == "mla"


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_task_tells_nothing_before_a_prediction(task, shown):
    found = Explorer(task.lessons[0])
    found.show()
    box = found._task(task)
    begin, see, seen, turning = box.children[1], *box.children[-3:]
    begin.click()
    assert found.setting == task.start
    see.click()
    assert "Lodge your prediction first" in seen.value
    assert turning.layout.display == "none"
    for one in task.predictions:
        lodge(one, "1 GB" if one.unit == "GB" else "59" if one.unit else one.choices[-1])
    see.click()
    assert seen.value.count("<table>") == len(task.predictions)
    assert turning.layout.display == "flex"
    for button, (text, setting) in zip(turning.children, task.moves, strict=True):
        assert button.description == text
        button.click()
        assert found.setting == setting


def test_what_the_tasks_say_is_what_the_explorer_computes():
    """The numbers of the reasons, and the answers, against sums done by hand."""
    answers = {one.id: one.answer() for task in TASKS for one in task.predictions}
    assert answers == {
        "ex_mha_cache": 4 * 17_179_869_184,
        "ex_70b_fits": "it takes INT4 weights; the cache may stay at 16 bit",
        "ex_batch_speeds": "all together get more tokens a second, each user fewer",
        "ex_batch_ends": (80e9 - 16_060_522_496) // 2**30,
        "ex_small_cache": "the small one: every one of its query heads keeps a key and a value",
    }
    because = {one.id: one.because for task in TASKS for one in task.predictions}
    seventy = 70_553_706_496
    for number in (seventy * 4.125 / 8, 8 * 8192 * 327_680, seventy, 4 * 8192 * 327_680):
        assert f"{number / 1e9:.1f}" in because["ex_70b_fits"]
    assert not compute(Setting(attention="mha")).fits
    assert "16.06 GB" in because["ex_batch_ends"]
    assert f"{(80e9 - 16_060_522_496) / 2**30:.2f}"[:4] in because["ex_batch_ends"]
    assert 24 * 32 * 64 / (32 * 8 * 128) == 1.5
    small, large = (compute(Setting(model=name)) for name in ("small-mha", "8b-style"))
    assert small.grow_bytes == 1.5 * large.grow_bytes
    assert small.deployment.config.n_params < large.deployment.config.n_params / 4
    ids = [one.id for task in TASKS for one in task.predictions]
    assert len(set(ids)) == len(ids)
    assert all(store.prediction(one) is None for one in ids)


def test_while_grading_there_is_only_the_picture(shown, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    explore("04", kv_cache_bytes)
    ((data, _),) = shown
    assert '<img alt="A bar of the memory' in data["text/html"]


def test_where_the_courses_functions_are_away_it_says_so(shown, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")

    def away(_):
        raise NotImplementedError("not there while it is graded")

    monkeypatch.setattr(widget, "compute", away)
    explore("12")
    assert "is not drawn here" in shown[0][0]["text/html"]


def test_outside_a_notebook_nothing_is_printed(capsys):
    explore("08")
    assert capsys.readouterr().out == ""


def test_the_learners_function_is_compared_whatever_it_does():
    def mine(config, n_tokens, n_sequences, bytes_per_number):
        return 7

    def broken(*_):
        raise NotImplementedError("write it")

    plain = compute(Setting())
    assert comparison(plain, kv_cache_bytes).endswith(
        "17,179,869,184 bytes for this cache: the same."
    )
    assert "`mine` says 7 bytes for this cache, the picture 17,179,869,184" in comparison(
        plain, mine
    )
    assert "could not say: NotImplementedError: write it" in comparison(plain, broken)
    assert "could not say" in comparison(plain, lambda *_: None)
    assert "window" in comparison(compute(Setting(model="gemma-3-27b")), kv_cache_bytes)
    assert "latents" in comparison(compute(Setting(model="deepseek-v3")), kv_cache_bytes)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_table_of_formulas_is_whole():
    found = sections(compute(Setting(gamma=4)))
    tags = _Tags()
    tags.feed(formula_table(found))
    assert tags.open == []
    assert tags.rows == 1 + len(found) + sum(len(one.lines) for one in found)
