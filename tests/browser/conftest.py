"""One Chromium for the browser tests of a file.

No longer than that: while Playwright's synchronous interface is in use, nothing else in the process
can start an asyncio loop, and other files' tests do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_page import launched
from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as found:
        yield found
