"""What earns points in lesson 11, in the order of the lesson.

One file for each group of exercises: cases, hints, right and wrong answers. quiz.py holds the
knowledge check. `grader.judging.registry` reads EXERCISES, QUESTIONS and PREDICTIONS from here.
"""

from grader.checks.latency_metrics.arrivals import BURSTY, POISSON
from grader.checks.latency_metrics.good import GOODPUT
from grader.checks.latency_metrics.lesson import LESSON
from grader.checks.latency_metrics.logs import FROM_LOG
from grader.checks.latency_metrics.many import HISTOGRAM, PERCENTILE
from grader.checks.latency_metrics.predictions import PREDICTIONS
from grader.checks.latency_metrics.promise import HIGHEST
from grader.checks.latency_metrics.queues import MM1, REPLICAS
from grader.checks.latency_metrics.quiz import QUESTIONS
from grader.checks.latency_metrics.report import REPORT
from grader.checks.latency_metrics.request import REQUEST
from grader.checks.latency_metrics.throughput import THROUGHPUT
from grader.checks.latency_metrics.tools import TOOLS

EXERCISES = (
    REQUEST,
    TOOLS,
    PERCENTILE,
    HISTOGRAM,
    THROUGHPUT,
    GOODPUT,
    FROM_LOG,
    REPORT,
    REPLICAS,
    POISSON,
    BURSTY,
    MM1,
    HIGHEST,
)

__all__ = ["EXERCISES", "LESSON", "PREDICTIONS", "QUESTIONS"]
