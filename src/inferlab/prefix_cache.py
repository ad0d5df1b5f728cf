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

    The name of a page is digest(name of the page before it, its tokens); the first page has
    salt.encode() before it. So an equal page behind a different past has another name. salt keeps
    apart what must not be shared: models, adapters, customers. A partly filled last page has no
    name, since more tokens will come into it.

    Example: 9 tokens in pages of 4 have 2 names: digest(salt.encode(), tokens[0:4]), and
    digest(that name, tokens[4:8]).
    """
    names, name = [], salt.encode()
    for end in range(page_size, len(tokens) + 1, page_size):
        name = digest(name, tokens[end - page_size : end])
        names.append(name)
    return names


def digest(before: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 over the name of the page before and the tokens of this one."""
    text = ",".join(str(int(token)) for token in tokens)
    return hashlib.sha256(before + b"|" + text.encode()).digest()


class PrefixCache:
    """Full pages by name, the least recently used first.

    pages: name -> page number. The cache holds every page it knows (one holder more), so a page
    outlives the request that filled it.
    """

    def __init__(self, allocator: PageAllocator, page_size: int, salt: str = "") -> None:
        self.allocator, self.page_size, self.salt = allocator, page_size, salt
        self.pages: OrderedDict[bytes, int] = OrderedDict()

    def lookup(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the beginning of tokens, in order; the caller holds each of them too.

        Take the pages of the first names that are known (page_hashes of tokens, with this cache's
        page_size and salt), up to the first that is not. At least one token must be left to
        compute, since its logits are what the request is after: a prompt of exactly two full pages
        finds one at most. Share each page found, and touch their names.

        Example: page_size 4, both pages of the tokens 1 to 8 known. [1, …, 8, 9] finds both,
        [1, …, 8] the first, [1, 2, 3, 4, 9, 9] the first, [9, 2, 3, 4, 5] none.
        """
        names = page_hashes(tokens, self.page_size, self.salt)
        found: list[int] = []
        for name in names[: (len(tokens) - 1) // self.page_size]:
            if name not in self.pages:
                break
            found.append(self.pages[name])
        for page in found:
            self.allocator.share(page)
        self.touch(names[: len(found)])
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
        self.touch(names)

    def evict(self) -> bool:
        """Let go of one page: of those that nobody else holds, the least recently used.

        Forget its name, and release it. A page that a request holds too (ref_counts above 1)
        stays: evicting it would free no memory.

        -> True if a page was let go, False if there was none
        """
        for name, page in self.pages.items():
            if self.allocator.ref_counts[page] == 1:
                del self.pages[name]
                self.allocator.release(page)
                return True
        return False

    def touch(self, names: Sequence[bytes]) -> None:
        """These names, a chain from its beginning, were used just now."""
        # Last page first: so a page is always older than the one before it, and a chain loses its
        # end first. A page whose beginning is forgotten could never be found.
        for name in reversed(names):
            self.pages.move_to_end(name)
