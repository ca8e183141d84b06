"""How a route is shown to one asker: acting masters, zones; pure.

Source:  spec nameserver 6 and 9.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tandemmq.nameserver.brokers import MASTER_ID
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.protocol.bodies.topic import Permission

SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics by which a replica set talks to itself: they show the addresses as they are."""


def with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """While there is no master, the smallest slave id of a topic that is not writable stands as id 0.

    Source:  spec nameserver 9.
    """
    is_writable = queues.permission & Permission.WRITE != 0
    if not broker.is_acting_master_enabled or MASTER_ID in broker.addresses or is_writable:
        return broker
    (_, address), *others = sorted(broker.addresses.items())
    return replace(broker, addresses={MASTER_ID: address, **dict(others)})


def select_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Without the brokers that have a master in another zone, and without their queues (spec nameserver 6).

    Both lists may end up empty.
    """
    kept = tuple(
        broker
        for broker in route.brokers
        if MASTER_ID not in broker.addresses or (broker.zone_name or "").lower() == zone_name.lower()
    )
    dropped = {broker.broker_name for broker in route.brokers} - {broker.broker_name for broker in kept}
    queues = tuple(data for data in route.queues if data.broker_name not in dropped)
    return replace(route, brokers=kept, queues=queues)
