"""What earns points in lesson 12, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.capacity.choose import CHOOSE, COST
from grader.checks.capacity.context import CONTEXT, DEVICES
from grader.checks.capacity.fits import FIT, ROOM, SIZES
from grader.checks.capacity.lesson import LESSON
from grader.checks.capacity.levers import LEVER, SPECULATION
from grader.checks.capacity.obstacle import OBSTACLE
from grader.checks.capacity.passes import ALL_REDUCE, PASS
from grader.checks.capacity.quiz import PREDICTIONS, QUESTIONS
from grader.checks.capacity.speed import STEADY, USERS

EXERCISES = (
    SIZES,
    ROOM,
    FIT,
    CONTEXT,
    DEVICES,
    PASS,
    ALL_REDUCE,
    STEADY,
    USERS,
    LEVER,
    SPECULATION,
    COST,
    OBSTACLE,
    CHOOSE,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
