"""One variant in a process of its own: python -m benchmarks.worker VARIANT MODEL THREADS

It reads one JSON object a line and answers each with one. Thread pools are set by the environment
that it is started in; two pools in one process would wait for each other busily.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import runners
from benchmarks.plan import COPY, OPEN, VARIANTS, random_tokens


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


@dataclass
class Worker:
    """Answers questions about one engine; each answer is plain data."""

    runner: Any

    def about(self) -> dict[str, Any]:
        return {"bytes_per_token": self.runner.bytes_per_token}

    def decode(self, prompt: int, n_new: int) -> dict[str, Any]:
        """Tokens a second after the first, one sequence."""
        tokens = random_tokens(self.runner.vocab_size, (prompt,)).tolist()
        return {"tokens_per_s": _pace(lambda n: self.runner.generate(tokens, n), n_new, n_new)}

    def prefill(self, n_tokens: int) -> dict[str, Any]:
        """Tokens a second until the logits after the last one."""
        tokens = random_tokens(self.runner.vocab_size, (n_tokens,), seed=1).tolist()
        return {"tokens_per_s": n_tokens / seconds(lambda: self.runner.prefill(tokens))}

    def batch(self, n_sequences: int, prompt: int, n_new: int) -> dict[str, Any]:
        """Tokens a second after the first, all sequences together."""
        shape = (n_sequences, prompt)
        prompts = random_tokens(self.runner.vocab_size, shape, seed=2).tolist()
        pace = _pace(lambda n: self.runner.generate_batch(prompts, n), n_new, n_new * n_sequences)
        return {"tokens_per_s": pace}

    def lookup(self, kind: str, n_new: int) -> dict[str, Any]:
        """How many times as fast prompt lookup is as plain decoding, the prefill included."""
        prompt = self._prompt(COPY if kind == "copy" else OPEN)
        start = perf_counter()
        plain = self.runner.generate(prompt, n_new)
        middle = perf_counter()
        tokens, acceptance = self.runner.lookup(prompt, n_new)
        speedup = (middle - start) / (perf_counter() - middle)
        return {"speedup": speedup, "acceptance": acceptance, "identical": tokens == plain}

    def check(self, n_tokens: int, path: str) -> dict[str, Any]:
        """Write the logits after each of some tokens of text to a .npy file."""
        np.save(path, self.runner.logits(self._prompt(COPY)[:n_tokens]))
        return {}

    def _prompt(self, text: str) -> list[int]:
        """A question in chat form, as its plain text, or as a repeated run of ids."""
        tokenizer = self.runner.tokenizer
        if tokenizer is None:
            return random_tokens(self.runner.vocab_size, (12,), seed=3).tolist() * 2
        try:
            return tokenizer.chat_prompt(text)
        except ValueError:
            return tokenizer.encode(text)


def _pace(generate: Callable[[int], object], n_new: int, n_tokens: int) -> float | None:
    """Tokens a second of n_new steps. The prefill and the first token are in both runs, so they
    drop out. None where the longer run was the faster one, five times: too short to be timed."""
    for _ in range(5):
        one = seconds(lambda: generate(1))
        difference = seconds(lambda: generate(n_new + 1)) - one
        if difference > 0:
            return n_tokens / difference
    return None


def main(variant_name: str, model_name: str, n_threads: str) -> None:
    # Answers go where stdout led; what libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    (variant,) = [v for v in VARIANTS if v.name == variant_name]
    worker = Worker(runners.make(variant, model_name, int(n_threads)))
    print(json.dumps(worker.about()), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = getattr(worker, question.pop("ask"))(**question)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
