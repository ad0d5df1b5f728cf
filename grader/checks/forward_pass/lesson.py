"""The name of this lesson."""

LESSON = "02_forward_pass"
