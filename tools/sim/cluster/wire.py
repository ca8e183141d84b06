"""Checks the bytes that masters and slaves write on replication connections (I2, I3).

Knows not: how either side builds its frames; their format is parsed independently, from spec replication 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from sim.cluster.loop import SimProcess
from sim.cluster.network import OnBytes
from sim.cluster.nodes import BrokerNode
from sim.cluster.world import World
from tandemmq.replication.core.frames import TANDEM_BODY_BYTES_MAX

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


class ReplicationWire:
    """Watches every connection to a replication port."""

    def __init__(self, world: World, brokers: Sequence[BrokerNode]) -> None:
        self._world = world
        self._brokers = brokers

    def watch(self, client: SimProcess, server: SimProcess) -> tuple[OnBytes, OnBytes]:
        """Returns the checkers of the slave's bytes and of the master's bytes."""
        reports = _Reports(self._world, self._node_of(client))
        return reports.feed, _Frames(self._world, server.name).feed

    def _node_of(self, process: SimProcess) -> BrokerNode | None:
        return next((node for node in self._brokers if node.process is process), None)


class _Reports:
    """I2: a report never exceeds what is stored; within a connection reports never decrease."""

    def __init__(self, world: World, slave: BrokerNode | None) -> None:
        self._world = world
        self._slave = slave
        self._rest = b""
        self._last = 0

    def feed(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= _REPORT.size:
            (offset,) = _REPORT.unpack_from(self._rest)
            self._rest = self._rest[_REPORT.size :]
            self._check(offset)

    def _check(self, offset: int) -> None:
        broken = self._world.findings.broken
        if offset < self._last:
            broken.append(f"{self._slave and self._slave.process} reports {offset} after {self._last}")
        self._last = offset
        store = None if self._slave is None or self._slave.broker is None else self._slave.broker.store
        if store is not None and offset > store.appended.value:
            assert self._slave is not None
            broken.append(f"{self._slave.process} reports {offset}, it holds {store.appended.value}")


class _Frames:
    """I3: each frame begins where the previous one ended, is no larger than a batch, and stays in one
    file.
    """

    def __init__(self, world: World, master: str) -> None:
        self._world = world
        self._master = master
        self._head = b""
        self._body_left = 0
        self._next: int | None = None

    def feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self._body_left:
                step = min(self._body_left, len(data) - position)
                self._body_left -= step
            else:
                step = min(_HEAD.size - len(self._head), len(data) - position)
                self._head += data[position : position + step]
                if len(self._head) == _HEAD.size:
                    self._check_head(*_HEAD.unpack(self._head))
                    self._head = b""
            position += step

    def _check_head(self, offset: int, size: int) -> None:
        settings = self._world.settings
        file_bytes = settings.commit_log_file_bytes
        batch_bytes = max(settings.transfer_bytes_max, TANDEM_BODY_BYTES_MAX)  # TandemMQ slaves only
        wrong = ""
        if self._next is not None and offset != self._next:
            wrong = f"the one before ended at {self._next}"
        elif not 0 <= size <= batch_bytes:
            wrong = f"a batch has at most {batch_bytes} bytes"
        elif offset % file_bytes + size > file_bytes:
            wrong = f"it crosses the end of a file of {file_bytes} bytes"
        if wrong:
            self._world.findings.broken.append(f"{self._master} sends {size} bytes from {offset} on: {wrong}")
        self._body_left = max(0, size)
        self._next = offset + size
