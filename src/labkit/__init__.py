"""What notebooks need besides the reference engine.

store        the learner's progress and predictions, on disk
display      putting HTML or Markdown before the reader, with a plain-text form
units        reading and writing quantities with units
predictions  predict, lodge, confront
plan         how many users a model serves, on which devices
figures/     the pictures, one file a lesson, with alternative text and in one readable style
measure/     seconds, bandwidth and FLOP/s, on which device, written down with the machine
interview/   knowledge checks with a learner's own numbers, drills, mock interviews, the report
explorer/    a model, a device and a load to turn: memory, roofline and speed at once
"""
