"""Tests the choice of the archive of Java classes that a session maps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.spark.java import archive_options, archive_path


def _java(directory: Path, release: str) -> Path:
    directory.mkdir()
    (directory / "release").write_text(release)
    return directory


def test_an_archive_is_mapped_when_there_is_one_for_this_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java, other = _java(tmp_path / "17", "17.0.1"), _java(tmp_path / "21", "21.0.1")
    assert archive_options(java) == ()
    path = archive_path(java)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"archive")
    assert f"-XX:SharedArchiveFile={path}" in archive_options(java)
    assert archive_options(other) == ()
    assert archive_path(java, {"XDG_CACHE_HOME": "/elsewhere"}).parent == Path("/elsewhere/tandemmq")
