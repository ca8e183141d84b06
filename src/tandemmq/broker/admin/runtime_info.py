"""GET_BROKER_RUNTIME_INFO (28): the broker's state as texts.

All keys that mqadmin's clusterList and brokerStatus read are here; figures about things that this broker
has not (thread pools, page-cache locks) are zero, because a missing number aborts a line of the tool.
Source: spec semantics 22, remoting 11.8.
"""

from __future__ import annotations

from tandemmq.broker.admin.stats_items import StatsItems
from tandemmq.broker.offsets.delay_offset_table import DelayOffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.stats import BrokerStats
from tandemmq.protocol.bodies.kv import encode_kv_table
from tandemmq.protocol.codes import OUR_VERSION, render_version
from tandemmq.protocol.command import Command
from tandemmq.protocol.exactly_once import CAPABILITY, CLAIM_VERSION
from tandemmq.protocol.record import RecordError, decode_record
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock, Disk
from tandemmq.store.message_store import MessageStore

_POOLS = ("send", "pull", "litePull", "query", "ack")
_ZERO_KEYS = (
    "putMessageEntireTimeMax",
    "getMessageEntireTimeMax",
    "putLatency99",
    "putLatency999",
    "dispatchMaxBuffer",
    "pageCacheLockTimeMills",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
)


class RuntimeInfoHandlers:
    """Describes one broker."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        stats: BrokerStats,
        items: StatsItems,
        delay_offsets: DelayOffsetTable,
        disk: Disk,
        clock: Clock,
    ) -> None:
        self._options = options
        self._store = store
        self._stats = stats
        self._items = items
        self._delay_offsets = delay_offsets
        self._disk = disk
        self._clock = clock
        self._booted_at_ms = clock.now_ms()

    def handle_runtime_info(self, channel: Channel, command: Command) -> Command:
        """GET_BROKER_RUNTIME_INFO (28)."""
        return command.reply(body=encode_kv_table(self._table()))

    def _table(self) -> dict[str, str]:
        table = dict.fromkeys(_ZERO_KEYS, "0")
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueCapacity"] = "0"
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table |= self._who() | self._traffic() | self._log_state() | self._schedule()
        if self._store.has_key_index:
            table[CAPABILITY] = CLAIM_VERSION
        return table

    def _who(self) -> dict[str, str]:
        """What runs here, and since when."""
        return {
            "brokerActive": "true",
            "brokerVersion": str(OUR_VERSION),
            "brokerVersionDesc": render_version(OUR_VERSION),
            "brokerRole": self._store.options.role.value,
            "bootTimestamp": str(self._booted_at_ms),
            "runtime": _render_age(self._clock.now_ms() - self._booted_at_ms),
            "startAcceptSendRequestTimeStamp": str(self._options.accept_sends_from_ms),
        }

    def _traffic(self) -> dict[str, str]:
        """What was sent and got, in all and per second; a slave's copies count as sent, as in RocketMQ.

        The counts by day are of users' messages: traces and other traffic of the system are no part of them.
        """
        stats = self._stats
        put_count = stats.put_count + stats.replicated_count
        put_bytes = stats.put_bytes + stats.replicated_bytes
        average = put_bytes / put_count if put_count else 0.0
        transferred = self._rates("got_count")
        return {
            "putMessageTimesTotal": str(put_count),
            "putMessageSizeTotal": str(put_bytes),
            "putMessageAverageSize": f"{average:.1f}",
            "putMessageFailedTimes": str(stats.refused_count),
            "putMessageDistributeTime": "",
            "msgPutTotalYesterdayMorning": str(stats.put_mornings[0]),
            "msgPutTotalTodayMorning": str(stats.put_mornings[1]),
            "msgGetTotalYesterdayMorning": str(stats.got_mornings[0]),
            "msgGetTotalTodayMorning": str(stats.got_mornings[1]),
            "msgPutTotalTodayNow": str(self._items.users_put_count()),
            "msgGetTotalTodayNow": str(self._items.users_got_count()),
            "putTps": self._rates("put_count", "replicated_count"),
            "getFoundTps": self._rates("found_count"),
            "getMissTps": self._rates("missed_count"),
            "getTotalTps": self._rates("found_count", "missed_count"),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # the spelling of 4.9
        }

    def _log_state(self) -> dict[str, str]:
        """Where the log begins and ends, what lags behind its end, and the disk below it."""
        store, facts = self._store, self._store.facts()
        total, free = self._disk.usage(store.options.log_dir)
        used_ratio = f"{(total - free) / total:.2f}" if total else "0.0"
        return {
            "commitLogMinOffset": str(store.min_log_offset),
            "commitLogMaxOffset": str(store.max_log_offset),
            "commitLogDiskRatio": used_ratio,
            "consumeQueueDiskRatio": used_ratio,
            "commitLogDirCapacity": f"Total : {_render_gib(total)}, Free : {_render_gib(free)}.",
            "dispatchBehindBytes": str(store.appended.value - store.dispatched.value),
            "remainTransientStoreBufferNumbs": str(facts.pool_free_count),
            "remainHowManyDataToCommit": f"{facts.uncommitted_bytes} B",
            "remainHowManyDataToFlush": f"{store.appended.value - store.flushed.value} B",
            "earliestMessageTimeStamp": str(self._earliest_ms(self._clock.now_ms())),
        }

    def _schedule(self) -> dict[str, str]:
        """How far the delivery of each delay level has got: `offset,end of its queue`."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.queue_max(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self._delay_offsets.snapshot().offsets.items()
        }

    def _rates(self, *names: str) -> str:
        now_s = self._clock.monotonic()
        windows = zip(*(self._stats.rates(name, now_s) for name in names), strict=True)
        return " ".join(f"{sum(rates):.2f}" for rates in windows)

    def _earliest_ms(self, now_ms: int) -> int:
        """When the oldest message that is still there was stored; now, when there is none."""
        record = self._store.read_record(self._store.min_log_offset)
        try:
            return now_ms if record is None else decode_record(record, check_crc=False).stored_at_ms
        except RecordError:
            return now_ms


def _render_age(age_ms: int) -> str:
    minutes, seconds = divmod(age_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _render_gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
