"""The servers that the official clients of the gRPC protocol run against, and the needs of each case.

The programs are in `grpc/<language>`; a case has one name in all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters import HOST, Cluster
from msgspec.structs import replace

from tandemmq.api import broker_admin
from tandemmq.api.calls import AdminCall
from tandemmq.client import BlockingAdmin, ClientOptions
from tandemmq.launcher import Server
from tandemmq.protocol.bodies.tables import (
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from tandemmq.protocol.signature import Credentials
from tandemmq.proxy import certificate
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork

SETTINGS = {
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": 6000,
    "transactionCheckInterval": 2000,
}
"""Features that the brokers of both makers leave off by default; short waits for open transactions."""


EVERY_SECOND = GroupRetryPolicy(customized=CustomizedRetry(delays_ms=(1000,)))
NODE_POLICY = GroupRetryPolicy(
    kind="EXPONENTIAL", exponential=ExponentialRetry(initial_ms=1000, delay_ms_max=2000, multiplier=2)
)
"""The Node client understands only exponential policies, the Python client only customized ones."""


@dataclass(frozen=True)
class Case:
    """The topic and the groups of a case, which are made before its program starts."""

    kind: str = "NORMAL"
    groups: tuple[str, ...] = ("group",)
    is_orderly: bool = False
    retries: int | None = None
    """The most redeliveries, a second apart; None: the default number and delays of groups."""
    has_dead_letters: bool = False


DEAD = ("group", "letters")
CASES = {
    "normal": Case(),
    "transport": Case(),
    "fifo": Case("FIFO", is_orderly=True),
    "fifo_push": Case("FIFO", is_orderly=True, retries=16),
    "delay": Case("DELAY"),
    "recall": Case("DELAY"),
    "transaction": Case("TRANSACTION"),
    "check": Case("TRANSACTION"),
    "priority": Case("PRIORITY"),
    "invisible": Case(),
    "push": Case(),
    "dead": Case(groups=DEAD, retries=1, has_dead_letters=True),
    "fifo_dead": Case("FIFO", groups=DEAD, is_orderly=True, retries=1, has_dead_letters=True),
    "filters": Case(groups=("tag", "sql")),
    "refused": Case(),
    "batch": Case(),
}
ONLY_RUST = {"batch"}
"""No other client sends several messages in one request."""
RUST = {"normal", "fifo", "delay", "transaction", "check", "filters", "refused", "batch"}
"""The published crate lacks push consumers, changes of the invisible time, recall, priority and TLS."""


def cases_of(language: str) -> list[str]:
    return [case for case in CASES if (case in RUST if language == "rust" else case not in ONLY_RUST)]


@dataclass(frozen=True)
class Servers:
    """A cluster, the proxy before it, and what the client programs must know about both."""

    cluster: Cluster
    proxy: str
    environment: dict[str, str]
    admin: Credentials | None = None
    """The maker of topics and groups where access is controlled."""

    def prepare(self, case: Case, topic: str, language: str) -> None:
        """Makes the topic of the case's message type, and its groups."""
        with BlockingAdmin(self.cluster.name_server, options=self._options) as admin:
            admin.create_topic(topic, attributes={"+message.type": case.kind})
            if case.has_dead_letters:
                admin.create_topic(f"%DLQ%{topic}-group", queue_count=1)
        policy = NODE_POLICY if language == "node" else EVERY_SECOND
        configs = [_group_config(case, topic, group, policy) for group in case.groups]
        asyncio.run(self.ask(broker_admin.create_group, *configs))

    @property
    def _options(self) -> ClientOptions:
        if self.admin is None:
            return ClientOptions()
        return ClientOptions(access_key=self.admin.access_key, secret_key=self.admin.secret_key)

    async def ask(self, call: AdminCall[Any, Any], *what: object) -> None:
        """Sends each request to every broker."""
        signer = None if self.admin is None else self.admin.sign
        client = RemotingClient(network=TcpNetwork(), clock=LoopClock(), signer=signer)
        try:
            for one in what:
                for broker in self.cluster.brokers.values():
                    await call(client, broker.address, one)
        finally:
            await client.close()


def _group_config(case: Case, topic: str, group: str, policy: GroupRetryPolicy) -> SubscriptionGroupConfig:
    config = SubscriptionGroupConfig(name=f"{topic}-{group}")
    if group != "group":
        return config
    config = replace(config, is_orderly=case.is_orderly)
    if case.retries is None:
        return config
    return replace(config, retry_count_max=case.retries, retry_policy=policy)


@contextmanager
def our_proxy(
    name_server: str, directory: Path, settings: Mapping[str, object] | None = None
) -> Iterator[str]:
    """Our proxy before a cluster; the address that clients are given."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"bindAddress": HOST, "proxyStorePath": directory, **(settings or {})}
    words = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    command = ["proxy", "--namesrv", name_server, "--port", "0", *words]
    server = Server("proxy", command, directory / "proxy.log")
    try:
        yield server.start()
    finally:
        server.stop()


def own_certificate(directory: Path) -> Path:
    """The certificate that our proxy made for itself, without its key, for clients that verify it."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = (directory / certificate.FILE_NAME).read_text()
    path = directory / "certificate.pem"
    path.write_text(f"{begin}{text.split(begin)[1].split(end)[0]}{end}\n")
    return path
