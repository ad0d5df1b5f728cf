"""Grading a class: what was handed in is read, repaired, judged and reported."""
