"""One class for each family of engines, all with the same few verbs.

generate(prompt, n_new) and generate_batch(prompts, n_new) run greedily and stop for nothing;
prefill(tokens) computes the logits after the last token; logits(tokens) those after each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.plan import Variant
from inferlab.generate import generate_cached
from inferlab.model import Model, load_model

HF_LAYER = {
    "attention_gain": "input_layernorm",
    "w_q": "self_attn.q_proj",
    "w_k": "self_attn.k_proj",
    "w_v": "self_attn.v_proj",
    "w_o": "self_attn.o_proj",
    "mlp_gain": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}


def absent(variant: Variant, model_name: str) -> str | None:
    """Why a variant cannot run here though nothing is wrong; None where it can."""
    if variant.family != "llama.cpp":
        return None
    if find_spec("llama_cpp") is None:
        return 'llama_cpp is not installed: pip install ".[llama]"'
    return None if str(gguf_path(model_name)).endswith(".gguf") else "it needs a .gguf file"


def gguf_path(model_name: str) -> Any:
    """The file behind a model's name."""
    from inferlab.checkpoints.fetch import MODEL_NAMES, fetched_path

    return fetched_path(model_name) if model_name in MODEL_NAMES else model_name


def make(variant: Variant, model_name: str, n_threads: int) -> Any:
    """Load the model into the engine of a variant."""
    if variant.family == "llama.cpp":
        from benchmarks.llama import LlamaCpp

        runner = LlamaCpp(str(gguf_path(model_name)), variant.dtype, n_threads)
        runner.tokenizer = load_model(model_name).tokenizer
        return runner
    if variant.on_torch:
        import torch

        torch.set_num_threads(n_threads)
    makers: dict[str, Callable[[Model, str], Any]] = {
        "transformers": Transformers,
        "numpy": lambda model, _: Engine(model, model.weight_bytes),
        "fast": _fast,
        "torch": TorchEngine,
    }
    model = load_model(model_name)
    runner = makers[variant.family](model, variant.dtype)
    runner.tokenizer = model.tokenizer
    return runner


class Engine:
    """An engine of this course."""

    def __init__(self, model: Any, bytes_per_token: int) -> None:
        self.model, self.bytes_per_token = model, bytes_per_token
        self.vocab_size = model.config.vocab_size

    def generate(self, prompt: Sequence[int], n_new: int) -> list[int]:
        return generate_cached(self.model, prompt, n_new)

    def prefill(self, tokens: Sequence[int]) -> None:
        self.model.next_logits(tokens, self.model.new_cache(capacity=len(tokens)))

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """One token a pass, as in decoding: a format may be exact in a prefill only."""
        cache = self.model.new_cache(capacity=len(tokens))
        return np.stack([self.model.next_logits([token], cache) for token in tokens])

    def lookup(self, prompt: Sequence[int], n_new: int) -> tuple[list[int], float]:
        """Tokens with prompt lookup, and the share of drafted tokens that was accepted."""
        from inferlab.prompt_lookup import LookupStats, generate_lookup

        stats = LookupStats()
        return generate_lookup(self.model, prompt, n_new, stats=stats), stats.acceptance


def _fast(model: Model, _: str) -> Engine:
    from inferlab.engines.fast_numpy.model import FastModel

    fast = FastModel.of(model)
    return Engine(fast, fast.weight_bytes)


class TorchEngine(Engine):
    """The engine on PyTorch."""

    def __init__(self, model: Model, dtype: str) -> None:
        from inferlab.engines.pytorch.model import TorchModel

        engine = TorchModel.from_model(model, device="cpu", dtype=dtype)
        super().__init__(engine, engine.step_bytes)

    def generate_batch(self, prompts: Sequence[Sequence[int]], n_new: int) -> list[list[int]]:
        from inferlab.engines.pytorch.model import generate_batch

        return generate_batch(self.model, prompts, n_new)


class Transformers:
    """LlamaForCausalLM of transformers with our dequantized weights, as torch allocates them."""

    def __init__(self, model: Model, dtype: str) -> None:
        import torch

        self.dtype = getattr(torch, dtype)
        self.model = hf_model(model).to(self.dtype)
        self.vocab_size = model.config.vocab_size
        self.bytes_per_token = model.n_params * self.dtype.itemsize
        self.torch = torch

    def generate(self, prompt: Sequence[int], n_new: int) -> list[int]:
        return self.generate_batch([prompt], n_new)[0]

    def generate_batch(self, prompts: Sequence[Sequence[int]], n_new: int) -> list[list[int]]:
        ids = self.torch.tensor(np.asarray(prompts))
        with self.torch.inference_mode():
            tokens = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=n_new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return tokens[:, ids.shape[1] :].tolist()

    def prefill(self, tokens: Sequence[int]) -> None:
        with self.torch.inference_mode():
            self.model(self.torch.tensor([list(tokens)]), use_cache=True, logits_to_keep=1)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        rows, cache = [], None
        with self.torch.inference_mode():
            for token in tokens:
                ids = self.torch.tensor([[int(token)]])
                out = self.model(ids, cache=cache, use_cache=True)
                cache = out.cache
                rows.append(out.logits[0, -1].float().numpy())
        return np.stack(rows)


def hf_model(model: Model) -> Any:
    """The same model in transformers, float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    c, w = model.config, model.weights
    config = LlamaConfig(
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        head_dim=c.d_head,
        vocab_size=c.vocab_size,
        max_position_embeddings=c.max_context,
        rms_norm_eps=c.norm_eps,
        tie_word_embeddings=c.tied_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        bos_token_id=None,
        eos_token_id=None,
    )
    tensors = {"model.embed_tokens.weight": w.embedding, "model.norm.weight": w.final_gain}
    tensors["lm_head.weight"] = w.embedding if c.tied_embeddings else w.head.T
    for i, layer in enumerate(w.layers):
        for field, name in HF_LAYER.items():
            tensors[f"model.layers.{i}.{name}.weight"] = getattr(layer, field).T
    hf = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        hf.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return hf
