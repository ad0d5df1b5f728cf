"""What the documents say is there, is there."""

import ast
import inspect
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
from PIL import Image
from places import ROOT

import grader
from grader import cli
from labkit.interview import begin, notebook

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
DOCUMENTS += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Made by building, fetching or working, so absent from a fresh clone.
MADE = {"work/", "work/.inferlab/base/", ".venv", ".venv/bin/activate", "test-artifacts/"}
MADE |= {"docs/_build/", "docs/_build/html/", "docs/_build/executed/"}
MADE |= {"docs/_build/html-with-solutions/", "dist/"}
GRADED = ("submitted/", "autograded/", "feedback/", "grading/")  # the folders of a class
ELSEWHERE = {"etc/jupyter", "private/cases.py"}  # in an environment; in an instructor's own folder


def documents() -> str:
    return "\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def inferlab_verbs() -> set[str]:
    (verbs,) = [a for a in cli.parser()._actions if a.choices and "lab" in a.choices]
    return set(verbs.choices)


def test_every_make_command_in_the_documents_exists() -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", documents(), flags=re.MULTILINE))
    assert {"lab", "test", "build"} <= named
    assert named <= make_targets()


def test_every_inferlab_command_in_the_documents_exists() -> None:
    named = set(re.findall(r"`inferlab ([a-z]+)", documents()))
    assert {"lab", "check", "doctor"} <= named
    assert named <= inferlab_verbs()


def console_lines() -> list[str]:
    """Every line of the README's console blocks, comments cut off."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [shlex.join(shlex.split(line, comments=True)) for b in blocks for line in b.splitlines()]


def commands() -> list[str]:
    """Commands of the README: in blocks, and in backquotes within the text."""
    programs = "|".join(CHECKS)
    inline = re.findall(rf"`((?:{programs}) [^`]+)`", README)
    return sorted({*console_lines(), *inline})


def check_make(words: list[str]) -> None:
    """Its targets and variables are the Makefile's."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, equals, _ = word.partition("=")
        variable = re.search(rf"^{name} +\?=", text, re.MULTILINE)
        assert variable if equals else name in make_targets(), f"the Makefile has no {name}"


def check_inferlab(words: list[str]) -> None:
    """The command line understands it: an unknown verb or option ends the parser."""
    assert cli.parser().parse_args(words).run


def check_pip(words: list[str]) -> None:
    """pip install ".[extra]": the extra exists; or the wheel, as it is called in this version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if words[-1].endswith(".whl"):
        wheel = f"dist/inferlab-{project['version']}-py3-none-any.whl"
        assert words == ["install", wheel]
        return
    (extra,) = re.findall(r"^\.\[(\w+)\]$", words[-1])
    assert words[0] == "install"
    assert extra in project["optional-dependencies"]


def check_conda(words: list[str]) -> None:
    """It reads our file, or activates the environment that the file names."""
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert words in (["env", "create", "-f", "environment.yml"], ["activate", "inferlab"])
    assert re.search(r"^name: inferlab$", text, re.MULTILINE)


def check_source(words: list[str]) -> None:
    """The Makefile makes the environment there."""
    assert words == [".venv/bin/activate"]
    assert "VENV     := .venv" in (ROOT / "Makefile").read_text(encoding="utf-8")


CHECKS = {
    "make": check_make,
    "inferlab": check_inferlab,
    "pip": check_pip,
    "conda": check_conda,
    "source": check_source,
}


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_readme_would_be_understood(line: str) -> None:
    program, *words = shlex.split(line)
    assert program in CHECKS, f"nothing here checks a command of {program}"
    CHECKS[program](words)


def test_every_option_in_the_table_of_commands_is_its_verbs_own() -> None:
    """Options stand in a row's second column too, away from their command."""
    (verbs,) = [a for a in cli.parser()._actions if a.choices and "lab" in a.choices]
    rows = re.findall(r"^\| `inferlab ([a-z]+)(.*)\|$", README, re.MULTILINE)
    named = {(verb, option) for verb, row in rows for option in re.findall(r"--[a-z-]+", row)}
    assert {("drill", "--report"), ("serve", "--mine")} <= named
    known = {v: parser._option_string_actions for v, parser in verbs.choices.items()}
    assert [(verb, option) for verb, option in named if option not in known[verb]] == []


def test_every_call_for_a_notebook_would_be_understood() -> None:
    calls = [c for c in re.findall(r"`(\w+\(.*?\))`", README) if c.split("(")[0] in grader.__all__]
    assert {'hint("kv_cache_bytes")', "interview(report=True)"} <= set(calls)
    for text in calls:
        call = ast.parse(text, mode="eval").body
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        function = getattr(grader, call.func.id)
        if function is grader.interview:  # it hands on what it is given
            functions = (notebook.show, begin.begin)
            names = {name for f in functions for name in inspect.signature(f).parameters}
            assert set(given) <= names, text
        inspect.signature(function).bind(*map(ast.literal_eval, call.args), **given)


def test_a_command_that_is_wrong_is_found() -> None:
    for line in ("make everything", "make lab X=1", "pip install .[gold]", "conda install x"):
        program, *words = shlex.split(line)
        with pytest.raises(AssertionError):
            CHECKS[program](words)
    with pytest.raises(SystemExit):
        check_inferlab(["dril"])


def test_the_three_ways_in_are_there() -> None:
    lines = set(console_lines())
    assert {"make lab", "inferlab grade 04 --from submissions.zip", "inferlab drill"} <= lines


@pytest.mark.parametrize("name", ["lab.png", "serve.png"])
def test_a_screenshot_is_small_real_and_said_in_words(name: str) -> None:
    picture = ROOT / "docs" / "images" / name
    (alt,) = re.findall(rf"!\[([^\]]*)\]\(docs/images/{name}\)", README)
    assert len(alt) > 80
    assert picture.stat().st_size < 200_000
    with Image.open(picture) as opened:
        assert opened.format == "PNG"
        assert opened.width >= 1000
        assert len(opened.convert("RGB").getcolors(1 << 24)) > 20, "an empty page"


def test_every_path_of_the_tree_exists() -> None:
    (tree,) = [b for b in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if "Makefile" in b]
    paths = [line.split()[0] for line in tree.splitlines() if line.strip()]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_path_in_the_text_exists() -> None:
    """Words in backquotes with a slash in them, patterns and commands aside."""
    words = set(re.findall(r"`([\w./-]+/[\w./-]*)`", documents())) - MADE - ELSEWHERE
    assert len(words) > 10
    there = {word for word in words if (ROOT / word).exists() or word.startswith(GRADED)}
    assert words - there == set()


def test_every_link_leads_somewhere() -> None:
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("https://"):
                assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"


def test_the_lesson_table_is_up_to_date() -> None:
    made = runpy.run_module("tools.docs.readme_table")["with_table"](README)
    assert made == README, "run: python tools/docs/readme_table.py"


def test_the_picture_is_up_to_date_and_has_a_text_alternative(tmp_path: Path) -> None:
    picture = runpy.run_module("tools.docs.pipeline")
    picture["draw"](tmp_path / "pipeline.svg")
    kept = (ROOT / "docs" / "pipeline.svg").read_bytes()
    assert (tmp_path / "pipeline.svg").read_bytes() == kept, "run: python tools/docs/pipeline.py"
    (alt,) = re.findall(r"!\[([^\]]*)\]\(docs/pipeline.svg\)", README)
    assert " ".join(alt.split()) == picture["ALT"]
    assert f"<title>{picture['ALT']}</title>".encode() in kept


def test_the_map_of_the_contributing_guide_names_things_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:4] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)][2:]
    assert len(rows) > 10
    for _, files, _ in rows:
        for pattern in re.findall(r"`([^`]+)`", files):
            found = list(ROOT.glob(re.sub(r"<[^>]+>", "*", pattern)))
            assert found, f"{pattern} matches nothing"


def test_the_verdict_in_the_readme_is_a_real_one() -> None:
    from grader.judging import registry
    from grader.judging.judge import judge

    exercise = registry.exercise("kv_cache_bytes")
    verdicts = [judge(exercise, wrong).text().splitlines() for wrong in exercise.wrong.values()]
    (shown,) = re.findall(r"```text\n(kv_cache_bytes.*?)\n```", README, re.DOTALL)
    assert any(set(shown.splitlines()) <= set(lines) for lines in verdicts), verdicts


def test_the_licences_are_named_and_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    text = (ROOT / "LICENSE-TEXT").read_text()
    assert "CC-BY-4.0" in text
    assert "https://creativecommons.org/licenses/by/4.0/" in text
    assert "LICENSE-TEXT" in README


def test_the_performance_table_is_made_from_the_records():
    made = runpy.run_module("tools.docs.performance_table")["with_tables"](README)
    assert made == README, "run: python tools/docs/performance_table.py"
