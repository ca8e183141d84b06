"""RaftFiles: the files of one server of a Raft group.

Strategy:   three files. `vote` (term and vote in one record) and `snapshot` are replaced as a whole. `log` is
            preallocated and receives one frame with a checksum per write, which is fsynced before `save`
            returns. A newer entry replaces the older one of its index and all entries after it, so nothing is
            overwritten in place. A full log is replaced by one with the remaining entries only. A start
            replaces all three files, so that nothing depends on pages that a failed fsync of the previous run
            may have left behind.
Invariants: at most the last frame may be torn, because each is durable before the next one is written. Damage
            before an intact frame is not a torn write; it is not cut, and the server does not start.
Bounds:     the log is rewritten when it is full. Its size is at least 2 MiB and twice that of its remaining
            entries.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final, TypeVar

import msgspec

from tandemmq.consensus.core.messages import LogEntry, Persist, Saved, Snapshot, Vote
from tandemmq.errors import ConfigError, Corrupt, FlushFailed
from tandemmq.protocol.hashes import crc32
from tandemmq.runtime.ports import Disk, File, Lock
from tandemmq.units import MIB, align_up

_FRAME: Final = Struct(">4sIQI")  # magic, payload size, number, checksum of number and payload
_MAGIC: Final = b"TMQf"
_NUMBER: Final = Struct(">Q")
_RECORD_MAGIC: Final = b"TMQr"
_RECORD: Final = Struct(">4sI")  # magic, checksum of the rest
LOG_BYTES: Final = 2 * MIB

_ENTRIES = msgspec.msgpack.Decoder(tuple[LogEntry, ...])
_ENCODER = msgspec.msgpack.Encoder()
S = TypeVar("S", bound=msgspec.Struct)


class _VoteRecord(msgspec.Struct, frozen=True):
    """The vote, and the server to which the files belong. `identity` is the random id of its group, once the
    group has one: two groups may have the same name.
    """

    group: str
    name: str
    vote: Vote
    identity: str = ""


class RaftFiles:
    """The directory of one server. All methods block: call them through `Disk.offload`."""

    def __init__(
        self, directory: Path, *, group: str, name: str, disk: Disk, log_bytes: int = LOG_BYTES
    ) -> None:
        self._directory = directory
        self._group = group
        self.name = name
        self.disk = disk
        self._log_bytes = log_bytes
        self._entries: list[LogEntry] = []
        self._file: File | None = None
        self._end = 0
        self._number = 0
        self._lock: Lock | None = None
        self._vote = Vote()
        self._sizes: dict[str, int] = {}
        self.identity = ""
        """The random id of the group that these files belong to; empty before it is known."""

    @property
    def byte_count(self) -> int:
        """The size of the files, as written last."""
        return sum(self._sizes.values())

    def open(self, first: Saved) -> Saved:
        """Returns the saved state; `first` if the directory is empty.

        Raises:  StoreLocked; ConfigError for the files of another server; Corrupt; OSError.
        """
        self._lock = self.disk.lock(self._directory / "lock")
        try:
            saved = self._load(first) or first
            self._entries = list(saved.entries)
            # The vote comes last: a directory without it was never used.
            self._replace_snapshot(saved.snapshot)
            self._replace_log()
            self._replace_vote(saved.vote)
        except BaseException:
            self.close()
            raise
        return saved

    def save_identity(self, identity: str) -> None:
        """Persists the id of the group. Raises what `save` raises."""
        self.identity = identity
        self.save(Persist(vote=self._vote))

    def save(self, persist: Persist) -> None:
        """Returns when everything is on the disk.

        Raises:  FlushFailed: the state of the disk is unknown; this server must stop.
        """
        try:
            if persist.vote is not None:
                self._replace_vote(persist.vote)
            if persist.snapshot is not None:
                self._replace_snapshot(persist.snapshot)
                self._entries = list(persist.entries)
                self._replace_log()
            elif persist.entries:
                self._append(persist.entries)
        except OSError as error:
            raise FlushFailed(f"the files in {self._directory} cannot be written: {error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Reading.

    def _load(self, first: Saved) -> Saved | None:
        vote_path, log_path = self._path("vote"), self._path("log")
        if not self.disk.exists(vote_path):
            if self.disk.exists(log_path) and self._read_log():
                raise Corrupt(vote_path, 0, "the file is missing, but there is a log")
            snapshot_path = self._path("snapshot")
            if self.disk.exists(snapshot_path):
                # The log may be contained in the snapshot and have no entries itself.
                snapshot = self._read_record("snapshot", Snapshot)
                if snapshot.index > first.snapshot.index:
                    raise Corrupt(vote_path, 0, "the file is missing, but there is a snapshot")
            return None
        record = self._read_record("vote", _VoteRecord)
        if (record.group, record.name) != (self._group, self.name):
            raise ConfigError(
                f"{self._directory} belongs to {record.name} of the controller group {record.group}, "
                f"not to {self.name} of {self._group}"
            )
        self.identity = record.identity
        snapshot = self._read_record("snapshot", Snapshot)
        entries = self._read_log()
        if entries and entries[0].index > snapshot.index + 1:
            raise Corrupt(log_path, 0, f"entries {snapshot.index + 1}..{entries[0].index - 1} are missing")
        # A crash between the replacements of snapshot and log leaves a log that begins earlier, or one with a
        # different history.
        known = {entry.index: entry.term for entry in entries}
        if known.get(snapshot.index, snapshot.term) != snapshot.term:
            entries = []
        entries = [entry for entry in entries if entry.index > snapshot.index]
        last_term = entries[-1].term if entries else snapshot.term
        if last_term > record.vote.term:
            raise Corrupt(vote_path, 0, f"term {record.vote.term} is older than the log's, {last_term}")
        return Saved(vote=record.vote, snapshot=snapshot, entries=tuple(entries))

    def _read_record(self, name: str, shape: type[S]) -> S:
        path = self._path(name)
        if not self.disk.exists(path):
            raise Corrupt(path, 0, "the file is missing")
        data = self.disk.read_bytes(path)
        if len(data) < _RECORD.size:
            raise Corrupt(path, 0, "the file is too short")
        magic, checksum = _RECORD.unpack_from(data)
        if magic != _RECORD_MAGIC or crc32(data[_RECORD.size :]) != checksum:
            raise Corrupt(path, 0, "the checksum does not match")
        try:
            return msgspec.msgpack.decode(data[_RECORD.size :], type=shape)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(path, _RECORD.size, str(error)) from None

    def _read_log(self) -> list[LogEntry]:
        path = self._path("log")
        if not self.disk.exists(path):
            raise Corrupt(path, 0, "the file is missing")
        data = self.disk.read_bytes(path)
        entries: list[LogEntry] = []
        position, number = 0, 0
        while (frame := _read_frame(data, position)) is not None:
            found_number, payload, end = frame
            if number and found_number != number + 1:
                raise Corrupt(path, position, f"frame {found_number} follows frame {number}")
            number = found_number
            try:
                _put(entries, _ENTRIES.decode(payload))
            except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
                raise Corrupt(path, position, str(error)) from None
            position = end
        if not position:
            raise Corrupt(path, 0, "the first frame is damaged, and it was never torn: it came with the file")
        at = data.find(_MAGIC, position + 1)
        while at >= 0:
            later = _read_frame(data, at)
            if later is not None and later[0] > number:
                raise Corrupt(path, position, f"no whole frame, but there is one behind it at byte {at}")
            at = data.find(_MAGIC, at + 1)
        return entries

    # Writing.

    def _replace_vote(self, vote: Vote) -> None:
        self._vote = vote
        self._write_record("vote", _VoteRecord(self._group, self.name, vote, self.identity))

    def _replace_snapshot(self, snapshot: Snapshot) -> None:
        self._write_record("snapshot", snapshot)

    def _write_record(self, name: str, record: msgspec.Struct) -> None:
        data = _ENCODER.encode(record)
        self.disk.write_atomically(self._path(name), _RECORD.pack(_RECORD_MAGIC, crc32(data)) + data)
        self._sizes[name] = _RECORD.size + len(data)

    def _replace_log(self) -> None:
        """Writes a new file: its first frame holds the remaining entries, and free space follows."""
        frame = self._make_frame(tuple(self._entries))
        size = max(self._log_bytes, align_up(2 * len(frame), self._log_bytes))
        path = self._path("log")
        if self._file is not None:
            self._file.close()
            self._file = None
        self.disk.write_atomically(path, frame.ljust(size, b"\0"))
        self._file = self.disk.open(path)
        self._end = len(frame)
        self._sizes["log"] = size

    def _append(self, entries: tuple[LogEntry, ...]) -> None:
        _put(self._entries, entries)
        frame = self._make_frame(entries)
        assert self._file is not None, "the files are closed"
        if self._end + len(frame) > self._file.size:
            self._replace_log()
            return
        self._file.pwrite(self._end, (frame,))
        self._file.sync()
        self._end += len(frame)

    def _make_frame(self, entries: tuple[LogEntry, ...]) -> bytes:
        self._number += 1
        payload = _ENCODER.encode(entries)
        checksum = crc32(payload, crc32(_NUMBER.pack(self._number)))
        return _FRAME.pack(_MAGIC, len(payload), self._number, checksum) + payload

    def _path(self, name: str) -> Path:
        return self._directory / name


def _read_frame(data: bytes, position: int) -> tuple[int, bytes, int] | None:
    """Returns number, payload and end of an intact frame; None if there is none."""
    if len(data) - position < _FRAME.size:
        return None
    magic, size, number, checksum = _FRAME.unpack_from(data, position)
    begin = position + _FRAME.size
    if magic != _MAGIC or begin + size > len(data):
        return None
    payload = data[begin : begin + size]
    if crc32(payload, crc32(_NUMBER.pack(number))) != checksum:
        return None
    return number, payload, begin + size


def _put(entries: list[LogEntry], newer: tuple[LogEntry, ...]) -> None:
    """Adds entries; they replace those from the same index on. Raises ValueError for a gap."""
    if not newer:
        return
    if entries:
        at = newer[0].index - entries[0].index
        if not 0 <= at <= len(entries):
            raise ValueError(f"entry {newer[0].index} does not follow {entries[-1].index}")
        del entries[at:]
    entries += newer
