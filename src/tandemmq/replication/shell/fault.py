"""Where the event loop calls in: a failed assertion must stop the node, not vanish in the loop's log.

An error that asyncio catches in a protocol callback only closes that connection, and one in a timer closes
nothing; the retry would hide our own fault for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVarTuple

from tandemmq.errors import TandemError

OnFatal = Callable[[BaseException], None]
Args = TypeVarTuple("Args")


class FaultGuard:
    """Runs callbacks; faults of ours and fatal errors go to the owner."""

    __slots__ = ("_on_fatal",)

    def __init__(self, on_fatal: OnFatal | None) -> None:
        self._on_fatal = on_fatal

    def run(self, fn: Callable[[*Args], None], *args: *Args) -> None:
        """Call `fn`. Without an owner to tell, the error goes on to the loop."""
        try:
            fn(*args)
        except AssertionError as error:
            self._tell(error)
        except TandemError as error:
            if not error.fatal:
                raise
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if self._on_fatal is None:
            raise error
        self._on_fatal(error)
