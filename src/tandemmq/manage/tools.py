"""The connections of an operator's tool, and its targets: one broker by address, or the brokers of a cluster.

Commands open their connections with the credentials and the TLS of RocketMQ's files and of the environment;
console and MCP server open theirs once for each user, with that user's credentials.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from tandemmq.api.broker_admin import query_groups_of_topic
from tandemmq.api.calls import Call
from tandemmq.api.controller import controller_signer
from tandemmq.broker.access.plain_rules import read_controller_secret, read_tools_credentials
from tandemmq.client.admin import Admin
from tandemmq.client.admin_base import known_clusters
from tandemmq.client.changes import change_each
from tandemmq.client.options import ClientOptions
from tandemmq.errors import ConfigError
from tandemmq.manage.contexts import active_context
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import TlsClientOptions
from tandemmq.remoting.tls import make_client_tls
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.units import MASTER_ID

P = ParamSpec("P")
A = TypeVar("A")

CALL_TIMEOUT_S = 5.0
TRUST_VARIABLE = "TANDEMMQ_TLS_CA"
UNSIGNED: Final = Credentials("", "")
"""Keys that sign nothing; without them the tools would use their own file."""


def tools_options(credentials: Credentials | None = None) -> ClientOptions:
    """Returns the client options of the tools: signed with these credentials, or else with those of the
    command's context. Without a context, with those of $ROCKETMQ_HOME/conf/tools.yml if it exists, and TLS if
    TANDEMMQ_TLS_CA names the trusted certificates.

    Raises:  ConfigError for an invalid tools.yml.
    """
    context, home = active_context(), os.environ.get("ROCKETMQ_HOME")
    if context is not None:
        tls = context.tls
        credentials = credentials or context.credentials
    else:
        trust = os.environ.get(TRUST_VARIABLE)
        tls = TlsClientOptions(trust_path=Path(trust)) if trust else None
        if credentials is None and home:
            credentials = read_tools_credentials(Path(home) / "conf", RealDisk())
    return ClientOptions(
        call_timeout_s=CALL_TIMEOUT_S,
        access_key="" if credentials is None else credentials.access_key,
        secret_key="" if credentials is None else credentials.secret_key,
        security_token="" if credentials is None else credentials.security_token,
        tls=tls,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """The target of a command: the broker at `address`, else the brokers of the cluster, else those of all
    clusters.
    """

    address: str = ""
    cluster: str = ""


EVERYWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class Tools:
    """The connections of a command. `admin` needs a name server and is None when only a broker was named."""

    admin: Admin | None
    remoting: RemotingClient

    @property
    def cluster_admin(self) -> Admin:
        """The admin client. Raises ConfigError when no name server is known."""
        if self.admin is None:
            raise ConfigError(
                "no name server is given: use -n HOST:PORT or NAMESRV_ADDR, or start one with `tandemmq up`"
            )
        return self.admin

    async def ask(
        self, addresses: Iterable[str], call: Call[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[str, A]]:
        """Sends the request to each of these servers, one after the other; returns each answer with the
        address. The first error ends the series.
        """
        return [(address, await call(self.remoting, address, *args, **kwargs)) for address in addresses]

    async def change(
        self, addresses: Iterable[str], call: Call[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[str, A]]:
        """Sends a change to each of these servers, also behind one that fails; returns each answer with the
        address. Raises the errors of `change_each`.
        """
        done = await change_each(addresses, lambda address: call(self.remoting, address, *args, **kwargs))
        return list(done.items())

    async def brokers(self, place: Place) -> list[str]:
        """Returns the addresses of the brokers of a place. Raises ConfigError as `find_targets` does."""
        return [target.address for target in await find_targets(self, place)]

    async def masters(self, place: Place = EVERYWHERE) -> list[str]:
        """Returns the addresses of the masters of a place, or of the broker that the place names."""
        return [target.address for target in await find_targets(self, place, masters_only=True)]

    async def groups_of(self, route: TopicRoute, topic: str) -> list[str]:
        """Returns the groups of the topic at the masters of its route, sorted."""
        found = await self.ask(route.masters, query_groups_of_topic, topic)
        return sorted({name for _, names in found for name in names})


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One broker; name and cluster are empty when it was named by its address."""

    cluster: str
    broker_name: str
    broker_id: int | None
    address: str

    def __str__(self) -> str:
        return f"{self.broker_name} ({self.address})" if self.broker_name else self.address


@asynccontextmanager
async def open_tools(name_servers: str, credentials: Credentials | None = None) -> AsyncIterator[Tools]:
    """Opens the connections of one command, or of one user, and closes them afterwards.

    Requests are signed with `credentials`. Without them the command's context decides, or else the files of
    the tools: requests are signed if there are credentials for tools, and requests to controllers with
    controllerSharedSecret of the same file. A user whose credentials are given has no part in that secret.
    """
    options, home = tools_options(credentials), os.environ.get("ROCKETMQ_HOME")
    is_own = credentials is None and active_context() is None and home
    secret = read_controller_secret(Path(home or "") / "conf", RealDisk()) if is_own else ""
    credentials = options.credentials
    remoting = RemotingClient(
        network=TcpNetwork(),
        clock=LoopClock(),
        signer=controller_signer(secret, None if credentials is None else credentials.sign),
        tls=make_client_tls(options.tls),
    )
    try:
        if not name_servers:
            yield Tools(None, remoting)
            return
        async with Admin(name_servers, options=options) as admin:
            yield Tools(admin, remoting)
    finally:
        await remoting.close()


async def find_targets(
    tools: Tools, place: Place = EVERYWHERE, *, masters_only: bool = False
) -> list[Target]:
    """Returns the brokers of a place, by cluster, name and id.

    Raises:  ConfigError for an unknown cluster, or when no broker is registered.
    """
    if place.address:
        return [Target("", "", None, place.address)]
    targets = targets_of(await tools.cluster_admin.cluster_info(), place.cluster, masters_only=masters_only)
    if not targets:
        raise ConfigError("no broker is registered at the name servers")
    return targets


def serving(targets: Iterable[Target]) -> list[Target]:
    """Returns one replica of each of these brokers: the master, or else the slave with the lowest id."""
    firsts: dict[tuple[str, str], Target] = {}
    for target in sorted(targets):
        firsts.setdefault((target.cluster, target.broker_name), target)
    return list(firsts.values())


def without_master(targets: Iterable[Target]) -> list[str]:
    """Returns the names of the brokers of which no replica is a master, sorted."""
    every = list(targets)
    led = {one.broker_name for one in every if one.broker_id == MASTER_ID}
    return sorted({one.broker_name for one in every} - led)


def targets_of(info: ClusterInfo, cluster: str = "", *, masters_only: bool = False) -> list[Target]:
    """Returns the brokers of one cluster, or of all. Raises ConfigError for an unknown cluster."""
    if cluster and cluster not in info.clusters:
        raise ConfigError(f"unknown cluster {cluster!r}; {known_clusters(info)}")
    return sorted(
        Target(name, broker_name, broker_id, address)
        for name, broker_names in info.clusters.items()
        if not cluster or name == cluster
        for broker_name in broker_names
        for broker_id, address in info.brokers[broker_name].addresses.items()
        if broker_id == MASTER_ID or not masters_only
    )
