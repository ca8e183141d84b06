"""The state of a whole cluster: its brokers with roles, rates and stores, as each broker reports it."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.api import broker_admin
from tandemmq.manage.reach import ask_each
from tandemmq.manage.tools import Target, Tools, targets_of
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.units import MASTER_ID

WORST_MAX: Final = 10
LAG_TIMEOUT_S: Final = 10.0
"""A broker with thousands of groups needs seconds to sum them up."""
DIGITS_MAX: Final = 18
_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d+)?(?!\d)")
"""A number that fits into 64 bits: any server may report facts as a broker."""


@dataclass(frozen=True, slots=True)
class BrokerReading:
    """One broker's answer. `facts` is its runtime information, empty when it did not answer; `error` is the
    reason then; `is_denied` tells that its access control refused the request.
    """

    target: Target
    facts: Mapping[str, str]
    error: str = ""
    is_denied: bool = False

    @property
    def address(self) -> str:
        return self.target.address

    @property
    def is_master(self) -> bool:
        return self.target.broker_id == MASTER_ID

    @property
    def role(self) -> str:
        """The role by its registration, which clients follow."""
        return "master" if self.is_master else "slave"

    @property
    def version(self) -> str:
        return self.facts.get("brokerVersionDesc", "")

    @property
    def in_rate(self) -> float | None:
        """Messages stored per second, lately."""
        return first_rate(self.facts.get("putTps"))

    @property
    def out_rate(self) -> float | None:
        """Messages sent to consumers per second, lately."""
        return first_rate(sent_rates(self.facts))

    @property
    def disk_share(self) -> float | None:
        """The used share of the log's disk, 0 to 1."""
        return _number(self.facts.get("commitLogDiskRatio"))

    @property
    def started_at_ms(self) -> int | None:
        return count_of(self.facts.get("bootTimestamp"))

    @property
    def stored_today(self) -> int | None:
        """Messages stored since midnight of the broker's zone."""
        return counted_between(self.facts, "Put", "TodayMorning", "TodayNow")


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """One read of all registered brokers."""

    at_ms: int
    name_servers: tuple[str, ...]
    brokers: tuple[BrokerReading, ...]

    @property
    def answering(self) -> tuple[BrokerReading, ...]:
        """The brokers that answered, also with a refusal: other requests may be allowed."""
        return tuple(one for one in self.brokers if not one.error or one.is_denied)

    @property
    def masters(self) -> list[Target]:
        """The masters among the brokers that answered."""
        return [one.target for one in self.answering if one.is_master]

    @property
    def in_rate(self) -> float:
        """Messages stored per second at all masters."""
        return sum(one.in_rate or 0.0 for one in self.brokers if one.is_master)

    @property
    def out_rate(self) -> float:
        """Messages sent to consumers per second by all brokers."""
        return sum(one.out_rate or 0.0 for one in self.brokers)


async def read_cluster(tools: Tools, now_ms: int) -> ClusterReading:
    """Asks the name server for the brokers and each broker for its runtime information, all at once.

    Raises:  the errors of the name server; a broker's error is part of its reading.
    """
    targets = targets_of(await tools.cluster_admin.cluster_info())

    found = await ask_each(targets, lambda one: broker_admin.query_runtime_info(tools.remoting, one.address))
    readings = tuple(BrokerReading(one.target, one.answer or {}, one.error, one.is_denied) for one in found)
    return ClusterReading(now_ms, tools.cluster_admin.name_servers, readings)


# Lag of consumers


@dataclass(frozen=True, slots=True)
class LagReading:
    """The unread messages of all groups, and the groups with the most, at most WORST_MAX."""

    at_ms: int
    total: int
    group_count: int
    worst: tuple[tuple[str, int], ...]
    errors: tuple[str, ...]


async def read_lag(tools: Tools, masters: Iterable[Target], now_ms: int) -> LagReading:
    """Asks each master for the progress of all its groups, with two requests. Groups without a committed
    offset do not count, nor do retries.
    """

    async def read(target: Target) -> dict[str, int]:
        sums: dict[str, int] = {}
        for is_ordered in (False, True):
            query = broker_admin.query_all_consume_stats
            found = await query.within(LAG_TIMEOUT_S, tools.remoting, target.address, is_ordered=is_ordered)
            for group, stats in found.items():
                lag = sum(
                    max(0, one.broker_offset - max(one.committed_offset, 0))
                    for queue, one in stats.queues.items()
                    if not is_retry_topic(queue.topic)
                )
                sums[group] = sums.get(group, 0) + lag
        return sums

    answers = await ask_each(masters, read, timeout_s=2 * LAG_TIMEOUT_S)
    sums: dict[str, int] = {}
    for one in answers:
        for group, lag in (one.answer or {}).items():
            sums[group] = sums.get(group, 0) + lag
    worst = heapq.nlargest(WORST_MAX, sums.items(), key=lambda one: one[1])
    errors = tuple(f"{one.target.address}: {one.error}" for one in answers if one.error)
    shown = tuple(one for one in worst if one[1])
    return LagReading(now_ms, sum(sums.values()), len(sums), shown, errors)


# Figures in a broker's runtime information


def counted_between(facts: Mapping[str, str], way: str, begin: str, end: str) -> int | None:
    """Returns the messages received (Put) or sent (Get) between two of a broker's counters; None when the
    broker does not report them.
    """
    try:
        return int(facts[f"msg{way}Total{end}"]) - int(facts[f"msg{way}Total{begin}"])
    except (KeyError, ValueError):
        return None


def first_rate(text: str | None) -> float | None:
    """Returns the newest of the rates that a broker reports as `10s 60s 600s`."""
    try:
        return round(float((text or "").split()[0]), 1)
    except (IndexError, ValueError):
        return None


def sent_rates(facts: Mapping[str, str]) -> str | None:
    """Returns the rates of sent messages, which versions of RocketMQ spell differently."""
    return facts.get("getTransferredTps") or facts.get("getTransferedTps")


def _number(text: str | None) -> float | None:
    found = _NUMBER.search(text or "")
    return None if found is None else float(found.group())


def count_of(text: str | None) -> int | None:
    """Returns a count that a server reports; None without one, and for one that 64 bits cannot hold."""
    return int(text) if text and text.isdecimal() and len(text) <= DIGITS_MAX else None
