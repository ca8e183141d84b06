"""A broker that may open 256 files, and unknown clients that open more connections than that and send
nothing.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.protocol.signature import Credentials
from waits import until

pytestmark = pytest.mark.process

LIMIT, STRANGERS, MESSAGES = 256, 400, 600
RULES = """
accounts:
  - accessKey: shop-app
    secretKey: shop-secret
    defaultTopicPerm: PUB
"""


async def send(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], number: int) -> Command:
    """Returns the answer to one signed send."""
    reader, writer = connection
    header = SendRequestV2(
        producer_group="PG",
        topic=f"T{number % 30}",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=number % 4,
        sys_flag=0,
        born_at_ms=1_700_000_000_000,
        flag=0,
    )
    command = Command.request(RequestCode.SEND_MESSAGE_V2, header, body=b"hello")
    Credentials("shop-app", "shop-secret").sign(command)
    writer.write(encode_frame(command))
    decoder = FrameDecoder()
    while data := await reader.read(65_536):
        for answer in decoder.feed(data):
            return answer
    raise ConnectionResetError("the connection was closed")


async def test_idle_strangers_neither_end_a_broker_nor_keep_clients_out(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "plain_acl.yml").write_text(RULES)
    settings = {
        "brokerName": "b",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": tmp_path / "s",
        "aclEnable": "true",
        "aclConfigDir": tmp_path / "rules",
        "mappedFileSizeConsumeQueue": 20_000,
        "mappedFileSizeCommitLog": 1 << 20,
    }
    conf = write_properties(tmp_path / "broker.conf", settings)
    log = tmp_path / "broker.log"
    server = Server("broker", ["broker", "-c", str(conf)], log)
    server._command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *server._command]
    with stopping([server]):
        host, _, port = (await asyncio.to_thread(server.start)).rpartition(":")
        first = await asyncio.open_connection(host, int(port))
        assert (await send(first, 0)).code == 0
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(STRANGERS)]
        await until(lambda: "channel.refused" in log.read_text())
        for number in range(1, MESSAGES):
            answer = await send(first, number)
            assert answer.code == 0, answer.remark
        late = await asyncio.open_connection(host, int(port))
        assert (await send(late, MESSAGES)).code == 0
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < LIMIT
        server.check_alive()
        for _, writer in (first, late, *idle):
            writer.close()
        await asyncio.to_thread(server.stop)
    text = log.read_text()
    assert "descriptors.low limit=256 connections_max=16 open_file_count_max=64" in text
    assert "CRITICAL" not in text
    assert "is_clean=True" in text
