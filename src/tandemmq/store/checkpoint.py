"""The small files from which a start learns how the last run of the store ended.

`Checkpoint` holds what is known to be on disk. `EpochFile` holds the master that wrote each range of the log.
`StoreMarks` records that the store is in use, was not closed, or has an unverified end.

Source:  spec store 1, 10, 12; spec replication 12.8; spec controller 4.4.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
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

# The checkpoint holds the times up to which files are known to be on disk; they select the file in which
# recovery begins to read. It also holds the durable mark: the end of the whole records known to be on disk,
# below which nothing can be torn. After a clean stop it holds a digest of the queues and their bounds.
#
# Invariants: a time only rises, and is raised only after the fsync that makes it true (spec store 21.4); so
#             does the mark.
# Strategy:   the mark follows RocketMQ's fields, in the same sector. It repeats the first of them: a Java
#             broker that continued the log changes that field but not the mark, which is then void. The
#             digest of the queues after it works the same way. A checksum of both follows, so that a bit flip
#             cannot forge a mark for bytes that never existed.

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

    `durable_log_offset` is the end of a whole record; everything below was fsynced. `queues_digest`: of the
    queues and their bounds, after a clean stop of ours.
    """

    log_stored_at_ms: int = 0  # physicMsgTimestamp
    queues_stored_at_ms: int = 0  # logicsMsgTimestamp
    index_stored_at_ms: int = 0  # indexMsgTimestamp
    master_flushed_offset: int = 0
    confirmed_log_offset: int = 0
    durable_log_offset: int | None = None  # ours; None: unknown
    queues_digest: int | None = None  # ours; None: unknown

    @property
    def safe_ms(self) -> int:
        """The time before which every stored record is on disk and in the queues (RocketMQ: minTimestamp)."""
        return max(0, min(self.log_stored_at_ms, self.queues_stored_at_ms) - SAFETY_MS)


def queues_digest(queues: Iterable[tuple[str, int, int, int, int]]) -> int:
    """Returns a digest of all queues with entries.

    Each item: topic, queue, start of its files, end of its entries, and log end of its newest record.
    """
    lines = (" ".join(map(str, queue)) for queue in sorted(queues) if queue[3])
    return crc32("\n".join(lines).encode())


def encode_checkpoint(times: CheckpointTimes) -> bytes:
    """Returns the content of the whole file."""
    *fields, durable, digest = msgspec.structs.astuple(times)
    assert min(times.master_flushed_offset, times.confirmed_log_offset) >= 0, times
    # A negative mark would be ignored when it is read.
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
    """Decodes a file; a short or invalid one counts as empty, which only costs recovery time."""
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
        # Older files have no checksum; a damaged name is not an older file.
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
        """Reads the file; a missing one counts as empty."""
        assert self._saved is None, "the file is loaded once"
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
        """Raises the given times and the mark; the next `write` writes them."""
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
        """Sets these fields, even to lower values, because recovery determined the true state."""
        self.times = times

    def write(self) -> bool:
        """Writes and syncs the file if anything changed; False if the disk accepted no write. Blocks.

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
            # All fields are in one sector, so a power cut leaves either the old or the new ones.
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
    """The list of terms of one store, the same in memory and on disk.

    `epochFileCheckpoint` has RocketMQ's format; `epochFileCheckpoint.ids` holds the random ids of the terms,
    which RocketMQ does not read.

    Invariants: the list passed to `save` is on disk when `save` returns; a reader sees either the old or the
                new list as a whole. The previous content is kept in `.bak`. The ids are written first,
                including those of the previous list, and each is stored with the epoch and start of its
                entry. Whichever of the two files a kill leaves behind, no entry gets the id of another term.
                An entry without an id counts as unknown.
    Damage:     a damaged file is completed: the backup and the newer terms of the ids make a list, which is
                the lost one if it has the checksum or the lines that the damaged file shows. If no list has
                them, the backup is used, which lacks only the newest terms: two logs agree up to a shorter
                point, and nothing wrong is kept.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._ids_path = path.with_name(path.name + ".ids")
        self._backup = path.with_name(path.name + ".bak")
        self._disk = disk
        self.epochs = EpochList()

    def load(self) -> None:
        """Reads the list; without files it is empty.

        Raises:  Corrupt when the file is damaged, and neither its backup nor the ids can restore it.
        """
        ids = self._load_ids()
        backup, damaged, reason = EpochList(), None, ""
        for path in (self._path, self._backup):
            if not self._disk.exists(path):
                continue
            data = self._disk.read_bytes(path)
            try:
                backup = decode_epochs(data).with_ids(ids)
                break
            except ValueError as error:
                if damaged is None:
                    damaged, reason = (path, data), str(error)
        if damaged is None:
            self.epochs = backup
            return
        path, data = damaged
        completed = _completed(data, backup, ids)
        if completed is None and not backup:
            advice = "no backup can be read: empty this store, the broker then copies the log anew"
            raise Corrupt(path, 0, f"{reason}; {advice}")
        self.epochs = backup if completed is None else completed
        advice = "the list before it is used: if this copy halts, empty its store to have it copied anew"
        extra = {"path": str(path), "reason": reason, "epoch": self.epochs.last_epoch}
        outcome = advice if completed is None else "completed from the ids of the terms"
        log.warning(events.EPOCH_FILE_DAMAGED, extra={**extra, "outcome": outcome})

    def save(self, epochs: EpochList) -> None:
        """Makes `epochs` the list, on disk first. Blocks.

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
        """Returns the ids; empty without a file or with a damaged one. Logs are then compared by
        bytes only.
        """
        if not self._disk.exists(self._ids_path):
            return {}
        try:
            return decode_ids(self._disk.read_bytes(self._ids_path))
        except ValueError as error:
            log.warning(events.EPOCH_FILE_DAMAGED, extra={"path": str(self._ids_path), "reason": str(error)})
            return {}


def _completed(damaged: bytes, backup: EpochList, ids: Mapping[EpochEntry, int]) -> EpochList | None:
    """Returns the list that a damaged file had; None if it cannot be proven. A list of the backup's terms and
    of newer ones with ids is proven by the checksum in the damaged file, or by the lines in it.
    """
    lists = [backup]
    for entry in sorted(ids):
        if entry.epoch > backup.last_epoch:
            lists.append(lists[-1].append(*entry, ids[entry]))
    shown = damaged.split(b"\n", 2)[1:]
    encoded = [(one, encode_epochs(one).split(b"\n", 2)) for one in lists if one]
    # A file that lost its last lines shows the lines of an older list, so the checksum decides first.
    by_checksum = [one for one, (_, checksum, _) in encoded if checksum in shown[:1]]
    by_lines = [one for one, (_, _, lines) in encoded if lines in shown[1:]]
    return next(iter(by_checksum + by_lines), None)


class StoreMarks:
    """The marks of a store in use: `lock`, `abort` and `tailDoubt`.

    `lock` excludes other processes, `abort` records a crash, `tailDoubt` (ours) prevents serving a log that
    may lack acknowledged messages.

    Invariants: `abort` exists from before the first change by recovery until everything is on disk. It names
                the machine's boot in which possibly unsynced bytes were written. Until recovery has synced
                the bytes of a former run, that is still the boot of that run.
    """

    def __init__(self, paths: StorePaths, disk: Disk) -> None:
        self._paths = paths
        self._disk = disk
        self._lock: Lock | None = None

    def acquire(self) -> None:
        """Acquires the lock. Raises StoreLocked; OSError when the directory cannot be written."""
        assert self._lock is None, self._paths.lock
        self._disk.make_dirs(self._paths.root)
        self._lock = self._disk.lock(self._paths.lock)

    @property
    def has_abort(self) -> bool:
        """True if the last run did not end cleanly."""
        return self._disk.exists(self._paths.abort)

    @property
    def same_boot(self) -> bool:
        """True if the run that left `abort` wrote on the present boot, so that every byte it wrote can be
        read.

        False also if that is unknown.
        """
        boot_id = self._disk.boot_id()
        return bool(boot_id) and self._recorded_boot_id() == boot_id

    def ensure_abort(self) -> None:
        """Ensures that a crash is noticed from now on. An existing mark stays, as recovery has not synced
        those bytes.
        """
        assert self._lock is not None, "another process may have the store"
        if not self.has_abort:
            self.write_abort()

    def write_abort(self, *, is_readable: bool = True) -> None:
        """Records that unsynced bytes were written on this boot; the process id comes first, as in RocketMQ.

        `is_readable` False: an fsync has failed, and written pages may be gone from memory, too. Then no boot
        is named, and the next start trusts as little as after a power cut.
        """
        content = f"{os.getpid()} {self._disk.boot_id() if is_readable else ''}".rstrip()
        self._disk.write_atomically(self._paths.abort, content.encode())

    def _recorded_boot_id(self) -> str:
        """Returns the boot id in `abort`; empty for a file of RocketMQ, which holds only the process id."""
        if not self.has_abort:
            return ""
        words = self._disk.read_bytes(self._paths.abort).decode("ascii", "replace").split()
        return words[1] if len(words) == 2 else ""

    def remove_abort(self) -> None:
        """Removes the mark, because everything is on disk."""
        assert self._lock is not None, "another process may have the store"
        if self.has_abort:
            self._disk.remove(self._paths.abort)

    @property
    def tail_mark(self) -> str:
        """The reason why the log may lack acknowledged messages; empty without one."""
        if not self._disk.exists(self._paths.tail_mark):
            return ""
        return self._disk.read_bytes(self._paths.tail_mark).decode("utf-8", "replace")

    def write_tail_mark(self, reason: str) -> None:
        """Writes the tail mark: records the reason for every later start, also after a clean stop."""
        assert self._lock is not None, "another process may have the store"
        assert reason, "an empty reason means that nothing is unverified"
        self._disk.write_atomically(self._paths.tail_mark, reason.encode())

    def remove_tail_mark(self) -> None:
        """Removes the mark, because the log is accepted as it is."""
        if self._disk.exists(self._paths.tail_mark):
            self._disk.remove(self._paths.tail_mark)

    def release(self) -> None:
        """Releases the lock to other processes."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
