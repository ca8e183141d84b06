"""Where a group's offsets are kept (spec semantics 11): at the brokers (clustering, `BrokerOffsets`) or in a
local file (broadcasting, `LocalOffsets`). And where a consumer begins in a queue that it has just got
(`find_start_offset`; spec semantics 12.4).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol, assert_never

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
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.progress import decode_reset_offsets, encode_reset_offsets
from tandemmq.protocol.hashes import seal_json, unseal_json
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.ports import Disk
from tandemmq.runtime.tasks import TaskScope
from tandemmq.units import MASTER_ID


class OffsetStore(Protocol):
    """Committed offsets of one group."""

    async def open(self) -> None:
        """Raises ConfigError when they cannot be read."""

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        """Where the group goes on; None when it has never committed."""

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        """Keep where the group goes on; lowering is allowed. `seen`: the last record that was read."""

    async def flush(self) -> None:
        """Returns when what was written is safe."""


class BrokerOffsets:
    """At the master of the queue's broker, or at any replica while there is no master (spec replication 9.1).

    A master that comes back has old offsets; the next periodic commit of the consumer brings it up to date.
    """

    def __init__(
        self, instance: ClientInstance, group: str, faulty: FaultyPeers, *, zero_when_none_stored: bool
    ) -> None:
        self._instance = instance
        self._group = group
        self._faulty = faulty
        self._zero_if_missing = None if zero_when_none_stored else False

    async def open(self) -> None:
        """Nothing to do: each question is asked when it comes."""

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        return await broker_consume.query_progress(
            self._instance.remoting,
            self._address(queue),
            self._group,
            queue.topic,
            queue.queue_id,
            zero_if_missing=self._zero_if_missing,
            timeout_s=self._instance.options.call_timeout_s,
        )

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        address = self._address(queue)
        try:
            await broker_consume.commit_offset(
                self._instance.remoting,
                address,
                self._group,
                queue.topic,
                queue.queue_id,
                offset,
                client_id=self._instance.client_id,
                seen=seen,
                timeout_s=self._instance.options.call_timeout_s,
            )
        except (BrokerUnreachable, RequestTimeout):
            self._faulty.note_failure(address, self._instance.clock.monotonic())
            raise

    async def flush(self) -> None:
        """Nothing to do: each write has been answered."""

    def _address(self, queue: MessageQueue) -> str:
        view = self._instance.routes.get(queue.topic)
        addresses = view.addresses.get(queue.broker_name, {}) if view is not None else {}
        avoided = self._faulty.avoided(self._instance.clock.monotonic())
        replica = choose_replica(addresses, MASTER_ID, avoided)
        if replica is None:
            raise NoRoute(f"no address of broker {queue.broker_name!r} is known")
        return replica.address


class LocalOffsets:
    """In `<dir>/<client id>/<group>/offsets.json`, in RocketMQ's form, with the content before as `.bak`,
    which stands in for a damaged file.
    """

    def __init__(self, disk: Disk, directory: Path, client_id: str, group: str) -> None:
        self._disk = disk
        self._path = directory / client_id / group / "offsets.json"
        self._offsets: dict[MessageQueue, int] | None = None
        self._is_changed = False
        self._saving = asyncio.Lock()
        self._scope = TaskScope("offsets")

    async def open(self) -> None:
        """Read the file."""
        if self._offsets is None:
            self._offsets = await self._disk.offload(self._load)

    async def read(self, queue: MessageQueue) -> GroupProgress | None:
        await self.open()
        assert self._offsets is not None
        offset = self._offsets.get(queue)
        return None if offset is None else GroupProgress(offset)

    async def write(self, queue: MessageQueue, offset: int, seen: str | None = None) -> None:
        await self.open()
        assert self._offsets is not None
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._is_changed = True

    async def flush(self) -> None:
        """Write the file when anything has changed; one after the other, and none is left half done.

        Raises:  ClientError when the disk takes no file now; the next flush writes it.
        """
        async with self._saving:
            if self._offsets is None or not self._is_changed:
                return
            self._is_changed = False
            data = encode_reset_offsets(self._offsets)
            try:
                await self._scope.see_through("save", self._disk.offload(self._save, data))
            except OSError as error:
                self._is_changed = True
                raise ClientError(f"{self._path} cannot be written: {error.strerror or error}") from error
            except asyncio.CancelledError:
                self._is_changed = True  # whether it could be written is not known
                raise

    def _load(self) -> dict[MessageQueue, int]:
        """Raises ConfigError when the directory cannot be made, or when there is content and none of it can
        be read: a beginning anew would repeat or skip what it tells.
        """
        try:
            self._disk.make_dirs(self._path.parent)
        except OSError as error:
            where = f"offsets_dir: {self._path.parent} cannot be made"
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
            raise ConfigError(f"{damage}; the other copy cannot be read, either, or is not there")
        return {}

    def _save(self, data: bytes) -> None:
        self._disk.make_dirs(self._path.parent)
        self._disk.write_atomically(self._path, seal_json(data), keep_backup=True)


async def find_start_offset(
    queue: MessageQueue,
    store: OffsetStore,
    instance: ClientInstance,
    options: ConsumerOptions,
    avoided: frozenset[str],
) -> GroupProgress:
    """The committed offset; without one what `start_from` says.

    A retry topic always begins at its first message: what was handed back must not be skipped.

    Raises:  any TandemError of the questions; the queue is then not started, because a guess could skip
             messages.
    """
    committed = await store.read(queue)
    if committed is not None and committed.offset >= 0:
        return committed
    start_from = StartFrom.FIRST if is_retry_topic(queue.topic) else options.start_from
    return GroupProgress(await find_offset(queue, start_from, options.start_time_ms, instance, avoided))


async def find_offset(
    queue: MessageQueue,
    start_from: StartFrom,
    time_ms: int | None,
    instance: ClientInstance,
    avoided: frozenset[str] = frozenset(),
) -> int:
    """The first or the last offset of a queue now, or that of a time, by a replica that is not avoided.

    Raises:  any TandemError of the question; NoRoute without an address.
    """
    view = instance.routes.get(queue.topic)
    replica = choose_replica(view.addresses.get(queue.broker_name, {}) if view else {}, MASTER_ID, avoided)
    if replica is None:
        raise NoRoute(f"no address of broker {queue.broker_name!r} is known")
    remoting, address = instance.remoting, replica.address
    timeout_s = instance.options.call_timeout_s
    match start_from:
        case StartFrom.FIRST:
            offset = await broker_consume.query_min_offset(
                remoting, address, queue.topic, queue.queue_id, timeout_s=timeout_s
            )
        case StartFrom.LAST:
            offset = await broker_consume.query_max_offset(
                remoting, address, queue.topic, queue.queue_id, timeout_s=timeout_s
            )
        case StartFrom.TIMESTAMP:
            assert time_ms is not None
            offset = await broker_consume.search_offset(
                remoting, address, queue.topic, queue.queue_id, time_ms, timeout_s=timeout_s
            )
        case _:
            assert_never(start_from)
    return offset
