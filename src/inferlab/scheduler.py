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
        self.running: list[Request] = []  # in the order in which they were admitted

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
            self._give_back(request)
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

    # ---- one step ----------------------------------------------------------------------------

    def plan(self) -> list[Work]:
        """What to compute in the next pass, with pages for all of it.

        Running requests first, the oldest first, so that nobody who has begun is overtaken; then
        waiting ones, in order, while budget and pages last. None is admitted in a step in which
        somebody had to give pages back.
        """
        planned: dict[Request, Work] = {}
        n_preempted = 0
        for request in list(self.running):
            n_left = self.token_budget - sum(work.n_tokens for work in planned.values())
            if request not in self.running or n_left == 0:  # it was preempted a moment ago
                continue
            n_tokens = min(request.n_to_compute, n_left)
            while not self._reserve(request, n_tokens):
                victim = self.running[-1]
                self._preempt(victim)
                n_preempted += 1
                if victim is request:
                    break
            else:
                planned[request] = Work(request, request.n_computed, n_tokens)
        if n_preempted == 0:
            self._admit(planned)
        return list(planned.values())

    def _admit(self, planned: dict[Request, Work]) -> None:
        n_left = self.token_budget - sum(work.n_tokens for work in planned.values())
        while self.waiting and n_left > 0 and len(self.running) < self.max_running:
            request = self.waiting[0]
            self._find_prefix(request)
            n_tokens = min(request.n_to_compute, n_left)
            if not self._reserve(request, n_tokens):
                self._give_back(request)
                return
            self.running.append(self.waiting.popleft())
            planned[request] = Work(request, request.n_computed, n_tokens)
            n_left -= n_tokens

    def commit(self, work: Work) -> None:
        """The pass has computed this work: its keys and values are in the pages."""
        request, size = work.request, self.pool.page_size
        n_full_pages = request.n_computed // size
        request.n_computed += work.n_tokens
        if self.prefix_cache is not None and request.n_computed // size > n_full_pages:
            self.prefix_cache.store(request.tokens[: request.n_computed], request.page_table)

    # ---- pages -------------------------------------------------------------------------------

    def _find_prefix(self, request: Request) -> None:
        if self.prefix_cache is None:
            return
        request.page_table = self.prefix_cache.lookup(request.tokens)
        request.n_computed = len(request.page_table) * self.pool.page_size
        if request.n_preemptions == 0:
            request.n_cached = request.n_computed

    def _reserve(self, request: Request, n_tokens: int) -> bool:
        """Pages of its own for n_tokens more tokens of a request. -> False where there are too few

        What was reserved before pages ran out stays with the request.
        """
        table, size = request.page_table, self.pool.page_size
        first = request.n_computed // size
        try:
            for index in range(first, pages_needed(request.n_computed + n_tokens, size)):
                self._free_one()
                if index == len(table):
                    table.append(self.allocator.allocate())
                else:
                    own_page(table, index, self.allocator, self.pool)
        except OutOfPages:
            return False
        return True

    def _free_one(self) -> None:
        """Make the prefix cache give up a page where none is free."""
        if not self.allocator.free and self.prefix_cache is not None:
            self.prefix_cache.evict()

    def _preempt(self, request: Request) -> None:
        """Back to the head of the queue, without pages: prompt and answer are computed again."""
        self.running.remove(request)
        self._give_back(request)
        request.n_preemptions += 1
        self.waiting.appendleft(request)

    def _give_back(self, request: Request) -> None:
        for page in request.page_table:
            self.allocator.release(page)
        request.page_table, request.n_computed = [], 0

    def holders(self) -> Sequence[Sequence[int]]:
        """Every table of pages there is, for PageAllocator.require_sound."""
        cached = [] if self.prefix_cache is None else [list(self.prefix_cache.pages.values())]
        return [request.page_table for request in self.running] + cached
