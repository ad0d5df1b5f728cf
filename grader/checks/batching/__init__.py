"""What earns points in lesson 10, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.batching.allocator import ALLOCATOR
from grader.checks.batching.hashes import HASHES
from grader.checks.batching.lesson import LESSON
from grader.checks.batching.pages import PAGED, SLOTS
from grader.checks.batching.plan import ADMIT, PLAN
from grader.checks.batching.preempt import PREEMPT
from grader.checks.batching.prefix import EVICT, LOOKUP
from grader.checks.batching.quiz import PREDICTIONS, QUESTIONS
from grader.checks.batching.reserve import RESERVE
from grader.checks.batching.share import FORK, OWN
from grader.checks.batching.speeds import SPEEDS
from grader.checks.batching.trace import CONTINUOUS, STATIC
from grader.checks.batching.waste import PAGES, WASTE

EXERCISES = (
    SPEEDS,
    STATIC,
    CONTINUOUS,
    PAGES,
    WASTE,
    ALLOCATOR,
    SLOTS,
    PAGED,
    FORK,
    OWN,
    HASHES,
    LOOKUP,
    EVICT,
    RESERVE,
    PREEMPT,
    ADMIT,
    PLAN,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
