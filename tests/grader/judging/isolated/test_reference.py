"""Looking for the course's own answer instead of writing one: in modules, memory, on disk."""

import textwrap

import pytest
from isolated_submissions import (
    ROOT,
    instead,
    lost,
    said,
    written,
)

from grader.judging import registry
from grader.judging.exercise import Exercise
from grader.judging.isolated import notebook as grading
from grader.judging.isolated.reference import under_judgement
from sandbox import walls

FULL = walls.level()[0] == "full"
needs_walls = pytest.mark.skipif(
    not FULL, reason=f"NOT TESTED: no namespaces here ({walls.level()[1]})"
)
TAKEN = "answered by the reference"
NAME = "kv_bytes_per_token"

TAKEN_FROM = {  # what kv_bytes_per_token is, or returns
    "its module": "from inferlab.kv_cache import kv_bytes_per_token",
    "its module, under another name": "from inferlab.kv_cache import kv_bytes_per_token as f\n"
    "def kv_bytes_per_token(*args, **kwargs): return f(*args, **kwargs)",
    "everything of its module": "from inferlab.kv_cache import *",
    "importlib": "import importlib\n"
    "kv_bytes_per_token = importlib.import_module('inferlab.kv_cache').kv_bytes_per_token",
    "sys.modules": "import sys\n"
    "kv_bytes_per_token = sys.modules['inferlab.kv_cache'].kv_bytes_per_token",
    "another function that calls it": "from inferlab.kv_cache import kv_cache_bytes as f\n"
    "def kv_bytes_per_token(config, bytes_per_number=2): return f(config, 1, 1, bytes_per_number)",
    "a later lesson's more general one": "from inferlab.cache_sizes import cache_bytes\n"
    "def kv_bytes_per_token(config, bytes_per_number=2):\n"
    "    return cache_bytes(config, 1, 1, bytes_per_number)",
    "a later lesson's part of it": "from inferlab.cache_sizes import layer_cache_numbers as f\n"
    "def kv_bytes_per_token(config, bytes_per_number=2):\n"
    "    return f(config) * config.n_layers * bytes_per_number",
    "the other way round": "from inferlab.kv_cache import longest_context as f\n"
    "def kv_bytes_per_token(config, bytes_per_number=2):\n"
    "    return 10 ** 12 // f(config, 10 ** 12, 1, bytes_per_number)",
    "whoever imported it": "import gc, types\ngc.unfreeze()\n"
    "kv_bytes_per_token = [f for f in gc.get_objects() if isinstance(f, types.FunctionType)\n"
    "                      and f.__name__ == 'kv_bytes_per_token'][0]",
    "whoever refers to it": "import gc, inferlab.kv_cache as k\ngc.unfreeze()\n"
    "homes = [d for d in gc.get_referrers(k.kv_bytes_per_token) if isinstance(d, dict)]\n"
    "kv_bytes_per_token = homes[0]['kv_bytes_per_token']",
    "a copy made of its code": "import types, inferlab.kv_cache as k\n"
    "f = k.kv_bytes_per_token\n"
    "kv_bytes_per_token = types.FunctionType(f.__code__, vars(k))",
    "a subinterpreter of globals": "import inferlab.kv_cache as k\n"
    "exec('def kv_bytes_per_token(*a, **b): return f(*a, **b)', "
    "{**vars(k), 'f': k.kv_bytes_per_token}, globals())",
}


@pytest.mark.parametrize("cell", TAKEN_FROM.values(), ids=TAKEN_FROM)
def test_the_reference_is_no_answer(zygote, cell, record_property):
    assert lost(zygote, instead(cell)) == {NAME: TAKEN}
    record_property("count", "submissions graded by the isolated judge")


NOT_FOUND = {  # the reason is what is left when nothing is found
    "reloaded": "import importlib, inferlab.kv_cache as k\nk = importlib.reload(k)\n"
    "kv_bytes_per_token = k.kv_bytes_per_token",
    "imported anew": "import sys\ndel sys.modules['inferlab.kv_cache']\n"
    "from inferlab.kv_cache import kv_bytes_per_token",
    "run as a script": "import runpy\n"
    "kv_bytes_per_token = runpy.run_module('inferlab.kv_cache')['kv_bytes_per_token']",
    "its source": "import inspect, inferlab.kv_cache as k\nexec(inspect.getsource(k))",
    "its lines in a cache": "import linecache, inferlab.kv_cache as k\n"
    "exec(''.join(linecache.getlines(k.__file__, vars(k))))",
    "its loader": "import inferlab.kv_cache as k\nexec(k.__spec__.loader.get_source(k.__name__))",
    "its loader's code": "import inferlab.kv_cache as k\nexec(k.__loader__.get_code(k.__name__))",
    "its compiled file": "import marshal, inferlab.kv_cache as k\n"
    "exec(marshal.loads(open(k.__cached__, 'rb').read()[16:]))",
    "the solutions": f"import json\nnb = json.load(open({str(ROOT)!r} + "
    "'/solutions/04_kv_cache/04_kv_cache.ipynb'))\n"
    "for c in nb['cells']:\n"
    "    if 'def kv_bytes_per_token' in ''.join(c['source']): exec(''.join(c['source']))",
    "any file that has it": "import os\n"
    "for top in ('/', '/proc/self/root', '/proc/1/root'):\n"
    "    for folder, _, names in os.walk(top + 'tmp' if top == '/' else top + '/home'):\n"
    "        for name in names:\n"
    "            text = open(os.path.join(folder, name), errors='ignore').read()\n"
    "            if 'def kv_bytes_per_token' in text: exec(text)",
    "the package as installed": "import importlib.metadata as m\n"
    "for f in m.files('inferlab') or []:\n"
    "    if f.name == 'kv_cache.py': exec(f.read_text())",
}


@needs_walls
@pytest.mark.parametrize("cell", NOT_FOUND.values(), ids=NOT_FOUND)
def test_the_reference_is_not_on_disk(zygote, cell, record_property):
    assert lost(zygote, instead(cell)) == {NAME: "missing"}
    record_property("count", "submissions graded by the isolated judge")


@pytest.mark.parametrize("lesson", registry.lessons())
def test_everything_under_judgement_is_out(zygote, lesson):
    """In the student's process each of them raises, and its instructions are gone."""
    names = sorted(under_judgement(lesson))
    source = textwrap.dedent(
        f"""
        import inspect, pkgutil
        for name in {names!r}:
            f = inspect.unwrap(pkgutil.resolve_name(name))
            assert len(f.__code__.co_code) < 40 and not f.__code__.co_cellvars, name
            try: f()
            except NotImplementedError: continue
            raise SystemError(name)
        print('out')
        """
    )
    assert said(zygote, source, lesson) == "out\n"


MEMORY = """
import ctypes, marshal, re
names = [b'kv_bytes_per_token', b'kv_cache_bytes', b'largest_batch', b'decode_cached']
defined = re.compile(b'def (' + b'|'.join(names) + rb')\\(\\s*(config|x):')
found = set()
for line in open('/proc/self/maps'):
    span, rights, *_ = line.split()
    start, end = (int(x, 16) for x in span.split('-'))
    if not rights.startswith('rw') or end - start > 2 ** 29 or '[v' in line: continue
    block = ctypes.string_at(start, end - start)
    found |= {b'source of ' + m[1] for m in defined.finditer(block)}
    for place in re.finditer(b'|'.join(names), block):
        for at in range(max(0, place.start() - 1500), place.start()):
            if block[at] not in (0xe3, 0x63): continue
            try: code = marshal.loads(block[at: at + 20_000])
            except Exception: continue
            name = getattr(code, 'co_name', '').encode()
            if name in names: found.add(b'code of ' + name)
print(found)
"""


def test_the_reference_is_not_left_in_memory(zygote):
    """Neither its source nor its compiled code, which were read when it was imported."""
    assert said(zygote, MEMORY) == "set()\n"


# ---- the judge's own objects -------------------------------------------------------------------

SOFTMAX_BY_ATTENTION = """
import sys
def softmax(scores):
    parts = sys._getframe().f_globals
    rows = scores.reshape(1, 1, -1, scores.shape[-1])
    out = parts['attention'](rows, np.eye(scores.shape[-1])[None, None] * rows.shape[-1] ** 0.5,
                             np.eye(scores.shape[-1])[None, None],
                             np.ones(rows.shape[2:], bool))
    return out.reshape(scores.shape)
"""
ROTATE_KEPT = """
import sys
kept = []
def softmax(scores):
    kept.append(sys._getframe().f_globals['rotate'])
    w = np.exp(scores - scores.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)
def rotate(x, angles):
    return kept[0](x, angles)
"""
ROTATE_TAKEN = """
import sys
def softmax(scores):
    import __main__
    __main__.rotate = sys._getframe().f_globals['rotate']
    w = np.exp(scores - scores.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)
rotate = None
"""


def test_a_part_cannot_be_got_out_of_the_parts_that_use_it(zygote, record_property):
    """The course's attention, lent for judging, calls the student's softmax: round and round."""
    cells = ["import numpy as np", SOFTMAX_BY_ATTENTION]
    checks = ("rms_norm", "softmax")  # rms_norm is missing, softmax is judged after it
    found = lost(zygote, cells, "02_forward_pass", checks, grading.Times(check_s=20))
    assert found.keys() == {"rms_norm", "softmax"}
    record_property("count", "submissions graded by the isolated judge")


@pytest.mark.parametrize(
    ("cell", "reason"), [(ROTATE_KEPT, "raised"), (ROTATE_TAKEN, "wrong shape or type")]
)
def test_what_one_question_lends_is_worth_nothing_in_the_next(
    zygote, cell, reason, record_property
):
    found = lost(
        zygote, ["import numpy as np", cell], "02_forward_pass", ("swiglu", "softmax", "rotate")
    )
    assert found["rotate"] == reason
    record_property("count", "submissions graded by the isolated judge")


LIES = {
    "the class has no methods": "import sandbox.shell as s\ns.Shell.methods = lambda *_: []",
    "every method is a helper": "import sandbox.shell as s\n"
    "s.Shell.methods = lambda *_: ['n_pages', '__init__', '__class__', 'x']",
    "the list of methods never ends": "import sandbox.shell as s\n"
    "s.Shell.methods = lambda *_: ['m%d' % i for i in range(10 ** 5)]",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_class_without_its_methods_is_not_completed_by_the_judge(zygote, lie, record_property):
    first, _ = written("10_batching", "PageAllocator")
    empty = "class PageAllocator:\n    def __init__(self, n_pages): pass"
    found = lost(zygote, [first, lie, empty], "10_batching", ("PageAllocator",))
    assert found == {"PageAllocator": "wrong shape or type"}
    record_property("count", "submissions graded by the isolated judge")


COUNTED = {  # generate_cached without a cache, and what it then says about the counting
    "honest about it": "",
    "counts set right": "model.n_passes, model.n_tokens_run = n_new, len(prompt) + n_new - 1",
    "the model inside": "model = model._model",
}


@pytest.mark.parametrize("after", COUNTED.values(), ids=COUNTED)
def test_an_instrument_is_closed_to_what_it_measures(zygote, after, record_property):
    cell = textwrap.dedent(
        f"""
        import numpy as np
        def generate_cached(model, prompt, n_new):
            tokens = list(prompt)
            for _ in range(n_new):
                tokens.append(int(np.argmax(model.next_logits(tokens, model.new_cache()))))
            {after or "pass"}
            return tokens[len(prompt):]
        """
    )
    found = lost(zygote, [cell], checks=("generate_cached",))
    assert found == {"generate_cached": "raised" if after else "wrong value"}
    record_property("count", "submissions graded by the isolated judge")


def test_the_uncounted_read_of_a_counted_memory_is_closed(zygote, record_property):
    first, cell = written("06_flash_attention", "tiled_attention")
    cheat = cell.replace("### BEGIN SOLUTION", "memory.result('k')")
    found = lost(zygote, [first, cheat], "06_flash_attention", ("tiled_attention",))
    assert found == {"tiled_attention": "raised"}
    record_property("count", "submissions graded by the isolated judge")


# ---- cases stay what they are ------------------------------------------------------------------


def test_inputs_that_a_student_destroys_are_whole_in_the_next_case(zygote, record_property):
    """Everything that came in is emptied: lists, dicts and arrays of the case itself."""
    first, cell = written("10_batching", "static_starts")
    spoilt = cell.replace("### BEGIN SOLUTION", "jobs.clear()\n    return []")
    good = [first, cell]
    name = ("static_starts",)
    assert lost(zygote, [first, spoilt], "10_batching", name).keys() == {"static_starts"}
    assert lost(zygote, good, "10_batching", name) == {}
    record_property("count", "submissions graded by the isolated judge")


def mutable(value, seen):
    """ids of all that can be changed in an input, but what only the judge can reach."""
    import numpy as np

    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, type(None))):
        return
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            seen[id(value)] = value
        return
    if callable(value) and not hasattr(type(value), "forward"):
        return
    if isinstance(value, (list, dict, set)) or hasattr(value, "__dict__"):
        seen[id(value)] = value
    if isinstance(value, dict):
        parts = [*value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [*value]
    else:
        parts = [*vars(value).values()] if hasattr(value, "__dict__") else []
    for part in parts:
        mutable(part, seen)


@pytest.mark.parametrize("lesson", registry.lessons())
def test_no_two_runs_share_what_can_be_changed(lesson):
    """Whatever a student does to an input, the next case and the next student have their own."""
    shared = []
    for exercise in registry.exercises(lesson):
        cases = Exercise.visible_cases(exercise) + exercise.hidden_cases(1)
        for case in cases:
            one, two = {}, {}
            first, second = case.make(), case.make()
            mutable(first, one)
            mutable(second, two)
            frozen = {k for k in one if getattr(type(one[k]), "__dataclass_params__", None)}
            shared += [
                f"{exercise.id}, {case.name}: {type(one[key]).__name__}"
                for key in one.keys() & two.keys()
                if key not in frozen or not one[key].__dataclass_params__.frozen
            ]
    assert shared == []
