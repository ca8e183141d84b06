"""`doctor` asks the controllers: a group that waits, one that they do not know, a refused broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_rig import CLUSTER, GROUP, FakeBroker, Rig

from ports import free_port
from sim.memory import MemoryDisk
from tandemmq.manage.tools import Target, Tools
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.shell import local
from tandemmq.shell.doctor import Checkup, DoctorLine, examine, find_controllers, judge_controllers

OTHER_ID = "cd" * 16


async def judged(rig: Rig, *addresses: str) -> list[DoctorLine]:
    found = await judge_controllers(rig.client, addresses or [rig.address("n0")], [])
    assert all(line.area == "controllers" for line in found)
    assert all(bool(line.fix) is (line.level == "problem") for line in found)
    return found


async def master(rig: Rig) -> FakeBroker:
    """Returns the master of a group of one, in office in its first term."""
    one = await rig.broker(1, is_ours=True)
    await one.elect()
    group = rig.controllers["n0"].groups.get(GROUP)
    assert group is not None
    one.log_epoch = 1
    one.history = {"group_id": group.group_id, "epoch_known": 1, "term_id": group.term_id, "master_known": 1}
    one.history |= {"members": "1", "set_epoch": group.set_epoch}
    await one.beat()
    return one


async def test_a_controller_given_as_name_server_is_not_to_be_started(rig: Rig) -> None:
    (line,) = await examine(Tools(None, rig.client), [rig.address("n0")])
    assert f"{rig.address('n0')} is a controller, not a name server" in line.text
    assert line.fix == "list only name servers in namesrvAddr and --namesrv"


async def test_a_leader_with_sound_groups_is_ok(rig: Rig) -> None:
    await master(rig)
    (line,) = await judged(rig)
    assert (line.level, line.text) == ("ok", f"{rig.address('n0')} leads and knows 1 groups")


async def test_a_group_that_waits_for_a_member_of_its_set_is_a_problem(rig: Rig) -> None:
    one = await master(rig)
    two = await rig.broker(2, is_ours=True)
    await one.alter_set(1, 2, set_epoch=1, master_epoch=1)
    await two.cut_connections()
    await two._server.stop()
    one.history = {key: one.history[key] for key in ("group_id", "epoch_known", "term_id", "master_known")}
    one.history["is_incomplete"] = True
    await one.register()
    (line,) = await judged(rig)
    assert line.level == "problem"
    assert f"{GROUP} has no master: the brokers " in line.text
    assert "2 have not reported their logs" in line.text
    assert "cleanBrokerMetadata" in line.fix


async def test_a_refused_broker_is_a_problem_with_both_group_ids(rig: Rig) -> None:
    one = await master(rig)
    stranger = FakeBroker(rig, 7, is_ours=True)
    stranger.history = {"group_id": OTHER_ID, "epoch_known": 9}
    await stranger.beat()
    (line,) = await judged(rig)
    assert line.level == "problem"
    for part in (OTHER_ID, str(one.history["group_id"]), stranger.address):
        assert part in line.text
    await stranger.close()


async def test_a_group_that_only_its_brokers_know_is_a_problem(rig: Rig) -> None:
    one = await master(rig)
    await rig.stop("n0")
    rig.disks["n0"] = MemoryDisk()
    await rig.start("n0")
    await rig.leader()
    one.history = {key: one.history[key] for key in ("group_id", "epoch_known", "term_id", "master_known")}
    await one.beat()  # no longer in office, so that it is not adopted
    (line,) = await judged(rig)
    assert line.level == "problem"
    assert f"the controllers do not know {GROUP}: brokers 1 report master epoch 1" in line.text
    assert "electMaster" in line.fix


async def test_a_controller_that_does_not_answer_is_a_problem(rig: Rig) -> None:
    address = rig.address("n0")
    await rig.stop("n0")
    (line,) = await judged(rig, address)
    assert line.level == "problem"
    assert f"the controller {address} does not answer" in line.text


async def test_local_servers_are_asked_without_a_name_server(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "default_folder", lambda: tmp_path)
    (tmp_path / "namesrv" / "controller").mkdir(parents=True)
    namesrv, broker = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    server = local.ServerState(GROUP, "master", broker, str(tmp_path / "log"))
    local.write_state(local.UpState(1, str(tmp_path), namesrv, 0, servers=[server]))
    lines = await examine(Tools(None, rig.client), [namesrv])
    asked = (namesrv, f"{GROUP} ({broker})", local.controllers_of([namesrv])[0])
    for line, address in zip(lines, asked, strict=True):
        assert f"{address} does not answer" in line.text


def test_controllers_are_found_by_brokers_and_by_the_folder_of_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "default_folder", lambda: tmp_path)
    target = Target(CLUSTER, GROUP, 0, "b:1")
    named = {"enableControllerMode": "true", "controllerAddr": "c1:9878; c2:9878"}
    elected = Checkup(target, {}, named, HaStatus())
    classic = Checkup(target, {}, {"controllerAddr": "c3:9878"}, HaStatus())
    assert find_controllers(["n:9876"], [elected, classic, elected]) == ["c1:9878", "c2:9878"]
    local.write_state(local.UpState(1, str(tmp_path), "127.0.0.1:9876", 0))
    assert find_controllers(["127.0.0.1:9876"], []) == [], "no controller elects its masters"
    (tmp_path / "namesrv" / "controller").mkdir(parents=True)
    port = 9876 + local.CONTROLLER_DISTANCE
    assert find_controllers(["127.0.0.1:9876"], []) == [f"127.0.0.1:{port}"]
    assert find_controllers(["n:9876"], []) == [], "another cluster is looked at"
