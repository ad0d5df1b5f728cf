"""The name of the lesson that these checks judge."""

LESSON = "09_moe"
