"""What earns points in lesson 08, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.speculative_sampling.drawing import DRAW, ORDER
from grader.checks.speculative_sampling.filters import MIN_P, TOP_K, TOP_P
from grader.checks.speculative_sampling.lesson import LESSON
from grader.checks.speculative_sampling.lookup import LOOKUP
from grader.checks.speculative_sampling.one_token import ONE_TOKEN
from grader.checks.speculative_sampling.payoff import BEST, EXPECTED, SPEEDUP, VERIFY_COST
from grader.checks.speculative_sampling.quiz import PREDICTIONS, QUESTIONS
from grader.checks.speculative_sampling.rule import ACCEPT, RATE, RESIDUAL
from grader.checks.speculative_sampling.temperature import TEMPERATURE
from grader.checks.speculative_sampling.verify import MATCH, VERIFY
from grader.checks.speculative_sampling.whole import ROUNDS

EXERCISES = (
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    ORDER,
    DRAW,
    ACCEPT,
    RESIDUAL,
    ONE_TOKEN,
    RATE,
    VERIFY,
    MATCH,
    EXPECTED,
    SPEEDUP,
    VERIFY_COST,
    BEST,
    LOOKUP,
    ROUNDS,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
