"""Access control of a gRPC proxy with the users and policies of a real broker (spec proxy 3.2, 8)."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml
from client_rig import running_rig
from test_access_control import ADMIN, guarded, write_rules
from test_proxy import running_proxy as whole_proxy

from sim.manual_clock import ManualClock
from tandemmq.api import broker_admin
from tandemmq.broker.options import AccessOptions
from tandemmq.client import Admin, ClientOptions
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo
from tandemmq.proxy.access import AccessControl
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.rpc import SERVICE
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.remoting.audit import AccessLog
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from unit.proxy.calls import PEER
from unit.proxy.cores import make_core
from waits import PATIENCE_S

GUARDED = AccessOptions(
    authentication_enabled=True, authorization_enabled=True, first_user=ADMIN, inner_credentials=None
)

DATE = "20261127T050000Z"


class Proxy:
    """Access control with a signed connection to one broker; the clock of its cache is moved by hand."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.clock = ManualClock()
        self.tasks = TaskScope("proxy")
        self.remoting = RemotingClient(network=TcpNetwork(), clock=LoopClock(), signer=ADMIN.sign)
        core = make_core(
            options=ProxyOptions(authentication_enabled=True, authorization_enabled=True),
            brokers=self,
            clock=self.clock,
            tasks=self.tasks,
        )
        self.access = AccessControl(core, AccessLog(self.clock))

    async def masters(self) -> dict[str, str]:
        return {"broker-a": self.address}

    ask_masters = Brokers.ask_masters

    async def allow(self, resource: str, *actions: str) -> None:
        entry = EntryInfo(resource=resource, actions=actions, decision="Allow")
        acl = AclInfo(subject="User:alice", policies=(PolicyInfo(policy_type="Custom", entries=(entry,)),))
        await broker_admin.create_acl(self.remoting, self.address, acl)

    async def outcome(self, secret_key: str, name: str, **fields: Any) -> str:
        """The access key of a served request, the reason of a refused one."""
        signature = hmac.new(secret_key.encode(), DATE.encode(), "sha1").hexdigest()
        metadata = {
            "x-mq-date-time": DATE,
            "authorization": "MQv2-HMAC-SHA1 Credential=alice/cn/RocketMQ, SignedHeaders=x-mq-date-time,"
            f" Signature={signature}",
        }
        try:
            return await self.access.check(metadata, PEER, message_class(name)(**fields))
        except RpcRefused as error:
            return str(error) if error.code == Code.UNAUTHORIZED else f"{error.code.name}: {error}"


@asynccontextmanager
async def running_proxy(root: Path) -> AsyncIterator[Proxy]:
    async with guarded(root, GUARDED) as broker:
        proxy = Proxy(render_address(broker.address))
        try:
            yield proxy
        finally:
            await proxy.tasks.close()
            await proxy.remoting.close()
    assert proxy.tasks.failure is None


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with running_proxy(tmp_path) as proxy:
        user = UserInfo(username="alice", password="12345678")
        await broker_admin.create_user(proxy.remoting, proxy.address, user)
        yield proxy


async def test_a_user_of_the_broker_does_what_its_policies_allow(proxy: Proxy) -> None:
    await proxy.allow("Topic:Orders", "Pub")
    send = {"messages": [{"topic": {"name": "Orders"}}]}
    receive = {"group": {"name": "CG"}, "message_queue": {"topic": {"name": "Orders"}}}
    assert await proxy.outcome("12345678", "SendMessageRequest", **send) == "alice"
    assert "signature is wrong" in await proxy.outcome("guess", "SendMessageRequest", **send)
    refusal = await proxy.outcome("12345678", "ReceiveMessageRequest", **receive)
    assert refusal == "alice may not Sub Group:CG"
    assert await proxy.outcome("12345678", "TelemetryCommand") == "alice"


async def test_a_change_of_a_user_counts_within_a_minute(proxy: Proxy) -> None:
    route = {"topic": {"name": "Orders"}}
    assert "may not" in await proxy.outcome("12345678", "QueryRouteRequest", **route)
    await proxy.allow("Topic:*", "Sub")
    proxy.clock.advance(61)
    assert await proxy.outcome("12345678", "QueryRouteRequest", **route) == "alice"
    await broker_admin.delete_user(proxy.remoting, proxy.address, "alice")
    assert await proxy.outcome("12345678", "QueryRouteRequest", **route) == "alice"
    proxy.clock.advance(61)
    assert "no user alice" in await proxy.outcome("12345678", "QueryRouteRequest", **route)


RULES = {
    "accounts": [
        {"accessKey": "orders-app", "secretKey": "orders-secret", "topicPerms": ["Orders=PUB"]},
        {"accessKey": "proxy-account", "secretKey": "proxy-secret", "admin": True},
    ]
}
TOOLS = {"accessKey": "proxy-account", "secretKey": "proxy-secret"}


def signed_by(access_key: str, secret_key: str) -> tuple[tuple[str, str], ...]:
    signature = hmac.new(secret_key.encode(), DATE.encode(), "sha1").hexdigest()
    claim = f"Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (
        ("x-mq-client-id", "c1"),
        ("x-mq-date-time", DATE),
        ("authorization", f"MQv2-HMAC-SHA1 {claim}"),
    )


async def send(channel: grpc.aio.Channel, topic: str, metadata: tuple[tuple[str, str], ...]) -> Any:
    """Returns the status of a send."""
    system = {"message_id": "01ID"}
    message = {"topic": {"name": topic}, "body": b"one", "system_properties": system}
    asked = message_class("SendMessageRequest")(messages=[message]).SerializeToString()
    call = channel.unary_unary(SERVICE + "SendMessage")
    data = await call(asked, metadata=metadata, timeout=PATIENCE_S)
    return message_class("SendMessageResponse").FromString(data).status


async def test_accounts_in_files_of_the_brokers_apply_at_the_proxy(tmp_path: Path) -> None:
    """The brokers admit the proxy by the account in its tools.yml."""
    rules = write_rules(tmp_path, RULES)
    (tmp_path / "conf" / "tools.yml").write_text(yaml.safe_dump(TOOLS))
    async with running_rig(tmp_path) as rig:
        options = ClientOptions(access_key="proxy-account", secret_key="proxy-secret")
        await rig.start_broker("broker-a", access=rules)
        async with Admin(rig.namesrv, options=options) as admin:
            for topic in ("Orders", "Logs"):
                await admin.create_topic(topic, queue_count=1)
        async with (
            whole_proxy(rig.namesrv, tmp_path, acl_enable=True, acl_directory=tmp_path / "conf") as proxy,
            grpc.aio.insecure_channel(render_address(proxy.address)) as channel,
        ):
            app = signed_by("orders-app", "orders-secret")
            assert (await send(channel, "Orders", app)).code == Code.OK
            denied = await send(channel, "Logs", app)
            assert (denied.code, denied.message) == (Code.UNAUTHORIZED, "orders-app may not Pub Topic:Logs")
            guessed = await send(channel, "Orders", signed_by("orders-app", "guessed-secret"))
            assert (guessed.code, "wrong" in guessed.message) == (Code.UNAUTHORIZED, True)
            unsigned = await send(channel, "Orders", (("x-mq-client-id", "c1"),))
            assert (unsigned.code, "not signed" in unsigned.message) == (Code.UNAUTHORIZED, True)
