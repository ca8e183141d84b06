"""The bounds of the client's memory, which are the window of sends and the inbox; also the storage of
offsets.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sim.memory import MemoryDisk
from tandemmq.api.broker_consume import GroupProgress
from tandemmq.client.consumer.inbox import Inbox, Received
from tandemmq.client.consumer.offsets import LocalOffsets
from tandemmq.client.producer.outbox import Window
from tandemmq.client.route_cache import NameServers
from tandemmq.errors import BrokerUnreachable, ClientError, ConfigError, RequestRejected
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.hashes import seal_json
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.ports import Disk
from tandemmq.units import Buffer
from waits import PATIENCE_S, until


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_window_lets_in_up_to_both_bounds_and_wakes_in_turn():
    window = Window(count_max=2, bytes_max=100)
    assert window.try_take(60)
    assert not window.try_take(60)
    order: list[int] = []

    async def take(number: int, size: int) -> None:
        await window.take(size)
        order.append(number)

    tasks = [asyncio.ensure_future(take(1, 60)), asyncio.ensure_future(take(2, 10))]
    await settled()
    assert order == []
    assert not window.try_take(1), "those who wait come first"
    window.release(60)
    await settled()
    assert order == [1, 2]
    window.release(60)
    window.release(10)
    assert (window.count, window.bytes) == (0, 0)
    await asyncio.gather(*tasks)


async def test_window_lets_one_giant_through_alone():
    window = Window(count_max=2, bytes_max=100)
    assert window.try_take(1000)
    assert not window.try_take(1)
    window.release(1000)
    assert window.try_take(1)
    assert not window.try_take(1000)


async def test_window_loses_no_room_to_those_who_give_up():
    window = Window(count_max=1, bytes_max=100)
    await window.take(1)
    waiting = [asyncio.ensure_future(window.take(1)) for _ in range(3)]
    await settled()
    waiting[0].cancel()
    window.release(1)
    waiting[1].cancel()  # its room was granted in this same turn
    await settled()
    assert waiting[2].done()
    assert not waiting[2].cancelled()
    assert window.count == 1


async def test_a_window_that_is_emptied_by_one_who_gives_up_is_empty_for_all():
    window = Window(count_max=1, bytes_max=100)
    await window.take(1)
    waiting = asyncio.ensure_future(window.take(1))
    emptied = [asyncio.ensure_future(window.wait_empty()) for _ in range(2)]
    await settled()
    window.release(1)
    waiting.cancel()  # its room was granted in this same turn
    await asyncio.wait_for(asyncio.gather(*emptied), PATIENCE_S)
    assert window.count == 0


class Source:
    def finish(self, queue_offset: int) -> None: ...


async def test_inbox_wakes_readers_and_the_application():
    inbox, source = Inbox(100), Source()
    waiting = asyncio.ensure_future(inbox.wait())
    await settled()
    inbox.put([Received(source, "m1"), Received(source, "m2")], 150)  # type: ignore[arg-type]
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert not inbox.has_room
    room = asyncio.ensure_future(inbox.wait_for_room())
    await settled()
    assert not room.done()
    inbox.free(100)
    await asyncio.wait_for(room, PATIENCE_S)
    assert inbox.has_room
    first = inbox.take()
    assert first is not None
    assert first.message == "m1"
    inbox.requeue(source)
    assert inbox.take() is None


async def test_inbox_raises_an_error_once():
    inbox = Inbox(100)
    inbox.put_error(ClientError("mend it"))
    await inbox.wait()
    with pytest.raises(ClientError, match="mend it"):
        inbox.take()
    assert inbox.take() is None


async def test_closing_the_inbox_ends_all_waiting():
    inbox = Inbox(100)
    tasks = [asyncio.ensure_future(inbox.wait()), asyncio.ensure_future(inbox.wait_for_room())]
    await settled()
    inbox.close()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    inbox.put([Received(Source(), "m")], 1)  # type: ignore[arg-type]
    assert inbox.take() is None


async def open_offsets(disk: Disk, directory: Path) -> LocalOffsets:
    store = LocalOffsets(disk, directory, "g")
    await store.open("id")
    return store


async def test_local_offsets_survive_and_fall_back_to_the_backup():
    disk, directory = MemoryDisk(), Path("/offsets")
    queue = MessageQueue("T", "a", 3)
    store = await open_offsets(disk, directory)
    assert await store.read(queue) is None
    await store.write(queue, 7)
    await store.flush()
    await store.write(queue, 9)
    await store.flush()
    path = directory / "id" / "g" / "offsets.json"
    content = b'{"offsetTable":{{"brokerName":"a","queueId":3,"topic":"T"}:9}}'
    assert disk.read_bytes(path) == seal_json(content)
    assert await (await open_offsets(disk, directory)).read(queue) == GroupProgress(9)
    for damaged in (b"", seal_json(content).replace(b"9", b"8", 1), b'{"offsetTable'):
        disk.write_atomically(path, damaged)
        assert await (await open_offsets(disk, directory)).read(queue) == GroupProgress(7)
    disk.remove(path.with_name("offsets.json.bak"))
    with pytest.raises(ConfigError, match=r"offsets\.json"):
        await open_offsets(disk, directory)
    disk.write_atomically(path, content)  # the content of a Java client
    assert await (await open_offsets(disk, directory)).read(queue) == GroupProgress(9)


async def test_name_servers_are_asked_in_turn_until_one_answers():
    asked: list[str] = []

    async def question(client: object, address: str) -> str:
        asked.append(address)
        if address != "c:1":
            raise BrokerUnreachable(address)
        return "answer"

    servers = NameServers(None, ["a:1", "b:1", "c:1"], first=1)  # type: ignore[arg-type]
    assert await servers.ask(question) == "answer"
    assert asked == ["b:1", "c:1"]
    assert await servers.ask(question) == "answer"
    assert asked[2:] == ["c:1"]


async def test_a_name_server_that_knows_nothing_does_not_decide():
    asked: list[str] = []

    async def question(client: object, address: str) -> str:
        asked.append(address)
        return "route" if address == "c:1" else ""

    servers = NameServers(None, ["a:1", "b:1", "c:1"])  # type: ignore[arg-type]
    assert await servers.ask(question, knows=bool) == "route"
    assert asked == ["a:1", "b:1", "c:1"]
    assert await servers.ask(question, knows=bool) == "route"
    assert asked[3:] == ["c:1"], "the one that knew is asked first from then on"
    assert await NameServers(None, ["a:1", "b:1"]).ask(question, knows=bool) == ""  # type: ignore[arg-type]


async def test_a_name_server_that_refuses_does_not_decide():
    """An address that refuses may not be a name server at all."""

    async def question(client: object, address: str) -> str:
        if address == "a:1":
            raise RequestRejected("request code 105 is not supported")
        if address == "b:1":
            raise BrokerUnreachable(address)
        return "answer"

    assert await NameServers(None, ["a:1", "b:1", "c:1"]).ask(question) == "answer"  # type: ignore[arg-type]
    with pytest.raises(RequestRejected):
        await NameServers(None, ["a:1", "b:1"]).ask(question)  # type: ignore[arg-type]


async def test_no_name_server_at_all_raises_the_last_failure():
    async def question(client: object, address: str) -> str:
        raise BrokerUnreachable(address)

    with pytest.raises(BrokerUnreachable, match="b:1"):
        await NameServers(None, ["a:1", "b:1"]).ask(question)  # type: ignore[arg-type]


async def test_a_write_of_offsets_that_is_given_up_does_not_undo_the_next_one(tmp_path: Path):
    """A closing consumer cancels the periodic write, whose thread continues, and writes a last time."""
    is_begun, may_go_on = threading.Event(), threading.Event()
    written: list[Path] = []

    class Slow(RealDisk):
        def write_atomically(self, path: Path, data: Buffer, *, keep_backup: bool = False) -> None:
            is_first = not is_begun.is_set()
            is_begun.set()
            if is_first:
                assert may_go_on.wait(PATIENCE_S)
            super().write_atomically(path, data, keep_backup=keep_backup)
            written.append(path)

    disk, queue = Slow(), MessageQueue("T", "a", 3)
    store = await open_offsets(disk, tmp_path)
    await store.write(queue, 1)
    first = asyncio.ensure_future(store.flush())
    await until(is_begun.is_set)
    first.cancel()
    await store.write(queue, 2)
    second = asyncio.ensure_future(store.flush())
    await until(lambda: store._saving._waiters, "the second write waits for the first")
    may_go_on.set()
    await asyncio.wait([first, second])
    assert first.cancelled()
    second.result()
    await until(lambda: len(written) == 2)
    assert await (await open_offsets(RealDisk(), tmp_path)).read(queue) == GroupProgress(2)
