"""The load client: what it measures, on servers whose times are known."""

import asyncio
import json
import math
import threading
from contextlib import contextmanager

import pytest

from inferlab.latency_metrics import request_latencies
from inferlab.serve import load_client, load_guidellm
from inferlab.serve.load_client import Sample, goodput_per_s, load, summary
from inferlab.serve.process import free_port, running_server
from labkit.measure import load_test

FIRST_S, GAP_S, N = 0.15, 0.04, 6


class FakeServer:
    """Answers every request after FIRST_S with N tokens, GAP_S apart; counts those at work."""

    def __init__(self, chunked: bool, cut: int = 10**9, status: int = 200, ends: bool = True):
        self.chunked, self.cut, self.status, self.ends = chunked, cut, status, ends
        self.asked: list[dict] = []
        self.at_work = self.most_at_work = 0

    async def answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.split("\r\n") if "Content-Length" in line
        )
        self.asked.append(json.loads(await reader.readexactly(length)))
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        kind = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        writer.write(f"HTTP/1.1 {self.status} X\r\n{kind}\r\n".encode())
        if self.status != 200:
            await self.send(writer, b'{"error": {"message": "too many"}}')
        else:
            await self.stream(writer)
        self.at_work -= 1
        if self.chunked:
            writer.write(b"0\r\n\r\n")
        writer.close()

    async def stream(self, writer):
        await asyncio.sleep(FIRST_S)
        for i in range(N):
            await asyncio.sleep(GAP_S * (i > 0))
            await self.send(writer, b'data: {"choices": [{"text": "a\\u00e4"}]}\n\n')
        usage = {"prompt_tokens": 3, "completion_tokens": N}
        await self.send(writer, f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        if self.ends:
            await self.send(writer, b"data: [DONE]\n\n")

    async def send(self, writer, data):
        """In pieces of `cut` bytes, each a chunk of its own."""
        for at in range(0, len(data), self.cut):
            piece = data[at : at + self.cut]
            if self.chunked:
                piece = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
            writer.write(piece)
            await writer.drain()


@contextmanager
def listening(server):
    """The fake server on a free port, in a thread of its own. -> its address"""
    port, ready, stop = free_port(), threading.Event(), threading.Event()

    async def serve():
        async with await asyncio.start_server(server.answer, "127.0.0.1", port):
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield f"http://127.0.0.1:{port}"
    stop.set()
    thread.join(10)


@pytest.mark.parametrize(("chunked", "cut"), [(True, 10**9), (True, 7), (False, 10**9), (False, 5)])
def test_known_times_are_measured(chunked, cut):
    with listening(FakeServer(chunked, cut)) as url:
        (sample,) = load(url, ["hello"], arrivals_s=[0.0], max_tokens=N)
    assert (sample.failed, len(sample.token_s), sample.n_prompt, sample.n_output) == ("", N, 3, N)
    assert FIRST_S <= sample.token_s[0] < FIRST_S + 0.25  # never early; late on a busy machine
    assert sample.token_s[-1] - sample.token_s[0] >= (N - 1) * GAP_S * 0.9
    seen = request_latencies(sample.trace)
    assert seen["ttft_s"] == pytest.approx(sample.token_s[0])
    assert seen["tpot_s"] == pytest.approx(sum(sample.itl_s) / (N - 1))


def test_arrivals_are_open_loop():
    """Ten requests a tenth of an answer apart are all at work at once: none waits for another."""
    server = FakeServer(True)
    with listening(server) as url:
        samples = load(url, ["x"] * 10, arrivals_s=[0.01 * i for i in range(10)], max_tokens=N)
    assert server.most_at_work >= 8
    assert all(s.sent_s >= 0.01 * i for i, s in enumerate(samples))
    assert server.asked[0]["ignore_eos"] is True
    assert server.asked[0]["stream_options"] == {"include_usage": True}
    assert "model" not in server.asked[0]


def test_what_fails_is_counted_and_not_timed():
    with listening(FakeServer(True, status=429)) as url:
        samples = load(url, ["x"] * 2, arrivals_s=[0.0, 0.0], max_tokens=N)
    figures = summary(samples)
    assert (figures["n_requests"], figures["n_failed"]) == (2, 2)
    assert figures["ttft_s"] == {"p50": math.inf, "p95": math.inf}  # as in lesson 11
    assert figures["itl_s"] == {}
    assert "HTTP 429" in figures["failures"][0]
    assert "too many" in figures["failures"][0]
    assert goodput_per_s(samples, 9, 9) == 0
    nobody = load(f"http://127.0.0.1:{free_port()}", ["x"], arrivals_s=[0.0], max_tokens=1)
    assert "Refused" in nobody[0].failed or "OSError" in nobody[0].failed


def test_a_stream_that_is_cut_off_has_failed():
    with listening(FakeServer(True, ends=False)) as url:
        (sample,) = load(url, ["x"], arrivals_s=[0.0], max_tokens=N)
    assert "without [DONE]" in sample.failed


def test_a_server_that_hangs_times_out():
    with listening(FakeServer(True)) as url:
        (sample,) = load(url, ["x"], arrivals_s=[0.0], max_tokens=N, timeout_s=0.05)
    assert "TimeoutError" in sample.failed


def test_the_summary_by_hand():
    samples = [
        Sample(0.0, [0.5, 0.6, 0.9]),
        Sample(1.0, [0.1]),
        Sample(2.0, [0.2, 0.4], failed="HTTP 500"),
    ]
    figures = summary(samples)
    assert figures["ttft_s"] == pytest.approx({"mean": 0.3, "p50": 0.5, "p95": math.inf})
    assert figures["itl_s"] == pytest.approx({"mean": 0.2, "p50": 0.1, "p95": 0.3})
    assert figures["tpot_s"] == pytest.approx({"mean": 0.2, "p50": 0.2, "p95": math.inf})
    assert figures["e2e_s"]["mean"] == pytest.approx(0.5)
    assert figures["requests_per_s"] == pytest.approx(2 / 2.4)  # until the last token of anybody
    assert figures["output_tokens_per_s"] == pytest.approx(6 / 2.4)
    assert goodput_per_s(samples, 0.2, 0.3) == pytest.approx(1 / 2.4)  # only the second
    assert goodput_per_s(samples, 0.5, 0.1) == pytest.approx(1 / 2.4)
    assert summary([])["requests_per_s"] == 0


def test_the_real_server_and_the_command_line(capsys):
    with running_server("--pages", "64") as url:
        assert load_client.main([url, "--rate", "20", "--requests", "4", "--max-tokens", "5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["n_failed"] == 0
    assert [r["n_output"] for r in found["requests"]] == [5] * 4
    assert [len(r["token_s"]) for r in found["requests"]] == [5] * 4


def test_never_is_null_in_the_printed_json(capsys):
    nobody = f"http://127.0.0.1:{free_port()}"
    assert load_client.main([nobody, "--requests", "1", "--rate", "9"]) == 1
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["summary"]["e2e_s"] == {"p50": None, "p95": None}


def test_a_server_that_cannot_start_says_why():
    with (
        pytest.raises(RuntimeError, match="no model"),
        running_server(model="no-such-model"),
    ):
        pass


def test_the_server_is_stopped_even_if_the_block_fails():
    with pytest.raises(ZeroDivisionError), running_server("--pages", "64") as url:
        raise ZeroDivisionError
    (sample,) = load(url, ["x"], arrivals_s=[0.0], max_tokens=1)
    assert sample.failed


# ---- guidellm: its words, and its report -------------------------------------------------------


def test_the_words_for_guidellm(tmp_path):
    words = load_guidellm.command(
        "http://127.0.0.1:1", "tiny", tmp_path, tmp_path / "out.json",
        rate_per_s=2.5, n_requests=7, n_prompt=64, n_output=32,
    )  # fmt: skip
    assert words[0] == "run"
    assert "kind=constant,rate=2.5" in words
    assert "kind=max_requests,count=7" in words
    assert "request_format=/v1/completions" in words[words.index("--backend") + 1]


def test_a_report_of_guidellm_is_read_in_seconds():
    spread = {"mean": 20.0, "median": 10.0, "percentiles": {"p95": 40.0}}
    report = {
        "benchmarks": [
            {
                "requests": {
                    "successful": [{}, {}],
                    "errored": [{"info": {"error": "400"}}],
                    "incomplete": [],
                },
                "metrics": {
                    "time_to_first_token_ms": {"successful": spread},
                    "inter_token_latency_ms": {"successful": spread},
                    "request_latency": {"successful": spread},
                },
            }
        ]
    }
    figures = load_guidellm.report(report)
    assert (figures["n_requests"], figures["n_failed"], figures["failures"]) == (3, 1, ["400"])
    assert figures["ttft_s"] == {"mean": 0.02, "p50": 0.01, "p95": 0.04}
    assert figures["e2e_s"]["p50"] == 10.0


def test_the_tokenizer_folder_is_one_that_transformers_reads(tmp_path):
    from inferlab.model import load_model

    transformers = pytest.importorskip("transformers")
    ours = load_model("tiny-target").tokenizer
    folder = load_guidellm.tokenizer_folder(ours, tmp_path / "tok")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "O Romeo, Romeo! wherefore art thou"
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)


# ---- what the lesson prints --------------------------------------------------------------------


def test_random_prompts_share_no_page():
    prompts = load_test.random_prompts(30, 64, 500, seed=3)
    assert [len(p) for p in prompts] == [64] * 30
    assert len({tuple(p[:8]) for p in prompts}) == 30
    assert all(10 <= token < 500 for p in prompts for token in p)


def test_measurements_stand_beside_their_bounds(capsys):
    load_test.beside_bounds({"TTFT": 0.02}, {"TTFT": 0.005})
    assert capsys.readouterr().out.split() == (
        ["TTFT", "20.0", "ms", "bound", "5.00", "ms", "the", "bound", "is", "25%", "of", "it"]
    )
    ours, theirs = (
        {name: {"p50": seconds} for name in ("ttft_s", "itl_s", "e2e_s")} for seconds in (0.3, 0.2)
    )
    load_test.compare_clients(ours, theirs)
    assert capsys.readouterr().out.count("ratio 1.50") == 3


def test_a_missing_public_client_is_said_loudly(capsys, monkeypatch):
    monkeypatch.setattr(load_guidellm, "program", lambda: None)
    assert load_test.public_client("http://127.0.0.1:1", "m", None) is None
    assert "not measured here" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="not installed"):
        load_guidellm.run("http://127.0.0.1:1", "m", None)


def test_two_clients_are_compared_round_by_round():
    from benchmarks.serve import FIGURES, compared

    def client(seconds):
        return {name: {"p50": seconds, "mean": 2 * seconds} for name in FIGURES}

    rounds = [
        {"ours": client(a), "guidellm": client(b)} for a, b in ((1.0, 2.0), (3.0, 3.0), (9.0, 3.0))
    ]
    row = compared(rounds)["itl_s p50"]
    assert row == {"ours": 3.0, "guidellm": 3.0, "ratio": 1.0, "ratio_low": 0.5, "ratio_high": 3.0}
