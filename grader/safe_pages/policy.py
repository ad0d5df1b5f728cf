"""What a browser may do on a page: its Content-Security-Policy, and which scripts are its own."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import secrets

from markupsafe import Markup

CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'"
STILL = f"{CLOSED}; style-src 'unsafe-inline'; img-src data: 'self' file:"  # a page without scripts
# A file of a student's, opened by itself: shown, if it is a picture or a text, and nothing more.
FILE_POLICY = f"sandbox; {CLOSED}; img-src 'self' data:; style-src 'unsafe-inline'"
HANDLER = re.compile(r'\son[a-z]+="([^"]*)"', re.I)


class OwnScripts:
    """Tells a page's own scripts and handlers from all others: marked here, named in the policy."""

    def __init__(self) -> None:
        self.nonce = secrets.token_urlsafe(16)
        self.handlers: dict[str, None] = {}

    def mark(self, markup: str) -> Markup:
        """Markup of a template, in which everything that is not the template's is escaped."""
        for handler in HANDLER.findall(markup):
            digest = hashlib.sha256(html.unescape(handler).encode()).digest()
            self.handlers[f"'sha256-{base64.b64encode(digest).decode()}'"] = None
        return Markup(re.sub(r"<script\b", f'<script nonce="{self.nonce}"', markup))

    def policy(self) -> str:
        """Content-Security-Policy of a page that works by these scripts alone."""
        own = " ".join([f"'nonce-{self.nonce}'", "'unsafe-hashes'", *self.handlers])
        return (
            f"{CLOSED}; script-src {own}; style-src 'self' 'unsafe-inline'; "
            "img-src 'self' data:; font-src 'self'; connect-src 'self'"
        )


def with_policy(page: str, policy: str) -> str:
    """The page with its policy as the first thing in its head."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}"/>'
    return str(page).replace("<head>", f"<head>\n{meta}", 1)  # str: Markup would escape the meta
