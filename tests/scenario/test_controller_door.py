"""Access to changes at controllers: the shared secret, inner credentials, upgrades, and the audit log."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from controller_rig import CLUSTER, GROUP, Rig
from elected_rig import Elected

from sim.memory import MemoryDisk, MemoryNetwork
from tandemmq.api.controller import SIGNED_CODES, controller_signer
from tandemmq.controller.controller import Controller
from tandemmq.controller.guard import BROKER_CODES, OPEN_CODES, OPERATOR_CODES, QUIET_CODES
from tandemmq.controller.options import ControllerConfig, ControllerOptions
from tandemmq.errors import BrokerUnreachable
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import controller as headers
from tandemmq.protocol.signature import DIGEST_FIELD, Credentials, signature_of
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, SeededRandom

SECRET = "sixteen letters!!"
INNER = Credentials("inner", "inner-password")
SETTING = b"enableElectUncleanMaster=true\n"
WHOLE_GROUP = headers.CleanBrokerDataRequest(broker_name=GROUP, cluster_name=CLUSTER, is_forced=True)


def signed(credentials: Credentials, code: Code, *, body: bytes = b"") -> Command:
    command = Command.request(code, body=body)
    credentials.sign(command)
    return command


async def ask(rig: Rig, command: Command) -> Command:
    return await rig.client.request(rig.address(await rig.leader()), command, 5)


async def test_every_request_is_of_one_kind_and_all_but_reads_are_signed() -> None:
    rig = Rig()
    await rig.start()
    served = rig.controllers["n0"].served_codes
    await rig.close()
    kinds = (OPEN_CODES, OPERATOR_CODES, BROKER_CODES, QUIET_CODES)
    assert sorted(code for kind in kinds for code in kind) == sorted(served)
    assert served - OPEN_CODES == SIGNED_CODES


async def test_a_connection_above_the_bound_is_closed() -> None:
    rig = Rig(connections_max=1)
    await rig.start()
    assert (await rig.ask(Code.CONTROLLER_GET_METADATA_INFO)).code == ResponseCode.SUCCESS
    second = RemotingClient(network=rig.network, clock=rig.clock)
    with pytest.raises(BrokerUnreachable):
        await second.request(rig.address("n0"), Command.request(Code.CONTROLLER_GET_METADATA_INFO), 5)
    await second.close()
    await rig.close()


async def test_with_a_secret_a_stranger_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """TandemMQ brokers sign their requests; elections work as before."""
    caplog.set_level(logging.INFO, "tandemmq.audit")
    rig = Rig(shared_secret=SECRET)
    await rig.start()
    group = Elected(rig)
    for number in (1, 2):
        await group.start(number, shared_secret=SECRET)
    await group.in_set(1, 2)
    assert (await group.send(await group.master(), b"m")).code == 0
    stranger = Credentials("controllers", "guessed")
    for code in SIGNED_CODES:
        for command in (Command.request(code, WHOLE_GROUP, body=SETTING), signed(stranger, code)):
            answer = await ask(rig, command)
            assert answer.code == ResponseCode.NO_PERMISSION, (code, answer)
    assert "controllerSharedSecret" in ((await ask(rig, Command.request(1011))).remark or "")
    denied = [one for one in caplog.records if one.msg == "access.denied"]
    assert {one.code for one in denied} == SIGNED_CODES  # type: ignore[attr-defined]  # extra
    named = {(one.who, one.code) for one in caplog.records if one.msg == "admin_request.allowed"}  # type: ignore[attr-defined]
    assert {("controllers", Code.CONTROLLER_REGISTER_BROKER), ("controllers", 1001)} <= named
    for code in (Code.CONTROLLER_GET_METADATA_INFO, Code.GET_CONTROLLER_CONFIG):
        answer = await ask(rig, Command.request(code))
        assert answer.code == 0
        assert SECRET not in str(answer)
    changed = await ask(
        rig, signed(Credentials("controllers", SECRET), Code.UPDATE_CONTROLLER_CONFIG, body=SETTING)
    )
    assert changed.code == 0
    assert rig.controllers["n0"].groups.get(GROUP) is not None
    await group.stop()
    await rig.close()


async def test_a_broker_without_the_secret_is_refused_unless_it_is_tolerated() -> None:
    rig = Rig(shared_secret=SECRET)
    await rig.start()
    with pytest.raises(AssertionError, match="not signed"):
        await rig.broker(1)
    await rig.close()
    rig = Rig(shared_secret=SECRET, admits_unsigned=True)
    await rig.start()
    one = await rig.broker(1)
    assert (await one.elect()).code == 0
    await rig.close()


@pytest.mark.parametrize("admits_weak", [True, False])
async def test_inner_credentials_are_an_account_also_in_the_form_of_rocketmq(admits_weak: bool) -> None:
    rig = Rig(weak_signatures=admits_weak)
    rig.credentials = INNER
    await rig.start()
    unsigned = await ask(rig, Command.request(Code.UPDATE_CONTROLLER_CONFIG, body=SETTING))
    assert unsigned.code == ResponseCode.NO_PERMISSION
    ours = signed(INNER, Code.UPDATE_CONTROLLER_CONFIG, body=SETTING)
    assert (await ask(rig, ours)).code == 0
    fields = {"AccessKey": "inner"}
    fields["Signature"] = signature_of(fields, SETTING, b"inner-password")
    weak = await ask(rig, Command.request(Code.UPDATE_CONTROLLER_CONFIG, body=SETTING, fields=fields))
    assert weak.code == (0 if admits_weak else ResponseCode.NO_PERMISSION)
    assert admits_weak or "weakSignatureEnable" in (weak.remark or "")
    await rig.close()


async def test_a_living_master_is_forgotten_only_at_an_express_wish(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tandemmq.audit")
    rig = Rig()
    await rig.start()
    one, _two = await rig.broker(1), await rig.broker(2)
    assert (await one.elect()).code == 0
    master = headers.CleanBrokerDataRequest(broker_name=GROUP, ids="1", is_forced=True)
    for header in (WHOLE_GROUP, master):
        refused = await rig.ask(Code.CLEAN_BROKER_DATA, header)
        assert refused.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        assert "--living-master" in (refused.remark or "")
    slave = headers.CleanBrokerDataRequest(broker_name=GROUP, ids="2", is_forced=True)
    assert (await rig.ask(Code.CLEAN_BROKER_DATA, slave)).code == 0
    wish = headers.CleanBrokerDataRequest(
        broker_name=GROUP, cluster_name=CLUSTER, is_forced=True, forgets_living_master=True
    )
    assert (await rig.ask(Code.CLEAN_BROKER_DATA, wish)).code == 0
    assert rig.controllers["n0"].groups.get(GROUP) is None
    told = [one for one in caplog.records if getattr(one, "code", 0) == Code.CLEAN_BROKER_DATA]
    assert [(one.who, one.resource) for one in told] == [("(anonymous)", f"Group:{GROUP}")] * 4  # type: ignore[attr-defined]
    outcomes = [one.msg for one in told]
    assert outcomes == ["admin_request.refused"] * 2 + ["admin_request.allowed"] * 2, "one line each"
    assert "--living-master" in told[0].reason  # type: ignore[attr-defined]
    await rig.close()


async def test_a_request_that_a_broker_repeats_is_recorded_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tandemmq.audit")
    rig = Rig()
    await rig.start()
    one = await rig.broker(1)
    for _ in range(30):
        await one.elect()
    told = [one.msg for one in caplog.records if getattr(one, "code", 0) == Code.CONTROLLER_ELECT_MASTER]
    assert told == ["admin_request.allowed", "admin_request.refused"], "one line for each outcome"
    await rig.close()


@pytest.mark.parametrize(
    ("host", "secret", "admits", "is_told"),
    [
        ("0.0.0.0", "", False, True),
        ("0.0.0.0", SECRET, True, True),
        ("0.0.0.0", SECRET, False, False),
        ("127.0.0.1", "", False, False),
    ],
)
async def test_a_port_that_is_open_to_everybody_is_told_at_the_start(
    host: str, secret: str, admits: bool, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LoopClock()
    options = ControllerOptions(
        peers="n0-127.0.0.1:9870",
        listen_host=host,
        store_path=Path("/controller"),
        shared_secret=secret,
        admits_unsigned=admits,
    )
    one = Controller(
        ControllerConfig(options=options),
        network=MemoryNetwork(clock),
        disk=MemoryDisk(),
        clock=clock,
        chance=SeededRandom(1),
    )
    await one.start()
    await one.stop()
    assert ("controller.open_to_everybody" in caplog.messages) is is_told


def test_only_requests_to_controllers_are_signed_with_the_secret() -> None:
    sign = controller_signer(SECRET, INNER.sign)
    assert sign is not None
    for code, name in ((Code.CONTROLLER_ELECT_MASTER, "controllers"), (Code.TANDEM_VOUCH, "inner")):
        command = Command.request(code)
        sign(command)
        assert command.fields["AccessKey"] == name
        assert DIGEST_FIELD in command.fields
    assert controller_signer("", None) is None
