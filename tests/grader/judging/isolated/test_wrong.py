"""Wrong answers: each costs its own question alone, for exactly one reason, and no other."""

import pytest
from isolated_submissions import (
    CACHE,
    GOOD,
    RIGHT,
    SHORT,
    TOKEN,
    body,
    check_cell,
    code,
    grade,
    instead,
    lost,
    solved,
    written,
)

from grader.judging.isolated import notebook as grading
from grader.judging.isolated.students import OwnFault

VALUE, KIND, RAISED = "wrong value", "wrong shape or type", "raised"

WRONG = {
    "another number": (body("return 7"), VALUE),
    "a number too large to write": (body("return 10 ** 100_000"), VALUE),
    "a negative of it": (body(f"return -({RIGHT})"), VALUE),
    "right the first time only": (body(f"seen.append(1)\nreturn {RIGHT} if len(seen) < 2 else 0",
                                       "seen = []"), VALUE),
    "right for the visible cases": (body("""
        known = {(32, 8, 128, 2): 131072}
        key = (config.n_layers, config.n_kv_heads, config.d_head, bytes_per_number)
        return known.get(key, 0)
        """), VALUE),
    "a float": (body(f"return float({RIGHT})"), KIND),
    "infinity": (body("return float('inf')"), VALUE),
    "not a number": (body("return float('nan')"), VALUE),
    "True": (body("return True"), KIND),
    "nothing": (body("pass"), KIND),
    "a text": (body("return 'a lot'"), KIND),
    "the right text": (body(f"return str({RIGHT})"), KIND),
    "a list of it": (body(f"return [{RIGHT}]"), KIND),
    "an array of it": (body(f"return np.array([{RIGHT}])", "import numpy as np"), KIND),
    "a complex number": (body(f"return complex({RIGHT})"), KIND),
    "a date": (body("return np.datetime64('2026-01-01')", "import numpy as np"), KIND),
    "an array of objects": (body(f"return np.array({RIGHT}, dtype=object)", "import numpy as np"),
                            KIND),
    "an array of records": (body("return np.zeros(1, 'i4,f4')", "import numpy as np"), KIND),
    "an array of texts": (body(f"return np.array(str({RIGHT}))", "import numpy as np"), KIND),
    "a tensor on no device": (body("return torch.empty(3, device='meta')", "import torch"), RAISED),
    "a module": (body("return math", "import math"), KIND),
    "a class": (body("return int"), KIND),
    "itself": (body("return kv_bytes_per_token"), KIND),
    "its argument": (body("return config"), KIND),
    "an answer for later": (body(f"return lambda: {RIGHT}"), KIND),
    "a coroutine": (instead("async def kv_bytes_per_token(config, bytes_per_number=2):\n"
                            f"    return {RIGHT}"), KIND),
    "a generator": (body(f"yield {RIGHT}"), KIND),
    "a generator that never ends": (body("return (1 for _ in iter(int, 1))"), KIND),
    "a range without end": (body("return range(10 ** 18)"), KIND),
    "an error": (body("return ValueError(1)"), KIND),
    "the ellipsis": (body("return ..."), KIND),
    "bytes": (body("return b'131072'"), KIND),
    "a set": (body(f"return {{{RIGHT}}}"), KIND),
    "raises": (body("return config.n_heads / 0"), RAISED),
    "raises an error of its own": (body("raise Mine('no')", "class Mine(Exception): pass"), RAISED),
    "raises an interrupt": (body("raise KeyboardInterrupt"), RAISED),
    "raises a group": (body("raise ExceptionGroup('all', [ValueError(1)])"), RAISED),
    "raises an error that has no text": (
        body("raise Mine", "class Mine(Exception):\n    def __str__(self): return 1 / 0"), RAISED),
    "raises an error whose text exits": (
        body("raise Mine", "class Mine(Exception):\n    def __str__(self): raise SystemExit"),
        RAISED),
    "raises half a surrogate pair": (body("raise ValueError('\\ud800')"), RAISED),
    "raises a long text": (body("raise ValueError('x' * 10 ** 7)"), RAISED),
    "other parameters": (instead(f"def kv_bytes_per_token(model): return {RIGHT}"), RAISED),
    "recursion without end": (body("return kv_bytes_per_token(config, bytes_per_number)"), RAISED),
    "a list that holds itself": (body("out = []\nout.append(out)\nreturn out"), RAISED),
    "a deep list": (body("out = []\nfor _ in range(5000): out = [out]\nreturn out"), RAISED),
    "not written": (body("raise NotImplementedError('write this')"), "not written"),
    "no such function": (instead("x = 1"), "missing"),
    "deleted again": (instead(TOKEN + "\ndel kv_bytes_per_token"), "missing"),
    "its cell does not run": (instead("1 / 0\n" + TOKEN), "missing"),
    "its cell does not parse": (instead(TOKEN + ")"), "missing"),
    "a number in its place": (instead("kv_bytes_per_token = 131072"), KIND),
    "None in its place": (instead("kv_bytes_per_token = None"), KIND),
    "a module in its place": (instead("import math as kv_bytes_per_token"), RAISED),
    "written again, wrong, after all": ([*GOOD, "kv_bytes_per_token = lambda *a, **k: 1"], VALUE),
    "a helper changed after its use": (
        ["def kinds(): return 2", TOKEN.replace("return 2", "return kinds()"), *GOOD[1:],
         "def kinds(): return 3"], VALUE),
    "memory in the call": (body("return len(bytearray(10 ** 12))"), "out of memory"),
    "memory of NumPy": (body("return np.zeros(10 ** 12).size", "import numpy as np"),
                        "out of memory"),
    "memory of torch": (body("return torch.zeros(10 ** 12).numel()", "import torch"),
                        "out of memory"),
    "an answer of 300 MB": (body("return bytes(300_000_000)"), "too much output"),
    "an answer of many words": (body("return ['word'] * 5_000_000"), "too much output"),
    "sys.exit in the call": (body("import sys\nsys.exit(0)"), "exited"),
    "exit in the call": (body("exit()"), RAISED),
    "os._exit in the call": (body("import os\nos._exit(0)"), "exited"),
    "os.abort in the call": (body("import os\nos.abort()"), "exited"),
    "kills itself": (body("import os\nos.kill(os.getpid(), 9)\nimport ctypes\n"
                          "ctypes.string_at(0)"), "exited"),
    "kills everything": (
        body("import os\ntry: os.kill(-1, 9)\nexcept OSError: os._exit(1)"), "exited"),
    "a crash": (body("import ctypes\nctypes.string_at(0)"), "exited"),
    "a crash of Python's own stack": (
        body("sys.setrecursionlimit(10 ** 9)\nx = ()\nfor _ in range(10 ** 6): x = (x,)\n"
             "hash(x)", "import sys"), "exited"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_costs_its_own_question_alone(zygote, cells, reason, record_property):
    assert lost(zygote, cells) == {"kv_bytes_per_token": reason}
    record_property("count", "submissions graded by the isolated judge")


ENDLESS = {
    "a loop": "while True: pass",
    "a loop that swallows interrupts": """
        while True:
            try:
                while True: pass
            except BaseException: pass
        """,
    "a loop that takes the alarm": """
        import signal
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        signal.signal(signal.SIGALRM, lambda *_: None)
        while True: signal.pause()
        """,
    "sleep": "import time\ntime.sleep(10 ** 6)",
    "a lock taken twice": "import threading\nlock = threading.Lock()\nwhile lock.acquire(): pass",
    "in C": "return sum(iter(int, 1))",
    "an error whose text takes for ever": """
        class Slow(Exception):
            def __str__(self):
                while True: pass
        raise Slow
        """,
    "a deleted object that never goes": """
        class Slow:
            def __del__(self):
                while True: pass
        Slow()
        """,
}  # fmt: skip


@pytest.mark.parametrize("lines", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_answer_costs_its_question_and_no_other(zygote, lines, record_property):
    assert lost(zygote, body(lines), times=SHORT) == {"kv_bytes_per_token": "out of time"}
    record_property("count", "submissions graded by the isolated judge")


def test_a_flood_of_printing_is_too_much_output(zygote, record_property):
    flood = body("while True:\n    try: print('x' * 10 ** 6)\n    except Exception: pass")
    assert lost(zygote, flood) == {"kv_bytes_per_token": "too much output"}
    record_property("count", "submissions graded by the isolated judge")


ENDINGS = {
    "an endless loop": ("while True: pass", "out of time"),
    "a hard exit": ("import os\nos._exit(3)", "exited"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "exited"),
    "a new program in its place": ("import os\nos.execv('/bin/true', ['true'])", "exited"),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "reason"), ENDINGS.values(), ids=ENDINGS)
def test_a_cell_that_ends_the_process_costs_only_itself(zygote, ending, reason, record_property):
    """Cells before it are run again without it; cells after it go on."""
    result = grade(zygote, [TOKEN, ending, *GOOD[1:]], times=SHORT)
    assert result.reasons() == {}
    assert [gone.reason for gone in result.lost.values()] == [reason]
    record_property("count", "submissions graded by the isolated judge")


def test_a_notebook_of_slow_cells_has_an_end(zygote, record_property):
    """Each cell within its limit, all together not: what was judged by then keeps its points."""
    times = grading.Times(cell_s=2, check_s=30, all_s=5)
    early = [code(cell) for cell in GOOD] + [check_cell("04_kv_cache", "kv_bytes_per_token")]
    slow = [code("import time\ntime.sleep(1.5)")] * 40
    notebook = {"cells": [*early, *slow, check_cell("04_kv_cache", "kv_cache_bytes")]}
    results = grading.grade(notebook, "04_kv_cache", zygote, times).results
    assert [r.reason for r in results] == ["", "out of time"]
    record_property("count", "submissions graded by the isolated judge")


CLASSES = {  # PageAllocator of lesson 10: a method changed, or not there
    "another page": ("self.free.pop()", "self.free.pop(0)", VALUE),
    "a method missing": ("def share(", "def shared(", KIND),
    "the class without anything": (
        "class PageAllocator:", "class PageAllocator: pass\nclass Other:", KIND),
    "a method of the wrong kind": (
        "def share(self, page: int)", "share = 3\n\n    def shared(self, p)", RAISED),
    "an error in a method": ("self.ref_counts[page] += 1", "self.nothing += 1", RAISED),
    "a function in its place": ("class PageAllocator:", "class Other:", "missing"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reason"), CLASSES.values(), ids=CLASSES)
def test_a_wrong_method_costs_the_class(zygote, old, new, reason, record_property):
    first, cell = written("10_batching", "PageAllocator")
    assert old in cell
    found = lost(zygote, [first, cell.replace(old, new, 1)], "10_batching", ("PageAllocator",))
    assert found == {"PageAllocator": reason}
    record_property("count", "submissions graded by the isolated judge")


ODD_ANSWERS = {
    "nothing": ("...", "not written"),
    "spaces": ("'  '", "not written"),
    "another number": ("843", VALUE),
    "a large number": ("10 ** 400", VALUE),
    "infinity": ("float('inf')", VALUE),
    "a long text": ("'8' * 10 ** 6", VALUE),
    "half a surrogate pair": ("'\\ud800'", VALUE),
    "a list of all": ("list(range(1000))", VALUE),
    "an object": ("object()", VALUE),
    "a function": ("print", VALUE),
    "equal to everything": (
        "type('Y', (str,), {'__eq__': lambda s, o: True, '__hash__': str.__hash__})('x')", VALUE),
}  # fmt: skip


@pytest.mark.parametrize(("given", "reason"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_an_odd_answer_to_a_question(zygote, given, reason, record_property):
    cells = [
        "from grader import Answers",
        f"answers = Answers('')\nanswers['kv_q_steps'] = {given}",
    ]
    assert lost(zygote, cells, checks=("kv_q_steps",)) == {"kv_q_steps": reason}
    record_property("count", "submissions graded by the isolated judge")


ANSWER_BOOKS = {
    "none": "x = 1",
    "a text": "answers = 'kv_q_steps'",
    "an object that has every answer": (
        "class All:\n    learner = ''\n    def get(self, *_): return 842\n"
        "    __getitem__ = get\nanswers = All()"
    ),
    "a dict whose reading fails": (
        "class All(dict):\n    def get(self, *_): return 1 / 0\nanswers = All()"
    ),
}


@pytest.mark.parametrize("cell", ANSWER_BOOKS.values(), ids=ANSWER_BOOKS)
def test_odd_books_of_answers_earn_nothing(zygote, cell, record_property):
    reason = "exited" if "1 / 0" in cell else "not written"
    assert lost(zygote, [cell], checks=("kv_q_steps",)) == {"kv_q_steps": reason}
    record_property("count", "submissions graded by the isolated judge")


def test_work_in_place_on_an_input_is_seen(zygote, record_property):
    cell = "def attend_one(q, k, v):\n    q *= 0\n    return v[:, 0]"
    assert lost(zygote, [cell], checks=("attend_one",)) == {"attend_one": VALUE}
    record_property("count", "submissions graded by the isolated judge")


def test_what_is_held_at_once_is_counted_where_it_is_held(zygote, record_property):
    """A learner who keeps a large array on chip: the bytes are in their process, not here."""
    lesson, line = "06_flash_attention", "(n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("
    wrong = solved(lesson, line, f"kept = np.zeros((400, 400))\n    {line}")
    results = grading.grade(wrong, lesson, zygote).results
    assert {r.grade_id: r.reason for r in results if r.reason} == {"check_tiled_attention": VALUE}
    record_property("count", "submissions graded by the isolated judge")


# ---- not the student's fault -------------------------------------------------------------------


def test_a_check_that_nobody_knows_is_no_pass(zygote):
    cell = check_cell("04_kv_cache", "kv_cache_bytes")
    cell["metadata"]["nbgrader"]["grade_id"] = "check_of_another_year"
    with pytest.raises(OwnFault, match="check_of_another_year"):
        grading.grade({"cells": [code(CACHE), cell]}, "04_kv_cache", zygote)


def test_a_check_that_is_there_twice_is_not_counted_twice(zygote):
    cell = check_cell("04_kv_cache", "kv_cache_bytes")
    with pytest.raises(OwnFault, match="more than once"):
        grading.grade({"cells": [code(CACHE), cell, cell]}, "04_kv_cache", zygote)


def test_a_judge_that_fails_is_no_zero(zygote, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("the judge's own")

    monkeypatch.setattr(grading, "judge_on", fails)
    with pytest.raises(OwnFault, match="the judge's own"):
        grade(zygote, GOOD)
