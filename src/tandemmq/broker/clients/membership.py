"""Which connections belong to which groups: the structure under the consumer and the producer table. Pure.

Invariant:  a group is in the table while it has a member; both directions always agree.
At a bound: a connection that asks for one group too many is refused with BadRequest.
"""

from __future__ import annotations

from tandemmq.errors import BadRequest
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.channel import Channel


class Member:
    """One client of a group, as its last heartbeat said.

    `seen_at_ms`: when that was, for people; `heard_s`: by the monotonic clock, because a wall clock that is
    set must expire nobody.
    """

    __slots__ = ("channel", "client_id", "heard_s", "language", "seen_at_ms", "version")

    def __init__(
        self,
        channel: Channel,
        client_id: str,
        language: int,
        version: int,
        *,
        seen_at_ms: int = 0,
        heard_s: float = 0.0,
    ) -> None:
        self.channel = channel
        self.client_id = client_id
        self.language = language
        self.version = version
        self.seen_at_ms = seen_at_ms
        self.heard_s = heard_s


class Membership:
    """Members by group and by connection."""

    def __init__(self, *, groups_per_client_max: int) -> None:
        self._groups_per_client_max = groups_per_client_max
        self._by_group: dict[str, dict[Channel, Member]] = {}
        self._by_channel: dict[Channel, dict[str, None]] = {}

    def __contains__(self, group: object) -> bool:
        return group in self._by_group

    @property
    def groups(self) -> list[str]:
        return list(self._by_group)

    def members(self, group: str) -> list[Member]:
        """Oldest first; empty for an unknown group."""
        return list(self._by_group.get(group, {}).values())

    def get(self, group: str, channel: Channel) -> Member | None:
        members = self._by_group.get(group)
        return None if members is None else members.get(channel)

    def groups_of(self, channel: Channel) -> list[str]:
        return list(self._by_channel.get(channel, ()))

    def add(self, group: str, member: Member) -> bool:
        """True when the connection is new in the group or says another client id than before."""
        channel = member.channel
        groups = self._by_channel.setdefault(channel, {})
        if group not in groups and len(groups) >= self._groups_per_client_max:
            raise BadRequest(
                f"the client {member.client_id[:64]} is in {len(groups)} groups; at most"
                f" {self._groups_per_client_max} are allowed for one connection",
                code=ResponseCode.INVALID_PARAMETER,
            )
        groups[group] = None
        members = self._by_group.setdefault(group, {})
        before = members.get(channel)
        members[channel] = member
        return before is None or before.client_id != member.client_id

    def remove(self, group: str, channel: Channel) -> bool:
        """True when the connection was a member."""
        members = self._by_group.get(group)
        if members is None or members.pop(channel, None) is None:
            return False
        if not members:
            del self._by_group[group]
        groups = self._by_channel[channel]
        del groups[group]
        if not groups:
            del self._by_channel[channel]
        return True

    def drop_channel(self, channel: Channel) -> list[str]:
        """The groups that the connection was in."""
        groups = self.groups_of(channel)
        for group in groups:
            self.remove(group, channel)
        return groups

    def heard_s(self, channel: Channel) -> float | None:
        """When any of the connection's memberships was refreshed last, by the monotonic clock; None when it
        has none.
        """
        groups = self._by_channel.get(channel, ())
        return max((self._by_group[group][channel].heard_s for group in groups), default=None)
