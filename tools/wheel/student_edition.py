"""Take the hidden named cases out of the checks' source: the edition for students has none.

Only their syntax trees are looked at; nothing is imported. A hidden case is given("name", True, …)
or Case("name", make, True), written straight into a tuple or list of cases. Where one is written
otherwise, so that what to take out cannot be told, there is no wheel but an error with the place.
"""

import ast
import re

CHECKS = "grader/checks/"
FLAG_PLACE = {"given": 1, "Case": 2}  # which argument says that the case is hidden


class CannotTell(ValueError):
    """A case of which it cannot be told whether, or how, it is to be taken out."""


def without_hidden_cases(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same files, the checks among them without hidden named cases.

    What only those cases used goes with them: helpers and constants at the top of a module. A
    module that had some is written anew from its syntax tree, so its comments are gone as well.
    """
    checks = {n: d.decode() for n, d in files.items() if n.startswith(CHECKS) and n.endswith(".py")}
    done = dict(files)
    for name, source in checks.items():
        others = "\n".join(text for other, text in checks.items() if other != name)
        done[name] = stripped(source, name, others).encode()
    return done


def stripped(source: str, name: str, others: str = "") -> str:
    """One module without its hidden named cases. others: text that may use what it defines."""
    tree = ast.parse(source)
    cut = _Cut(name)
    tree = cut.visit(tree)
    if not cut.taken:
        return source
    _drop_unused(tree, set().union(*map(_names, cut.taken)), others)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Cut(ast.NodeTransformer):
    """Takes hidden cases out of tuples and lists; refuses them anywhere else."""

    def __init__(self, file: str) -> None:
        self.file, self.taken = file, list[ast.expr]()

    def _of_some(self, node: ast.Tuple | ast.List) -> ast.AST:
        hidden = [e for e in node.elts if isinstance(e, ast.Call) and self._is_hidden(e)]
        self.taken += hidden
        node.elts = [element for element in node.elts if element not in hidden]
        return self.generic_visit(node)

    visit_Tuple = visit_List = _of_some  # noqa: N815  (the names that ast looks for)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._is_hidden(node):  # those of tuples and lists have been taken out by now
            raise self._cannot_tell(node)
        return self.generic_visit(node)

    def _is_hidden(self, call: ast.Call) -> bool:
        kind = call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)
        place = FLAG_PLACE.get(kind)
        named = [k.value for k in call.keywords if k.arg == "hidden" and kind != "given"]
        if place is None:
            if any(isinstance(v, ast.Constant) and v.value is True for v in named):
                raise self._cannot_tell(call)  # replace(case, hidden=True), for one
            return False
        before = call.args[: place + 1]
        unpacked = kind == "Case" and any(k.arg is None for k in call.keywords)
        if unpacked or any(isinstance(argument, ast.Starred) for argument in before):
            raise self._cannot_tell(call)
        flags = [*call.args[place : place + 1], *named]
        if not all(isinstance(f, ast.Constant) and isinstance(f.value, bool) for f in flags):
            raise self._cannot_tell(call)
        return any(isinstance(flag, ast.Constant) and flag.value for flag in flags)

    def _cannot_tell(self, node: ast.AST) -> CannotTell:
        return CannotTell(
            f'{self.file}, line {node.lineno}: write a hidden case as given("name", True, …) or '  # type: ignore[attr-defined]
            'Case("name", make, True) straight into a tuple of cases, so that it can be taken out'
        )


def _drop_unused(tree: ast.Module, candidates: set[str], others: str) -> None:
    """Delete the definitions that nothing uses any more, of those that hidden cases used."""
    while True:
        for node in tree.body:
            names = _defined(node)
            rest = [other for other in tree.body if other is not node]
            used = set().union(*map(_names, rest)) if rest else set()
            elsewhere = any(re.search(rf"\b{re.escape(n)}\b", others) for n in names)
            if names and names <= candidates and not names & used and not elsewhere:
                candidates |= _names(node)
                tree.body.remove(node)
                break
        else:
            return


def _defined(node: ast.stmt) -> set[str]:
    """What a statement at the top of a module gives a name to, other than imports."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {name for target in node.targets for name in _names(target)}
    return {_name(node.target)} - {""} if isinstance(node, ast.AnnAssign) else set()


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    """Every plain name in a tree, and every text: __all__ names what is used elsewhere."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {
        p.value for p in ast.walk(node) if isinstance(p, ast.Constant) and isinstance(p.value, str)
    }
