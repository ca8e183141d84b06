"""A broker process with small files, and an external client that remembers every acknowledged message."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from tandemmq.api.broker_consume import PullStatus, pull, query_max_offset
from tandemmq.api.broker_send import SendAnswer, SendStatus, send
from tandemmq.errors import TandemError
from tandemmq.launcher import Server, write_properties
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import PATIENCE_S

TOPIC = "Crash"
QUEUE_COUNT = 4

Place = tuple[int, int]
"""(queue_id, queue_offset)"""


def make_broker(directory: Path, store: Path, **settings: object) -> Server:
    """Returns a broker that is not started yet; its files roll all the time."""
    common: dict[str, object] = {
        "brokerName": "b0",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": store,
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "maxHashSlotNum": 1_000,
        "maxIndexNum": 4_000,
        "syncFlushTimeout": 60_000,
        **settings,
    }
    conf = write_properties(directory / "broker.conf", common)
    return Server("broker", ["broker", "-c", str(conf)], directory / "broker.log")


@asynccontextmanager
async def new_client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    try:
        yield client
    finally:
        await client.close()


def send_header(queue_id: int, number: int, *, is_batch: bool = False) -> SendRequestV2:
    return SendRequestV2(
        producer_group="PG",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_count=QUEUE_COUNT,
        queue_id=queue_id,
        sys_flag=0,
        born_at_ms=1_700_000_000_000,
        flag=0,
        properties=encode_properties({"KEYS": f"k{number}", "TAGS": "load"}).decode(),
        is_batch=is_batch,
    )


async def read_queue(client: RemotingClient, address: str, queue_id: int, begin: int = 0) -> list[Record]:
    """Returns every record of a queue from `begin` on; they must be consecutive."""
    end = await query_max_offset(client, address, TOPIC, queue_id)
    found: list[Record] = []
    offset = begin
    while offset < end:
        header = PullRequest(
            consumer_group="CG",
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            count_max=32,
            sys_flag=0x4,
            committed_offset=0,
            suspend_timeout_ms=0,
            subscription_version=0,
            subscription="*",
        )
        pulled = await pull(client, address, header)
        assert pulled.status is PullStatus.FOUND, (pulled.status, queue_id, offset, end)
        records = list(decode_records(pulled.body))
        assert [record.queue_offset for record in records] == list(range(offset, pulled.next_offset))
        found += records
        offset = pulled.next_offset
    return found


class Load:
    """Keeps sends in flight; `promised` holds the body of every message that was answered with SEND_OK."""

    def __init__(self, seed: int) -> None:
        self.promised: dict[Place, bytes] = {}
        self.message_ids: dict[Place, str] = {}
        self.answered_at: dict[Place, float] = {}
        self.checked: dict[int, int] = {}  # by queue: everything below was read once and is durable
        self.sent_bodies: set[bytes] = set()
        self._random = random.Random(seed)
        self._number = 0
        self._is_paused = False

    async def run(
        self, client: RemotingClient, address: str, *, senders: int, stop_after: int, pause_s: float = 0
    ) -> None:
        """Sends until that many more messages were promised; the sends in flight are then still unanswered.

        `pause_s`: the pause of each sender between two sends.
        """
        self._is_paused = False
        goal = len(self.promised) + stop_after
        reached = asyncio.Event()

        async def keep_sending() -> None:
            while not self._is_paused:
                await self._send_some(client, address)
                if len(self.promised) >= goal:
                    reached.set()
                if pause_s:
                    await asyncio.sleep(pause_s)

        self._tasks = [asyncio.ensure_future(keep_sending()) for _ in range(senders)]
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(reached.wait()), *self._tasks], return_when=asyncio.FIRST_COMPLETED
        )
        assert reached.is_set(), done.pop().exception()

    async def pause(self) -> None:
        """Stops sending until the next `run`; sends in flight are answered first."""
        self._is_paused = True
        await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        """Drops the sends without an answer, because the broker is gone: they were not promised."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(result, (asyncio.CancelledError, TandemError)), result

    async def _send_some(self, client: RemotingClient, address: str) -> None:
        count = self._random.choice((1, 1, 1, 1, 6))
        self._number += 1
        queue_id = self._random.randrange(QUEUE_COUNT)
        bodies = [self._body(index) for index in range(count)]
        header = send_header(queue_id, self._number, is_batch=count > 1)
        body = bodies[0] if count == 1 else encode_batch((0, item, b"n\x01v\x02") for item in bodies)
        answer = await send(client, address, header, body, timeout_s=PATIENCE_S)
        if answer.status is SendStatus.SEND_OK:
            self.note(answer, bodies)

    def _body(self, index: int) -> bytes:
        text = b"%d-%d-" % (self._number, index)
        body = text + b"x" * self._random.randrange(500)
        self.sent_bodies.add(body)
        return body

    def note(self, answer: SendAnswer, bodies: Iterable[bytes]) -> None:
        """Records the messages of an answer as stored."""
        ids = answer.message_id.split(",")
        for index, body in enumerate(bodies):
            place = (answer.queue_id, answer.queue_offset + index)
            assert place not in self.promised, f"{place} was given to two messages"
            self.promised[place] = body
            self.message_ids[place] = ids[index]
            self.answered_at[place] = time.monotonic()

    async def check(self, client: RemotingClient, address: str, *, is_thorough: bool = True) -> int:
        """Checks that every promised message is at its offset, and that only sent messages exist.

        Returns the number of records. `is_thorough` False: checks only those that no check has read yet.
        """
        lost = await self._compare(client, address, is_thorough=is_thorough)
        assert not lost, f"{len(lost)} of {len(self.promised)} promised messages are lost: {lost[:5]}"
        return len(self.promised)

    async def check_prefix(self, client: RemotingClient, address: str) -> list[Place]:
        """Like `check`, for a broker that may lose the end of each queue; returns the positions of lost
        messages.
        """
        lost = await self._compare(client, address, is_thorough=False)
        assert all(offset >= self.checked[queue_id] for queue_id, offset in lost), "a hole"
        for place in lost:
            del self.promised[place], self.message_ids[place]
        return lost

    async def _compare(self, client: RemotingClient, address: str, *, is_thorough: bool) -> list[Place]:
        """Returns the positions of missing promised messages; all others must be as sent."""
        found: dict[Place, Record] = {}
        begins = {} if is_thorough else dict(self.checked)
        for queue_id in range(QUEUE_COUNT):
            begin = begins.get(queue_id, 0)
            records = await read_queue(client, address, queue_id, begin)
            for record in records:
                found[queue_id, record.queue_offset] = record
                assert record.body in self.sent_bodies, f"never sent: {record}"
            self.checked[queue_id] = begin + len(records)
        due = (place for place in self.promised if place[1] >= begins.get(place[0], 0))
        lost = [place for place in due if place not in found]
        for place, record in found.items():
            # Unanswered messages that survived keep their offsets from now on.
            assert self.promised.setdefault(place, record.body) == record.body, place
            message_id = self.message_ids.setdefault(place, record.message_id)
            assert message_id.endswith(record.message_id[-16:]), place
        return lost
