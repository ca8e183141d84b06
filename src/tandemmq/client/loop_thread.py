"""One background thread with an event loop, shared by all blocking facades of a process.

Started by the first facade and stopped by the last. After a fork the child has no such thread, whatever it
inherited, and gets its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from tandemmq.errors import ClientError

T = TypeVar("T")


class LoopThread:
    """A loop that runs in its own thread until `stop`."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="tandemmq-client", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """False after a fork and after `stop`."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop; the future is for the calling thread."""
        if not self.is_usable:
            work.close()
            raise ClientError("the client's thread is gone: it was closed, or the process has forked")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; an interrupt of the caller cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a blocking call from a callback in the client's own thread would never end")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Run a plain function in the loop, later; does not wait."""
        if self.is_usable:
            self._loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        """End the thread; nothing must be using it any more."""
        if self.is_usable:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


class _SharedThread:
    """Counts the users of the process's one LoopThread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._users = 0

    def acquire(self) -> LoopThread:
        with self._lock:
            if self._thread is None or not self._thread.is_usable:
                self._thread, self._users = LoopThread(), 0
            self._users += 1
            return self._thread

    def release(self, thread: LoopThread) -> None:
        with self._lock:
            if thread is not self._thread:
                return
            self._users -= 1
            if self._users:
                return
            self._thread = None
        thread.stop()


_shared = _SharedThread()


def acquire_thread() -> LoopThread:
    """The process's client thread, started when this is its first user."""
    return _shared.acquire()


def release_thread(thread: LoopThread) -> None:
    """Give the thread back; the last user stops it."""
    _shared.release(thread)
