"""LiveTable: which brokers this controller hears. Each controller has its own; nothing of it is agreed on.

Bounds:    only brokers that have an id are kept, so there are no more entries than brokers of `Groups`.
Knows not: the clock; times are monotonic seconds.
Source:    spec controller 2.3, 10.5.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from tandemmq.controller.groups import Live
from tandemmq.protocol.requests.controller import RegisterBrokerRequest
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.remoting.channel import Channel

TIMEOUT_MS_DEFAULT = 10_000
FIRST_HEARTBEAT_S = 3.0
PRIORITY_DEFAULT = 2**31 - 1
Key = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class Heard:
    """The last heartbeat of a broker, and over which connection it came."""

    facts: Live
    address: str
    connection: object
    confirmed_offset: int
    heard_s: float
    timeout_s: float

    @property
    def is_connected(self) -> bool:
        """Its process lives: the connection of its heartbeats stands, as far as is known here."""
        return isinstance(self.connection, Channel) and not self.connection.is_closed

    def speaks_by(self, channel: Channel) -> bool:
        """Whether the other end of the connection is the host that its heartbeats come from."""
        return isinstance(self.connection, Channel) and self.connection.peer[0] == channel.peer[0]


class LiveTable:
    """By name and id. The newest heartbeat counts, also when it tells less than the one before it: the
    broker may have cut its log."""

    def __init__(self) -> None:
        self._heard: dict[Key, Heard] = {}

    def hear(
        self, header: BrokerHeartbeatRequest, connection: object, now_s: float, *, is_ours: bool
    ) -> bool:
        """Whether it was not alive before."""
        assert header.broker_id is not None
        key = header.broker_name, header.broker_id
        is_new = not self.is_alive(*key, now_s)
        priority = PRIORITY_DEFAULT if header.election_priority is None else header.election_priority
        self._heard[key] = Heard(
            facts=Live(
                header.broker_id,
                -1 if header.epoch is None else header.epoch,
                -1 if header.max_log_offset is None else header.max_log_offset,
                priority,
                is_ours,
                bool(header.is_incomplete),
            ),
            address=header.broker_address,
            connection=connection,
            confirmed_offset=-1 if header.confirmed_offset is None else header.confirmed_offset,
            heard_s=now_s,
            timeout_s=max(1, header.heartbeat_timeout_ms or TIMEOUT_MS_DEFAULT) / 1000,
        )
        return is_new

    def note_incomplete(self, header: RegisterBrokerRequest, now_s: float) -> None:
        """It has started again and may have lost the end of its log: what it told before does not count. Its
        first heartbeat tells how long its log is.
        """
        self._heard[header.broker_name, header.broker_id] = Heard(
            facts=Live(header.broker_id, is_ours=True, is_incomplete=True),
            address=header.broker_address,
            connection=None,
            confirmed_offset=-1,
            heard_s=now_s,
            timeout_s=FIRST_HEARTBEAT_S,
        )

    def get(self, name: str, broker_id: int) -> Heard | None:
        return self._heard.get((name, broker_id))

    def is_alive(self, name: str, broker_id: int, now_s: float) -> bool:
        heard = self._heard.get((name, broker_id))
        return heard is not None and now_s < heard.heard_s + heard.timeout_s

    def alive(self, name: str, ids: Iterable[int], now_s: float) -> list[Heard]:
        """Those of these brokers that are heard."""
        return [self._heard[name, one] for one in ids if self.is_alive(name, one, now_s)]

    def end(self, name: str, broker_id: int) -> None:
        """It is known to be gone, not only silent."""
        heard = self._heard.get((name, broker_id))
        if heard is not None:
            heard.timeout_s = 0.0

    def keep(self, name: str, ids: Container[int]) -> None:
        """Forgets all other brokers of the group."""
        for key in [key for key in self._heard if key[0] == name and key[1] not in ids]:
            del self._heard[key]

    def of_connection(self, connection: object) -> list[Key]:
        return [key for key, heard in self._heard.items() if heard.connection is connection]
