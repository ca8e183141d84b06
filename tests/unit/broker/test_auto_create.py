"""A send to a new topic is answered only when the topic would survive a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.broker.table_file import TableSaver
from tandemmq.broker.topics import auto_create
from tandemmq.broker.topics.auto_create import UnsavedTopics
from tandemmq.errors import Busy

PATH = Path("/config/topics.json")


class BrokenDisk(NoFault):
    is_broken = True

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0 if self.is_broken else size


class Rig:
    def __init__(self) -> None:
        self.fault = BrokenDisk()
        self.fault.is_broken = False
        self.disk = MemoryDisk(fault=self.fault)
        self.saver = TableSaver(disk=self.disk, clock=ManualClock())
        self.content = b"old"
        self.file = self.saver.add(PATH, lambda: self.content, delay_ms=100)
        self.topics = UnsavedTopics(self.saver, self.file)
        self.resumed: list[tuple[str, OSError | None]] = []

    def make(self, topic: str) -> None:
        self.content += topic.encode()
        self.saver.mark(self.file)
        self.topics.add(topic)

    def hold(self, topic: str, name: str) -> None:
        self.topics.hold(topic, lambda error: self.resumed.append((name, error)))


async def test_held_sends_go_on_in_order_once_the_file_is_written() -> None:
    rig = Rig()
    rig.make("A")
    for name in ("1", "2", "3"):
        rig.hold("A", name)
    assert rig.resumed == []
    await rig.saver.save(rig.file)
    assert rig.disk.read_bytes(PATH) == b"oldA"
    assert rig.resumed == [("1", None), ("2", None), ("3", None)]
    assert "A" not in rig.topics


async def test_topic_made_while_another_is_written_waits_for_the_next_write() -> None:
    rig = Rig()
    rig.make("A")
    rig.topics.hold("A", lambda error: rig.make("B"))
    await rig.saver.save(rig.file)
    assert "B" in rig.topics
    rig.hold("B", "b")
    await rig.saver.save(rig.file)
    assert rig.resumed == [("b", None)]
    assert rig.disk.read_bytes(PATH) == b"oldAB"


async def test_a_failed_write_refuses_the_held_and_is_tried_for_the_next() -> None:
    rig = Rig()
    rig.make("A")
    rig.hold("A", "1")
    rig.fault.is_broken = True
    with pytest.raises(OSError, match="no room"):
        await rig.saver.save(rig.file)
    assert [name for name, error in rig.resumed if error is not None] == ["1"]
    assert "A" in rig.topics
    rig.fault.is_broken = False
    rig.hold("A", "2")
    await rig.saver.save(rig.file)
    assert rig.resumed[1:] == [("2", None)]


async def test_too_many_held_sends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_create, "HELD_SENDS_MAX", 2)
    rig = Rig()
    rig.make("A")
    rig.hold("A", "1")
    rig.hold("A", "2")
    with pytest.raises(Busy, match="new topics"):
        rig.hold("A", "3")
    await rig.saver.save(rig.file)
    rig.make("B")
    rig.hold("B", "4")
