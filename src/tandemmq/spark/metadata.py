"""The driver's requests to name servers and brokers: queues, their bounds, offsets by time, and group
offsets.

A request about a queue goes to its master, or to a slave if the master does not answer. All requests to one
broker are sent together. A slave may be behind, so its answers are marked: they suffice to continue a query,
but never prove that messages are lost.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

from tandemmq.errors import BadRequest, NoRoute, RemoteProtocolError, RequestRejected, TopicNotFound
from tandemmq.protocol.bodies.codec import decode_kv_table
from tandemmq.protocol.bodies.stats import QueueOffsets, decode_queue_offsets
from tandemmq.protocol.bodies.tables import Permission
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import decode_record, decode_records
from tandemmq.protocol.record_layout import RecordError
from tandemmq.protocol.requests.admin import TopicStatsRequest
from tandemmq.protocol.requests.consume import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    PullRequest,
    QueryMessageRequest,
    QueryMessageResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateOffsetRequest,
)
from tandemmq.protocol.sys_flag import PULL_SUBSCRIPTION
from tandemmq.protocol.topic_names import is_dlq_topic, is_retry_topic, is_system_topic
from tandemmq.spark.offsets import (
    ANY_BROKER,
    MANY_QUEUES,
    Mark,
    Positions,
    QueueKey,
    name_queues,
    render_queues,
)
from tandemmq.spark.options import PULL_GROUP, ReadPreference, SourceOptions
from tandemmq.spark.wire import POOL, UNREACHABLE, BlockingNameServers, accept
from tandemmq.telemetry import events
from tandemmq.units import MASTER_ID, MIB

T = TypeVar("T")

log = logging.getLogger(__name__)

PULL_BYTES_MAX = 4 * MIB
KEY_MATCHES_MAX = 64
KEY_ANSWER_BYTES_MAX = 4 * MIB

_READ = int(Permission.READ)

_UNKNOWN_QUEUE = (TopicNotFound, BadRequest)
"""The rejections of a broker that does not know the queue."""

Replicas = Mapping[str, Mapping[int, str]]
"""Broker name -> broker id -> `host:port`; id 0 is the master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The queues that the options select, and the current addresses of their brokers."""

    queues: tuple[QueueKey, ...] = ()
    replicas: Replicas = field(default_factory=dict)


class Bounds(NamedTuple):
    """The messages `[begin, end)` of a queue; `is_master` is True if its master answered. `newest_at_ms` is
    the store time of the last one, 0 if the request did not ask for it.
    """

    begin: int
    end: int
    is_master: bool
    newest_at_ms: int = 0


class ReplicaMark(NamedTuple):
    """The message that a replica has at a queue offset; `mark` is None if it has none there or does not
    answer with one.
    """

    mark: Mark | None
    is_master: bool


class KeyMatches(NamedTuple):
    """The matches of a key in one broker's index, as (queue id, queue offset), for messages stored up to a
    time.
    """

    places: tuple[tuple[int, int], ...]
    indexed_until_ms: int


class QueriedCluster:
    """The name servers and brokers of one query; used only in the driver's processes."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._name_servers = BlockingNameServers(
            options.name_servers, options.pull_timeout_s, options.security
        )

    def describe(self) -> Topology:
        """Returns the readable queues; empty if none of the query's topics is known yet.

        Raises:  BrokerUnreachable if no name server answers.
        """
        counts: dict[tuple[str, str], int] = {}
        replicas: dict[str, Mapping[int, str]] = {}
        topics = self._topics()
        for topic, route in zip(topics, self._name_servers.find_routes(topics), strict=True):
            if route is None:
                continue
            for broker in route.brokers:
                replicas[broker.broker_name] = self._allowed(broker.addresses)
            for entry in route.queues:
                if entry.permission & _READ:
                    counts[topic, entry.broker_name] = entry.read_queue_count
        known = (name_queues(*place, 0, count) for place, count in sorted(counts.items()))
        queues: Iterable[QueueKey] = chain.from_iterable(known)
        if self._options.assigned:
            queues = filter(self._options.selects, queues)
        return Topology(queues=tuple(queues), replicas=replicas)

    def locate(self, queue: QueueKey) -> Mapping[int, str]:
        """Returns the replicas of the queue's broker that the name servers list now; empty if they list
        none.
        """
        route = self._name_servers.find_route(queue.topic)
        brokers = route.brokers if route is not None else ()
        return next((self._allowed(b.addresses) for b in brokers if b.broker_name == queue.broker), {})

    def _allowed(self, addresses: Mapping[int, str]) -> dict[int, str]:
        """Returns the replicas that the query may read."""
        only = self._options.replica
        return {number: address for number, address in addresses.items() if only in (None, number)}

    def read_bounds(
        self, topology: Topology, *, prefer_slave: bool = False, refused: set[QueueKey] | None = None
    ) -> dict[QueueKey, Bounds]:
        """Returns the bounds of every queue whose broker has a replica that answers.

        A queue that its master does not know, because the route is older than a change of the topic, is left
        out and added to `refused`.
        """

        def ask(queue: QueueKey) -> list[Command]:
            low = GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
            high = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
            return [
                Command.request(RequestCode.GET_MIN_OFFSET, low),
                Command.request(RequestCode.GET_MAX_OFFSET, high),
            ]

        def read(answers: Sequence[Command], is_master: bool) -> Bounds:
            low = accept(answers[0]).decode(GetMinOffsetResponse).offset
            return Bounds(low, accept(answers[1]).decode(GetMaxOffsetResponse).offset, is_master)

        unknown: set[QueueKey] = set() if refused is None else refused
        bounds: dict[QueueKey, Bounds] = {}
        queues: Sequence[QueueKey] = topology.queues
        if len(queues) > MANY_QUEUES:
            bounds, queues = self._read_topic_bounds(topology, prefer_slave=prefer_slave, refused=unknown)
        found = self._query_each(topology, queues, ask, read, prefer_slave=prefer_slave, refused=unknown)
        return {**bounds, **found}

    def _read_topic_bounds(
        self, topology: Topology, *, prefer_slave: bool, refused: set[QueueKey]
    ) -> tuple[dict[QueueKey, Bounds], list[QueueKey]]:
        """Reads bounds with one request per topic and broker; see `read_bounds`.

        Returns them, and the queues of the topics whose statistics a broker does not return: they need the
        right GET, while SUB suffices for the bounds of one queue.
        """

        def ask(queue: QueueKey) -> list[Command]:
            return [Command.request(RequestCode.GET_TOPIC_STATS_INFO, TopicStatsRequest(topic=queue.topic))]

        def read(answers: Sequence[Command], is_master: bool) -> tuple[bool, dict[int, QueueOffsets] | None]:
            if answers[0].code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                return is_master, None
            return is_master, decode_queue_offsets(accept(answers[0]).body)

        groups = (list(group) for _, group in groupby(topology.queues, itemgetter(0, 1)))
        named = {group[0]: group for group in groups}
        unknown: set[QueueKey] = set()
        found = self._query_each(topology, list(named), ask, read, prefer_slave=prefer_slave, refused=unknown)
        refused.update(*(named[queue] for queue in unknown))
        bounds: dict[QueueKey, Bounds] = {}
        others: list[QueueKey] = []
        for first, (is_master, offsets) in found.items():
            if offsets is None:
                others += named[first]
                continue
            for queue in named[first]:
                limits = offsets.get(queue.queue_id)
                if limits is not None:
                    bounds[queue] = Bounds(limits.begin, limits.end, is_master, limits.newest_at_ms)
                elif is_master:
                    refused.add(queue)
        return bounds, others

    def read_marks(self, topology: Topology, places: Positions) -> dict[QueueKey, ReplicaMark]:
        """Returns the message at one queue offset of each queue.

        A compacted topic has no message at some offsets; the broker answers with the next one.
        """
        return {
            queue: seen if seen.mark and seen.mark.queue_offset == places[queue] else seen._replace(mark=None)
            for queue, seen in self._pull_marks(topology, places).items()
        }

    def _pull_marks(self, topology: Topology, places: Positions) -> dict[QueueKey, ReplicaMark]:
        """Returns the first message at or after one queue offset of each queue."""

        def ask(queue: QueueKey) -> list[Command]:
            header = make_pull(self._options, queue, places[queue], 1)
            return [Command.request(RequestCode.PULL_MESSAGE, header)]

        def read(answers: Sequence[Command], is_master: bool) -> ReplicaMark:
            if answers[0].code != ResponseCode.SUCCESS:
                return ReplicaMark(None, is_master)
            try:
                record = decode_record(answers[0].body, 0)
            except RecordError:
                return ReplicaMark(None, is_master)
            return ReplicaMark(Mark(record.queue_offset, record.log_offset, record.stored_at_ms), is_master)

        return self._query_each(topology, sorted(places), ask, read)

    def find_gone(self, queues: Collection[QueueKey]) -> set[QueueKey]:
        """Returns those of `queues` that no longer exist: their topic has fewer queues now, or their master
        does not know the topic.

        An unreachable broker proves nothing: name servers forget it, and its queues, after two minutes.
        Raises:  BrokerUnreachable if no name server answers.
        """
        gone: set[QueueKey] = set()
        for topic, broker in sorted({(queue.topic, queue.broker) for queue in queues}):
            mine = {queue for queue in queues if (queue.topic, queue.broker) == (topic, broker)}
            route = self._name_servers.find_route(topic)
            counts = {entry.broker_name: entry.read_queue_count for entry in route.queues} if route else {}
            listed = {queue for queue in mine if queue.queue_id < counts.get(broker, 0)}
            if broker in counts:
                gone |= mine - listed
            # A route may be older than the deletion of its topic.
            if (listed or broker not in counts) and self._has_no_topic(broker, topic):
                gone |= mine
        return gone

    def _has_no_topic(self, broker: str, topic: str) -> bool:
        """Returns True if the broker's master itself answers that the topic does not exist."""
        address = self._name_servers.find_broker(broker).get(MASTER_ID)
        if address is None:
            return False
        header = make_pull(self._options, QueueKey(topic, broker, 0), 0, 1)
        answer = self._ask(broker, address, Command.request(RequestCode.PULL_MESSAGE, header))
        return answer is not None and answer.code == ResponseCode.TOPIC_NOT_EXIST

    def _ask(self, broker: str, address: str, request: Command) -> Command | None:
        """Returns the answer of one broker; None if it does not answer."""
        try:
            with POOL.borrow(address, self._options.security) as connection:
                return connection.request(request, self._options.pull_timeout_s)
        except UNREACHABLE as error:
            log.debug(events.REPLICA_UNREACHABLE, extra={"broker": broker, "error": str(error)})
            return None

    def search(self, topology: Topology, times_ms: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Returns for each queue the offset of the first message stored at or after its time; the end of the
        queue if there is none.
        """

        def ask(queue: QueueKey) -> list[Command]:
            header = SearchOffsetRequest(
                topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=times_ms[queue], boundary="LOWER"
            )
            return [Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)]

        def read(answers: Sequence[Command], is_master: bool) -> int:
            return accept(answers[0]).decode(SearchOffsetResponse).offset

        found = self._query_each(topology, sorted(times_ms), ask, read)
        # Brokers of 4.9 answer with the nearest message, which may be older than the time.
        marks = ((queue, seen.mark) for queue, seen in self._pull_marks(topology, found).items())
        older = {queue for queue, mark in marks if mark and mark.stored_at_ms < times_ms[queue]}
        return {queue: at + (queue in older) for queue, at in found.items()}

    def find_by_key(self, topology: Topology, topic: str, broker: str, key: str) -> KeyMatches | None:
        """Returns the matches of the master's key index; None if it does not answer or its answer may be
        incomplete.
        """
        address = topology.replicas.get(broker, {}).get(MASTER_ID)
        if address is None:
            return None
        header = QueryMessageRequest(
            topic=topic, key=key, count_max=KEY_MATCHES_MAX, begin_at_ms=0, end_at_ms=2**63 - 1
        )
        answer = self._ask(broker, address, Command.request(RequestCode.QUERY_MESSAGE, header))
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            return None
        try:
            response, records = answer.decode(QueryMessageResponse), list(decode_records(answer.body))
        except (RemoteProtocolError, BadRequest):
            return None
        # An answer near the broker's limits may be truncated.
        if len(records) >= KEY_MATCHES_MAX // 2 or len(answer.body) >= KEY_ANSWER_BYTES_MAX:
            return None
        places = {(record.queue_id, record.queue_offset) for record in records}
        return KeyMatches(tuple(sorted(places)), response.index_updated_at_ms)

    def leave_out_slow(self, topology: Topology) -> Topology:
        """Returns `topology` without the slaves that are further behind than the option maxSlaveLag allows.

        A replica that does not report its position is kept: readers skip it if it is gone.
        """
        bytes_max = self._options.slave_lag_bytes_max
        if bytes_max is None or self._options.read_from is not ReadPreference.PREFER_SLAVE:
            return topology
        replicas: dict[str, Mapping[int, str]] = {}
        for broker, addresses in topology.replicas.items():
            ends = {
                broker_id: self._read_log_end(broker, address) for broker_id, address in addresses.items()
            }
            master_end = ends.get(MASTER_ID)
            replicas[broker] = {
                broker_id: address
                for broker_id, address in addresses.items()
                if master_end is None or master_end - (ends[broker_id] or master_end) <= bytes_max
            }
        return Topology(queues=topology.queues, replicas=replicas)

    def _read_log_end(self, broker: str, address: str) -> int | None:
        """Returns the end of the broker's CommitLog; None if the broker does not answer or does not report
        it.
        """
        answer = self._ask(broker, address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        end = decode_kv_table(answer.body).get("commitLogMaxOffset", "")
        return int(end) if end.isdecimal() else None

    def read_committed(self, topology: Topology) -> dict[QueueKey, int]:
        """Returns the group's offsets; queues without a stored offset are left out."""
        group = self._options.group

        def ask(queue: QueueKey) -> list[Command]:
            header = QueryOffsetRequest(
                consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, zero_if_missing=False
            )
            return [Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header)]

        def read(answers: Sequence[Command], is_master: bool) -> int | None:
            if answers[0].code == ResponseCode.QUERY_NOT_FOUND:
                return None
            return accept(answers[0]).decode(QueryOffsetResponse).offset

        found = self._query_each(topology, topology.queues, ask, read)
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit(self, topology: Topology, positions: Positions) -> None:
        """Stores the group's offsets. Failures are logged only, because the query does not depend on them."""
        group = self._options.group

        def ask(queue: QueueKey) -> list[Command]:
            header = UpdateOffsetRequest(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                committed_offset=positions[queue],
            )
            return [Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)]

        def read(answers: Sequence[Command], is_master: bool) -> int:
            return answers[0].code

        queues = [queue for queue in positions if queue.broker in topology.replicas]
        codes = self._query_each(topology, queues, ask, read)
        refused = sorted({code for code in codes.values() if code != ResponseCode.SUCCESS})
        if refused:
            log.warning(events.PROGRESS_REFUSED, extra={"group": group, "codes": refused})

    def _topics(self) -> list[str]:
        options = self._options
        if options.assigned:
            return sorted({queue.topic for queue in options.assigned})
        if options.topics:
            return list(options.topics)
        pattern = re.compile(options.topic_pattern)
        names = self._name_servers.list_topics()
        return sorted(name for name in names if pattern.fullmatch(name) and not self._is_hidden(name))

    def _is_hidden(self, topic: str) -> bool:
        """Returns True for topics that a pattern matches only if it contains their percent sign, and for
        system topics.
        """
        is_internal = is_retry_topic(topic) or is_dlq_topic(topic)
        return is_system_topic(topic) or (is_internal and "%" not in self._options.topic_pattern)

    def _query_each(
        self,
        topology: Topology,
        queues: Sequence[QueueKey],
        ask: Callable[[QueueKey], list[Command]],
        read: Callable[[Sequence[Command], bool], T],
        *,
        prefer_slave: bool = False,
        refused: set[QueueKey] | None = None,
    ) -> dict[QueueKey, T]:
        """Returns one answer per queue; a queue is left out if no replica of its broker answers.

        Queues that their master does not know are added to `refused`; if that is None, the request raises.
        """
        results: dict[QueueKey, T] = {}
        for broker in sorted({queue.broker for queue in queues}):
            mine = [queue for queue in queues if queue.broker == broker]
            requests = [ask(queue) for queue in mine]
            for broker_id, address in order_replicas(topology.replicas.get(broker, {}), prefer_slave):
                try:
                    with POOL.borrow(address, self._options.security) as connection:
                        answers = connection.request_all(list(chain(*requests)), self._options.pull_timeout_s)
                except UNREACHABLE as error:
                    log.debug(events.REPLICA_UNREACHABLE, extra={"broker": broker, "error": str(error)})
                    continue
                pieces = zip(mine, batched(answers, len(requests[0])), strict=True)
                is_master = broker_id == MASTER_ID
                try:
                    results |= _read_each(pieces, read, is_master, refused if is_master else None)
                except RequestRejected:
                    # A slave may not know a new topic yet; only the master's rejection is final.
                    if is_master:
                        raise
                    continue
                break
        return results


def _read_each(
    pieces: Iterable[tuple[QueueKey, Sequence[Command]]],
    read: Callable[[Sequence[Command], bool], T],
    is_master: bool,
    refused: set[QueueKey] | None,
) -> dict[QueueKey, T]:
    """Decodes one broker's answers for each queue; see `_query_each`."""
    found: dict[QueueKey, T] = {}
    for queue, answers in pieces:
        try:
            found[queue] = read(answers, is_master)
        except _UNKNOWN_QUEUE:
            if refused is None:
                raise
            refused.add(queue)
    return found


def make_pull(
    options: SourceOptions,
    queue: QueueKey,
    begin: int,
    count: int,
    *,
    is_filtered: bool = False,
    bulk: int = 0,
) -> PullRequest:
    """Returns a pull that is answered at once; `bulk` is the largest answer in bytes, which TandemMQ brokers
    honour.
    """
    return PullRequest(
        consumer_group=options.group or PULL_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=begin,
        count_max=count,
        sys_flag=PULL_SUBSCRIPTION,
        committed_offset=0,
        suspend_timeout_ms=0,
        subscription_version=0,
        subscription=options.subscription if is_filtered else "*",
        expression_type=options.subscription_type if is_filtered else "TAG",
        bytes_max=PULL_BYTES_MAX,
        bulk_bytes=bulk or None,
        wants_sizes=True if bulk else None,
    )


def order_replicas(
    addresses: Mapping[int, str], prefer_slave: bool, *, first: int | None = None
) -> list[tuple[int, str]]:
    """Returns the replicas in the order in which they are asked: by id, with `first` in front, or with the
    master last if `prefer_slave`.

    A replica that recently did not answer is placed behind all others.
    """

    def rank(item: tuple[int, str]) -> tuple[bool, bool, bool, int]:
        broker_id, address = item
        is_last = prefer_slave and broker_id == MASTER_ID
        return POOL.is_suspect(address), is_last, broker_id != first, broker_id

    return sorted(addresses.items(), key=rank)


def require_queues(topology: Topology, options: SourceOptions) -> None:
    """Raises NoRoute if the name servers know none of the topics."""
    if topology.queues:
        return
    what = ", ".join(options.topics) or options.topic_pattern or "the assigned queues"
    raise NoRoute(f"no readable queue of {what} is known to {', '.join(options.name_servers)}")


def require_named(topology: Topology, options: SourceOptions) -> None:
    """Raises NoRoute if a topic or an assigned queue that the options name is missing; if losses are allowed,
    only if all of them are.
    """
    require_queues(topology, options)
    there = {queue.topic for queue in topology.queues}
    known = {known for queue in topology.queues for known in (queue, queue._replace(broker=ANY_BROKER))}
    missing = [topic for topic in options.topics if topic not in there]
    missing += [render_queues([queue]) for queue in options.assigned if queue not in known]
    if not missing:
        return
    if not options.fail_on_data_loss:
        log.warning(events.QUEUES_MISSING, extra={"queues": ", ".join(missing)})
        return
    raise NoRoute(
        f"no readable queue of {', '.join(missing)} is known to {', '.join(options.name_servers)}: the query"
        " names it, so its messages would be missing. Set failOnDataLoss=false to continue without it."
    )


def batched(items: Sequence[T], width: int) -> Iterator[Sequence[T]]:
    """Returns `items` in consecutive pieces of `width`."""
    return (items[at : at + width] for at in range(0, len(items), width))
