"""Generation: limits, stops, the command line's text and errors."""

import argparse
import re
from dataclasses import replace

import numpy as np
import pytest
from drawn_models import TINY, tiny_model
from tokenizer_fields import gguf_fields

from inferlab import device, generate
from inferlab.commands.generate import run_generate
from inferlab.engines import choose as engines
from inferlab.generate import Stop, generate_cached, generate_uncached, stream, stream_tokens
from inferlab.model import Model
from inferlab.tokenizer import Tokenizer
from inferlab.weights import random_weights


def talking_model(eos: int = 2, max_context: int = 64, seed: int = 0) -> Model:
    config = replace(TINY["gqa"], vocab_size=300, max_context=max_context, eos_ids=(eos,))
    weights = random_weights(config, np.random.default_rng(seed))
    return Model(config, weights, Tokenizer.from_gguf_metadata(gguf_fields()))


def arguments(
    text="hello", model="m", max_new_tokens=5, raw=True, engine="auto", dtype="float32"
) -> argparse.Namespace:
    return argparse.Namespace(
        text=text,
        model=model,
        max_new_tokens=max_new_tokens,
        raw=raw,
        engine=engine,
        device="cpu",
        dtype=dtype,
    )


@pytest.fixture(autouse=True)
def _known_bandwidth(monkeypatch):
    """No test here measures the machine: it reads a gigabyte a second."""
    monkeypatch.setattr(device, "read_bandwidth", lambda **_: 1e9)


@pytest.mark.parametrize("kind", TINY)
def test_uncached_cached_and_streamed_tokens_are_the_same(kind):
    model = tiny_model(kind)
    model = replace(model, config=replace(model.config, eos_ids=()))
    prompt = [5, 1, 33]
    expected = generate_uncached(model, prompt, 20)
    assert len(expected) == 20
    assert generate_cached(model, prompt, 20) == expected
    assert list(stream_tokens(model, prompt, 20)) == [*expected, Stop("max_new_tokens")]


def test_a_prompt_in_chunks_gives_the_same_tokens(monkeypatch):
    model = tiny_model()
    prompt = list(range(30))
    expected = list(stream_tokens(model, prompt, 10))
    monkeypatch.setattr(generate, "PREFILL_CHUNK", 7)
    assert list(stream_tokens(model, prompt, 10)) == expected


def test_the_end_of_text_token_ends_and_is_not_shown():
    model = tiny_model()
    first, second = generate_uncached(model, [5, 1], 2)
    assert first != second
    model = replace(model, config=replace(model.config, eos_ids=(second,)))
    assert list(stream_tokens(model, [5, 1], 9)) == [first, Stop("end of text")]


def test_a_full_context_ends_the_text_and_says_so():
    model = talking_model(max_context=12)
    prompt = model.tokenizer.encode("abcdefgh")
    tokens = list(stream_tokens(model, prompt, 99))
    assert tokens[-1] == Stop("the context of 12 tokens is full")
    assert len(tokens) - 1 == 12 - 8 + 1, "the last token is given, but never run"
    pieces = list(stream(model, "abcdefgh", 99, chat=False))
    assert pieces[-1].endswith(" [the context of 12 tokens is full]")


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers():
    model = talking_model(max_context=12)
    with pytest.raises(ValueError, match=r"13 tokens, more than max_context=12"):
        list(stream(model, "a" * 13, chat=False))
    assert len(list(stream_tokens(model, [5] * 12, 9))) == 2
    with pytest.raises(ValueError, match="no tokens"):
        list(stream(model, "", chat=False))


def test_a_model_without_a_tokenizer_cannot_stream_text():
    with pytest.raises(ValueError, match="without a tokenizer"):
        list(stream(tiny_model(), "hi"))


def test_the_command_prints_the_text_and_one_line_of_timing(monkeypatch, capsys):
    model = talking_model()
    monkeypatch.setattr(engines, "load_model", lambda name: model)
    assert run_generate(arguments()) == 0
    out, err = capsys.readouterr()
    expected = generate_uncached(model, model.tokenizer.encode("hello"), 5)
    assert out == model.tokenizer.decode(expected) + "\n"
    assert err.count("\n") == 1
    # "hello" is h, e, l, l, o with the one merge h + e.
    assert err.startswith("4 prompt + 5 new tokens: TTFT ")
    assert "over 4 steps" in err
    assert "(cpu, float32)" in err
    assert re.search(r"tokens/s = \d+% of what 1\.0 GB/s allow", err)


def test_the_command_runs_the_fast_engine(monkeypatch, capsys):
    model = talking_model()
    monkeypatch.setattr(engines, "load_model", lambda name: model)
    assert run_generate(arguments(engine="fast")) == 0
    out, err = capsys.readouterr()
    expected = generate_uncached(model, model.tokenizer.encode("hello"), 5)
    assert out == model.tokenizer.decode(expected) + "\n"
    assert re.search(r"tokens/s = \d+% of what 1\.0 GB/s allow \(cpu, float32\)", err)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_command_runs_the_torch_engine(monkeypatch, capsys, dtype):
    model = talking_model()
    monkeypatch.setattr(engines, "load_model", lambda name: model)
    assert run_generate(arguments(engine="torch", dtype=dtype)) == 0
    out, err = capsys.readouterr()
    assert f"(cpu, {dtype})" in err
    if dtype == "float32":
        expected = generate_uncached(model, model.tokenizer.encode("hello"), 5)
        assert out == model.tokenizer.decode(expected) + "\n"


def test_one_token_has_no_time_per_token(monkeypatch, capsys):
    monkeypatch.setattr(engines, "load_model", lambda name: talking_model())
    assert run_generate(arguments(max_new_tokens=1)) == 0
    assert "TPOT - (one token)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (arguments(text="a" * 100), 1, "100 tokens, more than max_context=64"),
        (arguments(model="no such file"), 1, "no model at no such file"),
        (arguments(engine="numpy", dtype="int8"), 1, "NumPy engine runs on cpu in float32"),
        (arguments(engine="fast", dtype="int8"), 1, "NumPy engine runs on cpu in float32"),
        (arguments(dtype="int3"), 1, "dtype 'int3' is not one of"),
        (arguments(max_new_tokens=0), 2, "--max-new-tokens 0 must be at least 1"),
    ],
)
def test_the_command_reports_errors_in_one_line(monkeypatch, capsys, args, code, message):
    if args.model == "m":
        monkeypatch.setattr(engines, "load_model", lambda name: talking_model())
    assert run_generate(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
