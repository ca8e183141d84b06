"""`Cached`: a cache of answers of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from tandemmq.errors import TandemError
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """The ages in seconds and the size of a cache (spec proxy 6.1).

    fresh_s  a younger value is returned without a query; an older one starts a query in the background
    keep_s   an older value is not returned: callers wait for the query
    miss_s   the time for which the answer "does not exist" is kept, and the pause after a failed query
    """

    fresh_s: float = 20.0
    keep_s: float = 300.0
    miss_s: float = 1.0
    count_max: int = 20_000


class _Kept(NamedTuple, Generic[V]):
    """A cached value: it is returned until `until_s`, and queried again from `due_s` on."""

    value: V | None
    until_s: float
    due_s: float


@dataclass(slots=True)
class Cached(Generic[K, V]):
    """Values by key, queried when needed. Callers that wait for the same key share one query.

    A failed query leaves the old value in use until `keep_s`. With `survives_absence` so does the answer
    "does not exist". At `count_max` the least recently used value is dropped.
    """

    name: str
    query: Callable[[K], Awaitable[V | None]]
    clock: Clock
    tasks: TaskScope
    limits: CacheLimits = field(default_factory=CacheLimits)
    survives_absence: bool = False
    _kept: dict[K, _Kept[V]] = field(default_factory=dict, init=False)
    _loading: dict[K, asyncio.Task[TandemError | None]] = field(default_factory=dict, init=False)
    hit_count: int = field(default=0, init=False)
    """The values that were returned without a wait for a query."""
    query_count: int = field(default=0, init=False)
    failure_count: int = field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K) -> V | None:
        """Returns the value; None when it does not exist.

        Raises:  the error of the query when no value is kept.
        """
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept[key] = kept  # the most recently used one is last
            now_s = self.clock.monotonic()
            if now_s < kept.until_s:
                if now_s >= kept.due_s:
                    self.refresh_soon(key)
                self.hit_count += 1
                return kept.value
        return await self.refresh(key)

    async def refresh(self, key: K) -> V | None:
        """Queries the value, or joins the query in flight, and returns it. Raises the error of the query."""
        error = await asyncio.shield(self.refresh_soon(key))
        if error is not None:
            raise error
        kept = self._kept.get(key)
        return None if kept is None else kept.value

    def peek(self, key: K) -> V | None:
        """Returns the kept value of any age, without a query."""
        kept = self._kept.get(key)
        return None if kept is None else kept.value

    def refresh_soon(self, key: K) -> asyncio.Task[TandemError | None]:
        """Starts a query unless one runs, and returns its task. Callers get the old value until it ends."""
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = self.tasks.start(self.name, self._fill(key))
            task.add_done_callback(lambda _: self._loading.pop(key, None))
        return task

    async def _fill(self, key: K) -> TandemError | None:
        """Queries and stores the value. An error is returned: one failed query must not end the scope."""
        value, error = None, None
        self.query_count += 1
        try:
            value = await self.query(key)
        except TandemError as failure:
            self.failure_count += 1
            error = failure
        now_s, limits = self.clock.monotonic(), self.limits
        old = self._kept.pop(key, None)
        if error is not None or (value is None and self.survives_absence and _is_usable(old, now_s)):
            if old is not None:
                self._kept[key] = old._replace(due_s=now_s + limits.miss_s)
            return error
        fresh_s, keep_s = (limits.fresh_s, limits.keep_s) if value is not None else (limits.miss_s,) * 2
        self._kept[key] = _Kept(value, now_s + keep_s, now_s + fresh_s)
        if len(self._kept) > limits.count_max:
            del self._kept[next(iter(self._kept))]
        return None


def _is_usable(kept: _Kept[V] | None, now_s: float) -> bool:
    return kept is not None and kept.value is not None and now_s < kept.until_s
