"""A notebook's cells, run as IPython runs them, and what they print, as nbformat outputs."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
from IPython.core.displayhook import CapturingDisplayHook
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from inferlab.counted_memory import traced_peak
from labkit.measure.rewire import alone_with, lent
from sandbox.notebook_shell import NotebookShell, add_magics
from sandbox.outputs import MAX_OUTPUT_BYTES, short_enough
from sandbox.own_class import method

MAX_WRITTEN_CHARACTERS = 64 * 2**20  # by one cell or call: no honest one writes so much


class TooMuchOutput(BaseException):
    """A cell or call prints without end. No Exception: a handler in a loop must not go on."""


class Bounded(io.StringIO):
    """Keeps the beginning of what is written and counts the rest, so that a flood takes no room."""

    def __init__(self) -> None:
        super().__init__()
        self._n_written = 0

    def write(self, text: str) -> int:
        room = max(0, MAX_OUTPUT_BYTES - self._n_written)
        super().write(text[:room])
        self._n_written += len(text)
        if self._n_written > MAX_WRITTEN_CHARACTERS:
            raise TooMuchOutput(f"it wrote more than {MAX_WRITTEN_CHARACTERS:,} characters")
        return len(text)

    def getvalue(self) -> str:
        lost = self._n_written - self.tell()
        return super().getvalue() + (f"\n[{lost:,} characters more are left out]\n" if lost else "")


def make_shell() -> InteractiveShell:
    """An IPython without history, colours or startup files: magics, display and await work."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.autocall = 0
    shell = NotebookShell.instance(config=config)
    add_magics(shell)
    shell.user_ns["__name__"] = "__main__"
    # The error is an output of its own: not printed as well.
    setattr(shell, "_showtraceback", lambda *_: None)  # noqa: B010
    _warm(shell)
    return shell


def _warm(shell: InteractiveShell) -> None:
    """Run what most notebooks run, and forget it: what that sets up once, a fork then has."""
    for source in (
        "import numpy as np\nimport torch\ntorch.ones(3).sum()",
        "np.ones(3) / 0",
        "1 / 0",
    ):
        Shell(shell).run_cell(source)
    around_call(lambda: None)
    shell.reset()
    shell.user_ns["__name__"] = "__main__"


class Shell:
    """Runs cells one after the other in one namespace."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.lending = contextlib.ExitStack()

    def run_cell(self, source: str) -> tuple[list[dict[str, Any]], bool]:
        """-> (outputs as nbformat has them, whether it ran to its end without an error)"""
        results: list[dict[str, Any]] = []
        self.shell.display_trap.hook = CapturingDisplayHook(self.shell, results)
        out, err = Bounded(), Bounded()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            capture_output(stdout=False, stderr=False) as captured,
        ):
            result = self.shell.run_cell(source, store_history=True)
        outputs = [_stream("stdout", out.getvalue()), _stream("stderr", err.getvalue())]
        outputs += [_shown(rich.data) for rich in captured.outputs]
        outputs += [_shown(shown["data"]) for shown in results]
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            outputs.append(_failure(error))
        kept = [output for output in outputs if output is not None]
        return short_enough(kept, MAX_OUTPUT_BYTES), error is None

    def value(self, name: str) -> Any:
        """What the notebook calls by this name. Raises KeyError."""
        return self.shell.user_ns[name]

    def methods(self, name: str) -> list[str]:
        """The functions that a class of the notebook defines itself."""
        kind = self.shell.user_ns.get(name)
        if not isinstance(kind, type):
            return []
        return [n for n, v in vars(kind).items() if isinstance(v, FunctionType)]

    def method(self, kind: str, name: str) -> Any:
        """A method of the notebook's class, for an object of the judge's."""
        return method(self.shell.user_ns[kind], name)

    def alone(self, function: Any, name: str, others: dict[str, Any]) -> Any:
        """A function of the notebook, with other parts than its own to call."""
        return alone_with(function, name, dict(others))

    def lend(self, parts: dict[str, Any]) -> None:
        """Put parts of the judge's into the notebook, until they are taken back."""
        self.lending.enter_context(lent(self.shell.user_ns, parts))

    def take_back(self) -> None:
        """The notebook has its own parts again."""
        self.lending.close()

    def many(self, function: Any, n: int, args: list[Any]) -> list[Any]:
        """Call it n times with these arguments, lists anew each time; generators run to the end."""
        found = []
        for _ in range(n):
            result = function(*(list(a) if type(a) is list else a for a in args))
            found.append(list(result) if inspect.isgenerator(result) else result)
        return found

    def traced(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Call it and note the most bytes held at once, beyond what there was before."""
        with traced_peak() as peak:
            value = function(*args, **kwargs)
        return value, peak["bytes"]

    def answer(self, question: str) -> tuple[Any, Any]:
        """The learner's name and answer, as the notebook's `answers` keeps them."""
        answers = self.shell.user_ns.get("answers")
        given = answers.get(question, ...) if isinstance(answers, dict) else ...
        return getattr(answers, "learner", ""), given


def _stream(name: str, text: str) -> dict[str, Any] | None:
    return {"output_type": "stream", "name": name, "text": text} if text else None


def _shown(rich: dict[str, Any]) -> dict[str, Any]:
    data = {k: v for k, v in rich.items() if isinstance(v, str)}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def _failure(error: BaseException) -> dict[str, Any]:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_cell(f.filename)]
    lines = traceback.format_list(frames) + traceback.format_exception_only(type(error), error)
    return {
        "output_type": "error",
        "ename": type(error).__name__,
        "evalue": text_of(error),
        "traceback": ["".join(lines).rstrip("\n")],
    }


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "(its text cannot be had)"


# ---- round a call ------------------------------------------------------------------------------


def around_call(call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run a function of the student's; note what it prints and warns, and where it fails.

    -> (its result, {"printed", "warned"}). What it raises goes on, with those as _asides and the
    student's own line as _line.
    """
    asides: dict[str, Any] = {}
    with _watched(asides):
        try:
            return call(), asides
        except BaseException as error:
            with contextlib.suppress(AttributeError):  # classes with __slots__
                error._asides, error._line = asides, own_line(error)  # type: ignore[attr-defined]
            raise


@contextlib.contextmanager
def _watched(asides: dict[str, Any]) -> Iterator[None]:
    output = Bounded()
    with (
        np.errstate(all="warn", under="ignore"),
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(Bounded()),
    ):
        warnings.simplefilter("always")
        try:
            yield
        finally:
            said = {str(w.message)[:300] for w in caught if w.category is RuntimeWarning}
            asides["warned"] = sorted(said)[:8]
            asides["printed"] = output.getvalue()[-4000:]


def own_line(error: BaseException) -> str:
    """The student's own line that an error came through last: "12: return q / 0"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.line and _is_cell(f.filename)]
    return f"{own[-1].lineno}: {own[-1].line}" if own else ""


def _is_cell(filename: str) -> bool:
    return "ipykernel_" in filename or filename.startswith("<ipython-input")


def quiet() -> None:
    """No prompt for a reader who is not there."""
    sys.stdin = io.StringIO()
