"""The name of the lesson that these checks judge."""

LESSON = "07_quantization"
