"""The learner's copy of the course: made in work/, kept up to date, never overwritten.

work/04_kv_cache/04_kv_cache.ipynb       what the learner writes in
work/04_kv_cache/04_kv_cache.new.ipynb   a new release that could not be merged in whole
work/.inferlab/base/04_kv_cache.ipynb    the release that the learner's copy was made from
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import nbformat
from filelock import FileLock

from grader.classroom.reading import NotANotebook, read_bytes
from grader.notebooks.merge import Merge, merge
from grader.notebooks.problem import Problem
from inferlab.data import IS_INSTALLED, ROOT
from labkit import store
from labkit.files import dated, write_whole
from labkit.measure.device import n_cores

Say = Callable[[str], None]
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
JUPYTER_SETTINGS = Path(__file__).parent / "jupyter"


class UnknownLesson(ValueError):
    """A lesson was named that is not released; the message lists those that are."""


class DamagedNotebook(ValueError):
    """A file that should be a notebook is not one."""


# ---- where things are --------------------------------------------------------------------------


def course_root() -> Path:
    """The folder of the course: the one that holds notebooks/ and this package."""
    for folder in (ROOT, Path.cwd()):
        if (folder / "notebooks").is_dir():
            return folder
    raise ValueError(
        f"no notebooks/ folder found in {ROOT}: install inferlab from a wheel, or in its whole "
        "repository"
    )


def usual_work(root: Path) -> Path:
    """Where the learner's copy lies if nobody names a place: work/ in the course.

    A course from a wheel, and one that this user may not write in, is shared: there it is work/ in
    the current folder.
    """
    own = root / "work"
    may_write = os.access(own if own.exists() else root, os.W_OK)
    return own if may_write and not (IS_INSTALLED and root == ROOT) else Path.cwd() / "work"


def released_lessons(root: Path) -> tuple[str, ...]:
    """Names of the lessons in notebooks/, in order: ("04_kv_cache", ...)."""
    found = (root / "notebooks").glob("*/*.ipynb")
    return tuple(sorted(path.stem for path in found if path.stem == path.parent.name))


def find_lesson(said: str, lessons: Sequence[str]) -> str:
    """The lesson that a person means by "04", "4", "kv_cache" or "04_kv_cache".

    Raises UnknownLesson, with the list of lessons, for anything else.
    """
    word = said.strip().lower().replace("-", "_")
    for lesson in lessons:
        number, _, concept = lesson.partition("_")
        names = {lesson, number, number.lstrip("0"), concept, f"{lesson}.ipynb"}
        if word in names:
            return lesson
    known = ", ".join(lessons) or "none yet"
    raise UnknownLesson(f'no lesson "{said}"; released lessons: {known}')


def released_path(root: Path, lesson: str) -> Path:
    """The released notebook of a lesson."""
    return root / "notebooks" / lesson / f"{lesson}.ipynb"


def working_path(work: Path, lesson: str) -> Path:
    """The learner's notebook of a lesson."""
    return work / lesson / f"{lesson}.ipynb"


# ---- files that people care about --------------------------------------------------------------


def keep_copy(path: Path, now: datetime | None = None) -> Path:
    """Copy a file beside itself under today's date and time; return the copy's path."""
    copy = dated(path, now=now)
    part = copy.with_name(f".{copy.name}.part")
    part.write_bytes(path.read_bytes())
    os.replace(part, copy)
    return copy


def read_notebook(path: Path) -> dict[str, Any]:
    """A notebook in format 4.5, every cell with an id.

    Raises DamagedNotebook if the file is not a notebook, FileNotFoundError if there is none.
    """
    return read(path)[0]


def read(path: Path) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """As read_notebook, and what had to be mended to read it."""
    try:
        return read_bytes(path.read_bytes())
    except NotANotebook as trouble:
        earlier = path.parent / ".ipynb_checkpoints" / f"{path.stem}-checkpoint.ipynb"
        hint = f". JupyterLab kept an earlier state: {earlier}" if earlier.is_file() else ""
        raise DamagedNotebook(f"{path} is not a readable notebook: {trouble}{hint}") from trouble


def notebook_text(notebook: dict[str, Any]) -> str:
    """The file text of a notebook."""
    return nbformat.writes(nbformat.from_dict(notebook)).rstrip("\n") + "\n"


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    """Two terminals may start the lab at once; one copies, the other waits."""
    own = work / ".inferlab"
    try:
        own.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=own):
            pass
    except OSError as trouble:
        raise ValueError(
            f"your copy of the lessons cannot be kept in {work}: {trouble.strerror or trouble}. Go "
            "to a folder of your own, or name one with --work DIR"
        ) from None
    with FileLock(own / "lock", timeout=30):
        yield


# ---- copying and merging -----------------------------------------------------------------------


def sync(root: Path, work: Path, say: Say = print) -> None:
    """Bring every released lesson into work/: copied the first time, merged later.

    Says in one line each what was done. Never loses what the learner wrote.
    """
    with _alone(work):
        for lesson in released_lessons(root):
            sync_lesson(root, work, lesson, say)


def sync_lesson(root: Path, work: Path, lesson: str, say: Say = print) -> None:
    """Bring one released lesson into work/."""
    release, mine = released_path(root, lesson), working_path(work, lesson)
    base = work / ".inferlab" / "base" / f"{lesson}.ipynb"
    _copy_data(release.parent, mine.parent)
    new_text = release.read_text(encoding="utf-8")
    if not mine.exists():
        write_whole(mine, new_text)
        write_whole(base, new_text)
        say(f"{lesson}: copied to {mine}")
        return
    if base.exists() and base.read_text(encoding="utf-8") == new_text:
        return
    try:
        merged, mended = _merged(base, mine, release)
    except DamagedNotebook as trouble:
        beside = _put_beside(mine, new_text)
        say(f"{lesson}: {trouble}. It is left as it is; the released lesson lies at {beside}")
        return
    if mended:
        found = "; ".join(problem.what for problem in mended)
        say(f"{lesson}: {found}. As it was: {keep_copy(mine)}")
    _store(merged, mine, new_text, lesson, say)
    write_whole(base, new_text)


def start_afresh(root: Path, work: Path, lesson: str) -> Path | None:
    """Put the released lesson in place of the learner's; return their dated copy, if any."""
    with _alone(work):
        mine = working_path(work, lesson)
        kept = keep_copy(mine) if mine.exists() else None
        mine.unlink(missing_ok=True)
        sync_lesson(root, work, lesson, say=lambda line: None)
        return kept


def _merged(base: Path, mine: Path, release: Path) -> tuple[Merge, tuple[Problem, ...]]:
    """The merge, and what had to be mended to read the learner's notebook."""
    (own, mended), new = read(mine), read_notebook(release)
    try:
        old = read_notebook(base)
    except (DamagedNotebook, FileNotFoundError):
        old = {"cells": []}  # nothing is known to be untouched, so all of theirs wins
    return merge(old, own, new), mended


def _store(merged: Merge, mine: Path, new_text: str, lesson: str, say: Say) -> None:
    text = notebook_text(merged.notebook)
    if merged.outputs_lost:
        kept = keep_copy(mine)
        say(f"{lesson}: outputs of changed cells are cleared; with them, your copy is {kept}")
    if text.encode() != mine.read_bytes():
        write_whole(mine, text)
        say(f"{lesson}: updated to the new release; everything you wrote is kept")
    if merged.restored:
        say(f"{lesson}: put back, because grading needs them: {', '.join(merged.restored)}")
    if merged.conflicts:
        beside = _put_beside(mine, new_text)
        cells = ", ".join(merged.conflicts)
        say(f"{lesson}: you and the new release both changed {cells}. Yours is kept;")
        say(f"{lesson}: the new version lies beside it at {beside}")


def _put_beside(mine: Path, text: str) -> Path:
    beside = mine.with_name(f"{mine.stem}.new.ipynb")
    if beside.exists() and beside.read_text(encoding="utf-8", errors="replace") != text:
        keep_copy(beside)
    write_whole(beside, text)
    return beside


def _copy_data(release: Path, target: Path) -> None:
    """Files that a lesson needs besides its notebook: copied where missing, never overwritten."""
    for source in sorted(release.rglob("*")):
        relative = source.relative_to(release)
        if source.suffix == ".ipynb" or ".ipynb_checkpoints" in relative.parts:
            continue
        if source.is_file() and not (target / relative).exists():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            part = target / relative.with_name(f".{relative.name}.part")
            part.write_bytes(source.read_bytes())
            os.replace(part, target / relative)


# ---- JupyterLab --------------------------------------------------------------------------------


def jupyter_environment(environ: dict[str, str]) -> dict[str, str]:
    """The variables to start JupyterLab with: our defaults first, the user's own settings kept.

    The shipped folder only sets defaults (no news pop-up, theme by the system); what a user has
    chosen in JupyterLab's settings still wins, and so does a number of threads that is set.
    """
    theirs = environ.get("JUPYTER_CONFIG_PATH", "")
    folders = [str(JUPYTER_SETTINGS), *([theirs] if theirs else [])]
    bin_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_folder, environ.get("PATH", "")])
    ours = {"JUPYTER_CONFIG_PATH": os.pathsep.join(folders), "PATH": path}
    return {**dict.fromkeys(THREADS, str(measuring_threads())), **environ, **ours}


def measuring_threads() -> int:
    """Threads for matrix products in a notebook: one a physical core, a core left to the browser.

    The threads of one product wait for the slowest. Where another program holds its core, as the
    browser and the server do on a small machine, two threads can be far slower than one, and what
    is measured then is the waiting.
    """
    import psutil

    cores = min(psutil.cpu_count(logical=False) or 1, n_cores())
    return max(1, cores - 1)


def jupyter_command(
    work: Path,
    lesson: str,
    browser: bool = True,
    port: int | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """The command line of JupyterLab, opening a lesson in work/ (absolute path)."""
    tree = f"lab/tree/{lesson}/{lesson}.ipynb"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={work}"]
    command += [f"--LabApp.default_url=/{tree}", "--ServerApp.ip=127.0.0.1"]
    command += [] if port is None else [f"--ServerApp.port={port}"]
    command += [] if browser else ["--no-browser"]
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [*command, *extra]


def start(
    root: Path,
    work: Path,
    lesson: str | None,
    browser: bool = True,
    port: int | None = None,
    extra: Sequence[str] = (),
) -> NoReturn:
    """Bring work/ up to date and become JupyterLab.

    Raises UnknownLesson, or ValueError if no lesson is released or work/ cannot be written.
    """
    lessons = released_lessons(root)
    if not lessons:
        raise ValueError(f"no released lesson in {root / 'notebooks'}; make them: make build")
    chosen, why = (find_lesson(lesson, lessons), "") if lesson else _where_left_off(lessons)
    work = work.absolute()
    sync(root, work)
    command = jupyter_command(work, chosen, browser, port, extra)
    print(
        f"opening {chosen} in JupyterLab{why}; your copies of the lessons are in {work}; end it "
        "with Ctrl-C. In a narrow window, Ctrl+B (on a Mac Cmd+B) gives the lesson the room of the "
        "list of files.",
        flush=True,
    )
    os.chdir(work)  # so that no configuration of the course root is read
    os.execvpe(command[0], command, jupyter_environment(dict(os.environ)))


def _where_left_off(lessons: Sequence[str]) -> tuple[str, str]:
    """The lesson to open when none is named, and in words why: the first, before anything is done.

    lessons: those released, at least one.
    """
    if not store.all_progress():
        return lessons[0], ""  # the first start waits for nothing else
    from grader.learner.standing import left_off

    line = left_off()
    if line is None or line.lesson not in lessons:
        return lessons[0], ""
    return line.lesson, f", where you left off (next: {line.name})"
