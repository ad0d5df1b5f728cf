"""What the verbs `generate` and `bench` of `inferlab` do; the top of the engine.

Each file has one `run_…(args) -> exit code`, or a function that gives rows; grader/cli.py declares
the options and calls it. Nothing else in inferlab may import from here.
"""
