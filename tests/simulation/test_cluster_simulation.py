"""The simulation of clusters: a few seeds pass, a seed repeats exactly, and planted bugs are found."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sim.cluster.cluster import Cluster
from sim.cluster.nodes import BrokerNode
from sim.cluster.run import Summary
from sim.cluster.settings import GROWING, WORK_NAMES, Settings
from sim.cluster.simulation import Adjust, run_seed
from sim.cluster.work.kinds import KINDS
from tandemmq.broker.replica.tail_check import TailCheck
from tandemmq.broker.send.numbered import NumberedSends
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.protocol.bodies.codec import DataVersion
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.replication.core.effects import Send, SlaveEffect
from tandemmq.replication.core.frames import TransferHead
from tandemmq.replication.core.progress import LogRange
from tandemmq.replication.core.slave import SlaveSession
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict
from tandemmq.replication.shell.master import ReplicationMaster
from tandemmq.replication.shell.slave import ReplicationSlave
from tandemmq.runtime.ports import Disk
from tandemmq.store import BrokerRole, FlushMode, StoreOptions, flusher
from tandemmq.store.segmented_log import Segment

SMOKE_SEEDS = (917, 918, 922, 924, 925)
"""Seeds that lose masters and slaves; `make sim` runs 1000."""
SMOKE_LOAD_S = 12.0
REPEATED_SEED = 903
LATE_S = 0.02
PRINT_DIGEST = (
    "from sim.cluster.simulation import run_seed; from zlib import crc32;"
    f"result = run_seed({REPEATED_SEED});"
    "print(result.digest, crc32(chr(10).join(result.trace).encode()))"
)


def test_seeds_break_no_promise() -> None:
    summary = Summary()
    for seed in SMOKE_SEEDS:
        summary.add(run_seed(seed, lambda settings: replace(settings, load_s=SMOKE_LOAD_S)))
    *_, verdict = lines = list(summary.lines())
    counts = f"seeds={len(SMOKE_SEEDS)} acknowledged={summary.acknowledged_count} lost=0 order=0 skipped=0"
    assert verdict == f"SIM OK {counts}", "\n".join(lines)
    assert summary.acknowledged_count > 1_000
    assert summary.counts["kills of the master"] + summary.counts["losses of slaves"] > 3


def test_every_kind_of_work_can_be_drawn() -> None:
    assert set(KINDS) == {*WORK_NAMES, GROWING}


def test_a_broker_that_does_not_find_numbered_sends_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: a broker that was restarted, or was a slave, does not find the last number. A master with
    an empty disk in between excuses no later loss.
    """
    monkeypatch.setattr(NumberedSends, "_find", lambda *_: None)

    def with_losses(settings: Settings) -> Settings:
        return replace(
            settings,
            role=BrokerRole.SYNC_MASTER,
            work=("numbered",),
            fault_names=("empty master",),
            load_s=30.0,
        )

    assert seeds_until_found(range(5), "numbered sends cannot continue", with_losses) <= 5


@pytest.mark.long
def test_seed_repeats_exactly_whatever_the_hash_seed() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PRINT_DIGEST]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert run("1") == run("2") != ""


def seeds_until_found(seeds: range, kind: str, adjust: Adjust = lambda settings: settings) -> int:
    """Returns the number of seeds until one finds something of that kind."""
    for count, seed in enumerate(seeds, 1):
        if any(kind in line for line in run_seed(seed, adjust).findings.lines()):
            return count
    raise AssertionError(f"not found in seeds {seeds}")


def test_finds_an_acknowledgement_before_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = ReplicationSlave._perform

    def acknowledge_first(self: ReplicationSlave, effects: list[SlaveEffect]) -> None:
        if len(effects) > 1 and isinstance(effects[-1], Send):
            perform(self, [effects[-1]])
            self._clock.call_later(LATE_S, perform, self, effects[:-1])
        else:
            perform(self, effects)

    monkeypatch.setattr(ReplicationSlave, "_perform", acknowledge_first)
    assert seeds_until_found(range(5), "acknowledgement") <= 5


def test_finds_a_slave_that_does_not_check_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    def trust(self: SlaveSession, head: TransferHead) -> None:
        if self._is_empty:
            self._received_end = head[0]
            self._verifier = self._new_verifier(head[0])
            self._is_empty = head[1] == 0

    async def compare_nothing(self: TailCheck, log_end: int) -> TailVerdict:
        return TailVerdict(outcome=TailOutcome.SAME, log_offset=log_end)

    def send_unflushed(self: ReplicationMaster) -> LogRange:
        return LogRange(self._store.min_log_offset, self._store.appended.value)

    def with_power_cuts(settings: Settings) -> Settings:
        """Ensures that a slave holds bytes that its master lacks only if the master sent bytes that it had
        not flushed, and lost them.
        """
        return replace(
            settings,
            role=BrokerRole.SYNC_MASTER,
            flush_mode=FlushMode.SYNC_FLUSH,
            slow_sync_percent=80,
            fault_names=("lose master",),
        )

    monkeypatch.setattr(ReplicationMaster, "log_range", send_unflushed)
    monkeypatch.setattr(SlaveSession, "_check_head", trust)
    monkeypatch.setattr(TailCheck, "__call__", compare_nothing)
    assert seeds_until_found(range(5, 15), "slave", with_power_cuts) <= 10


def test_finds_a_table_that_is_replaced_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_all = TopicTable.replace_all

    def replace_by_halves(
        self: TopicTable, configs: Mapping[str, TopicConfig], data_version: DataVersion
    ) -> list[str]:
        half = dict(list(configs.items())[: len(configs) // 2])
        asyncio.get_running_loop().call_later(LATE_S, replace_all, self, configs, data_version)
        return replace_all(self, half, data_version)

    monkeypatch.setattr(TopicTable, "replace_all", replace_by_halves)
    assert seeds_until_found(range(5), "topics, it had") <= 5


def test_finds_an_acknowledgement_without_the_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sync_nothing(disk: Disk, segments: Sequence[Segment]) -> None:
        return None

    def with_power_cuts(settings: Settings) -> Settings:
        return replace(
            settings,
            role=BrokerRole.SYNC_MASTER,
            flush_mode=FlushMode.SYNC_FLUSH,
            has_pool=False,
            fault_names=("lose master",),
        )

    monkeypatch.setattr(flusher, "sync_segments", sync_nothing)
    assert seeds_until_found(range(5, 15), "is not on master", with_power_cuts) <= 10


def test_finds_an_acknowledgement_with_a_copy_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    store_options = BrokerNode._store_options

    def want_one_less(self: BrokerNode) -> StoreOptions:
        options = store_options(self)
        return replace(options, in_sync_replicas=options.in_sync_replicas - 1)

    def with_three_copies(settings: Settings) -> Settings:
        return replace(
            settings,
            role=BrokerRole.SYNC_MASTER,
            slave_count=2,
            in_sync_replicas=3,
            is_host_shared=True,
            fault_names=("lose slave", "stall", "break connections"),
        )

    monkeypatch.setattr(BrokerNode, "_store_options", want_one_less)
    assert seeds_until_found(range(5), "copies wanted", with_three_copies) <= 5


def test_machines_with_names_of_one_length_throw_different_dice() -> None:
    thrown: dict[str, list[int]] = {}

    async def look(cluster: Cluster) -> None:
        thrown.update({node.name: [node.chance.below(1_000_000) for _ in range(3)] for node in cluster.nodes})

    assert not run_seed(SMOKE_SEEDS[0], script=look).findings
    assert len(set(map(tuple, thrown.values()))) == len(thrown) > 3
