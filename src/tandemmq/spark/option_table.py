"""The names, defaults and meaning of the source's options, as data for parser and documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class OptionRow(NamedTuple):
    """One line of the table; `scope` is S (streaming), B (batch) or SB."""

    name: str
    default: str
    scope: str
    text: str
    aliases: tuple[str, ...] = ()


OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow(
        "nameServer",
        "required",
        "SB",
        "`host:port[;host:port]`",
        aliases=("endpoints", "namesrv", "nameServerAddress"),
    ),
    OptionRow(
        "subscribe",
        "one of these three",
        "SB",
        "topics, separated by commas",
        aliases=("topic",),
    ),
    OptionRow(
        "subscribePattern",
        "",
        "SB",
        "a regular expression that must match a whole topic name",
    ),
    OptionRow(
        "assign",
        "",
        "SB",
        'queues as JSON: `{"topic": {"broker-a": [0, 1]}}`, or `{"topic": [0, 1]}` of all brokers',
    ),
    OptionRow(
        "tags",
        "*",
        "SB",
        "`a || b`: the broker sends these tags only; fixed per checkpoint",
        aliases=("subExpression", "tag"),
    ),
    OptionRow(
        "filter",
        "",
        "SB",
        "an SQL92 condition over properties, judged by the broker: `price > 10 AND region = 'EU'`; instead "
        "of `tags`; fixed per checkpoint; brokers, RocketMQ's and ours, need `enablePropertyFilter=true`",
        aliases=("sql",),
    ),
    OptionRow(
        "startingOffsets",
        "latest (S), earliest (B)",
        "SB",
        "`earliest`, `latest` (S), `group` or JSON `{topic: {broker: {queue: offset}}}` with -2 earliest, -1 "
        "latest (S); `{topic: {queue: offset}}` where one broker only has that queue",
    ),
    OptionRow(
        "startingTimestamp",
        "",
        "SB",
        "from the first message stored at or after it: milliseconds, `2025-01-31T12:00:00+01:00` (UTC "
        "without a zone), `now`, `now-1h30m`; wins over `startingOffsets`",
        aliases=("startTimeMs",),
    ),
    OptionRow(
        "startingOffsetsByTimestamp",
        "",
        "SB",
        "JSON `{topic: {broker: {queue: milliseconds}}}`; wins over `startingTimestamp`",
    ),
    OptionRow(
        "startingOffsetsByTimestampStrategy",
        "latest",
        "SB",
        "a queue with nothing since the timestamp: `latest` starts at its end, `error` refuses",
    ),
    OptionRow(
        "endingOffsets",
        "latest",
        "B",
        "`latest` or JSON as above, exclusive",
    ),
    OptionRow(
        "endingTimestamp",
        "",
        "B",
        "up to the first message stored at or after it, exclusive; a time as above",
    ),
    OptionRow(
        "endingOffsetsByTimestamp",
        "",
        "B",
        "JSON as above",
    ),
    OptionRow(
        "failOnDataLoss",
        "true",
        "SB",
        "messages that the broker no longer has: fail, or go on with the first one it has",
    ),
    OptionRow(
        "maxOffsetsPerTrigger",
        "",
        "S",
        "at most so many messages per batch, shared out by backlog",
    ),
    OptionRow(
        "maxBytesPerTrigger",
        "",
        "S",
        "about so many bytes per batch, by the measured size of messages",
    ),
    OptionRow(
        "minOffsetsPerTrigger",
        "",
        "S",
        "wait until so many messages are there, at most `maxTriggerDelay`; the first batch of a run, and "
        "`availableNow`, do not wait",
    ),
    OptionRow(
        "maxTriggerDelay",
        "15m",
        "S",
        "longest wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `2h`, or milliseconds",
    ),
    OptionRow(
        "minPartitions",
        "",
        "SB",
        "split large ranges into at least about so many tasks",
    ),
    OptionRow(
        "maxRecordsPerPartition",
        "",
        "SB",
        "at most so many messages per task",
    ),
    OptionRow(
        "packRecords",
        "20000",
        "SB",
        "neighbouring small ranges share a task up to this many messages; 0: one range per task",
    ),
    OptionRow(
        "group",
        "",
        "SB",
        "consumer group named in pulls; needed for `startingOffsets=group` and `commitProgress`",
        aliases=("consumerGroup",),
    ),
    OptionRow(
        "commitProgress",
        "true with `group`",
        "S",
        "commit the progress of the query as the group's offsets, so that every console shows its lag",
    ),
    OptionRow(
        "readFrom",
        "suggested",
        "SB",
        "`master`, `suggested` (as the broker says) or `prefer-slave`; falls back to another replica "
        "when one is down or has not the range yet",
    ),
    OptionRow(
        "replica",
        "",
        "SB",
        "read this replica and no other: 0 is the master, 1 its first slave; for comparing replicas",
    ),
    OptionRow(
        "maxSlaveLag",
        "",
        "SB",
        "with `prefer-slave`: read from the master while its slave is more than so many bytes behind",
    ),
    OptionRow(
        "columns",
        "all",
        "SB",
        "columns to build, separated by commas; Spark cannot prune by itself; `kafka`: those of Spark's "
        "source for Kafka",
    ),
    OptionRow(
        "includeHeaders",
        "false",
        "SB",
        "with `columns=kafka`: the column `headers`, too",
    ),
    OptionRow(
        "filterPushdown",
        "auto",
        "B",
        "`auto`: read only what the conditions of the query leave, if the session has "
        "`spark.sql.python.filterPushdown.enabled=true`; `off`",
    ),
    OptionRow(
        "propertiesAs",
        "map",
        "SB",
        "`map`, `string` (as stored, cheaper) or `none`",
    ),
    OptionRow(
        "decompress",
        "true",
        "SB",
        "deliver bodies inflated",
    ),
    OptionRow(
        "verifyCrc",
        "false",
        "SB",
        "check the CRC of every body",
    ),
    OptionRow(
        "explain",
        "false",
        "SB",
        "a line `read.planned` in the driver's log for each batch: what is read, what conditions spared, the"
        " lag, slaves that were passed over",
    ),
    OptionRow(
        "arrowRows",
        "5000",
        "SB",
        "at most so many rows per Arrow batch",
    ),
    OptionRow(
        "arrowBytes",
        "2m",
        "SB",
        "about so many bytes per Arrow batch",
    ),
    OptionRow(
        "pullBatchSize",
        "32768",
        "SB",
        "messages asked for in one pull; our brokers answer up to 4 MiB of them, others as they are set up",
    ),
    OptionRow(
        "pullTimeoutMs",
        "3000",
        "SB",
        "deadline of each request",
    ),
    OptionRow(
        "fetchOffset.numRetries",
        "8",
        "SB",
        "attempts per replica round when brokers do not answer",
    ),
    OptionRow(
        "fetchOffset.retryIntervalMs",
        "250",
        "SB",
        "first pause between attempts; doubles up to 16 times itself",
    ),
    OptionRow(
        "namespace",
        "",
        "SB",
        "put before the names of topics and group: `namespace%name`; the column `topic` shows the whole name",
    ),
    OptionRow(
        "accessKey",
        "",
        "SB",
        "ACL: who asks; every request is signed",
    ),
    OptionRow(
        "secretKey",
        "",
        "SB",
        "ACL: what requests are signed with; never sent, shown or stored in checkpoints",
    ),
    OptionRow(
        "securityToken",
        "",
        "SB",
        "ACL: sent along, for temporary credentials",
    ),
    OptionRow(
        "tls",
        "false",
        "SB",
        "TLS to name servers and brokers",
        aliases=("tlsEnable",),
    ),
    OptionRow(
        "tls.ca",
        "the system's",
        "SB",
        "PEM file with the certificates to trust, on every machine",
    ),
    OptionRow(
        "tls.certificate",
        "",
        "SB",
        "PEM file with the certificate to show, and its key unless `tls.key` names it",
    ),
    OptionRow(
        "tls.key",
        "",
        "SB",
        "PEM file with the key of `tls.certificate`",
    ),
    OptionRow(
        "tls.verify",
        "true",
        "SB",
        "`false`: any certificate and name will do",
    ),
)


SECURITY_ROWS = tuple(
    row
    for row in OPTION_TABLE
    if row.name in ("accessKey", "secretKey", "securityToken", "tls") or row.name.startswith("tls.")
)
"""What source and sink have in common."""


def render_option_table(table: Sequence[OptionRow] = OPTION_TABLE) -> str:
    """An option table as Markdown; `docs/spark.md` holds exactly this text."""
    lines = ["| option | default | for | meaning |", "|---|---|---|---|"]
    for row in table:
        also = f" (also `{'`, `'.join(row.aliases)}`)" if row.aliases else ""
        text = row.text.replace("||", r"\|\|")
        lines.append(f"| `{row.name}`{also} | {row.default or '-'} | {row.scope} | {text} |")
    return "\n".join(lines) + "\n"
