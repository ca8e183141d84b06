"""Tests the offsets of a stream: one spelling, a pinned start, fair shares."""

from __future__ import annotations

import json
import random
import zlib
from base64 import b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.errors import ConfigError
from tandemmq.spark import offsets
from tandemmq.spark.offsets import (
    MANY_QUEUES,
    Mark,
    OffsetRange,
    PackingOptions,
    QueueKey,
    StreamOffset,
    advance,
    count_behind,
    decode_offset,
    encode_offset,
    flatten_positions,
    keep_youngest,
    plan_ranges,
    render_queues,
    share_out,
)

A0, A1, B0 = QueueKey("a", "x", 0), QueueKey("a", "x", 1), QueueKey("b", "x", 0)

queues = st.builds(
    QueueKey,
    st.sampled_from(["t", "u"]),
    st.sampled_from(["b1", "b2"]),
    st.integers(min_value=0, max_value=12),
)
positions = st.dictionaries(queues, st.integers(min_value=0, max_value=2**62))


marks = st.dictionaries(queues, st.builds(Mark, *[st.integers(min_value=0, max_value=2**62)] * 3))
packings = st.sampled_from([None, PackingOptions(), PackingOptions(partitions_min=2, records_max=9)])


@pytest.mark.parametrize("many_queues", [0, MANY_QUEUES])
@given(positions, positions, marks, st.sampled_from(["", "abc"]), packings)
def test_an_offset_survives_the_checkpoint(
    many_queues: int,
    found: dict,
    base: dict,
    marks: dict,
    filter_hash: str,
    packing: PackingOptions | None,
) -> None:
    offset = StreamOffset(positions=found, base=base, marks=marks, filter_hash=filter_hash, packing=packing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "MANY_QUEUES", many_queues)
        document = encode_offset(offset)
    assert ("z" in document) == (len(found) > many_queues)
    assert decode_offset(json.loads(json.dumps(document))) == offset


@given(st.lists(st.tuples(queues, st.integers(min_value=0)), unique_by=lambda pair: pair[0]))
def test_equal_positions_have_one_text_whatever_their_order(pairs: list) -> None:
    forwards = json.dumps(encode_offset(StreamOffset(positions=dict(pairs))))
    backwards = json.dumps(encode_offset(StreamOffset(positions=dict(reversed(pairs)))))
    assert forwards == backwards


def test_queues_are_sorted_by_number_and_not_by_text() -> None:
    many = {QueueKey("t", "b", n): n for n in (10, 9, 2)}
    assert list(encode_offset(StreamOffset(positions=many))["o"]["t"]["b"]) == ["2", "9", "10"]


def test_a_symbol_has_no_numbers() -> None:
    assert encode_offset(StreamOffset(symbol="latest")) == {"v": 1, "init": "latest"}
    assert decode_offset({"v": 1, "init": "latest"}) == StreamOffset(symbol="latest")


def test_an_offset_of_another_version_is_refused() -> None:
    for version in (2, 4):  # 2 had another layout
        with pytest.raises(ConfigError, match=f"format version {version}; this one reads 1 and 3"):
            decode_offset({"v": version, "o": {}, "z": ""})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"o":{"t":{"b":{"0":[5]}}}}',
        b'{"queues":[]}\0',
        b'{"queues":{}}\0',
        b'{"queues":{"t":{"b":[[0,2]]}},"f":"","plan":null}\0' + b"\1" * 8,
        b'{"queues":{"t":{"b":[[0,1]]}},"f":"","plan":null}\0' + b"\1" * 7,
    ],
)
def test_a_damaged_packed_offset_is_refused(content: bytes) -> None:
    for text in (None, "AAAA", b64encode(zlib.compress(content)).decode()):
        with pytest.raises(ConfigError, match="packed offset that cannot be read"):
            decode_offset({"v": 3, "z": text})


def test_an_offset_of_many_queues_is_packed_and_survives_the_checkpoint() -> None:
    found = {QueueKey("t", "b", n): n * 7919 % 100_003 for n in range(MANY_QUEUES + 2) if n != 5}
    marks = {QueueKey("t", "b", 9): Mark(1, 2, 3)}
    offset = StreamOffset(
        positions=found, base={A1: 7}, filter_hash="f", marks=marks, packing=PackingOptions(records_max=3)
    )
    document = encode_offset(offset)
    assert (document["v"], sorted(document)) == (3, ["v", "z"])
    assert decode_offset(json.loads(json.dumps(document))) == offset
    assert encode_offset(replace(offset, positions=dict(reversed(found.items())))) == document
    fewer = replace(offset, positions={queue: found[queue] for queue in list(found)[:MANY_QUEUES]})
    assert encode_offset(fewer)["v"] == 1


@pytest.mark.parametrize(("topics", "queues", "brokers"), [(1_000, 10, 1), (1, 10_000, 4)])
def test_an_offset_of_ten_thousand_queues_has_at_most_100_kib(topics: int, queues: int, brokers: int) -> None:
    rng = random.Random(42)
    found = {
        QueueKey(f"orders-of-region-{topic}", f"broker-{queue % brokers}", queue // brokers): rng.randrange(
            10**7
        )
        for topic in range(topics)
        for queue in range(queues)
    }
    marks = {
        queue: Mark(at - 1, rng.randrange(10**12), 1_795_830_000_000 + rng.randrange(10**8))
        for queue, at in found.items()
    }
    first = {queue: rng.randrange(at + 1) for queue, at in found.items()}
    for base in ({}, found, first):
        offset = StreamOffset(
            positions=found, base=base, marks=keep_youngest(marks), packing=PackingOptions()
        )
        assert len(json.dumps(encode_offset(offset))) <= 100 * 1024


@pytest.mark.parametrize(
    "nested",
    [{"t": 5}, {"t": {"b": 5}}, {"t": {"b": {"x": 5}}}, {"t": {"b": {"0": "5"}}}, {"t": {"b": {"0": True}}}],
)
def test_users_json_of_another_shape_is_refused(nested: dict) -> None:
    with pytest.raises(ConfigError, match="expected"):
        flatten_positions(nested)


def test_the_first_end_offset_pins_the_start_even_when_nothing_is_there() -> None:
    start = StreamOffset(symbol="latest")
    end = advance(start, begin={A0: 7}, latest={A0: 7}, limit=None, filter_hash="")
    assert end == StreamOffset(positions={A0: 7}, base={A0: 7})
    later = advance(end, begin={}, latest={A0: 9}, limit=None, filter_hash="")
    assert later == StreamOffset(positions={A0: 9})
    assert plan_ranges(end, later) == [OffsetRange(A0, 7, 9)]


def test_a_replay_of_the_first_batch_reads_from_the_pinned_start() -> None:
    start = StreamOffset(symbol="earliest")
    end = advance(start, begin={A0: 3, A1: 0}, latest={A0: 5, A1: 0}, limit=None, filter_hash="")
    assert end is not None
    assert plan_ranges(start, end) == [OffsetRange(A0, 3, 5)]


def test_nothing_new_gives_none_so_that_the_start_is_returned_as_it_is() -> None:
    start = StreamOffset(positions={A0: 5})
    assert advance(start, begin={}, latest={A0: 5}, limit=None, filter_hash="") is None
    assert advance(start, begin={}, latest={}, limit=None, filter_hash="") is None


def test_a_queue_that_appears_later_is_pinned_by_the_offset_that_first_names_it() -> None:
    start = StreamOffset(positions={A0: 5})
    end = advance(start, begin={A1: 2}, latest={A0: 5, A1: 4}, limit=None, filter_hash="")
    assert end == StreamOffset(positions={A0: 5, A1: 4}, base={A1: 2})
    assert plan_ranges(start, end) == [OffsetRange(A1, 2, 4)]


def test_a_replica_that_is_behind_does_not_move_a_position_back() -> None:
    start = StreamOffset(positions={A0: 5, A1: 5})
    end = advance(start, begin={}, latest={A0: 3, A1: 6}, limit=None, filter_hash="")
    assert end is not None
    assert end.positions == {A0: 5, A1: 6}


backlogs = st.dictionaries(queues, st.integers(min_value=0, max_value=10**9), max_size=12)


@given(backlogs, st.integers(min_value=1, max_value=10**9))
def test_shares_use_the_limit_exactly_and_never_exceed_a_backlog(backlog: dict, limit: int) -> None:
    shares = share_out(backlog, limit)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 < share <= backlog[queue] for queue, share in shares.items())


@given(backlogs)
def test_a_small_queue_is_not_starved(backlog: dict) -> None:
    waiting = {queue for queue, count in backlog.items() if count}
    limit = max(len(waiting), 1)
    assert set(share_out(backlog, limit)) == waiting


def test_shares_follow_the_backlog() -> None:
    assert share_out({A0: 900, A1: 100}, 100) == {A0: 90, A1: 10}


def test_without_a_limit_all_is_taken() -> None:
    assert share_out({A0: 900, A1: 0}, None) == {A0: 900}


def test_lag_counts_known_queues_only() -> None:
    assert count_behind({A0: 5, A1: 9}, {A0: 7, A1: 3, B0: 100}) == 2


def test_error_texts_name_a_few_queues() -> None:
    assert render_queues([A1, A0]) == "a@x:0, a@x:1"
    assert render_queues(QueueKey("t", "b", n) for n in range(9)).endswith("and 4 more")
