"""A master's log, mostly of plain records, for the tests of a slave that reads it in runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim.dice import Dice
from tandemmq.protocol.record import NewRecord, encode_blank, encode_record
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store.consume_queues import QueueKey
from tandemmq.store.options import QUEUE_OFFSET_MAX

SEGMENT = 8192
HOST, V6 = b"\x0a\x00\x00\x01\x00\x00\xd4\x31", bytes(16) + b"\0\0\0\1"
TOPICS = ("T", "Other", "Täg", "T" * 140)
QUEUES = 3


@dataclass
class LogWriter:
    """Writes a master's log: mostly plain records of one topic, with others among them."""

    dice: Dice
    oddity: int
    """The percentage of records that are not plain."""
    log: bytearray = field(default_factory=bytearray)
    ends: dict[QueueKey, int] = field(default_factory=dict)
    number: int = 0

    def write(self, count: int) -> bytes:
        topic = self.dice.pick(TOPICS[:2])
        for _ in range(count):
            self.number += 1
            if self.dice.happens(5):
                topic = self.dice.pick(TOPICS)
            changes: dict[str, Any] = {"topic": topic, "properties": self.properties()}
            jump = 0
            if self.dice.happens(self.oddity):
                jump = self.dice.pick((0, 0, 0, 1, 3, 100_000, -1, -2))
                changes |= self.odd_changes()
            self.add(changes, jump)
        return bytes(self.log)

    def add(self, changes: dict[str, Any], jump: int) -> None:
        dice = self.dice
        fields = {
            "queue_id": dice.below(QUEUES),
            "body": b"x" * (1 + dice.below(120)),
            "born_at_ms": 1_700_000_000_000,
            "born_host": HOST,
            **changes,
        }
        new = NewRecord(**fields)
        key = new.topic, new.queue_id
        queue_offset = self.ends.get(key, 0) + jump
        if dice.happens(self.oddity / 10):  # the topic was deleted and created again
            queue_offset = 0
            self.ends = {one: end for one, end in self.ends.items() if one[0] != new.topic}
        if 0 <= queue_offset <= QUEUE_OFFSET_MAX:
            self.ends[key] = queue_offset + 1
        places = {"stored_at_ms": 1_700_000_000_000 + 700 * self.number, "store_host": HOST}
        size = len(encode_record(new, queue_offset=0, log_offset=0, **places))
        room = SEGMENT - len(self.log) % SEGMENT
        if size + 8 > room:
            self.log += encode_blank(room).ljust(room, b"\0")
        self.log += encode_record(new, queue_offset=queue_offset, log_offset=len(self.log), **places)

    def properties(self) -> bytes:
        dice = self.dice
        pairs = [
            ("UNIQ_KEY", f"7F{self.number:030X}"),
            ("TAGS", dice.pick(("A", "B"))),
            ("WAIT", "true"),
            ("KEYS", f"k{self.number} shared"),
            ("note", dice.pick(("1", "Zürich"))),
        ]
        pairs = [pair for pair in pairs if dice.happens(70)]
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        return (text if dice.happens(70) else text[:-1]).encode()

    def odd_changes(self) -> dict[str, Any]:
        dice = self.dice
        kind = dice.below(7)
        if kind == 0:
            return {"topic": SCHEDULE_TOPIC, "properties": b"DELAY\x01%d\x02TAGS\x01A\x02" % dice.below(4)}
        if kind == 1:
            return {"sys_flag": dice.pick((1, 2, 4, 8, 12, 0x80))}
        if kind == 2:
            return {"born_host": V6}
        if kind == 3:
            return {"topic": dice.pick(TOPICS)}
        if kind == 4:
            return {"body": dice.pick((b"", b"y" * 1800)) if dice.happens(97) else b"z" * 3000}
        if kind == 5:
            return {"queue_id": dice.pick((-1, 7, 2**31 - 1))}
        texts = (
            "TAGS\x01a\x02TAGS\x01b\x02",
            "TAGS\x01a\x02TAGS\x01\x02",
            "KEYS\x01\x02UNIQ_KEY",
            "\x02\x02x\x02",
            "TAGS\x01Täg\x02KEYS\x01\U0001f600 k",
            "KEYS\x01 a  b \x02",
            "INNER_BASE\x010\x02INNER_NUM\x013\x02TAGS\x01a",
            "UNIQ_KEY\x01a\x01b\x02XTAGS\x01c\x02",
        )
        return {"properties": dice.pick(texts).encode()}
