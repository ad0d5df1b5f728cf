"""An OpenAI-compatible server over the course's own serving engine.

protocol.py: what may be asked and what is answered; loop.py: the engine in a thread of its own;
app.py: the routes; metrics.py: what Prometheus reads; page.html: the running batch, live.
"""
