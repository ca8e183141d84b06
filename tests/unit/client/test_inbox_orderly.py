"""One queue of an orderly consumer: the order and time of deliveries (spec semantics 10.5)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.memory import ManualClock
from tandemmq.api import broker_consume
from tandemmq.client.consumer.assignment import QueueLockKeeper
from tandemmq.client.consumer.inbox import LOCK_VALID_S, Inbox, OrderlyGate, Received
from tandemmq.errors import RequestTimeout, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.record import Record
from tandemmq.telemetry.log_lines import Outages


class Source:
    def finish(self, queue_offset: int) -> None: ...


class Subject:
    def __init__(self, *, batch_count_max: int = 1, needs_lock: bool = True) -> None:
        self.source = Source()
        self.inbox = Inbox(1 << 20)
        self.clock = ManualClock()
        self.gate = OrderlyGate(
            self.source,
            self.inbox,
            self.clock,
            batch_count_max=batch_count_max,
            needs_lock=needs_lock,
        )

    def put(self, *offsets: int) -> None:
        self.gate.put([Received(self.source, message_at(offset)) for offset in offsets], 0)

    def take(self) -> list[int]:
        taken = []
        while (delivery := self.inbox.take()) is not None:
            taken.append(int(delivery.message.queue_offset))
        return taken


def message_at(offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        Record(
            topic="T",
            queue_id=0,
            queue_offset=offset,
            log_offset=0,
            size=100,
            flag=0,
            sys_flag=0,
            born_at_ms=0,
            born_host=b"\x7f\0\0\x01\0\0\0\0",
            stored_at_ms=0,
            store_host=b"\x7f\0\0\x01\0\0\0\0",
            retry_count=0,
            prepared_offset=0,
            body=b"x",
            body_crc=0,
            raw_properties=b"",
        )
    )


def test_the_next_message_comes_when_the_one_before_is_finished() -> None:
    subject = Subject()
    subject.gate.on_locked()
    subject.put(0, 1, 2)
    assert subject.take() == [0]
    assert subject.take() == []
    assert subject.gate.finish(0)
    assert subject.take() == [1]
    assert not subject.gate.finish(0), "it is not the application's any more"


def test_a_batch_is_handed_out_together() -> None:
    subject = Subject(batch_count_max=2)
    subject.gate.on_locked()
    subject.put(0, 1, 2, 3)
    assert subject.take() == [0, 1]
    subject.gate.finish(1)
    assert subject.take() == []
    subject.gate.finish(0)
    assert subject.take() == [2, 3]


def test_nothing_is_handed_out_without_a_valid_lock() -> None:
    subject = Subject()
    subject.put(0, 1)
    assert subject.take() == []
    subject.gate.on_locked()
    assert subject.take() == [0]
    subject.clock.advance(LOCK_VALID_S)
    subject.gate.finish(0)
    assert subject.take() == [], "the lock was not confirmed for too long"
    subject.gate.on_locked()
    assert subject.take() == [1]


def test_without_other_members_no_lock_is_needed() -> None:
    subject = Subject(needs_lock=False)
    subject.put(0)
    assert subject.take() == [0]


def test_suspended_messages_come_first_after_the_delay() -> None:
    subject = Subject(batch_count_max=3)
    subject.gate.on_locked()
    subject.put(0, 1, 2, 3)
    assert subject.take() == [0, 1, 2]
    assert subject.gate.put_back(1, 5.0) == 1
    subject.gate.finish(0)
    assert subject.take() == []
    subject.clock.advance(5.0)
    assert subject.take() == [1, 2, 3]
    assert subject.gate.put_back(1, 1.0) == 2
    assert subject.gate.put_back(9, 1.0) is None


def test_undelivered_orderly_messages_are_requeued() -> None:
    subject = Subject(batch_count_max=2)
    subject.gate.on_locked()
    subject.put(0, 1, 2)
    assert subject.inbox.take() is not None
    subject.gate.on_lock_lost()
    subject.gate.requeue()
    assert not subject.gate.is_idle
    assert subject.take() == []
    subject.gate.finish(0)
    assert subject.gate.is_idle
    subject.gate.on_locked()
    assert subject.take() == [1, 2]


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_pause_ends_with_what_it_is_for(is_forgotten: bool) -> None:
    subject = Subject()
    subject.gate.on_locked()
    subject.put(0)
    assert subject.take() == [0]
    subject.gate.put_back(0, 1.0)
    if is_forgotten:
        subject.gate.forget()
    subject.clock.advance(1.0)
    assert subject.take() == ([] if is_forgotten else [0])


async def test_an_outage_of_locks_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = MessageQueue("T", "a", 0)
    outcomes: list[frozenset[MessageQueue] | TandemError] = []

    async def lock(*_: object) -> frozenset[MessageQueue]:
        outcome = outcomes.pop(0)
        if isinstance(outcome, TandemError):
            raise outcome
        return outcome

    monkeypatch.setattr(broker_consume, "lock_queues", SimpleNamespace(within=lock))
    routes = SimpleNamespace(master_address=lambda *_: "127.0.0.1:1", refresh_soon=lambda _: None)
    instance = SimpleNamespace(routes=routes, outages=Outages(), client_id="c", remoting=None)
    contexts: list[Any] = [SimpleNamespace(instance=instance, group=group) for group in ("g", "h")]
    keeper, other = map(QueueLockKeeper, contexts)
    warnings = []
    error, granted = RequestTimeout("silent"), frozenset({queue})
    for outcomes[:] in ([error, granted], [error, granted], [granted, granted], [error, granted]):
        await keeper.lock([queue])
        await other.lock([queue])
        warnings.append(sum(one.levelname == "WARNING" for one in caplog.records))
    assert warnings == [1, 1, 1, 2]
