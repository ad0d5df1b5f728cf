"""A small Llama- or Mixtral-style decoder in PyTorch, for training only.

Its parameters bear the names of a Hugging Face checkpoint, so `state_dict()` is the export.
Matrices are (d_out, d_in) here, as torch's Linear holds them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own abbreviation)
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model; n_experts 0 means a dense MLP, else d_ff is that of one expert."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    vocab_size: int
    n_experts: int = 0
    n_experts_per_token: int = 2
    max_context: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


Past = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, (B, n_kv_heads, S, d_head)."""


def linear(d_in: int, d_out: int) -> nn.Linear:
    return nn.Linear(d_in, d_out, bias=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split form: number i is paired with i + d_head/2."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.s = s
        self.q_proj = linear(s.d_model, s.n_heads * s.d_head)
        self.k_proj = linear(s.d_model, s.n_kv_heads * s.d_head)
        self.v_proj = linear(s.d_model, s.n_kv_heads * s.d_head)
        self.o_proj = linear(s.n_heads * s.d_head, s.d_model)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: Past | None, i: int) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (
            p(x).view(B, T, -1, self.s.d_head).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, *rope), rotate(k, *rope)
        group = self.s.n_heads // self.s.n_kv_heads
        if past is None:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # one new token, which may see all: a group's query heads stand in for many tokens
            k, v = torch.cat([past[i][0], k], dim=2), torch.cat([past[i][1], v], dim=2)
            past[i] = (k, v)
            q = q.view(B, self.s.n_kv_heads, group, self.s.d_head)
            out = F.scaled_dot_product_attention(q, k, v).view(B, -1, 1, self.s.d_head)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))


class DenseMlp(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gate_proj = linear(s.d_model, s.d_ff)
        self.up_proj = linear(s.d_model, s.d_ff)
        self.down_proj = linear(s.d_ff, s.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Expert(nn.Module):
    """Mixtral's names: w1 is gate, w3 is up, w2 is down."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.w1 = linear(s.d_model, s.d_ff)
        self.w2 = linear(s.d_ff, s.d_model)
        self.w3 = linear(s.d_model, s.d_ff)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoeMlp(nn.Module):
    """Each token goes through its best experts, weighted by the softmax over these alone.

    After a forward pass, `balance` is the Switch loss (1 at uniform use) and `counts` how many
    times each expert was chosen.
    """

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.k = s.n_experts_per_token
        self.gate = linear(s.d_model, s.n_experts)
        self.experts = nn.ModuleList(Expert(s) for _ in range(s.n_experts))
        self.balance = torch.zeros(())
        self.counts = torch.zeros(s.n_experts)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (B * T, d_model)
        probabilities = self.gate(rows).softmax(dim=-1)
        best, chosen = probabilities.topk(self.k, dim=-1)  # (B * T, k)
        share = best / best.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):
            row, slot = (chosen == e).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(rows[row]) * share[row, slot, None])
        self.counts = torch.bincount(chosen.flatten(), minlength=len(self.experts))
        used = self.counts / self.counts.sum()
        self.balance = len(self.experts) * (used * probabilities.mean(dim=0)).sum()
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.d_model, eps=s.norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.d_model, eps=s.norm_eps)
        self.is_moe = s.n_experts > 0
        if self.is_moe:
            self.block_sparse_moe = MoeMlp(s)
        else:
            self.mlp = DenseMlp(s)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], past: Past | None, i: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, past, i)
        mlp = self.block_sparse_moe if self.is_moe else self.mlp
        return x + mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.d_model)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.n_layers))
        self.norm = nn.RMSNorm(s.d_model, eps=s.norm_eps)


class Decoder(nn.Module):
    """Token ids (B, T) -> logits (B, T, vocab_size); the head is the embedding turned round."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.model = Trunk(sizes)
        self.cos, self.sin = _rope(sizes)

    def forward(self, tokens: Tensor, past: Past | None = None) -> Tensor:
        seen = 0 if past is None else past[0][0].shape[2]
        rope = tuple(x[seen : seen + tokens.shape[1]] for x in (self.cos, self.sin))
        x = self.model.embed_tokens(tokens)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, rope, past, i)
        return self.model.norm(x) @ self.model.embed_tokens.weight.T

    def empty_past(self, n_sequences: int) -> Past:
        s = self.sizes
        empty = torch.zeros(n_sequences, s.n_kv_heads, 0, s.d_head)
        return [(empty, empty) for _ in range(s.n_layers)]

    def initialise(self, seed: int) -> None:
        """Normal numbers of deviation 0.02; what adds to the residual stream is scaled down."""
        rng = torch.Generator().manual_seed(seed)
        quiet = 0.02 / (2 * self.sizes.n_layers) ** 0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    adds = name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight"))
                    parameter.normal_(0.0, quiet if adds else 0.02, generator=rng)

    def moe_mlps(self) -> list[MoeMlp]:
        """The mixtures of experts, one a layer; none in a dense model."""
        return [module for module in self.modules() if isinstance(module, MoeMlp)]

    @property
    def n_params(self) -> int:
        return sum(p.numel() for p in self.parameters())


def _rope(s: Sizes) -> tuple[Tensor, Tensor]:
    """cos and sin for each position, (max_context, d_head), both halves alike."""
    frequencies = s.rope_theta ** (-torch.arange(0, s.d_head, 2).double() / s.d_head)
    angles = torch.arange(s.max_context)[:, None] * frequencies
    both = torch.cat([angles, angles], dim=-1)
    return both.cos().float(), both.sin().float()
