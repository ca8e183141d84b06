"""Waiting for states that have no event of their own.

The time-outs are there for what will never happen: a test that passes ends with its condition, so patience
costs nothing, and a slow machine does not fail.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator

PATIENCE_S = 60.0
PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.02)
"""Between looks; the last one repeats."""

NotYet = tuple[type[Exception], ...]


async def until(
    is_met: Callable[[], object | Awaitable[object]],
    what: str | None = None,
    timeout_s: float = PATIENCE_S,
    *,
    not_yet: NotYet = (),
) -> None:
    """Returns once `is_met` answers, or its coroutine returns, something true.

    An error of the kinds in `not_yet` is a no. After `timeout_s` an AssertionError says `what` was awaited,
    or the source line of the condition. A look that hangs ends then, too.
    """
    try:
        async with asyncio.timeout(timeout_s):
            pauses = _pauses()
            while not await _look(is_met, not_yet):  # noqa: ASYNC110  # what is awaited has no event
                await asyncio.sleep(next(pauses))
    except TimeoutError:
        raise AssertionError(_told(is_met, what, timeout_s)) from None


async def _look(is_met: Callable[[], object | Awaitable[object]], not_yet: NotYet) -> object:
    try:
        answer = is_met()
        return await answer if inspect.isawaitable(answer) else answer
    except not_yet:
        return False


def until_blocking(
    is_met: Callable[[], object],
    what: str | None = None,
    timeout_s: float = PATIENCE_S,
    *,
    not_yet: NotYet = (),
) -> None:
    """The same without an event loop."""
    end = time.monotonic() + timeout_s
    pauses = _pauses()
    while not _look_blocking(is_met, not_yet):
        assert time.monotonic() < end, _told(is_met, what, timeout_s)
        time.sleep(next(pauses))


def _look_blocking(is_met: Callable[[], object], not_yet: NotYet) -> object:
    try:
        return is_met()
    except not_yet:
        return False


def _pauses() -> Iterator[float]:
    return itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))


def _told(is_met: Callable[..., object], what: str | None, timeout_s: float) -> str:
    return f"not within {timeout_s:g} s: {what or inspect.getsource(is_met).strip()}"
