"""Topics created by use: `TopicCreator` creates them, and `UnsavedTopics` holds their sends until the topic
is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from tandemmq.broker.guards import require_group
from tandemmq.broker.options import PERMISSION_INHERIT, BrokerOptions
from tandemmq.broker.table_file import TableFile, TableSaver
from tandemmq.broker.tables import Tables
from tandemmq.broker.topics.topic_table import READ_WRITE, make_topic
from tandemmq.errors import Busy
from tandemmq.protocol.bodies.tables import TOPIC_UNIT, TOPIC_UNIT_SUBSCRIPTION, TopicConfig
from tandemmq.protocol.topic_names import AUTO_CREATE_TOPIC, dlq_topic, retry_topic
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

HELD_SENDS_MAX = 10_000

Resume = Callable[[OSError | None], None]
"""Resumes a held send; the argument is the error if the topic could not be written."""


class UnsavedTopics:
    """The topics that wait to be written, and the sends held for them.

    A message may be acknowledged only if its topic would still be known after a crash; otherwise the message
    is stored but cannot be read (spec store 18). So sends to a new topic are held until `topics.json` is
    written, and then handled in order of arrival as if they had just arrived. Sends to other topics never
    wait.
    """

    def __init__(self, saver: TableSaver, file: TableFile) -> None:
        self._saver = saver
        self._file = file
        self._held: dict[str, list[Resume]] = {}
        self._held_count = 0
        self._is_requested = False

    def __contains__(self, topic: str) -> bool:
        return topic in self._held

    def add(self, topic: str) -> None:
        """Adds a topic that was just created and whose table is marked as changed."""
        self._held.setdefault(topic, [])
        self._request_save()

    def hold(self, topic: str, resume: Resume) -> None:
        """Calls `resume` once the topic is on disk or cannot be written.

        Raises:  Busy when HELD_SENDS_MAX sends wait already.
        """
        if self._held_count >= HELD_SENDS_MAX:
            raise Busy(f"[OVERLOAD]{HELD_SENDS_MAX} sends wait for new topics to be written, try again")
        self._held[topic].append(resume)
        self._held_count += 1
        self._request_save()

    def _request_save(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self._saver.save_then(self._file, partial(self._on_saved, list(self._held)))

    def _on_saved(self, topics: list[str], error: OSError | None) -> None:
        self._is_requested = False
        ready: list[Resume] = []
        for topic in topics:
            ready += self._held[topic]
            if error is None:
                del self._held[topic]
            else:
                self._held[topic] = []  # still unsaved: the next send to it requests another write
        self._held_count -= len(ready)
        if error is None and self._held:
            self._request_save()
        for resume in ready:
            resume(error)


class TopicCreator:
    """Creates the topics that clients need: from a template, for retries, for dead letters (spec semantics
    6.2 and 7.1). Each is in the table when the call returns.
    """

    def __init__(self, options: BrokerOptions, tables: Tables, clock: Clock) -> None:
        self.unsaved = UnsavedTopics(tables.saver, tables.topic_file)
        self._options = options
        self._tables = tables
        self._topics = tables.topics
        self._clock = clock

    def create_from_template(
        self, topic: str, *, template_name: str, queue_count: int, is_unit: bool, peer: str
    ) -> TopicConfig | None:
        """Returns the new topic, or None when the template is missing or does not allow inheritance.

        Raises:  NotPermitted when `peer` has created too many (`CreationQuota`); Busy when the table is full.
        """
        template = self._topics.get(template_name)
        if template is None:
            return None
        permission = template.permission
        if template_name == AUTO_CREATE_TOPIC and not self._options.auto_create_topic:
            permission = READ_WRITE
        if not permission & PERMISSION_INHERIT:
            return None
        self._topics.require_room([topic])
        self._tables.quota.take(peer, topic)
        count = max(0, min(queue_count, template.write_queue_count))
        config = TopicConfig(
            name=topic,
            read_queue_count=count,
            write_queue_count=count,
            permission=permission & ~PERMISSION_INHERIT,
            filter_type=template.filter_type,
            sys_flag=TOPIC_UNIT if is_unit else 0,
        )
        self._put(config, f"sent to by {peer}, from the template {template_name}")
        return config

    def create_retry_topic(self, group: str, *, peer: str, queue_count: int, is_unit: bool) -> TopicConfig:
        """Returns the group's retry topic, creating it if missing.

        Raises:  the errors of `require_group` when the group does not exist.
        """
        name = retry_topic(group)
        config = self._topics.get(name)
        if config is None:
            require_group(self._tables.groups, group, self._clock.now_ms(), peer)
            sys_flag = TOPIC_UNIT_SUBSCRIPTION if is_unit else 0
            config = msgspec.structs.replace(make_topic(name, queue_count), sys_flag=sys_flag)
            self._put(config, f"retries of the group {group}")
        return config

    def create_dlq_topic(self, group: str) -> TopicConfig:
        """Returns the group's dead letter topic, creating it if missing: one readable and writeable queue."""
        name = dlq_topic(group)
        config = self._topics.get(name)
        if config is None:
            config = make_topic(name, 1)
            self._put(config, f"dead letters of the group {group}")
        return config

    def create_pop_retry_topic(self, name: str, group: str, queue_count: int) -> None:
        """Creates the topic for the group's unacknowledged pops, or gives it `queue_count` queues if it has
        fewer.
        """
        config = self._topics.get(name)
        if config is None or config.read_queue_count < queue_count:
            counts = {"read_queue_count": queue_count, "write_queue_count": queue_count}
            config = msgspec.structs.replace(config or make_topic(name, queue_count), **counts)
            self._put(config, f"unacknowledged pops of the group {group}")

    def _put(self, config: TopicConfig, reason: str) -> None:
        self._topics.put(config, self._clock.now_ms())
        self.unsaved.add(config.name)
        log.info(
            events.TOPIC_CREATED,
            extra={"topic": config.name, "queue_count": config.write_queue_count, "reason": reason},
        )
