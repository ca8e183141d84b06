"""The health check of the image tells a server that hangs from one without health pages."""

from __future__ import annotations

import runpy
import socket
import sys
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

SCRIPT = Path(__file__).parents[3] / "packaging" / "healthcheck.py"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError("timed out"), "no answer from /health/ready"),
        (URLError(TimeoutError("timed out")), "no answer from /health/ready"),
        (URLError(ConnectionRefusedError("refused")), 0),
    ],
)
def test_a_page_that_does_not_answer_is_a_fault_and_a_missing_one_is_not(
    monkeypatch: pytest.MonkeyPatch, error: OSError, outcome: str | int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(server.getsockname()[1])])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT))
    assert ended.value.code == outcome
