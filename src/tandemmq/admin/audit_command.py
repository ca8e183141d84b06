"""`tandemmq audit`: compares the CommitLogs of masters and their slaves by checksums over the network.

Strategy:   the range that both brokers keep is compared part by part, on both at the same time. The first
            part that differs is halved down to the first differing byte. Only checksums are sent, and each
            broker computes one part at a time. Bytes that are written or deleted by retention meanwhile are
            left out. Brokers in controller mode also report their group id and the ids of their terms; the
            logs differ if one of these does, even where every byte is equal.
Needs:      TandemMQ brokers (TANDEM_READ_LOG_CHECKSUM, TANDEM_HISTORY).
Exit codes: 0 the common ranges are equal, 1 a difference (or a slave that is ahead), 2 something could not be
compared or not even be queried.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Annotated, Final

import typer

from tandemmq.admin.options import AsJson, Cluster, NameServers, option, run
from tandemmq.admin.render import CommandAnswer, Table
from tandemmq.api.replica import read_history, read_log_checksum
from tandemmq.errors import ConfigError, RemoteProtocolError, RequestRejected, TandemError
from tandemmq.manage.reach import if_supported
from tandemmq.manage.tools import Place, Target, Tools, find_targets
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.replica import HistoryRequest, LogChecksumResponse
from tandemmq.remoting.client import RemotingClient
from tandemmq.replication.core.epochs import conflicting_term, received_terms
from tandemmq.replication.core.verifier import find_difference
from tandemmq.units import MASTER_ID, MIB

RANGE_BYTES = 32 * MIB
"""Half of the size that a broker computes for one request."""
CHECKSUM_TIMEOUT_S = 60.0


class AuditOutcome(Enum):
    """The outcome for one slave; `name` is the output for programs."""

    EQUAL = "the bytes that both hold are equal"
    DIFFERENT = "the logs differ"
    SLAVE_AHEAD = "the slave holds more than its master"
    APART = "the logs have no bytes in common"
    UNKNOWN = "could not be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """The comparison of one slave with its master. The equal range is `[equal_from, equal_to)`; a difference
    begins at `first_difference`.
    """

    outcome: AuditOutcome
    equal_from: int = 0
    equal_to: int = 0
    first_difference: int | None = None
    master_end: int = 0
    slave_end: int = 0
    detail: str = ""

    @property
    def lag_bytes(self) -> int:
        return self.master_end - self.slave_end


class LogsChanged(TandemError):
    """A log lost bytes at its end during the comparison."""


async def compare_logs(
    client: RemotingClient, master: str, slave: str, *, last_bytes: int | None = None
) -> LogComparison:
    """Compares the logs of two brokers; with `last_bytes`, only that many bytes at the common end."""
    try:
        found = await _compare(client, master, slave, last_bytes)
        detail = await _contradict(client, master, slave)
        return replace(found, outcome=AuditOutcome.DIFFERENT, detail=detail) if detail else found
    except RequestRejected as error:
        detail = str(error)
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            detail = "one of the brokers is not a TandemMQ broker and cannot compute checksums"
        return LogComparison(outcome=AuditOutcome.UNKNOWN, detail=detail)
    except TandemError as error:
        return LogComparison(outcome=AuditOutcome.UNKNOWN, detail=str(error))


async def _compare(client: RemotingClient, master: str, slave: str, last_bytes: int | None) -> LogComparison:
    # The slave first: a master that is not behind the slave then holds everything that the slave reported.
    copy = await read_log_checksum(client, slave, 0, 0)
    original = await read_log_checksum(client, master, 0, 0)
    ends = LogComparison(
        outcome=AuditOutcome.EQUAL, master_end=original.max_offset, slave_end=copy.max_offset
    )
    start = max(original.min_offset, copy.min_offset)
    end = min(original.max_offset, copy.max_offset)
    if last_bytes is not None:
        start = max(start, end - last_bytes)
    is_ahead = copy.max_offset > original.max_offset
    if start >= end:
        # An empty slave, or one that has just begun at the master's end, contradicts nothing.
        is_begun = copy.max_offset not in (0, original.max_offset)
        apart = AuditOutcome.SLAVE_AHEAD if is_ahead else AuditOutcome.APART
        return replace(ends, outcome=apart if is_begun else AuditOutcome.EQUAL, equal_from=end, equal_to=end)
    equal_from, different_at = await _walk(client, (master, slave), start, end)
    if different_at is not None:
        found = replace(ends, outcome=AuditOutcome.DIFFERENT, first_difference=different_at)
        return replace(found, equal_from=equal_from, equal_to=different_at)
    outcome = AuditOutcome.SLAVE_AHEAD if is_ahead else AuditOutcome.EQUAL
    return replace(ends, outcome=outcome, equal_from=equal_from, equal_to=end)


async def _contradict(client: RemotingClient, master: str, slave: str) -> str:
    """Returns the reason why the two brokers cannot share one history, whatever their bytes are; an empty
    text if they can. Brokers without controller mode, and older ones, report no history.
    """
    asked = HistoryRequest(broker_id=MASTER_ID, address="")
    told = await if_supported(
        asyncio.gather(*(read_history(client, address, asked) for address in (master, slave)))
    )
    if told is None:
        return ""
    (one, terms), (other, other_terms) = told
    if one.group_id and other.group_id and one.group_id != other.group_id:
        return f"the brokers belong to different groups: {one.group_id} and {other.group_id}"
    conflict = conflicting_term(received_terms(terms), received_terms(other_terms))
    if conflict is None:
        return ""
    return f"two masters have term {conflict.epoch}, which begins at {conflict.start}"


async def _walk(
    client: RemotingClient, pair: tuple[str, str], start: int, end: int
) -> tuple[int, int | None]:
    """Returns the start of the compared range, and the first difference; the start rises with retention."""
    position = start
    while position < end:
        size = min(RANGE_BYTES, end - position)
        one, other = await asyncio.gather(*(_request(client, address, position, size) for address in pair))
        if one.size_bytes < size or other.size_bytes < size:
            kept_from = max(one.min_offset, other.min_offset)
            if kept_from <= position:
                raise LogsChanged(f"a log no longer holds {size} bytes from {position} on")
            start = position = min(kept_from, end)
            continue
        if one.crc != other.crc:
            return start, await _locate(client, pair, position, position + size)
        position += size
    return start, None


async def _locate(client: RemotingClient, pair: tuple[str, str], start: int, end: int) -> int:
    master, slave = (partial(_checksum, client, address) for address in pair)
    found = await find_difference(master, slave, start, end)
    if found is None:
        raise LogsChanged(f"the bytes from {start} to {end} changed while they were compared")
    return found


async def _checksum(client: RemotingClient, address: str, log_offset: int, size: int) -> int:
    answer = await _request(client, address, log_offset, size)
    if answer.size_bytes != size:
        raise LogsChanged(f"{address} no longer holds {size} bytes from {log_offset} on")
    return answer.crc


async def _request(client: RemotingClient, address: str, log_offset: int, size: int) -> LogChecksumResponse:
    answer = await read_log_checksum.within(CHECKSUM_TIMEOUT_S, client, address, log_offset, size)
    if not 0 <= answer.size_bytes <= size:
        raise RemoteProtocolError(
            f"{address} returned the checksum of {answer.size_bytes} bytes instead of {size}"
        )
    return answer


EXIT_DIFFERENT: Final = 1
EXIT_UNKNOWN: Final = 2
_EXITS: Final = {
    AuditOutcome.EQUAL: 0,
    AuditOutcome.DIFFERENT: EXIT_DIFFERENT,
    AuditOutcome.SLAVE_AHEAD: EXIT_DIFFERENT,
    AuditOutcome.APART: EXIT_UNKNOWN,
    AuditOutcome.UNKNOWN: EXIT_UNKNOWN,
}
_COLUMNS: Final = ("broker", "master", "slave", "outcome", "equal_from", "equal_to", "first_difference")
_MORE: Final = ("master_end", "slave_end", "lag_bytes", "detail")


def audit(
    namesrv: NameServers = "",
    broker: Annotated[str, option("--broker", "Only the brokers of this name.")] = "",
    cluster: Cluster = "",
    last_bytes: Annotated[
        int | None, option("--last N", "Compare only the last N bytes that both hold.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the CommitLogs of masters and their slaves by checksums, while they run."""
    try:
        run(namesrv, lambda tools: audit_brokers(tools, broker, cluster, last_bytes), as_json=as_json)
    except TandemError as error:
        typer.echo(f"tandemmq: {error}", err=True)
        raise typer.Exit(EXIT_UNKNOWN) from None


async def audit_brokers(
    tools: Tools, broker_name: str, cluster: str, last_bytes: int | None
) -> CommandAnswer:
    """Returns a row for each slave; the exit code of a difference takes precedence over that of a failed
    comparison.
    """
    by_name: dict[tuple[str, str], list[Target]] = {}
    for target in await find_targets(tools, Place(cluster=cluster)):
        if not broker_name or target.broker_name == broker_name:
            by_name.setdefault((target.cluster, target.broker_name), []).append(target)
    if not by_name:
        raise ConfigError(f"no broker {broker_name!r} is registered")
    table = Table("replicas", _COLUMNS + _MORE)
    codes, notes = {0}, []
    for (_, name), targets in by_name.items():
        master = next((one.address for one in targets if one.broker_id == MASTER_ID), None)
        slaves = [one.address for one in targets if one.broker_id != MASTER_ID]
        if master is None:
            notes.append(f"{name} has no master to compare with")
            codes.add(EXIT_UNKNOWN)
            continue
        if not slaves:
            notes.append(f"{name} has no slave")
        for slave in slaves:
            found = await compare_logs(tools.remoting, master, slave, last_bytes=last_bytes)
            codes.add(_EXITS[found.outcome])
            table.rows.append((name, master, slave, *_values(found)))
    return CommandAnswer([table], notes, exit_code=EXIT_DIFFERENT if EXIT_DIFFERENT in codes else max(codes))


def _values(found: LogComparison) -> tuple[object, ...]:
    ends = (found.master_end, found.slave_end, found.lag_bytes)
    detail = found.detail or (found.outcome.value if found.outcome is not AuditOutcome.EQUAL else None)
    ranges = (found.equal_from, found.equal_to, found.first_difference)
    return (found.outcome.name, *ranges, *ends, detail)
