"""A slave that receives parsed columns of its master's bytes builds the same tables as without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_rig import ROOT, Rig, record

from tandemmq.protocol.record_scan import read_intact
from tandemmq.store import BrokerRole, FlushMode, MessageStore

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


def copy(master: MessageStore, slave: MessageStore, *, tells: bool, known_share: float = 1.0) -> None:
    """Sends whole records in chunks; `known_share`: the part of each chunk that the columns cover."""
    while slave.max_log_offset < master.max_log_offset:
        at = slave.max_log_offset
        view = master.log.valid_view(at, CHUNK)
        columns = read_intact(view, log_offset=at, record_bytes_max=CHUNK)
        size = columns.end or len(view)  # a filler has no columns
        known = columns.head(int(len(columns) * known_share)) if tells and len(columns) else None
        slave.append_raw(at, view[:size], known)


async def master_with(rig: Rig, count: int) -> MessageStore:
    store = await rig.open()
    for n in range(count):
        rig.put(store, record(b"%03d" % n + b"x" * (n % 90), queue_id=n % 3, tags="AB"[n % 2], keys=f"k{n}"))
    return store


@pytest.mark.parametrize("flush_mode", list(FlushMode))
@pytest.mark.parametrize("known_share", [1.0, 0.5, 0.0])
async def test_tables_are_the_same(flush_mode: FlushMode, known_share: float) -> None:
    master = await master_with(Rig(), 120)
    slaves = [Rig(role=BrokerRole.SLAVE, flush_mode=flush_mode) for _ in range(2)]
    for rig, tells in zip(slaves, (True, False), strict=True):
        slave = await rig.open()
        copy(master, slave, tells=tells, known_share=known_share)
        await slave.confirmed.wait_for(master.max_log_offset)
        assert slave.dispatched.value == master.max_log_offset
        assert slave.query_keys("T", "k77", 8, 0, 2**62) == master.query_keys("T", "k77", 8, 0, 2**62) != []
        await slave.close()
    await master.close()
    told, untold = map(files, slaves)
    assert told.keys() == untold.keys()
    assert [path for path in told if told[path] != untold[path]] == []
