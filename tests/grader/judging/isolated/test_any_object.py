"""Whatever an object of a student's does when it is looked at, it is the student's reason."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isolated_submissions import CHECKS, GOOD, SHORT, grade, lost

from grader.judging.isolated import notebook as grading
from grader.judging.isolated.inert import inert
from labkit.interview.questions import sayable
from sandbox.endpoint import StandIn
from sandbox.shared import Shared
from sandbox.wire import BadMessage, Reader, Writer

RAISES = ("KeyError(1)", "ZeroDivisionError", "SystemExit(0)", "OSError(5, 'x')", "MemoryError")
RAISES += ("TimeoutError", "StopIteration", "KeyboardInterrupt", "RecursionError", "GeneratorExit")
LOOKS = ("__getattr__", "__len__", "__iter__", "__getitem__", "__call__", "__eq__", "__hash__")
LOOKS += ("__repr__", "__str__", "__bool__", "__index__", "__float__", "__array__", "__class__")

OBJECTS = {f"raises {e}": f"obj({e}, {LOOKS})" for e in RAISES}
OBJECTS |= {
    "raises in a getter alone": "obj(KeyError, ('__getattr__',))",
    "a length that is none": "type('L', (), {'__len__': lambda s: 'x', '__getitem__': None})()",
    "a kind of kinds that raises": (
        "type('M', (type,), {n: raiser(OSError) for n in ('__eq__', '__hash__', '__repr__', "
        "'__name__', '__instancecheck__')})('K', (), {})()"
    ),
    "a detach that raises": "tensor_with(raiser(KeyError))",
    "a detach that gives nothing": "tensor_with(lambda: None)",
    "a tensor of its own kind": "torch.ones(2).as_subclass(type('T', (torch.Tensor,), "
    "{'__torch_function__': classmethod(raiser(OSError))}))",
    "a complex tensor": "torch.ones(2, dtype=torch.complex64)",
    "a sparse tensor": "torch.ones(2, 2).to_sparse()",
    "a tensor without contents": "torch.ones(2, device='meta')",
    "a quantized tensor": "torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)",
    "a complex array": "np.ones(2, complex)",
    "an array of objects": "np.array([object(), 10 ** 5000], object)",
    "an array of dates": "np.array(['2026-01-01'], 'M8[D]')",
    "a number of many digits": "10 ** 5000",
    "minus a number of many digits": "-10 ** 5000",
    "its own kind of many digits": "type('N', (int,), {})(10 ** 5000)",
    "many keys of one hash": "{i * (2 ** 61 - 1) for i in range(1500)}",
    "many keys of one hash in a dict": "{i * (2 ** 61 - 1): 0 for i in range(1500)}",
    "lists within lists": "deep(200)",
    "lists within lists without end": "deep(100_000)",
    "a list in itself": "circle()",
    "a generator that raises": "(1 / 0 for _ in range(3))",
    "a class": "type('C', (), {})",
    "a function": "raiser(KeyError)",
    "a module": "math",
    "a date": "__import__('datetime').datetime.now()",
    "half a character": "'\\ud800'",
    "not a number": "float('nan')",
}  # fmt: skip
HELPERS = """
import math, sys
import numpy as np, torch
def raiser(error):
    def f(*a, **k): raise error
    return f
def obj(error, names):
    made = {n: property(raiser(error)) if n == '__class__' else raiser(error) for n in names}
    return type('Odd', (), made)()
def tensor_with(detach):
    t = torch.ones(2); t.detach = detach; return t
def deep(n):
    x = []
    for _ in range(n): x = [x]
    return x
def circle():
    x = [1]; x.append(x); return x
"""
# Functions of lesson 04, each of which gives the object in another place.
PLACES = {
    "kv_bytes_per_token": "def kv_bytes_per_token(*a, **k): return {}",
    "kv_cache_bytes": "def kv_cache_bytes(*a, **k): return [{}, 1]",
    "attend_one": "def attend_one(*a, **k): return {{'a': {}}}",
    "generate_cached": "def generate_cached(*a, **k): yield {}",
}
REASONS = {"wrong shape or type", "wrong value", "raised", "exited", "out of memory"}
REASONS |= {"too much output", "out of time"}


@pytest.mark.parametrize("source", OBJECTS.values(), ids=OBJECTS)
def test_an_object_in_any_place_costs_its_own_question_alone(zygote, source):
    cells = [HELPERS, *(line.format(source) for line in PLACES.values()), GOOD[2]]
    reasons = lost(zygote, cells, checks=(*PLACES, "kv_q_steps"), times=SHORT)
    assert reasons.keys() == {*PLACES}
    assert {*reasons.values()} <= REASONS


QUESTIONS = [name.removeprefix("check_") for name in grading.checks("04_kv_cache") if "_q_" in name]


def test_as_the_answer_to_a_question_it_is_a_wrong_one(zygote):
    assert len(QUESTIONS) > 6
    sources = list(OBJECTS.values())
    for start in range(0, len(sources), len(QUESTIONS)):
        some = sources[start : start + len(QUESTIONS)]
        asked = tuple(QUESTIONS[: len(some)])
        given = [f"answers[{q!r}] = {s}" for q, s in zip(asked, some, strict=True)]
        reasons = lost(zygote, [HELPERS, GOOD[2], *given], checks=asked, times=SHORT)
        assert reasons.keys() == {*asked}
        assert {*reasons.values()} <= {"wrong value", "exited", "not written", "too much output"}


AS_FUNCTION = ("obj(KeyError, ('__getattr__',))", "obj(OSError, ('__call__', '__getattr__'))",
               "obj(SystemExit, ('__call__',))", "10 ** 5000", "circle()")  # fmt: skip


@pytest.mark.parametrize("source", AS_FUNCTION)
def test_in_place_of_the_function_it_is_the_students_reason(zygote, source):
    cells = [HELPERS, f"kv_bytes_per_token = {source}", *GOOD[1:]]
    reasons = lost(zygote, cells, times=SHORT)
    assert reasons.keys() == {"kv_bytes_per_token"}
    assert reasons["kv_bytes_per_token"] in ("wrong shape or type", "raised", "exited")


INPUTS = {  # what becomes of a list that the judge lends
    "itself": "prompt.append(prompt)",
    "a circle of two": "prompt.append([prompt])",
    "an object": "prompt.append(obj(KeyError, ('__getattr__', '__len__', '__eq__')))",
    "a number of many digits": "prompt[0] = 10 ** 5000",
    "deep lists": "prompt.append(deep(50))",
    "very deep lists": "prompt.append(deep(500))",
}


@pytest.mark.parametrize("line", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("then", ["return prompt", "return list(prompt) + [1] * n_new", "1 / 0"])
def test_what_it_puts_into_the_judges_list_is_its_own_loss(zygote, line, then):
    cell = f"{HELPERS}\ndef generate_cached(model, prompt, n_new):\n    {line}\n    {then}"
    reasons = lost(zygote, [cell, *GOOD], checks=("generate_cached", *CHECKS), times=SHORT)
    assert reasons.keys() == {"generate_cached"}


SHUT = ("SHUT_RD", "SHUT_WR", "SHUT_RDWR")


@pytest.mark.parametrize("how", SHUT)
@pytest.mark.parametrize("when", ["at once", "in a call", "in a call back"])
def test_a_line_that_is_half_shut_ends_that_process_only(zygote, how, when):
    shut = (
        "import gc, socket\nfrom sandbox.endpoint import Endpoint\nimport sandbox.endpoint\n"
        "def shut():\n    for o in gc.get_objects():\n        if type(o) is Endpoint:\n"
        f"            o.wire.sock.shutdown(socket.{how})\n"
    )
    bodies = {
        "at once": "shut()\ndef generate_cached(model, prompt, n_new): return [1]",
        "in a call": "def generate_cached(model, prompt, n_new):\n    shut()\n    return [1]",
        "in a call back": "def generate_cached(model, prompt, n_new):\n"
        "    model.next_logits(prompt)\n    shut()\n    model.next_logits(prompt)\n    return [1]",
    }
    result = grade(zygote, [shut + bodies[when], *GOOD], checks=("generate_cached", *CHECKS),
                   times=SHORT)  # fmt: skip
    assert result.reasons().keys() == {"check_generate_cached"}


# ---- the decoder alone ---------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.integers(-(10**4000), 10**4000),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.integers(), st.text()), inner, max_size=4),
        st.sets(st.integers(), max_size=4),
    ),
    max_leaves=12,
)
json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
    | st.sampled_from(["list", "dict", "set", "int", "array", "record", "ref", "rng", "tensor"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@settings(max_examples=150, deadline=None)
@given(values)
def test_plain_values_cross_as_they_are(value):
    writer = Writer(lambda v: ["mine", 1, "x"], {})
    coded = writer.value(value)
    assert same(Reader(writer.frames, lambda r: r, {}).value(coded), value)


@settings(max_examples=300, deadline=None)
@given(json_like)
def test_the_reader_builds_a_value_or_says_what_is_wrong(coded):
    with contextlib.suppress(BadMessage):
        Reader([memoryview(b"12345678")], lambda r: r, {}).value(coded)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 4), max_size=3)), max_size=12))
def test_shared_lists_never_come_to_hold_themselves(puts):
    shared, lists = Shared(), [[] for _ in range(5)]
    for number, one in enumerate(lists):
        shared.add(one, number)
    for target, parts in puts:
        try:
            shared.put(target, [[lists[part]] for part in parts])
        except BadMessage:
            continue
    for one in lists:
        repr_of = repr(one)
        assert "..." not in repr_of


@settings(max_examples=150, deadline=None)
@given(values)
def test_any_answer_can_be_said(value):
    said = sayable(value)
    assert len(f"{said!r} {said}") >= 0
    if isinstance(value, str | bool | float) or value is None:
        assert said is value or same(said, value)


def test_nothing_that_is_looked_at_asks_the_other_side():
    class Silent:
        is_judge = True

        def ask(self, *_: object) -> None:
            raise AssertionError("it was asked")

        call = ask

    stand_in = StandIn(Silent(), 1, "object of type X")  # type: ignore[arg-type]
    seen = inert({"a": [1, (stand_in,)], "b": np.ones(2)})
    foreign = seen["a"][1][0]
    assert (repr(foreign), hasattr(foreign, "detach"), seen["a"][0]) == (
        "<object of type X>",
        False,
        1,
    )
