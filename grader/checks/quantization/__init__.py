"""What earns points in lesson 07, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.quantization.cache import KV
from grader.checks.quantization.channels import MIGRATE, SEARCH
from grader.checks.quantization.formats import BYTES, EXPECTED, FP8
from grader.checks.quantization.lesson import LESSON
from grader.checks.quantization.nibbles import PACK, UNPACK
from grader.checks.quantization.products import MATMUL_INT8, MATMUL_PACKED
from grader.checks.quantization.quiz import PREDICTIONS, QUESTIONS
from grader.checks.quantization.ranges import ASYMMETRIC, GROUPS
from grader.checks.quantization.rounding import ABSMAX, DEQUANTIZE, ERROR

EXERCISES = (
    ABSMAX,
    DEQUANTIZE,
    ERROR,
    EXPECTED,
    ASYMMETRIC,
    GROUPS,
    PACK,
    UNPACK,
    BYTES,
    MATMUL_PACKED,
    MATMUL_INT8,
    FP8,
    KV,
    MIGRATE,
    SEARCH,
)
__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
