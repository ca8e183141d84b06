"""Routes of the topics that a client uses: `RouteView` is a route as clients interpret it, `RouteCache` keeps
the views fresh, `NameServers` asks for routes, and `FaultyPeers` lists the peers to avoid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tandemmq.api import nameserver
from tandemmq.errors import (
    BrokerUnreachable,
    ClientError,
    NoRoute,
    RequestRejected,
    RequestTimeout,
    TandemError,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.tables import Permission
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.telemetry.log_lines import Outages, event_logger
from tandemmq.units import MASTER_ID

log = event_logger(__name__)

# Building views: from a route to the queues for sends, the queues for reads, and the brokers' addresses (spec
# semantics 2.2). Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteView:
    """The view that clients have of one topic. Queues are sorted by broker name and queue id.

    publish_queues    the queues of writable brokers that have a master; those of an ordered topic are in the
                      configured order
    subscribe_queues  the queues of readable brokers, with or without a master
    addresses         broker name -> broker id -> `host:port`
    is_template       made from the auto-creation template: the topic itself does not exist yet
    """

    topic: str
    publish_queues: tuple[MessageQueue, ...] = ()
    subscribe_queues: tuple[MessageQueue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    is_template: bool = False

    def master_address(self, broker_name: str) -> str | None:
        """Returns the address for sends to the broker; None while the broker has no master."""
        replicas = self.addresses.get(broker_name)
        return None if replicas is None else replicas.get(MASTER_ID)


def build_view(topic: str, route: TopicRoute) -> RouteView:
    """Builds the view of a topic from its own route."""
    addresses = {broker.broker_name: dict(broker.addresses) for broker in route.brokers}
    readable: list[MessageQueue] = []
    writable: list[MessageQueue] = []
    for entry in route.queues:
        name = entry.broker_name
        if entry.permission & Permission.READ and addresses.get(name):
            readable += _queues(topic, name, entry.read_queue_count)
        if entry.permission & Permission.WRITE and MASTER_ID in addresses.get(name, {}):
            writable += _queues(topic, name, entry.write_queue_count)
    ordered = parse_order_queues(topic, route.order_topic_conf)
    return RouteView(
        topic=topic,
        publish_queues=tuple(ordered or sorted(writable)),
        subscribe_queues=tuple(sorted(readable)),
        addresses=addresses,
    )


def build_template_view(topic: str, template: TopicRoute, queue_count_max: int) -> RouteView:
    """Builds the view of a topic that the first send will create, from the route of TBW102 (spec semantics
    3.1).
    """
    addresses = {broker.broker_name: dict(broker.addresses) for broker in template.brokers}
    queues: list[MessageQueue] = []
    for entry in template.queues:
        if entry.permission & Permission.WRITE and MASTER_ID in addresses.get(entry.broker_name, {}):
            queues += _queues(topic, entry.broker_name, min(queue_count_max, entry.read_queue_count))
    ordered = tuple(sorted(queues))
    return RouteView(topic=topic, publish_queues=ordered, addresses=addresses, is_template=True)


def parse_order_queues(topic: str, order_conf: str | None) -> list[MessageQueue]:
    """Returns the queues of an ordered topic from `broker:count;broker:count`, in that order; an invalid
    piece is skipped.
    """
    queues: list[MessageQueue] = []
    for piece in (order_conf or "").split(";"):
        name, _, count = piece.strip().partition(":")
        if name and count.isdecimal() and len(count) <= 4:
            queues += _queues(topic, name, int(count))
    return queues


def _queues(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id) for queue_id in range(count)
    ]


AVOID_S_MIN = 2.0
AVOID_S_MAX = 30.0


class FaultyPeers:
    """The peers to avoid because they failed recently, each with the end of its avoidance. Pure.

    Producers name a peer by its broker name, consumers by its address. All calls of a client share one table,
    so that the first failure spares thousands of sends in flight the same wait. The time of avoidance doubles
    with each failure in a row, from 2 s to 30 s, the range of RocketMQ's fault table (spec semantics 3.2).
    One success ends it.
    """

    __slots__ = ("_failures", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Returns True if a peer has failed and not succeeded since."""
        return bool(self._until)

    def record_failure(self, peer: str, now_s: float) -> None:
        """Avoids the peer from now on, longer with every failure in a row.

        Failures of sends that were in flight together count once: only a failure after the avoidance has
        expired makes the next avoidance longer.
        """
        if self._until.get(peer, 0.0) > now_s:
            return
        failures = self._failures.get(peer, 0)
        self._failures[peer] = failures + 1
        self._until[peer] = now_s + min(AVOID_S_MIN * 2.0 ** min(failures, 10), AVOID_S_MAX)

    def record_success(self, peer: str) -> None:
        """Ends the avoidance of a peer that answered."""
        if self._failures:
            self._failures.pop(peer, None)
            self._until.pop(peer, None)

    def avoided(self, now_s: float) -> frozenset[str]:
        """Returns the peers to skip now. The usual case, an empty table, costs nothing."""
        if not self._until:
            return frozenset()
        return frozenset(peer for peer, until in self._until.items() if until > now_s)


REFRESH_PAUSE_S = 0.2
"""The least time between two refreshes of a topic whose route seems outdated: one failing broker makes
thousands of calls request a refresh.
"""

OnChange = Callable[[RouteView], None]


class RouteCache:
    """The views of topics, refreshed every `refresh_s`, and at once after a sign that a route is outdated.

    A topic that the name servers no longer know keeps its last view, because a restarted name server knows no
    topic for some seconds, and a call to a wrong address fails soon. At most one query per topic is in
    flight.
    """

    def __init__(
        self, name_servers: NameServers, *, clock: Clock, tasks: TaskScope, refresh_s: float
    ) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self._tasks = tasks
        self._refresh_s = refresh_s
        self._views: dict[str, RouteView] = {}
        self._tracked: set[str] = set()
        self._refreshed_at: dict[str, float] = {}
        self._loading: dict[str, asyncio.Task[RouteView | TandemError | None]] = {}
        self._load_pending: set[str] = set()
        self._listeners: list[OnChange] = []
        self._outages = Outages()

    def get(self, topic: str) -> RouteView | None:
        """Returns the last known view, without a query."""
        return self._views.get(topic)

    def replicas(self, topic: str, broker_name: str) -> Mapping[int, str]:
        """Returns the last known addresses of a broker group, by broker id."""
        view = self._views.get(topic)
        return {} if view is None else view.addresses.get(broker_name, {})

    def master_address(self, topic: str, broker_name: str) -> str | None:
        """Returns the last known address of a broker group's master."""
        return self.replicas(topic, broker_name).get(MASTER_ID)

    def require_master(self, topic: str, broker_name: str) -> str:
        """Returns the master's address. Raises NoRoute while none is known; the route is refreshed soon
        then.
        """
        address = self.master_address(topic, broker_name)
        if address is None:
            self.refresh_soon(topic)
            raise NoRoute(f"broker {broker_name!r} has no master for topic {topic!r}")
        return address

    def watch(self, listener: OnChange) -> Callable[[], None]:
        """Calls `listener` with each new or changed view; calling the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def track(self, topic: str) -> None:
        """Keeps this topic's view fresh, even while the topic has no route."""
        self._tracked.add(topic)

    def untrack(self, topic: str) -> None:
        """Forgets a topic."""
        self._tracked.discard(topic)
        self._views.pop(topic, None)

    async def refresh(self, topic: str) -> RouteView | None:
        """Queries a name server and returns the view; None when no name server knows the topic and no view
        was known.

        Raises:  BrokerUnreachable, RequestTimeout when no name server answers.
        """
        task = self._loading.get(topic) or self._start_load(topic)
        outcome = await asyncio.shield(task)
        if isinstance(outcome, TandemError):
            raise outcome
        return outcome

    async def publishable(self, topic: str, *, template_topic: str, template_queue_count: int) -> RouteView:
        """Returns a view with queues to send to; the template's view when the topic does not exist yet.

        Raises:  NoRoute with the reason; BrokerUnreachable, RequestTimeout when no name server answers.
        """
        self.track(topic)
        view = self._views.get(topic) or await self.refresh(topic)
        if view is not None and view.publish_queues:
            return view
        if view is not None and not view.is_template:
            view = await self.refresh(topic)
            if view is not None and view.publish_queues:
                return view
            # `refresh` keeps the view of a deleted topic, for its readers.
            if await self._query_route(topic) is not None:
                raise NoRoute(f"topic {topic!r}: no broker with a master accepts writes for it")
        template = await self._query_route(template_topic)
        view = None if template is None else build_template_view(topic, template, template_queue_count)
        if view is None or not view.publish_queues:
            servers = ";".join(self._name_servers.addresses)
            reason = f"no live broker has it, and no broker creates topics (name servers: {servers})"
            raise NoRoute(f"topic {topic!r}: {reason}")
        old = self._views.get(topic)
        if old is not None:
            if old.publish_queues and not old.is_template:
                return old  # the topic was created while the template was queried
            view = replace(
                view, subscribe_queues=old.subscribe_queues, addresses={**old.addresses, **view.addresses}
            )
        self._views[topic] = view
        return view

    def refresh_soon(self, topic: str) -> None:
        """Refreshes a view that seems outdated: at once, or after a pause when the view has just been
        refreshed.
        """
        self.track(topic)
        if topic in self._loading or topic in self._load_pending or self._tasks.is_closed:
            return
        since_s = self._clock.monotonic() - self._refreshed_at.get(topic, -REFRESH_PAUSE_S)
        if since_s >= REFRESH_PAUSE_S:
            self._start_load(topic)
        else:
            self._load_pending.add(topic)
            self._clock.call_later(REFRESH_PAUSE_S - since_s, self._load_due, topic)

    def broker_addresses(self) -> dict[str, dict[int, str]]:
        """Every broker of every known route: broker name -> id -> `host:port`. During a failover the topics'
        views name different masters, and the newest answer wins.
        """
        brokers: dict[str, dict[int, str]] = {}
        for view in self._views.values():
            for name, replicas in view.addresses.items():
                brokers.setdefault(name, {}).update(replicas)
        return brokers

    async def run(self) -> None:
        """Refreshes all tracked topics periodically, one after the other. Never returns."""
        while True:
            await self._clock.sleep(self._refresh_s)
            for topic in sorted(self._tracked):
                try:
                    await self.refresh(topic)
                except TandemError:
                    # Logged where it happened; the old views stay in use.
                    break

    def _load_due(self, topic: str) -> None:
        self._load_pending.discard(topic)
        if topic not in self._loading and not self._tasks.is_closed:
            self._start_load(topic)

    def _start_load(self, topic: str) -> asyncio.Task[RouteView | TandemError | None]:
        task = self._tasks.start("route", self._load(topic))
        self._loading[topic] = task
        task.add_done_callback(lambda _: self._loading.pop(topic, None))
        return task

    async def _load(self, topic: str) -> RouteView | TandemError | None:
        """Queries the route and stores the view. Errors are returned, because one failed query must not end
        the client's task scope.
        """
        try:
            route = await self._query_route(topic)
        except TandemError as error:
            facts = {"topic": topic, "error": str(error)}
            self._outages.record_failure(log, events.ROUTE_REFRESH_FAILED, None, facts)
            return error
        finally:
            self._refreshed_at[topic] = self._clock.monotonic()
        self._outages.record_success(events.ROUTE_REFRESH_FAILED, None)
        old = self._views.get(topic)
        if route is None:
            return old
        view = build_view(topic, route)
        self._views.pop(topic, None)
        self._views[topic] = view  # the newest answer last
        if view != old:
            for listener in list(self._listeners):
                listener(view)
        return view

    async def _query_route(self, topic: str) -> TopicRoute | None:
        return await self._name_servers.ask(
            lambda client, address: nameserver.query_route(client, address, topic),
            knows=is_known,
        )


T = TypeVar("T")


def is_known(route: TopicRoute | None) -> bool:
    """Returns True if the answer comes from a name server that knows the topic."""
    return route is not None


class NameServers:
    """The name servers of a client. All should give the same answers (spec remoting 5), so one is asked.

    If it fails or does not know the answer, the others are asked. The name server that knew the answer is the
    first to be asked from then on. A name server that has just started knows no broker yet, and a name server
    of another cluster never will.

    `first`: the index of the name server to ask first; the caller draws it, to spread the load of many
    clients.
    """

    def __init__(self, client: RemotingClient, addresses: Sequence[str], *, first: int = 0) -> None:
        assert addresses
        self._client = client
        self._addresses = tuple(addresses)
        self._current = first % len(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    @property
    def current(self) -> str:
        """The name server to ask next."""
        return self._addresses[self._current]

    async def ask(
        self,
        question: Callable[[RemotingClient, str], Awaitable[T]],
        *,
        knows: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Returns the first answer that satisfies `knows`, else the first answer.

        Raises:  when no name server answers, the first rejection, else the last BrokerUnreachable or
                 RequestTimeout.
        """
        first: tuple[T] | None = None
        refusal: RequestRejected | None = None
        last: ClientError | None = None
        begin, count = self._current, len(self._addresses)
        for index in ((begin + step) % count for step in range(count)):
            try:
                answer = await question(self._client, self._addresses[index])
            except RequestRejected as error:
                refusal = refusal or error
                continue
            except (BrokerUnreachable, RequestTimeout) as error:
                last = error
                if self._current == index:
                    self._current = (index + 1) % count
                continue
            if knows(answer):
                self._current = index
                return answer
            first = first or (answer,)
        if first is not None:
            return first[0]
        failure = refusal or last
        assert failure is not None
        raise failure
