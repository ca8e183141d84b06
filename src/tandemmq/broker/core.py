"""The value that every capability of a broker is built from.

`BrokerCore` holds what nearly all handlers need: the store, the tables, the connected clients, the statistics
and the machine. A handler keeps the core and its own state; it knows no other handler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandemmq.broker.clients.consumer_table import ConsumerTable, ProducerTable, Refusals
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pull.long_poll import LongPolls
from tandemmq.broker.stats import BrokerStats, StatsItems
from tandemmq.broker.tables import Tables
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock, Disk, Machine, Random
from tandemmq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCore:
    """The parts of one broker that its capabilities share. `topics`, `groups` and `offsets` are those of
    `tables`.
    """

    options: BrokerOptions
    store: MessageStore
    tables: Tables
    client: RemotingClient
    disk: Disk
    clock: Clock
    chance: Random
    own_address: Callable[[], str]
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    creator: TopicCreator
    consumers: ConsumerTable
    producers: ProducerTable
    refusals: Refusals
    long_polls: LongPolls
    stats: BrokerStats
    items: StatsItems

    @classmethod
    def build(
        cls,
        options: BrokerOptions,
        *,
        store: MessageStore,
        tables: Tables,
        client: RemotingClient,
        machine: Machine,
        own_address: Callable[[], str],
    ) -> BrokerCore:
        """Returns the core of a broker whose store and tables are loaded."""
        clock = machine.clock
        stats = BrokerStats(clock.monotonic())
        return cls(
            options=options,
            store=store,
            tables=tables,
            client=client,
            disk=machine.disk,
            clock=clock,
            chance=machine.chance,
            own_address=own_address,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            creator=TopicCreator(options, tables, clock),
            consumers=ConsumerTable(groups_per_client_max=options.groups_per_client_max),
            producers=ProducerTable(groups_per_client_max=options.groups_per_client_max),
            refusals=Refusals(clock),
            long_polls=LongPolls(
                clock=clock,
                count_max=options.long_poll_count_max,
                count_per_queue_max=options.long_poll_count_per_queue_max,
            ),
            stats=stats,
            items=StatsItems(options.cluster_name, store=store, topics=tables.topics, stats=stats),
        )
