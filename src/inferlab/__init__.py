"""inferlab: an LLM inference engine from scratch, one concept a file.

Names and shapes, the same in code, docstrings and lessons:

| symbol | meaning | symbol | meaning |
|---|---|---|---|
| `B` | sequences in the batch | `n_heads`, `n_kv_heads` | query heads, key/value heads |
| `T` | tokens computed now (queries) | `d_model`, `d_head`, `d_ff` | widths: residual, head, MLP |
| `S` | tokens that may be seen (keys) | `n_layers`, `vocab_size` | as they say |
| `P` | physical pages | `page_size`, `page_table` | tokens a page; always *page*, not *block* |
| | | `n_experts`, `d_expert` | experts of a layer, width of one |
| | | `d_latent`, `d_nope`, `d_rope`, `d_value` | MLA: latent, plain and rotated part, value |

Attention is heads-first, (B, n_heads, T, d_head). Weights are (d_in, d_out), so `x @ w` needs no
transpose; loaders turn foreign layouts round once. Counts are `n_*`, widths `d_*`, units come last
(`_bytes`, `_flops`, `_s`, `_per_s`). GB is 1e9 bytes, GiB is 2**30.

    from inferlab.model import load_model
    model = load_model("smollm2")  # after: inferlab fetch smollm2
    model.next_logits(model.tokenizer.encode("The capital of France is"))
"""

import os

from inferlab.moved import MOVED, keep_old_names

# After a product NumPy's threads wait busily for the next one, for 20 ms, beside all that runs: a
# decode step, PyTorch, another program. 0.3 ms are enough. OpenBLAS reads this when NumPy is
# imported for the first time; processes that are started from here inherit it.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2**20 ticks of the processor

keep_old_names(MOVED)
