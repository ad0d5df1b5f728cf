"""Python with the course already imported: a process forked for each notebook or script.

Importing takes seconds, for what a lesson computes often one. Each forked process is as new as any:
what it changes, nobody else sees. What only a cold start shows (a name that a lesson uses and does
not import), the worked notebooks show, which start cold.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.provisioning import local_provisioner

import grader.checks

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["grader", "ipykernel.kernelapp", "matplotlib.pyplot", "ipywidgets", "torch", "pytest"]
    + ["grader.learner.desk", "grader.learner.lab", "grader.learner.progress", "labkit.explorer"]
    + [module.name for module in pkgutil.walk_packages(grader.checks.__path__, "grader.checks.")]
)


class Forked:
    """A forked process, with what jupyter_client asks of a subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, work: Callable[..., None], env: Mapping[str, str], *words: Any) -> None:
        ready, told = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_begin, args=(told, dict(env), work, words))
        self._process.start()
        self.pid = self._process.pid
        ready.recv()  # it leads a group of its own from here on: whoever kills that kills no other

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()


def _begin(told: Connection, env: dict[str, str], work: Callable[..., None], words: tuple) -> None:
    os.setsid()
    told.send(True)
    os.environ.clear()
    os.environ.update(env)
    import matplotlib as mpl

    mpl.use(env.get("MPLBACKEND", "agg"))  # it was read when matplotlib was imported
    work(*words)


def _kernel(arguments: Sequence[str], folder: str) -> None:
    from ipykernel.kernelapp import IPKernelApp

    os.chdir(folder)
    IPKernelApp.launch_instance(argv=list(arguments))


def _script(path: Path, said: Path) -> None:
    """Like `python PATH > /dev/null 2> SAID`."""
    with said.open("w") as err, open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")


def run_script(path: Path, env: Mapping[str, str], said: Path, seconds: float) -> int | None:
    """Its exit status, or None if it still ran after so many seconds (then it is ended)."""
    running = Forked(_script, env, path, said)
    status = running.wait(seconds)
    if status is None:
        running.kill()
    return status


@contextmanager
def warm_kernels() -> Iterator[None]:
    """Whoever starts a kernel meanwhile gets one that has imported the course."""

    def launch(command: Sequence[str], **how: Any) -> Forked:
        # python -m ipykernel_launcher -f FILE ...
        return Forked(_kernel, how["env"], command[command.index("-f") :], str(how["cwd"]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_provisioner, "launch_kernel", launch)
        yield
