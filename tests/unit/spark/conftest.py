"""Fixtures of the tests in this folder, which run without Spark, Java and network."""

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
    """Replaces the connection pool with an in-memory network, and makes pauses between attempts
    instantaneous.
    """
    fake = FakeNet()
    monkeypatch.setattr(tandemmq.spark.metadata, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.wire, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.fetch, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.sink.sender, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.sink.transaction, "POOL", fake)
    monkeypatch.setattr(tandemmq.spark.wire.time, "sleep", lambda seconds: None)
    return fake
