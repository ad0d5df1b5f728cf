"""labkit's modules whose names have changed since an earlier release: see inferlab.moved."""

FIGURES = {
    "kv_pictures": "kv_cache_pictures",
    "kv_figures": "kv_cache",
    "batching_figures": "batching",
    "batching_pictures": "batching_pictures",
    "capacity_figures": "capacity",
    "flash_figures": "flash_attention",
    "forward_figures": "forward_pass",
    "gqa_figures": "gqa",
    "latency_figures": "latency_metrics",
    "moe_figures": "moe",
    "phase_figures": "prefill_decode",
    "quant_figures": "quantization",
    "roofline_figures": "roofline",
    "speculative_figures": "speculative_sampling",
}
MEASURE = {
    "batching_measure": "batching",
    "flash_measure": "flash_attention",
    "gqa_measure": "gqa",
    "expert_use": "moe",
    **{
        name: name
        for name in (
            "device", "diverge", "load_test", "models", "part_times", "timing",
        )
    },
}  # fmt: skip
OLD_NAMES = {
    **{f"labkit.{old}": f"labkit.figures.{new}" for old, new in FIGURES.items()},
    **{f"labkit.{old}": f"labkit.measure.{new}" for old, new in MEASURE.items()},
}
