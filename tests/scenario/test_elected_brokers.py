"""Brokers of ours under controllers of ours: who is master, who may write, what others are told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from controller_rig import GROUP, Rig
from elected_rig import Copier, Elected

from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.loose_json import parse
from tandemmq.protocol.requests.controller import MasterResponse
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


def copier(group: Elected, number: int) -> Copier:
    found = group.brokers[number].replication
    assert isinstance(found, Copier)
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


async def test_only_the_newest_term_counts(group: Elected, rig: Rig) -> None:
    await group.start(1)
    assert await group.master() == 1
    # News that nobody of the controllers sent: the broker asks them, and stays what it is.
    forged = MasterResponse(master_id=2, master_address="127.0.0.1:9", master_epoch=99, set_epoch=99)
    command = Command.request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, forged)
    answer = await rig.client.request(group.address(1), command, 5)
    assert answer.code == ResponseCode.SUCCESS
    assert (await group.send(1, b"still")).code == ResponseCode.SUCCESS
    assert copier(group, 1).calls == ["master of 1"]
    # Restarted, it goes on under a new epoch.
    await group.stop(1)
    await group.start(1)
    await group.master()
    epoch = copier(group, 1).epoch
    assert epoch is not None
    assert epoch > 1
    told = await rig.client.request(
        group.address(1), Command.request(RequestCode.GET_BROKER_EPOCH_CACHE, None), 5
    )
    body = parse(told.body)
    assert body["brokerId"] == 0
    assert [entry["epoch"] for entry in body["epochList"]] == [1, epoch]


async def test_a_master_without_lease_and_reports_is_fenced_until_it_has_either(
    group: Elected, rig: Rig
) -> None:
    await group.start(1)
    await group.master()
    await group.start(2)
    await group.in_set(1, 2)
    await rig.stop()  # no lease any more, but the slave reports
    await until(lambda: not group.brokers[1]._lease.is_valid(rig.clock.monotonic()), "no lease")
    assert (await group.send(1, b"with reports")).code == ResponseCode.SUCCESS
    copier(group, 1).is_mute = True
    refused = await group.send(1, b"alone")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await until(lambda: group.brokers[1]._is_rested, "duties rest")
    await rig.start()
    await until(group.brokers[1].may_write, "the lease is back")
    await until(lambda: not group.brokers[1]._is_rested, "duties go on")
    assert (await group.send(1, b"again")).code == ResponseCode.SUCCESS
    found = rig.controllers["n0"].groups.get(GROUP)
    assert found is not None
    assert found.master_epoch == 1
