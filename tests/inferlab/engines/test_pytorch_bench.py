"""Choosing device, format and engine; `inferlab bench`: rows, roofline, record, picture."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from drawn_models import tiny_model

from grader import cli
from inferlab import device
from inferlab.commands import bench as benching
from inferlab.commands.bench import BenchRow, bench
from inferlab.config import ModelConfig
from inferlab.device import Timing, compute_dtype, resolve
from inferlab.engines import choose as engines
from inferlab.engines.choose import Engine, load_engine
from inferlab.model import Model
from inferlab.weights import random_weights
from labkit.figures import bench as bench_figure


def fake_torch(cuda: bool = False, mps: bool = False, bf16: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_available=lambda: cuda,
            is_bf16_supported=lambda: bf16,
            get_device_name=lambda: "Old GPU",
        ),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
    )


# ---- device and dtype --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "asked", "given"),
    [
        (fake_torch(cuda=True, mps=True), "auto", "cuda"),
        (fake_torch(mps=True), "auto", "mps"),
        (fake_torch(), "auto", "cpu"),
        (fake_torch(cuda=True), "cpu", "cpu"),
    ],
)
def test_auto_is_the_best_device_here(torch, asked, given):
    assert resolve(asked, "bfloat16", torch) == (given, "bfloat16")


@pytest.mark.parametrize(
    ("asked", "torch", "message"),
    [
        (("tpu", "float32"), fake_torch(), "'tpu' is not one of auto, cpu, cuda, mps"),
        (("cpu", "int3"), fake_torch(), "'int3' is not one of float32, bfloat16"),
        (("cuda", "float32"), fake_torch(), "'cuda' needs"),
        (("mps", "float32"), fake_torch(), "'mps' needs an Apple GPU"),
        (("cuda", "bfloat16"), fake_torch(cuda=True, bf16=False), "Old GPU has no bfloat16; use"),
        (("cuda", "int8"), fake_torch(cuda=True, bf16=False), "Old GPU has no bfloat16; use"),
    ],
)
def test_what_is_not_here_is_refused_and_what_is_needed_is_said(asked, torch, message):
    with pytest.raises(ValueError, match=message):
        resolve(*asked, torch)


def test_float32_on_the_cpu_does_not_load_torch(monkeypatch):
    monkeypatch.setattr(device, "torch_module", lambda: pytest.fail("torch was loaded"))
    assert resolve("cpu", "float32") == ("cpu", "float32")


@pytest.mark.parametrize(
    ("where", "dtype", "activations"),
    [
        ("cpu", "float32", "float32"),
        ("cpu", "int4", "bfloat16"),
        ("cuda", "int8", "bfloat16"),
        ("mps", "int8", "float16"),
        ("mps", "bfloat16", "bfloat16"),
    ],
)
def test_quantized_weights_go_with_16_bit_activations(where, dtype, activations):
    assert compute_dtype(where, dtype) == activations


@pytest.mark.parametrize(
    ("seconds", "text"), [(2, "2.00 s"), (0.99996, "1.00 s"), (0.0123, "12.3 ms"), (2e-7, "0.200")]
)
def test_times_are_written_with_three_digits(seconds, text):
    assert str(Timing(seconds, seconds, seconds, 1)).startswith(text)


def test_rates_are_measured_in_torch_where_numpy_cannot():
    import torch

    assert 1e8 < device.read_bandwidth(2**24, 2, torch=torch) < 1e13
    assert 1e8 < device.matmul_peak(128, 2, dtype="bfloat16") < 1e15


# ---- engines -----------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    """Every model name loads one small float32 model; the machine reads 1 GB/s, 2 GFLOP/s."""
    model = tiny_model("mha, untied", np.float32)
    monkeypatch.setattr(engines, "load_model", lambda name: model)
    monkeypatch.setattr(device, "read_bandwidth", lambda **_: 1e9)
    monkeypatch.setattr(device, "matmul_peak", lambda **_: 2e9)
    return model


@pytest.mark.parametrize(
    ("engine", "dtype", "used"),
    [
        ("auto", "float32", "numpy"),
        ("auto", "bfloat16", "torch"),
        ("torch", "float32", "torch"),
        ("numpy", "float32", "numpy"),
    ],
)
def test_numpy_runs_float32_on_the_cpu_and_torch_the_rest(tiny, engine, dtype, used):
    loaded = load_engine("m", engine, "cpu", dtype)
    assert (loaded.name, loaded.where) == (used, f"cpu, {dtype}")


def test_an_engine_that_cannot_is_refused(tiny):
    with pytest.raises(ValueError, match="NumPy engine runs on cpu in float32, not cpu in int4"):
        load_engine("m", "numpy", "cpu", "int4")
    with pytest.raises(ValueError, match="engine 'jax' is not one of auto, numpy, fast, torch"):
        load_engine("m", "jax")


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_step_reads_body_head_and_cache_but_not_the_embedding(tiny, name):
    engine = load_engine("m", name)
    c = tiny.config
    embedding = c.vocab_size * c.d_model
    cache = 2 * c.n_layers * c.n_kv_heads * c.d_head * 10 * 3
    numbers = c.n_params - embedding + cache
    assert engine.step_bytes(10, 3) == pytest.approx(4 * numbers, rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_a_step_reads_the_keys_and_values_that_the_cache_holds(monkeypatch, dtype):
    config = ModelConfig(2, 64, 4, 2, 16, 96, 128, 64, sliding_window=5)
    model = Model(config, random_weights(config, np.random.default_rng(0)))
    monkeypatch.setattr(engines, "load_model", lambda name: model)
    engine = load_engine("m", "torch", "cpu", dtype)
    cache = engine.model.new_cache(16, 3)
    engine.model.forward(np.ones((3, 10), dtype=int), cache)
    assert engine.step_bytes(10, 3) - engine.step_bytes(0, 3) == cache.n_bytes


# ---- bench -------------------------------------------------------------------------------------


def row(batch: int = 4, seconds: float = 0.01, dtype: str = "int4") -> BenchRow:
    step = Timing(seconds, seconds, seconds, 3)
    return BenchRow("torch", "cpu", dtype, batch, 64, step, 4_000_000, batch * 10**7, 1e9, 1e10)


def test_the_bound_is_the_slower_of_reading_and_computing():
    assert row(1).bound_s == 0.004  # 4 MB at 1 GB/s
    assert row(16).bound_s == 0.016  # 160 MFLOP at 10 GFLOP/s
    assert row(4).tokens_per_s == 400
    assert row(4).fraction == 0.4
    assert row(16).bound_tokens_per_s == 1000


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_each_batch_is_timed_on_what_it_is_said_to_be(tiny, monkeypatch, name):
    shapes = []
    engine = load_engine("m", name)
    method = "forward" if name == "numpy" else "run"
    original = getattr(type(engine.model), method)

    def spy(self, tokens, *args, **kwargs):
        shapes.append(np.shape(tokens))
        return original(self, tokens, *args, **kwargs)

    monkeypatch.setattr(type(engine.model), method, spy)
    rows = list(bench(engine, [1, 3], n_prompt=5, n_steps=4))
    steps = benching.WARM_UP + 4
    assert shapes == [(1, 5), *[(1, 1)] * steps, (3, 5), *[(3, 1)] * steps]
    assert [(r.batch, r.step.n, r.engine) for r in rows] == [(1, 4, name), (3, 4, name)]
    assert (rows[0].bytes_per_s, rows[0].flops_per_s) == (1e9, 2e9)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (([0], 5, 4), "must all be 1 or more"),
        (([], 5, 4), "must all be 1 or more"),
        (([1], 60, 4), "66 tokens are more than max_context=64"),
    ],
)
def test_a_bench_that_cannot_run_is_refused(tiny, sizes, message):
    with pytest.raises(ValueError, match=message):
        list(bench(load_engine("m"), *sizes))


def test_the_command_writes_a_record_and_a_picture(tiny, tmp_path: Path, capsys):
    out = tmp_path / "a new folder"
    words = ["bench", "--batch", "1,2", "--prompt", "4", "--steps", "3", "--out", str(out)]
    assert cli.main([*words, "--dtype", "float32,bfloat16"]) == 0
    record = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert record["machine"]["cores"] >= 1
    assert "torch" in record["versions"]
    kinds = [(r["engine"], r["dtype"], r["batch"]) for r in record["rows"]]
    assert kinds == [
        ("numpy", "float32", 1),
        ("numpy", "float32", 2),
        ("torch", "bfloat16", 1),
        ("torch", "bfloat16", 2),
    ]
    for r in record["rows"]:
        assert r["tokens_per_s"] == pytest.approx(r["batch"] / r["step"]["median_s"])
        assert r["fraction"] > 0
    assert (out / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert sorted(p.name for p in out.iterdir()) == ["bench.json", "bench.png"]
    assert "of the bound" in capsys.readouterr().out


def test_the_command_refuses_what_is_no_batch(tiny, capsys):
    assert cli.main(["bench", "--batch", "1,many"]) == 2
    assert "'1,many' must be whole numbers such as 1,4,16" in capsys.readouterr().err


def test_the_picture_shows_pace_and_bound_of_each_format():
    rows = [row(b, dtype=d) for d in ("int4", "int8") for b in (1, 4)]
    figure = bench_figure.draw(rows, "tiny")
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == [
        "torch int4",
        "torch int4: bound",
        "torch int8",
        "torch int8: bound",
    ]
    assert list(lines[0].get_ydata()) == [100, 400]
    assert list(lines[1].get_ydata()) == [row(1).bound_tokens_per_s, row(4).bound_tokens_per_s]
    assert "torch int4, batch 4: 400 tokens/s, 40% of the bound" in bench_figure.alt(rows)
    with pytest.raises(ValueError, match="nothing to draw"):
        bench_figure.draw([], "tiny")


def test_with_experts_no_bound_is_claimed(tiny):
    from dataclasses import replace

    config = replace(tiny.config, n_experts=4, n_experts_per_token=2, d_expert=16)
    engine = Engine(replace(tiny, config=config), "numpy", "cpu", "float32")
    assert engine.step_bytes(10) == 0
    with pytest.raises(ValueError, match="depends on the text"):
        list(bench(engine, [1], 4, 3))
