"""The table of replication invariants and their checks, and nothing else.

Source:  spec replication 16, I1 to I14 (the later ones are about elected masters and are not covered here).
"""

from __future__ import annotations

from typing import NamedTuple


class Invariant(NamedTuple):
    """One invariant. `checkers`: functions of this folder, as "module.function", which every run of a seed
    calls or may be stopped by; `tests`: tests of situations that a run cannot create, as "file::test" below
    `tests`.
    """

    name: str
    text: str
    checkers: tuple[str, ...]
    tests: tuple[str, ...] = ()


_SLAVE = "unit/replication/test_slave_session.py::"
_PLAN = "unit/broker/test_pull_plan.py::"

INVARIANTS = (
    Invariant(
        "I1",
        "the log of a slave equals its master's at the same offsets",
        ("checkers.check_replicas",),
    ),
    Invariant(
        "I2",
        "a slave reports no more than it holds, and never less than before on one connection",
        ("wire._Reports._check", "watch.Watch._check_acks"),
    ),
    Invariant(
        "I3",
        "frames follow one another without a gap, are no larger than a batch and stay in one file",
        ("wire._Frames._check_head",),
    ),
    Invariant(
        "I4",
        "how the network splits and joins segments changes nothing",
        ("network.Fabric.cut_of", "checkers.check_replicas"),
        ("property/test_replication_streams.py::test_any_split_of_a_masters_stream_gives_the_same_events",),
    ),
    Invariant(
        "I5",
        "a frame at another offset closes the connection and leaves the slave's log alone",
        ("checkers.check_replicas",),
        (
            _SLAVE + "test_frame_at_another_offset_closes_and_stores_nothing_of_it",
            "simulation/test_cluster_simulation.py::test_finds_a_slave_that_does_not_check_offsets",
        ),
    ),
    Invariant(
        "I6",
        "after a kill of either at any byte, both become equal again without help",
        ("faults.FaultInjector._lose_broker", "cluster.Cluster.settle"),
        ("property/test_replication_streams.py::test_copy_equals_the_masters_log_after_any_cuts",),
    ),
    Invariant(
        "I7",
        "the queues and the key index of a slave are its master's",
        ("cluster.Cluster.check", "checkers.first_unequal_key"),
    ),
    Invariant(
        "I8",
        "PUT_OK with n copies wanted: n copies are there, and any single crash leaves one",
        ("watch.Watch._check_copies", "cluster.Cluster.check_survivors", "checkers.check_promised"),
        ("simulation/test_cluster_simulation.py::test_finds_an_acknowledgement_before_the_store",),
    ),
    Invariant(
        "I9",
        "what was answered with FLUSH_SLAVE_TIMEOUT is stored on the master and consumed",
        ("checkers.check_promised", "checkers.unfinished"),
        ("simulation/test_failure_table.py::test_slave_down_in_sync_replicas_2",),
    ),
    Invariant(
        "I10",
        "a send with WAIT=false, or to an asynchronous master, never waits for slaves",
        ("watch.Watch.on_answered",),
    ),
    Invariant(
        "I11",
        "the highest acknowledgement only grows; no send waits past its time",
        ("watch.Watch._check_waits",),
    ),
    Invariant(
        "I12",
        "a slave's topics and groups become its master's, and no reader sees half a table",
        ("checkers.check_tables_equal", "watch.Watch._check_topics"),
        ("simulation/test_cluster_simulation.py::test_finds_a_table_that_is_replaced_by_halves",),
    ),
    Invariant(
        "I13",
        "committed offsets do not step back without a reason, and reach what was consumed",
        ("watch.Watch.check_committed", "checkers.behind_in"),
        ("simulation/test_failure_table.py::test_master_back",),
    ),
    Invariant(
        "I14",
        "which replica a pull names, for every outcome",
        (),
        (
            _PLAN + "test_every_outcome_of_the_store_has_an_answer",
            _PLAN + "test_slow_reader_is_sent_to_the_slave_only_when_slaves_serve_reads",
            _PLAN + "test_slave_sends_a_reader_that_caught_up_back_to_the_master",
            "simulation/test_failure_table.py::test_all_up",
        ),
    ),
)
