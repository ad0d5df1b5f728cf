"""The pictures of the lessons: one file a lesson, under the lesson's name.

look holds what they share (colours, sizes, helpers), show puts a figure before the reader with its
alternative text.
"""
