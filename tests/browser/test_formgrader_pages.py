"""Formgrader and feedback in a real browser, over a submission that attacks whoever reads it.

One student has put every attack there is into a notebook; another writes what people write. No
script but the page's own may run, nothing may be asked of anybody outside, and grading must work.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from attacks import BENIGN, OUTSIDE, attack, html_payloads, rings
from fake_students import Desk
from lab_page import LabPage
from nbformat.v4 import new_code_cell, new_markdown_cell
from nbgrader_course import LESSON, Course, jupyter_server, make_course, succeed
from places import ROOT
from playwright.sync_api import Browser, BrowserContext, Route

from grader.judging import registry

pytestmark = [
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore:Passing unrecognized arguments"),
]

TOKEN = "for-this-test"
EVIL = "<img src=x onerror=window.top.pwned=1>"  # a student's name, or a file's
HARMLESS_STUDENT, ATTACKER, NAMED = "ada", "mallory", f"m {EVIL}"
COMMENT = "well said: $x^2$"
CONTAINER = "#notebook-container"
# What the second wall is not there for: it lets a page send its reader elsewhere.
NOT_BY_POLICY = {"meta-refresh"}


@pytest.fixture(scope="module")
def course(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Three submissions, graded by nbgrader's own command, and their feedback."""
    course = make_course(tmp_path_factory.mktemp("pages"))
    succeed(course.api.generate_assignment(LESSON))
    name = f"{LESSON}.ipynb"
    solution = nbformat.read(course.root / "solutions" / LESSON / name, as_version=4)
    stubs = nbformat.read(course.root / "notebooks" / LESSON / name, as_version=4)
    desk = Desk(stubs, solution, registry.exercises(LESSON))
    for student in (HARMLESS_STUDENT, ATTACKER, NAMED):
        folder = course.root / "submitted" / student / LESSON
        folder.mkdir(parents=True)
        cells = None if student == HARMLESS_STUDENT else ()  # nothing solved is graded sooner
        notebook = desk.student(student, exercise_cells=cells).notebook
        notebook.cells.append(new_markdown_cell(BENIGN))
        if student == ATTACKER:
            notebook.cells += show_payloads()
            (folder / "evil.html").write_text(f"<script>{rings('file')}</script>")
            (folder / "evil.svg").write_text(html_payloads()["svg-onload"])
        nbformat.write(notebook, folder / name)
    course.command("autograde", LESSON)
    spoil(course.root / "autograded" / ATTACKER / LESSON / name)
    with course.gradebook as gradebook:
        gradebook.update_or_create_student(NAMED, first_name=EVIL, last_name=EVIL, email=EVIL)
    succeed(course.api.generate_feedback(LESSON))
    return course


def show_payloads() -> list[nbformat.NotebookNode]:
    """Cells that put every payload out while they are graded, as a student would."""
    source = f"from IPython.display import *\npayloads = {list(html_payloads().values())!r}\n"
    source += (
        "for payload in payloads:\n    display(HTML(payload), Markdown(payload), Latex(payload))"
    )
    cells = [new_code_cell(source), new_code_cell(f"raise ValueError({EVIL!r})")]
    return [*cells, new_code_cell(f"display(Javascript({rings('javascript')!r}))")]


def spoil(path: Path) -> None:
    """Attack a graded notebook's file itself: not all of it is a notebook any more."""
    notebook = nbformat.read(path, as_version=4)
    attack(notebook)
    path.chmod(0o644)
    path.write_text(nbformat.v4.writes(notebook))


@pytest.fixture(scope="module")
def address(course: Course) -> Iterator[str]:
    with jupyter_server(course, TOKEN) as base:
        yield base


@pytest.fixture
def asked() -> list[str]:
    """What was really asked of somebody outside; what the policy stops never gets that far."""
    return []


@pytest.fixture
def context(browser: Browser, asked: list[str]) -> Iterator[BrowserContext]:
    def outside(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(20_000)
    context.set_default_navigation_timeout(60_000)
    context.route(f"{OUTSIDE}/**", outside)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, address: str) -> LabPage:
    """A page that is logged in; every request and every error is noted from then on."""
    shots = ROOT / "test-artifacts" / "browser"
    shots.mkdir(parents=True, exist_ok=True)
    first = context.new_page()
    first.goto(f"{address}/formgrader/manage_students?token={TOKEN}")
    first.close()
    return LabPage(context.new_page(), address, shots)


def submission(course: Course, student: str) -> str:
    """The id by which formgrader's addresses name a submitted notebook."""
    with course.gradebook as gradebook:
        return gradebook.find_submission_notebook(LESSON, LESSON, student).id


def show(page: LabPage, path: str) -> None:
    page.page.goto(f"{page.base}/formgrader/{path}", wait_until="load")
    page.page.wait_for_load_state("networkidle")


def touch_everything(page: LabPage) -> None:
    """What a reader does: open, point at, click, in the student's part of the page.

    Only links that lead to another page are left alone.
    """
    page.page.evaluate(
        """where => document.querySelectorAll(where + ' *').forEach(e => {
            if (e.tagName === 'DETAILS') e.open = true;
            for (const kind of ['mouseover', 'mouseenter', 'focus', 'pointerdown'])
                e.dispatchEvent(new Event(kind, {bubbles: true}));
            const leads = e.getAttribute('href') && !e.getAttribute('href').startsWith('#') &&
                          ['http:', 'https:', 'file:', 'mailto:'].includes(e.protocol);
            if (e.click && !leads && !e.closest('.panel-heading, .panel-footer')) e.click(); })""",
        CONTAINER,
    )
    page.page.wait_for_timeout(300)


def assert_safe(page: LabPage) -> None:
    head = "document.head.firstElementChild.httpEquiv"
    assert page.page.evaluate(head) == "Content-Security-Policy"
    assert page.page.evaluate("window.pwned") is None
    assert page.outside == [], "something was asked of somebody outside"


def assert_quiet(page: LabPage) -> None:
    """Nothing wrong in the page's own working either: no error, nothing refused by the policy."""
    assert_safe(page)
    assert page.troubles == []


# ---- pages ---------------------------------------------------------------------------------------

TABLES = {
    "manage_assignments": LESSON,
    f"manage_submissions/{LESSON}": HARMLESS_STUDENT,
    "gradebook": LESSON,
    f"gradebook/{LESSON}": LESSON,
    f"gradebook/{LESSON}/{LESSON}": "Submission #1",
    "manage_students": HARMLESS_STUDENT,
    f"manage_students/{HARMLESS_STUDENT}": LESSON,
    f"manage_students/{HARMLESS_STUDENT}/{LESSON}": LESSON,
}


@pytest.mark.parametrize("path", TABLES)
def test_formgraders_tables_work_and_ask_nobody_outside(page: LabPage, path: str) -> None:
    show(page, path)
    page.page.locator("#main-table", has_text=TABLES[path]).wait_for()
    page.shot("formgrader-" + path.replace("/", "-"))
    assert_quiet(page)


def test_formgraders_dialogues_open_under_their_policy(page: LabPage) -> None:
    show(page, "manage_students")
    page.page.get_by_text("Add new student...").click()
    page.page.locator(".modal.in, .modal.show").get_by_text("Student ID").wait_for()
    show(page, f"gradebook/{LESSON}/{LESSON}")
    page.page.get_by_role("button", name="Show All Names").click()
    page.page.get_by_text(HARMLESS_STUDENT, exact=True).wait_for()
    assert_quiet(page)


@pytest.mark.parametrize("student", [HARMLESS_STUDENT, ATTACKER, NAMED])
def test_a_submissions_page_is_safe_whatever_is_in_it(
    page: LabPage, course: Course, student: str
) -> None:
    show(page, f"submissions/{submission(course, student)}/")
    assert_quiet(page)
    assert page.page.locator(f"{CONTAINER} math").count() > 5
    page.shot(f"formgrader-submission-{student[:7].strip()}")
    touch_everything(page)
    assert_safe(page)
    if student == NAMED:
        page.page.locator(".glyphicon.name-hidden").click()
        assert EVIL in page.page.locator("a.name-shown").inner_text()
        assert_quiet(page)


def test_a_person_grades_on_the_attackers_page(page: LabPage, course: Course) -> None:
    show(page, f"submissions/{submission(course, ATTACKER)}/")
    cell = page.page.locator(".nbgrader_cell", has=page.page.locator("input.needs_manual_grade"))
    comment = cell.first.locator("textarea.comment")
    comment.fill(COMMENT)
    with page.page.expect_response(lambda r: "/api/comment/" in r.url and r.ok):
        comment.blur()
    with page.page.expect_response(lambda r: "/api/grade/" in r.url and r.ok):
        cell.first.get_by_role("button", name="Full credit").click()
    page.page.reload(wait_until="load")
    page.page.wait_for_function(
        "said => $('textarea.comment').get().some(t => t.value === said)", arg=COMMENT
    )
    assert_quiet(page)


@pytest.mark.parametrize("name", ["evil.html", "evil.svg"])
def test_a_students_file_runs_nothing(page: LabPage, course: Course, name: str) -> None:
    answer = page.page.goto(
        f"{page.base}/formgrader/submissions/{submission(course, ATTACKER)}/{name}"
    )
    assert answer is not None
    assert answer.status == 200
    assert "sandbox" in answer.headers["content-security-policy"]
    page.page.wait_for_timeout(200)
    assert page.page.evaluate("window.pwned") is None
    assert page.outside == []


# ---- the second wall -----------------------------------------------------------------------------


ALIVE = ("script", "script-src", "img-onerror", "details-ontoggle", "iframe-srcdoc", "svg-onload")


def rings_on(page: LabPage, asked: list[str], payload: str, policy: str) -> bool:
    """Whether a payload does its work on a page of formgrader's that has only this policy."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    body = f"<!DOCTYPE html><html><head>{meta}</head><body>{payload}</body></html>"
    address = f"{page.base}/formgrader/tampered"
    page.page.route(address, lambda route: route.fulfill(body=body, content_type="text/html"))
    page.page.goto(address, wait_until="load")
    page.page.wait_for_timeout(40)
    page.page.unroute(address)
    rang = page.page.evaluate("window.pwned") is not None or bool(asked)
    asked.clear()
    return rang


def test_without_the_sanitizer_the_policy_holds(
    page: LabPage, course: Course, asked: list[str]
) -> None:
    payloads = html_payloads()
    show(page, f"submissions/{submission(course, HARMLESS_STUDENT)}/")
    policy = page.page.evaluate("document.head.firstElementChild.content")
    alive = [name for name in ALIVE if rings_on(page, asked, payloads[name], "object-src *")]
    assert alive == list(ALIVE), "the attacks do not work: this test sees nothing"
    for name in payloads.keys() - NOT_BY_POLICY:
        assert not rings_on(page, asked, payloads[name], policy), name


# ---- feedback ------------------------------------------------------------------------------------


@pytest.mark.parametrize("student", [HARMLESS_STUDENT, ATTACKER, NAMED])
def test_a_feedback_page_opened_from_a_file(page: LabPage, course: Course, student: str) -> None:
    sent: list[str] = []
    page.page.on("request", lambda request: sent.append(request.url))
    path = course.root / "feedback" / student / LESSON / f"{LESSON}.html"
    page.page.goto(path.as_uri(), wait_until="load")
    page.shot(f"feedback-{student[:7].strip()}")
    # Bootstrap's style names fonts; the page uses none, and its policy lets none be loaded.
    assert [url for url in sent if not url.startswith("data:") and "/fonts/" not in url] == [
        path.as_uri()
    ]
    assert page.page.locator("script").count() == 0
    touch_everything(page)
    assert_safe(page)
    formulas = page.page.locator("math")
    assert formulas.count() > 5
    for scheme, media in (("light", "screen"), ("dark", "screen"), ("light", "print")):
        page.page.emulate_media(color_scheme=scheme, media=media)
        assert formulas.first.bounding_box()["height"] > 5
        assert readable(page)


def readable(page: LabPage) -> bool:
    """Whether the formulas are dark on a page that is not."""
    script = """e => { const c = getComputedStyle(e).color.match(/[0-9]+/g).slice(0, 3);
                       return c.reduce((a, b) => a + Number(b), 0); }"""
    ink = page.page.locator("math").first.evaluate(script)
    ground = page.page.locator("body").evaluate(
        "e => getComputedStyle(e).backgroundColor.match(/[0-9]+/g).slice(0, 3).map(Number)"
    )
    return ink < 300 and (sum(ground) > 600 or sum(ground) == 0)  # 0: transparent, which is white
