"""The exchange between a slave and its master on the remoting port, before a byte is copied: both sides of
it.

The slave asks for the master's history (TANDEM_HISTORY): its group, and its terms with their random ids. Then
it compares checksums of the bytes below the consistent point. Each exchange compares the last 1 MiB, so that
successive exchanges prove successive ranges. Only if these differ is the rest compared, down to the slave's
confirmOffset.
Invariants: another group is refused by both sides, each with an error that names both groups.
            - A range that is damaged on either side does not prove a different history: scrubbing repairs it.
Source:     decision 023; spec controller 10.16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Final

from tandemmq.api.replica import read_history, read_log, read_log_checksum
from tandemmq.broker.autoswitch.identity import ForeignGroup, GroupIdentity
from tandemmq.broker.replica.log_checksum import RANGE_BYTES_MAX, READ_BYTES_MAX, SLICE_BYTES, LogChecksums
from tandemmq.broker.replica.tail_check import first_difference, judged, not_compared
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.protocol.record_scan import scan_boundaries
from tandemmq.protocol.requests.replica import HistoryRequest, HistoryResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.epochs import received_terms
from tandemmq.replication.core.term_sessions import MasterHistory
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict
from tandemmq.runtime.ports import Disk
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import MIB, align_down

log = logging.getLogger(__name__)

WINDOW_BYTES: Final = MIB
ASK_TIMEOUT_S: Final = 2.0
"""A master answers from memory; one that does not answer in time is asked again."""
PEERS_LOGGED_MAX: Final = 64


@dataclass(eq=False)
class HistoryCheck:
    """Both sides of the exchange. `master`: the remoting address of the followed master, None without one.

    `address`: the address of this broker. `master_epoch`: returns the epoch of the term that it has
    accepted.
    """

    store: MessageStore
    group: GroupIdentity
    _: KW_ONLY
    broker_id: int
    address: str
    master_epoch: Callable[[], int]
    client: RemotingClient
    disk: InitVar[Disk]

    def __post_init__(self, disk: Disk) -> None:
        self._checksums = LogChecksums(self.store, disk=disk, run_id="")
        self._refused: set[str] = set()
        self.master: str | None = None
        self.mismatch = ""
        """The reason why the master belongs to another group; empty if it does not."""
        self.is_verified = False
        """True once a master of this group answered; this log then belongs to the group that clients see."""
        self._master_start: int | None = None  # begin of the log of the master that was asked last

    @property
    def group_id(self) -> str | None:
        return self.group.group_id

    def handle_history(self, _channel: Channel, command: Command) -> Command:
        """TANDEM_HISTORY (30108): returns the group and the terms of the log."""
        request = command.decode(HistoryRequest)
        try:
            self.group.check(request.group_id, f"the slave {request.broker_id} at {request.address}")
        except ForeignGroup as error:
            # The answer names this broker's group, so that the slave refuses, too.
            self._on_foreign_group(error)
        store = self.store
        header = HistoryResponse(
            group_id=self.group.group_id,
            master_epoch=self.master_epoch(),
            min_offset=store.min_log_offset,
            max_offset=store.confirmed_log_offset,
            confirmed_offset=store.terms.confirm_offset,
        )
        epochs = store.terms.epochs
        terms = [(*entry, epochs.ids.get(entry, 0)) for entry in epochs.entries]
        return command.reply(header=header, body=encode_body(terms))

    async def ask(self) -> MasterHistory | None:
        """Returns the history of the master; None if it does not support this: RocketMQ, or an older release.

        Raises:  ForeignGroup if it belongs to another group; the errors of `read_history`.
        """
        master = self.master
        assert master is not None, "the master is known before it is dialled"
        self._master_start = None
        header = HistoryRequest(broker_id=self.broker_id, address=self.address, group_id=self.group.group_id)
        try:
            answer, terms = await read_history.within(ASK_TIMEOUT_S, self.client, master, header)
        except RequestRejected as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None
        try:
            self.group.check(answer.group_id, f"the master at {master}")
        except ForeignGroup as error:
            self._on_foreign_group(error)
            self.mismatch = error.remark
            raise
        self.mismatch = ""
        self.is_verified = answer.group_id is not None and answer.group_id == self.group.group_id
        self._master_start = answer.min_offset
        return MasterHistory(self.group.group_id, received_terms(terms))

    async def compare(self, point: int, confirm_offset: int) -> TailVerdict:
        """Compares the bytes of both logs below `point`. For DIFFERENT, the verdict's offset is the start of
        the record that holds the first difference. Never raises for anything that a peer can cause.
        """
        master = self.master
        assert master is not None, "the master is known before it is dialled"
        return await judged(self._compare(master, point, confirm_offset), point, master)

    async def _compare(self, master: str, point: int, confirm_offset: int) -> TailVerdict:
        start = self._master_start
        if start is None:  # it does not support TANDEM_HISTORY
            start = (await read_log_checksum(self.client, master, point, 0)).min_offset
        damaged = [one.end for one in self.store.damaged_ranges if one.begin < point]
        low = max(self.store.min_log_offset, start, *damaged)
        if low >= point:
            return not_compared(point, "the logs have no valid bytes in common")
        window = max(low, point - WINDOW_BYTES)
        if await self._first_difference(master, window, point) is None:
            return TailVerdict(outcome=TailOutcome.SAME, log_offset=point, master_start=start)
        deep = max(low, min(window, confirm_offset - WINDOW_BYTES))
        different_at = await self._first_difference(master, deep, point)
        if different_at is None:
            return not_compared(point, "the logs no longer differ: one of them was repaired")
        last_equal = await self._record_start(different_at)
        sick = await self._find_damage(master, last_equal, point)
        if sick:
            return not_compared(point, sick)
        detail = (
            f"this log and that of the master at {master} differ from {different_at} on, in the record at"
            f" {last_equal}; their terms are equal up to {point}"
        )
        return TailVerdict(outcome=TailOutcome.DIFFERENT, log_offset=last_equal, detail=detail)

    async def _first_difference(self, master: str, begin: int, end: int) -> int | None:
        for at in range(begin, end, RANGE_BYTES_MAX):
            part_end = min(at + RANGE_BYTES_MAX, end)
            found = await first_difference(self._checksums, self.client, master, at, part_end)
            if found is not None:
                return found
        return None

    async def _record_start(self, log_offset: int) -> int:
        """Returns the start of this log's record that holds the byte at `log_offset`."""
        store = self.store
        entry = store.terms.epochs.find(log_offset)
        at = max(
            align_down(log_offset, store.options.commit_log_file_bytes),
            store.min_log_offset,
            0 if entry is None else entry.start,
        )
        while True:
            found = scan_boundaries(store.log.valid_view(at, SLICE_BYTES))
            behind = [start for start in found.positions.tolist() if at + start <= log_offset]
            if at + found.end > log_offset or not found.end:
                return at + (behind[-1] if behind else 0)
            at += found.end

    async def _find_damage(self, master: str, log_offset: int, point: int) -> str:
        """Returns which of the two records at `log_offset` is damaged, or "" if neither: bit flips do not
        make a different history.
        """
        local = check_record(
            self.store.log.valid_view(log_offset, READ_BYTES_MAX), log_offset=log_offset, check_crc=True
        )
        if local.outcome is RecordOutcome.BAD_CRC:
            await self.store.scrub(log_offset, log_offset + local.size)  # also has it repaired
            return f"the local record at {log_offset} is damaged and must be repaired first"
        part = await read_log(self.client, master, log_offset, min(READ_BYTES_MAX, point - log_offset))
        remote = check_record(part.data, log_offset=log_offset, check_crc=True)
        if remote.outcome is RecordOutcome.BAD_CRC:
            return f"the master's record at {log_offset} is damaged and must be repaired first"
        return ""

    def _on_foreign_group(self, error: ForeignGroup) -> None:
        """Logs one line per reason."""
        if str(error) not in self._refused:
            if len(self._refused) >= PEERS_LOGGED_MAX:
                self._refused.clear()
            self._refused.add(str(error))
            log.error(events.BROKER_GROUP_REFUSED, extra={"reason": error.remark})
