"""The small files by which a start knows how the last life of the store ended. `Checkpoint` says what is
known to be on disk, `EpochFile` which master wrote which bytes of the log, `StoreMarks` that the store is in
use, that it was not closed, or that its end is in doubt.

Source: spec store 1, 10, 12; spec replication 12.8; spec controller 4.4.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from struct import Struct

import msgspec

from tandemmq.errors import Corrupt
from tandemmq.protocol.hashes import crc32
from tandemmq.replication.core.epochs import (
    EpochEntry,
    EpochList,
    decode_epochs,
    decode_ids,
    encode_epochs,
    encode_ids,
)
from tandemmq.runtime.ports import Disk, File, Lock
from tandemmq.store.options import StorePaths
from tandemmq.store.record_maker import SECTOR_BYTES
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

# The checkpoint: the times up to which files are known to be on disk; they choose where recovery begins to
# read. Besides, the durable mark: the end of the whole records that are known to be on disk, below which
# nothing can be torn. And of a store that was closed in order, a digest of its queues and of where each began
# and ended.
#
# Invariants: a time only rises, and is raised only after the fsync that makes it true (spec store 21.4); so
#             does the mark.
# Strategy:   the mark lies behind RocketMQ's fields, in the same sector. It repeats the first of them: a Java
#             broker that went on with the log changes that field and leaves the mark as it was, and then the
#             mark says nothing. So does the digest of the queues behind it. A checksum of both follows: a
#             turned bit must not make a mark of bytes that never were.

CHECKPOINT_BYTES = 4096
SAFETY_MS = 3_000
_FIELDS = Struct(">qqqqq")
_MARK = Struct(">8sqq")  # name, physicMsgTimestamp once more, the mark
_MARK_AT = 64
_MARK_NAME = b"TANDEMMQ"
_QUEUES_AT = _MARK_AT + _MARK.size
_QUEUES_NAME = b"TANDEMCQ"
_SUM = Struct(">8sI")  # name, checksum of the mark and the digest
_SUM_AT = _QUEUES_AT + _MARK.size
_SUM_NAME = b"TANDEMCK"
assert _FIELDS.size <= _MARK_AT
assert _SUM_AT + _SUM.size <= SECTOR_BYTES, "a power cut leaves all of the old or all of the new"
assert SECTOR_BYTES <= CHECKPOINT_BYTES
assert len(_MARK_NAME) == len(_QUEUES_NAME) == len(_SUM_NAME) == 8, "packed as they are"


class CheckpointTimes(msgspec.Struct, frozen=True):
    """The fields of the file; times in milliseconds, offsets in bytes of the log.

    `durable_log_offset` is where a whole record ends; everything below it was fsynced. `queues_digest`: of
    the queues and their bounds, after a clean stop of ours.
    """

    log_stored_at_ms: int = 0  # physicMsgTimestamp
    queues_stored_at_ms: int = 0  # logicsMsgTimestamp
    index_stored_at_ms: int = 0  # indexMsgTimestamp
    master_flushed_offset: int = 0
    confirmed_log_offset: int = 0
    durable_log_offset: int | None = None  # ours; None: not known
    queues_digest: int | None = None  # the same

    @property
    def safe_ms(self) -> int:
        """Every record stored before this time is on disk and in the queues (RocketMQ: minTimestamp)."""
        return max(0, min(self.log_stored_at_ms, self.queues_stored_at_ms) - SAFETY_MS)


def queues_digest(queues: Iterable[tuple[str, int, int, int, int]]) -> int:
    """Of all queues that have entries: topic, queue, where its files begin, where its entries end, and where
    the newest record of them ends in the log.
    """
    lines = (" ".join(map(str, queue)) for queue in sorted(queues) if queue[3])
    return crc32("\n".join(lines).encode())


def encode_checkpoint(times: CheckpointTimes) -> bytes:
    """The whole file."""
    *fields, durable, digest = msgspec.structs.astuple(times)
    assert min(times.master_flushed_offset, times.confirmed_log_offset) >= 0, times
    # A mark below 0 would say nothing when it is read.
    assert min(durable or 0, digest or 0) >= 0, times
    data = _FIELDS.pack(*fields).ljust(_MARK_AT, b"\0")
    if durable is not None:
        data += _MARK.pack(_MARK_NAME, times.log_stored_at_ms, durable)
    if digest is not None:
        data = data.ljust(_QUEUES_AT, b"\0") + _MARK.pack(_QUEUES_NAME, times.log_stored_at_ms, digest)
    if durable is not None or digest is not None:
        data = data.ljust(_SUM_AT, b"\0")
        data += _SUM.pack(_SUM_NAME, crc32(data[_MARK_AT:]))
    assert len(data) <= SECTOR_BYTES, len(data)
    return data.ljust(CHECKPOINT_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> CheckpointTimes:
    """What a file says; a short or absurd one says nothing, which costs recovery only time."""
    if len(data) < _FIELDS.size:
        return CheckpointTimes()
    fields = _FIELDS.unpack_from(data)
    if min(fields) < 0:
        return CheckpointTimes()
    return msgspec.structs.replace(
        CheckpointTimes(*fields),
        durable_log_offset=_decode_mark(data, _MARK_AT, _MARK_NAME, fields[0]),
        queues_digest=_decode_mark(data, _QUEUES_AT, _QUEUES_NAME, fields[0]),
    )


def _decode_mark(data: bytes, at: int, wanted: bytes, log_stored_at_ms: int) -> int | None:
    if len(data) < at + _MARK.size:
        return None
    if len(data) >= _SUM_AT + _SUM.size:
        name, checksum = _SUM.unpack_from(data, _SUM_AT)
        # Older files have no checksum; a damaged name is no older file.
        if any(name) and (name, checksum) != (_SUM_NAME, crc32(data[_MARK_AT:_SUM_AT])):
            return None
    name, stored_at_ms, value = _MARK.unpack_from(data, at)
    is_ours = name == wanted and stored_at_ms == log_stored_at_ms and value >= 0
    return int(value) if is_ours else None


class Checkpoint:
    """The checkpoint of an open store: raised in memory, written by `write`."""

    def __init__(self, paths: StorePaths, disk: Disk) -> None:
        self._path = paths.checkpoint
        self._disk = disk
        self.times = CheckpointTimes()
        self._saved: CheckpointTimes | None = None

    def load(self) -> None:
        """Read the file; a missing one says nothing."""
        assert self._saved is None, "the file is taken up once"
        if self._disk.exists(self._path):
            self.times = self._saved = decode_checkpoint(self._disk.read_bytes(self._path))

    def raise_times(
        self,
        *,
        log_ms: int = 0,
        queues_ms: int = 0,
        index_ms: int = 0,
        confirmed_log_offset: int = 0,
        durable_log_offset: int | None = None,
    ) -> None:
        """Lift the given times and the mark; the next `write` writes them."""
        times = self.times
        assert confirmed_log_offset >= 0, confirmed_log_offset
        if durable_log_offset is None or durable_log_offset < (times.durable_log_offset or 0):
            durable_log_offset = times.durable_log_offset
        self.times = msgspec.structs.replace(
            times,
            log_stored_at_ms=max(times.log_stored_at_ms, log_ms),
            queues_stored_at_ms=max(times.queues_stored_at_ms, queues_ms),
            index_stored_at_ms=max(times.index_stored_at_ms, index_ms),
            confirmed_log_offset=max(times.confirmed_log_offset, confirmed_log_offset),
            durable_log_offset=durable_log_offset,
        )
        assert (times.durable_log_offset or 0) <= (self.times.durable_log_offset or 0), (times, self.times)

    def replace(self, times: CheckpointTimes) -> None:
        """Take these fields, even lower ones: recovery found the truth."""
        self.times = times

    def write(self) -> bool:
        """Write the file and sync it, if anything changed; False if the disk took no write. Blocks.

        Raises:  OSError when the fsync failed.
        """
        times = self.times
        if times == self._saved:
            return True
        try:
            file = self._open()
        except OSError:
            return False
        try:
            # The fields lie in one sector, so a power cut leaves the old or the new ones.
            if not _write_fields(file, times):
                return False
            file.sync()
        finally:
            file.close()
        self._saved = times
        return True

    def _open(self) -> File:
        if self._disk.exists(self._path):
            if self._disk.size(self._path) == CHECKPOINT_BYTES:
                return self._disk.open(self._path)
            self._disk.remove(self._path)
        return self._disk.create(self._path, CHECKPOINT_BYTES)


def _write_fields(file: File, times: CheckpointTimes) -> bool:
    try:
        file.pwrite(0, (encode_checkpoint(times),))
    except OSError:
        return False
    return True


class EpochFile:
    """The list of terms of one store, in memory as it is on disk: `epochFileCheckpoint`, as RocketMQ has it,
    and the random ids of the terms in `epochFileCheckpoint.ids`, which RocketMQ does not read.

    Invariants: what `save` was given is on disk when it returns; a reader sees all of the old list or all of
                the new. The content before is kept in `.bak`, which is read where the file is damaged: what
                it lacks is the newest term, so a copy ends sooner and nothing wrong is kept.
                The ids are written first, those of the list before included, and each is kept with the epoch
                and start of its entry: whichever of the two files a kill leaves behind, no entry has the id
                of another term. An entry without one counts as unknown.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._ids_path = path.with_name(path.name + ".ids")
        self._backup = path.with_name(path.name + ".bak")
        self._disk = disk
        self.epochs = EpochList()

    def load(self) -> None:
        """Read the list; without files it is empty.

        Raises:  Corrupt when neither the file nor its backup can be read.
        """
        damage: list[tuple[Path, str]] = []
        for path in (self._path, self._backup):
            if not self._disk.exists(path):
                continue
            try:
                self.epochs = decode_epochs(self._disk.read_bytes(path)).with_ids(self._load_ids())
            except ValueError as error:
                damage.append((path, str(error)))
                continue
            if damage:
                facts = {"path": str(damage[0][0]), "reason": damage[0][1]}
                log.warning(events.EPOCH_FILE_DAMAGED, extra=facts)
            return
        if damage:
            path, reason = damage[0]
            raise Corrupt(path, 0, f"{reason}; no backup can be read: copy the log anew from the master")
        self.epochs = EpochList()

    def save(self, epochs: EpochList) -> None:
        """Make `epochs` the list, on disk first. Blocks.

        Raises:  OSError; the list is unchanged in memory.
        """
        if epochs.ids != self.epochs.ids:
            ids = {**self.epochs.ids, **epochs.ids}
            self._disk.write_atomically(self._ids_path, encode_ids(ids))
        if epochs:
            self._disk.write_atomically(self._path, encode_epochs(epochs), keep_backup=True)
        else:
            for path in (self._path, self._backup):
                if self._disk.exists(path):
                    self._disk.remove(path)
        self.epochs = epochs

    def _load_ids(self) -> dict[EpochEntry, int]:
        """Without a file, or with a damaged one, no id is known; logs are compared by their bytes still."""
        if not self._disk.exists(self._ids_path):
            return {}
        try:
            return decode_ids(self._disk.read_bytes(self._ids_path))
        except ValueError as error:
            log.warning(events.EPOCH_FILE_DAMAGED, extra={"path": str(self._ids_path), "reason": str(error)})
            return {}


class StoreMarks:
    """The marks of a store in use: `lock` keeps other processes away, `abort` remembers a crash, `tailDoubt`
    (ours) keeps a log from being served that may lack acknowledged messages.

    Invariants: `abort` exists from before the first change that recovery makes until everything is on disk.
                It names the machine's boot in which bytes were written that may not be on disk: until
                recovery has synced what a former life left, that is still the boot of that life.
    """

    def __init__(self, paths: StorePaths, disk: Disk) -> None:
        self._paths = paths
        self._disk = disk
        self._lock: Lock | None = None

    def take(self) -> None:
        """Take the lock. Raises StoreLocked; OSError when the directory cannot be written."""
        assert self._lock is None, self._paths.lock
        self._disk.make_dirs(self._paths.root)
        self._lock = self._disk.lock(self._paths.lock)

    @property
    def has_abort(self) -> bool:
        """True when the last run did not end cleanly."""
        return self._disk.exists(self._paths.abort)

    @property
    def same_boot(self) -> bool:
        """True when the life that left `abort` wrote on the present boot of the machine, so that every byte
        it wrote can be read; False also when that is not known.
        """
        boot_id = self._disk.boot_id()
        return bool(boot_id) and self._told_boot_id() == boot_id

    def keep_abort(self) -> None:
        """From now on a crash is noticed. What is left of a former life stays: recovery has not synced it."""
        assert self._lock is not None, "another process may have the store"
        if not self.has_abort:
            self.write_abort()

    def write_abort(self, *, is_readable: bool = True) -> None:
        """What is not on disk was written on this boot; this process's id first, as RocketMQ writes it.

        `is_readable` False: an fsync has failed, and pages that were written may be gone from memory, too.
        Then no boot is named, and the next start trusts as little as after a power cut.
        """
        content = f"{os.getpid()} {self._disk.boot_id() if is_readable else ''}".rstrip()
        self._disk.write_atomically(self._paths.abort, content.encode())

    def _told_boot_id(self) -> str:
        """ "" in a file of RocketMQ, which holds the process's id only."""
        if not self.has_abort:
            return ""
        words = self._disk.read_bytes(self._paths.abort).decode("ascii", "replace").split()
        return words[1] if len(words) == 2 else ""

    def remove_abort(self) -> None:
        """Everything is on disk."""
        assert self._lock is not None, "another process may have the store"
        if self.has_abort:
            self._disk.remove(self._paths.abort)

    @property
    def doubt(self) -> str:
        """Why the log may lack acknowledged messages; empty when nothing says so."""
        if not self._disk.exists(self._paths.tail_doubt):
            return ""
        return self._disk.read_bytes(self._paths.tail_doubt).decode("utf-8", "replace")

    def write_doubt(self, reason: str) -> None:
        """From now on every start knows it, also one after a clean stop."""
        assert self._lock is not None, "another process may have the store"
        assert reason, "an empty one says that there is no doubt"
        self._disk.write_atomically(self._paths.tail_doubt, reason.encode())

    def remove_doubt(self) -> None:
        """The log is what is served from now on."""
        if self._disk.exists(self._paths.tail_doubt):
            self._disk.remove(self._paths.tail_doubt)

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
