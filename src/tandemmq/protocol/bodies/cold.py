"""What a broker tells about cold reads: GET_COLD_DATA_FLOW_CTR_INFO (2003). Source: spec semantics 20.3."""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class GroupColdReads(Body, frozen=True, kw_only=True):
    """One group, in the window that runs (RocketMQ: AccAndTimeStamp)."""

    bytes: int = field(name="coldAcc", default=0)
    began_at_ms: int = field(name="createTimeMills", default=0)
    read_at_ms: int = field(name="lastColdReadTimeMills", default=0)


class ColdControlInfo(Body, frozen=True, kw_only=True):
    """Thresholds, by group where one was set, and what was read of old messages."""

    group_threshold_bytes: int = field(name="cgColdReadThreshold", default=0)
    thresholds: dict[str, int] = field(name="configTable", default_factory=dict)
    all_bytes: int = field(name="globalAcc", default=0)
    all_threshold_bytes: int = field(name="globalColdReadThreshold", default=0)
    groups: dict[str, GroupColdReads] = field(name="runtimeTable", default_factory=dict)


def encode_cold_control_info(info: ColdControlInfo) -> bytes:
    """JSON with RocketMQ's keys."""
    return encode_body(info)


def decode_cold_control_info(data: Buffer) -> ColdControlInfo:
    """Raises RemoteProtocolError for what is no such body."""
    return decode_body(data, ColdControlInfo)
