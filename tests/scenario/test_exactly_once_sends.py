"""Numbered sends to real brokers are stored once, despite repeats, restarts and promotions (decision 010)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from broker_rig import Peer, copy_as_killed, records_of, running_broker, send_header
from client_rig import running_rig
from msgspec.structs import replace

from tandemmq.broker.broker import Broker
from tandemmq.broker.send.numbered import NumberedSends
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import CAPABILITY, encode_properties, render_claim
from tandemmq.protocol.requests.send import SendResponse
from tandemmq.store import BrokerRole
from tandemmq.store.options import FlushMode
from waits import until

PREFIX = "AB" * 10


def key(row: int, prefix: str = PREFIX) -> str:
    return f"{prefix}{row:012X}"


async def send_rows(
    peer: Peer,
    rows: Sequence[int],
    *,
    after: int | None = None,
    epoch: int = 1,
    producer: str = "P",
    prefix: str = PREFIX,
    queue_id: int = 0,
) -> Command:
    """Sends a batch of messages with these numbers."""
    body = encode_batch(
        (0, b"row %d" % row, encode_properties({"UNIQ_KEY": key(row, prefix)})) for row in rows
    )
    claim = render_claim(producer, epoch, "" if after is None else key(after, prefix))
    header = replace(send_header("T", is_batch=True, queue_id=queue_id), properties=claim)
    return await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=body)


async def stored(peer: Peer) -> list[bytes]:
    return [record.body for record in records_of(await peer.pull("T", count_max=1000))]


def bodies(*rows: int) -> list[bytes]:
    return [b"row %d" % row for row in rows]


async def test_a_repeated_send_is_stored_once_and_answered_with_its_place(peer: Peer) -> None:
    first = await send_rows(peer, [0, 1, 2])
    again = await send_rows(peer, [0, 1, 2])
    assert (first.code, again.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    place = first.decode(SendResponse)
    repeated = again.decode(SendResponse)
    assert (repeated.queue_id, repeated.queue_offset) == (place.queue_id, place.queue_offset)
    assert place.message_id.startswith(repeated.message_id)
    assert (await send_rows(peer, [5, 7], after=2)).code == ResponseCode.SUCCESS
    assert (await send_rows(peer, [0, 1, 2])).code == ResponseCode.SUCCESS
    assert await stored(peer) == bodies(0, 1, 2, 5, 7)


async def test_overlapping_rows_are_stored_once(peer: Peer) -> None:
    await send_rows(peer, [0, 1, 2])
    assert (await send_rows(peer, [1, 2, 3, 4], after=0)).code == ResponseCode.SUCCESS
    assert await stored(peer) == bodies(0, 1, 2, 3, 4)


async def test_gaps_late_epochs_and_other_rows_are_refused(peer: Peer) -> None:
    await send_rows(peer, [0, 1, 2], epoch=5)
    for rows, after, epoch, reason in (
        ([9], 8, 5, "gap"),
        ([9], None, 5, "rows must be sent in the same order"),
        ([1, 3], 0, 5, "rows must be sent in the same order"),
        ([9], 8, 6, "gap"),
        ([0], None, 4, "is late"),
    ):
        answer = await send_rows(peer, rows, after=after, epoch=epoch)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION, (rows, after, epoch)
        assert reason in str(answer.remark)
    assert await stored(peer) == bodies(0, 1, 2)


async def test_producers_queues_and_epochs_are_counted_apart(peer: Peer) -> None:
    await send_rows(peer, [0])
    await send_rows(peer, [0], producer="Q", prefix="CD" * 10)
    await send_rows(peer, [1], queue_id=1)
    await send_rows(peer, [0], epoch=2, prefix="EF" * 10)
    assert await stored(peer) == bodies(0, 0, 0)


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("9,P,1,-", "version"),
        ("1,P,x,-", "whole number"),
        ("1,,1,-", "producer"),
        ("1,P,1", "predecessor"),
        ("1,P,1,zz", "32 hexadecimal"),
    ],
)
async def test_a_claim_that_makes_no_sense_is_refused(peer: Peer, claim: str, reason: str) -> None:
    header = send_header("T", properties={"__RMQ.TRANSIENT.TANDEM_SEQ": claim, "UNIQ_KEY": key(0)})
    answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, header, body=b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert reason in str(answer.remark)


@pytest.mark.parametrize("delay", [{}, {"DELAY": "18"}, {"TIMER_DELAY_SEC": "1000"}])
async def test_a_single_message_is_stored_once_delayed_or_not(
    peer: Peer, broker: Broker, delay: dict[str, str]
) -> None:
    assert broker.store is not None
    for _ in range(2):
        properties = encode_properties({"UNIQ_KEY": key(3), **delay}).decode() + render_claim("P", 1, "")
        header = replace(send_header("T"), properties=properties)
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, header, body=b"row 3")
        assert answer.code == ResponseCode.SUCCESS
    topics = {topic for topic, _ in broker.store.queue_keys()}
    queues = [place for place in broker.store.queue_keys() if broker.store.queue_max(*place)]
    assert sum(broker.store.queue_max(*place) for place in queues) == 1, topics
    if not delay:
        [record] = records_of(await peer.pull("T"))
        assert "__RMQ.TRANSIENT.TANDEM_SEQ" not in record.properties


async def test_a_restarted_broker_knows_what_its_log_has(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "a") as broker, Peer(broker) as peer:
        await send_rows(peer, [0, 1, 2])
        await send_rows(peer, [3, 4], after=2)
    async with running_broker(tmp_path / "a") as broker, Peer(broker) as peer:
        for rows, after in (([0, 1, 2], None), ([3, 4], 2), ([4, 5, 6], 3), ([5, 6], 4), ([7], 6)):
            assert (await send_rows(peer, rows, after=after)).code == ResponseCode.SUCCESS
        assert (await send_rows(peer, [9], after=8)).code == ResponseCode.ILLEGAL_OPERATION
        assert await stored(peer) == bodies(*range(8))


async def test_a_log_that_was_copied_in_the_middle_of_a_write_is_gone_on_with(tmp_path: Path) -> None:
    """The log is as kill -9 leaves it: no clean stop, and the end of the batch is missing."""
    async with running_broker(tmp_path / "a") as broker, Peer(broker) as peer:
        answer = await send_rows(peer, [0, 1, 2, 3])
        last = int(answer.decode(SendResponse).message_id.split(",")[-1][-16:], 16)
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    [segment] = (tmp_path / "b" / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(last)
        file.write(bytes(50))
    async with running_broker(tmp_path / "b") as broker, Peer(broker) as peer:
        assert await stored(peer) == bodies(0, 1, 2)
        assert (await send_rows(peer, [0, 1, 2, 3])).code == ResponseCode.SUCCESS
        assert await stored(peer) == bodies(0, 1, 2, 3)


async def test_a_slave_that_was_promoted_knows_what_its_master_stored(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        master = await rig.start_broker()
        slave = await rig.start_broker(broker_id=1)
        async with Peer(master) as peer:
            await send_rows(peer, [0, 1, 2])
            await send_rows(peer, [3], after=2)
        assert slave.store is not None
        await until(lambda: slave.store.queue_max("T", 0) == 4, "copied")  # type: ignore[union-attr]
    settings = {"commit_log_file_bytes": 16 << 20}
    async with (
        running_broker(tmp_path / "broker-a-1", store=settings) as broker,
        Peer(broker) as peer,
    ):
        for rows, after in (([0, 1, 2], None), ([3], 2), ([4], 3)):
            assert (await send_rows(peer, rows, after=after)).code == ResponseCode.SUCCESS
        assert await stored(peer) == bodies(*range(5))


async def test_a_repeat_is_no_safer_than_what_it_repeats(tmp_path: Path) -> None:
    """Without the slave that must acknowledge, neither the first send nor its repeat is a success."""
    sync = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2, "slave_timeout_ms": 50}
    async with running_broker(tmp_path / "a", store=sync) as broker, Peer(broker) as peer:
        for _ in range(2):
            assert (await send_rows(peer, [0, 1])).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert broker.store is not None
        assert broker.store.queue_max("T", 0) == 2


async def test_a_repeat_waits_for_the_disk(tmp_path: Path) -> None:
    sync = {"flush_mode": FlushMode.SYNC_FLUSH}
    async with running_broker(tmp_path / "a", store=sync) as broker, Peer(broker) as peer:
        for _ in range(3):
            assert (await send_rows(peer, [0, 1])).code == ResponseCode.SUCCESS
        assert await stored(peer) == bodies(0, 1)


async def test_what_is_forgotten_is_found_in_the_log(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(NumberedSends.__init__, "__kwdefaults__", {"producer_queues_max": 2})
    async with running_broker(tmp_path / "small") as broker, Peer(broker) as peer:
        for round_number in range(2):
            for number in range(5):
                prefix = f"{number:020X}"
                answer = await send_rows(peer, [number], producer=f"P{number}", prefix=prefix)
                assert answer.code == ResponseCode.SUCCESS, round_number
        assert await stored(peer) == bodies(*range(5))


async def test_a_broker_without_key_index_says_so(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path / "n", store={"key_index_enable": False}) as broker,
        Peer(broker) as peer,
    ):
        assert CAPABILITY.encode() not in (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body
        answer = await send_rows(peer, [0])
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "messageIndexEnable" in str(answer.remark)


async def test_the_runtime_info_tells_who_can(peer: Peer) -> None:
    assert CAPABILITY.encode() in (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body
