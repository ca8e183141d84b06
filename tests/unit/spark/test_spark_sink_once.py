"""Tests numbered sends of the sink: fixed queues, ascending numbers, capable brokers (decision 010)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from spark_fakes import FakeNet, FakeQueue

import tandemmq.spark.sink.sender
from tandemmq.errors import ConfigError, MessageIllegal, NotPermitted, RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.properties import CAPABILITY
from tandemmq.spark.sink.columns import find_sink_columns, make_prefix
from tandemmq.spark.sink.encode import SPREAD_ROWS, BatchEncoder
from tandemmq.spark.sink.options import parse_sink_options
from tandemmq.spark.sink.sender import OnceRun, RowSender
from tandemmq.spark.sink.writer import PIN_FILE, TopicStreamWriter, pin_queues

OPTIONS = replace(
    parse_sink_options({"nameServer": "ns:1", "topic": "T", "retries": "3"}), exactly_once_topics=("T",)
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.spark.sink.sender.time, "sleep", lambda seconds: None)


def send_rows(net: FakeNet, count: int, *, epoch: int = 0, batch_bytes: int = 100_000) -> RowSender:
    once = OnceRun("q", 1, epoch, pin_queues(OPTIONS))
    sender = RowSender(OPTIONS, turn=1, once=once)
    encoder = BatchEncoder(
        find_sink_columns([("body", "string")], has_topic_option=True),
        replace(OPTIONS, batch_bytes=batch_bytes),
        key_prefix=make_prefix("q", epoch),
        queues=sender.queues,
        spread=1 + epoch,
    )
    rows = pa.record_batch({"body": [f"row {n}" for n in range(count)]})
    for at in range(0, count, 1000):
        for shipment in encoder.encode(rows.slice(at, 1000)):
            sender.send(shipment)
    sender.finish()
    sender.close()
    return sender


def claims(net: FakeNet) -> list[tuple[int, list[str]]]:
    """Returns queue and claim of each send."""
    return [
        (sent.header.queue_id, str(sent.header.properties).partition("\x01")[2].rstrip("\x02").split(","))
        for sent in net.brokers["b-0:1"].sent
    ]


def test_each_send_names_the_one_before_it_in_its_queue(net: FakeNet) -> None:
    net.add_master(T_0=FakeQueue(), T_1=FakeQueue()).runtime_info[CAPABILITY] = "1"
    send_rows(net, 2 * SPREAD_ROWS, batch_bytes=40_000)
    before: dict[int, str] = {}
    for queue_id, (version, _, epoch, after) in claims(net):
        assert (version, epoch) == ("1", "0")
        assert after.startswith(before.get(queue_id, "-")) or after > before[queue_id]
        before[queue_id] = after
    assert set(before) == {0, 1}
    # Neighbouring rows share a queue, whatever the size of the sends.
    assert [queue for queue, claim in claims(net) if claim[3] == "-"] == [1, 0]


def test_a_repeat_after_no_answer_is_the_same_send_to_the_same_queue(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue(), T_1=FakeQueue())
    master.runtime_info[CAPABILITY] = "1"
    master.send_codes = [int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.FLUSH_SLAVE_TIMEOUT)]
    send_rows(net, 10)
    assert len({(sent.header.queue_id, sent.header.properties, sent.body) for sent in master.sent}) == 1
    assert len(master.sent) == 3


def test_a_broker_that_cannot_is_refused_before_anything_is_sent(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue())
    with pytest.raises(NotPermitted, match="cannot store sends once"):
        send_rows(net, 1)
    assert master.sent == []


def test_a_refusal_is_not_sent_again(net: FakeNet) -> None:
    master = net.add_master(T_0=FakeQueue())
    master.runtime_info[CAPABILITY] = "1"
    master.send_codes = [int(ResponseCode.ILLEGAL_OPERATION)]
    with pytest.raises(RequestRejected):
        send_rows(net, 1)
    assert len(master.sent) == 1


def test_queues_stay_as_they_were_first(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue(), T_1=FakeQueue())
    options = replace(OPTIONS, state_dir=str(tmp_path / "state"))
    first = pin_queues(options)
    net.queue_counts["T"] = {"b": 8}
    net.add_master("c", T_0=FakeQueue())
    assert pin_queues(options) == first
    assert [queue.queue_id for queue in first["T"]] == [0, 1]
    (tmp_path / "state" / PIN_FILE).write_text(json.dumps({"version": 9}))
    with pytest.raises(ConfigError, match="version 9"):
        pin_queues(options)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"mode": "transactional"},
            "option semantics: the query began with 'exactly-once' and has 'transactional'",
        ),
        ({"topic": "", "topics": "T"}, "option topic: the query began with 'T' and has '' now"),
        ({"topic": "U"}, "option topic: the query began with 'T' and has 'U' now"),
    ],
)
def test_a_query_that_would_name_its_rows_anew_is_refused(
    net: FakeNet, tmp_path: Path, changed: dict[str, str], text: str
) -> None:
    net.add_master(T_0=FakeQueue(), U_0=FakeQueue())
    raw = {"nameserver": "ns:1", "mode": "exactly-once", "topic": "T", "checkpointlocation": str(tmp_path)}
    columns = find_sink_columns([("body", "string"), ("topic", "string")], has_topic_option=False)

    def write(**more: str) -> TopicStreamWriter:
        return TopicStreamWriter(parse_sink_options({**raw, **more}), columns)

    write()
    for harmless in (
        {"batchBytes": "1k", "inFlight": "1", "taskRowsPerSecond": "5", "group": "g", "retries": "1"},
        {"emptyBodies": "divert", "emptyBodiesTopic": "U"},
        {"sendTimeoutMs": "1", "retryIntervalMs": "1"},
    ):
        write(**harmless)
    with pytest.raises(ConfigError, match=text):
        write(**changed)
    # A state directory that several writes may share says nothing about one query.
    write(stateDir=str(tmp_path / "shared"))
    write(stateDir=str(tmp_path / "shared"), topic="U")


def test_a_changed_mode_of_an_at_least_once_query_is_refused(net: FakeNet, tmp_path: Path) -> None:
    net.add_master(T_0=FakeQueue())
    raw = {"nameserver": "ns:1", "topic": "T", "writeid": "w"}
    columns = find_sink_columns([("body", "string")], has_topic_option=True)

    def write(checkpoint: Path | str, **more: str) -> TopicStreamWriter:
        options = parse_sink_options({**raw, "checkpointlocation": str(checkpoint), **more})
        return TopicStreamWriter(options, columns)

    write(tmp_path)
    # The rows of a batch that is repeated may go to another topic.
    write(tmp_path, topic="U", stateDir="/nowhere")
    with pytest.raises(
        ConfigError, match="option semantics: the query began with 'at-least-once' and has 'ex"
    ):
        write(tmp_path, mode="exactly-once")
    # Only the driver's directories can hold the state.
    write("hdfs://h/c")
    write(tmp_path / "absent")
    assert [path.name for path in tmp_path.iterdir()] == ["tandemmq_sink"]
    write(tmp_path / "other", mode="exactly-once")
    with pytest.raises(ConfigError, match="the query began with 'exactly-once' and has 'at-least-once' now"):
        write(tmp_path / "other")


def test_a_row_for_a_topic_that_was_not_named_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="option topics names T"):
        OnceRun("q", 0, 0, {"T": ()}).queues("U")


def test_exactly_once_state_directory_defaults_to_the_checkpoint() -> None:
    raw = {"nameserver": "h:1", "mode": "exactly-once", "topics": "a, b", "checkpointlocation": "file:/c/"}
    options = parse_sink_options(raw)
    assert (options.exactly_once_topics, options.state_dir) == (("a", "b"), "/c/tandemmq_sink")
    assert parse_sink_options({**raw, "stateDir": "/s"}).state_dir == "/s"
