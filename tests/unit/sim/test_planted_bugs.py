"""The crash simulation finds bugs that are planted in the store, each within a few seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from sim.dice import Dice
from sim.run import run_seed
from sim.workload import random_options
from tandemmq.store.confirm import WaitFor
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.flusher import Flusher
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.transient_pool import Committer, PooledBytes, TransientPool

SEEDS_MAX = 25

Plant = Callable[[pytest.MonkeyPatch], None]


def answer_before_the_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tandemmq.store.replies.plan_wait", lambda **_: WaitFor.NOTHING)


def call_flushed_what_came_during_the_fsync(patch: pytest.MonkeyPatch) -> None:
    flush = Flusher.flush

    async def flush_too_much(self: Flusher) -> None:
        target = self._core.appended.value
        await flush(self)
        if self._core.flushed.value >= target:
            self._core.flushed.raise_to(self._core.appended.value)

    patch.setattr(Flusher, "flush", flush_too_much)


def leave_the_tail_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tandemmq.store.segmented_log.zero_stale", lambda *_: 0)


def skip_a_queue_entry_now_and_then(patch: pytest.MonkeyPatch) -> None:
    put = ConsumeQueue.put

    def put_most(self: ConsumeQueue, log_offset: int, size: int, tag_hash: int) -> None:
        put(self, log_offset, size, tag_hash if log_offset % 41 else 0x777)

    patch.setattr(ConsumeQueue, "put", put_most)


def forget_a_key_now_and_then(patch: pytest.MonkeyPatch) -> None:
    add = KeyIndexes.add

    def add_most(self: KeyIndexes, units: list[Any], count: int) -> None:
        add(self, units[:-1] if len(units) > 3 else units, count)

    patch.setattr(KeyIndexes, "add", add_most)


def go_on_after_a_failed_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flusher, "fail", lambda *_: None)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (answer_before_the_fsync, "lost"),
        (call_flushed_what_came_during_the_fsync, "lost"),
        (leave_the_tail_as_it_is, "broken"),
        (skip_a_queue_entry_now_and_then, "divergent"),
        (forget_a_key_now_and_then, "divergent"),
        (go_on_after_a_failed_fsync, "broken"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, kind: str) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        faults = run_seed(seed).faults
        if getattr(faults, kind):
            return
    pytest.fail(f"not found in {SEEDS_MAX} seeds")


def call_written_what_is_in_the_pool(patch: pytest.MonkeyPatch) -> None:
    wake = Committer.wake

    def wake_too_early(self: Committer) -> None:
        self._core.appended.raise_to(self._pool.end)
        wake(self)

    patch.setattr(Committer, "wake", wake_too_early)


def commit_only_whole_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_tick", lambda _: None)


def lose_the_end_of_a_commit(patch: pytest.MonkeyPatch) -> None:
    pieces = TransientPool.pieces

    def most_pieces(self: TransientPool, begin: int, end: int) -> list[PooledBytes]:
        return pieces(self, begin, end)[:1]

    patch.setattr(TransientPool, "pieces", most_pieces)


@pytest.mark.parametrize(
    "plant", [call_written_what_is_in_the_pool, commit_only_whole_pages, lose_the_end_of_a_commit]
)
def test_a_bug_that_is_planted_into_the_pool_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)
    pooled = (seed for seed in range(1000) if random_options(Dice(seed)).uses_transient_pool)
    for seed in islice(pooled, SEEDS_MAX):
        if run_seed(seed).faults:
            return
    pytest.fail(f"not found in {SEEDS_MAX} seeds")


@pytest.mark.parametrize("seed", [0, 3, 6, 12, 14, 914])
def test_seeds_that_found_bugs_stay_clean(seed: int) -> None:
    assert run_seed(seed).faults.lines() == []


def test_the_loop_of_a_run_is_its_own() -> None:
    run_seed(1)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
