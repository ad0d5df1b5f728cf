"""The name of the lesson that these checks judge."""

LESSON = "11_latency_metrics"
