"""Cluster: a name server, a master and optionally its slave on the running event loop; or two brokers of
which a controller elects one master.

    async with Cluster(slave=True) as cluster:
        async with cluster.producer() as producer:
            await producer.send(Message(topic="Orders", body=b"order 1"))
        await cluster.lose_master()

The servers are the real ones, on real sockets at ports that the system assigns, with their stores in a
temporary folder. Faults are injected through their network and disk (`faults`).

Invariants: a method that changes something returns once the change has taken effect: a started broker is in
            the routes and, with a slave, the next send is replicated. After `close` no task, socket or file
            is left, whatever was broken before.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tandemmq.api.broker_admin import query_topic_config
from tandemmq.api.nameserver import query_cluster_info
from tandemmq.broker.options import BrokerConfig
from tandemmq.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.config.load import MachineFacts, load_broker
from tandemmq.controller.controller import Controller
from tandemmq.controller.groups import ReplicaGroup
from tandemmq.controller.options import ControllerConfig, ControllerOptions
from tandemmq.errors import TandemError
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.properties_file import Setting
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork, reserve_port
from tandemmq.testing.faults import SwitchedDisk, SwitchedNetwork
from tandemmq.testing.member import HOST, POLL_S, ClusterMember
from tandemmq.testing.published import read_published
from tandemmq.testing.time_travel import process_time
from tandemmq.units import GIB, MASTER_ID, MIB

BROKER_NAME: Final = "broker-a"
READY_S_MAX: Final = 30.0
CONTROLLER_NAME: Final = "n0"
RECONNECT_MS: Final = 50

CLIENT: Final = ClientOptions(heartbeat_s=1.0, route_refresh_s=0.5)
"""The options of the clients that a cluster creates: they notice a change of the cluster within a second."""

SETTINGS: Final[Mapping[str, str]] = {
    "bindAddress": HOST,
    "listenPort": "0",
    "fastListen": "false",
    "brokerName": BROKER_NAME,
    "slaveReadEnable": "true",
    "enablePropertyFilter": "true",
    # Files as small as the largest message allows: they are created before the cluster is ready.
    "mappedFileSizeCommitLog": str(8 * MIB),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "100000",
    "scrubBytesPerSecond": "0",
    # A test must not wait half a minute for a transaction check.
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    # Settings of elected brokers.
    "brokerHeartbeatInterval": "100",
    "syncBrokerMetadataPeriod": "200",
}
"""The settings that differ from a broker's defaults."""


class ClusterFailed(TandemError):
    """An error of the cluster: a call that is impossible, or a server that has failed; the text has the
    details.
    """


class Cluster:
    """One cluster. Use it from one event loop only, and start it once.

    name_servers   the address for clients of any language, `host:port`
    """

    def __init__(
        self,
        *,
        slave: bool = False,
        elected: bool = False,
        settings: Mapping[str, object] | None = None,
        port: int = 0,
    ) -> None:
        """Creates the cluster. With `slave` the master has a slave, and a send is answered once both have the
        message.

        `elected` includes `slave`; in addition a controller makes the slave the master when the master is
        lost. `settings` are RocketMQ's settings for all brokers, as in a properties file. `port` is the name
        server's port; 0: any.
        Raises:  ConfigError for a setting that no broker accepts.
        """
        self.name_servers = ""
        self._port = port
        self._clock = LoopClock()
        self._ahead_ms = 0
        self._stack = AsyncExitStack()
        self._failure: BaseException | None = None
        self._names = SwitchedNetwork()
        self._has_slave = slave or elected
        self._is_elected = elected
        self._controller: Controller | None = None
        self._controller_address = f"{HOST}:1"
        self._settings = {**SETTINGS, **{key: _text(value) for key, value in (settings or {}).items()}}
        self._master: ClusterMember | None = None
        self._slave: ClusterMember | None = None
        self._load(0, Path(), f"{HOST}:1", self._fixed_ports(lambda: 1))

    # Starting and closing

    async def start(self) -> Self:
        """Starts the servers; returns once a client can send.

        Raises:  ConfigError or OSError when a server cannot be started; nothing is left then.
        """
        if self.name_servers:
            raise ClusterFailed("the cluster was started already: make another one")
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tandemmq-")))
        options = NameServerOptions(
            listen_host=HOST,
            listen_port=self._port,
            kv_config_path=folder / "kvConfig.json",
            config_store_path=folder / "namesrv.properties",
        )
        server = NameServer(
            options, network=self._names, disk=SwitchedDisk(), clock=self._clock, on_fatal=self._on_fatal
        )
        self._stack.push_async_callback(server.stop)
        self.name_servers = render_address(await server.start())
        if self._is_elected:
            await self._start_controller(folder / "controller")
        for broker_id in (0, 1) if self._has_slave else (0,):
            root = folder / (
                f"elected-{broker_id}" if self._is_elected else "slave" if broker_id else "master"
            )
            ports = self._fixed_ports(self._reserve_port)
            member = ClusterMember(self._load(broker_id, root, self.name_servers, ports), self._on_fatal)
            self._stack.push_async_callback(member.stop)
            await member.start()
            if broker_id:
                self._slave = member
            else:
                self._master = member
        await self._await_sync()

    async def _start_controller(self, folder: Path) -> None:
        self._controller_address = f"{HOST}:{self._reserve_port()}"
        controller = self._controller = Controller(
            ControllerConfig(
                options=ControllerOptions(
                    peers=f"{CONTROLLER_NAME}-{self._controller_address}",
                    self_id=CONTROLLER_NAME,
                    listen_host=HOST,
                    store_path=folder,
                    config_store_path=folder / "controller.properties",
                    raft_heartbeat_ms=20,
                    raft_election_timeout_ms=100,
                    scan_inactive_master_ms=50,
                )
            ),
            network=self._names,
            disk=SwitchedDisk(),
            clock=self._clock,
            chance=SystemRandom(),
            on_fatal=self._on_fatal,
        )
        self._stack.push_async_callback(controller.stop)
        await controller.start()

    def _reserve_port(self) -> int:
        held = self._stack.enter_context(reserve_port(HOST))
        return int(held.getsockname()[1])

    def _fixed_ports(self, take: Callable[[], int]) -> Mapping[str, str]:
        """Returns ports for an elected broker, whose address the controller keeps."""
        return {key: str(take()) for key in ("listenPort", "haListenPort")} if self._is_elected else {}

    def _load(self, broker_id: int, root: Path, name_servers: str, ports: Mapping[str, str]) -> BrokerConfig:
        elected = {"enableControllerMode": "true", "controllerAddr": self._controller_address}
        settings = {
            **({} if self._is_elected else self._paired_settings(broker_id)),
            **self._settings,
            **(elected if self._is_elected else {"brokerId": str(broker_id)}),
            **ports,
            "storePathRootDir": str(root),
            "namesrvAddr": name_servers,
        }
        if self._master is not None and not self._is_elected:
            # The slave need not wait for a name server to report it.
            settings["haMasterRemotingAddress"] = render_address(self._master.address)
        machine = MachineFacts(host_name=BROKER_NAME, address=HOST, memory_bytes=4 * GIB, home=root)
        broker_settings = {key: Setting(text, "settings") for key, text in settings.items()}
        config = load_broker(broker_settings, machine)
        return replace(config, replication=replace(config.replication, reconnect_delay_ms=RECONNECT_MS))

    def _paired_settings(self, broker_id: int) -> dict[str, str]:
        copies = "2" if self._has_slave else "1"
        return {
            "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER" if self._has_slave else "ASYNC_MASTER",
            "inSyncReplicas": copies,
            "totalReplicas": copies,
        }

    async def close(self) -> None:
        """Stops all servers and removes their files. Closing twice does nothing.

        Raises:  ClusterFailed when a server had failed by itself.
        """
        await self._stack.aclose()
        process_time.shift(-self._ahead_ms)
        self._ahead_ms = 0
        self._master = self._slave = None
        self._raise_failure()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For applications

    def producer(self, group: str = "test-producer", *, options: ProducerOptions | None = None) -> Producer:
        """Returns a producer of this cluster, not started: `async with` starts it."""
        return Producer(group, self.name_servers, options=options or producer_options())

    def consumer(
        self, topic: str, group: str = "test-consumer", *, options: ConsumerOptions | None = None
    ) -> Consumer:
        """Returns a consumer of all messages of the topic, from the first one on, not started."""
        consumer = Consumer(group, self.name_servers, options=options or consumer_options())
        consumer.subscribe(topic)
        return consumer

    async def create_topic(self, topic: str, *, queue_count: int = 4) -> None:
        """Creates a topic; returns once it is in the routes, and on the slave if that runs. The master must
        run.
        """
        self._require_running(self._require_master(), "master")
        async with Admin(self.name_servers, options=CLIENT) as admin:
            await admin.create_topic(topic, queue_count=queue_count)
        if self._slave is not None and self._slave.is_running:
            await self._slave_has(topic)

    async def published(self, topic: str) -> list[ReceivedMessage]:
        """Returns the messages that the topic has now, in the order in which they were stored; none if it
        does not exist. Messages that wait for their time are not among them.
        """
        return await read_published(self.name_servers, topic, CLIENT)

    async def _slave_has(self, topic: str) -> None:
        client = RemotingClient(network=TcpNetwork(), clock=self._clock)

        async def has_topic() -> bool:
            return await query_topic_config(client, self.slave_address, topic) is not None

        try:
            await self._wait_until(has_topic, f"the slave has topic {topic!r}")
        finally:
            await client.close()

    @property
    def master_address(self) -> str:
        """The address of the master, also while it is lost; in an elected cluster, of the last master."""
        return render_address(self._require_master().address)

    @property
    def slave_address(self) -> str:
        """The address of the slave, also while it is stopped."""
        return render_address(self._require_slave().address)

    @property
    def controller_address(self) -> str:
        """The address of an elected cluster's controller, for `tandemmq admin`."""
        self._require_master()
        if self._controller is None:
            raise ClusterFailed("this cluster has no controller: make it with Cluster(elected=True)")
        return self._controller_address

    # Time

    async def travel(self, seconds: float) -> None:
        """Sets the clocks of this process' servers and clients ahead, until `close`. What was due within
        `seconds` is due now, and happens within a second or two: delayed messages arrive, popped ones are
        visible again.
        """
        self._require_master()
        if seconds < 0:
            raise ClusterFailed(f"travel({seconds:g}): must be 0 or more")
        ahead_ms = round(seconds * 1000)
        self._ahead_ms += ahead_ms
        process_time.shift(ahead_ms)

    # Faults

    async def lose_master(self) -> None:
        """Ends the master as SIGKILL would: it notifies no other process, and data that was only in memory is
        lost.

        After that, sends fail and a slave serves reads. In an elected cluster a slave in sync has become the
        master when this returns.
        """
        master, has_successor = self._require_running(self._require_master(), "master"), self._has_successor()
        await master.kill()
        if has_successor:
            await self._await_master()

    async def restart_master(self) -> None:
        """Stops the master, if it runs, and starts it again with its files, at the same address.

        In an elected cluster it starts as the slave of its successor.
        """
        master = self._require_master()
        has_successor = master.is_running and self._has_successor()
        await master.stop()
        if has_successor:
            await self._await_master()
        await master.start()
        await self._await_sync()

    async def stop_slave(self) -> None:
        """Stops the slave in an orderly way. Sends are answered FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE
        then; an elected master continues without it once the controller has removed it from the SyncStateSet.
        """
        await self._require_running(self._require_slave(), "slave").stop()

    async def start_slave(self) -> None:
        """Starts the slave; returns once it has caught up."""
        slave = self._require_slave()
        if not slave.is_running:
            await slave.start()
        await self._await_sync()

    async def delay_acks(self, seconds: float) -> None:
        """Delays the slave's acknowledgements to the master by `seconds` from now on; 0 ends the delay.

        After `slaveTimeout` (3 s) a send is answered FLUSH_SLAVE_TIMEOUT.
        """
        _check_seconds(seconds)
        _, ha_port = self._require_master().ha_address
        self._require_slave().network.delay(ha_port, seconds)

    async def delay_answers(self, seconds: float) -> None:
        """Delays the brokers' answers by `seconds`; requests are executed at once. 0 ends the delay."""
        _check_seconds(seconds)
        for member in self._members():
            member.network.delay(member.address[1], seconds)

    async def cut_connections(self) -> None:
        """Breaks every connection of every server once; the servers keep running."""
        self._require_master()
        for network in (self._names, *(member.network for member in self._members())):
            network.cut()

    async def fill_disk(self) -> None:
        """Makes the brokers' disks full: sends are rejected with SERVICE_NOT_AVAILABLE; reads continue."""
        self._set_disk_full(is_full=True)

    async def free_disk(self) -> None:
        """Gives the disks room again, so that sends are accepted."""
        self._set_disk_full(is_full=False)

    async def heal(self) -> None:
        """Ends every fault: all servers run, nothing is slow or full."""
        self._raise_failure()
        self._set_disk_full(is_full=False)
        for member in self._members():
            member.network.delay(member.address[1], 0)
            for other in self._members():
                member.network.delay(other.ha_address[1], 0)
            if not member.is_running:
                await member.start()
        await self._await_sync()

    def _set_disk_full(self, *, is_full: bool) -> None:
        self._require_master()
        for member in self._members():
            member.set_disk_full(is_full=is_full)

    # Inside

    def _members(self) -> list[ClusterMember]:
        return [member for member in (self._master, self._slave) if member is not None]

    def _require_master(self) -> ClusterMember:
        self._raise_failure()
        if self._master is None:
            raise ClusterFailed("the cluster is not started, or closed")
        return self._master

    def _require_slave(self) -> ClusterMember:
        self._require_master()
        if self._slave is None:
            raise ClusterFailed("this cluster has no slave: make it with Cluster(slave=True)")
        return self._slave

    def _require_running(self, member: ClusterMember, name: str) -> ClusterMember:
        if not member.is_running:
            raise ClusterFailed(f"the {name} does not run already")
        return member

    def _on_fatal(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise ClusterFailed(f"a server failed: {failure or type(failure).__name__}") from failure

    async def _await_sync(self) -> None:
        """Waits until the slave, if both brokers run, has everything that the master has, and
        acknowledges.
        """
        await self._wait_until(self._follows, "the slave follows its master")

    async def _follows(self) -> bool:
        if self._is_elected and not await self._has_master():
            return False
        master, slave = self._master, self._slave
        if master is None or slave is None or not (master.is_running and slave.is_running):
            return True
        return self._is_in_sync(slave) and slave.has_all_of(master)

    async def _await_master(self) -> None:
        await self._wait_until(self._has_master, "a broker was elected and is in the routes")

    async def _has_master(self) -> bool:
        """Returns True if the broker that the controller elected is active and in the routes as the
        master.
        """
        group = self._group()
        for member in self._members():
            if member.is_running and member.leads and group is not None:
                if member.elected_id != group.master_id or not await self._is_routed(member):
                    return False
                if member is not self._master:
                    self._master, self._slave = member, self._master
                return True
        return False

    async def _is_routed(self, member: ClusterMember) -> bool:
        client = RemotingClient(network=TcpNetwork(), clock=self._clock)
        try:
            info = await query_cluster_info(client, self.name_servers)
        finally:
            await client.close()
        places = info.brokers[BROKER_NAME].addresses if BROKER_NAME in info.brokers else {}
        return places.get(MASTER_ID) == render_address(member.address)

    def _is_in_sync(self, member: ClusterMember) -> bool:
        """Returns True if the controller would elect this broker, or there is no controller."""
        group = self._group()
        return not self._is_elected or (group is not None and member.elected_id in group.sync_set)

    def _has_successor(self) -> bool:
        slave = self._slave
        return self._is_elected and slave is not None and slave.is_running and self._is_in_sync(slave)

    def _group(self) -> ReplicaGroup | None:
        """Returns the group as the controller of an elected cluster knows it."""
        return None if self._controller is None else self._controller.groups.get(BROKER_NAME)

    async def _wait_until(self, is_met: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(READY_S_MAX):
                while not await is_met():
                    self._raise_failure()
                    await self._clock.sleep(POLL_S)
        except TimeoutError:
            raise ClusterFailed(f"not within {READY_S_MAX:g} s: {what}") from None


def producer_options() -> ProducerOptions:
    """Returns the options of the producers that a cluster creates."""
    return ProducerOptions(client=CLIENT)


def consumer_options() -> ConsumerOptions:
    """Returns the options of the consumers that a cluster creates."""
    return ConsumerOptions(client=CLIENT, start_from=StartFrom.FIRST, pull_error_delay_s=0.1)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_seconds(seconds: float) -> None:
    if not 0 <= seconds <= 3600:
        raise ClusterFailed(f"a delay of {seconds:g} s: must be from 0 to 3600")
