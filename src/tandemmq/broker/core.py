"""The value that every capability of a broker is built from.

`BrokerCore` holds the values that nearly all handlers need: options, store, tables, connected clients,
statistics, clock. `Broker` builds one core per role, and `Parts` passes it to every handler. A handler keeps
the core and its own state. Two handlers that share more state receive the shared object from `Parts`.
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
    """The values that the capabilities of one broker share. `topics`, `groups` and `offsets` are the members
    of `tables`, and are here because nearly every handler needs them.
    """

    options: BrokerOptions
    store: MessageStore
    tables: Tables
    client: RemotingClient
    disk: Disk
    clock: Clock
    chance: Random
    own_address: Callable[[], str]
    may_commit: Callable[[], bool]
    """Returns False while another broker may be the master: the offsets that pulls commit count there."""
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
        may_commit: Callable[[], bool],
    ) -> BrokerCore:
        """Returns the core of a broker; its store is open and its tables are loaded."""
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
            may_commit=may_commit,
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
