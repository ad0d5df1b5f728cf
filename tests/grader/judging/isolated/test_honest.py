"""Honest but awkward submissions: whatever else a notebook does, right answers earn everything."""

import json

import pytest
from isolated_submissions import (
    ANSWER,
    CACHE,
    GOOD,
    RIGHT,
    ROOT,
    SHORT,
    TOKEN,
    body,
    code,
    grade,
    instead,
    lost,
    said,
    solved,
    written,
)

from grader.judging import registry
from grader.judging.isolated import notebook as grading

BESIDES = {  # cells before the right ones
    "nothing": "",
    "prints much": "print('x' * 3_000_000)",
    "prints, warns, writes to stderr": (
        "import warnings, sys\nwarnings.warn('careful')\nprint('to stderr', file=sys.stderr)"
    ),
    "a progress bar": "from tqdm import tqdm\nfor _ in tqdm(range(3)): pass",
    "a progress bar of widgets": (
        "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass"
    ),
    "an error in a cell of its own": "1 / 0",
    "a syntax error": "def broken(:",
    "half a surrogate pair, printed and raised": "print('\\ud800')\nraise ValueError('\\udfff')",
    "magics": "%time 1 + 1\n%matplotlib inline\n%timeit -n1 -r1 1 + 1",
    "autoreload": "%load_ext autoreload\n%autoreload 2",
    "the shell": "!echo hello\nfiles = !ls\nget_ipython().system('true')",
    "a cell of bash": "%%bash\necho hello",
    "a file that is run": "open('other.py', 'w').write('found = 3')\n%run other.py\nfound",
    "top-level await": "import asyncio\nawait asyncio.sleep(0)",
    "tasks that go on": "import asyncio\ntask = asyncio.ensure_future(asyncio.sleep(60))",
    "a figure": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "a widget": "import ipywidgets\nipywidgets.interact(lambda n: n, n=(0, 10))",
    "everything of NumPy": "from numpy import *",
    "names of builtins taken": "list = 3\nsum = 'total'\nnp = None\nid = len",
    "a name beyond ASCII": "größe, π = 3, 3.14\nassert π * größe > 9",
    "another folder": "import os, tempfile\nos.chdir(tempfile.mkdtemp())",
    "files in its own folder": "open('notes', 'w').write('hi')\nassert open('notes').read()",
    "the course's data": "from inferlab.data import load_models\nassert len(load_models()) > 20",
    "asks a person": "name = input('who are you? ')",
    "stops in a debugger": "breakpoint()",
    "all of NumPy's errors raised": "import numpy as np\nnp.seterr(all='raise')",
    "warnings as errors": "import warnings\nwarnings.simplefilter('error')",
    "another way of printing": (
        "import numpy as np\nnp.set_printoptions(precision=1)\n"
        "import sys\nsys.set_int_max_str_digits(700)"
    ),
    "torch's default type": "import torch\ntorch.set_default_dtype(torch.float64)",
    "seeds": "import random, numpy as np, torch\nrandom.seed(1); np.random.seed(1)\n"
    "torch.manual_seed(1)",
    "a big import": "import torch.nn, torch.optim, concurrent.futures, unittest",
    "a thread": "import threading\nt = threading.Thread(target=print)\nt.start(); t.join()",
    "a pool of processes": (
        "import multiprocessing\nwith multiprocessing.Pool(2) as pool: pool.map(abs, [1, -1])"
    ),
    "a program": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1'], check=True)",
    "sys.exit in a cell of its own": "import sys\nsys.exit()",
    "exit()": "exit()",
    "an interrupt": "raise KeyboardInterrupt",
    "a low limit on recursion": "import sys\nsys.setrecursionlimit(200)",
    "at its end": "import atexit\natexit.register(print, 'bye')",
    "packages from the network": "import urllib.request\nurllib.request.urlopen('http://a.b/')",
    "sleeps": "import time\ntime.sleep(1)",
}  # fmt: skip


@pytest.mark.parametrize("besides", BESIDES.values(), ids=BESIDES)
def test_what_stands_beside_a_right_answer_costs_nothing(zygote, besides, record_property):
    assert lost(zygote, [besides, *GOOD, besides]) == {}
    record_property("count", "submissions graded by the isolated judge")


IN_WORDS = f"def f(config, bytes_per_number=2): return {RIGHT}\n"
WAYS = {  # to write the function itself
    "a loop": body("""
        total = 0
        for _ in range(config.n_layers):
            total += 2 * config.n_kv_heads * config.d_head
        return total * bytes_per_number
        """),
    "recursion": body("""
        def layers(n):
            return 0 if n == 0 else 2 * config.n_kv_heads * config.d_head + layers(n - 1)
        return layers(config.n_layers) * bytes_per_number
        """),
    "NumPy's whole numbers": body(f"return np.int64({RIGHT})", "import numpy as np"),
    "an array without axes": body(f"return np.array({RIGHT})", "import numpy as np"),
    "a tensor": body(f"return torch.tensor({RIGHT})", "import torch"),
    "a subclass of int": body(f"return N({RIGHT})", "class N(int): pass"),
    "True for one": body("return int(True) * " + RIGHT),
    "a lambda": instead(f"kv_bytes_per_token = lambda config, bytes_per_number=2: {RIGHT}"),
    "a callable object": instead(
        f"class F:\n    def __call__(self, config, bytes_per_number=2): return {RIGHT}\n"
        "kv_bytes_per_token = F()"
    ),
    "a bound method": instead(
        f"class F:\n    def g(self, config, bytes_per_number=2): return {RIGHT}\n"
        "kv_bytes_per_token = F().g"
    ),
    "a partial": instead(
        "from functools import partial\n"
        + IN_WORDS.replace("(config", "(kinds, config").replace("return 2", "return kinds")
        + "kv_bytes_per_token = partial(f, 2)"
    ),
    "a closure": instead(
        "def make(kinds):\n    def inner(config, bytes_per_number=2):\n"
        f"        return {RIGHT.replace('2 *', 'kinds *')}\n    return inner\n"
        "kv_bytes_per_token = make(2)"
    ),
    "remembers": instead(
        "from functools import lru_cache\n" + IN_WORDS + "kv_bytes_per_token = lru_cache()(f)"
    ),
    "wrapped by a decorator": instead(
        "import functools\ndef timed(f):\n    @functools.wraps(f)\n"
        "    def inner(*args, **kwargs): return f(*args, **kwargs)\n    return inner\n"
        + IN_WORDS + "kv_bytes_per_token = timed(f)"
    ),
    "any arguments": instead(IN_WORDS + "def kv_bytes_per_token(*args, **kwargs):\n"
                             "    return f(*args, **kwargs)"),
    "a helper defined later": [
        "def kv_bytes_per_token(config, bytes_per_number=2): return f(config, bytes_per_number)",
        IN_WORDS, CACHE, ANSWER,
    ],
    "a dataclass of its own": body(f"return Sizes(config, {RIGHT}).total", """
        from dataclasses import dataclass
        @dataclass
        class Sizes:
            config: object
            total: int
        """),
    "prints in the call": body(f"print('now', config)\nreturn {RIGHT}"),
    "warns in the call": body(f"warnings.warn('odd', RuntimeWarning)\nreturn {RIGHT}",
                              "import warnings"),
    "divides by zero on the way, under seterr": body(
        f"np.float64(1) / np.float64(0)\nreturn {RIGHT}",
        "import numpy as np, warnings\nnp.seterr(all='raise')\nwarnings.simplefilter('error')"),
    "asks a person in the call": body(f"""
        try: input()
        except EOFError: pass
        return {RIGHT}
        """),
    "waits in the call": body(f"time.sleep(0.02)\nreturn {RIGHT}", "import time"),
    "awaits in the call": body(f"return asyncio.run(later({RIGHT}))",
                               "import asyncio\nasync def later(n): return n"),
    "threads in the call": body(
        f"with ThreadPoolExecutor(2) as pool: return pool.submit(lambda: {RIGHT}).result()",
        "from concurrent.futures import ThreadPoolExecutor"),
    "writes a file in the call": body(f"open('seen', 'a').write('x')\nreturn {RIGHT}"),
    "written twice, the second time right": ["def kv_bytes_per_token(): pass", *GOOD],
    "a tag says skip": [code(TOKEN, tags=["skip-execution"]), *GOOD[1:]],
    "a tag says that it raises": [code(TOKEN, tags=["raises-exception"]), *GOOD[1:]],
    "asks the notebook's own check": [*GOOD, "check('kv_cache_bytes')\ncheck(kv_cache_bytes)"],
    "makes the check its own": [*GOOD, "check = None"],
}  # fmt: skip


@pytest.mark.parametrize("cells", WAYS.values(), ids=WAYS)
def test_any_way_of_writing_it_earns_everything(zygote, cells, record_property):
    assert lost(zygote, cells) == {}
    record_property("count", "submissions graded by the isolated judge")


ARRAYS = {  # attend_one, judged on its numbers: what may come in place of an array of float64
    "a list": "return out.tolist()",
    "float32": "return out.astype(np.float32).astype(np.float64)",
    "big-endian": "return out.astype('>f8')",
    "long doubles": "return out.astype(np.longdouble)",
    "every second number of a larger one": "b = np.empty((*out.shape, 2))\n"
    "    b[..., 0] = out\n    return b[..., 0]",
    "backwards in memory": "return out[::-1].copy()[::-1]",
    "column by column": "return np.asfortranarray(out)",
    "read-only": "out.flags.writeable = False\n    return out",
    "a tensor with a gradient": "import torch\n"
    "    return torch.tensor(out, requires_grad=True) * 1",
    "a masked array": "return np.ma.masked_array(out)",
    "a matrix": "return np.asmatrix(out)",
    "rows of NumPy scalars": "return [[np.float64(x) for x in row] for row in out]",
    "its own kind of array": "class A(np.ndarray): pass\n    return out.view(A)",
}


@pytest.mark.parametrize("way", ARRAYS.values(), ids=ARRAYS)
def test_any_kind_of_array_with_the_right_numbers_earns_everything(zygote, way, record_property):
    cell = (
        "import numpy as np\n"
        "def attend_one(q, k, v):\n"
        "    s = np.einsum('hd,hsd->hs', q, k) / np.sqrt(q.shape[-1])\n"
        "    w = np.exp(s - s.max(-1, keepdims=True))\n"
        "    out = np.einsum('hs,hsd->hd', w / w.sum(-1, keepdims=True), v)\n"
        f"    {way}"
    )
    found = lost(zygote, [cell], checks=("attend_one",))
    assert found == ({"attend_one": "wrong value"} if way == ARRAYS["float32"] else {})
    record_property("count", "submissions graded by the isolated judge")


PAGES = ("PageAllocator",)
CLASSES = {  # PageAllocator of lesson 10, with another word or two
    "as it is": ("", ""),
    "how it is shown": (
        "    def allocate(", "    def __repr__(self): return 'pages'\n\n    def allocate("),
    "a helper": (
        "page = self.free.pop()", "page = self._take()"),
    "an attribute made on the way": (
        "self.ref_counts[page] = 1", "self.n_given = 1\n        self.ref_counts[page] = 1"),
    "a decorated method": (
        "    def allocate(", "    @no_change\n    def allocate("),
    "lists made anew, not changed": (
        "self.free.append(page)", "self.free = [*self.free, page]"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), CLASSES.values(), ids=CLASSES)
def test_any_way_of_writing_a_class_earns_everything(zygote, old, new, record_property):
    first, cell = written("10_batching", *PAGES)
    assert old in cell
    helpers = (
        "import functools\ndef no_change(f):\n    @functools.wraps(f)\n"
        "    def inner(self, *rest): return f(self, *rest)\n    return inner"
    )
    taken = "\n\n    def _take(self): return self.free.pop()\n"
    cells = [first, helpers, cell.replace(old, new, 1).rstrip() + taken]
    assert lost(zygote, cells, "10_batching", PAGES) == {}
    record_property("count", "submissions graded by the isolated judge")


ANSWERS = {
    "a number": '842',
    "text with spaces": '"  842 "',
    "a float": '842.0',
    "NumPy": '__import__("numpy").int32(842)',
}  # fmt: skip


@pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)
def test_a_right_answer_in_any_form_earns_its_point(zygote, given, record_property):
    cells = [
        "from grader import Answers",
        "answers = Answers('')",
        f"answers['kv_q_steps'] = {given}",
    ]
    assert lost(zygote, cells, checks=("kv_q_steps",)) == {}
    record_property("count", "submissions graded by the isolated judge")


def test_the_release_earns_nothing_for_one_reason(zygote):
    path = ROOT / "notebooks" / "04_kv_cache" / "04_kv_cache.ipynb"
    results = grading.grade(json.loads(path.read_text()), "04_kv_cache", zygote).results
    assert {r.earned for r in results} == {0}
    assert {r.reason for r in results} == {"not written"}


@pytest.mark.parametrize("lesson", registry.lessons())
def test_every_lessons_solution_earns_all_of_its_points(zygote, lesson):
    results = grading.grade(solved(lesson), lesson, zygote).results
    ids = [f"check_{e.grade_id}" for e in registry.exercises(lesson)]
    ids += [f"check_{q.id}" for q in registry.questions(lesson)]
    assert [r.grade_id for r in results] == ids
    assert [r.grade_id for r in results if r.earned < r.points] == []


def test_a_wrong_part_does_not_drag_those_that_call_it(zygote):
    """Lesson 02 judges each part with the course's own parts beside it, here too."""
    wrong = solved("02_forward_pass", "a * cos - b * sin", "a * cos + b * sin")
    results = grading.grade(wrong, "02_forward_pass", zygote).results
    assert {r.grade_id: r.reason for r in results if r.reason} == {"check_rotate": "wrong value"}


def test_what_is_printed_is_kept_up_to_a_limit_and_the_cell_says_so(zygote):
    result = grade(
        zygote, ["print('é' * 3_000_000)\nfrom IPython.display import HTML\nHTML('<b>')"]
    )
    text = json.dumps(result.outputs[0], ensure_ascii=False)
    assert len(text.encode()) < 1_100_000
    assert "more are left out" in text


def test_the_same_bytes_give_the_same_result(zygote):
    cells = body("return int(np.random.randint(10)) + random.randrange(10)",
                 "import random, numpy as np")  # fmt: skip
    one, two = (grade(zygote, cells, times=SHORT).results for _ in range(2))
    assert one == two
    assert said(zygote, "print({'a', 'b', 'c'}, hash('a'))") == said(
        zygote, "print({'a', 'b', 'c'}, hash('a'))"
    )
