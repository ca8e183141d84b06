"""A broker on a full disk refuses with the right code, serves readers, and continues once the disk
has room.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_rig import Load, make_broker, new_client, send_header

from small_disk import MountRefused, SmallDisk
from tandemmq.api.broker_send import SendStatus, send
from tandemmq.errors import RequestRejected
from tandemmq.launcher import Server, stopping
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.client import RemotingClient
from waits import until

pytestmark = pytest.mark.process

DISK_BYTES = 24 << 20
ROOM_BYTES = 3 << 20
BODY = b"z" * 3_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk", DISK_BYTES)
    except MountRefused as error:
        pytest.skip(f"a small file system cannot be mounted: {error}")
    try:
        yield disk
    finally:
        disk.close()


class OneByOne:
    """Sends one message at a time, so that the stored messages are known exactly."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self.load = Load(seed=0)
        self._client = client
        self._address = address
        self._number = 0

    async def send(self) -> RequestRejected | None:
        self._number += 1
        body = b"%06d-" % self._number + BODY
        self.load.sent_bodies.add(body)
        try:
            answer = await send(
                self._client, self._address, send_header(self._number % 4, self._number), body
            )
        except RequestRejected as error:
            return error
        assert answer.status is SendStatus.SEND_OK
        self.load.note(answer, [body])
        return None

    async def send_until_refused(self) -> RequestRejected:
        for _ in range(20_000):
            refusal = await self.send()
            if refusal is not None:
                return refusal
        raise AssertionError("the disk never became full")

    async def send_until_accepted(self) -> None:
        async def is_accepted() -> bool:
            return await self.send() is None

        await until(is_accepted, "a send is accepted again")

    async def check(self) -> None:
        """Checks that every promised message exists, and no other record."""
        promised = len(self.load.promised)
        assert await self.load.check(self._client, self._address) == promised


async def check_after_restart(server: Server, load: Load) -> None:
    promised = len(load.promised)
    server.stop()
    await asyncio.to_thread(server.start)
    async with new_client() as client:
        assert await load.check(client, server.address) == promised


@pytest.mark.parametrize("flush_mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_full_disk_refuses_sends_until_there_is_room(
    tmp_path: Path, small_disk: SmallDisk, flush_mode: str
) -> None:
    server = make_broker(tmp_path, small_disk.place / "store", flushDiskType=flush_mode)
    with stopping([server]):
        await asyncio.to_thread(server.start)
        async with new_client() as client:
            sender = OneByOne(client, server.address)
            assert await sender.send() is None
            small_disk.fill(leave=ROOM_BYTES)

            refusal = await sender.send_until_refused()
            assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "No space left on device" in refusal.remark
            for _ in range(20):
                again = await sender.send()
                assert again is not None
                assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE
            server.check_alive()
            await sender.check()

            small_disk.free()
            await sender.send_until_accepted()
            for _ in range(50):
                assert await sender.send() is None
            server.check_alive()
            await sender.check()
        await check_after_restart(server, sender.load)


@pytest.mark.parametrize("flush_mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_writes_that_fail_are_taken_back(tmp_path: Path, flush_mode: str) -> None:
    """The process may write no byte to any file for a while, like with a quota."""
    server = make_broker(tmp_path, tmp_path / "store", flushDiskType=flush_mode)
    with stopping([server]):
        await asyncio.to_thread(server.start)
        async with new_client() as client:
            sender = OneByOne(client, server.address)
            for _ in range(100):
                assert await sender.send() is None
            unlimited = resource.RLIM_INFINITY
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, unlimited))
            refusal = await sender.send_until_refused()
            assert refusal.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
            for _ in range(20):
                again = await sender.send()
                assert again is not None
                assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE
            server.check_alive()
            await sender.check()

            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
            await sender.send_until_accepted()
            for _ in range(500):
                assert await sender.send() is None
            server.check_alive()
            await sender.check()
        await check_after_restart(server, sender.load)
