"""The parts of a broker without a replica, a name server or a listening port, for tests of its handlers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.broker.parts import Parts
from tandemmq.broker.tables import Tables
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.ports import Machine
from tandemmq.store import MessageStore


def make_lone_parts(
    options: BrokerOptions,
    store: MessageStore,
    tables: Tables,
    *,
    clock: ManualClock,
    disk: MemoryDisk,
    seed: int = 1,
) -> Parts:
    """Returns the parts; their `core` is the broker's."""
    network = MemoryNetwork(clock)
    core = BrokerCore.build(
        options,
        store=store,
        tables=tables,
        own_address=lambda: "127.0.0.1:10911",
        may_commit=lambda: True,
        client=RemotingClient(network=network, clock=clock),
        machine=Machine(network, disk, clock, SeededRandom(seed)),
    )
    alone: Any = SimpleNamespace(
        is_master_known=True,
        is_copied=None,
        forward_deletion=None,
        wait_registered=None,
        register_soon=None,
    )
    return Parts(core, AccessOptions(), alone, alone, dict)
