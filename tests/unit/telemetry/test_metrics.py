"""The table of metrics, the histogram, and the text that a scrape gives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tandemmq.telemetry import controller_metrics, metrics, proxy_metrics, rocketmq_metrics
from tandemmq.telemetry.controller_metrics import CONTROLLER_TABLE, LATENCY_BUCKETS_US, NAMESERVER_TABLE
from tandemmq.telemetry.metrics import (
    COLUMN_ROWS,
    DISK_BUCKETS_S,
    TABLE,
    WAIT_BUCKETS_S,
    WRITE_BUCKETS_S,
    Histogram,
    KeptColumns,
    Labels,
    MetricKind,
    Sample,
    SampleColumn,
    render_table,
)
from tandemmq.telemetry.prometheus import SeriesText, TextExporter
from tandemmq.telemetry.proxy_metrics import CALL_BUCKETS_S, POLL_BUCKETS_S, PROXY_TABLE
from tandemmq.telemetry.rocketmq_metrics import ROCKETMQ_TABLE

NAME = re.compile(r"tandemmq_[a-z]+(_[a-z]+)*")
TABLES = (TABLE, PROXY_TABLE, ROCKETMQ_TABLE, CONTROLLER_TABLE, NAMESERVER_TABLE)
ALL = [metric for table in TABLES for metric in table]
OURS = [
    metric for metric in ALL if not metric.name.startswith("rocketmq_") and metric not in CONTROLLER_TABLE
]


def test_names_are_unique_and_well_formed() -> None:
    for table in TABLES:
        assert len({metric.name for metric in table}) == len(table)
    repeated = [name for name, count in Counter(metric.name for metric in ALL).items() if count > 1]
    assert repeated == [rocketmq_metrics.RPC_LATENCY.name], "brokers and proxies serve it, with other labels"
    assert all(NAME.fullmatch(metric.name) for metric in OURS)
    modules = (metrics, proxy_metrics, rocketmq_metrics, controller_metrics)
    for module, table in zip(modules, (*TABLES[:3], CONTROLLER_TABLE + NAMESERVER_TABLE), strict=True):
        found = {metric for metric in vars(module).values() if isinstance(metric, metrics.Metric)}
        assert found == set(table)


@pytest.mark.parametrize("metric", OURS, ids=lambda metric: metric.name)
def test_names_carry_kind_and_unit(metric: metrics.Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    if metric.kind is MetricKind.HISTOGRAM:
        assert metric.name.endswith("_seconds")
    assert bool(metric.labels) == bool(metric.bound), "labels need a stated bound"
    assert metric.text


def test_documentation_table_has_one_row_per_metric() -> None:
    rows = render_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [metric.name for metric in TABLE]
    assert all(row.count("|") == 5 for row in rows)


@pytest.mark.parametrize("table", TABLES, ids=["broker", "proxy", "rocketmq", "controller", "nameserver"])
def test_documentation_has_the_tables_as_they_are(table: tuple[metrics.Metric, ...]) -> None:
    """After a change: put `render_table(table)` into docs/operations/metrics.md."""
    document = Path(__file__).parents[3] / "docs" / "operations" / "metrics.md"
    assert render_table(table) in document.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "bounds",
    [WRITE_BUCKETS_S, DISK_BUCKETS_S, WAIT_BUCKETS_S, CALL_BUCKETS_S, POLL_BUCKETS_S, LATENCY_BUCKETS_US],
)
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_bucket_includes_its_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert (histogram.count, histogram.total) == (5, pytest.approx(6.6))


ROCKETMQ_NAMES = """
broker_permission commit_messages_total consumer_connections
consumer_group_create_execution_time_milliseconds consumer_group_number consumer_inflight_messages
consumer_lag_latency_milliseconds consumer_lag_messages consumer_queueing_latency_milliseconds
consumer_ready_messages delay_message_latency_seconds finish_message_latency_milliseconds
half_messages message_size messages_in_total messages_out_total pop_checkpoint_buffer_size
pop_revive_in_message_total pop_revive_retry_messages_total processor_watermark producer_connections
proxy_up rollback_messages_total rpc_latency_milliseconds send_to_dlq_messages_total
storage_dispatch_behind_bytes storage_flush_behind_bytes storage_message_reserve_time_milliseconds
storage_size_bytes throughput_in_total throughput_out_total timer_dequeue_lag
timer_dequeue_latency_milliseconds timer_dequeue_total timer_enqueue_lag
timer_enqueue_latency_milliseconds timer_enqueue_total timer_message_snapshot timing_messages
topic_create_execution_time_milliseconds topic_number
"""


def test_metrics_of_rocketmq_have_its_names() -> None:
    """Those of a dashboard for RocketMQ 5 (spec metrics 1)."""
    names = {metric.name.removeprefix("rocketmq_") for metric in ALL if metric.name.startswith("rocketmq_")}
    assert names == set(ROCKETMQ_NAMES.split())


@given(st.lists(st.floats(0, 10)))
def test_buckets_equal_a_naive_count(values: list[float]) -> None:
    histogram = Histogram(WAIT_BUCKETS_S)
    for value in values:
        histogram.observe(value)
    naive = [sum(value <= bound for value in values) for bound in WAIT_BUCKETS_S]
    assert histogram.cumulative() == [*naive, len(values)]


def scrape(*readings: Sample) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the text, by name and labels, without those of the process."""
    return parse(TextExporter(lambda: readings).render().decode())


def parse(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.startswith("tandemmq_process_")
    }


def test_readings_become_samples() -> None:
    assert scrape(
        Sample(metrics.APPENDED, 7),
        Sample(metrics.TOPIC_IN, 1, ("a",)),
        Sample(metrics.HELD_PULLS, 3),
        Sample(metrics.TOPIC_IN, 2, ('b"\\\n',)),
    ) == {
        ("tandemmq_store_appended_offset_bytes", ()): 7,
        ("tandemmq_topic_messages_in_total", (("topic", "a"),)): 1,
        ("tandemmq_topic_messages_in_total", (("topic", 'b"\\\n'),)): 2,
        ("tandemmq_held_pulls", ()): 3,
    }


def test_histogram_becomes_cumulative_buckets() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.75, 4.0):
        histogram.observe(value)
    assert scrape(Sample(metrics.FLUSH, histogram)) == {
        ("tandemmq_store_flush_seconds_bucket", (("le", "0.5"),)): 1,
        ("tandemmq_store_flush_seconds_bucket", (("le", "1.0"),)): 2,
        ("tandemmq_store_flush_seconds_bucket", (("le", "+Inf"),)): 3,
        ("tandemmq_store_flush_seconds_count", ()): 3,
        ("tandemmq_store_flush_seconds_sum", ()): 5,
    }


def test_samples_piece_by_piece_and_in_columns_are_those_of_one_scrape() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.75, 4.0):
        histogram.observe(value)
    labels = [Labels(("C", "broker", 'b"\\\n', topic, "normal", "false")) for topic in "AB"]
    columns = [
        SampleColumn(rocketmq_metrics.MESSAGES_IN, labels, [1, 12_345_678]),
        SampleColumn(rocketmq_metrics.MESSAGE_SIZE, labels, [histogram, histogram]),
    ]
    single = [Sample(metrics.TOPICS_WITHOUT_SERIES, 0.25), Sample(metrics.FLUSH, histogram)]
    series = SeriesText()
    for piece in (*columns, *([sample] for sample in single)):
        series.add(piece)
    text = series.render().decode()
    samples = [*single, *(sample for column in columns for sample in column)]
    assert parse(text) == scrape(*samples)
    assert len(parse(text)) == 1 + 5 + 2 + 2 * 5
    assert 'le="0.5"' in text


def test_columns_are_made_again_where_a_row_has_changed() -> None:
    made: list[list[int]] = []

    def make(rows: Sequence[int]) -> list[SampleColumn]:
        made.append(list(rows))
        labels = [Labels(("C", "broker", "b", str(row))) for row in rows]
        return [SampleColumn(rocketmq_metrics.HALF_MESSAGES, labels, rows)]

    kept = KeptColumns(make)
    rows = list(range(COLUMN_ROWS + 2))
    first = list(kept.read(rows, rows))
    assert [len(block) for block in made] == [COLUMN_ROWS, 2]
    assert list(kept.read(rows, rows)) == first
    rows[-1] = 0
    again = list(kept.read(rows, rows))
    assert (again[0], made[2:]) == (first[0], [[COLUMN_ROWS, 0]])
    assert [sample.value for column in kept.read(rows[:1], rows[:1]) for sample in column] == [0]


def test_types_and_texts_stand_before_the_samples() -> None:
    text = TextExporter(lambda: [Sample(metrics.MESSAGES_IN, 5)]).render().decode()
    assert text.startswith(
        "# HELP tandemmq_messages_in_total messages received from producers\n"
        "# TYPE tandemmq_messages_in_total counter\n"
        "tandemmq_messages_in_total 5.0\n"
    )


def test_process_is_described_under_the_names_of_the_table() -> None:
    text = TextExporter(list).render().decode()
    found = {line.split()[0] for line in text.splitlines() if not line.startswith("#")}
    assert found == {metric.name for metric in TABLE if "_process_" in metric.name}
    assert len(found) == 6


def test_nothing_is_read_before_the_first_scrape() -> None:
    reads: list[int] = []

    def read() -> list[Sample]:
        reads.append(1)
        return []

    exporter = TextExporter(read)
    assert reads == []
    exporter.render()
    assert reads == [1]


def test_failing_reader_fails_the_scrape_only() -> None:
    values = [1, 0]

    def read() -> list[Sample]:
        return [Sample(metrics.HELD_PULLS, 1 // values.pop())]

    exporter = TextExporter(read)
    with pytest.raises(ZeroDivisionError):
        exporter.render()
    assert b"tandemmq_held_pulls 1.0" in exporter.render()
