"""Controllers through their protocol: ids, elections, sets, leases, and the effects of a lost controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from controller_rig import CLUSTER, GROUP, FakeBroker, Rig, master_of

from sim.memory import NoFault
from tandemmq.api import controller, nameserver
from tandemmq.consensus.core.messages import TakeOver, encode_message
from tandemmq.controller import elections, history_keeper
from tandemmq.errors import FlushFailed, NotLeader, NotNameServer, RequestRejected
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.replica import SyncStateSetAnswer
from tandemmq.protocol.catalogue import CATALOGUE, ServingRole
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import controller as headers
from waits import until


@pytest.fixture
async def three() -> AsyncIterator[Rig]:
    rig = Rig(3)
    await rig.start()
    yield rig
    await rig.close()


def epochs(rig: Rig, name: str = "n0") -> tuple[int | None, int, tuple[int, ...], int]:
    group = rig.controllers[name].groups.get(GROUP)
    assert group is not None
    return group.master_id, group.master_epoch, group.sync_set, group.set_epoch


async def test_ids_are_given_once_and_again_to_who_proves_itself(rig: Rig) -> None:
    ask = headers.NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=GROUP)

    async def next_id() -> int:
        answer = await rig.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, ask)
        return answer.decode(headers.NextBrokerIdResponse).next_id

    assert await next_id() == 1
    one = await rig.broker(1)
    assert await next_id() == 2
    again = await rig.ask(Code.CONTROLLER_APPLY_BROKER_ID, one.application())
    assert again.code == 0
    stranger = await rig.ask(Code.CONTROLLER_APPLY_BROKER_ID, one.application("1700000000001"))
    assert stranger.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    other = headers.NextBrokerIdRequest(cluster_name="other", broker_name=GROUP)
    assert (await rig.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, other)).code == ResponseCode.SYSTEM_ERROR


async def test_the_set_decides_who_may_follow_a_dead_master(rig: Rig) -> None:
    one, two = await rig.broker(1), await rig.broker(2)
    elected = await one.elect()
    assert (elected.code, master_of(elected)) == (0, (1, 1))
    body = json.loads(bytes(elected.body))
    assert body["brokerMemberGroup"]["brokerAddrs"] == {"1": one.address, "2": two.address}
    assert body["syncStateSet"] == [1]
    assert (await two.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST

    refused = await one.alter_set(1, 2, set_epoch=0, master_epoch=1)
    assert refused.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    altered = await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    assert altered.decode(headers.AlterSyncStateSetResponse).set_epoch == 2
    assert decode_body(altered.body, SyncStateSetAnswer).ids == (1, 2)

    await one.cut_connections()
    await until(lambda: epochs(rig) == (2, 2, (2,), 3))
    await until(lambda: bool(two.notices) and two.notices[-1][0].master_epoch == 2)
    header, members = two.notices[-1]
    assert (header.master_id, members.ids) == (2, (2,))

    # The old master comes back with its old epoch and learns the new one.
    assert master_of(await one.register()) == (2, 2)
    stale = await one.alter_set(1, 2, set_epoch=3, master_epoch=1)
    assert stale.code == ResponseCode.CONTROLLER_INVALID_MASTER


async def test_elected_master_that_does_not_become_active_is_replaced(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "PROMOTION_S", 0.3)
    one, two, three = [await rig.broker(number, is_ours=True) for number in (1, 2, 3)]
    await one.elect()
    await one.alter_set(1, 2, 3, set_epoch=1, master_epoch=1)
    two.max_offset, two.takes_office = 200, False
    one.timeout_ms = 500
    await one.beat()  # its last heartbeat

    async def are(*wanted: object) -> bool:
        await two.beat()
        await three.beat()
        return epochs(rig)[:3] == wanted

    await until(lambda: are(2, 2, (2, 3)))
    await until(lambda: are(3, 3, (3,)))
    # The set has no other member: the elected broker stays, however long it takes.
    three.takes_office = False
    assert master_of(await three.register()) == (3, 4)
    begun = rig.clock.monotonic()
    while rig.clock.monotonic() < begun + 1.5:
        await two.beat()
        await three.beat()
    assert epochs(rig)[:3] == (3, 4, (3,))


async def test_a_restarted_master_never_goes_on_under_its_epoch(rig: Rig) -> None:
    one = await rig.broker(1)
    await one.elect()
    assert master_of(await one.register()) == (1, 2)
    await one.cut_connections()
    await until(lambda: epochs(rig) == (None, 3, (1,), 2))
    assert master_of(await one.register()) == (None, None)
    await one.beat()
    await until(lambda: epochs(rig)[:2] == (1, 4))


async def test_a_master_of_ours_has_a_lease_and_hands_its_set_on(rig: Rig) -> None:
    one, two, three = [await rig.broker(number, is_ours=True) for number in (1, 2, 3)]
    await one.elect()
    answer = await one.beat()
    fields = {**answer.fields}
    assert len(fields.pop("tmGroup")) == 32
    assert fields == {"tmLease": "1200", "tmMasterEpoch": "1", "tmMaster": "1"}
    assert "tmLease" not in (await two.beat()).fields
    await one.alter_set(1, 2, 3, set_epoch=1, master_epoch=1)
    begun = rig.clock.monotonic()
    elected = await three.elect(is_designated=True)
    assert rig.clock.monotonic() - begun > 1.2, "the lease had not ended"
    assert master_of(elected) == (3, 2)
    assert epochs(rig)[2] == (2, 3)
    # A closed connection alone proves nothing; a refused one does.
    await three.cut_connections()
    assert epochs(rig)[0] == 3
    await three.beat()
    await three.close()
    await until(lambda: epochs(rig)[:2] == (2, 3))


async def test_no_lease_is_granted_while_somebody_else_is_being_elected(rig: Rig) -> None:
    one, two = [await rig.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    assert "tmLease" in (await one.beat()).fields
    electing = asyncio.ensure_future(two.elect(is_designated=True))
    await until(lambda: GROUP in rig.controllers["n0"]._elections._in_progress, "the lease is waited for")
    assert "tmLease" not in (await one.beat()).fields
    assert master_of(await electing) == (2, 2)


async def test_no_lease_is_ended_by_a_mark_from_elsewhere_or_by_a_second_process(rig: Rig) -> None:
    """A broker that only claims that the master has stopped waits for the lease like any other."""
    one, two = [await rig.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    header = headers.ElectMasterRequest(broker_name=GROUP, broker_id=2, is_designated=True)

    async def hand_over(epoch: int) -> Command:
        command = Command.request(Code.CONTROLLER_ELECT_MASTER, header, fields={"tmHandover": str(epoch)})
        return await rig.client.request(rig.address("n0"), command, 8)

    for forged in (0, 2, 10**9):
        assert (await hand_over(forged)).code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    await one.beat()
    heartbeat = rig.controllers["n0"].heartbeats.get(GROUP, 1)
    assert heartbeat is not None
    heartbeat.connection = object()  # of another host than the one that asks
    begun = rig.clock.monotonic()
    assert master_of(await hand_over(1)) == (2, 2)
    assert rig.clock.monotonic() - begun > 1.2, "the lease had not ended"
    # The master's process lives and writes: another process claims that it was restarted.
    assert "tmLease" in (await two.beat()).fields
    begun = rig.clock.monotonic()
    assert master_of(await two.register())[1] == 3
    assert rig.clock.monotonic() - begun > 1.2, "the lease had not ended"


async def test_designated_master_waits_for_the_lease_of_the_previous_leader(three: Rig) -> None:
    one, two = [await three.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    assert "tmLease" in (await one.beat()).fields
    leader = await three.leader()
    await until(lambda: all(epochs(three, name)[3] == 2 for name in three.names), "all know the set")
    begun = three.clock.monotonic()
    await three.stop(leader)
    await three.leader()
    assert master_of(await two.elect(is_designated=True)) == (2, 2)
    assert three.clock.monotonic() - begun > elections.LEASE_MS / 1000


async def test_an_id_belongs_to_one_address_while_its_broker_lives(rig: Rig) -> None:
    """The second of two brokers with one identity is notified, and ignored until the first one is gone."""
    one = await rig.broker(1, is_ours=True)
    await one.elect()
    copied = FakeBroker(rig, 1, max_offset=10**6, is_ours=True)
    copied.address = "127.0.0.1:13911"
    refused = await copied.register()
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == f"a broker with the id 1 is alive at {one.address}"
    assert "tmLease" not in (await copied.beat()).fields
    heartbeat = rig.controllers["n0"].heartbeats.get(GROUP, 1)
    assert heartbeat is not None
    assert (heartbeat.address, heartbeat.facts.max_offset) == (one.address, 100)
    assert epochs(rig)[:2] == (1, 1)
    await one._server.stop()
    await one.cut_connections()
    await until(lambda: not rig.controllers["n0"].heartbeats.is_alive(GROUP, 1, rig.clock.monotonic()))
    assert (await copied.register()).code == 0
    await copied.beat()
    assert "tmLease" not in (await one.beat()).fields
    heartbeat = rig.controllers["n0"].heartbeats.get(GROUP, 1)
    assert heartbeat is not None
    assert heartbeat.address == copied.address
    await copied.close()


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (Code.BROKER_HEARTBEAT, {"brokerId": "x"}, b""),
        (Code.BROKER_HEARTBEAT, {"brokerName": GROUP, "brokerAddr": "a:1", "clusterName": CLUSTER}, b""),
        (Code.CONTROLLER_ALTER_SYNC_STATE_SET, {"brokerName": GROUP}, b"{"),
        (Code.CONTROLLER_ALTER_SYNC_STATE_SET, {}, b"{}"),
        (Code.CONTROLLER_ELECT_MASTER, {"brokerName": GROUP, "brokerId": str(2**70)}, b""),
        (Code.CONTROLLER_ELECT_MASTER, {"brokerName": "nobody", "brokerId": "1"}, b""),
        (Code.CONTROLLER_GET_SYNC_STATE_DATA, {}, b"\xff"),
        (Code.CONTROLLER_APPLY_BROKER_ID, {"brokerName": GROUP}, b""),
        (Code.CLEAN_BROKER_DATA, {"brokerName": GROUP, "brokerControllerIdsToClean": "1;x"}, b""),
        (Code.TANDEM_CHANGE_CONTROLLERS, {"action": "burn"}, b""),
        (Code.TANDEM_RAFT_MESSAGE, {"group": "g", "sender": "n0"}, b"no message"),
        (Code.SEND_MESSAGE_V2, {}, b"x"),
    ],
)
async def test_invalid_controller_requests_are_refused_and_change_nothing(
    rig: Rig, code: int, fields: dict[str, str], body: bytes
) -> None:
    one = await rig.broker(1)
    await one.elect()
    before = epochs(rig)
    channel = await rig.client.channel(rig.address("n0"))
    answer = await channel.request(Command.request(code, body=body, fields=fields), 5)
    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark
    raw = await rig.client.channel(rig.address("n0"))
    raw.send_frame(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: raw.is_closed, "who speaks another protocol is closed")
    assert epochs(rig) == before
    assert rig.fatal == []


async def test_a_forged_epoch_changes_no_set(rig: Rig) -> None:
    one, _ = await rig.broker(1), await rig.broker(2)
    await one.elect()
    for epoch in (0, 2, 2**31 - 1):
        refused = await one.alter_set(1, 2, set_epoch=1, master_epoch=epoch)
        assert refused.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        refused = await one.alter_set(1, 2, set_epoch=epoch, master_epoch=1)
        assert refused.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert epochs(rig) == (1, 1, (1,), 1)


async def test_new_leader_waits_for_the_lease_of_the_previous_leader(three: Rig) -> None:
    one, two = [await three.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    leader = await three.leader()
    await until(lambda: all(epochs(three, name)[3] == 2 for name in three.names), "all know the set")
    one.timeout_ms = 100  # the master falls silent
    for broker in (one, two):
        await broker.beat()
    begun = three.clock.monotonic()
    await three.stop(leader)
    second = await three.leader()
    await until(lambda: epochs(three, second)[:2] == (2, 2))
    assert three.clock.monotonic() - begun > elections.LEASE_MS / 1000


async def test_a_master_that_is_lost_with_the_leader_is_not_waited_for(
    three: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader has never heard from the master; its address refuses connections, which proves that it
    is gone.
    """
    monkeypatch.setattr(elections, "UNHEARD_MASTER_S", 3600.0)
    one, _ = [await three.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    await until(lambda: all(epochs(three, name)[3] == 2 for name in three.names), "all know the set")
    for name in three.names:
        three.controllers[name].heartbeats._by_broker.pop((GROUP, 1), None)  # as after its start
    await one.close()
    await three.stop(await three.leader())
    second = await three.leader()
    await until(lambda: epochs(three, second)[:2] == (2, 2))


async def test_all_controllers_agree_and_the_next_one_goes_on(three: Rig) -> None:
    one = await three.broker(1)
    await three.broker(2)
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    leader = await three.leader()
    follower = next(name for name in three.names if name != leader)
    refused = await three.ask(
        Code.CONTROLLER_GET_REPLICA_INFO, headers.ReplicaInfoRequest(broker_name=GROUP), to=follower
    )
    assert refused.code == ResponseCode.CONTROLLER_NOT_LEADER
    told = (await three.ask(Code.CONTROLLER_GET_METADATA_INFO, to=follower)).decode(
        headers.ControllerMetadataResponse
    )
    assert (told.leader_id, told.leader_address) == (leader, three.address(leader))
    assert told.peers == "n0:127.0.0.1:9870;n1:127.0.0.1:9871;n2:127.0.0.1:9872;"

    await three.stop(leader)
    second = await three.leader()
    await until(lambda: epochs(three, second) == (1, 1, (1, 2), 2))
    await one.cut_connections()
    await until(lambda: epochs(three, second)[:2] == (2, 2))
    await three.start(leader)
    await until(lambda: three.controllers[leader].groups.get(GROUP) is not None)
    await until(lambda: epochs(three, leader)[:2] == (2, 2))


async def test_without_a_majority_nothing_is_decided(three: Rig) -> None:
    one = await three.broker(1)
    leader = await three.leader()
    await three.stop(*(name for name in three.names if name != leader))
    await until(lambda: not three.controllers[leader].raft.is_leader)
    answer = await three.ask(Code.CONTROLLER_APPLY_BROKER_ID, one.application(), to=leader)
    assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER


async def test_strangers_are_not_listened_to(three: Rig) -> None:
    leader = await three.leader()
    peer = next(name for name in three.names if name != leader)
    body = encode_message(TakeOver(sender=peer, term=10**6))
    for group, sender in (("g", "n7"), ("other", peer), ("g", leader)):
        header = headers.RaftMessageHeader(group=group, sender=sender)
        answer = await three.ask(Code.TANDEM_RAFT_MESSAGE, header, body=body, to=leader)
        assert answer.code == ResponseCode.NO_PERMISSION
    assert await three.leader() == leader


async def test_a_shared_secret_is_asked_of_every_message() -> None:
    rig = Rig(3, shared_secret="a long secret")
    await rig.start()
    leader = await rig.leader()
    peer = next(name for name in rig.names if name != leader)
    header = headers.RaftMessageHeader(group="g", sender=peer, proof="00")
    body = encode_message(TakeOver(sender=peer, term=10**6))
    answer = await rig.ask(Code.TANDEM_RAFT_MESSAGE, header, body=body, to=leader)
    assert answer.code == ResponseCode.NO_PERMISSION
    shown = bytes((await rig.ask(Code.GET_CONTROLLER_CONFIG, to=leader)).body)
    assert b"scanInactiveMasterInterval=30" in shown
    assert b"secret" not in shown
    await rig.close()


async def test_snapshots_and_restarts_keep_everything() -> None:
    rig = Rig(snapshot_entries=3)
    await rig.start()
    for number in range(1, 6):
        await rig.broker(number)
    await rig.brokers[0].elect()
    await until(lambda: bool(rig.controllers["n0"].groups.identity))
    before = rig.controllers["n0"].groups.take_snapshot()
    await rig.stop("n0")
    rig.disks["n0"].power_cut()
    await rig.start("n0")
    await rig.leader()
    assert rig.controllers["n0"].groups.take_snapshot() == before
    await rig.close()


async def test_a_master_that_a_new_leader_has_not_heard_is_not_cleaned(rig: Rig) -> None:
    """A lease granted by the previous leader may still be valid, and the successor of a cleaned master waits
    for nothing.
    """
    one = await rig.broker(1)
    await rig.broker(2)
    await one.elect()
    controller = rig.controllers["n0"]
    controller._elections._leader_since_s = rig.clock.monotonic()
    controller.heartbeats.retain(GROUP, ())
    header = headers.CleanBrokerDataRequest(cluster_name=CLUSTER, broker_name=GROUP, ids="1", is_forced=False)
    answer = await rig.ask(Code.CLEAN_BROKER_DATA, header)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    group = controller.groups.get(GROUP)
    assert group is not None
    assert (group.master_id, group.master_epoch) == (1, 1)


async def test_a_silent_master_may_write_for_as_long_as_the_leader_before_has_granted(rig: Rig) -> None:
    """A new leader neither replaces the master nor lets it be cleaned until that lease must have ended."""
    one, two = [await rig.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    await two.beat()
    controller = rig.controllers["n0"]
    controller._elections._leader_since_s = rig.clock.monotonic() + 3600
    one.timeout_ms = 1
    await one.beat()
    await until(lambda: not controller.heartbeats.is_alive(GROUP, 1, rig.clock.monotonic()), "it is silent")
    header = headers.CleanBrokerDataRequest(cluster_name=CLUSTER, broker_name=GROUP, ids="1", is_forced=False)
    answer = await rig.ask(Code.CLEAN_BROKER_DATA, header)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert GROUP not in controller._elections._in_progress
    assert epochs(rig) == (1, 1, (1, 2), 2)
    controller._elections._leader_since_s = rig.clock.monotonic() - elections.LEASE_END_S
    await until(lambda: epochs(rig)[:2] == (2, 2), "it is replaced")


async def test_a_living_master_that_is_cleaned_by_force_is_followed_when_its_lease_has_ended(
    rig: Rig,
) -> None:
    one, two = [await rig.broker(number, is_ours=True) for number in (1, 2)]
    await one.elect()
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    await two.beat()
    assert "tmLease" in (await one.beat()).fields
    begun = rig.clock.monotonic()
    header = headers.CleanBrokerDataRequest(
        broker_name=GROUP, ids="1", is_forced=True, forgets_living_master=True
    )
    cleaning = asyncio.ensure_future(rig.ask(Code.CLEAN_BROKER_DATA, header))
    await until(lambda: GROUP in rig.controllers["n0"]._elections._in_progress, "the lease is waited for")
    assert "tmLease" not in (await one.beat()).fields
    assert (await cleaning).code == 0
    assert rig.clock.monotonic() - begun > 1.2, "the lease had not ended"


async def test_tools_clean_and_change_settings(rig: Rig) -> None:
    one = await rig.broker(1)
    two = await rig.broker(2)
    await one.elect()

    async def clean(ids: str | None, *, is_forced: bool = False) -> int:
        header = headers.CleanBrokerDataRequest(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            ids=ids,
            is_forced=is_forced,
            forgets_living_master=is_forced or None,
        )
        return (await rig.ask(Code.CLEAN_BROKER_DATA, header)).code

    refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert await clean(None) == refused
    assert await clean("2") == refused
    assert await clean("x") == ResponseCode.SYSTEM_ERROR
    await two.cut_connections()
    await until(lambda: not rig.controllers["n0"].heartbeats.is_alive(GROUP, 2, rig.clock.monotonic()))
    assert await clean("2") == 0
    states = await rig.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["broker-a","none"]')
    told = json.loads(bytes(states.body))["replicasInfoTable"]
    group = rig.controllers["n0"].groups.get(GROUP)
    assert group is not None
    assert told[GROUP].pop("tandemGroupId") == group.group_id
    assert told[GROUP].pop("tandemTermId") == str(group.term_id)
    assert told == {
        GROUP: {
            "inSyncReplicas": [
                {"alive": True, "brokerAddress": one.address, "brokerId": 1, "brokerName": GROUP}
            ],
            "masterAddress": one.address,
            "masterBrokerId": 1,
            "masterEpoch": 1,
            "notInSyncReplicas": [],
            "syncStateSetEpoch": 1,
        }
    }
    assert await clean("1", is_forced=True) == 0
    assert rig.controllers["n0"].groups.get(GROUP) is None
    update = await rig.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true")
    assert update.code == 0
    shown = bytes((await rig.ask(Code.GET_CONTROLLER_CONFIG)).body)
    assert b"enableElectUncleanMaster=true" in shown
    fixed = await rig.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"controllerDLegerPeers=n0-x:1")
    assert fixed.code == ResponseCode.NO_PERMISSION


def test_served_codes_are_those_of_the_catalogue() -> None:
    rig_codes = {code for code, entry in CATALOGUE.items() if entry.served_by is ServingRole.CONTROLLER}
    assert rig_codes | {Code.BROKER_HEARTBEAT} == {
        *range(1001, 1007),
        *range(1009, 1014),
        Code.TANDEM_CHANGE_CONTROLLERS,
        Code.TANDEM_RAFT_MESSAGE,
        Code.BROKER_HEARTBEAT,
    }


class FullDisk(NoFault):
    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0


async def test_a_controller_whose_disk_is_full_ends_and_the_others_go_on(
    three: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.broker(1)
    leader = await three.leader()
    three.disks[leader].fault = FullDisk()
    lost = three.controllers[leader]
    with monkeypatch.context() as patched:
        patched.setattr(history_keeper, "PROPOSAL_TIMEOUT_S", 0.5)  # it never gets an outcome
        await three.ask(Code.CONTROLLER_APPLY_BROKER_ID, three.brokers[0].application(), to=leader)
    header = headers.RegisterReplicaRequest(
        cluster_name=CLUSTER, broker_name=GROUP, broker_id=1, broker_address="127.0.0.1:1"
    )
    answer = await three.ask(Code.CONTROLLER_REGISTER_BROKER, header, to=leader)
    assert answer.code != 0
    await until(lambda: bool(three.fatal))
    assert isinstance(three.fatal.pop(), FlushFailed)
    del three.controllers[leader]
    await lost.stop()
    three.disks[leader].fault = NoFault()
    second = await three.leader()
    assert (await three.brokers[0].elect()).code == 0
    await three.start(leader)
    await until(lambda: three.controllers[leader].groups.get(GROUP) is not None)
    await until(lambda: epochs(three, leader) == epochs(three, second))


async def test_a_controller_is_replaced(three: Rig) -> None:
    await three.broker(1)
    leader = await three.leader()
    gone = next(name for name in three.names if name != leader)
    assert await controller.find_leader(three.client, three.address(gone)) == three.address(leader)

    async def change(action: str, name: str = "", at: str = "") -> list[tuple[str, bool]]:
        """Asks the current leader: on a starved machine another one may be elected at any time."""
        members: list[tuple[str, bool]] = []

        async def is_changed() -> bool:
            address = three.address(await three.leader())
            found = await controller.change_controllers(three.client, address, action, name, at)
            members.extend((one.name, one.is_voter) for one in found)
            return True

        await until(is_changed, action, not_yet=(NotLeader,))
        return members

    await three.stop(gone)
    await three.start("n3", joins=True)
    assert await change("add", "n3", three.address("n3")) == [(f"n{number}", True) for number in range(4)]
    await until(lambda: three.controllers["n3"].groups.get(GROUP) is not None)
    left = await change("remove", gone)
    assert len(left) == 3
    assert (gone, True) not in left
    with pytest.raises(RequestRejected, match="no such server"):
        await change("remove", gone)
    with pytest.raises(RequestRejected, match="no such server"):
        await change("handOver", gone)
    await change("handOver", "n3")
    await until(lambda: three.controllers["n3"].raft.is_leader)
    assert (await three.brokers[0].elect()).code == 0


async def test_the_address_of_a_controller_is_no_name_servers(rig: Rig) -> None:
    with pytest.raises(NotNameServer, match=f"{rig.address('n0')} is a controller, not a name server"):
        await nameserver.query_route(rig.client, rig.address("n0"), "T")
