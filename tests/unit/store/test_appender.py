"""Appending through a whole store: offsets, bytes, rolling, refusals, batches."""

from __future__ import annotations

import struct

import pytest
from store_rig import ROOT, Rig, bodies, record, stored

from sim.workload import make_batch
from tandemmq.errors import Busy, MessageIllegal, ServiceNotAvailable
from tandemmq.store import BrokerRole, PutStatus


async def test_appended_records_get_dense_offsets_and_are_readable_after_the_write() -> None:
    rig = Rig()
    store = await rig.open()
    statuses: list[PutStatus] = []
    first = store.appender.append([record(b"a")], statuses.append)
    second = store.appender.append([record(b"b")], statuses.append)
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.end_offset == second.log_offsets[0]
    assert store.max_log_offset == 0
    assert statuses == []
    rig.clock.run_soon()
    assert statuses == [PutStatus.PUT_OK, PutStatus.PUT_OK]
    assert store.appended.value == store.dispatched.value == second.end_offset
    assert bodies(store) == [b"a", b"b"]
    await store.close()


async def test_one_write_serves_everything_that_one_turn_staged() -> None:
    rig = Rig()
    store = await rig.open()
    writes: list[tuple[int, int]] = []
    rig.disk.fault.on_write = lambda path, offset, size: (writes.append((offset, size)), size)[1]  # type: ignore[method-assign]
    rig.put(store, *(record(b"%d" % n) for n in range(10)))
    assert len(writes) == 1
    await store.close()


async def test_worked_example_of_the_record_format_is_written_byte_for_byte() -> None:
    """spec store 3.1: record, queue entry."""
    rig = Rig()
    rig.clock = type(rig.clock)(now_ms=1_700_000_000_123)
    store = await rig.open(commit_log_file_bytes=4096)
    new = record(
        b"Hello RocketMQ",
        topic="TopicTest",
        queue_id=1,
        tags="TagA",
        keys="k1",
        unique_key="0A0000011F9018B4AAC2000000000001",
    )
    rig.put(store, new)
    await store.close()
    data = rig.disk.read_bytes(ROOT / "commitlog" / "00000000000000000000")
    expected = bytes.fromhex(
        """
        00 00 00 ae da a3 20 a7 69 c8 65 ed 00 00 00 01
        00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 01 8b cf e5 68 00
        0a 00 00 01 00 00 d4 31 00 00 01 8b cf e5 68 7b
        c0 a8 00 0a 00 00 2a 9f 00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 0e 48 65 6c 6c 6f 20 52 6f
        63 6b 65 74 4d 51 09 54 6f 70 69 63 54 65 73 74
        00 3c 4b 45 59 53 01 6b 31 02 55 4e 49 51 5f 4b
        45 59 01 30 41 30 30 30 30 30 31 31 46 39 30 31
        38 42 34 41 41 43 32 30 30 30 30 30 30 30 30 30
        30 30 31 02 54 41 47 53 01 54 61 67 41 02
        """
    )
    assert data[:174] == expected
    assert not any(data[174:])
    entries = rig.disk.read_bytes(ROOT / "consumequeue" / "TopicTest" / "1" / "00000000000000000000")
    assert entries[:20].hex() == "0000000000000000000000ae000000000027a807"
    assert not any(entries[20:])


async def test_a_full_file_ends_with_a_blank_and_the_record_goes_to_the_next() -> None:
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1024)
    rig.put(store, *(record(b"x" * 200) for _ in range(5)))
    data = rig.disk.read_bytes(ROOT / "commitlog" / "00000000000000000000")
    size = struct.unpack_from(">i", data)[0]
    per_file = (1024 - 8) // size
    blank = struct.unpack_from(">iI", data, per_file * size)
    assert blank == (1024 - per_file * size, 0xCBD43194)
    assert rig.disk.list(ROOT / "commitlog") == ["00000000000000000000", "00000000000000001024"]
    assert bodies(store) == [b"x" * 200] * 5
    assert bytes(store.log.valid_view(per_file * size, 4096)) == data[per_file * size :]
    await store.close()


@pytest.mark.parametrize("spare", [7, 8, 9])
async def test_a_record_keeps_eight_bytes_free_for_the_blank(spare: int) -> None:
    """spec store 3.2."""
    rig = Rig()
    overhead = 91 + len("T")
    store = await rig.open(commit_log_file_bytes=1024)
    rig.put(store, record(b"x" * (1024 - overhead - 300)))
    second = store.appender.append([record(b"y" * (300 - overhead - spare))], lambda _: None)
    rig.clock.run_soon()
    assert (second.log_offsets[0] >= 1024) == (spare < 8)
    await store.close()


async def test_a_record_that_never_fits_is_refused_before_anything_changes() -> None:
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1024)
    with pytest.raises(MessageIllegal):
        store.appender.append([record(b"x" * 1024)], pytest.fail)
    with pytest.raises(MessageIllegal):
        store.appender.append([record(b"x" * 400), record(b"x" * 500)], pytest.fail)
    assert rig.put(store, record(b"fits")) == [PutStatus.PUT_OK]
    assert bodies(store) == [b"fits"]
    await store.close()


async def test_a_body_above_the_limit_is_refused() -> None:
    rig = Rig()
    store = await rig.open(message_bytes_max=100)
    with pytest.raises(MessageIllegal, match="body has 101 bytes"):
        store.appender.append([record(b"x" * 101)], pytest.fail)
    with pytest.raises(MessageIllegal, match="body has 101 bytes"):
        store.appender.append([record(b"x"), record(b"x" * 101)], pytest.fail)
    assert rig.put(store, record(b"x" * 100)) == [PutStatus.PUT_OK]
    await store.close()


async def test_a_topic_that_no_record_can_hold_is_refused() -> None:
    rig = Rig()
    store = await rig.open()
    for batch in ([record(topic="t" * 256)], [record(), record(topic="t" * 256)]):
        with pytest.raises(MessageIllegal):
            store.appender.append(batch, pytest.fail)
    assert rig.put(store, record()) == [PutStatus.PUT_OK]
    assert store.queue_max("T", 0) == 1
    await store.close()


async def test_a_batch_is_consecutive_and_lies_in_one_file() -> None:
    """spec store 4.1."""
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1024)
    rig.put(store, record(b"x" * 500))
    statuses: list[PutStatus] = []
    placed = store.appender.append(
        [record(b"1" * 100), record(b"2" * 100), record(b"3" * 100)], statuses.append
    )
    rig.clock.run_soon()
    assert statuses == [PutStatus.PUT_OK]
    assert placed.queue_offset == 1
    assert placed.log_offsets[0] == 1024
    assert [stored(store, offset).queue_offset for offset in placed.log_offsets] == [1, 2, 3]
    assert len({stored(store, offset).stored_at_ms for offset in placed.log_offsets}) == 1
    assert placed.end_offset == store.appended.value
    await store.close()


async def test_a_long_batch_leaves_the_files_that_its_messages_leave_alone() -> None:
    """Entries of one queue are put as a block; those of short runs, delayed and unqueued ones are not."""
    mixed = [
        *(record(b"%d" % n, tags=f"t{n}", keys=f"k{n}", unique_key=f"U{n:03}") for n in range(20)),
        *(record(b"q%d" % n, queue_id=n % 2) for n in range(6)),
        record(b"half", sys_flag=0x4),
        *(
            record(b"later", topic="SCHEDULE_TOPIC_XXXX", queue_id=1, properties={"DELAY": "2"})
            for _ in range(9)
        ),
        *(record(b"r%d" % n, queue_id=1) for n in range(11)),
    ]
    contents = []
    for batches in ([mixed], [[new] for new in mixed]):
        rig = Rig()
        store = await rig.open(commit_log_file_bytes=1 << 16)
        for batch in batches:
            store.appender.append(batch, lambda _: None)
            rig.clock.run_soon()  # each is dispatched separately
        ends = [store.queue_max("T", 0), store.queue_max("T", 1), store.queue_max("SCHEDULE_TOPIC_XXXX", 1)]
        nexts = [store.queue_next("T", 0), store.queue_next("T", 1)]
        assert (ends, nexts) == ([23, 14, 9], [23, 14])
        await store.close()
        paths = ["commitlog", "consumequeue/T/0", "consumequeue/T/1", "consumequeue/SCHEDULE_TOPIC_XXXX/1"]
        contents.append([rig.disk.read_bytes(ROOT / path / ("0" * 20)) for path in paths])
    assert contents[0] == contents[1]


async def test_a_batch_as_one_block_leaves_the_files_that_its_messages_leave() -> None:
    messages = [
        record(b"%d" % n, tags=f"t{n}", keys="a b" * (n % 2), unique_key=f"U{n:03}" * (n % 3))
        for n in range(12)
    ]
    contents = []
    for is_block in (True, False):
        rig = Rig()
        store = await rig.open(commit_log_file_bytes=1 << 16)
        statuses: list[PutStatus] = []
        rig.put(store, record(b"before"))
        store.appender.append([record(b"staged")], statuses.append)
        if is_block:
            batch = make_batch(messages)
            assert batch is not None
            placed = store.appender.append_batch(batch, statuses.append)
            assert (placed.queue_offset, len(placed.log_offsets)) == (2, 12)
        else:
            store.appender.append(messages, statuses.append)
        store.appender.append([record(b"behind")], statuses.append)
        rig.clock.run_soon()
        assert statuses == [PutStatus.PUT_OK] * 3
        assert (store.queue_max("T", 0), store.queue_next("T", 0)) == (15, 15)
        await store.close()
        files = [ROOT / path for path in ("commitlog", "consumequeue/T/0", "index")]
        contents.append([rig.disk.read_bytes(path / name) for path in files for name in rig.disk.list(path)])
    assert contents[0] == contents[1]


async def test_a_batch_as_one_block_is_all_or_nothing() -> None:
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1024)
    bad = make_batch([record(b"good"), record(b"bad", properties={"n": "\0"})])
    assert bad is not None
    bad.properties[1] = bad.properties[1][:-1]
    with pytest.raises(MessageIllegal, match="zero byte"):
        store.appender.append_batch(bad, pytest.fail)
    long = make_batch([record(b"x" * 600), record(b"y" * 600)])
    assert long is not None
    with pytest.raises(MessageIllegal, match="never fit"):
        store.appender.append_batch(long, pytest.fail)
    rig.put(store, record(b"x" * 500))
    good = make_batch([record(b"1" * 100), record(b"2" * 100), record(b"3" * 100)])
    assert good is not None
    placed = store.appender.append_batch(good, lambda _: None)
    rig.clock.run_soon()
    assert placed.log_offsets[0] == 1024
    assert [stored(store, offset).queue_offset for offset in placed.log_offsets] == [1, 2, 3]
    await store.close()


async def test_a_bad_record_in_a_batch_takes_the_whole_batch_back() -> None:
    rig = Rig()
    store = await rig.open()
    bad = record(b"bad")
    bad.properties = b"x" * 40_000
    with pytest.raises(MessageIllegal):
        store.appender.append([record(b"a"), record(b"b"), bad], pytest.fail)
    rig.put(store, record(b"only"))
    assert bodies(store) == [b"only"]
    await store.close()


async def test_prepared_and_rolled_back_records_get_no_queue_entry() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(
        store, record(b"half", sys_flag=0x4), record(b"gone", sys_flag=0xC), record(b"kept", sys_flag=0x8)
    )
    assert bodies(store) == [b"kept"]
    assert store.queue_max("T", 0) == 1
    await store.close()


async def test_store_times_never_fall_when_the_clock_does() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"a"))
    rig.clock._start_ms -= 60_000
    placed = store.appender.append([record(b"b")], lambda _: None)
    batch = store.appender.append([record(b"c"), record(b"d")], lambda _: None)
    rig.clock.run_soon()
    assert placed.stored_at_ms == batch.stored_at_ms == stored(store, 0).stored_at_ms
    await store.close()


async def test_a_message_is_not_stored_earlier_than_the_block_before_it() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(1)
    block = make_batch([record(b"b"), record(b"c", queue_id=1)])
    assert block is not None
    placed = store.appender.append_block(block, lambda _: None)
    assert placed is not None
    rig.clock.skew_ms -= 60_000
    behind = store.appender.append([record(b"d")], lambda _: None)
    rig.clock.run_soon()
    times = [stored(store, offset).stored_at_ms for offset in (0, *placed.log_offsets)]
    assert times == [times[0], times[0] + 1000, times[0] + 1000]
    assert behind.stored_at_ms == times[-1]
    await store.close()


async def test_a_delayed_message_has_its_due_time_in_the_queue_entry() -> None:
    """spec store 5: level 2 of the configured levels, and of the built-in ones."""
    for levels in ((1000, 7000), (1000, 5000)):
        rig = Rig()
        extra = {} if levels[1] == 5000 else {"delay_levels_ms": levels}
        store = await rig.open(**extra)
        new = record(b"later", topic="SCHEDULE_TOPIC_XXXX", queue_id=1, properties={"DELAY": "2"})
        placed = store.appender.append([new], lambda _: None)
        rig.clock.run_soon()
        await store.close()
        data = rig.disk.read_bytes(ROOT / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1" / ("0" * 20))
        assert struct.unpack_from(">q", data, 12)[0] == placed.stored_at_ms + levels[1]


async def test_a_slave_refuses_messages_and_a_master_raw_bytes() -> None:
    rig = Rig()
    store = await rig.open(role=BrokerRole.SLAVE)
    with pytest.raises(ServiceNotAvailable, match="slave"):
        store.appender.append([record()], pytest.fail)
    store.become(BrokerRole.ASYNC_MASTER)
    assert rig.put(store, record()) == [PutStatus.PUT_OK]
    with pytest.raises(ServiceNotAvailable):
        store.append_raw(store.max_log_offset, b"x")
    await store.close()


async def test_too_many_bytes_in_one_turn_are_refused_as_busy() -> None:
    rig = Rig()
    store = await rig.open(staged_bytes_max=600)
    statuses: list[PutStatus] = []
    for _ in range(2):
        store.appender.append([record(b"x" * 200)], statuses.append)
    with pytest.raises(Busy):
        store.appender.append([record(b"x" * 200)], pytest.fail)
    rig.clock.run_soon()
    assert statuses == [PutStatus.PUT_OK] * 2
    assert rig.put(store, record(b"x" * 200)) == [PutStatus.PUT_OK]
    assert rig.put(store, record(b"x" * 900)) == [PutStatus.PUT_OK]
    await store.close()


async def test_a_block_with_too_many_bytes_for_one_turn_is_not_taken() -> None:
    rig = Rig()
    store = await rig.open(staged_bytes_max=1000)
    rig.put(store, record(b"begins the file"))
    block = make_batch([record(b"x" * 200), record(b"y" * 200, queue_id=1)])
    assert block is not None
    statuses: list[PutStatus] = []
    assert store.appender.append_block(block, statuses.append) is not None
    assert store.appender.append_block(block, pytest.fail) is None
    assert store.queue_next("T", 1) == 1
    rig.clock.run_soon()
    assert statuses == [PutStatus.PUT_OK]
    assert store.appender.append_block(block, statuses.append) is not None
    rig.clock.run_soon()
    assert store.queue_max("T", 1) == 2
    await store.close()


async def test_a_closed_store_refuses_messages() -> None:
    rig = Rig()
    store = await rig.open()
    await store.close()
    await store.close()
    with pytest.raises(ServiceNotAvailable, match="closed"):
        store.appender.append([record()], pytest.fail)


async def test_what_was_staged_when_the_store_closes_is_stored() -> None:
    rig = Rig()
    store = await rig.open()
    statuses: list[PutStatus] = []
    store.appender.append([record(b"last")], statuses.append)
    await store.close()
    assert statuses == [PutStatus.PUT_OK]
    store = await rig.open()
    assert bodies(store) == [b"last"]
    await store.close()


async def test_a_callback_that_raises_does_not_cost_others_their_answer() -> None:
    rig = Rig()
    store = await rig.open()
    statuses: list[PutStatus] = []

    def broken(_status: PutStatus) -> None:
        raise RuntimeError("broken callback")

    store.appender.append([record()], broken)
    store.appender.append([record()], statuses.append)
    rig.clock.run_soon()
    assert statuses == [PutStatus.PUT_OK]
    assert rig.fatal == []
    await store.close()


async def test_store_host_may_be_set_once_the_port_is_known() -> None:
    rig = Rig()
    store = await rig.open()
    store.appender.store_host = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
    rig.put(store, record())
    assert stored(store, 0).store_host == store.appender.store_host
    await store.close()
