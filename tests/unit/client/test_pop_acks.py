"""Acknowledgements of a pop consumer: batches, and single ones where a broker or a message needs that."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import FakeBroker, FakeCluster, running_cluster

from tandemmq.client import ClientOptions, PopConsumer, PopOptions
from tandemmq.errors import RequestRejected, TandemError
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.progress import BatchAck, decode_bits
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.consume import AckRequest, ChangeInvisibleRequest, ChangeInvisibleResponse
from tandemmq.remoting.channel import Channel
from waits import PATIENCE_S


def popped(cluster: FakeCluster, start: int, offset: int, *, revive_queue_id: int = 3) -> PoppedMessage:
    cluster[0].put("T", 0, b"0")
    (record,) = decode_records(cluster[0].queue("T", 0).records[0][0])
    handle = f"{start} 1700 60000 {revive_queue_id} 0 a 0 {offset}"
    return PoppedMessage(record, topic="T", broker_name="a", handle=handle)


def serve_acks(cluster: FakeCluster, *, batches: bool) -> tuple[list[int], list[BatchAck]]:
    """Makes the broker answer acks; returns those of single messages, by offset, and the batches."""
    single: list[int] = []
    batched: list[BatchAck] = []

    def ack(_: Channel, command: Command) -> Command:
        single.append(command.decode(AckRequest).offset)
        return command.reply(ResponseCode.MESSAGE_ILLEGAL if single[-1] == 13 else ResponseCode.SUCCESS)

    def ack_batch(_: Channel, command: Command) -> Command:
        batched.append(decode_body(command.body, BatchAck))
        return command.reply(0 if batches else ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    cluster[0].handlers |= {RequestCode.ACK_MESSAGE: ack, RequestCode.BATCH_ACK_MESSAGE: ack_batch}
    return single, batched


async def test_messages_of_one_broker_are_acknowledged_with_one_request() -> None:
    async with running_cluster(T=1) as cluster, PopConsumer("g", cluster.namesrv) as consumer:
        single, batched = serve_acks(cluster, batches=True)
        places = [(5, 5), (5, 7), (8, 9)]
        await consumer.ack(*(popped(cluster, start, offset) for start, offset in places))
        assert single == []
        (batch,) = batched
        assert batch.broker_name == "a"
        assert [(one.start_offset, decode_bits(one.bits, 8)) for one in batch.entries] == [
            (5, [0, 2]),
            (8, [1]),
        ]
        for one in batch.entries:
            assert (one.group, one.topic, one.retry_flag, one.queue_id) == ("g", "T", "0", 0)
            assert (one.pop_time_ms, one.invisible_ms, one.revive_queue_id) == (1700, 60000, 3)
        await consumer.ack(popped(cluster, 5, 6))
        assert (single, len(batched)) == ([6], 1), "one message needs no batch"


async def test_each_broker_gets_the_acks_of_its_own_messages() -> None:
    async with (
        running_cluster(FakeBroker("a"), FakeBroker("b"), T=1) as cluster,
        PopConsumer("g", cluster.namesrv) as consumer,
    ):
        at_a = serve_acks(cluster, batches=True)
        cluster.brokers.reverse()  # the functions above use the first broker
        at_b = serve_acks(cluster, batches=True)
        messages = [popped(cluster, 5, offset) for offset in (5, 6, 7)]
        for message in messages[1:]:
            message.broker_name = "b"
        await consumer.ack(*messages)
        assert (at_a, at_b[0]) == (([5], []), [])
        assert [batch.broker_name for batch in at_b[1]] == ["b"]


async def test_a_batch_is_split_where_its_broker_or_its_bits_need_that() -> None:
    async with running_cluster(T=1) as cluster, PopConsumer("g", cluster.namesrv) as consumer:
        single, batched = serve_acks(cluster, batches=True)
        await consumer.ack(popped(cluster, 5, 6), popped(cluster, 5, 5 + (1 << 16)))
        assert (sorted(single), batched) == ([6, 5 + (1 << 16)], [])
        single.clear()
        await consumer.ack(*(popped(cluster, 5, offset, revive_queue_id=999) for offset in (5, 6)))
        assert (sorted(single), batched) == ([5, 6], []), "popped in order"
        message = popped(cluster, 0, 1)
        await consumer.ack(*[message] * 1500)
        assert [len(decode_bits(batch.entries[0].bits, 8)) for batch in batched] == [1, 1]


async def test_a_broker_without_batches_gets_single_acks_and_the_first_error_is_raised() -> None:
    async with running_cluster(T=1) as cluster, PopConsumer("g", cluster.namesrv) as consumer:
        single, batched = serve_acks(cluster, batches=False)
        for _ in range(2):
            with pytest.raises(RequestRejected, match="MESSAGE_ILLEGAL"):
                await consumer.ack(*(popped(cluster, 12, offset) for offset in (12, 13, 14)))
        assert sorted(single) == [12, 12, 13, 13, 14, 14], "all were tried"
        assert len(batched) == 1, "the broker is not asked for a batch again"


@pytest.mark.parametrize("name", ["ack", "nack"])
async def test_a_silent_broker_is_waited_for_as_long_as_a_call_may_take(name: str) -> None:
    options = PopOptions(client=ClientOptions(call_timeout_s=0.2))
    async with (
        running_cluster(T=1) as cluster,
        PopConsumer("g", cluster.namesrv, options=options) as consumer,
    ):
        for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
            cluster[0].handlers[code] = lambda *_: None
        with pytest.raises(TandemError):
            async with asyncio.timeout(PATIENCE_S):
                await getattr(consumer, name)(popped(cluster, 5, 5))


async def test_a_message_given_back_counts_as_an_attempt_unless_it_was_none() -> None:
    changes: list[ChangeInvisibleRequest] = []

    def change(_: Channel, command: Command) -> Command:
        changes.append(command.decode(ChangeInvisibleRequest))
        return command.reply(
            0, ChangeInvisibleResponse(pop_time_ms=1800, invisible_ms=5000, revive_queue_id=4)
        )

    async with running_cluster(T=1) as cluster, PopConsumer("g", cluster.namesrv) as consumer:
        cluster[0].handlers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = change
        message = popped(cluster, 5, 7)
        await consumer.nack(message, delay_s=5)
        await consumer.nack(message, delay_s=6, counts=False)
        assert [(one.invisible_ms, one.is_suspended) for one in changes] == [(5000, False), (6000, True)]
        assert message.handle == "7 1800 5000 4 0 a 0 7"
