"""Keep the pages of finished prompts, and find them again by what they hold.

Requests often begin alike: the same system prompt, the same conversation one turn later. The keys
and values of a page depend on its tokens and on everything before them, so a page is named by a
hash over its tokens and the name of the page before it.

Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.4; Zheng et al. 2024, "SGLang"
(arXiv 2312.07104), section 3.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from inferlab.paging import PageAllocator


def page_hashes(tokens: Sequence[int], page_size: int, salt: str = "") -> list[bytes]:
    """A name for each full page of a sequence: two pages share it only if all up to them is equal.

    Each name is a SHA-256 over the name before it and the page's tokens, so an equal page behind a
    different past has another name. salt keeps apart what must not be shared (models, adapters,
    customers). A partly filled last page has no name.

    Example: 9 tokens in pages of 4 have 2 names.
    """
    names = []
    name = salt.encode()
    for start in range(0, len(tokens) - page_size + 1, page_size):
        page = ",".join(str(int(token)) for token in tokens[start : start + page_size])
        name = hashlib.sha256(name + b"|" + page.encode()).digest()
        names.append(name)
    return names


class PrefixCache:
    """Full pages by name, the least recently used first.

    It holds every page it knows (one holder more), so pages outlive the request that filled them.
    n_hits, n_asked: tokens found here, and tokens of all prompts that were looked up.
    """

    def __init__(self, allocator: PageAllocator, page_size: int, salt: str = "") -> None:
        self.allocator, self.page_size, self.salt = allocator, page_size, salt
        self.pages: OrderedDict[bytes, int] = OrderedDict()
        self.n_hits = self.n_asked = 0

    def lookup(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the beginning of tokens; the caller becomes a holder of each.

        At least one token is left to compute, since its logits are what the request is after: a
        prompt of exactly two full pages finds one.
        """
        names = page_hashes(tokens, self.page_size, self.salt)[
            : (len(tokens) - 1) // self.page_size
        ]
        found = []
        for name in names:
            if name not in self.pages:
                break
            found.append(self.pages[name])
        self._touch(names[: len(found)])
        for page in found:
            self.allocator.share(page)
        self.n_hits += len(found) * self.page_size
        self.n_asked += len(tokens)
        return found

    def store(self, tokens: Sequence[int], page_table: Sequence[int]) -> None:
        """Remember the full pages of a sequence whose keys and values are all computed.

        A name that is known keeps its page: the newcomer's copy goes when its holder releases it.
        """
        names = page_hashes(tokens, self.page_size, self.salt)
        for name, page in zip(names, page_table, strict=False):
            if name not in self.pages:
                self.allocator.share(page)
                self.pages[name] = page
        self._touch(names)

    def evict(self) -> bool:
        """Let go of the least recently used page that nobody else holds. -> if there was one"""
        for name, page in self.pages.items():
            if self.allocator.ref_counts[page] == 1:
                del self.pages[name]
                self.allocator.release(page)
                return True
        return False

    @property
    def n_evictable(self) -> int:
        """Pages that nobody but this cache holds."""
        return sum(self.allocator.ref_counts[page] == 1 for page in self.pages.values())

    def _touch(self, names: Sequence[bytes]) -> None:
        # Last page first: then the oldest is always the end of a chain, and none is cut off from
        # its beginning, where it could never be found again.
        for name in reversed(names):
            self.pages.move_to_end(name)
