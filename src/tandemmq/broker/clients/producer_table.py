"""Producers that are online, by group (spec semantics 16.2). Pure; time is passed in."""

from __future__ import annotations

from tandemmq.broker.clients.membership import Member, Membership
from tandemmq.remoting.channel import Channel


class ProducerTable:
    """All online producer groups."""

    def __init__(self, *, groups_per_client_max: int) -> None:
        self._membership = Membership(groups_per_client_max=groups_per_client_max)
        self._by_client: dict[str, Channel] = {}
        self._clients: dict[Channel, str] = {}

    @property
    def groups(self) -> list[str]:
        return self._membership.groups

    def members(self, group: str) -> list[Member]:
        return self._membership.members(group)

    def register(self, group: str, member: Member) -> None:
        self._membership.add(group, member)
        if self._clients.get(member.channel) != member.client_id:
            self._forget_client(member.channel)
            self._clients[member.channel] = member.client_id
        self._by_client[member.client_id] = member.channel

    def find_client(self, client_id: str) -> Channel | None:
        """The connection over which the client's last heartbeat came; None when it is in no group."""
        return self._by_client.get(client_id)

    def unregister(self, group: str, channel: Channel) -> None:
        self._membership.remove(group, channel)
        if not self._membership.groups_of(channel):
            self._forget_client(channel)

    def drop_channel(self, channel: Channel) -> None:
        self._membership.drop_channel(channel)
        self._forget_client(channel)

    def heard_s(self, channel: Channel) -> float | None:
        """When the connection's last heartbeat came, by the monotonic clock; None when it is in no group."""
        return self._membership.heard_s(channel)

    def _forget_client(self, channel: Channel) -> None:
        client_id = self._clients.pop(channel, None)
        if client_id is not None and self._by_client.get(client_id) is channel:
            del self._by_client[client_id]
