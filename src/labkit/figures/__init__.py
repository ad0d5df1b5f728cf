"""The pictures of the lessons: one file a lesson, under the lesson's name.

A lesson calls its file's functions; each draws and shows one picture. look holds what they share
(colours, sizes, helpers), show puts a picture before the reader with its alternative text, bench
draws the record of `inferlab bench`.
"""
