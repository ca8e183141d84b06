"""`make metrics`: a broker of RocketMQ 5.5 and ours under one load, and what both serve at /metrics.

Every series of Java's broker must be one of ours, with the same name, labels and kind. Counts and bytes are
equal within 1 %; times need only exist. `OWN_FAMILIES` and the tables after it list each difference with its
reason.
The last line is `METRICS OK series=N equal=N missing=0`, or `METRICS FAILED` with exit code 1.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clusters import HOST, java_cluster, our_cluster
from java_peers import LINE_5, jars, missing_tools
from metrics_load import run_load
from prometheus_client.parser import text_string_to_metric_families

from ports import free_port

PREFIX: Final = "rocketmq_"
TOLERANCE: Final = 0.01
SCRAPE_PAUSE_S: Final = 2.0
SCRAPES_MAX: Final = 40
SETTINGS: Final = {
    "metricsExporterType": "PROM",
    "metricsPromExporterHost": HOST,
    "transactionCheckInterval": 3_600_000,
    "enableRemotingMetrics": "true",
}

OWN_FAMILIES: Final = {
    "topic_number": "each broker creates other topics for itself",
    "pop_buffer_scan_time_consume_milliseconds": "our broker scans no buffer of pops",
    "pop_offset_buffer_size": "our broker has no buffer of offsets",
    "pop_checkpoint_buffer_size": "Java's buffer forgets a lease after seconds; ours holds it until it ends",
    "pop_revive_lag_milliseconds": "our broker has no revive topic",
    "pop_revive_latency_milliseconds": "our broker has no revive topic",
    "pop_revive_out_message_total": "our broker has no revive topic",
    "timer_dequeue_lag": "Java's wheel also holds the entries of pops",
    "timer_message_snapshot": "Java's wheel also holds the entries of pops",
}
"""Families of Java that are not compared, by the reason."""

TIMES: Final = {
    "consumer_lag_latency_milliseconds": "the brokers run one after the other",
    "consumer_queueing_latency_milliseconds": "the brokers run one after the other",
    "storage_message_reserve_time_milliseconds": "the brokers run one after the other",
    "storage_size_bytes": "bytes used on the file system, by whatever uses it",
    "storage_flush_behind_bytes": "a flush may be under way",
    "timer_dequeue_latency_milliseconds": "a time within a tick of the wheel",
    "topic_create_execution_time_milliseconds": "time of a request",
    "consumer_group_create_execution_time_milliseconds": "time of a request",
    "rpc_latency_milliseconds": "time of a request",
}
"""Families whose series and kinds are the same; of histograms the counts are equal, too."""

RPCS: Final = ("send_message_v2", "send_batch_message", "ack_message")
"""The requests that are compared: the load decides their number. That of heartbeats and pulls depends
on time, and of `end_transaction` Java counts only those with a decision.
"""

JAVAS_TOPICS: Final = {"rmq_sys_REVIVE_LOG_DefaultCluster": "the topic of Java's pops"}

IGNORED_LABELS: Final = {"otel_scope_name": "names the library that Java uses"}
LABELS_ABSENT_IN_JAVA: Final = {
    "messages_out_total": {"is_retry": "false"},
    "throughput_out_total": {"is_retry": "false"},
}
"""Labels that Java gives pops only; ours always have them."""

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Scrape:
    """The series of one broker. `families`: the family of each series; `kinds`: those of the families."""

    values: dict[Key, float] = field(default_factory=dict)
    families: dict[Key, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def read(text: str) -> Scrape:
    """The series of a text with RocketMQ's names, without the labels that do not count."""
    scrape = Scrape()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith(PREFIX):
                continue
            name = sample.name.removeprefix(PREFIX)
            labels = {key: value for key, value in sample.labels.items() if key not in IGNORED_LABELS}
            added = LABELS_ABSENT_IN_JAVA.get(name, {})
            if labels.get("request_code", RPCS[0]) not in RPCS:
                continue
            key = name, tuple(sorted({**added, **labels}.items()))
            of = next((name.removesuffix(s) for s in _suffixes(family.type) if name.endswith(s)), name)
            scrape.values[key], scrape.families[key], scrape.kinds[of] = sample.value, of, family.type
    return scrape


def _suffixes(kind: str) -> tuple[str, ...]:
    return ("_bucket", "_count", "_sum") if kind == "histogram" else ()


@dataclass
class Comparison:
    """The result: the number of Java's series that count, of those whose values are equal, and the faults."""

    series: int = 0
    equal: int = 0
    missing: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def compare(java: Scrape, ours: Scrape) -> Comparison:
    found = Comparison()
    for key, value in java.values.items():
        family, labels = java.families[key], dict(key[1])
        if family in OWN_FAMILIES or labels.get("topic") in JAVAS_TOPICS:
            continue
        found.series += 1
        if key not in ours.values:
            found.missing.append(_shown(key))
        elif java.kinds[family] != ours.kinds[family]:
            found.faults.append(f"{_shown(key)}: {java.kinds[family]} in Java, {ours.kinds[family]} here")
        elif family in TIMES and not key[0].endswith("_count"):
            continue
        elif abs(ours.values[key] - value) > TOLERANCE * abs(value):
            found.faults.append(f"{_shown(key)}: {value:g} in Java, {ours.values[key]:g} here")
        else:
            found.equal += 1
    known = set(java.kinds) | set(OWN_FAMILIES)
    for family in sorted(set(ours.kinds) - known):
        found.faults.append(f"{family}: only here")
    found.faults += [
        f"{_shown(key)}: only here"
        for key in ours.values.keys() - java.values.keys()
        if ours.families[key] in java.kinds and ours.families[key] not in OWN_FAMILIES
    ]
    return found


def _shown(key: Key) -> str:
    labels = ", ".join(
        f"{name}={value}" for name, value in key[1] if name not in ("cluster", "node_type", "node_id")
    )
    return f"{key[0]}{{{labels}}}"


async def scrape_at_rest(port: int) -> Scrape:
    """The scrape whose counts are those of the one before."""
    before: Mapping[Key, float] = {}
    for _ in range(SCRAPES_MAX):
        await asyncio.sleep(SCRAPE_PAUSE_S)
        scrape = read(await asyncio.to_thread(_fetch, port))
        counts = {
            key: value
            for key, value in scrape.values.items()
            if scrape.families[key] not in TIMES and scrape.families[key] not in OWN_FAMILIES
        }
        if counts == before:
            return scrape
        before = counts
    raise AssertionError(f"port {port} gave other counts in each of {SCRAPES_MAX} scrapes")


def _fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


async def _measure(name_server: str, address: str, port: int) -> Scrape:
    clients = await run_load(name_server, address)
    try:
        return await scrape_at_rest(port)
    finally:
        await clients.close()


def scrape_java(directory: Path) -> Scrape:
    port = free_port(HOST)
    settings = {**SETTINGS, "metricsPromExporterPort": port, "mappedFileSizeCommitLog": 16 << 20}
    with java_cluster(LINE_5, directory) as cluster:
        broker = cluster.start_java(LINE_5, "broker-a", settings)
        return asyncio.run(_measure(cluster.name_server, broker.address, port))


def scrape_ours(directory: Path) -> Scrape:
    port = free_port(HOST)
    with our_cluster(directory) as cluster:
        broker = cluster.start_ours("broker-a", {**SETTINGS, "metricsPromExporterPort": port})
        return asyncio.run(_measure(cluster.name_server, broker.address, port))


def main() -> int:
    if missing := missing_tools():
        print(f"METRICS FAILED {', '.join(missing)} missing: install a JDK (11 or newer) and Maven")
        return 1
    jars(LINE_5.servers)
    with tempfile.TemporaryDirectory() as directory:
        java, ours = scrape_java(Path(directory) / "java"), scrape_ours(Path(directory) / "ours")
    found = compare(java, ours)
    for line in (*(f"missing: {name}" for name in found.missing), *found.faults):
        print(line)
    is_good = not found.missing and not found.faults
    result = f"series={found.series} equal={found.equal} missing={len(found.missing)}"
    print(f"METRICS {'OK' if is_good else 'FAILED'} {result}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
