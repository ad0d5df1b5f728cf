"""Who runs in the next step: continuous batching with pages, prefix cache and chunked prefill.

One step is one pass of the model over some tokens of several requests: one each for those that
decode, as many as fit for those whose prompt is not computed yet. A token budget bounds the pass,
so that a long prompt cannot make everybody else wait. When no page is left, the request that came
last gives its own back and starts again later; its tokens are kept, only keys and values go.

Source: Yu et al. 2022, "Orca" (OSDI); Kwon et al. 2023 (arXiv 2309.06180), section 4.5; Agrawal et
al. 2024, "Sarathi-Serve" (arXiv 2403.02310), section 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from inferlab.paging import OutOfPages, PageAllocator, PagePool, fork, own_page, pages_needed
from inferlab.prefix_cache import PrefixCache


@dataclass(eq=False)
class Request:
    """One generation: its tokens so far, and how much of them the pages hold.

    n_computed tokens have their keys and values in the pages of page_table. The rest, prompt or
    newest token, is still to be computed.
    """

    id: str
    prompt: list[int]
    max_new_tokens: int
    generated: list[int] = field(default_factory=list)
    page_table: list[int] = field(default_factory=list)
    n_computed: int = 0
    n_cached: int = 0  # of the prompt, found in the prefix cache when it was first admitted
    n_preemptions: int = 0

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.generated

    @property
    def n_to_compute(self) -> int:
        """Tokens whose keys and values are missing; the last of them gives the next token."""
        return len(self.prompt) + len(self.generated) - self.n_computed


@dataclass(frozen=True)
class Work:
    """n_tokens of a request, from position `start` on, are computed in this step."""

    request: Request
    start: int
    n_tokens: int

    @property
    def finishes(self) -> bool:
        """Whether the request then has a next token."""
        return self.start + self.n_tokens == len(self.request.tokens)


class Scheduler:
    """The queue of waiting requests, the running ones, and the pages they hold.

    token_budget: most tokens of one pass; max_running: most requests in it.
    waiting: requests without pages, the next one to be let in first.
    running: requests that were let in, in that order; the last one came last.
    """

    def __init__(
        self,
        pool: PagePool,
        token_budget: int = 256,
        max_running: int = 16,
        use_prefix_cache: bool = True,
        salt: str = "",
    ) -> None:
        if token_budget < max_running:
            raise ValueError(
                f"token_budget={token_budget} must be at least max_running={max_running}: every "
                "running request decodes one token a step"
            )
        self.pool, self.token_budget, self.max_running = pool, token_budget, max_running
        self.allocator = PageAllocator(pool.keys.shape[1])
        self.prefix_cache = (
            PrefixCache(self.allocator, pool.page_size, salt) if use_prefix_cache else None
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    # ---- one step ----------------------------------------------------------------------------

    def reserve(self, request: Request, n_tokens: int) -> bool:
        """Give a request pages that it may write its next n_tokens tokens into.

        These stand at positions n_computed … n_computed + n_tokens - 1. For each entry of its page
        table that they fall into, in order: one that is there must be its own (own_page); one that
        is not is allocated and appended. Before each, call self.make_room().

        -> True, or False as soon as OutOfPages comes; what it got by then stays with the request
        Example: page_size 4, n_computed 6, 5 tokens: positions 6 to 10 fall into entries 1 and 2.
        """
        table, size = request.page_table, self.pool.page_size
        first = request.n_computed // size
        try:
            for index in range(first, pages_needed(request.n_computed + n_tokens, size)):
                self.make_room()
                if index < len(table):
                    own_page(table, index, self.allocator, self.pool)
                else:
                    table.append(self.allocator.allocate())
        except OutOfPages:
            return False
        return True

    def preempt(self, request: Request) -> None:
        """Send a running request back to the head of the queue, without its pages (give_back).

        Its tokens stay, so that it can go on where it was once keys and values are computed again.
        One more is counted in its n_preemptions.
        """
        self.running.remove(request)
        self.give_back(request)
        request.n_preemptions += 1
        self.waiting.appendleft(request)

    def admit(self, n_left: int) -> list[Work]:
        """Let waiting requests in, the first one first, for at most n_left tokens in all.

        Go on while somebody waits, tokens are left and fewer than max_running run. For each:
        find_prefix gives it the pages that are known; then as many of its tokens as it lacks
        (n_to_compute) and as are left are reserved. If that fails, give_back what it holds, leave
        it at the head of the queue, and stop: nobody overtakes it. Else it moves to the end of
        `running`, and Work(request, its n_computed, those tokens) is planned.

        -> the work, in order
        Example: 10 tokens left, two prompts of 7 tokens wait, none is known: 7 and 3 are planned.
        """
        work: list[Work] = []
        while self.waiting and n_left > 0 and len(self.running) < self.max_running:
            request = self.waiting[0]
            self.find_prefix(request)
            n_tokens = min(request.n_to_compute, n_left)
            if not self.reserve(request, n_tokens):
                self.give_back(request)
                break
            self.running.append(self.waiting.popleft())
            work.append(Work(request, request.n_computed, n_tokens))
            n_left -= n_tokens
        return work

    def plan(self) -> list[Work]:
        """What to compute in the next pass: at most token_budget tokens, with pages for them all.

        First the running requests, in order: each gets as many tokens as it lacks (n_to_compute)
        and as are left of the budget. Where reserve fails, preempt the request that came last
        (the last of `running`), and try again; that may be the very request that asked. Then, if
        nobody had to give pages back in this step, admit others with what is left of the budget.

        -> the work, in order: Work(request, its n_computed, n_tokens)
        Example: budget 8; a and b lack 1 token each, c waits with a prompt of 20: 1, 1 and 6.
        """
        work: list[Work] = []
        n_left, n_waiting = self.token_budget, len(self.waiting)
        while len(work) < len(self.running) and n_left > 0:
            request = self.running[len(work)]
            n_tokens = min(request.n_to_compute, n_left)
            if self.reserve(request, n_tokens):
                work.append(Work(request, request.n_computed, n_tokens))
                n_left -= n_tokens
            else:
                self.preempt(self.running[-1])
        if len(self.waiting) == n_waiting:
            work += self.admit(n_left)
        return work

    def commit(self, work: Work) -> None:
        """The pass has computed this work: its keys and values are in the pages."""
        request, size = work.request, self.pool.page_size
        n_full_pages = request.n_computed // size
        request.n_computed += work.n_tokens
        if self.prefix_cache is not None and request.n_computed // size > n_full_pages:
            self.prefix_cache.store(request.tokens[: request.n_computed], request.page_table)

    # ---- pages -------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Make the prefix cache give up a page where none is free."""
        if not self.allocator.free and self.prefix_cache is not None:
            self.prefix_cache.evict()

    def find_prefix(self, request: Request) -> None:
        """Give a request without pages those that the prefix cache knows: computed already."""
        if self.prefix_cache is None:
            return
        request.page_table = self.prefix_cache.lookup(request.tokens)
        request.n_computed = len(request.page_table) * self.pool.page_size
        if request.n_preemptions == 0:
            request.n_cached = request.n_computed

    def give_back(self, request: Request) -> None:
        """Release all pages of a request: nothing of it is computed any more."""
        for page in request.page_table:
            self.allocator.release(page)
        request.page_table, request.n_computed = [], 0

    def holders(self) -> Sequence[Sequence[int]]:
        """Every table of pages there is, for PageAllocator.require_sound."""
        cached = [] if self.prefix_cache is None else [list(self.prefix_cache.pages.values())]
        return [request.page_table for request in self.running] + cached

    # ---- what comes and goes -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises ValueError for an empty prompt, no tokens to generate, or one that could not finish
        even with all pages to itself.
        """
        if not request.prompt or request.max_new_tokens < 1:
            raise ValueError("a request needs a prompt of 1 token or more, and 1 to generate")
        n_tokens = len(request.prompt) + request.max_new_tokens - 1  # the last one is never run
        needed = pages_needed(n_tokens, self.pool.page_size)
        if needed > self.allocator.n_pages:
            raise ValueError(
                f"{n_tokens:,} tokens need {needed} pages of {self.pool.page_size}; there are "
                f"{self.allocator.n_pages}"
            )
        self.waiting.append(request)

    def finish(self, request: Request) -> None:
        """Take a request out, done or given up; its pages may stay in the prefix cache."""
        if request in self.running:
            self.running.remove(request)
            self.give_back(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def fork(self, request: Request, new_id: str) -> Request:
        """A second request with the same past, on the same pages; the two go on apart."""
        twin = Request(
            new_id,
            list(request.prompt),
            request.max_new_tokens,
            list(request.generated),
            fork(request.page_table, self.allocator),
            request.n_computed,
            request.n_cached,
        )
        self.running.append(twin)
        return twin
