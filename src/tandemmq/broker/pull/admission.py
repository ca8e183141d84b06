"""Admission of pulls: the checks of PULL_MESSAGE in the spec's order (spec semantics 8.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tandemmq.broker.clients.consumer_table import ACTIVE_TYPE, BROADCASTING, HeldSubscription
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import require_group, require_queue, require_topic
from tandemmq.broker.pull.filters import Filter, check_type, compile_sql, is_tag_type, parse_filter
from tandemmq.errors import Busy, NotPermitted, RequestRejected
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.sql92 import SqlFilter
from tandemmq.protocol.sys_flag import PULL_SUBSCRIPTION
from tandemmq.protocol.topic_names import is_system_group
from tandemmq.remoting.channel import Channel

FORBIDDEN_BROKER = 1
FORBIDDEN_GROUP = 2
FORBIDDEN_TOPIC = 3
FORBIDDEN_BROADCAST = 4
FORBIDDEN_SUBSCRIPTION = 5


class PullForbidden(NotPermitted):
    """NO_PERMISSION with the forbidden type that the answer's header carries."""

    def __init__(self, remark: str, forbidden_type: int) -> None:
        super().__init__(remark)
        self.forbidden_type = forbidden_type


class AdmittedPull(NamedTuple):
    """The topic, group and filter of an admitted pull. At most one of `tag_hashes` and `sql` is set; with
    both None every message matches.
    """

    topic: TopicConfig
    group: SubscriptionGroupConfig
    tag_hashes: frozenset[int] | None
    sql: SqlFilter | None = None


@dataclass(slots=True)
class PullAdmission:
    """Admits or rejects pulls."""

    core: BrokerCore

    def admit(self, channel: Channel, code: int, header: PullRequest, now_ms: int) -> AdmittedPull:
        """Admits a pull.

        Raises:  RequestRejected with the code that spec semantics 8.1 names for the first check that fails.
        """
        self._check_broker(code)
        name = header.consumer_group
        group = self.core.groups.get(name) or require_group(self.core.groups, name, now_ms, channel.peer[0])
        if not group.is_consume_enabled:
            raise PullForbidden(f"the group {name} may not consume (consumeEnable is false)", FORBIDDEN_GROUP)
        topic = self.core.topics.get(header.topic) or require_topic(self.core.topics, header.topic)
        if not topic.is_readable:
            raise PullForbidden(
                f"the topic {topic.name} is not readable (permission {topic.permission})", FORBIDDEN_TOPIC
            )
        if not 0 <= header.queue_id < topic.read_queue_count:
            require_queue(topic, header.queue_id, queue_count=topic.read_queue_count)
        if header.sys_flag & PULL_SUBSCRIPTION:
            wanted = parse_filter(
                header.topic,
                header.expression_type,
                header.subscription,
                is_sql_enabled=self.core.options.property_filter_enable,
            )
        else:
            wanted = self._stored_filter(header, group)
        if self.core.options.reject_pull_consumers:
            self._check_is_registered(channel, name)
        if isinstance(wanted, SqlFilter):
            return AdmittedPull(topic, group, None, wanted)
        return AdmittedPull(topic, group, wanted)

    def _check_broker(self, code: int) -> None:
        options = self.core.options
        if options.is_slave and not options.slave_read_enable:
            raise Busy(
                f"[REJECTREQUEST] {options.broker_name} with id {options.broker_id} is a slave"
                " that serves no pulls (slaveReadEnable is false): pull from the master"
            )
        if not options.is_readable:
            raise PullForbidden(
                f"the broker {options.broker_name} is not readable"
                f" (brokerPermission {options.broker_permission})",
                FORBIDDEN_BROKER,
            )
        if code == RequestCode.LITE_PULL_MESSAGE and not options.lite_pull_enable:
            raise PullForbidden("litePullMessageEnable is false on this broker", FORBIDDEN_BROKER)

    def _stored_filter(self, header: PullRequest, config: SubscriptionGroupConfig) -> Filter:
        """Returns the tags or the filter of the group's own subscription, as registered by its heartbeats."""
        name = config.name
        group = self.core.consumers.get(name)
        if group is None:
            raise RequestRejected(
                f"the group {name} is not online: its clients must send a heartbeat first",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if group.consumption.message_model == BROADCASTING and not config.is_broadcast_enabled:
            raise PullForbidden(
                f"the group {name} may not broadcast (consumeBroadcastEnable is false)", FORBIDDEN_BROADCAST
            )
        if self.core.groups.is_read_forbidden(name, header.topic):
            raise PullForbidden(f"the group {name} may not read {header.topic}", FORBIDDEN_SUBSCRIPTION)
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise RequestRejected(
                f"the group {name} has not subscribed {header.topic}: all its clients must do so",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if subscription.version < header.subscription_version:
            raise RequestRejected(
                f"the broker knows version {subscription.version} of the subscription of {name} to"
                f" {header.topic}, the pull names {header.subscription_version}",
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
            )
        if is_tag_type(subscription.expression_type):
            return subscription.tag_hashes
        return self._stored_sql(subscription)

    def _stored_sql(self, subscription: HeldSubscription) -> SqlFilter:
        sql = compile_sql(subscription.expression) if subscription.sql is None else subscription.sql
        if isinstance(sql, str):
            code = ResponseCode.FILTER_DATA_NOT_LATEST
            if not subscription.has_older_sql:
                code = ResponseCode.FILTER_DATA_NOT_EXIST
            raise RequestRejected(f"the subscription of {subscription.topic} has no filter: {sql}", code=code)
        check_type(subscription.expression_type, is_enabled=self.core.options.property_filter_enable)
        return sql

    def _check_is_registered(self, channel: Channel, name: str) -> None:
        if is_system_group(name):
            return
        group = self.core.consumers.get(name)
        is_active = group is None or group.consumption.consume_type == ACTIVE_TYPE
        if is_active and self.core.consumers.member(name, channel) is None:
            raise RequestRejected(
                f"rejectPullConsumerEnable is set and this connection is not a registered consumer of {name}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
