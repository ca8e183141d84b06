"""The comparison of two brokers' metrics."""

from __future__ import annotations

from metrics_beside import compare, read

COMMON = 'cluster="C",node_type="broker",node_id="b"'
JAVA = f"""
# TYPE rocketmq_messages_in_total counter
rocketmq_messages_in_total{{{COMMON},topic="T",otel_scope_name="broker-meter"}} 200
# TYPE rocketmq_messages_out_total counter
rocketmq_messages_out_total{{{COMMON},topic="T"}} 7
# TYPE rocketmq_storage_size_bytes gauge
rocketmq_storage_size_bytes{{{COMMON}}} 1
# TYPE rocketmq_pop_offset_buffer_size gauge
rocketmq_pop_offset_buffer_size{{{COMMON}}} 1
# TYPE target_info gauge
target_info 1
"""
OURS = f"""
# TYPE rocketmq_messages_in_total counter
rocketmq_messages_in_total{{{COMMON},topic="T"}} 201
# TYPE rocketmq_messages_out_total counter
rocketmq_messages_out_total{{{COMMON},topic="T",is_retry="false"}} 7
# TYPE rocketmq_storage_size_bytes gauge
rocketmq_storage_size_bytes{{{COMMON}}} 99
"""


def test_equal_within_one_percent() -> None:
    found = compare(read(JAVA), read(OURS))
    assert (found.series, found.equal, found.missing, found.faults) == (3, 2, [], [])


def test_a_missing_series_and_one_that_is_only_here() -> None:
    found = compare(read(JAVA), read(OURS.replace('topic="T"}', 'topic="U"}')))
    assert found.missing == ["messages_in_total{topic=T}"]
    assert found.faults == ["messages_in_total{topic=U}: only here"]


def test_other_values_and_kinds() -> None:
    other = OURS.replace("} 201", "} 203").replace("storage_size_bytes gauge", "storage_size_bytes unknown")
    assert compare(read(JAVA), read(other)).faults == [
        "messages_in_total{topic=T}: 200 in Java, 203 here",
        "storage_size_bytes{}: gauge in Java, unknown here",
    ]


def test_a_family_that_java_does_not_have() -> None:
    more = OURS + f"# TYPE rocketmq_lmq_number gauge\nrocketmq_lmq_number{{{COMMON}}} 1\n"
    assert compare(read(JAVA), read(more)).faults == ["lmq_number: only here"]
