"""Names on disk below a store's root (spec store 1): pure."""

from __future__ import annotations

from pathlib import Path

from tandemmq.errors import StoreError
from tandemmq.store.options import StoreOptions

FILE_NAME_DIGITS = 20
_PATH_SIGNS = frozenset("/\\\0")


def offset_file_name(offset: int) -> str:
    """The name of the file whose first byte is byte `offset` of its log."""
    return f"{offset:020d}"


def parse_offset_file_name(name: str) -> int | None:
    """The offset that a file name says; None for any other name."""
    if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def parse_queue_id(name: str) -> int | None:
    """The queue that a directory below a topic holds; None for any other name."""
    if name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name:
        return int(name)
    return None


def deletions_path(root: Path) -> Path:
    """The file of deleted topics, beside the tables of the broker."""
    return root / "config" / "deletedTopics.json"


class StorePaths:
    """Where each part of one store lies."""

    __slots__ = (
        "abort",
        "checkpoint",
        "commit_log",
        "consume_queues",
        "damaged",
        "deletions",
        "divergent",
        "epochs",
        "key_indexes",
        "lock",
        "pending_cut",
        "root",
        "tail_doubt",
    )

    def __init__(self, options: StoreOptions) -> None:
        root = options.root
        self.root = root
        self.commit_log = options.log_dir
        self.consume_queues = root / "consumequeue"
        self.key_indexes = root / "index"
        self.damaged = root / "damaged"
        self.divergent = root / "divergent"
        self.pending_cut = root / "truncate.pending"
        self.epochs = root / "epochFileCheckpoint"
        self.checkpoint = root / "checkpoint"
        self.deletions = deletions_path(root)
        self.abort = root / "abort"
        self.tail_doubt = root / "tailDoubt"
        self.lock = root / "lock"

    def topic(self, topic: str) -> Path:
        """The directory of a topic's queues.

        Raises:  StoreError for a name that would lead elsewhere. Requests cannot bring one; a record can, of
                 a log that was tampered with or of a master that is not one.
        """
        if not topic or topic in (".", "..") or not _PATH_SIGNS.isdisjoint(topic):
            raise StoreError(
                f"a message is stored under the topic {topic[:64]!r}: no directory has such a name"
            )
        return self.consume_queues / topic

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        """The directory of one ConsumeQueue's files. Raises as `topic`."""
        return self.topic(topic) / str(queue_id)
