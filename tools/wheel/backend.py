"""How inferlab is packed. pip calls it; setuptools does the work, and two things come on top.

A wheel carries what a learner and an instructor need besides code: data/, notebooks/, and for
grading solutions/ and the lessons' scripts, all of it below inferlab/course (inferlab.data.ROOT).
With INFERLAB_STUDENT=1 (`make wheel STUDENT=1`) it is the edition for students: nothing for
grading, no hidden named case, no worked answers, and `+student` behind the version.

An editable install (`pip install -e .`) puts the repository's two folders on Python's path.
setuptools' own way, a finder that is asked last, loses against any folder called `inferlab` beside
a notebook, and `git clone` makes just such a folder.
"""

import atexit
import base64
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  the hooks that are setuptools' own
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from student_edition import without_hidden_cases

Files = dict[str, bytes]  # a wheel's files by name

REPOSITORY = Path(__file__).resolve().parents[2]
COURSE = "inferlab/course"
FOR_ALL, FOR_GRADING = ("data", "notebooks"), ("solutions", "src/lessons")
MARK = "The edition for students: see tools/wheel in inferlab's repository.\n"
FOR_STUDENTS = os.environ.get("INFERLAB_STUDENT", "") not in ("", "0")

# setuptools reads this file as it reads a setup.cfg. A build/ of the repository would keep files
# that are no longer there, and bring them into the next wheel.
_SCRATCH = Path(tempfile.mkdtemp(prefix="inferlab-wheel-"))
atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)
(_SCRATCH / "setup.cfg").write_text(
    f"[build]\nbuild_base = {_SCRATCH}\n[egg_info]\ntag_build = {'+student' * FOR_STUDENTS}\n"
)
os.environ["DIST_EXTRA_CONFIG"] = str(_SCRATCH / "setup.cfg")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel with the course in it."""
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    rewrite(Path(wheel_directory, name), with_course)
    return name


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel that leads to this repository."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    rewrite(Path(wheel_directory, name), on_the_path)
    return name


def with_course(files: Files) -> Files:
    """Beside the code what it needs, in this edition."""
    files = files | carried(FOR_ALL)
    if not FOR_STUDENTS:
        return files | carried(FOR_GRADING)
    return without_hidden_cases(files) | {f"{COURSE}/for-students": MARK.encode()}


def carried(folders: tuple[str, ...]) -> Files:
    """The files of these folders of the repository, as they lie in a wheel."""
    found: Files = {}
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            inside = path.relative_to(REPOSITORY)
            if path.is_file() and not any(p.startswith((".", "__pycache__")) for p in inside.parts):
                found[f"{COURSE}/{inside.as_posix()}"] = path.read_bytes()
    return found


def on_the_path(files: Files) -> Files:
    """Two folders on Python's path, in place of setuptools' finder."""
    kept = {name: data for name, data in files.items() if not name.startswith("__editable__")}
    lines = f"{REPOSITORY / 'src'}\n{REPOSITORY}\n"
    return kept | {"inferlab.pth": lines.encode()}


def rewrite(wheel: Path, change: Callable[[Files], Files]) -> None:
    """Change a wheel's files, and its record of them; two builds give the same bytes."""
    with zipfile.ZipFile(wheel) as archive:
        before = {info.filename: archive.read(info) for info in archive.infolist()}
    (record,) = (name for name in before if name.endswith(".dist-info/RECORD"))
    files = change({name: data for name, data in before.items() if name != record})
    rows = [f"{_quoted(name)},{_digest(data)},{len(data)}" for name, data in files.items()]
    files[record] = "".join(f"{row}\n" for row in [*rows, f"{record},,"]).encode()
    part = wheel.with_name(f"{wheel.name}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    part.replace(wheel)


def _quoted(name: str) -> str:
    """As a field of a CSV file."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
