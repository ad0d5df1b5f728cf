"""The files by which others take part: they parse, name what exists, and agree with each other."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml
from places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tracked() -> list[str]:
    """Every file of the repository, new ones too; what is ignored is no part of it."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


# ---- changelog and citation --------------------------------------------------------------------


def releases() -> list[tuple[str, str]]:
    """(version, date) of each release, as they stand."""
    return re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)


def test_the_newest_release_is_the_version_of_the_project():
    assert releases()[0][0] == PROJECT["project"]["version"]


def test_releases_stand_from_new_to_old_and_have_a_date():
    versions = [tuple(map(int, version.split("."))) for version, _ in releases()]
    days = [date.fromisoformat(day) for _, day in releases()]
    assert len(versions) >= 2
    assert versions == sorted(set(versions), reverse=True)
    assert days == sorted(days, reverse=True)
    assert len(releases()) == len(re.findall(r"^## ", read("CHANGELOG.md"), re.MULTILINE))


def test_the_changelog_has_headings_of_its_form_and_grading_apart():
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Grading"}
    newest = read("CHANGELOG.md").split("\n## ")[1]
    assert set(re.findall(r"^### (.+)$", read("CHANGELOG.md"), re.MULTILINE)) <= known
    assert "### Grading" in newest


def test_the_citation_is_what_the_project_says_of_itself():
    citation, project = yaml.safe_load(read("CITATION.cff")), PROJECT["project"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation), "the form demands these"
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == project["name"]
    assert citation["abstract"] == project["description"]
    assert citation["license"] == project["license"]
    assert (citation["version"], citation["date-released"]) == releases()[0]
    assert all({"name"} <= set(a) or {"family-names"} <= set(a) for a in citation["authors"])


# ---- forms for reports -------------------------------------------------------------------------

KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


@pytest.mark.parametrize(
    "path", [p for p in FORMS if p.name != "config.yml"], ids=lambda path: path.stem
)
def test_a_form_is_one_that_github_takes(path: Path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in form["body"]} <= KINDS
    assert all(p["attributes"]["value"] for p in form["body"] if p["type"] == "markdown")
    assert all(part["attributes"]["label"] for part in asked)
    assert all(p["attributes"]["options"] for p in asked if p["type"] == "dropdown")
    names = [part["id"] for part in asked]
    assert len(set(names)) == len(names) >= 3
    assert all(part["validations"]["required"] is True for part in asked)


def test_there_is_a_form_for_each_way_in_which_grading_is_wrong():
    titles = {yaml.safe_load(path.read_text()).get("name") for path in FORMS}
    assert {"A right answer was refused", "A wrong one passed"} <= titles
    config = yaml.safe_load(read(".github/ISSUE_TEMPLATE/config.yml"))
    assert set(config) <= {"blank_issues_enabled", "contact_links"}


def test_the_paths_and_verbs_of_forms_exist():
    text = "".join(path.read_text(encoding="utf-8") for path in FORMS)
    text += read(".github/pull_request_template.md")
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    verbs = set(re.findall(r"`make ([a-z-]+)`", text))
    assert {"lint", "test", "build"} <= verbs <= targets
    files = set(re.findall(r"\b([A-Z]+\.md)\b", text))
    assert {"SECURITY.md", "CHANGELOG.md"} <= files
    assert [name for name in files if not (ROOT / name).is_file()] == []


# ---- what runs by itself -----------------------------------------------------------------------


def test_the_hooks_run_what_make_lint_runs():
    (recipe,) = re.findall(r"^lint: env\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    venv = re.search(r"^VENV\s*[:?]?=\s*(\S+)", MAKEFILE, re.MULTILINE)[1]
    lint = [line.replace("$(PY)", f"{venv}/bin/python") for line in re.findall(r"@(\$.*)", recipe)]
    (local,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert local["repo"] == "local", "a hook from elsewhere would have to be fetched"
    assert [hook["entry"] for hook in local["hooks"]] == lint
    assert len(lint) == 3
    for hook in local["hooks"]:
        assert {"id", "name", "entry", "language"} <= set(hook)
        assert (hook["language"], hook["pass_filenames"]) == ("system", False)


def test_ci_runs_the_script_that_everybody_can_run():
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    assert {"push", "pull_request"} <= set(workflow[True])  # YAML reads `on` as true
    (job,) = workflow["jobs"].values()
    steps = {step.get("uses", step.get("run", "")).split("@")[0]: step for step in job["steps"]}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert ".ci/run" in steps
    python = steps["actions/setup-python"]["with"]
    assert python["python-version"] == PROJECT["tool"]["mypy"]["python_version"]
    assert python["cache"] == "pip"
    assert all((ROOT / name).is_file() for name in python["cache-dependency-path"].split())
    kept = steps["actions/upload-artifact"]
    assert (kept["with"]["path"], kept["if"]) == ("test-artifacts/", "always()")
    assert "test-artifacts" in read("tests/helpers/places.py")


def test_each_package_says_that_it_has_types():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for package in ("inferlab", "labkit", "sandbox", "grader"):
        home = ROOT / package if package == "grader" else ROOT / "src" / package
        assert (home / "py.typed").is_file()
        assert "py.typed" in data[package]


# ---- containers --------------------------------------------------------------------------------


def test_the_container_names_what_exists():
    container = json.loads(read(".devcontainer/devcontainer.json"))
    program, script = container["postCreateCommand"].split()
    assert program == "bash"
    assert os.access(ROOT / script, os.X_OK)
    wanted = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert re.search(r"python:([\d.]+)", container["image"])[1] == wanted
    settings = container["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"].endswith("/.venv/bin/python")
    assert set(map(str, container["forwardPorts"])) == set(container["portsAttributes"])


def test_binder_reads_the_environment_and_then_a_script_of_ours():
    """A folder binder/ or .binder/ would take the place of the files at the root."""
    assert not any((ROOT / name).exists() for name in ("binder", ".binder", "Dockerfile"))
    environment = yaml.safe_load(read("environment.yml"))
    (pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    assert {"-c constraints.txt", "-e .[dev]"} <= set(pip)
    assert os.access(ROOT / "postBuild", os.X_OK)
    assert subprocess.run(["bash", "-n", ROOT / "postBuild"], check=False).returncode == 0


def fresh_copy(folder: Path) -> Path:
    """The repository as a container gets it: its files alone, in a path with a space.

    Built notebooks and pictures stay behind: nothing here opens them.
    """
    copy = folder / "my course"
    for name in tracked():
        if not name.startswith(("notebooks/", "solutions/", "tests/", "docs/images/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def begin_environment(copy: Path) -> None:
    """An empty environment that sees the packages of ours: then nothing has to be downloaded."""
    venv = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")


def test_the_containers_script_makes_a_course_that_works(tmp_path: Path):
    """Run for real, by make and pip, in a fresh copy. What pip wants is here already."""
    copy = fresh_copy(tmp_path)
    begin_environment(copy)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "ARGS"))}
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_ARGS": "--no-deps"}
    home = {"INFERLAB_HOME": str(tmp_path / "home")}
    script = json.loads(read(".devcontainer/devcontainer.json"))["postCreateCommand"].split()
    done = subprocess.run(
        script,
        cwd=copy,
        env=clean | offline | home,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.index("environment ready") < said.index("inferlab: ready")
    assert "isolation" in said.lower(), "inferlab doctor has not spoken"
    assert not re.search("No such file|not found|invalid choice", said), said
    where = "import grader, inferlab; print(inferlab.__file__); print(grader.__file__)"
    python = copy / ".venv" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", where], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True
    )
    files = found.stdout.split("\n")[:2]
    assert [str(Path(name).is_relative_to(copy)) for name in files] == ["True", "True"], files
