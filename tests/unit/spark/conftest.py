"""Every test of this folder runs without Spark, Java and network."""

from __future__ import annotations

import pytest
from spark_fakes import FakeNet

import tandemmq.spark.fetch
import tandemmq.spark.metadata
import tandemmq.spark.sink.sender
import tandemmq.spark.sink.transaction
import tandemmq.spark.wire


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> FakeNet:
    """A network in memory instead of the connection pool; pauses between attempts take no time."""
    fake = FakeNet()
    monkeypatch.setattr(tandemmq.spark.metadata, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.wire, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.fetch, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.sink.sender, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.sink.transaction, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.metadata.time, "sleep", lambda seconds: None)
    return fake
