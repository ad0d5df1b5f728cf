"""Take a definition from the reference and mark what the learner is to write.

Everything works on text and syntax trees; nothing of the reference is imported.
"""

import ast
import builtins
import symtable
from collections.abc import Iterable, Sequence
from pathlib import Path

from nbformat import NotebookNode

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class BuildError(ValueError):
    """A lesson that cannot be built; the message names the script, the cell and the reason."""


def definition(source_root: Path, module: str, name: str) -> tuple[str, bool]:
    """Source of the top-level def or class `name` of `module`, and whether it is a class.

    Decorators and the comments inside belong to it; comment lines above it do not.
    """
    path = source_root.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        raise BuildError(f"no module {module}: {path} is no file")
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            last = last_line(node, lines)
            return "\n".join(lines[first - 1 : last]), isinstance(node, ast.ClassDef)
    raise BuildError(f"{module} has no def or class {name!r}")


def last_line(node: Function | ast.ClassDef, lines: Sequence[str]) -> int:
    """Last line of a definition, counted from 1, with the comments that end its body."""
    end = node.end_lineno or node.lineno
    indent = node.body[0].col_offset
    for number, line in enumerate(lines[end:], end + 1):
        text = line.lstrip()
        if text and not (text.startswith("#") and len(line) - len(text) >= indent):
            break
        end = number if text else end
    return end


def mark_bodies(source: str, paths: Sequence[str]) -> str:
    """Put markers round the bodies of the functions at `paths`, after their docstrings.

    source: one def or class; paths: "name", or "Class.method". Raises BuildError when a path
    leads to no function, or to one whose docstring or body is missing.
    """
    if "BEGIN SOLUTION" in source or "END SOLUTION" in source:
        raise BuildError("the reference itself holds a solution marker")
    lines = source.splitlines()
    functions = functions_by_path(ast.parse(source))
    for path in paths:
        if path not in functions:
            raise BuildError(f"no method {path!r} to write; there are {sorted(functions)}")
    bodies = [body_span(path, functions[path], lines) for path in paths]
    for start, end, indent in sorted(bodies, reverse=True):
        lines.insert(end, " " * indent + END)
        lines.insert(start, " " * indent + BEGIN)
    return "\n".join(lines)


def functions_by_path(tree: ast.Module) -> dict[str, Function]:
    """The functions of a module and of its classes, by "name" and "Class.method"."""
    found: dict[str, Function] = {}
    for node in tree.body:
        if isinstance(node, Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, Function))
            found |= {f"{node.name}.{method.name}": method for method in methods}
    return found


def body_span(path: str, node: Function, lines: Sequence[str]) -> tuple[int, int, int]:
    """Lines of a body after its docstring, as a slice, and its indentation."""
    if ast.get_docstring(node) is None:
        raise BuildError(f"{path} has no docstring; it is the exercise's statement")
    if len(node.body) == 1:
        raise BuildError(f"{path} has no body to write")
    docstring, first = node.body[:2]
    start = docstring.end_lineno or docstring.lineno
    if first.lineno == start or docstring.lineno == node.lineno:
        raise BuildError(f"{path}: its docstring and its body must stand on lines of their own")
    return start, last_line(node, lines), first.col_offset


def unbound_names(cells: Iterable[NotebookNode]) -> None:
    """Refuse a pasted definition that needs a name which no cell of the notebook brings.

    A helper or an import of the reference's module does not come along with a pasted function.
    """
    tables = {
        position: symbols(cell.source, position)
        for position, cell in enumerate(cells, 1)
        if cell.cell_type == "code"
    }
    pasted = {
        position: cell.metadata.get("nbgrader", {}).get("grade_id", "")
        for position, cell in enumerate(cells, 1)
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("solution")
    }
    bound = set(dir(builtins)) | {
        symbol.get_name()
        for table in tables.values()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    for position, grade_id in pasted.items():
        missing = sorted(global_reads(tables[position]) - bound)
        if missing:
            raise BuildError(f"{grade_id!r} uses {missing}, which no cell of the notebook defines")


def symbols(source: str, position: int) -> symtable.SymbolTable:
    """The names of a code cell; IPython's line magics and shell lines have none."""
    plain = "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()
    )
    try:
        return symtable.symtable(plain, f"cell {position}", "exec")
    except SyntaxError as error:
        raise BuildError(f"cell {position} of the notebook is not Python: {error}") from error


def global_reads(table: symtable.SymbolTable) -> set[str]:
    """Names that a block and the blocks in it read from the module's level."""
    at_top = table.get_type() == "module"
    own = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (at_top or symbol.is_global())
    }
    return own.union(*(global_reads(child) for child in table.get_children()))
