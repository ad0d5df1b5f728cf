"""What earns points in lesson 01, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.roofline.batch import BATCH
from grader.checks.roofline.bounds import BOUND, STEP_BYTES
from grader.checks.roofline.device import ATTAINABLE, RATES, RIDGE
from grader.checks.roofline.lesson import LESSON
from grader.checks.roofline.matmul import BYTES, FLOPS, INTENSITY
from grader.checks.roofline.passes import FORWARD, TOKEN
from grader.checks.roofline.predictions import PREDICTIONS
from grader.checks.roofline.quiz import QUESTIONS
from grader.checks.roofline.sizes import ATTENTION, DENSE, MLP

EXERCISES = (
    FLOPS,
    BYTES,
    INTENSITY,
    RATES,
    RIDGE,
    ATTAINABLE,
    ATTENTION,
    MLP,
    DENSE,
    TOKEN,
    FORWARD,
    STEP_BYTES,
    BOUND,
    BATCH,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
