"""Processes in which student code runs: started by a zygote, asked over a wire, ended by force."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from grader.judging.isolated.border import may_change, may_name, may_touch, plain_outputs, repeat
from grader.judging.isolated.clock import Clock
from grader.judging.isolated.own_limits import own_limits
from grader.own_code import FOLDERS, search_path
from inferlab.data import ROOT
from sandbox import walls
from sandbox.endpoint import Endpoint, StandIn
from sandbox.wire import BadMessage, PeerGone, TooLarge, TooLate, Wire, WireFailure
from sandbox.zygote import by_value, errors

LEVELS = ("full", "limits", "none")
START_S = 120  # importing everything, on a slow computer
ASK_S = 10  # for what the sandbox answers itself, such as a name of the notebook
EXCHANGES = ("/usr/local/share/nbgrader", "/opt/nbgrader", "/srv/nbgrader")
MAX_BYTES = 2**30  # of all messages while one cell runs or one question is judged


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


@lru_cache(maxsize=1)
def floor_reached(level: str) -> None:
    """Raise OwnFault where this computer does not allow that level, saying why."""
    found, why = walls.level()
    order = ("none", "limits", "full")
    if order.index(found) < order.index(level):
        raise OwnFault(
            f"isolation {level!r} is not possible on this computer: {why}. It allows {found!r}; "
            "grade elsewhere, or give the weaker level on purpose (INFERLAB_ISOLATION=limits, or "
            "none), which every result then records"
        )


class Zygote:
    """The process that forks students. Close it, or use it in a with block.

    It needs seconds to import everything; the first fork() waits for that, the constructor doesn't.
    hide: folders that students must not see, besides the course and the folder graded in.
    """

    def __init__(self, isolation: Isolation, hide: Sequence[str] = ()) -> None:
        self.isolation, self._hide, self.cpu = isolation, tuple(hide), -1
        self._students: Zygote | None = None  # the twin that forks them,
        self._wanted: dict[str, Any] = {}  # of this kind
        self._scratch = tempfile.TemporaryDirectory(prefix="inferlab-students-")
        self._start()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_S)
        command = [sys.executable, "-m", "sandbox.zygote", str(theirs.fileno())]
        with theirs:
            self._process: subprocess.Popen | None = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=_environment(self._scratch.name),
                cwd=self._scratch.name,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self.pid, self._is_ready = self._process.pid, False

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote. Children end with their own connections."""
        self._stop()
        if self._process is not None:  # a twin's folder is the first one's
            self._scratch.cleanup()

    def _stop(self) -> None:
        self._end_keeper()
        self._control.close()  # a twin ends its students, then itself
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()

    def fork(self, under_judgement: Mapping[str, str]) -> Student:
        """A new student's process. under_judgement: what of the reference it must not have.

        Raises OwnFault if there cannot be one: no code of a student has run by then.
        """
        if self._process is not None and self._process.poll() is not None:
            self._stop()
            self._start()
        wanted = {
            "under_judgement": dict(under_judgement),
            "isolation": self.isolation.level,
            "limits": asdict(self.isolation.limits),
            "readable": readable(),
            "hidden": sorted({*hidden(), *self._hide}),
            "scratch": self._scratch.name,
            "cpu": self.cpu,
        }
        try:
            sock, pid = self._keeper(wanted)._ask({})
        except OwnFault:
            self._end_keeper()  # it may have ended: the next student gets another
            raise
        student = Student(sock, pid, has_guard=self.isolation.level == "full")
        student.await_ready()
        return student

    def _keeper(self, wanted: dict[str, Any]) -> Zygote:
        """The twin that forks students of this kind; there is one at a time."""
        if self._students is None or self._wanted != wanted:
            self._end_keeper()
            self._students, self._wanted = self._twin(wanted), wanted
        return self._students

    def _end_keeper(self) -> None:
        if self._students is not None:
            self._students.close()
            self._students = None

    def twin(self, cpu: int | None = None) -> Zygote:
        """A second zygote, forked from this one: for another judge, and at once.

        cpu: the one core that its students run on; None: any.
        """
        other = self._twin({})
        other.cpu = -1 if cpu is None else cpu
        return other

    def _twin(self, wanted: dict[str, Any]) -> Zygote:
        other = object.__new__(Zygote)
        other.isolation, other._hide, other._scratch = self.isolation, self._hide, self._scratch
        other._students, other._wanted, other.cpu = None, {}, self.cpu
        other._control, other.pid = self._ask(wanted)
        other._control.settimeout(START_S)
        other._process, other._is_ready = None, False
        return other

    def _ask(self, request: dict[str, Any]) -> tuple[socket.socket, int]:
        """Have a process forked. -> the connection to it, and its pid"""
        if not self._is_ready:
            said = self._read_line()
            if said != "ready":
                raise OwnFault(f"no process for a student: {said}")
            self._is_ready = True
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
            except OSError as error:
                raise OwnFault(f"the zygote does not answer: {error}") from None
        number, _, trouble = self._read_line().partition(" ")
        if trouble:
            raise OwnFault(f"no process for a student: {trouble}")
        return ours, int(number)

    def _read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            try:
                part = self._control.recv(1)
            except OSError:
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


def hidden() -> list[str]:
    """Folders that must not be seen, should they lie within one that can be read.

    The course and its code, the folder that is graded in, and where nbgrader keeps what others
    handed in.
    """
    return sorted({str(ROOT), *map(str, FOLDERS), str(Path.cwd().resolve()), *EXCHANGES})


def _environment(scratch: str) -> dict[str, str]:
    """What the zygote knows of its surroundings: nothing of the instructor's."""
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": scratch,
        "MPLCONFIGDIR": scratch,
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(search_path()),
        "PYTHONHASHSEED": "0",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # see sandbox.pages
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }


class Student:
    """One student's process. Whatever it does, the judge gets data, an error, or Gone."""

    def __init__(self, sock: socket.socket, pid: int, has_guard: bool) -> None:
        self.pid, self._sock, self._has_guard = pid, sock, has_guard
        self._endpoint = Endpoint(
            Wire(sock), by_value(), True, errors(),
            may_touch=may_touch, may_name=may_name, may_change=may_change,
        )  # fmt: skip
        self._endpoint.on_asides = repeat
        self._shell = StandIn(self._endpoint, 1, "the notebook's shell")
        self._is_timed, self.is_alive = False, True

    def await_ready(self) -> None:
        """Wait until the walls stand and the reference is out. Raises OwnFault."""
        self._sock.settimeout(START_S)
        try:
            self._endpoint.await_ready()
        except (WireFailure, Exception) as error:
            self.end()
            said = f"{type(error).__name__}: {error}"
            raise OwnFault(f"a student's process could not be set up: {said}") from None

    def begin(self) -> None:
        """Another question: what was handed out for earlier ones cannot be used any more."""
        self._endpoint.forget()

    def is_as_expected(self) -> bool:
        """Whether it is there and says nothing that it was not asked: a copy of it might."""
        return self.is_alive and bool(self._endpoint.wire.is_quiet())

    def run_cell(self, source: str, seconds: float) -> tuple[list[dict[str, Any]], bool]:
        """Run a cell. -> (its outputs, whether it ended without an error)"""
        with self.within(seconds), self._unbroken():
            outputs, fine = self._shell.run_cell(source)
            return plain_outputs(outputs), bool(fine)

    def value(self, name: str) -> Any:
        """What the notebook calls by this name: data, or a stand-in. Raises KeyError."""
        with self.within(ASK_S), self._unbroken(KeyError):
            return self._shell.value(name)

    def methods(self, name: str) -> list[str]:
        """The functions that the notebook's class of this name defines itself; [] for others."""
        with self.within(ASK_S), self._unbroken():
            found = self._shell.methods(name)
        return [str(method) for method in found] if isinstance(found, list) else []

    def method(self, kind: str, name: str) -> Any:
        """A method of the notebook's class, as a function of an object that lives here.

        Raises AttributeError if there is none.
        """
        with self.within(ASK_S), self._unbroken(AttributeError):
            return self._shell.method(kind, name)

    def alone(self, function: StandIn, name: str, others: Mapping[str, Any]) -> Any:
        """The student's function, calling `others` (the judge's) in place of their own parts."""
        return self._shell.alone(function, name, dict(others))

    @contextlib.contextmanager
    def lent(self, parts: Mapping[str, Any]) -> Iterator[None]:
        """The notebook calls these parts, which run here, in place of its own of those names."""
        if not parts:
            yield
            return
        with self._unbroken():
            self._shell.lend(dict(parts))
        yield
        with self._unbroken():
            self._shell.take_back()

    def many(self, function: StandIn, n: int, args: tuple) -> list[Any]:
        """Call it n times, all in one go."""
        return list(self._shell.many(function, n, list(args)))

    def traced(self, function: StandIn, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Call it. -> what it returns, and the most bytes that it held at once."""
        value, peak = self._shell.traced(function, list(args), kwargs)
        return value, int(peak)

    def answer(self, question: str) -> tuple[str, Any]:
        """The learner's name, and their answer to a question: `...` where there is none."""
        with self.within(ASK_S), self._unbroken():
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
        if self._is_timed:  # within a longer time already
            yield
            return
        self._is_timed, clock = True, Clock(seconds, self._processes())
        self._endpoint.wire.sock = _Metered(self._sock, clock)
        try:
            with own_limits(clock.left):
                yield
        except TooLate:
            self.end()
            raise Gone("out of time", f"it was still running after {seconds:g} s") from None
        except PeerGone:
            self.end()
            raise Gone("exited", "its process ended while it ran") from None
        except TooLarge as error:
            self.end()
            raise Gone("too much output", str(error)) from None
        except BadMessage as error:
            self.end()
            raise Gone("exited", f"it broke the protocol: {error}") from None
        finally:
            self._is_timed = False

    def _processes(self) -> tuple[int | str, ...]:
        """This one and the student's, where its number is known here."""
        numbered_here = os.geteuid() == 0 or not self._has_guard
        return ("self", self.pid) if numbered_here else ("self",)

    def end(self) -> None:
        """End the process and all it has started: its guard does so when the line is closed."""
        if self.is_alive:
            self.is_alive = False
            if not self._has_guard:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, signal.SIGKILL)
            self._sock.close()


class _Metered:
    """The socket, with what is left of the time as the timeout of each wait, and of the bytes."""

    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        self._sock, self._clock, self._n_bytes = sock, clock, 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        got = self._in_time(self._sock.recv_into, buffer)
        self._n_bytes += got
        if self._n_bytes > MAX_BYTES:
            raise TooLarge(f"it sent more than {MAX_BYTES:,} bytes")
        return got

    def sendall(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while len(left):
            left = left[self._in_time(self._sock.send, left) :]

    def _in_time(self, act: Callable[[Any], int], what: Any) -> int:
        while (left := self._clock.left()) > 0:
            with contextlib.suppress(TimeoutError):
                self._sock.settimeout(left)
                return act(what)
        raise TooLate
