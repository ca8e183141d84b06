"""The output format of messages."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from tandemmq.protocol.message import ReceivedMessage
from tandemmq.shell.session import PLAIN, write_messages

BODY = "tab\there ünd \x1b[2J".encode() + b"\xff"


@pytest.mark.parametrize(
    ("is_terminal", "written"),
    [(True, "tab\there ünd \\x1b[2J\\xff\n".encode()), (False, BODY + b"\n")],
    ids=["a_terminal_takes_no_commands_from_a_message", "a_pipe_gets_what_was_sent"],
)
def test_bodies(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, written: bytes) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: is_terminal, buffer=out))
    message = cast(ReceivedMessage, SimpleNamespace(body=BODY, body_fault=""))
    write_messages([message], PLAIN)
    assert out.getvalue() == written
