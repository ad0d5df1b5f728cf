"""The static site: two lessons, built into a folder with a space in its name."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlparse

import nbformat
import pytest
from bs4 import BeautifulSoup
from lesson_text import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from site_build import SITE_LESSONS, Site, build_site

from grader.judging import registry
from grader.learner import lab
from grader.notebooks.release import leaks, secrets, squeezed
from tools.book import __main__ as book
from tools.book import front, pages, run

LESSONS = SITE_LESSONS


@pytest.fixture
def into(site: Site) -> Path:
    return site.into


@pytest.fixture
def built(site: Site) -> subprocess.CompletedProcess[str]:
    return site.built


@pytest.fixture
def html(site: Site) -> Path:
    return site.html


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def in_code(text) -> bool:
    return text.find_parent(["pre", "code"]) is not None


def built_pages(html: Path) -> list[Path]:
    return sorted(p for p in html.rglob("*.html") if "_static" not in p.parts)


def solution(lesson: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "solutions" / lesson / f"{lesson}.ipynb", as_version=4)


def released(lesson: str) -> nbformat.NotebookNode:
    return nbformat.read(lab.released_path(ROOT, lesson), as_version=4)


# ---- the build ---------------------------------------------------------------------------------


def test_the_build_says_nothing_but_what_it_does(built, html):
    assert built.stderr == ""
    *steps, last = built.stdout.splitlines()
    assert [line for line in steps if "ran in" in line]
    assert last == f"site: ready; open {html / 'index.html'}"


def test_the_second_build_runs_no_lesson_and_changes_no_source(html, into, capsys):
    source = into / "source-html"
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*.*")}
    assert len(before) > len(LESSONS)
    book.put_in_place(book.sources(list(LESSONS), into / "executed", False), source)
    assert capsys.readouterr().out == ""
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*.*")} == before


def test_a_source_that_no_longer_belongs_there_goes(tmp_path):
    book.put_in_place({"index.md": b"new", "lessons/99_old.ipynb": b"old"}, tmp_path)
    book.put_in_place({"index.md": b"newer"}, tmp_path)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in kept] == [b"newer"]


def test_a_lesson_that_nobody_knows_is_named(tmp_path, capsys):
    assert book.main(["99", "--into", str(tmp_path)]) == 1
    assert "99" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_outputs_are_made_anew_when_the_notebook_changes(tmp_path):
    notebook = tmp_path / "one.ipynb"
    notebook.write_text("one")
    before = run.key(notebook)
    assert run.key(notebook) == before
    notebook.write_text("two")
    assert run.key(notebook) != before


def test_a_worked_lesson_that_fails_stops_the_build():
    broken = new_notebook(cells=[new_code_cell("x = 1\n1 / 0"), new_code_cell("x")])
    with pytest.raises(run.LessonFailed, match=r"04_kv_cache, cell “x = 1”: ZeroDivisionError"):
        run.run(broken, "04_kv_cache")


# ---- the pages ---------------------------------------------------------------------------------


def test_every_page_is_there(html):
    names = {str(path.relative_to(html)) for path in built_pages(html)}
    lessons = {f"lessons/{lesson}.html" for lesson in LESSONS}
    assert lessons | {f"{name}.html" for name in front.names()} <= names
    assert {"index.html", "search.html"} <= names


def test_nothing_comes_from_elsewhere(html):
    """Links that a reader may follow may lead out; what a page loads may not."""
    for page in built_pages(html):
        for tag in soup(page).select("[src], link[href]:not([rel=canonical])"):
            target = tag.get("src") or tag["href"]
            parts = urlparse(target)
            assert parts.scheme in ("", "data"), f"{page.name}: {target[:80]}"
            if parts.scheme == "" and parts.path:
                assert (page.parent / unquote(parts.path)).exists(), f"{page.name}: {target}"
    for sheet in html.rglob("*.css"):
        assert not re.search(r"(url\(|@import\s*)['\"]?(https?:)?//", sheet.read_text()), sheet


def test_every_link_within_the_site_leads_somewhere(html):
    for page in built_pages(html):
        for link in soup(page).select("a[href]"):
            parts = urlparse(link["href"])
            if not parts.scheme and parts.path:
                assert (page.parent / unquote(parts.path)).exists(), f"{page.name}: {link['href']}"
            elif not parts.scheme and parts.fragment:
                assert soup(page).find(id=parts.fragment), f"{page.name}: {link['href']}"


def test_the_front_page_lists_the_lessons_with_their_minutes(html):
    table = soup(html / "index.html").select_one("article table")
    rows = [[cell.get_text() for cell in row.select("td")] for row in table.select("tbody tr")]
    titles = [soup(html / "lessons" / f"{lesson}.html").h1.get_text() for lesson in LESSONS]
    assert [row[0] for row in rows] == [title.rstrip("#") for title in titles]
    for row, lesson in zip(rows, LESSONS, strict=True):
        assert int(row[1]) == len(registry.exercises(lesson))
        assert int(row[3]) > sum(exercise.minutes for exercise in registry.exercises(lesson))


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_reads_like_one(html, lesson):
    page = soup(html / "lessons" / f"{lesson}.html")
    assert page.h1.get_text().startswith(f"{lesson[:2]} · ")
    assert page.select(".math"), "no mathematics"
    markup = page.article.find_all(string=re.compile(r":::|\$\$|\*\*"))
    assert [text for text in markup if not in_code(text)] == [], "markup that was not understood"
    assert page.select("details > summary")
    assert page.select("table")
    pictures = page.select("article img")
    assert len(pictures) > 2
    assert [str(p)[:99] for p in pictures if len(p.get("alt", "")) < 20] == []
    verdicts = page.select(".inferlab-verdict")
    assert {v["data-outcome"] for v in verdicts} == {"passed"}
    assert len(verdicts) == len(registry.exercises(lesson))
    assert page.select("a.left-prev")
    assert page.select("a.right-next")


@pytest.mark.parametrize("lesson", LESSONS)
def test_predictions_can_be_made_before_they_are_answered(html, lesson):
    page = soup(html / "lessons" / f"{lesson}.html")
    asked = page.select("div.predict")
    assert len(asked) == len(registry.predictions(lesson))
    answered = page.select("details.predict")
    assert answered
    assert not any(d.has_attr("open") for d in answered)
    columns = {cell.get_text() for d in answered for cell in d.select("th")}
    assert columns <= {"computed", "measured"}


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_search_index_knows_what_a_lesson_says(html, lesson):
    index = (html / "searchindex.js").read_text(encoding="utf-8")
    found = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    word = {"01_roofline": "bandwidth", "04_kv_cache": "prefil"}[lesson]  # by their stems
    hits = found["terms"][word]
    names = [found["docnames"][i] for i in ([hits] if isinstance(hits, int) else hits)]
    assert f"lessons/{lesson}" in names


# ---- what a page tells -------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_page_gives_no_solution_away(html, into, lesson):
    source = into / "source-html" / "lessons" / f"{lesson}.ipynb"
    told = leaks(nbformat.read(source, as_version=4), solution(lesson))
    assert [line for line in told if not line.endswith(": outputs")] == []
    assert (
        'raise NotImplementedError("write this")'
        in soup(html / "lessons" / f"{lesson}.html").get_text()
    )


def test_no_answer_to_the_knowledge_check_is_shown(html):
    text = soup(html / "lessons" / "04_kv_cache.html").get_text()
    assert 'answers["kv_q_token"]' not in text
    assert "Sample answer." not in text


def test_with_solutions_each_is_folded_in(html, into):
    assert build_site(into, "04", "--with-solutions").returncode == 0
    page = soup(into / "html-with-solutions" / "lessons" / "04_kv_cache.html")
    folded = [squeezed(d.get_text()) for d in page.select("details") if "Worked" in d.get_text()]
    secret = [squeezed(text) for cell in solution("04_kv_cache").cells for text in secrets(cell)]
    bodies = [text for text in secret if "return" in text and "**" not in text]
    assert len(bodies) > 8
    assert [body for body in bodies if not any(body in text for text in folded)] == []


# ---- one cell ----------------------------------------------------------------------------------


def one_page(source: str, *outputs: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that a page has for one code cell."""
    cells = [new_markdown_cell("# A title", id="title")]
    given = new_notebook(cells=[*cells, new_code_cell(source, id="one")])
    worked = new_notebook(cells=[*cells, new_code_cell(source, id="one", outputs=list(outputs))])
    return pages.page("04_kv_cache", given, worked).cells[1:]


def test_a_widget_leaves_its_picture_or_its_words():
    form = {pages.WIDGET: {"model_id": "1"}, "text/html": "<img alt='a bar'>", "text/plain": "bar"}
    (cell,) = one_page("explorer()", new_output("display_data", data=form))
    assert set(cell.outputs[0].data) == {"text/html", "text/plain"}


def test_warnings_of_a_run_stay_behind():
    noise = new_output("stream", name="stderr", text="a warning")
    (cell,) = one_page("f()", noise, new_output("stream", name="stdout", text="said"))
    assert [output.text for output in cell.outputs] == ["said"]


@pytest.mark.parametrize(
    "source", ['progress("04_kv_cache")', 'answers = Answers("")', 'answers.check("kv_q_token")']
)
def test_what_means_nothing_on_a_page_is_left_out(source):
    assert one_page(source) == []


def test_a_drill_is_said_in_words():
    (cell,) = one_page('drill("04_kv_cache", minutes=5)')
    assert cell.cell_type == "markdown"
    assert "drill" in cell.source


def test_notebooks_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="make build"):
        pages.page("04_kv_cache", released("04_kv_cache"), solution("01_roofline"))


def test_pictures_of_a_document_come_along():
    text = "![a picture\nof two lines](images/a.png) [b](c.md) ![d](https://example.org/d.png)"
    assert front.pictures(text) == ["images/a.png"]


def test_links_of_a_document_become_pages_or_plain_text(monkeypatch, tmp_path):
    monkeypatch.setattr(front, "DOCS", tmp_path)
    (tmp_path / "glossary.md").write_text("words")
    (tmp_path / "architecture.md").write_text(
        "[a](../src/lessons/04_kv_cache.py) [b](glossary.md#k) [c](../README.md) "
        "[d](https://example.org/x) ![e](architecture.svg) [f](#here)"
    )
    assert front.document("architecture", ["04_kv_cache"]) == (
        "[a](lessons/04_kv_cache.ipynb) [b](glossary.md#k) c "
        "[d](https://example.org/x) ![e](architecture.svg) [f](#here)"
    )
