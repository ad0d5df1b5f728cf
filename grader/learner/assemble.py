"""Your own engine: the parts that you wrote and that pass their checks, the reference for the rest.

The definitions of a filled notebook are run in this process, as the learner, and judged here with
the hidden cases too. What passes takes the place of the reference function wherever the engine uses
it. A part that raises later, in service, is reported by its name.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from grader.judging import registry
from grader.judging.exercise import Exercise
from grader.judging.judge import judge
from grader.judging.verdict import Outcome, Verdict
from grader.learner.lab import DamagedNotebook, read_notebook, working_path


class PartFailed(RuntimeError):
    """A part of the learner's raised while the engine ran."""


@dataclass(frozen=True)
class Part:
    """One exercise, and whose code stands for it. why: what keeps the reference in its place."""

    exercise: Exercise
    written: Any  # the learner's function or class, None where the reference stays
    why: str = ""

    @property
    def whose(self) -> str:
        return "reference" if self.written is None else "yours"


# ---- reading -----------------------------------------------------------------------------------


def definitions(notebook: dict[str, Any]) -> list[ast.stmt]:
    """The imports, functions, classes and plain constants of a notebook's cells, in order.

    Everything else is left out: a cell that measures or draws has no place in an engine. A cell
    that Python cannot read is left out too.
    """
    found: list[ast.stmt] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        try:
            tree = ast.parse("".join(cell["source"]))
        except SyntaxError:
            continue
        found += [node for node in tree.body if _defines(node)]
    return found


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return not any(isinstance(part, (ast.Call, ast.Await)) for part in ast.walk(node))
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return isinstance(node, kinds)


def namespace_of(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """What those definitions give when they are run. One that raises is skipped."""
    module = ModuleType(name)
    for node in definitions(notebook):
        code = compile(ast.Module([node], []), f"<{name}>", "exec")
        try:
            exec(code, module.__dict__)
        except Exception:
            continue  # its name is missing, so its exercise stays with the reference
    return module.__dict__


def parts_of(lesson: str, notebook: dict[str, Any]) -> list[Part]:
    """The parts of one lesson: judged with the hidden cases, yours where they pass."""
    names = namespace_of(notebook, f"your {lesson}")
    return [_part(exercise, names.get(exercise.name)) for exercise in registry.exercises(lesson)]


def _part(exercise: Exercise, written: Any) -> Part:
    if written is None or written is exercise.reference:
        return Part(exercise, None, "not in your notebook")
    verdict = judge(exercise, written, hidden=True)
    if verdict.outcome is Outcome.PASSED:
        return Part(exercise, written)
    return Part(exercise, None, _reason(verdict))


def _reason(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.NOT_RUN:
        return "not written yet"
    return verdict.mistake or (verdict.lines[0] if verdict.lines else "does not pass its check")


def read_parts(work: Path, lessons: Iterable[str] | None = None) -> list[Part]:
    """The parts of every lesson in a work folder. A lesson that is not there is the reference's."""
    parts: list[Part] = []
    for lesson in lessons or registry.lessons():
        try:
            parts += parts_of(lesson, read_notebook(working_path(work, lesson)))
        except (FileNotFoundError, DamagedNotebook) as error:
            why = "no notebook" if isinstance(error, FileNotFoundError) else str(error)
            parts += [Part(exercise, None, why) for exercise in registry.exercises(lesson)]
    return parts


# ---- putting together --------------------------------------------------------------------------


def install(parts: Sequence[Part]) -> None:
    """Put the learner's parts in the place of the reference, in every module of the engine."""
    for name, own in _replacements(parts).items():
        reference = next(p.exercise.reference for p in parts if p.exercise.name == name)
        for module in _engine_modules():
            for attribute, value in list(vars(module).items()):
                if value is reference:
                    setattr(module, attribute, own)


def _replacements(parts: Sequence[Part]) -> dict[str, Any]:
    """name -> the guarded function, or the class with the learner's methods in it."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.written is None:
            continue
        exercise, name = part.exercise, part.exercise.name
        if not inspect.isclass(exercise.reference):
            found[name] = guarded(part.written, exercise.id)
            continue
        base = found.get(name, exercise.reference)
        method = exercise.id.partition(".")[2]
        found[name] = _with_methods(base, part.written, [method] if method else None)
    return found


def _with_methods(base: type, written: type, methods: list[str] | None) -> type:
    """The class with methods of the learner's: one by one, or all that the class defines."""
    own = methods or [n for n, v in vars(written).items() if isinstance(v, FunctionType)]
    body = {n: guarded(vars(written)[n], f"{base.__name__}.{n}") for n in own}
    return type(base.__name__, (base,), {**body, "__doc__": base.__doc__})


def guarded(function: Callable, name: str) -> Callable:
    """The same function; what it raises says whose part it was.

    ValueError passes, with a note that names the part: refusing bad input is part of what a
    function is asked to do.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            error.add_note(f"raised by your {name}")
            raise
        except (PartFailed, MemoryError):
            raise
        except Exception as error:
            if _is_ours(error):
                raise
            text = f"your {name} raised {type(error).__name__}: {error}"
            raise PartFailed(text) from error

    return call


def _is_ours(error: Exception) -> bool:
    """Errors that the engine itself uses as words, such as OutOfPages."""
    return type(error).__module__.startswith("inferlab.")


def _engine_modules() -> list[ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] == "inferlab"]
    return [sys.modules[name] for name in names]


def whose_parts(parts: Sequence[Part]) -> dict[str, str]:
    """exercise -> "yours" or "reference", for the server's page."""
    return {part.exercise.id: part.whose for part in parts}


def table(parts: Sequence[Part]) -> str:
    """The parts as text, lesson by lesson, and how many are yours."""
    width = max((len(part.exercise.id) for part in parts), default=0)
    lines: list[str] = []
    lesson = ""
    for part in parts:
        if part.exercise.lesson != lesson:
            lesson = part.exercise.lesson
            lines += ["", lesson] if lines else [lesson]
        why = f"  {part.why}" if part.why else ""
        lines.append(f"  {part.exercise.id:<{width}}  {part.whose:<9}{why}".rstrip())
    yours = sum(part.written is not None for part in parts)
    return "\n".join([*lines, "", f"{yours} of {len(parts)} parts are yours"])
