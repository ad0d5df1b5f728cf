"""Keys and values in pages, as an operating system keeps memory: no sequence owns a long stretch.

A page holds page_size tokens of one sequence, in every layer. A sequence has a page table, the list
of its pages in order, so its tokens need not lie side by side. Pages are counted: two sequences
with the same beginning hold the same page, and whoever wants to write into a shared page copies it
first.

Source: Kwon et al. 2023, "PagedAttention" (arXiv 2309.06180), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferlab.config import ModelConfig
from inferlab.operators import attention
from inferlab.sizes import UnsupportedModel


class OutOfPages(RuntimeError):
    """No page is free. Whoever asked must give one back first, or wait."""


def pages_needed(n_tokens: int, page_size: int) -> int:
    """Pages that n_tokens tokens of one sequence take: the last one may be partly filled.

    Example: 17 tokens in pages of 16 take 2 pages; 16 take 1; 0 take none.
    Raises ValueError for a negative number of tokens or a page_size below 1.
    """
    if n_tokens < 0 or page_size < 1:
        raise ValueError(f"need n_tokens >= 0 and page_size >= 1, given {n_tokens}, {page_size}")
    return -(-n_tokens // page_size)


def wasted_share(lengths: Sequence[int], page_size: int) -> float:
    """The share of the slots in all sequences' pages that hold no token.

    lengths: tokens of each sequence. No page is shared. Reserving the longest context for everyone
    is the same with page_size = that context: one huge page each.

    Example: lengths 17 and 16, pages of 16: 3 pages are 48 slots, 33 hold tokens -> 0.3125.
    With nothing held (no sequence, or none with a token): 0.0.
    """
    n_slots = page_size * sum(pages_needed(n_tokens, page_size) for n_tokens in lengths)
    return 1 - sum(lengths) / n_slots if n_slots else 0.0


class PageAllocator:
    """Which pages are free, and how many holders each other page has.

    free: numbers of the free pages; the last one is handed out next.
    ref_counts: holders of each page; 0 for a free one.
    """

    def __init__(self, n_pages: int) -> None:
        if n_pages < 1:
            raise ValueError(f"n_pages={n_pages} must be at least 1")
        self.free = list(range(n_pages - 1, -1, -1))
        self.ref_counts = [0] * n_pages

    @property
    def n_pages(self) -> int:
        return len(self.ref_counts)

    def allocate(self) -> int:
        """Hand out the last page of `free`, with one holder. -> its number

        Raises OutOfPages if none is free.
        """
        if not self.free:
            raise OutOfPages(f"all {self.n_pages} pages are in use")
        page = self.free.pop()
        self.ref_counts[page] = 1
        return page

    def share(self, page: int) -> None:
        """One holder more for a page that is in use.

        Raises ValueError (require_used does) for a free page: it could be handed out to another.
        """
        self.require_used(page)
        self.ref_counts[page] += 1

    def release(self, page: int) -> None:
        """One holder less. When the last one goes, the page is free again: append it to `free`.

        Raises ValueError (require_used does) for a page that is free already.
        """
        self.require_used(page)
        self.ref_counts[page] -= 1
        if self.ref_counts[page] == 0:
            self.free.append(page)

    def require_used(self, page: int) -> None:
        """Raise ValueError unless somebody holds this page."""
        if not 0 <= page < self.n_pages or self.ref_counts[page] == 0:
            raise ValueError(f"page {page} is not in use; {self.n_pages} pages exist")

    def require_sound(self, page_tables: Sequence[Sequence[int]]) -> None:
        """Raise ValueError unless these tables are all the holders there are.

        Every page is free or held, each exactly as often as counted: no leak, no double free.
        """
        held = [0] * self.n_pages
        for table in page_tables:
            for page in table:
                held[page] += 1
        for page, (found, counted) in enumerate(zip(held, self.ref_counts, strict=True)):
            if found != counted:
                raise ValueError(f"page {page}: counted {counted} holders, found {found}")
        if sorted(self.free) != [p for p in range(self.n_pages) if held[p] == 0]:
            raise ValueError(f"free pages {sorted(self.free)} are not those without a holder")


class PagePool:
    """Keys and values of all sequences: two arrays of pages.

    keys, values: (n_layers, P, page_size, n_kv_heads, d_head)
    """

    def __init__(
        self, config: ModelConfig, n_pages: int, page_size: int = 16, dtype: Any = np.float32
    ) -> None:
        if config.mla is not None:
            raise UnsupportedModel("pages hold keys and values; this model has latents (mla)")
        shape = (config.n_layers, n_pages, page_size, config.n_kv_heads, config.d_head)
        if min(shape) < 1:
            raise ValueError(f"n_pages and page_size must be at least 1, given {shape[1:3]}")
        self.keys, self.values = self._zeros(shape, dtype), self._zeros(shape, dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    @property
    def page_size(self) -> int:
        return self.keys.shape[2]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, over all layers."""
        return (self.keys.nbytes + self.values.nbytes) // self.keys.shape[1]

    def copy_page(self, source: int, target: int) -> None:
        """Copy what one page holds to another, in every layer."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Store the keys and values of new tokens. slots: (T,); k, v: (n_kv_heads, T, d_head)"""
        for pages, new in ((self.keys, k), (self.values, v)):
            rows = pages[layer].reshape(-1, *pages.shape[3:])  # a view: (P * page_size, ...)
            rows[slots] = new.swapaxes(0, 1)


def token_slots(page_table: Sequence[int], start: int, n_tokens: int, page_size: int) -> np.ndarray:
    """Where the tokens at positions start … start + n_tokens - 1 of a sequence lie.

    The token at position p stands in entry p // page_size of the page table, at place
    p mod page_size of that page. Its slot is page * page_size + place: the row that it would have
    if all pages were laid one behind the other.

    -> (n_tokens,) whole numbers
    Example: page_table [7, 2], page_size 4, start 3, 2 tokens -> slots [31, 8].
    Raises ValueError if the page table has no entry for some of these tokens.
    """
    end = start + n_tokens
    if pages_needed(end, page_size) > len(page_table):
        raise ValueError(
            f"{end} tokens need {pages_needed(end, page_size)} pages, "
            f"the page table has {len(page_table)}"
        )
    positions = np.arange(start, end)
    pages = np.asarray(page_table, dtype=np.int64)[positions // page_size]
    return pages * page_size + positions % page_size


def paged_attention(
    q: np.ndarray,
    key_pages: np.ndarray,
    value_pages: np.ndarray,
    page_table: Sequence[int],
    visible: np.ndarray,
) -> np.ndarray:
    """Attention of one sequence's T new queries over the S tokens in its pages.

    Collect the sequence's first S keys and values, in order, from the slots where they lie
    (token_slots), and attend to them as ever: attention(q, k, v, visible) of lesson 02 takes
    q (B, n_heads, T, d_head) and k, v (B, n_kv_heads, S, d_head). Slots beyond the S tokens, in the
    last page or in pages held in reserve, may hold anything; they take no part.

    q: (n_heads, T, d_head); key_pages, value_pages: (P, page_size, n_kv_heads, d_head);
    visible: (T, S) bool, True where a query may look -> (n_heads, T, d_head)
    Example: page_table [7, 2], pages of 4, S = 6: rows 28 to 31, then 8 and 9.
    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.1.
    """
    slots = token_slots(page_table, 0, visible.shape[1], key_pages.shape[1])
    k, v = (
        pages.reshape(-1, *pages.shape[2:])[slots].swapaxes(0, 1)  # (n_kv_heads, S, d_head)
        for pages in (key_pages, value_pages)
    )
    return attention(q[None], k[None], v[None], visible)[0]


def fork(page_table: Sequence[int], allocator: PageAllocator) -> list[int]:
    """A second sequence with the same past: a page table of its own, of the same pages.

    Nothing is copied. Every page has one holder more (allocator.share).

    -> the new page table
    Example: a table [7, 2] gives another list [7, 2]; pages 7 and 2 then have 2 holders each.
    """
    for page in page_table:
        allocator.share(page)
    return list(page_table)


def own_page(page_table: list[int], index: int, allocator: PageAllocator, pool: PagePool) -> None:
    """Make sure that entry number `index` of a page table may be written to: copy on write.

    A page with one holder is the sequence's own: nothing is done. One with more holders is copied
    (pool.copy_page(source, target)) to a page that allocator.allocate() gives; the copy takes its
    place in page_table, which is changed in place, and the shared page has one holder less.

    Example: tables [7, 2] and [7, 2]; own_page(first, 1, …) makes the first one [7, 5]. Page 5
    holds what page 2 holds; page 7 still has 2 holders, pages 2 and 5 have 1.
    Raises OutOfPages, with nothing changed, if a copy is needed and no page is free.
    Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.4.
    """
    page = page_table[index]
    if allocator.ref_counts[page] == 1:
        return
    copy = allocator.allocate()
    pool.copy_page(page, copy)
    allocator.release(page)
    page_table[index] = copy
