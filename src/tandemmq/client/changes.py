"""One change at several brokers: all of them are tried, and an error names the brokers that have changed.

Used by `Admin` and by the operator's tools. Each broker keeps its own topics, groups, offsets, users and
settings, so a change that fails at one of them is half done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from tandemmq.errors import NotPermitted, PartlyChanged, TandemError

T = TypeVar("T")
A = TypeVar("A")


async def change_each(targets: Mapping[str, T], change: Callable[[T], Awaitable[A]]) -> dict[str, A]:
    """Makes a change at each target, one after the other, also behind one that fails. Returns the answers by
    the names of the targets.

    Raises:  the error of the only target; NotPermitted when every target refuses; else PartlyChanged when any
             target fails.
    """
    done: dict[str, A] = {}
    failed: dict[str, TandemError] = {}
    for name, target in targets.items():
        try:
            done[name] = await change(target)
        except TandemError as error:
            failed[name] = error
    if not failed:
        return done
    is_denied = not done and all(isinstance(error, NotPermitted) for error in failed.values())
    if is_denied or len(targets) == 1:
        raise next(iter(failed.values()))
    raise PartlyChanged(
        f"changed at {', '.join(done) or 'no broker'}; failed at "
        + "; ".join(f"{name}: {error}" for name, error in failed.items())
    )
