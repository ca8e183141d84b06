"""Tests the configuration of `pipeline serve`: which topic gets which settings, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemmq.errors import ConfigError
from tandemmq.spark.options import ReadPreference
from tandemmq.spark.pipelines.serve_config import parse_config, read_config

BASE: dict[str, Any] = {"nameServer": "ns:1", "out": "/lake", "topics": [{"name": "Orders"}]}


def test_a_topic_gets_the_first_entry_that_matches_over_the_defaults() -> None:
    document = {
        **BASE,
        "defaults": {"batchRows": 500, "readFrom": "prefer-slave", "options": {"failOnDataLoss": False}},
        "topics": [
            {"name": "Shop-Orders", "columns": ["queueId", "body"], "bodyAsText": True},
            {"pattern": "Shop-.*", "partitionBy": ["tags"], "batchRows": 7, "ttlDays": 30, "compact": True},
        ],
    }
    config = parse_config(document)
    found = {}
    for topic in ("Shop-Orders", "Shop-Carts"):
        rule = config.find_rule(topic)
        assert rule is not None
        found[topic] = config.make_options(topic, rule)
    orders, carts = found["Shop-Orders"], found["Shop-Carts"]
    assert (orders.columns, orders.is_body_text, orders.batch_records_max) == (("queueId", "body"), True, 500)
    assert (carts.partition_by, carts.batch_records_max) == (("tags",), 7)
    assert carts.out == Path("/lake/Shop-Carts")
    assert carts.read_from is ReadPreference.PREFER_SLAVE
    assert carts.source == (("failOnDataLoss", "false"),)
    assert config.named == ("Shop-Orders",)
    assert (config.rules[1].ttl_days, config.rules[1].is_compacted) == (30, True)


@pytest.mark.parametrize("topic", ["Other", "%RETRY%Shop", "%DLQ%Shop", "SCHEDULE_TOPIC_XXXX"])
def test_a_pattern_matches_whole_names_of_applications_topics(topic: str) -> None:
    config = parse_config({**BASE, "topics": [{"pattern": "Shop|.*(RETRY|DLQ|SCHEDULE).*"}]})
    assert config.find_rule(topic) is None


def test_a_further_option_replaces_the_batch_rows_of_a_service() -> None:
    config = parse_config({**BASE, "topics": [{"name": "A", "options": {"maxOffsetsPerTrigger": 5}}]})
    options = config.make_options("A", config.rules[0])
    assert options.batch_records_max == 100_000
    assert options.source_options()["maxOffsetsPerTrigger"] == "5"


def test_tables_elsewhere_are_named_after_their_topics() -> None:
    entry = {"pattern": ".*", "format": "delta", "data": "s3://shop/{topic}"}
    config = parse_config({**BASE, "topics": [entry]})
    assert config.make_options("Orders", config.rules[0]).data == "s3://shop/Orders"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"topics": [{"name": "A", "formt": "delta"}]},
            "topics[0]: unknown key 'formt'; did you mean format?",
        ),
        ({"topic": []}, "the file: unknown key 'topic'; did you mean topics?"),
        ({"topics": [{"name": "A", "batchRows": 0}]}, "a whole number of at least 1, got 0"),
        ({"topics": [{"name": "A", "batchRows": True}]}, "a whole number of at least 1, got True"),
        ({"topics": [{"name": "A", "columns": "body"}]}, "topics[0].columns: expected a list, got 'body'"),
        ({"topics": [{"name": "A", "bodyAsText": "yes"}]}, "expected true or false, got 'yes'"),
        ({"topics": [{"name": "A", "format": "orc"}]}, "expected one of parquet, delta, iceberg, got 'orc'"),
        ({"topics": [{"name": "A", "readFrom": "x"}]}, "topics[0].readFrom"),
        ({"topics": [{"name": "A", "columns": ["budy"]}]}, "did you mean body"),
        ({"topics": [{"name": "A", "options": {"packRecord": 1}}]}, "did you mean packRecords"),
        ({"topics": [{"name": "A", "options": {"namespace": "x"}}]}, "no namespace"),
        ({"topics": [{"name": "A", "tags": "a", "options": {"tag": "b"}}]}, "topics[0]: option tag: --tags"),
        ({"topics": [{"name": "A", "data": "s3://b/x"}]}, "topics[0]: data: a parquet lake becomes visible"),
        ({"topics": [{"name": "A"}, {"name": "A"}]}, "A is named twice"),
        ({"topics": [{"name": "A", "pattern": "A"}]}, "expected either name or pattern"),
        ({"topics": [{}]}, "expected either name or pattern"),
        ({"topics": [{"pattern": "("}]}, "topics[0].pattern: "),
        ({"topics": [{"name": "a b"}]}, "characters other than"),
        ({"topics": [{"name": "_tandemmq"}]}, "the service's own state"),
        ({"topics": [{"pattern": ".*", "format": "delta", "data": "s3://b/x"}]}, "put {topic} into"),
        ({"topics": [{"name": "A", "key": "keys"}]}, "key keys: needs the format delta or iceberg"),
        (
            {"topics": [{"name": "A", "key": "keys", "format": "delta", "columns": ["body"]}]},
            "the columns must include keys, brokerName, queueId, queueOffset, storeTimestamp",
        ),
        (
            {"topics": [{"name": "A", "key": "keys", "format": "delta", "ttlDays": 3}]},
            "no partitionBy and no ttlDays",
        ),
        ({"topics": ["A"]}, "topics[0]: expected a mapping"),
        ({"topics": []}, "topics is required"),
        ({"out": ""}, "out is required"),
        ({"nameServer": 9876}, "nameServer: expected a text, got 9876"),
        ({"pollSeconds": 0}, "pollSeconds: expected a number above 0, got 0"),
        ({"batchesAtOnce": 1.5}, "batchesAtOnce: expected a whole number"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_allowed(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({**BASE, **change})
    assert text in str(refused.value)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lake.yaml"
    with pytest.raises(ConfigError, match=r"lake\.yaml: No such file"):
        read_config(path)
    path.write_text("topics: [")
    with pytest.raises(ConfigError, match=r"lake\.yaml: while parsing"):
        read_config(path)
    path.write_text("out: /lake\ntopics: [{name: A}]\n")
    with pytest.raises(ConfigError, match=r"lake\.yaml: nameServer is required"):
        read_config(path)
    assert read_config(path, "ns:2").name_servers == "ns:2"
