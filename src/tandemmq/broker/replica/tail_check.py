"""A slave's comparison of its log's end with its master's, over the remoting port, before it follows.

Invariants: a slave that holds anything follows a master of ours only after the last bytes that both keep
            were equal; a RocketMQ master says that it cannot be asked, so its slave follows uncompared and
            says so. Whoever does not answer is not followed: nothing says that its log is the same.
Source:     spec replication 4.10; spec decisions 2, 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tandemmq.api.replica import read_log_checksum
from tandemmq.broker.replica.log_checksum import LogChecksums
from tandemmq.errors import RemoteProtocolError, RequestRejected, TandemError
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.replica import LogChecksumResponse
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.tail import TailOutcome, TailVerdict, find_difference
from tandemmq.store.message_store import MessageStore
from tandemmq.units import MIB

COMPARED_BYTES_MIN: Final = 8 * MIB
"""More than the filler at the end of a file, so that at least one record is compared; a few ms of CPU."""

_REFUSALS: Final = frozenset({TailOutcome.SLAVE_AHEAD, TailOutcome.TOO_OLD, TailOutcome.DIFFERENT})
"""After these a slave of a master halts."""


class TailCheck:
    """Asks whoever `master` names (its remoting address)."""

    def __init__(
        self, own: LogChecksums, *, client: RemotingClient, master: Callable[[], str | None]
    ) -> None:
        self._own = own
        self._client = client
        self._master = master

    async def __call__(self, log_end: int) -> TailVerdict:
        """What may be said of the own log below `log_end`; TailOutcome.FAILED when it must be tried again."""
        address = self._master()
        if address is None:
            detail = "the master's remoting address is not known (haMasterRemotingAddress)"
            outcome = TailOutcome.FAILED if log_end else TailOutcome.NOT_COMPARED
            return TailVerdict(outcome=outcome, log_offset=log_end, detail=detail)
        try:
            return await self._compare(address, log_end)
        except RequestRejected as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return _failed(log_end, address, error)
            detail = "the master cannot tell checksums: it is not one of ours"
            return TailVerdict(outcome=TailOutcome.NOT_COMPARED, log_offset=log_end, detail=detail)
        except TandemError as error:
            return _failed(log_end, address, error)

    async def _compare(self, address: str, log_end: int) -> TailVerdict:
        ends = await read_log_checksum(self._client, address, log_end, 0)
        verdict = await self._judge(ends, address, log_end)
        if ends.is_slave and verdict.outcome in _REFUSALS:
            # Who was the master may have come back as an empty slave, and name servers tell of it late.
            detail = f"{address} is no master; {verdict.detail}"
            return replace(verdict, outcome=TailOutcome.FAILED, detail=detail)
        return verdict

    async def _judge(self, ends: LogChecksumResponse, address: str, log_end: int) -> TailVerdict:
        low, high, life = ends.min_offset, ends.max_offset, ends.life or ""
        if log_end and log_end > high and ends.is_waiting:
            detail = f"the master, whose log ends at {high}, is taking over what ours holds up to {log_end}"
            return TailVerdict(outcome=TailOutcome.FAILED, log_offset=high, detail=detail)
        if log_end and log_end > high:
            detail = f"the master's log ends at {high}, ours at {log_end}"
            return TailVerdict(outcome=TailOutcome.SLAVE_AHEAD, log_offset=high, detail=detail)
        if log_end and log_end < low:
            detail = f"the master's log begins at {low}, ours ends at {log_end}"
            return TailVerdict(outcome=TailOutcome.TOO_OLD, log_offset=low, detail=detail)
        start = compared_start(self._own.store, log_end, low)
        if start >= log_end:
            detail = "" if log_end == 0 else "no byte is kept by both"
            outcome = TailOutcome.NOT_COMPARED if detail else TailOutcome.SAME
            return TailVerdict(
                outcome=outcome, log_offset=log_end, detail=detail, master_start=low, life=life
            )

        different_at = await first_difference(self._own, self._client, address, start, log_end)
        if different_at is None:
            return TailVerdict(outcome=TailOutcome.SAME, log_offset=log_end, master_start=low, life=life)
        detail = f"ours and the master's log differ from {different_at} on; ours ends at {log_end}"
        return TailVerdict(outcome=TailOutcome.DIFFERENT, log_offset=different_at, detail=detail)


def compared_start(store: MessageStore, end: int, low: int) -> int:
    """From where two logs are compared that both reach to `end`; the other one begins at `low`."""
    compared_bytes = max(COMPARED_BYTES_MIN, 2 * store.options.message_bytes_max)
    return max(end - compared_bytes, store.min_log_offset, low)


async def first_difference(
    own: LogChecksums, client: RemotingClient, address: str, start: int, end: int
) -> int | None:
    """Where the own log differs from that of the broker at `address` in [start, end); None if nowhere.

    Raises:  RequestRejected, BrokerUnreachable, RequestTimeout; RemoteProtocolError when the other one does
             not hold all of it.
    """

    async def theirs(log_offset: int, size_bytes: int) -> int:
        told = await read_log_checksum(client, address, log_offset, size_bytes)
        if told.size_bytes != size_bytes:
            raise RemoteProtocolError(f"a checksum of {told.size_bytes} bytes was told for {size_bytes}")
        return told.crc

    async def ours(log_offset: int, size_bytes: int) -> int:
        return (await own.checksum(log_offset, size_bytes)).crc

    return await find_difference(ours, theirs, start, end)


def _failed(log_end: int, address: str, error: TandemError) -> TailVerdict:
    detail = f"the end of the log could not be compared with that at {address}: {error}"
    return TailVerdict(outcome=TailOutcome.FAILED, log_offset=log_end, detail=detail)
