"""Forwarding: a request to a broker that is no longer master is answered by the new master, once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sim.memory import MemoryNetwork
from tandemmq.broker.autoswitch import forwarding
from tandemmq.broker.autoswitch.forwarding import FORWARDED, Forwarding
from tandemmq.errors import BrokerUnreachable, Busy
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import Credentials, signature_fault
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import ChannelLimits, ConnectionOptions
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.tasks import TaskScope
from waits import until

OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"


class Rig:
    """An old master that only forwards, a new one that records requests, and a client of the old one."""

    def __init__(
        self, credentials: Credentials | None = None, options: ConnectionOptions | None = None
    ) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.inner = RemotingClient(
            network=self.network,
            clock=self.clock,
            signer=None if credentials is None else credentials.sign,
            options=options,
        )
        self.client = RemotingClient(network=self.network, clock=self.clock)
        self.scope = TaskScope("rig")
        self.subject = Forwarding(
            name="b", linger_s=60.0, client=self.inner, clock=self.clock, scope=self.scope
        )
        self.got: list[Command] = []
        self.is_silent = False
        self.channel: Channel | None = None
        """The connection of the last request."""
        self.old, self.new = (
            RemotingServer(dict.fromkeys(FORWARDED, handle), network=self.network, clock=self.clock)
            for handle in (self.subject_takes, self.new_takes)
        )

    async def start(self) -> None:
        for server, port in ((self.old, 1), (self.new, 2)):
            await server.start("127.0.0.1", port)

    async def close(self) -> None:
        self.subject.end()
        for client in (self.client, self.inner):
            await client.close()
        for server in (self.old, self.new):
            await server.stop()
        await self.scope.close()

    def subject_takes(self, channel: Channel, command: Command) -> None:
        self.subject.accept(channel, command)

    def new_takes(self, channel: Channel, command: Command) -> Command | None:
        self.got.append(command)
        self.channel = channel
        number = str(len(self.got))
        if self.is_silent:
            return None
        return command.reply(
            ResponseCode.FLUSH_SLAVE_TIMEOUT, remark="as it is", body=b"!", fields={"n": number}
        )

    async def send(self, body: bytes = b"x", code: int = Code.SEND_MESSAGE_V2) -> Command:
        command = Command.request(code, body=body, fields={"b": "T", "AccessKey": "client", "Signature": "s"})
        command.version = 401
        return await self.client.request(OLD, command, 5)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    one = Rig()
    await one.start()
    yield one
    await one.close()


async def test_parked_sends_are_forwarded_first_and_answers_are_unchanged(rig: Rig) -> None:
    rig.subject.linger()
    sends = [rig.scope.start("send", rig.send(b"%d" % number)) for number in range(5)]
    await until(lambda: len(rig.subject._parked) == 5)
    assert rig.got == []
    rig.subject.send_to(NEW)
    answers = [await send for send in sends]
    last = await rig.send(b"5", Code.CONSUMER_SEND_MSG_BACK)
    assert [bytes(command.body) for command in rig.got] == [b"%d" % number for number in range(6)]
    for number, answer in enumerate([*answers, last], 1):
        told = (answer.code, answer.remark, bytes(answer.body), answer.fields["n"])
        assert told == (ResponseCode.FLUSH_SLAVE_TIMEOUT, "as it is", b"!", str(number))
    assert {command.version for command in rig.got} == {401}
    assert dict(rig.got[0].fields) == {"b": "T", "AccessKey": "client", "Signature": "s"}
    oneway = Command.request(Code.SEND_MESSAGE, body=b"oneway", oneway=True)
    await rig.client.send_oneway(OLD, oneway)
    await until(lambda: len(rig.got) == 7)
    assert rig.got[6].is_oneway
    assert rig.subject.count == 7


async def test_where_brokers_sign_the_one_that_forwards_does() -> None:
    credentials = Credentials("inner", "secret")
    rig = Rig(credentials)
    await rig.start()
    rig.subject.linger()
    rig.subject.send_to(NEW)
    await rig.send()
    assert rig.got[0].fields["AccessKey"] == "inner"
    assert signature_fault(rig.got[0], b"secret") is None
    await rig.close()


async def test_parked_send_is_refused_after_the_limit_and_never_forwarded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "PARKED_S_MAX", 0.05)
    rig.subject.linger()
    answer = await rig.send()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == "no other master accepted it within 0.05 s"
    rig.subject.send_to("127.0.0.1:3")  # no broker is there
    assert (await rig.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert rig.got == []


async def test_forwarded_sends_keep_their_order_at_the_in_flight_limit() -> None:
    rig = Rig(options=ConnectionOptions(limits=ChannelLimits(requests_in_flight_max=1)))
    await rig.start()
    rig.is_silent = True
    rig.subject.linger()
    rig.subject.send_to(NEW)
    sends = [rig.scope.start("send", rig.send(b"0"))]
    await until(lambda: rig.got)
    sends.append(rig.scope.start("send", rig.send(b"1")))
    await until(lambda: len(rig.subject._parked) == 1)
    await rig.client.send_oneway(OLD, Command.request(Code.SEND_MESSAGE, body=b"2", oneway=True))
    await until(lambda: len(rig.subject._parked) == 2 or len(rig.got) == 2)
    rig.is_silent = False
    assert rig.channel is not None
    rig.channel.send(rig.got[0].reply())
    assert [(await send).code for send in sends] == [0, ResponseCode.FLUSH_SLAVE_TIMEOUT]
    await until(lambda: len(rig.got) == 3)
    assert [bytes(command.body) for command in rig.got] == [b"0", b"1", b"2"]
    await rig.close()


async def test_forwarded_send_without_an_answer_is_not_repeated(rig: Rig) -> None:
    rig.is_silent = True
    rig.subject.linger()
    rig.subject.send_to(NEW)
    send = rig.scope.start("send", _outcome(rig))
    await until(lambda: rig.got)
    channel = rig.inner.open_channel(NEW)
    assert channel is not None
    channel.close()
    assert isinstance(await send, BrokerUnreachable)
    rig.is_silent = False
    assert (await rig.send()).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert len(rig.got) == 2


async def _outcome(rig: Rig) -> Command | BrokerUnreachable:
    try:
        return await rig.send()
    except BrokerUnreachable as error:
        return error


async def test_it_is_bounded_and_ends_by_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PARKED_MAX", 2)
    monkeypatch.setattr(forwarding, "PARKED_S_MAX", 0.3)
    rig.subject.linger_s = 0.0
    rig.subject.linger()
    sends = [rig.scope.start("send", rig.send()) for _ in range(2)]
    await until(lambda: len(rig.subject._parked) == 2)
    assert (await rig.send()).code == Busy.code
    monkeypatch.setattr(forwarding, "PARKED_BYTES_MAX", 1)
    monkeypatch.setattr(forwarding, "PARKED_MAX", 9)
    assert (await rig.send()).code == Busy.code
    await until(lambda: not rig.subject.is_open, "it has ended")
    assert [(await send).code for send in sends] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    # The same holds for the next term, and it does not keep requests that the master serves itself.
    rig.subject.hold()
    send = rig.scope.start("send", rig.send(b"own"))
    monkeypatch.setattr(forwarding, "PARKED_BYTES_MAX", 99)
    await until(lambda: rig.subject._parked or send.done())
    rig.subject.release(lambda channel, command: channel.send(command.reply(remark="own")))
    assert not rig.subject.is_open
    assert (await send).remark in ("own", "0 sends wait for the next master of the group")


async def test_parked_send_of_a_closed_connection_is_not_forwarded(rig: Rig) -> None:
    rig.subject.hold()
    send = rig.scope.start("send", _outcome(rig))
    await until(lambda: rig.subject._parked)
    channel = rig.client.open_channel(OLD)
    assert channel is not None
    channel.close()
    await send
    await until(lambda: rig.subject._parked[0][1].is_closed)
    rig.subject.send_to(NEW)
    await until(lambda: not rig.subject._parked)
    assert rig.got == []
