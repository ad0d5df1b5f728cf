"""The name of the lesson that these checks judge."""

LESSON = "01_roofline"
