"""The metrics of controllers and of name servers: their names and meanings.

Those of controllers have RocketMQ's names, which have no prefix, with its labels, units and buckets (spec
metrics 6). `controller/metering.py` reads their values; name servers read their own.
"""

from __future__ import annotations

from typing import Final

from tandemmq.telemetry.metrics import MetricNamespace, metrics_of

ELECTION_SERIES_MAX: Final = 8_192
"""The most rows of the counts of elections; then the row that was added first is forgotten."""

LATENCY_BUCKETS_US: Final = (
    1.0, 3.0, 5.0, 10.0, 30.0, 50.0, 100.0, 300.0, 500.0, 1_000.0, 3_000.0, 5_000.0, 10_000.0, 30_000.0,
    50_000.0, 100_000.0, 300_000.0, 500_000.0, 1_000_000.0, 3_000_000.0, 5_000_000.0, 10_000_000.0,
)  # fmt: skip
"""From 1 us to 10 s; the buckets of RocketMQ."""

_CONTROLLER = MetricNamespace("", ("address", "group", "peer_id"), bound="1")
_NAMESERVER = MetricNamespace("tandemmq_nameserver_")
_REQUESTS: Final = "requests of RocketMQ, 12"

ROLE: Final = _CONTROLLER.gauge("role", "3 leader, 2 follower, 1 candidate, 0 not started")
DISK_USAGE: Final = _CONTROLLER.gauge("dledger_disk_usage_bytes", "bytes of the files in controllerStorePath")
ACTIVE_BROKERS: Final = _CONTROLLER.gauge(
    "active_broker_num",
    "brokers that are alive by their heartbeats to this controller",
    "cluster broker_set",
    bound="groups of brokers, 8,192",
)
REQUESTS: Final = _CONTROLLER.counter(
    "request_total",
    "requests of brokers and tools. `success`: answered, also with an error code; `failed`: refused by the"
    " guard, busy, or a system error (no majority in time, for example)",
    "request_type request_handle_status",
    bound=f"{_REQUESTS}, with 2 outcomes each",
)
REQUEST_LATENCY: Final = _CONTROLLER.histogram(
    "request_latency_microseconds", "times of the requests with `success`", "request_type", bound=_REQUESTS
)
OPERATIONS: Final = _CONTROLLER.counter(
    "dledger_op_total",
    "changes that this controller proposed to the others: success, failed, or timeout without a majority",
    "dledger_operation dLedger_operation_status",
    bound="3",
)
OPERATION_LATENCY: Final = _CONTROLLER.histogram(
    "dledger_op_latency_microseconds", "times until a majority had confirmed them", "dledger_operation"
)
ELECTIONS: Final = _CONTROLLER.counter(
    "election_total",
    "elections of masters that this controller led: new_master_elected, keep_current_master or"
    " no_master_elected",
    "cluster broker_set election_result",
    bound=f"{ELECTION_SERIES_MAX:,}",
)

CONTROLLER_TABLE: Final = metrics_of(globals())

NETWORK_ANSWERS: Final = _NAMESERVER.counter(
    "network_answers_total",
    "answers with the addresses of the network; registered addresses (`internal`) are not counted",
    "network",
    bound="networks, 64, and those of the settings",
)
UNMAPPED_BROKERS: Final = _NAMESERVER.counter(
    "unmapped_brokers_total",
    "addresses of brokers in these answers that were the registered one or left out, because the broker has"
    " none in the network",
)
NAMESERVER_READY: Final = _NAMESERVER.gauge("ready", "1 while the conditions of `/health/ready` hold, else 0")

NAMESERVER_TABLE: Final = (NETWORK_ANSWERS, UNMAPPED_BROKERS, NAMESERVER_READY)
"""Every metric of a name server of its own, in the order above."""
