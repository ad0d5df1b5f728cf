"""What earns points in lesson 04, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.kv_cache.decode import ATTEND, CACHED, UNCACHED
from grader.checks.kv_cache.lesson import LESSON
from grader.checks.kv_cache.quiz import PREDICTIONS, QUESTIONS
from grader.checks.kv_cache.running import GENERATE, RING
from grader.checks.kv_cache.sizes import BATCH, CACHE_BYTES, CONTEXT, PER_TOKEN
from grader.checks.kv_cache.structures import APPEND, RESERVE
from grader.checks.kv_cache.truncate import TRUNCATE

EXERCISES = (
    ATTEND,
    UNCACHED,
    CACHED,
    RESERVE,
    APPEND,
    TRUNCATE,
    RING,
    GENERATE,
    PER_TOKEN,
    CACHE_BYTES,
    BATCH,
    CONTEXT,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
