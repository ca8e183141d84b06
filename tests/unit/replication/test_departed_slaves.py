"""What a master remembers of slaves without a connection, and how it tells it (GET_BROKER_HA_STATUS, 907)."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tandemmq.broker.replica.ha_status import describe_master, without_ours
from tandemmq.replication.core.progress import StartRule, TransferStart
from tandemmq.replication.core.states import MasterState
from tandemmq.replication.shell import MasterStatus
from tandemmq.replication.shell.departed import (
    DEPARTED_COUNT_MAX,
    DEPARTED_MS_MAX,
    DepartedSlave,
    DepartedSlaves,
)
from tandemmq.units import ReplicaId


def departed(
    host: str = "192.0.2.1", acknowledged: int = 500, rule: StartRule = StartRule.RESUMED, left_at_ms: int = 0
) -> DepartedSlave:
    return DepartedSlave(
        address=(host, 4711),
        replica=ReplicaId(host),
        acknowledged=acknowledged,
        start=TransferStart(reported=acknowledged, log_offset=acknowledged, rule=rule, master_end=900),
        is_tandem=True,
        left_at_ms=left_at_ms,
        reason="the slave sent nothing for too long",
    )


def status(*slaves: DepartedSlave, log_start: int = 0) -> MasterStatus:
    return MasterStatus(
        log_start=log_start,
        log_end=1_000,
        highest_acknowledged=500,
        in_sync_count=0,
        slaves=(),
        departed=slaves,
        now_ms=12_000,
    )


def test_a_slave_is_remembered_until_its_host_follows_again() -> None:
    table = DepartedSlaves()
    table.note(departed())
    table.note(departed("192.0.2.2"))
    table.note(departed(acknowledged=600))
    assert [slave.acknowledged for slave in table.list(0)] == [500, 600]
    table.forget("192.0.2.1")
    assert [slave.address[0] for slave in table.list(0)] == ["192.0.2.2"]


def test_the_table_is_bounded_by_count_and_age() -> None:
    table = DepartedSlaves()
    for number in range(DEPARTED_COUNT_MAX + 3):
        table.note(departed(f"192.0.2.{number}"))
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


def test_tools_of_rocketmq_get_only_the_refused_ones_in_their_own_fields() -> None:
    told = describe_master(status(departed(rule=StartRule.SLAVE_AHEAD), departed("192.0.2.9")), lambda _: 1.0)
    (one,) = without_ours(told).connections
    assert one == replace_all_ours(told.connections[0])


def replace_all_ours(one):  # type: ignore[no-untyped-def]
    ours = ("state", "start_rule", "start_offset", "is_tandem", "lag_ms", "away_ms", "reason")
    return msgspec.structs.replace(one, **dict.fromkeys(ours))


def test_state_follows_the_master() -> None:
    slave = departed()
    assert slave.state(log_start=500) is MasterState.CLOSED
    assert slave.state(log_start=501) is MasterState.TOO_OLD
    assert replace(slave, acknowledged=0).state(log_start=501) is MasterState.CLOSED, "an empty one is served"
