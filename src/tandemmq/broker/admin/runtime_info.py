"""GET_BROKER_RUNTIME_INFO (28): the broker's state as texts.

The answer has every key that mqadmin's clusterList and brokerStatus read. Figures without a counterpart in
this broker (thread pools, page-cache locks) are zero, because a missing number aborts a line of the tool.
Source: spec semantics 22, spec remoting 11.8.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from operator import sub
from typing import Final, NamedTuple

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.timer_delivery import TimerDelivery, TimerFigures
from tandemmq.broker.delay.timers import TIMER_TOPIC
from tandemmq.broker.query import load_record
from tandemmq.broker.stats import SAMPLE_PERIOD_S
from tandemmq.protocol import speedups
from tandemmq.protocol.bodies import codec
from tandemmq.protocol.codes import OUR_VERSION, render_version, response_name
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import CAPABILITY, CLAIM_VERSION
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.remoting.channel import Channel
from tandemmq.telemetry.metrics import Histogram

_POOLS = ("send", "pull", "litePull", "query", "ack")
_ZERO_KEYS = (
    "getMessageEntireTimeMax",
    "dispatchMaxBuffer",
    "pageCacheLockTimeMills",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
)


MINUTE_SAMPLES: Final = 60 // SAMPLE_PERIOD_S
_PUT_SHARES_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_PUT_SHARES: Final = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
"""RocketMQ's names of the buckets; sends below 1 ms are in the first."""


class _Sample(NamedTuple):
    """A sample. `put_counts`: by stage of sends, the counts per bucket; `timer_end`: the end of the timer
    queue.
    """

    at_s: float
    put_counts: tuple[tuple[int, ...], ...]
    timers: TimerFigures
    timer_end: int


class RuntimeInfoHandlers:
    """Describes one broker."""

    def __init__(self, core: BrokerCore, rejections: Callable[[], Mapping[str, str]]) -> None:
        """`rejections`: returns TandemMQ's keys for requests that were rejected before any handler."""
        self.core = core
        self.rejections = rejections
        self.booted_at_ms = core.clock.now_ms()
        self.timers: TimerDelivery | None = None
        self._samples: deque[_Sample] = deque([self._sample()], maxlen=MINUTE_SAMPLES + 1)

    def sample(self) -> None:
        """Stores the durations of the stages of sends; called every `SAMPLE_PERIOD_S`."""
        self._samples.append(self._sample())

    def handle_runtime_info(self, channel: Channel, command: Command) -> Command:
        """Handles GET_BROKER_RUNTIME_INFO (28)."""
        return command.reply(body=codec.encode_kv_table(self._table()))

    def _table(self) -> dict[str, str]:
        table = dict.fromkeys(_ZERO_KEYS, "0")
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueCapacity"] = "0"
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table |= (
            self._who()
            | self._traffic()
            | self._put_times()
            | self._log_state()
            | self._schedule()
            | self._timers()
        )
        if self.core.store.has_key_index:
            table[CAPABILITY] = CLAIM_VERSION
        return table

    def _who(self) -> dict[str, str]:
        """Returns identity, role, and start time."""
        return {
            "brokerActive": "true",
            "brokerVersion": str(OUR_VERSION),
            "brokerVersionDesc": render_version(OUR_VERSION),
            "brokerRole": self.core.store.assigned_role.value,
            "bootTimestamp": str(self.booted_at_ms),
            codec.BOOT_KEY: self.core.disk.boot_id(),
            codec.SPEEDUPS_KEY: speedups.state,
            "runtime": _render_age(self.core.clock.now_ms() - self.booted_at_ms),
            "startAcceptSendRequestTimeStamp": str(self.core.options.accept_sends_from_ms),
        }

    def _traffic(self) -> dict[str, str]:
        """Returns sends and deliveries, in total and per second; a slave's copies count as sends, as in
        RocketMQ.

        The counts by day cover users' messages only, without traces and other traffic of the system.
        """
        stats = self.core.stats
        put_count = stats.put_count + stats.replicated_count
        put_bytes = stats.put_bytes + stats.replicated_bytes
        average = put_bytes / put_count if put_count else 0.0
        transferred = self._rates("got_count")
        return {
            "putMessageTimesTotal": str(put_count),
            "putMessageSizeTotal": str(put_bytes),
            "putMessageAverageSize": f"{average:.1f}",
            "putMessageFailedTimes": str(stats.refused_count),
            codec.SEND_REFUSALS_KEY: ", ".join(
                f"{response_name(code)} {count}" for code, count in sorted(stats.send_refusals.items())
            ),
            codec.STORE_REFUSAL_KEY: self.core.store.refusal,
            codec.REFUSALS_KEY: str(self.core.refusals.count),
            codec.NEWEST_REFUSAL_KEY: self.core.refusals.newest,
            **self.rejections(),
            "msgPutTotalYesterdayMorning": str(stats.put_mornings[0]),
            "msgPutTotalTodayMorning": str(stats.put_mornings[1]),
            "msgGetTotalYesterdayMorning": str(stats.got_mornings[0]),
            "msgGetTotalTodayMorning": str(stats.got_mornings[1]),
            "msgPutTotalTodayNow": str(self.core.items.users_put_count()),
            "msgGetTotalTodayNow": str(self.core.items.users_got_count()),
            "putTps": self._rates("put_count", "replicated_count"),
            "getFoundTps": self._rates("found_count"),
            "getMissTps": self._rates("missed_count"),
            "getTotalTps": self._rates("found_count", "missed_count"),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # the spelling of 4.9
        }

    def _put_times(self) -> dict[str, str]:
        """Returns the durations of sends in the last minute, in ms, as upper bounds of histogram buckets. The
        slowest stage stands for all: the write, or the wait for the disk or the slaves.
        """
        since = self._samples[0].put_counts
        stages = zip(self._put_stages(), since, strict=True)
        grown = [(one.bounds, list(map(sub, one.counts, before))) for one, before in stages]
        bounds, counts = max(grown, key=lambda stage: _quantile_ms(stage[0], stage[1], 0.99))
        entire = max(_quantile_ms(one.bounds, one.counts, 1.0) for one in self._put_stages())
        shares = [0] * len(_PUT_SHARES)
        for bound, count in zip((*bounds, inf), counts, strict=True):
            shares[bisect_left(_PUT_SHARES_MS, bound * 1000)] += count
        return {
            "putMessageEntireTimeMax": str(ceil(entire)),
            "putLatency99": f"{_quantile_ms(bounds, counts, 0.99):.2f}",
            "putLatency999": f"{_quantile_ms(bounds, counts, 0.999):.2f}",
            "putMessageDistributeTime": "".join(map("{}:{} ".format, _PUT_SHARES, shares)),
        }

    def _timers(self) -> dict[str, str]:
        """Returns the progress of timer delivery."""
        now, since = self._sample(), self._samples[0]
        elapsed_s = max(now.at_s - since.at_s, 1.0)
        figures = now.timers
        return {
            "timerReadBehind": str(figures.behind_s),
            "timerOffsetBehind": str(figures.unread_count),
            "timerCongestNum": str(figures.waiting_count),
            "timerEnqueueTps": f"{(now.timer_end - since.timer_end) / elapsed_s:.1f}",
            "timerDequeueTps": f"{(figures.delivered_count - since.timers.delivered_count) / elapsed_s:.1f}",
        }

    def _put_stages(self) -> tuple[Histogram, ...]:
        recorder = self.core.store.recorder
        return recorder.append_batch_s, recorder.flush_wait.seconds, recorder.ack_wait.seconds

    def _sample(self) -> _Sample:
        return _Sample(
            self.core.clock.monotonic(),
            tuple(tuple(stage.counts) for stage in self._put_stages()),
            TimerFigures() if self.timers is None else self.timers.figures,
            self.core.store.queue_max(TIMER_TOPIC, 0),
        )

    def _log_state(self) -> dict[str, str]:
        """Returns the ends of the log, the lags behind its end, and the usage of its disk."""
        store, facts = self.core.store, self.core.store.facts()
        total, free = self.core.disk.usage(store.options.log_dir)
        oldest = load_record(store, store.min_log_offset)
        used_ratio = f"{(total - free) / total:.2f}" if total else "0.0"
        return {
            "commitLogMinOffset": str(store.min_log_offset),
            "commitLogMaxOffset": str(store.max_log_offset),
            codec.CONFIRMED_KEY: str(store.confirmed_log_offset),
            "commitLogDiskRatio": used_ratio,
            f"commitLogDiskRatio_{store.options.log_dir}": used_ratio,
            "consumeQueueDiskRatio": used_ratio,
            "commitLogDirCapacity": f"Total : {_render_gib(total)}, Free : {_render_gib(free)}.",
            "dispatchBehindBytes": str(store.appended.value - store.dispatched.value),
            "remainTransientStoreBufferNumbs": str(facts.pool_free_count),
            "remainHowManyDataToCommit": f"{facts.uncommitted_bytes} B",
            "remainHowManyDataToFlush": f"{store.appended.value - store.flushed.value} B",
            "damagedRangeCount": str(facts.damaged_range_count),
            "damagedBytes": str(facts.damaged_bytes),
            "scrubbedBytes": str(store.recorder.scrubbed_bytes),
            "earliestMessageTimeStamp": str(
                self.core.clock.now_ms() if oldest is None else oldest.stored_at_ms
            ),
        }

    def _schedule(self) -> dict[str, str]:
        """Returns the delivery progress of each delay level: `offset,end of its queue`."""
        queue_max = self.core.store.queue_max
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{queue_max(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self.core.tables.delay_offsets.snapshot().offsets.items()
        }

    def _rates(self, *names: str) -> str:
        now_s = self.core.clock.monotonic()
        windows = zip(*(self.core.stats.rates(name, now_s) for name in names), strict=True)
        return " ".join(f"{sum(rates):.2f}" for rates in windows)


def _quantile_ms(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Returns the bucket bound that covers this share of the values; 0 without values."""
    wanted = ceil(sum(counts) * part)
    reached = 0
    for bound, count in zip((*bounds, bounds[-1]), counts, strict=True):
        reached += count
        if reached >= wanted > 0:
            return bound * 1000
    return 0.0


def _render_age(age_ms: int) -> str:
    minutes, seconds = divmod(age_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _render_gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
