"""The targets and the credentials of an operator's tools, without brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.api.controller import SHARED_ACCESS_KEY
from tandemmq.errors import ConfigError
from tandemmq.manage.tools import Target, open_tools, targets_of, tools_options
from tandemmq.protocol.bodies.route import BrokerData, ClusterInfo
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import ACCESS_KEY, Credentials


def test_targets_are_ordered_and_filtered() -> None:
    info = ClusterInfo(
        brokers={
            "b": BrokerData(addresses={1: "b:1", 0: "b:0"}),
            "a": BrokerData(addresses={0: "a:0"}),
            "other": BrokerData(addresses={0: "o:0"}),
        },
        clusters={"C": ("b", "a"), "D": ("other",)},
    )
    assert targets_of(info, "C") == [
        Target("C", "a", 0, "a:0"),
        Target("C", "b", 0, "b:0"),
        Target("C", "b", 1, "b:1"),
    ]
    assert [target.address for target in targets_of(info, masters_only=True)] == ["a:0", "b:0", "o:0"]
    with pytest.raises(ConfigError, match="known clusters: C, D"):
        targets_of(info, "E")


def _write_files(home: Path) -> None:
    (home / "conf").mkdir()
    text = "accessKey: operator\nsecretKey: operator-secret\ncontrollerSharedSecret: shared-by-controllers\n"
    (home / "conf" / "tools.yml").write_text(text)


def test_credentials_of_a_user_replace_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_files(tmp_path)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert tools_options().access_key == "operator"
    options = tools_options(Credentials("alice", "alice-secret", "token"))
    assert (options.access_key, options.secret_key, options.security_token) == (
        "alice",
        "alice-secret",
        "token",
    )


@pytest.mark.parametrize(
    ("credentials", "expected"), [(None, SHARED_ACCESS_KEY), (Credentials("alice", "alice-secret"), "alice")]
)
async def test_a_user_has_no_part_in_the_secret_of_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: Credentials | None, expected: str
) -> None:
    _write_files(tmp_path)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    command = Command.request(RequestCode.CONTROLLER_ELECT_MASTER)
    async with open_tools("", credentials) as tools:
        assert tools.remoting._signer is not None
        tools.remoting._signer(command)
    assert command.fields[ACCESS_KEY] == expected
