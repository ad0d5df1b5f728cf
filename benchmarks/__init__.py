"""Measured comparisons with other engines: python -m benchmarks.run, or make bench."""
