"""guidellm, a public benchmark client, driven against a server: its command and its report.

It is not part of the course's environment: `pip install "inferlab[bench]"` brings it. It counts a
prompt's tokens itself, so it gets a folder with the model's tokenizer, and needs no network.

Source: guidellm 0.8, `guidellm run --help`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from inferlab.tokenizer import Tokenizer

METRICS = {
    "ttft_s": "time_to_first_token_ms",
    "itl_s": "inter_token_latency_ms",
    "e2e_s": "request_latency",  # in seconds, the only one
}


def program() -> list[str] | None:
    """How to run guidellm here; None where it is not installed.

    INFERLAB_GUIDELLM may name the program of another environment.
    """
    if named := os.environ.get("INFERLAB_GUIDELLM"):
        return [named]
    if importlib.util.find_spec("guidellm"):
        beside = Path(sys.executable).with_name("guidellm")
        return [str(beside)] if beside.exists() else [sys.executable, "-m", "guidellm"]
    found = shutil.which("guidellm")
    return [found] if found else None


def version() -> str:
    """What guidellm calls its version, as text; "unknown" where it does not say."""
    how = program()
    if how is None:
        return "not installed"
    clean = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(
        [*how, "--version"], capture_output=True, text=True, timeout=120, env=clean
    )
    return said.stdout.strip() or "unknown"


def command(
    url: str,
    model: str,
    tokenizer: Path,
    out: Path,
    *,
    rate_per_s: float,
    n_requests: int,
    n_prompt: int,
    n_output: int,
) -> list[str]:
    """The words of `guidellm run` for evenly spaced requests to /v1/completions."""
    backend = f"kind=openai_http,target={url},model={model},request_format=/v1/completions"
    return [
        "run", "--backend", backend,
        "--profile", f"kind=constant,rate={rate_per_s:g}",
        "--constraint", f"kind=max_requests,count={n_requests}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={n_prompt},output_tokens={n_output}",
        "--output", f"kind=json,path={out}", "--disable-console-interactive",
    ]  # fmt: skip


def tokenizer_folder(tokenizer: Tokenizer, to: Path) -> Path:
    """A folder that transformers reads this tokenizer from."""
    to.mkdir(parents=True, exist_ok=True)
    tokenizer.save(to / "tokenizer.json")
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (to / "tokenizer_config.json").write_text(json.dumps(kind), encoding="utf-8")
    return to


def run(
    url: str, model: str, tokenizer: Tokenizer, *, timeout_s: float = 300, **load: Any
) -> dict[str, Any]:
    """Load the server; -> the figures of load_client.summary. Raises RuntimeError if it fails.

    load: rate_per_s, n_requests, n_prompt, n_output. Offline: nothing leaves this machine.
    """
    how = program()
    if how is None:
        raise RuntimeError('guidellm is not installed: pip install "inferlab[bench]"')
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        kept = tokenizer_folder(tokenizer, Path(folder) / "tokenizer")
        words = command(url, model, kept, out, **load)
        clean = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
        environment = clean | {"HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                [*how, *words], env=environment, cwd=folder, capture_output=True, text=True,
                timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"guidellm took more than {timeout_s:.0f} s") from error
        if done.returncode or not out.exists():
            raise RuntimeError(f"guidellm failed ({done.returncode}): {done.stderr[-600:]}")
        return report(json.loads(out.read_text(encoding="utf-8")))


def report(found: dict[str, Any]) -> dict[str, Any]:
    """Its report in the words of load_client.summary, in seconds."""
    benchmark = found["benchmarks"][0]
    requests, metrics = benchmark["requests"], benchmark["metrics"]
    done, failed = requests["successful"], requests["errored"] + requests["incomplete"]
    figures: dict[str, Any] = {
        "n_requests": len(done) + len(failed),
        "n_failed": len(failed),
        "failures": sorted({str(r["info"]["error"]) for r in failed})[:3],
    }
    for ours, theirs in METRICS.items():
        spread = metrics[theirs]["successful"]
        scale = 1e-3 if theirs.endswith("_ms") else 1.0
        figures[ours] = {
            "mean": scale * spread["mean"],
            "p50": scale * spread["median"],
            "p95": scale * spread["percentiles"]["p95"],
        }
    return figures
