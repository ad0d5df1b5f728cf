"""What the verbs of `inferlab` do that need the engine alone: generate, serve, bench.

Each file has one `run_…(args) -> exit code`; grader/cli.py declares the options and calls it.
"""
