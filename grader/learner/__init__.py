"""What a learner meets: a notebook's verbs, the working copy, progress, doctor, their own parts.

desk holds what `from grader import …` gives; lab starts and updates the working copy.
"""
