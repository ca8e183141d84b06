"""The defaults of our sessions: private sockets between Java and Python."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.spark import session

ENABLED = "spark.python.unix.domain.socket.enabled"
DIRECTORY = "spark.python.unix.domain.socket.dir"


@pytest.fixture(autouse=True)
def _own_directory() -> Iterator[None]:
    session._make_socket_directory.cache_clear()
    yield
    session._make_socket_directory.cache_clear()


def test_the_sockets_are_in_a_directory_of_this_user_alone() -> None:
    settings = session._default_settings("local[2]", "/src", ())
    directory = Path(settings[DIRECTORY])
    assert settings[ENABLED] == "true"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert session._default_settings("local[2]", "/src", ())[DIRECTORY] == str(directory)


def test_a_path_too_long_for_a_socket_leaves_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert ENABLED not in session._default_settings("local[2]", "/src", ())


def test_executors_of_other_machines_use_tcp() -> None:
    assert ENABLED not in session._default_settings("spark://host:7077", "/src", ())
