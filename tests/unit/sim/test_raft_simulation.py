"""The simulation of Raft groups: seeds pass, a seed repeats exactly, planted bugs are found."""

from __future__ import annotations

import pytest

from sim.raft.run import Summary, main
from sim.raft.simulation import SeedResult, run_seed
from sim.seeds import without_logging
from tandemmq.consensus.core.messages import Persist
from tandemmq.consensus.core.node import RaftNode
from tandemmq.consensus.shell.files import RaftFiles

SMOKE_SEEDS = range(24)
FOUND_WITHIN = 50


def find(seeds: int = FOUND_WITHIN) -> bool:
    with without_logging():
        return any(run_seed(seed).findings for seed in range(seeds))


def test_seeds_break_no_rule() -> None:
    summary = Summary()
    with without_logging():
        for seed in SMOKE_SEEDS:
            summary.add(run_seed(seed))
    *_, verdict = lines = list(summary.lines())
    assert verdict.startswith("RAFT OK seeds=24 "), lines
    assert all(summary.counts[name] for name in ("crashes", "snapshots", "writes", "changes of members"))


def test_a_seed_repeats_exactly() -> None:
    with without_logging():
        assert run_seed(11).trace == run_seed(11).trace


def test_a_trace_and_the_command_of_a_failed_seed_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    assert "elected" in capsys.readouterr().out
    summary = Summary()
    summary.add(SeedResult(7, findings=["two leaders"]))
    assert "  replay: python -m sim.raft.run --seed 7 --trace" in list(summary.lines())


def test_a_vote_that_is_not_saved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    save = RaftFiles.save
    monkeypatch.setattr(
        RaftFiles,
        "save",
        lambda self, persist: save(self, Persist(snapshot=persist.snapshot, entries=persist.entries)),
    )
    assert find()


def test_an_answer_before_the_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        RaftFiles,
        "save",
        lambda self, persist: None if persist.vote is None else self._replace_vote(persist.vote),
    )
    assert find()


def test_a_group_that_never_elects_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftNode, "_may_campaign", lambda self: False)
    assert find(1)
