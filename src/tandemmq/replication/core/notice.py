"""What a slave of ours tells its master of itself, besides the classic reports: values, pure.

The classic channel carries no names and no reasons (spec replication 4.1, 4.2), and its bytes stay as they
are: a notice comes by a request that a RocketMQ master refuses. It is for whoever looks at the master;
nothing is acknowledged by it and no copy is counted by it.
Source: spec decisions 4; our own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NAME_CHARS_MAX: Final = 255
REASON_CHARS_MAX: Final = 64
DETAIL_CHARS_MAX: Final = 1_024
"""What a master keeps of a detail; the whole is in the log and the state of the slave."""

Endpoint = tuple[str, int]
"""Host and port."""


class SlaveName(NamedTuple):
    """What a slave is called; no two brokers of a cluster may have the same (spec replication 7)."""

    broker_name: str
    broker_id: int

    def __str__(self) -> str:
        return f"{self.broker_name}:{self.broker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldHalt:
    """Why a slave stopped copying. `reason`: a name of HaltReason, or one that a newer slave knows."""

    reason: str
    log_offset: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveNotice:
    """`ha_address`: the slave's own end of its last connection to the replication port; `halt`: None unless
    a person must act; `log_end`: where its copy ends."""

    name: SlaveName
    ha_address: Endpoint
    log_end: int
    is_copying: bool
    halt: ToldHalt | None = None
