"""A course for nbgrader in a temporary folder with a space in its name, and its students."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_students import FakeStudent
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.auth import Authenticator
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeFactory
from traitlets.config import Config, PyFileConfigLoader

from grader.judging.isolated import step
from grader.judging.isolated.students import Zygote
from grader.notebooks import build

LESSON = "04_kv_cache"

CELL_TIMEOUT_S = 6  # an honest check takes well under one

COURSE_SETTINGS = f"""
c.Exchange.root = {{exchange!r}}
c.Judge.timeout = {CELL_TIMEOUT_S}
c.Judge.check_timeout = {CELL_TIMEOUT_S}
"""


@dataclass
class Course:
    """A course in a temporary folder, with its exchange and its students' folders."""

    folder: Path
    students: dict[str, FakeStudent] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.folder / "a course"

    @property
    def api(self) -> NbGraderAPI:
        return NbGraderAPI(config=self.config())

    @property
    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.root / 'gradebook.db'}", "inferlab")

    def config(self, student: str = "") -> Config:
        """The course's settings, for the instructor or for a student at their own desk."""
        config = PyFileConfigLoader("nbgrader_config.py", path=str(self.root)).load_config()
        config.CourseDirectory.root = str(self.root)
        if student:
            config.CourseDirectory.student_id = student
            config.CourseDirectory.assignment_id = LESSON
            config.Exchange.assignment_dir = str(self.desk_of(student))
            config.Exchange.cache = str(self.desk_of(student) / ".cache")
        return config

    def desk_of(self, student: str) -> Path:
        folder = self.folder / "desks" / student
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def exchange(self, step: str, student: str) -> None:
        """Run one of the student's steps: FetchAssignment, Submit or FetchFeedback."""
        config = self.config(student)
        make = getattr(ExchangeFactory(config=config), step)
        make(
            coursedir=CourseDirectory(config=config),
            authenticator=Authenticator(config=config),
            config=config,
        ).start()

    def autograde(self, zygote: Zygote) -> None:
        """What `nbgrader autograde` does for every student, in this process."""
        config = self.config()
        config.CourseDirectory.assignment_id = LESSON
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step, "zygote", lambda level: zygote)
            Autograde(coursedir=CourseDirectory(config=config), config=config).start()

    def environment(self) -> dict[str, str]:
        """Variables of a command: this environment's programs, and no settings of this user."""
        return environment(self.folder)

    def command(self, *arguments: str, program: str = "nbgrader") -> str:
        """Run `nbgrader …` or `inferlab …` in the course's folder; what it printed."""
        return run_command(self.root, self.environment(), program, *arguments)


def environment(home: Path) -> dict[str, str]:
    """Variables of a command: this environment's programs, and the settings in home alone."""
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "INFERLAB_HOME")
    own = {name: str(home / name) for name in folders}
    bin_dir = str(Path(sys.executable).parent)
    return {**os.environ, **own, "PATH": bin_dir + os.pathsep + os.environ["PATH"]}


def run_command(folder: Path, variables: dict[str, str], program: str, *arguments: str) -> str:
    """Run `nbgrader …` or `inferlab …` in a folder; what it printed."""
    module = {"nbgrader": "nbgrader", "inferlab": "grader.cli"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def succeed(result: dict[str, Any]) -> None:
    """A step of NbGraderAPI reports failure in its result."""
    assert result["success"], f"{result.get('error')}\n{result.get('log')}"


def make_course(folder: Path) -> Course:
    """A course with one lesson and its exchange; nothing is released yet."""
    course = Course(folder.resolve())
    exchange = course.folder / "an exchange"
    exchange.mkdir()
    course.root.mkdir()
    shutil.copytree(build.ROOT / "solutions" / LESSON, course.root / "solutions" / LESSON)
    settings = (build.ROOT / "nbgrader_config.py").read_text()
    settings += COURSE_SETTINGS.format(exchange=str(exchange))
    (course.root / "nbgrader_config.py").write_text(settings)
    return course


def address(runtime: Path, server: subprocess.Popen, folder: Path) -> str:
    """Where the server listens, once it does: it says so a little before."""
    for _ in range(900):  # a busy machine takes long to start it
        assert server.poll() is None, (folder / "server.log").read_text()[-4000:]
        for path in runtime.glob("jpserver-*.json"):
            try:
                facts = json.loads(path.read_text())
                socket.create_connection(("127.0.0.1", facts["port"]), timeout=10).close()
            except (ValueError, ConnectionRefusedError):  # still being written, not yet listening
                continue
            return facts["url"].rstrip("/")
        time.sleep(0.1)
    raise TimeoutError((folder / "server.log").read_text()[-4000:])


@contextmanager
def jupyter_server(course: Course, token: str) -> Iterator[str]:
    """A Jupyter server in the course's folder, formgrader included; its address."""
    with server_in(course.root, course.folder, token) as base:
        yield base


@contextmanager
def server_in(folder: Path, home: Path, token: str, *more: str) -> Iterator[str]:
    """A Jupyter server that runs in a folder, with the settings in home; its address."""
    variables = environment(home)
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1"]
    options += [f"--IdentityProvider.token={token}", *more]
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *options],
            cwd=folder,
            env=variables,
            stdout=log,
            stderr=log,
        )
        try:
            yield address(Path(variables["JUPYTER_RUNTIME_DIR"]), server, home)
        finally:
            server.terminate()
            server.wait(timeout=20)
