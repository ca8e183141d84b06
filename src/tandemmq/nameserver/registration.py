"""The requests by which brokers register, stay and leave: 103, 104, 217, 322, 904 (spec nameserver 3 to 6);
and the notification of brokers: NOTIFY_MIN_BROKER_ID_CHANGE (905).

With notifyMinBrokerIdChanged the brokers of a name are notified when the one with the smallest id came or
went (`MinIdNotices`; spec nameserver 9). Notifications are not answered; an unreachable broker learns of the
change at its next registration. At a bound: a change while `TASKS_MAX` notifications are being sent is not
notified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

from tandemmq.errors import BadRequest, TandemError
from tandemmq.nameserver.kv_config import KvTable
from tandemmq.nameserver.network_views import Networks
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.nameserver.route_table import LiveBroker, RegisteredBroker, RouteTable, Smallest
from tandemmq.protocol.bodies.codec import DataVersion, decode_body, encode_body, encode_kv_table
from tandemmq.protocol.bodies.register import body_crc32, decode_register_broker_body
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.networks import parse_advertised, render_advertised
from tandemmq.protocol.requests import route as headers
from tandemmq.protocol.topic_names import ORDER_TOPICS
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

TASKS_MAX: Final = 256


@dataclass(slots=True, eq=False)
class RegistrationHandlers:
    """The handlers that maintain brokers in the route table, and the connections that prove that they are
    alive.
    """

    table: RouteTable
    orders: KvTable
    _: KW_ONLY
    clock: Clock
    options: Callable[[], NameServerOptions]
    notices: MinIdNotices
    networks: Networks
    channels: set[Channel]
    """The open connections over which brokers have registered."""

    def handle_register_broker(self, channel: Channel, command: Command) -> Command:
        """Handles REGISTER_BROKER (103); answers with the master's addresses, and the fixed queue lists of
        ordered topics.

        Raises:  BadRequest for a wrong check sum; RequestRejected as `RouteTable.register`.
        """
        header = command.decode(headers.RegisterBrokerRequest)
        registration = _read_registration(channel, command, header)
        is_new = self.table.data_version(registration.key) is None
        options = self.options()
        smallest = self.table.smallest(header.broker_name)
        master = self.table.register(
            registration,
            self.clock.monotonic(),
            drops_missing_topics=options.delete_topics_by_registration,
        )
        self._watch(channel)
        if options.notify_min_id_change:
            self.notices.after_registration(header.broker_name, smallest)
        if is_new:
            log.info(events.BROKER_REGISTERED, extra=_describe(header))
        orders = self.orders.namespace(ORDER_TOPICS) if options.return_order_topics else None
        refused = self.networks.refused_of(registration.key) if registration.advertised else {}
        return command.reply(
            header=headers.RegisterBrokerResponse(
                ha_address=master.ha_address if master else None,
                master_address=master.address if master else None,
                refused_addresses=render_advertised(refused) or None,
            ),
            body=b"" if orders is None else encode_kv_table(orders),
        )

    def handle_unregister_broker(self, channel: Channel, command: Command) -> Command:
        """Handles UNREGISTER_BROKER (104); an unknown broker, or one that has another id by now, is not an
        error.
        """
        header = command.decode(headers.UnregisterBrokerRequest)
        is_known = self.table.data_version((header.cluster_name, header.broker_address)) is not None
        smallest = self.table.smallest(header.broker_name)
        is_removed = self.table.unregister(
            header.cluster_name, header.broker_name, header.broker_address, header.broker_id
        )
        self._after_leaving({header.broker_name: smallest})
        if is_known and is_removed:
            log.info(events.BROKER_UNREGISTERED, extra={**_describe(header), "reason": "its own request"})
        return command.reply()

    def handle_register_topic(self, channel: Channel, command: Command) -> Command:
        """Handles REGISTER_TOPIC_IN_NAMESRV (217); without a body nothing is registered."""
        header = command.decode(headers.RegisterTopicRequest)
        if len(command.body):
            self.table.register_topic(header.topic, decode_body(command.body, TopicRoute).queues)
        return command.reply()

    def handle_query_data_version(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_DATA_VERSION (322); answers if the broker must register again. Also counts as a
        heartbeat.
        """
        header = command.decode(headers.QueryDataVersionRequest)
        key = header.cluster_name, header.broker_address
        held = self.table.data_version(key)
        self.table.touch(key, self.clock.monotonic())
        is_changed = held is None or held != decode_body(command.body, DataVersion)
        return command.reply(
            header=headers.QueryDataVersionResponse(is_changed=is_changed),
            body=b"" if held is None else encode_body(held),
        )

    def handle_heartbeat(self, channel: Channel, command: Command) -> Command:
        """Handles BROKER_HEARTBEAT (904); ignored for an unknown broker."""
        header = command.decode(headers.BrokerHeartbeatRequest)
        self.table.touch((header.cluster_name, header.broker_address), self.clock.monotonic())
        return command.reply()

    def expire(self) -> None:
        """Removes silent brokers and closes their connections."""
        smallest = self._smallest_of_all()
        for live in self.table.expire(self.clock.monotonic()):
            log.warning(events.BROKER_EXPIRED, extra=_describe_live(live))
            if isinstance(live.connection, Channel):
                live.connection.close(f"broker silent for {live.timeout_s:g} s")
        self._after_leaving(smallest)

    def _watch(self, channel: Channel) -> None:
        if channel not in self.channels:
            self.channels.add(channel)
            channel.on_close.append(self._on_close)

    def _on_close(self, channel: Channel) -> None:
        """Removes the brokers of a closed connection, except those that registered again over a newer one."""
        self.channels.discard(channel)
        smallest = self._smallest_of_all()
        for live in self.table.drop_connection(channel):
            log.info(
                events.BROKER_UNREGISTERED, extra={**_describe_live(live), "reason": channel.close_reason}
            )
        self._after_leaving(smallest)

    def _smallest_of_all(self) -> dict[str, Smallest | None]:
        """Returns the smallest broker by name; empty if notifications are off."""
        if not self.options().notify_min_id_change:
            return {}
        return {name: self.table.smallest(name) for name in self.table.broker_names()}

    def _after_leaving(self, before: Mapping[str, Smallest | None]) -> None:
        if self.options().notify_min_id_change:
            for name, smallest in before.items():
                self.notices.after_leaving(name, smallest)


def _read_registration(
    channel: Channel, command: Command, header: headers.RegisterBrokerRequest
) -> RegisteredBroker:
    """Decodes the registration of a broker.

    Raises:  BadRequest for a wrong check sum; RemoteProtocolError for a body that cannot be decoded.
    """
    if header.body_crc not in (0, body_crc32(command.body)):
        raise BadRequest(f"bodyCrc32 is {header.body_crc}, that of the body is {body_crc32(command.body)}")
    body = decode_register_broker_body(
        command.body, is_compressed=header.is_compressed, version=command.version
    )
    return RegisteredBroker(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_address,
        ha_address=header.ha_address,
        data_version=body.topics.data_version,
        topics=body.topics.topics,
        connection=channel,
        filter_servers=body.filter_servers,
        heartbeat_timeout_ms=header.heartbeat_timeout_ms,
        is_acting_master_enabled=header.is_acting_master_enabled,
        zone_name=header.zone_name,
        advertised=_read_advertised(header),
    )


def _read_advertised(header: headers.RegisterBrokerRequest) -> dict[str, str]:
    """Returns the broker's addresses by network; none if the text is malformed, so that the broker can
    register.
    """
    try:
        return parse_advertised(header.advertised_addresses or "")
    except ValueError as error:
        log.warning(events.NETWORK_ADDRESS_INVALID, extra={**_describe(header), "reason": str(error)})
        return {}


def _describe(header: headers.RegisterBrokerRequest | headers.UnregisterBrokerRequest) -> dict[str, object]:
    return {
        "cluster": header.cluster_name,
        "broker": header.broker_name,
        "broker_id": header.broker_id,
        "address": header.broker_address,
    }


def _describe_live(live: LiveBroker) -> dict[str, object]:
    return {"cluster": live.cluster, "broker": live.broker_name, "address": live.address}


@dataclass(slots=True, eq=False)
class MinIdNotices:
    """Notifies the brokers, over separate connections of the name server."""

    table: RouteTable
    _: KW_ONLY
    client: RemotingClient
    scope: TaskScope

    def after_registration(self, name: str, before: Smallest | None) -> None:
        """Sends a notification if an id smaller than all others registered: to the others, or to the broker
        itself when it is alone.
        """
        now = self.table.smallest(name)
        if now is None or before is None or now.broker_id >= before.broker_id:
            return
        others = [address for address in self.table.addresses(name) if address != now.address]
        self._send_to_all(name, others or [now.address], offline_address=None)

    def after_leaving(self, name: str, before: Smallest | None) -> None:
        """Sends a notification if the smallest broker left: to all that remain, if they support acting
        masters.
        """
        now = self.table.smallest(name)
        if before is None or now is None or now.address == before.address:
            return
        if self.table.has_acting_master(name):
            self._send_to_all(name, self.table.addresses(name), offline_address=before.address)

    def _send_to_all(self, name: str, addresses: list[str], *, offline_address: str | None) -> None:
        now = self.table.smallest(name)
        if now is None or len(self.scope) >= TASKS_MAX:
            return
        header = headers.MinBrokerIdChange(
            min_broker_id=now.broker_id,
            broker_name=name,
            min_broker_address=now.address,
            offline_address=offline_address,
            ha_address=now.ha_address,
        )
        self.scope.start(f"tell-{name}", self._send(addresses, header))

    async def _send(self, addresses: list[str], header: headers.MinBrokerIdChange) -> None:
        for address in addresses:
            command = Command.request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header, oneway=True)
            try:
                await self.client.send_oneway(address, command)
            except TandemError as error:
                log.info(events.BROKER_NOT_NOTIFIED, extra={"address": address, "reason": str(error)})
