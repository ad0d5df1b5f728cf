"""Where a student's code runs: a process of its own, with nothing worth finding in it.

The judge (package grader) holds cases, expected values and grades, and never runs student code.
This package is what the other process has: it must not import the grader.

wire.py: the only data that crosses; endpoint.py: calls and objects over it; shell.py: a notebook's
cells; walls.py: namespaces and limits; zygote.py: a process that has imported everything and forks.
"""
