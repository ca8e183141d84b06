"""Machines with servers on them: they start, stop, are killed, lose power, and keep their disks."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextvars import Context
from pathlib import Path

from sim.cluster.connection import Host
from sim.cluster.disk import NodeDisk
from sim.cluster.loop import CURRENT_PROCESS, SimClock, SimProcess
from sim.cluster.network import HostNetwork
from sim.cluster.outside import NAME_SERVER_PORT, render_alias
from sim.cluster.settings import BROKER_NAME
from sim.cluster.world import World
from sim.disk import Crash
from sim.disk import Faults as DiskFaults
from sim.image import Image, Tear
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerOptions
from tandemmq.errors import FlushFailed
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.record import Record, RecordError, RecordOutcome, check_record, decode_record
from tandemmq.remoting.options import render_address
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.ports import Address, Machine
from tandemmq.store import BrokerRole, MessageStore, StoreOptions

ROOT = Path("/store")
LOG_DIR, KEY_INDEX_DIR = ROOT / "commitlog", ROOT / "index"
BROKER_PORT, HA_PORT = 10911, 10912
PORTS_BETWEEN = 100
"""The distance between the ports of two brokers on one host."""
STOP_TIMEOUT_S = 120.0
WAIT_POLL_S = 0.01
TEARS = (
    (1, Tear.NOTHING),
    (1, Tear.EVERYTHING),
    (2, Tear.IN_ORDER),
    (3, Tear.SECTORS),
    (2, Tear.PAGES),
)


class Node:
    """One host and the process that runs on it."""

    def __init__(
        self, name: str, world: World, *, beside: Node | None = None, is_outside: bool = False
    ) -> None:
        self.name = name
        self.world = world
        self.host: Host = (
            world.fabric.add_host(name, is_outside=is_outside) if beside is None else beside.host
        )
        self.process: SimProcess | None = None
        self.start_count = 0
        skew_ms = world.dice.between(-2_000, 2_000)
        self.clock: SimClock = SimClock(world.loop, skew_ms) if beside is None else beside.clock

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Starts a new process."""
        raise NotImplementedError

    def begin_process(self) -> SimProcess:
        assert not self.is_running, self.name
        self.start_count += 1
        process = self.process = SimProcess(f"{self.name}#{self.start_count}")
        self.world.fabric.power_up(self.host)
        self.network = HostNetwork(self.world.fabric, self.host, process, self.clock)
        self.chance = SeededRandom(crc32(f"{self.world.seed} {self.name} {self.start_count}".encode()))
        return process

    def end_process(self, *, is_power_cut: bool) -> None:
        """Ends the process at once."""
        process = self.process
        if process is None or not process.is_alive:
            return
        process.end()
        self.world.dead.append(process)
        self.world.trouble()
        self.world.fabric.end_process(process, is_power_cut=is_power_cut)
        self.host.is_up = not is_power_cut

    def kill(self) -> None:
        """Kills the process, as SIGKILL does."""
        self.world.note(f"{self.process} is killed")
        self.end_process(is_power_cut=False)

    def cut_power(self) -> None:
        self.world.note(f"{self.process} loses power")
        self.end_process(is_power_cut=True)

    def on_fatal(self, error: BaseException) -> None:
        """Handles a server that reports that it has failed; no fault here justifies that."""
        process = CURRENT_PROCESS.get()
        if process is None or process.is_alive:
            text = "".join(traceback.format_exception(error)).strip()
            self.world.findings.broken.append(f"{process} failed: {text}")

    async def stop_cleanly(self) -> None:
        """Stops the server and ends its process."""
        process = self.process
        if process is None or not process.is_alive:
            return
        self.world.note(f"{process} stops")
        task = self.world.spawn(process, self.stop_server(), "stop")
        done, _ = await asyncio.wait([task], timeout=STOP_TIMEOUT_S)
        if not done:
            self.world.findings.broken.append(f"{process} does not stop within {STOP_TIMEOUT_S:g} s")
        elif process.is_alive and task.exception() is not None:
            text = "".join(traceback.format_exception(task.exception())).strip()
            self.world.findings.broken.append(f"{process} fails to stop: {text}")
        elif process.is_alive:
            # Connections that were closed a moment ago have a turn to end.
            await self.world.clock.sleep(0.01)
            self.check_nothing_left(process)
        self.end_process(is_power_cut=False)

    def check_nothing_left(self, process: SimProcess) -> None:
        """Checks that a stopped server leaves no task, socket or open port."""
        broken = self.world.findings.broken
        names = sorted(task.get_name() for task in process.running_tasks())
        if names:
            broken.append(f"{process} left tasks behind: {', '.join(names)}")
        ends = self.world.fabric.connections_of(process)
        if ends:
            peers = sorted(str(end.get_extra_info("peername")) for end in ends)
            broken.append(f"{process} left connections behind: {', '.join(peers)}")
        ports = [a for a, listener in self.world.fabric.listeners.items() if listener.process is process]
        if ports:
            broken.append(f"{process} left ports open: {ports}")

    async def stop_server(self) -> None:
        raise NotImplementedError


class NameServerNode(Node):
    """A name server: it keeps nothing over a restart."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.server: NameServer | None = None

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{NAME_SERVER_PORT}"

    def start(self) -> None:
        process = self.begin_process()
        self.world.note(f"{process} starts")
        self.world.spawn(process, self._boot(), "boot")

    async def _boot(self) -> None:
        disk = NodeDisk(
            Image(), dice=self.world.dice, clock=self.clock, note=lambda _: None, on_lost=lambda: None
        )
        options = NameServerOptions(
            listen_port=NAME_SERVER_PORT,
            network_listeners="" if self.world.outside is None else self.world.outside.listeners,
            client_networks="" if self.world.outside is None else self.world.outside.ranges,
            kv_config_path=ROOT / "kvConfig.json",
            config_store_path=ROOT / "namesrv.properties",
        )
        self.server = NameServer(
            options, network=self.network, disk=disk, clock=self.clock, on_fatal=self.on_fatal
        )
        await self.server.start()

    async def stop_server(self) -> None:
        if self.server is not None:
            await self.server.stop()


class DiskNode(Node):
    """A process with a disk, which is lost with it or stays."""

    is_host_shared = False
    """True if another process with a disk of its own runs on the host: its power is never cut."""

    def __init__(self, name: str, world: World, *, beside: DiskNode | None = None) -> None:
        """`beside`: the node on the same host."""
        super().__init__(name, world, beside=beside)
        self._image = Image()
        self._disk: NodeDisk | None = None
        self._failed_paths: set[Path] = set()

    @property
    def image(self) -> Image:
        """The current content of its files, or the content when it was lost."""
        if self._disk is None:
            return self._image
        return self._disk.image if self._disk.left is None else self._disk.left

    @property
    def disk(self) -> NodeDisk:
        """The disk of its current or last run."""
        assert self._disk is not None
        return self._disk

    def wipe(self) -> None:
        """Deletes its files, as an operator would."""
        self.world.note(f"{self.name} is wiped")
        self.insert_disk(Image())

    def insert_disk(self, image: Image) -> None:
        """Replaces its disk by another one, on the same machine."""
        assert not self.is_running
        image.boot_count = max(image.boot_count, self.image.boot_count)
        self._image, self._disk, self._failed_paths = image, None, set()

    def begin_disk(self) -> NodeDisk:
        """Returns the disk of a new run, with the state left by the previous one."""
        disk = self._disk = NodeDisk(
            self._image,
            dice=self.world.dice,
            clock=self.clock,
            note=self.world.note,
            on_lost=self.on_disk_lost,
        )
        disk.failed_paths = self._failed_paths = set()
        disk.faults = DiskFaults(slow_sync_percent=self.world.settings.slow_sync_percent)
        self._image = disk.image
        return disk

    def kill(self) -> None:
        """Kills the process, as SIGKILL does: bytes written to files stay."""
        self.world.note(f"{self.process} is killed")
        self._lose(is_power_cut=False)

    def cut_power(self, tear: Tear | None = None) -> None:
        """Cuts the power: unflushed bytes may be lost; without `tear` it is random which."""
        self.world.note(f"{self.process} loses power")
        self._lose(is_power_cut=True, tear=tear)

    def arm_crash(self, operations: int, *, is_power_cut: bool) -> None:
        """Arranges its loss in the middle of one of its next file operations."""
        assert self._disk is not None
        is_power_cut = is_power_cut and not self.is_host_shared
        self.world.note(f"{self.process} will crash in {operations} disk operations")
        self._disk.crash = Crash(operations, is_power_cut, self.world.dice.pick_weighted(TEARS))

    def disarm_crash(self) -> None:
        if self._disk is not None and not self._disk.is_lost:
            self._disk.crash = None

    def _lose(self, *, is_power_cut: bool, tear: Tear | None = None) -> None:
        # The power of a shared host stays on: at most one copy may be lost at a time.
        is_power_cut = is_power_cut and not self.is_host_shared
        if self.is_running and self._disk is not None:
            self._disk.lose(Crash(0, is_power_cut, tear or self.world.dice.pick_weighted(TEARS)))

    def on_disk_lost(self) -> None:
        """Handles the loss of the process or its machine."""
        assert self._disk is not None
        assert self._disk.lost_by is not None
        self.end_process(is_power_cut=self._disk.lost_by.is_power_cut)


class BrokerNode(DiskNode):
    """A broker and its disk. `broker_id` 0 is the master."""

    def __init__(
        self,
        name: str,
        world: World,
        *,
        broker_id: int,
        name_servers: tuple[str, ...],
        beside: BrokerNode | None = None,
    ) -> None:
        """`beside`: the node on the same host."""
        super().__init__(name, world, beside=beside)
        self.broker_id = broker_id
        self.role = BrokerRole.SLAVE if broker_id else world.settings.role
        self.port: int = BROKER_PORT if beside is None else beside.port + PORTS_BETWEEN
        self.ha_port: int = HA_PORT if beside is None else beside.ha_port + PORTS_BETWEEN
        if beside is not None:
            self.is_host_shared = beside.is_host_shared = True
        self.alias: Address | None = None
        """Its address in the network of outside clients."""
        if world.outside is not None:
            self.alias = world.outside.add_alias(self.host.ip, self.port)
        self._ending: asyncio.Task[None] | None = None
        self.has_given_up = False
        """True if its disk refused the writes of a start; the fault that caused this starts it again."""
        self._name_servers = name_servers
        self._rotten: list[tuple[Path, int, int]] = []
        self._broker: Broker | None = None
        self.is_open = False
        """True while it serves: its start is complete."""
        self.on_lost: Callable[[BrokerNode, bool], None] = lambda _node, _is_power_cut: None
        self.on_open: Callable[[BrokerNode], None] = lambda _node: None

    def address_for(self, client: Host) -> str:
        """Returns the address at which the client reaches this broker."""
        advertised = self.alias if client.is_outside else None
        return render_address(advertised or (self.host.ip, self.port))

    # The content of its disk.

    @property
    def has_all_keys(self) -> bool:
        """True if the key index is complete. A failed write of the key index ends the indexing until the next
        start, as documented.
        """
        has_failed = any(KEY_INDEX_DIR in path.parents for path in self._failed_paths)
        return not has_failed and not self._rotten

    def record_at(self, log_offset: int) -> Record | None:
        """Returns the intact record that its log holds at `log_offset`."""
        size = self.world.settings.commit_log_file_bytes
        node = self.image.files.get(LOG_DIR / f"{log_offset - log_offset % size:020d}")
        if node is None or log_offset < 0:
            return None
        view = memoryview(node.data)[log_offset % size :]
        if len(view) < 8 or check_record(view, 0, log_offset=log_offset).outcome is not RecordOutcome.OK:
            return None
        try:
            return decode_record(view, log_offset=log_offset)
        except RecordError:
            return None

    def flip_bit(self, log_offset: int, bit: int) -> None:
        """Flips a bit of its log on the platter."""
        size = self.world.settings.commit_log_file_bytes
        path, at = LOG_DIR / f"{log_offset - log_offset % size:020d}", log_offset % size
        self.world.note(f"{self.name}: bit {bit} at {log_offset} of its log flips")
        data = self.image.files[path].data
        self._rotten.append((path, at, data[at]))
        data[at] ^= 1 << bit

    @property
    def has_flipped_bit(self) -> bool:
        """True if a flipped bit has not been repaired."""
        files = self.image.files
        return any(path in files and files[path].data[at] != sound for path, at, sound in self._rotten)

    def wipe(self) -> None:
        super().wipe()
        self._rotten.clear()

    # Runs.

    @property
    def broker(self) -> Broker | None:
        """The broker of its current or last run."""
        return self._broker

    @property
    def store(self) -> MessageStore | None:
        """The store of the running broker, once it is open."""
        return self.broker.store if self.is_running and self.is_open and self.broker is not None else None

    def start(self) -> None:
        self._image = self.image
        process = self.begin_process()
        self.is_open = self.has_given_up = False
        self._broker = None
        self.world.note(f"{process} starts")
        self.begin_disk()
        self.world.spawn(process, self._boot(process), "boot")

    async def _boot(self, process: SimProcess) -> None:
        assert self._disk is not None
        try:
            broker = self._broker = Broker(
                self._broker_options(),
                self._store_options(),
                self._replication_options(),
                machine=Machine(self.network, self._disk, self.clock, self.chance),
                on_fatal=self.on_fatal,
            )
            await broker.start()
        except Exception as error:  # noqa: BLE001 (any error is a finding)
            if process.is_alive:
                self.on_fatal(error)
            return
        while process.is_alive and broker.store is not None and broker.store.unverified_reason:
            await self.clock.sleep(WAIT_POLL_S)  # a master that copies records from its slaves serves nothing
        if process.is_alive:
            self.is_open = True
            assert broker.store is not None
            low, high = broker.store.min_log_offset, broker.store.max_log_offset
            self.world.note(f"{process} is open, log {low}..{high}")
            self.on_open(self)

    def _store_options(self) -> StoreOptions:
        settings = self.world.settings
        return StoreOptions(
            root=ROOT,
            role=self.role,
            flush_mode=settings.flush_mode,
            transient_pool_enable=settings.has_pool,
            in_sync_replicas=settings.copy_count,
            commit_log_file_bytes=settings.commit_log_file_bytes,
            consume_queue_file_bytes=2_000,
            key_index_slot_count=64,
            key_index_entry_count=500,
            message_bytes_max=4_096,
            memory_bytes=20_000,
            scrub_bytes_per_second=0,
            delete_at_hours=tuple(range(24)),
            clean_first_delay_ms=2_000,
            delete_file_count_max=1_000,
        )

    def _broker_options(self) -> BrokerOptions:
        return BrokerOptions(
            broker_name=BROKER_NAME,
            broker_id=self.broker_id,
            listen_port=self.port,
            ha_listen_port=self.ha_port,
            fast_listen=False,
            advertised_host=self.host.ip,
            advertised_addresses="" if self.alias is None else render_alias(self.alias),
            name_servers=self._name_servers,
            register_period_ms=10_000,
            register_timeout_ms=3_000,
            slave_read_enable=self.world.settings.slave_read_enable,
            channel_expired_ms=8_000,
            client_scan_period_ms=1_000,
            consumer_offset_flush_ms=1_000,
            delay_offset_flush_ms=2_000,
            transaction_timeout_ms=2_000,
            transaction_check_period_ms=3_000,
            transaction_check_count_max=1_000,
            property_filter_enable=True,
        )

    def _replication_options(self) -> ReplicationOptions:
        settings = self.world.settings
        return ReplicationOptions(
            heartbeat_interval_ms=500,
            silence_ms_max=5_000,
            reconnect_delay_ms=500,
            transfer_bytes_max=settings.transfer_bytes_max,
            first_transfer=settings.first_transfer,
        )

    def on_fatal(self, error: BaseException) -> None:
        """Handles a fatal error: after a failed fsync, or a start that could not write, the broker must stop,
        and its owner ends it.
        """
        assert self._disk is not None
        cannot_start = not self.is_open and isinstance(error.__cause__ or error, OSError)
        cannot_start = cannot_start and bool(self._disk.failed_paths)
        if not cannot_start and not (isinstance(error, FlushFailed) and self._disk.sync_failed):
            super().on_fatal(error)
        elif self.is_running and self._ending is None:
            self.has_given_up = cannot_start
            self.world.note(f"{self.process} ends: {error}")
            self.world.broker_losses.append(self.world.loop.time())
            # Dropped pages were not flushed: they are lost as in a power cut.
            self.on_lost(self, self._disk.faults.is_dropping_pages)
            self._ending = self.world.loop.create_task(self._end(), context=Context())

    @property
    def is_ending(self) -> bool:
        """True while it ends itself."""
        return self._ending is not None

    async def _end(self) -> None:
        await self.stop_cleanly()
        self._ending = None

    def on_disk_lost(self) -> None:
        assert self._disk is not None
        assert self._disk.lost_by is not None
        is_power_cut = self._disk.lost_by.is_power_cut
        self.world.broker_losses.append(self.world.loop.time())
        self.on_lost(self, is_power_cut)
        self.is_open = False
        super().on_disk_lost()

    async def stop_server(self) -> None:
        self.is_open = False
        if self.broker is not None:
            await self.broker.stop()
