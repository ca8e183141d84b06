"""Who is connected: 203 consumers of a group, 204 producers of a group, 328 all producers.

Source: spec remoting 8.6 and 11.9.
"""

from __future__ import annotations

from tandemmq.broker.clients.consumer_table import ConsumerTable, Subscription
from tandemmq.broker.clients.membership import Member
from tandemmq.broker.clients.producer_table import ProducerTable
from tandemmq.broker.clients.refusals import Refusals
from tandemmq.broker.pull.filters import split_tags
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.client import (
    ClientConnection,
    ConsumerConnections,
    ProducerInfo,
    encode_consumer_connections,
    encode_producer_connections,
    encode_producer_table,
)
from tandemmq.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from tandemmq.protocol.codes import LanguageCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import ConsumerConnectionsRequest, ProducerConnectionsRequest
from tandemmq.remoting.address import render_address
from tandemmq.remoting.channel import Channel


class ConnectionHandlers:
    """Reads the tables of clients."""

    def __init__(self, consumers: ConsumerTable, producers: ProducerTable, refusals: Refusals) -> None:
        self._refusals = refusals
        self._consumers = consumers
        self._producers = producers

    def handle_consumers(self, channel: Channel, command: Command) -> Command:
        """GET_CONSUMER_CONNECTION_LIST (203); to our tools also what the group was refused."""
        name = command.decode(ConsumerConnectionsRequest).consumer_group
        group = self._consumers.get(name)
        refusals = self._refusals.of_group(name) or None
        if group is None:
            remark, body = f"no consumer of the group {name[:160]!r} is online", b""
            if refusals:
                one = refusals[-1]
                remark += f"; {one.request} of {one.client} was refused ({one.code}): {one.reason}"
                body = encode_consumer_connections(ConsumerConnections(refusals=refusals))
            return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark, body=body)
        consumption = group.consumption
        connections = ConsumerConnections(
            connections=tuple(_connection(member) for member in self._consumers.members(name)),
            consume_type=ConsumeType(consumption.consume_type),
            message_model=MessageModel(consumption.message_model),
            consume_from_where=ConsumeFromWhere(consumption.consume_from_where),
            subscriptions={topic: describe_subscription(each) for topic, each in group.subscriptions.items()},
            refusals=refusals,
        )
        return command.reply(body=encode_consumer_connections(connections))

    def handle_producers(self, channel: Channel, command: Command) -> Command:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        name = command.decode(ProducerConnectionsRequest).producer_group
        members = self._producers.members(name)
        if not members:
            raise RequestRejected(
                f"no producer of the group {name[:160]!r} is online", code=ResponseCode.SYSTEM_ERROR
            )
        return command.reply(body=encode_producer_connections([_connection(member) for member in members]))

    def handle_all_producers(self, channel: Channel, command: Command) -> Command:
        """GET_ALL_PRODUCER_INFO (328)."""
        table = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    language=_language(member.language),
                    updated_at_ms=member.seen_at_ms,
                    address=render_address(member.channel.peer),
                    version=member.version,
                )
                for member in self._producers.members(group)
            ]
            for group in self._producers.groups
        }
        return command.reply(body=encode_producer_table(table))


def _connection(member: Member) -> ClientConnection:
    return ClientConnection(
        address=render_address(member.channel.peer),
        client_id=member.client_id,
        language=_language(member.language),
        version=member.version,
    )


def describe_subscription(subscription: Subscription) -> SubscriptionData:
    """A subscription as tools are told it: the expression, its tags and its version."""
    return SubscriptionData(
        topic=subscription.topic,
        expression=subscription.expression,
        expression_type=subscription.expression_type,
        version=subscription.version,
        tag_hashes=subscription.tag_hashes or frozenset(),
        tags=frozenset(split_tags(subscription.expression) if subscription.tag_hashes else ()),
    )


def _language(code: int) -> str:
    try:
        return LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name
