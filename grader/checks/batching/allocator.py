"""Lesson 10: the allocator of pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from grader.checks.batching.lesson import LESSON
from grader.judging.compare import raised
from grader.judging.exercise import Case, Exercise, Inputs
from inferlab.paging import OutOfPages, PageAllocator

# ---- PageAllocator ------------------------------------------------------------------------------


def refused(action: Callable[[], Any]) -> str:
    """The kind of error that a call raised, in a word; "no error" when there was none.

    OutOfPages may be raised by the course's class or by the notebook's: its name is what counts.
    """
    try:
        action()
    except NotImplementedError:
        raise
    except Exception as error:
        return raised(error).kind
    return "no error"


def _state(allocator: Any) -> dict[str, Any]:
    return {"free": list(allocator.free), "ref_counts": list(allocator.ref_counts)}


PLAY = ("take", "take", "share", "take", "release", "share", "release", "release", "take", "take")


def _allocator_inputs(n_pages: int, plays: Any, seed: int) -> Inputs:
    return {"n_pages": n_pages, "plays": list(plays), "seed": seed}


def _draw_allocator(rng: np.random.Generator) -> Inputs:
    plays = rng.choice(["take", "take", "share", "release"], size=24).tolist()
    return _allocator_inputs(int(rng.integers(3, 6)), plays, int(rng.integers(1000)))


def _drive_allocator(answer: type, inputs: Inputs) -> dict[str, Any]:
    """Pages taken, shared and released; after each call, what is free and who holds what."""
    allocator, rng = answer(inputs["n_pages"]), np.random.default_rng(inputs["seed"])
    held: list[int] = []  # one entry for each holder
    seen: dict[str, Any] = {}
    for i, play in enumerate(inputs["plays"], start=1):
        if play == "take":
            full = not allocator.free
            when = f"call {i}, allocate"
            if full:
                seen[f"{when} with no page free raises"] = refused(allocator.allocate)
            else:
                page = allocator.allocate()
                seen[when] = page
                held += [int(page)] if isinstance(page, (int, np.integer)) else []
        elif held:
            page = held[int(rng.integers(len(held)))]
            getattr(allocator, play)(page)
            held.append(page) if play == "share" else held.remove(page)
            when = f"call {i}, {play} of page {page}"
        seen |= {f"after call {i} ({play}), {name}": v for name, v in _state(allocator).items()}
    for page in sorted(set(held)):
        for _ in range(held.count(page)):
            allocator.release(page)
        seen[f"release of page {page}, which is free, raises"] = refused(
            partial(allocator.release, page)
        )
        seen[f"share of page {page}, which is free, raises"] = refused(
            partial(allocator.share, page)
        )
    return {**seen, **{f"at the end, {name}": v for name, v in _state(allocator).items()}}


def allocator_with(**methods: Callable) -> type:
    return type("PageAllocator", (PageAllocator,), methods)


def _allocate_first(self):
    if not self.free:
        raise OutOfPages("none")
    page = self.free.pop(0)
    self.ref_counts[page] = 1
    return page


def _allocate_lowest(self):
    if not self.free:
        raise OutOfPages("none")
    self.free.append(self.free.pop(self.free.index(min(self.free))))
    return _allocate()(self)


def _allocate(count: Callable = lambda old: 1, take=True, check=True):
    def allocate(self):
        if check and not self.free:
            raise OutOfPages("none")
        page = self.free.pop() if take else self.free[-1]
        self.ref_counts[page] = count(self.ref_counts[page])
        return page

    return allocate


def _allocate_none(self):
    return PageAllocator.allocate(self) if self.free else None


def _share_counts_twice(self, page):
    self.require_used(page)
    self.ref_counts[page] += 2


def _share_takes_a_page(self, page):
    self.require_used(page)
    if self.free:
        self.ref_counts[self.free.pop()] = 1


def _share_free_too(self, page):
    self.ref_counts[page] += 1


def _release(check=True, free: Callable = lambda old, new: new == 0, front=False, down=1):
    def release(self, page):
        if check:
            self.require_used(page)
        old = self.ref_counts[page]
        self.ref_counts[page] = max(0, old - down) if down else 0
        if free(old, self.ref_counts[page]):
            self.free.insert(0 if front else len(self.free), page)

    return release


def _release_quietly(self, page):
    if self.ref_counts[page]:
        PageAllocator.release(self, page)


def _share_explicit(self, page):
    if page not in range(len(self.ref_counts)) or page in self.free:
        raise ValueError(f"page {page} is free")
    self.ref_counts = [n + (p == page) for p, n in enumerate(self.ref_counts)]


def _release_explicit(self, page):
    n = self.ref_counts[page]
    if n < 1:
        raise ValueError(f"page {page} is free")
    if n == 1:
        self.free = [*self.free, page]
    self.ref_counts[page] = n - 1


def _allocate_try(self):
    try:
        *self.free, page = self.free
    except ValueError:
        raise OutOfPages("all in use") from None
    self.ref_counts[page] += 1
    return page


ALLOCATOR = Exercise(
    id="PageAllocator",
    reference=PageAllocator,
    lesson=LESSON,
    points=3,
    minutes=12,
    difficulty=2,
    hints=(
        "Three small methods that change two lists: self.free, and self.ref_counts. A page is in "
        "`free` exactly when its count is 0.",
        "allocate: raise OutOfPages(...) if self.free is empty, else pop the last page, set its "
        "count to 1, return it. share: require_used, then one more.",
        "release: self.require_used(page); self.ref_counts[page] -= 1; only when it is 0 now: "
        "self.free.append(page).",
    ),
    cases=(
        Case("three pages, one of them shared", lambda: _allocator_inputs(3, PLAY, 2)),
        Case("one page", lambda: _allocator_inputs(1, ("take", "take", "release", "take"), 0)),
    ),
    draw=_draw_allocator,
    drive=_drive_allocator,
    wrong={
        "a page stays in `free` although it was handed out: two get the same": allocator_with(
            allocate=_allocate(take=False)
        ),
        "a page that is handed out has no holder yet: set its count to 1": allocator_with(
            allocate=_allocate(lambda old: 0)
        ),
        "hands out the first of `free`; the last one is handed out next": allocator_with(
            allocate=_allocate_first
        ),
        "hands out the lowest number: the last one of `free` is handed out next": allocator_with(
            allocate=_allocate_lowest
        ),
        "returns None when no page is free: raise OutOfPages": allocator_with(
            allocate=_allocate_none
        ),
        "an IndexError when no page is free: raise OutOfPages": allocator_with(
            allocate=_allocate(check=False)
        ),
        "release frees the page although others still hold it": allocator_with(
            release=_release(free=lambda old, new: True)
        ),
        "release never frees the page: a leak": allocator_with(
            release=_release(free=lambda old, new: False)
        ),
        "release takes all holders off at once": allocator_with(release=_release(down=0)),
        "a page that is free already is freed again: it would be handed out twice": allocator_with(
            release=_release(check=False, free=lambda old, new: new == 0)
        ),
        "releasing a free page is quietly ignored: raise ValueError, it is somebody's mistake": (
            allocator_with(release=_release_quietly)
        ),
        "a freed page goes to the front of `free`; append it": allocator_with(
            release=_release(front=True)
        ),
        "share counts two holders more": allocator_with(share=_share_counts_twice),
        "share takes another page: the same page gets one holder more": allocator_with(
            share=_share_takes_a_page
        ),
        "a free page can be shared: then it is in `free` and has a holder": allocator_with(
            share=_share_free_too
        ),
    },
    right={
        "written out, without require_used": allocator_with(
            share=_share_explicit, release=_release_explicit
        ),
        "unpacking in a try": allocator_with(allocate=_allocate_try),
        "a slice": allocator_with(
            allocate=lambda self: _allocate_try(self), release=_release_explicit
        ),
    },
)
