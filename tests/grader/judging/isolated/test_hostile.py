"""Attacks on what judges: whatever a cell breaks, wrong functions stay wrong, and the next
submission is judged as ever."""

import pytest
from isolated_submissions import CHECKS, GOOD, SHORT, body, grade, instead, lost

from grader.judging.isolated import notebook as grading

WRONG = [body("return 1")[0], "def kv_cache_bytes(*a, **k):\n    return 1"]

ATTACKS = {
    "patches numpy.testing": "import numpy.testing as t\nt.assert_allclose = lambda *a, **k: None",
    "patches NumPy": "import numpy as np\nnp.allclose = np.array_equal = lambda *a, **k: True",
    "patches builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\n"
    "builtins.abs = lambda x: 0",
    "patches every comparison": "import operator\noperator.eq = lambda *a: True",
    "patches the grader it sees": "import grader, sys\ngrader.check = print\n"
    "sys.modules['grader'] = None",
    "writes a grader of its own": "import sys, types\n"
    "m = types.ModuleType('grader.judging.judge')\nm.judge_on = lambda *a, **k: True\n"
    "sys.modules['grader.judging.judge'] = m",
    "patches IPython": "ip = get_ipython()\nip.run_cell = lambda *a, **k: None",
    "answers for IPython": "import types\nip = get_ipython()\n"
    "ip.run_cell = lambda *a, **k: types.SimpleNamespace("
    "error_before_exec=None, error_in_exec=None)",
    "a transformer of cells": "get_ipython().input_transformers_cleanup.append(lambda l: ['pass'])",
    "an AST transformer": "import ast\nclass T(ast.NodeTransformer):\n"
    "    def visit(self, node): return ast.Module([], [])\n"
    "get_ipython().ast_transformers.append(T())",
    "a display hook": "import sys\nsys.displayhook = print\nsys.excepthook = print",
    "a hook before each cell": "get_ipython().events.register('pre_run_cell', lambda *a: 1/0)",
    "a trace of every call": "import sys, threading\nsys.settrace(lambda *a: None)\n"
    "sys.setprofile(lambda *a: None)",
    "an audit hook that refuses": "import sys\ndef refuse(*a): raise RuntimeError\n"
    "sys.addaudithook(refuse)",
    "an import hook": "import sys\nclass F:\n    def find_spec(self, *a): raise SystemExit\n"
    "sys.meta_path.insert(0, F())",
    "looks at the calling frames": "import sys\nframe = sys._getframe()\nfound = []\nwhile frame:\n"
    "    found += [v for k, v in frame.f_locals.items() if 'expect' in k or 'case' in k]\n"
    "    frame = frame.f_back\nprint(found)",
    "looks at the cells": "print(In, Out, get_ipython().history_manager.input_hist_raw)",
    "patches the sandbox": "import sandbox.shell as s\ns.Shell.value = lambda *a: 131072",
    "patches the wire": "import sandbox.wire as w\nw.Wire.receive = lambda self: (['result'], [])",
    "patches what the sandbox stands on": "import json, os, socket, time\n"
    "json.dumps = lambda *a, **k: '[]'\nos.read = time.time = socket.socket = None",
    "closes every open file": "import os\nos.closerange(0, 256)",
    "writes zeros to every open file": "import os\nfor n in range(256):\n"
    "    try: os.write(n, b'\\0' * 64)\n    except OSError: pass",
    "reads every open file": "import os\nfor n in range(256):\n"
    "    try: os.set_blocking(n, False); os.read(n, 10 ** 6)\n    except OSError: pass",
    "puts other files in place of the open ones": "import os\nr, w = os.pipe()\n"
    "for n in range(3, 200):\n    if n not in (r, w): os.dup2(r, n)",
    "shadows modules": "for name in ('numpy', 'json', 'sandbox', 'grader', 'usercustomize'):\n"
    "    open(f'{name}.py', 'w').write('raise SystemExit')\n"
    "import sys, json\ndel sys.modules['json']; import json",
    "startup files of IPython": "import os\n"
    "d = os.path.expanduser('~/.ipython/profile_default/startup')\n"
    "os.makedirs(d); open(d + '/00.py', 'w').write('raise SystemExit')",
    "the learner's store": "import os\nfor d in ('~/.config', '~/.local/share'):\n"
    "    os.makedirs(os.path.expanduser(d + '/inferlab'))\n"
    "import labkit.store",
    "changes the environment": "import os\nos.environ.clear()\n"
    "for n in ('HIDDEN_SEED', 'ISOLATION', 'CHECK_ONLY', 'VERDICTS', 'HOME'):\n"
    "    os.environ['INFERLAB_' + n] = '/tmp/1'",
    "swallows every signal": "import signal\nfor s in range(1, 65):\n"
    "    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
    "an alarm": "import signal\nsignal.signal(signal.SIGALRM, lambda *_: 1 / 0)\n"
    "signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)",
    "a thread that goes on": "import threading\ndef work():\n    while True: globals()['x'] = 1\n"
    "threading.Thread(target=work, daemon=True).start()",
    "work at the end": "import atexit, os\natexit.register(os._exit, 0)",
    "an orphan in its own session": "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
    "    if os.fork() == 0: time.sleep(60)\n    os._exit(0)",
    "a copy of itself that answers too": "import os\nos.fork()",
    "the reading of its own memory": "import ctypes\nctypes.string_at(id(1), 64)\n"
    "open('/proc/self/maps').read(); open('/proc/self/mem', 'rb')",
    "fills memory": "try: x = bytearray(10 ** 12)\nexcept MemoryError: pass",
    "opens too many files": "kept = []\ntry:\n    while True: kept.append(open('/dev/null'))\n"
    "except OSError: del kept",
    "a script in its output": "from IPython.display import HTML\nHTML('<script>alert(1)</script>')",
    "NumPy's own types changed": "import numpy as np\nnp.ndarray = list\nnp.float64 = int",
    "no more collecting": "import gc\ngc.disable(); gc.set_threshold(0)\n"
    "class X:\n    def __del__(self): raise SystemExit\nx = X(); x.me = x; del x",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_earns_nothing(zygote, attack, record_property):
    found = lost(zygote, [attack, *WRONG], times=SHORT)
    assert found.keys() == set(CHECKS)
    record_property("count", "submissions graded by the isolated judge")


def test_after_all_of_them_the_next_submission_is_judged_as_ever(zygote):
    for attack in ("patches the sandbox", "closes every open file", "an orphan in its own session"):
        lost(zygote, [ATTACKS[attack], *WRONG], times=SHORT)
        assert lost(zygote, GOOD) == {}


EQUAL = {  # objects that look like the answer to whoever compares them
    "equal to everything": "def __eq__(self, o): return True\n"
    "    def __ne__(self, o): return False\n    def __sub__(self, o): return 0\n"
    "    def __int__(self): return 131072",
    "a number by its conversions": "def __index__(self): return 131072\n"
    "    def __float__(self): return 131072.0\n    def __array__(self, *a): return [131072]",
    "a tensor by its looks": "def detach(self): return self\n    def cpu(self): return self\n"
    "    def numpy(self): return self\n    dtype = 'int64'",
    "a sequence without end": "def __len__(self): return 10 ** 9\n"
    "    def __getitem__(self, i): return 131072",
    "every attribute": "def __getattr__(self, name): return self\n"
    "    def __call__(self, *a): return self\n    def __iter__(self): return self\n"
    "    def __next__(self): return self",
    "another class than it is": "@property\n    def __class__(self): return int",
}


@pytest.mark.parametrize("methods", EQUAL.values(), ids=EQUAL)
def test_an_object_that_answers_every_comparison_is_no_number(zygote, methods, record_property):
    cells = body("return Yes()", f"class Yes:\n    {methods}")
    assert lost(zygote, cells, times=SHORT) == {"kv_bytes_per_token": "wrong shape or type"}
    record_property("count", "submissions graded by the isolated judge")


SUBCLASSES = {
    "of int": ("int", "7"),
    "of float": ("float", "7.0"),
    "of str": ("str", "'131072'"),
    "of list": ("list", "[7]"),
    "of dict": ("dict", "{'a': 7}"),
    "of an array": ("np.ndarray", "1"),
}


@pytest.mark.parametrize(("base", "value"), SUBCLASSES.values(), ids=SUBCLASSES)
def test_a_subclass_counts_as_what_is_in_it(zygote, base, value, record_property):
    always = (
        f"import numpy as np\nclass S({base}):\n    def __eq__(self, o): return True\n"
        "    def __ne__(self, o): return False\n    __hash__ = None\n"
        "    def __int__(self): return 131072\n    def __len__(self): return 0\n"
        "    def __iter__(self): return iter([131072])\n    def items(self): return []\n"
        "    def __array_ufunc__(self, *a, **k): return True"
    )
    found = lost(zygote, body(f"return S({value})", always))
    assert found == {
        "kv_bytes_per_token": "wrong value" if base in ("int", "float") else "wrong shape or type"
    }
    record_property("count", "submissions graded by the isolated judge")


# ---- the line to the judge ---------------------------------------------------------------------

LINE = """
import gc, json, os, socket, struct
from sandbox.endpoint import Endpoint
end = next(o for o in gc.get_objects() if isinstance(o, Endpoint))
def say(*parts, frames=()):
    text = json.dumps(parts).encode()
    sizes = [len(text), *map(len, frames)]
    end.wire.sock.sendall(struct.pack(f'!I{len(sizes)}Q', len(sizes), *sizes) + text)
    for frame in frames: end.wire.sock.sendall(frame)
def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2): return 1
"""
FORGED = {  # what kv_bytes_per_token does with the line before it answers 1
    "an answer in advance": ("say('result', [131072, ['tuple', []]], [])", "wrong value"),
    "ten answers in advance": (
        "for _ in range(10): say('result', [131072, ['tuple', []]], [])", "wrong value"),
    "an error in advance": (
        "say('error', [['dict', [['kinds', ['list', ['ValueError']]]]], ['tuple', []]], [])",
        "raised"),
    "an error of no class": (
        "say('error', [['dict', [['kinds', ['list', ['\\x00', 'x' * 10 ** 6]]]]], ['tuple', []]],"
        " [])", "raised"),
    "asides of another form": ("say('result', [1, 7], [])", "exited"),
    "words that are no message": ("say('hello')", "exited"),
    "an unknown request": ("say('do', [1, 2], [])", "wrong value"),
    "a tag that is none": ("say('result', [['exec', 'x'], ['tuple', []]], [])", "exited"),
    "a hidden method as a tag": ("say('result', [['_frame', 0], ['tuple', []]], [])", "exited"),
    "the shell as an answer": (
        "say('result', [['ref', ['mine', 1, 'x']], ['tuple', []]], [])", "wrong shape or type"),
    "the judge's object of any number": (
        "for n in range(50): say('result', [['ref', ['yours', n]], ['tuple', []]], [])",
        "wrong shape or type"),
    "a call of the judge's objects": (
        "for n in range(50): say('call', [n, '__call__', ['tuple', []], ['tuple', []]], [])",
        "wrong value"),
    "a private name of the judge's objects": (
        "for n in range(50): say('get', [n, '__globals__'], [])", "wrong value"),
    "a change of the judge's arrays": (
        "say('result', [1, ['tuple', []]], [[1, ['list', []]]])", "exited"),
    "deep JSON": ("end.wire.sock.sendall(struct.pack('!IQ', 1, 10 ** 6) + b'[' * 10 ** 6)",
                  "exited"),
    "JSON of many small things": (
        "end.wire.sock.sendall(struct.pack('!IQ', 1, 30_000_000) + b'[]' * 10 ** 6)",
        "too much output"),
    "a size that is too large": ("end.wire.sock.sendall(struct.pack('!IQQ', 2, 5, 2 ** 60))",
                                 "too much output"),
    "too many parts": ("end.wire.sock.sendall(struct.pack('!I', 2 ** 31))", "exited"),
    "an array larger than its bytes": (
        "say('result', [['array', '<f8', [10 ** 9, 10 ** 9], 0], ['tuple', []]], [], "
        "frames=[b'x' * 8])", "exited"),
    "an array of objects": (
        "say('result', [['array', '|O', [1], 0], ['tuple', []]], [], frames=[b'x' * 8])", "exited"),
    "a record that is none": (
        "say('result', [['record', 'Popen', [['list', ['true']]]], ['tuple', []]], [])", "exited"),
    "a record of nonsense": (
        "say('result', [['record', 'ModelConfig', [None] * 40], ['tuple', []]], [])", "exited"),
    "half a message": ("end.wire.sock.sendall(b'\\0\\0\\0\\2')\n    while True: pass",
                       "out of time"),
    "half a line": ("end.wire.sock.shutdown(socket.SHUT_WR)\n    while True: pass", "exited"),
    "text that cannot be written": (
        "say('result', [1, ['tuple', [['tuple', ['printed', '\\ud800']]]]], [])", "wrong value"),
    "calls without end": (
        "while True: say('get', [1, 'x'], [])", "out of time"),
    "print without end": (
        "while True: say('result', [1, ['tuple', [['tuple', ['printed', 'x' * 10 ** 5]]]]], [])",
        "wrong value"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "reason"), FORGED.values(), ids=FORGED)
def test_what_a_student_writes_to_the_judge_earns_nothing(zygote, lines, reason, record_property):
    cell = f"{LINE}\ndef kv_bytes_per_token(config, bytes_per_number=2):\n    {lines}\n    return 1"
    checks = ("kv_bytes_per_token", "kv_cache_bytes")
    found = lost(zygote, [cell], checks=checks, times=SHORT)
    assert found["kv_bytes_per_token"] == reason
    assert "kv_cache_bytes" in found
    record_property("count", "submissions graded by the isolated judge")


SHOWN = "'output_type': 'display_data', 'metadata': 1, 'data'"
FAILED = "'output_type': 'error', 'ename': 1, 'evalue': 2, 'traceback'"
OUTPUTS = {  # what an output of a cell may be forged to be
    "an object": f"[{{{SHOWN}: {{'text/plain': object()}}}}]",
    "no list": "7",
    "other things": "[1, None, {'output_type': 'execute'}, {'output_type': ['x']}, []]",
    "a number for a text": "[{'output_type': 'stream', 'name': 7, 'text': 8}]",
    "a traceback of numbers": f"[{{{FAILED}: [3]}}]",
    "ten megabytes": "[{'output_type': 'stream', 'name': 'stdout', 'text': 'x' * 10 ** 7}]",
    "many": "[{'output_type': 'stream', 'name': 'stdout', 'text': 'x'}] * 10 ** 4",
    "half a surrogate pair": "[{'output_type': 'stream', 'name': 'stdout', 'text': '\\ud800'}]",
}


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS)
def test_forged_outputs_become_plain_ones(zygote, outputs, record_property):
    import nbformat

    forge = f"import sandbox.shell as s\ns.Shell.run_cell = lambda *_: ({outputs}, True)"
    result = grade(zygote, [forge, "1", *GOOD[:2]], times=SHORT)
    for index, found in result.outputs.items():
        cell = nbformat.v4.new_code_cell(outputs=[nbformat.from_dict(o) for o in found])
        text = nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))
        assert len(text.encode()) < 1_500_000, index
    assert result.earned == 0
    record_property("count", "submissions graded by the isolated judge")


BACK = {  # a student's function that works the judge, which it may call
    "for ever": "while True: model.next_logits(prompt)",
    "with much to do": "model.next_logits([1] * 10 ** 6)",
    "with itself": "return generate_cached(model.new_cache().append, prompt, n_new)",
}


@pytest.mark.parametrize("lines", BACK.values(), ids=BACK)
def test_calling_the_judge_back_has_an_end(zygote, lines, record_property):
    cell = f"def generate_cached(model, prompt, n_new):\n    {lines}"
    found = lost(zygote, [cell, *GOOD], checks=("generate_cached", *CHECKS), times=SHORT)
    assert found.keys() == {"generate_cached"}
    assert found["generate_cached"] in ("out of time", "raised")
    record_property("count", "submissions graded by the isolated judge")


def test_a_generator_of_large_things_does_not_fill_the_judge(zygote, record_property):
    """Lesson 08's rounds may be a generator; the judge lists what it yields."""
    cell = "import numpy as np\ndef speculative_rounds(*rest):\n    while True: yield [0] * 100_000"
    found = lost(zygote, [cell], "08_speculative_sampling", ("speculative_rounds",), SHORT)
    assert found["speculative_rounds"] in ("out of time", "too much output")
    record_property("count", "submissions graded by the isolated judge")


def test_its_name_decides_no_more_than_its_numbers(zygote, record_property):
    odd = ("answers.learner = 7", "answers.learner = 'x' * 10 ** 7", "answers.learner = '\\ud800'")
    for line in odd:
        cells = [GOOD[2].replace("842", "843"), line]
        assert lost(zygote, cells, checks=("kv_q_steps",)) == {"kv_q_steps": "wrong value"}
        record_property("count", "submissions graded by the isolated judge")


def test_points_are_not_the_submissions_to_say(zygote):
    found = grading.checks("04_kv_cache")["check_kv_cache_bytes"].points
    assert grade(zygote, instead("x = 1")).earned == found + 1  # and one for the question
