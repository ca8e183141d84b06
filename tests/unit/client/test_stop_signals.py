"""The signals that end `run`, for several consumers of a process at once."""

from __future__ import annotations

import asyncio
import signal

import pytest
from client_fakes import running_cluster
from test_push_consumer import fill, push

from tandemmq.client import ReceivedMessage
from tandemmq.client.stop_signals import STOP_SIGNALS, on_stop_signal
from waits import until


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_all_are_notified_and_the_second_signal_has_its_usual_effect(number: int) -> None:
    before = signal.getsignal(number)
    notified: list[str] = []
    try:
        signal.signal(number, lambda *_: notified.append("usual"))
        usual = signal.getsignal(number)
        with on_stop_signal(lambda: notified.append("a")):
            with on_stop_signal(lambda: notified.append("b")):
                pass
            with on_stop_signal(lambda: notified.append("c")):
                signal.raise_signal(number)
                signal.raise_signal(number)
        assert notified == ["a", "c", "usual"]
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)


async def test_another_thread_gets_no_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def use() -> None:
        with on_stop_signal(lambda: None):
            assert signal.getsignal(signal.SIGTERM) is before

    await asyncio.to_thread(use)


async def test_a_signal_ends_run_after_the_running_handlers() -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    done: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await release.wait()
        done.append(message.body)

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 5)
        consumer = push(cluster, handle, worker_count=2)
        running = asyncio.create_task(consumer.run())
        await begun.wait()
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: consumer._handlers.inbox.is_closed)
        release.set()
        await running
        assert done == [b"0", b"1"], "the handlers at work have ended, and no other began"
        assert cluster[0].offsets["g", "T", 0] == 2
