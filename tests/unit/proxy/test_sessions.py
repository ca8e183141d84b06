"""Sessions of clients: Telemetry, Heartbeat, NotifyClientTermination (spec proxy 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sim.dice import Dice
from sim.manual_clock import ManualClock
from tandemmq.errors import BrokerUnreachable, Busy
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.clients import COMMANDS_MAX, ClientLimits, Clients, GrpcClient, TelemetryCommand
from tandemmq.proxy.rpc import Caller, GrpcCall, GrpcFailure, GrpcStatus, Message, unary
from tandemmq.proxy.sessions import HeartbeatResponse, NotifyClientTerminationResponse, SessionHandlers
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import FakeCall, caller
from unit.proxy.cores import make_core
from unit.proxy.known_brokers import KnownBrokers
from waits import until

PUBLISHING: dict[str, Any] = {"client_type": 1, "publishing": {"topics": [{"name": "T"}]}}
SUBSCRIPTION: dict[str, Any] = {"client_type": 2, "subscription": {"group": {"name": "G"}}}


class Proxy:
    """The sessions of a proxy, with telemetry streams as calls in memory."""

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self.clock = ManualClock()
        self.known = KnownBrokers(groups={"G": SubscriptionGroupConfig(name="G", retry_count_max=2)})
        self.clients = Clients(clock=self.clock, chance=Dice(1), limits=limits)
        self.gone: list[str] = []
        self.clients.on_gone.append(self.gone.append)
        self.tasks = TaskScope("proxy")
        core = make_core(clients=self.clients, brokers=self.known.brokers, clock=self.clock, tasks=self.tasks)
        self.handlers = SessionHandlers(core)
        self.refusal: RpcRefused | None = None
        self.access_key = ""

    async def admit(self, call: GrpcCall, _request: Message) -> Caller:
        if self.refusal is not None:
            raise self.refusal
        return caller(call.metadata["x-mq-client-id"], access_key=self.access_key)

    async def open(
        self, settings: dict[str, Any] | None = None, client_id: str = "c1"
    ) -> tuple[FakeCall, asyncio.Task[None]]:
        """Opens a stream, sends settings, and waits for their answer."""
        call = FakeCall(metadata={"x-mq-client-id": client_id}, ends=False)
        task = self.tasks.start("stream", outcome(self.handlers.serve_telemetry(call, self.admit)))
        if settings is not None:
            call.add(command(settings=settings))
            await until(lambda: call.sent)
        return call, task

    async def ask(self, name: str, response: Any, client_id: str = "c1") -> int:
        call = FakeCall([b""], metadata={"x-mq-client-id": client_id})
        is_heartbeat = name == "Heartbeat"
        handle = self.handlers.handle_heartbeat if is_heartbeat else self.handlers.handle_termination
        await unary(name, self.admit, handle).serve(call)
        (answer,) = call.answers(response)
        return int(answer.status.code)

    def client(self, client_id: str = "c1") -> GrpcClient:
        found = self.clients.get(client_id)
        assert found is not None
        return found


async def outcome(serving: Any) -> GrpcFailure | None:
    """The failure of a stream, which would end the scope of its task."""
    try:
        await serving
    except GrpcFailure as failure:
        return failure
    return None


def command(**fields: Any) -> bytes:
    return bytes(TelemetryCommand(**fields).SerializeToString())


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    made = Proxy()
    yield made
    await made.tasks.close()
    assert made.tasks.failure is None


async def test_headers_go_out_before_the_first_command(proxy: Proxy) -> None:
    call, _ = await proxy.open()
    await until(lambda: call.is_started)
    assert call.sent == []


async def test_settings_are_answered_with_a_status(proxy: Proxy) -> None:
    call, task = await proxy.open(PUBLISHING)
    (answer,) = call.answers(TelemetryCommand)
    assert answer.status.code == Code.OK
    assert answer.settings.publishing.max_body_size == 4_194_304
    assert proxy.clients.produced_topics == ["T"]
    call.end()
    assert await task is None
    assert proxy.clients.is_alive("c1")


async def test_a_resync_changes_nothing(proxy: Proxy) -> None:
    changes: list[int] = []
    proxy.clients.on_change.append(lambda: changes.append(1))
    call, _ = await proxy.open(SUBSCRIPTION)
    for _ in range(3):
        call.add(command(settings=SUBSCRIPTION))
    await until(lambda: len(call.sent) == 4)
    answers = call.answers(TelemetryCommand)
    assert all(answer == answers[0] for answer in answers)
    assert answers[0].settings.backoff_policy.max_attempts == 3
    assert changes == [1]


async def test_a_client_may_become_a_producer_on_its_stream(proxy: Proxy) -> None:
    call, _ = await proxy.open(SUBSCRIPTION)
    call.add(command(settings=PUBLISHING))
    await until(lambda: len(call.sent) == 2)
    assert proxy.clients.produced_topics == ["T"]
    assert proxy.gone == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "neither"),
        ({"client_type": 1, "publishing": {"topics": [{"name": "a b"}]}}, "ILLEGAL_TOPIC"),
        ({"client_type": 2, "subscription": {}}, "ILLEGAL_CONSUMER_GROUP"),
        ({"client_type": 5, "subscription": {"group": {"name": "G"}}}, "UNSUPPORTED"),
        ({"client_type": 6, "subscription": {"group": {"name": "G"}}}, "UNSUPPORTED"),
        ({"client_type": 4, "subscription": {"group": {"name": "G"}}}, "UNRECOGNIZED_CLIENT_TYPE"),
        ({"client_type": 99, "subscription": {"group": {"name": "G"}}}, "UNRECOGNIZED_CLIENT_TYPE"),
        ({**PUBLISHING, "client_properties": {"1": "x"}}, "INVALID_CLIENT_PROPERTIES"),
        ({**PUBLISHING, "client_properties": {"a": "x" * 257}}, "INVALID_CLIENT_PROPERTIES"),
        ({**PUBLISHING, "client_properties": {f"k{n}": "x" for n in range(33)}}, "INVALID_CLIENT_PROPERTIES"),
        ({**PUBLISHING, "client_properties": {f"k{n}": "x" * 250 for n in range(20)}}, "4096 bytes"),
        ({**PUBLISHING, "user_agent": {"hostname": "h" * 70_000}}, "65536"),
        ({"client_type": 1, "publishing": {"topics": [{"name": f"T{n}"} for n in range(1025)]}}, "1024"),
    ],
)
async def test_refused_settings_end_the_stream(proxy: Proxy, settings: dict[str, Any], text: str) -> None:
    call, task = await proxy.open()
    call.add(command(settings=settings))
    failure = await task
    assert failure is not None
    assert failure.status == GrpcStatus.INVALID_ARGUMENT
    assert text in str(failure)
    assert len(proxy.clients) == 0


async def test_bytes_that_are_no_command_end_the_stream(proxy: Proxy) -> None:
    call, task = await proxy.open()
    call.add(b"\xff\xff\xff")
    failure = await task
    assert failure is not None
    assert failure.status == GrpcStatus.INVALID_ARGUMENT


async def test_a_refused_client_is_logged_once(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        call, task = await proxy.open()
        call.add(command(settings={}))
        assert await task is not None
    assert caplog.text.count("proxy_client.refused") == 1


async def test_clients_without_an_id_are_logged_once_per_address(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refusal = RpcRefused(Code.CLIENT_ID_REQUIRED, "no id")
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        call = FakeCall(peer=(host, 5), ends=False)
        assert await outcome(proxy.handlers.serve_telemetry(call, proxy.admit)) is not None
    refused = [vars(record)["peer"] for record in caplog.records if record.msg == "proxy_client.refused"]
    assert refused == [("10.0.0.1", 5), ("10.0.0.2", 5)]


async def test_new_ids_are_no_way_to_more_lines(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    lines = FakeCall().lines
    for number in range(30):
        call = FakeCall(metadata={"x-mq-client-id": f"c{number}"}, ends=False)
        call.lines = lines
        call.add(command(settings={}))
        assert await outcome(proxy.handlers.serve_telemetry(call, proxy.admit)) is not None
    assert caplog.text.count("proxy_client.refused") == 20


async def test_an_unauthorized_stream_is_refused(proxy: Proxy) -> None:
    proxy.refusal = RpcRefused(Code.UNAUTHORIZED, "no")
    _, task = await proxy.open()
    failure = await task
    assert failure is not None
    assert failure.status == GrpcStatus.INVALID_ARGUMENT


async def test_settings_need_the_group_unless_they_are_known(proxy: Proxy) -> None:
    call, _ = await proxy.open(SUBSCRIPTION)
    proxy.known.failure = BrokerUnreachable("down")
    call.add(command(settings=SUBSCRIPTION))
    await until(lambda: len(call.sent) == 2)
    other, task = await proxy.open(client_id="c2")
    other.add(command(settings=SUBSCRIPTION))
    failure = await task
    assert failure is not None
    assert failure.status == GrpcStatus.INTERNAL


async def test_a_new_stream_replaces_the_old_one(proxy: Proxy) -> None:
    _, old = await proxy.open(PUBLISHING)
    call, new = await proxy.open(PUBLISHING)
    assert await old is None
    assert not new.done()
    assert proxy.clients.command(proxy.client(), reconnect_endpoints_command={"nonce": "n"})
    await until(lambda: len(call.sent) == 2)
    assert proxy.gone == []


async def test_all_streams_end_when_the_proxy_drains(proxy: Proxy) -> None:
    """Also one without settings: its end would be awaited for the whole time of the drain."""
    _, known = await proxy.open(PUBLISHING, "c1")
    call, silent = await proxy.open(None, "c2")
    await until(lambda: call.is_started)
    proxy.clients.close_streams()
    _, late = await proxy.open(None, "c3")
    assert await asyncio.gather(known, silent, late) == [None] * 3


async def test_a_client_without_settings_has_no_heartbeat(proxy: Proxy) -> None:
    assert await proxy.ask("Heartbeat", HeartbeatResponse) == Code.UNRECOGNIZED_CLIENT_TYPE
    assert (
        await proxy.ask("NotifyClientTermination", NotifyClientTerminationResponse)
        == Code.UNRECOGNIZED_CLIENT_TYPE
    )
    proxy.clients.note_transaction("T", "c1")
    assert await proxy.ask("Heartbeat", HeartbeatResponse) == Code.UNRECOGNIZED_CLIENT_TYPE


async def test_a_terminated_client_is_gone(proxy: Proxy) -> None:
    call, task = await proxy.open(PUBLISHING)
    assert await proxy.ask("NotifyClientTermination", NotifyClientTerminationResponse) == Code.OK
    assert proxy.gone == ["c1"]
    assert proxy.clients.produced_topics == []
    assert not task.done(), "the client ends the stream itself"
    call.end()
    assert await task is None


async def test_another_user_gets_no_checks_of_a_clients_transactions(proxy: Proxy) -> None:
    """A client id is known to many: it appears in logs and in tools."""
    proxy.access_key = "alice"
    alice, serving = await proxy.open({"client_type": 1, "publishing": {}})
    proxy.clients.note_transaction("Pay", "c1")
    assert proxy.clients.producer_of("Pay") is not None
    proxy.access_key = "mallory"
    termination = await proxy.ask("NotifyClientTermination", NotifyClientTerminationResponse)
    assert termination == Code.UNAUTHORIZED
    intruder, refused = await proxy.open()
    intruder.add(command(settings={"client_type": 1, "publishing": {}}))
    failure = await refused
    assert "UNAUTHORIZED" in str(failure)
    assert not serving.done(), "the client keeps its stream, and its messages"
    alice.end()
    await serving
    await proxy.open({"client_type": 1, "publishing": {}})
    assert proxy.clients.producer_of("Pay") is None
    assert proxy.clients.produced_topics == []


async def test_heartbeats_keep_a_client_and_silence_ends_it(proxy: Proxy) -> None:
    _, task = await proxy.open(PUBLISHING)
    for _ in range(3):
        proxy.clock.advance(119)
        proxy.clients.expire()
        assert await proxy.ask("Heartbeat", HeartbeatResponse) == Code.OK
    proxy.clock.advance(120)
    proxy.clients.expire()
    assert proxy.gone == ["c1"]
    assert await task is None


async def test_the_end_of_a_stream_leaves_a_grace(proxy: Proxy) -> None:
    call, task = await proxy.open(PUBLISHING)
    call.end()
    await task
    proxy.clock.advance(29)
    proxy.clients.expire()
    assert await proxy.ask("Heartbeat", HeartbeatResponse) == Code.OK
    proxy.clock.advance(31)
    proxy.clients.expire()
    assert proxy.gone == []
    call, task = await proxy.open(PUBLISHING)
    call.end()
    await task
    proxy.clock.advance(30)
    proxy.clients.expire()
    assert proxy.gone == ["c1"]


async def test_the_table_is_bounded() -> None:
    proxy = Proxy(ClientLimits(count_max=1))
    await proxy.open(PUBLISHING)
    call, task = await proxy.open(client_id="c2")
    call.add(command(settings=PUBLISHING))
    failure = await task
    assert failure is not None
    assert failure.status == GrpcStatus.RESOURCE_EXHAUSTED
    proxy.clients.note_transaction("T", "c3")
    assert len(proxy.clients) == 1
    await proxy.tasks.close()


async def test_commands_wait_for_a_slow_reader_up_to_a_bound(proxy: Proxy) -> None:
    call, _ = await proxy.open(PUBLISHING)
    call.is_full = True
    client = proxy.client()
    sent = sum(
        proxy.clients.command(client, reconnect_endpoints_command={"nonce": str(n)})
        for n in range(COMMANDS_MAX + 10)
    )
    assert sent == COMMANDS_MAX
    assert proxy.clients.dropped_count == 10
    call.is_full = False
    await until(lambda: len(call.sent) == 1 + COMMANDS_MAX)


async def test_no_command_comes_before_the_settings(proxy: Proxy) -> None:
    """The Node client does not start after one."""
    proxy.clients.note_transaction("T", "c1")
    call, _ = await proxy.open()
    await until(lambda: call.is_started)
    assert proxy.clients.producer_of("T") is None
    call.add(command(settings={"client_type": 1, "publishing": {}}))
    await until(lambda: call.sent)
    assert proxy.clients.producer_of("T") is proxy.client()


async def test_a_client_answers_with_the_nonce(proxy: Proxy) -> None:
    call, _ = await proxy.open(SUBSCRIPTION)
    other, _ = await proxy.open(SUBSCRIPTION, client_id="c2")
    asked = proxy.tasks.start("ask", proxy.clients.ask(proxy.client(), "print_thread_stack_trace_command"))
    await until(lambda: len(call.sent) == 2)
    nonce = call.answers(TelemetryCommand)[1].print_thread_stack_trace_command.nonce
    other.add(command(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "forged"}))
    other.add(command(settings=SUBSCRIPTION))
    await until(lambda: len(other.sent) == 2)
    call.add(command(thread_stack_trace={"nonce": "unknown"}))
    call.add(command(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "main"}))
    answer = await asked
    assert answer.thread_stack_trace.thread_stack_trace == "main"


async def test_a_silent_client_is_not_awaited_for_ever(proxy: Proxy) -> None:
    call, _ = await proxy.open(SUBSCRIPTION)

    async def ask() -> str:
        with pytest.raises(Busy) as busy:
            await proxy.clients.ask(proxy.client(), "print_thread_stack_trace_command")
        return str(busy.value)

    asked = proxy.tasks.start("ask", ask())
    await until(lambda: len(call.sent) == 2)
    proxy.clock.advance(5)
    assert "within 5 s" in await asked


async def test_only_clients_that_know_the_command_are_asked_to_reconnect(proxy: Proxy) -> None:
    call, _ = await proxy.open(PUBLISHING)
    for language, version, is_asked in (
        ("JAVA", "5.1.0", True),
        ("JAVA", "5.2.0-SNAPSHOT", True),
        ("JAVA", "5.0.8", False),
        ("JAVA", "", False),
        ("HTTP", "9.9.9", False),
        ("GO", "5.1.4", True),
    ):
        client = proxy.client()
        client.language, client.version = language, version
        assert proxy.clients.reconnect() == is_asked, (language, version)
    await until(lambda: len(call.sent) == 4)
