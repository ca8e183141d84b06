"""The parts of pop consumption, built in the order of what they need."""

from __future__ import annotations

from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.ack_handlers import AckHandlers
from tandemmq.broker.pop.admission import PopAdmission
from tandemmq.broker.pop.handlers import PopHandlers
from tandemmq.broker.pop.lease_log import LeaseLog
from tandemmq.broker.pop.lease_records import LeaseRecords
from tandemmq.broker.pop.leases import Leases
from tandemmq.broker.pop.order_table import OrderTable
from tandemmq.broker.pop.polls import PopPolls
from tandemmq.broker.pop.reading import PopReader
from tandemmq.broker.pop.revive import Revive
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.table_file import TableFile, TableSaver
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.runtime.ports import Clock, Random
from tandemmq.store import MessageStore


class PopService:
    """Handlers, the held requests, and the task that brings messages back."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        orders: OrderTable,
        creator: TopicCreator,
        saver: TableSaver,
        group_file: TableFile,
        stats: BrokerStats,
        clock: Clock,
        chance: Random,
    ) -> None:
        self.leases = Leases(options.pop_lease_count_max)
        self.polls = PopPolls(
            clock=clock,
            count_max=options.pop_poll_count_max,
            count_per_group_max=options.pop_poll_count_per_group_max,
        )
        lease_log = LeaseLog(
            store,
            self.leases,
            offsets,
            records=LeaseRecords(cluster=options.cluster_name, broker_name=options.broker_name),
            queue_count=options.revive_queue_count,
            clock=clock,
        )
        self.revive = Revive(
            lease_log,
            store=store,
            topics=topics,
            groups=groups,
            creator=creator,
            uses_v2=options.pop_retry_v2,
            clock=clock,
        )
        admission = PopAdmission(options, topics=topics, groups=groups)
        reader = PopReader(
            options,
            store=store,
            offsets=offsets,
            lease_log=lease_log,
            orders=orders,
            chance=chance,
            now_ms=clock.now_ms,
        )
        self.pops = PopHandlers(
            options,
            admission=admission,
            reader=reader,
            lease_log=lease_log,
            orders=orders,
            polls=self.polls,
            saver=saver,
            group_file=group_file,
            stats=stats,
            clock=clock,
        )
        self.acks = AckHandlers(
            admission=admission,
            lease_log=lease_log,
            orders=orders,
            polls=self.polls,
            store=store,
            topics=topics,
            wake_at=self.pops.wake_at,
            stats=stats,
            clock=clock,
        )
        store.on_dispatch(self.polls.on_dispatch)
        self._orders = orders
        self._lease_log = lease_log
        offsets.on_topic_dropped.append(self._on_topic_dropped)
        offsets.on_group_dropped.append(self._on_group_dropped)
        offsets.on_reset.append(self._on_reset)

    def _on_topic_dropped(self, topic: str) -> None:
        self._lease_log.forget_topic(topic)
        self._orders.drop_topic(topic)

    def _on_group_dropped(self, group: str) -> None:
        self._lease_log.forget_group(group)
        self._orders.drop_group(group)

    def _on_reset(self, group: str, topic: str, queue_id: int) -> None:
        """What the group has open in order holds the queue no longer, and its acks move nothing: they would
        undo the reset. Pops that wait go on at the new place.
        """
        self._orders.clear((topic, group, queue_id))
        self.polls.touch((topic, group), queue_id)
