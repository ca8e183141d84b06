"""The signals that end a program: SIGTERM and SIGINT end the `run` of every consumer of the process.

The first signal restores the handlers that were installed before, so that a second one ends the program at
once, as it would without `run`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

SIGNAL_CHECK_S: Final = 1.0
"""The longest single wait of the main thread, in seconds. CPython runs the handler of a signal only between
two bytecodes, so a signal that arrives just before a wait is handled after the wait.
"""

_notified: Final[dict[object, Callable[[], object]]] = {}
"""The functions to call at a signal: one for each `run` of the process."""
_replaced: Final[dict[int, Any]] = {}
"""The handlers that were installed before, by signal."""


@contextmanager
def on_stop_signal(notify: Callable[[], object]) -> Iterator[None]:
    """Calls `notify`, which must not block or raise, when the process gets one of the signals.

    Python delivers signals to the main thread only. In another thread this does nothing: the program decides
    there when it ends.
    """
    key = object()
    try:
        if not _notified:
            _install()
    except ValueError:  # not the main thread
        yield
        return
    _notified[key] = notify
    try:
        yield
    finally:
        del _notified[key]
        if not _notified:
            _restore()


def _install() -> None:
    for number in STOP_SIGNALS:
        _replaced[number] = signal.signal(number, _on_signal)


def _restore() -> None:
    while _replaced:
        number, handler = _replaced.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _restore()
    for notify in list(_notified.values()):
        notify()
