"""The state that a master keeps of disconnected slaves, and its report of them (GET_BROKER_HA_STATUS,
907).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tandemmq.broker.replica.ha_status import describe_master, rocketmq_fields
from tandemmq.replication.core.progress import (
    MasterState,
    ReportedHalt,
    SlaveName,
    SlaveNotice,
    StartRule,
    TransferStart,
)
from tandemmq.replication.shell import MasterStatus, SlaveStatus
from tandemmq.replication.shell.master_status import (
    DEPARTED_COUNT_MAX,
    DEPARTED_MS_MAX,
    DepartedSlave,
    DepartedSlaves,
)
from tandemmq.units import ReplicaId


def departed(
    host: str = "192.0.2.1",
    acknowledged: int = 500,
    rule: StartRule = StartRule.RESUMED,
    *,
    port: int = 4711,
    name: SlaveName | None = None,
    left_at_ms: int = 0,
) -> DepartedSlave:
    return DepartedSlave(
        address=(host, port),
        name=name,
        replica=ReplicaId(host),
        acknowledged=acknowledged,
        start=TransferStart(reported=acknowledged, log_offset=acknowledged, rule=rule, master_end=900),
        is_tandem=True,
        left_at_ms=left_at_ms,
        last_contact_ms=left_at_ms,
        reason="the slave sent nothing for too long",
    )


def status(*slaves: DepartedSlave, log_start: int = 0) -> MasterStatus:
    return MasterStatus(
        log_start=log_start,
        log_end=1_000,
        in_sync_count=0,
        slaves=(),
        departed=slaves,
        now_ms=12_000,
    )


ONE = SlaveName("group", 1)
TWO = SlaveName("group", 2)


def notice(
    name: SlaveName = ONE, *, port: int = 4711, log_end: int = 600, halt: ReportedHalt | None = None
) -> SlaveNotice:
    return SlaveNotice(
        name=name, ha_address=("192.0.2.1", port), log_end=log_end, is_copying=False, halt=halt
    )


DIVERGED = ReportedHalt(reason="DIVERGED", log_offset=420, detail="the master has other bytes")


def test_slaves_of_one_host_do_not_clear_each_others_row() -> None:
    table = DepartedSlaves()
    table.add(departed(name=ONE))
    table.add(departed(name=TWO, port=4712))
    table.add(departed(acknowledged=600, port=4713))
    table.remove_returned(ONE, "192.0.2.1", 500)
    assert [slave.name for slave in table.list(0)] == [TWO, None]
    table.remove_returned(SlaveName("group", 3), "192.0.2.1", 600)
    assert [slave.name for slave in table.list(0)] == [TWO, None], "a slave that was never here"
    table.remove_returned(None, "192.0.2.1", 0)
    assert [slave.name for slave in table.list(0)] == [TWO]
    table.remove_returned(None, "192.0.2.1", 500)
    assert [slave.name for slave in table.list(0)] == [TWO], "one without a name takes no named row"


def test_a_slave_without_a_name_takes_one_row_of_its_host_back() -> None:
    table = DepartedSlaves()
    table.add(departed(acknowledged=500, port=1))
    table.add(departed(acknowledged=600, port=2))
    table.add(departed(acknowledged=700, port=3))
    table.add(departed("192.0.2.2", acknowledged=500, port=4))
    table.remove_returned(None, "192.0.2.1", 600)
    assert [slave.address[1] for slave in table.list(0)] == [1, 3, 4], "the row that ends there"
    table.remove_returned(None, "192.0.2.1", 0)
    assert [slave.address[1] for slave in table.list(0)] == [1, 4], "else the last who left"
    table.remove_returned(None, "192.0.2.3", 500)
    assert len(table.list(0)) == 2


def test_a_name_that_looks_like_an_address_is_none() -> None:
    table = DepartedSlaves()
    table.add(departed("192.0.2.1", port=1))
    table.add(departed("192.0.2.2", port=2, name=SlaveName("192.0.2.1", 1)))
    assert len(table.list(0)) == 2


def test_a_connection_that_ended_before_its_name_came_gets_it() -> None:
    table = DepartedSlaves()
    table.add(departed(port=1))
    table.set_name(("192.0.2.1", 1), ONE, 0)
    table.set_name(("192.0.2.1", 2), TWO, 0)
    assert [slave.name for slave in table.list(0)] == [ONE]


def test_a_slave_that_tells_its_name_was_heard_of_then() -> None:
    table = DepartedSlaves()
    table.add(departed(port=1))
    table.add(departed(port=2, left_at_ms=10))
    table.set_name(("192.0.2.1", 1), ONE, 20)
    times = [(slave.name, slave.left_at_ms, slave.last_contact_ms) for slave in table.list(20)]
    assert times == [(None, 10, 10), (ONE, 0, 20)]
    assert [slave.name for slave in table.list(DEPARTED_MS_MAX + 11)] == [ONE]


def test_why_a_slave_halted_is_kept_whether_it_tells_before_or_after_its_connection_ends() -> None:
    for is_told_first in (True, False):
        table = DepartedSlaves()
        if is_told_first:
            table.set_halt(notice(halt=DIVERGED), 1_000)
        table.add(departed(name=ONE, acknowledged=600, left_at_ms=2_000))
        if not is_told_first:
            table.set_halt(notice(halt=DIVERGED), 3_000)
        (slave,) = table.list(0)
        assert slave.halt == DIVERGED
        assert (slave.acknowledged, slave.left_at_ms, slave.replica) == (600, 2_000, "192.0.2.1")
        assert slave.start is not None


def test_a_slave_that_goes_on_telling_that_it_halted_is_not_forgotten() -> None:
    table = DepartedSlaves()
    table.set_halt(notice(halt=DIVERGED), 0)
    table.set_halt(notice(halt=DIVERGED, log_end=700), DEPARTED_MS_MAX)
    (slave,) = table.list(DEPARTED_MS_MAX + 1)
    assert (slave.acknowledged, slave.left_at_ms, slave.start) == (700, 0, None)
    assert table.list(2 * DEPARTED_MS_MAX + 1) == ()


def test_a_slave_that_copies_again_over_an_unknown_address_has_no_halted_row() -> None:
    table = DepartedSlaves()
    table.set_halt(notice(halt=DIVERGED), 0)
    table.add(departed(name=TWO))
    table.clear_halt(ONE)
    table.clear_halt(TWO)
    assert [slave.name for slave in table.list(0)] == [TWO], "one that is only gone keeps its row"


def test_the_table_is_bounded_by_count_and_age() -> None:
    table = DepartedSlaves()
    for number in range(DEPARTED_COUNT_MAX + 3):
        table.add(departed(f"192.0.2.{number}", name=SlaveName("group", number) if number % 2 else None))
    assert len(table.list(0)) == DEPARTED_COUNT_MAX
    assert table.list(0)[0].address[0] == "192.0.2.3"
    assert table.list(DEPARTED_MS_MAX + 1) == ()


def test_each_reason_is_told() -> None:
    ahead = departed("192.0.2.1", 5_000, StartRule.SLAVE_AHEAD)
    old = departed("192.0.2.2", 50)
    gone = departed("192.0.2.3")
    told = describe_master(
        status(ahead, old, gone, log_start=100), lambda end: (1_000 - end) / 100
    ).connections
    assert [one.state for one in told] == ["AHEAD", "TOO_OLD", "CLOSED"]
    assert told[0].reason is not None
    assert told[0].reason.startswith("nowhere: the slave holds more than the master: its end 5000")
    assert told[1].reason is not None
    assert "kept from 100 on" in told[1].reason
    assert told[2].reason == "not connected: the slave sent nothing for too long"
    assert [(one.lag_bytes, one.lag_ms, one.away_ms) for one in told] == [
        (-4_000, None, 12_000),
        (950, 9_500, 12_000),
        (500, 5_000, 12_000),
    ]


def test_a_connected_slave_that_is_refused_is_told_with_the_end_that_it_reported() -> None:
    def connected(state: MasterState, reported: int, rule: StartRule) -> SlaveStatus:
        return SlaveStatus(
            address=("192.0.2.1", 4711),
            name=None,
            replica=None,
            state=state,
            start=TransferStart(reported=reported, log_offset=reported, rule=rule, master_end=1_000),
            acknowledged=0,
            next_offset=reported,
            lag_bytes=1_000,
            is_in_sync=False,
            is_tandem=False,
            bytes_per_second=0,
        )

    slaves = (
        connected(MasterState.AHEAD, 5_000, StartRule.SLAVE_AHEAD),
        connected(MasterState.TOO_OLD, 50, StartRule.SLAVE_TOO_OLD),
    )
    ahead, old = describe_master(replace(status(log_start=100), slaves=slaves), float).connections
    assert ahead.reason is not None
    assert "its end 5000, the master's 1000" in ahead.reason
    assert ahead.lag_ms is None
    assert old.reason is not None
    assert "its end 50, kept from 100" in old.reason
    assert old.lag_ms == 50_000
    assert (ahead.acknowledged_offset, old.acknowledged_offset) == (0, 0), "as RocketMQ's tools know it"


def test_why_a_slave_halted_is_told() -> None:
    table = DepartedSlaves()
    table.set_halt(notice(halt=DIVERGED), 10_000)
    table.set_halt(notice(TWO, halt=replace(DIVERGED, reason="SLAVE_AHEAD")), 11_000)
    told = describe_master(status(*table.list(11_000)), lambda _: 1.0)
    one, two = told.connections
    assert (one.slave, one.state, one.halt_reason) == ("group:1", "HALTED", "DIVERGED")
    assert one.reason == "DIVERGED at 420: the master has other bytes"
    assert (one.acknowledged_offset, one.lag_bytes, one.lag_ms, one.away_ms) == (600, 400, None, 2_000)
    assert (one.start_rule, one.is_tandem, one.is_in_sync) == (None, True, False)
    assert (two.slave, two.state, two.halt_reason) == ("group:2", "AHEAD", "SLAVE_AHEAD")
    assert [plain.address for plain in rocketmq_fields(told).connections] == ["192.0.2.1:4711"] * 2


def test_tools_of_rocketmq_get_only_the_refused_ones_in_their_own_fields() -> None:
    told = describe_master(status(departed(rule=StartRule.SLAVE_AHEAD), departed("192.0.2.9")), lambda _: 1.0)
    (one,) = rocketmq_fields(told).connections
    assert one == replace_all_ours(told.connections[0])


def replace_all_ours(one):  # type: ignore[no-untyped-def]
    ours = (
        "state",
        "start_rule",
        "start_offset",
        "is_tandem",
        "lag_ms",
        "away_ms",
        "reason",
        "slave",
        "halt_reason",
    )
    return msgspec.structs.replace(one, **dict.fromkeys(ours))


def test_state_follows_the_master() -> None:
    slave = departed()
    assert slave.state(log_start=500) is MasterState.CLOSED
    assert slave.state(log_start=501) is MasterState.TOO_OLD
    assert replace(slave, acknowledged=0).state(log_start=501) is MasterState.CLOSED, "an empty one is served"
