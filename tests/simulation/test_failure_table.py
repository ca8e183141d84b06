"""The failure table, row by row: which broker accepts messages, which one serves them, where offsets are
committed, and what follows.

Each test is named after its row. Besides the assertions of the test, `play` checks after every script that
the cluster comes level, that the group has consumed everything, and that no promise was broken.
Source:  spec replication 11.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scripted_cluster import ASYNC_COPY, DOUBLE_WRITE, Scene, play

from sim.cluster.nodes import BrokerNode
from sim.cluster.settings import Settings
from sim.image import Tear
from tandemmq.config.load import MachineFacts, load_broker, read_settings
from tandemmq.errors import ConfigError
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.progress import SlaveState, StartRule
from tandemmq.replication.shell.master_status import SlaveStatus
from tandemmq.replication.shell.slave import ReplicationSlaveStatus

SILENCE_S = 5.0
"""haHousekeepingInterval of the simulated brokers."""
FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
MACHINE = MachineFacts(host_name="box", address="10.1.2.3", memory_bytes=8 << 30, home=Path("/home/u"))


def slaves_of(master: BrokerNode) -> tuple[SlaveStatus, ...]:
    assert master.broker is not None
    assert master.broker._replica is not None
    return master.broker._replica.master.status().slaves


def copy_of(slave: BrokerNode) -> ReplicationSlaveStatus:
    assert slave.broker is not None
    assert slave.broker._replica is not None
    return slave.broker._replica.slave.status()


def log_end(node: BrokerNode) -> int:
    assert node.store is not None
    return node.store.max_log_offset


def test_all_up() -> None:
    """Produce: yes. Consume: the master; the slave for slow consumers. Offsets: the master."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges()
        await scene.consumes()
        assert scene.served_bytes(scene.slave) < scene.served_bytes(scene.master)
        await scene.until(lambda: scene.committed(scene.master) > 0, "offsets at the master")
        await scene.until(lambda: scene.committed(scene.slave) > 0, "and copied by the slave")

        scene.consumer.kill()
        await scene.acknowledges(300)  # more than the 20,000 bytes that count as memory here
        before = scene.served_bytes(scene.slave)
        scene.consumer.start()
        await scene.consumes(300)
        assert scene.served_bytes(scene.slave) > before + 20_000

    play(script)


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["killed", "without power"])
def test_slave_down_async(is_power_cut: bool) -> None:
    """Produce: yes. Consume: the master. The dead connection is dropped after EOF or the silence; the slave
    resumes at its own end.
    """

    async def script(scene: Scene) -> None:
        await scene.acknowledges()
        await scene.level()
        scene.slave.cut_power(Tear.EVERYTHING) if is_power_cut else scene.slave.kill()
        lost_at = scene.world.loop.time()
        await scene.until(lambda: not slaves_of(scene.master), "the connection is dropped", SILENCE_S + 2)
        if not is_power_cut:
            assert scene.world.loop.time() < lost_at + 1.0
        await scene.acknowledges(50)
        await scene.consumes(50)
        scene.slave.start()
        await scene.level()
        assert copy_of(scene.slave).start_rule is StartRule.RESUMED
        assert copy_of(scene.slave).log_start == 0

    play(script, ASYNC_COPY)


def test_slave_down_in_sync_replicas_2() -> None:
    """Produce: each send ends with FLUSH_SLAVE_TIMEOUT after 3 s and is stored. Consume: the master. (4.x's
    SLAVE_NOT_AVAILABLE at once, syncMasterCompat4: test_replication_admission.)
    """

    async def script(scene: Scene) -> None:
        await scene.acknowledges()
        scene.slave.kill()
        before = scene.counts[FLUSH_SLAVE_TIMEOUT]
        begin_s = scene.world.loop.time()
        await scene.until(lambda: scene.counts[FLUSH_SLAVE_TIMEOUT] > before, "a timeout is told")
        assert scene.world.loop.time() - begin_s > 2.5
        await scene.acknowledges_nothing()
        assert scene.counts[FLUSH_SLAVE_TIMEOUT] > before + 4
        await scene.consumes(4)  # they are stored and delivered
        scene.slave.start()
        await scene.acknowledges()

    play(script)


def test_slave_down_with_three_replicas_and_two_wanted() -> None:
    """inSyncReplicas=2 with two slaves: producers do not notice the loss of one of them."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges()
        await scene.level()
        scene.slave.kill()
        before = scene.counts[FLUSH_SLAVE_TIMEOUT]
        await scene.acknowledges(100)
        assert scene.counts[FLUSH_SLAVE_TIMEOUT] == before
        await scene.consumes(20)

    play(script, replace(DOUBLE_WRITE, slave_count=2))


@pytest.mark.parametrize(
    "row",
    [
        "slave down, controller and allAck",
        "controller minority down",
        "controller majority down",
    ],
)
def test_rows_with_a_controller_are_another_mode(row: str) -> None:
    """Brokers with elected masters are tested in scenario/test_elected_brokers.py and
    scenario/test_elected_processes.py; no broker gets into that mode by accident.
    """
    with pytest.raises(ConfigError, match="controllerAddr: must not be empty in controller mode"):
        load_broker(read_settings(None, ["enableControllerMode=true"]), MACHINE)


def test_slave_down_acting_master_mode_is_as_plain() -> None:
    """A slave never acts as master here: the key is reported as one without effect when a broker starts."""
    settings = read_settings(None, ["enableSlaveActingMaster=true"])
    assert load_broker(settings, MACHINE).inert == ("enableSlaveActingMaster",)


def test_master_down() -> None:
    """Produce: no (other groups: test_client_failover). Consume: the slave. Offsets: the slave stores them.
    No delayed message is delivered; the slave keeps dialling.
    """

    async def script(scene: Scene) -> None:
        await scene.acknowledges(50)
        await scene.level()
        scene.consumer.kill()
        await scene.acknowledges(200)
        await scene.level()
        before = scene.committed(scene.slave)
        scene.master.kill()
        served = scene.served_bytes(scene.slave)
        scene.consumer.start()  # a new client: the name server names the slave
        await scene.consumes(150)
        assert scene.served_bytes(scene.slave) > served + 10_000
        await scene.until(lambda: scene.committed(scene.slave) > before + 100, "the slave stores offsets")
        await scene.acknowledges_nothing()
        assert copy_of(scene.slave).state in (SlaveState.DIALING, SlaveState.PAUSED)
        end = log_end(scene.slave)
        await scene.pass_time(60.0)
        assert log_end(scene.slave) == end
        assert copy_of(scene.slave).state in (SlaveState.DIALING, SlaveState.PAUSED)
        scene.master.start()
        await scene.acknowledges()

    play(script)


def test_master_disk_lost_and_restarted_empty() -> None:
    """The slave is ahead: it keeps its log and reports this. The operator promotes it."""

    async def script(scene: Scene) -> None:
        scene.cluster.has_operator = False
        await scene.acknowledges(100)
        await scene.consumes(50)
        await scene.level()
        await scene.until(lambda: scene.committed(scene.slave) > 0, "progress is copied")
        scene.master.cut_power()
        end, committed = log_end(scene.slave), scene.committed(scene.slave)
        scene.cluster.lose_disk(scene.master)
        scene.master.start()
        await scene.until(lambda: copy_of(scene.slave).halt, "the slave halts")
        halt = copy_of(scene.slave).halt
        assert halt is not None
        assert halt.reason is HaltReason.SLAVE_AHEAD
        await scene.pass_time(20.0)
        assert log_end(scene.slave) == end
        assert scene.slave.broker is not None
        assert scene.slave.broker._tables.topics.get("Orders") is not None
        assert scene.slave.broker._tables.groups.get("all") is not None
        assert scene.committed(scene.slave) >= committed
        scene.master.kill()
        await scene.cluster.promote()
        scene.cluster.has_operator = True  # or the halted slave would be replaced during its promotion
        await scene.acknowledges()

    play(script)


def test_numbered_sends_go_on_after_a_master_with_an_empty_disk() -> None:
    """It lacks the preceding messages, and refuses numbered sends; the slave that replaces it has these
    messages and accepts.
    """

    async def script(scene: Scene) -> None:
        scene.cluster.has_operator = False
        await scene.until(lambda: scene.counts["numbered: batches"] > 5, "numbered sends are taken")
        await scene.level()
        scene.master.cut_power()
        scene.cluster.lose_disk(scene.master)
        scene.master.start()
        await scene.until(
            lambda: scene.counts["numbered: refused by an empty master"] > 2, "they are refused"
        )
        scene.master.kill()
        await scene.cluster.promote()
        scene.cluster.has_operator = True
        taken = scene.counts["numbered: batches"]
        await scene.until(lambda: scene.counts["numbered: batches"] > taken + 5, "the slave takes them")
        assert not scene.counts["numbered: runs broken"]

    play(script, replace(DOUBLE_WRITE, work=("numbered",)))


@pytest.mark.parametrize("has_slave", [True, False])
def test_master_back_after_a_power_cut_with_what_only_its_slave_holds(has_slave: bool) -> None:
    """It serves nothing until it has copied what only its slave holds: no acknowledged message is lost."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges(100)
        await scene.level()
        if not has_slave:
            scene.slave.kill()
        scene.master.cut_power(Tear.NOTHING)
        await scene.pass_time(3.0)
        scene.master.start()
        if not has_slave:
            await scene.acknowledges_nothing()
            assert scene.master.is_running
            assert not scene.master.is_open
            scene.slave.start()
        await scene.acknowledges(50)
        await scene.level()
        assert copy_of(scene.slave).halt is None

    play(script)


def test_master_back_after_a_kill_serves_at_once() -> None:
    """The page cache has kept the writes: there is nothing to wait for."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges(100)
        scene.slave.kill()
        scene.master.kill()
        scene.master.start()
        await scene.until(lambda: scene.master.store, "it is open")
        assert scene.master.store is not None
        assert not scene.master.store.unverified_reason
        scene.slave.start()
        await scene.acknowledges()

    play(script)


def test_master_back() -> None:
    """Produce: yes. Consume: back to the master. Offsets: running consumers commit theirs there."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges(100)
        await scene.level()
        scene.master.kill()
        await scene.pass_time(15.0)
        at_slave = scene.committed(scene.slave)
        scene.master.start()
        await scene.until(lambda: scene.master.is_open, "open")
        await scene.acknowledges()
        await scene.consumes()
        await scene.until(lambda: scene.committed(scene.master) >= at_slave, "offsets are restored", 10.0)
        served = scene.served_bytes(scene.master)
        await scene.consumes(50)
        assert scene.served_bytes(scene.master) > served + 2_000

    play(script)


def test_one_name_server_down() -> None:
    """Everything continues: the others answer."""

    async def script(scene: Scene) -> None:
        scene.cluster.name_servers[0].kill()
        before = dict(scene.counts)
        await scene.acknowledges(100)
        await scene.consumes(100)
        scene.consumer.kill()
        scene.consumer.start()
        await scene.consumes(20)
        assert scene.counts["send failed: NoRoute"] == before.get("send failed: NoRoute", 0)

    play(script, replace(DOUBLE_WRITE, name_server_count=2))


def test_all_name_servers_down() -> None:
    """Running clients continue with the routes that they know; a new client finds no broker. A slave keeps
    the address of its master, also over a restart of the master.
    """

    async def script(scene: Scene) -> None:
        await scene.acknowledges()
        await scene.consumes()
        for name_server in scene.cluster.name_servers:
            name_server.kill()
        await scene.acknowledges(200)
        await scene.consumes(200)
        scene.master.kill()
        await scene.pass_time(3.0)
        scene.master.start()
        await scene.until(lambda: scene.master.is_open and slaves_of(scene.master), "the slave is back")
        await scene.acknowledges()
        scene.consumer.kill()
        scene.consumer.start()
        await scene.consumes_nothing()
        for name_server in scene.cluster.name_servers:
            name_server.start()
        await scene.consumes()

    play(script, replace(DOUBLE_WRITE, name_server_count=2))


@pytest.mark.parametrize("settings", [DOUBLE_WRITE, ASYNC_COPY], ids=["double write", "async"])
def test_network_cut_between_master_and_slave(settings: Settings) -> None:
    """The same as with the slave down; both can be reached, and the slave serves what it has."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges(100)
        await scene.level()
        scene.block(scene.master, scene.slave)
        await scene.pass_time(1.0)
        end = log_end(scene.slave)
        await scene.until(lambda: not slaves_of(scene.master), "the master drops it", SILENCE_S + 2)
        await scene.until(
            lambda: copy_of(scene.slave).state is not SlaveState.TRANSFERRING, "so does the slave", 10.0
        )
        if settings.is_sync_double_write:
            before = scene.counts[FLUSH_SLAVE_TIMEOUT]
            await scene.acknowledges_nothing()
            assert scene.counts[FLUSH_SLAVE_TIMEOUT] > before
        else:
            await scene.acknowledges()
        await scene.consumes(4)
        assert log_end(scene.slave) == end < log_end(scene.master)
        assert scene.slave.store is not None
        assert scene.slave.store.queue_max("Orders", 0) > 0  # it serves these
        scene.unblock(scene.master, scene.slave)
        await scene.level()
        await scene.acknowledges()

    play(script, settings)


def test_both_brokers_of_the_group_down() -> None:
    """No message is accepted or served; consumers keep their progress in memory and continue with it."""

    async def script(scene: Scene) -> None:
        await scene.acknowledges(50)
        await scene.consumes(50)
        await scene.level()
        scene.master.kill()
        scene.slave.kill()
        await scene.acknowledges_nothing()
        await scene.consumes_nothing()
        scene.slave.start()
        await scene.pass_time(5.0)
        scene.master.start()
        await scene.acknowledges()
        await scene.consumes()

    play(script)
