"""Reads of several brokers at once, each within a time that a person waits for a page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tandemmq.errors import NotPermitted, RequestRejected, TandemError
from tandemmq.manage.tools import Target
from tandemmq.protocol.codes import ResponseCode

T = TypeVar("T")
A = TypeVar("A")

READ_TIMEOUT_S: Final = 1.5
"""The time in which a broker must answer a read; a page with several brokers still appears within 2 s."""
READS_AT_ONCE_MAX: Final = 32
WORKS_AT_ONCE_MAX: Final = 16
"""The queues, topics or groups about which is asked at the same time; each costs several requests."""


@dataclass(frozen=True, slots=True)
class Reached(Generic[T, A]):
    """The answer for one target. `answer` is None when there is none, and `error` is the reason then;
    `is_denied` tells that access control refused the request.
    """

    target: T
    answer: A | None
    error: str = ""
    is_denied: bool = False


async def ask_each(
    targets: Iterable[T], read: Callable[[T], Awaitable[A]], *, timeout_s: float = READ_TIMEOUT_S
) -> list[Reached[T, A]]:
    """Runs `read` for each target, at most READS_AT_ONCE_MAX at the same time; returns one outcome for each,
    in the order of the targets. An error of one target, or its silence, is part of its outcome.
    """

    async def ask(target: T) -> Reached[T, A]:
        try:
            async with asyncio.timeout(timeout_s):
                return Reached(target, await read(target))
        except TandemError as error:  # first: a RequestTimeout is also a TimeoutError, with its own text
            return Reached(target, None, str(error), isinstance(error, NotPermitted))
        except TimeoutError:
            return Reached(target, None, f"no answer within {timeout_s:g} s")

    return await map_each(targets, ask, at_once=READS_AT_ONCE_MAX)


async def map_each(
    items: Iterable[T], work: Callable[[T], Awaitable[A]], *, at_once: int = WORKS_AT_ONCE_MAX
) -> list[A]:
    """Returns the result of `work` for each item, in the order of the items.

    Raises:  the first error; the work for the other items is cancelled then.
    """
    places = asyncio.Semaphore(at_once)

    async def run(item: T) -> A:
        async with places:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(item)) for item in items]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def if_supported(work: Awaitable[A]) -> A | None:
    """Returns the result of a request to a broker; None if the broker does not support it. Other errors are
    raised.
    """
    try:
        return await work
    except RequestRejected as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return None


def answers_of(reached: Iterable[Reached[T, A]]) -> list[tuple[T, A]]:
    """Returns the answers with their targets, without the targets that gave none."""
    return [(one.target, one.answer) for one in reached if one.answer is not None]


async def ask_tables(
    targets: Iterable[Target], read: Callable[[Target], Awaitable[Mapping[str, A]]], *, timeout_s: float
) -> tuple[dict[str, dict[str, A]], list[Target], dict[Target, str]]:
    """Reads a table of each of these brokers. Returns the entries by name and broker name, in the order of
    their names; the brokers that answered; and the errors of the others.
    """
    reached = await ask_each(targets, read, timeout_s=timeout_s)
    answers = answers_of(reached)
    found: dict[str, dict[str, A]] = {}
    for target, table in answers:
        for name, entry in table.items():
            found.setdefault(name, {})[target.broker_name] = entry
    return dict(sorted(found.items())), [target for target, _ in answers], errors_of(reached)


def list_silent(failed: Mapping[T, str]) -> list[str]:
    """Returns a sentence for each target that gave no answer."""
    return [f"{target} does not answer: {error}" for target, error in failed.items()]


def errors_of(reached: Iterable[Reached[T, A]]) -> dict[T, str]:
    """Returns the reason of each target that gave no answer."""
    return {one.target: one.error for one in reached if one.error}
