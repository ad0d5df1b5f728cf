"""NumPy arranged for speed: weights side by side in large pages, a decode step shared by processes.

To use it: `model.FastModel.of(model)`. step is one decode step, team the processes that share it,
layer the weights of a layer as both see them.
"""
