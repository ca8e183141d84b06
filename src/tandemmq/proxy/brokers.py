"""Brokers as the proxy sees them: routes, kinds of topics, settings of groups, and calls to masters.

All handlers share one `Brokers`. A master may change at any time: `call_master` follows the route until the
deadline, and a request may therefore be executed twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from tandemmq import errors
from tandemmq.api import broker_admin, nameserver
from tandemmq.api.calls import Call
from tandemmq.client.route_cache import NameServers, RouteView, build_view, is_known
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.cache import Cached
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock, Random
from tandemmq.runtime.tasks import TaskScope
from tandemmq.units import MASTER_ID

P = ParamSpec("P")
T = TypeVar("T")

OUTAGES: Final = (errors.BrokerUnreachable, errors.NoRoute, errors.NotServed, errors.ServiceNotAvailable)
"""The errors of a group without a serving master; it may have one in a moment."""
OUTAGE_PAUSE_MS: Final = (50, 200)
SEND_S: Final = 2.0
"""The time for a send towards the broker (spec proxy 7)."""
CALL_S: Final = 3.0
ASK_S_MIN: Final = 0.5
"""The shortest time limit of one of several masters that are asked in turn."""
NORMAL: Final = "NORMAL"


class NoMaster(errors.BrokerUnreachable):
    """No broker that could be asked has a master now."""


class TopicAccess:
    """A topic's route in both forms: as registered, and as clients interpret it."""

    __slots__ = ("route", "view")

    def __init__(self, topic: str, route: TopicRoute) -> None:
        self.route = route
        self.view: RouteView = build_view(topic, route)


class Brokers:
    """The brokers behind this proxy. Queries are cached (`Cached`): a changed topic or group is seen within
    20 s, a deleted topic within 300 s.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        name_servers: NameServers,
        *,
        clock: Clock,
        chance: Random,
        tasks: TaskScope,
    ) -> None:
        self.remoting = remoting
        self.name_servers = name_servers
        self._clock = clock
        self._chance = chance
        # A name server that has just started knows no topic until the brokers have registered again.
        self.topics: Cached[str, TopicAccess] = Cached(
            "route", self._query_route, clock=clock, tasks=tasks, survives_absence=True
        )
        self.kinds: Cached[str, str] = Cached("topic", self._query_kind, clock=clock, tasks=tasks)
        self.groups: Cached[str, SubscriptionGroupConfig] = Cached(
            "group", self._query_group, clock=clock, tasks=tasks
        )

    async def topic(self, name: str) -> TopicAccess:
        """Returns the route of a topic. Raises TopicNotFound."""
        access = await self.topics.get(name)
        if access is None:
            raise errors.TopicNotFound(f"no route of topic {name}: no broker has it")
        return access

    async def has_broker(self, topic: str, broker_name: str) -> bool:
        """Returns True if a broker of this name has the topic, by a new route if the kept one lacks it.

        Raises:  TopicNotFound.
        """
        access: TopicAccess | None = await self.topic(topic)
        if access is not None and broker_name not in access.view.addresses:
            access = await self.topics.refresh(topic)
        return access is not None and broker_name in access.view.addresses

    async def kind(self, topic: str) -> str:
        """Returns the topic's `message.type`; NORMAL without one, or while no broker answers."""
        try:
            return await self.known_kind(topic)
        except (*OUTAGES, errors.RequestTimeout):
            return NORMAL

    async def known_kind(self, topic: str) -> str:
        """Returns the topic's `message.type`; NORMAL without one.

        Raises:  OUTAGES or RequestTimeout while no broker answers.
        """
        return await self.kinds.get(topic) or NORMAL

    async def group(self, name: str) -> SubscriptionGroupConfig:
        """Returns the settings of a consumer group; the default ones for an unknown group."""
        return await self.groups.get(name) or SubscriptionGroupConfig(name=name)

    async def call_master(
        self,
        topic: str,
        broker_name: str,
        ask: Callable[[str, float], Awaitable[T]],
        *,
        timeout_s: float = CALL_S,
    ) -> T:
        """Returns the answer of the broker group's master; `ask` gets its address and the seconds left.

        Raises:  the error of the last attempt; BrokerUnreachable while the route names no master;
                 TopicNotFound.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        access = await self.topic(topic)
        while True:
            try:
                address = access.view.master_address(broker_name)
                if address is None:
                    raise errors.BrokerUnreachable(
                        f"broker {broker_name!r} has no master for topic {topic!r}"
                    )
                return await ask(address, max(0.0, deadline_s - self._clock.monotonic()))
            except OUTAGES as error:
                await self.pause(error, deadline_s)
                access = await self.topics.refresh(topic) or access

    async def pause(self, error: errors.TandemError, deadline_s: float) -> None:
        """Waits a moment, in which there may be another master. Raises `error` if the deadline is earlier."""
        low, high = OUTAGE_PAUSE_MS
        pause_s = (low + self._chance.below(high - low)) / 1000
        if deadline_s - self._clock.monotonic() <= pause_s:
            raise error
        await self._clock.sleep(pause_s)

    async def ask_master(
        self, call: Call[P, T], topic: str, broker_name: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Returns the answer of the master to `call` with the further arguments. Raises as `call_master`."""
        return await self.call_master(
            topic,
            broker_name,
            lambda address, left_s: call.within(left_s, self.remoting, address, *args, **kwargs),
        )

    async def _query_route(self, topic: str) -> TopicAccess | None:
        route = await self.name_servers.ask(
            lambda client, address: nameserver.query_route(client, address, topic), knows=is_known
        )
        return None if route is None else TopicAccess(topic, route)

    async def _query_kind(self, topic: str) -> str | None:
        """Returns the attribute of the topic at the first master that has it."""
        access = await self.topic(topic)
        config = await self.ask_masters(
            sorted(access.route.masters),
            lambda address, time_s: broker_admin.query_topic_config.within(
                time_s, self.remoting, address, topic
            ),
        )
        return None if config is None else config.attributes.get("message.type", NORMAL)

    async def _query_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Returns the settings of the group at the first master of the cluster that has it."""
        return await self.ask_masters(
            list((await self.masters()).values()),
            lambda address, time_s: broker_admin.query_group_config.within(
                time_s, self.remoting, address, group
            ),
        )

    async def ask_masters(
        self, addresses: Sequence[str], ask: Callable[[str, float], Awaitable[T | None]]
    ) -> T | None:
        """Returns the first answer that is not None; None if all masters answer None.

        The masters share CALL_S, because clients wait for 3 s: a silent one must not hide the others, and
        neither must one that refuses the request, as an older version does.

        Raises:  the error of the last master that failed, if no other one has an answer; NoMaster without any
                 master, because None would mean that the object does not exist.
        """
        failure: errors.TandemError | None = None
        if not addresses:
            failure = NoMaster("no broker has a master now")
        for address in addresses:
            try:
                answer = await ask(address, max(ASK_S_MIN, CALL_S / len(addresses)))
            except errors.TandemError as error:
                failure = error
                continue
            if answer is not None:
                return answer
        if failure is not None:
            raise failure
        return None

    async def masters(self) -> dict[str, str]:
        """Returns the addresses of all masters by the name of the broker, in the order of the names."""
        info = await self.name_servers.ask(nameserver.query_cluster_info)
        return {
            name: broker.addresses[MASTER_ID]
            for name, broker in sorted(info.brokers.items())
            if MASTER_ID in broker.addresses
        }
