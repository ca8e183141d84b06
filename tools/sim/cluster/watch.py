"""Checks of invariants that must hold at every moment, made as events happen.

Owns:     where acknowledged messages are, what each group was delivered, what the tables of slaves have held.
Strategy: the watch sees all nodes at once, which no member of a cluster can.
"""

from __future__ import annotations

from sim.cluster.ledger import Fate, Ledger, Place, Sent
from sim.cluster.loop import SimProcess
from sim.cluster.nodes import BrokerNode
from sim.cluster.promises import Promises
from sim.cluster.settings import PASSING_TOPIC, TOPIC, Group
from sim.cluster.world import World
from sim.linearizable import Read
from sim.manual_clock import START_MS
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.store import MessageStore

EXCUSE_S = 25.0
"""The time after a fault during which repeats and offsets that step back are expected."""


LATE_S = 1.0
"""The delay with which a master that is not stalled may answer a send that timed out."""


class Watch:
    """Receives events from clients and the network; adds to `world.findings`."""

    def __init__(self, world: World, ledger: Ledger, promises: Promises) -> None:
        self._world = world
        self._ledger = ledger
        self.promises = promises
        self.brokers: list[BrokerNode] = []
        self._at_place: dict[tuple[int, int], Sent] = {}
        self._handed: dict[tuple[str, Place, int, int], float] = {}
        """The time of the first delivery, by group, place, offset and number."""
        self._retried_at: dict[tuple[str, int], float] = {}
        self._sessions: dict[object, int] = {}
        self._topics_seen: dict[SimProcess, tuple[int, bool, int]] = {}
        self._acknowledged: dict[SimProcess, int] = {}
        self._committed: dict[tuple[SimProcess, str, int], int] = {}
        self._commits_seen: dict[str, tuple[SimProcess, int]] = {}
        self._last_commits: dict[str, dict[tuple[str, int], int]] = {}
        """The last committed offsets, by the broker that received them: the master, whichever it is, or a
        slave by its name.
        """
        self._reused_offsets: dict[int, set[int]] = {}
        """For each queue, the offsets that a log lost and assigned again."""
        self.copies_lost_at = -1.0
        """The time at which a copy of the log was last cut by a power failure, or wiped."""
        self._ack_floor = 0
        self.queue_high: dict[int, int] = {}
        """For each queue, the highest end that any replica had, recorded at losses of nodes."""
        world.fabric.observers.append(self._after_delivery)

    # Clocks.

    def latest_ms(self) -> int:
        """Returns the time by a clock that is as far ahead as a broker's ever was."""
        lead_ms = max(node.clock.lead_ms for node in self.brokers)
        return START_MS + lead_ms + int(self._world.loop.time() * 1000)

    # Producers.

    def on_answered(self, sent: Sent, previous: Sent | None) -> None:
        """Handles the answer to a send; `previous` is the message that its sender had sent to that queue
        before.
        """
        world, settings = self._world, self._world.settings
        may_wait = sent.is_waiting and (settings.is_sync_double_write or settings.is_sync_flush)
        if sent.fate is Fate.STORED and not may_wait:
            world.findings.broken.append(f"{sent} waited in vain, though nothing is to be waited for")
        if sent.fate is not Fate.ACKNOWLEDGED:
            return
        self._ledger.acknowledged.append(sent)
        if not sent.is_waiting:
            return
        place = sent.queue_id, sent.queue_offset
        other = self._at_place.get(place)
        if other is not None and not self.promises.may_be_gone(other):
            world.findings.lost.append(f"{other}: its place was given to {sent}")
        self._at_place[place] = sent
        if (
            previous is not None
            and previous.fate is Fate.ACKNOWLEDGED
            and previous.is_waiting
            and previous.queue_offset >= sent.queue_offset
            and not self.promises.may_be_gone(previous)
        ):
            world.findings.order.append(f"{sent} was sent after {previous}")
        self._check_copies(sent)

    def _check_copies(self, sent: Sent) -> None:
        holders = [node.name for node in self.brokers if holds(node, sent)]
        is_cut = self.copies_lost_at >= sent.sent_at
        wanted = self._world.settings.copy_count - is_cut
        if len(holders) < wanted:
            self._world.findings.lost.append(
                f"{sent} was acknowledged with {wanted} copies wanted and {holders} holding one"
            )

    # Consumers.

    def on_delivered(
        self, group: Group, process: SimProcess, session: object | None, message: ReceivedMessage
    ) -> None:
        """`session` identifies one assignment of a queue to one consumer; None if it is unknown."""
        world = self._world
        sent = self._ledger.find(message.body)
        offset, place = message.queue_offset, (message.record.topic, message.queue_id)
        where = f"{process} got {place[0]}/{place[1]}:{offset}"
        if sent is None:
            world.findings.broken.append(f"{where}, which was never sent: {message.body[:40]!r}")
            return
        if not group.matches(sent.tags):
            world.findings.broken.append(f"{where} with tag {sent.tags!r}, it wants {group.tags!r}")
        if session is not None:
            before = self._sessions.get(session, -1)
            if offset <= before:
                world.findings.order.append(f"{where} after offset {before}")
            self._sessions[session] = offset
        key = (group.name, place, offset, sent.number)
        now_s = world.loop.time()
        first_s = self._handed.setdefault(key, now_s)
        if first_s < now_s:
            self._ledger.counts["duplicates"] += 1
            if not world.had_fault(first_s - EXCUSE_S, now_s):
                world.findings.broken.append(f"{where} at {first_s:.3f} and again without a reason")

    def reads_of(self, place: Place) -> list[Read]:
        """Returns the messages that consumers got of a queue, each with the time of the first delivery in its
        group. The times of the requests are unknown and set to 0, which cannot cause a false finding.
        """
        return [
            Read(offset, (number,), 0.0, at_s)
            for (_, where, offset, number), at_s in self._handed.items()
            if where == place
        ]

    def on_finished(self, group: Group, message: ReceivedMessage) -> None:
        """Handles a message that the application has processed."""
        sent = self._ledger.find(message.body)
        if sent is None:
            return
        if is_retry_topic(message.record.topic):
            self._retried_at[group.name, sent.number] = self._world.loop.time()
            self._ledger.owed.pop((group.name, sent.number), None)
            self._ledger.counts["finished at a retry"] += 1
            return
        progress = self._ledger.progress_of(group.name, (message.topic, message.queue_id))
        offset = message.queue_offset
        other = progress.at_offset.get(offset)
        if other not in (None, sent.number) and not self._is_reused(message.queue_id, offset):
            self._world.findings.lost.append(
                f"{group.name} had #{other} at {message.queue_id}:{offset}, now {sent}"
            )
        progress.finish(offset, sent.number)

    def on_returned(self, group: Group, message: ReceivedMessage, begin_s: float) -> None:
        """Handles a message that the broker has accepted for a retry: it must deliver it to the group once
        more.

        `begin_s`: the time of the request. Its answer waits for the slaves, and may arrive after the retry.
        """
        sent = self._ledger.find(message.body)
        assert sent is not None
        if self._retried_at.get((group.name, sent.number), -1.0) < begin_s:
            self._ledger.owed[group.name, sent.number] = self._world.loop.time()
        progress = self._ledger.progress_of(group.name, (message.topic, message.queue_id))
        progress.finish(message.queue_offset, sent.number)

    # Losses.

    def on_broker_lost(self, node: BrokerNode, *, is_power_cut: bool) -> None:
        """Handles the loss of a broker's process; called while its store can still be read."""
        if is_power_cut:
            self.on_copy_lost(node)
        for broker in self.brokers:
            self._record_highest(broker)
        self._record_highest(node)

    def on_copy_lost(self, node: BrokerNode) -> None:
        """Records that bytes which this node acknowledged may be lost; its master need not know yet."""
        self.copies_lost_at = self._world.loop.time()
        if node.broker is not None and node.broker.store is not None:
            self._ack_floor = max(self._ack_floor, node.broker.store.appended.value)

    def _record_highest(self, node: BrokerNode) -> None:
        store = None if node.broker is None else node.broker.store
        if store is None:
            return
        for topic, queue_id in store.queue_keys():
            if topic == TOPIC:
                high = store.queue_max(topic, queue_id)
                self.queue_high[queue_id] = max(high, self.queue_high.get(queue_id, 0))

    def on_master_open(self, node: BrokerNode) -> None:
        """Handles a master that serves again. If its queues end earlier than before, offsets are assigned a
        second time, and two messages at one place are then not a finding. The messages that a group must
        acknowledge stay the same.
        """
        assert node.store is not None
        self._record_reused_offset(node.store)

    def _is_reused(self, queue_id: int, offset: int) -> bool:
        """Returns True if the offset was assigned twice. A master already serves while it tries to reach an
        unavailable name server; it does not count as open yet.
        """
        for node in self.brokers:
            broker = node.broker
            if node.broker_id or node.is_open or not node.is_running:
                continue
            if broker is not None and broker._duties is not None:
                assert broker.store is not None
                self._record_reused_offset(broker.store)
        return offset in self._reused_offsets.get(queue_id, ())

    def _record_reused_offset(self, store: MessageStore) -> None:
        for broker in self.brokers:
            # A slave may have received more after its master's death, and have served it.
            self._record_highest(broker)
        for queue_id, high in self.queue_high.items():
            # Not its current end: sends may have been accepted since.
            low = store.queue_bounds(TOPIC, queue_id).run_start
            if low >= high:
                continue
            self._world.note(f"queue {queue_id} moves back from {high} to {low}")
            self._ledger.counts["offsets assigned twice"] += high - low
            self._reused_offsets.setdefault(queue_id, set()).update(range(low, high))
            self.queue_high[queue_id] = low

    # Servers.

    def _after_delivery(self, host_name: str) -> None:
        for node in self.brokers:
            if node.name == host_name and node.store is not None:
                self._check_topics(node)
                self._record_steps_back(node)
                if node.broker_id == 0:
                    self._check_acks(node)
                    self._check_waits(node)

    def _record_steps_back(self, node: BrokerNode) -> None:
        """Records offsets that step back: the last commit is not always the highest. Consumers without their
        master commit at its slave; the commits at one master are compared with those at the next.
        """
        assert node.broker is not None
        assert node.process is not None
        table = node.broker._tables.offsets
        teller = "master" if node.broker_id == 0 else node.name
        if self._commits_seen.get(teller) == (node.process, table._commits):
            return
        self._commits_seen[teller] = node.process, table._commits
        last_commits = self._last_commits.setdefault(teller, {})
        for key, queues in table.snapshot().offsets.items():
            for queue_id, offset in queues.items():
                if offset < last_commits.get((key, queue_id), 0):
                    self._world.stepped_s[key, queue_id] = self._world.loop.time()
                last_commits[key, queue_id] = offset

    def _check_topics(self, node: BrokerNode) -> None:
        """Checks that a table is never seen half replaced: a topic stays. A topic that a lost master reported
        only to this slave may go when another slave is promoted, once for each promotion.
        """
        assert node.process is not None
        assert node.broker is not None
        table = node.broker._tables.topics
        count, had_ours, taken = self._topics_seen.get(node.process, (0, False, 0))
        has_ours = table.get(TOPIC) is not None
        lasting = len(table) - (table.get(PASSING_TOPIC) is not None)
        promotions = self._ledger.counts["promotions"]
        if lasting < count and taken < promotions:
            taken = promotions
        elif lasting < count or (had_ours and not has_ours):
            self._world.findings.broken.append(f"{node.process} has {lasting} topics, it had {count}")
        self._topics_seen[node.process] = lasting, has_ours, taken

    def _check_acks(self, master: BrokerNode) -> None:
        """Checks that no acknowledgement exceeds what its slave holds."""
        assert master.store is not None
        positions = master.store.replies.acks.positions()
        slaves = [node for node in self.brokers if node.broker_id]
        if not positions or any(node.store is None for node in slaves):
            return
        stored = max(node.store.appended.value for node in slaves if node.store is not None)
        newest = max(positions.values())
        if newest > max(stored, self._ack_floor):
            self._world.findings.broken.append(
                f"{master.process} counts an acknowledgement of {newest}, slaves hold {stored} at most"
            )

    def _check_waits(self, master: BrokerNode) -> None:
        """Checks that the acknowledgements known to a master only grow, and that no send waits beyond its
        time limit.
        """
        assert master.process is not None
        assert master.store is not None
        assert master.broker is not None
        assert master.broker._replica is not None
        highest = master.broker._replica.master._highest_acknowledged
        if highest < self._acknowledged.get(master.process, 0):
            self._world.findings.broken.append(f"{master.process} knew more acknowledgements than {highest}")
        self._acknowledged[master.process] = highest
        now_s = self._world.loop.time()
        deadline_s = master.store.replies.lines.next_deadline()
        is_late = deadline_s is not None and deadline_s < now_s - LATE_S
        if is_late and self._world.is_quiet_since(now_s - LATE_S):
            self._world.findings.broken.append(
                f"{master.process}: a send waits, its time was up at {deadline_s}"
            )

    def check_committed(self, master: BrokerNode) -> None:
        """Checks that committed offsets step back only after a fault."""
        assert master.process is not None
        assert master.broker is not None
        for key, queues in master.broker._tables.offsets.snapshot().offsets.items():
            for queue_id, offset in queues.items():
                place = master.process, key, queue_id
                before = self._committed.get(place, 0)
                if offset < before:
                    self._ledger.counts["commits stepping back"] += 1
                    if self._world.is_quiet_since(self._world.loop.time() - EXCUSE_S):
                        self._world.findings.broken.append(
                            f"{master.process}: committed offset of {key} queue {queue_id} falls from "
                            f"{before} to {offset} without a reason"
                        )
                self._committed[place] = offset


def holds(node: BrokerNode, sent: Sent) -> bool:
    """Returns True if the node's log has the message at its acknowledged offset."""
    record = node.record_at(sent.log_offset)
    return record is not None and record.content == sent.body and record.queue_offset == sent.queue_offset
