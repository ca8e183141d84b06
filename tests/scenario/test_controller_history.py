"""Controllers whose disk went back in time, was lost, or belongs to another group; brokers of another group;
groups of controllers of two versions.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Coroutine
from typing import Any, NamedTuple

import msgspec
import pytest
from controller_rig import CLUSTER, GROUP, FakeBroker, Rig, master_of

from sim.memory import MemoryDisk
from tandemmq.controller import history_keeper
from tandemmq.controller.controller import Peers
from tandemmq.controller.groups import CommandOutcome, Groups, ReplicaGroup
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import controller as headers
from tandemmq.telemetry import events
from waits import until

OTHER_ID = "cd" * 16


def group_of(rig: Rig, name: str = "n0") -> ReplicaGroup:
    group = rig.controllers[name].groups.get(GROUP)
    assert group is not None
    return group


def lead(broker: FakeBroker, group: ReplicaGroup, *others: FakeBroker) -> None:
    """Makes the broker the active master of the recorded term, with these others as its slaves."""
    for one in (broker, *others):
        one.log_epoch = group.master_epoch
        one.history = {
            "group_id": group.group_id,
            "epoch_known": group.master_epoch,
            "term_id": group.term_id,
            "master_known": broker.broker_id,
        }
    members = ";".join(map(str, group.sync_set))
    broker.history |= {"members": members, "set_epoch": group.set_epoch}


async def two_in_sync(rig: Rig) -> tuple[FakeBroker, FakeBroker]:
    one, two = await rig.broker(1, is_ours=True), await rig.broker(2, is_ours=True)
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    lead(one, group_of(rig), two)
    await rig.beat_all()
    return one, two


class Kept(NamedTuple):
    """The master, its slave, and the disk of the controller as it was when both were in sync.
    The controller runs on, and both have reported to it.
    """

    one: FakeBroker
    two: FakeBroker
    disk: MemoryDisk


@pytest.fixture
async def kept(rig: Rig) -> Kept:
    one, two = await two_in_sync(rig)
    await rig.stop("n0")
    disk = copy.deepcopy(rig.disks["n0"])
    await rig.start("n0")
    await rig.leader()
    await rig.beat_all()
    return Kept(one, two, disk)


async def restart(rig: Rig, disk: MemoryDisk) -> None:
    """Restarts the controller with another disk."""
    await rig.stop("n0")
    rig.disks["n0"] = disk
    await rig.start("n0")
    await rig.leader()


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message == event]


async def test_a_group_and_its_terms_have_random_ids(rig: Rig) -> None:
    one, two = await two_in_sync(rig)
    group = group_of(rig)
    assert len(group.group_id) == 32
    assert 0 < group.term_id < 2**63
    read = headers.ReplicaInfoRequest(broker_name=GROUP)
    told = (await rig.ask(Code.CONTROLLER_GET_REPLICA_INFO, read)).decode(headers.MasterResponse)
    assert (told.group_id, told.term_id) == (group.group_id, group.term_id)
    assert (await one.beat()).fields["tmGroup"] == group.group_id
    await one.cut_connections()
    await one._server.stop()
    await until(lambda: group_of(rig).master_id == 2)
    assert group_of(rig).term_id not in (0, group.term_id)
    assert group_of(rig).group_id == group.group_id
    await until(
        lambda: bool(two.notices) and two.notices[-1][0].term_id == group_of(rig).term_id, "the last notice"
    )


async def test_a_broker_of_another_group_never_becomes_a_member(rig: Rig) -> None:
    one, two = await two_in_sync(rig)
    two.history = {**two.history, "group_id": OTHER_ID}
    read = headers.ReplicaInfoRequest(broker_name=GROUP, group_id=OTHER_ID)
    read_answer = await rig.ask(Code.CONTROLLER_GET_REPLICA_INFO, read)
    application = msgspec.structs.replace(two.application(), broker_id=9, group_id=OTHER_ID)
    applied = await rig.ask(Code.CONTROLLER_APPLY_BROKER_ID, application)
    for answer in (await two.register(), await two.beat(), read_answer, applied):
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert answer.remark is not None
        assert OTHER_ID in answer.remark
        assert group_of(rig).group_id in answer.remark
        assert GROUP in answer.remark
    stranger = FakeBroker(rig, 7, is_ours=True)
    stranger.history = {"group_id": OTHER_ID, "epoch_known": 9, "members": "7", "master_known": 7}
    assert (await stranger.register()).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    await stranger.close()
    await one.beat()
    assert sorted(group_of(rig).replicas) == [1, 2]
    assert (group_of(rig).master_id, group_of(rig).master_epoch) == (1, 1)


async def test_controllers_without_their_disk_adopt_the_group_from_its_brokers(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await two_in_sync(rig)
    before = group_of(rig)
    await restart(rig, MemoryDisk())
    await one.beat()
    # The set is not proven, and no second group of this name is created meanwhile.
    assert (await two.register()).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    await two.beat()
    await until(lambda: rig.controllers["n0"].groups.get(GROUP) is not None)
    after = group_of(rig)
    assert (after.group_id, after.master_id, after.master_epoch) == (before.group_id, 1, 1)
    assert (after.term_id, after.sync_set, after.set_epoch) == (before.term_id, (1, 2), 3)
    assert after.master_address == one.address
    assert logged(caplog, events.CONTROLLER_HISTORY_ADOPTED)
    # The live master continues in its term, also when it registers again, and gets its lease.
    assert (await one.register()).code == 0
    await rig.beat_all()
    assert "tmLease" in (await one.beat()).fields
    assert (group_of(rig).master_id, group_of(rig).master_epoch) == (1, 1)
    # A broker that was silent then need not apply for its id; a new one gets an unused id.
    silent = FakeBroker(rig, 3, is_ours=True)
    silent.history = {"group_id": before.group_id}
    assert (await silent.register()).code == 0
    await silent.close()
    ask = headers.NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=GROUP)
    told = await rig.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, ask)
    assert told.decode(headers.NextBrokerIdResponse).next_id > 60


async def test_an_unproven_group_is_not_made_a_second_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = await two_in_sync(rig)
    await restart(rig, MemoryDisk())
    await one.beat()
    monkeypatch.setattr(history_keeper, "UNHEARD_MASTER_S", 0.3)
    refused = await rig.ask(Code.CONTROLLER_APPLY_BROKER_ID, one.application())
    assert refused.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    assert rig.controllers["n0"].groups.get(GROUP) is None
    # An operator ends the wait.
    monkeypatch.undo()
    answer = await _answer_while_beating(one.elect(is_designated=True), one)
    assert answer.code == 0
    group = group_of(rig)
    assert (group.master_id, group.sync_set) == (1, (1,))
    assert group.master_epoch == 3, "above the adopted one, which no broker has reported"


async def _answer_while_beating(question: Coroutine[Any, Any, Command], broker: FakeBroker) -> Command:
    task = asyncio.ensure_future(question)
    while not task.done():
        await broker.beat()
    return await task


async def test_a_state_that_went_back_elects_nobody_and_is_brought_up_to_date(
    rig: Rig, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, old = kept
    assert (await two.elect(is_designated=True)).code == 0
    lead(two, group_of(rig), one)
    before = group_of(rig)
    assert (before.master_id, before.master_epoch) == (2, 2)

    await restart(rig, old)
    assert group_of(rig).master_id == 1
    # The follower is the recorded master. It is not elected, although it registers as after a restart.
    answer = await one.register()
    assert answer.code == 0
    assert master_of(answer) == (None, None)
    (record,) = logged(caplog, events.CONTROLLER_HISTORY_LOST)
    facts = vars(record)
    assert (facts["master_epoch"], facts["reported_epoch"], facts["broker_id"]) == (1, 2, 1)
    states = rig.controllers["n0"]
    assert states.history.contradiction(group_of(rig)) is not None
    assert (await one.elect()).code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
    assert (group_of(rig).master_id, group_of(rig).master_epoch) == (1, 1)
    await two.beat()
    await until(lambda: group_of(rig).master_epoch == 2)
    after = group_of(rig)
    assert (after.master_id, after.term_id, after.sync_set) == (2, before.term_id, before.sync_set)
    assert states.history.contradiction(after) is None


async def test_a_state_that_went_back_while_nobody_is_in_office_elects_the_longest_log(
    rig: Rig, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, old = kept
    assert (await two.elect(is_designated=True)).code == 0
    lead(two, group_of(rig), one)
    assert group_of(rig).master_epoch == 2
    for broker, max_offset in ((one, 100), (two, 300)):
        broker.history = {**broker.history, "master_known": None, "members": None, "set_epoch": None}
        broker.max_offset = max_offset
    await restart(rig, old)
    for broker in (one, two):
        assert (await broker.register()).code == 0
    await until(lambda: _beats_until_elected(rig, one, two))
    assert (group_of(rig).master_id, group_of(rig).sync_set) == (2, (2,))
    assert group_of(rig).master_epoch > 2
    await rig.beat_all()
    assert len(logged(caplog, events.CONTROLLER_HISTORY_ADOPTED)) == 1
    assert rig.controllers["n0"].history.contradiction(group_of(rig)) is None


async def _beats_until_elected(rig: Rig, *brokers: FakeBroker) -> bool:
    for broker in brokers:
        await broker.beat()
    return group_of(rig).master_epoch > 2 and group_of(rig).master_id is not None


async def test_a_set_that_went_back_elects_no_former_member(rig: Rig, kept: Kept) -> None:
    one, two, old = kept
    await one.alter_set(1, set_epoch=2, master_epoch=1)
    lead(one, group_of(rig))
    await restart(rig, old)
    assert group_of(rig).sync_set == (1, 2)
    await rig.beat_all()
    await until(lambda: group_of(rig).sync_set == (1,))
    assert (group_of(rig).master_epoch, group_of(rig).set_epoch) == (1, 4)
    await one.cut_connections()
    await one._server.stop()
    await until(lambda: group_of(rig).master_id is None)
    await two.beat()
    assert group_of(rig).master_id is None, "broker 2 lacks what broker 1 confirmed alone"


async def test_a_set_that_went_back_elects_no_former_member_when_all_have_restarted(
    rig: Rig, kept: Kept
) -> None:
    one, two, old = kept
    await one.alter_set(1, set_epoch=2, master_epoch=1)
    lead(one, group_of(rig), two)
    for broker, max_offset in ((two, 100), (one, 300)):
        broker.history = {**broker.history, "master_known": None, "members": None, "set_epoch": None}
        broker.history |= {"confirmed_epoch": 1, "confirmed_offset": max_offset}
        broker.max_offset = max_offset
    await restart(rig, old)
    assert group_of(rig).sync_set == (1, 2)
    for broker in (two, one):
        assert (await broker.register()).code == 0
    assert (group_of(rig).master_id, group_of(rig).master_epoch) == (1, 2), "broker 2 lacks what 1 confirmed"


async def test_an_epoch_that_was_given_twice_is_told_and_the_record_stays(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    _, two = await two_in_sync(rig)
    two.history = {**two.history, "term_id": 7, "master_known": 2}
    await rig.beat_all()
    (record,) = logged(caplog, events.CONTROLLER_HISTORY_LOST)
    assert vars(record)["reported_term_id"] == 7
    await rig.beat_all()
    assert len(logged(caplog, events.CONTROLLER_HISTORY_LOST)) == 1, "once per reason"
    assert (group_of(rig).master_id, group_of(rig).master_epoch) == (1, 1)


async def test_a_broker_that_the_state_of_now_has_forgotten_is_a_member_again(rig: Rig) -> None:
    _, two = await two_in_sync(rig)
    await rig.stop("n0")
    old = copy.deepcopy(rig.disks["n0"])
    await rig.start("n0")
    three = await rig.broker(3, is_ours=True)
    two.address, moved_from = "127.0.0.1:12999", two.address
    assert (await two.register()).code == 0
    assert moved_from != two.address
    await restart(rig, old)
    assert sorted(group_of(rig).replicas) == [1, 2]
    three.history = {"group_id": group_of(rig).group_id}
    await until(lambda: _beats_until_known(rig, three))
    await until(lambda: _beats_until_known(rig, two))


async def _beats_until_known(rig: Rig, broker: FakeBroker) -> bool:
    await broker.beat()
    replica = group_of(rig).replicas.get(broker.broker_id)
    return replica is not None and replica.address == broker.address


async def test_the_confirmed_offset_outlives_brokers_and_leader(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_keeper, "FLOOR_PERIOD_S", 0.0)
    one, two = await two_in_sync(rig)
    one.history |= {"confirmed_epoch": 1, "confirmed_offset": 90}
    await until(lambda: _beats_until_noted(rig, one, (1, 90)))
    await rig.stop("n0")
    await rig.start("n0")
    await rig.leader()
    assert group_of(rig).floor == (1, 90)
    # The first broker comes back with an older disk, and without a sign that its log may lack its end.
    one.max_offset = 40
    one.history = {key: value for key, value in one.history.items() if key not in ("members", "set_epoch")}
    assert master_of(await one.register())[0] is None
    await one.beat()
    assert group_of(rig).master_id is None
    await two.register()
    await two.beat()
    await until(lambda: group_of(rig).master_id == 2)
    assert group_of(rig).floor_since == 0


async def _beats_until_noted(rig: Rig, broker: FakeBroker, floor: tuple[int, int]) -> bool:
    await broker.beat()
    return group_of(rig).floor == floor


_NEW_FIELDS = {"group_id": "", "term_id": 0, "epoch_known": 0, "floor": None}
_OLD_TAGS = {"apply id", "register", "alter set", "elect", "clean"}


class YesterdaysGroups(Groups):
    """The state machine of the previous release: it ends its process at an unknown command, and ignores
    unknown fields.
    """

    def apply(self, command: bytes) -> CommandOutcome:
        fields = msgspec.msgpack.decode(command)
        assert fields["type"] in _OLD_TAGS, fields
        told = {key: value for key, value in fields.items() if key in _NEW_FIELDS}
        assert all(value == _NEW_FIELDS[key] for key, value in told.items()), fields
        return super().apply(command)


async def test_controllers_of_two_versions_agree_and_use_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(3)
    real = Peers._command

    def without_capability(peers: Peers, message: Any) -> Command:
        command = real(peers, message)
        if peers.options.self_id != "n2":
            return command
        header = command.decode(headers.RaftMessageHeader)
        old = msgspec.structs.replace(header, caps=None, controllers_id=None)
        return Command.request(Code.TANDEM_RAFT_MESSAGE, old, body=bytes(command.body), oneway=True)

    monkeypatch.setattr(Peers, "_command", without_capability)
    await rig.start("n0", "n1")
    with monkeypatch.context() as patch:
        patch.setattr("tandemmq.controller.controller.Groups", YesterdaysGroups)
        await rig.start("n2")
    assert isinstance(rig.controllers["n2"].groups, YesterdaysGroups)
    rig.controllers["n2"].history.supports_history = lambda: False  # as leader, too, it proposes old commands
    await rig.leader()
    one, two = await rig.broker(1, is_ours=True), await rig.broker(2, is_ours=True)
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    leader = await rig.leader()
    assert (group_of(rig, leader).group_id, group_of(rig, leader).term_id) == ("", 0)
    await two.elect(is_designated=True)
    await until(lambda: all(group_of(rig, name).master_id == 2 for name in rig.names))
    states = {rig.controllers[name].groups.take_snapshot() for name in rig.names}
    assert len(states) == 1
    # The last old controller is replaced: the group gets its id.
    await rig.stop("n2")
    monkeypatch.undo()
    await rig.start("n2")
    await rig.beat_all()
    await until(lambda: all(group_of(rig, name).group_id for name in rig.names))
    await until(lambda: all(rig.controllers[name].groups.controllers_id for name in rig.names))
    assert len({rig.controllers[name].groups.take_snapshot() for name in rig.names}) == 1
    await rig.close()


async def test_a_directory_of_another_group_of_controllers_is_not_listened_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, other = Rig(3), Rig(3, seed=100)
    for one in (rig, other):
        await one.start()
        await one.leader()
        await until(lambda one=one: all(item.groups.controllers_id for item in one.controllers.values()))
    await rig.broker(1)
    await other.stop()
    await rig.stop("n2")
    rig.disks["n2"] = other.disks["n2"]
    await rig.start("n2")
    assert rig.controllers["n2"].raft.identity != rig.controllers["n0"].raft.identity
    await until(lambda: any("has the id" in vars(one).get("reason", "") for one in caplog.records))
    assert (await rig.leader()) != "n2"
    assert rig.controllers["n2"].groups.get(GROUP) is None
    await other.close()
    await rig.close()


async def test_the_log_of_a_former_life_counts_no_more_as_soon_as_the_broker_is_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's disk was put back; an election that begins before the registration is written must know
    that.
    """
    _, two = await two_in_sync(rig)
    controller = rig.controllers["n0"]
    propose, ends = controller.raft.propose, []

    async def propose_and_look(*args: Any) -> Any:
        heartbeat = controller.heartbeats.get(GROUP, two.broker_id)
        ends.append(None if heartbeat is None else heartbeat.facts.max_offset)
        return await propose(*args)

    monkeypatch.setattr(controller.raft, "propose", propose_and_look)
    two.max_offset = 10
    await two.register()
    assert ends == [10]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_controller_with_an_older_disk_or_none_catches_up_before_it_votes(is_lost: bool) -> None:
    rig = Rig(3)
    await rig.start()
    leader = await rig.leader()
    await until(lambda: bool(rig.controllers[leader].groups.controllers_id))
    await rig.stop(leader)
    old = MemoryDisk() if is_lost else copy.deepcopy(rig.disks[leader])
    await rig.leader()
    await rig.start(leader)
    one, _ = await rig.broker(1), await rig.broker(2)
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    second = await rig.leader()
    await rig.stop(leader)
    rig.disks[leader] = old
    await rig.start(leader)
    if leader == second:
        second = await rig.leader()
    node = rig.controllers[leader].raft.node
    await until(lambda: node.is_proven)
    await until(lambda: rig.controllers[leader].groups.get(GROUP) is not None)
    await until(lambda: group_of(rig, leader) == group_of(rig, second))
    # The controller votes again: with another one gone, the group decides.
    await rig.stop(next(name for name in rig.names if name not in (leader, second)))
    assert (await one.alter_set(1, set_epoch=2, master_epoch=1)).code == 0
    await rig.close()


async def test_controllers_whose_disks_contradict_each_other_agree_in_the_end() -> None:
    """Two of three disks are replaced at once; no guarantee covers that. No process ends, and the empty
    controllers take the id of their group from the one that kept its disk, which would refuse another.
    """
    rig = Rig(3)
    await rig.start()
    await until(lambda: all(one.groups.controllers_id for one in rig.controllers.values()))
    kept_id = rig.controllers["n2"].groups.controllers_id
    await rig.broker(1)
    await until(lambda: all(one.groups.get(GROUP) is not None for one in rig.controllers.values()))
    await rig.stop()
    for name in ("n0", "n1"):
        rig.disks[name] = MemoryDisk()
    await rig.start("n0", "n1")
    await rig.leader()
    fresh = FakeBroker(rig, 1)
    fresh.address = "127.0.0.1:19911"
    assert (await rig.ask(Code.CONTROLLER_APPLY_BROKER_ID, fresh.application())).code == 0
    await fresh.close()
    await rig.start("n2")

    def states() -> set[bytes]:
        return {one.groups.take_snapshot() for one in rig.controllers.values()}

    await until(lambda: all(one.raft.node.is_proven for one in rig.controllers.values()))
    await until(lambda: all(one.groups.get(GROUP) is not None for one in rig.controllers.values()))
    await until(lambda: len(states()) == 1)
    await until(lambda: {one.groups.controllers_id for one in rig.controllers.values()} == {kept_id})
    assert rig.fatal == []
    await rig.close()
