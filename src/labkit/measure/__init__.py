"""What the lessons measure, and with what: clocks, counted memory, small models, devices.

timing times, counting counts bytes, device says whether to measure at all; the others belong to the
lesson whose name they bear.
"""
