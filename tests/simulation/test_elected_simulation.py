"""The simulation of elected brokers: some seeds pass, a seed repeats exactly, scripted faults end well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from sim.cluster.clients import ClientNode
from sim.cluster.cluster import Cluster
from sim.cluster.settings import Settings
from sim.cluster.simulation import Adjust, SeedResult, run_seed
from sim.dice import Dice
from sim.elected.cluster import ElectedCluster
from sim.elected.faults import OperatorNode
from sim.elected.nodes import ElectedNode
from sim.elected.run import ELECTED
from sim.elected.settings import FAULTS, draw_elected
from sim.image import Tear
from tandemmq.api.broker_admin import delete_topic
from tandemmq.api.controller import MasterFacts, send_peer_lease
from tandemmq.broker.autoswitch.controllers import Controllers, MasterLease
from tandemmq.broker.autoswitch.roles import RoleState
from tandemmq.client import Admin
from tandemmq.errors import BrokerUnreachable
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.requests.controller import VouchRequest, VouchResponse
from tandemmq.protocol.requests.send import SendRequestV2, SendResponse
from tandemmq.remoting.client import RemotingClient
from tandemmq.store import FlushMode

SMOKE_SEEDS = (901, 904)
"""Seeds with all faults and with restored brokers; another one, with full disks, is run twice below, and
`make elected` runs 500.
"""
SCRIPT_SEED = 17
SOON_S = 12.0


def calm(settings: Settings) -> Settings:
    """Returns settings with three brokers and three controllers, without random faults."""
    return replace(
        settings,
        slave_count=2,
        controller_count=3,
        name_server_count=1,
        latency_ms=(0.2, 5.0),
        slow_sync_percent=0,
        commit_log_file_bytes=65_536,
        body_bytes_max=200,
        work=(),
    )


def play(script: Callable[[ElectedCluster], Awaitable[None]], adjust: Adjust = calm) -> SeedResult:
    """Runs a calm cluster in which only `script` causes faults; nothing may be found."""

    async def run(cluster: Cluster) -> None:
        assert isinstance(cluster, ElectedCluster)
        await script(cluster)

    result = run_seed(SCRIPT_SEED, adjust, run, ELECTED)
    assert not result.findings.lines(), "\n".join([*result.trace[-40:], *result.findings.lines()])
    return result


async def until(cluster: ElectedCluster, is_met: Callable[[], object], what: str) -> None:
    assert await cluster.world.until(is_met, SOON_S, 0.01), f"not within {SOON_S:g} s: {what}"


async def is_taken(cluster: ElectedCluster) -> None:
    """Waits until one more message is acknowledged."""
    count = len(cluster.ledger.acknowledged)
    await until(cluster, lambda: len(cluster.ledger.acknowledged) > count, "a message is acknowledged")


def test_seeds_break_no_promise() -> None:
    count = 0
    for seed in SMOKE_SEEDS:
        result = run_seed(seed, lambda settings: replace(settings, load_s=10.0), kind=ELECTED)
        assert not result.findings.lines()
        count += result.acknowledged_count
    assert count > 500


def test_a_seed_repeats_exactly() -> None:
    one, other = (run_seed(903, lambda settings: replace(settings, load_s=5.0), kind=ELECTED) for _ in "12")
    assert not one.findings.lines()
    assert one.trace == other.trace
    assert one.digest == other.digest


def test_every_fault_is_drawn() -> None:
    drawn = {name for seed in range(200) for name in draw_elected(Dice(seed)).fault_names}
    assert drawn == set(FAULTS)


def test_a_killed_master_is_replaced_within_a_second() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        cluster.master.kill()
        await is_taken(cluster)

    assert play(script).counts["replaced within 1 s"] == 1


def test_a_silent_master_is_replaced_within_three_seconds_and_takes_nothing_when_it_wakes() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        old = cluster.leader
        assert old.process is not None
        cluster.world.loop.stall(old.process)
        begun_s = cluster.world.loop.time()
        await until(cluster, lambda: cluster.leader is not old, "another one leads")
        await is_taken(cluster)
        assert cluster.world.loop.time() - begun_s < 3.0
        cluster.world.loop.resume(old.process)
        await until(cluster, lambda: old.epoch == cluster.leader.epoch, "it knows its successor")
        await until(cluster, cluster.is_caught_up, "it copies from its successor")

    play(script)


def test_sends_continue_and_no_master_is_elected_without_controllers() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        epoch = cluster.leader.epoch
        for controller in cluster.controllers:
            controller.kill()
        for _ in range(20):  # many leases
            await cluster.world.clock.sleep(1.0)
            assert cluster.leader.may_write
        for controller in cluster.controllers:
            controller.start()
        await until(cluster, lambda: any(one.is_leader for one in cluster.controllers), "one leads")
        await is_taken(cluster)
        assert cluster.leader.epoch == epoch

    result = play(script)
    failed = {name: count for name, count in result.counts.items() if name.startswith("send failed")}
    assert not failed.keys() - {"send failed: MessageIllegal"}


def test_a_client_with_an_old_route_sends_through_hand_overs() -> None:
    """It behaves like a RocketMQ client, which looks up routes every 30 s: no send fails at a hand-over, and
    no message is stored twice.
    """
    told: list[SendResponse] = []

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        sender = StaleSender("stale", cluster.world, cluster.admin._namesrv, cluster.ledger, cluster.watch)
        operator = OperatorNode("op", cluster.world, cluster.admin._namesrv, cluster.ledger, cluster.watch)
        old = cluster.leader
        sender.address = f"{old.host.ip}:{old.port}"
        sender.start()
        await until(cluster, lambda: len(sender.answers) > 50, "it sends")
        for _ in range(3):
            leader = cluster.leader
            assert leader.server is not None
            operator.address = f"{leader.host.ip}:{leader.port}"
            ids = sorted(leader.members - {leader.server.broker_id})
            operator.target = ids[0] if leader is not old else ids[-1]
            operator.start()
            await until(cluster, lambda: cluster.leader is not leader, "another one leads")  # noqa: B023
            await until(cluster, cluster.is_caught_up, "all are in the set again")
            await operator.stop_cleanly()
            goal = len(sender.answers) + 50
            await until(cluster, lambda: len(sender.answers) > goal, "it sends on")  # noqa: B023
        await sender.stop_cleanly()
        assert {answer.code for answer in sender.answers} == {0}
        told.extend(answer.decode(SendResponse) for answer in sender.answers)
        store = cluster.leader.store
        assert store is not None
        assert [one.queue_offset for one in told] == list(range(len(told)))
        for number, one in enumerate(told):
            place = store.reader.find_record("Stale", 0, one.queue_offset)
            assert place is not None
            record = store.read_record(place[0])
            assert record is not None
            assert decode_record(record).body == b"%d" % number
        assert old.server is not None
        assert old.server._forwarding.count or old is cluster.leader

    result = play(script)
    failed = {name: count for name, count in result.counts.items() if name.startswith("send failed")}
    assert not failed.keys() - {"send failed: MessageIllegal"}


class StaleSender(ClientNode):
    """Sends to one address, one message after the other, and never looks up a route."""

    address = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answers: list[Command] = []

    async def run(self) -> None:
        instance = await self.connect()
        await Admin(instance=instance).create_topic("Stale", queue_count=1)
        while not self.is_ending:
            header = SendRequestV2(
                producer_group="P",
                topic="Stale",
                default_topic="TBW102",
                default_topic_queue_count=1,
                queue_id=0,
                sys_flag=0,
                born_at_ms=0,
                flag=0,
                properties="",
            )
            body = b"%d" % len(self.answers)
            command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=body)
            self.answers.append(await instance.remoting.request(self.address, command, 3.0))
        self.is_done = True

    async def stop_server(self) -> None:
        self.is_ending = True
        await self.world.until(lambda: self.is_done, 10.0)
        if self._instance is not None:
            await self._instance.close()


def test_wall_clocks_that_jump_end_no_term_and_fail_no_send() -> None:
    """Leases, promises and silence are measured by the monotonic clocks."""

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        leader, epoch = cluster.leader, cluster.leader.epoch
        cluster.world.is_clock_set = True
        nodes = (*cluster.brokers_made, *cluster.controllers)
        for hours in (12, -24, 12):
            for node in nodes:  # one after the other: they differ for a while
                node.clock.skew_ms += hours * 3_600_000
                await cluster.world.clock.sleep(0.5)
                assert leader.may_write
            await is_taken(cluster)
        assert (cluster.leader, leader.epoch) == (leader, epoch)
        assert len(leader.members) == 3

    result = play(script)
    failed = {name: count for name, count in result.counts.items() if name.startswith("send failed")}
    assert not failed.keys() - {"send failed: MessageIllegal"}


def test_peer_leases_from_before_a_stall_do_not_let_a_master_accept_sends() -> None:
    """The controllers are cut off from the master only; its slaves promise to stay slaves, and are elected as
    soon as their promises end.
    """

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        old, fabric = cluster.leader, cluster.world.fabric
        assert old.process is not None
        for controller in cluster.controllers:
            fabric.block(old.host.ip, controller.host.ip)
            fabric.block(controller.host.ip, old.host.ip)
        await until(cluster, lambda: cluster.leader is not old, "another one leads")
        cluster.world.loop.stall(old.process)
        await cluster.world.clock.sleep(2.0)
        cluster.world.loop.resume(old.process)
        await cluster.world.clock.sleep(1.0)
        for controller in cluster.controllers:
            fabric.unblock(old.host.ip, controller.host.ip)
            fabric.unblock(controller.host.ip, old.host.ip)
        await until(cluster, cluster.is_caught_up, "it copies from its successor")

    play(script)


def test_a_full_disk_keeps_a_broker_from_office_and_alive() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        slaves = [node for node in cluster.brokers_made if node is not cluster.leader]
        lives = [slave.process for slave in slaves]
        for slave in slaves:
            slave.disk.is_full = True
        cluster.master.kill()
        await cluster.world.clock.sleep(3.0)
        assert not any(slave.may_write for slave in slaves)
        assert [slave.process for slave in slaves if slave.is_running] == lives
        slaves[1].disk.is_full = False
        await until(cluster, lambda: slaves[1].may_write, "the one with room leads")
        slaves[0].disk.is_full = False

    play(script)


def test_a_master_without_its_tail_does_not_lead_before_the_others_are_heard() -> None:
    """The host that runs the master and the controllers loses power, with ASYNC_FLUSH."""

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        old = cluster.leader
        for controller in cluster.controllers:
            controller.cut_power()
        old.cut_power(Tear.NOTHING)
        for node in (old, *cluster.controllers):
            node.start()
        await until(cluster, cluster.is_caught_up, "all are in the set again")
        assert cluster.leader is not old

    assert not play(
        script, lambda settings: replace(calm(settings), flush_mode=FlushMode.ASYNC_FLUSH)
    ).findings


def test_after_a_power_cut_of_all_the_longest_log_leads() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        for producer in cluster.producers:
            await producer.stop_cleanly()
        await cluster.world.clock.sleep(20.0)  # everything is flushed
        for node in (*cluster.brokers_made, *cluster.controllers):
            node.cut_power()
        for node in (*cluster.brokers_made, *cluster.controllers):
            node.start()
        await until(cluster, lambda: cluster.leader.may_write, "somebody leads")
        for producer in cluster.producers:
            producer.start()

    play(script, lambda settings: replace(calm(settings), flush_mode=FlushMode.ASYNC_FLUSH))


def test_deletions_are_told_again_to_a_slave_whose_log_is_cut() -> None:
    result = run_seed(207, kind=replace(ELECTED, draw_outside=lambda *_: None))
    assert not result.findings.lines()


class Channel:
    """The part of a connection that a promise needs."""

    def __init__(self) -> None:
        self.on_close: list[Callable[[Channel], None]] = []


def test_only_a_token_of_this_term_is_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger with invented tokens cannot keep a fenced master writing."""
    answers: list[VouchResponse] = []

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        leader = cluster.leader
        assert leader.server is not None
        await until(cluster, lambda: answers, "a slave has asked")
        now_s = cluster.world.loop.time()
        leases = leader.server._peer_leases
        for token in (0, -1, answers[0].token * 0 + int((now_s + 60) * 1_000_000)):
            leases.record(77, token, None, now_s)  # type: ignore[arg-type]  # no channel is looked at
        assert not leases.have_all([77], now_s)
        # A promise counts from when its token was issued, however late it arrives.
        await cluster.world.clock.sleep(2.0)
        channel = Channel()
        late_s = cluster.world.loop.time()
        leases.record(77, leases.new_token(late_s - 1.3), channel, late_s)  # type: ignore[arg-type]
        assert not leases.have_all([77], late_s)
        leases.record(77, leases.new_token(late_s - 1.0), channel, late_s)  # type: ignore[arg-type]
        assert leases.have_all([77], late_s)
        for forget in channel.on_close:
            forget(channel)
        assert not leases.have_all([77], late_s)

    send = send_peer_lease.within

    async def note(
        timeout_s: float, client: RemotingClient, master: str, header: VouchRequest
    ) -> VouchResponse:
        answer = await send(timeout_s, client, master, header)
        answers.append(answer)
        return answer

    monkeypatch.setattr(send_peer_lease, "within", note)
    play(script)


def test_a_lease_is_counted_from_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that was delayed for long is worth less, or nothing."""
    late_s: list[float] = []
    extend = MasterLease.extend

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")

        def note(self: MasterLease, sent_s: float, lease_ms: int) -> None:
            late_s.append(cluster.world.loop.time() - sent_s)
            extend(self, sent_s, lease_ms)

        latency_ms, cluster.world.fabric.latency_ms = cluster.world.fabric.latency_ms, (100.0, 100.0)
        await cluster.world.clock.sleep(1.0)
        monkeypatch.setattr(MasterLease, "extend", note)
        await until(cluster, lambda: len(late_s) > 5, "leases are granted")
        # Controllers take long to agree on a leader over such a network, which is not tested here.
        cluster.world.fabric.latency_ms = latency_ms

    play(script)
    assert min(late_s[:5]) > 0.19


def test_a_lease_from_before_a_hand_over_counts_for_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controllers do not wait for the end of the lease of a master that hands over. If it never learns
    the outcome, it must not continue on a lease that was granted before they were asked.
    """
    is_lost = False

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        leader = cluster.leader
        server = leader.server
        assert server is not None
        latency_ms = cluster.world.fabric.latency_ms

        async def lose(_self: Controllers, _target: int, _master_epoch: int) -> MasterFacts:
            nonlocal is_lost
            server._membership.heartbeats.soon()
            await cluster.world.clock.sleep(0.05)  # a last lease arrives
            cluster.world.fabric.latency_ms = (100.0, 100.0)
            server._membership.heartbeats.soon()
            await cluster.world.clock.sleep(0.01)  # and another one is requested
            is_lost = True
            raise BrokerUnreachable("the answer is lost")

        monkeypatch.setattr(Controllers, "elect_successor", lose)
        operator = OperatorNode("op", cluster.world, cluster.admin._namesrv, cluster.ledger, cluster.watch)
        operator.address = f"{leader.host.ip}:{leader.port}"
        operator.target = min(leader.members - {server.broker_id})
        operator.start()
        await until(cluster, lambda: is_lost and server.state is RoleState.LEADING, "it goes on")
        assert not leader.may_write
        await cluster.world.clock.sleep(0.25)
        assert not leader.may_write
        cluster.world.fabric.latency_ms = latency_ms
        await is_taken(cluster)
        assert cluster.leader is leader
        await operator.stop_cleanly()

    play(script)


def test_a_slave_that_is_taken_for_the_master_has_it_delete_the_topic() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        operator = Deleter("operator", cluster.world, cluster.admin._namesrv, cluster.ledger, cluster.watch)
        leader = cluster.leader
        for node in cluster.slaves:
            operator.is_over = False
            operator.address = f"{node.host.ip}:{node.port}"
            operator.start()
            await until(cluster, lambda: operator.is_over, "it is deleted")
            assert leader.broker is not None
            assert leader.broker._tables.topics.get("Short") is None
            await operator.stop_cleanly()

    play(script)


def test_far_brokers_hold_a_change_before_its_author_is_told() -> None:
    """Each direction takes a tenth of a second, and each change occurs while the slaves fetch the previous
    one.
    """

    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        operator = Changer("operator", cluster.world, cluster.admin._namesrv, cluster.ledger, cluster.watch)
        operator.start()
        assert await cluster.world.until(lambda: operator.is_over, 4 * SOON_S), "not all changes are answered"
        await operator.stop_cleanly()

    play(script, lambda settings: replace(calm(settings), latency_ms=(90.0, 110.0)))


class Changer(ClientNode):
    """Creates topics one after the other, none of which may be refused."""

    is_over = False

    async def run(self) -> None:
        admin = Admin(instance=await self.connect())
        for number in range(8):
            await admin.create_topic(f"Far{number}", queue_count=1)
        self.is_over = True

    async def stop_server(self) -> None:
        if self._instance is not None:
            await self._instance.close()


class Deleter(ClientNode):
    """Creates a topic, and asks one broker to delete it."""

    address = ""
    is_over = False

    async def run(self) -> None:
        instance = await self.connect()
        await Admin(instance=instance).create_topic("Short", queue_count=1)
        await delete_topic(instance.remoting, self.address, "Short")
        self.is_over = True

    async def stop_server(self) -> None:
        if self._instance is not None:
            await self._instance.close()


def test_the_nodes_tell_who_leads() -> None:
    async def script(cluster: ElectedCluster) -> None:
        await until(cluster, cluster.is_caught_up, "all are in the set")
        leads = [node for node in cluster.brokers_made if node.leads]
        assert leads == [cluster.leader]
        assert isinstance(leads[0], ElectedNode)
        assert leads[0].broker_id == 0

    play(script)
