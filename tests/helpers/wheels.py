"""Wheels of this repository, each in an environment of its own, outside of the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from places import ROOT

PACKED = ("src", "grader", "data", "notebooks", "solutions", "tools/wheel")
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "LICENSE-TEXT")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")


def source_tree(folder: Path) -> Path:
    """A copy of what the wheel is made of, to be changed before it is built."""
    for name in PACKED:
        shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
    for name in BESIDE:
        shutil.copy(ROOT / name, folder)
    return folder


def build(source: Path, into: Path, student: bool = False, hook: str = "build_wheel") -> Path:
    """What pip does to build it, with the setuptools that is here and without a network."""
    script = f"import sys; sys.path.insert(0, 'tools/wheel'); import backend; print(backend.{hook}"
    into.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", f"{script}({str(into)!r}))"],
        cwd=source,
        env={**os.environ, "INFERLAB_STUDENT": str(int(student))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return into / done.stdout.splitlines()[-1]


@dataclass(frozen=True)
class Installed:
    """An environment with one wheel, and a folder with a space in its name to work in."""

    prefix: Path
    desk: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    @property
    def packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.prefix)}))

    def environment(self) -> dict[str, str]:
        """No variable of this session that leads back to the repository, or to this user."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("INFERLAB", "PYTHON"))}
        own = {"INFERLAB_HOME": str(self.prefix / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
        jupyter = {
            f"JUPYTER_{name}_DIR": str(self.prefix / name) for name in ("CONFIG", "DATA", "RUNTIME")
        }
        return {**kept, **own, **jupyter}

    def command(self, *words: str) -> list[str]:
        return [str(self.prefix / "bin" / "inferlab"), *words]

    def run(self, *words: str, status: int = 0, cwd: Path | None = None, **variables: str) -> str:
        """Run `inferlab …` on the desk; what it printed, errors too."""
        done = subprocess.run(
            self.command(*words),
            cwd=cwd or self.desk,
            env={**self.environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stdout[-4000:]
        return done.stdout

    def code(self, source: str) -> str:
        """What this Python program prints, run on the desk."""
        return subprocess.check_output(
            [self.python, "-c", source], cwd=self.desk, env=self.environment(), text=True
        ).strip()


def install(wheel: Path, folder: Path) -> Installed:
    """A fresh environment with this wheel. All else is this environment's, by one line of path.

    Its own .pth files are not read there, so an editable install of this repository is not seen.
    """
    prefix = folder / "environment"
    venv.create(prefix, symlinks=True)
    made = Installed(prefix, folder / "a desk")
    made.desk.mkdir()
    (made.packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("share", "etc"):  # JupyterLab's files, the kernel, nbgrader's extensions
        if (Path(sys.prefix) / name).is_dir():
            (prefix / name).symlink_to(Path(sys.prefix) / name)
    pip = [sys.executable, "-m", "pip", "--python", made.python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True)
    return made
