"""Producers that are online, by group (spec semantics 16.2). Pure; time is passed in."""

from __future__ import annotations

from tandemmq.broker.clients.membership import Member, Membership
from tandemmq.remoting.channel import Channel


class ProducerTable:
    """All online producer groups."""

    def __init__(self, *, groups_per_client_max: int) -> None:
        self._membership = Membership(groups_per_client_max=groups_per_client_max)

    @property
    def groups(self) -> list[str]:
        return self._membership.groups

    def members(self, group: str) -> list[Member]:
        return self._membership.members(group)

    def register(self, group: str, member: Member) -> None:
        self._membership.add(group, member)

    def unregister(self, group: str, channel: Channel) -> None:
        self._membership.remove(group, channel)

    def drop_channel(self, channel: Channel) -> None:
        self._membership.drop_channel(channel)

    def seen_at_ms(self, channel: Channel) -> int:
        """When the connection's last heartbeat came; 0 when it is in no group."""
        return self._membership.seen_at_ms(channel)
