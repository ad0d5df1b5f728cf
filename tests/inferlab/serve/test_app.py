"""The server, over HTTP, with a real model: what clients rely on."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from grader import cli
from inferlab.generate import stream_tokens
from inferlab.model import load_model
from inferlab.serve.app import Server
from inferlab.serve.engine import ServingEngine
from inferlab.serve.load_client import load
from inferlab.serve.loop import EngineLoop
from inferlab.serve.process import running_server
from inferlab.serve.text import StopScanner

TEXT = "O Romeo, Romeo! wherefore art thou"


@pytest.fixture(scope="module")
def model():
    return load_model("tiny-target")


@contextmanager
def serving(model, max_waiting=64, **sizes):
    """A server on a free port of this machine, in a thread. -> (client, Server)"""
    engine = ServingEngine(model, **{"n_pages": 128, "page_size": 8, **sizes})
    server = Server(EngineLoop(engine, max_waiting), model.tokenizer, "tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    http = uvicorn.Server(uvicorn.Config(server.app(), port=port, log_level="error"))
    thread = threading.Thread(target=http.run, daemon=True)
    thread.start()
    while not http.started:
        time.sleep(0.01)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client, server
    http.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(model):
    with serving(model) as (client, _):
        yield client


def alone(model, text, n):
    """The greedy answer of the engine without a server."""
    found = [t for t in stream_tokens(model, model.tokenizer.encode(text), n) if isinstance(t, int)]
    return model.tokenizer.decode(found)


def lines(response):
    """The data of a stream of server-sent events, [DONE] last."""
    found = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert found[-1] == "[DONE]"
    return [json.loads(line) for line in found[:-1]]


def ask(client, **more):
    body = {"model": "tiny", "prompt": TEXT, "temperature": 0, "max_tokens": 12, **more}
    return client.post("/v1/completions", json=body)


def wait_for(condition, what):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_health_and_models(client):
    assert client.get("/health").status_code == 200
    (listed,) = client.get("/v1/models").json()["data"]
    assert (listed["id"], listed["object"]) == ("tiny", "model")


def test_a_completion_is_the_greedy_answer(client, model):
    body = ask(client).json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == alone(model, TEXT, 12)
    assert body["choices"][0]["finish_reason"] == "length"
    n_prompt = len(model.tokenizer.encode(TEXT))
    assert body["usage"]["prompt_tokens"] == n_prompt
    assert body["usage"]["completion_tokens"] == 12
    assert body["usage"]["total_tokens"] == n_prompt + 12


def test_a_stream_has_one_token_a_chunk_and_the_same_text(client, model):
    body = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = lines(ask(client, **body))
    assert len(chunks) == 12 + 1
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == alone(model, TEXT, 12)
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 11 + ["length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert all("usage" not in c for c in chunks[:-1])


def test_token_ids_and_the_prefix_cache(client, model):
    ids = model.tokenizer.encode("Now is the winter of our discontent made glorious summer") * 2
    first, second = (ask(client, prompt=ids).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (len(ids) - 1) // 8 * 8


def test_a_seed_gives_the_same_answer_and_another_another(client):
    texts = [
        ask(client, temperature=1.0, seed=seed, max_tokens=16).json()["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    filtered = ask(client, temperature=1.0, top_k=1, seed=5).json()
    assert filtered["choices"] == ask(client).json()["choices"]


def test_a_stop_text_ends_the_answer_before_it(client, model):
    whole = alone(model, TEXT, 12)
    stop = whole[6:9]
    body = ask(client, stop=[stop, "never"]).json()
    assert body["choices"][0]["text"] == whole[: whole.index(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    chunks = lines(ask(client, stop=stop, stream=True))
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole[: whole.index(stop)]


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_stop_text_is_found_however_it_is_cut(cut):
    text, scanner = "one two three four", StopScanner(("three", "threat"))
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    assert "".join(map(scanner.push, pieces)) + scanner.flush() == "one two "
    assert scanner.found


BAD = {
    "no prompt": ({"prompt": None}, "prompt", 400),
    "negative temperature": ({"temperature": -1}, "temperature", 400),
    "no tokens": ({"max_tokens": 0}, "max_tokens", 400),
    "two answers": ({"n": 2}, "one answer", 400),
    "no answer": ({"n": 0}, "one answer", 400),
    "the best of several": ({"best_of": 3}, "best_of", 400),
    "logprobs": ({"logprobs": 5}, "log-probabilities", 400),
    "logprobs of the chosen token alone": ({"logprobs": 0}, "log-probabilities", 400),
    "logprobs as chat asks": ({"logprobs": True}, "log-probabilities", 400),
    "echo": ({"echo": True}, "not repeated", 400),
    "suffix": ({"suffix": " the end"}, "suffix", 400),
    "logit_bias": ({"logit_bias": {"50256": -100}}, "logit_bias", 400),
    "a penalty": ({"frequency_penalty": 0.5}, "penalties", 400),
    "tools": ({"tools": [{"type": "function"}]}, "no tools", 400),
    "JSON": ({"response_format": {"type": "json_object"}}, "JSON", 400),
    "another model": ({"model": "gpt-5"}, "gpt-5", 404),
    "several prompts": ({"prompt": ["a", "b"]}, "one prompt", 400),
    "a token beyond the vocabulary": ({"prompt": [10**6]}, "1000000", 400),
    "too long": ({"max_tokens": 10**6}, "max_context", 400),
    "empty": ({"prompt": ""}, "1 token", 400),
}


@pytest.mark.parametrize(("change", "word", "status"), BAD.values(), ids=BAD)
def test_a_bad_request_gets_an_error_in_openais_shape(client, change, word, status):
    for stream in (False, True):
        response = ask(client, **change, stream=stream)
        assert response.status_code == status
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert word in f"{error['message']} {error['param']}"


def test_fields_that_ask_for_nothing_are_no_trouble(client, model):
    """What clients send by default, and nulls."""
    idle = {
        "n": 1, "best_of": 1, "logprobs": None, "echo": False, "suffix": None, "logit_bias": {},
        "presence_penalty": 0, "frequency_penalty": 0.0, "tools": [], "stop": None, "seed": None,
        "top_p": None, "response_format": {"type": "text"}, "user": "somebody", "stream": None,
    }  # fmt: skip
    response = ask(client, **idle)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == alone(model, TEXT, 12)


def test_bodies_that_are_no_json_and_unknown_routes_are_errors_in_the_same_shape(client):
    for response, status in (
        (client.post("/v1/completions", content=b"{not json"), 400),
        (client.post("/v1/completions", json=["a list"]), 400),
        (client.post("/v1/embeddings", json={"input": "x"}), 404),
        (client.get("/v1/completions"), 405),
        (client.get("/v1/models/gpt-5"), 404),
    ):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert client.get("/v1/models/gpt-5").json()["error"]["code"] == "model_not_found"
    assert client.get("/v1/completions").headers["allow"] == "POST"


def test_one_model_by_its_name_and_head_requests(client):
    (listed,) = client.get("/v1/models").json()["data"]
    assert client.get("/v1/models/tiny").json() == listed
    assert listed["created"] > 1_700_000_000
    for path in ("/health", "/v1/models", "/metrics", "/"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")


def test_pages_of_other_sites_may_not_read_answers(client):
    """No CORS header: a browser keeps the answer from a page that another site served."""
    headers = {"Origin": "https://example.org"}
    for response in (
        client.get("/v1/models", headers=headers),
        client.post("/v1/completions", json={"prompt": TEXT, "max_tokens": 1}, headers=headers),
        client.options(
            "/v1/completions", headers=headers | {"Access-Control-Request-Method": "POST"}
        ),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_request_that_cannot_be_taken_up_does_not_end_the_server(model, monkeypatch):
    with serving(model) as (client, server):
        add = server.loop.engine.add
        monkeypatch.setattr(server.loop.engine, "add", lambda *_: [][1])
        response = ask(client)
        assert response.status_code == 500
        assert "IndexError" in response.json()["error"]["message"]
        monkeypatch.setattr(server.loop.engine, "add", add)
        assert ask(client).json()["choices"][0]["text"] == alone(model, TEXT, 12)


def test_a_model_without_a_chat_form_says_so(client):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert "/v1/completions" not in response.text
    assert "ChatML" in response.json()["error"]["message"]


@pytest.mark.model
def test_chat_with_the_real_model(real_model):
    body = {
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": [{"type": "text", "text": "The capital of France?"}]},
        ],
        "temperature": 0,
        "max_completion_tokens": 8,
    }
    with serving(real_model, n_pages=32, page_size=16) as (client, _):
        answer = client.post("/v1/chat/completions", json=body).json()
        chunks = lines(client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks)
    assert text == answer["choices"][0]["message"]["content"]


def test_many_at_once_get_what_they_would_get_alone(client, model):
    texts = [f"{TEXT} {'speak ' * i}" for i in range(6)]
    got: dict[int, str] = {}

    def one(i):
        got[i] = ask(client, prompt=texts[i]).json()["choices"][0]["text"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {i: alone(model, text, 12) for i, text in enumerate(texts)}


def test_a_client_that_leaves_frees_its_pages(model):
    with serving(model, use_prefix_cache=False) as (client, server):
        allocator = server.loop.engine.scheduler.allocator
        body = {"model": "tiny", "prompt": TEXT, "max_tokens": 200, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            assert response.status_code == 200
            rest = response.iter_lines()
            next(rest)
            assert len(allocator.free) < allocator.n_pages
        wait_for(lambda: len(allocator.free) == allocator.n_pages, "the pages are still held")
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=body, timeout=0.3)
        wait_for(lambda: len(allocator.free) == allocator.n_pages, "the pages are still held")
        assert 'inferlab_requests_total{finish="abort"} 2.0' in client.get("/metrics").text


def test_a_full_queue_answers_429(model, monkeypatch):
    with serving(model, max_running=1, max_waiting=1) as (client, server):
        step, gate = server.loop.engine.step, threading.Event()
        monkeypatch.setattr(server.loop.engine, "step", lambda: gate.wait() and step())
        first, second = (threading.Thread(target=ask, args=(client,)) for _ in range(2))
        first.start()
        second.start()  # neither can end before the gate is open
        wait_for(lambda: server.loop.n_open == 2, "the two did not arrive")
        refused = ask(client)
        gate.set()
        first.join()
        second.join()
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.headers["retry-after"]
        assert ask(client).status_code == 200


def test_metrics_count_what_was_served(model):
    with serving(model) as (client, _):
        used = ask(client).json()["usage"]
        text = client.get("/metrics").text
    values = dict(re.findall(r"^(inferlab_\w+(?:\{[^}]*\})?) ([\d.e+-]+)$", text, re.MULTILINE))
    assert float(values["inferlab_prompt_tokens_total"]) == used["prompt_tokens"]
    assert float(values["inferlab_generation_tokens_total"]) == 12
    assert float(values["inferlab_time_to_first_token_seconds_count"]) == 1
    assert float(values["inferlab_inter_token_latency_seconds_count"]) == 11
    assert float(values['inferlab_requests_total{finish="length"}']) == 1


def test_a_pass_that_fails_is_an_error_and_not_the_end(model, monkeypatch):
    with serving(model) as (client, server):
        step = server.loop.engine.step
        monkeypatch.setattr(server.loop.engine, "step", lambda: 1 / 0)
        response = ask(client)
        assert response.status_code == 500
        assert "ZeroDivisionError" in response.json()["error"]["message"]
        monkeypatch.setattr(server.loop.engine, "step", step)
        assert ask(client).json()["choices"][0]["text"] == alone(model, TEXT, 12)


def test_the_live_page_needs_nothing_from_elsewhere(client):
    page = client.get("/").text
    assert "<title>inferlab" in page
    assert not re.search(r"(src|href)=|https?://|@import", page)
    live = client.get("/live").json()
    assert live["model"] == "tiny"
    assert len(live["ref_counts"]) == 128


def test_a_port_that_is_taken_is_said_before_a_model_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["serve", "--model", "no-such-model", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"cannot open port {port} of 127.0.0.1" in said
    assert "another program listens there. Choose another with --port" in said
    assert cli.main(["serve", "--model", "tiny-target", "--port", "70000"]) == 2
    assert "must be between 0 and 65535" in capsys.readouterr().err


def test_the_pytorch_engine_serves_the_same_tokens(model):
    """Long prompts in chunks, five at once, each as the NumPy engine would answer it alone."""
    texts = [f"{TEXT} {'speak ' * 9 * i}" for i in range(5)]
    with running_server("--engine", "torch", "--token-budget", "32", "--pages", "64") as url:
        samples = load(url, texts, arrivals_s=[0.0] * 5, max_tokens=12)
        assert [s.failed for s in samples] == [""] * 5
        with httpx.Client(base_url=url, timeout=60) as client:
            answers = [
                ask(client, prompt=text, model="tiny-target").json()["choices"][0]["text"]
                for text in texts
            ]
    assert answers == [alone(model, text, 12) for text in texts]


@pytest.mark.skipif(os.name == "nt", reason="NOT TESTED: Windows has no SIGTERM to drain on")
def test_sigterm_ends_what_has_begun_and_then_the_server(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "grader.cli", "serve", "--model", "tiny-target"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--pages", "64"], stderr=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"

        def is_up():
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.TransportError:
                return False

        wait_for(is_up, "the server does not come up")
        body = {"prompt": TEXT, "max_tokens": 100, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            rest = response.iter_lines()
            next(rest)
            process.send_signal(signal.SIGTERM)
            found = [line for line in rest if line]
        assert found[-1] == "data: [DONE]"
        assert len(found) == 100  # 99 tokens more, and the end
        assert process.wait(20) == 0
    finally:
        process.kill()
    assert "serving tiny-target at" in process.stderr.read()
