"""The metrics of a broker that have RocketMQ's names, labels and units (spec metrics 1 and 2).

`broker/lag.py` reads their values. RocketMQ's dashboards and alerts work with them unchanged.
"""

from __future__ import annotations

from typing import Final

from tandemmq.telemetry.metrics import Metric, MetricKind

PAIR_SERIES_MAX: Final = 1_000
"""The most pairs of a group and a topic with series; `PAIRS_WITHOUT_SERIES` counts the others."""

_NODE: Final = ("cluster", "node_type", "node_id")
_OF_PAIR: Final = (*_NODE, "topic", "consumer_group", "is_retry", "is_system")
_PAIRS: Final = f"{PAIR_SERIES_MAX:,} groups and topics; twice as many with retry topics of pops"


def _of_pair(name: str, text: str) -> Metric:
    return Metric(f"rocketmq_consumer_{name}", MetricKind.GAUGE, text, _OF_PAIR, _PAIRS)


LAG_MESSAGES: Final = _of_pair(
    "lag_messages", "messages of the topic that the group has not consumed: in flight and ready"
)
INFLIGHT_MESSAGES: Final = _of_pair(
    "inflight_messages", "messages that consumers got and have neither committed nor acknowledged"
)
READY_MESSAGES: Final = _of_pair("ready_messages", "messages that no consumer of the group got yet")
LAG_LATENCY: Final = _of_pair(
    "lag_latency_milliseconds", "age of the oldest message that is not consumed; 0 without one"
)
QUEUEING_LATENCY: Final = _of_pair(
    "queueing_latency_milliseconds", "age of the oldest message that no consumer got yet; 0 without one"
)
PAIRS_WITHOUT_SERIES: Final = Metric(
    "tandemmq_consumer_pairs_without_series",
    MetricKind.GAUGE,
    f"groups and topics without series of their lag: beyond {PAIR_SERIES_MAX:,}, those with the least lag",
)

ROCKETMQ_TABLE: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""Every metric, in the order above."""
