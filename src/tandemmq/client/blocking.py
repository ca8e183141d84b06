"""From plain threads into the event loop: one background thread, and what all blocking facades have in
common.

The thread is shared by all facades of a process: started by the first and stopped by the last. After a fork
the child has no such thread, whatever it inherited, and gets its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import uvloop

from tandemmq.errors import ClientError

T = TypeVar("T")


END_S_MAX = 5.0
"""For the tasks that still run when the loop ends."""


class LoopThread:
    """A loop that runs in its own thread until `stop`.

    Invariants: whoever waits for the loop gets an answer or ClientError, also when it ends meanwhile, or a
                callback of the user ended it (`sys.exit`).
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        """Nothing is handed to a loop that has begun to end."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="tandemmq-client", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """False after a fork and after `stop`."""
        return self._pid == os.getpid() and not self._is_ending and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop; the future is for the calling thread."""
        if self.is_usable:
            with self._lock:
                if not self._is_ending:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ClientError("the client's thread is gone: it was closed, or the process has forked")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it; an interrupt of the caller cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a blocking call from a callback in the client's own thread would never end")
        future = self.submit(work)
        try:
            return outcome_of(future)
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Run a plain function in the loop, later; does not wait."""
        if self.is_usable:
            with self._lock:
                if not self._is_ending:
                    self._loop.call_soon_threadsafe(function, *args)

    def monotonic(self) -> float:
        """Seconds of a clock that only rises, for the calling thread."""
        return time.monotonic()

    def stop(self) -> None:
        """End the thread, when nothing uses it."""
        if self.is_usable:
            with self._lock:
                if not self._is_ending:
                    self._is_ending = True
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self._lock:
                self._is_ending = True
            self._loop.run_until_complete(self._end_tasks())
            self._loop.close()

    async def _end_tasks(self) -> None:
        """Of what was handed in last, and of what still runs: whoever waits for it must not wait for ever."""
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_S_MAX)


def outcome_of(future: Future[T]) -> T:
    """What the coroutine gave or raised. Raises ClientError when the loop has ended it."""
    try:
        return future.result()
    except CancelledError:
        raise ClientError("the client was closed by another thread meanwhile, or its thread ended") from None


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


class AsyncClient(Protocol):
    async def start(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=AsyncClient)


class Facade(Generic[C]):
    """Owns one asyncio client, made, used and closed in the shared thread."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._thread: LoopThread | None = None
        self._client: C | None = None

    def start(self) -> Self:
        """Start the client. Raises BrokerUnreachable when no name server takes a connection."""
        if self._client is not None:
            raise ClientError("the client is started already")
        thread = acquire_thread()
        try:
            self._client = thread.call(self._make_started())
        except BaseException:
            release_thread(thread)
            raise
        self._thread = thread
        return self

    def close(self) -> None:
        """Close the client as its asyncio twin does; closing twice does nothing."""
        thread, client = self._thread, self._client
        self._thread = self._client = None
        if thread is None or client is None:
            return
        try:
            if thread.is_usable:
                thread.call(client.close())
        finally:
            release_thread(thread)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _make_started(self) -> C:
        client = self._make()
        try:
            await client.start()
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def _running(self) -> C:
        if self._client is None:
            raise ClientError("the client is not started, or closed")
        return self._client

    def _monotonic(self) -> float:
        return 0.0 if self._thread is None else self._thread.monotonic()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        thread = self._thread
        if thread is None:  # closed by another thread right now
            work.close()
            raise ClientError("the client is not started, or closed")
        return thread.call(work)


class WorkerThreads:
    """Threads for user code that may block, when a client needs many at once."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="tandemmq-worker")

    def start(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run a plain function in the next free thread; the future is for the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        """End each thread when it has nothing to do; what has not begun never begins."""
        self._pool.shutdown(wait=False, cancel_futures=True)


async def in_worker(function: Callable[..., T], *args: Any) -> T:
    """A call of user code that may block, made in a thread of its own."""
    return await asyncio.to_thread(function, *args)


async def in_loop(function: Callable[..., T], *args: Any) -> T:
    """A plain call, made in the loop's thread."""
    return function(*args)
