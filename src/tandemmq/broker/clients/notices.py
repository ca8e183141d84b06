"""Tells the members of a group that its membership changed, so that they rebalance (spec semantics 15, 16.1).

Changes of one loop turn (or of one period, when notices are not immediate) are told once per group: a hundred
clients that start together would otherwise cause ten thousand notices.
"""

from __future__ import annotations

from tandemmq.broker.clients.consumer_table import BROADCASTING, ConsumerTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.client import NotifyConsumerIdsChangedRequest
from tandemmq.runtime.ports import Clock


class Notices:
    """Collects changed groups and tells their members. `consumers` is set right after both were made."""

    consumers: ConsumerTable

    def __init__(self, options: BrokerOptions, groups: GroupTable, clock: Clock) -> None:
        self._options = options
        self._groups = groups
        self._clock = clock
        self._changed: dict[str, None] = {}

    def on_change(self, group: str) -> None:
        if not self._options.notify_consumer_ids_changed:
            return
        if not self._changed:
            if self._options.notify_at_once:
                self._clock.call_soon(self._tell)
            else:
                self._clock.call_later(self._options.notify_period_ms / 1000, self._tell)
        self._changed[group] = None

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        for name in changed:
            group = self.consumers.get(name)
            config = self._groups.get(name)
            if group is None or group.consumption.message_model == BROADCASTING:
                continue
            if config is not None and not config.notifies_members:
                continue
            header = NotifyConsumerIdsChangedRequest(consumer_group=name)
            for member in self.consumers.members(name):
                notice = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
                member.channel.send(notice)
