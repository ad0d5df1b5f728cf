"""A process that has imported everything a notebook may want, and forks one child a submission.

It is started with an empty environment, before any case is read, and never runs student code
itself. The judge asks for a child over a socket and hands it one end of a connection.

    python -m sandbox.zygote FD     FD: the socket to the judge
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import random
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sandbox.endpoint import Endpoint
from sandbox.guard import LOOK_MS, Watch
from sandbox.pages import collapse
from sandbox.stand_ins import functions_by_code, grader_module, remove_reference
from sandbox.walls import Limits, Room, View, give_way, set_limits
from sandbox.wire import BadMessage, PeerGone, Wire

PRELOADED = ("numpy", "torch", "matplotlib.pyplot", "ipywidgets", "IPython.display", "json", "math")
# No notebook imports them, and what they are built with takes half a second.
SERVERS = (
    "inferlab.commands.",
    *(
        f"inferlab.serve.{name}"
        for name in ("__main__", "app", "loop", "metrics", "options", "protocol", "run", "text")
    ),
    "labkit.explorer.server",
    "labkit.interview.",
)


def preload() -> None:
    """Import it all. One thread for arithmetic: a child must not inherit a pool of threads."""
    gc.disable()  # nothing of this will be garbage
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    import_all("labkit")
    import_all("inferlab")
    from sandbox.shell import make_shell

    functions_by_code()
    sys.modules["grader"] = grader_module()
    make_shell()
    _seed()
    by_value()
    errors()
    gc.freeze()  # a child's collections leave all of this alone, and its pages shared
    gc.enable()


def import_all(package: str, torch: bool = True) -> None:
    """Every module of a package, but SERVERS and those whose package is not here.

    torch: those that import it as well; no record of theirs crosses, and it takes a second.
    """
    folders = getattr(importlib.import_module(package), "__path__", [])  # a module has none
    for module in pkgutil.walk_packages(folders, f"{package}."):
        if module.name.startswith(SERVERS):
            continue
        if torch or not _imports_torch(module):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def _imports_torch(module: pkgutil.ModuleInfo) -> bool:
    spec = module.module_finder.find_spec(module.name, None)
    if spec is None or not spec.origin:
        return False
    lines = Path(spec.origin).read_text(encoding="utf-8").splitlines()
    return any(line.startswith(("import torch", "from torch")) for line in lines)


@lru_cache(maxsize=1)
def by_value() -> dict[str, type]:
    """Frozen dataclasses of the engine, and a model that is a table: they cross as their fields."""
    records = (*_classes("inferlab"), *_classes("labkit.measure.toy_model"))
    return {
        f"{c.__module__}.{c.__qualname__}": c for c in records if is_dataclass(c) and _is_frozen(c)
    }


@lru_cache(maxsize=1)
def errors() -> dict[str, type[Exception]]:
    """The engine's own classes of errors."""
    return {c.__name__: c for c in _classes("inferlab") if issubclass(c, Exception)}


def _is_frozen(kind: Any) -> bool:
    return kind.__dataclass_params__.frozen


def _classes(package: str) -> list[type]:
    """Every class that a module of it defines."""
    import_all(package, torch="torch" in sys.modules)
    modules = [m for n, m in sorted(sys.modules.items()) if f"{n}.".startswith(f"{package}.")]
    return [
        value
        for module in modules
        for value in list(vars(module).values())
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


def main(descriptor: int) -> None:
    """Fork a child for each request, until the judge closes the socket."""
    preload()
    collapse()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    _answer(socket.socket(fileno=descriptor))


def _answer(control: socket.socket) -> None:
    """Fork a twin for each request (see _twin), until the judge closes the socket."""
    control.sendall(b"ready\n")
    while (request := _received(control)) is not None:
        asked, given = request
        with given:
            pid, trouble = _forked(os.fork)
            if pid == 0:
                control.close()
                return _twin(given, asked)
        control.sendall(f"{pid}{trouble}\n".encode())


def _received(control: socket.socket) -> tuple[Any, socket.socket] | None:
    """The next request, and the end of a connection that comes with it; None at the end."""
    data, descriptors, _, _ = socket.recv_fds(control, 2**16, 1)
    return (json.loads(data), socket.socket(fileno=descriptors[0])) if descriptors else None


def _forked(fork: Callable[[], int]) -> tuple[int, str]:
    """-> pid, and what went wrong"""
    try:
        return fork(), ""
    except OSError as error:
        return -1, f" {error}"


def _twin(control: socket.socket, asked: dict[str, Any]) -> None:
    """Become a second zygote, without importing again: for another judge, or for one lesson."""
    _null_for(2)  # who waits for the end of the first one's words waits for it alone
    if not asked:
        return _answer(control)
    try:
        remove_reference(asked["under_judgement"])
        keeper = Keeper(control, asked)
    except (ValueError, OSError) as error:
        control.sendall(f"not ready: {error}\n".encode())
        return
    try:
        keeper.answer()
    finally:
        for watch in keeper.watches:
            watch.end()


class Keeper:
    """Forks one lesson's students and, where they are walled in, guards them from outside."""

    def __init__(self, control: socket.socket, asked: dict[str, Any]) -> None:
        self.control, self.scratch = control, asked["scratch"]
        self.limits, self.level = Limits(**asked["limits"]), asked["isolation"]
        self.cpu = asked["cpu"]
        view = View(tuple(asked["readable"]), tuple(asked["hidden"]), self.limits)
        self.room = Room(view) if self.level == "full" else None
        self.watches: list[Watch] = []

    def answer(self) -> None:
        """Fork a student's process for each request, until the judge closes the socket."""
        self.control.sendall(b"ready\n")
        while self._is_asked():
            request = _received(self.control)
            if request is None:
                break
            pid, trouble = _forked(self.room.fork if self.room else os.fork)
            if pid == 0:
                self._become_student(request[1])
            self._watch(pid, request[1])
            self.control.sendall(f"{pid}{trouble}\n".encode())

    def _watch(self, pid: int, line: socket.socket) -> None:
        """From now on, if it is walled in."""
        try:
            if pid > 0 and self.room:
                self.watches.append(Watch(pid, line, self.limits.all_processes_bytes))
                return
        except ProcessLookupError:  # it has ended already
            pass
        line.close()

    def _is_asked(self) -> bool:
        """Guard the students until there is a request."""
        while True:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            owners = {fd: watch for watch in self.watches for fd, _ in watch.events}
            for watch in self.watches:
                for event in watch.events:
                    poll.register(*event)
            ready = [fd for fd, _ in poll.poll(LOOK_MS if self.watches else None)]
            over = {owners[fd] for fd in ready if fd in owners}
            if not ready:
                over = {watch for watch in self.watches if watch.is_too_large()}
            for watch in over:
                watch.end()
                self.watches.remove(watch)
            if self.control.fileno() in ready:
                return True

    def _become_student(self, sock: socket.socket) -> None:
        """Walls first, then serve."""
        status = 1
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            give_way(self.cpu)
            if self.room:
                self.room.enter()
            elif self.level == "limits":
                os.chdir(self.scratch)
                set_limits(self.limits)
            _close_all_but(sock.fileno())
            _serve(sock)
            status = 0
        except PeerGone:
            status = 0
        except BaseException as error:
            _say(sock, error)
        finally:
            os._exit(status)


def _serve(sock: socket.socket) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    from sandbox.shell import Shell, around_call, quiet

    quiet()
    _seed()
    os.environ.update({"NBGRADER_EXECUTION": "autograde", "HOME": os.getcwd(), "MPLBACKEND": "agg"})
    os.environ["PIP_NO_INDEX"] = "1"  # there is no network: a program that asks it waits long
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    sys.path.insert(0, "")  # as in a notebook: what lies in its own folder can be imported
    shell = Shell(InteractiveShell.instance())
    endpoint = Endpoint(
        Wire(sock), by_value(), is_judge=False, errors=errors(), around_call=around_call
    )
    os.register_at_fork(after_in_child=lambda: _null_for(sock.fileno()))  # one speaks on the line
    endpoint.refer(shell)  # number 1: the judge runs cells and looks names up through it
    endpoint.say_ready()
    endpoint.serve()


def _seed() -> None:
    """The same bytes in, the same result out, also where nobody has chosen a seed."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _say(sock: socket.socket, error: BaseException) -> None:
    """It could not be set up, or the protocol was broken: tell the judge, if it listens."""
    facts = {"kinds": [type(error).__name__], "text": str(error)[:500], "line": ""}
    with contextlib.suppress(PeerGone, BadMessage, OSError):
        Endpoint(Wire(sock), {}, is_judge=False)._send(["error", facts, ()], lends=False)


def _null_for(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def _close_all_but(kept: int) -> None:
    _null_for(*(standard for standard in (0, 1, 2) if standard != kept))
    os.closerange(3, kept)
    os.closerange(kept + 1, 2**16)


if __name__ == "__main__":
    main(int(sys.argv[1]))
