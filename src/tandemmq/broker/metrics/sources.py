"""What the metrics of a broker are read from: its parts, none of which knows of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandemmq.broker.clients.consumer_table import ConsumerTable
from tandemmq.broker.clients.refusals import Refusals
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pop.service import PopService
from tandemmq.broker.pull.long_poll import LongPolls
from tandemmq.broker.replica import ReplicaRole
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.tables import Tables
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """The parts of one broker. `listeners`: its remoting servers by name."""

    options: BrokerOptions
    store: MessageStore
    tables: Tables
    stats: BrokerStats
    long_polls: LongPolls
    pop: PopService
    consumers: ConsumerTable
    refusals: Refusals
    listeners: Mapping[str, RemotingServer]
    replica: ReplicaRole | None
    disk: Disk
    clock: Clock
