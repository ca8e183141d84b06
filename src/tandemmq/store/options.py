"""The settings of a store as one frozen value, with RocketMQ's defaults and units in the names; and the paths
below the store's root (`StorePaths`).

A field with a `setting` has its RocketMQ key (spec store 20), its default, and the kind of its values if the
default does not show it. Fields marked "ours" have no RocketMQ key: they are bounds that RocketMQ leaves
open, or facts about the machine that the caller injects.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tandemmq.errors import ConfigError, StoreError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.frame import FRAME_BYTES_MAX
from tandemmq.protocol.setting_kinds import setting
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.units import GIB, INT64_MAX, KIB, MIB, align_up

QUEUE_UNIT_BYTES = 20
PAGE_BYTES = 4096
BODY_BYTES_MAX = FRAME_BYTES_MAX - 128 * KIB
"""The room in a frame, without its header and a message's properties."""


class FlushMode(Enum):
    """The moment of answering a send with regard to the disk (flushDiskType)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(Enum):
    """The role of the store in its group of replicas (brokerRole)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Settings of one store directory. Sizes must equal those the directory was written with.

    The range of each number is checked where the setting is parsed; the rules that concern several fields are
    checked here.
    """

    # Location.
    root: Path = setting("storePathRootDir", kind=kinds.DIRECTORY)
    # None: <root>/commitlog
    commit_log_dir: Path | None = setting("storePathCommitLog", None, kinds.DIRECTORY)

    # Identity.
    role: BrokerRole = setting("brokerRole", BrokerRole.ASYNC_MASTER)
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"  # brokerIP1 + listenPort, packed to 8 or 20 bytes

    # Files.
    commit_log_file_bytes: int = setting("mappedFileSizeCommitLog", GIB, kinds.whole(256))
    # rounded up to whole units
    consume_queue_file_bytes: int = setting("mappedFileSizeConsumeQueue", 6_000_000, kinds.whole(20))
    key_index_enable: bool = setting("messageIndexEnable", True)
    key_index_slot_count: int = setting("maxHashSlotNum", 5_000_000, kinds.whole(1, 2**27))
    key_index_entry_count: int = setting("maxIndexNum", 20_000_000, kinds.whole(2, 2**27))
    # ours: handles (and their maps) kept open for log and queue files
    open_file_count_max: int = setting("openFileCountMax", 512, kinds.whole(8, 2**20))
    # ours: log bytes that may stay mapped into memory after they were read
    mapped_bytes_max: int = setting("mappedBytesMax", 32 * MIB, kinds.POSITIVE_LONG)
    read_ahead_enable: bool = setting("dataReadAheadEnable", True, live=True)
    # the next log file is filled with zeros ahead of need
    warm_segments: bool = setting("warmMapedFileEnable", False)
    # with SYNC_FLUSH
    warm_flush_pages: int = setting("flushLeastPagesWhenWarmMapedFile", 4_096, kinds.whole(1, 2**20))

    # Messages.
    message_bytes_max: int = setting("maxMessageSize", 4 * MIB, kinds.whole(1, BODY_BYTES_MAX))  # of the body
    delay_levels_ms: tuple[int, ...] = setting("messageDelayLevel", DELAY_LEVELS_MS, kinds.DELAY_LEVELS)
    staged_bytes_max: int = 64 * MIB  # ours: bytes accepted within one turn of the loop, Busy above
    waiting_sends_max: int = 200_000  # ours: sends waiting for disk or slaves, Busy above
    # a write that takes longer sheds load
    page_cache_busy_ms: int = setting("osPageCacheBusyTimeOutMills", 1_000)

    # Flush of the CommitLog.
    flush_mode: FlushMode = setting("flushDiskType", FlushMode.ASYNC_FLUSH)
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", 5_000, live=True)
    flush_interval_ms: int = setting("flushIntervalCommitLog", 500, live=True)
    flush_least_pages: int = setting("flushCommitLogLeastPages", 4, kinds.whole(0, 2**20))
    flush_thorough_interval_ms: int = setting("flushCommitLogThoroughInterval", 10_000)

    # Write to locked memory first; only with ASYNC_FLUSH, and not while the store is a slave.
    transient_pool_enable: bool = setting("transientStorePoolEnable", False)
    # buffers of commit_log_file_bytes each
    transient_pool_size: int = setting("transientStorePoolSize", 5, kinds.whole(1, 2**20))
    fail_fast_without_buffer: bool = setting("fastFailIfNoBufferInStorePool", False)
    commit_interval_ms: int = setting("commitIntervalCommitLog", 200)
    commit_least_pages: int = setting("commitCommitLogLeastPages", 4, kinds.whole(0, 2**20))
    commit_thorough_interval_ms: int = setting("commitCommitLogThoroughInterval", 200)

    # Flush of the ConsumeQueues, the key index and the checkpoint.
    queue_flush_interval_ms: int = setting("flushIntervalConsumeQueue", 1_000)
    queue_flush_least_pages: int = setting("flushConsumeQueueLeastPages", 2, kinds.whole(0, 2**20))
    queue_flush_thorough_interval_ms: int = setting("flushConsumeQueueThoroughInterval", 60_000)

    # Waiting for slaves.
    in_sync_replicas: int = setting("inSyncReplicas", 1, kinds.whole(0, 100))  # the master counted
    # brokers of the group; a larger number known otherwise counts
    total_replicas: int = setting("totalReplicas", 1, kinds.whole(1, 100))
    slave_timeout_ms: int = setting("slaveTimeout", 3_000, live=True)
    replica_gap_bytes_max: int = setting("haMaxGapNotInSync", 256 * MIB, kinds.POSITIVE_LONG)
    # ours: of tails cut at switches; 0: none
    divergent_bytes_max: int = setting("divergentKeepBytes", GIB, kinds.whole(0, INT64_MAX))
    accept_log: bool = setting("acceptLog", False)  # ours: accepts a log that may lack acknowledged messages
    # ours: in_sync_replicas=1 waits for one slave, as 4.x did
    sync_master_compat4: bool = setting("syncMasterCompat4", False)

    # Reading.
    # percent of memory_bytes
    access_message_in_memory_ratio: int = setting("accessMessageInMemoryMaxRatio", 40, kinds.whole(0, 100))
    # ours: the machine's memory, injected by the caller
    memory_bytes: int = setting("memoryBytes", 24 * GIB, kinds.POSITIVE_LONG)
    transfer_bytes_in_memory_max: int = setting("maxTransferBytesOnMessageInMemory", 256 * KIB, live=True)
    transfer_count_in_memory_max: int = setting("maxTransferCountOnMessageInMemory", 32, live=True)
    transfer_bytes_on_disk_max: int = setting("maxTransferBytesOnMessageInDisk", 64 * KIB, live=True)
    transfer_count_on_disk_max: int = setting("maxTransferCountOnMessageInDisk", 8, live=True)
    # queue bytes scanned by one get
    filter_scan_bytes_max: int = setting("maxFilterMessageSize", 16_000, kinds.whole(20))
    offset_check_in_slave: bool = setting("offsetCheckInSlave", False)
    query_count_max: int = setting("maxMsgsNumBatch", 64, kinds.whole(1, 2**20), live=True)

    # Recovery.
    check_crc_on_recover: bool = setting("checkCRCOnRecover", True)

    # Re-read the log while it is open, so that damage is found early.
    # ours; 0: disabled
    scrub_bytes_per_second: int = setting("scrubBytesPerSecond", 8 * MIB, kinds.whole(0, 2**31))
    scrub_interval_ms: int = setting("scrubInterval", 86_400_000)  # ours: the rest between two rounds

    # Retention.
    file_reserved_hours: int = setting("fileReservedTime", 72, kinds.whole(1, 24 * 36_500), live=True)
    delete_at_hours: tuple[int, ...] = setting("deleteWhen", (4,), kinds.HOURS, live=True)  # split at ';'
    clean_interval_ms: int = setting("cleanResourceInterval", 10_000, live=True)
    clean_first_delay_ms: int = 60_000  # RocketMQ's fixed first delay
    delete_file_count_max: int = setting("deleteFileBatchMax", 10, kinds.whole(1, 2**20), live=True)
    clean_forcibly_enable: bool = setting("cleanFileForciblyEnable", False)  # RocketMQ's default is true
    disk_used_percent_max: int = setting("diskMaxUsedSpaceRatio", 75, kinds.clamped(10, 95), live=True)
    disk_forcible_percent: int = setting("diskSpaceCleanForciblyRatio", 85, kinds.clamped(30, 85))
    disk_warning_percent: int = setting("diskSpaceWarningLevelRatio", 90, kinds.clamped(35, 90))

    def __post_init__(self) -> None:
        rounded = align_up(self.consume_queue_file_bytes, QUEUE_UNIT_BYTES)
        object.__setattr__(self, "consume_queue_file_bytes", rounded)
        if len(self.store_host) not in (8, 20):
            raise ConfigError("store_host: must be a packed address of 8 or 20 bytes")
        if not self.delay_levels_ms:
            raise ConfigError("delay_levels_ms: at least one level is needed")
        for level, delay_ms in enumerate(self.delay_levels_ms, 1):
            if delay_ms >= self.file_reserved_hours * 3_600_000:
                # Retention would delete the waiting messages before they are due.
                raise ConfigError(
                    f"delay_levels_ms (messageDelayLevel): level {level} waits {delay_ms // 1000} s,"
                    " which must be less than the log is kept"
                    f" (fileReservedTime={self.file_reserved_hours} h)"
                )

    @property
    def log_dir(self) -> Path:
        """The directory of the CommitLog files."""
        return self.commit_log_dir or self.root / "commitlog"

    @property
    def uses_transient_pool(self) -> bool:
        """True if a master writes to locked memory first; with SYNC_FLUSH each send waits for the disk."""
        return self.transient_pool_enable and self.flush_mode is FlushMode.ASYNC_FLUSH

    @property
    def record_bytes_max(self) -> int:
        """The longest record that may be stored (spec store 4); a file must hold it and a BLANK after it."""
        bytes_max = min(self.message_bytes_max + 65_536, self.commit_log_file_bytes - 8)
        assert 0 < bytes_max < self.commit_log_file_bytes, (bytes_max, self.commit_log_file_bytes)
        return bytes_max

    def slave_ack_count(self, role: BrokerRole) -> int:
        """Returns how many slaves must hold a message before it is acknowledged (spec replication 5.2)."""
        if role is not BrokerRole.SYNC_MASTER:
            return 0
        if self.sync_master_compat4 and self.in_sync_replicas == 1:
            return 1
        return max(0, self.in_sync_replicas - 1)

    @property
    def memory_window_bytes(self) -> int:
        """The distance from the log's end within which a record counts as in memory (spec store 13.1)."""
        window = self.memory_bytes * self.access_message_in_memory_ratio // 100
        assert 0 <= window <= self.memory_bytes, (window, self.memory_bytes)
        return window


# Names on disk (spec store 1).

FILE_NAME_DIGITS = 20
FILE_OFFSET_MAX = 2**63 - 2**31
"""The largest start of a file, so that the offsets in a file of any length fit into eight bytes."""
QUEUE_OFFSET_MAX = FILE_OFFSET_MAX // QUEUE_UNIT_BYTES
"""The largest offset of a queue that fits its files; a record with a larger one is damaged."""
assert 10**FILE_NAME_DIGITS > 2**63, "each offset has a name"
_PATH_SIGNS = frozenset("/\\\0")


def offset_file_name(offset: int) -> str:
    """Returns the name of the file whose first byte is byte `offset` of its log."""
    assert 0 <= offset < 2**63, offset
    return f"{offset:020d}"


def parse_offset_file_name(name: str) -> int | None:
    """Returns the offset in a file name; None for any other name."""
    if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit() and int(name) <= FILE_OFFSET_MAX:
        return int(name)
    return None


def parse_queue_id(name: str) -> int | None:
    """Returns the queue id in the name of a directory below a topic; None for any other name."""
    if name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name:
        return int(name)
    return None


def deletions_path(root: Path) -> Path:
    """Returns the path of the file of deleted topics, beside the tables of the broker."""
    return root / "config" / "deletedTopics.json"


class StorePaths:
    """The paths of the parts of one store."""

    def __init__(self, options: StoreOptions) -> None:
        root = options.root
        self.root = root
        self.commit_log = options.log_dir
        self.consume_queues = root / "consumequeue"
        self.key_indexes = root / "index"
        self.damaged = root / "damaged"
        self.divergent = root / "divergent"
        self.pending_cut = root / "truncate.pending"
        self.epochs = root / "epochFileCheckpoint"
        self.checkpoint = root / "checkpoint"
        self.deletions = deletions_path(root)
        self.abort = root / "abort"
        self.tail_mark = root / "tailDoubt"
        self.lock = root / "lock"

    def topic(self, topic: str) -> Path:
        """Returns the directory of a topic's queues.

        Raises:  StoreError for a name that would lead elsewhere. Requests cannot carry one; a record can, if
                 the log was tampered with or came from a fake master.
        """
        if not topic or topic in (".", "..") or not _PATH_SIGNS.isdisjoint(topic):
            raise StoreError(
                f"a message is stored under the topic {topic[:64]!r}: no directory has such a name"
            )
        path = self.consume_queues / topic
        assert path.parent == self.consume_queues, path
        return path

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        """Returns the directory of one ConsumeQueue's files. Raises as `topic`."""
        return self.topic(topic) / str(queue_id)
