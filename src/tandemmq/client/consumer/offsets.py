"""The offsets of a group (spec semantics 11): stored at the brokers (clustering, `BrokerOffsets`) or in a
local file (broadcasting, `LocalOffsets`). Also the offset at which a consumer begins a newly assigned queue
(`StartOffsets`; spec semantics 12.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar, assert_never

from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import GroupProgress
from tandemmq.client.consumer.replica_choice import choose_replica
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ConsumerOptions, StartFrom
from tandemmq.client.route_cache import FaultyPeers
from tandemmq.errors import (
    BrokerUnreachable,
    ClientError,
    ConfigError,
    NoRoute,
    RemoteProtocolError,
    RequestTimeout,
    TandemError,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.progress import decode_reset_offsets, encode_reset_offsets
from tandemmq.protocol.hashes import seal_json, unseal_json
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Disk
from tandemmq.runtime.tasks import TaskScope
from tandemmq.units import MASTER_ID

P = ParamSpec("P")
A = TypeVar("A")
QueueCall = Callable[Concatenate[RemotingClient, str, str, str, int, P], Awaitable[A]]
"""A call to a broker: the address, the group, the topic, the queue id, then the further arguments."""


class OffsetStore(Protocol):
    """The committed offsets of one group."""

    async def open(self, client_id: str) -> None:
        """Loads the offsets of the client, before the first use. Raises ConfigError when they cannot be
        read.
        """

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        """Returns the committed progress of the group; None when it has never committed."""

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        """Writes the committed offset; a lower one is allowed. `seen` is the last record that was read."""

    async def flush(self) -> None:
        """Returns once all written offsets are safe."""


class BrokerOffsets:
    """The offsets at the master of the queue's broker, or at any replica while there is no master (spec
    replication 9.1).

    A master that comes back has old offsets; the next periodic commit of the consumer updates them.
    """

    def __init__(
        self, instance: ClientInstance, group: str, faulty: FaultyPeers, *, zero_when_none_stored: bool
    ) -> None:
        self._instance = instance
        self._group = group
        self._faulty = faulty
        self._zero_if_missing = None if zero_when_none_stored else False

    async def open(self, client_id: str) -> None:
        """Does nothing: each offset is queried when it is needed."""

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        call = broker_consume.query_progress
        return await self._ask(queue, call, zero_if_missing=self._zero_if_missing)

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        call = broker_consume.commit_offset
        await self._ask(queue, call, offset, client_id=self._instance.client_id, seen=seen)

    async def flush(self) -> None:
        """Does nothing: each write has already been answered."""

    async def _ask(self, queue: MessageQueue, call: QueueCall[P, A], *args: P.args, **fields: P.kwargs) -> A:
        avoided = self._faulty.avoided(self._instance.clock.monotonic())
        address = serving_address(self._instance, queue, avoided)
        remoting, group = self._instance.remoting, self._group
        try:
            return await call(remoting, address, group, queue.topic, queue.queue_id, *args, **fields)
        except TandemError as error:
            if isinstance(error, BrokerUnreachable | RequestTimeout):
                self._faulty.record_failure(address, self._instance.clock.monotonic())
            if error.refresh_route:
                self._instance.routes.refresh_soon(queue.topic)
            raise


class LocalOffsets:
    """The offsets in `<dir>/<client id>/<group>/offsets.json`, in RocketMQ's format. The previous content is
    kept as `.bak` and used if the file is damaged.
    """

    def __init__(self, disk: Disk, directory: Path, group: str) -> None:
        self._disk = disk
        self._directory = directory
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._is_changed = False
        self._saving = asyncio.Lock()
        self._scope = TaskScope("offsets")

    async def open(self, client_id: str) -> None:
        """Reads the file."""
        self._path = self._directory / client_id / self._group / "offsets.json"
        self._offsets = await self._disk.offload(self._load)

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        offset = self._offsets.get(queue)
        return None if offset is None else GroupProgress(offset)

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._is_changed = True

    async def flush(self) -> None:
        """Writes the file if an offset has changed; writes run one after the other, and a begun write is
        completed even if the caller is cancelled.

        Raises:  ClientError when the disk accepts no file now; the next flush writes it.
        """
        async with self._saving:
            if not self._is_changed:
                return
            self._is_changed = False
            data = encode_reset_offsets(self._offsets)
            try:
                await self._scope.run_to_completion("save", self._disk.offload(self._save, data))
            except OSError as error:
                self._is_changed = True
                raise ClientError(f"{self._path} cannot be written: {error.strerror or error}") from error
            except asyncio.CancelledError:
                self._is_changed = True  # unknown if the write succeeded
                raise

    def _load(self) -> dict[MessageQueue, int]:
        """Reads the file or its backup. Raises ConfigError when the directory cannot be created, or when
        files exist and none can be read: starting without offsets would repeat or skip messages.
        """
        try:
            self._disk.make_dirs(self._path.parent)
        except OSError as error:
            where = f"offsets_dir: {self._path.parent} cannot be created"
            raise ConfigError(f"{where}: {error.strerror or error}") from error
        damage = ""
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            if not self._disk.exists(path):
                continue
            try:
                raw = self._disk.read_bytes(path)
                if raw.strip():
                    return decode_reset_offsets(unseal_json(raw))
            except (RemoteProtocolError, ValueError) as error:
                damage = f"{path}: {error}"
        if damage:
            raise ConfigError(f"{damage}; the other copy is missing or cannot be read, either")
        return {}

    def _save(self, data: bytes) -> None:
        self._disk.make_dirs(self._path.parent)
        self._disk.write_atomically(self._path, seal_json(data), keep_backup=True)


BASELINE_GRACE_S: Final = 1.0
"""The time in seconds for another member that starts together with this one to commit the group's start
offsets.
"""
QUERIES_MAX: Final = 256


class StartOffsets:
    """The offsets at which one consumer begins in newly assigned queues.

    A committed offset decides. Without one, `start_from` applies to the queues that existed when the group
    began in the topic. `LAST` skips the messages that those queues had then, and must skip nothing else: a
    queue that appears later, with a new topic or with more queues, begins at its first message.

    The group's committed offsets record the queues that it began with. A member that finds no offset in the
    whole topic commits a start offset for every queue, including those of other members, before it reads.
    From then on a queue without an offset is a new one, for every member and after every restart. Members
    that start together wait `BASELINE_GRACE_S` for one another's commits. If such a commit is lost, its queue
    is read from its first message: duplicates and old messages rather than gaps.

    A queue that was not in the first route that this consumer saw is new if it has no committed offset.
    """

    def __init__(self, store: OffsetStore, instance: ClientInstance, options: ConsumerOptions) -> None:
        self._store = store
        self._instance = instance
        self._options = options
        self._first_route: dict[str, frozenset[MessageQueue]] = {}
        self._started_topics: set[str] = set()
        """The topics in which the group is known to have offsets."""
        self._uncommitted: dict[MessageQueue, int] = {}
        """The start offsets that no broker has stored; the readers of these queues commit them."""

    def on_route(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Records the queues that can be read now, or none while the topic has no route; only the first call
        for a topic counts.
        """
        self._first_route.setdefault(topic, frozenset(queues))

    async def find(
        self, queue: MessageQueue, *, is_assigned: bool, avoided: frozenset[str] = frozenset()
    ) -> GroupProgress:
        """Returns the committed offset; without one, the start offset of the queue for this group.

        A retry topic always begins at its first message: messages sent back must not be skipped. For queues
        that the application has chosen (`is_assigned`), the group may have read other queues before, so only
        queues that appeared meanwhile count as new.

        Raises:  any TandemError of the queries; the queue is not started then, because a guess could skip
                 messages.
        """
        committed = await self._store.read(queue)
        if committed is not None and committed.offset >= 0:
            if not self._options.zero_when_none_stored:
                self._started_topics.add(queue.topic)
            return committed
        start_from = StartFrom.FIRST if is_retry_topic(queue.topic) else self._options.start_from
        if start_from is StartFrom.LAST:
            if queue not in self._first_route.get(queue.topic, frozenset()):
                start_from = StartFrom.FIRST
            elif not is_assigned and not self._options.zero_when_none_stored:
                return await self._start_anew(queue, avoided)
        offset = await find_offset(queue, start_from, self._options.start_time_ms, self._instance, avoided)
        return GroupProgress(offset)

    async def _start_anew(self, queue: MessageQueue, avoided: frozenset[str]) -> GroupProgress:
        """Returns the start offset of a queue of the first route in which the group has no offset."""
        topic = queue.topic
        if topic not in self._started_topics and not await self._has_offsets(topic):
            await self._commit_beginnings(topic, avoided)
        elif topic not in self._started_topics:
            await self._instance.clock.sleep(BASELINE_GRACE_S)
        self._started_topics.add(topic)
        uncommitted = self._uncommitted.pop(queue, None)
        committed = await self._store.read(queue)
        if committed is not None and committed.offset >= 0:
            return committed
        if uncommitted is None:
            uncommitted = await find_offset(queue, StartFrom.FIRST, None, self._instance, avoided)
        return GroupProgress(uncommitted)

    async def _has_offsets(self, topic: str) -> bool:
        """Returns True if the group has an offset in any queue of the topic.

        Raises:  the error of a failed query, when no other queue has an offset.
        """
        failure: TandemError | None = None
        for some in self._in_turns(topic):
            answers = await asyncio.gather(*map(self._store.read, some), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, TandemError):
                    failure = failure or answer
                elif isinstance(answer, BaseException):
                    raise answer
                elif answer is not None and answer.offset >= 0:
                    return True
        if failure is not None:
            raise failure
        return False

    async def _commit_beginnings(self, topic: str, avoided: frozenset[str]) -> None:
        """Commits the end of every queue as the group's start offset.

        Raises:  any TandemError of the queries for the ends; nothing was committed then.
        """
        for some in self._in_turns(topic):
            ends = await asyncio.gather(
                *(find_offset(queue, StartFrom.LAST, None, self._instance, avoided) for queue in some)
            )
            self._uncommitted.update(zip(some, ends, strict=True))
        for some in self._in_turns(topic):
            outcomes = await asyncio.gather(
                *(self._store.write(queue, self._uncommitted[queue]) for queue in some),
                return_exceptions=True,
            )
            for queue, outcome in zip(some, outcomes, strict=True):
                if outcome is None:
                    del self._uncommitted[queue]
                elif not isinstance(outcome, TandemError):
                    raise outcome
        await self._store.flush()

    def _in_turns(self, topic: str) -> Iterator[list[MessageQueue]]:
        """Yields the queues of the first route that are still routed, in chunks."""
        view = self._instance.routes.get(topic)
        routed = frozenset(view.subscribe_queues) if view is not None else frozenset()
        queues = sorted(self._first_route[topic] & routed)
        for begin in range(0, len(queues), QUERIES_MAX):
            yield queues[begin : begin + QUERIES_MAX]


async def find_offset(
    queue: MessageQueue,
    start_from: StartFrom,
    time_ms: int | None,
    instance: ClientInstance,
    avoided: frozenset[str] = frozenset(),
) -> int:
    """Returns the first or the last offset of a queue now, or that of a time, from a replica that is not
    avoided. The route is read again first if it names no address.

    Raises:  any TandemError of the query; NoRoute without an address.
    """
    if not instance.routes.replicas(queue.topic, queue.broker_name):
        await instance.routes.refresh(queue.topic)
    remoting, address = instance.remoting, serving_address(instance, queue, avoided)
    match start_from:
        case StartFrom.FIRST:
            offset = await broker_consume.query_min_offset(remoting, address, queue.topic, queue.queue_id)
        case StartFrom.LAST:
            offset = await broker_consume.query_max_offset(remoting, address, queue.topic, queue.queue_id)
        case StartFrom.TIMESTAMP:
            assert time_ms is not None
            offset = await broker_consume.search_offset(
                remoting, address, queue.topic, queue.queue_id, time_ms
            )
        case _:
            assert_never(start_from)
    return offset


def serving_address(instance: ClientInstance, queue: MessageQueue, avoided: Collection[str]) -> str:
    """Returns the address of the queue's master, or of a slave while there is no master; one that is not
    avoided if possible.

    Raises:  NoRoute when the route names no address; it is refreshed soon then.
    """
    replica = choose_replica(instance.routes.replicas(queue.topic, queue.broker_name), MASTER_ID, avoided)
    if replica is None:
        instance.routes.refresh_soon(queue.topic)
        raise NoRoute(f"no address is known for broker {queue.broker_name!r}")
    return replica.address
