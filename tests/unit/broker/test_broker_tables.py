"""Topics, groups and offsets: changes, versions, bounds, RocketMQ's files (spec store 18)."""

from __future__ import annotations

import json

import msgspec
import pytest

from tandemmq.broker.offsets.offset_table import DelayOffsetTable, OffsetTable
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable, make_topic
from tandemmq.errors import Busy, RemoteProtocolError
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig

MASTER_VERSION = DataVersion(counter=40, state_version=2, timestamp_ms=9)


def test_topic_changes_bump_the_version_once_and_are_told() -> None:
    table = TopicTable()
    told: list[list[str]] = []
    table.on_change.append(told.append)
    assert table.put(make_topic("A", 1), 100)
    assert not table.put(make_topic("A", 1), 200)
    assert table.put(make_topic("A", 2), 300)
    assert table.data_version == DataVersion(counter=2, timestamp_ms=300)
    assert table.remove("A", 400)
    assert not table.remove("A", 500)
    assert told == [["A"], ["A"], ["A"]]


def test_topics_are_bounded() -> None:
    table = TopicTable(count_max=1)
    table.put(make_topic("A", 1), 0)
    with pytest.raises(Busy, match="1 topics"):
        table.put(make_topic("B", 1), 0)
    assert table.put(make_topic("A", 2), 0)


def test_slave_takes_over_table_and_version() -> None:
    table = TopicTable()
    table.put(make_topic("Old", 1), 0)
    removed = table.replace_all({"New": make_topic("New", 3)}, MASTER_VERSION)
    assert (removed, table.names, table.data_version) == (["Old"], ["New"], MASTER_VERSION)


def test_topics_survive_their_file() -> None:
    table, copy = TopicTable(), TopicTable()
    table.put(msgspec.structs.replace(make_topic("A", 3), attributes={"message.type": "FIFO"}), 5)
    copy.load(table.encode())
    assert (copy.configs, copy.data_version) == (table.configs, table.data_version)
    assert json.loads(table.encode())["topicConfigTable"]["A"]["readQueueNums"] == 3


def test_group_is_made_by_use_when_allowed_and_named_well() -> None:
    table = GroupTable()
    assert table.find_or_create("g", 0) == SubscriptionGroupConfig(name="g")
    assert table.find_or_create("no/slash", 0) is None
    assert table.find_or_create("", 0) is None
    strict = GroupTable(auto_create=False)
    assert strict.find_or_create("g", 0) is None
    assert strict.find_or_create("CID_RMQ_SYS_X", 0) is not None


def test_slave_makes_groups_without_a_new_version() -> None:
    table = GroupTable(is_replica=True)
    table.replace_all({}, MASTER_VERSION)
    assert table.find_or_create("g", 7) is not None
    assert table.data_version == MASTER_VERSION


def test_forbidden_reads_survive_their_file() -> None:
    table = GroupTable()
    table.load(b'{"forbiddenTable":{"g":{"T":4,"U":2}},"subscriptionGroupTable":{"g":{"groupName":"g"}}}')
    copy = GroupTable()
    copy.load(table.encode())
    assert copy.is_read_forbidden("g", "T")
    assert not copy.is_read_forbidden("g", "U")
    assert not copy.is_read_forbidden("other", "T")


def test_offsets_go_up_and_down_and_versions_follow_in_steps() -> None:
    table = OffsetTable(version_step=3)
    for offset in (10, 20, 5):
        table.commit("g", "T", 0, offset, 1)
    assert table.committed("g", "T", 0) == 5
    assert table.committed("g", "T", 1) is None
    assert table.data_version.counter == 1


def test_offset_keys_are_bounded() -> None:
    table = OffsetTable(key_count_max=1)
    table.commit("g", "T", 0, 1, 0)
    table.commit("g", "T", 1, 1, 0)
    with pytest.raises(Busy):
        table.commit("h", "T", 0, 1, 0)
    table.commit("h", "T", 0, 1, 0, is_admitted=True)
    assert table.committed("h", "T", 0) == 1


def test_reset_is_taken_once() -> None:
    table = OffsetTable()
    table.reset("g", "T", 0, 3, 0)
    assert table.committed("g", "T", 0) == 3
    assert table.waiting_reset("g", "T", 0) == 3
    assert table.consume_reset("g", "T", 0) == 3
    assert table.consume_reset("g", "T", 0) is None
    assert table.waiting_reset("g", "T", 0) is None


def test_dropped_topic_and_group_leave_no_offsets() -> None:
    table = OffsetTable()
    for group in ("g", "h"):
        for topic in ("T", "U", "TT"):
            table.commit(group, topic, 0, 1, 0)
            table.record_pulled(group, topic, 0, 2)
    assert sorted(table.groups_of("T")) == ["g", "h"]
    assert sorted(table.topics_of("g")) == ["T", "TT", "U"]
    table.drop_topic("T")
    table.drop_group("h", 1)
    assert (table.groups_of("T"), table.groups_of("U"), table.topics_of("h")) == ([], ["g"], [])
    assert table.groups_of("TT") == ["g"]  # its name only begins with the dropped one's
    assert table.pulled("g", "T", 0) is None
    assert table.pulled("g", "U", 0) == 2


def test_where_the_log_ended_when_a_group_was_dropped_is_kept_and_falls_with_the_log() -> None:
    table = OffsetTable()
    table.log_end = lambda: 1_000
    table.drop_group("g", 5)
    assert (table.dropped_end("g"), table.dropped_end("h")) == (1_000, 0)
    table.cut_dropped(2_000)
    assert table.dropped_end("g") == 1_000
    table.cut_dropped(900)  # the offsets above were assigned again since
    again = OffsetTable()
    again.load(table.encode())
    assert again.dropped_end("g") == 900


def test_progress_of_before_a_deletion_is_forgotten_when_it_is_read_back() -> None:
    deleted: dict[str, int] = {}

    def read_back(data: bytes) -> tuple[int, int | None]:
        copy = OffsetTable()
        copy.load(data)
        copy.deleted_topics = lambda: deleted
        return copy.forget_deleted(), copy.committed("g", "T", 0)

    table = OffsetTable()
    table.commit("g", "T", 0, 7, 0)
    table.commit("g", "U", 0, 7, 0)
    of_another_broker = table.encode()
    table.deleted_topics = lambda: deleted
    table.forget_deleted()
    assert read_back(table.encode()) == (0, 7)
    deleted["T"] = 1_000
    # Saved when the deletion was on disk and the table did not contain it yet.
    assert read_back(table.encode()) == (1, None)
    table.drop_topic("T")
    table.commit("g", "T", 0, 1, 0)
    made_again = table.encode()
    assert read_back(made_again) == (0, 1)
    deleted["T"] = 2_000
    assert read_back(made_again) == (1, None)
    assert read_back(of_another_broker) == (0, 7)


def test_deletions_that_expired_are_forgotten_by_the_table_of_offsets() -> None:
    deleted: dict[str, int] = {}
    table = OffsetTable()
    table.deleted_topics = lambda: deleted
    for number in range(100):
        table.commit("g", f"T{number}", 0, 1, 0)
        deleted.clear()
        deleted[f"T{number}"] = number
        table.drop_topic(f"T{number}")
    assert table._last_deletions == deleted


def test_slave_merges_the_masters_offsets_by_key() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 1, 0)
    table.commit("g", "T", 1, 1, 0)
    table.commit("own", "T", 0, 8, 0)
    table.replace_from_master({"T@g": {0: 50}}, MASTER_VERSION)
    assert [table.committed("g", "T", queue) for queue in (0, 1)] == [50, None]
    assert table.committed("own", "T", 0) == 8
    assert table.data_version == MASTER_VERSION


def test_javas_offset_file_with_unquoted_keys_is_read() -> None:
    text = (
        b'{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":17},\n\t"groupTopicMap":{"g":["T"]},\n'
        b'\t"offsetTable":{\n\t\t"T@g":{0:250,1:251\n\t\t},\n\t\t"%RETRY%g@g":{0:0\n\t\t}\n\t}\n}'
    )
    table = OffsetTable()
    table.load(text)
    assert table.committed("g", "T", 1) == 251
    assert table.committed("g", "%RETRY%g", 0) == 0
    copy = OffsetTable()
    copy.load(table.encode())
    assert copy.snapshot() == table.snapshot()
    assert json.loads(table.encode())["groupTopicMap"] == {"g": ["T", "%RETRY%g"]}


def test_delay_offsets_survive_their_file_also_without_version() -> None:
    table = DelayOffsetTable(version_step=1)
    table.load(b'{"offsetTable":{1:0,3:17\n\t}\n}')
    assert (table.get(3), table.get(2)) == (17, None)
    table.update(3, 18, 5)
    copy = DelayOffsetTable()
    copy.load(table.encode())
    assert (copy.get(3), copy.data_version) == (18, DataVersion(counter=1, timestamp_ms=5))
    copy.replace_all({1: 2}, MASTER_VERSION)
    assert (copy.get(3), copy.get(1)) == (None, 2)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"offsetTable":{"T@g":7}}', b"\xff"])
def test_garbage_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        OffsetTable().load(data)


def test_offsets_that_are_lowered_are_saved() -> None:
    """Otherwise a kill brings back an offset beyond the queue's end, when the queue may have grown
    past it.
    """
    table, changes = OffsetTable(), 0

    def note() -> None:
        nonlocal changes
        changes += 1

    table.commit("G", "T", 0, 10, 0)
    table.on_change.append(note)
    version = table.data_version
    assert table.clamp(lambda _topic, _queue_id: 10, 1) == changes == 0
    assert table.clamp(lambda _topic, _queue_id: 4, 2) == changes == 1
    assert table.committed("G", "T", 0) == 4
    assert table.data_version != version
