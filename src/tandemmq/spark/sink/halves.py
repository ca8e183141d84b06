"""The half messages of a transactional write: the report of a task about them (`HalfLog`, `HalfPart`), and
the driver's stored decision to commit them (`DecisionFiles`).

A row costs 16 bytes for two offsets plus its unique key, 48 bytes in all with a key made by the sink, both on
its way to the driver and in the driver. Must not know Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
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
from tandemmq.spark.documents import read_versioned, sync_file, write_document

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
        """Returns up to `count` half messages, beginning with number `at`."""
        columns = (column.to_pylist() for column in self.rows.slice(at, count).columns)
        return [Half(half, log, key.decode()) for half, log, key in zip(*columns, strict=True)]

    def encode(self) -> bytes:
        """Returns the part as bytes, for `decode_part`."""
        facts = {_TOPIC: self.topic.encode(), _BROKER: self.broker_name.encode()}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA.with_metadata(facts)) as writer:
            writer.write_batch(self.rows)
        return bytes(sink.getvalue())


def decode_part(raw: bytes) -> HalfPart:
    """Returns the part that `HalfPart.encode` wrote."""
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
    """The half messages that one task has sent, at most `rows_max`."""

    def __init__(self, group: str, rows_max: int) -> None:
        self._group = group
        self._rows_max = rows_max
        self._columns: dict[tuple[str, str], _Column] = {}
        self._count = 0

    def properties(self, text: str) -> str:
        """Returns the properties of a row extended to those of a half message.

        The row's own immunity time is removed: after it, a broker rejects an end that it has not asked for.
        """
        if names.CHECK_IMMUNITY_TIME in text:
            text = names.remove_property(text.encode(), names.CHECK_IMMUNITY_TIME.encode()).decode()
        return f"{text}{names.TRAN_MSG}\x01true\x02{names.PGROUP}\x01{self._group}\x02"

    def add(self, topic: str, broker_name: str, properties: str, answer: Command) -> None:
        """Records a broker's answer to a half message with these properties.

        Raises:  MessageIllegal if there are more than `rows_max` rows.
        """
        if self._count >= self._rows_max:
            raise too_many_rows(self._rows_max)
        sent = read_send_answer(answer)
        column = self._columns.get((topic, broker_name))
        if column is None:
            column = self._columns[topic, broker_name] = _Column(array("q"), array("q"), [])
        column.half_offsets.append(sent.queue_offset)
        column.log_offsets.append(decode_message_id(sent.message_id).log_offset)
        # RocketMQ 4.9 does not return the key in its answer.
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


# The decision to commit, stored before the first half message is ended.
#
# The directory of a query holds its newest decision. `decision.json` names the batch and says whether it is
# done; until then `halves-BATCH-*.bin` holds its half messages. If the driver dies between two ends, the
# files remain, and after a restart the commit of the same batch resumes from them. Runs on the driver.

DIRECTORY = "transactions"
DECISION_FILE = "decision.json"
LOCK_FILE = "lock"
_FILES = f"*/{DECISION_FILE}"
VERSION = 1
_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision to commit batch `batch_id` of the query `name`; `is_done` once it is committed. `file`
    holds its half messages.
    """

    name: str
    batch_id: int
    group: str
    rows: int
    decided_at_ms: int
    file: str
    is_done: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """The query and batch, by which a task finds that its rows need not be sent."""
        return self.name, self.batch_id


class DecisionFiles:
    """The directory with the decision of one query."""

    def __init__(self, state_dir: str, name: str) -> None:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self.directory = Path(state_dir) / DIRECTORY / digest

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds an exclusive lock for the duration of the block: a driver that Spark gave up may still be
        running.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK_FILE).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Decision | None:
        """Returns the newest decision; None before the first.

        Raises:  ConfigError for a file of another version.
        """
        return _read_decision(self.directory / DECISION_FILE)

    def write(self, decision: Decision, parts: Sequence[HalfPart]) -> None:
        """Writes the decision and its half messages; both are on disk when it returns."""
        path = self.directory / decision.file
        with path.open("wb") as file:
            for part in parts:
                raw = part.encode()
                file.write(len(raw).to_bytes(_SIZE_BYTES, "big"))
                file.write(raw)
        sync_file(path)
        self._write_document(decision)

    def read_parts(self, decision: Decision) -> list[HalfPart]:
        """Returns the half messages of a decision that is not done.

        Raises:  ConfigError if the file does not contain them.
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
        """Records that the batch is committed, and removes the files of half messages."""
        self._write_document(replace(decision, is_done=True))
        for path in self.directory.glob("halves-*.bin"):
            path.unlink(missing_ok=True)

    def _write_document(self, decision: Decision) -> None:
        document = {"version": VERSION, **{name: getattr(decision, name) for name in Decision.__slots__}}
        write_document(self.directory / DECISION_FILE, document)


def new_file_name(batch_id: int) -> str:
    return f"halves-{batch_id}-{uuid4().hex[:12]}.bin"


def read_decided(state_dir: str, name: str = "") -> frozenset[tuple[str, int]]:
    """Returns the decided queries and batches, whose rows are already stored.

    `name`: only this query; a streaming query does not know its own name before its tasks run.
    """
    if not state_dir:
        return frozenset()
    directory = Path(state_dir) / DIRECTORY
    paths = [DecisionFiles(state_dir, name).directory / DECISION_FILE] if name else directory.glob(_FILES)
    found = (_read_decision(path) for path in paths)
    return frozenset(decision.key for decision in found if decision is not None)


def _read_decision(path: Path) -> Decision | None:
    document = read_versioned(path, VERSION)
    return None if document is None else Decision(**document)
