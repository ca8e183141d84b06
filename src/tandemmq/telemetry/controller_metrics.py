"""The metrics of controllers and of name servers: their names and meanings.

Those of controllers have RocketMQ's names, which have no prefix, with its labels, units and buckets (spec
metrics 6). `controller/metering.py` reads their values; name servers read their own.
"""

from __future__ import annotations

from typing import Final

from tandemmq.telemetry.metrics import Metric, MetricKind

ELECTION_SERIES_MAX: Final = 8_192
"""The most rows of the counts of elections; then the row that was added first is forgotten."""

LATENCY_BUCKETS_US: Final = (
    1.0, 3.0, 5.0, 10.0, 30.0, 50.0, 100.0, 300.0, 500.0, 1_000.0, 3_000.0, 5_000.0, 10_000.0, 30_000.0,
    50_000.0, 100_000.0, 300_000.0, 500_000.0, 1_000_000.0, 3_000_000.0, 5_000_000.0, 10_000_000.0,
)  # fmt: skip
"""From 1 us to 10 s; the buckets of RocketMQ."""


def _metric(name: str, kind: MetricKind, text: str, *labels: str, bound: str = "1") -> Metric:
    return Metric(name, kind, text, ("address", "group", "peer_id", *labels), bound)


_REQUESTS: Final = "requests of RocketMQ, 12"

ROLE: Final = _metric("role", MetricKind.GAUGE, "3 leader, 2 follower, 1 candidate, 0 not started")
DISK_USAGE: Final = _metric(
    "dledger_disk_usage_bytes", MetricKind.GAUGE, "bytes of the files in controllerStorePath"
)
ACTIVE_BROKERS: Final = _metric(
    "active_broker_num",
    MetricKind.GAUGE,
    "brokers that are alive by their heartbeats to this controller",
    "cluster",
    "broker_set",
    bound="groups of brokers, 8,192",
)
REQUESTS: Final = _metric(
    "request_total",
    MetricKind.COUNTER,
    "requests of brokers and tools. `success`: answered, also with an error code; `failed`: refused by the"
    " guard, busy, or a system error (no majority in time, for example)",
    "request_type",
    "request_handle_status",
    bound=f"{_REQUESTS}, with 2 outcomes each",
)
REQUEST_LATENCY: Final = _metric(
    "request_latency_microseconds",
    MetricKind.HISTOGRAM,
    "times of the requests with `success`",
    "request_type",
    bound=_REQUESTS,
)
OPERATIONS: Final = _metric(
    "dledger_op_total",
    MetricKind.COUNTER,
    "changes that this controller proposed to the others: success, failed, or timeout without a majority",
    "dledger_operation",
    "dLedger_operation_status",
    bound="3",
)
OPERATION_LATENCY: Final = _metric(
    "dledger_op_latency_microseconds",
    MetricKind.HISTOGRAM,
    "times until a majority had confirmed them",
    "dledger_operation",
)
ELECTIONS: Final = _metric(
    "election_total",
    MetricKind.COUNTER,
    "elections of masters that this controller led: new_master_elected, keep_current_master or"
    " no_master_elected",
    "cluster",
    "broker_set",
    "election_result",
    bound=f"{ELECTION_SERIES_MAX:,}",
)

CONTROLLER_TABLE: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""Every metric of a controller, in the order above."""

NETWORK_ANSWERS: Final = Metric(
    "tandemmq_nameserver_network_answers_total",
    MetricKind.COUNTER,
    "answers with the addresses of the network; registered addresses (`internal`) are not counted",
    ("network",),
    "networks, 64, and those of the settings",
)
UNMAPPED_BROKERS: Final = Metric(
    "tandemmq_nameserver_unmapped_brokers_total",
    MetricKind.COUNTER,
    "addresses of brokers in these answers that were the registered one or left out, because the broker has"
    " none in the network",
)

NAMESERVER_READY: Final = Metric(
    "tandemmq_nameserver_ready",
    MetricKind.GAUGE,
    "1 while the conditions of `/health/ready` hold, else 0",
)

NAMESERVER_TABLE: Final[tuple[Metric, ...]] = (NETWORK_ANSWERS, UNMAPPED_BROKERS, NAMESERVER_READY)
"""Every metric of a name server of its own, in the order above."""
