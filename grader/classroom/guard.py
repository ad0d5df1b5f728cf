"""This course is protected in every nbgrader of its environment, wherever that was started.

nbgrader reads a course's settings from the folder that it runs in, so protection cannot hang on
them. Installing the course puts two files into the environment's etc/jupyter:

    jupyter_server_config.d/inferlab.json   every Jupyter server loads this module
    nbgrader_config.json                    so does every `nbgrader autograde` and feedback

and so does the course's own nbgrader_config.py. An assignment of another course goes nbgrader's
usual way. What judging needs is imported when it is first needed; where that fails, nbgrader's step
fails, and nothing of a student's is run or shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from glob import glob
from pathlib import Path
from typing import Any

from nbgrader import api
from nbgrader.apps.zipcollectapp import ZipCollectApp
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback

from grader.classroom import private
from grader.safe_pages import formgrader, whose

NEEDED = ("submission_secret.txt", "timestamp.txt")  # what came through the exchange has both


@lru_cache(maxsize=1)
def install() -> None:
    """Take the places of nbgrader's steps and pages, once in a process."""
    formgrader.install()
    Autograde.convert_single_notebook = judged(Autograde.convert_single_notebook)
    GenerateFeedback.convert_single_notebook = shown(GenerateFeedback.convert_single_notebook)
    for step, folder in (
        (Autograde, "autograded"),
        (GenerateFeedback, "feedback"),
        (ExchangeCollect, "submitted"),
        (ZipCollectApp, "submitted"),
    ):
        step.start = privately(step.start, folder)
    ExchangeReleaseFeedback.copy_files = released(ExchangeReleaseFeedback.copy_files)
    api.get_alembic_version = newest_schema
    api.Gradebook.__init__ = with_private_file(api.Gradebook.__init__)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "grader.classroom.guard"}]


def _load_jupyter_server_extension(server: Any) -> None:
    install()


def before_converting(**_: Any) -> None:
    """nbgrader's pre_convert_hook: importing it has protected the process."""


# ---- grading and feedback ----------------------------------------------------------------------


def judged(stock: Any) -> Any:
    """Autograde's step: a lesson is run and judged in isolation, whatever steps are set."""

    @wraps(stock)
    def convert(step: Autograde, notebook: str) -> None:
        if not _is_ours(step.coursedir, _assignment(step, notebook)):
            return stock(step, notebook)
        from grader.classroom import nbgrader_steps as ours

        config = ours.with_grading(step.config)
        with _instead(
            step,
            exporter=step.exporter_class(parent=step, config=config),
            sanitize_preprocessors=ours.with_repair(step.sanitize_preprocessors),
            autograde_preprocessors=ours.with_judge(step.autograde_preprocessors),
        ):
            return stock(step, notebook)

    return convert


def shown(stock: Any) -> Any:
    """GenerateFeedback's step: a lesson's page has no script in it, whatever exporter is set."""

    @wraps(stock)
    def convert(step: GenerateFeedback, notebook: str) -> None:
        if not _is_ours(step.coursedir, _assignment(step, notebook)):
            return stock(step, notebook)
        from grader.safe_pages.exporters import FeedbackExporter, SafeHTMLExporter

        if isinstance(step.exporter, SafeHTMLExporter):
            return stock(step, notebook)
        exporter = FeedbackExporter(parent=step, config=step.config)
        for preprocessor in step.preprocessors:
            exporter.register_preprocessor(preprocessor)
        with _instead(step, exporter=exporter):
            return stock(step, notebook)

    return convert


def _assignment(step: Any, notebook: str) -> str:
    return step.init_single_notebook_resources(notebook)["nbgrader"]["assignment"]


def _is_ours(course: CourseDirectory, assignment: str) -> bool:
    return whose.is_ours(Path(course.root), assignment)


@contextmanager
def _instead(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


# ---- who may read what is written --------------------------------------------------------------


def privately(stock: Any, folder: str) -> Any:
    """A step that writes what students wrote or earned."""

    @wraps(stock)
    def start(step: Any) -> Any:
        course = step.coursedir
        if not whose.holds_course(Path(course.root), [course.assignment_id]):
            return stock(step)
        with private.kept(course, step.log.warning, folder):
            return stock(step)

    return start


def with_private_file(stock: Any) -> Any:
    """Gradebook's constructor: a new gradebook of this course is private before it is filled."""

    @wraps(stock)
    def make(gradebook: Any, db_url: str, *args: Any, **kwargs: Any) -> None:
        path = private.gradebook_path(db_url)
        if path is not None and not path.exists() and whose.holds_course(path.parent):
            private.touch(path)
        stock(gradebook, db_url, *args, **kwargs)

    return make


def newest_schema() -> str:
    """The version that a new gradebook is stamped with, as nbgrader's own function has it.

    That one asks the program `alembic`, which has to be on PATH and takes a second to start.
    """
    from alembic.config import Config as AlembicConfig
    from alembic.script import ScriptDirectory
    from nbgrader.dbutil import ALEMBIC_DIR

    settings = AlembicConfig()
    settings.set_main_option("script_location", ALEMBIC_DIR)
    return str(ScriptDirectory.from_config(settings).get_current_head())


def released(stock: Any) -> Any:
    """ReleaseFeedback's copying: each page can be read by whoever knows its name, as in nbgrader.

    A submission that did not come through the exchange has no secret to name its page by: it is
    left out, and said so.
    """

    @wraps(stock)
    def copy_files(step: ExchangeReleaseFeedback) -> None:
        course = step.coursedir
        if not _is_ours(course, course.assignment_id):
            return stock(step)
        students = _without_secret(step)
        if students:
            step.log.warning(
                "no feedback released, because they were not handed in through the exchange: %s",
                ", ".join(students),
            )
        excluded = ",".join(filter(None, (course.student_id_exclude, *students)))
        with _instead(course, student_id_exclude=excluded):
            stock(step)
        for page in Path(step.dest_path).glob("*.html"):
            if page.stat().st_mode & 0o444 != 0o444:
                page.chmod(0o644)

    return copy_files


def _without_secret(step: ExchangeReleaseFeedback) -> list[str]:
    course = step.coursedir
    found = glob(course.format_path(course.feedback_directory, "*", course.assignment_id))
    folders = [Path(folder) for folder in sorted(found)]
    return [f.parent.name for f in folders if not all((f / name).is_file() for name in NEEDED)]


install()
