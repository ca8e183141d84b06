"""Slaves that were rejected or have left stay visible at their master (spec replication 4.10)."""

from __future__ import annotations

import shutil
from pathlib import Path

from replica_pair import Peers, send

from tandemmq.broker.replica.ha_status import describe_master
from tandemmq.replication.core.progress import SlaveName, SlaveNotice, SlaveState
from waits import until


def rows(peers: Peers) -> list[tuple[str | None, str | None]]:
    assert peers.master is not None
    told = describe_master(peers.master.status(), lambda _: 0.0)
    return [(one.state, one.reason) for one in told.connections]


async def test_a_slave_that_is_ahead_has_a_row_with_the_reason(peers: Peers, tmp_path: Path) -> None:
    master = await peers.start_master()
    await peers.start_slave()
    await send(master, *[b"x" * 100] * 20)
    await peers.caught_up()
    await peers.stop_master()
    shutil.rmtree(tmp_path / "master")
    await peers.start_master()
    await until(lambda: peers.slave().status().state is SlaveState.HALTED, "halted")
    await until(lambda: [state for state, _ in rows(peers)] == ["AHEAD"], "its row")
    ((_, reason),) = rows(peers)
    assert reason is not None
    assert "holds more than the master" in reason


async def test_a_slave_that_is_gone_has_a_row_until_it_follows_again(peers: Peers) -> None:
    master = await peers.start_master()
    await peers.start_slave()
    await send(master, b"x")
    await until(
        lambda: list(master.replies.acks.positions().values()) == [master.appended.value],
        "the copy is acknowledged",
    )
    await peers.stop_slave()
    await until(lambda: [state for state, _ in rows(peers)] == ["CLOSED"], "its row")
    assert peers.master is not None
    (gone,) = peers.master.status().departed
    assert gone.acknowledged == master.appended.value
    await peers.start_slave()
    await until(lambda: rows(peers) == [("TRANSFERRING", None)], "it follows")


async def test_a_name_that_comes_after_the_first_report_clears_the_row_of_that_slave(peers: Peers) -> None:
    """The name comes over another connection than the copy, so either may be first."""
    await peers.start_master()
    assert peers.master is not None
    master, name = peers.master, SlaveName("group", 1)

    def tell_name() -> None:
        (slave,) = master.status().slaves
        notice = SlaveNotice(name=name, ha_address=slave.address, log_end=0, is_copying=True)
        master.on_notice(notice)

    await peers.start_slave()
    await peers.subscribed()
    tell_name()
    await peers.stop_slave()
    await until(lambda: [state for state, _ in rows(peers)] == ["CLOSED"], "its row")
    await peers.start_slave()
    await peers.subscribed()
    tell_name()
    assert rows(peers) == [("TRANSFERRING", None)]
