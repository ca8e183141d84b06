"""Shows dead letters grouped by error and age, and resends selected ones to their topics.

A resent dead letter is recorded by queue and offset, and is not sent a second time. A round that was killed
between sending and recording is sent again with the same unique keys, derived from the positions of the dead
letters; consumers can drop those.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tandemmq.errors import ConfigError, TandemError
from tandemmq.spark.columns import PLACE
from tandemmq.spark.lake.files import Totals
from tandemmq.spark.metadata import QueriedCluster
from tandemmq.spark.options import ALL, parse_options
from tandemmq.spark.pipelines.events import (
    BarChart,
    Cell,
    Event,
    Reporter,
    ReportTable,
    report_end,
    report_start,
)
from tandemmq.spark.pipelines.options import DeadLetterOptions
from tandemmq.spark.pipelines.replay import (
    ReplayState,
    choose_stored,
    load_state,
    make_key,
    send_frame,
)
from tandemmq.spark.pipelines.runner import Workplace, attempt, open_workplace
from tandemmq.spark.sink.options import parse_sink_options


class DeadLettersSeen(Event, frozen=True, kw_only=True):
    """The number of selected dead letters; `kinds`: groups of one topic, error and age."""

    kind = "dead_letters"
    is_lasting = True
    is_result = True

    group: str
    messages: int
    kinds: int

    def render(self) -> str:
        if not self.messages:
            return f"{self.group}: no dead letters"
        return f"{self.group}: {self.messages:,} dead letters of {self.kinds} kinds"


class DeadLetter(Event, frozen=True, kw_only=True):
    """One dead letter. `stored_at`: the time of its death, UTC; `id`: the id of the original message."""

    kind = "dead_letter"
    is_lasting = True
    is_result = True
    table = "The oldest"

    stored_at: str
    origin: str
    id: str
    keys: str
    retries: int
    error: str
    body: str

    def render(self) -> str:
        keys = f" keys {self.keys}" if self.keys else ""
        return f"{self.stored_at} {self.origin} {self.id}{keys}: {self.error}: {self.body}"


AGES = ((1, "under an hour"), (24, "under a day"), (7 * 24, "under a week"), (30 * 24, "under a month"))
OLDER = "a month and more"
ORIGIN_TOPICS = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC", "REAL_TOPIC")
ORIGIN_IDS = ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")
_PLACE_DDL = "topic string, brokerName string, queueId int, queueOffset bigint"
GROUPS_SHOWN = 100
KINDS_MAX = 10_000
"""The maximum number of groups that are counted; errors that contain ids form a group each."""
RESEND_ROWS = 1_000
"""The number of dead letters that are sent, and then recorded, at a time."""


def run_dead_letters(options: DeadLetterOptions, reporter: Reporter) -> int:
    """Runs the pipeline and returns the exit code: 0 when done or after a signal, 1 after an error."""
    parse_options(options.source_options(), is_streaming=False)
    parse_sink_options({**options.sink_options(), "topic": "any"})
    state = load_state(options.state, options.plan()) if options.state is not None else None
    with open_workplace(options, reporter) as place:
        return DeadLetters(place, options, state).run()


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one group in a session."""

    place: Workplace
    options: DeadLetterOptions
    state: ReplayState | None
    seen: int = 0

    def run(self) -> int:
        """Shows the dead letters, and resends them if requested; returns the exit code."""
        options, reporter = self.options, self.place.reporter
        target = (options.to_topic or "their topics") if options.resend else "a list"
        report_start(reporter, options.topic, target, self.state.total if self.state else Totals())
        reason, error = self.place.repeat(
            # A refused round is reported like a failed one: the next round may differ.
            lambda: attempt(self._report_groups, refused=()),
            options.pause_s,
        )
        total = self.state.total if self.state else Totals(rows=self.seen, size_bytes=0)
        return report_end(reporter, reason, total, error)

    def _report_groups(self) -> None:
        self.seen = 0
        source = parse_options(self.options.source_options(), is_streaming=False)
        if not QueriedCluster(source).describe().queues:
            # The topic is created with the first dead letter.
            self.place.report(DeadLettersSeen(group=self.options.group, messages=0, kinds=0))
            return
        # Persisted, so that showing, grouping and resending see the same dead letters.
        frame = self.read().persist()
        try:
            self._browse(frame)
            if self.options.resend:
                self._resend(frame)
        finally:
            with suppress(Exception):
                frame.unpersist()

    def read(self) -> DataFrame:
        """Returns the selected dead letters with their `error`, `age`, `origin` topic and `originId`."""
        options = self.options
        source = {"columns": ALL, **options.source_options()}
        frame = self.place.spark.read.format("tandemmq").options(**source).load()
        return choose(describe(frame, options.error_property), options)

    def _browse(self, frame: DataFrame) -> None:
        groups = self.place.jobs.run(
            lambda: (
                frame.groupBy("origin", "error", "age")
                .agg(*_counts())
                .orderBy("count", ascending=False)
                .limit(KINDS_MAX)
                .collect()
            )
        )
        first = self.place.jobs.run(
            lambda: frame.orderBy("storeTimestamp", *PLACE).limit(self.options.shown).collect()
        )
        self.seen = sum(row["count"] for row in groups)
        self.place.report(DeadLettersSeen(group=self.options.group, messages=self.seen, kinds=len(groups)))
        self.place.report(_group_charts(groups[:GROUPS_SHOWN]))
        self.place.report(_error_charts(groups))
        for row in first if self.options.shown else ():
            self.place.report(_make_letter(row))

    def _resend(self, frame: DataFrame) -> None:
        """Sends the dead letters that were not sent before, a bounded number at a time, oldest first in each
        queue.
        """
        assert self.state is not None
        round_number = 0
        while True:
            rows = self.place.jobs.run(lambda: self._next_origins(frame))
            if not rows:
                return
            began = time.monotonic()
            size_bytes = self.place.jobs.run(partial(self._send, frame, rows))
            share, rest = divmod(size_bytes, len(rows))
            for index, row in enumerate(rows):
                self.state.done[_render_origin(row)] = (1, share + (index < rest))
            self.state.write()
            done = Totals(len(rows), size_bytes)
            self.place.report_batch(round_number, done, self.state.total, None, began)
            round_number += 1
            if len(rows) < RESEND_ROWS:
                return

    def _next_origins(self, frame: DataFrame) -> list[Any]:
        """Returns positions and origins of the next dead letters to send."""
        assert self.state is not None
        frame = frame.select(*PLACE, "origin")
        done = [_parse_origin(name) for name in self.state.done]
        if done:
            sent = self.place.spark.createDataFrame(done, _PLACE_DDL)
            frame = frame.join(sent, on=list(PLACE), how="left_anti")
        rows: list[Any] = frame.orderBy(*PLACE).limit(RESEND_ROWS).collect()
        lost = [row for row in rows if not (self.options.to_topic or row["origin"])]
        if lost:
            raise ConfigError(
                f"dead letter {_render_origin(lost[0])} has no topic of origin; exclude it with --where, or "
                "set a topic with --to"
            )
        return rows

    def _send(self, frame: DataFrame, rows: list[Any]) -> int:
        """Sends the dead letters at these positions; returns the bytes of their bodies."""
        options = self.options
        wanted = [tuple(row[name] for name in PLACE) for row in rows]
        places = self.place.spark.createDataFrame(wanted, _PLACE_DDL)
        target = f.lit(options.to_topic) if options.to_topic else f.col("origin")
        messages = (
            frame.join(f.broadcast(places), on=list(PLACE))
            .repartition(1)
            .sortWithinPartitions(*PLACE)
            .select(
                target.alias("topic"),
                "body",
                "tags",
                "keys",
                "properties",
                "flag",
                make_key("dead letter").alias("uniqueKey"),
            )
        )
        count, size_bytes = send_frame(messages, options.sink_options())
        if count != len(rows):
            raise TandemError(f"{len(rows)} dead letters were chosen, {count} were sent")
        return size_bytes


def describe(frame: DataFrame, error_property: str) -> DataFrame:
    """Returns the dead letters with their origin, the error, and their age."""

    def first(names: tuple[str, ...]) -> Any:
        return f.coalesce(*(f.col("properties").getItem(name) for name in names))

    hours = (f.unix_millis(f.current_timestamp()) - f.unix_millis("storeTimestamp")) / 3_600_000
    age = f.lit(OLDER)
    for limit, name in reversed(AGES):
        age = f.when(hours < limit, name).otherwise(age)
    retries = f.concat(f.lit("given back "), f.col("reconsumeTimes").cast("string"), f.lit(" times"))
    return (
        frame.withColumn("error", f.coalesce(f.col("properties").getItem(error_property), retries))
        .withColumn("age", age)
        .withColumn("origin", first(ORIGIN_TOPICS))
        .withColumn("originId", f.coalesce(first(ORIGIN_IDS), f.col("msgId")))
    )


def choose(frame: DataFrame, options: DeadLetterOptions) -> DataFrame:
    """Returns the dead letters that the options select."""
    if options.ids:
        frame = frame.where(f.col("msgId").isin(*options.ids) | f.col("originId").isin(*options.ids))
    if options.keys:
        wanted = f.array(*(f.lit(key) for key in options.keys))
        frame = frame.where(f.arrays_overlap(f.split(f.coalesce("keys", f.lit("")), " "), wanted))
    return choose_stored(frame, options)


def _counts() -> list[Any]:
    return [
        f.count("*").alias("count"),
        f.date_format(f.min("storeTimestamp"), "yyyy-MM-dd HH:mm:ss").alias("first"),
        f.date_format(f.max("storeTimestamp"), "yyyy-MM-dd HH:mm:ss").alias("last"),
        f.min("originId").alias("example"),
    ]


def _group_charts(groups: list[Any]) -> ReportTable:
    names = ("origin", "error", "age", "count", "first", "last", "example")
    rows: tuple[tuple[Cell, ...], ...] = tuple(tuple(row[name] for name in names) for row in groups)
    note = f"the {GROUPS_SHOWN} largest groups" if len(rows) == GROUPS_SHOWN else ""
    return ReportTable(title="By topic, error and age", columns=names, rows=rows, note=note)


def _error_charts(groups: list[Any]) -> BarChart:
    counts: dict[str, float] = {}
    for row in groups:
        counts[row["error"]] = counts.get(row["error"], 0) + row["count"]
    bars = tuple(sorted(counts.items(), key=lambda item: -item[1]))
    return BarChart(title="By error", unit="", bars=bars)


def _make_letter(row: Any) -> DeadLetter:
    body = bytes(row["body"] or b"")[:120].decode("utf-8", "replace")
    return DeadLetter(
        # The times in Spark's rows are in the local time zone, without saying so.
        stored_at=row["storeTimestamp"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        origin=row["origin"] or "",
        id=row["originId"] or "",
        keys=row["keys"] or "",
        retries=row["reconsumeTimes"],
        error=row["error"],
        body=body,
    )


def _render_origin(row: Any) -> str:
    return "/".join(str(row[name]) for name in PLACE)


def _parse_origin(name: str) -> tuple[str, str, int, int]:
    topic, broker, queue, offset = name.rsplit("/", 3)
    return topic, broker, int(queue), int(offset)
