"""How many submissions a second: `inferlab grade` beside stock `nbgrader autograde`.

    python -m benchmarks.grading [--rounds N] [--quick]     (make bench-grade)

The same short lesson (a few cheap exercises of lesson 01, without its figures) and the same
students for both, in turn, round after round. Ours is timed from the command to the CSV, with a new
gradebook each time; stock nbgrader only grades, one process, as it does. A second kind of lesson
uses PyTorch. One local dask cluster of two workers is measured as well.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat.v4 import new_code_cell
from tqdm import tqdm

from benchmarks.machine import describe
from grader.judging.isolated.notebook import is_check
from grader.notebooks.paste import BEGIN, END
from inferlab.data import ROOT
from labkit.files import write_whole
from labkit.measure.device import n_cores

LESSON = "01_roofline"
N_EXERCISES = 3
KINDS = {"numpy": "import numpy as np", "torch": "import torch\n\ntorch.ones(3).sum()"}
RESULTS = Path(__file__).parent / "results" / "grading"
# A hook of its own, which does nothing, in place of the one by which the installed course judges
# its lessons whatever settings nbgrader reads.
STOCK = (
    'c = get_config()\nc.CourseDirectory.course_id = "stock"\nc.Autograde.pre_convert_hook = dict\n'
    + "".join(
        f'c.CourseDirectory.{name}_directory = "{folder}"\n'
        for name, folder in {"source": "solutions", "release": "notebooks"}.items()
    )
)


# ---- a class -----------------------------------------------------------------------------------


def make_course(root: Path, kind: str, n_students: int, stock: bool) -> Path:
    """A course with one short lesson, and students who have all solved it."""
    shutil.rmtree(root, ignore_errors=True)
    source = _short(_read("solutions"), kind)
    for folder, notebook in (
        ("solutions", source),
        ("notebooks", _short(_read("notebooks"), kind)),
    ):
        _write(root / folder / LESSON, notebook)
    settings = STOCK if stock else (ROOT / "nbgrader_config.py").read_text(encoding="utf-8")
    (root / "nbgrader_config.py").write_text(settings, encoding="utf-8")
    for number in range(n_students):
        notebook = _solved(_read_again(root / "notebooks" / LESSON), source)
        notebook.cells.append(new_code_cell(f"number = {number}", id=f"own-{number}"))
        _write(root / "submitted" / f"student-{number:04d}" / LESSON, notebook)
    return root


def _read(folder: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / folder / LESSON / f"{LESSON}.ipynb", as_version=4)


def _read_again(folder: Path) -> nbformat.NotebookNode:
    return nbformat.read(folder / f"{LESSON}.ipynb", as_version=4)


def _write(folder: Path, notebook: nbformat.NotebookNode) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{LESSON}.ipynb")


def _short(notebook: nbformat.NotebookNode, kind: str) -> nbformat.NotebookNode:
    """The kind's import, the lesson's imports, and the first few exercises with their checks."""
    checks = [i for i, cell in enumerate(notebook.cells) if is_check(cell)]
    code = [c for c in notebook.cells[: checks[N_EXERCISES - 1] + 1] if c.cell_type == "code"]
    cells = [c for c in code if "nbgrader" in c.metadata or "from grader import" in c.source]
    cells.insert(0, new_code_cell(KINDS[kind], id="the-kind"))
    return nbformat.from_dict({**notebook, "cells": cells})


def _solved(release: nbformat.NotebookNode, source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    written = {c.metadata.nbgrader.grade_id: c.source for c in source.cells if _is_answer(c)}
    solved = copy.deepcopy(release)
    for cell in solved.cells:
        if _is_answer(cell):
            lines = written[cell.metadata.nbgrader.grade_id].splitlines()
            cell.source = "\n".join(line for line in lines if line.strip() not in (BEGIN, END))
    return solved


def _is_answer(cell: nbformat.NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


# ---- one run -----------------------------------------------------------------------------------


def timed(command: Sequence[str], folder: Path) -> dict[str, float]:
    """Run it. -> seconds, and the most memory that it and all its processes held (bytes)."""
    bin_dir = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": bin_dir + os.pathsep + os.environ.get("PATH", "")}
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    peaks = {"parent_bytes": 0.0, "all_bytes": 0.0}
    watch = threading.Thread(target=_watch, args=(process, peaks))
    watch.start()
    said, _ = process.communicate()
    seconds = time.perf_counter() - begun
    watch.join()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said[-2000:]}")
    return {"seconds": seconds, **peaks}


def _watch(process: subprocess.Popen, peaks: dict[str, float]) -> None:
    try:
        parent = psutil.Process(process.pid)
        while process.poll() is None:
            peaks["parent_bytes"] = max(peaks["parent_bytes"], parent.memory_info().rss)
            total = sum(_held(p) for p in [parent, *parent.children(recursive=True)])
            peaks["all_bytes"] = max(peaks["all_bytes"], total)
            time.sleep(0.3)
    except psutil.NoSuchProcess:
        return


def _held(process: psutil.Process) -> float:
    """What a process holds, with its part of what it shares, where the system says so."""
    try:
        facts = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    return float(getattr(facts, "pss", facts.uss))


def ours(root: Path, n_jobs: int, scheduler: str = "") -> dict[str, float]:
    """`inferlab grade`, from nothing but submissions to the CSV."""
    for name in ("grading", "autograded"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "gradebook.db").unlink(missing_ok=True)
    command = [sys.executable, "-m", "grader.cli", "grade", LESSON, "--course", str(root)]
    command += ["--scheduler", scheduler] if scheduler else ["--jobs", str(n_jobs)]
    result = timed(command, root)
    table = (root / "grading" / f"{LESSON}.csv").read_text(encoding="utf-8")
    _all_right(table, root)
    return result


def _all_right(table: str, root: Path) -> None:
    """Every student solved everything, so a fast run that judged wrongly is no result."""
    rows = [line.split(",") for line in table.splitlines()]
    n = len(list((root / "submitted").iterdir()))
    right = [row for row in rows[1:] if row[1] == row[2] != "0"]
    if len(right) != n:
        raise RuntimeError(f"{len(right)} of {n} students were given all their points")


def stock(root: Path) -> dict[str, float]:
    """`nbgrader autograde` as it comes; the release is generated before, untimed."""
    command = [sys.executable, "-m", "nbgrader"]
    if not (root / "gradebook.db").is_file():
        timed([*command, "generate_assignment", LESSON, "--force"], root)
    return timed([*command, "autograde", LESSON, "--force"], root)


# ---- all of it ---------------------------------------------------------------------------------


def measure(rounds: int, sizes: Sequence[int], n_stock: int, folder: Path) -> dict[str, Any]:
    """kind -> who and how many -> a sample a round, the two graders in turn."""
    n_jobs = n_cores()
    samples: dict[str, Any] = {}
    plan = [(kind, size) for kind in KINDS for size in (*sizes, 0)]  # 0: stock
    bar = tqdm(total=rounds * len(plan), unit="run")
    for _ in range(rounds):
        for kind, size in plan:
            who = f"ours {size}" if size else f"stock {n_stock}"
            bar.set_postfix_str(f"{kind}, {who}")
            root = folder / f"{kind} {who}"
            if not root.exists():
                make_course(root, kind, size or n_stock, stock=not size)
            sample = ours(root, n_jobs) if size else stock(root)
            samples.setdefault(kind, {}).setdefault(who, []).append(sample)
            bar.update()
    bar.close()
    return samples


def on_a_cluster(n_students: int, folder: Path) -> list[dict[str, float]]:
    """A local dask cluster of two workers, cold and then warm."""
    from distributed import LocalCluster

    root = make_course(folder / "on a cluster", "torch", n_students, stock=False)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        return [ours(root, 2, cluster.scheduler_address) for _ in range(2)]


def summary(samples: dict[str, Any], n_stock: int) -> dict[str, Any]:
    """Medians, rates, and ours over stock."""
    found: dict[str, Any] = {}
    for kind, runs in samples.items():
        median = {
            who: {name: statistics.median(s[name] for s in many) for name in many[0]}
            for who, many in runs.items()
        }
        counts = sorted(int(who.split()[1]) for who in runs if who.startswith("ours"))
        few, many = counts[-2], counts[-1]
        more = median[f"ours {many}"]["seconds"] - median[f"ours {few}"]["seconds"]
        rates = {
            "ours, once warm": (many - few) / more,
            "ours, all in": many / median[f"ours {many}"]["seconds"],
            "stock": n_stock / median[f"stock {n_stock}"]["seconds"],
        }
        found[kind] = {
            "median": median,
            "submissions_per_s": rates,
            "ours over stock": rates["ours, all in"] / rates["stock"],
        }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grading")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    sizes, n_stock = ((1, 3), 1) if args.quick else ((1, 30, 300), 8)
    with tempfile.TemporaryDirectory(prefix="inferlab bench ") as folder:
        samples = measure(1 if args.quick else args.rounds, sizes, n_stock, Path(folder))
        cluster = on_a_cluster(sizes[1], Path(folder))
    record = {
        "summary": summary(samples, n_stock),
        "machine": describe(n_cores()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "lesson": f"{N_EXERCISES} exercises of {LESSON}",
        "samples": samples,
        f"dask, two workers, {sizes[1]} students, cold and warm": cluster,
    }
    path = args.out / ("quick.json" if args.quick else f"cpu-{n_cores()}-cores.json")
    write_whole(path, json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["summary"], indent=1))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
