"""Awkward, honest and hostile submissions: each earns what it should, for the reason it should.

Every submission is a small notebook: some cells, then the checks of two exercises worth 2 points
each and of one question. Graded by the isolated judge, walls and all, where this computer has them.
"""

import json
import os
import socket
import textwrap
import time
from pathlib import Path

import pytest

from grader import registry
from grader.isolated import notebook as grading
from grader.isolated.students import Isolation, Zygote
from sandbox import walls

ROOT = Path(__file__).resolve().parents[1]
LESSON = "04_kv_cache"
LEVEL, WHY = walls.level()
FULL = LEVEL == "full"

TOKEN = textwrap.dedent(
    """
    def kv_bytes_per_token(config, bytes_per_number=2):
        return 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number
    """
)
CACHE = textwrap.dedent(
    """
    def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):
        per_token = 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number
        return per_token * n_tokens * n_sequences
    """
)
ANSWER = 'from grader import Answers, check\nanswers = Answers("")\nanswers["kv_q_steps"] = "842"'
GOOD = [TOKEN, CACHE, ANSWER]
CHECKS = ("check_kv_bytes_per_token", "check_kv_cache_bytes", "check_kv_q_steps")


def code(source: str, **metadata) -> dict:
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": []}


def check_cell(grade_id: str, points: int, source: str = "") -> dict:
    facts = {"grade": True, "solution": False, "locked": True, "points": points}
    return code(source, nbgrader={**facts, "grade_id": grade_id})


def points(grade_id: str) -> int:
    check = grading.checks(LESSON)[grade_id]
    return check.points


def submission(cells: list[str]) -> dict:
    found = [cell if isinstance(cell, dict) else code(cell) for cell in cells]
    return {"cells": found + [check_cell(name, points(name)) for name in CHECKS]}


@pytest.fixture(scope="module")
def zygote():
    with Zygote(Isolation("full" if FULL else "limits")) as found:
        yield found


def graded(zygote, cells):
    result = grading.grade(submission(cells), LESSON, zygote)
    return {r.grade_id: (r.earned, r.reason) for r in result.results}, result


def full_marks():
    return {name: (points(name), "") for name in CHECKS}


def losing(**reasons):
    """Full marks but for the named checks."""
    return full_marks() | {f"check_{name}": (0, reason) for name, reason in reasons.items()}


BOTH = ("kv_bytes_per_token", "kv_cache_bytes")

HONEST = {
    "as it should be": GOOD,
    "prints and warns a lot": [
        "import warnings, sys\nprint('x' * 10_000)\nwarnings.warn('careful')\n"
        "print('to stderr', file=sys.stderr)",
        *GOOD,
    ],
    "a progress bar": ["from tqdm import tqdm\nfor _ in tqdm(range(3)): pass", *GOOD],
    "an error in a cell of its own": ["1 / 0", *GOOD],
    "magics and top-level await": [
        "%time 1 + 1\nimport asyncio\nawait asyncio.sleep(0)\n%matplotlib inline", *GOOD,
    ],
    "a figure": ["import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()", *GOOD],
    "torch in the answer": [
        "import torch\n" + TOKEN.replace("return 2 *", "return int(torch.tensor(2)) *"), *GOOD[1:],
    ],
    "numpy whole numbers": [
        "import numpy as np\n" + TOKEN.replace("return 2 *", "return np.int64(2) *"), *GOOD[1:],
    ],
    "a helper in another cell": [
        "def kinds():\n    return 2",
        TOKEN.replace("return 2 *", "return kinds() *"),
        *GOOD[1:],
    ],
    "a lambda": [
        "kv_bytes_per_token = lambda config, bytes_per_number=2: 2 * config.n_layers * "
        "config.n_kv_heads * config.d_head * bytes_per_number",
        *GOOD[1:],
    ],
    "a callable object": [
        "class F:\n    def __call__(self, config, bytes_per_number=2):\n        return 2 * "
        "config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number\n"
        "kv_bytes_per_token = F()",
        *GOOD[1:],
    ],
    "files in its own folder": [
        "open('notes.txt', 'w').write('hi')\nassert open('notes.txt').read() == 'hi'", *GOOD,
    ],
    "reads the course's data": [
        "from inferlab.data import load_models\nassert len(load_models()) > 20", *GOOD,
    ],
    "a check cell edited": [*GOOD, "check = None"],
    "skips by tag": [code(TOKEN, tags=["skip-execution"]), *GOOD[1:]],
    "a syntax error elsewhere": ["def broken(:", *GOOD],
    "exits in a cell of its own": ["import sys\nsys.exit()", *GOOD],
    "a thread of its own": [
        "import threading\nt = threading.Thread(target=print)\nt.start(); t.join()", *GOOD,
    ],
    "a subclass of int": [
        "class N(int): pass\n" + TOKEN.replace("return 2 *", "return N(2) *"), *GOOD[1:],
    ],
    "asks the notebook's own check first": [*GOOD, "check('kv_cache_bytes')"],
}  # fmt: skip


@pytest.mark.parametrize("cells", HONEST.values(), ids=HONEST)
def test_an_honest_submission_earns_everything(zygote, cells, record_property):
    assert graded(zygote, cells)[0] == full_marks()
    record_property("count", "submissions graded by the isolated judge")


def instead(source: str) -> list[str]:
    """kv_bytes_per_token written so, the rest right."""
    return [source, CACHE, ANSWER]


def body(lines: str) -> list[str]:
    inner = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
    return instead(f"def kv_bytes_per_token(config, bytes_per_number=2):\n{inner}")


WRONG_RESULT = {
    "wrong value": (body("return 7"), "wrong value"),
    "a float": (body("return 2.0 * config.n_layers * config.n_kv_heads * config.d_head"
                     " * bytes_per_number"), "wrong shape or type"),
    "nothing": (body("pass"), "wrong shape or type"),
    "a text": (body("return 'a lot'"), "wrong shape or type"),
    "raises": (body("return config.n_heads / 0"), "raised"),
    "raises an error of its own": (
        instead("class Mine(Exception): pass\n" + body("raise Mine('no')")[0]), "raised"),
    "not written": (body("raise NotImplementedError('write this')"), "not written"),
    "missing": (instead("x = 1"), "missing"),
    "a number in its place": (instead("kv_bytes_per_token = 131072"), "wrong shape or type"),
    "its cell does not run": (instead("1 / 0\n" + TOKEN), "missing"),
    "imported": (
        instead("from inferlab.kv_cache import kv_bytes_per_token"), "answered by the reference"),
    "imported under another name": (
        instead("import inferlab.kv_cache as k\n" + body(
            "return k.kv_bytes_per_token(config, bytes_per_number)")[0]),
        "answered by the reference"),
    "reloaded": (
        instead("import importlib, inferlab.kv_cache as k\nimportlib.reload(k)\n"
                "kv_bytes_per_token = k.kv_bytes_per_token"), None),
    "found in memory": (
        instead("import gc, types\nfound = [f for f in gc.get_objects() "
                "if isinstance(f, types.FunctionType) and f.__name__ == 'kv_bytes_per_token']\n"
                "kv_bytes_per_token = found[0]"), "answered by the reference"),
    "read from disk": (
        instead("import inspect, inferlab.kv_cache as k\nexec(inspect.getsource(k))"), None),
    "found in solutions": (
        instead(f"import json, pathlib\nnb = json.load(open({str(ROOT)!r} + "
                f"'/solutions/{LESSON}/{LESSON}.ipynb'))\nfor c in nb['cells']:\n"
                "    if 'def kv_bytes_per_token' in ''.join(c['source']): "
                "exec(''.join(c['source']))"), "missing"),
    "answers the visible cases by heart": (
        body("""
        known = {(32, 8, 128, 2): 131072}
        key = (config.n_layers, config.n_kv_heads, config.d_head, bytes_per_number)
        return known.get(key, 0)
        """), "wrong value"),
    "equal to everything": (
        instead("class Yes:\n    def __eq__(self, other): return True\n"
                "    def __ne__(self, other): return False\n"
                "    def __sub__(self, other): return 0\n"
                "    def __int__(self): return 131072\n" + body("return Yes()")[0]),
        "wrong shape or type"),
    "an array subclass that compares well": (
        instead("import numpy as np\nclass A(np.ndarray):\n"
                "    def __eq__(self, other): return np.bool_(True)\n"
                + body("return np.zeros(()).view(A)")[0]), None),
    "a generator that never ends": (body("return (1 for _ in iter(int, 1))"),
                                    "wrong shape or type"),
    "a very long number": (body("return 10 ** 100_000"), None),
    "a deep list": (body("""
        out = []
        for _ in range(100_000): out = [out]
        return out
        """), None),
    "memory in the call": (body("return len(bytearray(10 ** 12))"), "out of memory"),
    "recursion": (body("return kv_bytes_per_token(config, bytes_per_number)"), "raised"),
    "exits in the call": (body("import sys\nsys.exit(0)"), "exited"),
    "exits hard in the call": (body("import os\nos._exit(0)"), "exited"),
    "kills itself": (body("import os\nos.kill(os.getpid(), 9)"), None),
    "a crash": (body("import ctypes\nctypes.string_at(0)"), "exited"),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "reason"), WRONG_RESULT.values(), ids=WRONG_RESULT)
def test_a_wrong_answer_costs_its_own_question_alone(zygote, cells, reason, record_property):
    found, _ = graded(zygote, cells)
    lost = found["check_kv_bytes_per_token"]
    assert lost[0] == 0
    assert lost[1] in grading.REASONS
    if reason is not None:
        assert lost[1] == reason
    rest = {name: found[name] for name in CHECKS[1:]}
    assert rest == {name: (points(name), "") for name in CHECKS[1:]}
    record_property("count", "submissions graded by the isolated judge")


ATTACKS = {
    "patches numpy.testing": "import numpy.testing as t\nt.assert_allclose = lambda *a, **k: None",
    "patches builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\n"
    "builtins.abs = lambda x: 0",
    "patches the grader it sees": "import grader, sys\ngrader.check = print\n"
    "sys.modules['grader'] = None",
    "patches IPython": "ip = get_ipython()\nip.run_cell = lambda *a, **k: None",
    "a transformer of cells": "get_ipython().input_transformers_cleanup.append(lambda l: ['pass'])",
    "an AST transformer": "import ast\nclass T(ast.NodeTransformer):\n"
    "    def visit(self, node): return ast.Module([], [])\n"
    "get_ipython().ast_transformers.append(T())",
    "a display hook": "import sys\nsys.displayhook = print\nsys.excepthook = print",
    "a hook before each cell": "get_ipython().events.register('pre_run_cell', lambda *a: 1/0)",
    "looks at the calling frame": "import sys\nframe = sys._getframe()\nwhile frame:\n"
    "    frame.f_globals.get('expected'); frame = frame.f_back",
    "talks over every open file": "import os\nfor n in range(3, 64):\n"
    "    try: os.write(n, b'\\0' * 64)\n    except OSError: pass",
    "closes every open file": "import os\nos.closerange(0, 64)",
    "shadows modules": "for name in ('numpy', 'json', 'sandbox', 'grader'):\n"
    "    open(f'{name}.py', 'w').write('raise SystemExit')",
    "swallows every signal": "import signal\nfor s in range(1, 30):\n"
    "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
    "signals its parents": "import os, signal\nfor p in (os.getppid(), 1, 2, 3):\n"
    "    try: os.kill(p, signal.SIGTERM)\n    except OSError: pass",
    "a symlink out": "import os\nos.symlink('/etc/passwd', 'x')\ntry: open('x').read()\n"
    "except OSError: pass",
    "leaves an orphan": "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)\n"
    "    os._exit(0)",
    "changes the environment": "import os\nos.environ.clear()\n"
    "os.environ['INFERLAB_HIDDEN_SEED'] = '1'",
    "fills memory": "try: x = bytearray(10 ** 12)\nexcept MemoryError: pass",
    "fills its folder": "try:\n    with open('big', 'wb') as f:\n"
    "        for _ in range(10_000): f.write(bytes(2 ** 20))\nexcept OSError: pass\n"
    "import os; os.remove('big') if os.path.exists('big') else None",
    "opens too many files": "kept = []\ntry:\n    while True: kept.append(open('/dev/null'))\n"
    "except OSError: del kept",
    "calls out": "import socket\ntry: socket.create_connection(('127.0.0.1', 22), 1)\n"
    "except OSError: pass",
    "a script in its output": "from IPython.display import HTML\nHTML('<script>alert(1)</script>')",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_earns_nothing(zygote, attack, record_property):
    """Whatever it breaks, its wrong functions stay wrong."""
    wrong = [attack, *body("return 1")[:1], "def kv_cache_bytes(*a, **k):\n    return 1"]
    found, _ = graded(zygote, wrong)
    assert {name: earned for name, (earned, _) in found.items()} == dict.fromkeys(CHECKS, 0)
    assert all(reason in grading.REASONS for _, reason in found.values())
    assert graded(zygote, GOOD)[0] == full_marks()  # and the next one is judged as ever
    record_property("count", "submissions graded by the isolated judge")


ENDINGS = {
    "an endless loop": ("while True: pass", "out of time"),
    "one that swallows interrupts": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "out of time"),
    "a hard exit": ("import os\nos._exit(3)", "exited"),
    "a kill of its own process": ("import os\nos.abort()", "exited"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "exited"),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "reason"), ENDINGS.values(), ids=ENDINGS)
def test_a_cell_that_ends_the_process_costs_only_itself(
    zygote, ending, reason, monkeypatch, record_property
):
    """Cells before it are run again without it; cells after it go on."""
    monkeypatch.setattr(grading, "CELL_S", 1.5)
    found, result = graded(zygote, [TOKEN, ending, CACHE, ANSWER])
    assert found == full_marks()
    assert [gone.reason for gone in result.lost.values()] == [reason]
    record_property("count", "submissions graded by the isolated judge")


def test_an_endless_answer_costs_its_question_and_no_other(zygote, monkeypatch):
    monkeypatch.setattr(grading, "CHECK_S", 1.5)
    found, _ = graded(zygote, body("while True:\n    try:\n        pass\n    except: pass"))
    assert found == losing(kv_bytes_per_token="out of time")


def test_work_in_place_on_an_input_is_seen(zygote):
    cells = ["def attend_one(q, k, v):\n    q *= 0\n    return v[:, 0]"]
    notebook = {"cells": [code(cells[0]), check_cell("check_attend_one", 2)]}
    (result,) = grading.grade(notebook, LESSON, zygote).results
    assert (result.earned, result.reason) == (0, "wrong value")


def test_the_solution_earns_everything_and_the_release_nothing(zygote):
    for kind, share in (("solutions", 1), ("notebooks", 0)):
        path = ROOT / kind / LESSON / f"{LESSON}.ipynb"
        result = grading.grade(json.loads(path.read_text()), LESSON, zygote)
        ids = [f"check_{e.grade_id}" for e in registry.exercises(LESSON)]
        ids += [f"check_{q.id}" for q in registry.questions(LESSON)]
        assert [r.grade_id for r in result.results] == ids
        assert all(r.earned == share * r.points for r in result.results)


def solved(lesson, old="", new=""):
    """A lesson's solution with one piece of text replaced."""
    notebook = json.loads((ROOT / "solutions" / lesson / f"{lesson}.ipynb").read_text())
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if old and cell["cell_type"] == "code" and old in source:
            cell["source"] = source.replace(old, new)
            return notebook
    assert not old, f"{old!r} is in no cell"
    return notebook


def lost(zygote, lesson, notebook):
    results = grading.grade(notebook, lesson, zygote).results
    return {r.grade_id for r in results if r.earned < r.points}


@pytest.mark.parametrize("lesson", registry.lessons())
def test_every_lessons_solution_earns_all_of_its_points(zygote, lesson):
    assert lost(zygote, lesson, solved(lesson)) == set()


def test_a_wrong_part_does_not_drag_those_that_call_it(zygote):
    """Lesson 02 judges each part with the course's own parts beside it, here too."""
    wrong = solved("02_forward_pass", "a * cos - b * sin", "a * cos + b * sin")
    assert lost(zygote, "02_forward_pass", wrong) == {"check_rotate"}


def test_what_is_held_at_once_is_counted_where_it_is_held(zygote):
    """A learner who keeps a large array on chip: the bytes are in their process, not here."""
    name, line = (
        "06_flash_attention",
        '(n_heads, T, d_head), (n_kv_heads, S, _) = memory.shape("q")',
    )
    wrong = solved(name, line, f"kept = np.zeros((T_max := 400, T_max))\n    {line}")
    assert lost(zygote, name, wrong) == {"check_tiled_attention"}


def test_the_same_bytes_give_the_same_result(zygote):
    cells = body("return config.n_layers")
    one, two = (graded(zygote, cells)[1].results for _ in range(2))
    assert one == two


# ---- walls -------------------------------------------------------------------------------------

needs_walls = pytest.mark.skipif(not FULL, reason=f"NOT TESTED: no namespaces here ({WHY})")


def said(zygote, source):
    """What a cell prints."""
    result = grading.grade({"cells": [code(source)]}, LESSON, zygote)
    return "".join(o.get("text", "") or o.get("evalue", "") for o in result.outputs[0])


@needs_walls
def test_nothing_of_the_course_but_its_data_can_be_seen(zygote):
    source = f"import os\nprint(sorted(os.listdir({str(ROOT)!r})))"
    shown = said(zygote, source)
    assert "data" in shown
    for hidden in ("solutions", "grader", "src", "gradebook.db", "tests"):
        assert hidden not in shown


@needs_walls
def test_nothing_outside_its_folder_can_be_written(zygote):
    source = (
        f"import os, sys\nfor folder in ('/', '/usr', {str(ROOT / 'data')!r}, sys.prefix):\n"
        "    try:\n        open(os.path.join(folder, 'x'), 'w'); print('WRITTEN', folder)\n"
        "    except OSError: pass"
    )
    assert "WRITTEN" not in said(zygote, source)


@needs_walls
def test_there_is_no_network(zygote):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        shown = said(
            zygote,
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2); print('IN')\n"
            "except OSError as error: print(error)",
        )
    assert "IN" not in shown


@needs_walls
def test_it_has_no_privileges_and_cannot_get_any(zygote):
    shown = said(zygote, "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in shown
    assert "NoNewPrivs:\t1" in shown


@needs_walls
def test_it_sees_no_process_but_its_own(zygote):
    shown = said(zygote, "import os\nprint([p for p in os.listdir('/proc') if p.isdigit()])")
    assert shown.strip() == "['1']"


@needs_walls
def test_no_orphan_survives(zygote):
    marker = f"sleep-{time.time_ns()}"
    source = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', {marker!r}], "
        "start_new_session=True)"
    )
    said(zygote, source)

    def alive():
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if marker.encode() in entry.read_bytes():
                    return True
            except OSError:
                continue
        return False

    deadline = time.monotonic() + 5
    while alive():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


def test_the_instructors_environment_is_not_there(zygote, monkeypatch):
    shown = said(zygote, "import os\nprint(dict(os.environ))\n"
                         "print(open('/proc/self/environ').read())")  # fmt: skip
    for name in ("SECRET_TOKEN", "INFERLAB_HIDDEN_SEED", "PYTEST_CURRENT_TEST"):
        assert name not in shown
    assert os.environ["PATH"] not in shown


def test_the_student_side_has_no_grader(zygote):
    shown = said(zygote, "import sys\nprint([m for m in sys.modules if m.startswith('grader')])")
    assert shown.strip() == "['grader', 'grader.counting']"  # the verbs, and the counted memory
    shown = said(zygote, "import grader.judge")
    assert "No module named" in shown
