"""The changes between two readings of a cluster, and the reasons of new masters."""

from __future__ import annotations

from tandemmq.console.sampler import Sampler, _changes
from tandemmq.manage.cluster import BrokerReading, ClusterReading
from tandemmq.manage.tools import Target, open_tools
from tandemmq.protocol.bodies.codec import REFUSALS_KEY
from tandemmq.runtime.machine import LoopClock
from tandemmq.testing import Cluster
from waits import until

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def reading(*brokers: tuple[str, int, int], is_ours: bool = True) -> ClusterReading:
    """Returns a reading of brokers: address, id and start of each."""
    ours = {REFUSALS_KEY: ""} if is_ours else {}
    return ClusterReading(
        1,
        ("10.0.0.9:9876",),
        tuple(
            BrokerReading(Target("c", "broker-a", number, address), {"bootTimestamp": str(at), **ours})
            for address, number, at in brokers
        ),
    )


def texts(before: ClusterReading, after: ClusterReading) -> list[str]:
    return [f"{one.broker} {one.text}" for one in _changes(before, after, {"broker-a": A})]


def test_a_hand_over_is_no_restart() -> None:
    [text] = texts(reading((A, 0, 100), (B, 1, 100)), reading((A, 2, 200), (B, 0, 201)))
    assert text == (
        f"broker-a new master {B}: {A} is a slave now and answers, so it handed over, was restarted or lost"
        " its lease"
    )


def test_a_restart_is_seen() -> None:
    assert texts(reading((A, 0, 100), (B, 1, 100)), reading((A, 0, 100), (B, 1, 200))) == [
        f"broker-a {B} restarted"
    ]
    of_java = texts(
        reading((A, 0, 100), (B, 1, 100), is_ours=False), reading((A, 1, 200), (B, 0, 100), is_ours=False)
    )
    assert of_java == [f"broker-a new master {B}: {A} was restarted", f"broker-a {A} restarted"]


async def test_a_master_that_was_away_is_compared_with_the_one_before() -> None:
    async with Cluster(slave=True) as cluster, open_tools(cluster.name_servers) as tools:
        sampler = Sampler(tools, LoopClock())
        await sampler.read()
        master = cluster.master_address
        await cluster.lose_master()

        async def is_missed() -> bool:
            await sampler.read()
            return any(one.text == f"has no master; it was {master}" for one in sampler.events)

        await until(is_missed)
        await sampler.read()
        assert sampler._last_masters == {"broker-a": master}
