"""Tests options: unknown or invalid ones are rejected with a helpful text."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.offsets import QueueKey
from tandemmq.spark.option_table import Moment, read_moment, render_option_table
from tandemmq.spark.options import (
    OPTION_TABLE,
    PropertiesAs,
    ReadPreference,
    SourceOptions,
    StartKind,
    parse_options,
    read_tags,
)
from tandemmq.spark.sink.options import SINK_OPTION_TABLE, parse_sink_options
from tandemmq.spark.wire import Security
from tandemmq.units import MIB

NEEDED = {"nameserver": "h:9876", "subscribe": "T"}


def _parse(*, is_streaming: bool = True, **raw: str) -> SourceOptions:
    return parse_options({**NEEDED, **raw}, is_streaming=is_streaming)


def test_defaults() -> None:
    options = _parse()
    assert options.name_servers == ("h:9876",)
    assert options.topics == ("T",)
    assert options.start is not None
    assert options.start.kind is StartKind.LATEST
    assert options.read_from is ReadPreference.SUGGESTED
    assert options.properties_as is PropertiesAs.MAP
    assert options.fail_on_data_loss
    assert options.subscription == "*"
    assert options.filter_hash == ""


def test_a_batch_query_starts_at_the_earliest_message() -> None:
    options = _parse(is_streaming=False)
    assert options.start is not None
    assert options.start.kind is StartKind.EARLIEST


def test_an_unknown_option_is_refused_with_the_nearest_known_name() -> None:
    with pytest.raises(ConfigError, match=r"maxOffsetPerTriger.*did you mean maxOffsetsPerTrigger\?"):
        _parse(maxOffsetPerTriger="5")


def test_names_are_read_in_any_case_and_under_their_aliases() -> None:
    options = parse_options(
        {"ENDPOINTS": "a:1;b:2", "topic": "T,U", "subexpression": "x || y"}, is_streaming=True
    )
    assert options.name_servers == ("a:1", "b:2")
    assert options.topics == ("T", "U")
    assert options.tags == ("x", "y")


def test_one_option_under_two_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="subscribe is given twice"):
        _parse(topic="U")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"nameserver": ""}, "nameServer is required"),
        ({"nameserver": "host"}, "expected host:port"),
        ({"subscribe": ""}, "exactly one of"),
        ({"subscribepattern": "a.*"}, "exactly one of"),
        (
            {"startingoffsets": "soonest"},
            "startingOffsets: expected earliest, latest, group or JSON, got 'soonest'",
        ),
        ({"startingoffsets": '{"T": {"b": {"0": -3}}}'}, "below -2"),
        ({"startingoffsets": "group"}, "needs the option group"),
        ({"commitprogress": "true"}, "needs the option group"),
        ({"endingoffsets": "latest"}, "belongs to batch queries"),
        ({"maxoffsetspertrigger": "0"}, "at least 1"),
        ({"maxoffsetspertrigger": "many"}, "expected an integer"),
        ({"maxbytespertrigger": "8x"}, "expected a size"),
        ({"readfrom": "slave"}, "expected master, suggested, prefer-slave"),
        ({"failondataloss": "yes"}, "expected true or false"),
        ({"failondataloss": ""}, "expected true or false, got ''"),
        ({"readFrom": ""}, "expected "),
        ({"tags": "a || "}, "option tags"),
        ({"startingoffsetsbytimestampstrategy": "maybe"}, "expected latest or error"),
    ],
)
def test_a_senseless_value_is_refused_with_its_reason(raw: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _parse(**raw)


def test_a_bad_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match="subscribePattern"):
        parse_options({"nameserver": "h:1", "subscribepattern": "("}, is_streaming=True)


def test_assigned_queues() -> None:
    raw = {"nameserver": "h:1", "assign": '{"T": {"b": [1, 0, 1]}}'}
    options = parse_options(raw, is_streaming=True)
    assert options.assigned == (QueueKey("T", "b", 0), QueueKey("T", "b", 1))
    with pytest.raises(ConfigError, match="option assign"):
        parse_options({**raw, "assign": '{"T": 0}'}, is_streaming=True)


def test_what_was_written_for_kafka() -> None:
    options = _parse(startingoffsets='{"T": {"0": 5, "1": -2}}', columns="kafka", includeheaders="true")
    assert options.start is not None
    assert options.start.offsets == {QueueKey("T", "", 0): 5, QueueKey("T", "", 1): -2}
    assert options.columns == ("kafka", "headers")
    assigned = parse_options({"nameserver": "h:1", "assign": '{"T": [0, 1]}'}, is_streaming=True)
    assert assigned.selects(QueueKey("T", "any", 1))
    assert not assigned.selects(QueueKey("T", "any", 2))
    with pytest.raises(ConfigError, match=r"includeHeaders belongs to columns=kafka"):
        _parse(includeheaders="true")
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers: give nameServer"):
        _parse(**{"kafka.bootstrap.servers": "h:9092"})
    with pytest.raises(ConfigError, match=r"coming-from-kafka\.md"):
        _parse(**{"kafka.max.poll.records": "5"})


def test_timestamps_win_over_offsets() -> None:
    options = _parse(startingoffsets="earliest", startingtimestamp="1700000000000")
    assert options.start is not None
    assert (options.start.kind, options.start.moment) == (StartKind.TIMESTAMP, Moment(1_700_000_000_000))


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("5", 5),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("now", 1_800_000_000_000),
        ("now-1h30m", 1_800_000_000_000 - 5_400_000),
        ("NOW - 2d 5s", 1_800_000_000_000 - 172_805_000),
    ],
)
def test_a_time_in_any_of_its_forms(text: str, at_ms: int) -> None:
    moment = read_moment("startingTimestamp", text)
    assert moment is not None
    assert moment.resolve(1_800_000_000_000) == at_ms


@pytest.mark.parametrize("text", ["soon", "now+1h", "now-1", "-5"])
def test_invalid_starting_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"startingTimestamp: expected milliseconds, .* now-1h"):
        _parse(startingtimestamp=text)


def test_an_end_for_batch_queries() -> None:
    options = _parse(is_streaming=False, endingoffsets='{"T": {"b": {"0": -1, "1": 9}}}')
    assert options.end.offsets == {QueueKey("T", "b", 0): -1, QueueKey("T", "b", 1): 9}
    with pytest.raises(ConfigError, match="earliest"):
        _parse(is_streaming=False, endingoffsets='{"T": {"b": {"0": -2}}}')


def test_a_limit_is_for_batch_queries() -> None:
    assert _parse(is_streaming=False, limit="10").count_max == 10
    with pytest.raises(ConfigError, match="option limit belongs to batch queries"):
        _parse(is_streaming=True, limit="10")


def test_sizes_have_units() -> None:
    options = _parse(arrowbytes="2m", maxbytespertrigger="512k", maxslavelag="1000")
    assert options.arrow_bytes == 2 * MIB
    assert options.trigger_bytes_max == 512 * 1024
    assert options.slave_lag_bytes_max == 1000


def test_a_group_commits_progress_unless_told_otherwise() -> None:
    assert _parse(group="G").commit_progress
    assert not _parse(group="G", commitprogress="false").commit_progress


def test_the_filter_hash_ignores_the_order_of_tags() -> None:
    assert _parse(tags="a || b").filter_hash == _parse(tags="b||a").filter_hash != ""
    assert read_tags("tags", " * ") == ()


def test_a_condition_is_told_apart_from_tags() -> None:
    options = _parse(filter="a > 1")
    assert (options.subscription, options.subscription_type) == ("a > 1", "SQL92")
    assert options.is_filtered
    assert options.filter_hash not in ("", _parse(tags="a > 1").filter_hash)
    with pytest.raises(ConfigError, match="either the option tags or the option filter"):
        _parse(filter="a > 1", tags="b")


def test_a_namespace_is_part_of_every_name() -> None:
    options = _parse(namespace="N", group="G", startingoffsets='{"T": {"b": {"0": 5}}}')
    assert (options.topics, options.group) == (("N%T",), "N%G")
    assert options.start is not None
    assert options.start.offsets == {QueueKey("N%T", "b", 0): 5}
    raw = {"nameserver": "h:1", "subscribepattern": "a|b", "namespace": "N.x"}
    pattern = re.compile(parse_options(raw, is_streaming=True).topic_pattern)
    assert [bool(pattern.fullmatch(name)) for name in ("N.x%a", "N.x%b", "N.x%ab", "b", "Nyx%a")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("topic", "known"),
    [("%DLQ%G", "%DLQ%N%G"), ("%RETRY%G", "%RETRY%N%G"), ("N%T", "N%T"), ("TBW102", "TBW102")],
)
def test_a_namespace_stands_where_the_clients_put_it(topic: str, known: str) -> None:
    raw = {"nameserver": "h:1", "topic": topic, "namespace": "N"}
    assert parse_options(raw, is_streaming=True).topics == (known,)


def test_a_minimum_per_trigger_and_its_delay() -> None:
    options = _parse(minoffsetspertrigger="5", maxtriggerdelay="30s", maxoffsetspertrigger="9")
    assert (options.trigger_records_min, options.trigger_delay_s) == (5, 30.0)
    assert _parse(maxtriggerdelay="1500").trigger_delay_s == 1.5
    assert _parse().trigger_delay_s == 900.0
    with pytest.raises(ConfigError, match="more than maxOffsetsPerTrigger"):
        _parse(minoffsetspertrigger="10", maxoffsetspertrigger="9")
    with pytest.raises(ConfigError, match=r"maxTriggerDelay.*30s"):
        _parse(maxtriggerdelay="soon")


def test_the_names_of_older_connectors_are_read() -> None:
    options = parse_options(
        {
            "nameServerAddress": "a:1",
            "topic": "T",
            "consumerGroup": "G",
            "tag": "x",
            "startTimeMs": "5",
            "pullBatchSize": "32",
            "pullTimeoutMs": "3000",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "7",
        },
        is_streaming=True,
    )
    assert (options.group, options.tags, options.pull_batch_size) == ("G", ("x",), 32)
    assert options.start is not None
    assert options.start.moment == Moment(5)
    assert _parse(sql="a = 1").sql == "a = 1"


def test_options_travel_to_executors() -> None:
    options = _parse(startingoffsets='{"T": {"b": {"0": 5}}}', tags="a")
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_documentation_holds_the_table_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark" / "options.md").read_text()
    assert render_option_table(OPTION_TABLE) in text
    assert render_option_table(SINK_OPTION_TABLE) in text


def test_what_the_documentation_calls_a_default_is_no_value() -> None:
    options = parse_sink_options({"nameServer": "h:1", "topic": "T"})
    assert (options.write_id, options.state_dir, options.group) == ("", "", "DEFAULT_PRODUCER")
    assert _parse().security == Security()


def test_option_names_are_unique() -> None:
    names = [name.lower() for row in OPTION_TABLE for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))


def test_a_table_of_sql_says_that_spark_drops_its_options() -> None:
    """Spark passes `option.nameserver` when the table is created, and nothing when it is read or written."""
    for raw in ({"option.nameserver": "h:1", "option.topic": "T"}, {}):
        for parse in (lambda raw: parse_options(raw, is_streaming=None), parse_sink_options):
            with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
                parse(raw)


def test_an_option_is_named_once_in_its_error() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({"nameserver": "h:1", "topic": "T", "startingoffsets": "first"}, is_streaming=False)
    assert str(caught.value).count("option startingOffsets") == 1
