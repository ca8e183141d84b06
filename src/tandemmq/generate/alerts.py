"""Prometheus' alert rules, as data and as the structure of their YAML file.

Each alert names the section of the runbooks that says what to do. `severity` is `page` when messages are
refused, late or in danger now, else `ticket`. Thresholds are for a cluster in use; the file may be edited.
Rates of 2 minutes that must last for 3 ignore what a single failover breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tandemmq.generate.promql import MASTERS, of_brokers

PAGE: Final = "page"
TICKET: Final = "ticket"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `summary` is Prometheus' template, `runbook` an anchor in the runbooks' page."""

    name: str
    expression: str
    wait: str
    severity: str
    summary: str
    runbook: str


_PAIR: Final = "cluster, consumer_group, topic"
_GROUP: Final = "{{ $labels.consumer_group }} on {{ $labels.topic }}"
_BROKER: Final = "{{ $labels.broker }} ({{ $labels.instance }})"
_GROUP_SIZE: Final = (
    "count by (cluster, broker)"
    " (count by (cluster, broker, instance) (last_over_time(tandemmq_broker_info[1d])))"
)
"""The members of a broker name, with those that died today."""

CONSUMERS: Final = (
    Alert(
        "TandemMQConsumerLate",
        f'max by ({_PAIR}) (rocketmq_consumer_lag_latency_milliseconds{{is_system="false"}}) / 1000 > 300',
        "5m",
        PAGE,
        f"{_GROUP} is {{{{ $value | humanizeDuration }}}} behind",
        "a-consumer-group-falls-behind",
    ),
    Alert(
        "TandemMQConsumerBacklogGrows",
        f'sum by ({_PAIR}) (rocketmq_consumer_ready_messages{{is_system="false"}}) > 10000'
        f' and sum by ({_PAIR}) (deriv(rocketmq_consumer_ready_messages{{is_system="false"}}[10m])) > 0',
        "10m",
        TICKET,
        f'{_GROUP} has {{{{ $value | printf "%.0f" }}}} messages to consume, and the number grows',
        "a-consumer-group-falls-behind",
    ),
    Alert(
        "TandemMQDeadLetters",
        "sum by (cluster, consumer_group) (increase(rocketmq_send_to_dlq_messages_total[10m])) > 0",
        "0m",
        TICKET,
        "messages of {{ $labels.consumer_group }} became dead letters",
        "messages-become-dead-letters",
    ),
    Alert(
        "TandemMQConsumersRefused",
        f"sum by (cluster, broker, request, code)"
        f" ({of_brokers('rate(tandemmq_consumer_refusals_total[2m])')}) > 0",
        "5m",
        TICKET,
        "{{ $labels.broker }} refuses {{ $labels.request }} of consumers: {{ $labels.code }}",
        "a-consumer-gets-nothing",
    ),
)

_FAILED_SENDS: Final = of_brokers('rate(tandemmq_sends_total{code!="SUCCESS"}[2m])')

SENDS: Final = (
    Alert(
        "TandemMQNoMaster",
        f"{_GROUP_SIZE} unless count by (cluster, broker) ({MASTERS})",
        "30s",
        PAGE,
        "{{ $labels.broker }} has no master",
        "a-group-has-no-master",
    ),
    Alert(
        "TandemMQMasterRefusesSends",
        f"{of_brokers('tandemmq_store_writeable', MASTERS)} == 0",
        "30s",
        PAGE,
        f"{_BROKER} accepts no messages",
        "sends-are-refused",
    ),
    Alert(
        "TandemMQSendsRefused",
        f"sum by (cluster, broker, code) ({_FAILED_SENDS}) > 0",
        "3m",
        TICKET,
        "{{ $labels.broker }} answers sends with {{ $labels.code }}",
        "sends-are-refused",
    ),
    Alert(
        "TandemMQHalfMessagesGrow",
        "sum by (cluster, topic) (rocketmq_half_messages) > 100"
        " and sum by (cluster, topic) (deriv(rocketmq_half_messages[15m])) > 0",
        "15m",
        TICKET,
        '{{ $labels.topic }} has {{ $value | printf "%.0f" }} open transactions, and the number grows',
        "transactions-stay-open",
    ),
)

STORAGE: Final = (
    Alert(
        "TandemMQDiskFilling",
        f"{of_brokers('tandemmq_disk_used_ratio')} > 0.75",
        "10m",
        TICKET,
        f"the disk of {_BROKER} is {{{{ $value | humanizePercentage }}}} full",
        "the-disk-is-full",
    ),
    Alert(
        "TandemMQDiskFull",
        f"{of_brokers('tandemmq_disk_used_ratio')} > 0.88",
        "1m",
        PAGE,
        f"the disk of {_BROKER} is {{{{ $value | humanizePercentage }}}} full; sends are refused above 90 %",
        "the-disk-is-full",
    ),
    Alert(
        "TandemMQFlushBehind",
        "max by (cluster, node_id, instance) (rocketmq_storage_flush_behind_bytes) > 268435456",
        "2m",
        TICKET,
        "{{ $labels.node_id }} ({{ $labels.instance }}) has {{ $value | humanize1024 }}B not on disk",
        "the-disk-is-slow",
    ),
    Alert(
        "TandemMQDispatchBehind",
        "max by (cluster, node_id, instance) (rocketmq_storage_dispatch_behind_bytes) > 16777216",
        "2m",
        PAGE,
        "consumers of {{ $labels.node_id }} do not see the last {{ $value | humanize1024 }}B",
        "the-disk-is-slow",
    ),
    Alert(
        "TandemMQDiskSlow",
        "histogram_quantile(0.99, sum by (cluster, broker, instance, le)"
        f" ({of_brokers('rate(tandemmq_store_flush_seconds_bucket[5m])')})) > 0.5",
        "10m",
        TICKET,
        f"a flush of {_BROKER} takes {{{{ $value | humanizeDuration }}}}",
        "the-disk-is-slow",
    ),
    Alert(
        "TandemMQLogDamaged",
        f"{of_brokers('tandemmq_store_damaged_ranges')} > 0",
        "0m",
        PAGE,
        f"the log of {_BROKER} is damaged",
        "the-log-is-damaged",
    ),
)

REPLICATION: Final = (
    Alert(
        "TandemMQNoSlaveInSync",
        f"{of_brokers('tandemmq_slaves_in_sync', MASTERS)} == 0 and on (cluster, broker) ({_GROUP_SIZE}) > 1",
        "1m",
        PAGE,
        f"no slave of {_BROKER} is in sync",
        "a-slave-falls-behind",
    ),
    Alert(
        "TandemMQSlaveBehind",
        f"{of_brokers('tandemmq_slave_lag_seconds')} > 10",
        "1m",
        TICKET,
        "the slave {{ $labels.replica }} of {{ $labels.broker }} is {{ $value | humanizeDuration }} behind",
        "a-slave-falls-behind",
    ),
    Alert(
        "TandemMQTablesOld",
        f"{of_brokers('tandemmq_config_sync_age_seconds')} > 60",
        "1m",
        TICKET,
        f"{_BROKER} would lack topics and offsets after a failover",
        "a-slave-falls-behind",
    ),
    Alert(
        "TandemMQMasterWaits",
        f"{of_brokers('tandemmq_master_waiting')} == 1",
        "30s",
        PAGE,
        f"{_BROKER} serves nothing until its slaves are back",
        "a-master-serves-nothing-and-waits-for-its-slaves",
    ),
    Alert(
        "TandemMQHistoryDiffers",
        f"{of_brokers('tandemmq_history_doubted')} == 1"
        f" or {of_brokers('increase(tandemmq_history_differed_total[10m])')} > 0",
        "30s",
        PAGE,
        f"the history of {_BROKER} does not fit: a disk was restored, lost, or is of another cluster",
        "a-history-does-not-fit",
    ),
    Alert(
        "TandemMQSlaveHalted",
        f"{of_brokers('tandemmq_replica_halted')} == 1",
        "0m",
        PAGE,
        f"{_BROKER} has stopped copying until you decide",
        "a-slave-has-halted",
    ),
)

SERVERS: Final = (
    Alert(
        "TandemMQScrapeFailed",
        'up{job=~".*tandemmq.*"} == 0',
        "1m",
        PAGE,
        "{{ $labels.instance }} does not answer Prometheus",
        "a-server-does-not-answer",
    ),
    Alert(
        "TandemMQNameServerUnready",
        'up{job=~".*tandemmq.*"} == 0 and on (job, instance) last_over_time(tandemmq_nameserver_ready[1d])'
        " or tandemmq_nameserver_ready == 0",
        "1m",
        PAGE,
        "the name server {{ $labels.instance }} is down or not ready",
        "a-name-server-is-not-ready",
    ),
    Alert(
        "TandemMQControllersLeaderless",
        'max by (job, group) (role{peer_id!=""}) < 3',
        "30s",
        PAGE,
        "no controller of {{ $labels.group }} leads, so no master can be elected",
        "the-controllers-have-no-leader",
    ),
    Alert(
        "TandemMQFewFilesLeft",
        "tandemmq_process_open_fds / tandemmq_process_max_fds > 0.9",
        "5m",
        TICKET,
        "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its files open",
        "a-server-reaches-a-bound",
    ),
    Alert(
        "TandemMQProxyUnready",
        "sum by (job, instance) (rate(tandemmq_proxy_cache_failures_total[2m])) > 0",
        "3m",
        PAGE,
        "the proxy {{ $labels.instance }} gets no answers from name servers or brokers",
        "a-proxy-is-not-ready",
    ),
    Alert(
        "TandemMQProxyCallsFail",
        'sum by (job, instance, rpc) (rate(tandemmq_proxy_calls_total{code=~"INTERNAL.*"}[2m])) > 0',
        "3m",
        TICKET,
        "{{ $labels.rpc }} fails at the proxy {{ $labels.instance }}",
        "a-proxy-is-not-ready",
    ),
    Alert(
        "TandemMQProxyRefuses",
        "sum by (job, instance, limit) (rate(tandemmq_proxy_refused_total[2m])) > 0",
        "3m",
        TICKET,
        "the proxy {{ $labels.instance }} refuses requests at the bound {{ $labels.limit }}",
        "a-server-reaches-a-bound",
    ),
)

GROUPS: Final = {
    "tandemmq-consumers": CONSUMERS,
    "tandemmq-sends": SENDS,
    "tandemmq-storage": STORAGE,
    "tandemmq-replication": REPLICATION,
    "tandemmq-servers": SERVERS,
}


def render_table() -> str:
    """Returns the alerts as a Markdown table, for the documentation."""
    lines = ["| alert | severity | after | what to do |", "|---|---|---|---|"]
    for alert in (one for group in GROUPS.values() for one in group):
        section = alert.runbook.replace("-", " ")
        link = f"[{section}](runbooks.md#{alert.runbook})"
        lines.append(f"| `{alert.name}` | {alert.severity} | {alert.wait} | {link} |")
    return "\n".join(lines) + "\n"


def render_rules(runbooks: str) -> dict[str, Any]:
    """Returns the groups of rules as Prometheus reads them; `runbooks` is the address of the page."""
    groups = [
        {"name": name, "rules": [_rule(one, runbooks) for one in found]} for name, found in GROUPS.items()
    ]
    return {"groups": groups}


def _rule(alert: Alert, runbooks: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook_url": f"{runbooks}#{alert.runbook}"},
    }
