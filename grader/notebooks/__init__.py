"""Notebooks as files: built, released, merged with a learner's copy, repaired.

To use it: `build.build(course)`, `merge.merge(old, own, new)`, `repair.repair(...)`.
"""
