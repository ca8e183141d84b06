"""Questions about brokers and topics, and the operator's changes: 105, 106, 205, 206, 216, 224, 304, 311 to
313, 327, 901 (spec nameserver 6 and 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from tandemmq.errors import RequestRejected, TopicNotFound
from tandemmq.nameserver.kv_config import ORDER_TOPICS, KvTable
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.nameserver.route_table import RouteTable
from tandemmq.nameserver.route_view import select_zone
from tandemmq.protocol.bodies.cluster import encode_cluster_info
from tandemmq.protocol.bodies.route import encode_member_group, encode_topic_route
from tandemmq.protocol.bodies.topic import encode_topic_list
from tandemmq.protocol.codes import VERSION_STANDARD_JSON
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.route import (
    AddWritePermissionRequest,
    AddWritePermissionResponse,
    DeleteTopicInNameServerRequest,
    MemberGroupRequest,
    RouteRequest,
    TopicsByClusterRequest,
    WipeWritePermissionRequest,
    WipeWritePermissionResponse,
)
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock

FLAG_UNIT = 1
FLAG_UNIT_SUB = 2


class QueryHandlers:
    """Reads of the route table; `started_at_s` is the monotonic time at which the server began to listen."""

    def __init__(
        self,
        table: RouteTable,
        orders: KvTable,
        *,
        clock: Clock,
        options: Callable[[], NameServerOptions],
    ) -> None:
        self.started_at_s = clock.monotonic()
        self._table = table
        self._orders = orders
        self._clock = clock
        self._options = options

    def handle_route(self, channel: Channel, command: Command) -> Command:
        """GET_ROUTEINFO_BY_TOPIC (105), in the dialect that the client reads by its version or word."""
        header = command.decode(RouteRequest)
        options = self._options()
        age_s = self._clock.monotonic() - self.started_at_s
        if options.wait_for_service and age_s < options.wait_for_service_s:
            raise RequestRejected("the name server waits for brokers to register")
        route = self._table.route(header.topic, shows_acting_master=options.acting_master_enable)
        if route is None:
            raise TopicNotFound(f"no route of topic {header.topic}: no broker has registered it")
        if options.order_message_enable:
            route = replace(route, order_topic_conf=self._orders.get(ORDER_TOPICS, header.topic))
        if header.is_zone_mode and header.zone_name and header.zone_name.strip():
            route = select_zone(route, header.zone_name)
        is_strict = _reads_strict_json(command) or bool(header.accepts_standard_json)
        return command.reply(body=encode_topic_route(route, is_strict=is_strict))

    def handle_cluster_info(self, channel: Channel, command: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO (106)."""
        info = self._table.cluster_info()
        return command.reply(body=encode_cluster_info(info, is_strict=_reads_strict_json(command)))

    def handle_member_group(self, channel: Channel, command: Command) -> Command:
        """GET_BROKER_MEMBER_GROUP (901): the replicas of a broker name; none when it is unknown."""
        header = command.decode(MemberGroupRequest)
        group = self._table.member_group(header.cluster_name, header.broker_name)
        return command.reply(body=encode_member_group(group))

    def handle_all_topics(self, channel: Channel, command: Command) -> Command:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        if not self._options().all_topic_list_enable:
            raise RequestRejected("enableAllTopicList is false")
        return command.reply(body=encode_topic_list(self._table.topics()))

    def handle_topics_of_cluster(self, channel: Channel, command: Command) -> Command:
        """GET_TOPICS_BY_CLUSTER (224)."""
        header = command.decode(TopicsByClusterRequest)
        return self._topic_list(command, self._table.topics_of_cluster(header.cluster))

    def handle_system_topics(self, channel: Channel, command: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304): clusters, brokers, and one of those to ask for more."""
        names, broker_address = self._table.system_topics()
        return command.reply(body=encode_topic_list(names, broker_address))

    def handle_unit_topics(self, channel: Channel, command: Command) -> Command:
        """GET_UNIT_TOPIC_LIST (311)."""
        return self._topic_list(command, self._table.topics_with_flag(set_bits=FLAG_UNIT))

    def handle_unit_sub_topics(self, channel: Channel, command: Command) -> Command:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312)."""
        return self._topic_list(command, self._table.topics_with_flag(set_bits=FLAG_UNIT_SUB))

    def handle_unit_sub_topics_outside_units(self, channel: Channel, command: Command) -> Command:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313)."""
        topics = self._table.topics_with_flag(set_bits=FLAG_UNIT_SUB, clear_bits=FLAG_UNIT)
        return self._topic_list(command, topics)

    def handle_delete_topic(self, channel: Channel, command: Command) -> Command:
        """DELETE_TOPIC_IN_NAMESRV (216): of one cluster, or of all when none is named."""
        header = command.decode(DeleteTopicInNameServerRequest)
        self._table.delete_topic(header.topic, header.cluster_name or None)
        return command.reply()

    def handle_wipe_write_permission(self, channel: Channel, command: Command) -> Command:
        """WIPE_WRITE_PERM_OF_BROKER (205): how many topics of the broker were touched."""
        header = command.decode(WipeWritePermissionRequest)
        count = self._table.wipe_write_permission(header.broker_name)
        return command.reply(header=WipeWritePermissionResponse(topic_count=count))

    def handle_add_write_permission(self, channel: Channel, command: Command) -> Command:
        """ADD_WRITE_PERM_OF_BROKER (327): how many topics of the broker were touched."""
        header = command.decode(AddWritePermissionRequest)
        count = self._table.add_write_permission(header.broker_name)
        return command.reply(header=AddWritePermissionResponse(topic_count=count))

    def _topic_list(self, command: Command, topics: Iterable[str]) -> Command:
        if not self._options().topic_list_enable:
            raise RequestRejected("enableTopicList is false")
        return command.reply(body=encode_topic_list(topics))


def _reads_strict_json(command: Command) -> bool:
    return command.version >= VERSION_STANDARD_JSON
