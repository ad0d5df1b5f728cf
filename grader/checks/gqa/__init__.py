"""What earns points in lesson 05, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.gqa.absorbed import ABSORB_QUERY, ABSORBED
from grader.checks.gqa.grouped import GROUPED
from grader.checks.gqa.heads import KV_HEAD, POOL, REPEAT
from grader.checks.gqa.latent import COMPRESS, EXPAND
from grader.checks.gqa.lesson import LESSON
from grader.checks.gqa.predictions import PREDICTIONS
from grader.checks.gqa.quiz import QUESTIONS
from grader.checks.gqa.shares import INTENSITY, PER_DEVICE
from grader.checks.gqa.sizes import BYTES, GROW_AND_CAP, LAYER_NUMBERS

EXERCISES = (
    KV_HEAD,
    REPEAT,
    GROUPED,
    POOL,
    COMPRESS,
    EXPAND,
    ABSORB_QUERY,
    ABSORBED,
    LAYER_NUMBERS,
    GROW_AND_CAP,
    BYTES,
    PER_DEVICE,
    INTENSITY,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
