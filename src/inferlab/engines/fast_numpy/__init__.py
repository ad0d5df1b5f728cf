"""NumPy arranged for speed: weights side by side in large pages, a decode step shared by processes.

To use it: `model.FastModel.of(model)`.
"""
