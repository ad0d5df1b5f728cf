"""Tokens: the same ids as transformers, and a stream that never shows half a character."""

import numpy as np
import pytest
from tokenizer_fields import HARD, gguf_fields
from transformers import Qwen2Tokenizer

from inferlab.sizes import InvalidModelFile, UnsupportedModel
from inferlab.tokenizer import SMOLLM_SYSTEM, StreamDecoder, Tokenizer


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(gguf_fields())


@pytest.mark.parametrize("text", HARD)
def test_encode_and_decode_are_a_round_trip(small, text):
    assert small.decode(small.encode(text)) == text
    assert small.decode(small.encode_plain(text)) == text


def test_merges_digits_and_markers(small):
    def pieces(text):
        return [small.decode([token]) for token in small.encode(text)]

    assert pieces(" the<|im_end|>12") == [" the", "<|im_end|>", "1", "2"]
    assert small.encode("<|im_end|>") == [2]
    assert 2 not in small.encode_plain("<|im_end|>"), "a user must not be able to end the turn"
    assert small.eos_ids == (2,)
    assert small.vocab_size == 300


@pytest.mark.parametrize("text", [*HARD, "e\u0301t\u00e9 12\u00b2 'Re\r\n\n  (the) the\t the  "])
def test_qwen_cuts_words_as_transformers_does(text):
    """Nothing to merge but the letters of each word: where words end shows in the ids."""
    fields = gguf_fields(pre="qwen2")
    tokens, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    theirs = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split()) for merge in merges],
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    ours = Tokenizer.from_gguf_metadata(fields)
    assert ours.encode(text) == theirs(text)["input_ids"]
    cut, reference = ours._backend, theirs.backend_tokenizer
    words = [
        x.pre_tokenizer.pre_tokenize_str(x.normalizer.normalize_str(text)) for x in (cut, reference)
    ]
    assert words[0] == words[1]


@pytest.mark.parametrize("text", HARD)
def test_a_stream_shows_whole_characters_and_everything(small, text):
    decoder = StreamDecoder(small)
    pieces = [decoder.push(token) for token in small.encode(text)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == text


def test_a_stream_of_broken_bytes_loses_nothing(small):
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = rng.integers(0, 262, 30).tolist()
        decoder = StreamDecoder(small)
        text = "".join(decoder.push(token) for token in tokens) + decoder.flush()
        assert text == small.decode(tokens)


def test_a_character_cut_off_at_the_end_is_shown_as_such(small):
    decoder = StreamDecoder(small)
    assert [decoder.push(token) for token in small.encode("é")[:1]] == [""]
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


def test_the_chat_form(small):
    assert small.decode(small.chat_prompt("Hi")) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = small.chat_prompt("<|im_end|>", system="Be kind.")
    assert small.decode(tokens) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokens.count(2) == 2, "the user's own marker must stay plain text"


def test_a_tokenizer_without_markers_has_no_chat_form():
    fields = gguf_fields()
    fields["tokenizer.ggml.tokens"][1] = "<other>"
    with pytest.raises(ValueError, match="no ChatML markers"):
        Tokenizer.from_gguf_metadata(fields).chat_prompt("Hi")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, UnsupportedModel, "'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, UnsupportedModel, "'tekken'"),
        ({"tokenizer.ggml.merges": None}, InvalidModelFile, "lacks"),
        ({"tokenizer.ggml.merges": ["Ġt"]}, InvalidModelFile, "'Ġt' is not two tokens"),
        ({"tokenizer.ggml.merges": ["Ġ zzz"]}, InvalidModelFile, "do not fit"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, InvalidModelFile, "1 of 2 tokens are repeats"),
    ],
)
def test_unusable_lists_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        Tokenizer.from_gguf_metadata({**gguf_fields(), **changes})


def test_a_tokenizer_json_loads_with_its_template(tmp_path, small):
    file = tmp_path / "tokenizer.json"
    small._backend.save(str(file))
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": "{SMOLLM_SYSTEM}"}}')
    loaded = Tokenizer.from_file(file, eos_ids=(0,))
    assert loaded.encode(HARD[5]) == small.encode(HARD[5])
    assert loaded.eos_ids == (0, 2)
    assert SMOLLM_SYSTEM in loaded.decode(loaded.chat_prompt("Hi"))
    file.write_text("{}")
    with pytest.raises(InvalidModelFile, match=r"no tokenizer\.json"):
        Tokenizer.from_file(file)
