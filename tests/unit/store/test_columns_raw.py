"""A slave that receives the parsed fields of its master's bytes builds the same tables as without them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from store_rig import ROOT, Rig, record

from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.protocol.record_layout import INT
from tandemmq.protocol.record_scan import read_intact
from tandemmq.protocol.sys_flag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from tandemmq.store import BrokerRole, FlushMode, MessageStore
from waits import until


def _has_confirmed(store: MessageStore, log_offset: int) -> bool:
    return store.confirmed.value >= log_offset


CHUNK = 3000


def files(rig: Rig, directory: Path = ROOT) -> dict[str, bytes]:
    """Returns every file of a store except the checkpoint, whose times are those of this run."""
    found = {}
    for name in rig.disk.list(directory):
        path = directory / name
        if rig.disk.list(path):
            found.update(files(rig, path))
        elif name != "checkpoint":
            found[str(path)] = rig.disk.read_bytes(path)
    return found


def copy(master: MessageStore, slave: MessageStore, *, how: str, known_share: float) -> None:
    """Sends whole records in chunks; `known_share`: the part of each chunk whose fields come along."""
    while slave.max_log_offset < master.max_log_offset:
        at = slave.max_log_offset
        view = master.log.valid_view(at, CHUNK)
        columns = read_intact(view, log_offset=at, record_bytes_max=CHUNK)
        size = columns.end or len(view)  # a filler has no columns
        known = columns.head(int(len(columns) * known_share))
        checks = [check_record(view, place, log_offset=at + place) for place in known.position.tolist()]
        parsed = {"columns": known if len(columns) else (), "one by one": checks, "unknown": ()}[how]
        slave.append_raw(at, view[:size], parsed)


async def master_with(rig: Rig, count: int) -> MessageStore:
    store = await rig.open()
    for n in range(count):
        new = record(b"%03d" % n + b"x" * (n % 90), queue_id=n % 3, tags="AB"[n % 2], keys=f"k{n}")
        if n % 10 == 4:
            new.topic = SCHEDULE_TOPIC
            new.properties += b"DELAY\x01%d\x02" % (1 + n % 3)
        elif n % 10 in (6, 9):
            new.sys_flag = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)[n % 2]
        rig.put(store, new)
    return store


@pytest.mark.parametrize("flush_mode", list(FlushMode))
@pytest.mark.parametrize("known_share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("how", ["columns", "one by one"])
@pytest.mark.parametrize("delays_ms", [DELAY_LEVELS_MS, (1_000, 2_000, 3_000)])
async def test_tables_are_the_same(
    flush_mode: FlushMode, known_share: float, how: str, delays_ms: tuple[int, ...]
) -> None:
    options = {"flush_mode": flush_mode, "delay_levels_ms": delays_ms}
    master = await master_with(Rig(**options), 120)
    slaves = [Rig(role=BrokerRole.SLAVE, **options) for _ in range(2)]
    for rig, known in zip(slaves, (how, "unknown"), strict=True):
        slave = await rig.open()
        copy(master, slave, how=known, known_share=known_share)
        await until(partial(_has_confirmed, slave, master.max_log_offset))
        assert slave.dispatched.value == master.max_log_offset
        assert slave.query_keys("T", "k77", 8, 0, 2**62) == master.query_keys("T", "k77", 8, 0, 2**62) != []
        await slave.close()
    await master.close()
    told, untold = map(files, slaves)
    assert told.keys() == untold.keys()
    assert [path for path in told if told[path] != untold[path]] == []


@pytest.mark.parametrize("is_known", [True, False])
async def test_dispatching_stops_at_an_intact_record_without_a_valid_topic(is_known: bool) -> None:
    master = await master_with(Rig(), 3)
    slave = await Rig(role=BrokerRole.SLAVE).open()
    places = [at for at, _size, _tag in master.queue_entries("T", 1, 0, 1)]
    log = bytearray(master.log.valid_view(0, CHUNK))
    log[log.index(b"\x01T", places[0]) + 1] = 0xFF
    checks, at = [], 0
    while at < len(log):
        checks.append(check_record(log, at, log_offset=at))
        at += INT.unpack_from(log, at)[0]
    assert [checked.outcome for checked in checks].count(RecordOutcome.BAD_TOPIC) == 1
    slave.append_raw(0, log, checks if is_known else ())
    assert (slave.max_log_offset, slave.dispatched.value) == (len(log), places[0])
    assert slave.dispatcher.parsed is None, "the bytes are not held, nor taken for others after a cut"
    await slave.close()
    await master.close()
