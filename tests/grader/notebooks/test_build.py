"""The build: what becomes of a lesson script, what it refuses, and that nothing leaks."""

import copy
from pathlib import Path

import nbformat
import pytest
from toy_course import LESSON, REFERENCE, SCRIPT, facts_of, make_course

from grader.notebooks import build
from grader.notebooks.cells import ExerciseFacts, Facts
from grader.notebooks.paste import BuildError
from grader.notebooks.release import leaks, release_all

SOLUTION = Path("solutions", LESSON, f"{LESSON}.ipynb")
RELEASE = Path("notebooks", LESSON, f"{LESSON}.ipynb")

DOUBLE = '''\
@cache
def double(x: float) -> float:
    """Twice x.

    Example: 2 -> 4.
    """
    ### BEGIN SOLUTION
    # The reason stays with the body.
    return np.float64(x) + np.float64(x)
    # So does this last word on doubling.
    ### END SOLUTION'''

SHELF_RELEASED = '''\
class Shelf:
    """Things in a row."""

    def __init__(self) -> None:
        self.things: list = []

    def put(self, thing: object) -> None:
        """Add one thing at the end."""
        raise NotImplementedError("write this")

    def take(self) -> object:
        """Take the first thing away."""
        raise NotImplementedError("write this")

    def __len__(self) -> int:
        return len(self.things)'''


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """The miniature course, built, in a folder with a space in its name."""
    course = make_course(tmp_path_factory.mktemp("toy") / "a course")
    build.build(course, facts_of)
    return course


def notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def by_grade_id(nb: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    return {c.metadata.nbgrader.grade_id: c for c in nb.cells if "nbgrader" in c.metadata}


def rebuilt(folder: Path, script: str = SCRIPT, reference: str = REFERENCE, facts=facts_of):
    """The solution notebook of the miniature course with another text."""
    course = make_course(folder)
    (course / f"src/lessons/{LESSON}.py").write_text(script)
    (course / "src/inferlab/toy.py").write_text(reference)
    build.build_solutions(course, course / "solutions", facts)
    return notebook(course / SOLUTION)


def test_an_exercise_is_the_references_own_source_with_markers_round_the_body(toy):
    cells = by_grade_id(notebook(toy / SOLUTION))
    assert cells["double"].source == DOUBLE
    shelf = cells["Shelf"].source
    assert shelf.count("### BEGIN SOLUTION") == shelf.count("### END SOLUTION") == 2
    without = "\n".join(line for line in shelf.splitlines() if "SOLUTION" not in line)
    assert without in REFERENCE


def test_cells_carry_the_points_and_roles_that_nbgrader_needs(toy):
    cells = by_grade_id(notebook(toy / SOLUTION))
    roles = {
        name: (m.grade, m.solution, m.locked, m.get("points"))
        for name, m in ((name, cell.metadata.nbgrader) for name, cell in cells.items())
    }
    assert roles == {
        "double": (False, True, False, None),
        "check_double": (True, False, True, 1),
        "Shelf": (False, True, False, None),
        "check_Shelf_put": (True, False, True, 2),
        "check_Shelf_take": (True, False, True, 3),
        "answer_q_sum": (False, True, False, None),
        "check_q_sum": (True, False, True, 2),
        "why_double": (True, True, False, 3),
    }


def test_an_exercise_is_announced_with_its_worth(toy):
    cells = notebook(toy / SOLUTION).cells
    position = next(i for i, cell in enumerate(cells) if cell.source == DOUBLE)
    assert cells[position - 1].source == (
        "**Exercise `double`** · 1 point · about 5 minutes · difficulty 1/5 · "
        'stuck? Run `hint("double")`'
    )


def test_the_release_has_stubs_and_no_hidden_test(toy):
    cells = by_grade_id(notebook(toy / RELEASE))
    assert cells["double"].source.endswith('"""\n    raise NotImplementedError("write this")')
    assert cells["Shelf"].source == SHELF_RELEASED
    assert cells["check_double"].source == '# Doubles ints and floats.\ncheck("double")'
    assert cells["answer_q_sum"].source == 'answers["q_sum"] = (\n    ...\n)'
    assert cells["why_double"].source == "YOUR ANSWER HERE"


def test_two_builds_are_byte_identical(toy, tmp_path):
    other = make_course(tmp_path / "elsewhere")
    build.build(other, facts_of)
    for part in (SOLUTION, RELEASE):
        assert (toy / part).read_bytes() == (other / part).read_bytes()


def test_cell_ids_stay_when_other_cells_change(toy, tmp_path):
    before = notebook(toy / SOLUTION).cells
    script = SCRIPT.replace("# Double things,", "# Triple things,").replace(
        "# %%\nfrom functools", "# %% [markdown]\n# Another cell.\n\n# %%\nfrom functools"
    )
    after = rebuilt(
        tmp_path, script, REFERENCE.replace("# The reason stays", "# The cause stays")
    ).cells
    ids = {cell.id: cell.source for cell in after}
    assert len(ids) == len(after) == len(before) + 1
    gone = [cell.source for cell in before if cell.id not in ids]
    assert gone == ["# A toy lesson\nDouble things, then shelve them."]
    double = next(cell for cell in before if cell.source == DOUBLE)
    assert "# The cause stays" in ids[double.id]


def test_a_fold_is_tall_enough_to_hit_and_its_cells_id_comes_from_the_words(tmp_path):
    fold = "<details><summary>Why?</summary>\n\nSo.\n\n</details>"
    script = SCRIPT + "\n# %% [markdown]\n" + "".join(f"# {x}\n" for x in fold.splitlines())
    cell = rebuilt(tmp_path, script).cells[-1]
    assert cell.source.startswith('<details><summary style="padding:6px 0">Why?</summary>')
    words = nbformat.v4.new_markdown_cell(fold)
    build.give_ids([words], LESSON)
    assert cell.id == words.id


def replaced(old: str, new: str) -> str:
    assert SCRIPT.count(old) == 1, old
    return SCRIPT.replace(old, new)


CHECK = '# %% check="double"\n# Doubles ints and floats.\ncheck("double")\n'
REFUSED = {
    "unknown exercise": (
        replaced('exercise="double"', 'exercise="duble"'),
        r"01_toy\.py, cell 3 \(from inferlab\.toy import double\): unknown exercise id 'duble'",
    ),
    "no check": (replaced(CHECK, ""), r"cell 3: exercise 'double' has no check cell"),
    "no exercise": (
        replaced('# %% exercise="double"\nfrom inferlab.toy import double\n', ""),
        r"cell 3 .*check of 'double', but no exercise cell before it",
    ),
    "two checks": (
        replaced(CHECK, CHECK + "\n" + CHECK),
        r"cell 5 .*second check cell for 'double'; cell 4 is the first",
    ),
    "two exercises": (
        replaced(CHECK, '# %% exercise="double"\nfrom inferlab.toy import double\n\n' + CHECK),
        r"cell 4 .*second exercise cell for 'double'; cell 3 is the first",
    ),
    "a check that calls nothing": (
        replaced('# Doubles ints and floats.\ncheck("double")', '# check("double")'),
        r"cell 4 .*the last line must be check\(\"double\"\), not ''",
    ),
    "a check of something else": (
        replaced('check("Shelf.put")\n', 'check("Shelf.take")\n'),
        r"cell 7 .*the last line must be check\(\"Shelf\.put\"\)",
    ),
    "not a def": (
        replaced("import double", "import NOT_A_DEFINITION").replace("double", "NOT_A_DEFINITION"),
        "inferlab.toy has no def or class 'NOT_A_DEFINITION'",
    ),
    "another name": (
        replaced("from inferlab.toy import double", "from inferlab.toy import Shelf"),
        "cell 3 .*imports 'Shelf', but the exercise is 'double'",
    ),
    "no module": (replaced("toy import double", "tie import double"), "no module inferlab.tie"),
    "no method": (
        replaced('write="put take"', 'write="put take give"'),
        r"cell 6 .*no exercise of the registry judges \['Shelf\.give'\]",
    ),
    "two names": (
        replaced("toy import double", "toy import double, Shelf"),
        "cell 3 .*exactly one import of one name",
    ),
    "two imports": (
        replaced("toy import double", "toy import double\nimport os"),
        "cell 3 .*exactly one import of one name",
    ),
    "foreign import": (
        replaced("from inferlab.toy import double", "from math import double"),
        "cell 3 .*imports a name from inferlab as it is",
    ),
    "renamed import": (
        replaced("toy import double", "toy import double as twice"),
        "cell 3 .*imports a name from inferlab as it is",
    ),
    "a class without write": (
        replaced(' write="put take"', "").replace('"Shelf"', '"Shelf"'),
        "cell 6 .*unknown exercise id 'Shelf'",
    ),
    "two kinds": (
        replaced('check="double"', 'check="double" exercise="double"'),
        "cell 4 .*cannot be exercise and check",
    ),
    "misspelt option": (
        replaced('check="double"', 'chek="double"'),
        r"cell 4 .*unknown cell option \['chek'\]",
    ),
    "unknown question": (
        replaced('answer="q_sum"', 'answer="q_product"'),
        r"cell 11 .*unknown question id 'q_product'; the registry has \['q_sum'\]",
    ),
    "unchecked answer": (
        replaced('# %% answer_check="q_sum"\nanswers.check("q_sum")\n', ""),
        "cell 11: answer 'q_sum' has no answer_check cell",
    ),
    "answer to another": (
        replaced('answers["q_sum"] =', 'answers["q_other"] ='),
        r"cell 11 .*assigns to answers\['q_other'\], not to answers\[\"q_sum\"\]",
    ),
    "written without points": (
        replaced(" points=3", ""),
        r"cell 13 .*written answer 'why_double' needs \[markdown\] and points",
    ),
    "not Python": (replaced("toy import double", "toy import"), "cell 3 .*not Python"),
    "an import is missing": (
        replaced("import numpy as np\n", ""),
        r"'double' uses \['np'\], which no cell of the notebook defines",
    ),
}


@pytest.mark.parametrize(("script", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_lesson_that_cannot_be_right_is_refused_by_name(tmp_path, script, message):
    facts = FACTS_WITH_CONSTANT if "NOT_A_DEFINITION" in script else facts_of
    with pytest.raises(BuildError, match=message) as caught:
        rebuilt(tmp_path, script, facts=facts)
    assert f"{LESSON}.py" in str(caught.value)
    assert not (tmp_path / SOLUTION).exists()


def facts_with(**exercises: int):
    """Facts of the miniature course with more exercises."""
    more = {name: ExerciseFacts(points, 5, 1) for name, points in exercises.items()}
    whole = facts_of(LESSON)
    return lambda lesson: Facts({**whole.exercises, **more}, whole.questions)


FACTS_WITH_CONSTANT = facts_with(NOT_A_DEFINITION=1)


def test_an_exercise_of_the_registry_that_no_cell_builds_is_refused(tmp_path):
    with pytest.raises(BuildError, match="exercise 'halve' of the registry is in no cell"):
        rebuilt(tmp_path, facts=facts_with(halve=1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("silent", "silent has no docstring"),
        ("empty", "empty has no body to write"),
        ("helped", r"'helped' uses \['NOT_A_DEFINITION', '_helper'\]"),
    ],
)
def test_a_reference_that_cannot_be_an_exercise_is_refused(tmp_path, name, message):
    script = f'{SCRIPT}\n# %% exercise="{name}"\nfrom inferlab.toy import {name}\n'
    script += f'\n# %% check="{name}"\ncheck("{name}")\n'
    with pytest.raises(BuildError, match=message):
        rebuilt(tmp_path, script, facts=facts_with(**{name: 1}))


@pytest.mark.parametrize(
    ("write", "message"),
    [("", "Shelf is a class; name the methods to write"), ("give", "no method 'Shelf.give'")],
)
def test_a_class_judged_as_a_whole_still_names_methods_that_exist(tmp_path, write, message):
    script = SCRIPT.replace('write="put take"', f'write="{write}"' if write else "")
    facts = Facts({"double": ExerciseFacts(1, 5, 1), "Shelf": ExerciseFacts(2, 5, 1)}, {"q_sum": 1})
    with pytest.raises(BuildError, match=message):
        rebuilt(tmp_path, script, facts=lambda lesson: facts)


def test_check_reports_each_difference_and_writes_nothing(toy, tmp_path):
    assert build.differences(toy, facts_of) == []
    course = make_course(tmp_path)
    for part in ("solutions", "notebooks"):
        assert f"missing: {part}/{LESSON}/{LESSON}.ipynb" in build.differences(course, facts_of)
    assert not (course / "solutions").exists()
    build.build(course, facts_of)
    edited = (course / RELEASE).read_text().replace("Once more", "Twice more")
    (course / RELEASE).write_text(edited)
    left_over = course / "solutions/00_old/00_old.ipynb"
    left_over.parent.mkdir()
    left_over.write_text("{}")
    assert build.differences(course, facts_of) == [
        "left over, no lesson builds it: solutions/00_old/00_old.ipynb",
        f"differs: notebooks/{LESSON}/{LESSON}.ipynb",
    ]
    assert (course / RELEASE).read_text() == edited


@pytest.mark.parametrize(("found", "status"), [([], 0), (["differs: x"], 1)])
def test_check_exits_with_1_when_something_differs(monkeypatch, capsys, found, status):
    monkeypatch.setattr(build, "differences", lambda: found)
    assert build.main(["--check"]) == status
    assert ("differs: x" in capsys.readouterr().out) == bool(found)


def test_a_build_error_is_one_line_and_status_1(monkeypatch, capsys):
    def fail():
        raise BuildError("04_x.py, cell 3: no")

    monkeypatch.setattr(build, "build", fail)
    assert build.main([]) == 1
    assert capsys.readouterr().err == "build failed: 04_x.py, cell 3: no\n"


# ---- the leak scan finds what is planted ---------------------------------------------------------


def test_the_release_of_the_miniature_course_leaks_nothing(toy):
    assert leaks(notebook(toy / RELEASE), notebook(toy / SOLUTION)) == []


def add_output(nb):
    nb.cells[1].outputs = [nbformat.v4.new_output("stream", text="4\n")]


def add_text(text):
    def plant(nb):
        nb.cells[0].source += f"\nSome words `{text}` and more."

    return plant


PLANTED = {
    "a solution's line": (
        add_text("return np.float64(x) + np.float64(x)"),
        "line of a solution: 'return np.float64(x) + np.float64(x)'",
    ),
    "a comment of a solution": (
        add_text("# So does this last word on doubling."),
        "line of a solution: '# So does this last word on doubling.'",
    ),
    "a method's trailing comment": (
        add_text("# The trailing secret of taking."),
        "line of a solution: '# The trailing secret of taking.'",
    ),
    "a line in metadata": (
        lambda nb: nb.cells[1].metadata.update(note=["self.things = self.things[1:]"]),
        "line of a solution: 'self.things = self.things[1:]'",
    ),
    "an answer": (add_text('worked("q_sum")'), "line of a solution: 'worked(\"q_sum\")'"),
    "a sample answer": (
        add_text("Because twice the sample answer is enough for anyone."),
        "line of a solution: 'Because twice the sample answer is enough for anyone.'",
    ),
    "a rubric": (
        add_text("Rubric: 3 points for saying so."),
        "line of a solution: 'Rubric: 3 points for saying so.'",
    ),
    "a hidden test": (add_text('check("double", hidden=True)'), "'hidden=True'"),
    "a marker": (add_text("### BEGIN SOLUTION"), "'BEGIN SOLUTION'"),
    "an output": (add_output, "outputs"),
    "an execution count": (
        lambda nb: nb.cells[1].update(execution_count=7),
        "execution count",
    ),
    "an attachment": (
        lambda nb: nb.cells[0].update(attachments={"a.png": {"image/png": "aGk="}}),
        "attachments",
    ),
}


@pytest.mark.parametrize(("plant", "found"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_leak_is_found(toy, plant, found):
    released = copy.deepcopy(notebook(toy / RELEASE))
    plant(released)
    lines = leaks(released, notebook(toy / SOLUTION))
    assert any(line.endswith(found) for line in lines), lines


def test_a_lesson_whose_text_gives_a_solution_away_is_not_released(tmp_path):
    script = SCRIPT.replace("# Once more.\n", "# Like `self.things.append(thing)`.\n", 1)
    reference = REFERENCE.replace("  # at the end of the row", "")
    course = make_course(tmp_path)
    (course / f"src/lessons/{LESSON}.py").write_text(script)
    (course / "src/inferlab/toy.py").write_text(reference)
    with pytest.raises(BuildError, match=r"given away .*'self\.things\.append\(thing\)'"):
        build.build(course, facts_of)
    assert not (course / RELEASE).exists()


def test_a_release_without_our_stubs_would_be_caught(toy, tmp_path):
    """A marker that nbgrader does not know stays in the release: the scan must see the body."""
    course = make_course(tmp_path)
    config = (course / "nbgrader_config.py").read_text()
    (course / "nbgrader_config.py").write_text(
        config + "\nc.GenerateAssignment.preprocessors = c.GenerateAssignment.preprocessors[:1]\n"
    )
    with pytest.raises(BuildError, match=r"would leak: .*BEGIN SOLUTION"):
        release_all(course, toy / "solutions", course / "notebooks")


# ---- the real course -----------------------------------------------------------------------------


def test_the_committed_notebooks_are_what_a_build_gives():
    assert (build.ROOT / "src/lessons/04_kv_cache.py").is_file()
    assert build.differences() == []
