"""The steps of nbgrader's pipelines that this course adds or replaces, and the lists of them.

`settings` and `guard` put them in their places. Everything else (gradebook, formgrader, late
penalties, feedback, export) stays nbgrader's own.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbconvert.exporters.exporter import ResourcesDict
from nbconvert.preprocessors import ExecutePreprocessor
from nbformat import NotebookNode, from_dict
from nbgrader import preprocessors as stock
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from traitlets import Enum, Integer, Unicode
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from grader.classroom.form import well_formed
from grader.judging import hidden
from grader.judging.isolated.notebook import Times
from grader.judging.isolated.step import judge_notebook
from grader.learner.lab import course_root, read_notebook, released_path
from grader.notebooks.repair import repair

ANSWER_PREFIX = "answer_"  # grade ids of knowledge-check answers begin so
STUB = 'raise NotImplementedError("write this")'


class ClearSolutions(stock.ClearSolutions):
    """nbgrader's own step, with another stub for the answers of the knowledge check.

    An unwritten function should say so when it is called; an unanswered question must not stop
    "Run All Cells", so its stub is a value: `...`.
    """

    code_stub: Any  # nbgrader's own trait, a stub for each language

    answer_stub = Unicode("...", help="What replaces the answer of a knowledge check").tag(
        config=True
    )

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Put the stub that suits this cell in place of its solution."""
        if not cell.metadata.get("nbgrader", {}).get("grade_id", "").startswith(ANSWER_PREFIX):
            return super().preprocess_cell(cell, resources, cell_index)
        usual = self.code_stub
        self.code_stub = {resources["language"]: self.answer_stub}
        try:
            return super().preprocess_cell(cell, resources, cell_index)
        finally:
            self.code_stub = usual


def course_of(step: stock.NbGraderPreprocessor) -> CourseDirectory | None:
    """The course that the converter of this step works in; None for a step by itself."""
    owner = step.parent
    while owner is not None and not hasattr(owner, "coursedir"):
        owner = owner.parent
    return None if owner is None else owner.coursedir


class Repair(stock.NbGraderPreprocessor):
    """Before nbgrader looks at a submission: what costs points without being wrong is mended.

    A copied, split, deleted, retyped or retagged cell is as released again, and the learner's text
    stays. What was done is logged and noted in the notebook's metadata, under inferlab.repairs.
    """

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict
    ) -> tuple[NotebookNode, ResourcesDict]:
        """The notebook as grading needs it."""
        facts = resources["nbgrader"]
        release = self._released(str(facts["assignment"]), str(facts["notebook"]))
        book, problems = well_formed(nb)
        if release.is_file():
            book, found = repair(book, read_notebook(release))
            problems += found
        else:
            self.log.warning("not repaired, because %s is not there", release)
        for problem in problems:
            self.log.warning("%s: %s; %s", facts["student"], problem.what, problem.cure)
        book["metadata"]["inferlab"] = {"repairs": [problem.what for problem in problems]}
        return from_dict(book), resources

    def _released(self, assignment: str, notebook: str) -> Path:
        """Where this course keeps the released notebook."""
        course = course_of(self)
        if course is None:
            return released_path(course_root(), assignment)
        folder = course.format_path(course.release_directory, ".", assignment)
        return Path(folder) / f"{notebook}.ipynb"


class OwnPython(AsyncKernelManager):
    """Starts the Python that runs nbgrader, whatever kernels this user has registered."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """A kernel of `sys.executable`."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class Judge(stock.Execute):
    """Run and judge a submission: the one step of autograding that executes anything.

    With isolation "full" or "limits" the student's code runs in a process of its own and the checks
    are judged here (grader.judging.isolated); the judge writes the outputs of check cells: an error
    earns 0, no error the cell's points, which is nbgrader's own rule.

    With "none" the notebook runs in a fresh kernel, checks and all: this Python, this environment's
    programs first on PATH, no startup files of the instructor, `timeout` seconds a cell. Student
    code can then reach everything that the instructor can; every check says so.
    """

    timeout = Integer(30, allow_none=True, help="Seconds that one cell may run").tag(config=True)
    check_timeout = Integer(60, help="Seconds that one check may run").tag(config=True)
    isolation = Enum(
        ("full", "limits", "none"),
        default_value=os.environ.get("INFERLAB_ISOLATION", "full"),
        help="How far student code is kept in",
    ).tag(config=True)
    hidden_seed = Integer(None, allow_none=True, help="What draws the hidden cases").tag(
        config=True
    )
    extra_cases = Unicode("", help="A Python file with more hidden cases; from the course's folder")
    extra_cases.tag(config=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("kernel_manager_class", OwnPython)
        super().__init__(*args, **kwargs)
        self._environment: dict[str, str] = {}

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict, km: Any = None
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Run every code cell of `nb` and judge its checks; errors are recorded in its outputs."""
        if self.isolation != "none":
            lesson = str(resources["nbgrader"]["assignment"])
            times = Times(cell_s=self.timeout or self.check_timeout, check_s=self.check_timeout)
            graded = judge_notebook(nb, lesson, self.isolation, times=times, hidden=self._hidden())
            self._note(nb, reasons=graded.reasons())
            return nb, resources
        self._note(nb)
        with TemporaryDirectory(prefix="inferlab-grading-") as ipython_dir:
            self._environment = (
                grading_environment(Path(ipython_dir)) | self._hidden().environment()
            )
            return super().preprocess(nb, resources, km)

    def _hidden(self) -> hidden.Hidden:
        course = course_of(self)
        return hidden.chosen(
            self.hidden_seed, self.extra_cases, Path(course.root if course else "")
        )

    def _note(self, nb: NotebookNode, **facts: Any) -> None:
        """Record how the notebook was judged, beside what was repaired before."""
        before = nb.metadata.get("inferlab")
        repairs = before.get("repairs", []) if isinstance(before, dict) else []
        nb.metadata["inferlab"] = {"isolation": self.isolation, "repairs": repairs, **facts}

    def start_new_kernel(self, **kwargs: Any) -> None:
        """Start the kernel in the environment of grading."""
        super().start_new_kernel(**{"env": self._environment, **kwargs})


def grading_environment(ipython_dir: Path) -> dict[str, str]:
    """The variables of a grading kernel; checks see NBGRADER_EXECUTION and raise when they fail."""
    bin_dir = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_dir, os.environ.get("PATH", os.defpath)])
    mode = os.environ.get("NBGRADER_EXECUTION", "autograde")
    return dict(os.environ, PATH=path, IPYTHONDIR=str(ipython_dir), NBGRADER_EXECUTION=mode)


def release_steps() -> list[type]:
    """nbgrader's steps from solution to release, with our ClearSolutions."""
    steps = GenerateAssignment.preprocessors.default()
    return [ClearSolutions if step is stock.ClearSolutions else step for step in steps]


def sanitize_steps() -> list[type]:
    """nbgrader's steps that make a submission fit to be graded, after our Repair."""
    return with_repair(Autograde.sanitize_preprocessors.default())


def grading_steps() -> list[type]:
    """nbgrader's steps that execute and score a submission, with our Judge."""
    return with_judge(Autograde.autograde_preprocessors.default())


def with_repair(steps: Iterable[Any]) -> list[type]:
    """These steps, Repair before them if it is not among them."""
    classes = [_class(step) for step in steps]
    return classes if any(issubclass(c, Repair) for c in classes) else [Repair, *classes]


def with_judge(steps: Iterable[Any]) -> list[type]:
    """These steps, with Judge in the place of every other that executes a notebook."""
    classes = [_class(step) for step in steps]
    return [
        Judge if issubclass(c, ExecutePreprocessor) and not issubclass(c, Judge) else c
        for c in classes
    ]


def _class(step: Any) -> type:
    """A step as settings name it: a class, or where it is to be imported from."""
    return import_item(step) if isinstance(step, str) else step


def set_grading(c: Config) -> None:
    """Enter in `c` what these steps and nbgrader's need to be set to while they grade."""
    c.Judge.timeout = 30  # seconds a cell
    # A deleted check cell comes back, and is scored like any other.
    c.OverwriteCells.add_missing_cells = True
    # A warning printed to stderr costs nothing: only an error does.
    c.IgnorePattern.enabled = True
    c.IgnorePattern.pattern = r"[\s\S]*"
    # The stock tag "skip-execution" would let a student skip a failing check and keep its points.
    c.Execute.skip_cells_with_tag = "nbgrader-never-skip"


def with_grading(config: Config) -> Config:
    """These settings, and of `set_grading` what is not among them."""
    found = Config()
    set_grading(found)
    found.merge(config)
    return found
