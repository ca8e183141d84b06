"""`make client-soak`, short: connections of a push consumer break; no resource of it grows or leaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from client_soak import soak

pytestmark = pytest.mark.process


@pytest.mark.parametrize("threads", [False, True])
def test_some_thousand_messages_and_eight_reconnects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], threads: bool
) -> None:
    code = soak(tmp_path, total=20_000, reconnects=8, threads=threads)
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"CLIENT SOAK OK messages=20000 rate=\d+ reconnects=8 duplicates=\d+ in_new_queues=\d+"
        r" memory=\d\.\d\d tasks=0 sockets=0 files=0 threads=0",
        last,
    )
    assert code == 0
