"""Tests transactional writes: half messages, the stored decision, ends repeated only if necessary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from spark_fakes import BORN, STORED, FakeBroker, FakeNet, FakeQueue

import tandemmq.spark.sink.sender
import tandemmq.spark.sink.transaction
import tandemmq.spark.sink.writer
from tandemmq.errors import BrokerUnreachable, ConfigError, MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_message_id
from tandemmq.protocol.properties import decode_properties, encode_properties
from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.protocol.requests.consume import QueryMessageRequest, QueryMessageResponse
from tandemmq.protocol.requests.send import EndTransactionRequest, SendRequestV2, SendResponse
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from tandemmq.spark.sink import transaction
from tandemmq.spark.sink.columns import find_sink_columns
from tandemmq.spark.sink.halves import DECISION_FILE, DecisionFiles, HalfLog, decode_part, read_decided
from tandemmq.spark.sink.options import SinkOptions, parse_sink_options
from tandemmq.spark.sink.transaction import WINDOW, EndFailed, TaskHalves
from tandemmq.spark.sink.writer import TopicStreamWriter, send_rows
from tandemmq.spark.task import BATCH_ID, QUERY_ID

NAME = "stream\0q\0T"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tandemmq.spark.sink.sender, tandemmq.spark.sink.transaction):
        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)


@dataclass
class HalfBroker(FakeBroker):
    """Stores half messages and commits them like RocketMQ: twice if requested twice."""

    halves: list[SendRequestV2] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    """The log offsets of the half messages, in the order of their commits."""
    rolled_back: list[int] = field(default_factory=list)
    on_end: Callable[[int], int | None] = lambda number: None
    """A function that maps the number of an end to a response code, which replaces the end; it may raise."""
    after_end: Callable[[int], None] = lambda number: None
    """A function called after an end has taken effect and before it is answered."""
    end_count: int = 0
    query_count: int = 0

    def answer(self, command: Command) -> Command:
        handler = {
            RequestCode.SEND_MESSAGE_V2: self._store,
            RequestCode.END_TRANSACTION: self._end,
            RequestCode.QUERY_MESSAGE: self._find,
        }.get(RequestCode(command.code))
        return super().answer(command) if handler is None else handler(command)

    def _store(self, command: Command) -> Command:
        header = command.decode(SendRequestV2)
        assert header.sys_flag == TRANSACTION_PREPARED
        number = len(self.halves)
        self.halves.append(header)
        code = self.send_codes.pop(0) if self.send_codes else 0
        response = SendResponse(
            message_id=encode_message_id(STORED, number * 100),
            queue_id=header.queue_id,
            queue_offset=number,
        )
        return command.reply(code, response)

    def _end(self, command: Command) -> Command:
        header = command.decode(EndTransactionRequest)
        assert not command.is_oneway
        assert header.log_offset == header.half_queue_offset * 100
        properties = self.properties(header.half_queue_offset)
        assert (properties[names.PGROUP], properties[names.UNIQ_KEY]) == (
            header.producer_group,
            header.unique_key,
        )
        self.end_count += 1
        code = self.on_end(self.end_count)
        if code is None:
            is_commit = header.decision == TRANSACTION_COMMIT
            (self.visible if is_commit else self.rolled_back).append(header.log_offset)
            self.after_end(self.end_count)
        return command.reply(code or 0)

    def _find(self, command: Command) -> Command:
        request = command.decode(QueryMessageRequest)
        assert request.is_unique_key
        self.query_count += 1
        found = [
            self._committed(request.topic, log_offset)
            for log_offset in self.visible
            if self.properties(log_offset // 100)[names.UNIQ_KEY] == request.key
        ]
        header = QueryMessageResponse(index_updated_at_ms=0, index_log_offset=0)
        code = ResponseCode.SUCCESS if found else ResponseCode.QUERY_NOT_FOUND
        return command.reply(code, header, body=b"".join(found))

    def _committed(self, topic: str, log_offset: int) -> bytes:
        record = NewRecord(
            topic=topic,
            queue_id=0,
            body=b"x",
            properties=encode_properties(self.properties(log_offset // 100)),
            born_at_ms=1,
            born_host=BORN,
            prepared_offset=log_offset,
        )
        return encode_record(record, queue_offset=0, log_offset=7, stored_at_ms=2, store_host=STORED)

    def properties(self, number: int) -> dict[str, str]:
        return decode_properties((self.halves[number].properties or "").encode())


def add_broker(net: FakeNet, name: str = "b") -> HalfBroker:
    net.add_master(name, T_0=FakeQueue(), T_1=FakeQueue())
    broker = HalfBroker()
    net.brokers[f"{name}-0:1"] = broker
    return broker


def make_options(state_dir: Path | None, **more: Any) -> SinkOptions:
    raw = {"nameserver": "ns:1", "topic": "T", "mode": "transactional"}
    if state_dir is not None:
        raw["stateDir"] = str(state_dir)
    return replace(parse_sink_options(raw), retry_count=3, **more)


def send_task(options: SinkOptions, count: int, *, task: int = 0, **columns: list[Any]) -> TaskHalves:
    """Returns the commit message that a task of a batch passes to the driver."""
    rows = {"body": [f"row {n}" for n in range(count)], **columns}
    fields = [(name, "map<string,string>" if name == "properties" else "string") for name in rows]
    types = {"properties": pa.map_(pa.string(), pa.string())}
    arrays = {name: pa.array(values, types.get(name, pa.string())) for name, values in rows.items()}
    halves = HalfLog(options.group, options.transaction_rows_max)
    known = find_sink_columns(fields, has_topic_option=True)
    send_rows(iter([pa.record_batch(arrays)]), options, known, ("q", task), task, halves=halves)
    return TaskHalves(name=NAME, parts=tuple(part.encode() for part in halves.parts()))


def all_offsets(broker: HalfBroker) -> list[int]:
    return [number * 100 for number in range(len(broker.halves))]


def test_rows_become_half_messages_and_a_commit_ends_all_of_them(net: FakeNet, tmp_path: Path) -> None:
    brokers = [add_broker(net, "a"), add_broker(net, "b")]
    options = make_options(tmp_path)
    immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "5", "own": "1"}
    tasks = [
        send_task(options, 2 * WINDOW, tags=["x"] * 2 * WINDOW),
        send_task(options, 100, task=1, properties=[list(immunity.items())] * 100),
    ]
    assert sum(len(broker.halves) for broker in brokers) == 2 * WINDOW + 100
    assert not any(broker.visible for broker in brokers)
    properties = [broker.properties(n) for broker in brokers for n in range(len(broker.halves))]
    assert {(p["TRAN_MSG"], p["PGROUP"]) for p in properties} == {("true", "TANDEMMQ_SPARK_SINK")}
    assert len({p["UNIQ_KEY"] for p in properties}) == 2 * WINDOW + 100
    assert not any("CHECK_IMMUNITY_TIME_IN_SECONDS" in p for p in properties)
    assert sum("own" in p for p in properties) == 100
    transaction.commit(options, 4, tasks)
    for broker in brokers:
        assert sorted(broker.visible) == all_offsets(broker)
        assert broker.query_count == 0
    # The decision is kept, so that a replay of the batch sends nothing; the half messages are removed.
    assert read_decided(str(tmp_path)) == {(NAME, 4)}
    left = {path.name for path in DecisionFiles(str(tmp_path), NAME).directory.iterdir()}
    assert left == {DECISION_FILE, "lock"}


def test_a_row_costs_the_driver_what_is_documented(net: FakeNet) -> None:
    add_broker(net)
    task = send_task(make_options(None), 2000)
    assert sum(len(part) for part in task.parts) / 2000 < 55


def test_repeats_of_half_sends_leave_half_messages_that_nobody_ends(net: FakeNet) -> None:
    broker = add_broker(net)
    broker.send_codes = [int(ResponseCode.FLUSH_SLAVE_TIMEOUT), int(ResponseCode.SYSTEM_BUSY)]
    options = make_options(None)
    task = send_task(options, 5)
    assert len(broker.halves) == 7
    transaction.commit(options, 0, [task])
    assert len(broker.visible) == len(set(broker.visible)) == 5
    committed = {broker.properties(offset // 100)["UNIQ_KEY"] for offset in broker.visible}
    assert len(committed) == 5


def test_an_abort_takes_back_all_that_it_knows(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    task = send_task(options, WINDOW + 1)
    transaction.abort(options, 0, [task])
    transaction.abort(options, 0, [])
    assert broker.visible == []
    assert sorted(broker.rolled_back) == all_offsets(broker)
    assert read_decided(str(tmp_path)) == set()


def test_a_broker_that_is_away_does_not_fail_an_abort(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    task = send_task(options, 3)
    broker.is_down = True
    transaction.abort(options, 0, [task])
    assert (broker.visible, broker.rolled_back) == ([], [])


@pytest.mark.parametrize("dies_at", [1, 2, WINDOW, WINDOW + 7])
def test_a_driver_that_died_between_two_ends_is_followed_by_one_that_ends_the_rest(
    net: FakeNet, tmp_path: Path, dies_at: int
) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    task = send_task(options, 2 * WINDOW)

    def die(number: int) -> None:
        if number == dies_at:
            raise KeyboardInterrupt

    broker.after_end = die
    with pytest.raises(KeyboardInterrupt):
        transaction.commit(options, 9, [task])
    assert len(broker.visible) == dies_at
    # Spark aborts with the same messages; the decided batch is kept.
    transaction.abort(options, 9, [task])
    assert broker.rolled_back == []
    broker.after_end = lambda number: None
    assert (NAME, 9) in read_decided(str(tmp_path))
    transaction.commit(options, 9, [TaskHalves(name=NAME, parts=(), is_decided=True)])
    assert sorted(broker.visible) == all_offsets(broker)
    assert broker.query_count == 2 * WINDOW
    # Repeated as after a crash before Spark's own log of the batch: nothing is left to do.
    transaction.commit(options, 9, [TaskHalves(name=NAME, parts=(), is_decided=True)])
    transaction.abort(options, 9, [task])
    assert len(broker.visible) == 2 * WINDOW


def test_a_task_that_did_not_know_of_the_decision_is_taken_back(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    transaction.commit(options, 1, [send_task(options, 3)])
    transaction.commit(options, 1, [send_task(options, 3)])
    assert (broker.visible, broker.rolled_back) == ([0, 100, 200], [300, 400, 500])


def test_a_task_of_a_decided_batch_sends_nothing(
    net: FakeNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    transaction.commit(options, 4, [send_task(options, 3)])
    context = SimpleNamespace(partitionId=lambda: 0, getLocalProperty={BATCH_ID: "4", QUERY_ID: "q"}.get)
    monkeypatch.setattr(tandemmq.spark.sink.writer.TaskContext, "get", lambda: context)
    writer = TopicStreamWriter(options, find_sink_columns([("body", "string")], has_topic_option=True))
    assert writer.write(iter([pa.record_batch({"body": ["row"]})])) == TaskHalves(NAME, (), is_decided=True)
    assert len(broker.halves) == 3


def test_the_next_batch_replaces_the_decision(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    for batch_id in range(3):
        transaction.commit(options, batch_id, [send_task(options, 2)])
    assert sorted(broker.visible) == all_offsets(broker)
    assert read_decided(str(tmp_path)) == read_decided(str(tmp_path), NAME) == {(NAME, 2)}
    assert read_decided(str(tmp_path), "another") == set()
    assert read_decided("") == read_decided(str(tmp_path / "none")) == set()


def test_ends_whose_answer_is_lost_are_repeated_only_where_they_were_not_done(net: FakeNet) -> None:
    broker = add_broker(net)

    def break_at(number: int) -> None:
        if number in (10, 300):
            raise BrokerUnreachable("the connection broke")

    broker.after_end = break_at
    broker.on_end = lambda number: int(ResponseCode.SYSTEM_ERROR) if number % 50 == 7 else None
    options = make_options(None)
    transaction.commit(options, 0, [send_task(options, 2 * WINDOW)])
    assert sorted(broker.visible) == all_offsets(broker)
    assert broker.query_count > 0


def test_ends_that_stay_refused_are_an_error_that_says_what_to_do(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    broker.on_end = lambda number: int(ResponseCode.SYSTEM_ERROR) if number > 2 else None
    options = make_options(tmp_path)
    task = send_task(options, 5)
    with pytest.raises(EndFailed, match=r"3 of 5 rows are not committed yet.*start the query again"):
        transaction.commit(options, 0, [task])
    broker.on_end = lambda number: None
    transaction.commit(options, 0, [TaskHalves(name=NAME, parts=(), is_decided=True)])
    assert sorted(broker.visible) == all_offsets(broker)


def test_a_write_without_state_dir_says_what_is_visible(net: FakeNet) -> None:
    broker = add_broker(net)
    broker.on_end = lambda number: int(ResponseCode.SYSTEM_ERROR) if number > 2 else None
    options = make_options(None)
    with pytest.raises(EndFailed, match=r"3 of 5 rows .* no stateDir"):
        transaction.commit(options, 0, [send_task(options, 5)])


def test_too_many_rows_are_refused_by_the_task_and_by_the_driver(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path, transaction_rows_max=10)
    with pytest.raises(MessageIllegal, match=r"more than 10 rows.*transactionRows"):
        send_task(options, 11)
    tasks = [send_task(options, 6, task=task) for task in range(2)]
    with pytest.raises(MessageIllegal, match="more than 10 rows"):
        transaction.commit(options, 0, tasks)
    assert broker.visible == []
    assert read_decided(str(tmp_path)) == set()


def test_a_decision_that_cannot_be_trusted_is_refused(net: FakeNet, tmp_path: Path) -> None:
    broker = add_broker(net)
    options = make_options(tmp_path)
    with pytest.raises(ConfigError, match="decision of batch 3 has gone"):
        transaction.commit(options, 3, [TaskHalves(name=NAME, parts=(), is_decided=True)])
    broker.on_end = lambda number: int(ResponseCode.SYSTEM_ERROR)
    with pytest.raises(EndFailed):
        transaction.commit(options, 3, [send_task(options, 3)])
    files = DecisionFiles(str(tmp_path), NAME)
    (halves,) = files.directory.glob("halves-*.bin")
    halves.write_bytes(halves.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="halves-3"):
        transaction.commit(options, 3, [TaskHalves(name=NAME, parts=(), is_decided=True)])
    path = files.directory / DECISION_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ConfigError, match="version 2"):
        read_decided(str(tmp_path))


def test_transactional_write_refuses_missing_checkpoint_and_delays(tmp_path: Path) -> None:
    columns = find_sink_columns([("body", "string")], has_topic_option=True)
    with pytest.raises(ConfigError, match="needs the option checkpointLocation"):
        TopicStreamWriter(make_options(None), columns)
    delayed = find_sink_columns([("body", "string"), ("delayLevel", "int")], has_topic_option=True)
    with pytest.raises(ConfigError, match="drop the column delayLevel"):
        TopicStreamWriter(make_options(tmp_path), delayed)


def test_a_part_travels_as_bytes(net: FakeNet) -> None:
    add_broker(net)
    (raw,) = send_task(make_options(None), 3).parts
    part = decode_part(raw)
    assert (part.topic, part.broker_name, len(part)) == ("T", "b", 3)
    halves = part.read(1, 10)
    assert [(half.half_offset, half.log_offset) for half in halves] == [(1, 100), (2, 200)]
    assert all(len(half.key) == 32 for half in halves)
