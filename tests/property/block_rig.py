"""Two brokers in memory that get the same bytes in the same pieces; only one of them takes blocks.

`Side` is one of them. Whatever the pieces contain, the ends of both sides must be equal.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lone_parts import make_lone_parts
from sim.dice import Dice
from sim.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.parts import build_routes
from tandemmq.broker.tables import Tables
from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import SERIALIZE_JSON
from tandemmq.protocol.frame import Frame, FrameDecoder
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.dispatch import RequestDispatcher
from tandemmq.remoting.options import ChannelLimits
from tandemmq.remoting.rpc_times import MeasuredChannel, RpcTimes
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import BrokerRole, FlushMode, MessageStore, StoreOptions
from tandemmq.store.consume_queues import QueueKey

ROOT = Path("/broker")
QUEUES = 4
TOPICS = ("T", "Tags", "T" * 140, "%RETRY%group")


@dataclass
class Transport:
    """The broker's end of a connection, which keeps what is written."""

    written: bytearray = field(default_factory=bytearray)
    is_closed: bool = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("10.1.2.3", 5005) if name == "peername" else ("127.0.0.1", 10911)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.written += b"".join(pieces)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        return None

    def resume_reading(self) -> None:
        return None


@dataclass
class FullDisk(NoFault):
    """A disk whose writes fail while `is_full`."""

    is_full: bool = False

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return size // 2 if self.is_full and "commitlog" in path.parts else size


class Side:
    """One of the two brokers."""

    def __init__(self, seed: int, *, takes_blocks: bool) -> None:
        self.seed = seed
        self.takes_blocks = takes_blocks
        self.clock = ManualClock()
        self.times = RpcTimes(self.clock)
        self.is_measured = seed % 3 == 0
        self.fault = FullDisk()
        self.disk = MemoryDisk(fault=self.fault)
        self.blocks: Counter[int] = Counter()
        self.transport = Transport()
        self.notices: list[dict[QueueKey, int]] = []
        self.waiting: list[tuple[int, int]] = []

    async def start(self) -> None:
        dice = Dice(self.seed)
        options = BrokerOptions(cluster_name=dice.pick(("C", "Zürich")), broker_name="b")
        store_options = StoreOptions(
            root=ROOT,
            flush_mode=dice.pick(list(FlushMode)),
            role=dice.pick((BrokerRole.ASYNC_MASTER, BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER)),
            in_sync_replicas=dice.pick((1, 1, 2)),
            waiting_sends_max=dice.pick((100, 200_000, 200_000, 200_000)),
            commit_log_file_bytes=dice.pick((32, 128, 1024)) * 1024,
            consume_queue_file_bytes=20_000,
            message_bytes_max=dice.pick((600, 4 << 20)),
            key_index_slot_count=100,
            key_index_entry_count=dice.pick((300, 4000)),
        )
        self.store = await MessageStore.open(store_options, disk=self.disk, clock=self.clock)
        tables = Tables(options, ROOT / "config", disk=self.disk, clock=self.clock)
        tables.load(delay_level_count=18)
        for topic in TOPICS:
            config = TopicConfig(
                name=topic,
                read_queue_count=QUEUES,
                write_queue_count=QUEUES,
                permission=6,
                filter_type="MULTI_TAG" if topic == "Tags" else "SINGLE_TAG",
            )
            tables.topics.add_missing([config], self.clock.now_ms())
        self.scope = TaskScope("test")
        self.scope.start("saver", tables.saver.run())
        self.parts = make_lone_parts(
            options, self.store, tables, clock=self.clock, disk=self.disk, seed=self.seed
        )
        self.core = self.parts.core
        routes = build_routes(self.parts)
        self.dispatcher = RequestDispatcher(routes, self.scope, tasks_max=64, on_fatal=None)
        self.store.dispatcher.on_dispatch(lambda newest: self.notices.append(dict(newest)))
        self.connect()
        await self.clock.pass_time(0)

    def connect(self) -> None:
        """Opens a new connection."""
        kind = partial(MeasuredChannel, times=self.times) if self.is_measured else Channel
        self.channel = kind(
            self.dispatcher.dispatch,
            clock=self.clock,
            limits=ChannelLimits(),
            on_block=self._take_block if self.takes_blocks else None,
        )
        self.channel.connection_made(self.transport)  # type: ignore[arg-type]

    def _take_block(self, channel: Channel, frames: Sequence[Frame]) -> bool:
        is_taken = self.dispatcher.dispatch_block(channel, frames)
        if is_taken:
            self.blocks[json.loads(frames[0][0])["code"]] += 1
        return is_taken

    async def receive(self, piece: bytes) -> None:
        self.channel.data_received(piece)
        self.clock.run_soon()
        facts = self.store.facts()
        self.waiting.append((facts.sends_waiting_for_flush, facts.sends_waiting_for_acks))
        if self.channel.is_closed:
            self.channel.connection_lost(None)
            self.transport.is_closed = False
            self.connect()

    async def end(self) -> dict[str, object]:
        """Returns everything that the broker has stored, answered and counted."""
        await self.clock.pass_time(20)
        stats = self.core.stats
        for _ in stats.arrivals.fold():
            pass
        rows = {key: (row.messages, row.bytes, row.sizes.counts) for key, row in stats.arrivals.rows.items()}
        queues = {
            (topic, queue_id): (
                self.store.queue_min(topic, queue_id),
                self.store.queue_max(topic, queue_id),
                self.store.queue_next(topic, queue_id),
                queue.end_log_offset,
            )
            for (topic, queue_id), queue in self.store.queues.table.items()
        }
        dispatched = self.store.dispatcher.dispatched_count
        await self.scope.close()
        await self.store.close()
        files = {
            str(path): bytes(node.data)
            for path, node in sorted(self.disk._nodes.items())
            if {"commitlog", "consumequeue", "index"} & set(path.parts)
        }
        return {
            "answers": bytes(self.transport.written),
            "rows": rows,
            "bytes": stats.put_bytes,
            "queues": queues,
            "dispatched": dispatched,
            "outcomes": self.store.recorder.outcomes,
            "waiting": self.waiting,
            "notices": self.notices,
            "times": {row: (times.counts, times.total) for row, times in self.times.rows.items()},
            **files,
        }


def with_header(frame: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Returns the frame with a changed header."""
    size = int.from_bytes(frame[5:8], "big")
    header, body = change(frame[8 : 8 + size]), frame[8 + size :]
    length, mark = 4 + len(header) + len(body), SERIALIZE_JSON << 24 | len(header)
    return length.to_bytes(4, "big") + mark.to_bytes(4, "big") + header + body


def are_all_readable(frames: Sequence[bytes]) -> bool:
    """Returns False if one of these ends the connection before any of the requests is handled."""
    try:
        FrameDecoder().feed(b"".join(frames))
    except RemoteProtocolError:
        return False
    return True
