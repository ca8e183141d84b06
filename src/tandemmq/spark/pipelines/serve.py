"""Lands many topics in one session, a lake each (`run_serve`), and adds new ones while it runs.

One loop gives turns to topics. A turn is one batch of one topic (`feed`), in a thread; at most
`batchesAtOnce` turns run at the same time, and the topic that waits longest is next, so that a large topic
delays a small one by one batch at most. A topic whose turn fails is tried again after a pause that doubles;
the others do not notice.

The directory of the service holds its lock, its status, and the orders to pause topics or land them anew
(`served`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any

from tandemmq.errors import ConfigError, TandemError
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.spark.documents import sync_directory, write_document
from tandemmq.spark.lake.files import CONTROL_DIR, Totals
from tandemmq.spark.lake.home import find_lake, hold_directory
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.events import Reporter, TopicBatch, TopicChanged, report_end, report_start
from tandemmq.spark.pipelines.feed import Feed, NumberedTask, RunTasks, StagedRows, TurnResult
from tandemmq.spark.pipelines.lake_job import LOG_FILE, ONCE_RESTARTS_MAX
from tandemmq.spark.pipelines.options import ServeOptions
from tandemmq.spark.pipelines.runner import StopFlag, explain_failure, is_transient, open_session
from tandemmq.spark.pipelines.serve_config import ServeConfig, read_config
from tandemmq.spark.pipelines.served import (
    PAUSED,
    REDO,
    REDO_BEGUN,
    STATUS_FILE,
    begin_redo,
    list_marks,
    remove_mark,
)
from tandemmq.spark.wire import BlockingNameServers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DISCOVER_S = 5.0
STATUS_S = 1.0
STEP_S = 0.1
PAUSE_S_MAX = 300.0
REPLACED = "replaced"


@dataclass(slots=True)
class ServedTopic:
    """A topic of the service. `due_at`: the monotonic time of its next turn; `is_read`: it has nothing left
    to read, or failed for good, since the service began.
    """

    feed: Feed
    due_at: float = 0.0
    state: str = "new"
    error: str = ""
    failures: int = 0
    lost: int = 0
    result: TurnResult | None = None
    batch_time_ms: int = 0
    is_read: bool = False
    turn: Future[TurnResult | None] | None = None

    def describe(self, now: float) -> dict[str, Any]:
        """Returns the topic's part of the status."""
        last = {} if self.result is None else asdict(self.result)
        next_try_s = round(max(0.0, self.due_at - now), 1) if self.error else None
        return {
            "state": self.state,
            "table": self.feed.options.data or str(self.feed.options.out),
            "error": self.error,
            "next_try_seconds": next_try_s,
            "lost": self.lost,
            "batch_time_ms": self.batch_time_ms,
            "total": asdict(self.feed.total),
            **last,
        }


class LakeService:
    """The loop. `run_tasks`: returns the function that runs the tasks of a topic."""

    def __init__(
        self, config: ServeConfig, reporter: Reporter, run_tasks: Callable[[str], RunTasks], *, is_once: bool
    ) -> None:
        self.topics: dict[str, ServedTopic] = {}
        self.error = ""
        self._config = config
        self._reporter = reporter
        self._run_tasks = run_tasks
        self._is_once = is_once
        self._control = config.out / CONTROL_DIR
        self._next_discovery_at = 0.0
        self._next_status_at = 0.0

    def run(self, stop: StopFlag, check_java: Callable[[], None], cancel: Callable[[], None]) -> None:
        """Gives turns until a signal, or, if it runs once, until every topic is read or failed.

        Raises:  the error of `check_java`, which is called repeatedly.
        """
        with ThreadPoolExecutor(self._config.batches_at_once, "turn") as pool:
            try:
                while not stop.is_set and not self._is_done():
                    check_java()
                    self._discover()
                    self._mark_paused()
                    self._give_turns(pool)
                    self._collect(STEP_S)
                    self._write_status()
            finally:
                while any(topic.turn is not None for topic in self.topics.values()):
                    if stop.is_urgent:
                        cancel()
                    self._collect(STEP_S)
                self._write_status(is_last=True)

    def _is_done(self) -> bool:
        is_begun = self._next_discovery_at > 0
        return self._is_once and is_begun and all(topic.is_read for topic in self.topics.values())

    def _discover(self) -> None:
        """Adds the topics that are new since the last time."""
        now = time.monotonic()
        if now < self._next_discovery_at:
            return
        self._next_discovery_at = now + DISCOVER_S
        try:
            found = find_topics(self._config)
            self.error = ""
        except TandemError as error:
            found, self.error = self._config.named, str(error)
        for topic in found:
            rule = self._config.find_rule(topic)
            if rule is not None and topic not in self.topics:
                options = self._config.make_options(topic, rule)
                feed = Feed(
                    options,
                    key=rule.key,
                    ttl_days=rule.ttl_days,
                    is_compacted=rule.is_compacted,
                    is_once=self._is_once,
                )
                self.topics[topic] = ServedTopic(feed)

    def _mark_paused(self) -> None:
        paused = list_marks(self._control / PAUSED)
        for name, topic in self.topics.items():
            is_paused = name in paused
            if is_paused != (topic.state == PAUSED):
                self._change(name, topic, PAUSED if is_paused else "running")
            topic.is_read = topic.is_read or is_paused

    def _give_turns(self, pool: ThreadPoolExecutor) -> None:
        now = time.monotonic()
        free = self._config.batches_at_once - sum(topic.turn is not None for topic in self.topics.values())
        waiting = [
            (topic.due_at, name)
            for name, topic in self.topics.items()
            if topic.turn is None and topic.state != PAUSED and topic.due_at <= now
        ]
        for _, name in sorted(waiting)[: max(0, free)]:
            topic = self.topics[name]
            topic.turn = pool.submit(self._take_turn, name, topic.feed)

    def _take_turn(self, name: str, feed: Feed) -> TurnResult | None:
        obey_redo(self._config.out, name, feed)
        feed.maintain()
        return feed.run_batch(self._run_tasks(name))

    def _collect(self, timeout_s: float) -> None:
        """Waits for turns, and takes the results of those that ended."""
        turns = [topic.turn for topic in self.topics.values() if topic.turn is not None]
        if not turns:
            time.sleep(timeout_s)
            return
        wait(turns, timeout_s, return_when=FIRST_COMPLETED)
        for name, topic in self.topics.items():
            if topic.turn is None or not topic.turn.done():
                continue
            turn, topic.turn = topic.turn, None
            error = turn.exception()
            if error is None:
                self._on_result(name, topic, turn.result())
            else:
                self._on_failure(name, topic, error)

    def _on_result(self, name: str, topic: ServedTopic, result: TurnResult | None) -> None:
        topic.failures = 0
        is_behind = result is not None and result.lag > 0
        topic.due_at = time.monotonic() + (0.0 if is_behind else self._config.poll_s)
        topic.is_read = result is None
        if topic.error or topic.state == "new":
            total, lag = topic.feed.total, 0 if result is None else result.lag
            self._change(
                name, topic, "running", rows_total=total.rows, bad_total=total.bad, lag=lag, lost=topic.lost
            )
        if result is None:
            return
        topic.result, topic.batch_time_ms = result, time.time_ns() // 1_000_000
        topic.lost += max(0, result.lost)
        self._reporter.report(
            TopicBatch(
                topic=name,
                batch=result.batch,
                rows=result.done.rows,
                bad=result.done.bad,
                rows_total=topic.feed.total.rows,
                bytes_total=topic.feed.total.size_bytes,
                bad_total=topic.feed.total.bad,
                lag=result.lag,
                lost=topic.lost,
                seconds=round(result.seconds, 3),
                p50_seconds=result.p50_s,
                p99_seconds=result.p99_s,
            )
        )

    def _on_failure(self, name: str, topic: ServedTopic, error: BaseException) -> None:
        # The next turn begins as a new process would: a failed one may have left the reader in between.
        topic.feed.close()
        pause_s = min(2.0**topic.failures, PAUSE_S_MAX)
        topic.failures += 1
        topic.due_at = time.monotonic() + pause_s
        is_final = not is_transient("".join(format_exception_only(error)))
        topic.is_read = is_final or topic.failures > ONCE_RESTARTS_MAX
        self._change(name, topic, "failing", explain_failure(str(error)) or type(error).__name__, pause_s)

    def _change(
        self,
        name: str,
        topic: ServedTopic,
        state: str,
        error: str = "",
        pause_s: float = 0.0,
        **known: int,
    ) -> None:
        is_new = (topic.state, topic.error) != (state, error)
        topic.state, topic.error = state, error
        if is_new:
            self._reporter.report(
                TopicChanged(topic=name, state=state, error=error, next_try_seconds=pause_s, **known)
            )

    def _write_status(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if now < self._next_status_at and not is_last:
            return
        self._next_status_at = now + STATUS_S
        topics = {name: topic.describe(now) for name, topic in sorted(self.topics.items())}
        document = {"time_ms": time.time_ns() // 1_000_000, "error": self.error, "topics": topics}
        write_document(self._control / STATUS_FILE, document)

    @property
    def total(self) -> Totals:
        return sum((topic.feed.total for topic in self.topics.values()), Totals())


def find_topics(config: ServeConfig) -> tuple[str, ...]:
    """Returns the topics to serve: those that are named, and those that exist, match a pattern, and have a
    name that brokers accept. Lakes and marks are named after their topics.

    Raises:  BrokerUnreachable if no name server answers.
    """
    patterns = [rule for rule in config.rules if rule.pattern]
    if not patterns:
        return config.named
    options = parse_options(config.make_options("any", patterns[0]).source_options(), is_streaming=True)
    name_servers = BlockingNameServers(options.name_servers, options.pull_timeout_s, options.security)
    listed = (name for name in name_servers.list_topics() if not topic_fault(name))
    there = (name for name in listed if config.find_rule(name) is not None)
    return tuple(dict.fromkeys((*config.named, *sorted(there))))


def obey_redo(out: Path, topic: str, feed: Feed) -> None:
    """Moves the topic's lake aside if it is marked to be landed anew.

    A kill between the steps repeats the move, which finds no lake or an empty one.
    Raises:  ConfigError for a table at another address, which this service cannot move.
    """
    control, root = out / CONTROL_DIR, out / topic
    if topic not in list_marks(control / REDO) | list_marks(control / REDO_BEGUN):
        return
    lake = find_lake(root)
    if lake is not None and lake.is_elsewhere:
        raise ConfigError(f"redo: remove the table at {lake.address or lake.table} and {root} yourself first")
    feed.close()
    # Until the directory is held, a redo can fail, and can then still be withdrawn.
    with hold_directory(root) if root.exists() else nullcontext():
        if not begin_redo(out, topic):
            return
        if root.exists():
            replaced = control / REPLACED
            replaced.mkdir(parents=True, exist_ok=True)
            root.rename(replaced / f"{topic}-{time.time_ns() // 1_000_000}")
            sync_directory(out)
    remove_mark(control / REDO_BEGUN, topic)


def run_serve(options: ServeOptions, reporter: Reporter) -> int:
    """Serves until a signal, or with `is_once` until everything is read; returns the exit code: 1 if Java
    ended, or if it runs once and a topic is failing.

    Raises:  ConfigError before anything is started, for a wrong configuration, or a directory that another
             service writes to.
    """
    config = read_config(options.config, options.name_servers)
    config.out.mkdir(parents=True, exist_ok=True)
    log_file = config.out / CONTROL_DIR / LOG_FILE
    settings = (("spark.scheduler.mode", "FAIR"), *options.settings)
    with (
        hold_directory(config.out),
        open_session("serve", options.master, log_file, is_long=True, settings=settings) as (spark, stop),
    ):
        service = LakeService(
            config, reporter, lambda topic: make_runner(spark, topic), is_once=not options.is_continuous
        )
        report_start(reporter, str(options.config), str(config.out), Totals())
        try:
            service.run(stop, lambda: _check_java(spark), spark.sparkContext.cancelAllJobs)
        except JavaEnded as error:
            return report_end(reporter, "error", service.total, str(error))
    failing = sorted(name for name, topic in service.topics.items() if topic.error)
    if failing and not options.is_continuous:
        return report_end(reporter, "error", service.total, f"failing topics: {', '.join(failing)}")
    return report_end(reporter, "signal" if stop.is_set else "done", service.total)


class JavaEnded(TandemError):
    """Spark's Java process ended or was stopped."""


def _check_java(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    try:
        is_stopped = context._jsc.sc().isStopped()
    except Exception as error:
        raise JavaEnded(f"Spark's Java process does not answer any more ({error})") from error
    if is_stopped:
        raise JavaEnded("Spark's session was stopped")


def make_runner(spark: SparkSession, topic: str) -> RunTasks:
    """Returns the function that runs the tasks of a topic in its own pool: Spark shares the cores out evenly
    between pools. Spark's web interface shows the topic as the description of the job.
    """

    def run(work: Callable[[NumberedTask], StagedRows], tasks: Sequence[NumberedTask]) -> list[StagedRows]:
        context = spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", topic)
        context.setJobDescription(topic)
        return list(context.parallelize(tasks, len(tasks)).map(work).collect())

    return run
