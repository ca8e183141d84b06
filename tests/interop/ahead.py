"""Programs that run a few at a time: most of a client's run is waiting, for a retry, a delay, a rebalance.

The first test of a group starts the programs of the whole group; each test then waits for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

RUNNING_MAX = 3


class Ahead:
    """The output of the programs of a session, by test."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(RUNNING_MAX, thread_name_prefix="interop")
        self._outputs: dict[str, Future[str]] = {}

    def output(self, request: pytest.FixtureRequest, vary: str, run: Callable[[str], str]) -> str:
        """Returns the result of `run` for this test's value of the parameter `vary`, or raises its failure.

        The group are the selected tests that differ from this one in nothing else.
        """
        own = request.node
        for item in request.session.items:
            if _group(item, vary) == _group(own, vary) and item.nodeid not in self._outputs:
                value = item.callspec.params[vary]  # type: ignore[attr-defined]
                self._outputs[item.nodeid] = self._pool.submit(run, value)
        return self._outputs[own.nodeid].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _group(item: pytest.Item, vary: str) -> tuple[Any, ...]:
    callspec = getattr(item, "callspec", None)
    rest = {name: value for name, value in callspec.params.items() if name != vary} if callspec else {}
    return item.path, getattr(item, "originalname", ""), sorted(rest.items(), key=str)
