"""Asks the brokers of each topic whether they serve its SQL92 filter, before a consumer begins
(CHECK_CLIENT_CONFIG, spec semantics 9.2).
"""

from __future__ import annotations

from collections.abc import Iterable

from tandemmq.api import broker_client
from tandemmq.client.consumer.subscription import Subscription
from tandemmq.client.instance import ClientInstance
from tandemmq.protocol.bodies.heartbeat import ClientConfigCheck


async def check_filters(instance: ClientInstance, group: str, subscriptions: Iterable[Subscription]) -> None:
    """Returns when nothing is in the way; a topic without a route is passed over.

    Raises:  RequestRejected when filters by property are off there (enablePropertyFilter), or the broker
             does not understand the expression; BrokerUnreachable, RequestTimeout.
    """
    for subscription in subscriptions:
        if subscription.sql is None:
            continue
        view = instance.routes.get(subscription.topic)
        for name in sorted({queue.broker_name for queue in view.subscribe_queues} if view else ()):
            address = view.master_address(name) if view is not None else None
            if address is None:
                continue
            check = ClientConfigCheck(
                client_id=instance.client_id, group=group, subscription=subscription.describe()
            )
            await broker_client.check_client_config(
                instance.remoting, address, check, timeout_s=instance.options.call_timeout_s
            )
