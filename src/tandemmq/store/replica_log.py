"""The single writer of a slave: writes the master's bytes verbatim, at the same offsets.

Invariants: bytes go only to the end of the log. A chunk never spans two files. An empty slave may start at
            any later file start, because an old-style master sends it only its last file.
Knows not:  records: a chunk may end in the middle of one (the dispatcher waits for the rest).
Source:     spec store 9, spec replication 4.5.
"""

from __future__ import annotations

from contextlib import suppress

from tandemmq.errors import DiskFull, LogDiverged, ServiceNotAvailable
from tandemmq.protocol.record import RecordOutcome
from tandemmq.store.core import StoreCore
from tandemmq.units import Buffer


class ReplicaLog:
    """Appends raw bytes and raises `appended`."""

    def __init__(self, core: StoreCore) -> None:
        self._core = core
        self._has_leftovers = False  # files of a failed start that could not be deleted
        self._torn_end = 0  # bytes of failed writes that could not be zeroed may exist up to here

    def cut_partial(self, whole_end: int) -> int:
        """Zeroes an incomplete record at the end of the log; returns the end of the complete ones.

        Records are known to be complete up to `whole_end`, which a copy that started later may not have
        reached yet. Raises OSError.
        """
        assert whole_end <= self._core.log.end, (whole_end, self._core.log.end)
        self._remove_leftovers()
        end = max(whole_end, self._core.log.begin)
        while (checked := self._core.log.check(end)).outcome in (RecordOutcome.OK, RecordOutcome.BLANK):
            if end + checked.size > self._core.log.end:  # a BLANK states its size in its head
                break
            end += checked.size
        # Foreign bytes may span any number of files.
        stale_end = max(self._core.log.end, self._torn_end)
        for segment in self._core.log.dirty_segments(end, stale_end):
            begin = max(end, segment.base)
            self._core.log.zero(begin, stale_end - begin)
        self._torn_end = 0
        self._core.log.end = end
        return end

    def append(self, log_offset: int, data: Buffer) -> None:
        """Writes the master's bytes at `log_offset`.

        Raises:  LogDiverged when they do not continue this log or do not fit into its file; DiskFull when the
                 disk accepts no writes, and then nothing was kept; ServiceNotAvailable when the store is
                 closed.
        """
        core, log = self._core, self._core.log
        if core.admission.has_failed:
            raise ServiceNotAvailable("the store has failed")
        end, segment_bytes = log.end, log.segment_bytes
        begins = log_offset > end == log.begin and log_offset % segment_bytes == 0
        if log_offset != end and not begins:
            raise LogDiverged(f"the master sends byte {log_offset}, the next one here is {end}")
        size = len(data)
        if log_offset % segment_bytes + size > segment_bytes:
            raise LogDiverged(f"{size} bytes at {log_offset} reach into a second file; equal file sizes?")
        if not size:
            return
        try:
            self._remove_leftovers()
            if begins:
                log.begin_at(log_offset)
            segment = log.open_at(log_offset)
            begun_at = core.clock.monotonic()
            log.write(log_offset, (data,))
        except OSError as error:
            if log.end == end:
                self._zero(log_offset, size)
            else:  # the log has no start yet, and its master may start elsewhere next time
                log.end = end
                self._has_leftovers = True
                with suppress(OSError):
                    log.log.drop_files()
            raise DiskFull(f"the disk accepts no writes: {error.strerror or error}") from error
        core.recorder.append_batch_s.observe(core.clock.monotonic() - begun_at)
        log.end = log_offset + size
        assert segment.base <= log_offset < log.end <= segment.end, (segment, log_offset, log.end)
        core.appended.raise_to(log.end)

    def _remove_leftovers(self) -> None:
        if self._has_leftovers:
            self._core.log.log.remove_leftovers()
            self._has_leftovers = False

    def _zero(self, log_offset: int, size: int) -> None:
        """Zeroes a failed chunk if possible. It may remain until the store becomes master, since the same
        bytes are sent again and overwrite it.
        """
        try:
            self._core.log.zero(log_offset, size)
        except OSError:
            self._torn_end = max(self._torn_end, log_offset + size)
