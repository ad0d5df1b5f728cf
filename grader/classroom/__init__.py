"""Grading a class: what was handed in is read, repaired, judged and reported.

`grade`, `report` and `export` are the verbs of that name; `nbgrader_steps` puts the same reading
and judging into nbgrader's own steps. `collect`, `reading` and `form` read, `pool` judges on every
core, `record` and `book` keep what came out.
"""
