"""What earns points in lesson 03, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.prefill_decode.chunks import CHUNKED
from grader.checks.prefill_decode.costs import FLOPS, INTENSITY, READ
from grader.checks.prefill_decode.knee import KNEE
from grader.checks.prefill_decode.lesson import LESSON
from grader.checks.prefill_decode.passes import PREFILL, STEP
from grader.checks.prefill_decode.past import ATTEND
from grader.checks.prefill_decode.quiz import PREDICTIONS, QUESTIONS
from grader.checks.prefill_decode.request import END_TO_END, SHARE
from grader.checks.prefill_decode.running import UNCACHED
from grader.checks.prefill_decode.seconds import TPOT, TTFT

EXERCISES = (
    UNCACHED,
    ATTEND,
    PREFILL,
    STEP,
    CHUNKED,
    FLOPS,
    READ,
    INTENSITY,
    KNEE,
    TTFT,
    TPOT,
    END_TO_END,
    SHARE,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
