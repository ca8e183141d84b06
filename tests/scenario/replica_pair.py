"""Two real stores and loopback sockets between them, for the scenarios of replication."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from no_history import compare_nothing
from ports import free_port
from tandemmq.protocol.record import NewRecord
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.shell import ReplicationMaster, ReplicationSlave
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.store import BrokerRole, MessageStore, PutStatus, StoreOptions
from waits import until

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
SEGMENT = 64 * 1024
FAST = ReplicationOptions(heartbeat_interval_ms=200, silence_ms_max=20_000, reconnect_delay_ms=20)
"""Lost connections are detected by their close; only a test of silence waits for silence."""
PATIENT_MS = 60_000


async def open_store(
    root: Path,
    role: BrokerRole = BrokerRole.ASYNC_MASTER,
    disk: RealDisk | None = None,
    **changes: object,
) -> MessageStore:
    settings: dict[str, object] = {
        "commit_log_file_bytes": SEGMENT,
        "consume_queue_file_bytes": 20_000,
        "key_index_enable": False,
        "slave_timeout_ms": PATIENT_MS,
        **changes,
    }
    options = StoreOptions(root=root, role=role, **settings)  # type: ignore[arg-type]  # real fields
    return await MessageStore.open(options, disk=disk or RealDisk(), clock=LoopClock())


def wait_for_slaves(store: MessageStore, timeout_ms: int = PATIENT_MS) -> None:
    """Sets how long a send waits for its replicas, as a change of `slaveTimeout` at run time does."""
    object.__setattr__(store.options, "slave_timeout_ms", timeout_ms)


def new_record(body: bytes, *, queue_id: int = 0, topic: str = "T") -> NewRecord:
    return NewRecord(
        topic=topic, queue_id=queue_id, body=body, properties=b"TAGS\x01a\x02", born_at_ms=1, born_host=HOST
    )


async def send(store: MessageStore, *bodies: bytes) -> list[PutStatus]:
    """Appends each body as a separate message; returns the statuses in order."""
    loop = asyncio.get_running_loop()
    futures = []
    for number, body in enumerate(bodies):
        future: asyncio.Future[PutStatus] = loop.create_future()
        store.appender.append([new_record(body, queue_id=number % 4)], future.set_result)
        futures.append(future)
    return list(await asyncio.gather(*futures))


def log_bytes(store: MessageStore, start: int | None = None) -> bytes:
    position = store.min_log_offset if start is None else start
    parts = []
    while position < store.appended.value:
        part = bytes(store.log.valid_view(position, SEGMENT))
        assert part, f"no bytes at {position}"
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def queue_contents(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    """Returns every queue: its min, max and the records that it delivers (spec replication I7)."""
    contents = {}
    for topic, queue_id in sorted(store.queue_keys()):
        low, high = store.queue_min(topic, queue_id), store.queue_max(topic, queue_id)
        parts, offset = [], low
        while offset < high:
            result = store.reader.get(topic, queue_id, offset, count_max=32)
            assert result.next_offset > offset, result.status
            parts += [bytes(part) for part in result.slices]
            offset = result.next_offset
        contents[topic, queue_id] = (low, high, b"".join(parts))
    return contents


class Peers:
    """A master and slaves that end with the test; `kill` and `start` may be called at any time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.network = TcpNetwork()
        self.clock = LoopClock()
        self.master_store: MessageStore | None = None
        self.master: ReplicationMaster | None = None
        self.address = ""
        self.slaves: dict[str, tuple[MessageStore, ReplicationSlave]] = {}

    async def start_master(
        self,
        role: BrokerRole = BrokerRole.ASYNC_MASTER,
        options: ReplicationOptions = FAST,
        disk: RealDisk | None = None,
        **changes: object,
    ) -> MessageStore:
        # Not an ephemeral port: another connection could have it when the master starts again.
        port = int(self.address.rpartition(":")[2] or free_port())
        self.master_store = await open_store(self.root / "master", role, disk, **changes)
        self.master = ReplicationMaster(self.master_store, options, network=self.network, clock=self.clock)
        host, port = await self.master.start("127.0.0.1", port)
        self.address = f"{host}:{port}"
        return self.master_store

    async def start_slave(
        self,
        name: str = "slave",
        options: ReplicationOptions = FAST,
        address: str | None = None,
        **changes: object,
    ) -> MessageStore:
        store = await open_store(self.root / name, BrokerRole.SLAVE, **changes)
        slave = ReplicationSlave(store, options, compare_nothing, network=self.network, clock=self.clock)
        self.slaves[name] = store, slave
        slave.set_master(address or self.address)
        await slave.start()
        return store

    async def stop_master(self) -> None:
        if self.master is not None and self.master_store is not None:
            await self.master.stop()
            await self.master_store.close()
            self.master = self.master_store = None

    async def stop_slave(self, name: str = "slave") -> None:
        store, slave = self.slaves.pop(name)
        await slave.stop()
        await store.close()

    async def stop(self) -> None:
        for name in list(self.slaves):
            await self.stop_slave(name)
        await self.stop_master()

    def store(self, name: str = "slave") -> MessageStore:
        return self.slaves[name][0]

    def slave(self, name: str = "slave") -> ReplicationSlave:
        return self.slaves[name][1]

    async def subscribed(self, count: int = 1) -> None:
        """Waits until `count` slaves made their first report; an empty slave begins at the current log
        file.
        """
        assert self.master is not None
        master = self.master
        await until(
            lambda: sum(slave.start is not None for slave in master.status().slaves) >= count, "subscribed"
        )

    async def caught_up(self, name: str = "slave") -> None:
        assert self.master_store is not None
        master, slave = self.master_store, self.store(name)
        await until(
            lambda: slave.appended.value == master.appended.value,
            f"{name} at {slave.appended.value}, master at {master.appended.value}",
        )


class Proxy:
    """Passes bytes between a slave and its master; `cut` drops both sides, `limit` drops them after that many
    bytes.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.limit: int | None = None
        self.passed_bytes = 0
        self.connection_count = 0
        self.corrupt_at: int | None = None
        self._pairs: list[tuple[_Side, _Side]] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_pair(self) -> bool:
        """True if both halves of a connection exist."""
        return bool(self._pairs)

    async def start(self) -> str:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self), "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self.address

    def accepted(self, side: _Side) -> None:
        self.connection_count += 1
        task = asyncio.get_running_loop().create_task(self._connect(side))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, side: _Side) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            _, other = await asyncio.get_running_loop().create_connection(
                lambda: _Side(self, side), host, int(port)
            )
        except OSError:
            side.abort()
            return
        side.other = other
        self._pairs.append((side, other))
        for data in side.early:
            other.write(data)

    def passing(self, data: bytes, *, to_slave: bool) -> tuple[bytes, bool]:
        """Returns the part of `data` to pass, and True if the connection is cut after it."""
        if not to_slave:
            return data, False
        start = self.passed_bytes
        self.passed_bytes += len(data)
        if self.corrupt_at is not None and start <= self.corrupt_at < start + len(data):
            at = self.corrupt_at - start
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            self.corrupt_at = None
        if self.limit is not None and self.passed_bytes >= self.limit:
            data = data[: max(0, self.limit - start)]
            self.limit = None
            return data, True
        return data, False

    def cut(self) -> None:
        for pair in self._pairs:
            for side in pair:
                side.abort()
        self._pairs.clear()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Side(asyncio.Protocol):
    def __init__(self, proxy: Proxy, other: _Side | None = None) -> None:
        self.proxy = proxy
        self.other = other
        self.is_master_side = other is not None
        self.early: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self.is_master_side:
            self.proxy.accepted(self)

    def data_received(self, data: bytes) -> None:
        data, is_cut = self.proxy.passing(data, to_slave=self.is_master_side)
        if self.other is None:
            self.early.append(data)
            return
        self.other.write(data)
        if is_cut:
            self.other.close()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is not None:
            self.other.close()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
