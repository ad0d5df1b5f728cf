"""Pages that show a student's notebook: nothing of theirs runs, everything legitimate stays.

Here the pages are read as a tree; tests/browser/test_formgrader_pages.py lets a browser run them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from attacks import BENIGN, FIGURE, OUTSIDE, attack, html_payloads, output
from bs4 import BeautifulSoup, Tag
from markupsafe import Markup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from grader.notebooks import build
from grader.safe_pages import formgrader, maths
from grader.safe_pages.exporters import (
    STOCK,
    FeedbackExporter,
    FormgradeExporter,
    SafeHTMLExporter,
    html_of,
)
from grader.safe_pages.sanitize import safe_html
from labkit.figures.show import img
from labkit.figures.show import plt as plots

PAYLOADS = html_payloads()
FORBIDDEN = {
    "applet", "audio", "base", "button", "embed", "form", "frame", "frameset", "iframe", "input",
    "link", "marquee", "meta", "noscript", "object", "script", "select", "style", "svg", "template",
    "textarea", "video", "annotation-xml", "semantics", "maction", "mglyph",
}  # fmt: skip
ADDRESSES = {"action", "background", "data", "formaction", "href", "poster", "src", "srcset"}
LOADS = re.compile(r"url\s*\(|expression|@import|behavior|position|\\", re.I)
OF_THE_PAGE = {"notebook", "notebook-container"}  # nbgrader's template has them twice
EXPORTER = FeedbackExporter()
PAGES = pytest.mark.parametrize("exporter", [FeedbackExporter, FormgradeExporter])
TO_SHOW = {"score": 1.0, "max_score": 2.0, "late_penalty": 0.0, "notebook": "04_kv_cache"}


def page(exporter: type[SafeHTMLExporter], notebook: Any, **resources: Any) -> BeautifulSoup:
    """The page of a notebook, with the facts that nbgrader adds."""
    names = {"student": "ada", "last_name": "L", "first_name": "A", "notebook_path": "a/b.ipynb"}
    given = {"index": 0, "total": 1, "base_url": "", "submission_id": "1", "assignment_id": "04"}
    given |= {"notebook_id": "04", "nbgrader": TO_SHOW} | names | resources
    text, _ = exporter().from_notebook_node(notebook, resources=given)
    return BeautifulSoup(text, "html.parser")


def everywhere(payloads: Iterable[str]) -> Any:
    """A notebook with each payload in a cell and in three kinds of output."""
    kinds = ("text/html", "text/markdown", "text/latex")
    outputs = [output(kind, payload) for payload in payloads for kind in kinds]
    cells = [new_markdown_cell(payload) for payload in payloads]
    return new_notebook(cells=[*cells, new_code_cell("1", outputs=outputs)])


def batches(things: list[str], n: int) -> Iterable[list[str]]:
    return (things[i : i + n] for i in range(0, len(things), n))


def wrongs(tree: Tag) -> list[str]:
    """What a student's part of a page must not hold, one line each."""
    found = []
    for tag in tree.find_all(True):
        if tag.name in FORBIDDEN:
            found.append(f"<{tag.name}>")
        for name, value in tag.attrs.items():
            text = " ".join(value) if isinstance(value, list) else str(value)
            if name.startswith("on") or name.startswith("data-") or name in ("srcdoc", "name"):
                found.append(f"{tag.name} {name}={text}")
            if name in ADDRESSES and not harmless(tag.name, name, text):
                found.append(f"{tag.name} {name}={text}")
            if name == "style" and LOADS.search(text):
                found.append(f"{tag.name} style={text}")
            if (
                name == "id"
                and text not in OF_THE_PAGE
                and not text.startswith(("text-", "cell-id="))
            ):
                found.append(f"{tag.name} id={text}")
    return found


def harmless(tag: str, name: str, address: str) -> bool:
    """Pictures that bring their bytes, files beside the page, links that open another page."""
    if (tag, name) == ("img", "src"):
        return address.startswith("data:image/") or re.fullmatch(r"[\w.-]+\.png", address)
    if (tag, name) == ("a", "href"):
        return bool(re.fullmatch(r"https?://\S+|mailto:\S+|#\S*|[\w.-]+", address))
    return False


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_payload_survives(name, record_property):
    for source in (PAYLOADS[name], f"- item {PAYLOADS[name]} end"):
        for shown in (html_of(source), EXPORTER.markdown2html({}, source)):
            assert wrongs(BeautifulSoup(shown, "html.parser")) == []
    record_property("count", "attacks on a page held off")


@PAGES
def test_no_payload_survives_in_a_page(exporter):
    for payloads in batches(list(PAYLOADS.values()), 15):
        shown = page(exporter, everywhere(payloads))
        assert wrongs(shown.find(id="notebook-container")) == []


def test_this_test_sees_what_gets_through(monkeypatch):
    """Without the sanitizer most payloads show up as wrong: the judge above is not blind."""
    monkeypatch.setattr("grader.safe_pages.exporters.safe_html", Markup)
    bad = [n for n, p in PAYLOADS.items() if wrongs(BeautifulSoup(html_of(p), "html.parser"))]
    assert len(bad) > 50, set(PAYLOADS) - set(bad)


@PAGES
def test_every_attack_at_once_leaves_only_the_pages_own_scripts(exporter):
    notebook = new_notebook()
    plain = page(exporter, notebook)
    attack(notebook)
    attacked = page(exporter, notebook)
    assert scripts(attacked) == scripts(plain)
    assert handlers(attacked) == handlers(plain)
    # what nbgrader itself adds to a graded cell is not there: the forged one counts for nothing
    assert wrongs(attacked.find(id="notebook-container")) == []
    assert "nbgrader_cell" not in classes(attacked)


def scripts(shown: BeautifulSoup) -> list[str]:
    found = [(script.get("src", ""), script.text) for script in shown.find_all("script")]
    return [f"{src} {text}" for src, text in found]


def handlers(shown: BeautifulSoup) -> list[str]:
    return [v for tag in shown.find_all(True) for n, v in tag.attrs.items() if n.startswith("on")]


def classes(shown: BeautifulSoup) -> set[str]:
    return {name for tag in shown.find_all(class_=True) for name in tag["class"]}


def test_feedback_holds_no_script_and_asks_for_nothing():
    shown = page(FeedbackExporter, everywhere([BENIGN]))
    assert scripts(shown) == []
    assert shown.find_all("link") == []
    policy = shown.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert shown.head.find(True) is shown.find("meta", {"http-equiv": True})


def test_formgraders_scripts_are_named_in_its_policy_and_differ_each_time():
    words = set()
    for _ in range(2):
        shown = page(FormgradeExporter, everywhere([BENIGN]))
        policy = shown.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
        (nonce,) = {script.get("nonce") for script in shown.find_all("script")}
        assert f"'nonce-{nonce}'" in policy
        assert "script-src 'nonce" in policy
        assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
        words.add(nonce)
    assert len(words) == 2


@PAGES
def test_names_of_people_and_files_are_text(exporter):
    evil = '"></title></script><script>1</script><img src=x onerror=1>'
    facts = dict.fromkeys(("student", "notebook_path", "assignment_id", "notebook_id"), evil)
    for names in ({"last_name": evil, "first_name": evil}, {"last_name": "", "first_name": ""}):
        shown = page(exporter, new_notebook(), **facts, **names, nbgrader=TO_SHOW)
        plain = page(exporter, new_notebook())
        assert len(scripts(shown)) == len(scripts(plain))
        assert len(shown.find_all("img")) == 0
        assert handlers(shown) == handlers(plain)


def test_formgraders_other_pages_escape_what_they_are_given():
    evil = '"></script><script>1</script>'
    for path in sorted(STOCK.glob("*.tpl")):
        if path.name in ("formgrade_404.tpl", "base.tpl"):  # the first is broken in nbgrader 0.9
            continue
        names = ("student_id", "assignment_id", "notebook_id", "course_dir", "exchange")
        given = {"base_url": "", "exchange_missing": True, "current_config": evil}
        rendered = formgrader.page(path.name, **dict.fromkeys(names, evil), **given)
        assert evil not in rendered
        assert "<script>" not in rendered
        head = BeautifulSoup(rendered, "html.parser").head
        assert head.find(True)["http-equiv"] == "Content-Security-Policy"


# ---- what must stay ------------------------------------------------------------------------------


@PAGES
def test_what_people_write_is_kept(exporter):
    shown = page(exporter, new_notebook(cells=[new_markdown_cell(BENIGN)]))
    body = shown.find(class_="rendered_html")
    for tag in [
        "h2",
        "em",
        "strong",
        "code",
        "table",
        "td",
        "li",
        "pre",
        "blockquote",
        "details",
        "summary",
        "kbd",
        "sub",
        "a",
    ]:
        assert body.find(tag), tag
    assert [m["alttext"] for m in body.find_all("math")] == [
        r"a_{i} \le \sqrt{2}", r"\sum_{i=1}^{n} \frac{1}{i}", "y^2",
    ]  # fmt: skip
    assert body.find(class_="alert-info").find("math")
    assert "color" in body.find("p", style=True)["style"]
    links = {a["href"]: a["rel"] for a in body.find_all("a", href=True)}
    assert list(links) == [
        "https://example.org/page", "notes.txt", "https://example.org/bare",
    ]  # fmt: skip
    assert all("noopener" in rel for rel in links.values())
    assert body.find("span", class_="k").text == "def"


@PAGES
def test_pictures_with_their_own_bytes_are_kept(exporter):
    figure, _ = plots.subplots()
    picture = img(figure, "A frame with nothing in it")
    data = "iVBORw0KGgo="
    outputs = [
        output("text/html", picture),
        output("image/png", data, **{"image/png": {"width": 7}}),
    ]
    outputs += [output("image/svg+xml", "<svg/>"), output("text/html", FIGURE)]
    attached = new_markdown_cell("![mine](attachment:a.png)")
    attached.attachments = {"a.png": {"image/png": data}}
    cells = [attached, new_code_cell("1", outputs=outputs), new_markdown_cell("![b](plot.png)")]
    pictures = page(exporter, new_notebook(cells=cells)).find_all("img")
    assert [p["src"].partition(",")[0] for p in pictures] == [
        "data:image/png;base64", "data:image/png;base64", "data:image/png;base64",
        "data:image/svg+xml;base64", "data:image/png;base64", "plot.png",
    ]  # fmt: skip
    assert pictures[1]["alt"] == "A frame with nothing in it"
    assert pictures[1]["src"] in picture
    assert pictures[2]["width"] == "7"


@PAGES
def test_code_streams_and_tracebacks_keep_their_colours(exporter):
    outputs = [
        new_output("stream", name="stdout", text="a < b & \x1b[31mred\x1b[0m"),
        new_output("error", ename="E", evalue="e", traceback=["\x1b[1;32mgreen\x1b[0m <b>"]),
    ]
    cells = [new_code_cell("def f(x): return 1 < 2", execution_count=3, outputs=outputs)]
    shown = page(exporter, new_notebook(cells=cells))
    assert shown.find(class_="ansi-red-fg").text == "red"
    assert shown.find(class_="ansi-green-intense-fg").text == "green"
    assert "a < b & red" in shown.text
    assert "green <b>" in shown.text
    assert "def f(x): return 1 < 2" in shown.text
    assert shown.find("span", class_="k").text == "def"
    assert "In\xa0[3]:" in shown.text


@PAGES
def test_a_cell_that_did_not_run_shows_no_markup(exporter):
    shown = page(exporter, new_notebook(cells=[new_code_cell("1")]))
    assert shown.find(class_="input_prompt").text.split() == ["In", "[", "]:"]


@PAGES
def test_a_graded_cell_has_its_box_and_the_comment(exporter):
    cell = new_markdown_cell("my words")
    facts = {"grade_id": "why", "grade": True, "solution": True, "points": 2, "score": 1.5}
    cell.metadata.nbgrader = facts | {"comment": "see $x$ <script>1</script>"}
    shown = page(exporter, new_notebook(cells=[cell]))
    box = shown.find(class_="nbgrader_cell")
    assert "my words" in box.text
    if exporter is FormgradeExporter:
        assert box.find("input", class_="score")["id"] == "why"
        assert box.find("textarea")["id"] == "why-comment"
    else:
        assert "Score: 1.5 / 2.0" in box.text
        assert box.find(class_="panel-footer").find("math")
        assert not box.find("script")


def test_outputs_that_cannot_be_shown_leave_their_text():
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Slider"}
    cells = [new_code_cell("1", outputs=[new_output("display_data", widget)])]
    cells.append(new_code_cell("1", outputs=[output("application/javascript", "alert(1)")]))
    text = page(FeedbackExporter, new_notebook(cells=cells)).text
    assert "Slider" in text
    assert "[not shown: an output of application/javascript]" in text
    assert "alert" not in text


@pytest.mark.parametrize(
    "source",
    ["![a](attachment:missing.png)", "> " * 3000 + "x", "<div>" * 3000, "[" * 3000, "- " * 3000],
)
def test_no_cell_can_keep_the_page_from_being_shown(source):
    cells = [new_markdown_cell(source), new_markdown_cell("the next answer")]
    cells.append(new_code_cell("1", outputs=[output("text/html", source)]))
    shown = page(FeedbackExporter, new_notebook(cells=cells))
    assert "the next answer" in shown.text


# ---- maths ---------------------------------------------------------------------------------------


def test_every_formula_of_every_lesson_is_typeset(record_property):
    exporter, n_formulas = FeedbackExporter(), 0
    for path in sorted((build.ROOT / "solutions").glob("*/*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                shown = BeautifulSoup(exporter.markdown2html({}, cell.source), "html.parser")
                n_formulas += len(shown.find_all("math"))
                for tag in shown.find_all(["code", "pre"]):
                    tag.decompose()
                assert "$" not in shown.text, path.name
                assert "\\" not in shown.text, path.name
    assert n_formulas > 100


@pytest.mark.parametrize(
    ("typed", "formulas"),
    [
        ("$a$ and $b$", ["a", "b"]),
        (r"\(a\) \[b\]", ["a", "b"]),
        ("$$a\n+b$$", ["a\n+b"]),
        (r"\begin{aligned}a&=b\end{aligned}", [r"\begin{aligned}a&=b\end{aligned}"]),
        (r"it costs \$5, and $x$ more", ["x"]),
        ("it costs $5", []),
        ("<code>$a$</code> <pre>$b$</pre>", []),
        ("$a &lt; b$", ["a < b"]),
    ],
)
def test_maths_is_found_where_jupyterlab_finds_it(typed, formulas):
    shown = BeautifulSoup(maths.typeset(safe_html(typed)), "html.parser")
    assert [m["alttext"] for m in shown.find_all("math")] == formulas


@pytest.mark.parametrize(
    "typed", [r"$\frac{1}$ and \begin{x}$", "$" + "{" * 3000 + "$", "$\\left($"]
)
def test_what_is_no_maths_stays_as_it_was_typed(typed):
    shown = BeautifulSoup(maths.typeset(safe_html(typed)), "html.parser")
    if not shown.find("math"):
        assert shown.text == typed


def test_words_in_formulas_lose_their_backslashes():
    shown = BeautifulSoup(maths.mathml(r"n_\text{kv\_heads}", False), "html.parser")
    assert shown.text == "nkv_heads"


def test_nothing_of_ours_names_an_address_outside():
    for path in Path(formgrader.__file__).parent.rglob("*"):
        if path.suffix in (".py", ".j2", ".html"):
            assert "//cdn" not in path.read_text(encoding="utf-8")
    shown = page(FormgradeExporter, everywhere([BENIGN]))
    assert not [s for s in scripts(shown) if "//" in s.split()[0]]
    assert OUTSIDE not in str(shown)


# ---- hidden tests --------------------------------------------------------------------------------


def test_feedback_shows_no_hidden_test():
    check = new_code_cell(
        'check("f")\n### BEGIN HIDDEN TESTS\ncheck("f", x=8642)\n### END HIDDEN TESTS'
    )
    check.metadata.nbgrader = {"grade_id": "check_f", "grade": True, "solution": False, "points": 1}
    mine = new_code_cell("### BEGIN HIDDEN TESTS\nmy own words\n### END HIDDEN TESTS")
    text = page(FeedbackExporter, new_notebook(cells=[check, mine])).text
    assert 'check("f")' in text
    assert "8642" not in text
    assert "my own words" in text
