"""Judges one answer to one exercise: cases, comparison, verdict.

To use it: find the exercise in `registry`, then `judge.judge`. isolated/ does the same for code
that runs in another process.
"""
