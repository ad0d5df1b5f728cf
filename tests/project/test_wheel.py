"""A wheel alone, in a fresh environment and an empty folder: every verb of the course works there.

Oracles: what the repository's own files are, byte for byte; HTTP answers; nbgrader's gradebook.
"""

import ast
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import wheels
from handed_in import bytes_of, perfect
from places import ROOT

LESSON = "04_kv_cache"
WAIT_S = 90  # for a server to start


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> wheels.Installed:
    return wheels.install(wheel, tmp_path_factory.mktemp("wheel").resolve())


@pytest.fixture(scope="session")
def with_a_secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with a hidden case in lesson 04, and helpers that only it uses."""
    source = wheels.source_tree(tmp_path_factory.mktemp("source"))
    path = source / "grader/checks/kv_cache/sizes.py"
    text = path.read_text()
    before = 'given("8B-style, bf16", config=EIGHT_B),'
    assert text.count(before) == 1
    text = text.replace(before, f"{before}\n        SECRET_LINE")
    secret = 'given("the hidden zebra", True, config=_zebra(), bytes_per_number=ZEBRA_BYTES),'
    helpers = "ZEBRA_BYTES = 7919\n\n\ndef _zebra():  # zebra\n"
    helpers += "    return _config(77, 14, 7, 98, 1111)\n\n\n"
    text = text.replace("SECRET_LINE", secret)
    path.write_text(text.replace("def _per_token(", f"{helpers}def _per_token(", 1))
    return source


@pytest.fixture(scope="session")
def student_wheel(with_a_secret: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build(with_a_secret, tmp_path_factory.mktemp("dist"), student=True)


@pytest.fixture(scope="session")
def student(student_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> wheels.Installed:
    return wheels.install(student_wheel, tmp_path_factory.mktemp("student").resolve())


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tracked(*folders: str) -> list[str]:
    listed = subprocess.check_output(["git", "ls-files", "-z", *folders], cwd=ROOT, text=True)
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


@contextlib.contextmanager
def running(made: wheels.Installed, *words: str, **more: object) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        made.command(*words),
        cwd=made.desk,
        env=made.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fetched(address: str, data: dict | None = None) -> bytes:
    """What the address answers, as soon as somebody listens there."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + WAIT_S
    while True:
        try:
            with opener.open(request, timeout=WAIT_S) as answer:
                return answer.read()
        except ConnectionError:
            pass
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError) or time.monotonic() > end:
                raise
        time.sleep(0.3)


# ---- what is in it -----------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_course_byte_for_byte(wheel: Path) -> None:
    files = files_of(wheel)
    course = tracked("data", "notebooks", "solutions", "src/lessons")
    for name in (n for n in course if not Path(n).name.startswith(".")):
        assert files[f"inferlab/course/{name}"] == (ROOT / name).read_bytes(), name
    packages = [*tracked("src/inferlab", "src/labkit", "src/sandbox"), *tracked("grader")]
    for name in packages:
        assert files[name.removeprefix("src/")] == (ROOT / name).read_bytes(), name


def test_nothing_else_is_installed(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in files_of(wheel)}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {
        "inferlab", "labkit", "sandbox", "grader",
    }  # fmt: skip
    beside = {name.partition(".data/data/")[2] for name in files_of(wheel) if ".data/" in name}
    assert beside == {
        "etc/jupyter/nbgrader_config.json",
        "etc/jupyter/jupyter_server_config.d/inferlab.json",
    }


def test_what_is_imported_is_the_wheels_and_not_the_repository(installed: wheels.Installed) -> None:
    code = (
        "import inferlab, labkit, sandbox, grader, importlib.metadata as m, json, sys\n"
        "from inferlab.data import ROOT\n"
        "from grader.learner.lab import course_root\n"
        "print(json.dumps([p.__file__ for p in (inferlab, labkit, sandbox, grader)]"
        " + [str(ROOT), str(course_root())]))"
    )
    for path in json.loads(installed.code(code)):
        assert Path(path).is_relative_to(installed.packages)
        assert not Path(path).is_relative_to(ROOT / "src")


# ---- a learner's verbs -------------------------------------------------------------------------


@pytest.fixture(scope="session")
def solved(installed: wheels.Installed) -> wheels.Installed:
    """The desk after `inferlab lab` has put the lessons there, with lesson 04 solved."""
    port = free_port()
    with running(installed, "lab", "4", "--no-browser", "--port", str(port)) as process:
        status = fetched(f"http://127.0.0.1:{port}/api")
        said = []
        while not (said and said[-1].startswith("opening")):
            said.append(process.stdout.readline())
    assert b"version" in status
    assert str(installed.desk / "work") in said[-1]
    path = installed.desk / "work" / LESSON / f"{LESSON}.ipynb"
    assert path.read_bytes() == (ROOT / "notebooks" / LESSON / f"{LESSON}.ipynb").read_bytes()
    path.write_bytes(bytes_of(perfect()))
    return installed


def verdicts(said: str) -> list[str]:
    """The table of `inferlab check` and its sum."""
    lines = said.splitlines()
    return [line for line in lines if line.split()[-1:] in (["passed"], ["failed"])] + lines[-1:]


@pytest.fixture(scope="session")
def checked(solved: wheels.Installed) -> list[str]:
    """What `inferlab check 04` says of the solved lesson."""
    return verdicts(solved.run("check", "04"))


def test_lab_copies_to_the_current_folder_and_check_finds_it_there(checked: list[str]) -> None:
    assert checked[-1].startswith("21 of 21 passed"), checked


def test_nothing_was_written_into_the_installed_course(
    solved: wheels.Installed, checked: list[str], wheel: Path
) -> None:
    course = solved.packages / "inferlab" / "course"
    there = {p.relative_to(solved.packages).as_posix() for p in course.rglob("*") if p.is_file()}
    assert there == {name for name in files_of(wheel) if name.startswith("inferlab/course/")}


def test_progress_and_reset(solved: wheels.Installed, checked: list[str]) -> None:
    assert "12 of 12 exercises" in solved.run("progress", "04")
    said = solved.run("reset", "07")
    assert "as released" in said
    assert (solved.desk / "work" / "07_quantization" / "07_quantization.ipynb").is_file()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["plan", "llama-3-8b"], "users"),
        (["drill", "--list"], "KV cache"),
        (["generate", "I", "--model", "tiny-target", "--raw"], "new tokens"),
    ],
)
def test_verbs_that_need_data(installed: wheels.Installed, words: list, expected: str) -> None:
    assert expected in installed.run(*words)


def test_drill_without_a_terminal_asks_and_says_so(installed: wheels.Installed) -> None:
    said = installed.run("drill", "--seed", "1", status=2)
    assert "no answers: the input is empty and no terminal" in said


def test_doctor_finds_packages_and_kernel(installed: wheels.Installed) -> None:
    said = installed.code(
        "from grader.learner import doctor; print(doctor.report(doctor.examine()))"
    )
    assert "could not be examined" not in said
    assert "all as needed" in said
    assert f"course       {installed.packages / 'inferlab' / 'course'}" in said


def test_serve_answers_one_completion(installed: wheels.Installed) -> None:
    port = free_port()
    with running(installed, "serve", "--model", "tiny-target", "--port", str(port)):
        asked = {"model": "tiny-target", "prompt": "The", "max_tokens": 3, "temperature": 0}
        answer = json.loads(fetched(f"http://127.0.0.1:{port}/v1/completions", asked))
        page = fetched(f"http://127.0.0.1:{port}/")
    assert answer["usage"]["completion_tokens"] == 3
    assert b"<html" in page


def test_explore_serves_its_page(installed: wheels.Installed) -> None:
    port = free_port()
    with running(installed, "explore", "04", "--no-browser", "--port", str(port)):
        page = fetched(f"http://127.0.0.1:{port}/?lesson=04")
    assert b"<html" in page


def test_build_needs_the_repository(installed: wheels.Installed) -> None:
    said = installed.run("build", status=2)
    assert said.startswith("inferlab: build needs inferlab's repository")
    assert "Traceback" not in said


# ---- an instructor's ---------------------------------------------------------------------------

SPY = """
import inferlab, grader, labkit, sandbox
from pathlib import Path
for package in (inferlab, labkit, sandbox):
    for path in Path(package.__path__[0]).rglob("*"):
        if "course/data" not in str(path) and path.is_file():
            print("SEEN", path)
base = Path(inferlab.__path__[0]).parent
for name in ("grader/checks/kv_cache/sizes.py", "inferlab/course/solutions"):
    print("SEEN" if (base / name).exists() else "not there:", name)
"""


@pytest.fixture(scope="session")
def graded(installed: wheels.Installed) -> Path:
    """A course laid out by the wheel, where one student has handed in, and looked round."""
    said = installed.run("course", "my class", "--lessons", "04")
    course = installed.desk / "my class"
    assert "3 files written" in said
    book = perfect()
    spy = {"cell_type": "code", "id": "spy", "metadata": {}, "source": SPY, "outputs": []}
    book["cells"].insert(0, spy | {"execution_count": None})
    path = course / "submitted" / "ada" / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes_of(book))
    said = installed.run("grade", "04", "--course", "my class", "--jobs", "1")
    assert "1 of 1 graded" in said
    return course


def test_the_installed_course_grades_reports_and_exports(
    installed: wheels.Installed, graded: Path
) -> None:
    record = json.loads((graded / "grading" / LESSON / "ada.json").read_text())
    assert all(result["earned"] == result["points"] for result in record["results"])
    assert (graded / "gradebook.db").is_file()
    installed.run("report", "04", "--course", "my class")
    installed.run("export", "--to", "csv", cwd=graded)
    assert "ada" in (graded / "grades-csv.csv").read_text()


def test_student_code_sees_nothing_of_the_installed_checks(graded: Path) -> None:
    book = json.loads((graded / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb").read_text())
    said = "".join("".join(output["text"]) for output in book["cells"][0]["outputs"])
    level = book["metadata"]["inferlab"]["isolation"]
    assert level == "full", "this test needs a computer with user namespaces"
    assert "SEEN" not in said
    assert said.count("not there:") == 2


def test_nbgraders_own_commands_accept_the_course(
    installed: wheels.Installed, graded: Path
) -> None:
    done = subprocess.run(
        [installed.python, "-m", "nbgrader", "generate_assignment", LESSON, "--force"],
        cwd=graded,
        env=installed.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    released = graded / "notebooks" / LESSON / f"{LESSON}.ipynb"
    assert released.read_bytes() == (ROOT / "notebooks" / LESSON / released.name).read_bytes()


def test_a_folder_that_is_no_course_is_named(installed: wheels.Installed) -> None:
    said = installed.run("grade", "04", status=2)
    assert "inferlab course DIR" in said


# ---- the edition for students ------------------------------------------------------------------


def test_the_students_wheel_holds_no_hidden_case_no_solution_and_no_worked_lesson(
    student_wheel: Path, with_a_secret: Path
) -> None:
    assert "+student-" in student_wheel.name
    files = files_of(student_wheel)
    text = b"\n".join(files.values())
    for secret in (b"zebra", b"ZEBRA_BYTES", b"7919", b"1111"):
        assert secret in (with_a_secret / "grader/checks/kv_cache/sizes.py").read_bytes()
        if secret != b"1111":  # too short to be looked for in pictures and weights
            assert secret not in text, secret
    assert b"1111" not in files["grader/checks/kv_cache/sizes.py"]
    course = [name for name in files if name.startswith("inferlab/course/")]
    tops = {name.split("/")[2] for name in course}
    assert tops == {"data", "notebooks", "for-students"}
    assert b"BEGIN SOLUTION" not in b"\n".join(files[n] for n in course if n.endswith(".ipynb"))
    visible = ast.unparse(ast.parse((ROOT / "grader/checks/kv_cache/sizes.py").read_text()))
    assert files["grader/checks/kv_cache/sizes.py"].decode() == visible + "\n"


def test_check_says_the_same_in_the_students_wheel(
    student: wheels.Installed, checked: list[str]
) -> None:
    path = student.desk / f"{LESSON}.ipynb"
    path.write_bytes(bytes_of(perfect()))
    assert verdicts(student.run("check", "04", str(path))) == checked


def test_worked_answers_and_grading_are_off_for_students(student: wheels.Installed) -> None:
    code = "from grader import solution\nsolution('kv_cache_bytes', force=True)"
    assert "switched off" in student.code(
        f"import os; os.environ['INFERLAB_LAB_MODE'] = '0'\n{code}"
    )
    assert "edition for students" in student.run("grade", "04", status=2)
    assert "edition for students" in student.run("course", "mine", status=2)


def test_there_is_no_wheel_where_a_hidden_case_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools/wheel"))
    from student_edition import CannotTell, stripped

    for source in (
        'SECRET = given("name", True, n=1)',
        'CASES = (given("name", hide, n=1),)',
        'CASES = (Case("name", make, hidden=is_hidden),)',
        'CASES = (Case("name", **more),)',
        "CASES = tuple(replace(c, hidden=True) for c in SOME)",
        "CASES = (given(*words, n=1),)",
    ):
        with pytest.raises(CannotTell, match=r"sizes\.py, line 1"):
            stripped(source, "sizes.py")
    kept = 'CASES = (given("name", n=1), Case("b", make), Case("c", make, hidden=False))\n'
    assert stripped(kept, "sizes.py") == kept


# ---- an install that leads to a repository -----------------------------------------------------


def test_an_editable_install_survives_a_folder_called_inferlab(
    tmp_path: Path,
) -> None:
    """nbgrader and JupyterLab put the folder of a notebook first on Python's path."""
    made = wheels.install(wheels.build(ROOT, tmp_path / "dist", hook="build_editable"), tmp_path)
    for name in ("inferlab", "grader", "labkit", "sandbox"):
        (made.desk / name / "src").mkdir(parents=True)
    code = "import sys; sys.path.insert(0, ''); import inferlab, labkit, sandbox, grader as g"
    found = made.code(f"{code}; print(*(p.__file__ for p in (inferlab, labkit, sandbox, g)))")
    assert found.split() == [
        str(ROOT / place / "__init__.py")
        for place in ("src/inferlab", "src/labkit", "src/sandbox", "grader")
    ]


def test_the_environment_that_runs_this_has_the_two_folders_on_its_path() -> None:
    here = [Path(entry).resolve() for entry in sys.path if entry]
    assert ROOT / "src" in here
    assert shutil.which("inferlab", path=str(Path(sys.executable).parent))
