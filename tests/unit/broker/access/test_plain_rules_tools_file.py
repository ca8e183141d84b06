"""The credentials in tools.yml with which a tool signs: for brokers, for controllers, or for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.memory import MemoryDisk
from tandemmq.broker.access.plain_rules import read_controller_secret, read_tools_credentials
from tandemmq.errors import ConfigError

CONF = Path("/conf")
BOTH = b"accessKey: root\nsecretKey: password\n"
SECRET = b"controllerSharedSecret: sixteen letters!!\n"


def disk(content: bytes | None) -> MemoryDisk:
    one = MemoryDisk()
    if content is not None:
        one.write_atomically(CONF / "tools.yml", content)
    return one


@pytest.mark.parametrize(
    ("content", "name", "secret"),
    [
        (None, None, ""),
        (BOTH, "root", ""),
        (SECRET, None, "sixteen letters!!"),
        (BOTH + SECRET, "root", "sixteen letters!!"),
    ],
)
def test_a_tool_signs_with_what_the_file_has(content: bytes | None, name: str | None, secret: str) -> None:
    credentials = read_tools_credentials(CONF, disk(content))
    assert (credentials.access_key if credentials else None) == name
    assert read_controller_secret(CONF, disk(content)) == secret


@pytest.mark.parametrize(
    "content", [b"accessKey: root\n", b"accessKey: root\n" + SECRET, b"[]", b"other: x\n"]
)
def test_half_a_name_is_an_error(content: bytes) -> None:
    with pytest.raises(ConfigError, match="must give accessKey and secretKey"):
        read_tools_credentials(CONF, disk(content))
