"""Measured comparisons with other engines, each in a process of its own.

`make bench` (run.py) measures engines, `make bench-serve` (serve.py) load clients and
`make bench-grade` (grading.py) the autograder. Records lie in results/; table.py makes the README's
table from them.
"""
