"""What earns points in lesson 08, in the order of the lesson."""

from grader.checks.speculative.drawing import DRAW, ORDER
from grader.checks.speculative.filters import MIN_P, TOP_K, TOP_P
from grader.checks.speculative.lesson import LESSON
from grader.checks.speculative.lookup import LOOKUP
from grader.checks.speculative.one_token import ONE_TOKEN
from grader.checks.speculative.payoff import BEST, EXPECTED, SPEEDUP, VERIFY_COST
from grader.checks.speculative.quiz import PREDICTIONS, QUESTIONS
from grader.checks.speculative.rule import ACCEPT, RATE, RESIDUAL
from grader.checks.speculative.temperature import TEMPERATURE
from grader.checks.speculative.verify import MATCH, VERIFY
from grader.checks.speculative.whole import ROUNDS

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
