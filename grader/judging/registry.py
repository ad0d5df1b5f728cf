"""All exercises, predictions and questions; each package in grader.checks adds its own."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

import grader.checks
from grader.judging.exercise import Exercise
from labkit.interview.questions import Question
from labkit.predictions import Prediction


@lru_cache(maxsize=1)
def _modules() -> tuple:
    names = sorted(m.name for m in pkgutil.iter_modules(grader.checks.__path__))
    return tuple(importlib.import_module(f"grader.checks.{name}") for name in names)


def lessons() -> tuple[str, ...]:
    """Lessons that exist, in order: ("04_kv_cache",)."""
    return tuple(sorted({module.LESSON for module in _modules()}))


def exercises(lesson: str | None = None) -> tuple[Exercise, ...]:
    return tuple(
        exercise
        for module in _modules()
        for exercise in module.EXERCISES
        if lesson in (None, exercise.lesson)
    )


def exercise(exercise_id: str) -> Exercise:
    """The exercise with this id; ValueError names those that exist."""
    found = {e.id: e for e in exercises()}
    if exercise_id not in found:
        raise ValueError(f"no exercise {exercise_id!r}; there are: {', '.join(found)}")
    return found[exercise_id]


def predictions(lesson: str | None = None) -> tuple[Prediction, ...]:
    return tuple(p for m in _modules() for p in m.PREDICTIONS if lesson in (None, m.LESSON))


def prediction(prediction_id: str) -> Prediction:
    found = {p.id: p for p in predictions()}
    if prediction_id not in found:
        raise ValueError(f"no prediction {prediction_id!r}; there are: {', '.join(found)}")
    return found[prediction_id]


def questions(lesson: str | None = None) -> tuple[Question, ...]:
    return tuple(q for m in _modules() for q in m.QUESTIONS if lesson in (None, m.LESSON))
