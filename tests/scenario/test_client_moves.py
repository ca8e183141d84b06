"""Consumers that were moved beyond messages, or beyond unreadable offsets, are not moved back."""

from __future__ import annotations

from pathlib import Path

import pytest
from client_rig import Rig, numbers, running_cluster, take

from tandemmq.client import Admin
from tandemmq.store.consume_queue import FILLER, UNIT
from tandemmq.store.damage import DamagedRange
from tandemmq.telemetry import events
from waits import until


def committed(rig: Rig) -> int | None:
    return rig._brokers["broker-a", 0]._tables.offsets.committed("CG", "T", 0)


async def test_a_reset_to_the_end_skips_what_lies_before(tmp_path: Path) -> None:
    """Does the same as `skipAccumulatedMessage`, while the consumer runs."""
    async with running_cluster(tmp_path, queue_count=1) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 200)
        async with rig.consumer(pull_count_max=10, cached_count_max=10) as consumer:
            assert numbers(await take(consumer, 10)) == list(range(10))
            await admin.reset_offsets("CG", "T", -1)
            await rig.fill("T", 5, first=1000)
            got: list[int] = []
            while 1004 not in got:
                got += numbers(await take(consumer, 1))
            assert [number for number in got if number >= 30] == list(range(1000, 1005))
            assert await consumer.poll(1, 0.0) == []  # acknowledges the last one
            await until(lambda: committed(rig) == 205, "its progress is kept")


@pytest.mark.parametrize("kind", ["damaged", "filler"])
async def test_an_end_that_nobody_can_read_leads_nobody_back(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker has no record there to report as the last skipped one."""
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 10)
        store = rig._brokers["broker-a", 0].store
        assert store is not None
        queue = store.queues.table["T", 0]
        entry = queue.entry(9)
        assert entry is not None
        if kind == "damaged":
            store.reader._log.damaged.add(DamagedRange(entry[0], sum(entry[:2]), "a test"), tmp_path)
        else:
            queue._tail[9 * UNIT.size :] = FILLER
        async with rig.consumer(auto_ack=False) as consumer:
            got = await take(consumer, 9)
            assert numbers(got) == list(range(9))
            for message in got:
                consumer.ack(message)
            await until(lambda: committed(rig) == 10, "its progress is kept")
            await rig.fill("T", 1, first=10)
            assert numbers(await take(consumer, 1)) == [10]
    assert not [record for record in caplog.records if record.message == events.CLAIM_REFUSED]
