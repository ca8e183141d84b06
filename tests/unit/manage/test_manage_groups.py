"""Reads and changes of consumer groups, and moves of their offsets, against a cluster in this process."""

from __future__ import annotations

import pytest

from managed_cluster import ManagedCluster
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.client import ConsumerOptions, StartFrom
from tandemmq.client.groups import read_members
from tandemmq.errors import BadRequest, Busy, GroupNotFound, NotPermitted, QueueNotFound, RequestRejected
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.cluster import read_lag
from tandemmq.manage.groups import (
    change_group,
    delete_group,
    read_group,
    read_groups,
    read_state,
    read_states,
)
from tandemmq.manage.progress import GroupLag, find_behind_s, read_lags, read_reports, sum_lag
from tandemmq.manage.resets import NewPosition, QueueMove, clone_offsets, preview_reset, reset_group
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.topic_names import retry_topic
from waits import until

NOW_MS = 1_900_000_000_000


async def lag_of(managed: ManagedCluster, group: str, topic: str = "Orders") -> int:
    return sum_lag(await read_lags(managed.tools, [managed.cluster.master_address], group, topic))


async def test_groups_have_settings_members_and_lag(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders", queue_count=2)
    await managed.send("Orders", 4)
    await managed.consume("Orders", "billing", 1)
    with pytest.raises(GroupNotFound, match=r"no broker that answers has the group 'audit'"):
        await read_group(managed.tools, "audit", NOW_MS)
    async with managed.cluster.consumer("Orders", "billing"):
        table = await read_groups(managed.tools)
        assert table.groups["billing"].can_consume
        assert not table.groups["billing"].is_system

        async def is_online() -> bool:
            states = await read_states(managed.tools, table, ["billing"], NOW_MS)
            return bool(states["billing"].members.members)

        await until(is_online)
        state = (await read_states(managed.tools, table, ["billing"], NOW_MS))["billing"]
        assert state.topics == ["Orders"]
        group, same = await read_group(managed.tools, "billing", NOW_MS)
        assert (set(group.configs), same.lag) == ({"broker-a"}, 3)
        assert (state.lag, state.retry_count, state.dead_count) == (3, 0, 0)
        assert set(state.members.subscriptions["Orders"]) == {managed.cluster.master_address}
        reports = await read_reports(managed.tools, [managed.cluster.master_address], "billing")
        assert set(reports.readers().values()) <= set(state.members.members)


async def test_a_group_is_created_changed_and_deleted(managed: ManagedCluster) -> None:
    masters = await answering_masters(managed.tools)
    await change_group(managed.tools, masters, "billing", {"retry_count_max": 3})
    await change_group(managed.tools, masters, "billing", {"is_consume_enabled": False})
    group = (await read_groups(managed.tools)).groups["billing"]
    (config,) = group.configs.values()
    assert (config.retry_count_max, config.is_consume_enabled, group.can_consume) == (3, False, False)
    await delete_group(managed.tools, masters, "billing", removes_offsets=True)
    assert "billing" not in (await read_groups(managed.tools)).groups


async def test_a_reset_does_what_its_preview_says(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders", queue_count=1)
    await managed.send("Orders", 10)
    await managed.consume("Orders", "billing", 4)
    queue = MessageQueue("Orders", "broker-a", 0)
    for position, new_offset, skipped, repeated in (
        (NewPosition(END_OF_QUEUE_MS), 10, 6, 0),
        (NewPosition(0), 0, 0, 10),
        (NewPosition(queue=queue, offset=7), 7, 7, 0),
        (NewPosition(queue=queue, offset=5), 5, 0, 2),
    ):
        (move,) = await preview_reset(managed.tools, "billing", "Orders", position)
        assert (move.new_offset, move.skipped, move.repeated) == (new_offset, skipped, repeated)
        assert await reset_group(managed.tools, "billing", "Orders", position) == {queue: new_offset}
        assert await lag_of(managed, "billing") == 10 - new_offset
    for offset in (-1, 11):
        beyond = NewPosition(queue=queue, offset=offset)
        for move_or_preview in (preview_reset, reset_group):
            with pytest.raises(BadRequest, match=f"offset {offset} .* must be from 0 to 10"):
                await move_or_preview(managed.tools, "billing", "Orders", beyond)
    elsewhere = NewPosition(queue=MessageQueue("Orders", "broker-a", 9), offset=0)
    with pytest.raises(QueueNotFound):
        await reset_group(managed.tools, "billing", "Orders", elsewhere)


async def test_one_queue_of_an_online_group_is_moved(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders", queue_count=2)
    await managed.send("Orders", 6)
    master = [managed.cluster.master_address]
    async with managed.cluster.consumer("Orders", "billing"):

        async def is_online() -> bool:
            return bool((await read_members(managed.tools.remoting, master, "billing")).members)

        await until(is_online)
        queue = MessageQueue("Orders", "broker-a", 1)
        moved = await reset_group(managed.tools, "billing", "Orders", NewPosition(queue=queue, offset=2))
        assert moved == {queue: 2}


async def test_offsets_are_cloned(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders", queue_count=2)
    await managed.send("Orders", 6)
    await managed.consume("Orders", "billing", 4)
    await change_group(managed.tools, await answering_masters(managed.tools), "audit", {})
    await clone_offsets(managed.tools, "billing", "audit", "Orders")
    assert await lag_of(managed, "audit") == 2


async def test_retries_are_no_lag_of_the_cluster(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders", queue_count=1)
    await managed.send("Orders", 3)
    options = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False)
    async with managed.cluster.consumer("Orders", "billing", options=options) as consumer:
        [message] = await consumer.poll(count_max=1, timeout_s=20)
        # A broker tells the progress of a group only in topics with an offset of the group.
        retries = retry_topic("billing")
        await until(lambda: any(queue.topic == retries for queue in consumer.assigned))
        await consumer.retry_later(message, delay_level=1)
        await consumer.commit()
    masters = await answering_masters(managed.tools)

    async def is_stored() -> bool:  # the retry is another message of the broker
        return (await read_state(managed.tools, [masters[0].address], "billing", NOW_MS)).retry_count == 1

    await until(is_stored)
    found = await read_lag(managed.tools, masters, NOW_MS)
    assert (found.total, found.worst) == (2, (("billing", 2),))


@pytest.mark.parametrize(
    ("refusal", "is_known"),
    [
        (GroupNotFound("unknown"), True),
        (RequestRejected("offline", code=ResponseCode.CONSUMER_NOT_ONLINE), True),
        (Busy("too many requests"), False),
        (NotPermitted("no right"), False),
    ],
)
async def test_a_refusal_is_no_absence(
    managed: ManagedCluster, monkeypatch: pytest.MonkeyPatch, refusal: RequestRejected, is_known: bool
) -> None:
    async def refuse(*args: object, **kwargs: object) -> None:
        raise refusal

    for call in ("query_consumer_connections", "query_consume_stats"):
        monkeypatch.setattr(f"tandemmq.manage.progress.broker_admin.{call}", refuse)
    address = managed.cluster.master_address
    state = await read_state(managed.tools, [address], "billing", NOW_MS)
    assert (state.lags, state.members.members) == ([], {})
    reason = f"{address} does not tell members or progress: {refusal}"
    assert state.problems == ([] if is_known else [reason])
    if is_known:
        assert await read_lags(managed.tools, [address], "billing", "Orders") == []
        return
    with pytest.raises(type(refusal)):
        await read_lags(managed.tools, [address], "billing", "Orders")


async def test_dead_letters_are_counted(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("%DLQ%billing", queue_count=1)
    await managed.send("%DLQ%billing", 2)
    state = await read_state(managed.tools, [managed.cluster.master_address], "billing", NOW_MS)
    assert state.dead_count == 2


@pytest.mark.parametrize(
    ("committed", "new_offset", "skipped", "repeated"),
    [(None, 12, 2, 0), (None, 0, 0, 0), (5, 12, 2, 0), (15, 12, 0, 3), (15, 99, 5, 0), (15, 0, 0, 5)],
)
def test_a_move_counts_only_messages_that_are_stored(
    committed: int | None, new_offset: int, skipped: int, repeated: int
) -> None:
    move = QueueMove(MessageQueue("T", "a", 0), 10, 20, committed, new_offset)
    assert (move.skipped, move.repeated) == (skipped, repeated)


def test_the_oldest_progress_with_a_lag_counts() -> None:
    def lag(end: int, read_at_ms: int) -> GroupLag:
        return GroupLag(MessageQueue(), end, 5, 0, read_at_ms)

    assert find_behind_s([lag(9, 4_000), lag(5, 1_000), lag(9, 2_000), lag(9, 0)], 10_000) == 8
    assert find_behind_s([lag(5, 1_000)], 10_000) is None
    assert lag(9, 0).behind_s(10_000) is None
