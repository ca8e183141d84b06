"""Every strategy shares queues as RocketMQ's class of the same name does.

The expected shares are those of the classes of rocketmq-client 5.3.3 for the same queues and ids.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandemmq.client import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    MessageQueue,
    allocate_averagely,
    allocate_by_circle,
)
from tandemmq.client.consumer.rebalance import Allocate
from tandemmq.errors import ClientError

IDS = ("10.0.0.9@3", "10.0.0.1@1", "10.0.0.2@7")
ROOM_IDS = ("west-1", "east-2", "east-1")


def queues(*names: str, count: int) -> list[MessageQueue]:
    return [MessageQueue("T", name, number) for number in range(count) for name in names]


QUEUES = queues("broker-b", "broker-a", count=5)
ROOM_QUEUES = queues("plain", "east@a", "west@b", "north@c", count=4)


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.split("-")[0]


def texts(share: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in share)


@pytest.mark.parametrize(
    ("allocate", "given", "ids", "expected"),
    [
        (
            allocate_averagely,
            QUEUES,
            IDS,
            [
                "broker-a/0 broker-a/1 broker-a/2 broker-a/3",
                "broker-a/4 broker-b/0 broker-b/1",
                "broker-b/2 broker-b/3 broker-b/4",
            ],
        ),
        (
            allocate_by_circle,
            QUEUES,
            IDS,
            [
                "broker-a/0 broker-a/3 broker-b/1 broker-b/4",
                "broker-a/1 broker-a/4 broker-b/2",
                "broker-a/2 broker-b/0 broker-b/3",
            ],
        ),
        (
            AllocateByConsistentHash(),
            QUEUES,
            IDS,
            [
                "broker-b/1 broker-b/4",
                "broker-a/0 broker-a/1 broker-a/3 broker-b/0 broker-b/2 broker-b/3",
                "broker-a/2 broker-a/4",
            ],
        ),
        (
            AllocateByConsistentHash(3),
            QUEUES,
            IDS,
            [
                "broker-b/1",
                "broker-a/0 broker-a/1 broker-a/2 broker-b/0 broker-b/3 broker-b/4",
                "broker-a/3 broker-a/4 broker-b/2",
            ],
        ),
        (
            AllocateByMachineRoom(frozenset({"east", "north"})),
            ROOM_QUEUES,
            IDS,
            ["east@a/0 east@a/1 north@c/2", "east@a/2 east@a/3 north@c/3", "north@c/0 north@c/1"],
        ),
        (
            AllocateMachineRoomNearby(room_of_queue, room_of_client),
            ROOM_QUEUES,
            ROOM_IDS,
            [
                "east@a/0 east@a/1 north@c/0 north@c/1 plain/0 plain/1",
                "east@a/2 east@a/3 north@c/2 plain/2",
                "west@b/0 west@b/1 west@b/2 west@b/3 north@c/3 plain/3",
            ],
        ),
        (
            AllocateMachineRoomNearby(room_of_queue, room_of_client, allocate_by_circle),
            ROOM_QUEUES,
            ROOM_IDS,
            [
                "east@a/0 east@a/2 north@c/0 north@c/3 plain/0 plain/3",
                "east@a/1 east@a/3 north@c/1 plain/1",
                "west@b/0 west@b/1 west@b/2 west@b/3 north@c/2 plain/2",
            ],
        ),
    ],
)
def test_shares_are_those_of_rocketmq(
    allocate: Allocate, given: list[MessageQueue], ids: tuple[str, ...], expected: list[str]
) -> None:
    assert [texts(allocate(given, ids, own_id)) for own_id in sorted(ids)] == expected
    assert allocate(given, ids, "nobody") == []


@pytest.mark.parametrize("allocate", [allocate_by_circle, AllocateByConsistentHash()])
@pytest.mark.parametrize("count", range(7))
def test_every_queue_has_one_owner(allocate: Callable[..., list[MessageQueue]], count: int) -> None:
    given = queues("a", count=count)
    assert sorted(queue for own_id in IDS for queue in allocate(given, IDS, own_id)) == sorted(given)


def test_a_queue_in_no_room_is_an_error() -> None:
    nearby = AllocateMachineRoomNearby(lambda queue: "", room_of_client)
    with pytest.raises(ClientError, match="no machine room"):
        nearby(QUEUES, ROOM_IDS, "east-1")


def test_configured_queues_are_all_that_is_read_but_for_other_topics() -> None:
    mine = AllocateByConfig((MessageQueue("T", "broker-a", 3), MessageQueue("T", "gone", 0)))
    assert texts(mine(QUEUES, IDS, IDS[0])) == "broker-a/3"
    retries = [MessageQueue("%RETRY%CG", "broker-a", 0)]
    assert [len(mine(retries, IDS, own_id)) for own_id in sorted(IDS)] == [1, 0, 0]
