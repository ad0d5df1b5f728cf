"""The judge's side of isolated grading: it asks, another process computes.

`notebook` judges a whole notebook, with processes that `students.Zygote` forks. `border` says what
may cross, `own_limits` bounds the judge itself. The other side is the package sandbox.
"""
