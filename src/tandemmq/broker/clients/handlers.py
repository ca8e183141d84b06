"""Requests of clients about themselves, and the broker's notifications to them.

`ClientHandlers` serves HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP and CHECK_CLIENT_CONFIG, and
removes clients that leave. `Notices` notifies the members of a group when its membership changes.
`RelayHandlers` forwards a tool's requests to a consumer.
A client has left when its connection closes, when it unregisters, or when it was silent for
channelExpiredTimeout.
Source: spec semantics 15, 16.1 and 16.2, spec remoting 9.4 and 9.11.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tandemmq.broker.clients.consumer_table import (
    ACTIVE_TYPE,
    BROADCASTING,
    Consumption,
    HeldSubscription,
    Member,
    make_subscription,
)
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid, read_body
from tandemmq.broker.pull.filters import SqlBudget, is_tag_type, parse_tags, require_sql
from tandemmq.errors import BadRequest, BrokerUnreachable, Busy, NotPermitted, RequestRejected, RequestTimeout
from tandemmq.protocol.bodies.client import ClientConfigCheck, ConsumerData, Heartbeat, encode_consumer_list
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.requests import route as requests
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest, RunningInfoRequest
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import render_address
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Notices:
    """Collects groups whose membership changed and notifies their members, so that they rebalance.
    `consumers` is set right after both objects were created.

    The changes of one loop turn (or of one period, if notices are not immediate) are sent once per group:
    otherwise, a hundred clients starting together would cause ten thousand notices.
    """

    core: BrokerCore
    _changed: dict[str, None] = field(default_factory=dict, init=False)

    def on_change(self, group: str) -> None:
        if not self.core.options.notify_consumer_ids_changed:
            return
        if not self._changed:
            if self.core.options.notify_at_once:
                self.core.clock.call_soon(self._notify_changed)
            else:
                self.core.clock.call_later(self.core.options.notify_period_ms / 1000, self._notify_changed)
        self._changed[group] = None

    def _notify_changed(self) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            group = self.core.consumers.get(name)
            config = self.core.groups.get(name)
            if group is None or group.consumption.message_model == BROADCASTING:
                continue
            if config is not None and not config.notifies_members:
                continue
            header = requests.NotifyConsumerIdsChangedRequest(consumer_group=name)
            for member in self.core.consumers.members(name):
                notice = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
                member.channel.send(notice)


RELAY_TIMEOUT_S = 10.0


@dataclass(slots=True)
class RelayHandlers:
    """GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309): queries consumers on behalf of
    tools.

    The broker forwards the request over the consumer's own connection.
    """

    core: BrokerCore

    async def handle_running_info(self, channel: Channel, command: Command) -> Command:
        header = command.decode(RunningInfoRequest)
        member = self._find(header.consumer_group, header.client_id)
        return await _relay(member, command, Command.request(command.code, header))

    async def handle_consume_directly(self, channel: Channel, command: Command) -> Command:
        """Forwards the request together with the message as stored."""
        header = command.decode(ConsumeDirectlyRequest)
        member = self._find(header.consumer_group, header.client_id)
        topic = self.core.topics.get(header.topic or "")
        group = self.core.groups.get(header.consumer_group)
        question = ConsumeDirectlyRequest(
            consumer_group=header.consumer_group,
            client_id=member.client_id,
            message_id=header.message_id,
            broker_name=self.core.options.broker_name,
            topic=header.topic,
            topic_sys_flag=topic.sys_flag if topic is not None else None,
            group_sys_flag=group.sys_flag if group is not None else None,
        )
        body = self._read(header.message_id or "")
        return await _relay(member, command, Command.request(command.code, question, body=body))

    def _find(self, group: str, client_id: str | None) -> Member:
        member = self.core.consumers.find_client(group, client_id or "")
        if member is None:
            raise RequestRejected(
                f"no consumer {(client_id or '')[:160]!r} of the group {group[:160]!r} is online"
            )
        return member

    def _read(self, message_id: str) -> bytes:
        log_offset = decode_message_id(message_id).log_offset
        record = self.core.store.read_record(log_offset)
        if record is None:
            raise RequestRejected(f"no message is stored at log offset {log_offset}")
        return bytes(record)


async def _relay(member: Member, asked: Command, question: Command) -> Command:
    """Forwards `question` and returns the consumer's answer as the answer to `asked`."""
    try:
        answer = await member.channel.request(question, RELAY_TIMEOUT_S)
    except RequestTimeout:
        raise RequestRejected(
            f"the consumer {member.client_id} did not answer within {RELAY_TIMEOUT_S:.0f} s",
            code=ResponseCode.CONSUME_MSG_TIMEOUT,
        ) from None
    except (BrokerUnreachable, Busy) as error:
        raise RequestRejected(f"the consumer {member.client_id}: {error}") from None
    return asked.reply(answer.code, remark=answer.remark, body=answer.body, fields=answer.fields)


CLIENT_ID_LENGTH_MAX = 1_024
PRODUCER_GROUP_LENGTH_MAX = 255
"""Old clients allow 255. Producer groups are never stored in a file, so their characters are not checked."""
_HEARTBEAT_RESPONSE = requests.HeartbeatResponse()


@dataclass(slots=True)
class ClientHandlers:
    """Maintains the tables of clients."""

    core: BrokerCore
    _watched: dict[Channel, None] = field(default_factory=dict, init=False)

    def handle_heartbeat(self, channel: Channel, command: Command) -> Command:
        """Handles HEART_BEAT (34). A group that does not exist and cannot be created is skipped.

        The answer always asks for the full subscriptions, so that clients never send the short form of 5.1.
        """
        client, group = render_address(channel.peer), ""  # until the body identifies the client
        try:
            heartbeat = read_body(Heartbeat, command.body)
            client = _check_client_id(heartbeat.client_id)
            self._watch(channel)
            member = Member(
                channel,
                client,
                command.language,
                command.version,
                seen_at_ms=self.core.clock.now_ms(),
                heard_s=self.core.clock.monotonic(),
            )
            budget = SqlBudget()
            for consumer in heartbeat.consumers:
                group = consumer.group
                self._register_consumer(member, consumer, budget, keep=heartbeat.is_without_subscriptions)
            for producer in heartbeat.producers:
                group = producer.group
                if not 0 < len(group) <= PRODUCER_GROUP_LENGTH_MAX:
                    raise invalid(
                        f"producerDataSet: a groupName has 1 to {PRODUCER_GROUP_LENGTH_MAX} characters,"
                        f" not {len(group)}"
                    )
                self.core.producers.register(group, member)
        except RequestRejected as error:
            self._record_refusal(client, group, error.code, error.remark)
            raise
        return command.reply(ResponseCode.SUCCESS, _HEARTBEAT_RESPONSE)

    def handle_unregister(self, channel: Channel, command: Command) -> Command:
        """Handles UNREGISTER_CLIENT (35): removes the client from a producer group, a consumer group, or
        both.
        """
        header = command.decode(requests.UnregisterClientRequest)
        if header.producer_group:
            self.core.producers.unregister(header.producer_group, channel)
        if header.consumer_group:
            self.core.consumers.unregister(header.consumer_group, channel)
        return command.reply()

    def handle_consumer_list(self, channel: Channel, command: Command) -> Command:
        """Handles GET_CONSUMER_LIST_BY_GROUP (38)."""
        group = command.decode(requests.ConsumerListRequest).consumer_group
        members = self.core.consumers.members(group)
        if not members:
            raise RequestRejected(f"no consumer of the group {group[:160]!r} is online")
        client_ids = dict.fromkeys(member.client_id for member in members)
        return command.reply(body=encode_consumer_list(client_ids))

    def handle_check_config(self, channel: Channel, command: Command) -> Command:
        """Handles CHECK_CLIENT_CONFIG (46): checks that the broker accepts a subscription."""
        subscription = read_body(ClientConfigCheck, command.body).subscription
        if not is_tag_type(subscription.expression_type):
            require_sql(
                subscription.topic,
                subscription.expression,
                subscription.expression_type,
                is_enabled=self.core.options.property_filter_enable,
            )
            return command.reply()
        try:
            parse_tags(subscription.expression)
        except ValueError as error:
            raise _unparsable(subscription.topic, error) from None
        return command.reply()

    def drop_silent(self) -> None:
        """Closes and removes connections whose last heartbeat is too old."""
        limit_s = self.core.clock.monotonic() - self.core.options.channel_expired_ms / 1000
        for channel in list(self._watched):
            in_groups = self.core.consumers.heard_s(channel), self.core.producers.heard_s(channel)
            heard = [heard_s for heard_s in in_groups if heard_s is not None]
            if heard and max(heard) < limit_s:
                log.info(events.CLIENT_EXPIRED, extra={"peer": channel.peer})
                channel.close("no heartbeat within channelExpiredTimeout")
                self._forget(channel)

    def _register_consumer(
        self, member: Member, consumer: ConsumerData, budget: SqlBudget, *, keep: bool
    ) -> None:
        options = self.core.options
        name = consumer.group
        host = member.channel.peer[0]
        try:
            config = self.core.groups.find_or_create(name, member.seen_at_ms, host)
        except NotPermitted as error:
            self._record_refusal(member.client_id, name, error.code, error.remark)
            return
        if config is None:
            self._record_refusal(
                member.client_id,
                name,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                "the group does not exist and is not made by use (autoCreateSubscriptionGroup)",
            )
            return
        consumption = Consumption(
            consumer.consume_type.value, consumer.message_model.value, consumer.consume_from_where.value
        )
        if options.reject_pull_consumers and consumption.consume_type == ACTIVE_TYPE:
            self._record_refusal(
                member.client_id,
                name,
                ResponseCode.NO_PERMISSION,
                "it pulls for itself, and rejectPullConsumerEnable is true",
            )
            return
        if len(consumer.subscriptions) > options.subscriptions_per_group_max:
            raise invalid(
                f"the group {name} subscribes {len(consumer.subscriptions)} topics, at most"
                f" {options.subscriptions_per_group_max} are allowed"
            )
        if config.retry_queue_count > 0 and not options.is_slave:
            self.core.creator.create_retry_topic(
                name, peer=host, queue_count=config.retry_queue_count, is_unit=consumer.is_unit_mode
            )
        for data in consumer.subscriptions:
            fault = topic_fault(data.topic)
            if fault:
                self._record_refusal(member.client_id, name, ResponseCode.INVALID_PARAMETER, fault)
        subscriptions = None if keep else _subscriptions(consumer, budget)
        self.core.consumers.register(name, member, consumption, subscriptions)

    def _record_refusal(self, client_id: str, group: str, code: int, reason: str) -> None:
        """Records a rejection. The client is not informed of a skipped part, as in RocketMQ; log and tools
        are.
        """
        self.core.refusals.note("HEART_BEAT", group, client_id, code, reason)

    def _watch(self, channel: Channel) -> None:
        if channel not in self._watched:
            self._watched[channel] = None
            channel.on_close.append(self._forget)

    def _forget(self, channel: Channel) -> None:
        self._watched.pop(channel, None)
        self.core.consumers.drop_channel(channel)
        self.core.producers.drop_channel(channel)


def _subscriptions(consumer: ConsumerData, budget: SqlBudget) -> list[HeldSubscription]:
    subscriptions = []
    for data in consumer.subscriptions:
        if topic_fault(data.topic):
            continue  # no such topic can exist; the client's other subscriptions still count
        # Class filters run elsewhere: for the broker, such a subscription matches every message.
        expression = "*" if data.is_class_filter else data.expression
        try:
            subscriptions.append(
                make_subscription(data.topic, expression, data.expression_type, data.version, budget)
            )
        except ValueError as error:
            raise _unparsable(data.topic, error) from None
    return subscriptions


def _unparsable(topic: str, error: ValueError) -> BadRequest:
    return BadRequest(
        f"the subscription of {topic[:160]} cannot be parsed: {error}",
        code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    )


def _check_client_id(client_id: str) -> str:
    if not client_id or len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise invalid(f"clientID must have 1 to {CLIENT_ID_LENGTH_MAX} characters, not {len(client_id)}")
    return client_id
