"""What notebooks need besides the reference engine.

store        the learner's progress and predictions, on disk
figures      pictures with alternative text, in one readable style
display      putting HTML or Markdown before the reader, with a plain-text form
units        reading and writing quantities with units
predictions  predict, lodge, confront
questions    knowledge checks with a learner's own numbers
device       which device, and whether to measure at all
timing       measured seconds, bandwidth and FLOP/s, written down with the machine
explorer     a model, a device and a load to turn: memory, roofline and speed at once
"""

import inferlab  # noqa: F401  its old names are ours too: see inferlab.moved
