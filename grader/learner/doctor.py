"""`inferlab doctor`: what this computer has, what is missing, what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from grader.own_code import FOLDERS, PACKAGES, search_path

GB = 1_000_000_000
SHOWN = ("torch", "numpy", "jupyterlab", "nbgrader")
MEMORY_NEEDED_BYTES = 2 * GB  # the model in float32 (0.54 GB), PyTorch, JupyterLab and a browser
DISK_NEEDED_BYTES = GB // 2  # the model's file (0.1 GB) while it is unpacked, and some room


@dataclass(frozen=True)
class Finding:
    """One line of the report. todo: what to do, "" where all is well."""

    name: str
    value: str
    todo: str = ""


def main() -> int:
    """Print the report; 0 if ready, 1 if there is something to do."""
    findings = examine()
    print(report(findings))
    return 1 if any(finding.todo for finding in findings) else 0


def report(findings: list[Finding]) -> str:
    """The findings as a table, then "ready" or numbered things to do."""
    width = max(len(finding.name) for finding in findings)
    lines = [f"{finding.name:<{width}}  {finding.value}" for finding in findings]
    todo = [finding.todo for finding in findings if finding.todo]
    lines += ["", "to do:" if todo else "ready"]
    return "\n".join([*lines, *(f"{number}. {text}" for number, text in enumerate(todo, 1))])


def examine() -> list[Finding]:
    """Look at everything. A look that itself fails is a finding, never a crash."""
    looks: tuple[Callable[[], Iterable[Finding]], ...] = (
        _python,
        _packages,
        _course,
        _names,
        _kernel,
        _computer,
        _device,
        _disk,
        _model,
        _compiler,
        _data_folder,
        _isolation,
    )
    findings: list[Finding] = []
    for look in looks:
        try:
            findings += look()
        except Exception as trouble:  # whatever is broken here is what we are asked to report
            what = look.__name__.strip("_").replace("_", " ")
            said = f"{type(trouble).__name__}: {trouble}"
            findings.append(Finding(what, f"could not be examined: {said}", f"{what}: {said}"))
    return findings


def _python() -> Iterable[Finding]:
    version = platform.python_version()
    old = "install Python 3.11 or newer, delete .venv, run: make lab"
    todo = old if sys.version_info < (3, 11) else ""
    yield Finding("python", f"{version}  {sys.executable}", todo)
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")


def _packages() -> Iterable[Finding]:
    """Each package the project asks for: there, and in a version it admits."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    wrong = []
    for requirement in map(Requirement, requires("inferlab") or []):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = "missing"
        fits = found != "missing" and requirement.specifier.contains(found, prereleases=True)
        if not fits:
            wrong.append(f"{requirement} (here: {found})")
        if requirement.name in SHOWN or not fits:
            yield Finding(requirement.name, found)
    todo = f"install what is missing or too old: {'; '.join(wrong)}. Run: make env" if wrong else ""
    yield Finding("packages", "not as needed" if wrong else "all as needed", todo)


def _course() -> Iterable[Finding]:
    """Which course this is, and where the learner's copies are."""
    from importlib.metadata import version

    from grader.learner.lab import usual_work
    from inferlab.data import IS_FOR_STUDENTS, ROOT

    edition = ", the edition for students" if IS_FOR_STUDENTS else ""
    yield Finding("course", f"{ROOT} (inferlab {version('inferlab')}{edition})")
    yield Finding("your copies", str(usual_work(ROOT)))


def _names() -> Iterable[Finding]:
    """What hides a package of the course from a notebook in this folder, or in work/."""
    from grader.learner.lab import usual_work
    from inferlab.data import ROOT

    folders = [Path.cwd(), *sorted(path.parent for path in usual_work(ROOT).glob("*/*.ipynb"))]
    for path, package in hidden_packages(folders):
        todo = f"rename or move {path}: a notebook beside it imports it in place of the course's "
        yield Finding("names", f"{path} hides the package {package}", f"{todo}{package}")


def hidden_packages(folders: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """What Python finds first, from one of these folders, under the name of a package of ours."""
    for folder in dict.fromkeys(folders):
        for package, ours in zip(PACKAGES, FOLDERS, strict=True):
            spec = PathFinder.find_spec(package, [str(folder), *search_path()])
            where = spec and (
                spec.origin or next(iter(spec.submodule_search_locations or ()), None)
            )
            path = Path(where).resolve() if where else ours
            if not path.is_relative_to(ours):
                yield path, package


def _kernel() -> Iterable[Finding]:
    """JupyterLab starts notebooks with the kernel "python3": it must be of this environment."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        argv = KernelSpecManager().get_kernel_spec("python3").argv
    except NoSuchKernel:
        todo = f"run: '{sys.executable}' -m ipykernel install --sys-prefix"
        yield Finding("kernel", "missing", todo)
        return
    own = not os.path.isabs(argv[0]) or Path(argv[0]).parent == Path(sys.executable).parent
    other = f"notebooks would run in another Python, {argv[0]}; start with: inferlab lab"
    yield Finding("kernel", argv[0], "" if own else other)


def _computer() -> Iterable[Finding]:
    import psutil

    from labkit.measure.device import cpu_name, n_cores

    memory = psutil.virtual_memory()
    yield Finding("processor", f"{cpu_name()}, {n_cores()} cores")
    short = (
        f"free some memory: {memory.available / GB:.1f} GB are free, the lesson needs about "
        f"{MEMORY_NEEDED_BYTES / GB:.0f} GB"
    )
    text = f"{memory.total / GB:.1f} GB, {memory.available / GB:.1f} GB free"
    yield Finding("memory", text, short if memory.available < MEMORY_NEEDED_BYTES else "")


def _device() -> Iterable[Finding]:
    import torch

    from labkit.measure.device import name, pick

    device = pick(torch)
    yield Finding("device", f"{device}: {name(device, torch)}")


def _disk() -> Iterable[Finding]:
    from inferlab.checkpoints.fetch import cache_folder

    folder = _nearest(cache_folder().expanduser())
    free = shutil.disk_usage(folder).free
    short = f"free some disk space at {folder}: {free / GB:.1f} GB are left"
    yield Finding("disk", f"{free / GB:.1f} GB free", short if free < DISK_NEEDED_BYTES else "")


def _model() -> Iterable[Finding]:
    from inferlab.checkpoints.fetch import NotFetched, fetched_path
    from inferlab.sizes import InvalidModelFile

    try:
        yield Finding("model", f"smollm2 at {fetched_path('smollm2')}")
    except NotFetched:
        todo = "fetch the model that the lessons measure (98 MB): inferlab fetch smollm2"
        yield Finding("model", "smollm2 not fetched", todo)
    except InvalidModelFile as trouble:
        yield Finding("model", "smollm2 is damaged", str(trouble))


def _compiler() -> Iterable[Finding]:
    found = next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), None)
    todo = "install a C compiler (Debian, Ubuntu: sudo apt install build-essential; macOS: "
    todo += "xcode-select --install)"
    yield Finding("compiler", found or "none", "" if found else todo)


def _data_folder() -> Iterable[Finding]:
    """Where progress and predictions are kept."""
    from labkit import store

    folder = store.home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as trouble:
        todo = f"progress cannot be kept in {folder} ({trouble.strerror or trouble}); make it "
        todo += "writable, or name another folder in the variable INFERLAB_HOME"
        yield Finding("data folder", f"{folder} (not writable)", todo)
    else:
        yield Finding("data folder", str(folder))


def _isolation() -> Iterable[Finding]:
    """How far this computer can keep in the code of students that it grades."""
    from sandbox import walls

    level, why = walls.level()
    words = {
        "full": "full (own namespaces, no network, limits)",
        "limits": f"limits only ({why})",
        "none": f"none ({why})",
    }
    yield Finding("isolation", words[level])  # only who grades needs it: nothing to do


def _nearest(folder: Path) -> Path:
    """The folder, or its closest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())
