"""What earns points in lesson 09, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.moe.balance import BIASED, LOSS
from grader.checks.moe.capacity import CAPACITY, SERVED
from grader.checks.moe.forward import FORWARD
from grader.checks.moe.lesson import LESSON
from grader.checks.moe.predictions import PREDICTIONS
from grader.checks.moe.quiz import QUESTIONS
from grader.checks.moe.residual import ADD
from grader.checks.moe.router import ROUTE, WEIGHTS
from grader.checks.moe.shared import MIXTURE
from grader.checks.moe.sizes import IN_LAYER, RESIDENT, TOTAL
from grader.checks.moe.traffic import STEP_BYTES, TOUCHED

EXERCISES = (
    WEIGHTS,
    ROUTE,
    FORWARD,
    MIXTURE,
    IN_LAYER,
    TOTAL,
    RESIDENT,
    TOUCHED,
    STEP_BYTES,
    LOSS,
    BIASED,
    CAPACITY,
    SERVED,
    ADD,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
