"""Lesson 10: the cache that finds pages by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.checks.batching.share import sound
from grader.judging.exercise import Exercise, Inputs
from inferlab.paging import PageAllocator
from inferlab.prefix_cache import PrefixCache, page_hashes


def only(part: str, answer: Any, reference: type) -> type:
    """The reference with one method, and helpers of its own, taken from the answer."""
    if not isinstance(answer, type) or not hasattr(answer, part):
        raise TypeError(f"{reference.__name__} must be a class with the method {part}")
    mine: dict[str, Any] = {}
    for base in reversed(answer.__mro__):
        mine |= {k: v for k, v in vars(base).items() if k == part or not hasattr(reference, k)}
    return type(reference.__name__, (reference,), mine)


def _draw_cache(rng: np.random.Generator) -> Inputs:
    return {"page_size": int(rng.integers(2, 5)), "seed": int(rng.integers(1000))}


class Filled:
    """A cache of three chains: a long text, a fork of it after one page, and another text.

    salt: of the cache; tables: the pages that requests still hold.
    """

    def __init__(self, kind: type, inputs: Inputs, salt: str = "s") -> None:
        size = inputs["page_size"]
        rng = np.random.default_rng(inputs["seed"])
        self.size, self.allocator = size, PageAllocator(24)
        self.cache = kind(self.allocator, size, salt)
        self.long = rng.integers(0, 90, 4 * size).tolist()
        self.forked = self.long[:size] + rng.integers(100, 190, 2 * size).tolist()
        self.other = rng.integers(200, 290, 2 * size).tolist()
        self.tables: list[list[int]] = []

    def fill(self) -> None:
        for text in (self.long, self.forked, self.other):
            known = PrefixCache.lookup(self.cache, [*text, 0])
            table = known + [
                self.allocator.allocate() for _ in range(len(text) // self.size - len(known))
            ]
            PrefixCache.store(self.cache, text, table)
            for page in table:  # the request is done
                self.allocator.release(page)

    def sound(self) -> str:
        return sound(self.allocator, [*self.tables, list(self.cache.pages.values())])


def _drive_lookup(answer: type, inputs: Inputs) -> dict[str, Any]:
    """Prompts that share much, little or nothing with what is known; in the end one with a gap."""
    f = Filled(only("lookup", answer, PrefixCache), inputs)
    f.fill()
    n, long = f.size, f.long
    asked = {
        "exactly the text: one token is left to compute": long,
        "the whole text and one token more": [*long, 1],
        "the text but for its last token": long[:-1],
        "two pages of it, then others": long[: 2 * n] + [999] * n + long[3 * n :],
        "its second half: not known at the beginning": long[2 * n :] + long[: 2 * n],
        "the fork": [*f.forked, 5],
        "one token": long[:1],
        "nothing known": [888] * (2 * n),
    }
    gaps = {
        "its second page is forgotten": page_hashes(long, n, "s")[1],
        "its first page is forgotten": page_hashes(f.other, n, "s")[0],
    }
    asked["its second page is forgotten"] = [*long, 1]
    asked["its first page is forgotten"] = [*f.other, 1]
    seen: dict[str, Any] = {}
    names = [x for text in (long, f.forked, f.other) for x in page_hashes(text, n, "s")]
    where = {f.cache.pages[x]: i for i, x in reversed(list(enumerate(names)))}
    for name, tokens in asked.items():
        if name in gaps:
            f.allocator.release(f.cache.pages.pop(gaps[name]))
        found = f.cache.lookup(list(tokens))
        if not isinstance(found, list):
            return {**seen, f"{name}: found": found}
        seen[f"{name}: found"] = [where.get(page, page) for page in found]
        f.tables.append(found)
        seen[f"{name}: the holders"] = f.sound()
        order = [where[page] for page in f.cache.pages.values()]
        seen[f"{name}: pages, least recently used first"] = order
    return seen


def _lookup(
    names_of: Callable = lambda self, tokens: page_hashes(tokens, self.page_size, self.salt),
    most: Callable = lambda n, size: (n - 1) // size,
    share: bool = True,
    touch: Callable = lambda names, found: names[: len(found)],
    gaps: bool = False,
    known: Callable = lambda self, name: self.pages.get(name),
):
    """lookup with one step replaced."""

    def lookup(self, tokens):
        names = names_of(self, tokens)
        found = []
        for name in names[: most(len(tokens), self.page_size)]:
            page = known(self, name)
            if page is None:
                if gaps:
                    continue
                break
            found.append(page)
        if share:
            for page in found:
                self.allocator.share(page)
        self.touch([x for x in touch(names, found) if x in self.pages])
        return found

    return type("PrefixCache", (PrefixCache,), {"lookup": lookup})


def _known_names(names, found):
    """The names to touch where a gap was skipped; the caller leaves out those that are gone."""
    return names[: len(found) + 1] if found else []


def _lookup_from_behind(self, tokens):
    names = page_hashes(tokens, self.page_size, self.salt)[: (len(tokens) - 1) // self.page_size]
    known = [i for i, name in enumerate(names) if name in self.pages]
    names = names[: known[-1] + 1] if known else []
    found = [self.pages[name] for name in names if name in self.pages]
    for page in found:
        self.allocator.share(page)
    self.touch([name for name in names if name in self.pages])
    return found


def _lookup_takes_out(self, tokens):
    names = page_hashes(tokens, self.page_size, self.salt)
    found = []
    for name in names[: (len(tokens) - 1) // self.page_size]:
        if name not in self.pages:
            break
        found.append(self.pages.pop(name))
    return found


def _lookup_shares_too_soon(self, tokens):
    """Shares every known page, then leaves the last one out without letting go of it."""
    names, found = page_hashes(tokens, self.page_size, self.salt), []
    for name in names:
        if name not in self.pages:
            break
        self.allocator.share(self.pages[name])
        found.append(self.pages[name])
    if found and len(found) * self.page_size == len(tokens):
        found.pop()
    self.touch(names[: len(found)])
    return found


def _lookup_touches_forward(self, tokens):
    found = PrefixCache.lookup(self, tokens)
    for name in page_hashes(tokens, self.page_size, self.salt)[: len(found)]:
        self.pages.move_to_end(name)
    return found


def _lookup_all_or_nothing(self, tokens):
    names = page_hashes(tokens, self.page_size, self.salt)[: (len(tokens) - 1) // self.page_size]
    if not all(name in self.pages for name in names):
        return []
    return PrefixCache.lookup(self, tokens)


def _lookup_while(self, tokens):
    names = page_hashes(list(tokens)[: len(tokens) - 1], self.page_size, self.salt)
    n = 0
    while n < len(names) and names[n] in self.pages:
        self.allocator.share(self.pages[names[n]])
        n += 1
    for name in names[:n][::-1]:
        self.pages.move_to_end(name)
    return [self.pages[name] for name in names[:n]]


def _lookup_takewhile(self, tokens):
    from itertools import takewhile

    most = max(0, len(tokens) - 1) // self.page_size
    names = page_hashes(tokens, self.page_size, self.salt)[:most]
    names = list(takewhile(self.pages.__contains__, names))
    self.touch(names)
    pages = [self.pages[name] for name in names]
    [self.allocator.share(page) for page in pages]
    return pages


def _cache_with(**methods: Callable) -> type:
    return type("PrefixCache", (PrefixCache,), methods)


LOOKUP = Exercise(
    id="PrefixCache.lookup",
    reference=PrefixCache,
    lesson=LESSON,
    points=3,
    minutes=10,
    difficulty=3,
    uses=("page_hashes", "PageAllocator"),
    hints=(
        "names = page_hashes(tokens, self.page_size, self.salt). Go through them in order and stop "
        "at the first that is not in self.pages.",
        "One token must be left: of n tokens at most (n - 1) // page_size pages may be taken. "
        "Slice the names by that before the loop.",
        "For each page found self.allocator.share(page); then self.touch(names[: len(found)]) and "
        "return found.",
    ),
    draw=_draw_cache,
    drive=_drive_lookup,
    wrong={
        "a prompt that is all known leaves no token to compute: no logits for its answer": _lookup(
            most=lambda n, size: n // size
        ),
        "goes on behind a page that is not known: keys depend on all that came before": _lookup(
            gaps=True, touch=_known_names
        ),
        "looks from the end for the last page that is known: one before it may be forgotten": (
            _cache_with(lookup=_lookup_from_behind)
        ),
        "the pages found are not shared: they may be evicted while they are read": _lookup(
            share=False
        ),
        "the names are not touched: what is used most would be evicted first": _lookup(
            touch=lambda names, found: []
        ),
        "all names are touched, also those that were not taken": _lookup(
            touch=lambda names, found: names
        ),
        "the salt is left out": _lookup(
            names_of=lambda self, tokens: page_hashes(tokens, self.page_size)
        ),
        "one page less than may be taken": _lookup(most=lambda n, size: max(0, n // size - 1)),
        "the pages are taken out of the cache: others may want them too": _cache_with(
            lookup=_lookup_takes_out
        ),
        "a page that is left out in the end stays shared: nobody will release it": _cache_with(
            lookup=_lookup_shares_too_soon
        ),
        "the first page becomes the oldest: a chain must lose its end first": _cache_with(
            lookup=_lookup_touches_forward
        ),
        "all or nothing: a part of the beginning is worth having": _cache_with(
            lookup=_lookup_all_or_nothing
        ),
        "names are returned, not pages": _cache_with(
            lookup=lambda self, tokens: [
                name.hex()
                for name in page_hashes(tokens, self.page_size, self.salt)
                if name in self.pages
            ]
        ),
        "tokens are counted, not pages": _cache_with(
            lookup=lambda self, tokens: len(PrefixCache.lookup(self, tokens)) * self.page_size
        ),
    },
    right={
        "the last token is cut off first": _cache_with(lookup=_lookup_while),
        "takewhile": _cache_with(lookup=_lookup_takewhile),
        "get in place of in": _lookup(),
    },
)


def _drive_evict(answer: type, inputs: Inputs) -> dict[str, Any]:
    """A request holds the fork's pages; the rest goes page by page, until nothing may go."""
    f = Filled(only("evict", answer, PrefixCache), inputs)
    f.fill()
    texts = {"long": f.long, "fork": f.forked, "other": f.other}
    label = {
        f.cache.pages[name]: f"page {i} of {text}"
        for text, tokens in reversed(texts.items())
        for i, name in enumerate(page_hashes(tokens, f.size, "s"))
    }
    f.tables.append(PrefixCache.lookup(f.cache, [*f.forked[: f.size], 1]))  # another holds one page
    f.tables.append(PrefixCache.lookup(f.cache, [*f.forked, 1]))
    seen: dict[str, Any] = {}
    for i in range(1, 9):
        before = dict(f.cache.pages)
        result = f.cache.evict()
        gone = [label[page] for name, page in before.items() if name not in f.cache.pages]
        seen[f"call {i}: returned"] = result
        seen[f"call {i}: gone"] = gone
        seen[f"call {i}: pages free"] = len(f.allocator.free)
        seen[f"call {i}: the holders"] = f.sound()
        if i == 2:  # somebody asks for the other text: it is the newest now
            f.tables.append(PrefixCache.lookup(f.cache, [*f.other, 1]))
            for page in f.tables.pop():
                f.allocator.release(page)
    for page in f.tables.pop():
        f.allocator.release(page)
    return {**seen, "the request is done: returned": f.cache.evict(), "then": f.sound()}


def _evict(
    order: Callable = lambda self: list(self.pages.items()),
    may: Callable = lambda count: count == 1,
    forget: bool = True,
    release: bool = True,
    all_of_them: bool = False,
    result: tuple[Any, Any] = (True, False),
):
    """evict with one step replaced."""

    def evict(self):
        found = False
        for name, page in order(self):
            if may(self.allocator.ref_counts[page]):
                if forget:
                    del self.pages[name]
                if release:
                    self.allocator.release(page)
                found = True
                if not all_of_them:
                    break
        return result[0] if found else result[1]

    return type("PrefixCache", (PrefixCache,), {"evict": evict})


def _evict_oldest_only(self):
    """Looks at the very oldest page and at no other."""
    name, page = next(iter(self.pages.items()), (None, None))
    if page is None or self.allocator.ref_counts[page] > 1:
        return False
    del self.pages[name]
    self.allocator.release(page)
    return True


def _evict_popitem(self):
    if not self.pages:
        return False
    _, page = self.pages.popitem(last=False)
    self.allocator.release(page)
    return True


def _evict_next(self):
    counts = self.allocator.ref_counts
    name = next((name for name in self.pages if counts[self.pages[name]] == 1), None)
    if name is None:
        return False
    self.allocator.release(self.pages.pop(name))
    return True


def _evict_list(self):
    loose = [name for name, page in self.pages.items() if self.allocator.ref_counts[page] < 2]
    for name in loose[:1]:
        self.allocator.release(self.pages[name])
        del self.pages[name]
    return bool(loose)


EVICT = Exercise(
    id="PrefixCache.evict",
    reference=PrefixCache,
    lesson=LESSON,
    points=2,
    minutes=7,
    difficulty=2,
    uses=("PageAllocator",),
    hints=(
        "self.pages is ordered: the least recently used name comes first. The cache itself is one "
        "holder of every page in it.",
        "Go through self.pages.items(); the first page with self.allocator.ref_counts[page] == 1 "
        "is the one.",
        "del self.pages[name]; self.allocator.release(page); return True. Return at once: a "
        "dictionary must not change while a loop goes on over it. Behind the loop: return False.",
    ),
    draw=_draw_cache,
    drive=_drive_evict,
    wrong={
        "lets go of a page that a request holds: no memory is won, its name is lost": _cache_with(
            evict=_evict_popitem
        ),
        "looks at the oldest page only: others behind it may be free to go": _cache_with(
            evict=_evict_oldest_only
        ),
        "the most recently used page goes: it is the one most likely to be asked for": _evict(
            order=lambda self: list(reversed(self.pages.items()))
        ),
        "the lowest page number goes: the order of use decides": _evict(
            order=lambda self: sorted(self.pages.items(), key=lambda item: item[1])
        ),
        "all pages that nobody holds go: one is asked for": _evict(all_of_them=True),
        "the page is released but its name stays: it would be found with other contents": _evict(
            forget=False
        ),
        "the name is forgotten but the page never released: a leak": _evict(release=False),
        "waits for a count of 0: the cache itself is a holder": _evict(
            may=lambda count: count == 0
        ),
        "two holders are taken for none: one of them is a request": _evict(
            may=lambda count: count <= 2
        ),
        "the page's number is returned, not whether there was one": _cache_with(
            evict=lambda self: len(self.pages) if PrefixCache.evict(self) else False
        ),
        "nothing is returned": _evict(result=(None, None)),
    },
    right={
        "next with a condition": _cache_with(evict=_evict_next),
        "a list of those that may go": _cache_with(evict=_evict_list),
        "a loop that breaks": _evict(),
    },
)
