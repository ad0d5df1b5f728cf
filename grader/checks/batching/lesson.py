"""The name of the lesson that these checks judge."""

LESSON = "10_batching"
