"""The matrices of one layer as the fast engine holds them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FastLayer:
    """One decoder block, float32, in the order in which it is read.

    Row-major (d_in, d_out), but for w_down: of few columns OpenBLAS reads whole columns faster.

    The gains of the two norms and the 1/sqrt(d_head) of the scores are folded in: the numbers of a
    normed row are multiplied by the same gain in every column, so the rows of the matrix may be.
    """

    w_qkv: np.ndarray  # (d_model, (n_heads + 2 * n_kv_heads) * d_head)
    w_o: np.ndarray  # (n_heads * d_head, d_model)
    w_gate_up: np.ndarray  # (d_model, 2 * d_ff)
    w_down: np.ndarray  # (d_ff, d_model), column-major
