"""The decoder in PyTorch, on cpu, cuda or mps, in float32, bfloat16, int8 or int4.

To use it: `model.TorchModel.from_model(model, device, dtype)`. step is one decode step, paged the
pass that serves; layers, attention and the ops are what both are made of.
"""
