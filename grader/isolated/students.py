"""Processes in which student code runs: started by a zygote, asked over a wire, ended by force."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

from inferlab.data import ROOT
from sandbox import walls
from sandbox.endpoint import Endpoint, StandIn
from sandbox.wire import BadMessage, PeerGone, TooLate, Wire
from sandbox.zygote import by_value, errors

LEVELS = ("full", "limits", "none")
START_S = 120  # importing everything, on a slow computer


class Gone(BaseException):
    """The student's process has ended or had to be ended. reason: one of the closed list.

    No Exception, so that what catches a student's errors lets it through.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class OwnFault(Exception):
    """Grading could not be done, and not because of the student: never a zero."""


@dataclass(frozen=True)
class Isolation:
    """How far student code is kept in. level: "full", "limits" or "none" (see walls.level)."""

    level: str = "full"
    limits: walls.Limits = field(default_factory=walls.Limits)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"isolation {self.level!r} is not one of {', '.join(LEVELS)}")


class Zygote:
    """The process that forks students. Close it, or use it in a with block.

    It needs seconds to import everything; the first fork() waits for that, the constructor doesn't.
    """

    def __init__(self, isolation: Isolation) -> None:
        self.isolation = isolation
        self._scratch = tempfile.TemporaryDirectory(prefix="inferlab-students-")
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_S)
        self._process: subprocess.Popen | None = subprocess.Popen(
            [sys.executable, "-m", "sandbox.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=_environment(self._scratch.name),
            cwd=self._scratch.name,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self.pid, self._is_ready = self._process.pid, False

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote. Children end with their own connections."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()
            self._scratch.cleanup()

    def fork(self, under_judgement: Mapping[str, str]) -> Student:
        """A new student's process. under_judgement: what of the reference it must not have."""
        asked = {
            "isolation": self.isolation.level,
            "limits": asdict(self.isolation.limits),
            "readable": readable(),
            "scratch": self._scratch.name,
            "under_judgement": dict(under_judgement),
        }
        sock, pid = self._ask(asked)
        return Student(sock, pid)

    def twin(self) -> Zygote:
        """A second zygote, forked from this one: for another judge, and at once."""
        other = object.__new__(Zygote)
        other.isolation, other._scratch = self.isolation, self._scratch
        other._control, other.pid = self._ask({"twin": True})
        other._control.settimeout(START_S)
        other._process, other._is_ready = None, False
        return other

    def _ask(self, request: dict[str, Any]) -> tuple[socket.socket, int]:
        """Have a process forked. -> the connection to it, and its pid"""
        if not self._is_ready:
            self._read_line()
            self._is_ready = True
        ours, theirs = socket.socketpair()
        socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
        theirs.close()
        return ours, int(self._read_line())

    def _read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            try:
                part = self._control.recv(1)
            except TimeoutError:
                part = b""
            if not part:
                raise OwnFault(f"the zygote ended: {self._last_words()}")
            line += part
        return line.decode().strip()

    def _last_words(self) -> str:
        if self._process is None or self._process.stderr is None:
            return "(it was forked from another)"
        self._process.kill()
        return self._process.stderr.read().decode(errors="replace")[-2000:]


def readable() -> list[str]:
    """Folders that student code may read: Python itself and the course's data."""
    prefixes = {sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)}
    return sorted({*prefixes, str(ROOT / "data")})


def _environment(scratch: str) -> dict[str, str]:
    """What the zygote knows of its surroundings: nothing of the instructor's."""
    folders = [str(ROOT / "src"), str(ROOT)]
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": scratch,
        "MPLCONFIGDIR": scratch,
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }


class Student:
    """One student's process. Whatever it does, the judge gets data, an error, or Gone."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid, self._sock = pid, sock
        self._endpoint = Endpoint(
            Wire(sock), by_value(), True, errors(), may_touch=may_touch, may_name=may_name
        )
        self._endpoint.on_asides = _repeat
        self._shell = StandIn(self._endpoint, 1, "the notebook's shell")
        self._deadline = float("inf")
        self.is_alive = True

    def run_cell(self, source: str, seconds: float) -> tuple[list[dict[str, Any]], bool]:
        """Run a cell. -> (its outputs, whether it ended without an error)"""
        with self.within(seconds), self._unbroken():
            outputs, fine = self._shell.run_cell(source)
            return _plain_outputs(outputs), bool(fine)

    def value(self, name: str) -> Any:
        """What the notebook calls by this name: data, or a stand-in. Raises KeyError."""
        with self.within(10), self._unbroken(KeyError):
            return self._shell.value(name)

    def methods(self, name: str) -> list[str]:
        """The functions that the notebook's class of this name defines itself; [] for others."""
        with self.within(10), self._unbroken():
            found = self._shell.methods(name)
        return [str(method) for method in found] if isinstance(found, list) else []

    def alone(self, function: StandIn, name: str, others: Mapping[str, Any]) -> Any:
        """The student's function, calling `others` (the judge's) in place of their own parts."""
        return self._shell.alone(function, name, dict(others))

    def traced(self, function: StandIn, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Call it. -> what it returns, and the most bytes that it held at once."""
        value, peak = self._shell.traced(function, list(args), kwargs)
        return value, int(peak)

    def answer(self, question: str) -> tuple[str, Any]:
        """The learner's name, and their answer to a question: `...` where there is none."""
        with self.within(10), self._unbroken():
            name, given = self._shell.answer(question)
        return (name if isinstance(name, str) else ""), given

    @contextlib.contextmanager
    def _unbroken(self, *expected: type[Exception]) -> Iterator[None]:
        """An error of the shell itself: student code has broken what runs it. Raises Gone."""
        try:
            yield
        except expected:
            raise
        except Exception as error:
            self.end()
            text = f"it broke what runs the notebook: {type(error).__name__}: {error}"
            raise Gone("exited", text) from None

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """A time for everything asked in this block. Afterwards the process is gone, if it fails.

        Raises Gone.
        """
        if not self.is_alive:
            raise Gone("exited", "its process has ended")
        if self._deadline < float("inf"):  # within a longer time already
            yield
            return
        self._sock.settimeout(seconds)
        self._deadline = time.monotonic() + seconds
        self._endpoint.wire.sock = _Clock(self._sock, self)
        try:
            yield
        except TooLate:
            self.end()
            raise Gone("out of time", f"it was still running after {seconds:g} s") from None
        except PeerGone:
            self.end()
            raise Gone("exited", "its process ended while it ran") from None
        except BadMessage as error:
            self.end()
            text = str(error)
            reason = "too much output" if "bytes" in text else "exited"
            raise Gone(reason, f"it broke the protocol: {text}") from None
        finally:
            self._deadline = float("inf")

    def end(self) -> None:
        """End the process and all it has started."""
        if self.is_alive:
            self.is_alive = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)
            self._sock.close()


class _Clock:
    """The socket, with what is left of the time as the timeout of each wait."""

    def __init__(self, sock: socket.socket, student: Student) -> None:
        self._sock, self._student = sock, student

    def recv_into(self, buffer: memoryview) -> int:
        return self._in_time(self._sock.recv_into, buffer)

    def sendall(self, data: bytes | memoryview) -> None:
        self._in_time(self._sock.sendall, data)

    def _in_time(self, act: Callable[[Any], Any], what: Any) -> Any:
        try:
            self._sock.settimeout(max(self._student._deadline - time.monotonic(), 0.001))
            return act(what)
        except TimeoutError:
            raise TooLate from None


def may_touch(value: Any) -> bool:
    """What a case may hand to student code as an object: the course's own, and their methods."""
    if isinstance(value, MethodType):
        return _is_ours(type(value.__self__)) and not value.__name__.startswith("_")
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        return _is_ours(value)
    if isinstance(value, partial):
        return may_touch(value.func)
    if isinstance(value, SimpleNamespace):
        return True
    if inspect.isgenerator(value):  # an input that is read piece by piece
        return True
    return not inspect.isclass(value) and not inspect.ismodule(value) and _is_ours(type(value))


def may_name(value: Any, name: str) -> bool:
    """Public names; of an object whose class the learner completes, private ones as well."""
    return not name.startswith("__" if getattr(type(value), "is_learners", False) else "_")


def _is_ours(thing: Any) -> bool:
    module = getattr(thing, "__module__", "") or ""
    return module.split(".")[0] == "inferlab" or module.startswith(
        ("grader.checks", "grader.counting")
    )


def _repeat(asides: Any) -> None:
    """Say and warn here what the student's call said and warned there."""
    if not isinstance(asides, dict):
        return
    for text in asides.get("warned", [])[:8]:
        warnings.warn(str(text), RuntimeWarning, stacklevel=2)
    if asides.get("printed"):
        print(str(asides["printed"]), end="")


def _plain_outputs(outputs: Any) -> list[dict[str, Any]]:
    """Outputs as nbformat has them; whatever else came is dropped."""
    kept = []
    for output in outputs if isinstance(outputs, list) else []:
        if isinstance(output, dict) and output.get("output_type") in _OUTPUTS:
            needed = _OUTPUTS[output["output_type"]]
            if all(isinstance(output.get(key), kind) for key, kind in needed.items()):
                kept.append(
                    {"output_type": output["output_type"], **{k: output[k] for k in needed}}
                )
    return kept


_OUTPUTS: dict[str, dict[str, type]] = {
    "stream": {"name": str, "text": str},
    "display_data": {"data": dict, "metadata": dict},
    "error": {"ename": str, "evalue": str, "traceback": list},
}
