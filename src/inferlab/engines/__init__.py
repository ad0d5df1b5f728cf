"""The same decoder three times: NumPy to read, NumPy arranged for speed, PyTorch on any device.

To use one: `choose.load_engine(name, engine, device, dtype)`; `options` holds the words for it on a
command line. The readable one is inferlab.model.
"""
