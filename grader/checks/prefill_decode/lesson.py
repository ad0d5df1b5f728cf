"""The name of the lesson that these checks judge."""

LESSON = "03_prefill_decode"
