"""The metrics of a gRPC proxy: their names and meanings. `proxy/metrics.py` reads their values.

The names that begin with `rocketmq` are those of RocketMQ, with its labels, units and buckets; ours say more.
Those of the process are in `telemetry.metrics`.

Strategy: a call costs one count and one observation when it ends; all other values are read at a scrape.
"""

from __future__ import annotations

from typing import Final

from tandemmq.telemetry.metrics import MetricNamespace, metrics_of

CALL_BUCKETS_S: Final = (
    0.0005, 0.001, 0.003, 0.005, 0.007, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0,
)  # fmt: skip
"""Up to the time for a call at a broker; with the buckets of RocketMQ."""

POLL_BUCKETS_S: Final = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0)
"""Up to a poll time and the wait for the answer behind it; with the buckets of RocketMQ."""


_ROCKETMQ = MetricNamespace("rocketmq_", ("cluster", "node_type", "node_id"))
_PROXY = MetricNamespace("tandemmq_proxy_")
_counter, _gauge, _seconds = _PROXY.counter, _PROXY.gauge, _PROXY.histogram

_RPCS = "rpcs, 22"
_CACHES = "4: routes, topics, groups, users"

PROXY_UP: Final = _ROCKETMQ.gauge(
    "proxy_up", "RocketMQ's: always 1; the labels identify the proxy", "proxy_mode", bound="1"
)
RPC_LATENCY: Final = _ROCKETMQ.histogram(
    "rpc_latency_milliseconds",
    "RocketMQ's: the times of `tandemmq_proxy_call_seconds`, and those of `tandemmq_proxy_poll_seconds`",
    "protocol_type request_code is_long_polling",
    bound=_RPCS,
)
PROXY_INFO: Final = _gauge(
    "info", "always 1; the labels identify the proxy", "cluster proxy version", bound="1"
)

# Calls
CALLS: Final = _counter(
    "calls_total",
    "calls that have ended: `code` is the code of the answer or, without one, the gRPC status",
    "rpc code",
    bound=f"{_RPCS}, with the codes of each",
)
CALL_SECONDS: Final = _seconds(
    "call_seconds",
    "time from the headers of a call to its answer; long polls and streams are not included",
    "rpc",
    bound=_RPCS,
)
POLL_SECONDS: Final = _seconds(
    "poll_seconds",
    "the same of receives and pulls, which wait for messages",
    "rpc",
    bound="2: ReceiveMessage, PullMessage",
)
OPEN_CALLS: Final = _gauge("open_calls", "calls in flight", "kind", bound="2: unary, stream")
REQUEST_BYTES: Final = _gauge("request_bytes", "bytes of requests in memory")
REFUSED: Final = _counter(
    "refused_total",
    "requests that were refused because a bound was reached; renewals: messages that are not renewed",
    "limit",
    bound="11: connections, calls, streams, request_bytes, send_bytes, receives, answer_bytes, pulls,"
    " clients, renewals, users",
)
CONNECTIONS: Final = _gauge("connections", "open connections of clients")

# Messages
MESSAGES_IN: Final = _counter("messages_in_total", "messages that brokers have stored for clients")
BYTES_IN: Final = _counter("message_in_bytes_total", "bytes of the bodies of these messages")
MESSAGES_OUT: Final = _counter("messages_out_total", "messages delivered by receives and pulls")
BYTES_OUT: Final = _counter("message_out_bytes_total", "bytes of the bodies of these messages, as stored")
SEND_BYTES: Final = _gauge("send_bytes", "bytes of messages on their way to brokers")
ANSWER_BYTES: Final = _gauge("answer_bytes", "bytes of received and pulled messages on their way to clients")
HELD_RECEIVES: Final = _gauge("held_receives", "receives that wait for messages")
HELD_PULLS: Final = _gauge("held_pulls", "pulls that wait for messages")

# Clients
CLIENTS: Final = _gauge(
    "clients", "known clients by language, as they name it", "language", bound="languages of RocketMQ, 16"
)
TELEMETRY_STREAMS: Final = _gauge("telemetry_streams", "clients with an open telemetry stream")
DROPPED_COMMANDS: Final = _counter(
    "dropped_commands_total", "commands that a client did not get: it does not read, or is gone"
)

# Renewals of push consumers' messages
RENEWED_MESSAGES: Final = _gauge("renewed_messages", "messages whose leases this proxy renews")
RENEWALS: Final = _counter("renewals_total", "renewals of leases that succeeded")
RENEWALS_FAILED: Final = _counter("failed_renewals_total", "renewals of leases that failed")
RELEASES: Final = _counter("releases_total", "leases released because their client is gone")

# Caches of the answers of brokers
CACHE_HITS: Final = _counter(
    "cache_hits_total", "values returned without a wait for a query", "cache", bound=_CACHES
)
CACHE_QUERIES: Final = _counter(
    "cache_queries_total", "queries at name servers and brokers", "cache", bound=_CACHES
)
CACHE_FAILURES: Final = _counter("cache_failures_total", "queries that failed", "cache", bound=_CACHES)

PROXY_TABLE: Final = metrics_of(globals())
