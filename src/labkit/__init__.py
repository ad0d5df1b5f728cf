"""What notebooks need besides the engine.

store        the learner's progress and predictions, on disk
predictions  predict, lodge, confront
units        reading and writing quantities with units
display      putting HTML or Markdown before the reader, with a plain-text form
files        writing a file whole or not at all
plan         the table and the picture of `inferlab plan`
figures/     the pictures of each lesson, with alternative text
measure/     clocks, devices, trained models, and what each lesson measures
interview/   practice questions, knowledge checks, and their history
explorer/    a model, a device and a load to turn: memory, roofline and speed at once
"""

from inferlab.moved import keep_old_names
from labkit.moved import OLD_NAMES

keep_old_names(OLD_NAMES)
