"""A work folder that was made with release 0.1 and is brought up to this one.

tests/data/release-0.1 holds two lessons as they were released then, and their solutions. The
learner has filled in every answer as that release's solutions did, and has cells of their own with
its names of modules, several of which have changed since.
"""

import copy
import gzip
import importlib
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from places import ROOT

from grader.judging import registry
from grader.learner import headless, lab
from inferlab import moved as engine
from labkit import moved as lab_kit
from sandbox import stand_ins

MOVED = {**engine.MOVED, **lab_kit.MOVED, **stand_ins.MOVED}
LESSONS = ("04_kv_cache", "12_capacity")
OWN_IMPORTS = {
    "04_kv_cache": "from labkit import kv_figures, timing\nfrom inferlab.cost import forward_flops",
    "12_capacity": "from labkit import capacity_figures\nfrom inferlab.metrics import RequestTrace",
}


def kept(lesson: str, folder: str) -> dict:
    path = ROOT / "tests" / "data" / "release-0.1" / f"{lesson}.{folder}.ipynb.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def sources(book: dict) -> dict[str, str]:
    return {cell["id"]: source(cell) for cell in book["cells"]}


def answers(book: dict) -> list[dict]:
    return [c for c in book["cells"] if c["metadata"].get("nbgrader", {}).get("solution")]


def imports(book: dict) -> dict:
    """The lesson's first code cell: given, and all imports."""
    cell = next(c for c in book["cells"] if c["cell_type"] == "code")
    assert "import" in source(cell)
    return cell


def filled(lesson: str) -> dict:
    """The old release with its answers, and a cell of the learner's own at the end."""
    book, solved = kept(lesson, "notebooks"), sources(kept(lesson, "solutions"))
    for cell in answers(book):
        cell["source"] = solved[cell["id"]]
    own = {"cell_type": "code", "id": "my-own", "metadata": {}, "outputs": []}
    book["cells"].append({**own, "execution_count": None, "source": OWN_IMPORTS[lesson]})
    return book


def brought_up(folder: Path, lesson: str, mine: dict) -> tuple[Path, str]:
    """work/ as release 0.1 left it, then `inferlab lab`'s update. -> the notebook, what was said"""
    work = folder / "my work"
    path, base = lab.working_path(work, lesson), work / ".inferlab" / "base" / f"{lesson}.ipynb"
    for file, book in ((path, mine), (base, kept(lesson, "notebooks"))):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(book))
    said: list[str] = []
    lab.sync_lesson(ROOT, work, lesson, said.append)
    return path, "\n".join(said)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_update_loses_nothing_and_brings_the_new_imports(tmp_path: Path, lesson: str) -> None:
    mine = filled(lesson)
    before = answers(mine)
    assert len(before) >= 20
    path, said = brought_up(tmp_path, lesson, mine)
    after = lab.read_notebook(path)
    now = sources(after)
    assert {c["id"]: source(c) for c in [*before, mine["cells"][-1]]}.items() <= now.items()
    release = lab.read_notebook(lab.released_path(ROOT, lesson))
    assert source(imports(after)) == source(imports(release))
    assert source(imports(after)) != source(imports(mine)), "this lesson's imports have changed"
    assert not path.with_name(f"{lesson}.new.ipynb").exists(), said
    assert "everything you wrote is kept" in said


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_merged_notebook_runs_and_passes_its_checks(tmp_path: Path, lesson: str) -> None:
    path, _ = brought_up(tmp_path, lesson, filled(lesson))
    ids = [e.id for e in registry.exercises(lesson)] + [q.id for q in registry.questions(lesson)]
    rows = headless.collect(path, tuple(ids), keep_progress=False)
    assert [row for row in rows if row.outcome != "passed"] == []


def test_an_edited_import_cell_stays_beside_the_new_one_and_works(
    tmp_path: Path,
) -> None:
    lesson = "04_kv_cache"
    mine = filled(lesson)
    edited = imports(mine)
    edited["source"] = source(edited) + "\nimport math  # mine"
    path, _ = brought_up(tmp_path, lesson, copy.deepcopy(mine))
    now = sources(lab.read_notebook(path))
    assert now[edited["id"]] == edited["source"]
    assert source(imports(lab.read_notebook(lab.released_path(ROOT, lesson)))) in now.values()
    assert "from labkit" in edited["source"]
    done = subprocess.run(
        [sys.executable, "-c", edited["source"]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "labkit.device is now labkit.measure.device" in done.stderr


@pytest.mark.parametrize("old", sorted(set(MOVED) - {"inferlab.flash_triton"}))
def test_an_old_name_is_the_new_module_and_says_so(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = importlib.import_module(MOVED[old])
    spec = new.__spec__
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(FutureWarning, match=f"{old} is now {MOVED[old]}"):
        assert importlib.import_module(old) is new
    assert new.__spec__ is spec
    assert spec.name == MOVED[old]


def test_the_kernels_old_name_leads_to_what_it_needs(recwarn: pytest.WarningsRecorder) -> None:
    with suppress(ModuleNotFoundError):  # triton, the GPU's compiler: not every computer has it
        importlib.import_module("inferlab.flash_triton")
    said = [str(warning.message) for warning in recwarn]
    assert "inferlab.flash_triton is now inferlab.kernels.flash_attention" in said


def test_a_name_that_never_was_is_missing_as_ever(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"inferlab\.zebra"):
        importlib.import_module("inferlab.zebra")
    assert not recwarn.list
