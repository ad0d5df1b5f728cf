"""The name of the lesson that these checks judge."""

LESSON = "06_flash_attention"
