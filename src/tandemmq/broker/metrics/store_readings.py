"""What a store shows of itself: watermarks, files, disk, durations."""

from __future__ import annotations

from collections.abc import Iterator

from tandemmq.runtime.ports import Disk
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import metrics
from tandemmq.telemetry.metrics import Reading


def read_store(store: MessageStore, disk: Disk) -> Iterator[Reading]:
    """All readings of the store."""
    appended, flushed = store.appended.value, store.flushed.value
    dispatched = store.dispatched.value
    facts, recorder = store.facts(), store.recorder
    yield Reading(metrics.APPENDED, appended)
    yield Reading(metrics.FLUSHED, flushed)
    yield Reading(metrics.CONFIRMED, store.confirmed.value)
    yield Reading(metrics.DISPATCHED, dispatched)
    yield Reading(metrics.LOG_MIN, store.min_log_offset)
    yield Reading(metrics.LOG_MAX, store.max_log_offset)
    yield Reading(metrics.DISPATCH_BEHIND, appended - dispatched)
    yield Reading(metrics.UNFLUSHED, appended - flushed)
    if facts.has_pool:
        yield Reading(metrics.UNCOMMITTED, facts.uncommitted_bytes)
        yield Reading(metrics.POOL_FREE, facts.pool_free_count)
    yield Reading(metrics.LOG_FILES, facts.log_file_count)
    yield Reading(metrics.QUEUES, facts.queue_count)
    yield Reading(metrics.WRITEABLE, facts.refusal is None)
    yield Reading(metrics.READ_DISTANCE, recorder.read_distance_bytes)
    yield Reading(metrics.MEMORY_WINDOW, store.options.memory_window_bytes)
    yield Reading(metrics.READS_BEYOND_MEMORY, recorder.far_read_count)
    yield Reading(metrics.DAMAGED_RANGES, facts.damaged_range_count)
    yield Reading(metrics.DAMAGED_BYTES, facts.damaged_bytes)
    yield Reading(metrics.SCRUBBED, recorder.scrubbed_bytes)
    yield from _read_disk(store, disk)
    yield Reading(metrics.APPEND_BATCH, recorder.append_batch_s)
    if facts.has_pool:
        yield Reading(metrics.COMMIT, recorder.commit_s)
    yield Reading(metrics.FLUSH, recorder.flush_s)
    yield Reading(metrics.FLUSH_WAIT, recorder.flush_wait.seconds)
    yield Reading(metrics.ACK_WAIT, recorder.ack_wait.seconds)
    yield Reading(metrics.SENDS_WAITING, facts.sends_waiting_for_flush, ("flush",))
    yield Reading(metrics.SENDS_WAITING, facts.sends_waiting_for_acks, ("acks",))


def _read_disk(store: MessageStore, disk: Disk) -> Iterator[Reading]:
    total, free = disk.usage(store.options.log_dir)
    yield Reading(metrics.DISK_USED, total - free)
    yield Reading(metrics.DISK_TOTAL, total)
    yield Reading(metrics.DISK_RATIO, (total - free) / total if total else 0.0)
