"""Rebuild: ConsumeQueues and key index from the CommitLog of a stopped store, in parallel.

One task per segment reads the log; then one task per group of queues, and one for the key index, write the
files. They lie in a directory of their own, byte-equal to what a broker that recovers the log would write;
the store is not touched. A log that is damaged in its middle is refused: what that costs is for
`tandemmq store repair --accept-damage` to be told.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tandemmq.errors import ConfigError, StoreError, TandemError
from tandemmq.protocol.delay_levels import DELAY_LEVELS_MS
from tandemmq.spark.pipelines.events import Event, Reporter, Started, Stopped, Totals, make_batch_done
from tandemmq.spark.pipelines.exhibits import Table
from tandemmq.spark.pipelines.jobs import Interrupted, Jobs
from tandemmq.spark.pipelines.rebuild_parts import (
    INDEX_DIR,
    QUEUES_DIR,
    WORK_DIR,
    QueueName,
    Segment,
    SegmentFacts,
    build_index,
    build_queue,
    keep_queue,
    read_facts,
    scan_segment,
)
from tandemmq.spark.pipelines.replay_state import load_state
from tandemmq.spark.pipelines.runner import StopFlag, explain_failure
from tandemmq.spark.pipelines.sessions import open_session
from tandemmq.store.inspect.changes import compare_indexes, compare_queues
from tandemmq.store.inspect.files import (
    holds_files,
    list_offset_files,
    require_store,
    shared_lock,
    usual_size,
)
from tandemmq.store.inspect.index_check import IndexLayout, guess_layout, list_index_files
from tandemmq.store.inspect.log_walk import used_count
from tandemmq.store.inspect.queue_files import QueueFiles, list_queues
from tandemmq.store.inspect.repair import INDEX_LAYOUT, QUEUE_FILE_BYTES
from tandemmq.store.options import QUEUE_UNIT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildStep(Event):
    """Spark's tasks of a stage that are done."""

    kind = "step"
    is_tick = True

    stage: str
    tasks_done: int
    tasks: int
    seconds: float

    def render(self) -> str:
        return f"{self.stage}: {self.tasks_done} of {self.tasks} tasks, {self.seconds:.0f} s"


T = TypeVar("T")

QUEUES_PER_TASK = 16
CHANGES_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """What `tandemmq pipeline rebuild` can be told. None: as the store's files are now, else the defaults."""

    store: Path
    out: Path
    log_dir: Path | None = None
    has_index: bool | None = None
    queue_file_bytes: int | None = None
    index_layout: IndexLayout | None = None
    delays_ms: tuple[int, ...] = DELAY_LEVELS_MS
    master: str = "local[*]"


@dataclass(slots=True)
class _Plan:
    """What is to be built."""

    segments: list[Segment]
    old_queues: dict[QueueName, QueueFiles]
    old_index: list[Path]
    queue_file_bytes: int
    layout: IndexLayout | None
    facts: list[SegmentFacts] = field(default_factory=list)

    @property
    def log_begin(self) -> int:
        return self.segments[0].file.base

    @property
    def log_end(self) -> int:
        return max([self.log_begin, *(facts.intact_end for facts in self.facts)])


def run_rebuild(options: RebuildOptions, reporter: Reporter) -> int:
    """The process's exit code: 0 everything is built or a signal asked for the end, 1 the log is damaged or
    something failed.

    Raises:  StoreError when a broker runs on the store or there is nothing to build from; ConfigError for an
             output that belongs to something else.
    """
    require_store(options.store, options.log_dir or options.store / "commitlog")
    with shared_lock(options.store / "lock"):
        plan = plan_rebuild(options)
        claim_output(options, plan)
        with open_session(f"rebuild {options.store}", options.master) as (spark, stop):
            return Rebuild(spark, options, plan, reporter, stop).run()


def plan_rebuild(options: RebuildOptions) -> _Plan:
    """Looks at the store's files. Raises StoreError."""
    log_dir = options.log_dir or options.store / "commitlog"
    files = list_offset_files(log_dir).files
    used = files[: used_count(files)]
    if not used:
        raise StoreError(f"{log_dir} holds no records: there is nothing to build from")
    for before, after in pairwise(used):
        if before.end != after.base:
            raise StoreError(f"{after.path} does not follow {before.path}: the log has a gap")
    for name in ("batchconsumequeue", "consumequeue_rocksdb"):
        if holds_files(options.store / name):
            raise StoreError(f"{options.store / name}: this form of queues is only known to RocketMQ")
    queues = list_queues(options.store / QUEUES_DIR)
    size = options.queue_file_bytes or usual_size([f for queue in queues.values() for f in queue.all.files])
    if size % QUEUE_UNIT_BYTES:
        raise StoreError(f"ConsumeQueue files of {size} bytes do not hold whole entries")
    return _Plan(
        segments=[Segment(file=file, is_last=file is used[-1]) for file in used],
        old_queues=queues,
        old_index=list_index_files(options.store / INDEX_DIR),
        queue_file_bytes=size or QUEUE_FILE_BYTES,
        layout=_choose_layout(options),
    )


def _choose_layout(options: RebuildOptions) -> IndexLayout | None:
    """The form of the key index; None for no index."""
    directory = options.store / INDEX_DIR
    if not (directory.is_dir() if options.has_index is None else options.has_index):
        return None
    old = list_index_files(directory)
    layout = options.index_layout or (guess_layout(old[0].stat().st_size) if old else INDEX_LAYOUT)
    if layout is None:
        raise StoreError(f"{old[0]}: its numbers of slots and entries are not known; give --index-entries")
    return layout


def claim_output(options: RebuildOptions, plan: _Plan) -> None:
    """Writes down what is built in the output directory. Raises ConfigError when it is something else."""
    work = options.out / WORK_DIR
    if options.out.exists() and not work.is_dir() and any(options.out.iterdir()):
        raise ConfigError(f"{options.out} is not empty and no rebuild wrote it")
    last = plan.segments[-1].file
    layout = plan.layout
    state = load_state(
        work / "plan.json",
        {
            "store": str(options.store.resolve()),
            "log": f"{plan.log_begin} to {last.end}, {last.path.stat().st_mtime_ns}",
            "queue file bytes": str(plan.queue_file_bytes),
            "index": "none" if layout is None else f"{layout.slot_count} slots, {layout.entry_count} entries",
        },
    )
    state.write()


class Rebuild:
    """One rebuild in a session."""

    def __init__(
        self, spark: SparkSession, options: RebuildOptions, plan: _Plan, reporter: Reporter, stop: StopFlag
    ) -> None:
        self._spark = spark
        self._options = options
        self._plan = plan
        self._reporter = reporter
        self._jobs = Jobs(spark, stop)
        self._work = options.out / WORK_DIR
        self._began = time.monotonic()

    def run(self) -> int:
        """The exit code."""
        self._reporter.report(
            Started(topic=str(self._options.store), out=str(self._options.out), rows_total=0, bytes_total=0)
        )
        try:
            self._read_segments()
            self._refuse_damage()
            self._build()
            self._compare()
        except Interrupted:
            return self._end("signal")
        except TandemError as error:
            return self._end("error", str(error))
        except Exception as error:  # noqa: BLE001  (failures of Spark and py4j share no class)
            return self._end("error", explain_failure(str(error)))
        shutil.rmtree(self._work)
        return self._end("done")

    def _read_segments(self) -> None:
        plan, has_index = self._plan, self._plan.layout is not None
        known = {s.file.base: read_facts(self._work, s.file.base) for s in plan.segments}
        missing = [segment for segment in plan.segments if known[segment.file.base] is None]
        scan = partial(
            scan_segment, work=self._work.absolute(), delays_ms=self._options.delays_ms, has_index=has_index
        )
        known |= {facts.base: facts for facts in self._run("reading segments", scan, missing)}
        facts_of = [facts for s in plan.segments if (facts := known[s.file.base]) is not None]
        last = plan.segments[-1]
        if facts_of[-1].damages and len(facts_of) > 1:
            # Whether records behind damage are left-overs is told by the time of those in front of the file.
            (facts_of[-1],) = self._run(
                "reading the last segment", scan, [replace(last, newest_ms=facts_of[-2].newest_ms)]
            )
        plan.facts = facts_of
        total = Totals(rows=sum(f.records for f in facts_of), size_bytes=sum(f.size for f in facts_of))
        seconds = time.monotonic() - self._began
        self._reporter.report(make_batch_done(0, total, total, lag=0, seconds=seconds))

    def _refuse_damage(self) -> None:
        plan = self._plan
        middle = [damage for facts in plan.facts for damage in facts.damages if damage[0] < plan.log_end]
        if middle:
            at, reason = middle[0]
            raise StoreError(
                f"the log is damaged in {len(middle)} places, first at log offset {at}: {reason}. "
                "tandemmq store repair --accept-damage builds from what is left"
            )
        if any(facts.inner_batches for facts in plan.facts):
            raise StoreError("the log holds batches whose queues only RocketMQ knows (batchconsumequeue)")

    def _build(self) -> None:
        plan, out = self._plan, self._options.out.absolute()
        parts: dict[QueueName, list[tuple[int, int]]] = {}
        for facts in plan.facts:
            for number, key in enumerate(facts.queues):
                parts.setdefault(key, []).append((facts.base, number))
        works: list[Callable[[], int]] = []
        if plan.layout is not None:
            bases = [facts.base for facts in plan.facts]
            old = [Path(path.name) for path in plan.old_index]
            works.append(partial(build_index, out, bases, plan.layout, old, plan.log_end))
        works += [
            partial(build_queue, out, key, parts[key], plan.queue_file_bytes, plan.log_end)
            for key in sorted(parts)
        ]
        works += [
            partial(keep_queue, out, old_queue, plan.queue_file_bytes, plan.log_begin, plan.log_end)
            for key, old_queue in sorted(plan.old_queues.items())
            if key not in parts
        ]
        (out / QUEUES_DIR).mkdir(parents=True, exist_ok=True)
        counts = self._run("building", _call, works)
        if plan.layout is not None:
            counts = counts[1:]
        rows = tuple(
            (topic, queue, count) for (topic, queue), count in zip(sorted(parts), counts, strict=False)
        )
        self._reporter.report(Table(title="ConsumeQueues", columns=("topic", "queue", "entries"), rows=rows))

    def _compare(self) -> None:
        """Tells how the store's present files differ from the new ones."""
        out = self._options.out
        changes = compare_queues(self._plan.old_queues, list_queues(out / QUEUES_DIR), self._plan.log_begin)
        if self._plan.layout is not None:
            change = compare_indexes(self._options.store / INDEX_DIR, out / INDEX_DIR)
            changes += [change] if change else []
        rows = tuple((line,) for line in changes[:CHANGES_SHOWN])
        self._reporter.report(Table(title="What the store has otherwise", columns=("difference",), rows=rows))
        text = (
            f"the store's own files differ in {len(changes)} places" if changes else "the store has the same"
        )
        self._reporter.report(
            RebuildStep(stage=text, tasks_done=1, tasks=1, seconds=round(time.monotonic() - self._began, 1))
        )

    def _run(self, stage: str, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """The results of `work` for each item, computed by Spark's tasks."""
        if not items:
            return []

        def tick(done: int, total: int) -> None:
            seconds = round(time.monotonic() - self._began, 1)
            step = RebuildStep(stage=stage, tasks_done=done, tasks=max(total, slices), seconds=seconds)
            self._reporter.report(step)

        slices = max(1, min(len(items), -(-len(items) // QUEUES_PER_TASK) if work is _call else len(items)))
        context = self._spark.sparkContext
        return self._jobs.run(lambda: context.parallelize(list(items), slices).map(work).collect(), tick)

    def _end(self, reason: str, error: str = "") -> int:
        self._reporter.report(
            Stopped(
                reason=reason,
                rows_total=sum(facts.records for facts in self._plan.facts),
                bytes_total=sum(facts.size for facts in self._plan.facts),
                error=error,
            )
        )
        return 1 if reason == "error" else 0


def _call(work: Callable[[], T]) -> T:
    return work()
