"""What earns points in lesson 06, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.flash_attention.blocks import COUNT_TILES, KEY_BLOCKS
from grader.checks.flash_attention.chip import BLOCK_SIZE
from grader.checks.flash_attention.lesson import LESSON
from grader.checks.flash_attention.online import NORMALIZER
from grader.checks.flash_attention.parts import MERGE, PARTIAL
from grader.checks.flash_attention.quiz import PREDICTIONS, QUESTIONS
from grader.checks.flash_attention.split import SPLIT
from grader.checks.flash_attention.tiles import TILED
from grader.checks.flash_attention.traffic import SCORE_BYTES, STANDARD, TRAFFIC
from grader.checks.flash_attention.update import UPDATE

EXERCISES = (
    SCORE_BYTES,
    STANDARD,
    NORMALIZER,
    UPDATE,
    KEY_BLOCKS,
    COUNT_TILES,
    TILED,
    TRAFFIC,
    BLOCK_SIZE,
    PARTIAL,
    MERGE,
    SPLIT,
)


__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
