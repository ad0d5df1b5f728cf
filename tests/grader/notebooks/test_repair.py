"""Notebooks as students leave them: what is repaired, what is kept, and what is said of it."""

import copy

import pytest
from handed_in import (
    LESSON,
    answers,
    bytes_of,
    cell,
    drop,
    graded_cells,
    pasted,
    perfect,
    place,
    release,
    with_change,
    without_marks,
)

from grader.classroom.intake import Prepared, prepare
from grader.notebooks.merge import Notebook, grade_id, text

ATTEND, CHECK, EXPLAIN = "attend_one", "check_attend_one", "kv_explain"


def repaired(change, *kinds: str) -> Prepared:
    """After the change of the perfect notebook it grades as before; these things were said."""
    book = with_change(change)
    prepared = prepare(bytes_of(book), LESSON, f"{LESSON}.ipynb")
    assert by_name(prepared.notebook) == by_name(release())
    assert [problem.kind for problem in prepared.problems] == list(kinds)
    again = prepare(bytes_of(prepared.notebook), LESSON)
    assert (again.problems, again.notebook) == ((), prepared.notebook)
    return prepared


def by_name(book: Notebook) -> list:
    return sorted(graded_cells(book), key=lambda c: c[0])


def kept(change, *kinds: str) -> str:
    """As repaired, and every answer is what the student wrote; what was said."""
    prepared = repaired(change, *kinds)
    assert answers(prepared.notebook) == answers(perfect())
    return "; ".join(problem.what for problem in prepared.problems)


# ---- copies and pieces ---------------------------------------------------------------------------


def test_a_check_that_was_copied_is_there_once():
    def change(book):
        book["cells"].insert(0, pasted(cell(book, CHECK), "copy"))
        book["cells"].append(pasted(cell(book, CHECK), "another"))

    assert "is there 3 times" in kept(change, "copied", "moved")


def test_of_copied_answers_the_first_with_code_wins():
    def change(book):
        i, one = place(book, ATTEND), cell(book, ATTEND)
        stub = cell(release(), ATTEND)["source"]
        other = one["source"].replace("return", "return 0 *")
        book["cells"][i:i] = [pasted(one, "a", source=stub)]
        book["cells"][i + 2 : i + 2] = [pasted(one, "b", source=other)]

    kept(change, "copied")


def test_an_answer_split_in_three_with_a_cell_between_is_joined():
    def change(book):
        i, one = place(book, ATTEND), cell(book, ATTEND)
        lines = one["source"].split("\n")
        own = {"cell_type": "markdown", "id": "own", "metadata": {}, "source": "a thought"}
        book["cells"][i : i + 1] = [
            pasted(one, "a", source="\n".join(lines[:2])),
            own,
            pasted(one, "b", source="\n".join(lines[2:-1])),
            pasted(one, "c", source=lines[-1]),
        ]

    assert "was split in 3" in kept(change, "split")


def test_a_split_answer_to_a_question_is_joined():
    def change(book):
        i, one = place(book, "answer_kv_q_fits"), cell(book, "answer_kv_q_fits")
        head, tail = one["source"].split("\n", 1)
        book["cells"][i : i + 1] = [pasted(one, "a", source=head), pasted(one, "b", source=tail)]

    kept(change, "split")


def test_a_written_answer_split_in_two_is_read_whole():
    def change(book):
        i = place(book, EXPLAIN)
        one = cell(book, EXPLAIN)
        book["cells"][i : i + 1] = [
            pasted(one, "a", source="First."),
            pasted(one, "b", source="Then."),
        ]

    prepared = repaired(change, "split")
    assert answers(prepared.notebook)[EXPLAIN] == "First.\n\nThen."


def test_two_answers_merged_into_one_cell_both_count():
    """A stub that came back below would take the place of what the student wrote."""

    def change(book):
        first, second = cell(book, "kv_bytes_per_token"), cell(book, "kv_cache_bytes")
        first["source"] += "\n\n\n" + second["source"]
        book["cells"].remove(second)

    prepared = repaired(change, "missing")
    code = [text(c) for c in prepared.notebook["cells"] if "def kv_cache_bytes" in text(c)]
    assert code == [text(cell(release(), "kv_cache_bytes")), code[1]]
    assert "NotImplementedError" not in code[1]


# ---- deleted, edited, retyped, retagged ----------------------------------------------------------


def test_deleted_checks_come_back_in_their_places():
    names = [n for n, *_ in graded_cells(release()) if n.startswith("check_")]
    said = kept(drop(*names), *["missing"] * len(names))
    assert f"the check cell {CHECK} is gone" in said
    book = prepare(bytes_of(with_change(drop(*names))), LESSON).notebook
    assert [c["id"] for c in book["cells"]] == [c["id"] for c in release()["cells"]]


def test_a_deleted_answer_is_unwritten_and_everything_else_counts():
    prepared = repaired(drop(ATTEND), "missing")
    assert answers(prepared.notebook) == {
        **answers(perfect()),
        ATTEND: text(cell(release(), ATTEND)),
    }


@pytest.mark.parametrize("text_", ["assert True", "", 'print("ok")\ncheck("attend_one")'])
def test_an_edited_check_is_as_released(text_):
    said = kept(lambda book: cell(book, CHECK).update(source=text_), "edited")
    assert said == f"the check cell {CHECK} was changed"


@pytest.mark.parametrize("kind", ["markdown", "raw"])
@pytest.mark.parametrize("name", [ATTEND, CHECK])
def test_a_cell_turned_to_another_type_is_code_again(name, kind):
    def change(book):
        one = cell(book, name)
        one["cell_type"] = kind
        del one["outputs"], one["execution_count"]

    kept(change, "edited")


def test_a_written_answer_turned_to_code_is_text_again():
    kept(lambda book: cell(book, EXPLAIN).update(cell_type="code"), "edited")


@pytest.mark.parametrize("tag", ["skip-execution", "raises-exception"])
@pytest.mark.parametrize("name", [ATTEND, CHECK])
def test_tags_that_would_spare_a_cell_go_and_are_said(name, tag):
    said = kept(lambda book: cell(book, name)["metadata"].update(tags=[tag, "mine"]), "metadata")
    assert said == f"the cell {name} is tagged {tag}"


def test_other_metadata_of_front_ends_is_nothing_to_speak_of():
    def change(book):
        for one in book["cells"]:
            one["metadata"] |= {"collapsed": True, "ExecuteTime": {"end": "x"}, "tags": ["mine"]}

    kept(change)


@pytest.mark.parametrize(
    ("name", "mark", "said"),
    [
        (CHECK, {"points": 100}, "(points: 100, released with 2)"),
        (CHECK, {"grade": False}, "(grade: False, released with True)"),
        (CHECK, {"locked": False}, "(locked: False, released with True)"),
        (CHECK, {"solution": True}, "(solution: True, released with False)"),
        (ATTEND, {"grade": True, "points": 50}, "(points: 50, released with None; grade: True"),
        (CHECK, {"schema_version": 1}, f"the grading mark of {CHECK} was changed"),
        (CHECK, {"checksum": "0" * 32}, f"the grading mark of {CHECK} was changed"),
        (CHECK, {"points": "many"}, "(points: 'many', released with 2)"),
    ],
)
def test_marks_that_were_edited_are_as_released_and_said(name, mark, said):
    def change(book):
        cell(book, name)["metadata"]["nbgrader"] |= mark

    assert said in kept(change, "metadata")


def test_deletable_and_editable_are_as_released():
    kept(lambda book: cell(book, CHECK)["metadata"].update(deletable=True, editable=True))


def test_a_cell_of_ones_own_earns_no_points():
    def change(book):
        mark = {"grade": True, "solution": False, "locked": True, "points": 40, "schema_version": 3}
        for name in ("mine", 7, None):
            new = pasted(book["cells"][1], f"id-{name}", source="1")
            new["metadata"] = {"nbgrader": {**mark, "grade_id": name}}
            book["cells"].append(new)

    said = kept(change, "unknown", "unknown")
    assert "claims to be the graded cell mine, which this lesson does not have" in said
    assert "2 cells have marks that name no graded cell" in said


@pytest.mark.parametrize("mark", ["x", 3, [], None, {"grade_id": ["a"], "grade": True}, {}])
def test_an_unusable_mark_is_put_right(mark):
    kept(lambda book: cell(book, CHECK)["metadata"].update(nbgrader=mark), "metadata")


# ---- lost marks ----------------------------------------------------------------------------------


def test_lost_marks_come_back_by_id():
    n = len(graded_cells(release()))
    said = kept(without_marks, *["metadata"] * n)
    assert f"the cell {EXPLAIN} is there and has lost the mark" in said


def test_lost_marks_and_lost_ids_come_back_by_text_definition_and_place():
    def change(book):
        without_marks(book)
        for number, one in enumerate(book["cells"]):
            one["id"] = f"new-{number}"

    kept(change, *["metadata"] * len(graded_cells(release())))


def test_lost_marks_of_an_untouched_notebook_come_back_by_text():
    book = copy.deepcopy(release())
    for number, one in enumerate(book["cells"]):
        one["metadata"], one["id"] = {}, f"new-{number}"
    prepared = prepare(bytes_of(book), LESSON)
    assert graded_cells(prepared.notebook) == graded_cells(release())
    assert answers(prepared.notebook) == answers(release())


def test_a_note_in_the_place_of_a_deleted_answer_is_not_taken_for_it():
    def change(book):
        i = place(book, ATTEND)
        note = {"cell_type": "code", "id": "own", "metadata": {}, "source": "x = 1"}
        book["cells"][i] = {**note, "outputs": [], "execution_count": None}

    prepared = repaired(change, "missing")
    assert answers(prepared.notebook)[ATTEND] == text(cell(release(), ATTEND))


# ---- order and setup -----------------------------------------------------------------------------


def test_a_check_above_its_answer_is_moved_below():
    def change(book):
        i = place(book, CHECK)
        book["cells"].insert(0, book["cells"].pop(i))

    assert f"({CHECK})" in kept(change, "moved")


def test_an_answer_that_moved_down_keeps_its_place_and_the_checks_follow():
    def change(book):
        book["cells"].append(book["cells"].pop(place(book, "longest_context")))

    prepared = repaired(change, "moved")
    names = [grade_id(c) for c in prepared.notebook["cells"]]
    assert names.index("check_longest_context") == names.index("longest_context") + 1


def test_the_imports_come_back():
    def change(book):
        del book["cells"][1]

    assert "it gives AttentionLayer, Model, ModelConfig" in kept(change, "missing")


def test_the_imports_do_not_come_back_where_the_student_has_them_elsewhere():
    def change(book):
        imports = book["cells"].pop(1)
        book["cells"][2]["source"] = imports["source"] + "\n" + book["cells"][2]["source"]
        book["cells"][2]["cell_type"] = "code"
        book["cells"][2] |= {"outputs": [], "execution_count": None}

    kept(change)


def test_a_deleted_demonstration_stays_deleted():
    def change(book):
        demo = next(c for c in book["cells"] if c["source"].startswith("kv_figures."))
        book["cells"].remove(demo)

    kept(change)


def test_the_name_for_the_questions_comes_back():
    def change(book):
        book["cells"] = [c for c in book["cells"] if 'answers = Answers("' not in c["source"]]

    assert "it gives answers" in kept(change, "missing")


def test_everything_at_once():
    def change(book):
        without_marks(book)
        book["cells"] = [c for c in book["cells"] if not c["source"].startswith("check(")]
        book["cells"][0], book["cells"][1] = book["cells"][1], book["cells"][0]
        for one in book["cells"]:
            del one["id"]
            one["source"] = one["source"].replace("\n", "\r\n")
        book["nbformat_minor"] = 4
        book["metadata"] = {"kernelspec": {"name": "mine", "display_name": "mine"}}

    prepared = prepare(bytes_of(with_change(change)), LESSON)
    assert by_name(prepared.notebook) == by_name(release())
    assert answers(prepared.notebook) == answers(perfect())
