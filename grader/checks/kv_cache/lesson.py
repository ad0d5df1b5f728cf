"""The name of the lesson that these checks judge."""

LESSON = "04_kv_cache"
