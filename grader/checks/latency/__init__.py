"""What earns points in lesson 11, in the order of the lesson."""

from grader.checks.latency.arrivals import BURSTY, POISSON
from grader.checks.latency.good import GOODPUT
from grader.checks.latency.lesson import LESSON
from grader.checks.latency.logs import FROM_LOG
from grader.checks.latency.many import HISTOGRAM, PERCENTILE
from grader.checks.latency.predictions import PREDICTIONS
from grader.checks.latency.promise import HIGHEST
from grader.checks.latency.queues import MM1, REPLICAS
from grader.checks.latency.quiz import QUESTIONS
from grader.checks.latency.report import REPORT
from grader.checks.latency.request import REQUEST
from grader.checks.latency.throughput import THROUGHPUT
from grader.checks.latency.tools import TOOLS

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
