"""What earns points: a package for each lesson, under the lesson's name.

Each gives LESSON, EXERCISES, QUESTIONS and PREDICTIONS; `grader.judging.registry` finds them there.
"""
