"""Tests that `python -m bench spark` measures all rows, and batches of one message."""

from __future__ import annotations

from typing import Any

import pytest

import bench.spark_read
from bench.spark_plan import PlanCost, measure_plans, render_plan
from bench.spark_read import (
    IdleCost,
    ReadCost,
    fill_topic,
    follow_topic,
    measure_idle,
    measure_read,
    read_topic,
    render_idle,
    render_read,
)


def test_every_row_is_read_and_accounted(spark: Any, cluster: Any) -> None:
    fill_topic(cluster.master.address, "BenchRows", rows=12_345, body_bytes=100, queue_count=3)
    frame = read_topic(spark, cluster.namesrv, "BenchRows", "queueId,queueOffset,body")
    assert frame.selectExpr("count(distinct queueId) AS n").first().n == 3
    assert frame.where("length(body) = 100").count() == 12_345
    cost = measure_read("three", frame, rows=12_345, body_bytes=100, broker=cluster.master.pid, runs=1)
    assert cost.rows_per_second > 0
    assert cost.spark_us > 0


def test_batches_of_one_message_are_measured(
    spark: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.spark_read, "IDLE_BATCHES", 3)
    monkeypatch.setattr(bench.spark_read, "IDLE_SKIPPED", 1)
    sent = []

    def send_one() -> None:
        fill_topic(cluster.master.address, "BenchIdle", rows=1, body_bytes=64, queue_count=2)
        sent.append(1)

    send_one()
    cost = measure_idle("ours", follow_topic(spark, cluster.namesrv, "BenchIdle"), send_one)
    assert 0 < cost.best_ms <= cost.median_ms
    assert len(sent) == 4


def test_lines_tell_rates_and_costs() -> None:
    cost = ReadCost(what="body", rows=1000, body_bytes=2**20, seconds=0.5, broker_us=0.125, spark_us=1.5)
    assert "1,000 rows of 1048576 B, body: 2,000 rows/s, 2,000 MiB/s" in render_read(cost)
    assert "broker 0.12 us, Spark 1.50 us" in render_read(cost)
    assert "median 164 ms, best 90 ms" in render_idle(IdleCost(what="x", median_ms=164.4, best_ms=90.0))


def test_triggers_of_every_kind_are_planned() -> None:
    found = [cost.what for cost in measure_plans(2, 3, 4)]
    assert found == ["first", "without news", "with messages in 4 queues", "with messages in every queue"]
    cost = PlanCost(what="first", processor_ms=1234.4, offset_bytes=98765)
    assert render_plan(cost) == "trigger first: planner 1,234 ms of processor time, offset 98,765 bytes"
