"""The assignment of queues to consumers (spec semantics 12.3 and 20.1)."""

from __future__ import annotations

import json

import pytest

from tandemmq.broker.assignment import (
    allocate_average,
    allocate_by_circle,
    allocate_pop,
    readable_queues,
)
from tandemmq.broker.topics.group_table import ModeTable
from tandemmq.errors import Busy
from tandemmq.protocol.bodies.client import (
    Assignments,
    QueueAssignment,
    RequestMode,
)
from tandemmq.protocol.bodies.codec import MessageQueue, decode_body, encode_body
from tandemmq.protocol.bodies.route import QueueData, TopicRoute

QUEUES = [MessageQueue("T", "a", number) for number in range(5)]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


def test_average_gives_neighbours_and_the_rest_to_the_first() -> None:
    assert ids(allocate_average("x", QUEUES, ["x", "y"])) == [0, 1, 2]
    assert ids(allocate_average("y", QUEUES, ["x", "y"])) == [3, 4]
    assert ids(allocate_average("z", QUEUES, ["x", "y"])) == []
    clients = [f"c{number}" for number in range(7)]
    assert [ids(allocate_average(client, QUEUES, clients)) for client in clients] == [
        [0], [1], [2], [3], [4], [], [],
    ]  # fmt: skip


def test_circle_gives_every_nth() -> None:
    assert ids(allocate_by_circle("x", QUEUES, ["x", "y"])) == [0, 2, 4]
    assert ids(allocate_by_circle("y", QUEUES, ["x", "y"])) == [1, 3]


@pytest.mark.parametrize("share", [-1, 0, 2])
def test_pops_of_all_queues_name_each_broker_once(share: int) -> None:
    queues = [*QUEUES, MessageQueue("T", "b", 0)]
    got = allocate_pop(allocate_average, "x", queues, ["x", "y", "z"], share)
    assert got == [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)]


def test_pops_share_the_queues_of_the_next_clients() -> None:
    clients = ["v", "w", "x", "y", "z"]
    assert ids(allocate_pop(allocate_average, "x", QUEUES, clients, 1)) == [2, 3]
    assert ids(allocate_pop(allocate_average, "z", QUEUES, clients, 1)) == [4, 0]
    many = [f"c{number}" for number in range(7)]
    assert ids(allocate_pop(allocate_average, "c6", QUEUES, many, 1)) == [1]  # one queue, index modulo


def test_queues_of_a_route_are_the_readable_ones_in_order() -> None:
    route = TopicRoute(
        queues=(
            QueueData(broker_name="b", permission=6, read_queue_count=1, write_queue_count=4),
            QueueData(broker_name="a", permission=4, read_queue_count=2, write_queue_count=0),
            QueueData(broker_name="c", permission=2, read_queue_count=9, write_queue_count=9),
        )
    )
    assert readable_queues("T", route) == [
        MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0),
    ]  # fmt: skip


def test_modes_are_kept_in_rocketmqs_form_and_bounded() -> None:
    table = ModeTable(count_max=1)
    mode = RequestMode(topic="T", group="G", mode="POP", pop_share_queue_count=2)
    table.put(mode)
    table.put(mode)
    with pytest.raises(Busy):
        table.put(RequestMode(topic="U", group="G"))
    row = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 2}
    assert json.loads(table.encode()) == {"messageRequestModeMap": {"T": {"G": row}}}
    other = ModeTable()
    other.load(table.encode())
    assert other.get("T", "G") == mode


def test_answer_is_javas_and_none_means_no_change() -> None:
    body = encode_body(Assignments(queues=[QueueAssignment(queue=QUEUES[1], mode="POP")]))
    assert json.loads(body) == {
        "messageQueueAssignments": [
            {"messageQueue": {"brokerName": "a", "queueId": 1, "topic": "T"}, "mode": "POP"}
        ]
    }
    assert decode_body(encode_body(Assignments()), Assignments).queues is None
