"""The state of replication as GET_BROKER_HA_STATUS (907) tells it (spec remoting 11.13).

Fields whose wire name begins with `tandem` are ours and None, so not written, towards any other asker.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class HaConnection(Body, frozen=True, kw_only=True):
    """One slave as its master sees it; `lag_bytes` is what the slave has not acknowledged.

    `lag_ms`: the age of the first message that it has not acknowledged. `reason` and `away_ms`: of a slave
    that is not connected now, or cannot be served. `slave`: the name and id that it told; `halt_reason`: why
    it stopped copying, as it told.
    """

    address: str = field(name="addr", default="")
    lag_bytes: int = field(name="diff", default=0)
    is_in_sync: bool = field(name="inSync", default=False)
    acknowledged_offset: int = field(name="slaveAckOffset", default=0)
    transfer_from: int = field(name="transferFromWhere", default=0)
    bytes_per_second: int = field(name="transferredByteInSecond", default=0)
    state: str | None = field(name="tandemState", default=None)
    start_rule: str | None = field(name="tandemStartRule", default=None)
    start_offset: int | None = field(name="tandemStartOffset", default=None)
    is_tandem: bool | None = field(name="tandemPeer", default=None)
    lag_ms: int | None = field(name="tandemLagMs", default=None)
    away_ms: int | None = field(name="tandemAwayMs", default=None)
    reason: str | None = field(name="tandemReason", default=None)
    slave: str | None = field(name="tandemSlave", default=None)
    halt_reason: str | None = field(name="tandemHaltReason", default=None)


class HaClient(Body, frozen=True, kw_only=True):
    """The slave's own view of its connection to the master."""

    read_at_ms: int = field(name="lastReadTimestamp", default=0)
    written_at_ms: int = field(name="lastWriteTimestamp", default=0)
    master_address: str = field(name="masterAddr", default="")
    master_flushed_offset: int = field(name="masterFlushOffset", default=0)
    max_log_offset: int = field(name="maxOffset", default=0)
    bytes_per_second: int = field(name="transferredByteInSecond", default=0)
    state: str | None = field(name="tandemState", default=None)
    start_rule: str | None = field(name="tandemStartRule", default=None)
    start_offset: int | None = field(name="tandemStartOffset", default=None)
    tail: str | None = field(name="tandemTail", default=None)
    halt_reason: str | None = field(name="tandemHaltReason", default=None)
    halt_offset: int | None = field(name="tandemHaltOffset", default=None)
    halt_detail: str | None = field(name="tandemHaltDetail", default=None)


class HaStatus(Body, frozen=True, kw_only=True):
    """Replication of one broker; `connections` on a master, `client` on a slave. `waiting`: why a master does
    not serve its log yet.
    """

    client: HaClient = field(name="haClientRuntimeInfo", default=HaClient())
    connections: tuple[HaConnection, ...] = field(name="haConnectionInfo", default=())
    in_sync_count: int = field(name="inSyncSlaveNums", default=0)
    is_master: bool = field(name="master", default=False)
    max_log_offset: int = field(name="masterCommitLogMaxOffset", default=0)
    waiting: str | None = field(name="tandemWaiting", default=None)


def encode_ha_status(status: HaStatus) -> bytes:
    return encode_body(status)


def decode_ha_status(data: Buffer) -> HaStatus:
    return decode_body(data, HaStatus)
