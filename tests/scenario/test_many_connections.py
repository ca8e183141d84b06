"""Two thousand clients at once, each with a request, and a broker that answers all of them."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.send import SendRequestV2

pytestmark = pytest.mark.process

CLIENTS = 2_000


def send_frame(number: int) -> bytes:
    header = SendRequestV2(
        producer_group="PG",
        topic="Many",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=number % 4,
        sys_flag=0,
        born_at_ms=1_700_000_000_000,
        flag=0,
    )
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=b"hello")
    command.opaque = number
    return encode_frame(command)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> int:
    """Returns the response code of one send."""
    writer.write(send_frame(number))
    decoder = FrameDecoder()
    while data := await reader.read(65_536):
        for command in decoder.feed(data):
            assert command.opaque == number
            return command.code
    raise AssertionError("the connection was closed")


async def test_two_thousand_connections_are_served_at_once(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CLIENTS + 500:
        pytest.skip(f"this system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CLIENTS + 500), hard))
    settings = {
        "brokerName": "b",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": tmp_path / "s",
    }
    conf = write_properties(tmp_path / "broker.conf", settings)
    server = Server("broker", ["broker", "-c", str(conf)], tmp_path / "broker.log")
    try:
        with stopping([server]):
            host, _, port = (await asyncio.to_thread(server.start)).rpartition(":")
            connections = [await asyncio.open_connection(host, int(port)) for _ in range(CLIENTS)]
            for _ in range(2):
                codes = await asyncio.gather(
                    *(ask(*connection, number) for number, connection in enumerate(connections))
                )
                assert codes == [0] * CLIENTS
            for _, writer in connections:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in connections))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
