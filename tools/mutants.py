"""Answers that are wrong in one place: do the checks notice?

A mutant is an exercise's reference with one small change: a < for a <=, a number one up or down, a
statement or a keyword left out, break for continue, an argument that is ignored, two names
exchanged. One that passes all cases, the hidden ones too, is either right as well (most are: of a
sum of squares or of a mean of squares the least is the same), or shows what no case asks. Those
that are right as well are explained in EXPLAINED; a run lists what is new, and explanations whose
mutant is gone. Whoever writes an exercise reads this list:

    make mutants                             all lessons, in some minutes
    make mutants ARGS="09_moe"               one of them
    make mutants ARGS="09_moe router_weights"  one exercise
"""

from __future__ import annotations
import __future__

import argparse
import ast
import inspect
import re
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from functools import singledispatch
from pathlib import Path
from typing import Any
from unittest import mock

from lesson_text import methods_to_write
from tqdm import tqdm

from grader.judging import judge, registry
from grader.judging.exercise import Exercise
from grader.judging.verdict import Outcome

EXPLAINED = Path(__file__).parents[1] / "tests" / "data" / "mutants_explained.toml"
SECONDS = 4.0  # a mutant may never end
ANNOTATIONS = __future__.annotations.compiler_flag  # they are not evaluated
OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
TWINS = {"ceil": "floor", "floor": "ceil", "round": "floor", "sum": "mean", "mean": "sum"} | {
    "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "argmax": "argmin",
    "any": "all", "all": "any", "sorted": "list", "cumsum": "array", "searchsorted": "digitize",
}  # fmt: skip
STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.Continue, ast.Break)


def copied(node: Any, **fields: Any) -> Any:
    """The same node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


@singledispatch
def variants(node: ast.AST) -> list[ast.AST]:
    """What may stand in the place of a node."""
    return [ast.Pass()] if isinstance(node, STATEMENTS) else []


@variants.register
def _(node: ast.Break) -> list[ast.AST]:
    return [ast.Continue(), ast.Pass()]


@variants.register
def _(node: ast.Continue) -> list[ast.AST]:
    return [ast.Break(), ast.Pass()]


@variants.register
def _(node: ast.Expr) -> list[ast.AST]:
    return [] if isinstance(node.value, ast.Constant) else [ast.Pass()]  # a docstring


@variants.register
def _(node: ast.BinOp) -> list[ast.AST]:
    others = OPERATORS.get(type(node.op), ())
    return [copied(node, op=other()) for other in others] + [node.left, node.right]


@variants.register
def _(node: ast.AugAssign) -> list[ast.AST]:
    others = OPERATORS.get(type(node.op), ())
    return [ast.Pass(), *(copied(node, op=other()) for other in others)]


@variants.register
def _(node: ast.Compare) -> list[ast.AST]:
    return [
        copied(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
        for i, op in enumerate(node.ops)
        for other in OPERATORS.get(type(op), ())
    ]


@variants.register
def _(node: ast.BoolOp) -> list[ast.AST]:
    (other,) = OPERATORS[type(node.op)]
    return [copied(node, op=other()), *node.values]


@variants.register
def _(node: ast.UnaryOp) -> list[ast.AST]:
    return [node.operand]


@variants.register
def _(node: ast.Constant) -> list[ast.AST]:
    if isinstance(node.value, bool):
        return [ast.Constant(not node.value)]
    if isinstance(node.value, int):
        return [ast.Constant(node.value + 1), ast.Constant(node.value - 1)]
    return [ast.Constant(2 * node.value + 0.5)] if isinstance(node.value, float) else []


@variants.register
def _(node: ast.IfExp) -> list[ast.AST]:
    return [node.body, node.orelse]


@variants.register
def _(node: ast.If) -> list[ast.AST]:
    return [copied(node, test=ast.Constant(value)) for value in (False, True)]


@variants.register
def _(node: ast.Slice) -> list[ast.AST]:
    ends = [name for name in ("lower", "upper") if getattr(node, name)]
    return [copied(node, **{name: None}) for name in ends]


@variants.register
def _(node: ast.Call) -> list[ast.AST]:
    words, args = node.keywords, node.args
    found = [copied(node, keywords=[*words[:i], *words[i + 1 :]]) for i in range(len(words))]
    field = "attr" if isinstance(node.func, ast.Attribute) else "id"
    name = getattr(node.func, field, "")
    if len(args) > 1 and name not in ("max", "min", "maximum", "minimum", "zip"):
        found.append(copied(node, args=[args[1], args[0], *args[2:]]))
    if name in TWINS:
        found.append(copied(node, func=copied(node.func, **{field: TWINS[name]})))
    return found


def places(tree: ast.AST, inside: str = "") -> Iterator[tuple[ast.AST, str, int | None]]:
    """Each (parent, field, index) of a tree; of the method named `inside` alone, if one is.

    Annotations and messages of errors are no part of what a function does.
    """
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise):
            continue
        several = isinstance(value, list)
        for index, node in enumerate(value if several else [value]):
            if isinstance(node, ast.AST):
                if not inside:
                    yield tree, name, index if several else None
                mine = isinstance(node, ast.FunctionDef) and node.name == inside
                yield from places(node, "" if mine else inside)


def function_changes(function: ast.FunctionDef) -> Iterator[tuple[str, list[ast.stmt]]]:
    """A function's whole body, changed in one way: what was changed, and the statements."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    arguments = [a.arg for a in function.args.args if a.arg != "self"]
    defaults = dict(zip(arguments[::-1], function.args.defaults[::-1], strict=False))
    for name, default in defaults.items():
        yield f"{name} ignored: always {said(default)}", [assigned(name, default), *body]
    names = sorted(set(arguments))
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            swap = ast.parse(f"{one}, {other} = {other}, {one}").body
            yield f"{one} and {other} exchanged", [*swap, *body]
    for loop in (node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)):
        held = loop.body
        loop.body = [*held, ast.Break()]
        yield f"line {loop.lineno}: the loop ends after its first round", list(body)
        loop.body = held


def assigned(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def constant_changes(
    exercise: Exercise, function: ast.FunctionDef
) -> Iterator[tuple[str, list[ast.stmt]]]:
    """An argument is ignored: it is always what the first visible case gives."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    arguments = {a.arg for a in function.args.args}
    for name, value in exercise.visible_cases()[0].make().items():
        if name in arguments and isinstance(value, bool | int | float | str | None):
            new = assigned(name, ast.parse(repr(value), mode="eval").body)
            if "inf" not in repr(value) and "nan" not in repr(value):
                yield f"{name} ignored: always {value!r}", [new, *body]


def to_write(exercise: Exercise) -> list[str]:
    """The methods of a class that a learner writes; of a function the empty name: all of it."""
    part = exercise.id.partition(".")[2]
    whole_class = isinstance(exercise.reference, type) and not part
    return methods_to_write(exercise.lesson, exercise.name) if whole_class else [part]


def functions_of(tree: ast.AST, methods: list[str]) -> list[ast.FunctionDef]:
    """The functions of a reference; of a class the methods that are to be written."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [node for node in found if methods == [""] or node.name in methods]


def mutants(exercise: Exercise) -> Iterator[tuple[str, Any]]:
    """Each mutant of an exercise's reference: what was changed, in words, and the answer."""
    reference = inspect.unwrap(exercise.reference)
    tree = ast.parse(textwrap.dedent(inspect.getsource(reference)))
    methods = to_write(exercise)

    def answer() -> Any:
        names = dict(vars(sys.modules[reference.__module__]))
        exec(compile(ast.fix_missing_locations(tree), "mutant", "exec", ANNOTATIONS), names)
        return names[reference.__name__]

    for function in functions_of(tree, methods):
        held, seen = function.body, set()
        for changes in (function_changes(function), constant_changes(exercise, function)):
            for what, statements in changes:
                if what not in seen:
                    function.body = statements
                    mutant = answer()
                    function.body = held
                    seen.add(what)
                    yield f"{function.name}: {what}", mutant
    found = [place for method in methods for place in places(tree.body[0], method)]
    for parent, field, index in found:
        held = getattr(parent, field)
        node = held if index is None else held[index]
        for other in variants(node):
            new = other if index is None else [*held[:index], other, *held[index + 1 :]]
            setattr(parent, field, new)
            mutant = answer()
            setattr(parent, field, held)
            yield f"line {node_line(node, parent)}: {said(node)} → {said(other)}", mutant


def node_line(node: ast.AST, parent: ast.AST) -> int:
    return getattr(node, "lineno", getattr(parent, "lineno", 0))


def said(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:80]


def survivors(exercise: Exercise) -> tuple[int, list[str]]:
    """How many mutants there are, and what was changed in those that pass."""
    n, alive = 0, []
    # What a wrong answer is called is not asked, and takes most of the time.
    unnamed = mock.patch.object(judge, "diagnose", return_value="")
    with unnamed, mock.patch.object(judge, "TIME_LIMIT_S", SECONDS), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, answer in mutants(exercise):
            n += 1
            if judge.judge(exercise, answer, hidden=True).outcome is Outcome.PASSED:
                alive.append(what)
    return n, alive


def without_line(what: str) -> str:
    """What was changed, wherever it stands: a docstring that grows moves every line."""
    return re.sub(r"^line \d+: ", "", what)


def explanations() -> dict[str, dict[str, str]]:
    """By exercise: each mutant that passes because it is right as well, and the reason."""
    text = EXPLAINED.read_text(encoding="utf-8") if EXPLAINED.exists() else ""
    return tomllib.loads(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lesson", nargs="?", choices=registry.lessons())
    parser.add_argument("exercise", nargs="?")
    args = parser.parse_args()
    asked = [e for e in registry.exercises(args.lesson) if args.exercise in (None, e.id)]
    if not asked:
        parser.error(f"no exercise {args.exercise!r} in {args.lesson}")
    explained = explanations()
    total = n_explained = n_new = 0
    for exercise in (bar := tqdm(asked, unit="exercise")):
        bar.set_description(exercise.id)
        n, alive = survivors(exercise)
        known = explained.get(exercise.id, {})
        new = [what for what in alive if without_line(what) not in known]
        total, n_new, n_explained = total + n, n_new + len(new), n_explained + len(alive) - len(new)
        for what in new:
            bar.write(f"{exercise.id}, {what}")
        for what in sorted(known.keys() - set(map(without_line, alive))):
            bar.write(f"{exercise.id}, explained but gone: {what}")
    print(
        f"{total} mutants of {len(asked)} exercises; {n_explained} pass and are explained, "
        f"{n_new} pass and are new: each is right as well, or a gap"
    )


if __name__ == "__main__":
    main()
