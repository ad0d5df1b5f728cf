"""What of the course's own code a lesson's students must not have while they are graded."""

from __future__ import annotations

from functools import lru_cache

import jupytext

from grader.judging import registry
from grader.judging.exercise import Exercise
from inferlab.data import ROOT

UNAVAILABLE = (
    "this is the course's own version, which is not there while it is graded: "
    "write it in this notebook"
)

# Functions that are no exercise of the lesson and give what one asks for: calling them is no answer
# either. What earlier lessons had the learner write is theirs to use.
SAME_IN_OTHER_WORDS = {
    "02_forward_pass": (
        "inferlab.engines.pytorch.layers.rms_norm", "inferlab.engines.pytorch.layers.rotate",
        "inferlab.engines.pytorch.attention.attend", "inferlab.engines.fast_numpy.step.exp_of_rows",
    ),
    "04_kv_cache": ("inferlab.cache_sizes.layer_cache_numbers",),
}  # fmt: skip


@lru_cache(maxsize=32)
def under_judgement(lesson: str) -> dict[str, str]:
    """What of the reference a lesson's students must not have: "module.function" -> what to say."""
    found: dict[str, str] = {}
    for exercise in registry.exercises(lesson):
        path = f"{exercise.reference.__module__}.{exercise.name}"
        paths = [f"{path}.{name}" for name in methods_of(exercise, lesson)] or [path]
        found |= dict.fromkeys(paths, UNAVAILABLE)
    return found | dict.fromkeys(SAME_IN_OTHER_WORDS.get(lesson, ()), UNAVAILABLE)


def methods_of(exercise: Exercise, lesson: str) -> list[str]:
    """Of an exercise on a class: the methods that the learner writes, all of them together."""
    method = exercise.id.partition(".")[2]
    return methods_to_write(lesson).get(exercise.name, [method] if method else [])


@lru_cache(maxsize=32)
def methods_to_write(lesson: str) -> dict[str, list[str]]:
    """Class -> the methods that the learner writes, as the lesson's script says."""
    script = jupytext.read(ROOT / "src" / "lessons" / f"{lesson}.py")
    written = [c.metadata for c in script.cells if "write" in c.metadata]
    return {m["exercise"]: m["write"].split() for m in written}
