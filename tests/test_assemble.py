"""The learner's own engine: what is taken, what is not, and that it really runs."""

import copy
from pathlib import Path

import pytest
from conftest import tiny_model

from grader import assemble, registry
from grader.lab import read_notebook

ROOT = Path(__file__).resolve().parents[1]
LESSON = "04_kv_cache"


@pytest.fixture(scope="module")
def filled():
    return read_notebook(ROOT / "solutions" / LESSON / f"{LESSON}.ipynb")


@pytest.fixture
def engine(monkeypatch):
    """Undo what a test installs."""
    import sys

    kept = {
        (module, name): value
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("inferlab")
        for name, value in vars(module).items()
    }
    yield
    for (module, name), value in kept.items():
        setattr(module, name, value)


def changed(notebook, old, new):
    """The notebook with one piece of text replaced, which must be there."""
    found = copy.deepcopy(notebook)
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if old in source:
            cell["source"] = source.replace(old, new)
            return found
    raise AssertionError(f"{old!r} is in no cell")


def by_id(parts):
    return {part.exercise.id: part for part in parts}


def test_a_filled_notebook_gives_every_part(filled):
    parts = assemble.parts_of(LESSON, filled)
    assert [p.exercise.id for p in parts] == [e.id for e in registry.exercises(LESSON)]
    assert {p.whose for p in parts} == {"yours"}
    assert "12 of 12 parts are yours" in assemble.table(parts)


def test_an_untouched_notebook_gives_none():
    release = read_notebook(ROOT / "notebooks" / LESSON / f"{LESSON}.ipynb")
    parts = assemble.parts_of(LESSON, release)
    assert {p.whose for p in parts} == {"reference"}
    assert {p.why for p in parts} == {"not written yet"}


def test_what_does_not_pass_stays_the_reference_and_says_why(filled):
    wrong = changed(
        filled, "2 * config.n_layers * config.n_kv_heads", "2 * config.n_layers * config.n_heads"
    )
    part = by_id(assemble.parts_of(LESSON, wrong))["kv_bytes_per_token"]
    assert part.whose == "reference"
    assert "KV heads" in part.why


def test_a_cell_that_measures_is_not_run_and_one_that_is_broken_is_skipped(filled):
    noisy = copy.deepcopy(filled)
    noisy["cells"].insert(0, {"cell_type": "code", "source": "raise SystemExit(3)"})
    noisy["cells"].insert(1, {"cell_type": "code", "source": "def broken(:"})
    assert {p.whose for p in assemble.parts_of(LESSON, noisy)} == {"yours"}


def test_a_lesson_without_a_notebook_is_the_references(tmp_path):
    parts = assemble.read_parts(tmp_path)
    assert {p.whose for p in parts} == {"reference"}
    assert {p.why for p in parts} == {"no notebook"}


def test_installed_parts_are_the_ones_that_run(filled, engine):
    """A cache that counts its own appends: the engine's cache is the learner's class."""
    import inferlab.model
    from inferlab.generate import generate_uncached

    marked = changed(
        filled, "self.require_fit(k, v)", "self.require_fit(k, v)\n        SEEN.append(layer)"
    )
    marked = changed(marked, "class KVCache", "SEEN = []\n\n\nclass KVCache")
    parts = assemble.parts_of(LESSON, marked)
    expected = generate_uncached(tiny_model(), [1, 2, 3], 4)
    assemble.install(parts)
    cache = inferlab.model.Model.new_cache(tiny_model())
    seen = type(cache).append.__wrapped__.__globals__["SEEN"]
    seen.clear()
    own = by_id(parts)["generate_cached"].written
    assert own(tiny_model(), [1, 2, 3], 4) == expected
    assert len(seen) == 2 * 4  # layers, passes


def test_a_part_that_raises_is_reported_by_its_name():
    def attend(q):
        return q[7]

    with pytest.raises(assemble.PartFailed, match="your attend_one raised IndexError"):
        assemble.guarded(attend, "attend_one")([1, 2])

    def refuse(q):
        raise ValueError("q is empty")

    with pytest.raises(ValueError, match="q is empty"):
        assemble.guarded(refuse, "attend_one")([])


def test_the_table_on_the_command_line(tmp_path, capsys):
    from grader.cli import main
    from labkit.files import write_whole

    path = tmp_path / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir()
    write_whole(path, (ROOT / "solutions" / LESSON / f"{LESSON}.ipynb").read_text())
    assert main(["assemble", "--work", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "attend_one" in shown
    assert f"12 of {len(registry.exercises())} parts are yours" in shown
