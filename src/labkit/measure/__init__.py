"""What the lessons measure, and with what.

For every lesson: timing (clocks, bandwidth, FLOP/s, records), device (which, and whether to measure
at all), models (trained ones, fetched or shipped). For one lesson, under its name: batching,
flash_attention, gqa, moe. Lesson 02 has diverge, part_times and rewire, lesson 08 toy_model,
lesson 12 load_test.
"""
