"""The server, driven by OpenAI's own Python client: streaming, concurrent, cancelled, refused.

Needs the package `openai`; where it is missing the tests are skipped and say so.
"""

import asyncio
import time

import pytest

from inferlab.generate import stream_tokens
from inferlab.model import load_model
from inferlab.serve.process import running_server

openai = pytest.importorskip("openai", reason="NOT TESTED with the openai client: not installed")

TEXT = "O Romeo, Romeo! wherefore art thou"


@pytest.fixture(scope="module")
def url():
    with running_server("--pages", "128", "--page-size", "8", "--no-prefix-cache") as address:
        yield address


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def alone(text, n):
    model = load_model("tiny-target")
    found = [t for t in stream_tokens(model, model.tokenizer.encode(text), n) if isinstance(t, int)]
    return model.tokenizer.decode(found)


def asked(text=TEXT, n=12, **more):
    return {"model": "tiny-target", "prompt": text, "max_tokens": n, "temperature": 0, **more}


def test_models_and_a_completion(client):
    assert [m.id for m in client.models.list()] == ["tiny-target"]
    assert client.models.retrieve("tiny-target").owned_by == "inferlab"
    answer = client.completions.create(**asked())
    assert answer.choices[0].text == alone(TEXT, 12)
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_streaming_with_usage(client):
    chunks = list(
        client.completions.create(**asked(stream=True, stream_options={"include_usage": True}))
    )
    assert "".join(c.choices[0].text for c in chunks[:-1]) == alone(TEXT, 12)
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 12


def test_what_is_refused_arrives_as_the_clients_own_errors(client):
    with pytest.raises(openai.BadRequestError, match="log-probabilities") as refused:
        client.completions.create(**asked(logprobs=3))
    assert refused.value.param == "logprobs"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(**asked() | {"model": "gpt-5"})
    assert missing.value.code == "model_not_found"


def test_many_at_once(url):
    texts = [f"{TEXT} {'speak ' * i}" for i in range(5)]

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            answers = [client.completions.create(**asked(text)) for text in texts]
            return [a.choices[0].text for a in await asyncio.gather(*answers)]

    assert asyncio.run(all_of_them()) == [alone(text, 12) for text in texts]


def test_a_cancelled_stream_frees_its_pages(client):
    import urllib.request

    def used():
        with urllib.request.urlopen(f"{client.base_url}".removesuffix("v1/") + "metrics") as page:
            text = page.read().decode()
        return float(
            next(x for x in text.splitlines() if x.startswith("inferlab_pages_used ")).split()[1]
        )

    long = asked(n=430, stream=True)  # two of them: not done before somebody looks
    streams = [client.completions.create(**long, extra_body={"ignore_eos": True}) for _ in range(2)]
    rests = [iter(stream) for stream in streams]  # kept: a stream that nobody holds is closed
    next(rests[1])
    assert used() > 0
    for stream in streams:
        stream.close()
    end = time.monotonic() + 20
    while used() and time.monotonic() < end:
        time.sleep(0.05)
    assert used() == 0
