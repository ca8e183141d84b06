"""The rows of the board. Panels of RocketMQ's metrics also show RocketMQ's own brokers.

A broker's own metrics (`tandemmq_...`) have no labels of the broker. `tandemmq_broker_info` has them, once
per process, and `_of_brokers` joins them. RocketMQ's metrics carry `cluster` and `node_id` themselves.
"""

from __future__ import annotations

from typing import Final

from tandemmq.generate.board import Panel, Query, Row, Variable

VARIABLES: Final = (
    Variable("cluster", "rocketmq_topic_number", "Cluster"),
    Variable("node_id", 'rocketmq_topic_number{cluster=~"$cluster"}', "Broker"),
    Variable("topic", 'rocketmq_messages_in_total{cluster=~"$cluster"}', "Topic"),
    Variable("consumer_group", 'rocketmq_consumer_lag_messages{cluster=~"$cluster"}', "Consumer group"),
)

_NODE: Final = '{cluster=~"$cluster", node_id=~"$node_id"}'
_TOPIC: Final = '{cluster=~"$cluster", node_id=~"$node_id", topic=~"$topic"}'
_GROUP: Final = (
    '{cluster=~"$cluster", node_id=~"$node_id", topic=~"$topic", consumer_group=~"$consumer_group"}'
)
_REQUESTS: Final = (
    '{cluster=~"$cluster", node_id=~"$node_id", protocol_type="remoting", is_long_polling="false"}'
)
_BROKERS: Final = 'tandemmq_broker_info{cluster=~"$cluster", broker=~"$node_id"}'
_MASTERS: Final = 'tandemmq_broker_info{cluster=~"$cluster", broker=~"$node_id", role=~".*MASTER"}'
_PROXIES: Final = 'tandemmq_proxy_info{cluster=~"$cluster"}'


def _rate(counter: str) -> str:
    return f"rate({counter}[$__rate_interval])"


def _quantile(share: float, rates: str, *labels: str) -> str:
    """Returns the quantile of a histogram; `rates` are those of its buckets, `labels` tell series apart."""
    return f"histogram_quantile({share}, sum by ({', '.join((*labels, 'le'))}) ({rates}))"


def _of_brokers(expression: str, brokers: str) -> str:
    """Returns the series of these brokers, with the labels `cluster` and `broker`."""
    return f"{expression} * on (job, instance) group_left (cluster, broker) {brokers}"


def _own(expression: str) -> str:
    """Returns a metric of ours, of the chosen brokers, with the name of the broker."""
    return _of_brokers(expression, _BROKERS)


def _of_proxies(expression: str) -> str:
    return f"{expression} * on (job, instance) group_left (proxy) {_PROXIES}"


def _one(title: str, unit: str, expression: str, legend: str, text: str = "") -> Panel:
    return Panel(title, unit, (Query(expression, legend),), text)


def _number(title: str, unit: str, expression: str, text: str = "") -> Panel:
    return Panel(title, unit, (Query(expression, ""),), text, width=4, is_number=True)


def _per_broker(title: str, unit: str, expression: str, text: str = "") -> Panel:
    return _one(title, unit, _own(expression), "{{broker}} {{instance}}", text)


def _per_node(title: str, unit: str, metric: str, text: str = "") -> Panel:
    expression = f"max by (node_id, instance) ({metric}{_NODE})"
    return _one(title, unit, expression, "{{node_id}} {{instance}}", text)


def _per_proxy(title: str, unit: str, metric: str) -> Panel:
    return _one(title, unit, _of_proxies(metric), "{{proxy}} {{instance}}")


def _per_topic(title: str, unit: str, expression: str) -> Panel:
    return _one(title, unit, f"sum by (topic) ({expression})", "{{topic}}")


def _per_group(title: str, unit: str, metric: str, text: str = "", *, combine: str = "sum") -> Panel:
    """Returns a panel with a line per group and topic; each broker has queues of its own."""
    expression = f"{combine} by (consumer_group, topic) (rocketmq_consumer_{metric}{_GROUP})"
    return _one(title, unit, expression, "{{consumer_group}} {{topic}}", text)


def _sums(title: str, unit: str, **expressions: str) -> Panel:
    """Returns a panel with one line per expression: its sum over all brokers or proxies."""
    queries = [
        Query(f"sum({expression})", name.replace("_", " ")) for name, expression in expressions.items()
    ]
    return Panel(title, unit, tuple(queries))


def _durations(title: str, histogram: str, text: str = "") -> Panel:
    """Returns a panel with the median and the 99th percentile of a histogram of ours."""
    rates = _own(_rate(f"{histogram}_bucket"))
    shares = ((0.5, "50 %"), (0.99, "99 %"))
    queries = [
        Query(_quantile(share, rates, "broker", "instance"), f"{name} {{{{broker}}}} {{{{instance}}}}")
        for share, name in shares
    ]
    return Panel(title, "s", tuple(queries), text)


_IN: Final = _rate(f"rocketmq_messages_in_total{_TOPIC}")
_OUT: Final = _rate(f"rocketmq_messages_out_total{_GROUP}")
_BYTES_IN: Final = _rate(f"rocketmq_throughput_in_total{_TOPIC}")
_BYTES_OUT: Final = _rate(f"rocketmq_throughput_out_total{_GROUP}")
_DEAD: Final = f"rocketmq_send_to_dlq_messages_total{_GROUP}"

OVERVIEW: Final = Row(
    "Cluster",
    (
        _number("Brokers", "short", f"count(rocketmq_topic_number{_NODE})", "Masters and slaves."),
        _number("Masters that accept sends", "short", f"sum({_own('tandemmq_store_writeable')})"),
        _number("Messages in", "cps", f"sum({_IN})"),
        _number("Messages out", "cps", f"sum({_OUT})"),
        _number(
            "Oldest message not consumed", "ms", f"max(rocketmq_consumer_lag_latency_milliseconds{_GROUP})"
        ),
        _number("Dead letters in an hour", "short", f"round(sum(increase({_DEAD}[1h]))) or vector(0)"),
        _one("Messages in by broker", "cps", f"sum by (node_id) ({_IN})", "{{node_id}}"),
        _one("Messages out by broker", "cps", f"sum by (node_id) ({_OUT})", "{{node_id}}"),
        Panel(
            "Bytes in and out", "Bps", (Query(f"sum({_BYTES_IN})", "in"), Query(f"sum({_BYTES_OUT})", "out"))
        ),
    ),
    is_closed=False,
)

BROKERS: Final = Row(
    "Brokers",
    (
        _one("Sends by result", "cps", f"sum by (code) ({_own(_rate('tandemmq_sends_total'))})", "{{code}}"),
        _one(
            "Refusals of consumers",
            "cps",
            f"sum by (request, code) ({_own(_rate('tandemmq_consumer_refusals_total'))})",
            "{{request}} {{code}}",
            "Heartbeats, pulls and pops. `tandemmq admin consumerConnection` has the reasons.",
        ),
        Panel(
            "Connections of clients",
            "short",
            (
                Query(f"sum by (language) (rocketmq_producer_connections{_NODE})", "producers {{language}}"),
                Query(f"sum by (language) (rocketmq_consumer_connections{_NODE})", "consumers {{language}}"),
            ),
        ),
        _per_broker("Processor", "percentunit", _rate("tandemmq_process_cpu_seconds_total"), "Of a core."),
        _per_broker(
            "Memory",
            "bytes",
            "tandemmq_process_resident_memory_bytes",
            "With the mapped part of the log, which the system takes back when memory is short.",
        ),
        _per_broker(
            "Open files",
            "percentunit",
            "(tandemmq_process_open_fds / tandemmq_process_max_fds)",
            "Share of the limit.",
        ),
        _one(
            "Time of a request, 99th percentile",
            "ms",
            _quantile(0.99, _rate(f"rocketmq_rpc_latency_milliseconds_bucket{_REQUESTS}"), "request_code"),
            "{{request_code}}",
            "With `enableRemotingMetrics`; without requests that wait for messages.",
        ),
        _per_broker("Held pulls", "short", "tandemmq_held_pulls", "Pulls that wait for messages."),
        _per_broker("Held pops", "short", "tandemmq_held_pops", "Pops that wait for messages."),
    ),
)

LAG: Final = Row(
    "Topics and consumer groups",
    (
        _per_group(
            "Age of the oldest message not consumed",
            "ms",
            "lag_latency_milliseconds",
            "Rises by a second each second while a group is stuck.",
            combine="max",
        ),
        _per_group("Lag", "short", "lag_messages", "Messages in flight and ready."),
        _per_group("In flight", "short", "inflight_messages", "Consumers have these messages."),
        _per_group("Ready", "short", "ready_messages", "No consumer has these messages yet."),
        _per_group("Age of the oldest ready message", "ms", "queueing_latency_milliseconds", combine="max"),
        _one("Dead letters", "cps", f"sum by (consumer_group) ({_rate(_DEAD)})", "{{consumer_group}}"),
        _per_topic("Messages in by topic", "cps", _IN),
        _one(
            "Messages out by group",
            "cps",
            f"sum by (consumer_group, topic) ({_OUT})",
            "{{consumer_group}} {{topic}}",
        ),
        _one(
            "Size of a message",
            "bytes",
            f"sum by (topic) ({_BYTES_IN}) / (sum by (topic) ({_IN}) > 0)",
            "{{topic}}",
            "Mean bytes of a message in the log.",
        ),
    ),
)

REPLICATION: Final = Row(
    "Replication and elections",
    (
        _one(
            "Masters",
            "short",
            _MASTERS,
            "{{broker}} {{instance}}",
            "One line per master: another line means another master.",
        ),
        _one(
            "Slaves in sync",
            "short",
            _of_brokers("tandemmq_slaves_in_sync", _MASTERS),
            "{{broker}} {{instance}}",
        ),
        Panel(
            "States that need attention",
            "short",
            tuple(
                Query(_own(metric), f"{name} {{{{broker}}}} {{{{instance}}}}")
                for metric, name in (
                    ("tandemmq_master_waiting", "master waits"),
                    ("tandemmq_history_doubted", "history doubted"),
                    ("tandemmq_replica_halted", "slave halted"),
                )
            ),
            "0 while all is well.",
        ),
        _one("Lag of slaves", "bytes", _own("tandemmq_slave_lag_bytes"), "{{broker}} {{replica}}"),
        _one("Age of the lag of slaves", "s", _own("tandemmq_slave_lag_seconds"), "{{broker}} {{replica}}"),
        Panel(
            "Silence of the master, age of tables",
            "s",
            (
                Query(_own("tandemmq_master_silence_seconds"), "silence {{broker}} {{instance}}"),
                Query(_own("tandemmq_config_sync_age_seconds"), "tables {{broker}} {{instance}}"),
            ),
            "On slaves: time since the last bytes of the log, and since all tables were equal.",
        ),
        _one(
            "Sends that wait",
            "short",
            _own("tandemmq_sends_waiting"),
            "{{wait}} {{broker}} {{instance}}",
            "In the log, but not yet on disk (flush) or on slaves (acks).",
        ),
        _durations("Wait of a send for slaves", "tandemmq_store_ack_wait_seconds"),
    ),
)

STORAGE: Final = Row(
    "Storage",
    (
        _per_broker(
            "Disk in use", "percentunit", "tandemmq_disk_used_ratio", "Sends are refused above 90 %."
        ),
        _per_node(
            "Not yet on disk",
            "bytes",
            "rocketmq_storage_flush_behind_bytes",
            "A power cut loses these bytes, unless a slave has them.",
        ),
        _per_node("Not yet readable", "bytes", "rocketmq_storage_dispatch_behind_bytes"),
        _durations("Flush to disk", "tandemmq_store_flush_seconds"),
        _durations(
            "Write into the log",
            "tandemmq_store_append_batch_seconds",
            "All sends of one turn of the event loop, into the page cache.",
        ),
        _per_node("Age of the oldest message", "ms", "rocketmq_storage_message_reserve_time_milliseconds"),
        _per_broker(
            "Size of the log", "bytes", "(tandemmq_store_max_offset_bytes - tandemmq_store_min_offset_bytes)"
        ),
        _per_broker(
            "Reads from disk",
            "cps",
            _rate("tandemmq_store_reads_beyond_memory_total"),
            "Pulls of messages that are older than what memory can hold.",
        ),
        _per_broker("Damaged bytes", "bytes", "tandemmq_store_damaged_bytes"),
    ),
)

DELAYED: Final = Row(
    "Pops, timers and transactions",
    (
        _sums(
            "Pops",
            "cps",
            popped=_own(_rate("tandemmq_popped_messages_total")),
            acknowledged=_own(_rate("tandemmq_pop_acks_total")),
            extended=_own(_rate("tandemmq_pop_changes_total")),
            delivered_again=_own(_rate("tandemmq_pop_revived_total")),
            dead_letters=_own(_rate("tandemmq_pop_dead_letters_total")),
        ),
        _per_broker("Leases of pops", "short", "tandemmq_pop_leases"),
        _per_topic("Delayed messages that wait", "short", f"rocketmq_timing_messages{_TOPIC}"),
        _sums(
            "Delayed messages in and out",
            "cps",
            scheduled=_rate(f"rocketmq_timer_enqueue_total{_TOPIC}"),
            delivered=_rate(f"rocketmq_timer_dequeue_total{_TOPIC}"),
        ),
        _per_topic("Open transactions", "short", f"rocketmq_half_messages{_TOPIC}"),
        _sums(
            "Ends of transactions",
            "cps",
            committed=_rate(f"rocketmq_commit_messages_total{_TOPIC}"),
            rolled_back=_rate(f"rocketmq_rollback_messages_total{_TOPIC}"),
        ),
    ),
)

_CALLS: Final = _of_proxies(_rate("tandemmq_proxy_calls_total"))
_FAILURES: Final = _of_proxies(_rate('tandemmq_proxy_calls_total{code!~"OK|MESSAGE_NOT_FOUND"}'))
_REFUSED: Final = _of_proxies(_rate("tandemmq_proxy_refused_total"))
_CALL_TIMES: Final = _of_proxies(_rate("tandemmq_proxy_call_seconds_bucket"))

PROXIES: Final = Row(
    "gRPC proxies",
    (
        _one("Calls", "cps", f"sum by (rpc) ({_CALLS})", "{{rpc}}"),
        _one("Calls without success", "cps", f"sum by (rpc, code) ({_FAILURES})", "{{rpc}} {{code}}"),
        _one("Time of a call, 99th percentile", "s", _quantile(0.99, _CALL_TIMES, "rpc"), "{{rpc}}"),
        _one("Refused at a bound", "cps", f"sum by (limit) ({_REFUSED})", "{{limit}}"),
        _sums(
            "Messages in and out",
            "cps",
            received=_of_proxies(_rate("tandemmq_proxy_messages_in_total")),
            delivered=_of_proxies(_rate("tandemmq_proxy_messages_out_total")),
        ),
        _sums(
            "Bytes in memory",
            "bytes",
            requests=_of_proxies("tandemmq_proxy_request_bytes"),
            sends=_of_proxies("tandemmq_proxy_send_bytes"),
            answers=_of_proxies("tandemmq_proxy_answer_bytes"),
        ),
        _per_proxy("Connections", "short", "tandemmq_proxy_connections"),
        _one(
            "Clients", "short", f"sum by (language) ({_of_proxies('tandemmq_proxy_clients')})", "{{language}}"
        ),
        _per_proxy("Held receives", "short", "tandemmq_proxy_held_receives"),
    ),
)

_CONTROLLER: Final = '{peer_id!=""}'
"""Selects controllers: other servers may have metrics of these names, which have no prefix."""
_OF_GROUPS: Final = '{cluster=~"$cluster", peer_id!=""}'

CONTROLLERS: Final = Row(
    "Controllers",
    (
        _one(
            "Role",
            "short",
            f"max by (peer_id, group, instance) (role{_CONTROLLER})",
            "{{group}} {{peer_id}}",
            "3 leader, 2 follower, 1 candidate. One controller of a group must lead.",
        ),
        _one(
            "Elections of masters",
            "cps",
            f"sum by (broker_set, election_result) ({_rate(f'election_total{_OF_GROUPS}')})",
            "{{broker_set}} {{election_result}}",
        ),
        _one(
            "Brokers alive",
            "short",
            f"max by (cluster, broker_set) (active_broker_num{_OF_GROUPS})",
            "{{cluster}} {{broker_set}}",
        ),
        _one(
            "Requests",
            "cps",
            f"sum by (request_type, request_handle_status) ({_rate(f'request_total{_CONTROLLER}')})",
            "{{request_type}} {{request_handle_status}}",
        ),
        _one(
            "Time of a change, 99th percentile",
            "µs",
            _quantile(0.99, _rate(f"dledger_op_latency_microseconds_bucket{_CONTROLLER}"), "peer_id"),
            "{{peer_id}}",
            "Time until a majority has a change on the disk.",
        ),
        _one("Disk", "bytes", f"dledger_disk_usage_bytes{_CONTROLLER}", "{{group}} {{peer_id}}"),
    ),
)

ROWS: Final = (OVERVIEW, BROKERS, LAG, REPLICATION, STORAGE, DELAYED, PROXIES, CONTROLLERS)
