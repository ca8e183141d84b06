"""Progress beyond the end of the log: a log that lost its end assigns those queue offsets to other messages.

Every message that is stored after the loss is delivered, although the group's progress in memory was further.
For tables see tests/scenario/test_progress_clamped.py.
"""

from __future__ import annotations

from dataclasses import replace

from scripted_cluster import ASYNC_COPY, Scene, play

from sim.cluster.checkers import read_queue
from sim.cluster.loop import SimProcess
from sim.cluster.settings import TOPIC, Group
from sim.image import Tear
from tandemmq.client import ReceivedMessage

ALONE = replace(ASYNC_COPY, slave_count=0, wait_percent=0)
"""One broker that flushes twice a second; no lost message was acknowledged as durable."""
PAIR = replace(ASYNC_COPY, wait_percent=0)


def twice_given(scene: Scene) -> int:
    return scene.counts["offsets assigned twice"]


def watch_hand_outs(scene: Scene) -> set[int]:
    """Returns the numbers of the messages that are delivered to the group from now on."""
    handed: set[int] = set()
    ledger, watch = scene.cluster.ledger, scene.cluster.watch
    on_delivered = watch.on_delivered

    def note(group: Group, process: SimProcess, session: object | None, message: ReceivedMessage) -> None:
        sent = ledger.find(message.body)
        assert sent is not None
        handed.add(sent.number)
        on_delivered(group, process, session, message)

    watch.on_delivered = note  # type: ignore[method-assign]  # to look on
    return handed


def never_handed_out(scene: Scene, handed: set[int]) -> dict[int, str]:
    """Returns the messages in the master's queues that the group never got: their numbers and places."""
    store, ledger = scene.master.store, scene.cluster.ledger
    assert store is not None
    return {
        sent.number: f"{place}:{record.queue_offset}"
        for place in store.queue_keys()
        if place[0] == TOPIC
        for record in read_queue(store, place)
        if (sent := ledger.find(record.content)) is not None and sent.number not in handed
    }


async def gets_everything(scene: Scene, handed: set[int]) -> None:
    """Waits until every message now in the queues was delivered to the group; sends continue meanwhile."""
    missing = never_handed_out(scene, handed)
    await scene.until(
        lambda: handed.issuperset(missing), f"every message is handed out, of {sorted(missing.values())}"
    )


async def lose_the_end(scene: Scene) -> None:
    """Cuts the power of the only broker, until the end of the log that the group has consumed is lost."""
    for _ in range(20):
        await scene.acknowledges(200)
        await scene.consumes(20)
        before = twice_given(scene)
        scene.master.cut_power(Tear.NOTHING)
        scene.master.start()
        await scene.until(lambda: scene.master.is_open, "the broker is back")
        if twice_given(scene) > before:
            return
    raise AssertionError("no power cut took anything")


def test_a_running_group_skips_nothing_after_a_power_cut() -> None:
    """Its progress in memory is beyond the end of the log, and the queues soon grow past it."""

    async def script(scene: Scene) -> None:
        handed = watch_hand_outs(scene)
        await lose_the_end(scene)
        await scene.acknowledges(300)
        await gets_everything(scene, handed)

    play(script, ALONE)


def test_a_running_group_skips_nothing_after_two_starts_in_a_row() -> None:
    """It pulls when the log of the second start has grown past it: only the first start detected the loss."""

    async def script(scene: Scene) -> None:
        handed = watch_hand_outs(scene)
        for _ in range(20):
            await scene.acknowledges(200)
            await scene.consumes(20)
            before = twice_given(scene)
            scene.block(scene.consumer, scene.master)
            scene.master.cut_power(Tear.NOTHING)
            scene.master.start()
            await scene.until(lambda: scene.master.is_open, "the broker is back")
            await scene.acknowledges(300)
            scene.master.kill()
            scene.master.start()
            await scene.until(lambda: scene.master.is_open, "the broker is back again")
            scene.unblock(scene.consumer, scene.master)
            if twice_given(scene) > before:
                break
        else:
            raise AssertionError("no power cut took anything")
        await gets_everything(scene, handed)

    play(script, ALONE)


def test_a_group_that_reads_on_at_a_slave_that_was_filled_again_skips_nothing() -> None:
    """The slave held what its master lost, and was emptied for this. Its queues grow past the group's
    position while the group asks it.
    """

    async def script(scene: Scene) -> None:
        handed = watch_hand_outs(scene)
        for _ in range(20):
            await scene.acknowledges(200)
            await scene.consumes(20)
            before = scene.counts["slaves replaced"]
            brokers = scene.master, scene.slave
            for broker in brokers:
                scene.block(scene.consumer, broker)
            scene.counts["power cuts of the master"] += 1  # so that the slave is allowed to differ
            scene.master.cut_power(Tear.NOTHING)
            scene.master.start()
            await scene.until(lambda: scene.master.is_open, "the broker is back")
            await scene.acknowledges(300)
            await scene.level()
            scene.unblock(scene.consumer, scene.slave)
            if scene.counts["slaves replaced"] > before and twice_given(scene):
                break
            scene.unblock(scene.consumer, scene.master)
        else:
            raise AssertionError("no power cut took what the slave had")
        await gets_everything(scene, handed)
        scene.unblock(scene.consumer, scene.master)

    play(script, PAIR)


def test_a_running_group_skips_nothing_after_a_shorter_slave_is_promoted() -> None:
    """The log was no longer copied when the master was lost. The group returns when the queues of the new
    master have grown past its position.
    """

    async def script(scene: Scene) -> None:
        handed = watch_hand_outs(scene)
        scene.cluster.has_operator = False
        await scene.acknowledges(100)
        await scene.level()
        scene.block(scene.master, scene.slave)
        await scene.acknowledges(300)
        await scene.consumes(100)
        brokers = scene.master, scene.slave
        for broker in brokers:
            scene.block(scene.consumer, broker)
        scene.master.cut_power()
        scene.unblock(*brokers)
        scene.cluster.has_operator = True
        await scene.cluster.promote()
        scene.cluster.ledger.owed.clear()  # messages returned for a retry may have been lost with the log
        await scene.acknowledges(600)
        assert twice_given(scene)
        for broker in brokers:
            scene.unblock(scene.consumer, broker)
        await gets_everything(scene, handed)

    play(script, PAIR)
