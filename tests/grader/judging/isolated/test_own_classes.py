"""Classes as students write them: what passes in the notebook passes where it is graded."""

import pytest
from isolated_submissions import lost, written

from grader.judging import registry
from grader.judging.judge import judge

LESSONS = {
    "KVCache": ("04_kv_cache", ("KVCache_reserve", "KVCache_append", "KVCache_truncate")),
    "SlidingWindowCache": ("04_kv_cache", ("SlidingWindowCache",)),
    "NgramIndex": ("08_speculative_sampling", ("NgramIndex",)),
    "PageAllocator": ("10_batching", ("PageAllocator",)),
    "PrefixCache": ("10_batching", ("PrefixCache_lookup", "PrefixCache_evict")),
}
BEFORE = {"PrefixCache": ("PageAllocator", "page_hashes")}
# What a learner adds: at the head of the class, at the start of each method, and after the class.
ADDED = {
    "nothing": ("", "", ""),
    "a constant of the class": ("SPARE = 3", "assert self.SPARE == 3", ""),
    "a constant that an object changes": ("calls = 0", "self.calls += 1", ""),
    "a property": (
        "@property\ndef double(self): return 2 * len(vars(type(self)))",
        "assert self.double > 2",
        "",
    ),
    "a property that can be set": (
        "@property\ndef mark(self): return self._mark\n"
        "@mark.setter\ndef mark(self, value): self._mark = value + 1",
        "self.mark = 1\nassert self.mark == 2",
        "",
    ),
    "a static method": ("@staticmethod\ndef one(): return 1", "assert self.one() == 1", ""),
    "a class method": (
        "@classmethod\ndef called(cls): return cls.__name__",
        "assert self.called() == type(self).__name__ == NAME",
        "",
    ),
    "a helper": ("def _help(self, n): return n + 1", "assert self._help(1) == 2", ""),
    "isinstance of its own class": ("", "assert isinstance(self, globals()[NAME])", ""),
    "an object of another class": (
        "",
        "if not hasattr(self, 'log'): self.log = Log()\nself.log.add(self)\nassert self.log.n > 0",
        "class Log:\n    def __init__(self): self.n = 0\n"
        "    def add(self, owner): self.n += 1; self.last = owner; assert owner is self.last",
    ),
    "a dict and a list of its own": (
        "",
        "if not hasattr(self, 'notes'): self.notes, self.seen = {}, []\n"
        "self.notes['n'] = self.notes.get('n', 0) + 1\nself.seen.append(1)\n"
        "assert len(self.seen) == self.notes['n']",
        "",
    ),
    "a dunder": ("def __len__(self): return 7", "assert len(self) == 7", ""),
}


def changed(name: str, head: str, start: str) -> list[str]:
    """The lesson's first cell, and the class with these lines in it."""
    lesson, _ = LESSONS[name]
    *others, cell = written(lesson, *BEFORE.get(name, ()), name)
    lines, out = cell.splitlines(), []
    in_class = begun = False
    for line in lines:
        out.append(line)
        if line.startswith("class "):
            in_class, begun = True, False
        elif in_class and line.strip().endswith('"""') and not begun:
            begun = True
            out += [f"    {part}" for part in head.splitlines()]
    source = "\n".join(out)
    return [*others, f"NAME = {name!r}", with_start(source, start)]


def with_start(source: str, start: str) -> str:
    """These lines at the start of each method but the properties and what makes an object."""
    import ast

    tree = ast.parse(source)
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    lines = source.splitlines()
    for node in reversed(kind.body):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or "_" in node.name[:1]:
            continue
        has_docstring = isinstance(node.body[0], ast.Expr) and len(node.body) > 1
        at = node.body[1 if has_docstring else 0].lineno - 1
        lines[at:at] = [f"        {part}" for part in start.splitlines()]
    return "\n".join(lines)


# All of them in the class that is quickest to judge; in the others, all at once.
ONE_BY_ONE = [("PageAllocator", added) for added in ADDED.values()]
# The notebook's own check grafts PrefixCache's methods on the course's class, so self is no
# instance of the learner's there either.
GRAFTED = ("isinstance of its own class", "a class method")
AT_ONCE = {
    name: tuple("\n".join(part for key, a in ADDED.items() if name != "PrefixCache"
                          or key not in GRAFTED for part in [a[i]] if part) for i in range(3))
    for name in LESSONS
}  # fmt: skip


@pytest.mark.parametrize(("name", "added"), [*ONE_BY_ONE, *AT_ONCE.items()])
def test_what_passes_in_the_notebook_passes_where_it_is_graded(zygote, name, added):
    lesson, checks = LESSONS[name]
    head, start, after = added
    cells = [*changed(name, head, start), after]
    assert in_the_notebook(lesson, name, cells) == {}
    assert lost(zygote, cells, lesson, checks) == {}


def in_the_notebook(lesson: str, name: str, cells: list[str]) -> dict[str, str]:
    """Exercise -> what the notebook's own check says of it, where it does not pass."""
    namespace: dict = {"__name__": "__main__"}
    for cell in cells:
        lines = [x for x in cell.splitlines() if not x.startswith(("%", "!"))]
        exec("\n".join(lines), namespace)
    found = [e for e in registry.exercises(lesson) if e.name == name]
    verdicts = {e.id: judge(e, namespace[name], hidden=True) for e in found}
    return {key: verdict.text() for key, verdict in verdicts.items() if not verdict.passed}


INITS = {
    "a counter": ("self.n_calls = 0", "self.n_calls += 1\nassert self.n_calls > 0"),
    "a helper object": (
        "self.helper = Helper(self)",
        "self.helper.n += 1\nassert self.helper.owner is self",
    ),
    "more arguments": ("assert extra == 5\nself.extra = extra", "assert self.extra == 5"),
    "super()": ("super().__init__()", "assert super().__eq__(self) in (True, NotImplemented)"),
}


@pytest.mark.parametrize(("line", "start"), INITS.values(), ids=INITS)
def test_what_makes_an_object_is_the_students_own(zygote, line, start):
    first, cell = written("10_batching", "PageAllocator")
    made = cell.replace("(self, n_pages: int)", "(self, n_pages: int, extra=5)")
    at = "        self.free = list("
    assert at in made
    lines = "".join(f"        {part}\n" for part in line.splitlines())
    own = with_start(made.replace(at, lines + at, 1), start)
    helper = "class Helper:\n    def __init__(self, owner): self.n, self.owner = 0, owner"
    cells = [first, helper, own]
    assert in_the_notebook("10_batching", "PageAllocator", cells) == {}
    assert lost(zygote, cells, "10_batching", ("PageAllocator",)) == {}


def test_a_class_that_extends_another_of_the_notebooks(zygote):
    first, cell = written("10_batching", "PageAllocator")
    base = "class Base:\n    KIND = 'base'\n    def size(self): return len(self.ref_counts)"
    own = with_start(
        cell.replace("class PageAllocator:", "class PageAllocator(Base):"),
        "assert super().size() == self.size() == self.n_pages\nassert self.KIND == 'base'",
    )
    cells = [first, base, own]
    assert in_the_notebook("10_batching", "PageAllocator", cells) == {}
    assert lost(zygote, cells, "10_batching", ("PageAllocator",)) == {}


WRONG = {
    "an __init__ that makes too little": ("self.free = list(range(n_pages - 1", "self.free = list("
                                          "range(n_pages - 2"),
    "a counter that is never there": ("page = self.free.pop()", "page = self.lost.pop()"),
    "one that forgets": ("self.ref_counts[page] = 1", "pass"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WRONG.values(), ids=WRONG)
def test_what_fails_in_the_notebook_fails_where_it_is_graded(zygote, old, new):
    first, cell = written("10_batching", "PageAllocator")
    assert old in cell
    cells = [first, cell.replace(old, new, 1)]
    assert in_the_notebook("10_batching", "PageAllocator", cells) != {}
    assert lost(zygote, cells, "10_batching", ("PageAllocator",)).keys() == {"PageAllocator"}
