"""The subscription groups of this broker and their version (spec semantics 16.4, spec store 18).

The table also holds the forbidden pairs, (group, topic) -> bits, of which bit 2 forbids reading. It also
records groups that were deleted and not created again: a group that is merely unknown may be one a slave has
yet to learn of.
At a bound: a group too many is rejected with Busy; of more than DELETED_MAX deleted groups the oldest entry
            is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import UNSET

from tandemmq.broker.table_file import ConfigTable, StoredTable
from tandemmq.broker.topics.quota import CreationQuota
from tandemmq.errors import Busy
from tandemmq.protocol.bodies.client import RequestMode, RequestModes
from tandemmq.protocol.bodies.codec import DataVersion, decode_body
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, SubscriptionGroupTable
from tandemmq.protocol.topic_names import SYSTEM_GROUP_PREFIX, group_fault
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

FORBIDDEN_READ = 4
FORBIDDEN_MAX = 100_000
DELETED_MAX = 10_000


class GroupTable(ConfigTable[SubscriptionGroupConfig]):
    """Group configurations; a group may be created by use."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        create_system_groups: bool = True,
        count_max: int = 100_000,
        is_replica: bool = False,
        quota: CreationQuota | None = None,
    ) -> None:
        super().__init__("groups", count_max)
        self._forbidden: dict[str, dict[str, int]] = {}
        self._deleted: dict[str, int] = {}
        self.is_auto_created = auto_create
        self._create_system_groups = create_system_groups
        self._is_replica = is_replica
        self._quota = quota

    def find_or_create(self, group: str, now_ms: int, host: str = "") -> SubscriptionGroupConfig | None:
        """Returns the group, or None if it is missing and may not be created by use. `host`: the address that
        uses it, empty for the broker itself.

        Raises:  NotPermitted when `host` has created too many; Busy when the table is full.
        """
        config = self._configs.get(group)
        if config is not None:
            return config
        is_allowed = self.is_auto_created or (
            self._create_system_groups and group.startswith(SYSTEM_GROUP_PREFIX)
        )
        if not is_allowed or group_fault(group):
            return None
        self.require_room([group])
        if self._quota is not None:
            self._quota.take(host, group)
        config = SubscriptionGroupConfig(name=group)
        self.put(config, now_ms)
        log.info(events.GROUP_CREATED, extra={"group": group, "reason": "it was used"})
        return config

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> bool:
        is_changed = super().put(config, now_ms)
        self._deleted.pop(config.name, None)
        return is_changed

    def remove(self, name: str, now_ms: int) -> bool:
        self._forbidden.pop(name, None)
        is_removed = super().remove(name, now_ms)
        if is_removed:
            self.record_deleted({name: now_ms})
        return is_removed

    def record_deleted(self, groups: Mapping[str, int]) -> None:
        """Records groups deleted here or at the master; saved with the next change."""
        self._deleted |= {group: at_ms for group, at_ms in groups.items() if group not in self._configs}
        while len(self._deleted) > DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def is_deleted(self, group: str) -> bool:
        """Returns True if the group was deleted; False also if it was never known."""
        return group in self._deleted

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        of_group = self._forbidden.get(group)
        return of_group is not None and of_group.get(topic, 0) & FORBIDDEN_READ != 0

    def forbid_reading(self, group: str, topic: str, now_ms: int, *, is_forbidden: bool) -> bool:
        """Sets whether the group may read the topic. Returns False if nothing changed. Pairs that are not
        forbidden have no entry.

        Raises:  Busy when `FORBIDDEN_MAX` pairs are forbidden.
        """
        if is_forbidden == self.is_read_forbidden(group, topic):
            return False
        topics = self._forbidden.get(group, {})
        bits = topics.get(topic, 0) ^ FORBIDDEN_READ
        if bits:
            if sum(map(len, self._forbidden.values())) >= FORBIDDEN_MAX:
                raise Busy(f"[OVERLOAD] the broker keeps at most {FORBIDDEN_MAX} forbidden topics of groups")
            self._forbidden.setdefault(group, topics)[topic] = bits
        else:
            del topics[topic]
            if not topics:
                del self._forbidden[group]
        self._change([group], self._next_version(now_ms))
        return True

    def replace_all(self, configs: Mapping[str, SubscriptionGroupConfig], data_version: DataVersion) -> None:
        """Replaces the table by the master's, version included; forbidden pairs stay (spec replication
        6.2).
        """
        self._configs = dict(configs)
        self._deleted = {group: at for group, at in self._deleted.items() if group not in configs}
        self._change([*configs], data_version)

    def snapshot(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            groups=self._configs,
            forbidden=self._forbidden,
            deleted=self._deleted or UNSET,
            data_version=self.data_version,
        )

    def load(self, data: bytes) -> None:
        """Loads the content of subscriptionGroup.json."""
        table = decode_body(data, SubscriptionGroupTable)
        self._configs = dict(table.groups)
        self._forbidden = {group: dict(topics) for group, topics in table.forbidden.items()}
        self._deleted = dict(table.deleted or {})
        self.data_version = table.data_version

    def _next_version(self, now_ms: int) -> DataVersion:
        # A group created by a slave itself is temporary. The slave keeps the master's version; otherwise
        # every synchronisation would find the tables different.
        return self.data_version if self._is_replica else super()._next_version(now_ms)


class ModeTable(StoredTable):
    """The explicitly set consumption modes, by topic and group: messageRequestMode.json. `on_change` is
    called after each change.

    At a bound: a new entry is rejected with Busy.
    """

    def __init__(self, *, count_max: int = 100_000) -> None:
        super().__init__()
        self._count_max = count_max
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get(topic, {}).get(group)

    def put(self, mode: RequestMode) -> None:
        if self.get(mode.topic, mode.group) is None and self._count() >= self._count_max:
            raise Busy(f"[OVERLOAD] the broker keeps the modes of {self._count_max} topics and groups")
        self._modes.setdefault(mode.topic, {})[mode.group] = mode
        self._after_change()

    def snapshot(self) -> RequestModes:
        return RequestModes(modes=self._modes)

    def replace_all(self, modes: Mapping[str, Mapping[str, RequestMode]]) -> None:
        """Replaces the table by the master's."""
        self._modes = {topic: dict(groups) for topic, groups in modes.items()}
        self._after_change()

    def load(self, data: bytes) -> None:
        """Loads the content of messageRequestMode.json."""
        self._modes = {topic: dict(groups) for topic, groups in decode_body(data, RequestModes).modes.items()}

    def _count(self) -> int:
        return sum(map(len, self._modes.values()))
