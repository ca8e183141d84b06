"""Checks for certain moments: after a loss, after a start, at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from sim.cluster.ledger import Fate, Ledger, Place, Sent
from sim.cluster.nodes import BrokerNode
from sim.cluster.promises import Promises
from sim.cluster.settings import TOPIC, Group
from sim.cluster.watch import EXCUSE_S, holds
from sim.cluster.world import World
from sim.linearizable import Append, Read, contradiction
from tandemmq.protocol.record import Record, decode_records
from tandemmq.replication.core.progress import MasterState, SlaveState
from tandemmq.replication.shell.master_status import SlaveStatus
from tandemmq.store import GetStatus, MessageStore

SHOWN_MAX = 5
KEY_COUNT = 50
FAR_FUTURE_MS = 1 << 60


def check_replicas(world: World, master: BrokerNode, slaves: Sequence[BrokerNode]) -> None:
    """Checks that the log of every following slave has the master's bytes, as far as both reach (spec
    replication 16, I1).
    """
    if master.store is None:
        return
    for slave in slaves:
        if slave.store is None or not is_following(slave, (master, *slaves)):
            continue
        begin = max(master.store.min_log_offset, slave.store.min_log_offset)
        end = min(master.store.max_log_offset, slave.store.max_log_offset)
        difference = first_difference(master.store, slave.store, begin, end)
        if difference is not None:
            world.findings.broken.append(f"{slave.process} differs from {master.process} at {difference}")


def is_halted(slave: BrokerNode) -> bool:
    """Returns True if its replication needs an operator."""
    replica = None if slave.broker is None else slave.broker._replica
    return replica is not None and replica.slave.status().halt is not None


def _connections_at(source: BrokerNode) -> tuple[SlaveStatus, ...]:
    replica = None if source.broker is None else source.broker._replica
    return () if replica is None else replica.master.status().slaves


def is_following(slave: BrokerNode, sources: Iterable[BrokerNode]) -> bool:
    """Returns True if the slave copies from one of the sources, and both know it; before that it may hold
    bytes that a master has lost.

    A source may be a slave itself: a slave that keeps dialling an address where another slave now runs copies
    from it.
    """
    replica = None if slave.broker is None else slave.broker._replica
    if replica is None or replica.slave.status().state is not SlaveState.TRANSFERRING:
        return False
    return any(
        one.address[0] == slave.host.ip and one.state is MasterState.TRANSFERRING
        for source in sources
        if source is not slave and source.store is not None
        for one in _connections_at(source)
    )


def first_difference(one: MessageStore, other: MessageStore, begin: int, end: int) -> int | None:
    """Returns the first offset at which the logs differ; None if they are equal."""
    position = begin
    while position < end:
        ours, theirs = (
            one.log.valid_view(position, end - position),
            other.log.valid_view(position, end - position),
        )
        size = min(len(ours), len(theirs))
        if not size:
            return position
        if ours[:size] != theirs[:size]:
            return next(position + i for i in range(size) if ours[i] != theirs[i])
        position += size
    return None


def check_stored(world: World, ledger: Ledger, promises: Promises, master: BrokerNode) -> None:
    """Checks that everything stored is there. Messages that a loss may have taken are marked as gone."""
    shown = 0
    for sent in ledger.sent.values():
        if sent.fate not in (Fate.ACKNOWLEDGED, Fate.STORED) or holds(master, sent):
            continue
        if promises.may_be_gone(sent):
            sent.fate = Fate.GONE
        elif shown < SHOWN_MAX:
            shown += 1
            world.findings.lost.append(f"{sent} is not on {master.name}")


def check_promised(world: World, ledger: Ledger, holders: Sequence[BrokerNode]) -> None:
    """Checks that everything acknowledged in time is held by one of `holders`."""
    names = ", ".join(node.name for node in holders)
    missing = (
        sent
        for sent in ledger.acknowledged
        if sent.is_waiting
        and sent.fate is Fate.ACKNOWLEDGED
        and not any(holds(node, sent) for node in holders)
    )
    world.findings.lost += [f"{sent} is not on {names}" for sent in islice(missing, SHOWN_MAX)]


def read_queue(store: MessageStore, place: Place) -> list[Record]:
    """Returns all records that the queue serves."""
    records: list[Record] = []
    offset = store.queue_min(*place)
    while True:
        result = store.reader.get(*place, offset, count_max=64)
        if result.status is not GetStatus.FOUND:
            return records
        records += [record for view in result.slices for record in decode_records(view)]
        offset = result.next_offset


def check_queues(world: World, ledger: Ledger, node: BrokerNode) -> dict[Place, list[Sent]]:
    """Checks that queues are dense and hold only sent messages; returns their content, by place."""
    store = node.store
    assert store is not None
    found: dict[Place, list[Sent]] = {}
    for place in sorted(store.queue_keys()):
        if place[0] != TOPIC:
            continue
        records = read_queue(store, place)
        low, high = store.queue_min(*place), store.queue_max(*place)
        offsets = [record.queue_offset for record in records]
        if offsets != list(range(low, high)):
            world.findings.broken.append(
                f"{node.process} {place}: not dense from {low} to {high}: {offsets[:20]}"
            )
        known = []
        for record in records:
            sent = ledger.find(record.content)
            if sent is None:
                world.findings.broken.append(f"{node.process} {place}:{record.queue_offset} was never sent")
            else:
                known.append(sent)
        found[place] = known
    return found


def unfinished(ledger: Ledger, group: Group, queues: Mapping[Place, Sequence[Record]]) -> Iterator[str]:
    """Yields the messages of these queues that the group has not acknowledged."""
    for place, records in queues.items():
        finished = ledger.progress_of(group.name, place).finished
        for record in records:
            sent = ledger.find(record.content)
            if sent is None or not group.matches(sent.tags):
                continue
            if (record.queue_offset, sent.number) not in finished:
                yield f"{group.name} never finished {place[1]}:{record.queue_offset}, {sent}"


def check_copies(world: World, ledger: Ledger, queues: dict[Place, list[Sent]]) -> None:
    """Checks that a message is stored twice only if its send may have been repeated."""
    seen: dict[int, int] = {}
    for held in queues.values():
        for sent in held:
            seen[sent.number] = seen.get(sent.number, 0) + 1
    for number, count in seen.items():
        if count > 1:
            sent = ledger.sent[number]
            ledger.counts["stored more than once"] += 1
            if not world.had_fault(sent.sent_at - EXCUSE_S, sent.settled_at or world.loop.time()):
                world.findings.broken.append(f"{sent} is stored {count} times without a reason")


def check_history(ledger: Ledger, place: Place, reads: Sequence[Read], held: Sequence[Sent]) -> str:
    """Returns "" if the history is linearizable, else the reason why it is not: what producers and consumers
    saw of a queue with this final content cannot come from one list.

    A send that requested no copies, or was answered with too few, promises nothing: it counts as unanswered.
    A repeated send may be stored once more, like a separate message.
    """
    appends = []
    answered: dict[int, int] = {}
    for sent in ledger.sent.values():
        if sent.fate is Fate.ACKNOWLEDGED and sent.is_waiting and (sent.topic, sent.queue_id) == place:
            appends.append(Append(sent.number, sent.sent_at, sent.settled_at, sent.queue_offset))
            answered[sent.queue_offset] = sent.number
    appends += [
        Append(sent.number, sent.sent_at)
        for offset, sent in enumerate(held)
        if answered.get(offset) != sent.number
    ]
    end = Read(0, tuple([sent.number for sent in held]), math.inf, math.inf, is_end=True)
    return contradiction(appends, [*reads, end])


def first_unequal_key(master: BrokerNode, slave: BrokerNode) -> str:
    """Returns "", or a key with which the slave finds other records than its master, in the range that both
    hold.
    """
    assert master.store is not None
    assert slave.store is not None
    begin = max(master.store.min_log_offset, slave.store.min_log_offset)
    for number in range(KEY_COUNT):
        ours, theirs = (_under_key(store, f"key{number}", begin) for store in (master.store, slave.store))
        if ours != theirs:
            return f"key{number}: {theirs[:10]}, its master {ours[:10]}"
    return ""


def _under_key(store: MessageStore, key: str, begin: int) -> list[int]:
    return [at for at in store.query_keys(TOPIC, key, 1_000, 0, FAR_FUTURE_MS) if at >= begin]


def behind_in(group: Group, master: BrokerNode) -> str:
    """Returns "", or a queue in which the group's committed offset is not the end."""
    assert master.store is not None
    assert master.broker is not None
    offsets = master.broker._tables.offsets
    for topic, queue_id in sorted(master.store.queue_keys()):
        end = master.store.queue_max(topic, queue_id)
        committed = offsets.committed(group.name, topic, queue_id)
        if topic == TOPIC and end and committed != end:
            return f"{group.name} has committed {committed} of {end} in queue {queue_id}"
    return ""


def check_tables_equal(master: BrokerNode, slave: BrokerNode) -> str:
    """Returns "", or the slave's table that differs from its master's.

    A slave whose copy begins late may lack entries of a queue: its progress is limited to the end of its
    copy, or to the progress that it held before.
    """
    assert master.broker is not None
    assert slave.broker is not None
    assert master.store is not None
    assert slave.store is not None
    ours, theirs = master.broker._tables, slave.broker._tables
    deleted = master.store.deletions.ends
    for place in slave.store.queue_keys():
        first = slave.store.queue_entries(*place, slave.store.queue_min(*place), 1)
        if first and first[0][0] < deleted.get(place[0], 0):
            return f"the deletion of {place[0]}: it holds the entry at {first[0][0]}"
    if ours.topics.snapshot() != theirs.topics.snapshot():
        return "topics"
    if ours.groups.snapshot() != theirs.groups.snapshot():
        return "groups"
    held = theirs.offsets.snapshot().offsets
    ends = slave.store.queue_max
    for key, queues in ours.offsets.snapshot().offsets.items():
        topic = key.partition("@")[0]
        copied = held.get(key, {})
        if copied.keys() != queues.keys() or any(
            not min(offset, ends(topic, queue_id)) <= copied[queue_id] <= offset
            for queue_id, offset in queues.items()
        ):
            return f"offsets of {key}: {held.get(key)}, its master {queues}"
    return ""
