"""Settings of the explorer, drawn."""

from hypothesis import strategies as st

from inferlab.data import load_devices
from labkit.explorer.setting import WEIGHTS, adapted, model_names, variants

MODELS, DEVICES = model_names(), list(load_devices())

SETTINGS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "attention": st.sampled_from(list(variants("8b-style"))),
        "device": st.sampled_from(DEVICES),
        "n_sequences": st.integers(1, 4096),
        "n_tokens": st.integers(1, 1_000_000),
        "weights": st.sampled_from(list(WEIGHTS)),
        "cache": st.sampled_from(["bf16", "fp8"]),
        "headroom": st.integers(0, 900).map(lambda n: n / 1000),
        "gamma": st.integers(0, 16),
        "acceptance": st.integers(0, 1000).map(lambda n: n / 1000),
        "draft_cost": st.integers(0, 2000).map(lambda n: n / 1000),
    }
).map(lambda values: adapted(values)[0])
