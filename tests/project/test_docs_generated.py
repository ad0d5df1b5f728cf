"""Documents that are generated are up to date, and what they say is what the course teaches."""

import re
import runpy
import sys

import pytest
from lesson_text import ROOT, prose, script

from grader.judging import registry
from tools.docs import architecture, cheatsheet, glossary

TERMS = glossary.terms()
ROWS = [row for rows in cheatsheet.SECTIONS.values() for row in rows]
# Bold words of the lessons that stress something and are no terms of the field.
_EMPHASIS = """
    16 experts of 2 billion; 4 billion; admit; all; alone; and; append; asks less; base; caches;
    column; counts; divide; down; failed; fall; first; here; input; it counts every byte;
    itself quantized; keys; last; leave; left; low; more rows; name; neighbours; newest; no; not;
    octave; once; one; one layer; one multiplication; output; percentiles cannot be averaged; place;
    plan; prefilled; prompts; references; reserve; rise; rows; rubric; same; search; second; share;
    shared by all heads; sigmoid; sizes; time; tpot is not itl; truncate; two; up;
    what breaks first; why; you need; you will be able to; your
"""
EMPHASIS = {words.strip() for words in _EMPHASIS.split(";")}


def written(text: str) -> str:
    """Lower case, single spaces."""
    return " ".join(text.lower().split())


# ---- up to date --------------------------------------------------------------------------------


def test_the_glossary_is_up_to_date():
    kept = glossary.TARGET.read_text(encoding="utf-8")
    assert glossary.markdown(TERMS) == kept, "run: python -m tools.docs.glossary"


def test_the_cheat_sheet_is_up_to_date():
    kept = cheatsheet.TARGET.read_text(encoding="utf-8")
    assert cheatsheet.markdown() == kept, "run: python -m tools.docs.cheatsheet"


def test_the_picture_of_the_architecture_is_up_to_date_and_said_in_words(tmp_path):
    architecture.draw(tmp_path / "again.svg")
    kept = (ROOT / "docs" / "architecture.svg").read_bytes()
    assert (tmp_path / "again.svg").read_bytes() == kept, "run: python -m tools.docs.architecture"
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (alt,) = re.findall(r"!\[(.*?)\]\(architecture.svg\)", text, re.DOTALL)
    assert " ".join(alt.split()) == architecture.ALT


@pytest.mark.parametrize("name", ["glossary", "cheatsheet", "architecture", "pipeline"])
def test_what_generates_a_document_runs_as_contributing_says(name):
    assert f"python -m tools.docs.{name}`" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert runpy.run_module(f"tools.docs.{name}")


# ---- the glossary ------------------------------------------------------------------------------


def test_a_term_stands_once_and_its_sentence_is_one():
    names = [spelling.lower() for term in TERMS for spelling in term.spellings]
    assert sorted(names) == sorted(set(names))
    assert [t.term for t in TERMS if not t.text.endswith(".") or len(t.text.split()) < 5] == []


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.term)
def test_a_term_occurs_in_the_lesson_that_teaches_it(term):
    lesson = glossary.lesson_files()[term.lesson]
    text = written("\n".join(prose(lesson)))
    assert any(written(spelling) in text for spelling in term.spellings), lesson


@pytest.mark.parametrize("lesson", registry.lessons())
def test_what_a_lesson_introduces_in_bold_is_in_the_glossary(lesson):
    known = {spelling.lower() for term in TERMS for spelling in term.spellings}
    missing = [bold for bold in introduced(lesson) if not set(parts(bold)) <= known]
    assert missing == [], "put them into docs/glossary.toml, or into EMPHASIS"


def parts(phrase: str) -> list[str]:
    """Terms of a phrase such as "the token budget" or "top-k, top-p"."""
    return re.split(r", | and ", phrase.removeprefix("the "))


def introduced(lesson: str) -> set[str]:
    """Bold words of the prose, without run-in headings, whole sentences and mere emphasis."""
    bold = re.findall(r"\*\*([^*]+?)\*\*", "\n".join(prose(lesson)))
    phrases = {written(words) for words in bold}
    terms = {p for p in phrases if p[-1] not in ".?:" and len(p.split()) < 5}
    return {term for term in terms if not term.isdigit()} - EMPHASIS


def test_the_search_for_bold_words_finds_some():
    assert {"kv cache", "ridge point", "decode step"} <= introduced("01_roofline")
    assert "what breaks." not in introduced("01_roofline")


# ---- the cheat sheet ---------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.function.__name__)
def test_a_formula_names_a_function_of_the_engine_and_shows_its_number(row):
    module = sys.modules[row.function.__module__]
    assert module.__name__.startswith("inferlab.")
    assert getattr(module, row.function.__name__) is row.function
    assert f"`{row.function.__name__}`" in row.markdown()
    assert f"**{row.number()}** |" in row.markdown()
    assert re.search(r"\d", row.number())
    assert row.markdown().count("|") == 4, "a bar inside a cell would break the table"


@pytest.mark.parametrize("title", cheatsheet.SECTIONS)
def test_a_formula_is_taught_in_the_lesson_it_stands_under(title):
    """As an exercise, or named in the lesson's script or its checks."""
    numbers = [int(number) for number in re.findall(r"\d\d", title.partition("(")[2])]
    text = "\n".join(map(lesson_code, (glossary.lesson_files()[n] for n in numbers)))
    named = [row.function.__name__ for row in cheatsheet.SECTIONS[title]]
    assert [name for name in named if not re.search(rf"\b{name}\b", text)] == []


def lesson_code(lesson: str) -> str:
    """The lesson's script and its checks."""
    (package,) = {
        path.parent
        for path in (ROOT / "grader" / "checks").glob("*/*.py")
        if f'LESSON = "{lesson}"' in path.read_text(encoding="utf-8")
    }
    files = [script(lesson), *package.glob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_some_worked_numbers_by_hand():
    """The config and the device are those that the sheet's first lines name."""
    shown = {row.function.__name__: row.number() for row in ROWS}
    assert shown["kv_bytes_per_token"] == f"{2 * 32 * 8 * 128 * 2:,} B"
    assert shown["kv_cache_bytes"].startswith(f"{16 * 8192 * 131072 / 1e9:.2f} GB")
    assert shown["ridge_point"] == f"{989.4e12 / 3.35e12:.0f} FLOP/byte"
    assert shown["end_to_end_s"] == f"{0.2 + 299 * 0.025:.3f} s"
    assert shown["expected_tokens"] == f"{1 + 0.8 + 0.64 + 0.512 + 0.4096:.4f}"
    assert shown["cost_per_million_tokens"] == f"{2.5 / (50 / 0.025 * 3600) * 1e6:.3f} USD"
    assert shown["layer_cache_numbers"] == str(512 + 64)
