"""Compares the ends of two logs over the remoting port, before a broker follows or serves.

`TailCheck` is the slave's comparison with its master, before it follows. `TailWait` is the wait of a master
whose log may lack acknowledged messages; it copies them from its slaves before it serves.
Source:  spec replication 4.10; spec decisions 2, 4.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Final

from tandemmq.api.replica import read_log, read_log_checksum
from tandemmq.broker.replica.log_checksum import READ_BYTES_MAX, LogChecksums
from tandemmq.errors import (
    BadRequest,
    RemoteProtocolError,
    RequestRejected,
    ServiceNotAvailable,
    StoreError,
    TandemError,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import LogChecksumResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.replication.core.verifier import RecordVerifier, TailOutcome, TailVerdict, find_difference
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TimedEvent
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import MIB

log = logging.getLogger(__name__)

COMPARED_BYTES_MIN: Final = 8 * MIB
"""More than the filler at the end of a file, so that at least one record is compared; costs a few ms
of CPU.
"""

_REFUSALS: Final = frozenset({TailOutcome.SLAVE_AHEAD, TailOutcome.TOO_OLD, TailOutcome.DIFFERENT})
"""The outcomes after which a slave of a master halts."""


class TailCheck:
    """A slave's comparison of its log's end with its master's; `master` returns the remoting address to ask.

    Invariants: a slave with a log follows a TandemMQ master only after the last bytes that both logs hold
                were equal. A RocketMQ master does not support the comparison, so its slave follows without
                one and reports that. A master that does not answer is not followed, because nothing proves
                that its log is the same.
    """

    def __init__(
        self, checksums: LogChecksums, *, client: RemotingClient, master: Callable[[], str | None]
    ) -> None:
        self._checksums = checksums
        self._client = client
        self._master = master

    async def __call__(self, log_end: int) -> TailVerdict:
        """Returns the verdict on this log below `log_end`; TailOutcome.FAILED if it must be tried again."""
        address = self._master()
        if address is None:
            detail = "the master's remoting address is not known (haMasterRemotingAddress)"
            outcome = TailOutcome.FAILED if log_end else TailOutcome.NOT_COMPARED
            return TailVerdict(outcome=outcome, log_offset=log_end, detail=detail)
        return await judged(self._compare(address, log_end), log_end, address)

    async def _compare(self, address: str, log_end: int) -> TailVerdict:
        ends = await read_log_checksum(self._client, address, log_end, 0)
        verdict = await self._judge(ends, address, log_end)
        if ends.is_slave and verdict.outcome in _REFUSALS:
            # A former master may have come back as an empty slave, and name servers report that late.
            detail = f"{address} is not a master; {verdict.detail}"
            return replace(verdict, outcome=TailOutcome.FAILED, detail=detail)
        return verdict

    async def _judge(self, ends: LogChecksumResponse, address: str, log_end: int) -> TailVerdict:
        low, high, run_id = ends.min_offset, ends.max_offset, ends.run_id or ""
        if log_end and log_end > high and ends.is_waiting:
            detail = f"the master, whose log ends at {high}, is copying this log, which ends at {log_end}"
            return TailVerdict(outcome=TailOutcome.FAILED, log_offset=high, detail=detail)
        if log_end and log_end > high:
            detail = f"the master's log ends at {high}, this log at {log_end}"
            return TailVerdict(outcome=TailOutcome.SLAVE_AHEAD, log_offset=high, detail=detail)
        if log_end and log_end < low:
            detail = f"the master's log begins at {low}, this log ends at {log_end}"
            return TailVerdict(outcome=TailOutcome.TOO_OLD, log_offset=low, detail=detail)
        start = compared_start(self._checksums.store, log_end, low)
        if start >= log_end:
            detail = "" if log_end == 0 else "the logs have no bytes in common"
            outcome = TailOutcome.NOT_COMPARED if detail else TailOutcome.SAME
            return TailVerdict(
                outcome=outcome, log_offset=log_end, detail=detail, master_start=low, run_id=run_id
            )

        different_at = await first_difference(self._checksums, self._client, address, start, log_end)
        if different_at is None:
            return TailVerdict(outcome=TailOutcome.SAME, log_offset=log_end, master_start=low, run_id=run_id)
        detail = f"this log and the master's differ from {different_at} on; this log ends at {log_end}"
        return TailVerdict(outcome=TailOutcome.DIFFERENT, log_offset=different_at, detail=detail)


def compared_start(store: MessageStore, end: int, low: int) -> int:
    """Returns the start of the range to compare in two logs that both reach `end`; the other one begins at
    `low`.
    """
    compared_bytes = max(COMPARED_BYTES_MIN, 2 * store.options.message_bytes_max)
    return max(end - compared_bytes, store.min_log_offset, low)


async def first_difference(
    checksums: LogChecksums, client: RemotingClient, address: str, start: int, end: int
) -> int | None:
    """Returns the first byte of `[start, end)` in which this log differs from that of the broker at
    `address`; None if they are equal.

    Raises:  RequestRejected, BrokerUnreachable, RequestTimeout; RemoteProtocolError if the other broker does
             not hold all of it.
    """

    async def remote_checksum(log_offset: int, size_bytes: int) -> int:
        answer = await read_log_checksum(client, address, log_offset, size_bytes)
        if answer.size_bytes != size_bytes:
            raise RemoteProtocolError(
                f"it returned a checksum of {answer.size_bytes} bytes instead of {size_bytes}"
            )
        return answer.crc

    async def local_checksum(log_offset: int, size_bytes: int) -> int:
        return (await checksums.checksum(log_offset, size_bytes)).crc

    return await find_difference(local_checksum, remote_checksum, start, end)


async def judged(verdict: Awaitable[TailVerdict], log_end: int, address: str) -> TailVerdict:
    """Returns the verdict; FAILED or NOT_COMPARED if the broker at `address` prevents one. Never raises for
    anything that a peer can cause.
    """
    try:
        return await verdict
    except TandemError as error:
        if isinstance(error, RequestRejected) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return not_compared(log_end, "the master cannot compute checksums: it is not a TandemMQ broker")
        detail = f"the end of the log could not be compared with that at {address}: {error}"
        return TailVerdict(outcome=TailOutcome.FAILED, log_offset=log_end, detail=detail)


def not_compared(log_end: int, detail: str) -> TailVerdict:
    """Returns the verdict that nothing proves or disproves that the logs are the same."""
    return TailVerdict(outcome=TailOutcome.NOT_COMPARED, log_offset=log_end, detail=detail)


# A master whose log may lack acknowledged messages waits, and copies them from its slaves.
#
# A SYNC_MASTER with ASYNC_FLUSH answers SEND_OK when a slave holds the message too. After a power cut its log
# may end earlier than those of its slaves. If it served at once, it would give the offsets of their last
# messages to new ones.
# Strategy:   it asks every slave that a name server lists, or that reported its address, for the end of its
#             log. Below both ends, the last bytes are compared. Records beyond the master's end are read from
#             the slave, verified one by one, and written. So the slave can follow as before, and no slave
#             must be emptied. Of `n` slaves, any `n - inSyncReplicas + 2` together hold every acknowledged
#             message; the master waits for that many. A name server that has just started lists slaves one
#             by one, so `totalReplicas` is the number of replicas to expect.
# Invariants: while it waits, no message is sent to it or read from it, and no name server lists it. It copies
#             only bytes beyond its own end, and only from a log that is the same below it. It serves only
#             what is on disk, and nothing while another broker is the master of its name.
# Way out:    without enough slaves an operator accepts the log as it is (`handle_accept`).


RETRY_S: Final = 1.0
UNLISTED_S: Final = 15.0
"""The shortest wait while no name server answers. Slaves then report their own addresses when they connect.
"""

_OPEN: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
    }
)
"""Requests that a waiting master serves, besides those of replication and access rules. They neither read nor
write messages.
"""


@dataclass(eq=False)
class TailWait:
    """The wait of a master whose log may be incomplete. `run` is its task; it returns when the log may be
    served.

    `listed`: returns the group's slaves by id as name servers know them, None if no name server
    answers. `reported`: returns the addresses that slaves reported. `other_master`: returns the address
    of another master of this name, which name servers list or which one of the given addresses has
    become.
    """

    checksums: LogChecksums
    _: KW_ONLY
    client: RemotingClient
    clock: Clock
    record_bytes_max: int
    listed: Callable[[], Awaitable[Mapping[int, str] | None]]
    reported: Callable[[], Iterable[str]]
    other_master: Callable[[Iterable[str]], Awaitable[str | None]]

    def __post_init__(self) -> None:
        self._store: MessageStore = self.checksums.store
        self._is_accepted = False
        self._is_due = TimedEvent(self.clock)
        self.reason = self._store.unverified_reason
        """The reason for the wait; empty while it does not wait."""

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.TANDEM_ACCEPT_LOG: self.handle_accept}

    def handle_accept(self, _channel: Channel, command: Command) -> Command:
        """TANDEM_ACCEPT_LOG: an operator decides that the log is used as it is."""
        if not self.reason:
            raise BadRequest("the broker is not waiting for its slaves: there is nothing to accept")
        self._is_accepted = True
        self._is_due.set()
        return command.reply(remark=f"the log is accepted as it is, up to {self._store.max_log_offset}")

    async def run(self) -> None:
        """Returns when the log is complete, or an operator accepted it as it is; then the store is a
        master's.

        Raises:  StoreError if the store has failed.
        """
        facts = {"log_end": self._store.max_log_offset, "reason": self._store.unverified_reason}
        log.warning(events.LOG_TAIL_UNVERIFIED, extra=facts)
        started_at = self.clock.monotonic()
        while True:
            self._is_due.clear()
            is_accepted = self._is_accepted
            reason = "" if is_accepted else await self._check_slaves(self.clock.monotonic() - started_at)
            reason = reason or await self._check_other_master()
            if not reason:
                break
            self._change_reason(reason)
            await self._is_due.wait(RETRY_S)
        await self._accept("an operator" if is_accepted else "slaves")

    async def _check_other_master(self) -> str:
        """Returns the reason to wait if another broker is the master of this name, else "". An operator may
        have promoted a slave meanwhile, and that one stores messages of its own.
        """
        other = await self.other_master(self.reported())
        if other is None:
            return ""
        self._is_accepted = False  # the operator may not have known of the other master
        return f"{other} is the master of this name: stop one of the two"

    async def _accept(self, by: str) -> None:
        """Makes the store a master's. Raises: OSError if the disk refuses writes."""
        await self._store.sync()
        self._store.accept_log()
        self.reason = ""
        log.warning(events.LOG_TAIL_ACCEPTED, extra={"log_end": self._store.max_log_offset, "by": by})

    async def _check_slaves(self, waited_s: float) -> str:
        """Returns "" if enough slaves were compared and nothing is missing; else the reason to wait."""
        listed = await self.listed()
        slaves = list(dict.fromkeys((*(listed or {}).values(), *self.reported())))
        if not slaves:
            return "no slave is known whose log could be compared"
        # Each acknowledged message is on this many slaves.
        ack_count = self._store.options.slave_ack_count(self._store.assigned_role)
        slave_count = max(len(slaves), self._store.options.total_replicas - 1)
        needed = max(1, slave_count - ack_count + 1)
        answers = {slave: await self._check_slave(slave) for slave in slaves}
        missing = [f"{slave}: {answer}" for slave, answer in answers.items() if answer]
        if len(slaves) - len(missing) < needed:
            return f"the logs of {needed} of {slave_count} slaves are needed; {'; '.join(missing)}"
        if listed is None and waited_s < UNLISTED_S:
            return "no name server lists the slaves: more may report"
        return ""

    async def _check_slave(self, address: str) -> str:
        """Copies the missing records of this slave. Returns "" if this log now contains all its records; else
        the reason why not.
        """
        try:
            return await self._copy_missing(address)
        except StoreError as error:
            if error.fatal:
                raise
            return str(error)
        except (TandemError, OSError) as error:
            return str(error)

    async def _copy_missing(self, address: str) -> str:
        ends = await read_log_checksum(self.client, address, 0, 0)
        low, high, store = ends.min_offset, ends.max_offset, self._store
        own_end = store.max_log_offset
        if low == high:
            return ""  # the slave's log is empty
        if own_end > store.min_log_offset:
            common = min(own_end, high)
            start = compared_start(store, common, low)
            if start >= common and high > own_end:
                return f"its log begins at {low}, this log ends at {own_end}: they have no bytes in common"
            if start < common:
                different_at = await first_difference(self.checksums, self.client, address, start, common)
                if different_at is not None:
                    return (
                        f"its log differs from this one at {different_at}; the ends are {high} and {own_end}"
                    )
        if high > own_end:  # an empty log begins where the slave's log begins
            await self._fetch(address, max(low, own_end), high)
        return ""

    async def _fetch(self, address: str, begin: int, end: int) -> None:
        """Appends the slave's records of `[begin, end)`."""
        store = self._store
        segment_bytes = store.options.commit_log_file_bytes
        verifier = RecordVerifier(begin, segment_bytes=segment_bytes, record_bytes_max=self.record_bytes_max)
        at = begin
        while at < end:
            size = min(end - at, READ_BYTES_MAX, segment_bytes - at % segment_bytes)
            part = await read_log(self.client, address, at, size)
            if not part.data:
                raise RemoteProtocolError(f"it returned no bytes from {at} on, though its log ends at {end}")
            at += len(part.data)
            runs, bad = verifier.feed([memoryview(part.data)])
            for run in runs:
                store.append_raw(run.log_offset, run.data, run.parsed)
            if bad is not None:
                raise RemoteProtocolError(f"damaged record at {bad.log_offset}: {bad.reason}")
        facts = {"slave": address, "log_begin": begin, "log_end": verifier.log_offset}
        log.warning(events.LOG_TAIL_FETCHED, extra=facts)

    def _change_reason(self, reason: str) -> None:
        """Logs one line per change."""
        reason = f"{self._store.unverified_reason}; {reason}"
        if reason != self.reason:
            self.reason = reason
            log.warning(events.LOG_TAIL_AWAITED, extra={"reason": reason})


def closed_routes(
    routes: Mapping[int, Handler], open_codes: Iterable[int], reason: Callable[[], str]
) -> dict[int, Handler]:
    """Returns the routes of a waiting master: all requests but those of `_OPEN` and `open_codes` are refused
    with the reason.
    """

    def refuse(_channel: Channel, _command: Command) -> Command:
        raise ServiceNotAvailable(f"this master does not serve requests yet: {reason()}")

    allowed = _OPEN.union(open_codes)
    return {code: handler if code in allowed else refuse for code, handler in routes.items()}
