"""What earns points in lesson 02, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.forward_pass.attend import ATTENTION
from grader.checks.forward_pass.block import DECODER_BLOCK
from grader.checks.forward_pass.gated import SWIGLU
from grader.checks.forward_pass.lesson import LESSON
from grader.checks.forward_pass.mixing import SELF_ATTENTION
from grader.checks.forward_pass.places import CAUSAL_MASK, MERGE_HEADS, SPLIT_HEADS
from grader.checks.forward_pass.quiz import PREDICTIONS, QUESTIONS
from grader.checks.forward_pass.rope import ROPE_ANGLES, ROTATE
from grader.checks.forward_pass.small import RMS_NORM, SILU, SOFTMAX
from grader.checks.forward_pass.whole import FORWARD

EXERCISES = (
    RMS_NORM,
    SOFTMAX,
    CAUSAL_MASK,
    ATTENTION,
    SPLIT_HEADS,
    MERGE_HEADS,
    ROPE_ANGLES,
    ROTATE,
    SELF_ATTENTION,
    SILU,
    SWIGLU,
    DECODER_BLOCK,
    FORWARD,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
