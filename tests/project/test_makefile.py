"""The Makefile's own work, with a stand-in for Python that only notes what it is asked to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

# Notes its arguments. As `-m venv DIR` it puts a copy of itself into DIR/bin.
STAND_IN = """#!/bin/sh
echo "$*" >> "{log}"
case "$*" in
  *version_info*) exit {old} ;;
  "-V") echo "Python 3.9.1" ;;
  *ensurepip*) exit {no_venv} ;;
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *"pip install"*) exit {no_pip} ;;
  *"grader.cli fetch"*) exit {offline} ;;
esac
"""


class Clone:
    """A fresh clone in a folder with spaces: just what the Makefile reads."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "my course (1)", folder / "log"
        self.folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        self.python = folder / "a python"

    def make(self, *words: str, **ills: int) -> tuple[int, str, list[str]]:
        """Exit status, what was printed, and what Python was asked to do."""
        ills = {"old": 0, "no_venv": 0, "no_pip": 0, "offline": 0} | ills
        self.python.write_text(STAND_IN.format(log=self.log, **ills))
        self.python.chmod(0o755)
        self.log.write_text("")
        variables = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("MAKE", "MFLAGS", "ARGS", "PIP_ARGS"))
        }
        done = subprocess.run(
            ["make", *words, f"PYTHON={self.python}"],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        asked = [x for x in self.log.read_text().splitlines() if x.startswith("-m ")]
        return done.returncode, done.stdout + done.stderr, asked


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


INSTALL = [
    "-m venv --clear .venv",
    "-m pip install -c constraints.txt torch",
    "-m pip install --quiet -c constraints.txt -e .[dev]",
]


def test_lab_installs_torch_first_and_alone_then_fetches_then_opens(clone: Clone) -> None:
    status, said, asked = clone.make("lab")
    assert status == 0, said
    assert asked == [*INSTALL, "-m grader.cli fetch smollm2", "-m grader.cli lab"]
    for word in ("environment in .venv", "installing torch", "fetching the model", "JupyterLab"):
        assert word in said


def test_the_second_time_nothing_is_installed(clone: Clone) -> None:
    clone.make("test")
    assert clone.make("test")[2] == ["-m pytest -n auto --maxprocesses 4 --dist loadfile"]
    assert clone.make("lab")[2] == ["-m grader.cli fetch smollm2", "-m grader.cli lab"]


def test_offline_the_lab_opens_all_the_same_and_says_so(clone: Clone) -> None:
    status, said, asked = clone.make("lab", offline=1)
    assert status == 0
    assert "no model now" in said
    assert asked[-1] == "-m grader.cli lab"


def test_extra_arguments_go_to_pip_and_to_the_lab(clone: Clone) -> None:
    _, _, asked = clone.make("lab", "PIP_ARGS=--proxy here", "ARGS=--no-browser")
    assert asked[1] == "-m pip install -c constraints.txt --proxy here torch"
    assert asked[2] == "-m pip install --quiet -c constraints.txt --proxy here -e .[dev]"
    assert asked[-1] == "-m grader.cli lab --no-browser"


def test_new_pins_are_installed_over_the_old(clone: Clone) -> None:
    clone.make("env")
    later = (clone.folder / ".venv" / "ready").stat().st_mtime + 5
    os.utime(clone.folder / "constraints.txt", (later, later))
    assert clone.make("env")[2] == INSTALL[1:]


def test_after_the_folder_was_moved_the_environment_is_made_anew(clone: Clone) -> None:
    clone.make("env")
    clone.folder = clone.folder.rename(clone.folder.with_name("else where"))
    assert clone.make("env")[2] == INSTALL


def test_an_install_that_broke_off_is_taken_up_again(clone: Clone) -> None:
    status, _, _ = clone.make("env", no_pip=1)
    assert status != 0
    assert not (clone.folder / ".venv" / "ready").exists()
    shutil.rmtree(clone.folder / ".venv")
    assert clone.make("env")[0] == 0


@pytest.mark.parametrize(
    ("ills", "message"),
    [
        ({"old": 1}, "needs Python 3.11 or newer; "),
        ({"no_venv": 1}, "sudo apt install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_named(clone: Clone, ills: dict, message: str) -> None:
    status, said, asked = clone.make("lab", **ills)
    assert status != 0
    assert message in said
    assert str(clone.python) in said
    assert asked == [], "nothing may be made with it"


def test_no_python_at_all_is_named(clone: Clone) -> None:
    done = subprocess.run(
        ["make", "env", "PYTHON=no-such-python"],
        cwd=clone.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert '"no-such-python" does not run' in done.stdout


def test_site_builds_the_book(clone: Clone) -> None:
    asked = clone.make("site", "ARGS=--with-solutions 04")[2]
    assert asked == [*INSTALL, "-m tools.book --with-solutions 04"]


@pytest.mark.parametrize("words", [(), ("STUDENT=1",)])
def test_wheel_packs_with_the_setuptools_that_is_there(clone: Clone, words: tuple) -> None:
    asked = clone.make("wheel", *words)[2]
    assert asked[-1] == "-m pip wheel --quiet --no-deps --no-build-isolation -w dist ."


def test_lint_runs_the_three_tools(clone: Clone) -> None:
    assert clone.make("lint")[2][3:] == ["-m ruff check .", "-m ruff format --check .", "-m mypy"]


def test_the_environment_is_first_on_the_path(clone: Clone) -> None:
    makefile = clone.folder / "Makefile"
    makefile.write_text(makefile.read_text() + '\nwhere:\n\t@echo "$$PATH"\n')
    _, said, _ = clone.make("where")
    assert said.split(os.pathsep)[0] == str(clone.folder / ".venv" / "bin")


def test_clean_leaves_the_learners_work(clone: Clone) -> None:
    clone.make("env")
    for name in ("work", "src", "grader", "tests", "tools", "docs"):
        (clone.folder / name).mkdir()
    (clone.folder / "work" / "mine.ipynb").write_text("mine")
    status, said, _ = clone.make("clean")
    assert status == 0, said
    assert not (clone.folder / ".venv").exists()
    assert (clone.folder / "work" / "mine.ipynb").read_text() == "mine"


def test_make_alone_lists_the_verbs(clone: Clone) -> None:
    said = clone.make()[1]
    for verb in ("lab", "test", "build", "lint", "site", "env", "lock", "clean"):
        assert f"make {verb} " in said
