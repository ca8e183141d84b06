"""The offset at which a consumer begins in a queue that existed when its group began, or that appeared later.

Source: spec semantics 12.4.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.api.broker_consume import GroupProgress
from tandemmq.client.consumer import offsets as subject
from tandemmq.client.consumer.offsets import StartOffsets
from tandemmq.client.options import ConsumerOptions, StartFrom
from tandemmq.errors import BrokerUnreachable
from tandemmq.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("T", "a", number) for number in range(3)]
END = 100


class Rig:
    """A store of offsets in a table; the test defines the effect of the clock's sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.committed: dict[MessageQueue, int] = {}
        self.silent: set[MessageQueue] = set()
        self.refusing: set[MessageQueue] = set()
        self.meanwhile: dict[MessageQueue, int] = {}
        view = SimpleNamespace(subscribe_queues=tuple(QUEUES))
        instance = SimpleNamespace(routes=SimpleNamespace(get=lambda _: view), clock=self)
        self.starts = StartOffsets(self, instance, ConsumerOptions(**options))  # type: ignore[arg-type]  # enough
        monkeypatch.setattr(subject, "find_offset", self._find_offset)

    async def _find_offset(self, queue: MessageQueue, start_from: StartFrom, *_: Any) -> int:
        return {StartFrom.FIRST: 0, StartFrom.LAST: END, StartFrom.TIMESTAMP: 50}[start_from]

    async def open(self) -> None: ...

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        if queue in self.silent:
            raise BrokerUnreachable("silent")
        offset = self.committed.get(queue)
        return None if offset is None else GroupProgress(offset)

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        if queue in self.refusing:
            raise BrokerUnreachable("refused")
        self.committed[queue] = offset

    async def flush(self) -> None: ...

    async def sleep(self, seconds: float) -> None:
        assert seconds == subject.BASELINE_GRACE_S
        self.committed |= self.meanwhile

    async def find(self, queue: MessageQueue, *, is_assigned: bool = False) -> int:
        return (await self.starts.find(queue, is_assigned=is_assigned)).offset


async def test_a_new_group_begins_every_queue_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    assert await rig.find(QUEUES[1]) == END
    assert rig.committed == dict.fromkeys(QUEUES, END)


async def test_a_queue_without_an_offset_is_new_to_a_group_that_has_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    rig.committed[QUEUES[0]] = 7
    assert await rig.find(QUEUES[2]) == 0
    assert await rig.find(QUEUES[0]) == 7


async def test_members_that_start_together_wait_for_each_others_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    rig.committed[QUEUES[0]] = END
    rig.meanwhile = dict.fromkeys(QUEUES, END)
    assert await rig.find(QUEUES[1]) == END, "the other member has just begun to commit"


async def test_a_group_is_not_new_while_a_broker_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    rig.silent = {QUEUES[2]}
    with pytest.raises(BrokerUnreachable):
        await rig.find(QUEUES[0])
    assert not rig.committed
    rig.committed[QUEUES[1]] = 7
    assert await rig.find(QUEUES[0]) == 0, "one offset is enough to tell"


async def test_a_beginning_that_no_broker_took_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    rig.refusing = {QUEUES[2]}
    assert await rig.find(QUEUES[0]) == END
    monkeypatch.setattr(subject, "find_offset", None)  # the end has moved; it is not queried again
    assert await rig.find(QUEUES[2]) == END


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_a_queue_that_was_not_in_the_first_route_is_new(
    is_assigned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES[:2])
    rig.starts.on_route("T", QUEUES)
    rig.committed[QUEUES[0]] = 7
    assert await rig.find(QUEUES[2], is_assigned=is_assigned) == 0


async def test_an_assigned_queue_begins_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    rig.committed[QUEUES[0]] = 7
    assert await rig.find(QUEUES[1], is_assigned=True) == END
    assert QUEUES[1] not in rig.committed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start_from": StartFrom.FIRST}, 0),
        ({"start_from": StartFrom.TIMESTAMP, "start_time_ms": 1}, 50),
        ({"zero_when_none_stored": True}, END),
    ],
)
async def test_other_beginnings_commit_nothing(
    options: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(monkeypatch, **options)
    rig.starts.on_route("T", QUEUES)
    assert await rig.find(QUEUES[0]) == expected
    assert not rig.committed


async def test_a_topic_that_is_made_again_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of the topic were deleted with it."""
    rig = Rig(monkeypatch)
    rig.starts.on_route("T", QUEUES)
    rig.committed = dict.fromkeys(QUEUES, 7)
    assert await rig.find(QUEUES[0]) == 7
    rig.committed.clear()
    assert await rig.find(QUEUES[0]) == 0
