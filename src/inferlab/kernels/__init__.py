"""Kernels for a GPU, in Triton; each computes what a function of a lesson computes.

flash_attention is `inferlab.flash_attention.tiled_attention` once more.
"""
