"""The state that a slave reports to its master (TANDEM_TELL_SLAVE_STATE), and that it reports nothing to a
stranger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest

from tandemmq.broker.replica.role import SlaveReporter, read_notice
from tandemmq.errors import BadRequest
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import TellSlaveStateRequest
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.server import RemotingServer
from tandemmq.replication.core.effects import Halt, HaltReason
from tandemmq.replication.core.progress import DETAIL_CHARS_MAX, ReportedHalt, SlaveName, SlaveState
from tandemmq.replication.shell import ReplicationSlaveStatus
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.units import EpochMs

NAME = SlaveName("group", 1)
COPYING = ReplicationSlaveStatus(
    state=SlaveState.TRANSFERRING,
    master_address="192.0.2.1:10912",
    local_address=("192.0.2.2", 4711),
    log_end=600,
    log_start=0,
    reported=600,
    start_rule=None,
    tail=None,
    halt=None,
    last_read_at=EpochMs(0),
    last_written_at=EpochMs(0),
    copied_at=EpochMs(0),
    bytes_per_second=0,
)
HALTED = replace(
    COPYING,
    state=SlaveState.HALTED,
    halt=Halt(reason=HaltReason.DIVERGED, log_offset=420, detail="x" * 2 * DETAIL_CHARS_MAX),
)


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    subject = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    yield subject
    await subject.close()


async def told(client: RemotingClient, *states: ReplicationSlaveStatus) -> list[TellSlaveStateRequest]:
    """Returns the requests that arrive at a TandemMQ master."""
    arrived = []

    def take(_channel: Channel, command: Command) -> Command:
        arrived.append(command.decode(TellSlaveStateRequest))
        return command.reply()

    routes = {int(RequestCode.TANDEM_TELL_SLAVE_STATE): take}
    server = RemotingServer(routes, network=TcpNetwork(), clock=LoopClock())
    host, port = await server.start("127.0.0.1", 0)
    for state in states:
        await teller(client, f"{host}:{port}", state).report()
    await server.stop()
    return arrived


def teller(client: RemotingClient, master: str, state: ReplicationSlaveStatus) -> SlaveReporter:
    return SlaveReporter(
        NAME,
        status=lambda: state,
        master=lambda: master,
        own_address=lambda: "127.0.0.1:10911",
        client=client,
        clock=LoopClock(),
    )


async def test_name_and_halt_are_told(client: RemotingClient) -> None:
    copying, halted = map(read_notice, await told(client, COPYING, HALTED))
    assert (copying.name, copying.ha_address, copying.log_end) == (NAME, ("192.0.2.2", 4711), 600)
    assert (copying.is_copying, copying.halt) == (True, None)
    assert not halted.is_copying
    assert halted.halt is not None
    assert (halted.halt.reason, halted.halt.log_offset) == ("DIVERGED", 420)
    assert len(halted.halt.detail) == DETAIL_CHARS_MAX, "cut, not refused"
    assert halted.halt.detail.startswith(HaltReason.DIVERGED.value)


@pytest.mark.parametrize("refusal", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION])
async def test_a_master_that_refuses_is_asked_once(client: RemotingClient, refusal: ResponseCode) -> None:
    asked = []

    def refuse(_channel: Channel, command: Command) -> Command:
        asked.append(command)
        return command.reply(refusal, remark="no")

    server = RemotingServer(
        {int(RequestCode.TANDEM_TELL_SLAVE_STATE): refuse}, network=TcpNetwork(), clock=LoopClock()
    )
    host, port = await server.start("127.0.0.1", 0)
    address = f"{host}:{port}"
    subject = teller(client, address, HALTED)
    await subject.report()
    await subject.report()
    await server.stop()
    assert len(asked) == 1


async def test_a_master_that_is_gone_is_no_error(client: RemotingClient) -> None:
    server = RemotingServer({}, network=TcpNetwork(), clock=LoopClock())
    host, port = await server.start("127.0.0.1", 0)
    await server.stop()
    subject = teller(client, f"{host}:{port}", HALTED)
    await subject.report()
    assert subject._unsupported_by is None, "it is told when it is back"


REQUEST = TellSlaveStateRequest(
    broker_name="group", broker_id=1, ha_address="192.0.2.2:4711", log_end=600, is_copying=False
)


def test_a_reason_that_only_a_newer_slave_knows_is_kept() -> None:
    newer = msgspec.structs.replace(REQUEST, halt_reason="WORN_OUT")
    assert read_notice(newer).halt == ReportedHalt(reason="WORN_OUT", log_offset=0, detail="")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"broker_name": ""}, "brokerName"),
        ({"broker_name": "x" * 256}, "brokerName"),
        ({"broker_id": -1}, "brokerId"),
        ({"log_end": -1}, "maxOffset"),
        ({"ha_address": "nowhere"}, "haAddress"),
        ({"halt_reason": "X" * 65}, "haltReason"),
        ({"halt_reason": "DIVERGED", "halt_detail": "x" * (DETAIL_CHARS_MAX + 1)}, "haltDetail"),
    ],
)
def test_slave_notice_error_names_the_invalid_field(changes: dict[str, object], names: str) -> None:
    with pytest.raises(BadRequest, match=names):
        read_notice(msgspec.structs.replace(REQUEST, **changes))
