"""A client creates no more topics and groups by use than the bound allows, and their disk space is
limited.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import Peer, consumer, running_broker

from tandemmq.broker.topics import quota
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.admin import CreateTopicRequest
from tandemmq.protocol.requests.consume import UpdateOffsetRequest
from waits import until


async def test_an_address_makes_so_many_topics_and_groups_by_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "_network_of", lambda host: host)  # as if the peer were on another machine
    async with (
        running_broker(tmp_path, created_per_address_max=4) as broker,
        Peer(broker) as peer,
    ):

        async def commit(group: str) -> int:
            header = UpdateOffsetRequest(consumer_group=group, topic="made-0", queue_id=0, committed_offset=0)
            return (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code

        for number in range(2):
            await peer.send_ok(f"made-{number}", b"x")
            assert await commit(f"G{number}") == ResponseCode.SUCCESS
        refused = await peer.send("made-2", b"x")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "autoCreatePerAddressMax" in (refused.remark or "")
        assert await commit("G2") == ResponseCode.NO_PERMISSION
        assert (await peer.pull("made-0", consumer_group="G2")).code == ResponseCode.NO_PERMISSION
        assert (await peer.heartbeat("c", consumer("G2", "made-0"), consumer("G1", "made-0"))).code == 0
        groups = broker._tables.groups
        assert (groups.get("G2"), groups.get("G1") is not None) == (None, True)
        # Existing topics, and topics created by a tool, keep working.
        await peer.send_ok("made-1", b"y")
        for number in range(9):
            created = CreateTopicRequest(
                topic=f"made-expressly-{number}",
                default_topic="TBW102",
                read_queue_count=1,
                write_queue_count=1,
                permission=6,
            )
            answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, created)
            assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_small_topic_takes_little_room(tmp_path: Path) -> None:
    """The queue's file has the length that RocketMQ expects, and is sparse."""
    size = 6_000_000
    async with (
        running_broker(tmp_path, store={"consume_queue_file_bytes": size}) as broker,
        Peer(broker) as peer,
    ):
        for number in range(3):
            await peer.send_ok(f"small-{number}", b"x")
        assert broker.store is not None
        files = [tmp_path / f"consumequeue/small-{number}/0/{0:020}" for number in range(3)]
        await until(lambda: all(file.exists() for file in files), "the entries are written")
    for file in files:
        found = file.stat()
        assert found.st_size == size
        assert found.st_blocks * 512 <= 64 << 10, "its content was written out, or room reserved for it"
