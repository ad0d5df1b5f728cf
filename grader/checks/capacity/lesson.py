"""The name of the lesson that these checks judge."""

LESSON = "12_capacity"
"""Lesson 12: size a deployment, then serve one."""
