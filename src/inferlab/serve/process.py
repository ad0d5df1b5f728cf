"""A server in a process of its own, for as long as a with block lasts."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

REFERENCE = (sys.executable, "-m", "inferlab.serve")
STARTUP_S = 60.0
STOP_S = 15.0


@contextmanager
def running_server(
    *options: str, model: str = "tiny-target", command: Sequence[str] | None = None
) -> Iterator[str]:
    """Start a server on a free port of this machine; gives its address.

    options: more of a server's, such as "--pages", "64". command: what starts the server, in place
    of `python -m inferlab.serve`. The server is stopped at the end, whatever happens in the block.
    Raises RuntimeError, with what the server said, if it does not come up.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        port = free_port()
        words = [*(command or REFERENCE), "--model", model, "--port", str(port), *options]
        process = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            if not _comes_up(process, url):
                said.seek(0)
                raise RuntimeError(f"the server did not start:\n{said.read()[-2000:]}")
            yield url
        finally:
            stop(process)


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _comes_up(process: subprocess.Popen, url: str) -> bool:
    end = time.monotonic() + STARTUP_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def stop(process: subprocess.Popen, wait_s: float = STOP_S) -> None:
    """Ask it to end; if it does not within wait_s seconds, end it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
