"""An OpenAI-compatible server over the course's own serving engine.

engine.py: continuous batching, one pass a step; loop.py: the engine in a thread of its own; app.py:
the routes; protocol.py: what may be asked and what is answered; text.py: text from tokens;
metrics.py: what Prometheus reads; page.html: the running batch, live.

To start one: run.py in this process, `process.running_server` in another, in a terminal
`python -m inferlab.serve`; options.py holds its options. load_client.py and load_guidellm.py send
it a load.
"""
