"""Texts that are hard to tokenize, and the fields of a small tokenizer in a GGUF's header."""

import tokenizers

HARD = [
    "The capital of France is Paris.",
    "  two  spaces\t\ttabs\n\n\nnewlines \r\n",
    "naïve café — “quotes” … ½ ² ٣٤ Ⅷ",
    "日本語の文章と한국어 и русский",
    "👩‍👩‍👧‍👦 🏳️‍🌈 flags and 🤖",
    "for i in range(1000000):\n    x[i] += 3.14159e-10  # don't, it's 2024!",
    "a\u0301 combining, \u200b zero width, \ufeff bom, \x00 nul, \ufffd replacement",
    "1234567890 12 345,678.90 x1y2z3 v1.2.3",
    "",
    " ",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|im_start|>",
]


def byte_alphabet() -> list[str]:
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def gguf_fields(vocab_size: int = 300, pre: str = "smollm") -> dict[str, object]:
    """The header fields of a small byte-level tokenizer: three markers, all bytes, three merges."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "Ġt", "he", "Ġthe"]
    n_plain = len(tokens) - 3
    tokens += [f"<extra_{i}>" for i in range(vocab_size - len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * n_plain + [4] * (vocab_size - 3 - n_plain),
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
        "tokenizer.ggml.eos_token_id": 2,
    }
