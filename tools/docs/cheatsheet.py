"""Write docs/cheatsheet.md: formulas, each with its unit, its function and a worked number.

Run: python -m tools.docs.cheatsheet. The numbers are what the functions return; a row names a
function of src/inferlab and the arguments it is called with, so a number cannot be anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferlab import batching, cache_sizes, capacity, kv_cache, moe_sizes, paging, planner, workload
from inferlab import flash_attention as flash
from inferlab import latency_metrics as metrics
from inferlab import prefill_decode as phases
from inferlab import quantization as quantize
from inferlab import roofline as cost
from inferlab import speculative_sampling as speculative
from inferlab.capacity import Deployment
from inferlab.data import load_devices, model_preset
from labkit.files import write_whole
from labkit.units import format_bytes, format_quantity
from tools import DOCS

TARGET = DOCS / "cheatsheet.md"
HEAD = """\
# Cheat sheet

<!-- written by: python -m tools.docs.cheatsheet; every number is computed -->

Two printed pages. Worked numbers are for an **8B model** (32 layers, 32 query and 8 KV heads of
128, `d_model` 4,096, in bf16) on an **H100** ({bandwidth}, {peak}), unless a row says otherwise;
**70B**: 80 layers, 64 query and 8 KV heads. *b*: bytes a number. *W*: weights that are multiplied
(layers and head); *P*: all that are held. *h*: headroom, *M*: memory, *N*: devices. GB is 10⁹
bytes, GiB 2³⁰.
"""
GLANCE = """\
## At a glance

| to get | pull | it costs |
|---|---|---|
| a faster token for one user | fewer bytes a weight, a draft, devices | accuracy; work; links |
| more users at once | GQA or MLA; fewer bytes a cached number; pages | quality to be checked |
| a faster first token | more peak FLOP/s; prefix cache; short queue | money; memory; refusals |
| smooth tokens beside long prompts | chunked prefill | the prompt's own first token |

**Ask of every number:** for whom (one user or all)? decimal or binary? dense or sparse? weights
read or weights held? mean or percentile? from when does the clock run?
"""

H100 = load_devices()["h100-sxm"]
BW, PEAK = cost.device_rates(H100, "bf16")
SMALL, LARGE = model_preset("8b-style"), model_preset("70b-style")
DEEPSEEK, MIXTRAL = model_preset("deepseek-v3"), model_preset("mixtral-8x7b")
ONE = Deployment.on(H100, SMALL, headroom=0.1)
FOUR = Deployment.on(H100, LARGE, 4, headroom=0.1)


def with_unit(kind: str, digits: int = 4) -> Callable[[Any], str]:
    """Shows a number in base units of that kind."""
    return lambda value: format_quantity(float(value), kind, digits)


def decimal_bytes(value: float) -> str:
    """12.5 GB, without the binary reading beside it."""
    return format_bytes(value).partition(" (")[0]


def seconds_of(values: tuple[float, float]) -> str:
    """A reading and a computing time."""
    return " and ".join(format_quantity(value, "s", 3) for value in values)


count = with_unit("")


@dataclass(frozen=True)
class Row:
    """One formula. The number shown is show(function(*args, **more)).

    formula: LaTeX, or plain text where there is none; example: what args mean, in words.
    """

    what: str
    formula: str
    function: Callable[..., Any]
    example: str
    args: tuple[Any, ...]
    show: Callable[[Any], str]
    more: tuple[tuple[str, Any], ...] = ()

    def number(self) -> str:
        return self.show(self.function(*self.args, **dict(self.more)))

    def markdown(self) -> str:
        cells = (
            f"**{self.what}** `{self.function.__name__}`",
            f"${self.formula}$",
            f"{self.example}: **{self.number()}**",
        )
        return "| " + " | ".join(cells) + " |"


SECTIONS: dict[str, tuple[Row, ...]] = {
    "What a pass costs (lesson 01)": (
        Row("FLOPs of a product", r"2\,n\,d_{in}\,d_{out}", cost.matmul_flops,
            "16 rows, 4,096 × 4,096", (16, 4096, 4096), with_unit("FLOP")),
        Row("intensity of it",
            r"\dfrac{2\,n\,d_{in}\,d_{out}}{b\,(n\,d_{in} + d_{in}d_{out} + n\,d_{out})}",
            cost.matmul_intensity, "the same", (16, 4096, 4096), with_unit("FLOP/byte", 3)),
        Row("ridge point", r"\text{peak} / \text{bandwidth}", cost.ridge_point,
            "H100, bf16", (H100, "bf16"), with_unit("FLOP/byte", 3)),
        Row("roofline", r"\min(\text{peak},\ I \cdot \text{bandwidth})",
            cost.attainable_flops_per_s, "I = 16", (16, BW, PEAK), with_unit("FLOP/s", 3)),
        Row("FLOPs of a token", r"2W + 4\,n_{layers}\,n_{heads}\,d_{head}\,S", cost.token_flops,
            "S = 1,000", (SMALL, 1000), with_unit("FLOP")),
        Row("bytes of a pass", r"W\,b + B \cdot \text{KV}", cost.step_bytes,
            "16 users of 1,000 tokens", (SMALL, 1000, 16, 2), decimal_bytes),
        Row("bound of a pass",
            r"\max\!\left(\dfrac{\text{bytes}}{\text{bandwidth}},"
            r" \dfrac{\text{FLOPs}}{\text{peak}}\right)",
            cost.step_bound_s, "one user, 1,000 tokens", (SMALL, 1, 1000, BW, PEAK, 2),
            with_unit("s", 3)),
        Row("compute-bound batch", r"B:\ \text{computing} \geq \text{reading}",
            cost.compute_bound_batch, "no context", (SMALL, 0, BW, PEAK, 2), count),
    ),
    "Prefill and decode (lesson 03)": (
        Row("knee of the prefill", r"n \approx \dfrac{\text{ridge} \cdot b}{2}",
            phases.prefill_knee, "one prompt", (SMALL, BW, PEAK), with_unit("tokens")),
        Row("time to first token", r"\text{wait} + \text{prefill}", phases.ttft_bound_s,
            "2,000 tokens in", (SMALL, 2000, BW, PEAK), with_unit("s", 3)),
        Row("time per output token", r"\text{mean of the } n - 1 \text{ steps}",
            phases.tpot_bound_s, "2,000 in, 300 out", (SMALL, 2000, 300, BW, PEAK),
            with_unit("s", 3)),
        Row("end to end", r"\text{TTFT} + (n - 1)\,\text{TPOT}", phases.end_to_end_s,
            "0.2 s, 25 ms, 300 out", (0.2, 0.025, 300), with_unit("s")),
    ),
    "The KV cache and what shrinks it (lessons 04 and 05)": (
        Row("a token's keys and values", r"2\,n_{layers}\,n_{kv\_heads}\,d_{head}\,b",
            kv_cache.kv_bytes_per_token, "8B", (SMALL,), lambda n: f"{n:,} B"),
        Row("a batch's", r"\text{tokens} \cdot \text{sequences} \cdot \text{the above}",
            kv_cache.kv_cache_bytes, "16 users of 8,192", (SMALL, 8192, 16), format_bytes),
        Row("largest batch",
            r"\left\lfloor \dfrac{(1 - h)\,M - P b}{\text{KV of one}} \right\rfloor",
            kv_cache.largest_batch, "8,192 tokens, 80 GB, 16 GB of weights, h = 0.1",
            (SMALL, 8192, 80e9, 16e9, 0.1), count),
        Row("MLA: numbers a token and layer", r"d_{latent} + d_{rope}",
            cache_sizes.layer_cache_numbers, "DeepSeek-V3", (DEEPSEEK,), count),
        Row("intensity of cached attention", r"\dfrac{2\,n_{heads}}{b\,n_{kv\_heads}}",
            cache_sizes.decode_attention_intensity, "8B", (SMALL,), with_unit("FLOP/byte", 3)),
        Row("cache a device, in parallel", r"\text{KV} / \min(N, n_{kv\_heads})",
            cache_sizes.cache_bytes_per_device, "70B, 8,192 tokens, 4 devices", (LARGE, 8192, 4),
            decimal_bytes),
    ),
    "FlashAttention (lesson 06)": (
        Row("scores never stored", r"B\,n_{heads}\,T\,S\,b", flash.score_matrix_bytes,
            "8,192 tokens, one layer", (8192, 8192, 32), decimal_bytes),
        Row("plain traffic", r"b\,n_{heads}\,(2Td + 2Sd + 4TS)", flash.standard_traffic_bytes,
            "the same", (8192, 8192, 128, 32), decimal_bytes),
        Row("traffic in tiles", r"\Theta(S^2 d^2 / M)", flash.flash_traffic_bytes,
            "tiles of 128 × 128", (8192, 8192, 128, 128, 128, 32), decimal_bytes),
        Row("on chip, numbers", r"2\,b_q d + 2\,b_k d + b_q b_k + 2\,b_q", flash.on_chip_numbers,
            "128 × 128", (128, 128, 128), count),
    ),
    "Quantization (lesson 07)": (
        Row("bytes with scales", r"n\,(\text{bits} + \text{scale bits} / g) / 8",
            quantize.quantized_bytes, "8.03 · 10⁹ weights, 4 bits, g = 128",
            (8_030_000_000, 4, 128), decimal_bytes),
        Row("error to expect",
            r"\dfrac{E[\max_g \lvert w \rvert]}{(2^{\text{bits} - 1} - 1)\sqrt{12}}",
            quantize.expected_error, "4 bits, g = 128", (4, 128), with_unit("", 3)),
    ),
    "Speculative sampling (lesson 08)": (
        Row("accepted, on average", r"a = \sum_x \min(\text{target}, \text{draft})",
            speculative.acceptance_rate, "(0.2, 0.5, 0.3) and (0.6, 0.3, 0.1)",
            ((0.2, 0.5, 0.3), (0.6, 0.3, 0.1)), with_unit("", 2)),
        Row("tokens a round", r"\dfrac{1 - a^{\gamma + 1}}{1 - a}", speculative.expected_tokens,
            "a = 0.8, γ = 4", (0.8, 4), with_unit("", 5)),
        Row("speedup", r"\dfrac{\text{tokens a round}}{v + \gamma c}", speculative.speedup,
            "c = 0.05, v = 1", (0.8, 4, 0.05), with_unit("x", 3)),
    ),
    "Mixture of experts (lesson 09)": (
        Row("all and active weights", r"\text{other} + E\,p,\quad \text{other} + k\,p",
            moe_sizes.total_and_active_params, "Mixtral 8x7B", (MIXTRAL,),
            lambda pair: f"{pair[0] / 1e9:.1f} and {pair[1] / 1e9:.1f} billion"),
        Row("experts touched", r"E\,(1 - (1 - k/E)^{n})", moe_sizes.touched_experts,
            "E = 16, k = 2, n = 16", (16, 2, 16), with_unit("")),
    ),
    "Batching (lesson 10)": (
        Row("speed of one and of all", r"1/t_{step},\quad B/t_{step}", batching.decode_speeds,
            "32 users of 1,000 tokens", (SMALL, 1000, 32, BW, PEAK),
            lambda pair: f"{pair[0]:,.0f} and {pair[1]:,.0f} tokens/s"),
        Row("static batching loses", r"1 + \tfrac12 + \dots + \tfrac1B", batching.exponential_gain,
            "8 seats, exponential lengths", (8,), with_unit("x", 3)),
        Row("wasted in pages", r"1 - \dfrac{\text{tokens}}{\text{pages} \cdot \text{page size}}",
            paging.wasted_share, "17 and 100 tokens, pages of 16", ((17, 100), 16),
            with_unit("", 3)),
        Row("read again by chunks", r"\textstyle\sum_i i\,c", batching.reread_tokens,
            "8,192 tokens by 512", (8192, 512), with_unit("tokens")),
        Row("prefix found", r"\text{whole pages, never the last token}", batching.hit_tokens,
            "100 shared of 100, pages of 16", (100, 100, 16), with_unit("tokens")),
    ),
    "Latency and load (lesson 11)": (
        Row("percentile", r"\text{value number } \lceil p\,n / 100 \rceil", metrics.percentile,
            "p50 of 1, 2, 3, 9 s", ((1.0, 2.0, 3.0, 9.0), 50), with_unit("s", 2)),
        Row("servers (Little)", r"\lceil \lambda\,\text{e2e} / \text{max running} \rceil",
            workload.replicas_needed, "5/s of 4 s, 8 a server", (5, 4, 8), count),
        Row("M/M/1 percentile", r"\dfrac{-\ln(1 - p/100)}{\mu - \lambda}", workload.mm1_percentile,
            "λ = 2, μ = 3 a second, p99", (2, 3, 99), with_unit("s", 3)),
    ),
    "Capacity (lesson 12)": (
        Row("room for caches, a device", r"(1 - h)\,M - P b / N - \text{overhead}",
            capacity.cache_room_bytes, "70B on 4, h = 0.1", (FOUR,), decimal_bytes),
        Row("sequences that fit", r"\lfloor \text{room} / \text{whole pages of one} \rfloor",
            capacity.sequences_that_fit, "the same, 1,524 tokens", (FOUR, 1524), count),
        Row("reading, computing",
            r"\dfrac{\text{bytes}}{N \cdot \text{bandwidth}},\quad"
            r" \dfrac{\text{FLOPs}}{N \cdot \text{peak}}",
            capacity.pass_seconds, "the same, 64 users", (FOUR, 1, 1524, 64), seconds_of),
        Row("all-reduces of a pass",
            r"4\,n_{layers}\,n\,d_{model}\,b\,\dfrac{N - 1}{N} / \text{link}",
            capacity.all_reduce_seconds, "64 tokens, 450 GB/s", (FOUR, 64, 450e9),
            with_unit("s", 3)),
        Row("users within a limit", r"\text{prefills included}", capacity.users_within,
            "8B, 1,000 in, 300 out, 25 ms", (ONE, 1000, 300, 0.025), count),
        Row("a million output tokens", r"\dfrac{N \cdot \text{USD/h} \cdot 10^6}{3600\,B / t}",
            planner.cost_per_million_tokens, "50 users, 25 ms, 2.50 USD/h", (ONE, 50, 0.025, 2.5),
            lambda usd: f"{usd:.3f} USD"),
    ),
}  # fmt: skip


def markdown() -> str:
    """The whole sheet."""
    rates = {"bandwidth": with_unit("B/s", 3)(BW), "peak": with_unit("FLOP/s", 3)(PEAK)}
    parts = [HEAD.format(**rates)]
    for title, rows in SECTIONS.items():
        table = "\n".join(row.markdown() for row in rows)
        parts.append(f"## {title}\n\n| what | formula | worked |\n|---|---|---|\n{table}\n")
    return "\n".join([*parts, GLANCE])


if __name__ == "__main__":
    write_whole(TARGET, markdown())
