"""The bugs that `sim.plants` plants: slips of one line that a good engineer makes, and what must find them.

A row names the file, a text that stands in it once, and what stands there instead. `proofs` are simulations
(crash, flips, sim, elected, raft) or paths below tests/, the most telling one first; the first that fails
ends the search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One bug. `path` is below src/tandemmq; `why_not` tells why nothing finds it, where nothing can."""

    name: str
    path: str
    sound: str
    bug: str
    proofs: tuple[str, ...]
    why_not: str = ""


_STORE: Final = (
    Plant(
        name="the flushed mark is taken after the fsync",
        path="store/flusher.py",
        sound="self._flushed.raise_to(target)",
        bug="self._flushed.raise_to(self._appended.value)",
        proofs=("crash",),
    ),
    Plant(
        name="only the last of several files is fsynced",
        path="store/flusher.py",
        sound="await sync_segments(self._disk, segments)",
        bug="await sync_segments(self._disk, segments[-1:])",
        proofs=("crash",),
    ),
    Plant(
        name="a send is answered before the fsync",
        path="store/confirm.py",
        sound="return WaitFor.FLUSH if sync_flush else WaitFor.NOTHING",
        bug="return WaitFor.NOTHING",
        proofs=("crash",),
    ),
    Plant(
        name="recovery does not sync what it read",
        path="store/recovery.py",
        sound="[s for s in scanned if s in self._log.log.segments]",
        bug="[]",
        proofs=("crash",),
    ),
    Plant(
        name="the pages of a failed fsync are not written again",
        path="store/recovery.py",
        sound="self._write_again(scan.unsure_from, end)",
        bug="self._write_again(end, end)",
        proofs=("crash",),
    ),
    Plant(
        name="one queue entry too many is trusted after a crash",
        path="store/consume_queue.py",
        sound="count = units_below(segment, log_offset)",
        bug="count = units_below(segment, log_offset) + 1",
        proofs=("crash",),
    ),
    Plant(
        name="the next queue offset is not reset after a cut",
        path="store/consume_queue.py",
        sound="self.max_offset = self.next_offset = self._written = self._synced = self.tail_start = end",
        bug="self.max_offset = self._written = self._synced = self.tail_start = end",
        proofs=("crash",),
    ),
    Plant(
        name="stale bytes behind the end are looked for in the first sector only",
        path="store/segmented_log.py",
        sound="if file.pread(at, size) != (_ZEROS if size == MIB else _ZEROS[:size]):",
        bug="if any(file.pread(at, min(size, 512))):",
        proofs=("crash",),
    ),
    Plant(
        name="the checkpoint vouches for queues that were not fsynced",
        path="store/table_flusher.py",
        sound="await self._sync(due)",
        bug="await self._sync(due[:0])",
        proofs=("crash",),
    ),
    Plant(
        name="the checkpoint vouches for records that came during the round",
        path="store/table_flusher.py",
        sound="queues_ms=stored_at_ms if is_complete else 0",
        bug="queues_ms=self._dispatcher.stored_at_ms if is_complete else 0",
        proofs=("unit/store/test_table_flusher.py",),
    ),
    Plant(
        name="the checkpoint trusts the later of its times",
        path="store/checkpoint.py",
        sound="min(self.log_stored_at_ms, self.queues_stored_at_ms) - SAFETY_MS",
        bug="max(self.log_stored_at_ms, self.queues_stored_at_ms) - SAFETY_MS",
        proofs=("crash", "unit/store/test_store_recovery.py"),
    ),
    Plant(
        name="the last record of a block is not asked whether it is torn",
        path="store/recovery_scan.py",
        sound="if is_cut_off or _is_torn(view, at, size):",
        bug="if is_cut_off:",
        proofs=("crash", "unit/store/test_recovery_torn.py"),
    ),
    Plant(
        name="a failed write is called undone before its zeros are on disk",
        path="store/failed_writes.py",
        sound="await sync_segments(self._disk, segments)",
        bug="await sync_segments(self._disk, segments[:0])",
        proofs=("unit/store/test_store_fail_stop.py",),
    ),
    Plant(
        name="a failed write keeps its queue offsets",
        path="store/appender.py",
        sound="        _take_back_offsets(units)\n        self._forget_stage()\n        ranges",
        bug="        self._forget_stage()\n        ranges",
        proofs=("crash",),
    ),
    Plant(
        name="a batch may be stored earlier than the message before it",
        path="store/appender.py",
        sound="now = max(self._clock.now_ms(), self.stored_at_ms)",
        bug="now = self._clock.now_ms()",
        proofs=("unit/store/test_store_append.py",),
    ),
    Plant(
        name="a record leaves no room for the filler behind it",
        path="store/appender.py",
        sound="self._limit = min(self._segment_end - BLANK_BYTES,",
        bug="self._limit = min(self._segment_end,",
        proofs=("crash",),
    ),
    Plant(
        name="a commit counts what came into the pool meanwhile",
        path="store/committer.py",
        sound="self._advance(target, stored_at_ms)",
        bug="self._advance(self._pool.end, stored_at_ms)",
        proofs=("crash",),
    ),
    Plant(
        name="a key index that goes on takes each record for one key",
        path="store/key_indexes.py",
        sound="first += self._indexed_key_count",
        bug="first += 1",
        proofs=("crash",),
    ),
    Plant(
        name="a log file is deleted before the entries of its records are on disk",
        path="store/retention.py",
        sound="safe = min(self._flushed.value, self._tables_end())",
        bug="safe = self._flushed.value",
        proofs=("unit/store/test_store_retention.py",),
    ),
    Plant(
        name="a reader takes the body's checksum for right",
        path="protocol/record.py",
        sound="if check_crc and body and crc32(body) & CRC_MASK != head[2]:",
        bug="if check_crc and not body and crc32(body) & CRC_MASK != head[2]:",
        proofs=("flips",),
    ),
    Plant(
        name="recovery takes the body's checksum for right",
        path="protocol/record_scan.py",
        sound="is_valid & ((found & CRC_MASK == columns.body_crc) | (columns.body_size == 0))",
        bug="is_valid | ((found & CRC_MASK == columns.body_crc) & (columns.body_size == 0))",
        proofs=("unit/store/test_record_block.py", "unit/protocol/test_record_scan.py"),
    ),
    Plant(
        name="a repair goes on over damage that nobody has accepted",
        path="store/inspect/repair.py",
        sound="return bool(middle) and not self._options.accepts_damage",
        bug="return bool(middle) and self._options.accepts_damage",
        proofs=("unit/store/test_inspect_repair.py",),
    ),
)

_DELETIONS: Final = (
    Plant(
        name="the first message of a topic made again counts as deleted",
        path="store/consume_queues.py",
        sound="return bool(ends) and log_offset < ends.get(topic, 0)",
        bug="return bool(ends) and log_offset <= ends.get(topic, 0)",
        proofs=("unit/store/test_store_replica.py",),
    ),
    Plant(
        name="the same among many messages",
        path="store/block_dispatch.py",
        sound="rows = found[columns.log_offset[found] >= deleted[key[0]]]",
        bug="rows = found[columns.log_offset[found] > deleted[key[0]]]",
        proofs=("unit/store/test_store_recovery.py",),
    ),
    Plant(
        name="a deletion outlives the cut of the log that it points into",
        path="store/deletions.py",
        sound="lowered = {topic: min(end, log_end) for",
        bug="lowered = {topic: end for",
        proofs=("unit/store/test_store_recovery.py", "unit/store/test_recovery_blocks.py"),
    ),
    Plant(
        name="a deletion that could not be written is kept in memory",
        path="store/deletions.py",
        sound="                self.ends = before | self._noted\n",
        bug="                pass\n",
        proofs=("unit/store/test_store_recovery.py",),
    ),
    Plant(
        name="a queue that begins anew keeps its former entries",
        path="store/consume_queue.py",
        sound="if gap < 0 or is_far:",
        bug="if is_far:",
        proofs=("unit/store/test_recovery_blocks.py",),
    ),
    Plant(
        name="what a topic made again shows of its deletion is noted for one queue only",
        path="store/consume_queues.py",
        sound="            if 0 <= begin < deleted < end:",
        bug="            if False:",
        proofs=("unit/store/test_store_replica.py",),
    ),
    Plant(
        name="dropping a topic drops the offsets of longer names too",
        path="broker/offsets/offset_table.py",
        sound='if key.startswith(topic + "@")',
        bug="if key.startswith(topic)",
        proofs=("unit/broker/test_broker_tables.py",),
    ),
)

_REPLICATION: Final = (
    Plant(
        name="a send is answered on the slave's word without the master's fsync",
        path="store/confirm.py",
        sound="return WaitFor.ACKS_AND_FLUSH if sync_flush else WaitFor.ACKS",
        bug="return WaitFor.ACKS",
        proofs=("unit/store/test_confirm.py", "unit/store/test_store_waits.py", "sim"),
    ),
    Plant(
        name="a slave that was too slow counts as a success",
        path="store/confirm.py",
        sound="answers.append((line.popleft().on_done, PutStatus.FLUSH_SLAVE_TIMEOUT))",
        bug="answers.append((line.popleft().on_done, PutStatus.PUT_OK))",
        proofs=("sim",),
    ),
    Plant(
        name="the position of a replica never falls",
        path="store/confirm.py",
        sound="self._positions[replica] = offset",
        bug="self._positions[replica] = max(offset, self._positions.get(replica, 0))",
        proofs=("unit/store/test_confirm.py", "sim"),
    ),
    Plant(
        name="the fastest replica answers for all",
        path="store/confirm.py",
        sound="return valid[count - 1]",
        bug="return valid[0]",
        proofs=("unit/store/test_confirm.py", "property/test_replication_counting.py", "sim"),
    ),
    Plant(
        name="a replica that claims more than the log holds counts",
        path="store/confirm.py",
        sound="valid = [offset for offset in self._positions.values() if offset <= log_end]",
        bug="valid = list(self._positions.values())",
        proofs=("unit/store/test_confirm.py",),
    ),
    Plant(
        name="a copy that begins right behind a message counts for it",
        path="store/confirm.py",
        sound="starts.get(replica, 0) < since",
        bug="starts.get(replica, 0) <= since",
        proofs=("unit/store/test_confirm.py", "property/test_replication_counting.py"),
    ),
    Plant(
        name="a repeat is confirmed by a copy that lacks the message",
        path="store/replies.py",
        sound="since=log_offset + 1,",
        bug="since=None,",
        proofs=(
            "unit/store/test_store_waits.py",
            "unit/store/test_confirm.py",
            "scenario/test_exactly_once_sends.py",
        ),
    ),
    Plant(
        name="each connection counts as a replica of its own",
        path="replication/core/replicas.py",
        sound="            if other.host == connection.host and other.alive_above is not None:\n",
        bug="            if other is connection.twin:\n",
        proofs=("property/test_replication_counting.py",),
    ),
    Plant(
        name="a late start is forgotten",
        path="replication/core/replicas.py",
        sound="return self._late_hosts.get(connection.host, self._start_of_others)",
        bug="return self._start_of_others",
        proofs=("unit/replication/test_replica_directory.py", "sim"),
    ),
    Plant(
        name="slaves are sent what is not flushed",
        path="replication/shell/master.py",
        sound="return LogRange(self._store.min_log_offset, self._store.confirmed.value)",
        bug="return LogRange(self._store.min_log_offset, self._store.appended.value)",
        proofs=("scenario/test_replication_sync.py", "scenario/test_replication_copy.py", "sim"),
    ),
    Plant(
        name="a slave's heartbeat reports what it received",
        path="replication/core/slave.py",
        sound="return encode_report(self.reported)",
        bug="return encode_report(self._received_to)",
        proofs=("unit/replication/test_slave_session.py", "property/test_replication_streams.py", "sim"),
    ),
    Plant(
        name="a slave calls flushed what it has only written",
        path="store/message_store.py",
        sound="a master's bytes cannot be.\n        self.appended.raise_to(end)",
        bug="a master's bytes cannot be.\n"
        "        self.appended.raise_to(end)\n        self.flushed.raise_to(end)",
        proofs=("unit/store/test_store_replica.py", "sim"),
    ),
    Plant(
        name="a slave reports bytes that its store has refused",
        path="replication/shell/slave.py",
        sound='return f"{type(error).__name__}: {error}"',
        bug='return ""',
        proofs=("scenario/test_replication_copy.py", "sim"),
    ),
    Plant(
        name="a record is taken though it says that it lies further on",
        path="replication/core/verifier.py",
        sound='return "" if place == log_offset else',
        bug='return "" if place >= log_offset else',
        proofs=("unit/replication/test_record_verifier.py",),
    ),
    Plant(
        name="damage in the same place again is asked for again",
        path="replication/core/slave.py",
        sound="is_final = bad.log_offset == self.damage_offset",
        bug="is_final = False",
        proofs=("unit/replication/test_slave_session.py",),
    ),
    Plant(
        name="the comparison of the ends always finds them the same",
        path="broker/replica/tail_check.py",
        sound="return TailVerdict(outcome=TailOutcome.DIFFERENT, log_offset=different_at, detail=detail)",
        bug="return TailVerdict(outcome=TailOutcome.SAME, log_offset=log_end, master_start=low, life=life)",
        proofs=("sim",),
    ),
    Plant(
        name="a master in doubt takes one slave's word for all",
        path="broker/replica/tail_wait.py",
        sound="needed = max(1, slave_count - ack_count + 1)",
        bug="needed = 1",
        proofs=("unit/replication/test_slaves_asked.py", "sim"),
    ),
    Plant(
        name="a machine that tells no boot is taken for the same boot",
        path="store/lock.py",
        sound="return bool(boot_id) and self._told_boot_id() == boot_id",
        bug="return self._told_boot_id() == boot_id",
        proofs=("unit/store/test_store_recovery.py",),
    ),
    Plant(
        name="a new master gives out queue offsets of what it has not dispatched",
        path="store/message_store.py",
        sound="            self._dispatcher.advance(end)\n            self._queues.deletions.cut(end)",
        bug="            self._queues.deletions.cut(end)",
        proofs=("unit/store/test_store_replica.py", "sim"),
    ),
    Plant(
        name="a wrong queue entry is found and left",
        path="store/consume_queue.py",
        sound="if old is None or (old[1] != FILLER_SIZE and not replaces):",
        bug="if old is None or old[1] != FILLER_SIZE:",
        proofs=("unit/store/test_scrub.py",),
    ),
    Plant(
        name="readers pass over an entry whose record is being looked for",
        path="store/reader.py",
        sound="if is_lost and self._on_doubt(queue, batch.next_offset) and waits:",
        bug="if is_lost and self._on_doubt(queue, batch.next_offset) and not waits:",
        proofs=("unit/store/test_scrub.py",),
    ),
    Plant(
        name="a new master keeps the beginning of a record",
        path="store/message_store.py",
        sound="end = self._replica_log.cut_partial(self.dispatched.value)",
        bug="end = self._log.end",
        proofs=("unit/store/test_store_replica.py", "sim"),
    ),
)

_TABLES: Final = (
    Plant(
        name="consumer offsets are copied one too high",
        path="broker/replica/config_sync.py",
        sound="queue: self._not_ahead(topic, queue, told, old.get(queue, 0))",
        bug="queue: self._not_ahead(topic, queue, told, old.get(queue, 0)) + 1",
        proofs=("sim",),
    ),
    Plant(
        name="tables are saved only at a stop",
        path="broker/table_file.py",
        sound="self._arm(file, file.delay_ms)",
        bug="file.is_due = False",
        proofs=("sim",),
    ),
    Plant(
        name="a table that could not be written is told as saved",
        path="broker/table_file.py",
        sound="_tell(waiting, error)",
        bug="_tell(waiting, None)",
        proofs=("unit/broker/test_unsaved_topics.py",),
    ),
    Plant(
        name="a slave takes progress over that is ahead of its copy",
        path="broker/replica/config_sync.py",
        sound="return min(told, max(held, self._queue_end(topic, queue_id)))",
        bug="return told",
        proofs=("unit/replication/test_config_sync.py", "sim"),
    ),
    Plant(
        name="the tables of an empty master replace all",
        path="broker/replica/config_sync.py",
        sound="if not told.is_empty or held.keys() <= fetched.entries.keys():",
        bug="if held.keys() or not told.is_empty:",
        proofs=("unit/replication/test_config_sync.py", "sim"),
    ),
    Plant(
        name="the tables of another life of the master are taken over",
        path="broker/replica/config_sync.py",
        sound="is_followed = ends.life == life == self._followed()",
        bug="is_followed = life == self._followed()",
        proofs=("unit/replication/test_config_sync.py", "sim"),
    ),
)

_DELAY: Final = (
    Plant(
        name="progress of delays is valid before its copies are safe",
        path="broker/delay/level_delivery.py",
        sound="self.settle(self._writer.safe_end())",
        bug="self.settle(self._writer.log_end)",
        proofs=("unit/broker/test_delay_level_delivery.py", "sim"),
    ),
    Plant(
        name="progress counts as safe without the slaves",
        path="broker/delay/progress.py",
        sound="return min([flushed, *near])",
        bug="return flushed",
        proofs=("unit/broker/test_delay_rules.py", "sim"),
    ),
    Plant(
        name="progress of a level covers what was read and is not due",
        path="broker/delay/level_delivery.py",
        sound="self._progress.add(end, (level.number, due[-1].queue_offset + 1))",
        bug="self._progress.add(end, (level.number, next_offset))",
        proofs=("unit/broker/test_delay_level_delivery.py", "sim"),
    ),
    Plant(
        name="a damaged delayed message takes its neighbours with it",
        path="broker/delay/writer.py",
        sound="return self._read_singly(topic, queue_id, queue_offset, got.next_offset), got.next_offset",
        bug="return records, got.next_offset",
        proofs=("unit/broker/test_delay_level_delivery.py", "unit/broker/test_delay_timer_delivery.py"),
    ),
    Plant(
        name="progress of timers is valid before its copies are safe",
        path="broker/delay/timer_delivery.py",
        sound="self.settle(self._writer.safe_end())",
        bug="self.settle(self._writer.log_end)",
        proofs=("unit/broker/test_delay_timer_delivery.py", "sim"),
    ),
    Plant(
        name="a timer's saved place is kept though the log was cut below it",
        path="broker/delay/timer_delivery.py",
        sound="read_offset = min(check.read_offset, queue_end)",
        bug="read_offset = check.read_offset",
        proofs=("unit/broker/test_delay_timer_delivery.py", "sim"),
        why_not="a master lowers all saved progress to the ends of its queues before it delivers",
    ),
    Plant(
        name="a cancellation in the slot of the horizon is forgotten",
        path="broker/delay/timer_wheel.py",
        sound="if self.horizon is not None and slot_ms > self.horizon.slot_ms:",
        bug="if self.horizon is not None and slot_ms >= self.horizon.slot_ms:",
        proofs=("property/test_timer_wheel_model.py", "unit/broker/test_delay_timer_delivery.py"),
    ),
)

_TRANSACTIONS: Final = (
    Plant(
        name="the end of a transaction counts before it is stored",
        path="broker/transaction/checks.py",
        sound="return False  # a failed end leaves it open: the next round sees",
        bug="return True",
        proofs=("scenario/test_transactions.py",),
    ),
    Plant(
        name="an end that was not stored is remembered as one that was",
        path="broker/transaction/handlers.py",
        sound="(self._decided.settle if is_stored else self._decided.reopen)(root)",
        bug="self._decided.settle(root)",
        proofs=("scenario/test_transactions.py", "sim"),
    ),
    Plant(
        name="the newest copy of an ended transaction gets no mark",
        path="broker/transaction/decided.py",
        sound="if newest != queue_offset:",
        bug="if newest < queue_offset:",
        proofs=("unit/broker/test_transaction_decisions.py", "scenario/test_transactions.py"),
    ),
    Plant(
        name="a mark that is still needed is passed over",
        path="broker/transaction/checks.py",
        sound="if top >= half_offset:",
        bug="if top > half_offset:",
        proofs=("unit/broker/test_transaction_decisions.py",),
    ),
)

_POP: Final = (
    Plant(
        name="a pop that was not stored moves the group on all the same",
        path="broker/pop/lease_log.py",
        sound="self.move(key, min(lease.key.start_offset, self._positions.get(key, lease.key.start_offset)))",
        bug="self.move(key, lease.end_offset)",
        proofs=("property/test_pop_model.py", "scenario/test_pop_delivery.py"),
    ),
    Plant(
        name="the revive topic counts as read though leases are open",
        path="broker/pop/lease_log.py",
        sound="end = self._seen_ends[queue_id] if oldest is None else oldest.revive_offset",
        bug="end = self._seen_ends[queue_id]",
        proofs=("property/test_pop_model.py", "scenario/test_pop_delivery.py"),
    ),
    Plant(
        name="an ack that could not be stored stays done",
        path="broker/pop/lease_log.py",
        sound="for index in indexes:\n                    lease.bits &= ~(1 << index)",
        bug="self.leases.finish(lease, indexes)",
        proofs=("scenario/test_pop_delivery.py",),
    ),
    Plant(
        name="a message that was put off stays in its earlier lease, too",
        path="broker/pop/lease_log.py",
        sound="self._finish_replaced(put_off)",
        bug="put_off.clear()",
        proofs=("scenario/test_pop_delivery.py", "sim"),
    ),
    Plant(
        name="messages behind one read count as deleted when a lease ends",
        path="broker/pop/revive.py",
        sound="is_beyond = has_target and (not messages or offset > max(messages))",
        bug="is_beyond = has_target and not messages",
        proofs=("scenario/test_pop_delivery.py",),
    ),
)

_EXACTLY_ONCE: Final = (
    Plant(
        name="a repeated send is answered before the first one is safe",
        path="broker/send/numbered.py",
        sound="self._store.confirm(kept, reply.done)",
        bug="reply.done(status)",
        proofs=("scenario/test_exactly_once_sends.py",),
    ),
    Plant(
        name="the first message after a repeated batch is stored twice",
        path="broker/send/numbered.py",
        sound="count = bisect_right(keys, last.key)",
        bug="count = bisect_right(keys, last.key) - 1",
        proofs=("scenario/test_exactly_once_sends.py",),
    ),
    Plant(
        name="the attempt before the last one may still send",
        path="broker/send/numbered.py",
        sound="if claim.epoch < last.epoch:",
        bug="if claim.epoch < last.epoch - 1:",
        proofs=("scenario/test_exactly_once_sends.py",),
    ),
    Plant(
        name="a numbered send that was not stored is remembered",
        path="broker/send/numbered.py",
        sound="        if status not in NOT_STORED:\n            self._last[place]",
        bug="        if status is not None:\n            self._last[place]",
        proofs=("unit/broker/test_numbered_sends.py",),
    ),
)

_OFFSETS: Final = (
    Plant(
        name="a consumer's proof of its place is not looked up",
        path="broker/offsets/claims.py",
        sound="if seen is not None and offset <= seen.queue_offset + 1 and has_seen:",
        bug="if seen is not None and offset <= seen.queue_offset + 1:",
        proofs=("scenario/test_progress_clamped.py", "sim"),
    ),
    Plant(
        name="a record of another log passes for the one that was seen",
        path="store/reader.py",
        sound="return None if held_at_ms == -1 else held_at_ms == stored_at_ms",
        bug="return None if held_at_ms == -1 else held_at_ms >= 0",
        proofs=("scenario/test_progress_clamped.py", "unit/store/test_store_reader.py", "sim"),
    ),
    Plant(
        name="a consumer that shows a record of another log stays where it asks",
        path="broker/offsets/claims.py",
        sound="if believed is not None and queue in believed and has_seen is not False:",
        bug="if believed is not None and queue in believed:",
        proofs=("scenario/test_progress_clamped.py", "sim"),
    ),
    Plant(
        name="a slave hands on a reader whose record its copy does not have",
        path="broker/offsets/claims.py",
        sound="if seen is None or self._has(queue, seen) is not False:",
        bug="if seen is None or self._has(queue, seen) is None:",
        proofs=("scenario/test_progress_clamped.py", "sim"),
    ),
    Plant(
        name="what a filter passed over is no proof of a reader's place",
        path="client/consumer/queue_reader.py",
        sound="self._seen = pulled.passed",
        bug="self._seen = self._seen or pulled.passed",
        proofs=("scenario/test_progress_clamped.py", "unit/client", "sim"),
    ),
    Plant(
        name="committed offsets behind the end of a queue stay",
        path="broker/offsets/offset_table.py",
        sound="if offset > end:",
        bug="if offset < end:",
        proofs=("scenario/test_progress_clamped.py", "sim"),
    ),
    Plant(
        name="a committed offset never goes back",
        path="broker/offsets/offset_table.py",
        sound="        offsets[queue_id] = offset\n        self._commits += 1",
        bug="        offsets[queue_id] = max(offset, offsets.get(queue_id, 0))\n        self._commits += 1",
        proofs=("unit/broker/test_broker_tables.py", "scenario/test_broker_admin.py"),
    ),
)

_ACCESS: Final = (
    Plant(
        name="an account may read the raw log with the right to see the cluster",
        path="broker/access/needs.py",
        sound="Code.TANDEM_READ_LOG: _CHANGE_CLUSTER,",
        bug="Code.TANDEM_READ_LOG: _SHOW_CLUSTER,",
        proofs=("unit/broker/access", "scenario/test_access_control.py"),
    ),
    Plant(
        name="what one address was allowed is allowed from all",
        path="broker/access/guard.py",
        sound="known = (name, host, needs, model)",
        bug='known = (name, "", needs, model)',
        proofs=("unit/broker/access/test_access_hosts.py",),
    ),
    Plant(
        name="what was allowed under earlier rules stays allowed",
        path="broker/access/guard.py",
        sound="        self._rules = rules\n        self.forget()",
        bug="        self._rules = rules",
        proofs=("scenario/test_access_control.py",),
    ),
    Plant(
        name="a disabled user may go on",
        path="broker/access/guard.py",
        sound="if not user.is_enabled:",
        bug="if not user.is_enabled and not user.password:",
        proofs=("scenario/test_access_control.py",),
    ),
)

_CLIENT: Final = (
    Plant(
        name="a consumer commits what it pulled",
        path="client/consumer/inbox.py",
        sound="            return offset\n",
        bug="            return self.next_offset\n",
        proofs=("sim",),
    ),
    Plant(
        name="an answer from before a move is taken over",
        path="client/consumer/queue_reader.py",
        sound="if generation == self._generation:",
        bug="if generation <= self._generation:",
        proofs=("unit/client/test_moved_offsets.py", "unit/client/test_consumer.py"),
    ),
    Plant(
        name="a reader that goes back skips what is not finished",
        path="client/consumer/queue_reader.py",
        sound="self.move_to(min(offset, self.in_flight.committed_offset))",
        bug="self.move_to(offset)",
        proofs=("unit/client/test_moved_offsets.py", "unit/client/test_consumer.py", "sim"),
    ),
    Plant(
        name="an orderly queue hands out the next batch before the last is done",
        path="client/consumer/inbox.py",
        sound="if self._out or self._pause is not None or not self._backlog",
        bug="if self._pause is not None or not self._backlog",
        proofs=("unit/client/test_orderly_gate.py", "scenario/test_client_orderly.py"),
    ),
    Plant(
        name="a producer gives up one attempt early",
        path="client/producer/sender.py",
        sound="shipment.attempts <= self._options.retry_count_max",
        bug="shipment.attempts < self._options.retry_count_max",
        proofs=("unit/client/test_producer.py", "scenario/test_client_failover.py"),
    ),
)

_CONSENSUS: Final = (
    Plant(
        name="a server forgets its vote in a crash",
        path="consensus/core/node.py",
        sound="self._is_vote_dirty = True",
        bug="self._is_vote_dirty = voted_for is None",
        proofs=("raft",),
    ),
    Plant(
        name="a vote is given to a log that lacks the newest entries",
        path="consensus/core/node.py",
        sound="(request.last_term, request.last_index) >=",
        bug="(self.log.last_term, request.last_index) >=",
        proofs=("raft",),
    ),
    Plant(
        name="an entry of an earlier term is confirmed by counting",
        path="consensus/core/node.py",
        sound="if needed < len(held) and self.log.term_at(held[needed]) == self.term:",
        bug="if needed < len(held):",
        proofs=("unit/consensus/test_raft_node.py",),
    ),
    Plant(
        name="half of the servers count as a majority",
        path="consensus/core/values.py",
        sound="return 2 * len(names & self.voters.keys()) > len(self.voters)",
        bug="return 2 * len(names & self.voters.keys()) >= len(self.voters)",
        proofs=("raft",),
    ),
    Plant(
        name="a read is answered without asking a majority",
        path="consensus/core/node.py",
        sound="self._reads.append(_Read(token, self._number + 1))",
        bug="self._reads.append(_Read(token, 0))",
        proofs=("raft",),
    ),
    Plant(
        name="a restarted server votes at once, also if it answered a leader just now",
        path="consensus/core/node.py",
        sound="self._heard_ms = now_ms  #",
        bug="self._heard_ms = _LONG_AGO_MS  #",
        proofs=("raft", "unit/consensus/test_raft_node.py"),
    ),
    Plant(
        name="a leader that hands over goes on granting leases",
        path="consensus/core/node.py",
        sound="if self.role is not Role.LEADER or self._successor is not None:\n            return False",
        bug="if self.role is not Role.LEADER:\n            return False",
        proofs=("raft",),
    ),
    Plant(
        name="a follower cuts its log without comparing terms",
        path="consensus/core/node.py",
        sound="if entry.index > self.commit and self.log.term_at(entry.index) != entry.term:",
        bug="if entry.index > self.commit:",
        proofs=("raft",),
    ),
    Plant(
        name="the newest frame is not fsynced",
        path="consensus/shell/files.py",
        sound="        self._file.pwrite(self._end, (frame,))\n        self._file.sync()",
        bug="        self._file.pwrite(self._end, (frame,))",
        proofs=("raft",),
    ),
    Plant(
        name="a snapshot keeps entries of another history",
        path="consensus/core/log.py",
        sound="if self.term_at(snapshot.index) == snapshot.term:",
        bug="if self.term_at(snapshot.index) is not None:",
        proofs=("raft",),
    ),
    Plant(
        name="a second change of members is not refused while one is open",
        path="consensus/core/node.py",
        sound="if self.log.members_index > self.commit:\n            return Refusal.CHANGE_OPEN, []",
        bug="if False:\n            return Refusal.CHANGE_OPEN, []",
        proofs=("unit/consensus/test_raft_node.py",),
    ),
    Plant(
        name="members are changed before the leader confirmed anything",
        path="consensus/core/node.py",
        sound="            return Refusal.UNSETTLED, []\n        if self.log",
        bug="            pass\n        if self.log",
        proofs=("unit/consensus/test_raft_node.py",),
    ),
)

_ELECTED: Final = (
    Plant(
        name="an acknowledgement of an earlier term counts in the next one",
        path="replication/shell/autoswitch.py",
        sound='self._store.acks.forget(_replica(one))\n            connection.close("the term has ended")',
        bug='pass\n            connection.close("the term has ended")',
        proofs=("scenario/test_autoswitch_channel.py", "elected"),
    ),
    Plant(
        name="a proposal without an answer no longer counts",
        path="replication/core/sync_state_set.py",
        sound="return self.members.union(*self._proposed, joining) - {self._own_id}",
        bug="return self.members.union(*self._proposed[-1:], joining) - {self._own_id}",
        proofs=("unit/replication/test_sync_state_set.py",),
    ),
    Plant(
        name="a send does not wait for who is about to join",
        path="replication/core/sync_state_set.py",
        sound="return self.members.union(*self._proposed, joining) - {self._own_id}",
        bug="return self.members - {self._own_id}",
        proofs=("elected",),
    ),
    Plant(
        name="a lease is counted from the answer",
        path="broker/autoswitch/controllers.py",
        sound="self._on_answer(answer, sent_s)",
        bug="self._on_answer(answer, self._clock.monotonic())",
        proofs=("simulation/test_elected_simulation.py",),
    ),
    Plant(
        name="a promise is counted from when it arrives",
        path="broker/autoswitch/vouches.py",
        sound="self._heard[broker_id] = since_s, channel",
        bug="self._heard[broker_id] = now_s, channel",
        proofs=("simulation/test_elected_simulation.py", "elected"),
    ),
    Plant(
        name="a slave that has promised takes office at once",
        path="broker/autoswitch/elected.py",
        sound="        await self._promise.wait()\n",
        bug="",
        proofs=("simulation/test_elected_simulation.py", "elected"),
    ),
    Plant(
        name="a fenced master takes offsets",
        path="broker/autoswitch/term.py",
        sound="        Code.UPDATE_CONSUMER_OFFSET,\n",
        bug="",
        proofs=("scenario/test_elected_brokers.py",),
    ),
    Plant(
        name="the same term begins again",
        path="replication/shell/autoswitch.py",
        sound="if epoch <= known:",
        bug="if epoch < known:",
        proofs=("scenario/test_autoswitch_channel.py", "elected"),
    ),
    Plant(
        name="nothing is compared below the end of the shorter log",
        path="replication/core/term_sessions.py",
        sound="point = consistent_point(self.epochs, end, answer.epochs, answer.log_end)",
        bug="point = min(end, answer.log_end)",
        proofs=("elected",),
    ),
    Plant(
        name="a slave reports before what it cut is on disk",
        path="replication/core/term_sessions.py",
        sound="return [Align(point, self.epochs.cut",
        bug="return [Send(self._report()), Align(point, self.epochs.cut",
        proofs=("elected", "unit/replication/test_term_sessions.py"),
    ),
    Plant(
        name="a new leader of the controllers waits for no lease of the one before",
        path="controller/elections.py",
        sound="return is_ended or not heard.facts.is_ours or now_s >= self._leader_since_s + LEASE_END_S",
        bug="return True",
        proofs=("scenario/test_controller.py", "elected"),
    ),
    Plant(
        name="the winner need not be of the set",
        path="controller/groups.py",
        sound="members = {key: one for key, one in live.items() if key in group.sync_set}",
        bug="members = dict(live)",
        proofs=("elected", "unit/controller/test_groups.py"),
    ),
    Plant(
        name="a broker without its tail registers like any other",
        path="broker/autoswitch/elected.py",
        sound="            is_incomplete=self.store.may_lack_tail or None,\n",
        bug="",
        proofs=("simulation/test_elected_simulation.py", "elected"),
    ),
    Plant(
        name="a deletion is answered before the next master knows of it",
        path="broker/autoswitch/term.py",
        sound="if told is not None and told.code == ResponseCode.SUCCESS:",
        bug="if told is None:",
        proofs=("elected",),
    ),
    Plant(
        name="a copy that follows nobody shows what may be cut",
        path="replication/shell/autoswitch.py",
        sound="        self._store.limit_reads()\n        if self._set",
        bug="        if self._set",
        proofs=("scenario/test_autoswitch_channel.py", "elected"),
    ),
    Plant(
        name="a new master shows at once what it inherited",
        path="replication/shell/autoswitch.py",
        sound="store.limit_reads(until=store.max_log_offset)",
        bug="store.limit_reads(until=0)",
        proofs=("scenario/test_autoswitch_channel.py",),
    ),
    Plant(
        name="a new master forgets the leases that its set does not hold yet",
        path="broker/delay/writer.py",
        sound="bytes_max=limit, is_own=True, waits=waits",
        bug="bytes_max=limit",
        proofs=("scenario/test_autoswitch_channel.py", "elected"),
    ),
    Plant(
        name="a round of the copy before lets the next one skip what is deleted",
        path="broker/replica/config_sync.py",
        sound="if copy != self._copy_count:  # what",
        bug="if copy > self._copy_count:  # what",
        proofs=("unit/replication/test_config_sync.py", "elected"),
    ),
    Plant(
        name="a slave shows what another member lacks",
        path="replication/shell/autoswitch.py",
        sound="        self._store.begin_copy()\n        self.on_following()",
        bug="        self._store.limit_reads(until=0)\n        self.on_following()",
        proofs=("scenario/test_autoswitch_channel.py",),
    ),
    Plant(
        name="a slave that is given nothing more is not told what is confirmed",
        path="replication/shell/autoswitch.py",
        sound="                connection.send_head()\n",
        bug="                pass\n",
        proofs=("scenario/test_autoswitch_channel.py",),
    ),
    Plant(
        name="who waits for a message is not told when it is confirmed",
        path="store/dispatcher.py",
        sound="        self._tell(hidden)\n",
        bug="",
        proofs=("scenario/test_autoswitch_channel.py",),
    ),
    Plant(
        name="a copy that begins again is told no deletions",
        path="broker/autoswitch/replica.py",
        sound="        copying.on_following = self._config_sync.begin_copy\n",
        bug="",
        proofs=("elected",),
    ),
)

PLANTS: Final[tuple[Plant, ...]] = (
    *_STORE,
    *_DELETIONS,
    *_REPLICATION,
    *_TABLES,
    *_DELAY,
    *_TRANSACTIONS,
    *_POP,
    *_EXACTLY_ONCE,
    *_OFFSETS,
    *_ACCESS,
    *_CLIENT,
    *_CONSENSUS,
    *_ELECTED,
)
