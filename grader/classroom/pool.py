"""Many submissions at once, through any concurrent.futures.Executor.

By default this computer's cores: processes forked from one that has imported everything, each with
a zygote of its own, forked from one that has as well. With a scheduler's address, a dask cluster.
The zygote starts before anything that takes long is imported here: both import at the same time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from grader.judging.isolated.students import Isolation, OwnFault, Zygote, floor_reached
from labkit.measure.device import n_cores

if TYPE_CHECKING:
    from grader.classroom.judging import Judged, Task

AHEAD = 8  # tasks given to each worker: enough that none idles while results are entered
CONNECT_S = 10  # a dask scheduler has so long to answer


class Pool(Protocol):
    """Where judging happens: open a with block, then run tasks through it."""

    def __enter__(self) -> Pool: ...
    def __exit__(self, *_: object) -> None: ...
    def run(self, tasks: Iterable[Task]) -> Iterator[Judged]:
        """Judge all of them, in no particular order, reading tasks only as workers get free.

        The first are under way when this returns, before anything is taken from the iterator.
        """


class Here:
    """n_jobs processes of this computer.

    hide: folders that students must not see; zygote: one that is there already, and stays open.
    """

    def __init__(
        self, n_jobs: int, isolation: str, hide: Sequence[str] = (), zygote: Zygote | None = None
    ) -> None:
        if n_jobs < 1:
            raise ValueError(f"--jobs must be at least 1, given {n_jobs}")
        try:
            floor_reached(isolation)
        except OwnFault as fault:
            raise ValueError(str(fault)) from None
        self.n_jobs, self.isolation = n_jobs, isolation
        self._forks = sys.platform.startswith("linux")  # elsewhere libraries do not survive a fork
        self._zygote, self._is_own = zygote, zygote is None
        if self._forks and zygote is None:
            self._zygote = Zygote(Isolation(isolation), hide)  # imports while we do

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        if self._zygote is not None and self._is_own:
            self._zygote.close()

    def run(self, tasks: Iterable[Task]) -> Iterator[Judged]:
        """See Pool.run. A worker that dies is replaced, and what it judged is tried once more."""
        return _under_way(self._run_all(tasks))

    def _run_all(self, tasks: Iterable[Task]) -> Iterator[Judged | None]:
        from grader.classroom import judging

        lost: list[Task] = []
        yield from self._run(tasks, lost)
        for task in lost:  # each alone, so that the one at fault takes no other with it
            again: list[Task] = []
            yield from self._run([task], again, n_jobs=1)
            yield from (judging.Judged(t.student, fault=judging.LOST) for t in again)

    def _run(
        self, tasks: Iterable[Task], lost: list[Task], n_jobs: int | None = None
    ) -> Iterator[Judged | None]:
        tasks = iter(tasks)
        while (first := next(tasks, None)) is not None:
            with self._executor(n_jobs or self.n_jobs) as executor:
                yield from _in_turn(executor, chain([first], tasks), lost, self.n_jobs)

    @contextlib.contextmanager
    def _executor(self, n_jobs: int) -> Iterator[Executor]:
        from grader.classroom import judging

        context = multiprocessing.get_context("fork" if self._forks else "spawn")
        if self._zygote is None:
            with ProcessPoolExecutor(n_jobs, context, judging.begin, (None,)) as executor:
                yield executor
            return
        twins = [self._zygote.twin(cpu) for cpu in _cores(n_jobs)]
        numbers = context.SimpleQueue()
        for number in range(n_jobs):
            numbers.put(number)

        def take() -> Zygote:
            return twins[numbers.get()]

        try:
            with ProcessPoolExecutor(n_jobs, context, judging.begin, (take,)) as executor:
                yield executor
        finally:
            for twin in twins:
                twin.close()


def _cores(n_jobs: int) -> list[int | None]:
    """A core for each worker's students: what one keeps busy is not another's.

    None where this computer has no such choice.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [None] * n_jobs
    cores = sorted(os.sched_getaffinity(0))
    return [cores[number % len(cores)] for number in range(n_jobs)]


def _under_way(results: Iterator[Judged | None]) -> Iterator[Judged]:
    """The results alone, with the first tasks submitted now."""
    first = next(results, None)
    assert first is None
    return (result for result in results if result is not None)


def _in_turn(
    executor: Any, tasks: Iterator[Task], lost: list[Task], n_workers: int, apart: bool = False
) -> Iterator[Judged | None]:
    """Keep every worker busy and no more than a few tasks in memory. Stops at a broken pool.

    None says that as many are under way as there can be.
    """
    from grader.classroom import judging

    judge = judging.judge_apart if apart else judging.judge
    running: dict[Future, Task] = {}
    try:
        while True:
            while len(running) < n_workers * AHEAD and (task := next(tasks, None)) is not None:
                running[executor.submit(judge, task)] = task
            if not running:
                return
            yield None
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    lost += [task, *running.values()]
                    return
    finally:
        for future in running:
            future.cancel()


class Cluster:
    """A dask cluster, whose workers judge with zygotes of their own.

    They need this course's code installed, and its folder at the same path.
    """

    def __init__(self, address: str, isolation: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise ValueError(
                "--scheduler needs dask's package distributed: pip install 'inferlab[cluster]'"
            ) from None
        try:
            self._client = Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError) as trouble:
            raise ValueError(f"no dask scheduler answers at {address}: {trouble}") from None
        self.isolation = isolation

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, tasks: Iterable[Task]) -> Iterator[Judged]:
        """See Pool.run. One submission at a time in each worker process."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            raise ValueError("the dask scheduler has no workers: start some with `dask worker`")
        executor = self._client.get_executor()
        return _under_way(_in_turn(executor, iter(tasks), [], len(workers), apart=True))


def open_pool(n_jobs: int | None, scheduler: str, isolation: str, hide: Sequence[str] = ()) -> Pool:
    """The cluster at `scheduler`, or n_jobs processes here (None: one a core)."""
    if scheduler:
        return Cluster(scheduler, isolation)
    return Here(n_jobs if n_jobs is not None else n_cores(), isolation, hide)
