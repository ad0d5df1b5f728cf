"""What earns points in lesson 09, in the order of the lesson."""

from grader.checks.mixture.balance import BIASED, LOSS
from grader.checks.mixture.capacity import CAPACITY, SERVED
from grader.checks.mixture.forward import FORWARD
from grader.checks.mixture.lesson import LESSON
from grader.checks.mixture.predictions import PREDICTIONS
from grader.checks.mixture.quiz import QUESTIONS
from grader.checks.mixture.residual import ADD
from grader.checks.mixture.router import ROUTE, WEIGHTS
from grader.checks.mixture.shared import MIXTURE
from grader.checks.mixture.sizes import IN_LAYER, RESIDENT, TOTAL
from grader.checks.mixture.traffic import STEP_BYTES, TOUCHED

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
