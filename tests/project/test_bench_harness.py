"""The benchmarks run end to end, and what they derive from samples is right. Nothing is timed."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn_models import tiny_model
from places import ROOT
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import machine, plan, record, run, runners, worker
from inferlab.generate import generate_cached


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A model of a few thousand numbers, as transformers saves it."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=80,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    folder = tmp_path_factory.mktemp("bench") / "a tiny model"
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_quick_run_writes_a_whole_record(model_folder, tmp_path):
    out = tmp_path / "results here" / "quick.json"
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--silent", "--threads", "1"]
    command += ["--model", str(model_folder), "--out", str(out)]
    command += ["--variants", "transformers-fp32,numpy-fast"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert os.listdir(out.parent) == ["quick.json"]
    assert (written["complete"], written["failed"]) == (True, {})
    assert written["machine"]["n_threads"] == 1
    assert written["machine"]["packages"]["numpy"] == np.__version__
    for metric, names in {
        "decode": {"transformers-fp32", "numpy-fast"},
        "prefill": {"transformers-fp32", "numpy-fast"},
        "batch": {"transformers-fp32"},
    }.items():
        assert set(written["samples"][metric]) == names
        for samples in written["samples"][metric].values():
            assert len(samples) == 1
            assert all(sample is None or sample > 0 for sample in samples)
    assert written["summary"]["prefill"]["transformers-fp32"]["ratio"] == 1
    assert all(answers[0]["identical"] for answers in written["lookup"].values())
    assert set(written["lookup"]) == {"copy", "open"}
    assert len(written["bounds"]) == 6
    assert min(value for values in written["bounds"].values() for value in values) > 0
    assert written["load"]["inferlab"][0]["peak_bytes"] > 1e7
    assert written["summary"]["load"]["times_as_fast"] > 0
    assert "inferlab NumPy, arranged for speed" in done.stdout


def test_each_family_of_engines_gives_the_same_tokens_and_logits(model_folder):
    tokens = plan.random_tokens(80, (10,)).tolist()
    made = {v.name: runners.make(v, str(model_folder), 1) for v in plan.VARIANTS[:5]}
    expected = made["numpy-reference"]
    assert np.ptp(expected.logits(tokens)) > 1
    for name, runner in made.items():
        if "bf16" in name:
            continue
        assert runner.generate(tokens, 12) == expected.generate(tokens, 12), name
        np.testing.assert_allclose(
            runner.logits(tokens), expected.logits(tokens), rtol=0, atol=1e-4, err_msg=name
        )
        # All weights, with the gains of five norms or without.
        assert 0 <= expected.bytes_per_token - runner.bytes_per_token <= 4 * 5 * 32
    half = made["transformers-bf16"]
    assert half.bytes_per_token == expected.bytes_per_token // 2
    assert 0 < record.compare_logits(half.logits(tokens), expected.logits(tokens))["kl"] < 0.05


@pytest.mark.parametrize("name", ["transformers-fp32", "torch-fp32"])
def test_a_batch_gives_the_tokens_of_each_sequence_alone(model_folder, name):
    (variant,) = [v for v in plan.VARIANTS if v.name == name]
    runner = runners.make(variant, str(model_folder), 1)
    prompts = plan.random_tokens(80, (3, 6)).tolist()
    alone = [runner.generate(prompt, 5) for prompt in prompts]
    assert runner.generate_batch(prompts, 5) == alone


@pytest.mark.parametrize("kind", ["gqa", "mha, untied"])
def test_the_copy_in_transformers_has_our_weights(kind):
    model = tiny_model(kind, np.float32)
    tokens = np.arange(9)[None]
    with torch.no_grad():
        logits = runners.hf_model(model)(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(logits, model.forward(tokens), rtol=0, atol=1e-4)


def llama_variant(name: str) -> plan.Variant:
    (variant,) = [v for v in plan.VARIANTS if v.name == name]
    return variant


def test_llama_cpp_is_left_out_with_the_reason(monkeypatch):
    variant = llama_variant("llama.cpp-q4_1")
    monkeypatch.setattr(runners, "find_spec", lambda name: None)
    assert "llama_cpp is not installed" in runners.absent(variant, "m.gguf")
    monkeypatch.setattr(runners, "find_spec", lambda name: object())
    assert runners.absent(variant, "a folder") == "it needs a .gguf file"
    assert runners.absent(variant, "m.gguf") is None


class LlamaPackage(types.SimpleNamespace):
    """A stand-in for llama_cpp that notes what is asked of it."""

    class Params(ctypes.Structure):
        _fields_ = (
            ("ftype", ctypes.c_int),
            ("allow_requantize", ctypes.c_bool),
            ("nthread", ctypes.c_int),
        )

    def __init__(self) -> None:
        self.seen, self.Llama = [], self.open
        self.llama_cpp = types.SimpleNamespace(
            LLAMA_FTYPE_ALL_F32=7,
            llama_model_default_params=lambda: types.SimpleNamespace(use_extra_bufts=True),
            llama_model_quantize_default_params=self.Params,
            llama_model_quantize=self.quantize,
        )

    def quantize(self, path, copy, params):
        Path(copy.decode()).write_bytes(b"x" * 123)
        self.seen.append((path, params._obj.ftype, params._obj.allow_requantize))
        return 0 if path == b"m.gguf" else 5

    def open(self, path, **settings):
        self.settings, self.path = settings, path
        self.extra = self.llama_cpp.llama_model_default_params().use_extra_bufts
        self.size = Path(path).stat().st_size if path != "m.gguf" else 0
        row = (ctypes.c_float * 3)(0.5, -1.0, 2.0)
        return types.SimpleNamespace(
            n_vocab=lambda: 3,
            reset=lambda: self.seen.append("reset"),
            eval=lambda tokens: self.seen.append(("eval", tokens)),
            generate=lambda tokens, temp, reset: iter(range(100)),
            _ctx=types.SimpleNamespace(get_logits=lambda: ctypes.cast(row, self.Pointer)),
        )

    Pointer = ctypes.POINTER(ctypes.c_float)


@pytest.fixture
def llama_package(monkeypatch):
    package = LlamaPackage()
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setattr(os.path, "getsize", lambda path: 123 if "float32" in path else 77)
    monkeypatch.setattr(runners, "load_model", lambda _: types.SimpleNamespace(tokenizer="t"))
    return package


def test_llama_cpp_is_asked_as_its_package_wants(llama_package):
    runner = runners.make(llama_variant("llama.cpp-q4_1"), "m.gguf", 2)
    settings = llama_package.settings
    assert (settings["n_threads"], settings["n_threads_batch"]) == (2, 2)
    assert llama_package.extra is False
    assert llama_package.llama_cpp.llama_model_default_params().use_extra_bufts is True
    assert runner.generate([1, 2], 3) == [0, 1, 2]
    runner.prefill(np.array([4, 5]))
    assert runner.logits([6, 7]).tolist() == [[0.5, -1.0, 2.0]] * 2
    runs = [("eval", [4, 5]), "reset", ("eval", [6]), ("eval", [7])]
    assert llama_package.seen == ["reset", "reset", *runs]
    assert (runner.vocab_size, runner.bytes_per_token, runner.tokenizer) == (3, 77, "t")


def test_llama_cpp_in_float32_runs_a_copy_that_does_not_stay(llama_package):
    runner = runners.make(llama_variant("llama.cpp-fp32"), "m.gguf", 2)
    assert llama_package.seen == [(b"m.gguf", 7, True)]
    assert (llama_package.size, runner.bytes_per_token) == (123, 123)
    assert not Path(llama_package.path).exists()
    with pytest.raises(RuntimeError, match=r"other\.gguf into float32 \(code 5\)"):
        runners.make(llama_variant("llama.cpp-fp32"), "other.gguf", 2)


def test_a_variant_that_cannot_start_says_why():
    (variant,) = [v for v in plan.VARIANTS if v.name == "numpy-fast"]
    with (
        tempfile.TemporaryFile() as words,
        pytest.raises(run.VariantFailed, match="FileNotFoundError: no model at"),
    ):
        run.Process(variant, "/nowhere at all", 1, words)


class Asked:
    """Stands for a variant's process: answers, or fails."""

    def __init__(self, answer: dict | None) -> None:
        self.answer, self.closed = answer, False

    def ask(self, question, **details):
        if self.answer is None:
            raise run.VariantFailed("out of memory")
        return self.answer

    def close(self):
        self.closed = True


def fake_run(tmp_path, monkeypatch, rounds=3) -> run.Run:
    args = run.parser().parse_args(
        ["--silent", "--threads", "1", "--out", str(tmp_path / "r.json")]
    )
    sizes = plan.Sizes(rounds=rounds)
    made = run.Run(args, sizes, run.chosen("transformers-fp32,numpy-reference"))
    for name in ("_start", "_check_logits", "_load", "_bounds"):
        monkeypatch.setattr(made, name, lambda *_: None)
    made.processes = {name: Asked({"tokens_per_s": 5.0}) for name in ("transformers-fp32",)}
    return made


def test_a_failing_variant_is_named_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    made = fake_run(tmp_path, monkeypatch)
    made.processes["numpy-reference"] = failing = Asked(None)
    made.go(None, deadline=float("inf"))
    made.save()
    assert failing.closed
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["failed"] == {"numpy-reference": "decode: out of memory"}
    assert written["samples"]["decode"] == {"transformers-fp32": [5.0, 5.0, 5.0]}
    assert "numpy-reference failed: decode: out of memory" in capsys.readouterr().err


def test_what_was_measured_before_an_interruption_is_kept_and_an_old_record_too(
    tmp_path, monkeypatch
):
    (tmp_path / "r.json").write_text("an old record")
    made = fake_run(tmp_path, monkeypatch)
    monkeypatch.setattr(run, "Run", lambda *_: made)
    bounds = iter([None, None])

    def interrupt(library):
        if next(bounds, "no more") == "no more":
            raise KeyboardInterrupt

    monkeypatch.setattr(made, "_bounds", interrupt)
    arguments = ["--silent", "--out", str(tmp_path / "r.json")]
    assert run.main([*arguments, "--variants", "transformers-fp32"]) == 130
    assert (tmp_path / "r.json").read_text() == "an old record"
    written = json.loads((tmp_path / "r.partial.json").read_text())
    assert written["complete"] is False
    assert written["samples"]["decode"] == {"transformers-fp32": [5.0]}


def test_no_round_begins_that_would_end_too_late(tmp_path, monkeypatch):
    made = fake_run(tmp_path, monkeypatch, rounds=4)
    made.go(None, deadline=0)
    assert made.record.samples["decode"]["transformers-fp32"] == [5.0]
    assert made.record.left_out["rounds 2 to 4"] == "no time"


def test_unknown_variants_and_a_missing_baseline_are_refused(capsys):
    for names in ("transformers-fp32,nonsense", "numpy-fast"):
        assert run.main(["--variants", names]) == 2
        assert f"--variants {names} needs transformers-fp32" in capsys.readouterr().err


def test_each_process_gets_its_threads_and_torch_no_second_pool():
    numpy_env, torch_env = run.environment(2), run.environment(2, openblas=False)
    assert {numpy_env[name] for name in run.POOLS} == {"2"}
    assert (torch_env["OMP_NUM_THREADS"], torch_env["OPENBLAS_NUM_THREADS"]) == ("2", "1")


def test_ratios_are_taken_round_by_round():
    found = record.summary_of([2.0, 40.0, 9.0], [1.0, 10.0, 3.0])
    assert found["ratio"] == 3.0  # medians would give 9 / 3 = 3 here, and 4.5 below
    assert (found["median"], found["low"], found["high"], found["n"]) == (9, 2, 40, 3)
    assert record.summary_of([2.0, 9.0, 40.0], [1.0, 2.0, 100.0])["ratio"] == 2.0
    skipped = record.summary_of([2.0, None, 6.0], [1.0, 1.0, None])
    assert (skipped["ratio"], skipped["n"]) == (2.0, 2)


def test_the_divergence_is_that_of_torch():
    rng = np.random.default_rng(0)
    logits, reference = rng.normal(0, 4, (2, 7, 30))
    found = record.compare_logits(logits, reference)
    ours, theirs = (torch.log_softmax(torch.from_numpy(x), -1) for x in (logits, reference))
    kl = torch.nn.functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)
    assert found["kl"] == pytest.approx(float(kl))
    same = (logits.argmax(-1) == reference.argmax(-1)).mean()
    assert (found["agreement"], found["largest_difference"]) == (
        same,
        abs(logits - reference).max(),
    )


def test_the_first_token_and_the_prefill_drop_out_of_the_pace(monkeypatch):
    clock = iter([10.0, 3.0, 10.0, 15.0])  # one token 10 s, then 9 in 3 s: nonsense; again
    monkeypatch.setattr(worker, "seconds", lambda work: next(clock))
    assert worker._pace(lambda n: None, 8, 8 * 16) == 8 * 16 / 5.0
    monkeypatch.setattr(worker, "seconds", lambda work: 1.0)
    assert worker._pace(lambda n: None, 8, 8) is None


def test_the_bounds_are_those_of_the_products_that_were_timed(monkeypatch):
    monkeypatch.setattr(machine, "_best", lambda work, repeat=3: (work(), 2.0)[1])
    found = machine.numpy_bounds(4 * 576 * 1000, 64)
    assert found["numpy_row_by_matrix_bytes_per_s"] == 4 * 576 * 1000 / 2
    assert found["numpy_gemm_fp32_flop_per_s"] == 2 * 64**3 / 2
    assert machine.torch_bounds(4 * 576 * 10, 8, 1)["torch_mv_bytes_per_s"] == 4 * 576 * 10 / 2
    bounds = {"a_bytes_per_s": [1.0, 9.0, 2.0], "b_bytes_per_s": [3.0], "c_flop_per_s": [99.0]}
    assert record.best_bandwidth(bounds) == 3.0


def test_a_copy_prompt_is_answered_by_the_fast_engine_as_by_greedy_decoding(model_folder):
    (variant,) = [v for v in plan.VARIANTS if v.name == "numpy-fast"]
    runner = runners.make(variant, str(model_folder), 1)
    prompt = [3, 4, 5, 6] * 3
    tokens, acceptance = runner.lookup(prompt, 20)
    assert tokens == generate_cached(runner.model, prompt, 20)
    assert 0 <= acceptance <= 1
