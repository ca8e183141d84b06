"""The half messages of a transactional write: what a task says of them (`HalfLog`, `HalfPart`), and the
decision to end them that the driver writes down (`DecisionFiles`).

A row costs 16 bytes for two offsets and the bytes of its unique key, 48 in all with a key that the sink made,
on its way to the driver and in the driver. Knows nothing of Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa

from tandemmq.api.broker_send import read_send_answer
from tandemmq.errors import ConfigError, MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.spark.lake.files import sync_dir, sync_file

_SCHEMA = pa.schema([("half_offset", pa.int64()), ("log_offset", pa.int64()), ("key", pa.binary())])
_TOPIC, _BROKER = b"topic", b"broker"


class Half(NamedTuple):
    """One half message: its offset in the half topic and in the CommitLog of its broker."""

    half_offset: int
    log_offset: int
    key: str


@dataclass(frozen=True, slots=True)
class HalfPart:
    """Half messages of one topic on one broker; `rows` is a RecordBatch."""

    topic: str
    broker_name: str
    rows: Any

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def read(self, at: int, count: int) -> list[Half]:
        """Up to `count` half messages from number `at` on."""
        columns = (column.to_pylist() for column in self.rows.slice(at, count).columns)
        return [Half(half, log, key.decode()) for half, log, key in zip(*columns, strict=True)]

    def encode(self) -> bytes:
        """The part as bytes; `decode_part` reads them."""
        facts = {_TOPIC: self.topic.encode(), _BROKER: self.broker_name.encode()}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA.with_metadata(facts)) as writer:
            writer.write_batch(self.rows)
        return bytes(sink.getvalue())


def decode_part(raw: bytes) -> HalfPart:
    """What `HalfPart.encode` wrote."""
    with pa.ipc.open_stream(raw) as reader:
        facts = reader.schema.metadata
        batch = reader.read_next_batch()
    return HalfPart(facts[_TOPIC].decode(), facts[_BROKER].decode(), batch)


def count_halves(parts: Iterable[HalfPart]) -> int:
    return sum(len(part) for part in parts)


class _Column(NamedTuple):
    half_offsets: array[int]
    log_offsets: array[int]
    keys: list[bytes]


class HalfLog:
    """What one task has sent; `rows_max` bounds it."""

    def __init__(self, group: str, rows_max: int) -> None:
        self._group = group
        self._rows_max = rows_max
        self._columns: dict[tuple[str, str], _Column] = {}
        self._count = 0

    def properties(self, text: str) -> str:
        """The properties of a row as those of a half message.

        A row's own immunity time goes: past it a broker refuses ends that it has not asked for.
        """
        if names.CHECK_IMMUNITY_TIME in text:
            text = names.remove_property(text.encode(), names.CHECK_IMMUNITY_TIME.encode()).decode()
        return f"{text}{names.TRAN_MSG}\x01true\x02{names.PGROUP}\x01{self._group}\x02"

    def add(self, topic: str, broker_name: str, properties: str, answer: Command) -> None:
        """Takes over what a broker answered to a half message with these properties.

        Raises:  MessageIllegal for one row too many.
        """
        if self._count >= self._rows_max:
            raise too_many_rows(self._rows_max)
        sent = read_send_answer(answer)
        column = self._columns.get((topic, broker_name))
        if column is None:
            column = self._columns[topic, broker_name] = _Column(array("q"), array("q"), [])
        column.half_offsets.append(sent.queue_offset)
        column.log_offsets.append(decode_message_id(sent.message_id).log_offset)
        # RocketMQ 4.9 does not name it in its answer.
        column.keys.append(names.find_property(properties.encode(), names.UNIQ_KEY.encode()) or b"")
        self._count += 1

    def parts(self) -> list[HalfPart]:
        return [
            HalfPart(topic, broker_name, _make_rows(column))
            for (topic, broker_name), column in self._columns.items()
        ]


def too_many_rows(rows_max: int) -> MessageIllegal:
    return MessageIllegal(
        f"a transaction has more than {rows_max} rows, and its driver keeps some 50 bytes of each: make the"
        " batches smaller (maxOffsetsPerTrigger), or raise the option transactionRows"
    )


def _make_rows(column: _Column) -> Any:
    arrays = [
        pa.array(column.half_offsets, pa.int64()),
        pa.array(column.log_offsets, pa.int64()),
        pa.array(column.keys, pa.binary()),
    ]
    return pa.record_batch(arrays, schema=_SCHEMA)


# The decision to commit, written down before the first half message is ended.
#
# A directory per query holds the newest one: `decision.json` says which batch, and whether all is done;
# `halves-BATCH-*.bin` holds its half messages until then. A driver that dies between two ends leaves the
# file, and the commit of the same batch after a restart goes on from it. Runs on the driver.

DIRECTORY = "transactions"
DECISION_FILE = "decision.json"
LOCK_FILE = "lock"
_FILES = f"*/{DECISION_FILE}"
VERSION = 1
_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """Batch `batch_id` of the query `name` is to be committed, or `is_done`; `file` holds what of."""

    name: str
    batch_id: int
    group: str
    rows: int
    decided_at_ms: int
    file: str
    is_done: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """What tells a task that its rows need not be sent."""
        return self.name, self.batch_id


class DecisionFiles:
    """The directory of one query."""

    def __init__(self, state_dir: str, name: str) -> None:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self.directory = Path(state_dir) / DIRECTORY / digest

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time is inside: a driver that was given up may still be at work."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK_FILE).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Decision | None:
        """The newest decision; None before the first.

        Raises:  ConfigError for a file of another version.
        """
        return _read_decision(self.directory / DECISION_FILE)

    def write(self, decision: Decision, parts: Sequence[HalfPart]) -> None:
        """Returns when the decision and its half messages are on disk."""
        path = self.directory / decision.file
        with path.open("wb") as file:
            for part in parts:
                raw = part.encode()
                file.write(len(raw).to_bytes(_SIZE_BYTES, "big"))
                file.write(raw)
        sync_file(path)
        self._put(decision)

    def read_parts(self, decision: Decision) -> list[HalfPart]:
        """The half messages of a decision that is not done.

        Raises:  ConfigError when the file does not hold them.
        """

        path = self.directory / decision.file
        parts = []
        try:
            with path.open("rb") as file:
                while head := file.read(_SIZE_BYTES):
                    parts.append(decode_part(file.read(int.from_bytes(head, "big"))))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        if count_halves(parts) != decision.rows:
            raise ConfigError(f"{path} does not hold the {decision.rows} rows of the decision")
        return parts

    def mark_done(self, decision: Decision) -> None:
        """All of it is committed; files of half messages go."""
        self._put(replace(decision, is_done=True))
        for path in self.directory.glob("halves-*.bin"):
            path.unlink(missing_ok=True)

    def _put(self, decision: Decision) -> None:
        document = {"version": VERSION, **{name: getattr(decision, name) for name in Decision.__slots__}}
        path = self.directory / DECISION_FILE
        staged = path.with_name(f"{path.name}.{uuid4().hex[:12]}")
        staged.write_text(json.dumps(document) + "\n")
        sync_file(staged)
        os.replace(staged, path)
        sync_dir(self.directory)


def new_file_name(batch_id: int) -> str:
    return f"halves-{batch_id}-{uuid4().hex[:12]}.bin"


def read_decided(state_dir: str, name: str = "") -> frozenset[tuple[str, int]]:
    """Queries and batches that are decided: what their tasks would send is there already.

    `name`: only this one; a streaming query does not know its own before its tasks run.
    """
    if not state_dir:
        return frozenset()
    directory = Path(state_dir) / DIRECTORY
    paths = [DecisionFiles(state_dir, name).directory / DECISION_FILE] if name else directory.glob(_FILES)
    found = (_read_decision(path) for path in paths)
    return frozenset(decision.key for decision in found if decision is not None)


def _read_decision(path: Path) -> Decision | None:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    version = document.pop("version", None)
    if version != VERSION:
        raise ConfigError(f"{path} has version {version!r}, not {VERSION}")
    return Decision(**document)
