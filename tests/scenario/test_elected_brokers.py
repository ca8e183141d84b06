"""TandemMQ brokers under TandemMQ controllers: the master, the right to write, and the notification of
others.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import pull_header
from controller_rig import GROUP, Rig
from elected_rig import Elected
from replica_pair import new_record

from sim.memory import MemoryDisk
from tandemmq.api.broker_admin import create_topic
from tandemmq.api.broker_consume import commit_offset
from tandemmq.api.controller import ControllerHeartbeat, MasterFacts, hand_over, hand_over_group
from tandemmq.api.nameserver import query_cluster_info
from tandemmq.api.replica import FetchedTable, HeldTable, MasterHaInfo
from tandemmq.broker.autoswitch import elected, membership
from tandemmq.broker.autoswitch.roles import RoleState
from tandemmq.broker.metrics import read_replication
from tandemmq.broker.options import AccessOptions
from tandemmq.broker.replica import config_sync
from tandemmq.broker.replica.config_sync import ConfigSync
from tandemmq.controller.elections import LEASE_MS
from tandemmq.errors import (
    BrokerUnreachable,
    ConfigError,
    RequestRejected,
    RequestTimeout,
    ServiceNotAvailable,
    TandemError,
)
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.replica import SyncStateSetAnswer
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.loose_json import parse
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.requests.controller import MasterResponse
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.protocol.requests.send import SendResponse
from tandemmq.protocol.sys_flag import PULL_COMMIT_OFFSET
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.replication.shell import AutoSwitchReplication
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import BrokerRole
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import MetricsExporter
from tandemmq.telemetry.metrics import HISTORY_DIFFERED, HISTORY_DOUBTED
from waits import until


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    one = Rig()
    await one.start()
    yield one
    await one.close()


@pytest.fixture
async def group(rig: Rig) -> AsyncIterator[Elected]:
    one = Elected(rig)
    yield one
    await one.stop()


def copier(group: Elected, number: int) -> AutoSwitchReplication:
    found = group.brokers[number].replication
    assert isinstance(found, AutoSwitchReplication)
    return found


async def test_a_slave_becomes_master_and_the_old_master_its_slave(group: Elected) -> None:
    await group.start(1)
    assert await group.master() == 1
    for number in (2, 3):
        await group.start(number)
    await group.in_set(1, 2, 3)
    for number in range(5):
        answer = await group.send(1, b"%d" % number)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    await group.caught_up()
    refused = await group.send(2, b"to a slave")
    assert refused.code != ResponseCode.SUCCESS

    await group.stop(1)
    master = await group.master()
    assert master in (2, 3)
    answer = await group.send(master, b"after")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await group.start(1)
    await group.in_set(1, 2, 3)
    await group.caught_up()
    assert [broker.broker_id for broker in group.brokers.values()].count(1) == 1
    assert not group.brokers[1].is_master


async def test_a_slave_signs_with_the_account_of_tools_yml(group: Elected) -> None:
    account = b"accessKey: operator\n%ssecretKey: operator-secret\n"
    group.access = AccessOptions(acl_enable=True, acl_directory=Path("/conf"))
    for number in (1, 2):
        disk = group.disks[number] = MemoryDisk()
        disk.make_dirs(Path("/conf"))
        rules = b"accounts:\n  - " + account % b"    " + b"    admin: true\n"
        disk.write_atomically(Path("/conf/plain_acl.yml"), rules)
        disk.write_atomically(Path("/conf/tools.yml"), account % b"")
        await group.start(number)
    await group.in_set(1, 2)


async def test_elected_brokers_serve_the_metrics_of_their_history(group: Elected) -> None:
    for number in (1, 2):
        await group.start(number)
    await group.in_set(1, 2)
    for one in group.brokers.values():
        replica, store = one.broker._elected, one.store
        assert replica is not None
        assert store is not None
        samples = read_replication(replica, store, LoopClock())
        values = {sample.metric.name: sample.value for sample in samples}
        assert (values[HISTORY_DOUBTED.name], values[HISTORY_DIFFERED.name]) == (0, 0)


async def test_times_of_requests_outlive_a_role(group: Elected, rig: Rig) -> None:
    group.settings = {"metrics_exporter": MetricsExporter.PROM, "metrics_port": 0, "remoting_metrics": True}
    first, _ = await group.start_pair()
    assert (await group.send(1, b"before")).code == ResponseCode.SUCCESS
    await group.caught_up()
    await hand_over_group(rig.client, rig.address("n0"), GROUP, None, clock=rig.clock)
    await until(lambda: group.masters() == [2], "the other is master")
    assert first.broker._times is not None
    await group.send(1, b"after")
    of_sends = [times.count for row, times in first.broker._times.rows.items() if row[0] == 310]
    assert sum(of_sends) == 2


async def test_name_servers_and_tables_are_of_the_newest_term(rig: Rig) -> None:
    name_server = NameServer(
        NameServerOptions(
            listen_host="127.0.0.1",
            listen_port=9876,
            kv_config_path=Path("/ns/kv.json"),
            config_store_path=Path("/ns/ns.conf"),
        ),
        network=rig.network,
        disk=MemoryDisk(),
        clock=rig.clock,
    )
    group = Elected(rig, (render_address(await name_server.start()),))
    await group.start_pair()
    await create_topic(rig.client, group.address(1), TopicConfig(name="T"))
    await commit_offset(rig.client, group.address(1), "G", "T", 0, 0)
    first = group.brokers[1].broker._tables
    second = group.brokers[2].broker._tables
    await until(lambda: second.topics.get("T") is not None, "the topic is copied")
    assert second.topics.data_version == first.topics.data_version
    assert first.topics.data_version.state_version == 1

    async def places() -> dict[int, str]:
        info = await query_cluster_info(rig.client, group.name_servers[0])
        return info.brokers[GROUP].addresses if GROUP in info.brokers else {}

    async def are_places(*addresses: str) -> bool:
        return sorted((await places()).values()) == sorted(addresses)

    await until(lambda: are_places(group.address(1), group.address(2)), "both are registered")
    assert (await places())[0] == group.address(1)

    # A table of an earlier term is not applied, from any sender.
    old = first.topics.data_version
    await group.stop(1)
    assert await group.master() == 2
    tables = group.brokers[2].broker._tables
    assert tables.topics.get("T") is not None
    assert tables.topics.data_version.state_version > old.state_version

    async def is_master_known() -> bool:
        return (await places()).get(0) == group.address(2)

    await until(is_master_known, "the name server knows the new master")
    await group.start(1)
    await group.in_set(1, 2)
    await until(lambda: are_places(group.address(1), group.address(2)), "both are registered again")
    assert (await places())[0] == group.address(2)
    await group.stop()
    await name_server.stop()


async def test_a_slave_keeps_tables_that_are_newer_than_those_of_its_master(group: Elected, rig: Rig) -> None:
    """The winner of an election may briefly serve tables that it copied in an earlier term."""
    await group.start_pair()
    topics = group.brokers[2].broker._tables.topics
    topics.put(TopicConfig(name="newer"), 1)
    topics.data_version = topics.data_version.of_term(99, 1)
    replica = group.brokers[2].broker._elected
    assert replica is not None
    sync = replica.config_sync
    for name in ("A", "B"):
        rounds = sync.round_count
        group.brokers[1].broker._tables.topics.put(TopicConfig(name=name), 1)
        await until(lambda rounds=rounds: sync.round_count > rounds, "the slave asks again")  # type: ignore[misc]
    assert topics.get("newer") is not None
    assert topics.get("A") is None


async def test_the_next_controller_knows_all_that_it_needs() -> None:
    rig = Rig(3)
    await rig.start()
    group = Elected(rig)
    for number in (1, 2, 3):
        await group.start(number)
    master = await group.master()
    leader = await rig.leader()
    await group.in_set(1, 2, 3)
    await asyncio.gather(rig.stop(leader), group.stop(master))
    assert await group.master() != master
    answer = await group.send(await group.master(), b"after")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await group.stop()
    await rig.close()


async def test_controllers_that_forgot_a_broker_are_told_again(group: Elected, rig: Rig) -> None:
    await group.start(1)
    await group.master()
    await group.stop(1)
    await rig.stop()
    rig.disks["n0"] = MemoryDisk()
    await rig.start()
    broker = await group.start(1)
    await until(
        lambda: any("2010" in reason for reason in broker._membership.logged_refusals),
        "it is refused, and says so",
    )
    assert broker.store is not None
    terms, end = broker.store.terms, broker.store.max_log_offset
    await terms.save_epochs(terms.epochs.append(7, end))  # terms of the lost controllers
    await group.stop(1)
    broker = await group.start(1, reapplies_id=True)
    await until(lambda: broker._membership.is_registered, "it is known again")
    await until(lambda: broker.epoch > 7, "a term above all that it has had")
    await group.master()


async def test_of_two_brokers_with_one_identity_one_writes(group: Elected, rig: Rig) -> None:
    """The second broker is rejected while the first one lives. A broker that was silent meanwhile stands down
    when it sees its id at another address.
    """
    first = await group.start(1)
    await group.master()
    group.disks[2] = MemoryDisk()
    identity = Path("/store/brokerIdentity")
    group.disks[2].make_dirs(identity.parent)
    group.disks[2].write_atomically(identity, group.disks[1].read_bytes(identity))
    second = await group.start(2)
    assert second.broker_id == first.broker_id
    told = f"a broker with the id 1 is alive at {group.address(1)}"
    await until(
        lambda: any(told in reason for reason in second._membership.logged_refusals),
        "it is refused, and says so",
    )
    assert group.masters() == [1]
    assert (await group.send(2, b"to the copy")).code != ResponseCode.SUCCESS

    # The controllers no longer hear the first broker, and mistake the second one for it.
    def lose() -> BrokerHeartbeatRequest:
        raise BrokerUnreachable("the way to the controllers is cut")

    make = first.make_heartbeat
    first.make_heartbeat = lose  # type: ignore[method-assign]
    await until(lambda: second.is_master, "the copy leads")
    first.make_heartbeat = make  # type: ignore[method-assign]
    await until(lambda: not first.is_master, "the first one has stopped")
    assert not first.may_write()
    assert group.masters() == [2]
    refused = await group.send(1, b"to the first one")
    assert refused.code != ResponseCode.SUCCESS
    assert (await group.send(2, b"to who leads")).code == ResponseCode.SUCCESS
    told = f"a broker with the id 1 is alive at {group.address(2)}"
    await until(lambda: any(told in reason for reason in first._membership.logged_refusals), "it says why")
    # When the other broker is gone, the first one gets its id back.
    await group.stop(2)
    await until(lambda: first.is_master, "the first one leads again")
    assert (await group.send(1, b"again")).code == ResponseCode.SUCCESS


async def test_a_store_with_the_identity_of_another_cluster_is_not_opened(group: Elected) -> None:
    disk = group.disks[1] = MemoryDisk()
    disk.make_dirs(Path("/store"))
    disk.write_atomically(Path("/store/brokerIdentity"), b"Other#broker-a#1")
    with pytest.raises(ConfigError, match="belongs to the broker broker-a of the cluster Other"):
        await group.start(1)
    assert group.brokers[1].store is None


async def test_only_the_newest_term_counts(group: Elected, rig: Rig) -> None:
    await group.start(1)
    assert await group.master() == 1
    # News that no controller sent: the broker queries the controllers and keeps its role.
    forged = MasterResponse(master_id=2, master_address="127.0.0.1:9", master_epoch=99, set_epoch=99)
    command = Command.request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, forged)
    answer = await rig.client.request(group.address(1), command, 5)
    assert answer.code == ResponseCode.SUCCESS
    assert (await group.send(1, b"still")).code == ResponseCode.SUCCESS
    assert copier(group, 1).epochs.last_epoch == 1
    # After a restart it continues in a new epoch.
    await group.stop(1)
    await group.start(1)
    await group.master()
    epoch = copier(group, 1).epochs.last_epoch
    assert epoch is not None
    assert epoch > 1
    told = await rig.client.request(
        group.address(1), Command.request(RequestCode.GET_BROKER_EPOCH_CACHE, None), 5
    )
    body = parse(told.body)
    assert body["brokerId"] == 0
    assert [entry["epoch"] for entry in body["epochList"]] == [1, epoch]


async def test_a_master_without_lease_and_promises_is_fenced_until_it_has_either(
    group: Elected, rig: Rig
) -> None:
    await group.start_pair()
    await rig.stop()  # no lease any more, but the slave promises to stay a slave
    await until(lambda: not group.brokers[1]._lease.is_valid(rig.clock.monotonic()), "no lease")
    assert (await group.send(1, b"with a promise")).code == ResponseCode.SUCCESS
    following = group.brokers[2]._following
    assert following is not None
    following.cancel()
    await until(lambda: not group.brokers[1].may_write(), "what was promised is over")
    refused = await group.send(1, b"alone")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    with pytest.raises(ServiceNotAvailable):
        await commit_offset(rig.client, group.address(1), "G", "TBW102", 0, 1)
    header = pull_header("TBW102", sys_flag=0x4 | PULL_COMMIT_OFFSET, committed_offset=1)
    pulled = await rig.client.request(group.address(1), Command.request(RequestCode.PULL_MESSAGE, header), 5)
    assert pulled.code == ResponseCode.SUCCESS, pulled.remark
    assert group.brokers[1].broker._tables.offsets.committed("CG", "TBW102", 0) is None
    await until(lambda: group.brokers[1].broker.is_paused, "duties rest")
    await rig.start()
    await until(group.brokers[1].may_write, "the lease is back")
    await until(lambda: not group.brokers[1].broker.is_paused, "duties go on")
    assert (await group.send(1, b"again")).code == ResponseCode.SUCCESS
    found = rig.controllers["n0"].groups.get(GROUP)
    assert found is not None
    assert found.master_epoch == 1


@pytest.mark.parametrize("silence_ms_max", [600, 30_000])
async def test_a_master_that_stands_still_is_replaced_after_its_own_time(
    group: Elected, rig: Rig, silence_ms_max: int
) -> None:
    """With a longer controllerHeartBeatTimeoutMills a master survives the pauses of a starved machine,
    including pauses longer than its lease.
    """
    first = await group.start(1, silence_ms_max=silence_ms_max)
    await group.master()
    await group.start(2, silence_ms_max=silence_ms_max)
    await group.in_set(1, 2)
    epoch = first.epoch

    def lose() -> BrokerHeartbeatRequest:
        raise BrokerUnreachable("the process stands still")

    make = first.make_heartbeat
    first.make_heartbeat = lose  # type: ignore[method-assign]
    if silence_ms_max == 600:
        await until(lambda: 2 in group.masters(), "the other is master")
        return
    live, group_row = rig.controllers["n0"].heartbeats, (GROUP, first.broker_id)
    await until(lambda: not first._lease.is_valid(rig.clock.monotonic()), "no lease")
    paused_s = rig.clock.monotonic()
    await until(lambda: rig.clock.monotonic() - paused_s > 2 * LEASE_MS / 1000, "a pause of some leases")
    assert live.is_alive(*group_row, rig.clock.monotonic())
    first.make_heartbeat = make  # type: ignore[method-assign]
    await until(lambda: first._lease.is_valid(rig.clock.monotonic()), "a lease again")
    assert (await group.send(1, b"it goes on")).code == ResponseCode.SUCCESS
    assert (group.masters(), first.epoch) == ([1], epoch)


async def test_a_lease_is_of_one_term_and_counts_from_when_it_was_asked_for(group: Elected, rig: Rig) -> None:
    broker = await group.start(1)
    await group.master()
    await rig.stop()  # no other lease is granted
    await until(lambda: not broker._lease.is_valid(rig.clock.monotonic()), "no lease")
    now_s, epoch, own_id = rig.clock.monotonic(), broker.epoch, broker.broker_id
    for answer in (
        ControllerHeartbeat(epoch - 1, own_id, LEASE_MS),
        ControllerHeartbeat(epoch, own_id + 1, LEASE_MS),
    ):
        broker.on_heartbeat_answer(answer, now_s)
        assert not broker._lease.is_valid(now_s)
    # The answer was on its way for a second.
    broker.on_heartbeat_answer(ControllerHeartbeat(epoch, own_id, LEASE_MS), now_s - 1)
    assert broker._lease.is_valid(now_s + LEASE_MS / 1000 - 1.01)
    assert not broker._lease.is_valid(now_s + LEASE_MS / 1000 - 0.99)
    broker.on_heartbeat_answer(ControllerHeartbeat(epoch, own_id, 60_000), now_s)
    assert broker._assigned is not None
    broker.on_master(replace(broker._assigned, master_epoch=epoch + 1, set_epoch=99))
    await until(lambda: copier(group, 1).epochs.last_epoch == epoch + 1, "its next term")
    assert not broker._lease.is_valid(now_s)


async def test_master_replaced_while_its_disk_stalls_does_not_become_active(
    group: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's term begins on a stalled disk, and the group does not wait for it."""
    broker = await group.start(1, poll_ms=60_000)
    await group.master()
    copy, begin_term = copier(group, 1), copier(group, 1).begin_term
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def begin_slowly(*args: Any) -> None:
        await begin_term(*args)
        has_begun.set()
        await may_go_on.wait()

    compose, composed, trusted = broker._compose, list[BrokerRole](), list[bool]()

    async def note_compose(role: BrokerRole) -> None:
        composed.append(role)
        await compose(role)

    assert broker.store is not None
    monkeypatch.setattr(copy, "begin_term", begin_slowly)
    monkeypatch.setattr(broker, "_compose", note_compose)
    monkeypatch.setattr(broker.store.terms, "trust_tail", lambda: trusted.append(True))
    wanted = broker._assigned
    assert wanted is not None
    epoch = wanted.master_epoch
    broker.on_master(replace(wanted, master_epoch=epoch + 1))
    await has_begun.wait()
    other = replace(wanted, master_epoch=epoch + 2, master_id=7, master_address="127.0.0.1:9")
    broker.on_master(other)
    may_go_on.set()
    await until(lambda: broker.broker.options.is_slave, "it is a slave of the next term")
    assert (composed, trusted, broker.is_master, copy.required) == ([BrokerRole.SLAVE], [], False, None)
    assert broker.epoch == epoch + 2


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_store_that_cannot_take_its_role_now_takes_it_later(
    group: Elected, rig: Rig, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """With a full disk, or without a free descriptor, the broker tries again, unless another master is
    elected first.
    """
    monkeypatch.setattr(elected, "RETRY_S", 0.05)
    broker = await group.start(1, poll_ms=60_000)
    await group.master()
    await rig.stop(*rig.names)  # they would elect anew when they hear of the terms that are made up here
    assert broker.store is not None
    become, refused, may_begin = broker.store.become, list[BrokerRole](), asyncio.Event()

    def refuse(role: BrokerRole) -> None:
        if not may_begin.is_set():
            refused.append(role)
            raise OSError(errno.EMFILE, "Too many open files")
        become(role)

    wanted = broker._assigned
    assert wanted is not None
    epoch = wanted.master_epoch
    other = replace(wanted, master_epoch=epoch + 1, master_id=7, master_address="127.0.0.1:9")
    broker.on_master(other)
    await until(lambda: broker.broker.options.is_slave, "it is a slave")
    monkeypatch.setattr(broker.store, "become", refuse)
    broker.on_master(replace(wanted, master_epoch=epoch + 2))
    await until(lambda: len(refused) > 2, "it tries again")
    assert set(refused) == {BrokerRole.SYNC_MASTER}
    if is_replaced:
        broker.on_master(replace(other, master_epoch=epoch + 3))
        monkeypatch.setattr(broker.store, "become", become)
        await until(lambda: broker.epoch == epoch + 3, "it is a slave of the next term")
        assert not broker.is_master
    may_begin.set()
    if not is_replaced:
        await until(lambda: broker.is_master, "it is master")
        assert (await group.send(1, b"after")).code == ResponseCode.SUCCESS


async def test_a_slave_follows_a_master_only_in_the_term_that_it_was_told(
    group: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former master may be at the same address, and answer until it learns better."""
    await group.start(1)
    await group.master()
    find, asked = elected.fetch_master_ha_info.within, 0

    async def find_older(*args: Any, **more: Any) -> MasterHaInfo:
        nonlocal asked
        asked += 1
        place = await find(*args, **more)
        assert place.epoch is not None
        return replace(place, epoch=place.epoch - 1) if asked < 3 else place

    monkeypatch.setattr(elected.fetch_master_ha_info, "within", find_older)
    await group.start(2)
    await until(lambda: copier(group, 2).slave_status() is not None)
    assert asked == 3


async def test_a_proposal_whose_answer_was_lost_is_looked_up(group: Elected, rig: Rig) -> None:
    """On a repetition the controllers report that the set is already the same, possibly because of this
    proposal.
    """
    broker = await group.start(1, poll_ms=60_000)
    await group.master()
    controllers, copy = broker._membership.controllers, copier(group, 1)
    alter_set = controllers.alter_set
    refused: list[int] = []
    lost: list[SyncStateSetAnswer] = []
    copy.set_refused = refused.append  # type: ignore[method-assign]

    async def lose_answer(*args: Any) -> SyncStateSetAnswer:
        told = await alter_set(*args)
        if not lost:
            lost.append(told)
            raise RequestTimeout("the answer was lost")
        return told

    controllers.alter_set = lose_answer  # type: ignore[method-assign]
    await group.start(2)
    await until(lambda: copy.set_epoch == 2, "the set is known")
    assert lost
    assert refused == []


async def test_a_master_that_was_replaced_goes_on_waiting_for_whom_it_proposed(group: Elected) -> None:
    """The earlier attempt may have added the very broker that was elected then."""
    broker = await group.start(1, poll_ms=60_000)
    await group.master()
    refused: list[int] = []
    answers: list[TandemError] = []

    async def refuse(*_args: Any) -> SyncStateSetAnswer:
        raise answers.pop(0)

    broker._membership.controllers.alter_set = refuse  # type: ignore[method-assign]
    copier(group, 1).set_refused = refused.append  # type: ignore[method-assign]
    for code, is_certain in (
        (ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, True),
        (ResponseCode.CONTROLLER_INVALID_REPLICAS, True),
        (ResponseCode.CONTROLLER_INVALID_MASTER, False),
        (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, False),
    ):
        answers[:] = RequestTimeout("lost"), RequestRejected("refused", code=code)
        await broker._membership.propose_in(broker.epoch, frozenset({1, 2}), 1)
        assert answers == []
        assert refused == ([1] if is_certain else []), code
        refused.clear()


async def test_a_fenced_master_that_begins_to_rest_may_be_replaced_in_the_same_moment(group: Elected) -> None:
    await group.start(1)
    await group.master()
    broker = group.brokers[1].broker
    await asyncio.gather(broker.pause(is_paused=True), broker.stop(keeps=lambda _: False))


async def test_a_master_hands_over_at_once_and_only_when_the_others_hold_all(
    group: Elected, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.start_pair()
    controller = rig.address("n0")

    async def hand_on(target: int | None) -> int | None:
        _, after = await hand_over_group(rig.client, controller, GROUP, target, clock=rig.clock)
        return after.master_id

    for target in (1, 7):
        with pytest.raises(RequestRejected, match="in sync besides the master: 2"):
            await hand_on(target)
    with monkeypatch.context() as patched:
        patched.setattr(elected, "COPY_S_MAX", 0.05)
        patched.setattr(AutoSwitchReplication, "confirm_offset", -1)
        asked = asyncio.create_task(hand_on(2))
        await until(lambda: not group.brokers[1].may_write(), "it accepts nothing")
        meanwhile = asyncio.create_task(group.send(1, b"meanwhile"))
        with pytest.raises(RequestRejected, match="does not hold the log"):
            await asked
    assert (await meanwhile).code == ResponseCode.SUCCESS
    assert (await group.send(1, b"it goes on")).code == ResponseCode.SUCCESS
    await group.caught_up()
    begun_s = rig.clock.monotonic()
    assert await hand_on(None) == group.brokers[2].broker_id
    assert rig.clock.monotonic() - begun_s < LEASE_MS / 1000, "it waited for the end of the lease"
    await until(lambda: group.masters() == [2], "the other is master")
    assert (await group.send(2, b"after")).code == ResponseCode.SUCCESS
    await group.in_set(1, 2)


async def test_a_hand_over_waits_for_a_send_that_is_accepted_and_not_yet_written(group: Elected) -> None:
    """The store writes once per turn of the loop; a handover in between regarded the log as copied."""
    broker, _ = await group.start_pair()
    assert (await group.send(1, b"before")).code == ResponseCode.SUCCESS
    await group.caught_up()
    assert broker.store is not None
    end = broker.store.max_log_offset
    broker.store.appender.append([new_record(b"accepted", topic="TBW102")], lambda _status: None)
    assert broker.store.max_log_offset == end
    await broker._wait_for_copies(broker.epoch)
    assert broker.replication.confirm_offset == broker.store.max_log_offset > end


class StaleSender:
    """Sends to one address, one message after the other over one connection, as a client with an outdated
    route; records the answers by body.
    """

    def __init__(self, group: Elected, number: int) -> None:
        self.group, self.number = group, number
        self.answers: dict[bytes, Command] = {}
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            body = b"%d" % len(self.answers)
            self.answers[body] = await self.group.send(self.number, body)

    async def more(self, count: int = 20) -> None:
        goal = len(self.answers) + count
        await until(lambda: len(self.answers) >= goal or self._task.done(), f"{count} more answers")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_client_with_an_old_route_sends_through_hand_overs(group: Elected, rig: Rig) -> None:
    await group.start_pair()
    channel = await rig.client.channel(group.address(1))
    sender = StaleSender(group, 1)
    for master, other in ((2, 1), (1, 2), (2, 1)):
        await sender.more()
        target = group.brokers[master].broker_id
        before, after = await hand_over_group(rig.client, rig.address("n0"), GROUP, target, clock=rig.clock)
        assert after.master_epoch == before.master_epoch + 1
        await until(lambda: group.masters() == [master], "the office has changed hands")  # noqa: B023
        await sender.more()
        assert group.brokers[1]._forwarding.is_open == (master == 2)
        assert not group.brokers[other].may_write()
        await group.in_set(1, 2)
    await sender.stop()
    await group.caught_up()
    assert not channel.is_closed
    assert {answer.code for answer in sender.answers.values()} == {ResponseCode.SUCCESS}
    store = group.brokers[2].store
    assert store is not None
    for number, (body, answer) in enumerate(sender.answers.items()):
        told = answer.decode(SendResponse)
        assert (told.queue_id, told.queue_offset) == (0, number), "sent once, in order"
        place = store.reader.find_record("TBW102", 0, number)
        assert place is not None
        record = store.read_record(place[0])
        assert record is not None
        assert decode_record(record).body == body
    assert store.queue_max("TBW102", 0) in (len(sender.answers), len(sender.answers) + 1)
    assert group.brokers[1]._forwarding.count > 0


async def test_a_master_that_retires_hands_over_and_answers_each_send_that_it_has_accepted(
    group: Elected, rig: Rig
) -> None:
    await group.start_pair()
    sender = StaleSender(group, 1)
    await sender.more()
    begun_s = rig.clock.monotonic()
    await group.brokers[1].retire()
    assert rig.clock.monotonic() - begun_s < LEASE_MS / 1000, "nobody waits for the end of a lease"
    await until(lambda: group.masters() == [2], "the other is master")
    assert group.brokers[1]._forwarding._unanswered == 0
    await until(lambda: list(sender.answers.values())[-1].code != ResponseCode.SUCCESS, "it is refused")
    await sender.stop()
    codes = [answer.code for answer in sender.answers.values()]
    accepted = codes.index(ResponseCode.SYSTEM_BUSY)
    assert set(codes[:accepted]) == {ResponseCode.SUCCESS}
    assert set(codes[accepted:]) == {ResponseCode.SYSTEM_BUSY}, "clients look for the master"
    await group.stop(1)
    store = group.brokers[2].store
    assert store is not None
    assert store.queue_max("TBW102", 0) == accepted, "a refused send was never stored"


async def test_a_master_that_retires_forwards_sends_for_the_time_that_was_set(
    group: Elected, rig: Rig
) -> None:
    first, _ = await group.start_pair()
    first._config = replace(first._config, election=replace(first._config.election, stop_linger_ms=2_000))
    sender = StaleSender(group, 1)
    begun_s = rig.clock.monotonic()
    retiring = asyncio.create_task(first.retire())
    await until(lambda: group.masters() == [2] and first._forwarding.count > 0, "it forwards")
    await sender.more(1)
    await sender.stop()
    await retiring
    assert rig.clock.monotonic() - begun_s >= 2.0
    assert {answer.code for answer in sender.answers.values()} == {ResponseCode.SUCCESS}


async def test_a_broker_that_retires_while_it_hands_over_answers_the_sends_that_it_has_accepted(
    group: Elected, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await group.start_pair()
    first._config = replace(first._config, election=replace(first._config.election, stop_linger_ms=200))
    sender = StaleSender(group, 1)
    await sender.more()
    target = group.brokers[2].broker_id
    elect, may_elect = first._membership.controllers.elect_successor, asyncio.Event()

    async def elect_later(*args: Any) -> MasterFacts:
        await may_elect.wait()
        return await elect(*args)

    monkeypatch.setattr(first._membership.controllers, "elect_successor", elect_later)
    asked = hand_over_group(rig.client, rig.address("n0"), GROUP, target, clock=rig.clock)
    handing = asyncio.create_task(asked)
    await until(lambda: first.state is RoleState.DRAINED, "an operator's hand-over has begun")
    retiring = asyncio.create_task(first.retire())
    may_elect.set()
    await retiring
    await handing
    assert group.masters() == [2]
    assert (first._forwarding.is_open, first._forwarding._unanswered) == (False, 0)
    assert first._forwarding.count > 0
    await until(lambda: list(sender.answers.values())[-1].code != ResponseCode.SUCCESS, "it is refused")
    await sender.stop()
    codes = [answer.code for answer in sender.answers.values()]
    refused = codes.index(ResponseCode.SYSTEM_BUSY)
    assert set(codes[:refused]) == {ResponseCode.SUCCESS}


async def test_only_a_master_with_members_and_controllers_hands_over_when_it_retires(
    group: Elected, rig: Rig
) -> None:
    first = await group.start(1)
    await group.master()
    await first.retire()
    assert group.masters() == [1], "it is alone"
    slave = await group.start(2)
    await group.in_set(1, 2)
    await slave.retire()
    assert group.masters() == [1], "a slave hands over nothing"
    first._config = replace(first._config, election=replace(first._config.election, hands_over_at_stop=False))
    await first.retire()
    assert group.masters() == [1], "it was told not to"
    first._config = replace(first._config, election=replace(first._config.election, hands_over_at_stop=True))
    await rig.stop()
    await first.retire()
    assert group.masters() == [1], "no controller elects another one"


async def test_a_master_whose_controllers_are_gone_hands_nothing_over(group: Elected, rig: Rig) -> None:
    await group.start_pair()
    await rig.stop()
    with pytest.raises(RequestRejected, match="the outcome of the handover is unknown"):
        await hand_over(rig.client, group.address(1), 2)
    assert group.masters() == [1]
    await until(group.brokers[1].may_write, "the slave promises to stay one")
    assert (await group.send(1, b"it goes on")).code == ResponseCode.SUCCESS
    with pytest.raises(RequestRejected, match="not a master"):
        await hand_over(rig.client, group.address(2), 1)


async def test_progress_behind_a_cut_goes_back_with_it(group: Elected) -> None:
    """The next messages at those offsets were consumed by no group."""
    await group.start(1)
    await group.master()
    await group.send(1, b"kept")
    slave = await group.start(2)
    await group.in_set(1, 2)
    await group.caught_up()
    store = slave.store
    assert store is not None
    point = store.max_log_offset
    await group.send(1, b"cut")
    await group.caught_up()
    await copier(group, 2).end_term()
    offsets = slave.broker._tables.offsets
    await until(lambda: store.queue_max("TBW102", 0) == 2, "both are there")
    offsets.commit("G", "TBW102", 0, 2, 0)
    await store.terms.cut(point, copier(group, 2).epochs, "a newer term")
    assert store.queue_max("TBW102", 0) == 1
    assert offsets.committed("G", "TBW102", 0) == 1


async def test_tables_that_a_full_disk_does_not_take_go_along_into_the_next_role(
    group: Elected, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log continues in files that were reserved before; no other file can be written."""
    await group.start_pair()
    disk = group.disks[2]
    write = disk.write_atomically

    def write_but_no_table(path: Path, data: bytes, **options: bool) -> None:
        if path.parent == Path("/store/config"):
            raise OSError(errno.ENOSPC, "no room", str(path))
        write(path, data, **options)

    monkeypatch.setattr(disk, "write_atomically", write_but_no_table)
    await create_topic(rig.client, group.address(1), TopicConfig(name="T"))
    assert (await group.send(1, b"kept", "T")).code == ResponseCode.SUCCESS
    await commit_offset(rig.client, group.address(1), "G", "T", 0, 1)
    offsets = group.brokers[2].broker._tables.offsets
    await until(lambda: offsets.committed("G", "T", 0) == 1, "the progress is copied")
    await group.caught_up()
    await hand_over_group(rig.client, rig.address("n0"), GROUP, None, clock=rig.clock)
    await until(lambda: group.masters() == [2], "the other is master")
    tables = group.brokers[2].broker._tables
    assert tables.topics.get("T") is not None
    assert tables.offsets.committed("G", "T", 0) == 1
    monkeypatch.undo()
    await group.stop(2)
    assert '"T"' in disk.read_bytes(Path("/store/config/topics.json")).decode(), "once there is room again"


async def test_slave_without_current_tables_does_not_join_the_set(
    group: Elected, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker could be elected at once, and acknowledged messages in topics that it lacks could not be
    found.
    """
    await group.start(1)
    await group.master()
    await create_topic(rig.client, group.address(1), TopicConfig(name="T"))
    assert (await group.send(1, b"kept", "T")).code == ResponseCode.SUCCESS
    arrives, sync_once = asyncio.Event(), ConfigSync.sync_once

    async def late(sync: ConfigSync, master: str) -> bool:
        if sync.own_address() == group.address(2):
            await arrives.wait()
        return await sync_once(sync, master)

    monkeypatch.setattr(ConfigSync, "sync_once", late)
    had_topic: list[bool] = []
    first = copier(group, 1)
    propose = first.on_propose

    def note(members: frozenset[int], set_epoch: int) -> None:
        had_topic.append(group.brokers[2].broker._tables.topics.get("T") is not None)
        propose(members, set_epoch)

    first.on_propose = note
    vouching, asked, may_join = group.brokers[1]._peer_leases.heard, asyncio.Event(), first.may_join

    def watched(broker_id: int) -> bool:
        if broker_id in vouching:
            asked.set()
        return may_join(broker_id)

    first.may_join = watched
    await group.start(2)
    await group.caught_up()
    await until(lambda: group.brokers[2].broker_id in vouching, "the slave speaks")
    assert (await group.send(1, b"more", "T")).code == ResponseCode.SUCCESS
    await until(asked.is_set, "the master asks whether it may join")
    arrives.set()
    await group.in_set(1, 2)
    assert had_topic == [True]


async def test_a_copy_that_begins_again_is_told_everything_again(
    group: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts reported about the earlier log, such as a deleted topic, may be cut off with it."""
    skips: dict[str, list[bool]] = {"fetch_topics": [], "fetch_groups": []}

    def noted(name: str) -> Any:
        fetch = getattr(config_sync.api, name)

        async def note(client: RemotingClient, master: str, held: HeldTable) -> FetchedTable[Any]:
            skips[name].append(held.can_skip)
            found: FetchedTable[Any] = await fetch(client, master, held)
            return found

        return note

    for name in skips:
        monkeypatch.setattr(config_sync.api, name, noted(name))
    for number in (1, 2):
        await group.start(number)
        await group.master()
    await group.in_set(1, 2)
    assert group.brokers[2].broker._elected is not None
    sync = group.brokers[2].broker._elected.config_sync
    sync.wake()
    await until(lambda: all(asked[-1:] == [True] for asked in skips.values()), "it asks for changes only")
    before = {name: len(asked) for name, asked in skips.items()}
    copier(group, 2).on_following()
    assert sync.held is None, "what is held is of the log before"
    await until(lambda: all(len(asked) > before[name] for name, asked in skips.items()), "it asks again")
    assert not any(asked[before[name]] for name, asked in skips.items())


async def test_a_log_that_may_lack_its_end_is_reported_so_until_it_is_level(
    group: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controllers skip such a broker in an election; a single heartbeat without the mark must not come
    earlier.
    """
    _, slave = await group.start_pair()
    assert slave.store is not None
    monkeypatch.setattr(AutoSwitchReplication, "is_caught_up", False)
    slave.store.terms.may_lack_tail = True
    told = [slave.make_heartbeat().is_incomplete for _ in range(3)]
    assert (told, slave.make_registration().is_incomplete) == ([True] * 3, True)
    monkeypatch.setattr(AutoSwitchReplication, "is_caught_up", True)
    assert (slave.make_heartbeat().is_incomplete, slave.store.terms.may_lack_tail) == (None, False)


async def test_a_broker_of_another_group_serves_and_copies_nothing_until_it_has_its_own_disk(
    group: Elected, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker's controllerAddr is wrong: names, ids and terms are equal, but the groups differ."""
    _, slave = await group.start_pair()
    told = slave._group.group_id
    assert told == group.brokers[1]._group.group_id
    assert group.disks[2].read_bytes(Path("/store/brokerGroup")).decode() == told
    await group.stop(2)
    group.disks[2].write_atomically(Path("/store/brokerGroup"), b"f" * 32)
    slave = await group.start(2)
    await until(lambda: "f" * 32 in slave._membership.foreign)
    pull = Command.request(RequestCode.GET_MAX_OFFSET, fields={"topic": "TBW102", "queueId": "0"})
    answer = await rig.client.request(group.address(2), pull, 5)
    assert (answer.code, "f" * 32 in (answer.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    assert any(one.message == events.BROKER_GROUP_REFUSED for one in caplog.records)
    assert told in slave._membership.mismatch.reason
    assert (slave.is_master, slave.broker.options.is_slave) == (False, True)
    await group.stop(2)
    group.disks[2].remove(Path("/store/brokerGroup"))  # as a directory of an older release
    slave = await group.start(2)
    await until(lambda: slave._group.group_id == told)
    await until(lambda: (slave._membership.foreign, slave._membership.mismatch.reason) == ("", ""))


async def test_a_slave_serves_reads_soon_though_no_controller_can_be_asked(
    group: Elected, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.start(1)
    await group.master()
    await group.stop(1)
    await rig.stop("n0")
    monkeypatch.setattr(membership, "UNCONFIRMED_S_MAX", 0.05)
    monkeypatch.setattr(membership.GroupMembership, "on_error", lambda *_: None)  # no error arrives either
    broker = await group.start(1)
    await until(lambda: not broker._foreign_reason(), "the time for an answer is over")
    pull = Command.request(RequestCode.GET_MAX_OFFSET, fields={"topic": "TBW102", "queueId": "0"})
    assert (await rig.client.request(group.address(1), pull, 5)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("reapplies_id", [False, True])
async def test_controllers_without_their_disk_are_told_what_the_brokers_know(
    group: Elected, rig: Rig, caplog: pytest.LogCaptureFixture, reapplies_id: bool
) -> None:
    """The live master continues, the group is adopted, and the next loss of the master is handled as
    usual.
    """
    await group.start(1, reapplies_id=reapplies_id)
    await group.master()
    slave = await group.start(2, reapplies_id=reapplies_id)
    await group.in_set(1, 2)
    assert (await group.send(1, b"before")).code == ResponseCode.SUCCESS
    await rig.stop("n0")
    rig.disks["n0"] = MemoryDisk()
    await rig.start("n0")
    await group.in_set(1, 2)
    assert group.brokers[1].is_master
    assert group.brokers[1].epoch == 1
    # Whether a broker's question is refused before depends on when its report arrives.
    assert any(one.getMessage() == events.CONTROLLER_HISTORY_ADOPTED for one in caplog.records)
    assert (await group.send(1, b"meanwhile")).code == ResponseCode.SUCCESS
    await group.caught_up()
    await group.stop(1)
    await until(lambda: slave.is_master)
    assert slave.epoch > 1
    assert (await group.send(2, b"after")).code == ResponseCode.SUCCESS
    assert slave._membership.mismatch.reason == ""
