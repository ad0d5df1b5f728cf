"""Measure every engine against transformers: python -m benchmarks.run [--quick], or make bench.

Each variant runs in a process of its own; they are asked in turn, round after round, so that
whatever slows the machine down for a while meets all alike. Numbers of one round are compared with
each other, never with another day's. The record is written after every round and on Ctrl-C; a
complete run replaces benchmarks/results/NAME.json, an incomplete one leaves NAME.partial.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from benchmarks import machine, runners
from benchmarks.plan import BASELINE, FULL, QUICK, VARIANTS, Sizes, Variant
from benchmarks.record import Record, compare_logits

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "numpy-reference"  # whose logits the others are compared with
POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class VariantFailed(RuntimeError):
    """A variant's process ended or answered nonsense; the message has its last words."""


def environment(n_threads: int, *, openblas: bool = True) -> dict[str, str]:
    """The environment of a measured process: n_threads for the library that computes.

    OpenBLAS gets one where PyTorch computes: its threads would wait busily for work in between.
    """
    pools = dict.fromkeys(POOLS, str(n_threads))
    if not openblas:
        pools["OPENBLAS_NUM_THREADS"] = "1"
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **pools, **offline, "PYTHONWARNINGS": "ignore"}


class Process:
    """The other end of benchmarks/worker.py."""

    def __init__(self, variant: Variant, model: str, n_threads: int, words: IO[bytes]) -> None:
        self.variant, self.words = variant, words
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", variant.name, model, str(n_threads)],
            cwd=ROOT,
            env=environment(n_threads, openblas=not variant.on_torch),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        )
        self.about = self._answer()

    def ask(self, question: str, **details: Any) -> dict[str, Any]:
        """Ask and wait for the answer. Raises VariantFailed."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps({"ask": question, **details}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise VariantFailed(self._last_words()) from None
        return self._answer()

    def close(self) -> None:
        """End the process; it has nothing to save."""
        self.process.kill()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise VariantFailed(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self.words.seek(0)
        lines = self.words.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"


class Run:
    """One run: its processes, its record, its progress bar."""

    def __init__(self, args: argparse.Namespace, sizes: Sizes, variants: list[Variant]) -> None:
        self.args, self.sizes = args, sizes
        self.processes: dict[str, Process] = {}
        self.record = Record(machine.describe(args.threads), str(args.model), sizes)
        self.variants = []
        for variant in variants:
            reason = runners.absent(variant, args.model)
            if reason:
                self.record.left_out[variant.name] = reason
            else:
                self.variants.append(variant)
        self.bar = tqdm(total=self._n_steps(), unit="step", disable=args.silent)

    def go(self, stack: ExitStack, deadline: float) -> None:
        """Start all processes, then measure; rounds end where the next would pass the deadline."""
        self._start(stack)
        self._check_logits()
        self._load()
        for number in range(self.sizes.rounds):
            started = time.monotonic()
            if number and started + max(self.record.round_s) > deadline:
                self.record.left_out[f"rounds {number + 1} to {self.sizes.rounds}"] = "no time"
                break
            self.round()
            self.record.round_s.append(time.monotonic() - started)
            self.save()
        self.record.complete = True

    def round(self) -> None:
        """Every metric once, all variants in turn."""
        s = self.sizes
        self.record.load_average.append(os.getloadavg()[0])
        for library in ("numpy", "torch"):
            self._bounds(library)
        for metric, question in {
            "decode": {"prompt": s.prompt, "n_new": s.n_new},
            "prefill": {"n_tokens": s.prefill},
            "batch": {"n_sequences": s.batch, "prompt": s.prompt_batch, "n_new": s.n_new_batch},
        }.items():
            for variant in self._alive():
                if metric != "batch" or variant.batches:
                    with self._step(variant.name, metric) as ask:
                        answer = ask(metric, **question)
                        self.record.add(metric, variant.name, answer["tokens_per_s"])
        for kind in ("copy", "open"):
            if "numpy-fast" in self.processes:
                with self._step("numpy-fast", f"lookup {kind}") as ask:
                    answer = ask("lookup", kind=kind, n_new=s.n_new_lookup)
                    self.record.lookup.setdefault(kind, []).append(answer)

    def save(self) -> None:
        """Write what there is."""
        path: Path = self.args.out
        partial = path.with_name(f"{path.stem}.partial.json")
        self.record.write(path if self.record.complete else partial)
        if self.record.complete:
            partial.unlink(missing_ok=True)

    def _n_steps(self) -> int:
        n, n_batches = len(self.variants), sum(v.batches for v in self.variants)
        n_lookups = 2 * any(v.name == "numpy-fast" for v in self.variants)
        a_round = 2 + 2 * n + n_batches + n_lookups
        return 3 * n + 2 * self.sizes.load_rounds + self.sizes.rounds * a_round

    def _alive(self) -> list[Variant]:
        return [v for v in self.variants if v.name in self.processes]

    @contextmanager
    def _step(self, name: str, what: str) -> Iterator[Callable[..., dict[str, Any]]]:
        """One question to one variant; where it fails, the run goes on without the variant."""
        self.bar.set_postfix_str(f"{name}: {what}")
        try:
            yield self.processes[name].ask
        except VariantFailed as failure:
            self._fail(name, f"{what}: {failure}")
        self.bar.update()

    def _fail(self, name: str, words: str) -> None:
        self.record.failed[name] = words
        if name in self.processes:
            self.processes.pop(name).close()
        tqdm.write(f"benchmarks: {name} failed: {words}", file=sys.stderr)

    def _start(self, stack: ExitStack) -> None:
        for variant in self.variants:
            self.bar.set_postfix_str(f"{variant.name}: loading")
            words = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            try:
                process = Process(variant, self.args.model, self.args.threads, words)
                stack.callback(process.close)
                self.processes[variant.name] = process
                self.record.bytes_per_token[variant.name] = process.about["bytes_per_token"]
            except VariantFailed as failure:
                self._fail(variant.name, f"loading: {failure}")
            self.bar.update()
        for variant in self._alive():  # the first calls allocate and pack; they are not counted
            with self._step(variant.name, "warming up") as ask:
                ask("prefill", n_tokens=self.sizes.prefill)
                ask("decode", prompt=self.sizes.prompt, n_new=2)
                if variant.batches:
                    ask("batch", n_sequences=self.sizes.batch, prompt=8, n_new=1)

    def _check_logits(self) -> None:
        """The speed of a broken engine is no speed: how far are its distributions?"""
        found: dict[str, np.ndarray] = {}
        with tempfile.TemporaryDirectory() as folder:
            for variant in self._alive():
                path = Path(folder) / "logits.npy"
                with self._step(variant.name, "comparing logits") as ask:
                    ask("check", n_tokens=self.sizes.check, path=str(path))
                    found[variant.name] = np.load(path)
        if REFERENCE in found:
            for name, logits in found.items():
                self.record.agreement[name] = compare_logits(logits, found[REFERENCE])

    def _load(self) -> None:
        path = str(runners.gguf_path(self.args.model))
        for _ in range(self.sizes.load_rounds):
            for who in ("inferlab", "transformers"):
                self.bar.set_postfix_str(f"{who}: loading in a fresh process")
                answer = self._once("benchmarks.load", who, path)
                if answer:
                    self.record.load.setdefault(who, []).append(answer)
                self.bar.update()

    def _bounds(self, library: str) -> None:
        self.bar.set_postfix_str(f"{library}: bandwidth and GEMM")
        s, n_threads = self.sizes, self.args.threads
        sizes = [str(n) for n in (s.bandwidth_bytes, s.gemm, n_threads)]
        for name, value in self._once("benchmarks.machine", library, *sizes).items():
            self.record.bounds.setdefault(name, []).append(value)
        self.bar.update()

    def _once(self, module: str, who: str, *arguments: str) -> dict[str, float]:
        """The answer of a process that is there for one question; {} where it fails."""
        done = subprocess.run(
            [sys.executable, "-m", module, who, *arguments],
            cwd=ROOT,
            env=environment(self.args.threads),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            self._fail(f"{module} {who}", last)
            return {}
        return json.loads(done.stdout.strip().splitlines()[-1])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    made.add_argument("--model", default="smollm2", help="a name, a .gguf file or a folder")
    made.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    made.add_argument("--variants", default="", help="names with commas between; default: all")
    made.add_argument("--rounds", type=int, help=f"default: {FULL.rounds}, quick {QUICK.rounds}")
    made.add_argument("--minutes", type=float, default=20, help="no round ends after this")
    made.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    made.add_argument("--silent", action="store_true", help="no progress bar")
    made.add_argument("--out", type=Path, help="default: benchmarks/results/cpu-N-threads.json")
    return made


def chosen(names: str) -> list[Variant]:
    """Variants by their names. Raises ValueError for an unknown one, or without the baseline."""
    if not names:
        return list(VARIANTS)
    wanted = names.split(",")
    unknown = set(wanted) - {v.name for v in VARIANTS}
    if unknown or BASELINE not in wanted:
        known = ", ".join(v.name for v in VARIANTS)
        raise ValueError(f"--variants {names} needs {BASELINE} and names out of: {known}")
    return [v for v in VARIANTS if v.name in wanted]


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    deadline = time.monotonic() + 60 * args.minutes
    sizes = QUICK if args.quick else FULL
    if args.rounds:
        sizes = replace(sizes, rounds=args.rounds)
    if args.out is None:
        name = "quick" if args.quick else f"cpu-{args.threads}-threads"
        args.out = ROOT / "benchmarks" / "results" / f"{name}.json"
    try:
        run = Run(args, sizes, chosen(args.variants))
    except ValueError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    interrupted = False
    with ExitStack() as stack:
        try:
            run.go(stack, deadline)
        except KeyboardInterrupt:
            interrupted = True
        run.bar.close()
    run.save()
    print_table(run.record)
    return 130 if interrupted else 1 if run.record.failed else 0


def print_table(record: Record) -> None:
    """The medians and ratios, for whoever waits at the terminal."""
    from benchmarks.table import performance_table

    print(performance_table(record.as_json()))
    for name, reason in {**record.left_out, **record.failed}.items():
        print(f"not measured: {name} ({reason})")


if __name__ == "__main__":
    sys.exit(main())
