"""The rule that one name has one master, without controllers: the broker checks for another master at the
start and before every registration with a name server.

Callers: `Broker` at the start, its `Registration` before each registration, and a master that waits for its
tail.

Invariants: of two masters that reach each other exactly one yields: both compare the same two pairs of start
            time and address, and the greater pair yields. A yielded master stays so until it is restarted,
            because meanwhile the other one has stored messages that it lacks.
Strategy: a name server lists the last broker that registered as the master. So each of two masters finds the
          other listed before its own next registration. The master that started later yields, just as a later
          master is rejected at its start if the first one is known by then.
At a bound: a master that does not answer is not a reason to yield, because it may be dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

from tandemmq.api.broker_admin import query_broker_config, query_runtime_info
from tandemmq.api.nameserver import query_members
from tandemmq.broker.options import BrokerOptions
from tandemmq.errors import ConfigError, ServiceNotAvailable, TandemError
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.ports import Random
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 3.0
"""The timeout in seconds for a name server or another broker."""
YIELDED_KEY: Final = "tandemYieldedTo"
"""The key in the runtime info of a yielded master: the address of the other master."""
INCARNATION_KEY: Final = "tandemIncarnation"
"""The key in the runtime info of a random id per broker start. A name server may list an earlier address of
the broker itself, and a broker must not yield to itself.
"""


class MasterSeniority(NamedTuple):
    """Another master of the name, as described by its own answer."""

    started_at_ms: int
    address: str


@dataclass(slots=True)
class MasterClaim:
    """The claim of one broker to be the master of its name. `yielded_to` is empty until the broker has
    yielded.
    """

    options: BrokerOptions
    _: KW_ONLY
    client: RemotingClient
    own_address: Callable[[], str]
    chance: Random
    started_at_ms: int = 0
    """The `bootTimestamp` of the runtime info, because the other master compares that value."""
    yielded_to: str = ""
    on_yield: Callable[[], None] = lambda: None
    """Called when this broker yields; set by the owner."""
    _incarnation: str = ""
    _found: str = ""

    def facts(self) -> dict[str, str]:
        """Returns the claim's entries for the runtime info."""
        self._incarnation = self._incarnation or self.chance.token_bytes(8).hex()
        yielded = {YIELDED_KEY: self.yielded_to} if self.yielded_to else {}
        return {INCARNATION_KEY: self._incarnation, **yielded}

    @property
    def is_watched(self) -> bool:
        """False on a slave, and if refuseSecondMaster is off."""
        return self.options.refuse_second_master and not self.options.is_slave

    def refusal(self) -> ServiceNotAvailable:
        """Returns a yielded master's answer to every request that would change something."""
        return ServiceNotAvailable(
            f"{self.yielded_to} is the master of {self.options.broker_name}; this one started later and"
            " accepts nothing until it is started again: stop one of the two"
        )

    async def require_first(self) -> None:
        """Raises ConfigError when another master of this name is registered and answers as such."""
        other = None if self.options.is_slave else await self.other_master()
        if other is not None:
            raise ConfigError(
                f"{other} is the master of {self.options.broker_name} and answers: stop it first,"
                " or set refuseSecondMaster=false"
            )

    async def other_master(self, also: Iterable[str] = ()) -> str | None:
        """Returns the address of another master of this name, among those that name servers list and `also`;
        else None.
        """
        options = self.options
        if not options.refuse_second_master:
            return None
        own = render_address((options.advertised_host, options.listen_port))
        known = await self.known_members()
        for address in sorted({members[0] for members in known if 0 in members}.union(also) - {own}):
            if await self._query_master(address) is not None:
                return address
        return None

    async def known_members(self) -> list[dict[int, str]]:
        """Returns this name's brokers by id, one table per name server that answers."""
        answers = await asyncio.gather(*map(self._members, dict.fromkeys(self.options.name_servers)))
        return [members for members in answers if members is not None]

    async def listed_slaves(self) -> dict[int, str] | None:
        """Returns the slaves of this name by id, as reported by all name servers that answer; None without an
        answer.
        """
        known = await self.known_members()
        slaves = {key: one for members in known for key, one in members.items() if key}
        return slaves if known else None

    async def may_register(self, name_server: str) -> bool:
        """Compares this broker with another master that the name server lists under its name. Returns False
        once this broker has yielded.
        """
        if not self.yielded_to and self.is_watched:
            other = (await self._members(name_server) or {}).get(0)
            if other is not None and other != self.own_address():
                await self._compare(other)
        return not self.yielded_to

    async def _compare(self, other: str) -> None:
        facts = await self._query_master(other)
        if facts is None or self.yielded_to:
            return
        extra = {"broker": self.options.broker_name, "other": other}
        if facts > MasterSeniority(self.started_at_ms, self.own_address()):
            if other != self._found:
                self._found = other
                log.error(events.SECOND_MASTER_FOUND, extra=extra)
            return
        self.yielded_to = other
        log.error(events.SECOND_MASTER_YIELDED, extra=extra)
        self.on_yield()

    async def _members(self, name_server: str) -> dict[int, str] | None:
        """Returns the members that the name server lists; None when it does not answer."""
        options = self.options
        try:
            return await query_members(
                self.client, name_server, options.cluster_name, options.broker_name, timeout_s=ASK_TIMEOUT_S
            )
        except TandemError:
            return None

    async def _query_master(self, address: str) -> MasterSeniority | None:
        """Returns the other master at the address. None without an answer, for a broker that is not a master
        of this name, for a yielded master, and for this broker itself.
        """
        try:
            config = await query_broker_config.within(ASK_TIMEOUT_S, self.client, address)
            if (config.get("brokerName"), config.get("brokerId")) != (self.options.broker_name, "0"):
                return None
            runtime = await query_runtime_info.within(ASK_TIMEOUT_S, self.client, address)
            started_at_ms = int(runtime.get("bootTimestamp", "0"))
        except (TandemError, ValueError):
            return None
        if runtime.get(YIELDED_KEY) or self._is_own(runtime):
            return None
        return MasterSeniority(started_at_ms, address)

    def _is_own(self, runtime: dict[str, str]) -> bool:
        return bool(self._incarnation) and runtime.get(INCARNATION_KEY) == self._incarnation
