"""One change at several brokers: all of them are tried, and an error names the brokers that have changed.

`Admin` and the operator's tools make every change of several servers by this function. Each broker keeps its
own topics, groups, offsets, users and settings, so a change that fails at one of them is half done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TypeVar

from tandemmq.errors import NotPermitted, PartlyChanged, TandemError

T = TypeVar("T", bound=Hashable)
A = TypeVar("A")


async def change_each(targets: Iterable[T], change: Callable[[T], Awaitable[A]]) -> dict[T, A]:
    """Makes a change at each target, one after the other, also behind one that fails. Returns the answers by
    target; an error names a target by its text.

    Raises:  the error of the only target; NotPermitted when every target refuses; else PartlyChanged when any
             target fails.
    """
    done: dict[T, A] = {}
    failed: dict[T, TandemError] = {}
    for target in targets:
        try:
            done[target] = await change(target)
        except TandemError as error:
            failed[target] = error
    if not failed:
        return done
    is_denied = not done and all(isinstance(error, NotPermitted) for error in failed.values())
    if is_denied or len(done) + len(failed) == 1:
        raise next(iter(failed.values()))
    raise PartlyChanged(
        f"changed at {', '.join(map(str, done)) or 'no broker'}; failed at "
        + "; ".join(f"{target}: {error}" for target, error in failed.items())
    )
