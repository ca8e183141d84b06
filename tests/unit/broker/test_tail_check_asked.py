"""The brokers that are asked for the end of their logs: a master with an unverified tail asks its slaves, and
a slave asks its master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from sim.memory import ManualClock, MemoryDisk
from tandemmq.broker.replica import tail_check
from tandemmq.broker.replica.log_checksum import LogChecksums
from tandemmq.broker.replica.tail_check import TailCheck, TailWait
from tandemmq.errors import BrokerUnreachable, RequestRejected, RequestTimeout, TandemError
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import LogChecksumResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.verifier import TailOutcome
from tandemmq.store import BrokerRole, MessageStore, StoreOptions

RECORD_BYTES_MAX = 4096
EMPTY = LogChecksumResponse(min_offset=0, max_offset=0, size_bytes=0, crc=0)


def tail_wait(
    store: MessageStore,
    disk: MemoryDisk,
    clock: ManualClock,
    *,
    slave_count: int = 1,
    client: RemotingClient | None = None,
    others: Sequence[str] = (),
) -> TailWait:
    """Returns the wait of a master that name servers list with slaves at 10.0.0.9:1 and so on. `others`:
    other masters.
    """

    async def listed() -> dict[int, str]:
        return {number: f"10.0.0.9:{number}" for number in range(1, slave_count + 1)}

    async def other_master(_also: Iterable[str]) -> str | None:
        return others[0] if others else None

    return TailWait(
        LogChecksums(store, disk=disk, run_id="run"),
        client=cast(RemotingClient, client),
        clock=clock,
        record_bytes_max=RECORD_BYTES_MAX,
        listed=listed,
        reported=list,
        other_master=other_master,
    )


@pytest.mark.parametrize(
    ("in_sync_replicas", "total_replicas", "slave_count", "answer_count", "is_enough"),
    [
        (2, 1, 1, 1, True),
        (2, 1, 1, 0, False),
        (2, 1, 2, 2, True),
        (2, 1, 2, 1, False),  # acknowledged messages may be on the other one only
        (2, 3, 1, 1, False),  # it is not listed yet
        (2, 3, 2, 2, True),
        (3, 1, 2, 1, True),
        (3, 1, 3, 1, False),
        (3, 1, 3, 2, True),
        (3, 4, 2, 2, True),
        (3, 4, 1, 1, False),
    ],
)
async def test_enough_slaves_leave_no_room_for_an_acknowledged_message(
    monkeypatch: pytest.MonkeyPatch,
    in_sync_replicas: int,
    total_replicas: int,
    slave_count: int,
    answer_count: int,
    is_enough: bool,
) -> None:
    async def read_log_checksum(_client: object, address: str, *_: Any) -> LogChecksumResponse:
        if int(address.rpartition(":")[2]) > answer_count:
            raise BrokerUnreachable(f"{address} does not answer")
        return EMPTY

    monkeypatch.setattr(tail_check, "read_log_checksum", read_log_checksum)
    clock, disk = ManualClock(), MemoryDisk()
    store = await MessageStore.open(
        StoreOptions(
            root=Path("/store"),
            role=BrokerRole.SYNC_MASTER,
            in_sync_replicas=in_sync_replicas,
            total_replicas=total_replicas,
        ),
        disk=disk,
        clock=clock,
    )

    subject = tail_wait(store, disk, clock, slave_count=slave_count)
    assert (not await subject._check_slaves(0.0)) == is_enough
    await store.close()


class Liar:
    """Answers every request with the given begin and end of its log."""

    def __init__(self, low: int, high: int) -> None:
        self.ends = LogChecksumResponse(min_offset=low, max_offset=high, size_bytes=0, crc=0)

    async def request(self, _address: str, command: Command, _timeout_s: float) -> Command:
        return command.reply(header=self.ends)


@pytest.mark.parametrize("ends", [(-4096, 4096), (8192, 4096), (0, -1)], ids=str)
async def test_a_slave_that_tells_ends_that_no_log_has_shows_nothing_and_stops_nobody(
    ends: tuple[int, int],
) -> None:
    clock, disk = ManualClock(), MemoryDisk()
    options = StoreOptions(root=Path("/store"), role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await MessageStore.open(options, disk=disk, clock=clock)
    client = cast(RemotingClient, Liar(*ends))
    subject = tail_wait(store, disk, clock, client=client)
    assert f"invalid ends of a log: [{ends[0]}, {ends[1]})" in await subject._check_slaves(0.0)
    own = LogChecksums(store, disk=disk, run_id="run")
    verdict = await TailCheck(own, client=client, master=lambda: "10.0.0.9:1")(4096)
    assert verdict.outcome is TailOutcome.FAILED
    await store.close()


async def test_an_empty_master_that_stands_at_a_later_file_fetches_nothing_from_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log never continues below its end."""
    asked: list[int] = []

    async def read_log_checksum(*_: object) -> LogChecksumResponse:
        return LogChecksumResponse(min_offset=0, max_offset=12_288, size_bytes=0, crc=0)

    async def read_log(_client: object, address: str, log_offset: int, _size: int) -> None:
        asked.append(log_offset)
        raise BrokerUnreachable(f"{address} does not answer")

    monkeypatch.setattr(tail_check, "read_log_checksum", read_log_checksum)
    monkeypatch.setattr(tail_check, "read_log", read_log)
    clock, disk = ManualClock(), MemoryDisk()
    options = StoreOptions(
        root=Path("/store"), role=BrokerRole.SLAVE, commit_log_file_bytes=4096, in_sync_replicas=2
    )
    store = await MessageStore.open(options, disk=disk, clock=clock)
    store.append_raw(8192, bytes(20))
    await store.close()
    options = replace(options, role=BrokerRole.SYNC_MASTER)
    store = await MessageStore.open(options, disk=disk, clock=clock)
    assert store.min_log_offset == store.max_log_offset == 8192
    subject = tail_wait(store, disk, clock)
    assert "does not answer" in await subject._check_slaves(0.0)
    assert asked == [8192]
    await store.close()


@pytest.mark.parametrize("is_slave", [False, True])
async def test_only_a_master_can_halt_a_slave(monkeypatch: pytest.MonkeyPatch, is_slave: bool) -> None:
    """A lost master that came back as an empty slave is asked until name servers report the new one."""

    async def read_log_checksum(*_: Any) -> LogChecksumResponse:
        return msgspec.structs.replace(EMPTY, is_slave=is_slave or None)

    monkeypatch.setattr(tail_check, "read_log_checksum", read_log_checksum)
    clock, disk = ManualClock(), MemoryDisk()
    store = await MessageStore.open(StoreOptions(root=Path("/store")), disk=disk, clock=clock)
    check = TailCheck(
        LogChecksums(store, disk=disk, run_id="run"),
        client=cast(RemotingClient, None),
        master=lambda: "10.0.0.9:10911",
    )
    verdict = await check(4096)
    assert verdict.outcome is (TailOutcome.FAILED if is_slave else TailOutcome.SLAVE_AHEAD)
    assert ("10.0.0.9:10911 is not a master" in verdict.detail) == is_slave
    await store.close()


async def test_a_decision_that_did_not_know_of_another_master_does_not_hold_once_that_is_gone() -> None:
    """The other master continued to store messages meanwhile, and its slaves hold them."""
    clock, disk = ManualClock(), MemoryDisk()
    options = StoreOptions(root=Path("/store"), role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await MessageStore.open(options, disk=disk, clock=clock)
    others = ["10.0.0.8:10911"]
    subject = tail_wait(store, disk, clock, slave_count=0, others=others)
    waiting = asyncio.create_task(subject.run())
    await clock.pass_time(0.1)
    subject.handle_accept(cast(Channel, None), Command.request(RequestCode.TANDEM_ACCEPT_LOG))
    await clock.pass_time(0.1)
    assert "is the master of this name" in subject.reason
    others.clear()
    await clock.pass_time(2.5)
    assert "no slave is known" in subject.reason
    assert not waiting.done()
    subject.handle_accept(cast(Channel, None), Command.request(RequestCode.TANDEM_ACCEPT_LOG))
    await clock.pass_time(2.5)
    assert waiting.done()
    await store.close()


@pytest.mark.parametrize(
    ("error", "is_followed"),
    [
        (BrokerUnreachable("nobody is there"), False),
        (RequestTimeout("it says nothing"), False),
        (RequestRejected("may not", code=ResponseCode.NO_PERMISSION), False),
        (RequestRejected("its disk cannot be read", code=ResponseCode.SYSTEM_ERROR), False),
        (RequestRejected("unknown", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED), True),  # RocketMQ
    ],
)
async def test_a_master_that_cannot_tell_is_followed_only_when_it_says_that_it_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, error: TandemError, is_followed: bool
) -> None:
    async def read_log_checksum(*_: Any) -> LogChecksumResponse:
        raise error

    monkeypatch.setattr(tail_check, "read_log_checksum", read_log_checksum)
    clock, disk = ManualClock(), MemoryDisk()
    store = await MessageStore.open(StoreOptions(root=Path("/store")), disk=disk, clock=clock)
    addresses: list[str | None] = ["10.0.0.9:10911"]
    check = TailCheck(
        LogChecksums(store, disk=disk, run_id="run"),
        client=cast(RemotingClient, None),
        master=lambda: addresses[0],
    )
    outcome = TailOutcome.NOT_COMPARED if is_followed else TailOutcome.FAILED
    assert (await check(4096)).outcome is outcome
    addresses[0] = None  # the address to ask is unknown
    assert (await check(4096)).outcome is TailOutcome.FAILED
    assert (await check(0)).outcome is TailOutcome.NOT_COMPARED
    await store.close()
