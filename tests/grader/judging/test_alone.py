"""Each exercise earns its points on its own merit: one mistake costs the points of one exercise."""

import ast
import json
from functools import cache

import pytest
from places import ROOT

from grader.judging import registry
from grader.judging.alone import judge_alone, may_borrow
from grader.judging.verdict import Outcome
from grader.learner.assemble import definitions, namespace_of
from labkit.measure.rewire import lent

# ---- every exercise of every lesson ------------------------------------------------------------


@cache
def worked(lesson: str) -> tuple[dict, dict[str, set[str]]]:
    """What a worked notebook defines, and for each name all that its source leads to."""
    path = ROOT / "solutions" / lesson / f"{lesson}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    reads: dict[str, set[str]] = {}
    for node in definitions(notebook):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
            reads[node.name] = {part.id for part in names}
    for _ in reads:
        for name, seen in reads.items():
            reads[name] = seen.union(*(reads.get(other, set()) for other in seen))
    return namespace_of(notebook, "__main__"), reads


def planted(exercise, written):
    """The first named wrong answer; of a class, the learner's with that one's methods."""
    wrong = next(iter(exercise.wrong.values()))
    part = exercise.id.partition(".")[2]
    if not part:
        return wrong
    between = wrong.__mro__[: wrong.__mro__.index(exercise.reference)]
    own = {k: v for kind in reversed(between) for k, v in vars(kind).items() if callable(v)}
    return type(written.__name__, (written,), own)


@pytest.mark.parametrize("lesson", registry.lessons())
def test_a_mistake_costs_its_own_points_alone(lesson, record_property):
    """Judged again is whatever leads to the one that is wrong; on all else it has no bearing."""
    namespace, reads = worked(lesson)
    exercises = registry.exercises(lesson)
    for exercise in exercises:
        before = namespace[exercise.name]
        namespace[exercise.name] = planted(exercise, before)
        kept = dict(namespace)
        concerned = [
            e for e in exercises if exercise.name in reads[e.name] or e.name == exercise.name
        ]
        lost = [e.id for e in concerned if not judge_alone(e, namespace).passed]
        assert lost == [exercise.id]
        assert namespace == kept
        namespace[exercise.name] = before
    record_property("count", "lessons where a mistake costs its own points alone")


@pytest.mark.parametrize("lesson", registry.lessons())
def test_what_is_lent_stands_before_the_exercise_and_never_is_it(lesson):
    exercises = registry.exercises(lesson)
    for place, exercise in enumerate(exercises):
        lent = may_borrow(exercise)
        assert all(part in exercises[:place] for part in lent)
        assert exercise.name not in {part.name for part in lent}
        used = {part.id for part in exercises} & set(exercise.uses)
        assert used <= {part.id for part in lent}


# ---- how a part is called ----------------------------------------------------------------------

TOKEN = "def kv_bytes_per_token(config, bytes_per_number=2):\n    "
RIGHT = (
    TOKEN + "return 2 * config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number\n"
)
WRONG = RIGHT.replace("return 2 *", "return")
STUB = TOKEN + 'raise NotImplementedError("write this")\n'
CACHE = """
def kv_cache_bytes(config, n_tokens, n_sequences=1, bytes_per_number=2):
    return n_sequences * n_tokens * kv_bytes_per_token(config, bytes_per_number)
"""
BY_OTHER_WAYS = {
    "a helper": CACHE.replace("kv_bytes_per_token(", "helper(")
    + "helper = lambda *a: kv_bytes_per_token(*a)\n",
    "a method": "class Sizes:\n    @staticmethod\n    def one(config, b):\n"
    "        return kv_bytes_per_token(config, b)\n"
    + CACHE.replace("kv_bytes_per_token(", "Sizes.one("),
    "a property of an object": "class Sizes:\n    def __init__(self, c, b): self.c, self.b = c, b\n"
    "    @property\n    def one(self): return kv_bytes_per_token(self.c, self.b)\n"
    + CACHE.replace("kv_bytes_per_token(config, bytes_per_number)", "Sizes(config, "
    "bytes_per_number).one"),
    "a decorator": "from functools import wraps\ndef same(f):\n    @wraps(f)\n"
    "    def g(*a, **k): return f(*a, **k)\n    return g\n" + CACHE.replace("def", "@same\ndef", 1),
    "a cache of results": "from functools import cache\n" + CACHE.replace("def", "@cache\ndef", 1),
    "a partial": CACHE.replace("kv_cache_bytes", "other")
    + "from functools import partial\nkv_cache_bytes = partial(other)\n",
    "a callable object": CACHE.replace("kv_cache_bytes(", "__call__(self, ")
    .replace("\n", "\n    ").replace("\n    def", "class Whole:\n    def", 1)
    + "\nkv_cache_bytes = Whole()\n",
    "its globals": CACHE.replace("kv_bytes_per_token(", 'globals()["kv_bytes_per_token"]('),
}  # fmt: skip


def judged(*sources: str, name: str = "kv_cache_bytes", hidden: bool = False):
    namespace: dict = {"__name__": "__main__"}
    exec("\n".join(sources), namespace)
    before = dict(namespace)
    verdict = judge_alone(registry.exercise(name), namespace, hidden)
    assert namespace == before
    return verdict


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    "caller", [CACHE, *BY_OTHER_WAYS.values()], ids=["by name", *BY_OTHER_WAYS]
)
def test_a_wrong_part_is_ours_meanwhile_however_it_is_called(caller, hidden):
    verdict = judged(WRONG, caller, hidden=hidden)
    assert verdict.passed, verdict.text()
    assert verdict.borrowed == ("kv_bytes_per_token",)
    assert verdict.lines[0] == (
        "right; it was judged with the reference's `kv_bytes_per_token`, since yours fails its "
        "own check"
    )
    assert not judged(WRONG, caller, name="kv_bytes_per_token").passed


@pytest.mark.parametrize("part", [STUB, "", "kv_bytes_per_token = None"])
def test_an_unwritten_part_does_not_hide_a_finished_one(part):
    verdict = judged(part, CACHE)
    assert verdict.passed
    assert "since yours is not written yet" in verdict.text()


def test_what_a_cache_keeps_is_not_what_was_lent():
    namespace: dict = {}
    exec(WRONG + BY_OTHER_WAYS["a cache of results"], namespace)
    exercise = registry.exercise("kv_cache_bytes")
    assert judge_alone(exercise, namespace).passed
    inputs = exercise.visible_cases()[0].make()
    assert 2 * namespace["kv_cache_bytes"](**inputs) == exercise.reference(**inputs)


def test_its_own_mistake_is_told_beside_a_wrong_part():
    verdict = judged(WRONG, CACHE.replace("n_sequences * ", ""))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.cause.startswith("likely cause: n_sequences is forgotten")
    assert verdict.next_step == 'hint("kv_cache_bytes")'
    assert "it was judged with the reference's `kv_bytes_per_token`" in verdict.text()


def test_a_stub_stays_unwritten_and_right_parts_are_the_learners():
    stub = CACHE.split("\n    return")[0] + '\n    raise NotImplementedError("write this")\n'
    verdict = judged(WRONG, stub)
    assert verdict.outcome is Outcome.NOT_RUN
    assert verdict.text().endswith("not written yet")
    assert judged(RIGHT, CACHE).borrowed == ()


def test_a_part_that_the_answer_does_not_call_is_no_matter():
    own = CACHE.replace(
        "kv_bytes_per_token(config, bytes_per_number)",
        "config.n_layers * config.n_kv_heads * config.d_head * bytes_per_number",
    )
    verdict = judged(WRONG, own)
    assert verdict.outcome is Outcome.FAILED
    assert "kv_bytes_per_token" not in verdict.text()
    assert 'next: hint("kv_cache_bytes")' in verdict.text()


def test_an_answer_is_never_judged_by_itself():
    """The other way round: a token's bytes, taken from the function that should call it."""
    token = TOKEN + "return kv_cache_bytes(config, 1, 1, bytes_per_number)\n"
    for whole in ("", CACHE.split("\n    return")[0] + "\n    raise NotImplementedError\n"):
        assert not judged(token, whole, name="kv_bytes_per_token").passed


def test_several_wrong_parts_are_named_in_the_order_of_the_lesson():
    exercise = registry.exercise("latency_report")
    namespace, _ = worked("11_latency_metrics")
    wrong = dict.fromkeys(("percentile", "request_latencies"), lambda *_, **__: None)
    before = {name: namespace[name] for name in wrong}
    namespace.update(wrong)
    verdict = judge_alone(exercise, namespace)
    namespace.update(before)
    names = "`request_latencies` and `percentile`, since yours fail their own checks"
    assert names in verdict.text()


def test_the_namespace_is_restored_when_the_judgement_is_broken_off():
    namespace: dict = {}
    exec(WRONG + CACHE, namespace)
    kept = namespace["kv_bytes_per_token"]
    with pytest.raises(KeyboardInterrupt), lent(namespace, {"kv_bytes_per_token": 1, "new": 2}):
        raise KeyboardInterrupt
    assert namespace["kv_bytes_per_token"] is kept
    assert "new" not in namespace
