"""The bridge from plain threads to the event loop: one background thread, and the base of all blocking
facades.

All facades of a process share the thread: the first facade starts it and the last one stops it. After a fork
the inherited thread does not run in the child, so the child starts its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from tandemmq.client.instance import FORKED
from tandemmq.errors import ClientError

T = TypeVar("T")
P = ParamSpec("P")


END_S_MAX = 5.0
"""The maximum wait for tasks that still run when the loop ends."""


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # on Windows, or without the extra: slower
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop that runs in its own thread until `stop`.

    Invariants: a caller that waits for the loop always gets an answer or ClientError, also when the loop ends
                meanwhile or a callback of the user ended it (`sys.exit`).
    """

    def __init__(self) -> None:
        self._loop = _new_event_loop()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        """Guards `_is_ending`: no work is submitted to a loop that is ending."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="tandemmq-client", daemon=True)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """False after a fork and after `stop`."""
        return self._pid == os.getpid() and not self._is_ending and self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine in the loop; the returned future is for the calling thread."""
        if self.is_usable:
            with self._lock:
                if not self._is_ending:
                    return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        if self._pid != os.getpid():
            raise ClientError(FORKED)
        raise ClientError("the client's thread has ended: the client was closed")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for it; an interrupt of the caller cancels the coroutine."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError("a blocking call from a callback in the client's own thread would never return")
        future = self.submit(work)
        try:
            return outcome_of(future)
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Schedules a plain function in the loop and returns at once."""
        if self.is_usable:
            with self._lock:
                if not self._is_ending:
                    self._loop.call_soon_threadsafe(function, *args)

    def wake(self, function: Callable[..., object]) -> None:
        """Schedules as `call_soon`, for the handler of a signal: it may have interrupted a holder of the
        lock.
        """
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Ends the thread and waits for its end."""
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
        """Cancels the tasks that still run, including those submitted last, so that no caller waits for
        ever.
        """
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=END_S_MAX)


def outcome_of(future: Future[T]) -> T:
    """Returns the coroutine's result or raises its error. Raises ClientError when the ending loop cancelled
    it.
    """
    try:
        return future.result()
    except CancelledError:
        raise ClientError("the client was closed by another thread, or its thread has ended") from None


class SharedThread:
    """A reference count for the LoopThread that the process shares."""

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

    def reset(self) -> None:
        """Forgets the thread of the parent, in the child of a fork."""
        self._lock = threading.Lock()
        self._thread, self._users = None, 0

    def release(self, thread: LoopThread) -> None:
        with self._lock:
            if thread is not self._thread:
                return
            self._users -= 1
            if self._users:
                return
            self._thread = None
        thread.stop()


shared_thread: Final = SharedThread()
"""The client thread of the process: the first facade starts it, and the last one stops it."""

if hasattr(os, "register_at_fork"):  # not on Windows
    # Another thread may hold the lock while the process forks; in the child nothing would release it.
    os.register_at_fork(after_in_child=shared_thread.reset)


class AsyncClient(Protocol):
    async def start(self) -> object: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=AsyncClient)
C_co = TypeVar("C_co", bound=AsyncClient, covariant=True)


class Facade(Generic[C_co]):
    """A blocking facade of one asyncio client, which is created, used and closed in the shared thread."""

    def __init__(self, make: Callable[[], C_co]) -> None:
        self._make = make
        self._thread: LoopThread | None = None
        self._client: C_co | None = None

    def start(self) -> Self:
        """Starts the client. Raises BrokerUnreachable when no name server accepts a connection."""
        if self._client is not None:
            raise ClientError("the client is already started")
        thread = shared_thread.acquire()
        try:
            self._client = thread.call(make_started(self._make))
        except BaseException:
            shared_thread.release(thread)
            raise
        self._thread = thread
        return self

    def close(self) -> None:
        """Closes the client as its asyncio counterpart does; closing twice does nothing."""
        thread, client = self._thread, self._client
        self._thread = self._client = None
        if thread is None or client is None:
            return
        try:
            if thread.is_usable:
                thread.call(client.close())
        finally:
            shared_thread.release(thread)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _running(self) -> C_co:
        if self._client is None:
            raise ClientError("the client is not started, or it is closed")
        return self._client

    def _monotonic(self) -> float:
        return time.monotonic()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        thread = self._thread
        if thread is None:  # closed by another thread meanwhile
            work.close()
            raise ClientError("the client is not started, or it is closed")
        return thread.call(work)


async def make_started(make: Callable[[], C]) -> C:
    """Returns a client that is started; closes one that cannot be started."""
    client = make()
    try:
        await client.start()
    except BaseException:
        await client.close()
        raise
    return client


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[C], P], T]:
    """Returns the blocking counterpart of a method, for the facade of its class."""

    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        work: Coroutine[Any, Any, T] = getattr(facade._running, method.__name__)(*args, **kwargs)
        return facade._call(work)

    update_wrapper(call, method, assigned=("__name__", "__doc__", "__annotations__"))
    return call


class WorkerThreads:
    """A thread pool for user code that may block, for a client that needs many threads at once."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="tandemmq-worker")

    def start(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs a plain function in the next free thread; the returned future is for the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def close(self) -> None:
        """Ends each thread once it is idle; calls that have not begun are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)


async def in_worker(function: Callable[..., T], *args: Any) -> T:
    """Calls user code that may block, in a separate thread."""
    return await asyncio.to_thread(function, *args)


async def in_loop(function: Callable[..., T], *args: Any) -> T:
    """Calls a plain function in the loop's thread."""
    return function(*args)
